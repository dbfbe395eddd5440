//! Nothing of a transaction that was aborted, or reported lost, is ever written (Jepsen's Kafka workload: aborted read, G1a).

use super::super::oracle::{End, Oracle};

/// A transaction ended: if with nothing, nothing of it is there. What comes later is `whole_transaction`'s.
pub fn ended(oracle: &Oracle, txn: usize) {
    let found = &oracle.txns[txn];
    if found.end == End::Nothing {
        assert!(
            found.index.is_none(),
            "aborted read: transaction {txn} of {} is told to have left nothing, and was written at {:?}",
            found.id,
            found.index
        );
    }
}
