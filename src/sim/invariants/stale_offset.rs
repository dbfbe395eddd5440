//! An OffsetFetch that was sent after a commit was acknowledged does not look behind it (linearizability of a group's offsets;
//! Jepsen's Kafka workload: inconsistent offsets; transactions.md §6).

use std::sync::Arc;

use katomic::types::TopicPartition;

use super::super::oracle::Oracle;

/// An OffsetFetch asked at that moment was answered.
pub fn fetched(oracle: &Oracle, group: &Arc<str>, at: TopicPartition, offset: i64, asked: u64) {
    let known = oracle.known.get(&(group.clone(), at)).into_iter().flatten();
    let floor = known.filter(|(when, _)| *when <= asked).map(|(_, offset)| *offset).max().unwrap_or(0);
    assert!(offset >= floor, "stale read: {group} was at {floor} of {at:?}, OffsetFetch says {offset}");
}
