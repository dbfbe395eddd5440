//! What a node's log is opened with.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Member;
use super::house::CheckpointTimes;
use super::recovery::ReplayProgress;
use crate::leader::LeaderSettings;

/// Where the log lives, and how it behaves.
#[derive(Debug)]
pub struct LogOptions {
    /// The node's directory: `node.json`, and the log's files in `log/`.
    pub data_dir: PathBuf,
    /// The cluster this node must belong to; None takes the directory's, or makes a new one.
    pub cluster_id: Option<[u8; 16]>,
    /// This node, as clients see it.
    pub me: Member,
    /// Where this node listens for its peers; None for a node that has none.
    pub listener: Option<std::net::TcpListener>,
    /// Where the nodes of the cluster listen for peers, to find or found it from an empty directory; empty for a node alone.
    pub seeds: Vec<String>,
    /// Settings of the leader.
    pub leader: LeaderSettings,
    /// How long a proposal may take before its fate is called unknown (at most a client's request timeout, 30 s).
    pub proposal_timeout: Duration,
    /// How long open transactions may take to end before leadership moves as planned.
    pub transfer_drain: Duration,
    /// Bytes of entries kept in memory.
    pub tail_cache_bytes_max: usize,
    /// Size of a log file.
    pub log_file_bytes_max: u64,
    /// Zero-filled ahead of the writer.
    pub log_prefill_bytes: u64,
    /// Bytes of log between checkpoints.
    pub checkpoint_log_bytes: u64,
    /// Time between checkpoints.
    pub checkpoint_every: Duration,
    /// How often retention is looked at (`log.retention.check.interval.ms`).
    pub retention_check_every: Duration,
    /// Bytes of log kept behind the checkpoint for members that are behind.
    pub log_retained_bytes: u64,
    /// Bytes a second that this node pulls to catch up.
    pub catch_up_bytes_per_second: u64,
    /// Threads of Raft's runtime, at least 3.
    pub raft_threads: usize,
    /// Shows how far the replay is, while [`Log::open`](super::Log::open) has not returned yet.
    pub progress: Arc<ReplayProgress>,
}

impl LogOptions {
    /// The defaults for a node in `data_dir`.
    pub fn new(data_dir: PathBuf, me: Member, leader: LeaderSettings) -> Self {
        Self {
            data_dir,
            cluster_id: None,
            me,
            listener: None,
            seeds: Vec::new(),
            leader,
            proposal_timeout: Duration::from_secs(20),
            transfer_drain: Duration::from_secs(1),
            tail_cache_bytes_max: 64 << 20,
            log_file_bytes_max: if cfg!(test) { 4 << 20 } else { 256 << 20 },
            log_prefill_bytes: if cfg!(test) { 1 << 20 } else { 8 << 20 },
            checkpoint_log_bytes: 1 << 30,
            checkpoint_every: Duration::from_secs(60),
            retention_check_every: Duration::from_secs(300),
            log_retained_bytes: 4 << 30,
            catch_up_bytes_per_second: 100 << 20,
            raft_threads: 3,
            progress: Arc::default(),
        }
    }

    /// When checkpoints are taken, and how much log is kept behind them.
    pub fn checkpoint_times(&self) -> CheckpointTimes {
        let retained = self.log_retained_bytes / self.log_file_bytes_max.max(1);
        let retained_files = usize::try_from(retained).unwrap_or(usize::MAX);
        CheckpointTimes { log_bytes: self.checkpoint_log_bytes, every: self.checkpoint_every, retained_files }
    }
}
