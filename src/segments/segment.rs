//! One segment of one partition: a `.log` file of record batches and its two derived indexes.
//!
//! A [`Segment`] is what must be known to append to it and to read from it, a few dozen bytes: 10,000 idle
//! partitions hold no buffers and no open files. It changes only through [`Segment::note`], a function of the
//! batches alone, so replicas and re-applies produce the same bytes in all three files.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{index, time_index};
use crate::types::settings::TopicSettings;
use crate::types::{Offset, PartitionId, SegmentFacts, TopicId};

/// Positions in Kafka's index are i32: no segment may grow beyond, whatever the topic asks.
const SEGMENT_BYTES_MAX: u64 = i32::MAX as u64;

/// When a topic's segments end. It comes from entries, so every replica rolls at the same batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Roll {
    /// `segment.bytes`.
    pub bytes: u64,
    /// `segment.ms`.
    pub ms: i64,
    /// `segment.index.bytes`.
    pub index_bytes: u32,
}

impl Roll {
    /// As a topic is set.
    pub(super) fn of(settings: &TopicSettings) -> Self {
        Self { bytes: settings.segment_bytes, ms: settings.segment_ms, index_bytes: settings.segment_index_bytes }
    }
}

/// What a segment must know of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    /// Its bytes.
    pub size_bytes: u64,
    /// Offset of its last record.
    pub last: i64,
    /// Its greatest timestamp, −1 without.
    pub max_timestamp: i64,
    /// The time of the entry that brought it.
    pub entry_ms: i64,
}

/// The three files of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Kind {
    /// Record batches.
    Log,
    /// Offset → position.
    Index,
    /// Timestamp → offset.
    TimeIndex,
}

impl Kind {
    /// All three.
    pub(super) const ALL: [Self; 3] = [Kind::Log, Kind::Index, Kind::TimeIndex];

    fn extension(self) -> &'static str {
        match self {
            Kind::Log => "log",
            Kind::Index => "index",
            Kind::TimeIndex => "timeindex",
        }
    }
}

/// The name of a segment's file, as Kafka names it.
pub(super) fn file_name(base: i64, kind: Kind) -> String {
    format!("{base:020}.{}", kind.extension())
}

/// The folder of a partition. Once its topic is deleted it bears the topic id, because the files stay until the next
/// manifest is durable while a new topic may already use the name.
pub(super) fn folder(dir: &Path, name: &str, topic: TopicId, partition: PartitionId, deleted: bool) -> PathBuf {
    if deleted { dir.join(format!("{topic}-{partition}.delete")) } else { dir.join(format!("{name}-{partition}")) }
}

/// Length and checksum of a derived file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Derived {
    /// Entries written.
    pub entries: u32,
    /// CRC-32C of them, so that a restart notices an index that was not synced.
    pub crc: u32,
}

impl Derived {
    fn push(&mut self, entry: &[u8], out: &mut Vec<u8>) {
        self.entries += 1;
        self.crc = crc32c::crc32c_append(self.crc, entry);
        out.extend_from_slice(entry);
    }
}

/// What a segment contains so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Segment {
    /// Offset of its first record, which names its files.
    pub base: i64,
    /// Offset behind its last record.
    pub next: i64,
    /// Bytes of the log file.
    pub len: u64,
    /// The offset index.
    pub index: Derived,
    /// The time index.
    pub time_index: Derived,
    /// Greatest timestamp and the last offset of the first batch that has it; −1 without timestamps.
    pub max_timestamp: (i64, i64),
    /// Timestamp of the time index's last entry.
    last_indexed_timestamp: i64,
    /// Bytes since the offset index's last entry.
    since_index: u64,
    /// Greatest timestamp of its first batch.
    first_timestamp: i64,
    /// Times of the entries that brought its first and its last batch: they count where records carry no time.
    entries_ms: (i64, i64),
}

/// Index entries that one or more batches caused.
#[derive(Debug, Default)]
pub(super) struct IndexBytes {
    /// For the offset index.
    pub index: Vec<u8>,
    /// For the time index.
    pub time_index: Vec<u8>,
}

impl Segment {
    /// An empty segment.
    pub(super) fn new(base: i64) -> Self {
        Self {
            base,
            next: base,
            len: 0,
            index: Derived::default(),
            time_index: Derived::default(),
            max_timestamp: (-1, -1),
            last_indexed_timestamp: -1,
            since_index: 0,
            first_timestamp: -1,
            entries_ms: (0, 0),
        }
    }

    /// Whether a batch still belongs here: Kafka's `LogSegment.shouldRoll`, without its jitter and its clock.
    pub(super) fn has_room(&self, batch: Measure, roll: Roll) -> bool {
        if self.len == 0 {
            return true;
        }
        let since_first = if self.first_timestamp >= 0 {
            batch.max_timestamp.saturating_sub(self.first_timestamp)
        } else {
            batch.entry_ms.saturating_sub(self.entries_ms.0)
        };
        let index_bytes = u64::from(roll.index_bytes);
        // One entry of the time index is kept for `seal`.
        let index_full = u64::from(self.index.entries) >= index_bytes / index::ENTRY_BYTES
            || u64::from(self.time_index.entries) + 1 >= index_bytes / time_index::ENTRY_BYTES;
        self.len + batch.size_bytes <= roll.bytes.min(SEGMENT_BYTES_MAX)
            && since_first <= roll.ms
            && !index_full
            && batch.last - self.base <= i64::from(i32::MAX)
    }

    fn relative(&self, offset: i64) -> i32 {
        i32::try_from(offset - self.base).expect("has_room keeps offsets within an i32 of the base")
    }

    /// Counts a batch that is appended at `len`; the order of the steps is that of Kafka's `LogSegment.append`.
    pub(super) fn note(&mut self, batch: Measure, out: &mut IndexBytes) {
        let Measure { size_bytes, last, max_timestamp, entry_ms } = batch;
        if self.len == 0 {
            self.first_timestamp = max_timestamp;
            self.entries_ms.0 = entry_ms;
        }
        self.entries_ms.1 = entry_ms;
        self.next = last + 1;
        if max_timestamp > self.max_timestamp.0 {
            self.max_timestamp = (max_timestamp, last);
        }
        if self.since_index > index::INTERVAL_BYTES {
            let position = u32::try_from(self.len).expect("has_room keeps positions within an i32");
            self.index.push(&index::encode(self.relative(last), position), &mut out.index);
            self.index_time(out);
            self.since_index = 0;
        }
        self.len += size_bytes;
        self.since_index += size_bytes;
    }

    /// Ends the segment: its time index tells the greatest timestamp of all of it.
    pub(super) fn seal(&mut self, out: &mut IndexBytes) {
        self.index_time(out);
    }

    fn index_time(&mut self, out: &mut IndexBytes) {
        let (timestamp, offset) = self.max_timestamp;
        if timestamp > self.last_indexed_timestamp {
            self.time_index.push(&time_index::encode(timestamp, self.relative(offset)), &mut out.time_index);
            self.last_indexed_timestamp = timestamp;
        }
    }

    /// Takes what no file holds from another count of the same batches.
    pub(super) fn with_entry_times_of(self, other: &Segment) -> Self {
        Self { entries_ms: other.entries_ms, ..self }
    }

    /// What retention goes by. Without timestamps the last entry's time counts, as the file's does in Kafka.
    pub(super) fn facts(&self) -> SegmentFacts {
        let (timestamp, _) = self.max_timestamp;
        let greatest_ms = if timestamp >= 0 { timestamp } else { self.entries_ms.1 };
        SegmentFacts { base: Offset(self.base), next: Offset(self.next), bytes: self.len, greatest_ms }
    }

    /// Bytes of the offset index.
    pub(super) fn index_len(&self) -> u64 {
        u64::from(self.index.entries) * index::ENTRY_BYTES
    }

    /// Bytes of the time index.
    pub(super) fn time_index_len(&self) -> u64 {
        u64::from(self.time_index.entries) * time_index::ENTRY_BYTES
    }
}
