//! Offsets and records of a transaction are committed together, and what a group consumes it consumes once: a commit starts
//! where the one before it ended (KIP-447; Jepsen's Kafka workload with transactions; transactions.md §6).

use std::sync::Arc;

use katomic::state::command::TxnCommit;

use super::super::oracle::Oracle;
use super::super::records::BatchNumber;

/// A transaction's entry took effect.
pub fn committed(oracle: &mut Oracle, commit: &TxnCommit, numbers: &[BatchNumber]) {
    // A scenario's transactions are judged by the scenario.
    let Some(txn) = numbers.iter().find_map(|number| oracle.batches.get(number)?.txn) else { return };
    let expected = oracle.txns[txn].offsets.clone();
    let written: usize = commit.offsets.iter().map(|staged| staged.offsets.len()).sum();
    let wanted = expected.as_ref().map_or(0, |offsets| offsets.consumed.len());
    assert_eq!(written, wanted, "records without their offsets: transaction {txn:?} {commit:?}");
    let Some(expected) = expected else { return };
    for staged in &commit.offsets {
        for write in &staged.offsets {
            let key = (Arc::from(staged.group.as_str()), write.of);
            let consumed = expected.consumed.iter().find(|(at, ..)| *at == write.of);
            let (_, from, next) = *consumed.expect("offsets of what it consumed");
            assert_eq!(write.offset.0, next, "offsets of another transaction: {commit:?}");
            let before = oracle.committed.insert(key, next).unwrap_or(0);
            assert_eq!(before, from, "not exactly once: transaction {txn:?} consumed {from}..{next} of {:?}", write.of);
        }
    }
}
