//! Reads: a fetch becomes a plan under byte limits, waits for data where it may, and answers everything at one visible index.

mod memory;
mod plan;
#[cfg(test)]
mod tests;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use memory::Memory;
pub use memory::Share;
use plan::{Answer, Ask, Gathered, gather};
use waiters::Waiters;

use crate::config::limits::ANSWERS_BYTES_MAX;
use crate::segments::Segments;
pub use crate::segments::{Bounds, ReadBatches, SegmentError};
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
    /// The asker may have seen more than this node has applied: an offset behind the end is waited for like data.
    pub may_be_ahead: bool,
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

/// A fetch's answer.
#[derive(Debug)]
pub struct Answered {
    /// In the order of the request.
    pub fetched: Vec<Fetched>,
    /// Its part of the memory of all answers: to be kept for as long as the batches are.
    pub share: Option<Share>,
    /// How long it waited for data to arrive.
    pub waited: Duration,
}

impl std::ops::Deref for Answered {
    type Target = [Fetched];

    fn deref(&self) -> &[Fetched] {
        &self.fetched
    }
}

/// Serves reads and wakes those who wait.
#[derive(Clone, Debug)]
pub struct Reader {
    segments: Segments,
    waiters: Arc<Waiters>,
    memory: Arc<Memory>,
}

impl Reader {
    /// Reads from these partition logs.
    pub fn new(segments: Segments) -> Self {
        Self { segments, waiters: Arc::default(), memory: Memory::new(ANSWERS_BYTES_MAX) }
    }

    /// The partition logs themselves, for ListOffsets.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Answers a fetch now, or when `bytes_min` are there, or after `wait_max`, or at once where a partition has an error.
    ///
    /// Everything in one answer is read at one visible index. A fetch that waits holds nothing but its registration.
    pub async fn fetch(&self, fetch: Fetch) -> Answered {
        let deadline = Instant::now() + fetch.wait_max;
        let mut waited = Duration::ZERO;
        let fetch = Arc::new(fetch);
        let mut gathered = self.look(&fetch).await;
        if gathered.satisfies(&fetch) || fetch.wait_max.is_zero() {
            return gathered.answered(waited);
        }
        let partitions = fetch.partitions.iter().map(|of| of.partition).collect();
        let Some(waiting) = self.waiters.register(partitions) else {
            drop(gathered);
            tokio::time::sleep_until(deadline).await;
            return self.look(&fetch).await.answered(fetch.wait_max);
        };
        loop {
            gathered = self.look(&fetch).await;
            if gathered.satisfies(&fetch) {
                return gathered.answered(waited);
            }
            let began = Instant::now();
            let woken = tokio::time::timeout_at(deadline, waiting.woken()).await;
            waited += began.elapsed();
            if woken.is_err() {
                return gathered.answered(waited);
            }
        }
    }

    /// Bounds of these partitions, at one index, without their records: where an offset is within them.
    pub fn look_up(&self, partitions: &[FetchPartition]) -> Vec<Fetched> {
        let visible = self.segments.visible();
        let look = |of: &FetchPartition| {
            let ask = Ask { of: *of, bytes_max: 0, at_least_one: false };
            let found = answer(&self.segments, ask, false, visible, |_, _| Some(Ok(ReadBatches::default())));
            let (bounds, result) = found.expect("nothing is read");
            let within = |bounds: Bounds| (bounds.log_start_offset..=bounds.high_watermark).contains(&of.from);
            let result = match bounds {
                Some(bounds) if !within(bounds) => Err(SegmentError::OffsetOutOfRange),
                _ => result,
            };
            Fetched { partition: of.partition, bounds, result }
        };
        partitions.iter().map(look).collect()
    }

    /// One look at everything, at one index: in memory if that is enough, else on a thread that may wait for the disk.
    async fn look(&self, fetch: &Arc<Fetch>) -> Gathered {
        let pin = self.segments.pin();
        let share = self.memory.take(fetch.bytes_at_most());
        let bytes_max = share.bytes();
        let in_memory = gather(fetch, bytes_max, |ask| {
            answer(&self.segments, ask, fetch.may_be_ahead, pin.visible(), |ask, visible| {
                let Ask { of, bytes_max, at_least_one } = ask;
                self.segments.read_memory(of.partition, visible, of.from, bytes_max, at_least_one).transpose()
            })
        });
        if let Some(gathered) = in_memory {
            return gathered.holding(share);
        }
        let (segments, of) = (self.segments.clone(), fetch.clone());
        let read = tokio::task::spawn_blocking(move || {
            let gathered = gather(&of, bytes_max, |ask| {
                answer(&segments, ask, of.may_be_ahead, pin.visible(), |ask, visible| {
                    let Ask { of, bytes_max, at_least_one } = ask;
                    Some(segments.read(of.partition, visible, of.from, bytes_max, at_least_one))
                })
            });
            gathered.expect("a read that may use files always has an answer").holding(share)
        });
        read.await.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down: nobody waits for this answer.
            Err(_) => Gathered { failed: true, ..Gathered::default() },
        })
    }

    /// New batches became visible in these partitions (once per apply chunk, deduplicated); wakes who waits for them.
    pub fn wake(&self, partitions: &[TopicPartition]) {
        self.waiters.wake(partitions);
    }

    /// The index that a request should read at.
    pub fn visible(&self) -> Option<LogIndex> {
        self.segments.visible()
    }
}

/// Bounds and batches of one partition; None if `read` has no answer.
fn answer(
    segments: &Segments,
    ask: Ask,
    may_be_ahead: bool,
    visible: Option<LogIndex>,
    read: impl FnOnce(Ask, LogIndex) -> Option<Result<ReadBatches, SegmentError>>,
) -> Option<Answer> {
    // Before the first entry nothing exists.
    let Some(visible) = visible else { return Some((None, Err(SegmentError::UnknownPartition))) };
    match segments.bounds(ask.of.partition, visible) {
        Err(error) => Some((None, Err(error))),
        Ok(bounds) if may_be_ahead && ask.of.from > bounds.high_watermark => {
            Some((Some(bounds), Ok(ReadBatches::default())))
        }
        Ok(bounds) => Some((Some(bounds), read(ask, visible)?)),
    }
}
