//! Start-up: from the checkpoint to the last entry known to be committed, before Raft runs.
//!
//! openraft would replay too, but in whole chunks with no progress to show and with start-up waiting for it; here the
//! pieces are bounded in bytes, and the segment writer's backlog is respected, since nobody is admitted yet who would.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::LogError;
use super::apply::Replica;
use super::log_store::LogStore;
use super::raft_types::{self, StoredMembership};
use super::tail::next;
use crate::config::limits::LOG_READ_BYTES_MAX;
use crate::segments::{Checkpoint, Segments};
use crate::state::Machine;

/// How often a segment writer that is behind is asked again: it tells nobody when it has room.
const BEHIND_POLL: Duration = Duration::from_millis(2);
/// How often progress is logged.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// How far the replay at start-up is; shared with whoever shows readiness.
#[derive(Debug, Default)]
pub struct ReplayProgress {
    /// Entries to replay.
    pub entries: AtomicU64,
    /// Entries replayed so far.
    pub replayed: AtomicU64,
}

/// The machine and members of a checkpoint.
pub fn load(checkpoint: Option<Checkpoint>) -> Result<Option<(Machine, StoredMembership)>, LogError> {
    let Some(checkpoint) = checkpoint else { return Ok(None) };
    let machine = Machine::from_bytes(&checkpoint.state)?;
    if machine.applied() != checkpoint.applied {
        return Err(LogError::CheckpointContradicts { state: machine.applied(), manifest: checkpoint.applied });
    }
    let members: Bytes = checkpoint.raft;
    Ok(Some((machine, raft_types::decode_membership(&members)?)))
}

/// The replica at the checkpoint, caught up with what the log says is committed.
///
/// # Errors
/// If the log does not continue the checkpoint (it may end before a `received` one), or an entry cannot be read.
pub fn replay(
    store: &LogStore,
    segments: Segments,
    checkpoint: Option<&(Machine, StoredMembership)>,
    received: bool,
    progress: &ReplayProgress,
) -> Result<Arc<Replica>, LogError> {
    let (machine, membership) = checkpoint.cloned().unwrap_or_default();
    let begin = machine.applied().map_or(0, |(index, _)| index.0 + 1);
    let replica = Arc::new(Replica::new(machine, segments, membership));
    let stored = store.stored();
    // A received checkpoint takes the place of entries that this node never had; openraft purges up to it.
    if next(stored.last.as_ref()) < begin && !received {
        return Err(LogError::EndsBeforeCheckpoint { checkpoint: begin, log: next(stored.last.as_ref()) });
    }
    if next(stored.purged.as_ref()) > begin {
        return Err(LogError::BeginsAfterCheckpoint { checkpoint: begin, log: next(stored.purged.as_ref()) });
    }
    // The committed id may be ahead of this node's own log, whose end was not durable.
    let end = next(stored.committed.as_ref()).min(next(stored.last.as_ref()));
    progress.entries.store(end.saturating_sub(begin), Ordering::Relaxed);
    let mut at = begin;
    let mut told = Instant::now();
    while at < end {
        wait_for_room(replica.segments())?;
        let entries = store.read_blocking(at, end, LOG_READ_BYTES_MAX)?;
        let (first, last) = match (entries.first(), entries.last()) {
            (Some(first), Some(last)) => (first.log_id.index(), last.log_id.index()),
            _ => return Err(LogError::Io(io::Error::other(format!("the log has no entry {at}")))),
        };
        if first != at {
            return Err(LogError::Io(io::Error::other(format!("the log has entry {first} where {at} should be"))));
        }
        replica.apply(entries.into_iter().map(|entry| (entry, None)).collect(), |_| ());
        at = last + 1;
        progress.replayed.store(at - begin, Ordering::Relaxed);
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            tracing::info!(at, end, "replaying the log");
        }
    }
    tracing::info!(from = begin, to = at, "the log is replayed");
    Ok(replica)
}

fn wait_for_room(segments: &Segments) -> Result<(), LogError> {
    while segments.is_behind() {
        if let Some(error) = segments.failure() {
            return Err(LogError::Io(io::Error::other(error)));
        }
        std::thread::sleep(BEHIND_POLL);
    }
    Ok(())
}
