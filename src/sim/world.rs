//! The world: three nodes, their clients, one clock and one queue of events. Everything that happens is taken from that
//! queue, in the order of time and then of insertion; chance has one source. So a seed is a run.

mod traffic;

use std::collections::BTreeMap;

use katomic::leader::LeaderSettings;
use katomic::leader::request::Response;
use katomic::types::{TopicId, TopicPartition};

use super::clients::{Actor, Client};
use super::disk::Disk;
use super::faults::{self, Fault};
use super::mutants::Mutant;
use super::network::{Conn, ConnId, Links, RequestId};
use super::node::{At, Clock, Node, Output};
use super::oracle::Oracle;
use super::raft::{Message, NODES, NodeId};
use super::rng::Rng;
use super::trace::Trace;

/// Stands for whoever opens a connection by hand.
pub const PROBE: usize = usize::MAX;
/// How often a node looks at its clock.
const TICK_US: (u64, u64) = (6_000, 14_000);
/// After how long a held or cut connection tries again.
const RETRANSMIT_US: (u64, u64) = (20_000, 250_000);

/// What happens.
#[derive(Debug)]
pub enum Event {
    Tick(NodeId, u64),
    Peer {
        from: NodeId,
        to: NodeId,
        message: Message,
    },
    Synced(NodeId, u64),
    Apply(NodeId, u64),
    /// The head of a connection's queue reaches the node.
    Arrive(ConnId),
    /// The head of a connection's queue reaches the client.
    Return(ConnId),
    /// The client learns that a connection is gone.
    Gone(ConnId),
    Wake(usize),
    Fault(Fault),
}

/// One node, running or not.
#[derive(Debug)]
pub struct Place {
    pub node: Option<Node>,
    /// Its disk while it does not run.
    pub disk: Option<Disk>,
    /// Which life it is in.
    pub life: u64,
    pub clock: Clock,
    pub paused_until_us: u64,
    /// The next sync fails, and the node with it.
    pub sync_fails: bool,
    pub slow_disk: bool,
    pub accepted: u64,
}

/// How a run is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    pub seed: u64,
    pub mutant: Mutant,
    /// Delays vary and clocks differ.
    pub rough: bool,
    pub settings: LeaderSettings,
}

/// Settings of the leader: short times, so that a run meets them.
pub fn settings() -> LeaderSettings {
    LeaderSettings {
        transaction_max_timeout_ms: 900_000,
        entry_bytes_max: 600,
        staged_bytes_max: 64 << 20,
        group_min_session_timeout_ms: 500,
        group_max_session_timeout_ms: 1_800_000,
        group_initial_rebalance_delay_ms: 50,
        group_max_size: 100,
        offset_metadata_max_bytes: 4_096,
        producer_id_expiration_ms: 86_400_000,
        transactional_id_expiration_ms: 604_800_000,
        offsets_retention_ms: 604_800_000,
        log_retention_ms: -1,
        log_retention_bytes: -1,
    }
}

/// See the module.
pub struct World {
    pub setup: Setup,
    pub now_us: u64,
    pub rng: Rng,
    pub links: Links,
    pub places: Vec<Place>,
    pub conns: BTreeMap<ConnId, Conn>,
    pub clients: Vec<Actor>,
    pub oracle: Oracle,
    pub trace: Trace,
    /// Topics by name, as any broker would tell them.
    pub topics: BTreeMap<&'static str, (TopicId, i32)>,
    /// What requests by hand were answered with; `Close` where the connection was closed.
    pub probed: BTreeMap<RequestId, Response>,
    /// Nothing goes wrong any more.
    pub at_peace: bool,
    queue: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    last_conn: u64,
    last_request: u64,
    last_number: u64,
}

impl World {
    /// A world at rest: nodes start, nobody leads, nobody asks.
    pub fn new(setup: Setup) -> Self {
        let mut rng = Rng::new(setup.seed);
        let rough = setup.rough;
        let places = (0..NODES).map(|_| {
            let rate = if rough { rng.between(990, 1_010) } else { 1_000 };
            let clock = Clock { rate, wall_offset_ms: 0 };
            let disk = Some(Disk::default());
            Place {
                node: None,
                disk,
                life: 0,
                clock,
                paused_until_us: 0,
                sync_fails: false,
                slow_disk: false,
                accepted: 0,
            }
        });
        let places = places.collect();
        let mut world = Self {
            now_us: 0,
            rng,
            links: Links { rough, ..Links::default() },
            places,
            conns: BTreeMap::new(),
            clients: Vec::new(),
            oracle: Oracle::default(),
            trace: Trace::default(),
            topics: BTreeMap::new(),
            probed: BTreeMap::new(),
            at_peace: false,
            queue: BTreeMap::new(),
            sequence: 0,
            last_conn: 0,
            last_request: 0,
            last_number: 0,
            setup,
        };
        (0..NODES).for_each(|node| world.start(node));
        world
    }

    /// Something will happen, so many microseconds from now.
    pub fn after(&mut self, delay_us: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((self.now_us + delay_us, self.sequence), event);
    }

    /// Runs for so long.
    pub fn run_ms(&mut self, ms: u64) {
        let until = self.now_us + ms * 1_000;
        while self.step(until) {}
        self.now_us = until;
    }

    /// Runs until something holds, at most so long; tells whether it does.
    pub fn run_until(&mut self, within_ms: u64, mut holds: impl FnMut(&mut Self) -> bool) -> bool {
        let until = self.now_us + within_ms * 1_000;
        loop {
            if holds(self) {
                return true;
            }
            if !self.step(until) {
                self.now_us = until;
                return holds(self);
            }
        }
    }

    fn step(&mut self, until_us: u64) -> bool {
        let Some(first) = self.queue.first_entry().filter(|first| first.key().0 <= until_us) else { return false };
        let ((at_us, _), event) = first.remove_entry();
        self.now_us = at_us;
        if let Some(resumes_us) = self.paused(&event) {
            self.after(resumes_us - self.now_us, event);
            return true;
        }
        self.trace.event(self.now_us, &event);
        self.happen(event);
        true
    }

    /// When the node that an event is for resumes, if it is paused.
    fn paused(&self, event: &Event) -> Option<u64> {
        let node = match event {
            Event::Tick(node, _) | Event::Synced(node, _) | Event::Apply(node, _) => *node,
            Event::Peer { to, .. } => *to,
            Event::Arrive(conn) => self.conns.get(conn)?.node,
            Event::Return(_) | Event::Gone(_) | Event::Wake(_) | Event::Fault(_) => return None,
        };
        Some(self.places[node].paused_until_us).filter(|until_us| *until_us > self.now_us)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Tick(node, life) => {
                if self.with(node, Some(life), |running, at| running.tick(at)).is_some() {
                    let delay_us = self.rng.between(TICK_US.0, TICK_US.1);
                    self.after(delay_us, Event::Tick(node, life));
                }
            }
            Event::Peer { from, to, message } => {
                self.with(to, None, |running, at| running.receive(from, message, at));
            }
            Event::Synced(node, life) => self.synced(node, life),
            Event::Apply(node, life) => {
                let applied = self.with(node, Some(life), |running, at| running.apply(at));
                for one in applied.into_iter().flatten() {
                    self.oracle.applied(node, one);
                }
            }
            Event::Arrive(conn) => self.arrive(conn),
            Event::Return(conn) => self.give_back(conn),
            Event::Gone(conn) => {
                if let Some(found) = self.conns.get_mut(&conn)
                    && std::mem::take(&mut found.open_at_client)
                {
                    let client = found.client;
                    if client == PROBE {
                        self.probed.extend(found.unanswered.iter().map(|id| (*id, Response::Close)));
                    }
                    self.as_client(client, |actor, world| actor.lost(world, conn));
                }
            }
            Event::Wake(client) => self.as_client(client, |actor, world| actor.wake(world)),
            Event::Fault(fault) => faults::strike(self, fault),
        }
    }

    // === Nodes ===

    /// Starts a node with what its disk has.
    pub fn start(&mut self, node: NodeId) {
        let Some(disk) = self.places[node].disk.take() else { return };
        let place = &mut self.places[node];
        place.life += 1;
        place.accepted = 0;
        let (life, now) = (place.life, place.clock.now(self.now_us));
        let mut running = Node::start(node, disk, &self.setup.settings, now, self.setup.mutant, &mut self.rng);
        running.refuses_per_mille = if self.setup.rough { 4 } else { 0 };
        self.oracle.started(node, running.applied);
        self.places[node].node = Some(running);
        let delay_us = self.rng.between(TICK_US.0, TICK_US.1);
        self.after(delay_us, Event::Tick(node, life));
    }

    /// The node's power goes: what it had not synced may be lost, its connections are.
    pub fn crash(&mut self, node: NodeId) {
        let Some(mut running) = self.places[node].node.take() else { return };
        self.trace.note(self.now_us, || format!("node {node} crashes"));
        running.disk.crash(&mut self.rng);
        let place = &mut self.places[node];
        place.disk = Some(running.disk);
        place.sync_fails = false;
        place.paused_until_us = 0;
        let of_node: Vec<ConnId> =
            self.conns.iter().filter(|(_, conn)| conn.node == node && conn.open_at_server).map(|(id, _)| *id).collect();
        for conn in of_node {
            self.reset(conn);
        }
    }

    /// The node gives leadership away, if it has it.
    pub fn part(&mut self, node: NodeId) {
        self.with(node, None, |running, at| running.part(at));
    }

    /// Lets a node handle something and carries out what comes of it.
    fn with<T>(
        &mut self,
        node: NodeId,
        life: Option<u64>,
        handle: impl FnOnce(&mut Node, &mut At<'_>) -> T,
    ) -> Option<T> {
        let place = &mut self.places[node];
        if life.is_some_and(|life| life != place.life) {
            return None;
        }
        let running = place.node.as_mut()?;
        let now = place.clock.now(self.now_us);
        let mut out = Output::default();
        let committed = running.raft.committed;
        let served = running.serving();
        let result = handle(running, &mut At { now, world_us: self.now_us, rng: &mut self.rng, out: &mut out });
        if running.raft.committed > committed {
            self.oracle.committed(&self.places, node, committed);
        }
        let running = self.places[node].node.as_ref().expect("it runs");
        if running.serving() != served
            && let Some(term) = running.serving()
        {
            self.oracle.serves(node, term, self.now_us);
            self.trace.note(self.now_us, || format!("node {node} serves term {term}"));
        }
        for (term, decided_us) in std::mem::take(&mut out.answered) {
            self.oracle.answered(node, term, decided_us);
        }
        self.carry_out(node, out);
        Some(result)
    }

    fn carry_out(&mut self, node: NodeId, out: Output) {
        let life = self.places[node].life;
        for (to, message) in out.messages {
            if let Some(delay_us) = self.links.peer_delay_us(node, to, &mut self.rng) {
                self.after(delay_us, Event::Peer { from: node, to, message });
            }
        }
        if out.sync_started {
            let slow = self.places[node].slow_disk;
            let delay_us = match (self.setup.rough, slow) {
                (false, _) => 500,
                (true, false) => self.rng.between(100, 3_000),
                (true, true) => self.rng.between(5_000, 400_000),
            };
            self.after(delay_us, Event::Synced(node, life));
        }
        if out.apply_due {
            let delay_us = if self.setup.rough { self.rng.between(10, 1_500) } else { 10 };
            self.after(delay_us, Event::Apply(node, life));
        }
        for (conn, id, reply) in out.replies {
            self.send_back(conn, id, reply);
        }
    }

    fn synced(&mut self, node: NodeId, life: u64) {
        if self.places[node].life == life && self.places[node].sync_fails {
            // As PostgreSQL learnt: after a failed fsync nothing written since the last one can be trusted.
            self.crash(node);
            let delay_us = self.rng.between(100_000, 1_500_000);
            return self.after(delay_us, Event::Fault(Fault::Restart(node)));
        }
        self.with(node, Some(life), |running, at| running.synced(at));
    }

    // === Clients ===

    /// Adds a client, which wakes soon.
    pub fn add(&mut self, logic: Box<dyn Client>) -> usize {
        let number = self.clients.len();
        self.clients.push(Actor::new(number, logic));
        let delay_us = self.rng.between(0, 20_000);
        self.after(delay_us, Event::Wake(number));
        number
    }

    fn as_client(&mut self, client: usize, act: impl FnOnce(&mut Actor, &mut Self)) {
        let Some(place) = self.clients.get_mut(client) else { return };
        let mut actor = std::mem::replace(place, Actor::away());
        act(&mut actor, self);
        self.clients[client] = actor;
    }

    /// A client's process dies and starts again.
    pub fn restart_client(&mut self, client: usize) {
        self.as_client(client, Actor::restart);
    }

    /// The id of a topic, as the node that serves tells it.
    pub fn topic_id(&self, name: &str) -> Option<TopicId> {
        let (_, node) = self.serving()?;
        let running = self.places[node].node.as_ref()?;
        running.machine.topics().named(name).map(|topic| topic.id)
    }

    /// Who a node believes leads, if the node can be asked.
    pub fn leader_hint(&self, node: NodeId) -> Option<NodeId> {
        let reachable = !self.links.cut_up[node] && !self.links.cut_down[node];
        self.places[node].node.as_ref().filter(|_| reachable)?.raft.leader
    }

    /// The node that serves the newest term, if any does.
    pub fn serving(&self) -> Option<(u64, NodeId)> {
        let serves = |(node, place): (NodeId, &Place)| Some((place.node.as_ref()?.serving()?, node));
        self.places.iter().enumerate().filter_map(serves).max()
    }

    /// A number for a batch.
    pub fn batch_number(&mut self) -> super::records::BatchNumber {
        self.last_number += 1;
        super::records::BatchNumber(self.last_number)
    }

    /// A partition by the name of its topic.
    pub fn partition(&self, topic: &str, partition: i32) -> TopicPartition {
        TopicPartition { topic: self.topics[topic].0, partition }
    }
}
