//! The way to other nodes: our own framing over TCP.
//!
//! ```text
//!  openraft ─▶ client (one connection per class and peer) ─▶ frame ═ TCP ═ frame ─▶ server ─▶ openraft
//! ```
//!
//! Files: [`frame`] (bytes on the wire), [`message`] (what they say), [`client`] (calls and append streams),
//! [`server`] (accepts and answers).
//!
//! - Appends are pipelined, bounded in bytes, on a connection of their own; heartbeats have another, so that they never
//!   stand behind data; votes and transfers a third.
//! - Every call has a deadline; a stream that is owed an answer for [`ANSWER_WITHIN`] is given up and opened anew.
//! - The leader tells its followers in each append who follows closely, so that every node can tell its clients.

pub mod client;
pub mod frame;
pub mod message;
pub mod server;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use metrics::Counter;
use openraft::async_runtime::{Instant, WatchReceiver};
use parking_lot::Mutex;

use super::catch_up::CatchUp;
use super::entry::Node;
use super::identity::Identity;
use super::lease::Lease;
use super::membership::Membership;
use super::raft_types::RaftMetrics;
use super::sequencer::Raft;
use crate::types::{LogIndex, Term};
use message::{Discovered, Members, Standing};

/// How long a peer may take to accept a connection.
pub const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How long a stream of appends may be owed an answer. A slow disk answers late, a broken link never.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long a peer that takes nothing is waited for.
pub const WRITE_WITHIN: Duration = Duration::from_secs(2);
/// A voter that acknowledged a heartbeat within this, and whose log is close, follows closely.
pub const IN_SYNC_WITHIN: Duration = Duration::from_secs(2);
/// How many entries a voter that follows closely may be behind: what is in flight under load.
const IN_SYNC_ENTRIES: u64 = 8192;

/// What all connections of a node share.
pub struct Peers {
    identity: Identity,
    me: Node,
    /// The seeds given, sorted.
    seeds: Vec<String>,
    /// Tells this process from another one with the same id.
    process: [u8; 16],
    raft: OnceLock<Raft>,
    /// Says when a vote may be given.
    lease: Arc<Lease>,
    catch_up: Arc<CatchUp>,
    /// Changes members; it holds this.
    membership: OnceLock<Weak<Membership>>,
    /// Checkpoints that others pull, by node: bytes that are there, and bytes needed.
    pulling: Mutex<BTreeMap<u64, (u64, u64)>>,
    /// The cluster has said that this node is no member any more.
    removed: AtomicBool,
    /// Who follows closely, as the leader said last.
    told: Mutex<Told>,
    meters: Meters,
}

/// What the leader of a term said, and when. A term without a leader's word is older than any.
#[derive(Debug, Default)]
struct Told {
    term: Term,
    at: Option<std::time::Instant>,
    in_sync: Vec<u64>,
}

impl Told {
    /// Who follows closely, of whom `me` may only be if the leader was heard lately: a node that lost touch knows it itself.
    fn in_sync(&self, me: u64) -> Vec<u64> {
        let heard = self.at.is_some_and(|at| at.elapsed() < IN_SYNC_WITHIN);
        self.in_sync.iter().copied().filter(|node| heard || *node != me).collect()
    }
}

struct Meters {
    received: Counter,
    sent: Counter,
    errors: Counter,
    connections: AtomicI64,
}

/// Who follows closely and how far each is, as the leader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Voters that follow closely, the leader among them, ascending.
    pub in_sync: Vec<u64>,
    /// The last index known to be durable on each follower.
    pub matched: BTreeMap<u64, LogIndex>,
    /// How long ago each follower last acknowledged that the leader leads.
    pub heard_ms: BTreeMap<u64, u64>,
}

impl Peers {
    /// The connections of `me`, a node of the cluster in `identity`.
    pub fn new(
        identity: Identity,
        me: Node,
        mut seeds: Vec<String>,
        lease: Arc<Lease>,
        catch_up: Arc<CatchUp>,
    ) -> Arc<Self> {
        seeds.sort();
        let meters = Meters {
            received: metrics::counter!("redpanda_rpc_received_bytes", "redpanda_server" => "internal"),
            sent: metrics::counter!("redpanda_rpc_sent_bytes", "redpanda_server" => "internal"),
            errors: metrics::counter!("redpanda_rpc_request_errors_total", "redpanda_server" => "internal"),
            connections: AtomicI64::new(0),
        };
        let process = uuid::Uuid::new_v4().into_bytes();
        Arc::new(Self {
            identity,
            me,
            seeds,
            process,
            raft: OnceLock::new(),
            lease,
            catch_up,
            membership: OnceLock::new(),
            pulling: Mutex::default(),
            removed: AtomicBool::new(false),
            told: Mutex::default(),
            meters,
        })
    }

    /// Raft runs from now on: appends and votes are answered. Called once.
    pub fn start(&self, raft: Raft) {
        let first = self.raft.set(raft).is_ok();
        assert!(first, "raft is started once");
    }

    /// The cluster and the node.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Members can be changed through this node from now on. Called once.
    pub fn tend(&self, membership: &Arc<Membership>) {
        let first = self.membership.set(Arc::downgrade(membership)).is_ok();
        assert!(first, "it is given once");
    }

    /// How far a follower is with a checkpoint that it pulls, if it does.
    pub fn pulling(&self, node: u64) -> Option<(u64, u64)> {
        self.pulling.lock().get(&node).copied()
    }

    /// Notes how far a follower is, None when it has ended.
    pub fn note_pulling(&self, node: u64, progress: Option<(u64, u64)>) {
        match progress {
            Some(progress) => self.pulling.lock().insert(node, progress),
            None => self.pulling.lock().remove(&node),
        };
    }

    /// Whether a leader was heard within this time.
    pub fn heard_within(&self, time: Duration) -> bool {
        self.told.lock().at.is_some_and(|at| at.elapsed() < time)
    }

    /// Whether the cluster has said that this node is no member any more.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Notes whether this node is a member, and tells the operator when that changes.
    pub fn note_removed(&self, removed: bool) {
        if removed {
            // Only what a leader says from now on is a sign of the contrary.
            self.told.lock().at = None;
        }
        if self.removed.swap(removed, Ordering::Relaxed) != removed && removed {
            let node = self.identity.node_id;
            tracing::warn!(
                node,
                "this node was removed from its cluster and serves nobody any more: stop it, and remove its data"
            );
        }
    }

    /// What this node pulls from others, and they from it.
    pub fn catch_up(&self) -> &Arc<CatchUp> {
        &self.catch_up
    }

    /// This node's addresses.
    pub fn me(&self) -> &Node {
        &self.me
    }

    /// Who this node is, for whoever asks.
    pub fn discovered(&self) -> Discovered {
        let members = self.raft.get().map(|raft| {
            let metrics = raft.metrics();
            let metrics = metrics.borrow_watched();
            let effective = &metrics.membership_config;
            Members {
                at: effective.log_id().as_ref().map(message::id_of).unwrap_or_default(),
                voters: effective.membership().get_joint_config().clone(),
                nodes: effective.nodes().map(|(id, node)| (*id, node.rpc.clone())).collect(),
            }
        });
        let cluster = self.identity.cluster_id;
        let standing = match members {
            // Its list is as old as its removal.
            _ if self.is_removed() => Standing::Removed(cluster),
            Some(members) if !members.nodes.is_empty() => Standing::Formed(cluster, members),
            Some(_) | None => Standing::Invited(cluster),
        };
        Discovered {
            node_id: self.identity.node_id,
            process: self.process,
            node: self.me.clone(),
            seeds: self.seeds.clone(),
            standing,
        }
    }

    /// The leader of `term` says who follows closely.
    fn tell(&self, term: Term, in_sync: Vec<u64>) {
        let mut told = self.told.lock();
        // An old leader's frame may arrive after a new one's.
        if !in_sync.is_empty() && term >= told.term {
            *told = Told { term, at: Some(std::time::Instant::now()), in_sync };
        }
    }

    /// Who follows closely: what this node sees if it leads, else what the leader said last.
    pub fn progress(&self, metrics: &RaftMetrics) -> Progress {
        if metrics.current_leader == Some(self.identity.node_id) && metrics.replication.is_some() {
            return seen_by_leader(metrics);
        }
        Progress { in_sync: self.told.lock().in_sync(self.identity.node_id), ..Progress::default() }
    }

    /// Open connections between nodes, in both directions.
    pub fn connections(&self) -> i64 {
        self.meters.connections.load(Ordering::Relaxed)
    }
}

/// What a leader's metrics say of its followers.
pub fn seen_by_leader(metrics: &RaftMetrics) -> Progress {
    let index = |id: &super::raft_types::LogId| LogIndex(id.index());
    let replication = metrics.replication.iter().flatten();
    let matched: BTreeMap<u64, LogIndex> =
        replication.filter_map(|(node, id)| Some((*node, index(id.as_ref()?)))).collect();
    let heartbeats = metrics.heartbeat.iter().flatten();
    let heard_ms: BTreeMap<u64, u64> = heartbeats
        .filter_map(|(node, at)| Some((*node, u64::try_from(at.as_ref()?.elapsed().as_millis()).unwrap_or(u64::MAX))))
        .collect();
    let heard = |node: &u64| heard_ms.get(node).is_some_and(|ago| u128::from(*ago) < IN_SYNC_WITHIN.as_millis());
    let last = metrics.last_log_index.unwrap_or(0);
    let close = |node: &u64| matched.get(node).is_some_and(|at| at.0.saturating_add(IN_SYNC_ENTRIES) >= last);
    let mut in_sync: Vec<u64> = metrics.membership_config.voter_ids().collect();
    in_sync.retain(|node| *node == metrics.id || (heard(node) && close(node)));
    in_sync.sort_unstable();
    in_sync.dedup();
    Progress { in_sync, matched, heard_ms }
}

/// Counts a connection while it lives.
struct Counted(Arc<Peers>);

impl Counted {
    fn new(peers: &Arc<Peers>) -> Self {
        peers.meters.connections.fetch_add(1, Ordering::Relaxed);
        Self(peers.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.meters.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_has_not_heard_the_leader_lately_does_not_follow_closely() {
        let told = |ago| {
            let at = std::time::Instant::now().checked_sub(ago);
            Told { term: Term(3), at, in_sync: vec![1, 2, 3] }.in_sync(2)
        };
        assert_eq!(told(Duration::ZERO), [1, 2, 3]);
        assert_eq!(told(IN_SYNC_WITHIN), [1, 3]);
        assert_eq!(Told::default().in_sync(2), [0u64; 0]);
    }
}
