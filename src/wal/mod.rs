//! The write-ahead log: opaque frames, one fdatasync per group of appends, on a writer thread of its own.
//! Format and crash argument: `src/docs/log_format.md`. Knows bytes only; entries are `log`'s.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::disk::Disk;
use crate::types::{LogIndex, Term};

/// A frame to append: one log entry.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Term of the entry.
    pub term: Term,
    /// Index of the entry.
    pub index: LogIndex,
    /// Its bytes, in pieces that are written vectored.
    pub payload: Vec<Bytes>,
}

/// An entry as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFrame {
    /// Term of the entry.
    pub term: Term,
    /// Index of the entry.
    pub index: LogIndex,
    /// Its bytes.
    pub payload: Bytes,
}

/// Called once by the writer thread when the operation is durable, or can never be.
pub type Done = Box<dyn FnOnce(Result<(), Arc<std::io::Error>>) + Send>;

/// Where and how.
#[derive(Clone, Debug)]
pub struct WalOptions {
    /// Directory of the log files.
    pub dir: PathBuf,
    /// Written into every file's header; a log of another cluster is refused.
    pub cluster_id: [u8; 16],
    /// Size at which a file is sealed (256 MiB; 4 MiB under test).
    pub file_bytes_max: u64,
    /// How far ahead of the writer a file is zero-filled.
    pub prefill_bytes: u64,
}

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The last vote saved.
    pub vote: Option<Bytes>,
    /// The last committed marker saved (lazy: may be behind).
    pub committed: Option<Bytes>,
    /// What the last purge named (opaque: a log id), and its index.
    pub purged: Option<(LogIndex, Bytes)>,
    /// First index stored.
    pub first: Option<LogIndex>,
    /// Last index stored, with its term.
    pub last: Option<(LogIndex, Term)>,
    /// Bytes cut off the end as a torn write.
    pub torn_bytes: u64,
}

/// Why the log cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// Damage below what is known to have been synced: never repaired silently.
    #[error("{path} is damaged at byte {position}: {what}; refusing to start")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Where.
        position: u64,
        /// What is wrong.
        what: String,
    },
    /// The files are of another cluster.
    #[error("{path} belongs to another cluster")]
    OtherCluster {
        /// Which file.
        path: PathBuf,
    },
    /// Asked for an index that is not stored.
    #[error("entry {0:?} is not stored")]
    Missing(LogIndex),
}

/// The open log. All operations are queued to one writer thread and become durable in the order of the calls.
#[derive(Clone, Debug)]
pub struct Wal {}

impl Wal {
    /// Opens or creates the log, cuts a torn tail, and starts the writer thread.
    ///
    /// # Errors
    /// If a file cannot be read, is damaged in the middle, or is another cluster's.
    pub fn open(disk: Arc<dyn Disk>, options: WalOptions) -> Result<(Self, Recovered), WalError> {
        let _ = (disk, options);
        todo!("wal helper")
    }

    /// Appends entries with consecutive indexes.
    pub fn append(&self, frames: Vec<Frame>, done: Done) {
        let _ = (frames, done);
        todo!("wal helper")
    }

    /// Stores the vote (opaque); durable when `done` is called.
    pub fn save_vote(&self, vote: Bytes, done: Done) {
        let _ = (vote, done);
        todo!("wal helper")
    }

    /// Stores the committed marker (opaque) with the next group; nobody waits for it.
    pub fn save_committed(&self, committed: Bytes) {
        let _ = committed;
        todo!("wal helper")
    }

    /// Removes every entry after `last` (all, if None).
    pub fn truncate_after(&self, last: Option<LogIndex>, done: Done) {
        let _ = (last, done);
        todo!("wal helper")
    }

    /// Forgets entries up to and including `index`, which may lie beyond the last one; files are unlinked later.
    pub fn purge(&self, index: LogIndex, log_id: Bytes, done: Done) {
        let _ = (index, log_id, done);
        todo!("wal helper")
    }

    /// Reads entries from `from` to before `to`, stopping after about `bytes_max` but never before the first.
    /// Only what was durable or written before the call is found; the caller caches what is still queued.
    ///
    /// # Errors
    /// If one is missing or damaged.
    pub fn read(&self, from: LogIndex, to: LogIndex, bytes_max: usize) -> Result<Vec<StoredFrame>, WalError> {
        let _ = (from, to, bytes_max);
        todo!("wal helper")
    }

    /// The first error of the writer, if the log is dead: the node must stop.
    pub fn failure(&self) -> Option<Arc<std::io::Error>> {
        todo!("wal helper")
    }

    /// Counters for metrics.
    pub fn stats(&self) -> WalStats {
        todo!("wal helper")
    }

    /// Syncs what is queued and stops the writer thread.
    pub fn close(&self) {
        todo!("wal helper")
    }
}

/// Counters of the writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalStats {
    /// fdatasync calls.
    pub syncs: u64,
    /// Time in them, nanoseconds.
    pub sync_ns: u64,
    /// Slowest of them since the last call, nanoseconds.
    pub sync_ns_max: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Bytes of all log files.
    pub files_bytes: u64,
}
