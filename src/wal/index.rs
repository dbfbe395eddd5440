//! Where each stored entry is: runs of consecutive entries, each within one file and unbroken by a truncation.
//!
//! A run knows the position of every entry while its file is written, and of every 64th once it is sealed; the rest
//! are found by walking the frames, which is sound because nothing inside a run was ever truncated.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::file::LogFile;
use crate::types::{LogIndex, Term};

/// Of a sealed run every so many positions are kept: 8 bytes for 64 entries, and at most 63 frames to walk.
const SPARSE_STRIDE: u64 = 64;

#[derive(Debug)]
struct Run {
    file: Arc<LogFile>,
    first: u64,
    count: u64,
    /// `positions[n]` is that of entry `first + n * stride`.
    stride: u64,
    positions: Vec<u64>,
    /// (first index, term), one for each change of term.
    terms: Vec<(u64, Term)>,
}

impl Run {
    fn last(&self) -> u64 {
        self.first + self.count - 1
    }

    fn term_of(&self, index: u64) -> Term {
        let after = self.terms.partition_point(|(first, _)| *first <= index);
        self.terms[after - 1].1
    }

    fn keep_to(&mut self, last: u64) {
        self.count = last + 1 - self.first;
        self.positions.truncate((self.count.div_ceil(self.stride)) as usize);
        self.terms.retain(|(first, _)| *first <= last);
    }
}

/// Where to start looking for an entry.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub file: Arc<LogFile>,
    /// Position of an entry's frame at or before the one wanted.
    pub position: u64,
    /// The last index of the run: all up to it follow in this file.
    pub run_last: LogIndex,
}

/// The entries that are stored.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// By first index; not overlapping.
    runs: BTreeMap<u64, Run>,
    /// The last entry of the files that were unlinked before the first one found, until it is truncated away.
    before: Option<(LogIndex, Term)>,
    purged: Option<LogIndex>,
    /// A truncation came after the last entry: the next one starts a run.
    broken: bool,
}

impl Index {
    /// The index of a log whose first file's header names `before` and `purged`.
    pub fn new(before: Option<(LogIndex, Term)>, purged: Option<LogIndex>) -> Self {
        Self { before, purged, ..Self::default() }
    }

    /// Whether an entry that is neither stored nor purged is said to exist: files are missing.
    pub fn lacks(&self) -> Option<LogIndex> {
        self.before.map(|(index, _)| index).filter(|index| self.purged.is_none_or(|purged| purged < *index))
    }

    pub fn first(&self) -> Option<LogIndex> {
        let run = self.runs.values().next()?;
        Some(LogIndex(self.purged.map_or(run.first, |purged| run.first.max(purged.0 + 1))))
    }

    pub fn last(&self) -> Option<(LogIndex, Term)> {
        if let Some(run) = self.runs.values().next_back() {
            return Some((LogIndex(run.last()), run.term_of(run.last())));
        }
        self.before.filter(|(index, _)| self.purged.is_none_or(|purged| purged < *index))
    }

    /// Whether an entry with this index may come next.
    pub fn accepts(&self, index: LogIndex) -> bool {
        match self.last() {
            Some((last, _)) => index.0 == last.0 + 1,
            None => self.purged.is_none_or(|purged| index > purged),
        }
    }

    /// What [`Self::accepts`] expects, as far as it is known.
    pub fn next(&self) -> LogIndex {
        self.last().map(|(last, _)| last).or(self.purged).map_or(LogIndex(0), |last| LogIndex(last.0 + 1))
    }

    /// Adds an entry that [`Self::accepts`].
    pub fn push(&mut self, file: &Arc<LogFile>, index: LogIndex, term: Term, position: u64) {
        if let Some(mut entry) = self.runs.last_entry() {
            let run = entry.get_mut();
            if !self.broken && Arc::ptr_eq(&run.file, file) && run.last() + 1 == index.0 {
                run.count += 1;
                run.positions.push(position);
                if run.terms.last().is_none_or(|(_, last)| *last != term) {
                    run.terms.push((index.0, term));
                }
                return;
            }
        }
        self.broken = false;
        let run = Run {
            file: Arc::clone(file),
            first: index.0,
            count: 1,
            stride: 1,
            positions: vec![position],
            terms: vec![(index.0, term)],
        };
        self.runs.insert(index.0, run);
    }

    /// Removes entries from `from` on.
    pub fn truncate_from(&mut self, from: LogIndex) {
        self.broken = true;
        let _removed = self.runs.split_off(&from.0);
        if let Some(mut entry) = self.runs.last_entry()
            && entry.get().last() >= from.0
        {
            entry.get_mut().keep_to(from.0 - 1);
        }
        self.before = match self.before {
            // The term is that of a removed entry, but what is left was purged, or opening fails.
            Some((index, term)) if index >= from => from.0.checked_sub(1).map(|last| (LogIndex(last), term)),
            before => before,
        };
        // A run that began below the purged index may now end there.
        if let Some(purged) = self.purged {
            self.purge(purged);
        }
    }

    /// Forgets entries up to `index`.
    pub fn purge(&mut self, index: LogIndex) {
        self.purged = self.purged.max(Some(index));
        while let Some(entry) = self.runs.first_entry()
            && entry.get().last() <= index.0
        {
            entry.remove();
        }
    }

    /// Thins the runs of a file that is no longer written.
    pub fn seal(&mut self, sequence: u64) {
        for run in self.runs.values_mut().rev().take_while(|run| run.file.sequence >= sequence) {
            if run.stride == 1 {
                run.positions = run.positions.iter().copied().step_by(SPARSE_STRIDE as usize).collect();
                run.stride = SPARSE_STRIDE;
            }
        }
    }

    /// Number of the oldest file with a stored entry.
    pub fn oldest_file(&self) -> Option<u64> {
        // Runs are in the order of files: a later file's entries come after an earlier one's.
        self.runs.values().next().map(|run| run.file.sequence)
    }

    /// First stored index of the newest `files` files; None if there are no more than that.
    pub fn first_of_newest_files(&self, files: usize) -> Option<LogIndex> {
        let mut sequences = std::collections::BTreeSet::new();
        let mut first = None;
        for run in self.runs.values().rev() {
            sequences.insert(run.file.sequence);
            if sequences.len() > files {
                return Some(first.unwrap_or(LogIndex(run.last() + 1)));
            }
            first = Some(LogIndex(run.first));
        }
        None
    }

    /// Where an entry is found.
    pub fn locate(&self, index: LogIndex) -> Option<Place> {
        let (_, run) = self.runs.range(..=index.0).next_back()?;
        if index.0 > run.last() || self.purged.is_some_and(|purged| index <= purged) {
            return None;
        }
        let step = (index.0 - run.first) / run.stride;
        let position = run.positions[usize::try_from(step).expect("an index into a vector")];
        Some(Place { file: Arc::clone(&run.file), position, run_last: LogIndex(run.last()) })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::disk::{Disk, FaultyDisk};
    use crate::wal::format::{Carried, FileHeader};

    fn file(sequence: u64) -> Arc<LogFile> {
        let header = FileHeader {
            cluster_id: [0; 16],
            sequence,
            salt: 0,
            first_index: LogIndex(0),
            previous: None,
            previous_end: 0,
            previous_crc: 0,
            carried: Carried::default(),
        };
        let handle = FaultyDisk::new(0).open(Path::new("/f"), true).unwrap();
        Arc::new(LogFile::new("/f".into(), handle, &header, 0))
    }

    #[test]
    fn a_sealed_run_still_finds_a_place_at_or_before_every_entry() {
        let mut index = Index::default();
        let file = file(1);
        for i in 0..200 {
            index.push(&file, LogIndex(i), Term(i / 100), i * 10);
        }
        assert_eq!(index.locate(LogIndex(130)).unwrap().position, 1300);
        index.seal(1);
        assert_eq!(index.locate(LogIndex(130)).unwrap().position, 1280);
        assert_eq!(index.last(), Some((LogIndex(199), Term(1))));
        index.truncate_from(LogIndex(100));
        assert_eq!(index.last(), Some((LogIndex(99), Term(0))));
        assert!(index.locate(LogIndex(100)).is_none());
        assert_eq!(index.locate(LogIndex(99)).unwrap().position, 640);
    }

    #[test]
    fn entries_written_again_after_a_truncation_are_found_at_their_new_place() {
        let mut index = Index::default();
        let file = file(1);
        (0..10).for_each(|i| index.push(&file, LogIndex(i), Term(1), i * 10));
        index.truncate_from(LogIndex(5));
        (5..8).for_each(|i| index.push(&file, LogIndex(i), Term(2), 500 + i * 10));
        index.seal(1);
        assert_eq!(index.locate(LogIndex(6)).unwrap().position, 550, "never a walk across removed frames");
        assert_eq!(index.locate(LogIndex(4)).unwrap().run_last, LogIndex(4));
        assert_eq!(index.last(), Some((LogIndex(7), Term(2))));
    }

    #[test]
    fn a_purge_beyond_the_last_entry_empties_the_log_and_sets_what_may_follow() {
        let mut index = Index::default();
        let file = file(1);
        (0..10).for_each(|i| index.push(&file, LogIndex(i), Term(1), i * 10));
        index.purge(LogIndex(3));
        assert_eq!((index.first(), index.oldest_file()), (Some(LogIndex(4)), Some(1)));
        assert!(index.locate(LogIndex(3)).is_none());
        index.purge(LogIndex(20));
        assert_eq!((index.first(), index.last(), index.next()), (None, None, LogIndex(21)));
        assert!(!index.accepts(LogIndex(20)) && index.accepts(LogIndex(21)));
    }

    #[test]
    fn a_truncation_below_the_purged_index_leaves_an_empty_log() {
        let mut index = Index::default();
        let file = file(1);
        (0..15).for_each(|i| index.push(&file, LogIndex(i), Term(1), i * 10));
        index.purge(LogIndex(13));
        index.truncate_from(LogIndex(11));
        assert_eq!((index.first(), index.last(), index.next()), (None, None, LogIndex(14)));
        assert!(index.accepts(LogIndex(14)));
    }
}
