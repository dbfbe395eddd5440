//! The newest entries of the log in memory: what is queued for the disk, and behind it as much as the byte bound allows.
//!
//! Invariants: the entries are consecutive and end at the log's last index; an entry that the log's writer has not
//! reported yet is never evicted, because nobody else could be asked for it.

use std::collections::VecDeque;

use super::raft_types::{LogId, RaftEntry, Vote};
use crate::config::limits::{TAIL_ENTRY_OVERHEAD_BYTES, TAIL_PIECE_OVERHEAD_BYTES};
use crate::types::LogIndex;

/// A cached entry and what it takes in memory.
struct Cached {
    entry: RaftEntry,
    bytes: usize,
}

/// The tail, and the few ids that openraft asks for.
pub struct Tail {
    entries: VecDeque<Cached>,
    bytes: usize,
    bytes_max: usize,
    /// Index of the first entry that the log holds, in memory or on disk; the index behind the last if there is none.
    start: u64,
    /// Everything before this index was written by the log's writer.
    unwritten: u64,
    /// The last entry, or the last purged one where there is none.
    pub last: Option<LogId>,
    /// The last purged entry.
    pub purged: Option<LogId>,
    /// The last vote saved.
    pub vote: Option<Vote>,
    /// The last committed id saved.
    pub committed: Option<LogId>,
}

impl Tail {
    /// The tail of a log that was just opened: everything is on disk, nothing in memory.
    pub fn new(bytes_max: usize, first: Option<LogIndex>, last: Option<LogId>, purged: Option<LogId>) -> Self {
        let last = last.or(purged);
        let unwritten = next(last.as_ref());
        let start = first.map_or(unwritten, |first| first.0);
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            bytes_max,
            start,
            unwritten,
            last,
            purged,
            vote: None,
            committed: None,
        }
    }

    /// First index in memory; the index behind the last entry if there is none.
    pub fn first(&self) -> u64 {
        self.entries.front().map_or_else(|| next(self.last.as_ref()), |cached| cached.entry.log_id.index())
    }

    /// The indexes that the log holds, in memory or on disk: from, to (exclusive).
    pub fn stored(&self) -> (u64, u64) {
        (self.start, next(self.last.as_ref()))
    }

    /// Adds the next entry, which is stored as `bytes` bytes in so many pieces.
    ///
    /// # Panics
    /// If it leaves a hole: openraft appends consecutive entries only.
    pub fn push(&mut self, entry: RaftEntry, bytes: usize, pieces: usize) {
        let bytes = bytes + TAIL_ENTRY_OVERHEAD_BYTES + pieces * TAIL_PIECE_OVERHEAD_BYTES;
        let id = entry.log_id;
        let next = next(self.last.as_ref());
        if self.start == next {
            self.start = id.index();
        } else {
            assert_eq!(id.index(), next, "the log has no holes");
        }
        self.entries.push_back(Cached { entry, bytes });
        self.bytes += bytes;
        self.last = Some(id);
    }

    /// Everything up to `index` was written: it may be evicted where the bound asks for it.
    pub fn written(&mut self, index: LogIndex) {
        self.unwritten = self.unwritten.max(index.0 + 1);
        while self.bytes > self.bytes_max {
            match self.entries.front() {
                Some(oldest) if oldest.entry.log_id.index() < self.unwritten => self.pop_front(),
                _ => break,
            }
        }
    }

    fn pop_front(&mut self) {
        if let Some(oldest) = self.entries.pop_front() {
            self.bytes -= oldest.bytes;
        }
    }

    /// Removes everything behind `last`.
    pub fn truncate_after(&mut self, last: Option<LogId>) {
        let keep = next(last.as_ref());
        if keep >= next(self.last.as_ref()) {
            return;
        }
        while self.entries.back().is_some_and(|cached| cached.entry.log_id.index() >= keep) {
            if let Some(newest) = self.entries.pop_back() {
                self.bytes -= newest.bytes;
            }
        }
        self.last = last.or(self.purged);
        self.start = self.start.min(next(self.last.as_ref()));
        self.unwritten = self.unwritten.min(keep);
    }

    /// Forgets everything up to `id`, which may lie beyond the last entry.
    pub fn purge(&mut self, id: LogId) {
        if self.purged.is_some_and(|purged| purged.index() >= id.index()) {
            return;
        }
        self.purged = Some(id);
        while self.entries.front().is_some_and(|cached| cached.entry.log_id.index() <= id.index()) {
            self.pop_front();
        }
        if next(self.last.as_ref()) <= id.index() {
            self.last = Some(id);
        }
        self.start = self.start.max(id.index() + 1).min(next(self.last.as_ref()));
        self.unwritten = self.unwritten.max(id.index() + 1);
    }

    /// Clones of the cached entries in [from, to), which take about `bytes_max`, but at least one.
    pub fn read(&self, from: u64, to: u64, bytes_max: usize) -> Vec<RaftEntry> {
        let first = self.first();
        let skip = usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX);
        let mut bytes = 0;
        let mut out = Vec::new();
        for cached in self.entries.iter().skip(skip).take_while(|cached| cached.entry.log_id.index() < to) {
            bytes += cached.bytes;
            if bytes > bytes_max && !out.is_empty() {
                break;
            }
            out.push(cached.entry.clone());
        }
        out
    }

    /// Bytes in memory, what the entries take besides their own bytes included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The index behind an id.
pub fn next(id: Option<&LogId>) -> u64 {
    id.map_or(0, |id| id.index() + 1)
}

#[cfg(test)]
mod tests {
    use openraft::EntryPayload;

    use super::super::raft_types::log_id;
    use super::*;
    use crate::types::Term;

    fn id(index: u64) -> LogId {
        log_id(LogIndex(index), Term(1))
    }

    /// What a blank entry of ten bytes takes.
    const ONE: usize = 10 + TAIL_ENTRY_OVERHEAD_BYTES + TAIL_PIECE_OVERHEAD_BYTES;

    fn tail(bytes_max: usize, indexes: std::ops::Range<u64>) -> Tail {
        let mut tail = Tail::new(bytes_max, None, None, None);
        for index in indexes {
            tail.push(RaftEntry { log_id: id(index), payload: EntryPayload::Blank }, 10, 1);
        }
        tail
    }

    fn indexes(entries: &[RaftEntry]) -> Vec<u64> {
        entries.iter().map(|entry| entry.log_id.index()).collect()
    }

    #[test]
    fn what_is_not_written_is_never_evicted() {
        let mut tail = tail(2 * ONE, 0..10);
        assert_eq!((tail.first(), tail.bytes()), (0, 10 * ONE));
        tail.written(LogIndex(3));
        assert_eq!(tail.first(), 4, "six unwritten entries stay, over the bound");
        tail.written(LogIndex(9));
        assert_eq!((tail.first(), tail.bytes()), (8, 2 * ONE));
    }

    #[test]
    fn a_read_stops_at_its_bytes_but_not_before_the_first_entry() {
        let tail = tail(100 * ONE, 0..10);
        assert_eq!(indexes(&tail.read(2, 9, 3 * ONE + 5)), [2, 3, 4]);
        assert_eq!(indexes(&tail.read(2, 9, 0)), [2]);
        assert_eq!(indexes(&tail.read(8, 100, 100 * ONE)), [8, 9]);
        assert!(tail.read(10, 12, 100 * ONE).is_empty());
    }

    #[test]
    fn truncation_takes_back_what_was_written() {
        let mut tail = tail(0, 0..10);
        tail.truncate_after(Some(id(5)));
        assert_eq!((tail.stored(), tail.last), ((0, 6), Some(id(5))));
        tail.truncate_after(Some(id(8)));
        assert_eq!(tail.last, Some(id(5)), "nothing there to remove");
        tail.push(RaftEntry { log_id: id(6), payload: EntryPayload::Blank }, 10, 1);
        tail.written(LogIndex(5));
        assert_eq!(tail.first(), 6, "the new entry 6 is not written yet");
        tail.truncate_after(None);
        assert_eq!((tail.stored(), tail.last), ((0, 0), None));
    }

    #[test]
    fn a_purge_may_reach_beyond_the_last_entry() {
        let mut tail = tail(100 * ONE, 0..10);
        tail.purge(id(3));
        assert_eq!((tail.stored(), tail.first()), ((4, 10), 4));
        tail.purge(id(20));
        assert_eq!((tail.stored(), tail.last, tail.bytes()), ((21, 21), Some(id(20)), 0));
        tail.purge(id(5));
        assert_eq!(tail.purged, Some(id(20)));
        tail.push(RaftEntry { log_id: id(21), payload: EntryPayload::Blank }, 10, 1);
        assert_eq!(indexes(&tail.read(21, 22, ONE)), [21]);
    }

    #[test]
    fn the_overhead_counted_is_not_less_than_the_structures() {
        use crate::state::command::{Batch, Entry};
        let allocations = 5 * 16;
        let entry = 2 * size_of::<Cached>() + size_of::<Entry>() + 2 * size_of::<Vec<u8>>() + allocations;
        assert!(entry <= TAIL_ENTRY_OVERHEAD_BYTES, "{entry}");
        let piece = size_of::<Batch>() + size_of::<bytes::Bytes>();
        assert!(piece <= TAIL_PIECE_OVERHEAD_BYTES, "{piece}");
    }
}
