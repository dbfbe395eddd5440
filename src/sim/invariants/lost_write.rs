//! What was acknowledged is there, where it was told to be (Jepsen's Kafka workload: lost write). That it stays there is
//! `replicas_agree`'s and `everything_ends`'.

use katomic::types::TopicPartition;

use super::super::oracle::{End, Oracle};
use super::super::records::BatchNumber;

/// A transaction ended: if committed, it was written.
pub fn transaction(oracle: &Oracle, txn: usize) {
    let found = &oracle.txns[txn];
    if found.end == End::Committed {
        assert!(found.index.is_some(), "lost write: transaction {txn} of {} is told to be committed", found.id);
    }
}

/// A plain batch was acknowledged.
pub fn batch(oracle: &Oracle, number: BatchNumber, to: TopicPartition, offset: i64) {
    let written = oracle.batches.get(&number).and_then(|sent| sent.written);
    let as_told = written.is_some_and(|(at, record, _)| at == to && (offset < 0 || record.base == offset));
    assert!(as_told, "lost write: {number:?} is acknowledged at {offset} of {to:?} and written at {written:?}");
}
