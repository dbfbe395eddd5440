//! Timestamps inside one record batch, for time queries that are exact to the record.
//!
//! Reads what Kafka's `DefaultRecordBatch.streamingIterator` reads of each record: length, attributes, timestamp
//! delta and offset delta, all behind the batch's compression. Nothing else is decoded, nothing is kept: a batch that
//! unpacks to gigabytes costs some time, bounded by [`UNPACKED_BYTES_MAX`], and no memory.

use std::io::{self, BufRead, BufReader, Read};

use bytes::{Buf, Bytes};

use crate::config::limits::UNPACKED_BYTES_MAX;
use crate::types::RecordBatch;
use crate::types::record_batch::HEADER_BYTES;

/// (timestamp, offset delta) of the first record with a delta of `from` or more whose timestamp satisfies `wanted`.
///
/// With LogAppendTime every record has the batch's greatest timestamp.
pub(super) fn first_where(
    batch: &RecordBatch,
    from: i64,
    wanted: impl Fn(i64) -> bool,
) -> io::Result<Option<(i64, i64)>> {
    if batch.is_log_append_time() {
        let timestamp = batch.max_timestamp();
        let delta = from.max(0);
        let there = delta <= i64::from(batch.last_offset_delta());
        return Ok((there && wanted(timestamp)).then_some((timestamp, delta)));
    }
    let mut found = None;
    walk(batch, |timestamp, delta| {
        found = (delta >= from && wanted(timestamp)).then_some((timestamp, delta));
        found.is_none()
    })?;
    Ok(found)
}

/// The greatest timestamp of the records with a delta of `from` or more, None without any.
pub(super) fn greatest_from(batch: &RecordBatch, from: i64) -> io::Result<Option<i64>> {
    if batch.is_log_append_time() {
        return Ok(Some(batch.max_timestamp()));
    }
    let mut greatest = None;
    walk(batch, |timestamp, delta| {
        if delta >= from {
            greatest = greatest.max(Some(timestamp));
        }
        true
    })?;
    Ok(greatest)
}

/// Shows (timestamp, offset delta) of every record until told to stop.
fn walk(batch: &RecordBatch, mut look: impl FnMut(i64, i64) -> bool) -> io::Result<()> {
    let mut records = BufReader::new(unpacked(batch)?.take(UNPACKED_BYTES_MAX));
    for _ in 0..batch.record_count() {
        let size = u64::try_from(varint(&mut records)?.0).map_err(|_| malformed())?;
        // Attributes of a record: unused so far.
        let [_] = read_array(&mut records)?;
        let (timestamp_delta, timestamp_bytes) = varint(&mut records)?;
        let (offset_delta, offset_bytes) = varint(&mut records)?;
        let timestamp = batch.base_timestamp().wrapping_add(timestamp_delta);
        if !look(timestamp, offset_delta) {
            return Ok(());
        }
        let rest = size.checked_sub(1 + timestamp_bytes + offset_bytes).ok_or_else(malformed)?;
        skip(&mut records, rest)?;
    }
    Ok(())
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "records do not follow Kafka's record format")
}

fn read_array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A zigzag variable-length integer of up to 64 bits (protocol buffers' sint64), and how many bytes it took.
fn varint(from: &mut impl Read) -> io::Result<(i64, u64)> {
    let mut raw = 0u64;
    for (shift, bytes) in (0..64).step_by(7).zip(1..) {
        let [byte] = read_array(from)?;
        raw |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(((raw >> 1) as i64 ^ -((raw & 1) as i64), bytes));
        }
    }
    Err(malformed())
}

fn skip(from: &mut impl BufRead, mut count: u64) -> io::Result<()> {
    while count > 0 {
        let there = from.fill_buf()?.len();
        if there == 0 {
            return Err(malformed());
        }
        let step = there.min(usize::try_from(count).unwrap_or(usize::MAX));
        from.consume(step);
        count -= step as u64;
    }
    Ok(())
}

fn unpacked(batch: &RecordBatch) -> io::Result<Box<dyn Read>> {
    let records = batch.bytes().slice(HEADER_BYTES..);
    Ok(match batch.attributes() & 0x07 {
        0 => Box::new(records.reader()),
        1 => Box::new(flate2::read::MultiGzDecoder::new(records.reader())),
        2 => Box::new(Snappy::new(records)),
        3 => Box::new(lz4::Decoder::new(records.reader())?),
        4 => Box::new(zstd::stream::read::Decoder::new(records.reader())?),
        _ => return Err(malformed()),
    })
}

/// What every stream of snappy-java's `SnappyOutputStream` starts with: magic, then two versions of 4 bytes.
const SNAPPY_MAGIC: &[u8] = b"\x82SNAPPY\0";
const SNAPPY_HEADER_BYTES: usize = 16;
/// Snappy's shortest way to say much: three bytes that copy 64. A block that claims more than this ratio is a lie, and
/// is refused before anything is allocated.
const SNAPPY_RATIO_MAX: usize = 64 / 3 + 1;

/// Unpacks snappy-java's blocks {length u32, block}, or one bare block as other clients send it.
struct Snappy {
    packed: Bytes,
    framed: bool,
    block: Bytes,
}

impl Snappy {
    fn new(mut packed: Bytes) -> Self {
        let framed = packed.starts_with(SNAPPY_MAGIC) && packed.len() >= SNAPPY_HEADER_BYTES;
        if framed {
            packed.advance(SNAPPY_HEADER_BYTES);
        }
        Self { packed, framed, block: Bytes::new() }
    }

    fn next_block(&mut self) -> io::Result<Bytes> {
        let len =
            if self.framed { self.packed.try_get_u32().map_err(|_| malformed())? as usize } else { self.packed.len() };
        if len > self.packed.len() {
            return Err(malformed());
        }
        let packed = self.packed.split_to(len);
        let claimed = snap::raw::decompress_len(&packed).map_err(io::Error::other)?;
        if claimed > packed.len().saturating_mul(SNAPPY_RATIO_MAX) {
            return Err(malformed());
        }
        Ok(snap::raw::Decoder::new().decompress_vec(&packed).map_err(io::Error::other)?.into())
    }
}

impl Read for Snappy {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.block.is_empty() {
            if self.packed.is_empty() {
                return Ok(0);
            }
            self.block = self.next_block()?;
        }
        let count = buf.len().min(self.block.len());
        self.block.copy_to_slice(&mut buf[..count]);
        Ok(count)
    }
}
