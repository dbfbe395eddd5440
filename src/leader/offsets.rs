//! Committed offsets: OffsetCommit, OffsetFetch, and the groups' part of transactions (§6, KIP-447).
//!
//! OffsetFetch of any version waits for EndTxns in flight on its partitions (T12): a new owner must not read the old
//! offset an instant before the entry commits. With `require_stable` an open stage's offsets are 88.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::proposals::Purpose;
use super::request::{FetchedOffset, MemberRef, OffsetCommit, OffsetFetch, Response, Token};
use super::stage::{Doom, Stage, StagedOffset};
use super::staging::check_offset;
use super::transactions::{EndingKind, Transaction};
use super::{Leader, Ticket, Turn};
use crate::config::limits;
use crate::state::command::{Command, GroupOffsets, Outcome};
use crate::types::{LogIndex, Refusal, TopicPartition};

/// Plain OffsetCommits in flight, by group. Bounded by the proposals in flight.
#[derive(Debug, Default)]
pub(super) struct Commits {
    in_flight: BTreeMap<Arc<str>, BTreeSet<Ticket>>,
    /// Those of them whose fate is unknown: an EndTxn that would have to wait for one is refused instead.
    unknown: BTreeSet<Ticket>,
    /// Transactional ids whose EndTxn waits for one of that group. One EndTxn for each id at the most.
    waiting: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
}

/// What stands between an OffsetFetch and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Obstacle {
    /// Nothing.
    None,
    /// An EndTxn in flight.
    Waits,
    /// An EndTxn of unknown fate.
    Unknown,
}

impl Leader {
    /// OffsetCommit.
    pub(super) fn offset_commit(&mut self, turn: &mut Turn<'_>, token: Token, request: OffsetCommit) {
        if let Err(refusal) = self.groups.check_offset_commit(turn.now, &request.member) {
            return turn.reply(token, Response::Refused(refusal));
        }
        let metadata_max = self.settings.offset_metadata_max_bytes;
        let judge = |write| check_offset(turn.machine, metadata_max, write).err();
        let refused: Vec<Option<Refusal>> = request.offsets.iter().map(judge).collect();
        let writes = request.offsets.into_iter().zip(&refused);
        let offsets: Vec<_> = writes.filter(|(_, refused)| refused.is_none()).map(|(write, _)| write).collect();
        if offsets.is_empty() {
            let parts = refused.into_iter().map(|refused| refused.map_or(Ok(()), Err)).collect();
            return turn.reply(token, Response::Parts(parts));
        }
        // It would be discarded before it is sent, as often as it is tried again.
        let bytes: usize = offsets.iter().map(|write| write.metadata.len() + limits::STAGED_OVERHEAD_BYTES).sum();
        if bytes + request.member.group.len() > limits::ENTRY_BYTES_MAX {
            return turn.reply(token, Response::Refused(Refusal::OffsetMetadataTooLarge));
        }
        let group = request.member.group;
        let command = Command::OffsetCommit(GroupOffsets { group: group.to_string(), offsets });
        let ticket = self.proposals.propose(turn, command, Purpose::OffsetCommit(token, group.clone(), refused));
        self.commits.in_flight.entry(group).or_default().insert(ticket);
    }

    /// An OffsetCommit may still be applied, and nobody can tell when. It stays in the way of EndTxns that are newer than it,
    /// or one of them could overtake it and lose its offsets to it (T21); those that waited are told to ask again.
    pub(super) fn offset_commit_unknown(&mut self, turn: &mut Turn<'_>, group: &Arc<str>, ticket: Ticket) {
        self.commits.unknown.insert(ticket);
        for id in self.commits.waiting.remove(group).into_iter().flatten() {
            if let Some(transaction) = self.transactions.by_id.get_mut(&id) {
                transaction.awaits_commit = false;
            }
            self.refuse_queue(turn, &id, Refusal::FateUnknown);
        }
    }

    /// An OffsetCommit's fate is known. Offsets staged after it was proposed are newer
    /// than it, though its index was not known then (T21). EndTxns that waited for it go on.
    pub(super) fn offset_commit_settled(
        &mut self,
        turn: &mut Turn<'_>,
        group: &Arc<str>,
        ticket: Ticket,
        applied: Option<LogIndex>,
    ) {
        self.commits.unknown.remove(&ticket);
        if let Some(tickets) = self.commits.in_flight.get_mut(group) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.commits.in_flight.remove(group);
            }
        }
        for id in self.transactions.by_group.get(group).into_iter().flatten() {
            let stage = self.transactions.by_id.get_mut(id).and_then(|transaction| transaction.stage.as_mut());
            let (Some(offsets), Some(index)) = (stage.and_then(|stage| stage.offsets.get_mut(group)), applied) else {
                continue;
            };
            for offset in offsets.values_mut().filter(|offset| offset.after >= ticket) {
                offset.at = offset.at.max(index);
            }
        }
        for id in self.commits.waiting.remove(group).into_iter().flatten() {
            if let Some(transaction) = self.transactions.by_id.get_mut(&id) {
                transaction.awaits_commit = false;
            }
            self.run_queue(turn, &id);
        }
    }

    /// Whether a plain commit of unknown fate is older than an offset this stage holds for its group.
    pub(super) fn awaits_unknown_commit(&self, id: &str) -> bool {
        if self.commits.unknown.is_empty() {
            return false;
        }
        let Some(stage) = self.transactions.by_id.get(id).and_then(Transaction::live) else { return false };
        let older = |group: &Arc<str>, offset: &StagedOffset| {
            let tickets = self.commits.in_flight.get(group).into_iter().flatten();
            tickets.filter(|ticket| self.commits.unknown.contains(ticket)).any(|ticket| offset.after >= *ticket)
        };
        stage.offsets.iter().any(|(group, offsets)| offsets.values().any(|offset| older(group, offset)))
    }

    /// Whether a plain commit in flight is older than an offset this stage holds for its group: the EndTxn waits for it.
    pub(super) fn awaits_commit(&mut self, id: &Arc<str>) -> bool {
        let Some(stage) = self.transactions.by_id.get(id).and_then(Transaction::live) else { return false };
        let older = |group: &Arc<str>, offsets: &BTreeMap<TopicPartition, StagedOffset>| {
            let first = self.commits.in_flight.get(group).and_then(BTreeSet::first);
            first.is_some_and(|first| offsets.values().any(|offset| offset.after >= *first))
        };
        let group = stage.offsets.iter().find(|(group, offsets)| older(group, offsets)).map(|(group, _)| group.clone());
        let Some(group) = group else { return false };
        self.commits.waiting.entry(group).or_default().insert(id.clone());
        self.transactions.entry(id).awaits_commit = true;
        true
    }

    /// An OffsetCommit entry was applied: its outcome fills the parts that were not refused before.
    pub(super) fn offset_commit_applied(
        turn: &mut Turn<'_>,
        token: Token,
        refused: Vec<Option<Refusal>>,
        outcome: Outcome,
    ) {
        let applied = match outcome {
            Outcome::Offsets(results) => results,
            Outcome::Done => vec![Ok(()); refused.len()],
            other => unreachable!("an OffsetCommit has no such outcome: {other:?}"),
        };
        let mut applied = applied.into_iter();
        let part = |refused: Option<Refusal>| refused.map_or_else(|| applied.next().unwrap_or(Ok(())), Err);
        turn.reply_applied(token, Response::Parts(refused.into_iter().map(part).collect()));
    }

    /// OffsetFetch.
    pub(super) fn offset_fetch(&mut self, turn: &mut Turn<'_>, token: Token, request: OffsetFetch) {
        match self.obstacle(&request) {
            Obstacle::Unknown => turn.reply(token, Response::Refused(Refusal::FateUnknown)),
            Obstacle::None => {
                let response = self.fetched(turn, &request);
                turn.reply(token, response);
            }
            Obstacle::Waits if self.fetches.len() >= limits::WAITING_OFFSET_FETCHES_MAX => {
                turn.reply(token, Response::Refused(Refusal::Overloaded));
            }
            Obstacle::Waits => self.fetches.push((token, request)),
        }
    }

    /// An EndTxn's fate became known, or unknown: answers the OffsetFetches that waited for it.
    pub(super) fn answer_fetches(&mut self, turn: &mut Turn<'_>) {
        for (token, request) in std::mem::take(&mut self.fetches) {
            self.offset_fetch(turn, token, request);
        }
    }

    /// Stages of this group that may still commit offsets.
    fn stages_of<'a>(&'a self, group: &'a str) -> impl Iterator<Item = (&'a Transaction, &'a Stage)> {
        let ids = self.transactions.by_group.get(group).into_iter().flatten();
        let transactions = ids.filter_map(|id| self.transactions.by_id.get(id));
        transactions.filter_map(|transaction| transaction.live().map(|stage| (transaction, stage)))
    }

    fn obstacle(&self, request: &OffsetFetch) -> Obstacle {
        let asks_for = |stage: &Stage| {
            let Some(staged) = stage.offsets.get(&request.group) else { return false };
            let asked = request.partitions.as_ref();
            asked.is_none_or(|asked| asked.iter().any(|partition| staged.contains_key(partition)))
        };
        let in_the_way = |(transaction, stage): (&Transaction, &Stage)| match &transaction.ending {
            Some(ending) if matches!(ending.kind, EndingKind::End { commit: true, .. }) && asks_for(stage) => {
                if ending.unknown { Obstacle::Unknown } else { Obstacle::Waits }
            }
            Some(_) | None => Obstacle::None,
        };
        self.stages_of(&request.group).map(in_the_way).max().unwrap_or(Obstacle::None)
    }

    fn fetched(&self, turn: &Turn<'_>, request: &OffsetFetch) -> Response {
        let table = turn.machine.group_offsets();
        let all = || table.group(&request.group).map(|group| group.offsets.keys().copied().collect());
        let partitions: Vec<TopicPartition> = request.partitions.clone().or_else(all).unwrap_or_default();
        let staged = |partition: &TopicPartition| {
            let holds = |stage: &Stage| stage.offsets.get(&request.group).is_some_and(|of| of.contains_key(partition));
            self.stages_of(&request.group).any(|(_, stage)| holds(stage))
        };
        let answer = |partition: TopicPartition| {
            if request.require_stable && staged(&partition) {
                return (partition, Err(Refusal::UnstableOffsetCommit));
            }
            let committed = table.get(&request.group, partition).map(|committed| FetchedOffset {
                offset: committed.offset,
                leader_epoch: committed.leader_epoch,
                metadata: committed.metadata.clone(),
            });
            (partition, Ok(committed))
        };
        Response::Offsets(partitions.into_iter().map(answer).collect())
    }

    /// After every call that may change groups: dooms stages whose member is gone or lost a partition (T20).
    pub(super) fn follow_groups(&mut self, turn: &mut Turn<'_>) {
        for group in self.groups.drain_changed() {
            self.doom_stages_of_lost_members(turn, &group);
        }
    }

    /// An EndTxn or InitProducerId left the stage as it was. Meanwhile nothing could doom it: that is made up for.
    pub(super) fn thaw(&mut self, turn: &mut Turn<'_>, id: &str) {
        self.transactions.start_clock(id);
        let stage = self.transactions.by_id.get(id).and_then(Transaction::live);
        let groups: Vec<Arc<str>> = stage.map(|stage| stage.offsets.keys().cloned().collect()).unwrap_or_default();
        for group in groups {
            self.doom_stages_of_lost_members(turn, &group);
        }
    }

    fn doom_stages_of_lost_members(&mut self, turn: &mut Turn<'_>, group: &str) {
        let lost = |stage: &Stage| {
            let staged = stage.offsets.get(group).into_iter().flatten();
            let mut by_member: Vec<(&MemberRef, Vec<TopicPartition>)> = Vec::new();
            for (partition, offset) in staged.filter(|(_, offset)| is_fenced(&offset.member)) {
                // Nearly always one member, and always neighbours.
                match by_member.last_mut().filter(|(member, _)| *member == &offset.member) {
                    Some((_, partitions)) => partitions.push(*partition),
                    None => by_member.push((&offset.member, vec![*partition])),
                }
            }
            by_member.iter().any(|(member, partitions)| !self.groups.still_owns(turn.machine, member, partitions))
        };
        let ids = self.transactions.by_group.get(group).into_iter().flatten();
        let stages = ids.filter_map(|id| Some((id, self.transactions.by_id.get(id)?.live()?)));
        let doomed: Vec<Arc<str>> = stages.filter(|(_, stage)| lost(stage)).map(|(id, _)| id.clone()).collect();
        for id in doomed {
            self.doom(turn, &id, Doom::MemberGone);
        }
    }
}

/// Empty member and generation −1: offsets without a member, never checked (§6).
fn is_fenced(member: &MemberRef) -> bool {
    member.generation >= 0 || !member.member_id.is_empty() || member.instance_id.is_some()
}
