//! Transactional ids: the replicated half of a transaction (transactions.md §2, «Replicated per transactional id»),
//! and the hidden chunks of large open ones.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::command::Batch;
use crate::types::{LogIndex, ProducerIdAndEpoch, Term};

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
    /// Term of the last InitProducerId or EndTxn entry; another term's stage is lost.
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
}
