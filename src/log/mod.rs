//! The one log: decide → propose → commit → apply. The only room that knows openraft.
//!
//! ```text
//!  submit ─▶ sequencer (Leader) ─▶ raft.write ─▶ log_store ─▶ wal: one fdatasync per group
//!               ▲        │ answers                                 │ durable, committed
//!               └────────┴────────── apply (Machine, Segments) ◀───┘
//! ```
//!
//! Files: [`entry`] and [`raft_types`] (bytes), [`tail`] and [`log_store`] (entries), [`apply`] (state), [`sequencer`]
//! and [`in_flight`] (order, answers, bounds), [`snapshot`] (checkpoints), [`recovery`] and [`start`] (start-up),
//! [`bootstrap`] and [`identity`] (which cluster), [`peers`] (the way to other nodes).

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;

use crate::disk::Disk;
use crate::leader::request::{Caller, Request, Response};
use crate::leader::{Leader, LeaderStats};
use crate::segments::{Checkpoint, Segments};
use crate::state::Machine;
use crate::state::snapshot::SnapshotError;
use crate::types::{ConnectionId, LogIndex, Term};
use crate::wal::{Wal, WalError, WalOptions, WalStats};

pub mod apply;
pub mod bootstrap;
pub mod catch_up;
pub mod clock;
pub mod entry;
pub mod fatal;
pub mod house;
pub mod identity;
pub mod in_flight;
pub mod lease;
pub mod log_store;
pub mod membership;
pub mod meters;
pub mod options;
pub mod overview;
pub mod peers;
pub mod raft_types;
pub mod recovery;
pub mod retain;
pub mod retention;
pub mod sequencer;
pub mod snapshot;
pub mod start;
pub mod tail;
pub mod transfer;
mod watch;

use apply::{Replica, Wake};
use catch_up::CatchUp;
use fatal::Fatal;
use identity::{Identity, IdentityError};
use lease::Lease;
use log_store::LogStore;
use membership::Membership;
use meters::Meters;
pub use options::LogOptions;
use peers::Peers;
use sequencer::{Raft, Sequencer};
use snapshot::Checkpoints;

/// How long a clean stop waits for proposals to end.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// How the replicated log stands, for health, metrics and Metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStatus {
    /// This node's id.
    pub node_id: u64,
    /// The current term.
    pub term: Term,
    /// Who leads, if known.
    pub leader: Option<u64>,
    /// This node leads and its first entry of the term has been applied: it serves.
    pub serving: bool,
    /// Last committed index.
    pub committed: Option<LogIndex>,
    /// Last applied index.
    pub applied: Option<LogIndex>,
    /// Whether start-up replay is done.
    pub replayed: bool,
    /// All members, this node among them.
    pub members: Vec<Member>,
}

/// One node of the cluster as clients see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub node_id: u64,
    /// Advertised Kafka host.
    pub host: String,
    /// Advertised Kafka port.
    pub port: u16,
    /// Its rack.
    pub rack: Option<String>,
    /// Where peers reach it, `host:port`; empty if it talks to none.
    pub rpc: String,
    /// It votes; a learner only follows.
    pub voter: bool,
    /// It follows closely, as the leader last said (the leader itself always does): Kafka's in-sync replica.
    pub in_sync: bool,
    /// The last index known to be durable on it; the leader alone knows.
    pub matched: Option<LogIndex>,
    /// How long ago it last acknowledged that the leader leads; the leader alone knows.
    pub heard_ms: Option<u64>,
}

/// Why the log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The directory is not this node's, or cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The log's files.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The checkpoint's state.
    #[error(transparent)]
    State(#[from] SnapshotError),
    /// The checkpoint's members, or an entry.
    #[error(transparent)]
    Entry(#[from] entry::EntryError),
    /// Something could not be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The manifest and the state in it disagree.
    #[error("the checkpoint's state stands at {state:?}, its manifest at {manifest:?}; refusing to start")]
    CheckpointContradicts {
        /// What the state says.
        state: Option<(LogIndex, Term)>,
        /// What the manifest says.
        manifest: Option<(LogIndex, Term)>,
    },
    /// Entries that were durable are gone.
    #[error("the log ends before {log}, the checkpoint before {checkpoint}: log files are missing; refusing to start")]
    EndsBeforeCheckpoint {
        /// First index that the checkpoint does not contain.
        checkpoint: u64,
        /// First index that the log does not contain.
        log: u64,
    },
    /// The entries behind the checkpoint are gone.
    #[error(
        "the log begins at {log}, the checkpoint ends before {checkpoint}: a checkpoint is missing; refusing to start"
    )]
    BeginsAfterCheckpoint {
        /// First index that the checkpoint does not contain.
        checkpoint: u64,
        /// First index that the log can contain.
        log: u64,
    },
    /// openraft does not start.
    #[error("raft does not start: {0}")]
    Raft(String),
}

/// The running log of this node.
#[derive(Clone)]
pub struct Log {
    node: Arc<Node>,
}

struct Node {
    identity: Identity,
    me: Member,
    replica: Arc<Replica>,
    sequencer: Arc<Sequencer>,
    store: LogStore,
    checkpoints: Arc<Checkpoints>,
    peers: Arc<Peers>,
    membership: Arc<Membership>,
    times: house::CheckpointTimes,
    raft: Raft,
    runtime: RaftRuntime,
    fatal: Fatal,
    meters: Arc<Meters>,
    transfer_drain: Duration,
    /// The wal's counts at the last scrape.
    scraped: Mutex<WalStats>,
}

/// Raft's runtime. It may not be dropped where tasks run, and the last handle of a log may be held by one.
struct RaftRuntime(Option<tokio::runtime::Runtime>);

impl Drop for RaftRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Log {
    /// Opens the node's log: finds its cluster, replays the log onto the checkpoint, then starts Raft. On an empty directory
    /// without seeds it forms a cluster of this node alone. Blocks meanwhile: call it off the async threads. A metrics
    /// recorder must be installed before.
    ///
    /// # Errors
    /// If the directory is another node's, or log and checkpoint are damaged or do not fit each other.
    pub fn open(
        mut options: LogOptions,
        disk: Arc<dyn Disk>,
        segments: Segments,
        checkpoint: Option<Checkpoint>,
        wake: Wake,
    ) -> Result<Self, LogError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(options.raft_threads.max(3))
            .thread_name("raft")
            .enable_all()
            .build()?;
        let listener = options.listener.take();
        let node = Self::open_on(RaftRuntime(Some(runtime)), listener, options, disk, segments, checkpoint, wake)?;
        Ok(Self { node: Arc::new(node) })
    }

    fn open_on(
        raft_runtime: RaftRuntime,
        listener: Option<std::net::TcpListener>,
        options: LogOptions,
        disk: Arc<dyn Disk>,
        segments: Segments,
        checkpoint: Option<Checkpoint>,
        wake: Wake,
    ) -> Result<Node, LogError> {
        let runtime = raft_runtime.0.as_ref().expect("taken by its drop only");
        let me = options.me.clone();
        let entry = entry::Node { rpc: me.rpc.clone(), host: me.host.clone(), port: me.port, rack: me.rack.clone() };
        let (identity, listener) = start::identity(runtime, listener, &options, &entry, &disk)?;
        let (fatal, meters) = (Fatal::default(), Arc::new(Meters::default()));
        let wal_options = WalOptions {
            dir: options.data_dir.join("log"),
            cluster_id: identity.cluster_id,
            file_bytes_max: options.log_file_bytes_max,
            prefill_bytes: options.log_prefill_bytes,
        };
        let (wal, recovered) = Wal::open(disk, wal_options)?;
        if recovered.torn_bytes > 0 {
            tracing::info!(bytes = recovered.torn_bytes, "a torn write was cut off the log; it was never acknowledged");
        }
        let store = LogStore::new(wal, &recovered, options.tail_cache_bytes_max, fatal.clone(), meters.clone())?;
        let received = checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.received);
        let checkpoint = recovery::load(checkpoint)?;
        let times = options.checkpoint_times();
        let catch_up = CatchUp::new(segments.clone(), options.catch_up_bytes_per_second);
        let replica = recovery::replay(&store, segments, checkpoint.as_ref(), received, &options.progress)?;
        let checkpoints = Arc::new(Checkpoints::new(replica.clone(), store.durable(), checkpoint));
        let leader = Leader::new(options.leader);
        let lease = Arc::new(Lease::new(identity.node_id, store.has_followed(identity.node_id)));
        let timeout = options.proposal_timeout;
        let sequencer = Sequencer::new(replica.clone(), leader, lease.clone(), meters.clone(), timeout);
        let peers = Peers::new(identity.clone(), entry, options.seeds, lease.clone(), catch_up);
        let parts = start::Parts {
            store: store.clone(),
            replica: replica.clone(),
            sequencer: sequencer.clone(),
            lease,
            checkpoints: checkpoints.clone(),
            peers: peers.clone(),
            fatal: fatal.clone(),
            wake,
        };
        runtime.spawn(retention::run(replica.clone(), sequencer.clone(), options.retention_check_every));
        let raft = start::on(runtime, start::raft(parts, listener, times))?;
        let transfer = options.transfer_drain;
        let membership = start::membership(runtime, &raft, &peers, &sequencer, transfer);
        let scraped = Mutex::default();
        Ok(Node {
            identity,
            me,
            replica,
            sequencer,
            store,
            checkpoints,
            peers,
            raft,
            runtime: raft_runtime,
            times,
            fatal,
            meters,
            transfer_drain: transfer,
            membership,
            scraped,
        })
    }

    /// Hands a request to the leader, in the order of the calls. The answer arrives through the receiver;
    /// a dropped sender means that the node is stopping: close the connection.
    pub fn submit(&self, caller: Arc<Caller>, request: Request) -> tokio::sync::oneshot::Receiver<Response> {
        self.node.sequencer.submit(&caller, request, None)
    }

    /// The same; what it proposes may take as long as `within`, if that is less than any proposal may take.
    pub fn submit_within(
        &self,
        caller: Arc<Caller>,
        request: Request,
        within: Duration,
    ) -> tokio::sync::oneshot::Receiver<Response> {
        self.node.sequencer.submit(&caller, request, Some(within))
    }

    /// A client's connection was accepted. What comes on it once a later term has begun may have been sent before.
    pub fn accepted(&self, connection: ConnectionId) {
        self.node.sequencer.accepted(connection);
    }

    /// Waits until the sequencer admits more (in-flight bytes and unwritten segments are within their bounds).
    pub async fn admitted(&self) {
        self.node.sequencer.admitted().await;
    }

    /// Looks at the replicated state. Short: apply waits meanwhile. Not to be nested, and not to submit from within.
    pub fn read<T>(&self, look: impl FnOnce(&Machine) -> T) -> T {
        look(&self.node.replica.read())
    }

    /// The term that this node serves, None while it does not: the part of [`Log::status`] that every read asks for.
    pub fn serving(&self) -> Option<Term> {
        self.node.sequencer.serving()
    }

    /// How the log stands.
    pub fn status(&self) -> LogStatus {
        let applied = self.node.replica.read().applied().map(|(index, _)| index);
        let metrics = self.node.raft.metrics();
        let metrics = metrics.borrow_watched();
        let members = membership::members(&metrics, &self.node.peers.progress(&metrics), &self.node.me);
        LogStatus {
            node_id: self.node.me.node_id,
            term: Term(metrics.current_term),
            // One without a quorum leads nobody; those who have one may have elected another.
            leader: metrics
                .current_leader
                .filter(|id| *id != self.node.me.node_id || !self.node.sequencer.is_alone())
                .filter(|_| !self.node.peers.is_removed()),
            serving: self.node.sequencer.serving().is_some(),
            committed: metrics.local_committed.map(|id| LogIndex(id.index())),
            applied,
            replayed: true,
            members,
        }
    }

    /// Open connections between nodes.
    pub fn peer_connections(&self) -> i64 {
        self.node.peers.connections()
    }

    /// The leader's counts.
    pub fn leader_stats(&self) -> LeaderStats {
        self.node.sequencer.stats()
    }

    /// The groups that the leader knows, with how many members each has.
    pub fn group_members(&self) -> Vec<(Arc<str>, usize)> {
        self.node.sequencer.group_members()
    }

    /// The cluster's id as Kafka's clients see it.
    pub fn cluster_id(&self) -> String {
        self.node.identity.kafka_cluster_id()
    }

    /// Publishes the room's gauges and counters; `admin` calls it at each scrape.
    pub fn publish_metrics(&self) {
        let now = self.node.store.wal().stats();
        let mut scraped = self.node.scraped.lock();
        let stats = self.leader_stats();
        self.node.meters.publish(&self.status(), &stats, (&scraped, &now), clock::now().mono_ms);
        *scraped = now;
        metrics::gauge!("katomic_aggregator_queue_depth").set(self.node.sequencer.proposals() as f64);
        if let Some(written) = self.node.checkpoints.written() {
            let at = written.at.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
            metrics::gauge!("katomic_raft_snapshot_last_success_timestamp_seconds").set(at);
            metrics::gauge!("katomic_raft_snapshot_size_bytes").set(written.state_bytes as f64);
        }
        self.node.peers.catch_up().publish_metrics();
        self.publish_lags();
    }

    /// Waits for the error after which this node must stop: a failed fsync, a failed segment writer, a failed Raft.
    pub async fn failed(&self) -> String {
        self.node.fatal.reported().await
    }

    /// Takes a checkpoint now, and purges the log up to it.
    ///
    /// # Errors
    /// If it could not be written: the last one stays, and the log with it.
    pub async fn checkpoint(&self) -> Result<(), snapshot::CheckpointError> {
        let node = &self.node;
        let keeper = house::Keeper {
            raft: node.raft.clone(),
            store: node.store.clone(),
            checkpoints: node.checkpoints.clone(),
            segments: node.replica.segments().clone(),
            times: node.times,
        };
        keeper.checkpoint().await
    }

    /// Stops cleanly: admits nothing more, waits for what is proposed, takes a checkpoint, stops Raft, closes the log.
    /// The segments stay open: they are the caller's.
    pub async fn shutdown(&self) {
        let node = &self.node;
        node.sequencer.stop_admitting();
        if node.fatal.error().is_none() {
            if tokio::time::timeout(DRAIN_WITHIN, node.sequencer.drained()).await.is_err() {
                tracing::warn!(proposals = node.sequencer.proposals(), "stopping with proposals in flight");
            }
            if let Err(error) = self.checkpoint().await {
                tracing::warn!(%error, "stopping without a checkpoint; the next start replays the log");
            }
        }
        let peers = node.peers.clone();
        if tokio::task::spawn_blocking(move || peers.catch_up().stop()).await.is_err() {
            tracing::error!("stopping to catch up panicked");
        }
        node.sequencer.stop();
        if let Err(error) = node.raft.shutdown().await {
            tracing::warn!(%error, "raft did not stop cleanly");
        }
        let store = node.store.clone();
        if tokio::task::spawn_blocking(move || store.wal().close()).await.is_err() {
            tracing::error!("closing the log panicked");
        }
    }
}

#[cfg(test)]
mod tests;
