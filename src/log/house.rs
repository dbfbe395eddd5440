//! Housekeeping of a node: watches the segment writer and the log, takes checkpoints when they are due, purges the log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::async_runtime::WatchReceiver;

use super::fatal::Fatal;
use super::log_store::LogStore;
use super::raft_types::TypeConfig;
use super::retain::{self, Needs};
use super::sequencer::Raft;
use super::snapshot::{CheckpointError, Checkpoints};
use crate::segments::Segments;

/// How often the clock of checkpoints and the segment writer's health are looked at.
const HOUSEKEEPING_EVERY: Duration = Duration::from_millis(200);
/// How often a full disk makes a node look for log that it need not keep.
const PURGE_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How long openraft may take to note a checkpoint before the log is purged by the next one instead.
const NOTED_WITHIN: Duration = Duration::from_secs(10);
/// How long a checkpoint waits for the log to be purged: a follower that reads it may hold it longer, and need not be waited for.
const PURGED_WITHIN: Duration = Duration::from_secs(1);

/// When checkpoints are taken, and how much log is kept behind them.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointTimes {
    /// Bytes of log after which the next is taken.
    pub log_bytes: u64,
    /// Time after which the next is taken, if anything was appended.
    pub every: Duration,
    /// Log files kept for members that are behind.
    pub retained_files: usize,
}

/// Who keeps a node's house; clones keep the same one.
#[derive(Clone)]
pub struct Keeper {
    /// Raft.
    pub raft: Raft,
    /// The log.
    pub store: LogStore,
    /// Checkpoints.
    pub checkpoints: Arc<Checkpoints>,
    /// The partition logs.
    pub segments: Segments,
    /// When.
    pub times: CheckpointTimes,
}

impl Keeper {
    /// Until something fails after which the node must stop.
    pub async fn run(self, fatal: Fatal) {
        let (mut bytes_then, mut then) = (0, Instant::now());
        let mut purged = Instant::now();
        loop {
            tokio::time::sleep(HOUSEKEEPING_EVERY).await;
            if let Some(error) = self.segments.failure() {
                fatal.report(format!("segments cannot be written: {error}"));
            }
            if let Some(error) = self.store.wal().failure() {
                fatal.report(format!("the log cannot be written: {error}"));
            }
            if fatal.error().is_some() {
                return;
            }
            // Nothing grows on a full disk, so no checkpoint is due: what is kept for others goes.
            if self.segments.is_out_of_space() && purged.elapsed() >= PURGE_AGAIN_AFTER {
                purged = Instant::now();
                if let Some(id) = self.checkpoints.current().and_then(|(meta, _)| meta.last_log_id)
                    && let Err(error) = self.purge(id.index()).await
                {
                    tracing::warn!(%error, "the log cannot be purged");
                }
            }
            let bytes_now = self.store.appended_bytes();
            let grown = bytes_now - bytes_then;
            if grown < self.times.log_bytes && (grown == 0 || then.elapsed() < self.times.every) {
                continue;
            }
            (bytes_then, then) = (bytes_now, Instant::now());
            if let Err(error) = self.checkpoint().await {
                tracing::warn!(%error, "no checkpoint; the log is kept");
            }
        }
    }

    /// Takes a checkpoint, and purges the log behind it as far as nobody needs it ([`retain`]).
    ///
    /// # Errors
    /// If it could not be written: nothing is purged.
    pub async fn checkpoint(&self) -> Result<(), CheckpointError> {
        let Some(id) = self.checkpoints.take().await? else { return Ok(()) };
        // openraft purges what it knows a snapshot of: it asks the builder, which reports the checkpoint just taken.
        let noted = async {
            let raft = &self.raft;
            raft.trigger().snapshot().await?;
            let noted =
                raft.wait(Some(NOTED_WITHIN)).metrics(|metrics| metrics.snapshot >= Some(id), "checkpoint").await;
            if let Err(error) = noted {
                tracing::warn!(%error, "openraft did not note the checkpoint; the log is purged with the next");
                return Ok(());
            }
            self.purge(id.index()).await
        };
        noted.await.map_err(|_: openraft::errors::Fatal<TypeConfig>| CheckpointError::Stopped)
    }

    /// Purges the log behind a checkpoint that openraft knows, as far as nobody needs it.
    async fn purge(&self, checkpoint: u64) -> Result<(), openraft::errors::Fatal<TypeConfig>> {
        let Some(upto) = retain::purge_upto(checkpoint, &self.needs()) else { return Ok(()) };
        self.raft.trigger().purge_log(upto).await?;
        let is_purged =
            |metrics: &super::raft_types::RaftMetrics| metrics.purged.is_some_and(|purged| purged.index() >= upto);
        if self.raft.wait(Some(PURGED_WITHIN)).metrics(is_purged, "purged").await.is_err() {
            tracing::debug!(index = upto, "the log is still being read; it is purged later");
        }
        Ok(())
    }

    fn needs(&self) -> Needs {
        let metrics = self.raft.metrics();
        let needs = Needs::of(&metrics.borrow_watched());
        Needs {
            held: self.segments.held().map(|index| index.0),
            budget: self.store.wal().first_of_newest_files(self.times.retained_files).map(|index| index.0),
            no_space: self.segments.is_out_of_space(),
            ..needs
        }
    }
}
