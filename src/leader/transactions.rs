//! What the leader knows of each transactional id in this term: its open stage, the EndTxn or InitProducerId in
//! flight, and the requests that wait behind it (transactions.md §1–§3).
//!
//! While an EndTxn or InitProducerId is in flight every other request of that id queues and is judged by the state
//! after apply. An EndTxn or InitProducerId also waits for a begin marker or chunk in flight, so the entry it
//! proposes can name them. Once a fate is unknown the id is frozen: its requests are told so until the fate is known
//! or the term ends (T5).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::connections::{Class, Newest};
use super::proposals::Purpose;
use super::request::{Caller, Request, Response, Token};
use super::stage::{Begin, Doom, Stage};
use super::{Leader, Ticket, Turn};
use crate::config::limits;
use crate::state::command::{Command, TxnBegin};
use crate::state::transactions::TransactionalId;
use crate::types::{ConnectionId, ProducerIdAndEpoch, Refusal};

/// An EndTxn or InitProducerId in flight.
#[derive(Debug)]
pub(super) struct Ending {
    /// Its proposal.
    pub ticket: Ticket,
    /// Which of both.
    pub kind: EndingKind,
    /// Who is told the outcome.
    pub waiters: Vec<Token>,
    /// Groups held until the fate is known.
    pub held: Vec<Arc<str>>,
    /// The deadline passed: frozen.
    pub unknown: bool,
}

/// What is in flight for an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndingKind {
    /// EndTxn.
    End {
        /// The pair it named.
        producer: ProducerIdAndEpoch,
        /// Commit, or abort.
        commit: bool,
        /// TV2.
        bump: bool,
    },
    /// InitProducerId.
    Init,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Queued {
    pub caller: Caller,
    pub token: Token,
    pub request: Request,
}

/// One transactional id in this term.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// The open transaction, live or doomed.
    pub stage: Option<Stage>,
    /// What is in flight.
    pub ending: Option<Ending>,
    /// What waits, in order.
    pub queue: VecDeque<Queued>,
    /// The pair that the last EndTxn or InitProducerId of this term left current (T3).
    pub handled: Option<ProducerIdAndEpoch>,
    /// Its EndTxn, first in the queue, waits for a plain OffsetCommit in flight.
    pub awaits_commit: bool,
    /// Its producer's connections.
    pub connections: Newest,
}

impl Transaction {
    /// Whether something of unknown fate stands before every request.
    pub fn is_frozen(&self) -> bool {
        let stage = self.stage.as_ref();
        self.ending.as_ref().is_some_and(|ending| ending.unknown)
            || stage.is_some_and(|stage| matches!(stage.begin, Begin::Unknown(_)) || stage.chunks.unknown)
    }

    /// Whether this request must wait for a proposal in flight.
    fn must_wait(&self, request: &Request) -> bool {
        let ends = matches!(request, Request::EndTxn(_) | Request::InitProducerId(_));
        let opening = self
            .stage
            .as_ref()
            .is_some_and(|stage| matches!(stage.begin, Begin::Proposed(_)) || stage.chunks.in_flight.is_some());
        self.ending.is_some() || ends && (opening || self.awaits_commit)
    }

    /// The stage, if it may still commit.
    pub fn live(&self) -> Option<&Stage> {
        self.stage.as_ref().filter(|stage| stage.is_live())
    }
}

/// All of them. One entry for each id used in this term; bounded by the ids in the replicated state.
#[derive(Debug, Default)]
pub(super) struct Transactions {
    /// By transactional id.
    pub by_id: BTreeMap<Arc<str>, Transaction>,
    /// Live stages by order of opening.
    pub by_number: BTreeMap<u64, Arc<str>>,
    /// Live stages by the time they run out; not those whose EndTxn is in flight.
    pub deadlines: BTreeSet<(u64, u64)>,
    /// Which ids have a live stage with offsets of a group.
    pub by_group: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Bytes of all stages.
    pub staged_bytes: usize,
    last_number: u64,
}

impl Transactions {
    /// Numbers a new stage.
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The id's soft state, created if need be.
    pub fn entry(&mut self, id: &Arc<str>) -> &mut Transaction {
        self.by_id.entry(id.clone()).or_default()
    }

    /// Its EndTxn or InitProducerId is in flight: it cannot run out of time (TX03).
    pub fn stop_clock(&mut self, id: &str) {
        let stage = self.by_id.get(id).and_then(Transaction::live);
        if let Some(deadline) = stage.map(|stage| (stage.deadline_ms, stage.number)) {
            self.deadlines.remove(&deadline);
        }
    }

    /// That proposal changed nothing: its time runs again.
    pub fn start_clock(&mut self, id: &str) {
        let stage = self.by_id.get(id).and_then(Transaction::live);
        self.deadlines.extend(stage.map(|stage| (stage.deadline_ms, stage.number)));
    }

    /// Takes a stage out of every index; its data is about to go.
    pub fn unlist(&mut self, id: &str) {
        let Some(stage) = self.by_id.get(id).and_then(|transaction| transaction.stage.as_ref()) else { return };
        self.by_number.remove(&stage.number);
        self.deadlines.remove(&(stage.deadline_ms, stage.number));
        self.staged_bytes -= stage.bytes;
        for group in stage.offsets.keys() {
            if let Some(ids) = self.by_group.get_mut(group) {
                ids.remove(id);
                if ids.is_empty() {
                    self.by_group.remove(group);
                }
            }
        }
    }
}

/// What a transactional request has in common with all others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// The pair it names.
    pub producer: ProducerIdAndEpoch,
    /// Whether its version says TV1.
    pub tv1: bool,
    /// Which connection it belongs on.
    pub class: Class,
    /// The connection it came on.
    pub connection: ConnectionId,
}

/// The replicated state of an id if `producer` is its current pair.
pub(super) fn judge_pair(
    state: Option<&TransactionalId>,
    producer: ProducerIdAndEpoch,
) -> Result<&TransactionalId, Refusal> {
    match state {
        Some(state) if state.producer == producer => Ok(state),
        Some(state) if state.producer.producer_id == producer.producer_id => Err(Refusal::ProducerFenced),
        Some(_) | None => Err(Refusal::InvalidProducerIdMapping),
    }
}

fn transactional_id(request: &Request) -> Option<&Arc<str>> {
    match request {
        Request::Produce(produce) => produce.transactional_id.as_ref(),
        Request::InitProducerId(init) => init.transactional_id.as_ref(),
        Request::AddPartitionsToTxn(add) => Some(&add.transactional_id),
        Request::AddOffsetsToTxn(add) => Some(&add.transactional_id),
        Request::TxnOffsetCommit(commit) => Some(&commit.transactional_id),
        Request::EndTxn(end) => Some(&end.transactional_id),
        Request::JoinGroup(_)
        | Request::SyncGroup(_)
        | Request::Heartbeat(_)
        | Request::LeaveGroup(_)
        | Request::OffsetCommit(_)
        | Request::OffsetFetch(_)
        | Request::CreateTopics(_)
        | Request::DeleteTopics(_)
        | Request::DeleteRecords(_)
        | Request::CreatePartitions(_)
        | Request::AlterConfigs(_) => None,
    }
}

impl Leader {
    /// A request of a transactional producer: runs it now, or lets it wait for its turn.
    pub(super) fn transactional(&mut self, turn: &mut Turn<'_>, caller: &Caller, token: Token, request: Request) {
        let Some(id) = transactional_id(&request).cloned() else { unreachable!("dispatched as transactional") };
        if !self.earlier_terms.note(caller.connection) {
            return turn.reply(token, Response::Close);
        }
        if self.is_parting(turn, &id, token, &request) {
            return;
        }
        if let Some(transaction) = self.transactions.by_id.get_mut(&id) {
            if transaction.is_frozen() {
                return turn.reply(token, Response::Refused(Refusal::FateUnknown));
            }
            let waiting = transaction.queue.len() + transaction.ending.as_ref().map_or(0, |end| end.waiters.len());
            if waiting >= limits::QUEUED_PER_TRANSACTIONAL_ID_MAX {
                return turn.reply(token, Response::Refused(Refusal::Overloaded));
            }
            if let Some(ending) = transaction.ending.as_mut().filter(|ending| ending.is_same(&request)) {
                return ending.waiters.push(token);
            }
            if !transaction.queue.is_empty() || transaction.must_wait(&request) {
                let caller = caller.clone();
                return transaction.queue.push_back(Queued { caller, token, request });
            }
        }
        self.run(turn, &id, caller, token, request);
    }

    /// Runs what waited for this id, as far as it may go now.
    pub(super) fn run_queue(&mut self, turn: &mut Turn<'_>, id: &Arc<str>) {
        while let Some(transaction) = self.transactions.by_id.get_mut(id) {
            if transaction.is_frozen() {
                return self.refuse_queue(turn, id, Refusal::FateUnknown);
            }
            let Some(next) = transaction.queue.pop_front() else { return };
            // A retry that had queued behind something else joins what its twin has just proposed.
            if let Some(ending) = transaction.ending.as_mut().filter(|ending| ending.is_same(&next.request)) {
                ending.waiters.push(next.token);
                continue;
            }
            if transaction.must_wait(&next.request) {
                return transaction.queue.push_front(next);
            }
            self.run(turn, id, &next.caller, next.token, next.request);
        }
    }

    /// Answers everything that waits for this id.
    pub(super) fn refuse_queue(&mut self, turn: &mut Turn<'_>, id: &str, refusal: Refusal) {
        let Some(transaction) = self.transactions.by_id.get_mut(id) else { return };
        for queued in std::mem::take(&mut transaction.queue) {
            turn.reply(queued.token, Response::Refused(refusal));
        }
    }

    fn run(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, caller: &Caller, token: Token, request: Request) {
        match request {
            Request::Produce(produce) => self.stage_produce(turn, id, caller, token, produce),
            Request::InitProducerId(init) => self.init_transactional(turn, id, token, &init),
            Request::AddPartitionsToTxn(add) => self.add_partitions(turn, id, caller, token, add),
            Request::AddOffsetsToTxn(add) => self.add_offsets(turn, id, caller, token, &add),
            Request::TxnOffsetCommit(commit) => self.stage_offsets(turn, id, caller, token, commit),
            Request::EndTxn(end) => self.end_txn(turn, id, caller, token, &end),
            Request::JoinGroup(_)
            | Request::SyncGroup(_)
            | Request::Heartbeat(_)
            | Request::LeaveGroup(_)
            | Request::OffsetCommit(_)
            | Request::OffsetFetch(_)
            | Request::CreateTopics(_)
            | Request::DeleteTopics(_)
            | Request::DeleteRecords(_)
            | Request::CreatePartitions(_)
            | Request::AlterConfigs(_) => unreachable!("dispatched as transactional"),
        }
    }

    /// Notes the connection of a request at the current pair; false if it is a late one that must not be executed.
    pub(super) fn is_in_time(&mut self, id: &Arc<str>, asked: Asked) -> bool {
        let newest = self.transactions.entry(id).connections.note(asked.producer, asked.class, asked.connection);
        newest || !asked.tv1
    }

    /// Opens the stage of a request at the current pair, or finds it open. A TV1 request makes it a TV1 transaction.
    pub(super) fn open_stage(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, asked: Asked) -> Result<(), Refusal> {
        let state = turn.machine.transactions().get(id).ok_or(Refusal::InvalidProducerIdMapping)?;
        let open = self.transactions.by_id.get(id).and_then(|transaction| transaction.stage.as_ref());
        if open.is_none_or(|stage| stage.producer != asked.producer) {
            if self.expiry.expiring.contains(id) {
                return Err(Refusal::Overloaded);
            }
            // A stage ends with its pair; who waited for it is told nothing definite.
            for (token, _) in self.close_stage(id).map(|stage| stage.acks).unwrap_or_default() {
                turn.reply(token, Response::Refused(Refusal::FateUnknown));
            }
            let clean = turn.machine.transactions().is_clean(id, state, turn.term);
            let lost = state.open_begin.is_some() || !asked.tv1 && !clean;
            if !lost && self.transactions.by_number.len() >= limits::STAGES_MAX {
                return Err(Refusal::Overloaded);
            }
            let number = self.transactions.next_number();
            let opened_ms = turn.now.mono_ms;
            let deadline_ms = opened_ms + u64::try_from(state.timeout_ms).unwrap_or(0);
            let mut stage = Stage::new(asked.producer, number, opened_ms, deadline_ms);
            if lost {
                stage.doom(Doom::TermChanged);
            } else {
                self.transactions.by_number.insert(number, id.clone());
                self.transactions.deadlines.insert((deadline_ms, number));
            }
            self.transactions.entry(id).stage = Some(stage);
        }
        let stage = self.transactions.entry(id).stage.as_mut().expect("opened above");
        if asked.tv1 && !stage.gated {
            stage.gated = true;
            if stage.is_live() {
                let begin = TxnBegin { transactional_id: id.to_string(), producer: asked.producer };
                let ticket = self.proposals.propose(turn, Command::TxnBegin(begin), Purpose::Begin(id.clone()));
                stage.begin = Begin::Proposed(ticket);
            }
        }
        Ok(())
    }

    /// Acknowledges a staged request: at once, or when the begin marker is applied.
    pub(super) fn acknowledge(&mut self, turn: &mut Turn<'_>, id: &str, token: Token, response: Response) {
        let stage = self.transactions.by_id.get_mut(id).and_then(|transaction| transaction.stage.as_mut());
        match stage {
            Some(stage) if matches!(stage.begin, Begin::Proposed(_)) => {
                if stage.acks.len() >= limits::QUEUED_PER_TRANSACTIONAL_ID_MAX {
                    return turn.reply(token, Response::Refused(Refusal::Overloaded));
                }
                stage.acks.push((token, response));
            }
            Some(stage) => {
                stage.acknowledged = true;
                turn.reply(token, response);
            }
            None => turn.reply(token, response),
        }
    }

    /// Dooms a live stage: its data goes, its chunks are freed. An EndTxn in flight has priority: that stage is frozen.
    pub(super) fn doom(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, why: Doom) {
        let Some(transaction) = self.transactions.by_id.get(id) else { return };
        if transaction.live().is_none() || transaction.ending.is_some() {
            return;
        }
        self.transactions.unlist(id);
        let Some(stage) = self.transactions.entry(id).stage.as_mut() else { return };
        stage.doom(why);
        self.drop_chunks(turn, id);
        self.stats.timed_out += u64::from(why == Doom::TimedOut);
    }

    /// Removes the stage: its transaction has ended, or never was.
    pub(super) fn close_stage(&mut self, id: &str) -> Option<Stage> {
        if self.transactions.by_id.get(id)?.live().is_some() {
            self.transactions.unlist(id);
        }
        self.transactions.by_id.get_mut(id)?.stage.take()
    }

    /// Over the memory cap: dooms the newest stages until the rest fits.
    pub(super) fn keep_within_memory(&mut self, turn: &mut Turn<'_>) {
        while self.transactions.staged_bytes > self.settings.staged_bytes_max {
            let frozen = |id: &Arc<str>| self.transactions.by_id.get(id).is_some_and(|txn| txn.ending.is_some());
            let newest = self.transactions.by_number.values().rev().find(|id| !frozen(id)).cloned();
            let Some(newest) = newest else { return };
            self.doom(turn, &newest, Doom::OverBudget);
        }
    }

    /// Dooms the transactions whose time is up (§5): no entry, no fencing.
    pub(super) fn doom_expired(&mut self, turn: &mut Turn<'_>) {
        while let Some(&(deadline_ms, number)) = self.transactions.deadlines.first() {
            if deadline_ms > turn.now.mono_ms {
                return;
            }
            self.transactions.deadlines.pop_first();
            if let Some(id) = self.transactions.by_number.get(&number).cloned() {
                self.doom(turn, &id, Doom::TimedOut);
            }
        }
    }
}

impl Ending {
    /// Whether that request is the one in flight, sent again.
    fn is_same(&self, request: &Request) -> bool {
        let Request::EndTxn(end) = request else { return false };
        let same = EndingKind::End { producer: end.producer, commit: end.commit, bump: end.version >= 5 };
        self.kind == same && !self.unknown
    }
}
