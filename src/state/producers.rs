//! Idempotence: what each producer last wrote to each partition (transactions.md §4).

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::types::{Offset, TopicPartition};

/// How many batches per producer and partition are remembered to recognise retries (Kafka's `ProducerStateEntry.NUM_BATCHES_TO_RETAIN`).
pub const BATCHES_REMEMBERED: usize = 5;

/// One remembered batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenBatch {
    /// Sequence of its first record.
    pub first_sequence: i32,
    /// Sequence of its last record.
    pub last_sequence: i32,
    /// Its CRC: the same sequences with another CRC are other data.
    pub crc: u32,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Greatest timestamp, or the broker's time.
    pub timestamp_ms: i64,
}

/// One producer's state at one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionProducer {
    /// The epoch that wrote last.
    pub epoch: i16,
    /// The last batches of that epoch, oldest first; at most [`BATCHES_REMEMBERED`].
    pub batches: VecDeque<WrittenBatch>,
    /// One interval of sequences (first, last) that was acknowledged in a transaction and aborted.
    pub aborted: Option<(i32, i32)>,
}

impl PartitionProducer {
    /// Sequence of the last record written at this epoch, None if nothing was.
    pub fn last_sequence(&self) -> Option<i32> {
        self.batches.back().map(|batch| batch.last_sequence)
    }
}

/// One producer id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Producer {
    /// Per partition.
    pub partitions: BTreeMap<TopicPartition, PartitionProducer>,
    /// Wall clock of the last write, for expiry.
    pub last_used_ms: i64,
}

/// All producer ids that wrote something, and the counter of ids given out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Producers {
    pub(super) by_id: imbl::OrdMap<i64, std::sync::Arc<Producer>>,
    /// The next producer id to give out.
    pub(super) next_producer_id: i64,
}

impl Producers {
    /// A producer's state, if it wrote anything that is still remembered.
    pub fn get(&self, producer_id: i64) -> Option<&Producer> {
        self.by_id.get(&producer_id).map(|producer| &**producer)
    }

    /// Its state at one partition.
    pub fn at(&self, producer_id: i64, partition: TopicPartition) -> Option<&PartitionProducer> {
        self.get(producer_id)?.partitions.get(&partition)
    }

    /// All, by id.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &Producer)> {
        self.by_id.iter().map(|(id, producer)| (*id, &**producer))
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}
