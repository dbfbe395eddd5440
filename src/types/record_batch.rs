//! A view over one record batch v2 (magic 2), exactly as a client sent it.
//!
//! The broker reads the 61-byte header and never the records behind it. Layout (Kafka's
//! `DefaultRecordBatch`, offsets in bytes):
//!
//! ```text
//!  0 base offset        i64 |  8 batch length     i32 | 12 partition leader epoch i32 | 16 magic i8
//! 17 crc32c             u32 | 21 attributes       i16 | 23 last offset delta      i32
//! 27 base timestamp     i64 | 35 max timestamp    i64 | 43 producer id            i64
//! 51 producer epoch     i16 | 53 base sequence    i32 | 57 record count           i32 | 61 records
//! ```
//!
//! The CRC covers everything from `attributes` on, so base offset and leader epoch can be patched without it.

use bytes::{BufMut, Bytes, BytesMut};

/// Bytes of a batch's header, and so the least size of a batch.
pub const HEADER_BYTES: usize = 61;
/// Bytes in front of what `batch length` counts: base offset and the length itself.
pub const LENGTH_PREFIX_BYTES: usize = 12;
/// The part of the header that the broker sets: base offset, length, leader epoch. Outside the CRC.
pub const PATCHED_BYTES: usize = 16;

const CRC_AT: usize = 17;
const ATTRIBUTES_AT: usize = 21;
const BASE_TIMESTAMP_AT: usize = 27;
const PRODUCER_ID_AT: usize = 43;
const CODEC_MASK: i16 = 0x07;
const LOG_APPEND_TIME_BIT: i16 = 0x08;
const TRANSACTIONAL_BIT: i16 = 0x10;
const CONTROL_BIT: i16 = 0x20;

/// What is wrong with bytes that should be one record batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchFault {
    /// Shorter than its header, or than its own length says.
    #[error("the batch is cut short")]
    Truncated,
    /// Bytes follow the batch: a produce request carries exactly one batch for a partition.
    #[error("more than one batch")]
    Trailing,
    /// Magic 0, 1 or beyond 2.
    #[error("magic {0} is not supported")]
    Magic(i8),
    /// The checksum does not match.
    #[error("the checksum does not match")]
    Crc,
    /// Counts, offset deltas or the codec contradict each other.
    #[error("the header contradicts itself")]
    Inconsistent,
}

/// One record batch: its header is complete and its length is that of the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct RecordBatch {
    bytes: Bytes,
}

impl std::fmt::Debug for RecordBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordBatch")
            .field("records", &self.record_count())
            .field("producer", &(self.producer_id(), self.producer_epoch(), self.base_sequence()))
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

impl RecordBatch {
    /// Checks what a client sent: one batch, magic 2, CRC, counts and offset deltas.
    ///
    /// # Errors
    /// The first fault found, in the order in which Kafka's `LogValidator` would see it.
    pub fn check(bytes: Bytes) -> Result<Self, BatchFault> {
        if bytes.len() < PATCHED_BYTES + 1 {
            return Err(BatchFault::Truncated);
        }
        let magic = bytes[16] as i8;
        if magic != 2 {
            return Err(BatchFault::Magic(magic));
        }
        if bytes.len() < HEADER_BYTES {
            return Err(BatchFault::Truncated);
        }
        let batch = Self { bytes };
        let length = usize::try_from(batch.i32_at(8)).map_err(|_| BatchFault::Inconsistent)?;
        match (LENGTH_PREFIX_BYTES + length).cmp(&batch.bytes.len()) {
            std::cmp::Ordering::Greater => return Err(BatchFault::Truncated),
            std::cmp::Ordering::Less => return Err(BatchFault::Trailing),
            std::cmp::Ordering::Equal => {}
        }
        if crc32c::crc32c(&batch.bytes[ATTRIBUTES_AT..]) != batch.crc() {
            return Err(BatchFault::Crc);
        }
        let count = batch.record_count();
        let codec = batch.attributes() & CODEC_MASK;
        if count < 1 || batch.last_offset_delta() != count - 1 || codec > 4 {
            return Err(BatchFault::Inconsistent);
        }
        Ok(batch)
    }

    /// Takes bytes that passed [`RecordBatch::check`] before they were stored: an entry or a segment.
    ///
    /// # Panics
    /// If the bytes are not even a header: stored data has its own checksums, so this is a bug.
    pub fn stored(bytes: Bytes) -> Self {
        assert!(bytes.len() >= HEADER_BYTES, "a stored batch has a whole header");
        Self { bytes }
    }

    /// The batch as sent.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Bytes of the whole batch, header included.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn i16_at(&self, at: usize) -> i16 {
        i16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn i32_at(&self, at: usize) -> i32 {
        let mut raw = [0; 4];
        raw.copy_from_slice(&self.bytes[at..at + 4]);
        i32::from_be_bytes(raw)
    }

    fn i64_at(&self, at: usize) -> i64 {
        let mut raw = [0; 8];
        raw.copy_from_slice(&self.bytes[at..at + 8]);
        i64::from_be_bytes(raw)
    }

    /// The base offset in the header: the client's, until the batch is patched.
    pub fn base_offset(&self) -> i64 {
        self.i64_at(0)
    }

    /// The partition leader epoch in the header.
    pub fn leader_epoch(&self) -> i32 {
        self.i32_at(12)
    }

    /// CRC-32C over everything from the attributes on; with the sequences it identifies a retried batch.
    pub fn crc(&self) -> u32 {
        self.i32_at(CRC_AT) as u32
    }

    /// Codec, timestamp type, transactional and control bits.
    pub fn attributes(&self) -> i16 {
        self.i16_at(ATTRIBUTES_AT)
    }

    /// Last offset minus base offset.
    pub fn last_offset_delta(&self) -> i32 {
        self.i32_at(23)
    }

    /// Timestamp of the first record, milliseconds.
    pub fn base_timestamp(&self) -> i64 {
        self.i64_at(27)
    }

    /// Greatest timestamp of the batch, milliseconds.
    pub fn max_timestamp(&self) -> i64 {
        self.i64_at(35)
    }

    /// The producer id, −1 without idempotence.
    pub fn producer_id(&self) -> i64 {
        self.i64_at(43)
    }

    /// The producer's epoch, −1 without idempotence.
    pub fn producer_epoch(&self) -> i16 {
        self.i16_at(51)
    }

    /// Id and epoch, where the batch is idempotent.
    pub fn producer(&self) -> Option<crate::types::ProducerIdAndEpoch> {
        (self.producer_id() >= 0)
            .then(|| crate::types::ProducerIdAndEpoch { producer_id: self.producer_id(), epoch: self.producer_epoch() })
    }

    /// Sequence of the first record, −1 without idempotence.
    pub fn base_sequence(&self) -> i32 {
        self.i32_at(53)
    }

    /// Sequence of the last record; sequences wrap from 2³¹−1 to 0.
    pub fn last_sequence(&self) -> i32 {
        sequence_plus(self.base_sequence(), self.last_offset_delta())
    }

    /// Number of records.
    pub fn record_count(&self) -> i32 {
        self.i32_at(57)
    }

    /// Whether the batch is part of a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes() & TRANSACTIONAL_BIT != 0
    }

    /// Whether the batch holds control records; clients may not send those.
    pub fn is_control(&self) -> bool {
        self.attributes() & CONTROL_BIT != 0
    }

    /// Whether the broker's time replaces the records' (LogAppendTime).
    pub fn is_log_append_time(&self) -> bool {
        self.attributes() & LOG_APPEND_TIME_BIT != 0
    }

    /// The header's first [`PATCHED_BYTES`] with the broker's base offset and leader epoch; the rest is `bytes()[16..]`.
    pub fn patched_prefix(&self, base_offset: i64, leader_epoch: i32) -> [u8; PATCHED_BYTES] {
        let mut prefix = [0; PATCHED_BYTES];
        prefix[..8].copy_from_slice(&base_offset.to_be_bytes());
        prefix[8..12].copy_from_slice(&self.bytes[8..12]);
        prefix[12..].copy_from_slice(&leader_epoch.to_be_bytes());
        prefix
    }

    /// The CRC of this batch with all its times moved so that the greatest is `max_timestamp`. kafkajs stamps records when it
    /// encodes a request, so what it sends again differs from the original in nothing but the time.
    pub fn crc_moved_to(&self, max_timestamp: i64) -> u32 {
        let base = self.base_timestamp().wrapping_add(max_timestamp.wrapping_sub(self.max_timestamp()));
        let crc = crc32c::crc32c(&self.bytes[ATTRIBUTES_AT..BASE_TIMESTAMP_AT]);
        let crc = crc32c::crc32c_append(crc, &base.to_be_bytes());
        let crc = crc32c::crc32c_append(crc, &max_timestamp.to_be_bytes());
        crc32c::crc32c_append(crc, &self.bytes[PRODUCER_ID_AT..])
    }

    /// A copy that carries the broker's time (`message.timestamp.type=LogAppendTime`): attributes, max timestamp and CRC change.
    #[must_use]
    pub fn with_log_append_time(&self, timestamp_ms: i64) -> Self {
        let mut out = BytesMut::from(&self.bytes[..]);
        let attributes = self.attributes() | LOG_APPEND_TIME_BIT;
        (&mut out[ATTRIBUTES_AT..23]).put_i16(attributes);
        (&mut out[35..43]).put_i64(timestamp_ms);
        let crc = crc32c::crc32c(&out[ATTRIBUTES_AT..]);
        (&mut out[CRC_AT..ATTRIBUTES_AT]).put_u32(crc);
        Self { bytes: out.freeze() }
    }
}

/// `sequence + delta`, wrapping from 2³¹−1 to 0 (Kafka's `DefaultRecordBatch.incrementSequence`).
pub fn sequence_plus(sequence: i32, delta: i32) -> i32 {
    ((i64::from(sequence) + i64::from(delta)) % (i64::from(i32::MAX) + 1)) as i32
}

/// Builds batches for tests of any room: real header, real CRC, opaque records.
#[cfg(test)]
pub mod sample {
    use super::*;

    /// The same batch, encoded `later_ms` later by a client that stamps records as it encodes.
    pub fn stamped_later(batch: &RecordBatch, later_ms: i64) -> RecordBatch {
        let mut out = BytesMut::from(&batch.bytes()[..]);
        (&mut out[BASE_TIMESTAMP_AT..]).put_i64(batch.base_timestamp() + later_ms);
        (&mut out[BASE_TIMESTAMP_AT + 8..]).put_i64(batch.max_timestamp() + later_ms);
        let crc = crc32c::crc32c(&out[ATTRIBUTES_AT..]);
        (&mut out[CRC_AT..ATTRIBUTES_AT]).put_u32(crc);
        RecordBatch::check(out.freeze()).expect("the sample is a valid batch")
    }

    /// A batch of `count` records of producer (`id`, `epoch`) from `sequence` on; `body` stands in for the records.
    pub fn batch(producer: (i64, i16), sequence: i32, count: i32, transactional: bool, body: &[u8]) -> RecordBatch {
        let mut out = BytesMut::new();
        out.put_i64(0);
        out.put_i32((HEADER_BYTES - LENGTH_PREFIX_BYTES + body.len()) as i32);
        out.put_i32(-1);
        out.put_i8(2);
        out.put_u32(0);
        out.put_i16(if transactional { TRANSACTIONAL_BIT } else { 0 });
        out.put_i32(count - 1);
        out.put_i64(1_000);
        out.put_i64(1_000 + i64::from(count) - 1);
        out.put_i64(producer.0);
        out.put_i16(producer.1);
        out.put_i32(sequence);
        out.put_i32(count);
        out.put_slice(body);
        let crc = crc32c::crc32c(&out[ATTRIBUTES_AT..]);
        (&mut out[CRC_AT..ATTRIBUTES_AT]).put_u32(crc);
        RecordBatch::check(out.freeze()).expect("the sample is a valid batch")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checked_batch_tells_what_its_header_says() {
        let batch = sample::batch((7, 3), 10, 5, true, b"records");
        assert_eq!((batch.producer_id(), batch.producer_epoch()), (7, 3));
        assert_eq!((batch.base_sequence(), batch.last_sequence(), batch.record_count()), (10, 14, 5));
        assert!(batch.is_transactional() && !batch.is_control());
        assert_eq!(batch.max_timestamp(), 1_004);
    }

    #[test]
    fn every_flipped_bit_behind_the_patched_prefix_is_noticed() {
        let good = sample::batch((7, 3), 10, 5, false, b"records").bytes().clone();
        for at in PATCHED_BYTES..good.len() {
            let mut bad = good.to_vec();
            bad[at] ^= 1;
            assert!(RecordBatch::check(Bytes::from(bad)).is_err(), "byte {at}");
        }
    }

    #[test]
    fn cut_doubled_and_old_batches_are_told_apart() {
        let good = sample::batch((-1, -1), -1, 1, false, b"x").bytes().clone();
        for cut in 0..good.len() {
            assert!(RecordBatch::check(good.slice(..cut)).is_err());
        }
        let doubled = Bytes::from([&good[..], &good[..]].concat());
        assert_eq!(RecordBatch::check(doubled), Err(BatchFault::Trailing));
        let mut old = good.to_vec();
        old[16] = 1;
        assert_eq!(RecordBatch::check(Bytes::from(old)), Err(BatchFault::Magic(1)));
    }

    #[test]
    fn sequences_wrap_to_zero_after_the_greatest() {
        assert_eq!(sequence_plus(i32::MAX, 1), 0);
        assert_eq!(sequence_plus(i32::MAX - 1, 3), 1);
        assert_eq!(sequence_plus(0, 4), 4);
    }

    #[test]
    fn a_batch_stamped_anew_is_known_by_its_crc_at_the_old_time() {
        let first = sample::batch((7, 3), 10, 5, false, b"records");
        let again = sample::stamped_later(&first, 250);
        assert_ne!(again.crc(), first.crc());
        assert_eq!(again.crc_moved_to(first.max_timestamp()), first.crc());
        let other = sample::stamped_later(&sample::batch((7, 3), 10, 5, false, b"recordz"), 250);
        assert_ne!(other.crc_moved_to(first.max_timestamp()), first.crc());
    }

    #[test]
    fn log_append_time_leaves_a_valid_batch() {
        let stamped = sample::batch((-1, -1), -1, 3, false, b"abc").with_log_append_time(42);
        let again = RecordBatch::check(stamped.bytes().clone()).expect("its CRC is right");
        assert!(again.is_log_append_time());
        assert_eq!(again.max_timestamp(), 42);
    }
}
