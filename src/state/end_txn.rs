//! EndTxn: compare-and-apply, all of a transaction or nothing (transactions.md §1.3 and §3).
//!
//! The pair is compared first (49 another producer id, 90 another epoch: definitive answers). Everything else that does not match means
//! that this entry is not the end of the transaction that is open, or that its data cannot be written: TransactionLost, and nothing changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::command::{Batch, Effects, TxnAbort, TxnCommit, TxnFence};
use super::transactions::{LastEnd, StageChunks, TransactionalId, TxnResult};
use super::{At, Machine};
use crate::types::record_batch::sequence_plus;
use crate::types::{ProducerIdAndEpoch, Refusal, TopicPartition};

impl Machine {
    pub(super) fn apply_txn_commit(
        &mut self,
        at: At,
        commit: &TxnCommit,
        effects: &mut Effects,
    ) -> Result<ProducerIdAndEpoch, Refusal> {
        let known = self.transactions.current(&commit.transactional_id, commit.producer)?;
        if !self.is_open(at, &commit.transactional_id, known, commit.fence) {
            return Err(Refusal::TransactionLost);
        }
        // An `Arc`: freeing the chunks does not take them from under this commit.
        let chunked = self.chunks_of(commit)?;
        let earlier = chunked.as_ref().map_or(&[][..], |stage| &stage.batches[..]);
        let batches = || earlier.iter().chain(&commit.batches);
        self.check_batches(commit.producer, batches())?;
        let written = commit.offsets.iter().flat_map(|staged| &staged.offsets);
        if written.into_iter().any(|offset| self.topics.partition(offset.of).is_none()) {
            return Err(Refusal::TransactionLost);
        }
        // Nothing below can fail: from here on it is all or all.
        for batch in batches() {
            self.append(at, batch.to, &batch.view(), effects);
        }
        for staged in &commit.offsets {
            self.group_offsets.apply_staged(at, staged);
        }
        Ok(self.end(at, &commit.transactional_id, commit.producer, TxnResult::Commit, commit.bump))
    }

    pub(super) fn apply_txn_abort(&mut self, at: At, abort: &TxnAbort) -> Result<ProducerIdAndEpoch, Refusal> {
        let known = self.transactions.current(&abort.transactional_id, abort.producer)?;
        if known.open_begin.map(|begin| begin.index) != abort.begin {
            return Err(Refusal::TransactionLost);
        }
        // A new epoch starts at 0 everywhere: only at the old one does it matter what was skipped.
        let skipped = if abort.bump { &[][..] } else { &abort.skipped[..] };
        for (partition, first, last) in skipped {
            if self.topics.partition(*partition).is_some() {
                self.producers.skip(at.now_ms, abort.producer, *partition, *first, *last);
            }
        }
        if abort.skips_unknown && !abort.bump {
            self.producers.skip_unknown(at.now_ms, abort.producer);
        }
        Ok(self.end(at, &abort.transactional_id, abort.producer, TxnResult::Abort, abort.bump))
    }

    /// Whether the entry belongs to the transaction that is open. A stage of an earlier term is lost (§2), so its marker
    /// must be of this one, or its id clean; the leader dooms such a stage before it proposes, this is the second look.
    fn is_open(&self, at: At, id: &str, known: &TransactionalId, fence: TxnFence) -> bool {
        match (fence, known.open_begin) {
            (TxnFence::Begin(index), Some(open)) => open.index == index && open.term == at.term,
            (TxnFence::Epoch, None) => self.transactions.is_clean(id, known, at.term),
            (TxnFence::Begin(_), None) | (TxnFence::Epoch, Some(_)) => false,
        }
    }

    /// The chunks that a commit names, which must be exactly those that were applied.
    fn chunks_of(&self, commit: &TxnCommit) -> Result<Option<Arc<StageChunks>>, Refusal> {
        let Some(named) = commit.chunks else { return Ok(None) };
        let stage = self.transactions.chunks.get(&named.stage_id).ok_or(Refusal::TransactionLost)?;
        let of_this_stage = match commit.fence {
            TxnFence::Begin(index) => named.stage_id == index,
            TxnFence::Epoch => true,
        };
        let complete = stage.count == named.count && stage.crc == named.crc;
        let of_this_producer = stage.transactional_id == commit.transactional_id && stage.producer == commit.producer;
        if of_this_stage && complete && of_this_producer {
            Ok(Some(Arc::clone(stage)))
        } else {
            Err(Refusal::TransactionLost)
        }
    }

    /// Every partition exists, and each one's batches follow one another and what is committed (T13).
    fn check_batches<'a>(
        &self,
        producer: ProducerIdAndEpoch,
        batches: impl Iterator<Item = &'a Batch>,
    ) -> Result<(), Refusal> {
        let mut next: BTreeMap<TopicPartition, i32> = BTreeMap::new();
        for batch in batches {
            let view = batch.view();
            self.topics.partition(batch.to).ok_or(Refusal::TransactionLost)?;
            let first = view.base_sequence();
            let follows = match next.get(&batch.to) {
                Some(expected) => first == *expected,
                None => self.producers.may_start(producer, batch.to, first),
            };
            if !follows || !view.is_transactional() || view.producer() != Some(producer) {
                return Err(Refusal::TransactionLost);
            }
            next.insert(batch.to, sequence_plus(view.last_sequence(), 1));
        }
        Ok(())
    }

    /// What both ends have in common: the pair to use from now on.
    fn end(
        &mut self,
        at: At,
        transactional_id: &str,
        producer: ProducerIdAndEpoch,
        result: TxnResult,
        bump: bool,
    ) -> ProducerIdAndEpoch {
        let next = if bump { self.transactions.bumped(producer, &mut self.producers) } else { producer };
        self.transactions.edit(transactional_id, |id| {
            if bump {
                id.previous = Some(id.producer);
                id.producer = next;
            }
            id.last_end = Some(LastEnd { epoch: producer.epoch, result });
            id.open_begin = None;
            id.clean_term = at.term;
            id.last_used_ms = id.last_used_ms.max(at.now_ms);
        });
        self.transactions.by_producer_id.insert(next.producer_id, transactional_id.to_owned());
        self.transactions.free_chunks_of(transactional_id);
        next
    }
}
