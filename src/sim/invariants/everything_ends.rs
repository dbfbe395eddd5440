//! When nothing goes wrong any more, everyone gets an answer and all replicas end up with the same state and the same
//! records (transactions.md §5: nothing can hang; Raft: State Machine Safety).

use super::super::world::World;

/// How long everything may take once nothing goes wrong any more.
const WITHIN_MS: u64 = 60_000;

/// Lets everyone finish.
pub fn finish(world: &mut World) {
    world.clients.iter_mut().for_each(super::super::clients::Actor::stop);
    let ended = world.run_until(WITHIN_MS, |world| {
        world.clients.iter_mut().for_each(super::super::clients::Actor::stop);
        world.clients.iter().all(super::super::clients::Actor::is_idle)
    });
    if !ended {
        let stuck: Vec<String> = world
            .clients
            .iter()
            .filter(|client| !client.is_idle())
            .map(|client| format!("{} | {}", client.describe(), client.session.describe()))
            .collect();
        panic!("something hangs: {stuck:#?}, serving {:?}", world.serving());
    }
    let level = world.run_until(WITHIN_MS, |world| {
        let applied: Vec<_> = world.places.iter().map(|place| place.node.as_ref().map(|node| node.applied)).collect();
        applied.iter().all(|applied| applied.is_some_and(|applied| applied as usize == world.oracle.canon.len()))
    });
    assert!(level, "something hangs: the replicas do not reach the same index");
    agree(world);
}

fn agree(world: &World) {
    let nodes: Vec<_> = world.places.iter().filter_map(|place| place.node.as_ref()).collect();
    for node in &nodes[1..] {
        assert!(node.machine.to_bytes() == nodes[0].machine.to_bytes(), "replicas diverge: their states differ");
        assert!(node.logs == nodes[0].logs, "replicas diverge: their records differ");
    }
    for (at, log) in &world.oracle.logs {
        let found = nodes[0].logs.get(at);
        assert!(
            found.is_some_and(|found| found.iter().eq(log.iter())),
            "lost write: {at:?} has {found:?}, but {log:?} was applied"
        );
    }
}
