//! A batch of an idempotent producer is written at most once (KIP-98; Jepsen's Kafka workload: duplicate).

use katomic::types::TopicPartition;

use super::super::oracle::Oracle;
use super::super::records::Record;

/// A batch is appended at an index.
pub fn appended(oracle: &mut Oracle, at: TopicPartition, record: Record, index: u64) {
    let sent = oracle.batches.get_mut(&record.number).expect("only what was sent is written");
    if let Some(first) = sent.written.replace((at, record, index)) {
        panic!("duplicate: {:?} at {first:?} and again at {index}: {record:?}", record.number);
    }
}
