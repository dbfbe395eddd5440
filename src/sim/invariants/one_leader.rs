//! At most one node leads a term (Raft, Election Safety, §5.2).

use super::super::oracle::Oracle;
use super::super::raft::NodeId;

/// A node serves a term.
pub fn serves(oracle: &mut Oracle, node: NodeId, term: u64, now_us: u64) {
    let (first, _) = *oracle.terms.entry(term).or_insert((node, now_us));
    assert_eq!(first, node, "two leaders of term {term}");
}
