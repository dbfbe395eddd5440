//! Brings Raft up on a runtime of its own and follows it: who leads, whether it failed, when to take a checkpoint.
//!
//! Raft's runtime is not the Kafka connections' one: a burst of requests must not delay a heartbeat.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::{Config, ServerState, SnapshotPolicy};
use tokio::net::TcpListener;

use super::apply::{Replica, StateMachine, Wake};
use super::bootstrap::{self, Seeker};
use super::entry::Node;
use super::fatal::Fatal;
use super::house::{CheckpointTimes, Keeper};
use super::identity::{Identity, Role};
use super::lease::witness::Witnessed;
use super::lease::{Lease, PROMISE_MS};
use super::log_store::LogStore;
use super::membership::Membership;
use super::peers::client::Network;
use super::peers::{Peers, server};
use super::sequencer::{Raft, Sequencer};
use super::snapshot::Checkpoints;
use super::transfer::Transfer;
use super::{LogError, LogOptions};
use crate::config::limits::{RAFT_CHANNEL, RAFT_PAYLOAD_ENTRIES_MAX};
use crate::disk::Disk;
use crate::types::Term;

/// The rooms' parts that Raft runs over.
pub struct Parts {
    /// The log.
    pub store: LogStore,
    /// The state.
    pub replica: Arc<Replica>,
    /// Who proposes and answers.
    pub sequencer: Arc<Sequencer>,
    /// Until when nobody else can lead.
    pub lease: Arc<Lease>,
    /// Checkpoints.
    pub checkpoints: Arc<Checkpoints>,
    /// The way to other nodes.
    pub peers: Arc<Peers>,
    /// Where fatal errors go.
    pub fatal: Fatal,
    /// Who waits for batches.
    pub wake: Wake,
}

/// openraft's settings, each as storage.md «Choices» 1 says.
fn config(cluster: &str) -> Config {
    Config {
        cluster_name: cluster.to_owned(),
        heartbeat_interval: 80,
        election_timeout_min: 400,
        election_timeout_max: PROMISE_MS,
        max_payload_entries: RAFT_PAYLOAD_ENTRIES_MAX,
        api_channel_size: Some(RAFT_CHANNEL),
        // We take checkpoints and purge ourselves; by default a snapshot purges at once.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        // A restarted leader gets a new term: its soft state is gone.
        enable_leader_restore: Some(false),
        enable_pre_vote: Some(true),
        // Not before this process may vote ([`allow_elections`]).
        enable_elect: false,
        ..Config::default()
    }
}

/// Runs a future on Raft's own threads, whatever thread this is; `block_on` would refuse some.
///
/// # Errors
/// What the future ends with, or that it panicked.
pub fn on<T: Send + 'static>(
    runtime: &tokio::runtime::Runtime,
    future: impl Future<Output = Result<T, LogError>> + Send + 'static,
) -> Result<T, LogError> {
    let (sender, ended) = std::sync::mpsc::sync_channel(1);
    runtime.spawn(async move {
        let _ = sender.send(future.await);
    });
    ended.recv().unwrap_or_else(|_| Err(LogError::Raft("it panicked".to_owned())))
}

/// Which cluster this node belongs to: what its directory says, else what its seeds say. The listener comes back for use.
///
/// # Errors
/// If the directory is another node's or cluster's, or the seeds refuse this node.
pub fn identity(
    runtime: &tokio::runtime::Runtime,
    listener: Option<std::net::TcpListener>,
    options: &LogOptions,
    me: &Node,
    disk: &Arc<dyn Disk>,
) -> Result<(Identity, Option<TcpListener>), LogError> {
    let listener = match listener {
        Some(listener) => {
            listener.set_nonblocking(true)?;
            let _inside = runtime.enter();
            Some(TcpListener::from_std(listener)?)
        }
        None => None,
    };
    let (node_id, data_dir) = (options.me.node_id, options.data_dir.clone());
    if let Some(identity) = Identity::read(disk, &data_dir, node_id, options.cluster_id)? {
        return Ok((identity, listener));
    }
    match listener {
        Some(listener) if !options.seeds.is_empty() => {
            let (me, seeds, cluster_id, disk) = (me.clone(), options.seeds.clone(), options.cluster_id, disk.clone());
            on(runtime, async move {
                let seeker = Seeker { node_id, me, seeds, cluster_id, data_dir: &data_dir, disk };
                let identity = seeker.seek(&listener).await?;
                Ok((identity, Some(listener)))
            })
        }
        listener => {
            let cluster_id = options.cluster_id.unwrap_or_else(|| uuid::Uuid::new_v4().into_bytes());
            let alone = Identity { cluster_id, node_id, role: Role::Alone };
            Ok((Identity::create(disk, &data_dir, alone)?, listener))
        }
    }
}

/// Starts Raft. On a first start it forms the cluster that the node's role says: of itself, of the founding members once
/// all of them know, or none.
///
/// # Errors
/// If openraft cannot start or the cluster cannot be formed.
pub async fn raft(parts: Parts, listener: Option<TcpListener>, times: CheckpointTimes) -> Result<Raft, LogError> {
    let identity = parts.peers.identity().clone();
    let id = identity.node_id;
    let config = config(&identity.kafka_cluster_id()).validate().map_err(|error| LogError::Raft(error.to_string()))?;
    let machine = StateMachine {
        replica: parts.replica.clone(),
        sequencer: parts.sequencer.clone(),
        checkpoints: parts.checkpoints.clone(),
        fatal: parts.fatal.clone(),
        wake: parts.wake,
    };
    let failed = |error: &dyn std::fmt::Display| LogError::Raft(error.to_string());
    let network = Witnessed::new(Network(parts.peers.clone()), parts.lease.clone());
    let raft =
        Raft::new(id, Arc::new(config), network, parts.store.clone(), machine).await.map_err(|error| failed(&error))?;
    parts.sequencer.start(raft.clone(), tokio::runtime::Handle::current());
    tokio::spawn(follow_leadership(raft.clone(), parts.sequencer.clone(), parts.fatal.clone()));
    tokio::spawn(parts.sequencer.clone().run_timer());
    tokio::spawn(allow_elections(raft.clone(), parts.lease));
    let (segments, checkpoints) = (parts.replica.segments().clone(), parts.checkpoints);
    let keeper = Keeper { raft: raft.clone(), store: parts.store, checkpoints, segments, times };
    tokio::spawn(keeper.run(parts.fatal));
    parts.peers.start(raft.clone());
    if let Some(listener) = listener {
        tokio::spawn(server::serve(listener, parts.peers.clone()));
    }
    if raft.is_initialized().await.map_err(|error| failed(&error))? {
        if raft.voter_ids().eq([id]) {
            // Nobody else could lead: no reason to wait for an election timeout.
            raft.trigger().elect(false).await.map_err(|error| failed(&error))?;
        }
        return Ok(raft);
    }
    match identity.role {
        Role::Alone => {
            let members = BTreeMap::from([(id, parts.peers.me().clone())]);
            raft.initialize(members).await.map_err(|error| failed(&error))?;
        }
        Role::Founder(members) => {
            bootstrap::invite(&parts.peers, &members).await;
            tracing::info!(members = ?members.keys(), "the cluster is formed");
            raft.initialize(members).await.map_err(|error| failed(&error))?;
        }
        Role::Invited => {}
    }
    Ok(raft)
}

/// Lets the node stand for election once no promise of the process before can hold any more.
async fn allow_elections(raft: Raft, lease: Arc<Lease>) {
    while !lease.may_vote() {
        tokio::time::sleep(Duration::from_millis(lease.votes_in_ms().max(1))).await;
    }
    raft.runtime_config().elect(true);
}

/// Tells the sequencer who leads, until raft ends. The channel moves with votes and members only, not with every commit.
async fn follow_leadership(raft: Raft, sequencer: Arc<Sequencer>, fatal: Fatal) {
    let mut metrics = raft.server_metrics();
    loop {
        let (leading, voters) = {
            let now = metrics.borrow_watched();
            let leading = (now.state == ServerState::Leader).then(|| Term(now.vote.leader_id.term));
            (leading, now.membership_config.membership().get_joint_config().clone())
        };
        sequencer.leadership(leading, voters);
        if metrics.changed().await.is_err() {
            break;
        }
    }
    match &raft.metrics().borrow_watched().running_state {
        Ok(()) | Err(openraft::errors::Fatal::Stopped) => {}
        Err(error) => fatal.report(format!("raft failed: {error}")),
    }
    sequencer.leadership(None, Vec::new());
}

/// Lets members be changed through this node, and looks after them.
pub fn membership(
    runtime: &tokio::runtime::Runtime,
    raft: &Raft,
    peers: &Arc<Peers>,
    sequencer: &Arc<Sequencer>,
    drain: Duration,
) -> Arc<Membership> {
    let me = peers.identity().node_id;
    let transfer = Transfer { me, raft: raft.clone(), sequencer: sequencer.clone(), drain };
    let one = tokio::sync::Mutex::new(());
    let membership = Arc::new(Membership { raft: raft.clone(), peers: peers.clone(), transfer, one });
    peers.tend(&membership);
    runtime.spawn(membership.clone().run());
    membership
}
