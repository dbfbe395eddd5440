//! Record batches as clients send them, each with a number of its own as its only content, and the replicas' logs of them.

use bytes::{BufMut, Bytes, BytesMut};
use katomic::state::command::Appended;
use katomic::types::record_batch::HEADER_BYTES;
use katomic::types::{ProducerIdAndEpoch, RecordBatch, TopicPartition};

/// The number of a batch: unique in a run, so that every copy of it can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchNumber(pub u64);

/// A batch in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Offset of its first record.
    pub base: i64,
    /// Offset behind its last.
    pub next: i64,
    /// Which batch.
    pub number: BatchNumber,
}

/// What one replica has of every partition. Persistent, so that a checkpoint is a clone.
pub type Logs = imbl::OrdMap<TopicPartition, imbl::Vector<Record>>;

/// The batch of that number, of `count` records from `sequence` on.
pub fn batch(
    producer: Option<ProducerIdAndEpoch>,
    sequence: i32,
    count: i32,
    transactional: bool,
    number: BatchNumber,
) -> RecordBatch {
    let (id, epoch) = producer.map_or((-1, -1), |pair| (pair.producer_id, pair.epoch));
    let mut out = BytesMut::new();
    out.put_i64(0);
    out.put_i32(HEADER_BYTES as i32 - 12 + 8);
    out.put_i32(-1);
    out.put_i8(2);
    out.put_u32(0);
    out.put_i16(if transactional { 0x10 } else { 0 });
    out.put_i32(count - 1);
    out.put_i64(1_000);
    out.put_i64(1_000);
    out.put_i64(id);
    out.put_i16(epoch);
    out.put_i32(sequence);
    out.put_i32(count);
    out.put_u64(number.0);
    let crc = crc32c::crc32c(&out[21..]);
    (&mut out[17..21]).put_u32(crc);
    RecordBatch::check(out.freeze()).expect("a batch built by the rules is valid")
}

/// The number of a batch that some client built.
pub fn number_of(records: &Bytes) -> BatchNumber {
    let mut raw = [0; 8];
    raw.copy_from_slice(&records[HEADER_BYTES..HEADER_BYTES + 8]);
    BatchNumber(u64::from_be_bytes(raw))
}

/// What an apply appended, as a record of its partition.
pub fn record(appended: &Appended) -> Record {
    Record { base: appended.base_offset.0, next: appended.next_offset.0, number: number_of(appended.records.bytes()) }
}
