//! Requests that add to an open transaction: AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit and transactional
//! Produce (§1.2). Acknowledged from memory; nothing is replicated but a TV1 begin marker, or chunks of a large one.
//!
//! A doomed transaction acknowledges everything and stores nothing: EndTxn is the only gate, since clients that meet an
//! error earlier may restart their sequences and commit (table 2). A transactional Produce never answers 59 or 45.

use std::sync::Arc;

use super::connections::Class;
use super::produce::check_size;
use super::request::{Acked, AddOffsetsToTxn, AddPartitionsToTxn, Caller, Produce, Response, Token, TxnOffsetCommit};
use super::stage::{Doom, Inserted, StagedOffset, offset_cost};
use super::transactions::{Asked, judge_pair};
use super::{Leader, Turn};
use crate::state::Machine;
use crate::state::command::OffsetWrite;
use crate::types::{LogIndex, Offset, ProducerIdAndEpoch, RecordBatch, Refusal, TopicPartition};

/// Produce up to this version is TV1 (KIP-890).
const PRODUCE_TV1_MAX: i16 = 11;
/// TxnOffsetCommit up to this version is TV1 (KIP-890).
const TXN_OFFSET_COMMIT_TV1_MAX: i16 = 4;

impl Leader {
    /// AddPartitionsToTxn.
    pub(super) fn add_partitions(
        &mut self,
        turn: &mut Turn<'_>,
        id: &Arc<str>,
        caller: &Caller,
        token: Token,
        request: AddPartitionsToTxn,
    ) {
        let asked = coordinator(caller, request.producer, true);
        if !self.enter(turn, id, token, asked) {
            return;
        }
        let topics = turn.machine.topics();
        let known = |at: &TopicPartition| topics.partition(*at).is_some();
        let parts = request.partitions.iter().map(|at| known(at).then_some(()).ok_or(Refusal::UnknownTopicOrPartition));
        let response = Response::Parts(parts.collect());
        if let Some(stage) = self.transactions.entry(id).stage.as_mut() {
            let grown = stage.add_partitions(request.partitions.into_iter().filter(known));
            self.transactions.staged_bytes += grown;
        }
        self.bound_staged(turn, id);
        self.acknowledge(turn, id, token, response);
    }

    /// AddOffsetsToTxn.
    pub(super) fn add_offsets(
        &mut self,
        turn: &mut Turn<'_>,
        id: &Arc<str>,
        caller: &Caller,
        token: Token,
        request: &AddOffsetsToTxn,
    ) {
        let asked = coordinator(caller, request.producer, true);
        if !self.enter(turn, id, token, asked) {
            return;
        }
        if let Some(stage) = self.transactions.entry(id).stage.as_mut() {
            let grown = stage.add_group(&request.group);
            self.transactions.staged_bytes += grown;
        }
        self.bound_staged(turn, id);
        self.acknowledge(turn, id, token, Response::Done);
    }

    /// TxnOffsetCommit (KIP-447).
    pub(super) fn stage_offsets(
        &mut self,
        turn: &mut Turn<'_>,
        id: &Arc<str>,
        caller: &Caller,
        token: Token,
        request: TxnOffsetCommit,
    ) {
        let tv1 = request.version <= TXN_OFFSET_COMMIT_TV1_MAX;
        let asked = Asked { class: Class::Offsets, ..coordinator(caller, request.producer, tv1) };
        let group = request.member.group.clone();
        if let Err(refusal) = judge_pair(turn.machine.transactions().get(id), asked.producer) {
            return self.refuse_pair(turn, token, refusal);
        }
        if !self.is_in_time(id, asked) {
            return turn.reply(token, Response::Close);
        }
        let added = |stage: &super::stage::Stage| stage.added_groups.contains(&group);
        if asked.tv1 && self.is_phantom(id, asked.producer, added) {
            return turn.reply(token, Response::Refused(Refusal::InvalidTxnState));
        }
        if let Err(refusal) = self.open_stage(turn, id, asked) {
            return turn.reply(token, Response::Refused(refusal));
        }
        let live = self.transactions.entry(id).live().is_some();
        if !live {
            let lost = request.member.generation >= 0;
            let part = if lost { Err(Refusal::IllegalGeneration) } else { Ok(()) };
            let parts = vec![part; request.offsets.len()];
            return self.acknowledge(turn, id, token, Response::Parts(parts));
        }
        if let Err(refusal) = self.groups.check_txn_offset_commit(&request.member) {
            return turn.reply(token, Response::Refused(refusal));
        }
        let staged_at = turn.machine.applied().map_or(LogIndex(0), |(index, _)| index);
        let after = self.proposals.last_ticket();
        let metadata_max = self.settings.offset_metadata_max_bytes;
        let staged_bytes = self.transactions.entry(id).live().map_or(0, |stage| stage.offset_bytes);
        let asked_bytes: usize = request.offsets.iter().map(|write| offset_cost(&group, write)).sum();
        if staged_bytes + asked_bytes > self.settings.entry_bytes_max {
            // Offsets do not go to chunks: this transaction could never commit them.
            let parts = vec![Err(Refusal::OffsetMetadataTooLarge); request.offsets.len()];
            return self.acknowledge(turn, id, token, Response::Parts(parts));
        }
        let mut parts = Vec::with_capacity(request.offsets.len());
        for write in request.offsets {
            let part = check_offset(turn.machine, metadata_max, &write);
            parts.push(part);
            if part.is_ok()
                && let Some(stage) = self.transactions.entry(id).stage.as_mut()
            {
                let offset = StagedOffset { write, member: request.member.clone(), at: staged_at, after };
                let before = stage.bytes;
                stage.insert_offset(&group, offset);
                let after = stage.bytes;
                self.transactions.staged_bytes = self.transactions.staged_bytes + after - before;
                self.transactions.by_group.entry(group.clone()).or_default().insert(id.clone());
            }
        }
        self.bound_staged(turn, id);
        self.acknowledge(turn, id, token, Response::Parts(parts));
    }

    /// Produce of a transactional producer.
    pub(super) fn stage_produce(
        &mut self,
        turn: &mut Turn<'_>,
        id: &Arc<str>,
        caller: &Caller,
        token: Token,
        request: Produce,
    ) {
        let tv1 = request.version <= PRODUCE_TV1_MAX;
        let judge = |(_, batch): &(TopicPartition, RecordBatch)| judge_batch(turn.machine, id, batch);
        let judged: Vec<Result<ProducerIdAndEpoch, Refusal>> = request.batches.iter().map(judge).collect();
        self.count_fenced(judged.iter());
        let Some(producer) = judged.iter().find_map(|part| part.ok()) else {
            if let Some(producer) = request.refused.filter(|_| !tv1) {
                self.open_empty(turn, id, caller, producer);
            }
            let parts = judged.into_iter().map(|part| part.map(|_| unreachable!("none was accepted")));
            return turn.reply(token, Response::Produced(parts.collect()));
        };
        let asked = Asked { producer, tv1, class: Class::Produce, connection: caller.connection };
        if !self.is_in_time(id, asked) {
            return turn.reply(token, Response::Close);
        }
        let mut parts = Vec::with_capacity(judged.len());
        for ((at, batch), pair) in request.batches.iter().zip(judged) {
            parts.push(pair.and_then(|_| self.stage_batch(turn, id, asked, *at, batch)));
        }
        self.bound_staged(turn, id);
        self.chunk_if_large(turn, id);
        self.acknowledge(turn, id, token, Response::Produced(parts));
    }

    /// TV2: a Produce of which nothing may be written opens the transaction, so that its EndTxn finds one.
    fn open_empty(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, caller: &Caller, producer: ProducerIdAndEpoch) {
        let asked = Asked { producer, tv1: false, class: Class::Produce, connection: caller.connection };
        if judge_pair(turn.machine.transactions().get(id), producer).is_ok() && self.is_in_time(id, asked) {
            // Refused, there is no transaction; the batches are answered as they are.
            let _opened = self.open_stage(turn, id, asked);
        }
    }

    fn stage_batch(
        &mut self,
        turn: &mut Turn<'_>,
        id: &Arc<str>,
        asked: Asked,
        at: TopicPartition,
        batch: &RecordBatch,
    ) -> Result<Acked, Refusal> {
        if let Some(written) = committed_before(turn.machine, at, batch) {
            return Ok(written);
        }
        if asked.tv1 && self.is_phantom(id, asked.producer, |stage| stage.added_partitions.contains(&at)) {
            return Err(Refusal::InvalidTxnState);
        }
        self.open_stage(turn, id, asked)?;
        check_size(turn.machine, at, batch)?;
        let Some(stage) = self.transactions.entry(id).stage.as_mut() else { unreachable!("opened above") };
        let before = stage.bytes;
        let inserted = stage.insert(turn.machine, at, batch);
        let grown = stage.bytes - before;
        self.transactions.staged_bytes += grown;
        if inserted == Inserted::Overlap {
            self.doom(turn, id, Doom::Overlap);
        }
        Ok(staged(turn.machine, at, batch))
    }

    /// Judges the pair and the connection and opens the stage; false if the request has been answered.
    fn enter(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, token: Token, asked: Asked) -> bool {
        if let Err(refusal) = judge_pair(turn.machine.transactions().get(id), asked.producer) {
            self.refuse_pair(turn, token, refusal);
            return false;
        }
        if !self.is_in_time(id, asked) {
            turn.reply(token, Response::Close);
            return false;
        }
        if let Err(refusal) = self.open_stage(turn, id, asked) {
            turn.reply(token, Response::Refused(refusal));
            return false;
        }
        true
    }

    pub(super) fn refuse_pair(&mut self, turn: &mut Turn<'_>, token: Token, refusal: Refusal) {
        self.stats.fenced += u64::from(refusal == Refusal::ProducerFenced);
        turn.reply(token, Response::Refused(refusal));
    }

    /// Whether a TV1 data request belongs to no transaction that is open (T3): this term has ended one at this pair, and
    /// what the request is about was not added since.
    fn is_phantom(&self, id: &str, producer: ProducerIdAndEpoch, added: impl Fn(&super::stage::Stage) -> bool) -> bool {
        let Some(transaction) = self.transactions.by_id.get(id) else { return false };
        // A doomed stage remembers no names, and stores nothing either.
        let joins = |stage: &super::stage::Stage| !stage.is_live() && stage.producer == producer || added(stage);
        transaction.handled == Some(producer) && !transaction.stage.as_ref().is_some_and(joins)
    }

    /// Keeps this stage, and all stages together, within their bounds.
    fn bound_staged(&mut self, turn: &mut Turn<'_>, id: &Arc<str>) {
        self.doom_if_too_wide(turn, id);
        self.keep_within_memory(turn);
    }

    fn doom_if_too_wide(&mut self, turn: &mut Turn<'_>, id: &Arc<str>) {
        let stage = self.transactions.by_id.get(id).and_then(|transaction| transaction.live());
        if stage.is_some_and(super::stage::Stage::is_too_wide) {
            self.doom(turn, id, Doom::OverBudget);
        }
    }
}

fn coordinator(caller: &Caller, producer: ProducerIdAndEpoch, tv1: bool) -> Asked {
    Asked { producer, tv1, class: Class::Coordinator, connection: caller.connection }
}

/// Whether this offset may be committed at all.
pub(super) fn check_offset(machine: &Machine, metadata_bytes_max: usize, write: &OffsetWrite) -> Result<(), Refusal> {
    if machine.topics().partition(write.of).is_none() {
        Err(Refusal::UnknownTopicOrPartition)
    } else if write.metadata.len() > metadata_bytes_max {
        Err(Refusal::OffsetMetadataTooLarge)
    } else {
        Ok(())
    }
}

/// The pair of a transactional batch, if it is the id's current one (§4: exact epoch).
fn judge_batch(machine: &Machine, id: &str, batch: &RecordBatch) -> Result<ProducerIdAndEpoch, Refusal> {
    let state = machine.transactions().get(id).ok_or(Refusal::InvalidProducerIdMapping)?;
    let pair = batch.producer().filter(|_| batch.is_transactional()).ok_or(Refusal::InvalidTxnState)?;
    if pair == state.producer {
        return Ok(pair);
    }
    let fenced = pair.producer_id == state.producer.producer_id
        || state.previous.is_some_and(|previous| previous.producer_id == pair.producer_id)
        || machine.transactions().owner_of(pair.producer_id) == Some(id);
    Err(if fenced { Refusal::InvalidProducerEpoch } else { Refusal::InvalidProducerIdMapping })
}

/// A late retry of a batch that an earlier transaction of this epoch has committed.
fn committed_before(machine: &Machine, at: TopicPartition, batch: &RecordBatch) -> Option<Acked> {
    let written = machine.producers().at(batch.producer_id(), at)?.find(batch)?;
    Some(Acked::Written(super::admission::duplicate(machine, at, batch, written.base_offset)))
}

fn staged(machine: &Machine, at: TopicPartition, batch: &RecordBatch) -> Acked {
    let log_start_offset = machine.topics().partition(at).map_or(Offset(-1), |partition| partition.log_start_offset);
    Acked::Staged { log_start_offset, record_count: batch.record_count() }
}
