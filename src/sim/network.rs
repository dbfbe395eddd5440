//! Links and connections.
//!
//! Between nodes: messages of their own, each lost, delayed and overtaken by others as chance will have it, and cut in one
//! direction or both. Between clients and nodes: connections as TCP gives them, in order and without loss. A cut link holds
//! what was sent and delivers it when it heals, also when the client has long closed the connection and gone on: so a late
//! request arrives (schedules T2, T3).

use std::collections::{BTreeSet, VecDeque};

use katomic::leader::request::Request;
use katomic::types::ConnectionId;

use super::node::Reply;
use super::raft::{NODES, NodeId};
use super::rng::Rng;

/// A connection, unique in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// A request, unique in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One connection.
#[derive(Debug)]
pub struct Conn {
    pub client: usize,
    pub node: NodeId,
    /// Which life of the node it belongs to, once accepted, and its number there.
    pub accepted: Option<(u64, ConnectionId)>,
    /// The server has not closed it.
    pub open_at_server: bool,
    /// The client has not closed it.
    pub open_at_client: bool,
    /// A scenario lets nothing through.
    pub held: bool,
    /// Sent and not answered.
    pub unanswered: BTreeSet<RequestId>,
    /// On the way to the server; None accepts it.
    pub to_server: VecDeque<Option<(RequestId, Request)>>,
    /// On the way back.
    pub to_client: VecDeque<(RequestId, Reply)>,
    pub arrives_us: u64,
    pub returns_us: u64,
}

impl Conn {
    /// A connection that `client` opens.
    pub fn new(client: usize, node: NodeId) -> Self {
        Self {
            client,
            node,
            accepted: None,
            open_at_server: true,
            open_at_client: true,
            held: false,
            unanswered: BTreeSet::new(),
            to_server: VecDeque::from([None]),
            to_client: VecDeque::new(),
            arrives_us: 0,
            returns_us: 0,
        }
    }
}

/// The state of all links.
#[derive(Debug, Default)]
pub struct Links {
    /// From node to node.
    pub cut: [[bool; NODES]; NODES],
    /// From clients to a node.
    pub cut_up: [bool; NODES],
    /// From a node to clients.
    pub cut_down: [bool; NODES],
    /// Messages of a thousand that are lost between nodes.
    pub loss_per_mille: u64,
    /// Whether delays vary, with spikes.
    pub rough: bool,
}

impl Links {
    /// How long one message takes.
    pub fn delay_us(&self, rng: &mut Rng) -> u64 {
        if !self.rough {
            1_000
        } else if rng.chance(15) {
            rng.between(20_000, 900_000)
        } else {
            rng.between(100, 4_000)
        }
    }

    /// Between two nodes: None if it is lost.
    pub fn peer_delay_us(&self, from: NodeId, to: NodeId, rng: &mut Rng) -> Option<u64> {
        if self.cut[from][to] || rng.chance(self.loss_per_mille) {
            return None;
        }
        Some(self.delay_us(rng))
    }

    /// Cuts a node off from the other nodes, or lets it back.
    pub fn isolate(&mut self, node: NodeId, cut: bool) {
        for other in 0..NODES {
            self.cut[node][other] = cut;
            self.cut[other][node] = cut;
        }
    }

    /// Everything is connected again.
    pub fn heal(&mut self) {
        *self = Self { rough: self.rough, ..Self::default() };
    }
}
