//! No two replicas apply different entries at an index, and equal entries make equal states, to the byte (Raft, State Machine
//! Safety, §5.4.3; apply is deterministic).

use super::super::node::Applied;
use super::super::oracle::Oracle;
use super::super::raft::NodeId;
use super::super::records::record;

/// A node applied an entry that another one applied before.
pub fn applied(oracle: &Oracle, node: NodeId, applied: &Applied) {
    let (index, canon) = (applied.index, &oracle.canon[applied.index as usize]);
    assert_eq!(
        (applied.term, applied.crc),
        (canon.term, canon.crc),
        "replicas diverge: node {node} applies another entry at {index}: a committed one is lost"
    );
    assert_eq!(applied.outcome, canon.outcome, "replicas diverge: outcome at {index} on node {node}");
    assert!(
        applied.appended.iter().map(record).eq(canon.appended.iter().copied()),
        "replicas diverge: records at {index} on node {node}"
    );
    assert_eq!(applied.state, canon.state, "replicas diverge: state behind {index} on node {node}");
}
