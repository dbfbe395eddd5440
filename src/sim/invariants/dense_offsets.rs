//! Offsets of a partition are dense: each batch starts where the one before it ended (one log, no control records;
//! Jepsen's Kafka workload: inconsistent offsets).

use katomic::types::TopicPartition;

use super::super::oracle::Oracle;
use super::super::records::Record;

/// A batch is appended.
pub fn appended(oracle: &Oracle, at: TopicPartition, record: Record) {
    let next = oracle.logs.get(&at).and_then(|log| log.last()).map_or(0, |last| last.next);
    assert_eq!(record.base, next, "inconsistent offsets: {record:?} of {at:?} does not follow {next}");
    assert!(record.next > record.base, "inconsistent offsets: {record:?} has no records");
}
