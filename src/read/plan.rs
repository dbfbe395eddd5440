//! A fetch turned into reads under its byte limits. Pure: the reads themselves come in as a function.
//!
//! As Kafka's `ReplicaManager.readFromLog`: partitions in the order of the request; each gets what is left of the whole
//! answer's limit, at most its own; the first partition that has anything gives at least one batch whatever its size, so
//! that a consumer can always get past a large batch.

use std::time::Duration;

use super::{Answered, Fetch, FetchPartition, Fetched, Share};
use crate::segments::{Bounds, ReadBatches, SegmentError};

/// One read that the plan asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    /// What and from where.
    pub of: FetchPartition,
    /// Bytes at the most.
    pub bytes_max: usize,
    /// One batch is due whatever its size.
    pub at_least_one: bool,
}

/// What a read gave: bounds where the partition exists, and batches or why not.
pub(super) type Answer = (Option<Bounds>, Result<ReadBatches, SegmentError>);

/// All answers of one look.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// In the order of the request.
    pub fetched: Vec<Fetched>,
    /// Bytes of all batches.
    pub bytes: usize,
    /// What they could be at the most: less than the fetch allows where memory was short.
    pub bytes_max: usize,
    /// Their part of the memory of all answers.
    pub share: Option<Share>,
    /// A partition has an error, which is answered at once.
    pub failed: bool,
}

impl Gathered {
    /// Whether there is nothing to wait for.
    pub(super) fn satisfies(&self, fetch: &Fetch) -> bool {
        // A fetch that may not carry bytes_min would wait for nothing (Kafka: min(minBytes, maxBytes)).
        self.failed
            || fetch.partitions.is_empty()
            || self.bytes >= fetch.bytes_min.min(self.bytes_max.max(1).min(fetch.bytes_max))
    }

    /// Keeps as much of the share as was read.
    pub(super) fn holding(mut self, mut share: Share) -> Self {
        share.settle(self.bytes);
        self.share = Some(share);
        self
    }

    pub(super) fn answered(self, waited: Duration) -> Answered {
        Answered { fetched: self.fetched, share: self.share, waited }
    }
}

impl Fetch {
    /// What its limits allow together.
    pub(super) fn bytes_at_most(&self) -> usize {
        let all = self.partitions.iter().fold(0, |sum: usize, of| sum.saturating_add(of.bytes_max));
        all.min(self.bytes_max)
    }
}

/// Carries a fetch out, within `bytes_max` of all its limits' bytes. Ends early with None when a read has no answer here (it needs a file).
pub(super) fn gather(fetch: &Fetch, bytes_max: usize, mut read: impl FnMut(Ask) -> Option<Answer>) -> Option<Gathered> {
    let fetched = Vec::with_capacity(fetch.partitions.len());
    let mut gathered = Gathered { fetched, bytes_max, ..Gathered::default() };
    for of in &fetch.partitions {
        let left = bytes_max.saturating_sub(gathered.bytes);
        let ask = Ask { of: *of, bytes_max: of.bytes_max.min(left), at_least_one: gathered.bytes == 0 };
        let (bounds, result) = read(ask)?;
        match &result {
            Ok(batches) => gathered.bytes += batches.bytes,
            Err(_) => gathered.failed = true,
        }
        gathered.fetched.push(Fetched { partition: of.partition, bounds, result });
    }
    Some(gathered)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::types::{Offset, TopicId, TopicPartition};

    fn fetch(partition_bytes_max: &[usize], bytes_min: usize, bytes_max: usize) -> Fetch {
        let partition = |number| TopicPartition { topic: TopicId([1; 16]), partition: number };
        let partitions = partition_bytes_max.iter().zip(0..).map(|(bytes_max, number)| FetchPartition {
            partition: partition(number),
            from: Offset(0),
            bytes_max: *bytes_max,
        });
        Fetch { partitions: partitions.collect(), wait_max: Duration::ZERO, bytes_min, bytes_max, may_be_ahead: false }
    }

    /// Partitions that hold this many bytes each, in batches of 10.
    fn gather_from(held: &[usize], fetch: &Fetch) -> (Vec<usize>, Gathered) {
        let mut gave = Vec::new();
        let gathered = gather(fetch, fetch.bytes_max, |ask| {
            let held = held[ask.of.partition.partition as usize];
            let whole = held.min(ask.bytes_max) / 10 * 10;
            let bytes = if whole == 0 && ask.at_least_one { held.min(10) } else { whole };
            gave.push(bytes);
            Some((None, Ok(ReadBatches { bytes, ..ReadBatches::default() })))
        });
        (gave, gathered.expect("nothing needs a file"))
    }

    #[test]
    fn limits_of_partitions_and_of_the_answer_hold_in_request_order() {
        let (gave, gathered) = gather_from(&[100, 100, 100], &fetch(&[50, 30, 50], 1, 100));
        assert_eq!((gave, gathered.bytes), (vec![50, 30, 20], 100));
    }

    #[test]
    fn only_the_first_partition_with_data_may_exceed_the_limits() {
        let (gave, _) = gather_from(&[0, 100, 100], &fetch(&[5, 5, 5], 1, 5));
        assert_eq!(gave, [0, 10, 0]);
    }

    #[test]
    fn a_fetch_is_satisfied_by_bytes_min_or_by_an_error_or_by_asking_nothing() {
        let (_, gathered) = gather_from(&[20], &fetch(&[100], 1, 100));
        assert!(gathered.satisfies(&fetch(&[100], 20, 100)));
        assert!(!gathered.satisfies(&fetch(&[100], 21, 100)));
        assert!(gathered.satisfies(&fetch(&[100], 21, 20)), "bytes_min beyond bytes_max cannot be reached");
        assert!(Gathered::default().satisfies(&fetch(&[], 1, 100)));
        let asked = fetch(&[100], 1, 100);
        let failed =
            gather(&asked, asked.bytes_max, |_| Some((None, Err(SegmentError::OffsetOutOfRange)))).expect("no file");
        assert!(failed.satisfies(&asked));
    }
}
