//! Which rule serves which request, and whom the fate of a proposal concerns.

use super::proposals::Purpose;
use super::request::{Caller, Request, Response, Token};
use super::{Leader, Ticket, Turn};
use crate::config::limits;
use crate::state::command::{Command, Outcome};
use crate::types::{LogIndex, Refusal};

impl Leader {
    /// A request, while this node leads.
    pub(super) fn dispatch(&mut self, turn: &mut Turn<'_>, caller: &Caller, token: Token, request: Request) {
        if self.proposals.len() >= limits::PROPOSALS_IN_FLIGHT_MAX && may_propose(&request) {
            return turn.reply(token, Response::Refused(Refusal::Overloaded));
        }
        match request {
            Request::Produce(produce) if produce.transactional_id.is_none() => self.produce(turn, token, produce),
            Request::InitProducerId(init) if init.transactional_id.is_none() => {
                self.init_idempotent(turn, token, &init);
            }
            Request::Produce(_)
            | Request::InitProducerId(_)
            | Request::AddPartitionsToTxn(_)
            | Request::AddOffsetsToTxn(_)
            | Request::TxnOffsetCommit(_)
            | Request::EndTxn(_) => self.transactional(turn, caller, token, request),
            Request::JoinGroup(join) => self.groups.join(turn.now, caller, token, join, &mut turn.out),
            Request::SyncGroup(sync) => self.groups.sync(turn.now, token, sync, &mut turn.out),
            Request::Heartbeat(member) => {
                let beat = self.groups.heartbeat(turn.now, &member);
                turn.reply(token, beat.map_or_else(Response::Refused, |()| Response::Done));
            }
            Request::LeaveGroup(leave) => {
                let left = self.groups.leave(turn.now, &leave, &mut turn.out);
                turn.reply(token, Response::Left(left));
            }
            Request::OffsetCommit(commit) => self.offset_commit(turn, token, commit),
            Request::OffsetFetch(fetch) => self.offset_fetch(turn, token, fetch),
            Request::CreateTopics(topics) => {
                self.proposals.propose(turn, Command::CreateTopics(topics), Purpose::Topics(token));
            }
            Request::DeleteTopics(topics) => {
                self.proposals.propose(turn, Command::DeleteTopics(topics), Purpose::Topics(token));
            }
            Request::CreatePartitions(more) => {
                self.proposals.propose(turn, Command::CreatePartitions(more), Purpose::Topics(token));
            }
            Request::DeleteRecords(trims) => {
                self.proposals.propose(turn, Command::TrimPartitions(trims), Purpose::Records(token));
            }
            Request::AlterConfigs(changes) => {
                self.proposals.propose(turn, Command::AlterConfigs(changes), Purpose::Configs(token));
            }
        }
        self.follow_groups(turn);
    }

    /// A proposal of this term was applied.
    pub(super) fn was_applied(
        &mut self,
        turn: &mut Turn<'_>,
        ticket: Ticket,
        purpose: Purpose,
        index: LogIndex,
        outcome: Outcome,
    ) {
        match purpose {
            Purpose::Produce(slots) => self.produce_applied(turn, ticket, slots, outcome),
            Purpose::ProducerId(token) => {
                let Outcome::ProducerId(result) = outcome else { unreachable!("as the command") };
                turn.reply_applied(token, result.map_or_else(Response::Refused, Response::ProducerId));
            }
            Purpose::Ending(id) => self.ending_applied(turn, &id, ticket, &outcome),
            Purpose::Begin(id) => self.begin_applied(turn, &id, index, &outcome),
            Purpose::Chunk(id) => self.chunk_applied(turn, &id, index, &outcome),
            Purpose::OffsetCommit(token, group, refused) => {
                Self::offset_commit_applied(turn, token, refused, outcome);
                self.offset_commit_settled(turn, &group, ticket, Some(index));
            }
            Purpose::LateOffsetCommit(group) => self.offset_commit_settled(turn, &group, ticket, Some(index)),
            Purpose::Topics(token) => {
                let Outcome::Topics(results) = outcome else { unreachable!("as the command") };
                turn.reply_applied(token, Response::Topics(results));
            }
            Purpose::Records(token) => {
                let Outcome::Trimmed(results) = outcome else { unreachable!("as the command") };
                turn.reply_applied(token, Response::Trimmed(results));
            }
            Purpose::Configs(token) => turn.reply_applied(token, Response::Done),
            Purpose::Expire => self.expired(turn, true),
            Purpose::Nothing => {}
        }
    }

    /// A proposal of this term will never be applied.
    pub(super) fn was_discarded(&mut self, turn: &mut Turn<'_>, ticket: Ticket, purpose: Purpose) {
        match purpose {
            Purpose::Produce(slots) => {
                self.settle_produce(turn.machine, ticket);
                self.produce_failed(turn, slots, Refusal::NotLeader);
            }
            Purpose::Ending(id) => self.ending_discarded(turn, &id, ticket),
            Purpose::Begin(id) => self.begin_failed(turn, &id, Refusal::NotLeader),
            Purpose::Chunk(id) => self.chunk_lost(turn, &id),
            Purpose::Expire => self.expired(turn, false),
            Purpose::OffsetCommit(token, group, _) => {
                turn.reply(token, Response::Refused(Refusal::NotLeader));
                self.offset_commit_settled(turn, &group, ticket, None);
            }
            Purpose::ProducerId(token) | Purpose::Topics(token) | Purpose::Records(token) | Purpose::Configs(token) => {
                turn.reply(token, Response::Refused(Refusal::NotLeader));
            }
            Purpose::LateOffsetCommit(group) => self.offset_commit_settled(turn, &group, ticket, None),
            Purpose::Nothing => {}
        }
    }

    /// A proposal's deadline passed. Where its fate still matters, it stays known.
    pub(super) fn is_unknown(&mut self, turn: &mut Turn<'_>, ticket: Ticket, purpose: Purpose) {
        match &purpose {
            Purpose::Produce(_) | Purpose::Expire => {}
            Purpose::Ending(id) => self.ending_unknown(turn, id, ticket),
            Purpose::Begin(id) => self.begin_unknown(turn, id, ticket),
            Purpose::Chunk(id) => self.chunk_unknown(turn, id),
            Purpose::OffsetCommit(_, group, _) => {
                self.offset_commit_unknown(turn, group, ticket);
                self.proposals.put_back(ticket, Purpose::LateOffsetCommit(group.clone()));
            }
            Purpose::ProducerId(_) | Purpose::Topics(_) | Purpose::Records(_) | Purpose::Configs(_) => {}
            Purpose::LateOffsetCommit(_) | Purpose::Nothing => {}
        }
        if let Some(token) = purpose.waits() {
            return turn.reply(token, Response::Refused(Refusal::FateUnknown));
        }
        let purpose = match purpose {
            Purpose::Produce(slots) => {
                self.unknown_produces.insert(ticket);
                let nobody = slots.iter().map(|_| Vec::new()).collect();
                self.produce_failed(turn, slots, Refusal::FateUnknown);
                Purpose::Produce(nobody)
            }
            other => other,
        };
        self.proposals.put_back(ticket, purpose);
    }
}

impl Purpose {
    /// The one request that only waits for the outcome.
    pub(super) fn waits(&self) -> Option<Token> {
        match self {
            Purpose::ProducerId(token)
            | Purpose::OffsetCommit(token, ..)
            | Purpose::Topics(token)
            | Purpose::Records(token)
            | Purpose::Configs(token) => Some(*token),
            Purpose::Produce(_)
            | Purpose::Ending(_)
            | Purpose::Begin(_)
            | Purpose::Chunk(_)
            | Purpose::LateOffsetCommit(_)
            | Purpose::Expire
            | Purpose::Nothing => None,
        }
    }
}

fn may_propose(request: &Request) -> bool {
    match request {
        Request::JoinGroup(_)
        | Request::SyncGroup(_)
        | Request::Heartbeat(_)
        | Request::LeaveGroup(_)
        | Request::OffsetFetch(_) => false,
        Request::Produce(_)
        | Request::InitProducerId(_)
        | Request::AddPartitionsToTxn(_)
        | Request::AddOffsetsToTxn(_)
        | Request::TxnOffsetCommit(_)
        | Request::EndTxn(_)
        | Request::OffsetCommit(_)
        | Request::CreateTopics(_)
        | Request::DeleteTopics(_)
        | Request::DeleteRecords(_)
        | Request::CreatePartitions(_)
        | Request::AlterConfigs(_) => true,
    }
}
