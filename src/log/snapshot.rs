//! Checkpoints: the machine's cut and the segments' manifest at one applied index. They are openraft's snapshots, so the
//! log may be purged up to the newest.
//!
//! - The cut is O(1): the machine's maps are persistent. It is taken under the machine's read lock, so it lies between
//!   two calls of `Segments::apply`, where the segment writer will put the manifest too.
//! - A manifest is taken only at an index that this node's own log holds durably: openraft may apply what a quorum
//!   without us has synced, and a restart must never find state that its log does not reach.
//! - A checkpoint that fails (no space) is no reason to stop: the log keeps everything behind the last good one. So it
//!   is written outside openraft's snapshot builder, whose errors would be fatal; the builder then reports it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use openraft::storage::{RaftSnapshotBuilder, Snapshot, SnapshotMeta};
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::apply::Replica;
use super::raft_types::{LogId, StoredMembership, TypeConfig, encode_membership, log_id};
use crate::segments::{SegmentError, Staged};
use crate::state::Machine;
use crate::types::LogIndex;

/// How long a checkpoint waits for this node's own log: a disk that is this slow gets its checkpoint another time.
const DURABLE_WITHIN: Duration = Duration::from_secs(5);
const DURABLE_POLL: Duration = Duration::from_millis(1);

/// The state at a checkpoint. It shares structure with the machine and costs what has changed since.
#[derive(Clone, Debug)]
pub struct Cut {
    machine: Machine,
    /// The files, where it came from another node.
    staged: Option<Arc<Staged>>,
}

impl Cut {
    fn of(machine: Machine) -> Self {
        Self { machine, staged: None }
    }

    /// A checkpoint that was received, to be installed.
    pub fn received(machine: Machine, staged: Arc<Staged>) -> Self {
        Self { machine, staged: Some(staged) }
    }
}

/// A checkpoint that was written: for metrics.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// When it was durable.
    pub at: SystemTime,
    /// Bytes of the machine's state in it.
    pub state_bytes: u64,
}

/// Why there is no new checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The segments could not be synced or the manifest not written.
    #[error(transparent)]
    Segments(#[from] SegmentError),
    /// The segment writer or the log has stopped.
    #[error("the node is stopping")]
    Stopped,
}

/// Takes checkpoints, one at a time, and knows the newest.
pub struct Checkpoints {
    replica: Arc<Replica>,
    /// Index behind the last entry that this node's log holds durably.
    durable: watch::Receiver<u64>,
    current: Mutex<Option<(SnapshotMetaOf<TypeConfig>, Cut)>>,
    written: Mutex<Option<Written>>,
    one_at_a_time: tokio::sync::Mutex<()>,
}

impl Checkpoints {
    /// The replica's checkpoints; `current` is the one it was started from, with its members.
    pub fn new(
        replica: Arc<Replica>,
        durable: watch::Receiver<u64>,
        current: Option<(Machine, StoredMembership)>,
    ) -> Self {
        let current = current.map(|(machine, membership)| (meta(&machine, membership), Cut::of(machine)));
        Self {
            replica,
            durable,
            current: Mutex::new(current),
            written: Mutex::default(),
            one_at_a_time: tokio::sync::Mutex::new(()),
        }
    }

    /// The last checkpoint that this process wrote. None for the one that it was started from: when that was written is
    /// not stored.
    pub fn written(&self) -> Option<Written> {
        *self.written.lock()
    }

    /// The newest durable checkpoint.
    pub fn current(&self) -> Option<(SnapshotMetaOf<TypeConfig>, Cut)> {
        self.current.lock().clone()
    }

    /// Makes everything applied so far durable in the segments; returns what the checkpoint contains, None if nothing was
    /// ever applied.
    ///
    /// # Errors
    /// If it could not be written: the last one stays.
    pub async fn take(&self) -> Result<Option<LogId>, CheckpointError> {
        let _one = self.one_at_a_time.lock().await;
        let begun = match self.begin() {
            Begun::Nothing => return Ok(None),
            Begun::Unchanged(id) => return Ok(Some(id)),
            Begun::Writing(begun) => begun,
        };
        begun.done.await.map_err(|_| CheckpointError::Stopped)??;
        let id = begun.meta.last_log_id;
        let state_bytes = begun.bytes.load(Ordering::Relaxed);
        *self.written.lock() = Some(Written { at: SystemTime::now(), state_bytes });
        *self.current.lock() = Some((begun.meta, begun.cut));
        Ok(id)
    }

    fn begin(&self) -> Begun {
        let machine = self.replica.read();
        let Some((index, term)) = machine.applied() else { return Begun::Nothing };
        let id = log_id(index, term);
        if self.current.lock().as_ref().is_some_and(|(meta, _)| meta.last_log_id == Some(id)) {
            return Begun::Unchanged(id);
        }
        let membership = self.replica.membership(&machine);
        let cut = Cut::of(machine.clone());
        let bytes = Arc::new(AtomicU64::new(0));
        let (sender, done) = oneshot::channel();
        let state = {
            let (cut, bytes, durable) = (cut.clone(), bytes.clone(), self.durable.clone());
            move || {
                wait_for(&durable, index)?;
                let state = cut.machine.to_bytes();
                bytes.store(state.len() as u64, Ordering::Relaxed);
                Ok(state)
            }
        };
        self.replica.segments().checkpoint(
            Some((index, term)),
            encode_membership(&membership),
            Box::new(state),
            Box::new(move |result| {
                let _ = sender.send(result);
            }),
        );
        Begun::Writing(Box::new(Writing { meta: meta(&machine, membership), cut, bytes, done }))
    }

    /// Puts a received checkpoint in place, durably.
    ///
    /// # Errors
    /// If its files are not here, or cannot be put in place.
    pub async fn install(&self, meta: &SnapshotMetaOf<TypeConfig>, cut: Cut) -> io::Result<()> {
        // One that is being written would otherwise take its place.
        let _one = self.one_at_a_time.lock().await;
        let Cut { machine, staged } = cut;
        let installed = match staged {
            Some(staged) => {
                let (sender, done) = oneshot::channel();
                let on_done = move |result| {
                    let _ = sender.send(result);
                };
                self.replica.segments().install(staged, Box::new(on_done));
                let done = done.await.map_err(|_| io::Error::other(CheckpointError::Stopped))?;
                Some(done.map_err(io::Error::other)?)
            }
            None if machine.topics().is_empty() => None,
            None => return Err(io::Error::new(io::ErrorKind::Unsupported, "a checkpoint came without its segments")),
        };
        self.replica.install(machine.clone(), meta.last_membership.clone(), installed);
        *self.current.lock() = Some((meta.clone(), Cut::of(machine)));
        Ok(())
    }
}

enum Begun {
    Nothing,
    Unchanged(LogId),
    Writing(Box<Writing>),
}

struct Writing {
    meta: SnapshotMetaOf<TypeConfig>,
    cut: Cut,
    bytes: Arc<AtomicU64>,
    done: oneshot::Receiver<Result<(), SegmentError>>,
}

/// Waits, on the segment writer's thread, until the log holds this entry durably here: a majority that does not include this
/// node may have committed it, and a checkpoint must not be ahead of the log. The cut is taken before, since under a steady
/// load there is always something that is applied and not durable here.
fn wait_for(durable: &watch::Receiver<u64>, index: LogIndex) -> io::Result<()> {
    let began = Instant::now();
    while *durable.borrow() <= index.0 {
        if durable.has_changed().is_err() || began.elapsed() >= DURABLE_WITHIN {
            let what = format!("entry {} is applied and not durable here; no checkpoint of it", index.0);
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        std::thread::sleep(DURABLE_POLL);
    }
    Ok(())
}

fn meta(machine: &Machine, last_membership: StoredMembership) -> SnapshotMetaOf<TypeConfig> {
    let last_log_id = machine.applied().map(|(index, term)| log_id(index, term));
    SnapshotMeta { last_log_id, last_membership }
}

/// Reports a checkpoint to openraft.
pub struct Builder {
    /// Whose.
    pub checkpoints: Arc<Checkpoints>,
    /// Whether openraft demands the state of now: only where a follower needs more than the log has.
    pub fresh: bool,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = Cut;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<TypeConfig, Cut>, io::Error> {
        if self.fresh {
            self.checkpoints.take().await.map_err(io::Error::other)?;
        }
        // Nothing was ever applied: the empty state is what there is.
        let nothing = || (SnapshotMeta::default(), Cut::of(Machine::default()));
        let (meta, snapshot) = self.checkpoints.current().unwrap_or_else(nothing);
        Ok(Snapshot { meta, snapshot })
    }
}
