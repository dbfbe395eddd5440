//! Idempotence: what each producer last wrote to each partition (transactions.md §4).
//!
//! A pure function of the log. [`judge`] is the one rule for plain batches: `leader/admission` asks it over applied and in-flight
//! state, apply over applied state. [`may_start`] is the rule for the first batch of a transaction at a partition.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::types::record_batch::sequence_plus;
use crate::types::{Offset, ProducerIdAndEpoch, RecordBatch, Refusal, TopicPartition};

/// How many batches per producer and partition are remembered to recognise retries (Kafka's `ProducerStateEntry.NUM_BATCHES_TO_RETAIN`).
pub const BATCHES_REMEMBERED: usize = 5;

/// Sequences up to this far behind count as the past, all others as the future: sequences wrap.
pub const SEQUENCE_WINDOW: i32 = 1 << 30;

/// One remembered batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenBatch {
    /// Sequence of its first record.
    pub first_sequence: i32,
    /// Sequence of its last record.
    pub last_sequence: i32,
    /// Its CRC as sent: the same sequences with another CRC are other data.
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
    /// First sequence of this epoch that was written and is not remembered any more: from here to the oldest remembered batch,
    /// a batch is an old duplicate. Before it nothing was written, so it would be a gap.
    pub forgotten_from: Option<i32>,
    /// One interval of sequences (first, last) that was acknowledged in a transaction and aborted.
    pub aborted: Option<(i32, i32)>,
}

/// What becomes of a plain batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It follows: append it.
    New,
    /// It was written before, at this offset: acknowledge it and do not write it again.
    Duplicate(Offset),
    /// It must not be written.
    Refused(Refusal),
}

/// Judges a batch outside transactions against what its producer last wrote to its partition.
pub fn judge(last: Option<&PartitionProducer>, batch: &RecordBatch) -> Verdict {
    let Some(producer) = batch.producer() else { return Verdict::New };
    if producer.epoch < 0 || batch.base_sequence() < 0 {
        return Verdict::Refused(Refusal::InvalidRecord);
    }
    // Unknown or expired: any sequence (KIP-360).
    let Some(last) = last else { return Verdict::New };
    match producer.epoch.cmp(&last.epoch) {
        std::cmp::Ordering::Less => Verdict::Refused(Refusal::InvalidProducerEpoch),
        std::cmp::Ordering::Greater if batch.base_sequence() == 0 => Verdict::New,
        std::cmp::Ordering::Greater => Verdict::Refused(Refusal::OutOfOrderSequenceNumber),
        std::cmp::Ordering::Equal => last.judge_sequence(batch),
    }
}

/// Whether the first batch of a transaction at a partition may start with `first_sequence`.
///
/// Contiguity starts behind the last committed sequence of this epoch, at 0 only if nothing is committed at it (T18). After an
/// abort a client either rewinds to there or goes on behind what was aborted (T4); it may also restart inside it.
pub fn may_start(last: Option<&PartitionProducer>, epoch: i16, first_sequence: i32) -> bool {
    let Some(last) = last.filter(|last| last.epoch == epoch) else { return first_sequence == 0 };
    let expected = last.last_sequence().map_or(0, |sequence| sequence_plus(sequence, 1));
    let inside_aborted = last.aborted.is_some_and(|(first, end)| {
        sequences_between(first, first_sequence) <= sequences_between(first, sequence_plus(end, 1))
    });
    first_sequence == expected || inside_aborted
}

/// How many steps lead from `from` to `to`, going up and wrapping: 0 to 2³¹−1.
fn sequences_between(from: i32, to: i32) -> i32 {
    let steps = (i64::from(to) - i64::from(from)).rem_euclid(i64::from(i32::MAX) + 1);
    i32::try_from(steps).expect("a remainder of 2³¹ fits")
}

impl PartitionProducer {
    /// A producer that has written nothing at `epoch` yet.
    pub fn starting(epoch: i16) -> Self {
        Self { epoch, batches: VecDeque::new(), forgotten_from: None, aborted: None }
    }

    /// Sequence of the last record written at this epoch, None if nothing was.
    pub fn last_sequence(&self) -> Option<i32> {
        self.batches.back().map(|batch| batch.last_sequence)
    }

    /// The remembered batch that this one repeats: same epoch, same first and last sequence, same CRC, but for the time at
    /// which the client stamped it. (Under `LogAppendTime` the client's time is not remembered: there the CRC must be equal.)
    pub fn find(&self, batch: &RecordBatch) -> Option<&WrittenBatch> {
        let same = |written: &&WrittenBatch| {
            written.first_sequence == batch.base_sequence()
                && written.last_sequence == batch.last_sequence()
                && (written.crc == batch.crc() || written.crc == batch.crc_moved_to(written.timestamp_ms))
        };
        self.batches.iter().filter(|_| batch.producer_epoch() == self.epoch).find(same)
    }

    fn judge_sequence(&self, batch: &RecordBatch) -> Verdict {
        let (Some(oldest), Some(newest)) = (self.batches.front(), self.batches.back()) else { return Verdict::New };
        if batch.base_sequence() == sequence_plus(newest.last_sequence, 1) {
            return Verdict::New;
        }
        if let Some(original) = self.find(batch) {
            return Verdict::Duplicate(original.base_offset);
        }
        // Clients take 46 for success, so it is said only of sequences that were certainly written.
        let forgotten = self.forgotten_from.is_some_and(|from| {
            let length = sequences_between(from, oldest.first_sequence);
            sequences_between(from, batch.base_sequence()) < length
                && sequences_between(from, batch.last_sequence()) < length
        });
        let refusal = if forgotten { Refusal::DuplicateSequenceNumber } else { Refusal::OutOfOrderSequenceNumber };
        Verdict::Refused(refusal)
    }

    /// Remembers a batch that was written (or, in the leader's overlay, proposed) at `epoch`.
    pub fn write(&mut self, epoch: i16, batch: WrittenBatch) {
        if epoch != self.epoch {
            *self = Self::starting(epoch);
        }
        if self.batches.len() == BATCHES_REMEMBERED
            && let Some(gone) = self.batches.pop_front()
        {
            let from = self.forgotten_from.unwrap_or(gone.first_sequence);
            let far = sequences_between(from, batch.first_sequence) >= SEQUENCE_WINDOW;
            self.forgotten_from = Some(if far { gone.first_sequence } else { from });
        }
        self.batches.push_back(batch);
        self.aborted = None;
        assert!(self.batches.len() <= BATCHES_REMEMBERED, "what is remembered is bounded");
    }

    /// Notes that the sequences `first..=last` were acknowledged at `epoch` and aborted.
    fn skip(&mut self, epoch: i16, first: i32, last: i32) {
        if epoch != self.epoch {
            *self = Self::starting(epoch);
        }
        let joined = self.aborted.filter(|(start, end)| {
            // One aborted right behind, or rewound into, another: still one interval.
            sequences_between(*start, first) <= sequences_between(*start, sequence_plus(*end, 1))
        });
        self.aborted = Some(match joined {
            Some((start, end)) if sequences_between(start, end) > sequences_between(start, last) => (start, end),
            Some((start, _)) => (start, last),
            None => (first, last),
        });
    }
}

/// One producer id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Producer {
    /// Per partition.
    pub partitions: BTreeMap<TopicPartition, PartitionProducer>,
    /// The epoch at which a transaction was aborted that may have used any sequence in any partition; tells about those
    /// that have no state at it.
    pub unknown_epoch: Option<i16>,
    /// Wall clock of the last write, for expiry.
    pub last_used_ms: i64,
}

/// All producer ids that wrote something, and the counter of ids given out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Producers {
    pub(super) by_id: imbl::OrdMap<i64, Arc<Producer>>,
    /// The next producer id to give out.
    pub(super) next_producer_id: i64,
}

impl Producers {
    /// A producer's state, if it wrote anything that is still remembered.
    pub fn get(&self, producer_id: i64) -> Option<&Producer> {
        self.by_id.get(&producer_id).map(|producer| &**producer)
    }

    /// Whether the first batch of a transaction of `producer` at a partition may start with `first_sequence`.
    pub fn may_start(&self, producer: ProducerIdAndEpoch, at: TopicPartition, first_sequence: i32) -> bool {
        let last = self.at(producer.producer_id, at).filter(|last| last.epoch == producer.epoch);
        may_start(last, producer.epoch, first_sequence) || last.is_none() && self.may_skip(producer)
    }

    /// Whether `producer` may have used any sequence in partitions where it has no state.
    pub fn may_skip(&self, producer: ProducerIdAndEpoch) -> bool {
        self.get(producer.producer_id).is_some_and(|known| known.unknown_epoch == Some(producer.epoch))
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

    /// A producer id that was never given out before, at epoch 0.
    pub(super) fn fresh(&mut self) -> ProducerIdAndEpoch {
        let producer_id = self.next_producer_id;
        self.next_producer_id = producer_id.checked_add(1).expect("2⁶³ producer ids are never used up");
        ProducerIdAndEpoch { producer_id, epoch: 0 }
    }

    pub(super) fn write(&mut self, now_ms: i64, by: ProducerIdAndEpoch, to: TopicPartition, batch: WrittenBatch) {
        let producer = Arc::make_mut(self.by_id.entry(by.producer_id).or_default());
        producer.last_used_ms = producer.last_used_ms.max(now_ms);
        let state = producer.partitions.entry(to).or_insert_with(|| PartitionProducer::starting(by.epoch));
        state.write(by.epoch, batch);
    }

    pub(super) fn skip(&mut self, now_ms: i64, by: ProducerIdAndEpoch, at: TopicPartition, first: i32, last: i32) {
        let producer = Arc::make_mut(self.by_id.entry(by.producer_id).or_default());
        producer.last_used_ms = producer.last_used_ms.max(now_ms);
        let state = producer.partitions.entry(at).or_insert_with(|| PartitionProducer::starting(by.epoch));
        state.skip(by.epoch, first, last);
    }

    /// A transaction was aborted that may have used any sequences from the expected ones on.
    pub(super) fn skip_unknown(&mut self, now_ms: i64, by: ProducerIdAndEpoch) {
        let producer = Arc::make_mut(self.by_id.entry(by.producer_id).or_default());
        producer.last_used_ms = producer.last_used_ms.max(now_ms);
        producer.unknown_epoch = Some(by.epoch);
        for state in producer.partitions.values_mut().filter(|state| state.epoch == by.epoch) {
            let expected = state.last_sequence().map_or(0, |last| sequence_plus(last, 1));
            state.aborted = Some((expected, sequence_plus(expected, SEQUENCE_WINDOW)));
        }
    }

    /// Forgets what anybody wrote to topics that are gone.
    pub(super) fn forget_topics(&mut self, gone: impl Fn(&TopicPartition) -> bool) {
        let touched: Vec<i64> = self.iter().filter(|(_, p)| p.partitions.keys().any(&gone)).map(|(id, _)| id).collect();
        for id in touched {
            let producer = Arc::make_mut(self.by_id.get_mut(&id).expect("it was just found"));
            producer.partitions.retain(|partition, _| !gone(partition));
            if producer.partitions.is_empty() && producer.unknown_epoch.is_none() {
                self.by_id.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::record_batch::sample;

    fn state(epoch: i16, batches: &[(i32, i32)]) -> PartitionProducer {
        let mut state = PartitionProducer::starting(epoch);
        for (at, (first, count)) in batches.iter().enumerate() {
            let sent = sample::batch((7, epoch), *first, *count, false, b"x");
            let written = WrittenBatch {
                first_sequence: *first,
                last_sequence: sent.last_sequence(),
                crc: sent.crc(),
                base_offset: Offset(at as i64 * 100),
                timestamp_ms: sent.max_timestamp(),
            };
            state.write(epoch, written);
        }
        state
    }

    fn sent(epoch: i16, first: i32, count: i32, body: &[u8]) -> RecordBatch {
        sample::batch((7, epoch), first, count, false, body)
    }

    #[test]
    fn a_sequence_that_was_never_written_is_a_gap_and_not_an_old_duplicate() {
        // The first batch was lost with its connection, the second came first: 46 would be taken for success.
        let started_at_10 = state(0, &[(10, 5)]);
        let verdict = judge(Some(&started_at_10), &sent(0, 0, 10, b"x"));
        assert_eq!(verdict, Verdict::Refused(Refusal::OutOfOrderSequenceNumber));
    }

    #[test]
    fn only_what_was_written_and_forgotten_is_an_old_duplicate() {
        let seven = state(0, &[(0, 5), (5, 5), (10, 5), (15, 5), (20, 5), (25, 5), (30, 5)]);
        let refused = |first, count| judge(Some(&seven), &sent(0, first, count, b"x"));
        assert_eq!(refused(5, 5), Verdict::Refused(Refusal::DuplicateSequenceNumber));
        assert_eq!(refused(10, 5), Verdict::Duplicate(Offset(200)));
        assert_eq!(refused(8, 5), Verdict::Refused(Refusal::OutOfOrderSequenceNumber), "overlaps a remembered one");
        assert_eq!(refused(36, 1), Verdict::Refused(Refusal::OutOfOrderSequenceNumber));
    }

    #[test]
    fn duplicates_and_successors_are_known_across_the_wrap() {
        let at_edge = state(0, &[(i32::MAX - 4, 3), (i32::MAX - 1, 4)]);
        assert_eq!(at_edge.last_sequence(), Some(1));
        assert_eq!(judge(Some(&at_edge), &sent(0, 2, 1, b"x")), Verdict::New);
        assert_eq!(judge(Some(&at_edge), &sent(0, i32::MAX - 1, 4, b"x")), Verdict::Duplicate(Offset(100)));
        let gap = judge(Some(&at_edge), &sent(0, 3, 1, b"x"));
        assert_eq!(gap, Verdict::Refused(Refusal::OutOfOrderSequenceNumber));
    }

    #[test]
    fn a_batch_that_its_client_stamped_anew_is_a_duplicate() {
        let written = state(0, &[(0, 5), (5, 5)]);
        let again = sample::stamped_later(&sent(0, 0, 5, b"x"), 350);
        assert_eq!(judge(Some(&written), &again), Verdict::Duplicate(Offset(0)));
    }

    #[test]
    fn other_data_under_the_same_sequences_is_never_acknowledged() {
        let written = state(0, &[(0, 5)]);
        let verdict = judge(Some(&written), &sent(0, 0, 5, b"y"));
        assert_eq!(verdict, Verdict::Refused(Refusal::OutOfOrderSequenceNumber));
    }

    #[test]
    fn a_transaction_may_rewind_to_or_go_on_behind_what_was_aborted() {
        let mut written = state(3, &[(0, 10)]);
        written.skip(3, 10, 14);
        let starts: Vec<i32> = (0..30).filter(|first| may_start(Some(&written), 3, *first)).collect();
        assert_eq!(starts, [10, 11, 12, 13, 14, 15]);
        written.skip(3, 15, 19);
        assert_eq!(written.aborted, Some((10, 19)), "one interval grows");
        written.skip(3, 10, 12);
        assert_eq!(written.aborted, Some((10, 19)), "a rewound and shorter one changes nothing");
        assert!(may_start(Some(&written), 4, 0) && !may_start(Some(&written), 4, 10), "another epoch starts at 0");
    }
}
