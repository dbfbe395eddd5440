//! What retention must know of a segment. `segments` tells it, the leader decides by it.

use super::{Offset, TopicPartition};

/// One segment of a partition. The same on every replica, for what they have written so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// Offset of its first record.
    pub base: Offset,
    /// Offset behind its last record.
    pub next: Offset,
    /// Bytes of its batches.
    pub bytes: u64,
    /// Greatest timestamp of its records; without timestamps, the time of its last entry.
    pub greatest_ms: i64,
}

/// The segments of a partition, oldest first; only the last one grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionFacts {
    /// Which.
    pub of: TopicPartition,
    /// Its segments that are not wholly below its log start.
    pub segments: Vec<SegmentFacts>,
}
