//! Time queries of a partition at a visible index: segments first, then the tail, exact to the record.

use bytes::BytesMut;

use super::reading::Reading;
use super::tail::Partition;
use super::{SegmentError, Segments, records};
use crate::types::{LogIndex, Offset, RecordBatch, TopicPartition};

/// Batches that a time query looks at per hold of a tail's lock: apply pushes under it.
const SCAN_BATCHES: usize = 256;

impl Segments {
    /// Walks over what time queries look at, in offset order: segments up to an offset, then the tail's visible batches
    /// with their base offsets; both are told where the log starts. Stops at the first answer.
    fn walk<T>(
        &self,
        partition: &Partition,
        visible: LogIndex,
        mut in_segment: impl FnMut(&Reading<'_>, i64, i64) -> Result<Option<T>, SegmentError>,
        wanted: impl Fn(&RecordBatch) -> bool,
        mut in_batch: impl FnMut(i64, &RecordBatch, i64) -> Option<T>,
    ) -> Result<Option<T>, SegmentError> {
        let start = partition.tail.lock().log_start(visible);
        let mut from = start;
        loop {
            let mut batches = Vec::new();
            let scanned = partition.tail.lock().scan(visible, from, SCAN_BATCHES, |batch| {
                if wanted(&batch.records) {
                    batches.push((batch.base, batch.records.clone()));
                }
            });
            let Some(next) = scanned else {
                let until = partition.tail.lock().begin();
                let segments = partition.files.lock().segments.clone();
                let behind = segments.partition_point(|segment| segment.base <= from).saturating_sub(1);
                for segment in segments[behind..].iter().filter(|segment| segment.base < until) {
                    let reading = Reading::open(&self.shared.files, partition, *segment)?;
                    if let Some(answer) = in_segment(&reading, start, until)? {
                        return Ok(Some(answer));
                    }
                }
                from = until;
                continue;
            };
            if let Some(answer) = batches.iter().find_map(|(base, batch)| in_batch(*base, batch, start)) {
                return Ok(Some(answer));
            }
            if next == from {
                return Ok(None);
            }
            from = next;
        }
    }

    /// First record with a timestamp ≥ `timestamp_ms`: (timestamp, offset). Exact inside compressed batches.
    ///
    /// # Errors
    /// If there is no such partition or a file cannot be read.
    pub fn offset_for_timestamp(
        &self,
        partition: TopicPartition,
        visible: LogIndex,
        timestamp_ms: i64,
    ) -> Result<Option<(i64, Offset)>, SegmentError> {
        let partition = self.find(partition, visible)?;
        self.walk(
            &partition,
            visible,
            |reading, start, until| reading.first_at(timestamp_ms, start, until),
            |batch| batch.max_timestamp() >= timestamp_ms,
            |base, batch, start| first_record_at(batch, base, start, timestamp_ms),
        )
    }

    /// The record with the greatest timestamp (KIP-734): (timestamp, offset), None in an empty partition.
    ///
    /// # Errors
    /// If there is no such partition or a file cannot be read.
    pub fn max_timestamp(
        &self,
        partition: TopicPartition,
        visible: LogIndex,
    ) -> Result<Option<(i64, Offset)>, SegmentError> {
        let log = self.find(partition, visible)?;
        let best = std::cell::Cell::new((-1, -1));
        let offer = |timestamp: i64, last: i64| {
            if timestamp > best.get().0 {
                best.set((timestamp, last));
            }
        };
        self.walk::<()>(
            &log,
            visible,
            |reading, start, until| {
                if let Some((timestamp, last)) = reading.max_in(start, until)? {
                    offer(timestamp, last);
                }
                Ok(None)
            },
            |batch| batch.max_timestamp() > best.get().0,
            |base, batch, start| {
                let timestamp = if base < start { greatest_from(batch, base, start) } else { batch.max_timestamp() };
                offer(timestamp, base + i64::from(batch.last_offset_delta()));
                None
            },
        )?;
        let (timestamp, last) = best.get();
        if timestamp < 0 {
            return Ok(None);
        }
        let mut bytes = BytesMut::new();
        for piece in self.read(partition, visible, Offset(last), 0, true)?.pieces {
            bytes.extend_from_slice(&piece);
        }
        let batch = RecordBatch::stored(bytes.freeze());
        let start = log.tail.lock().log_start(visible) - batch.base_offset();
        let found = records::first_where(&batch, start, |of_record| of_record == timestamp).ok().flatten();
        Ok(Some((timestamp, Offset(batch.base_offset() + found.map_or(start.max(0), |(_, delta)| delta)))))
    }
}

/// First record of a batch, from the offset `from` on, at or after a time. Where the records cannot be decoded (the broker
/// does not look into them when they are produced) the batch answers as a whole.
pub(super) fn first_record_at(
    batch: &RecordBatch,
    base_offset: i64,
    from: i64,
    timestamp_ms: i64,
) -> Option<(i64, Offset)> {
    match records::first_where(batch, from - base_offset, |timestamp| timestamp >= timestamp_ms) {
        Ok(found) => found.map(|(timestamp, delta)| (timestamp, Offset(base_offset + delta))),
        Err(error) => {
            tracing::debug!(%error, base_offset, "a batch's records cannot be decoded");
            Some((batch.max_timestamp(), Offset(base_offset.max(from))))
        }
    }
}

/// Greatest timestamp of a batch's records from the offset `from` on; of the whole batch where they cannot be decoded.
pub(super) fn greatest_from(batch: &RecordBatch, base_offset: i64, from: i64) -> i64 {
    match records::greatest_from(batch, from - base_offset) {
        Ok(found) => found.unwrap_or(-1),
        Err(error) => {
            tracing::debug!(%error, base_offset, "a batch's records cannot be decoded");
            batch.max_timestamp()
        }
    }
}
