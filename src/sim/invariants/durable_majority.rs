//! What counts as committed is durable on a majority (Raft, §5.3 and §5.4; and so is what is acknowledged, for nothing is
//! acknowledged before it is applied, and nothing applied before it is committed).

use super::super::raft::NodeId;
use super::super::world::Place;

/// A node holds the entries from there on to be committed.
pub fn committed(places: &[Place], node: NodeId, from: u64) {
    let raft = &places[node].node.as_ref().expect("it runs").raft;
    for index in from.max(raft.base())..raft.committed {
        let term = raft.entry(index).term;
        let disks = places.iter().map(|place| place.node.as_ref().map(|node| &node.disk).or(place.disk.as_ref()));
        let holding = disks.flatten().filter(|disk| disk.durable.holds(index, term)).count();
        assert!(
            holding * 2 > places.len(),
            "lost write in the making: entry {index} of term {term} is committed and durable on {holding} disks only"
        );
    }
}
