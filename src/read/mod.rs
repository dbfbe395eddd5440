//! Reads: a fetch becomes a plan under byte limits, waits for data where it may, and answers everything at one visible index.

use std::time::Duration;

use crate::segments::{Bounds, ReadBatches, SegmentError, Segments};
use crate::types::{LogIndex, Offset, TopicPartition};

/// A fetch, without Kafka structs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Partitions in the order of the request.
    pub partitions: Vec<FetchPartition>,
    /// Longest wait.
    pub wait_max: Duration,
    /// Bytes below which the fetch waits.
    pub bytes_min: usize,
    /// Bytes of the whole answer; the first batch is returned whatever its size.
    pub bytes_max: usize,
}

/// One partition of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchPartition {
    /// Which.
    pub partition: TopicPartition,
    /// From where.
    pub from: Offset,
    /// Bytes of this partition at the most.
    pub bytes_max: usize,
}

/// One partition's part of the answer.
#[derive(Debug)]
pub struct Fetched {
    /// Which.
    pub partition: TopicPartition,
    /// Bounds at the visible index; None if the partition is unknown.
    pub bounds: Option<Bounds>,
    /// The batches, or why there are none.
    pub result: Result<ReadBatches, SegmentError>,
}

/// Serves reads and wakes those who wait.
#[derive(Clone, Debug)]
pub struct Reader {
    segments: Segments,
}

impl Reader {
    /// Reads from these partition logs.
    pub fn new(segments: Segments) -> Self {
        Self { segments }
    }

    /// The partition logs themselves, for ListOffsets.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Answers a fetch now, or when `bytes_min` are there, or after `wait_max`, or at once where a partition has an error.
    pub async fn fetch(&self, fetch: Fetch) -> Vec<Fetched> {
        let _ = fetch;
        todo!("read helper")
    }

    /// New batches became visible in these partitions (once per apply chunk, deduplicated); wakes who waits for them.
    pub fn wake(&self, partitions: &[TopicPartition]) {
        let _ = partitions;
        todo!("read helper")
    }

    /// The index that a request should read at.
    pub fn visible(&self) -> Option<LogIndex> {
        self.segments.visible()
    }
}
