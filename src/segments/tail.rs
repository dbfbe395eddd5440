//! One partition: its recent batches in memory (the tail) and the list of its segments.
//!
//! The tail is a deque of batches in offset order, each with the log index of its entry. Everything in front of it is
//! in the files; a batch leaves it only after it was written and only if no reader may still need its index. So the
//! high watermark at a visible index is always found in the tail: the next offset of its last batch at or below the
//! index, or where the tail begins.
//!
//! Two small locks, never held together and never across I/O: `tail` (apply pushes, the writer trims, readers clone
//! references) and `files` (the writer publishes what it has written, readers copy a segment's numbers).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{BufMut, BytesMut};
use parking_lot::Mutex;

use super::segment::{Measure, Segment};
use super::{Bounds, ReadBatches};
use crate::config::limits::SEGMENT_BATCH_OVERHEAD_BYTES;
use crate::types::record_batch::PATCHED_BYTES;
use crate::types::{LogIndex, Offset, RecordBatch, TopicPartition};

/// A batch that has its place.
#[derive(Clone, Debug)]
pub(super) struct TailBatch {
    /// Index of the entry that brought it.
    pub index: LogIndex,
    /// Offset of its first record.
    pub base: i64,
    /// Offset behind its last record.
    pub next: i64,
    /// Leader epoch to patch in.
    pub epoch: i32,
    /// The time of its entry.
    pub entry_ms: i64,
    /// As stored, prefix not patched.
    pub records: RecordBatch,
}

impl TailBatch {
    /// What it takes in memory: both budgets of this room count that.
    pub(super) fn memory_bytes(&self) -> usize {
        self.records.size_bytes() + SEGMENT_BATCH_OVERHEAD_BYTES
    }

    /// What its segment counts.
    pub(super) fn measure(&self) -> Measure {
        Measure {
            size_bytes: self.records.size_bytes() as u64,
            last: self.next - 1,
            max_timestamp: self.records.max_timestamp(),
            entry_ms: self.entry_ms,
        }
    }

    /// The 16 bytes that replace the client's.
    pub(super) fn prefix(&self) -> [u8; PATCHED_BYTES] {
        self.records.patched_prefix(self.base, self.epoch)
    }
}

/// What a look into the tail found.
#[derive(Debug)]
pub(super) enum TailRead {
    /// The batches, perhaps none.
    Found(ReadBatches),
    /// The offset is in front of the tail, which begins at this offset: read files up to it.
    InFiles(i64),
    /// Before the log's start or beyond the high watermark.
    OutOfRange,
}

/// Recent batches.
#[derive(Debug)]
pub(super) struct Tail {
    /// First offset of the log.
    log_start: i64,
    /// Where it started for readers of an index below: (that index, the start), ascending. Empty but for a moment after a trim.
    earlier_starts: Vec<(LogIndex, i64)>,
    /// Offset behind the last batch.
    end: i64,
    /// Unwritten batches and the newest written ones, in offset order without holes.
    batches: VecDeque<TailBatch>,
}

impl Tail {
    /// A log whose content up to `end` is in files.
    pub(super) fn new(log_start: i64, end: i64) -> Self {
        Self { log_start, earlier_starts: Vec::new(), end, batches: VecDeque::new() }
    }

    /// Appends.
    ///
    /// # Panics
    /// If the batch does not begin where the log ends: state and segments disagree, and going on would store it wrongly.
    pub(super) fn push(&mut self, batch: TailBatch) {
        assert_eq!(batch.base, self.end, "a batch begins where its partition ends");
        assert!(batch.next > batch.base, "a batch holds at least one record");
        self.end = batch.next;
        self.batches.push_back(batch);
    }

    /// Where the part in memory begins.
    pub(super) fn begin(&self) -> i64 {
        self.batches.front().map_or(self.end, |batch| batch.base)
    }

    fn high_watermark(&self, visible: LogIndex) -> i64 {
        match self.batches.partition_point(|batch| batch.index <= visible) {
            0 => self.begin(),
            count => self.batches[count - 1].next,
        }
    }

    /// What can be read at `visible`.
    pub(super) fn bounds(&self, visible: LogIndex) -> Bounds {
        Bounds {
            log_start_offset: Offset(self.log_start(visible)),
            high_watermark: Offset(self.high_watermark(visible)),
        }
    }

    /// Batches from the one that contains `from` on.
    pub(super) fn read(&self, visible: LogIndex, from: i64, bytes_max: usize, at_least_one: bool) -> TailRead {
        let high_watermark = self.high_watermark(visible);
        if from < self.log_start(visible) || from > high_watermark {
            return TailRead::OutOfRange;
        }
        if from == high_watermark {
            return TailRead::Found(ReadBatches::default());
        }
        if from < self.begin() {
            return TailRead::InFiles(self.begin());
        }
        let first = self.batches.partition_point(|batch| batch.next <= from);
        let mut bytes = 0;
        let taken = self.batches.range(first..).take_while(|batch| {
            let size = batch.records.size_bytes();
            let fits = bytes + size <= bytes_max || (bytes == 0 && at_least_one);
            let taken = batch.index <= visible && fits;
            bytes += size;
            taken
        });
        TailRead::Found(patched(taken))
    }

    /// Looks at up to `count` visible batches from `from` on; returns where to go on (`from` itself at the end), or None if
    /// `from` is in front of the tail.
    pub(super) fn scan(
        &self,
        visible: LogIndex,
        from: i64,
        count: usize,
        mut look: impl FnMut(&TailBatch),
    ) -> Option<i64> {
        if from < self.begin() {
            return None;
        }
        let first = self.batches.partition_point(|batch| batch.next <= from);
        let mut next = from;
        for batch in self.batches.range(first..).take(count).take_while(|batch| batch.index <= visible) {
            look(batch);
            next = batch.next;
        }
        Some(next)
    }

    /// First offset of the log at `visible`.
    pub(super) fn log_start(&self, visible: LogIndex) -> i64 {
        let earlier = self.earlier_starts.iter().find(|(until, _)| visible < *until);
        earlier.map_or(self.log_start, |(_, start)| *start)
    }

    /// The entry at `index` moves the log's start up; no reader has an index below `least`.
    pub(super) fn start_at(&mut self, index: LogIndex, start: i64, least: Option<LogIndex>) {
        assert!(self.log_start < start && start <= self.end, "the log's start moves up, within the log");
        self.earlier_starts.retain(|(until, _)| least.is_none_or(|least| least < *until));
        self.earlier_starts.push((index, self.log_start));
        self.log_start = start;
    }

    /// Drops written batches, up to `through` and `bytes_max` or a little more, that no reader at or above `least` needs.
    /// Returns what they took; gives memory back when most of it is unused.
    pub(super) fn trim(&mut self, through: i64, least: LogIndex, bytes_max: usize) -> usize {
        let mut bytes = 0;
        while let Some(front) = self.batches.front() {
            if front.next > through || front.index > least || bytes >= bytes_max {
                break;
            }
            bytes += front.memory_bytes();
            self.batches.pop_front();
        }
        if self.batches.capacity() > 4 * self.batches.len().max(4) {
            self.batches.shrink_to(2 * self.batches.len());
        }
        bytes
    }
}

/// References to the stored bytes behind patched prefixes; the prefixes of one read share one allocation.
fn patched<'a>(batches: impl Iterator<Item = &'a TailBatch>) -> ReadBatches {
    let mut read = ReadBatches::default();
    let mut prefixes = BytesMut::new();
    let mut rests = Vec::new();
    for batch in batches {
        prefixes.put_slice(&batch.prefix());
        rests.push(batch.records.bytes().slice(PATCHED_BYTES..));
        read.bytes += batch.records.size_bytes();
        read.records += batch.records.record_count().unsigned_abs() as u64;
    }
    let mut prefixes = prefixes.freeze();
    read.pieces.reserve_exact(2 * rests.len());
    for rest in rests {
        read.pieces.push(prefixes.split_to(PATCHED_BYTES));
        read.pieces.push(rest);
    }
    read
}

/// The segments of a partition.
#[derive(Debug, Default)]
pub(super) struct SegmentList {
    /// In offset order; only the last one grows, unless it is dropped.
    pub segments: Vec<Segment>,
    /// How many of the first lie below the log's start: readers of an earlier index may still need them, and the newest
    /// manifest may name them.
    pub dropped: usize,
    /// There is a folder.
    pub folder: bool,
    /// The folder has its deleted name.
    pub deleted: bool,
}

impl SegmentList {
    /// Those with records that the log still has.
    pub(super) fn live(&self) -> &[Segment] {
        &self.segments[self.dropped..]
    }
}

/// Never: no entry deleted the topic.
const NOT_DELETED: u64 = u64::MAX;

/// One partition.
#[derive(Debug)]
pub(super) struct Partition {
    /// Which.
    pub id: TopicPartition,
    /// Its topic's name, which names its folder.
    pub topic: Arc<str>,
    /// Index of the entry that created it; earlier readers do not see it.
    created_at: LogIndex,
    /// Index of the entry that deleted it, or [`NOT_DELETED`]. Written by apply before that index is published.
    deleted_at: AtomicU64,
    /// Recent batches.
    pub tail: Mutex<Tail>,
    /// Older ones. Written by the writer thread only.
    pub files: Mutex<SegmentList>,
}

impl Partition {
    /// A partition that the entry at `created_at` made, with what is in its files.
    pub(super) fn new(
        id: TopicPartition,
        topic: Arc<str>,
        created_at: LogIndex,
        bounds: (i64, i64),
        segments: Vec<Segment>,
    ) -> Self {
        Self {
            id,
            topic,
            created_at,
            deleted_at: AtomicU64::new(NOT_DELETED),
            tail: Mutex::new(Tail::new(bounds.0, bounds.1)),
            files: Mutex::new(SegmentList { folder: !segments.is_empty(), segments, ..SegmentList::default() }),
        }
    }

    /// Whether a reader at `visible` sees it.
    pub(super) fn exists_at(&self, visible: LogIndex) -> bool {
        // Relaxed: a reader that loaded an index ≥ deleted_at (Acquire) also sees this store, made before its publish.
        self.created_at <= visible && visible.0 < self.deleted_at.load(Ordering::Relaxed)
    }

    /// Notes that the entry at `index` deleted it.
    pub(super) fn delete(&self, index: LogIndex) {
        self.deleted_at.store(index.0, Ordering::Relaxed);
    }

    /// Bytes of its logs on disk.
    pub(super) fn size_bytes(&self) -> u64 {
        self.files.lock().live().iter().map(|segment| segment.len).sum()
    }

    /// The segment that holds `offset`.
    pub(super) fn segment_of(&self, offset: i64) -> Option<Segment> {
        let files = self.files.lock();
        let behind = files.segments.partition_point(|segment| segment.base <= offset);
        behind.checked_sub(1).map(|at| files.segments[at])
    }
}
