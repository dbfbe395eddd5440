//! Timestamps inside one record batch, for time queries that are exact to the record.
//!
//! Reads what Kafka's `DefaultRecordBatch.streamingIterator` reads of each record: length, attributes, timestamp
//! delta and offset delta, all behind the batch's compression. Nothing else is decoded.

use std::io;

use bytes::{Buf, Bytes};
use kafka_protocol::compression::{Decompressor, Gzip, Lz4, Snappy, Zstd};

use crate::types::RecordBatch;
use crate::types::record_batch::HEADER_BYTES;

/// (timestamp, offset delta) of the first record whose timestamp satisfies `wanted`.
///
/// With LogAppendTime every record has the batch's greatest timestamp.
pub(super) fn first_where(batch: &RecordBatch, wanted: impl Fn(i64) -> bool) -> io::Result<Option<(i64, i64)>> {
    if batch.is_log_append_time() {
        let timestamp = batch.max_timestamp();
        return Ok(wanted(timestamp).then_some((timestamp, 0)));
    }
    let mut records = uncompressed(batch)?;
    for _ in 0..batch.record_count() {
        let size = usize::try_from(varint(&mut records)?).map_err(|_| malformed())?;
        if size > records.len() {
            return Err(malformed());
        }
        let mut record = records.split_to(size);
        record.try_get_i8().map_err(|_| malformed())?;
        let timestamp = batch.base_timestamp().wrapping_add(varint(&mut record)?);
        let offset_delta = varint(&mut record)?;
        if wanted(timestamp) {
            return Ok(Some((timestamp, offset_delta)));
        }
    }
    Ok(None)
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "records do not follow Kafka's record format")
}

/// A zigzag variable-length integer of up to 64 bits (protocol buffers' sint64).
fn varint(from: &mut Bytes) -> io::Result<i64> {
    let mut raw = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = from.try_get_u8().map_err(|_| malformed())?;
        raw |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok((raw >> 1) as i64 ^ -((raw & 1) as i64));
        }
    }
    Err(malformed())
}

fn uncompressed(batch: &RecordBatch) -> io::Result<Bytes> {
    let mut records = batch.bytes().slice(HEADER_BYTES..);
    let take = |buf: &mut Bytes| Ok(std::mem::take(buf));
    let records = match batch.attributes() & 0x07 {
        0 => return Ok(records),
        1 => Gzip::decompress(&mut records, take),
        2 => Snappy::decompress(&mut records, take),
        3 => Lz4::decompress(&mut records, take),
        4 => Zstd::decompress(&mut records, take),
        _ => return Err(malformed()),
    };
    records.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}
