//! What goes wrong, and when: crashes that lose what was not synced, failed syncs, pauses, cut and lossy links, clocks that
//! jump, clients that die. Everything is put right again after a while, and for good before the last judgement.

use super::raft::{NODES, NodeId};
use super::world::{Event, World};

/// How far a wall clock may be off.
const WALL_STEP_MS: i64 = 3_600_000;

/// One fault, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The next fault is due.
    Next,
    /// Power loss.
    Crash(NodeId),
    /// All nodes at once.
    CrashAll,
    /// The node starts again.
    Restart(NodeId),
    /// The next fsync of the node fails.
    FailSync(NodeId),
    /// One direction between two nodes.
    Cut(NodeId, NodeId, bool),
    /// A node from the others, both ways.
    Isolate(NodeId, bool),
    /// Everything to (true) or from a node, of the others.
    OneWay(NodeId, bool, bool),
    /// Crash, and back before anyone notices.
    Blink(NodeId),
    /// Clients to and from a node.
    CutClients(NodeId, bool, bool),
    /// The node stands still for so many milliseconds.
    Pause(NodeId, u64),
    /// The wall clock is off by so much from now on.
    Wall(NodeId, i64),
    /// So many messages of a thousand are lost.
    Lossy(u64),
    /// The node gives leadership away, if it has it.
    Transfer(NodeId),
    /// Syncs take long, or not any more.
    Slow(NodeId, bool),
    /// A client's process dies and starts again.
    RestartClient(usize),
    /// No more faults: everything works from now on.
    Peace,
}

/// Carries out a fault.
pub fn strike(world: &mut World, fault: Fault) {
    match fault {
        Fault::Next => next(world),
        Fault::Crash(node) => {
            world.crash(node);
            let delay_us = world.rng.between(20_000, 2_500_000);
            world.after(delay_us, Event::Fault(Fault::Restart(node)));
        }
        Fault::CrashAll => (0..NODES).for_each(|node| strike(world, Fault::Crash(node))),
        Fault::Restart(node) => world.start(node),
        Fault::FailSync(node) => world.places[node].sync_fails = world.places[node].node.is_some(),
        Fault::Cut(from, to, cut) => world.links.cut[from][to] = cut,
        Fault::Isolate(node, cut) => world.links.isolate(node, cut),
        Fault::OneWay(node, inbound, cut) => {
            for other in (0..NODES).filter(|other| *other != node) {
                let (from, to) = if inbound { (other, node) } else { (node, other) };
                world.links.cut[from][to] = cut;
            }
        }
        Fault::Blink(node) => {
            world.crash(node);
            world.after(5_000, Event::Fault(Fault::Restart(node)));
        }
        Fault::CutClients(node, up, down) => {
            world.links.cut_up[node] = up;
            world.links.cut_down[node] = down;
        }
        Fault::Pause(node, ms) => world.places[node].paused_until_us = world.now_us + ms * 1_000,
        Fault::Wall(node, offset_ms) => world.places[node].clock.wall_offset_ms = offset_ms,
        Fault::Lossy(per_mille) => world.links.loss_per_mille = per_mille,
        Fault::Transfer(node) => world.part(node),
        Fault::Slow(node, slow) => world.places[node].slow_disk = slow,
        Fault::RestartClient(client) => world.restart_client(client),
        Fault::Peace => peace(world),
    }
}

/// Everything works from now on.
fn peace(world: &mut World) {
    world.at_peace = true;
    world.links.heal();
    for node in 0..NODES {
        world.places[node].paused_until_us = 0;
        world.places[node].sync_fails = false;
        world.places[node].slow_disk = false;
        world.start(node);
    }
}

fn next(world: &mut World) {
    if world.at_peace {
        return;
    }
    let leader = world.serving().map(|(_, node)| node);
    let any = world.rng.index(NODES);
    // The leader is where it hurts.
    let node = leader.filter(|_| world.rng.chance(600)).unwrap_or(any);
    let other = (node + 1 + world.rng.index(NODES - 1)) % NODES;
    let lasts_us = world.rng.between(50_000, 3_000_000);
    let (fault, end) = match world.rng.below(21) {
        0 | 1 => (Fault::Crash(node), None),
        2 if world.rng.chance(300) => (Fault::CrashAll, None),
        2 | 3 => (Fault::FailSync(node), None),
        4 | 5 => (Fault::Isolate(node, true), Some(Fault::Isolate(node, false))),
        6 => (Fault::Cut(node, other, true), Some(Fault::Cut(node, other, false))),
        7 => (Fault::Cut(other, node, true), Some(Fault::Cut(other, node, false))),
        8 => (Fault::CutClients(node, true, true), Some(Fault::CutClients(node, false, false))),
        9 => (Fault::CutClients(node, false, true), Some(Fault::CutClients(node, false, false))),
        10 => (Fault::CutClients(node, true, false), Some(Fault::CutClients(node, false, false))),
        11 => (Fault::Pause(node, lasts_us / 1_000), None),
        12 => {
            let offset_ms = world.rng.between(0, 2 * WALL_STEP_MS as u64) as i64 - WALL_STEP_MS;
            (Fault::Wall(node, offset_ms), None)
        }
        13 => (Fault::Lossy(world.rng.between(10, 300)), Some(Fault::Lossy(0))),
        // A leader that hears nobody commits nothing, and nobody stands against it.
        14 => (Fault::OneWay(node, true, true), Some(Fault::OneWay(node, true, false))),
        15 => (Fault::OneWay(node, false, true), Some(Fault::OneWay(node, false, false))),
        16 => {
            // One loses sight of the leader and stands; the other one has just promised the leader its lease.
            let third = NODES - node - other;
            for after_us in (300_000..1_000_000).step_by(60_000) {
                world.after(after_us, Event::Fault(Fault::Blink(third)));
            }
            (Fault::Cut(node, other, true), Some(Fault::Cut(node, other, false)))
        }
        17 => (Fault::Transfer(node), None),
        18 => (Fault::Slow(node, true), Some(Fault::Slow(node, false))),
        _ => (Fault::RestartClient(world.rng.index(world.clients.len().max(1))), None),
    };
    world.after(0, Event::Fault(fault));
    if let Some(end) = end {
        world.after(lasts_us, Event::Fault(end));
    }
    let delay_us = world.rng.between(100_000, 1_500_000);
    world.after(delay_us, Event::Fault(Fault::Next));
}
