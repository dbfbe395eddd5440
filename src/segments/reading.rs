//! Reads of one segment file: an index lookup, a scan over batch headers, then one pread of what is wanted.
//!
//! Only offsets in front of the tail are read here, so everything looked at was written whole before. A batch
//! header that makes no sense is therefore damage, and reported with its file and position.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::files::Files;
use super::segment::{Kind, Segment};
use super::tail::Partition;
use super::{ReadBatches, SegmentError, index, time_index};
use crate::disk::File;
use crate::types::record_batch::{HEADER_BYTES, LENGTH_PREFIX_BYTES};
use crate::types::{Offset, RecordBatch};

/// Bytes per read while scanning headers.
const SCAN_BYTES: usize = 16 << 10;

/// Where a batch is, with its header.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Where it starts.
    pub position: u64,
    /// Its bytes.
    pub size: u64,
    /// Its header (the records are not there).
    pub header: RecordBatch,
}

impl Found {
    /// Offset of its last record.
    pub(super) fn last(&self) -> i64 {
        self.header.base_offset() + i64::from(self.header.last_offset_delta())
    }
}

/// Size and header of the batch at the start of `bytes`, if they hold a header that makes sense.
fn header_of(bytes: &Bytes) -> Option<(u64, RecordBatch)> {
    if bytes.len() < HEADER_BYTES || bytes[16] != 2 {
        return None;
    }
    let length = i32::from_be_bytes(bytes[8..12].try_into().ok()?);
    let size = u64::try_from(length).ok()? + LENGTH_PREFIX_BYTES as u64;
    let header = RecordBatch::stored(bytes.slice(..HEADER_BYTES));
    (size >= HEADER_BYTES as u64 && header.last_offset_delta() >= 0).then_some((size, header))
}

/// A walk over the batch headers of a log file.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    file: &'a dyn File,
    position: u64,
    end: u64,
    buf: Bytes,
    buf_at: u64,
}

impl<'a> Scan<'a> {
    /// From `position`, where a batch starts, to `end`, where one ends.
    pub(super) fn new(file: &'a dyn File, position: u64, end: u64) -> Self {
        Self { file, position, end, buf: Bytes::new(), buf_at: position }
    }

    /// The next batch; an `InvalidData` error says that there is none at this position.
    pub(super) fn next(&mut self) -> io::Result<Option<Found>> {
        if self.position >= self.end {
            return Ok(None);
        }
        let mut skip = usize::try_from(self.position - self.buf_at).unwrap_or(usize::MAX);
        if skip.saturating_add(HEADER_BYTES) > self.buf.len() {
            let len = (self.end - self.position).min(SCAN_BYTES as u64) as usize;
            self.buf = read(self.file, self.position, len)?;
            self.buf_at = self.position;
            skip = 0;
        }
        let Some((size, header)) = header_of(&self.buf.slice(skip..)) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no record batch here"));
        };
        let found = Found { position: self.position, size, header };
        if found.position + size > self.end {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the record batch is cut short"));
        }
        self.position += size;
        Ok(Some(found))
    }

    /// Back to a batch that was just passed; what was read of it is still there.
    fn back_to(&mut self, position: u64) {
        self.position = position;
    }

    /// Where it stands.
    pub(super) fn position(&self) -> u64 {
        self.position
    }
}

/// Exactly `len` bytes.
fn read(file: &dyn File, position: u64, len: usize) -> io::Result<Bytes> {
    let mut buf = BytesMut::zeroed(len);
    let mut done = 0;
    while done < len {
        match file.read_at(&mut buf[done..], position + done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => done += read,
        }
    }
    Ok(buf.freeze())
}

/// One segment, open for reading.
pub(super) struct Reading<'a> {
    files: &'a Files,
    partition: &'a Partition,
    segment: Segment,
    log: Arc<dyn File>,
}

impl<'a> Reading<'a> {
    /// Opens the segment's log.
    pub(super) fn open(files: &'a Files, partition: &'a Partition, segment: Segment) -> Result<Self, SegmentError> {
        let log = files.get(partition, segment.base, Kind::Log, false);
        let log = log.map_err(|source| Self::io_error(files, partition, segment, Kind::Log, source))?;
        Ok(Self { files, partition, segment, log })
    }

    /// A topic deleted meanwhile takes its files with it, and so does a log start that moved up; anything else is the
    /// system's word.
    fn io_error(files: &Files, of: &Partition, segment: Segment, kind: Kind, source: io::Error) -> SegmentError {
        if source.kind() == io::ErrorKind::NotFound {
            let now = of.files.lock();
            if now.deleted {
                return SegmentError::UnknownPartition;
            }
            if !now.segments.iter().any(|known| known.base == segment.base) {
                return SegmentError::OffsetOutOfRange;
            }
        }
        SegmentError::Io { path: files.path(of, segment.base, kind), source }
    }

    fn error(&self, position: u64, source: io::Error) -> SegmentError {
        if source.kind() != io::ErrorKind::InvalidData {
            return Self::io_error(self.files, self.partition, self.segment, Kind::Log, source);
        }
        let path = self.files.path(self.partition, self.segment.base, Kind::Log);
        SegmentError::Damaged { path, position, what: source.to_string() }
    }

    fn relative(&self, offset: i64) -> i32 {
        i32::try_from(offset - self.segment.base).unwrap_or(i32::MAX)
    }

    fn scan_from(&self, position: u64) -> Scan<'_> {
        Scan::new(&*self.log, position, self.segment.len)
    }

    /// A scan from a batch at or before `offset`. An index that cannot be read or points astray is passed over.
    fn scan_for(&self, offset: i64) -> Scan<'_> {
        if self.segment.index.entries == 0 {
            return self.scan_from(0);
        }
        let looked_up = self
            .files
            .get(self.partition, self.segment.base, Kind::Index, false)
            .and_then(|file| index::lookup(&file, self.segment.index.entries, self.relative(offset)));
        if let Ok(position) = looked_up {
            let mut scan = self.scan_from(position);
            let first = scan.next().ok().flatten().map(|batch| batch.header.base_offset());
            if first.is_some_and(|first| (self.segment.base..=offset).contains(&first)) {
                scan.back_to(position);
                return scan;
            }
        }
        tracing::warn!(partition = ?self.partition.id, base = self.segment.base, "an offset index is wrong");
        self.scan_from(0)
    }

    fn next(&self, scan: &mut Scan<'_>) -> Result<Option<Found>, SegmentError> {
        scan.next().map_err(|source| self.error(scan.position(), source))
    }

    /// The batch that contains `offset`, or the first one behind it.
    fn find(&self, offset: i64) -> Result<Option<Found>, SegmentError> {
        let mut scan = self.scan_for(offset);
        while let Some(found) = self.next(&mut scan)? {
            if found.last() >= offset {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Whole batches from the one that contains `from`, all below `until`; also the offset behind the last one.
    pub(super) fn read(
        &self,
        from: i64,
        until: i64,
        bytes_max: usize,
        at_least_one: bool,
    ) -> Result<(ReadBatches, i64), SegmentError> {
        let Some(first) = self.find(from)? else {
            let what = format!("offset {from} should be in this segment");
            return Err(self.error(self.segment.len, io::Error::new(io::ErrorKind::InvalidData, what)));
        };
        let size = usize::try_from(first.size).expect("a batch is smaller than an i32");
        if size > bytes_max && !at_least_one {
            return Ok((ReadBatches::default(), from));
        }
        let left = usize::try_from(self.segment.len - first.position).unwrap_or(usize::MAX);
        let bytes = read(&*self.log, first.position, size.max(bytes_max.min(left)))
            .map_err(|source| self.error(first.position, source))?;
        let (mut taken, mut records, mut next) = (0, 0, from);
        while let Some((size, header)) = header_of(&bytes.slice(taken..)) {
            let end = taken + usize::try_from(size).expect("a batch is smaller than an i32");
            if end > bytes.len() || header.base_offset() >= until {
                break;
            }
            records += u64::from(header.record_count().unsigned_abs());
            next = header.base_offset() + i64::from(header.last_offset_delta()) + 1;
            taken = end;
        }
        if taken == 0 {
            return Err(self.error(first.position, io::Error::new(io::ErrorKind::InvalidData, "no record batch here")));
        }
        Ok((ReadBatches { pieces: vec![bytes.slice(..taken)], bytes: taken, records }, next))
    }

    /// The whole batch behind a header.
    fn load(&self, found: &Found) -> Result<RecordBatch, SegmentError> {
        let size = usize::try_from(found.size).expect("a batch is smaller than an i32");
        let bytes = read(&*self.log, found.position, size).map_err(|source| self.error(found.position, source))?;
        Ok(RecordBatch::stored(bytes))
    }

    /// The last time index entry for which `is_before` holds, as (timestamp, offset).
    fn last_time_where(&self, is_before: impl Fn(i64, i64) -> bool) -> Option<(i64, i64)> {
        if self.segment.time_index.entries == 0 {
            return None;
        }
        let base = self.segment.base;
        let file = self.files.get(self.partition, base, Kind::TimeIndex, false).ok()?;
        let is_before = |timestamp, offset| is_before(timestamp, base + i64::from(offset));
        let found = time_index::last_where(&file, self.segment.time_index.entries, is_before).ok()??;
        Some((found.0, base + i64::from(found.1)))
    }

    /// First record from `from` on, in a batch below `until`, at or after `timestamp_ms`.
    pub(super) fn first_at(
        &self,
        timestamp_ms: i64,
        from: i64,
        until: i64,
    ) -> Result<Option<(i64, Offset)>, SegmentError> {
        // Everything up to an entry's offset is at or below its timestamp, and only its own batch may be at it.
        let behind = self.last_time_where(|timestamp, _| timestamp <= timestamp_ms).map(|(_, offset)| offset);
        let start = behind.into_iter().chain((from > self.segment.base).then_some(from)).max();
        let mut scan = start.map_or_else(|| self.scan_from(0), |offset| self.scan_for(offset));
        while let Some(found) = self.next(&mut scan)? {
            let base = found.header.base_offset();
            if base >= until {
                break;
            }
            if found.header.max_timestamp() < timestamp_ms || found.last() < from {
                continue;
            }
            if let Some(record) = super::times::first_record_at(&self.load(&found)?, base, from, timestamp_ms) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// Greatest timestamp in the records from `from` on that lie in batches below `until`, and its record's batch's last offset: by a
    /// scan, since the indexes count what lies below `from` too.
    fn max_between(&self, from: i64, until: i64) -> Result<Option<(i64, i64)>, SegmentError> {
        let mut best: Option<(i64, i64)> = None;
        let mut scan = self.scan_for(from);
        while let Some(found) = self.next(&mut scan)? {
            let base = found.header.base_offset();
            if base >= until {
                break;
            }
            if found.last() < from || found.header.max_timestamp() <= best.map_or(-1, |(best, _)| best) {
                continue;
            }
            let timestamp = match base < from {
                true => super::times::greatest_from(&self.load(&found)?, base, from),
                false => found.header.max_timestamp(),
            };
            if timestamp > best.map_or(-1, |(best, _)| best) {
                best = Some((timestamp, found.last()));
            }
        }
        Ok(best)
    }

    /// Greatest timestamp from `from` on and below `until`, and the last offset of the first batch that has it.
    pub(super) fn max_in(&self, from: i64, until: i64) -> Result<Option<(i64, i64)>, SegmentError> {
        if from <= self.segment.base { self.max_before(until) } else { self.max_between(from, until) }
    }

    fn max_before(&self, until: i64) -> Result<Option<(i64, i64)>, SegmentError> {
        let (timestamp, last) = self.segment.max_timestamp;
        if timestamp < 0 || last < until {
            return Ok((timestamp >= 0).then_some((timestamp, last)));
        }
        let mut best = self.last_time_where(|_, offset| offset < until);
        let mut scan = best.map_or_else(|| self.scan_from(0), |(_, offset)| self.scan_for(offset));
        while let Some(found) = self.next(&mut scan)? {
            if found.header.base_offset() >= until {
                break;
            }
            let timestamp = found.header.max_timestamp();
            if timestamp > best.map_or(-1, |(best, _)| best) {
                best = Some((timestamp, found.last()));
            }
        }
        Ok(best)
    }
}
