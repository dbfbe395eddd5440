//! One partition's replicated numbers: where its log starts and ends, and which term wrote what.
//!
//! Invariants: `log_start_offset <= next_offset`; offsets are dense (each batch starts where the one before it ended);
//! `leader_epochs` ascends strictly in term and never descends in offset.

use serde::{Deserialize, Serialize};

use crate::types::{Offset, Term};

/// How many terms of one partition are remembered. A consumer that asks about an older one is told the start of the oldest known, as after
/// Kafka's own truncation of its epoch file; a thousand leader changes between two polls of a consumer do not happen.
pub const LEADER_EPOCHS_MAX: usize = 1_000;

/// What replicas agree on about one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// First offset that can be read.
    pub log_start_offset: Offset,
    /// Offset that the next record gets: the log end, and the high watermark of what is applied.
    pub next_offset: Offset,
    /// (term, first offset written in it), ascending: answers OffsetForLeaderEpoch (KIP-101).
    pub leader_epochs: Vec<(Term, Offset)>,
}

impl Partition {
    /// Takes `count` offsets for a batch: (its base offset, the offset behind it).
    pub(super) fn append(&mut self, term: Term, count: i32) -> (Offset, Offset) {
        assert!(count > 0, "a checked batch has records");
        let base = self.next_offset;
        match self.leader_epochs.last() {
            Some((last, start)) if *last >= term => assert!(*last == term && *start <= base, "terms only grow"),
            _ => {
                if self.leader_epochs.len() == LEADER_EPOCHS_MAX {
                    self.leader_epochs.remove(0);
                }
                self.leader_epochs.push((term, base));
            }
        }
        self.next_offset = Offset(base.0 + i64::from(count));
        assert!(self.log_start_offset <= base && base < self.next_offset, "the log only grows at its end");
        (base, self.next_offset)
    }

    /// Moves the log's start up to `to`, which lies in the log.
    ///
    /// As Kafka's `LeaderEpochFileCache.truncateFromStart`: the term that wrote what is now first begins there, older ones are forgotten.
    pub(super) fn trim(&mut self, to: Offset) {
        assert!(self.log_start_offset < to && to <= self.next_offset, "the log's start moves up, within the log");
        self.log_start_offset = to;
        let older = self.leader_epochs.partition_point(|(_, start)| *start <= to);
        if let Some(first) = older.checked_sub(1) {
            self.leader_epochs.drain(..first);
            self.leader_epochs[0].1 = to;
        }
    }

    /// Where the epoch that is `<= leader_epoch` and known ends: (that epoch, its end offset).
    ///
    /// As Kafka's `LeaderEpochFileCache.endOffsetFor`: a newer epoch than any known yields None. `current` counts as known from
    /// the log end on: Kafka's leader notes its epoch when it is elected, ours when it first writes.
    pub fn end_offset_for(&self, leader_epoch: i32, current: i32) -> Option<(i32, Offset)> {
        if leader_epoch < 0 || leader_epoch > current {
            return None;
        }
        if leader_epoch == current {
            return Some((leader_epoch, self.next_offset));
        }
        let after = self.leader_epochs.partition_point(|(term, _)| term.leader_epoch() <= leader_epoch);
        let end = self.leader_epochs.get(after).map_or(self.next_offset, |(_, start)| *start);
        let floor = after.checked_sub(1).map_or(leader_epoch, |at| self.leader_epochs[at].0.leader_epoch());
        Some((floor, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written_in(terms: &[(u64, i32)]) -> Partition {
        let mut partition = Partition::default();
        for (term, count) in terms {
            partition.append(Term(*term), *count);
        }
        partition
    }

    #[test]
    fn an_epoch_ends_where_the_next_one_that_wrote_begins() {
        let partition = written_in(&[(2, 10), (2, 5), (5, 3), (7, 1)]);
        let ends = |epoch, current| partition.end_offset_for(epoch, current).map(|(e, o)| (e, o.0));
        assert_eq!(ends(2, 7), Some((2, 15)));
        assert_eq!(ends(3, 7), Some((2, 15)), "an epoch that wrote nothing ends with its predecessor");
        assert_eq!(ends(5, 7), Some((5, 18)));
        assert_eq!(ends(7, 7), Some((7, 19)), "the current epoch ends at the log end");
        assert_eq!(ends(1, 7), Some((1, 0)), "older than any known: the start of the first known");
        assert_eq!(ends(8, 7), None);
        assert_eq!(ends(-1, 7), None);
    }

    #[test]
    fn a_term_that_has_not_written_yet_counts_as_begun_at_the_log_end() {
        let partition = written_in(&[(2, 10)]);
        assert_eq!(partition.end_offset_for(2, 4), Some((2, Offset(10))));
        assert_eq!(partition.end_offset_for(3, 4), Some((2, Offset(10))));
        assert_eq!(partition.end_offset_for(4, 4), Some((4, Offset(10))));
        assert_eq!(Partition::default().end_offset_for(1, 4), Some((1, Offset(0))));
    }

    #[test]
    fn a_trimmed_log_begins_with_the_term_that_wrote_its_first_record() {
        let trimmed = |to| {
            let mut partition = written_in(&[(2, 10), (5, 3), (7, 1)]);
            partition.trim(Offset(to));
            partition
        };
        assert_eq!(trimmed(4).leader_epochs, [(Term(2), Offset(4)), (Term(5), Offset(10)), (Term(7), Offset(13))]);
        assert_eq!(trimmed(10).leader_epochs, [(Term(5), Offset(10)), (Term(7), Offset(13))]);
        assert_eq!(trimmed(14).leader_epochs, [(Term(7), Offset(14))], "of an empty log, the last term");
        assert_eq!(trimmed(12).end_offset_for(2, 7), Some((2, Offset(12))), "what it wrote is gone");
        let mut emptied = trimmed(14);
        assert_eq!(emptied.append(Term(7), 2), (Offset(14), Offset(16)));
        assert_eq!(emptied.append(Term(8), 1), (Offset(16), Offset(17)));
        assert_eq!(emptied.leader_epochs, [(Term(7), Offset(14)), (Term(8), Offset(16))]);
    }

    #[test]
    fn the_oldest_terms_are_forgotten_at_the_bound() {
        let terms: Vec<_> = (0..LEADER_EPOCHS_MAX as u64 + 5).map(|term| (term, 1)).collect();
        let partition = written_in(&terms);
        assert_eq!(partition.leader_epochs.len(), LEADER_EPOCHS_MAX);
        assert_eq!(partition.leader_epochs[0], (Term(5), Offset(5)));
    }
}
