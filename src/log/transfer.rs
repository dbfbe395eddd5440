//! Leadership moves as planned: before a node stops, or because an operator wants it elsewhere.
//!
//! ```text
//!  drain ──────────▶ list ───────────▶ let go ─────────▶ elected
//!  open transactions the open ones     the lease ends,   who waited
//!  get time to end   are replicated    openraft asks     asks there
//! ```
//!
//! - Until the list nothing has happened, and the leader can stay. From the list on it stages nothing more in its term
//!   (transactions.md T10), so it goes in any case: if the node it asks does not take over, the others elect somebody.
//! - Nothing is in flight when it lets go, so that no client is told of an unknown fate.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;

use super::Log;
use super::sequencer::{Raft, Sequencer};
use crate::types::Term;

/// How long what is in flight may take before the leader lets go all the same.
const IN_FLIGHT_WITHIN: Duration = Duration::from_secs(1);
/// How long the next leader may take; in the normal case milliseconds, else an election.
const ELECTED_WITHIN: Duration = Duration::from_secs(3);

/// How long the first entry of the next leader is waited for.
const SERVES_WITHIN: Duration = Duration::from_secs(1);

/// Why leadership was not transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// This node does not lead, or not any more.
    #[error("this node does not lead")]
    NotLeader,
    /// No other node has a vote, or none that follows closely.
    #[error("no other voter follows closely enough")]
    NobodyElse,
    /// The node asked for has no vote, or is this one.
    #[error("node {0} is not another voter")]
    NotAVoter(u64),
    /// One is under way.
    #[error("a transfer is under way")]
    Busy,
    /// This node let go, and nobody was elected in time.
    #[error("no other node was elected in time")]
    NotElected,
}

impl Log {
    /// Makes another node the leader, `to` or the one that follows most closely. Open transactions get time to end first
    /// ([`LogOptions::transfer_drain`](super::LogOptions::transfer_drain)). Returns who leads then.
    ///
    /// # Errors
    /// If this node does not lead, or nobody else can, or nobody took over in time.
    pub async fn transfer_leadership(&self, to: Option<u64>) -> Result<u64, TransferError> {
        let node = &self.node;
        let (raft, sequencer) = (node.raft.clone(), node.sequencer.clone());
        let transfer = Transfer { me: node.me.node_id, raft, sequencer, drain: node.transfer_drain };
        let Some(runtime) = &node.runtime.0 else { return Err(TransferError::NotLeader) };
        // A task of its own: a caller that goes away must not leave a leader that half let go.
        let running = runtime.spawn(async move { transfer.run(to).await });
        running.await.unwrap_or(Err(TransferError::NotElected))
    }

    /// Gives leadership away before this node stops, if it leads others.
    pub async fn step_aside(&self) {
        if self.serving().is_none() {
            return;
        }
        match self.transfer_leadership(None).await {
            Ok(leader) => tracing::info!(leader, "leadership was given away before the stop"),
            Err(TransferError::NobodyElse | TransferError::NotLeader) => {}
            Err(error) => tracing::warn!(%error, "leadership was not given away before the stop"),
        }
    }
}

/// A planned transfer.
pub struct Transfer {
    /// Of this node.
    pub me: u64,
    /// Over this.
    pub raft: Raft,
    /// With this.
    pub sequencer: Arc<Sequencer>,
    /// How long open transactions may take to end.
    pub drain: Duration,
}

impl Transfer {
    /// Makes `to` the leader, or the voter that follows most closely. Returns who leads then.
    ///
    /// # Errors
    /// See [`TransferError`].
    pub async fn run(&self, to: Option<u64>) -> Result<u64, TransferError> {
        let term = self.sequencer.leased().ok_or(TransferError::NotLeader)?;
        self.choose(to)?;
        let drained = self.sequencer.begin_drain(term).ok_or(TransferError::Busy)?;
        if tokio::time::timeout(self.drain, drained.notified()).await.is_err() {
            tracing::info!(within = ?self.drain, "transactions are still open; their clients will have to abort them");
        }
        let to = match self.choose(to) {
            Ok(to) if self.sequencer.leased() == Some(term) => to,
            other => {
                self.sequencer.end_drain();
                return Err(other.err().unwrap_or(TransferError::NotLeader));
            }
        };
        if !self.sequencer.hand_over(term) {
            return Err(TransferError::NotLeader);
        }
        let led = self.let_go(term, to).await;
        self.sequencer.end_transfer();
        led
    }

    /// From here on there is no way back.
    async fn let_go(&self, term: Term, to: u64) -> Result<u64, TransferError> {
        if tokio::time::timeout(IN_FLIGHT_WITHIN, self.sequencer.drained()).await.is_err() {
            tracing::warn!("letting go with proposals in flight");
        }
        self.sequencer.let_go(term);
        if self.sequencer.leads(term) {
            tracing::info!(to, term = term.0, "leadership is transferred");
            self.raft.trigger().transfer_leader(to).await.map_err(|_| TransferError::NotLeader)?;
        }
        let mut metrics = self.raft.server_metrics();
        let elected = async {
            loop {
                if let Some(leader) = metrics.borrow_watched().current_leader.filter(|leader| *leader != self.me) {
                    return Some(leader);
                }
                metrics.changed().await.ok()?;
            }
        };
        let Ok(Some(leader)) = tokio::time::timeout(ELECTED_WITHIN, elected).await else {
            return Err(TransferError::NotElected);
        };
        // It serves once its first entry is applied, for which it may need this node's vote and disk: a node that stops waits
        // for that, and so does whoever is told to ask there.
        let wait = self.raft.wait(Some(SERVES_WITHIN));
        let serves = wait.metrics(
            |metrics| metrics.last_applied.is_some_and(|id| id.committed_leader_id().term > term.0),
            "the next leader's first entry",
        );
        if let Err(error) = serves.await {
            tracing::info!(leader, %error, "the next leader does not serve yet");
        }
        Ok(leader)
    }

    /// Who shall lead: a voter other than this node, and of those the one that has most of the log.
    fn choose(&self, wanted: Option<u64>) -> Result<u64, TransferError> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let mut voters = metrics.membership_config.voter_ids().filter(|id| *id != self.me);
        if let Some(wanted) = wanted {
            return voters.find(|id| *id == wanted).ok_or(TransferError::NotAVoter(wanted));
        }
        let replicated = metrics.replication.as_ref();
        let matched = |id: &u64| replicated.and_then(|all| all.get(id)).and_then(Option::as_ref);
        let best = voters.max_by(|one, other| matched(one).cmp(&matched(other)));
        best.ok_or(TransferError::NobodyElse)
    }
}
