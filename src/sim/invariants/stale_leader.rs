//! An answer is decided only while nobody serves a newer term (Raft's thesis, §6.4.1, leases; transactions.md §2).

use super::super::oracle::Oracle;
use super::super::raft::NodeId;

/// A node let out an answer of that term, decided at that time.
pub fn answered(oracle: &Oracle, node: NodeId, term: u64, decided_us: u64) {
    let newer = oracle.terms.range(term + 1..).find(|(_, (_, since_us))| *since_us <= decided_us);
    assert!(newer.is_none(), "stale leader: node {node} answers in term {term}, and {newer:?} was served already");
}
