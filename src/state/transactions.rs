//! Transactional ids: the replicated half of a transaction (transactions.md §2, «Replicated per transactional id»),
//! and the hidden chunks of large open ones. How a transaction ends is in `end_txn.rs`.
//!
//! Invariants: the current producer id of every transactional id is owned by it in `by_producer_id`, and so is every earlier one until
//! it expires; chunks belong to the pair that is current, for any bump frees them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::At;
use super::command::{Batch, InitProducerId, TxnBegin, TxnChunk};
use super::handover::Handed;
use super::producers::Producers;
use crate::types::{LogIndex, ProducerIdAndEpoch, Refusal, Term};

/// The last epoch a producer id is given: the next bump takes a new id at epoch 0. Kafka keeps 32,767 for itself
/// (`TransactionMetadata.isEpochExhausted`), and clients know that edge.
pub const EPOCH_MAX: i16 = i16::MAX - 1;

/// [`EPOCH_MAX`], or a smaller one under test. The same on all replicas, so not part of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EpochMax(pub(super) i16);

impl Default for EpochMax {
    fn default() -> Self {
        Self(EPOCH_MAX)
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TxnResult {
    /// EndTxn(commit) was applied.
    Commit,
    /// EndTxn(abort) was applied.
    Abort,
}

/// The last EndTxn that was applied for an id: what a retry of it is answered from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastEnd {
    /// The epoch the client sent.
    pub epoch: i16,
    /// Its result.
    pub result: TxnResult,
}

/// The begin marker of an open TV1 transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenBegin {
    /// The marker's own log index: the transaction's name.
    pub index: LogIndex,
    /// The term that began it: in another term its stage is gone and it is doomed.
    pub term: Term,
    /// When it began, for DescribeTransactions.
    pub started_ms: i64,
}

/// One transactional id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionalId {
    /// The pair that may write now.
    pub producer: ProducerIdAndEpoch,
    /// The pair before the last bump, None after an InitProducerId without a pair: fences its holder.
    pub previous: Option<ProducerIdAndEpoch>,
    /// `transaction.timeout.ms` of the producer.
    pub timeout_ms: i32,
    /// The last EndTxn applied since the last InitProducerId.
    pub last_end: Option<LastEnd>,
    /// The open marker of a TV1 transaction.
    pub open_begin: Option<OpenBegin>,
    /// Term of the last InitProducerId or EndTxn entry; another term's stage is lost (but see [`super::handover`]).
    pub clean_term: Term,
    /// Wall clock of the last entry about it, for expiry.
    pub last_used_ms: i64,
}

/// The hidden chunks of one open transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageChunks {
    /// Whose.
    pub transactional_id: String,
    /// The pair it was staged under.
    pub producer: ProducerIdAndEpoch,
    /// Chunks applied so far.
    pub count: u32,
    /// CRC-32C over their batches so far.
    pub crc: u32,
    /// Their batches. Record bytes are part of the checkpoint (`snapshot.rs` writes them out of line).
    pub batches: Vec<Batch>,
}

/// All transactional ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transactions {
    pub(super) by_id: imbl::OrdMap<String, Arc<TransactionalId>>,
    /// Which transactional id a producer id belongs to, fenced ones included while their state is remembered.
    pub(super) by_producer_id: imbl::OrdMap<i64, String>,
    /// Chunks by stage id.
    pub(super) chunks: imbl::OrdMap<LogIndex, Arc<StageChunks>>,
    /// What the last planned transfer left.
    pub(super) handed: Handed,
    #[serde(skip)]
    pub(super) epoch_max: EpochMax,
}

/// The running checksum over chunked batches: `crc` over those before, then each batch's bytes as sent. 0 over none.
pub fn chunks_crc(crc: u32, batches: &[Batch]) -> u32 {
    batches.iter().fold(crc, |crc, batch| crc32c::crc32c_append(crc, &batch.records))
}

impl Transactions {
    /// The replicated state of a transactional id.
    pub fn get(&self, transactional_id: &str) -> Option<&TransactionalId> {
        self.by_id.get(transactional_id).map(|id| &**id)
    }

    /// The transactional id that a producer id belongs or belonged to.
    pub fn owner_of(&self, producer_id: i64) -> Option<&str> {
        self.by_producer_id.get(&producer_id).map(String::as_str)
    }

    /// Every producer id that belongs or belonged to a transactional id, with that id.
    pub fn owned_producer_ids(&self) -> impl Iterator<Item = (i64, &str)> {
        self.by_producer_id.iter().map(|(id, owner)| (*id, owner.as_str()))
    }

    /// A producer id that some transactional id uses, or used just before: its state lives as long as that id.
    /// The ids that wraps of the epoch left behind (one in 6.5 s at full speed) do expire.
    pub fn may_still_write(&self, producer_id: i64) -> bool {
        let owner = self.owner_of(producer_id).and_then(|owner| self.get(owner));
        owner.is_some_and(|id| {
            id.producer.producer_id == producer_id
                || id.previous.is_some_and(|previous| previous.producer_id == producer_id)
        })
    }

    /// Open chunks of a stage.
    pub fn chunks(&self, stage_id: LogIndex) -> Option<&StageChunks> {
        self.chunks.get(&stage_id).map(|chunks| &**chunks)
    }

    /// All transactional ids, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &TransactionalId)> {
        self.by_id.iter().map(|(id, state)| (id.as_str(), &**state))
    }

    /// Stage ids of all open chunks.
    pub fn open_chunks(&self) -> impl Iterator<Item = (LogIndex, &StageChunks)> {
        self.chunks.iter().map(|(id, chunks)| (*id, &**chunks))
    }

    /// How many ids there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Shrinks the greatest epoch, so that a test meets the edge soon.
    #[cfg(test)]
    pub(crate) fn set_epoch_max(&mut self, epoch_max: i16) {
        self.epoch_max = EpochMax(epoch_max);
    }

    /// Gives out a producer id and epoch (transactions.md §1.1).
    pub(super) fn apply_init(
        &mut self,
        at: At,
        init: &InitProducerId,
        producers: &mut Producers,
    ) -> Result<ProducerIdAndEpoch, Refusal> {
        let Some(transactional_id) = &init.transactional_id else { return Ok(producers.fresh()) };
        let known = self.by_id.get(transactional_id).map(|known| (known.producer, known.previous));
        let (producer, previous) = match (known, init.given) {
            // Never seen, or expired: whatever the client holds is worth nothing any more, as in Kafka.
            (None, _) => (producers.fresh(), None),
            // Without a pair: whoever held the id is fenced, the previous pair included.
            (Some((current, _)), None) => (self.bumped(current, producers), None),
            (Some((current, _)), Some(given)) if given == current => (self.bumped(current, producers), Some(current)),
            // The retry of an answered request. Whatever is open at the current epoch is left alone.
            (Some((current, previous)), Some(given)) if previous == Some(given) => {
                self.edit(transactional_id, |id| id.last_used_ms = id.last_used_ms.max(at.now_ms));
                return Ok(current);
            }
            (Some(_), Some(_)) => return Err(Refusal::ProducerFenced),
        };
        let state = TransactionalId {
            producer,
            previous,
            timeout_ms: init.timeout_ms,
            last_end: None,
            open_begin: None,
            clean_term: at.term,
            last_used_ms: at.now_ms,
        };
        self.by_id.insert(transactional_id.clone(), Arc::new(state));
        self.by_producer_id.insert(producer.producer_id, transactional_id.clone());
        self.free_chunks_of(transactional_id);
        Ok(producer)
    }

    /// The pair after `current`: the next epoch, or a new id where the epochs are used up.
    pub(super) fn bumped(&self, current: ProducerIdAndEpoch, producers: &mut Producers) -> ProducerIdAndEpoch {
        if current.epoch >= self.epoch_max.0 {
            return producers.fresh();
        }
        ProducerIdAndEpoch { epoch: current.epoch + 1, ..current }
    }

    /// The id's state, if `producer` is its current pair.
    pub(super) fn current(
        &self,
        transactional_id: &str,
        producer: ProducerIdAndEpoch,
    ) -> Result<&TransactionalId, Refusal> {
        let known = self.get(transactional_id).ok_or(Refusal::InvalidProducerIdMapping)?;
        if known.producer.producer_id != producer.producer_id {
            return Err(Refusal::InvalidProducerIdMapping);
        }
        if known.producer.epoch != producer.epoch {
            return Err(Refusal::ProducerFenced);
        }
        Ok(known)
    }

    pub(super) fn edit(&mut self, transactional_id: &str, change: impl FnOnce(&mut TransactionalId)) {
        let state = self.by_id.get_mut(transactional_id).expect("the caller found the id");
        change(Arc::make_mut(state));
    }

    /// Opens a TV1 transaction. A marker that is still open is not replaced: it may be what dooms its transaction.
    pub(super) fn apply_begin(&mut self, at: At, begin: &TxnBegin) -> Result<(), Refusal> {
        let known = self.current(&begin.transactional_id, begin.producer)?;
        if known.open_begin.is_some() {
            return Err(Refusal::InvalidTxnState);
        }
        self.edit(&begin.transactional_id, |id| {
            id.open_begin = Some(OpenBegin { index: at.index, term: at.term, started_ms: at.now_ms });
            id.last_used_ms = id.last_used_ms.max(at.now_ms);
        });
        Ok(())
    }

    /// Puts part of a large transaction aside. A chunk that does not continue its stage (T8, T9) is refused, which dooms it.
    pub(super) fn apply_chunk(&mut self, at: At, chunk: &TxnChunk) -> Result<(), Refusal> {
        let known = self.current(&chunk.transactional_id, chunk.producer)?;
        let begin = known.open_begin.map(|begin| begin.index);
        let stage_id = chunk.stage_id.unwrap_or(at.index);
        let so_far = self.chunks.get(&stage_id).cloned();
        let fits = match &so_far {
            Some(stage) => {
                stage.transactional_id == chunk.transactional_id
                    && stage.producer == chunk.producer
                    && stage.count == chunk.number
            }
            // The first chunk: of the TV1 transaction that is open, or of a TV2 one while no TV1 one is.
            None => chunk.number == 0 && chunk.stage_id == begin,
        };
        if !fits {
            return Err(Refusal::TransactionLost);
        }
        let mut stage = so_far.unwrap_or_else(|| {
            Arc::new(StageChunks {
                transactional_id: chunk.transactional_id.clone(),
                producer: chunk.producer,
                count: 0,
                crc: 0,
                batches: Vec::new(),
            })
        });
        let extended = Arc::make_mut(&mut stage);
        extended.count += 1;
        extended.crc = chunks_crc(extended.crc, &chunk.batches);
        extended.batches.extend(chunk.batches.iter().cloned());
        self.chunks.insert(stage_id, stage);
        self.edit(&chunk.transactional_id, |id| id.last_used_ms = id.last_used_ms.max(at.now_ms));
        Ok(())
    }

    pub(super) fn apply_drop_stages(&mut self, stages: &[LogIndex]) {
        for stage_id in stages {
            self.chunks.remove(stage_id);
        }
    }

    pub(super) fn free_all_chunks(&mut self) {
        self.chunks.clear();
    }

    /// A transactional id has one transaction open at a time, so all its chunks are of that one.
    pub(super) fn free_chunks_of(&mut self, transactional_id: &str) {
        if self.chunks.is_empty() {
            return;
        }
        let of_id = self.open_chunks().filter(|(_, stage)| stage.transactional_id == transactional_id);
        let stages: Vec<LogIndex> = of_id.map(|(stage_id, _)| stage_id).collect();
        self.apply_drop_stages(&stages);
    }
}
