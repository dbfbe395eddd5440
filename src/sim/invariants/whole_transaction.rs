//! A transaction becomes visible whole, in one step, and only if its client asked for that (atomicity; Jepsen's Kafka
//! workload: partial transaction, G1b; transactions.md §1).

use std::collections::BTreeSet;

use super::super::node::Applied;
use super::super::oracle::{End, Oracle};
use super::super::records::BatchNumber;

/// Batches were appended at an index.
pub fn appended(oracle: &mut Oracle, applied: &Applied, numbers: &[BatchNumber]) {
    let of = |number: &BatchNumber| oracle.batches.get(number).and_then(|sent| sent.txn);
    let touched: BTreeSet<usize> = numbers.iter().filter_map(of).collect();
    for txn in touched {
        let written: BTreeSet<BatchNumber> = numbers.iter().filter(|number| of(number) == Some(txn)).copied().collect();
        let found = &mut oracle.txns[txn];
        let (index, id) = (applied.index, &found.id);
        assert!(found.commit_sent, "transaction {txn} of {id} is written at {index}, and nobody asked for it");
        assert!(
            !found.abort_sent && found.end != End::Nothing,
            "aborted read: transaction {txn} of {id} is written at {index}"
        );
        assert_eq!(written, found.batches, "partial transaction: {txn} of {id} at {index}");
        found.index = Some(index);
    }
}
