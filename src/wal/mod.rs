//! The write-ahead log: opaque frames, one fdatasync per group of appends, on a writer thread of its own.
//! Format and crash argument: `src/docs/log_format.md`. Knows bytes only; entries are `log`'s.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::disk::Disk;
use crate::types::{LogIndex, Term};

mod background;
mod dump;
mod file;
pub mod format;
mod index;
mod reader;
mod recovery;
#[cfg(test)]
mod tests;
mod writer;

pub use dump::{Dump, DumpedFrame, dump};
pub use format::{OPAQUE_BYTES_MAX, PAYLOAD_BYTES_MAX};

use writer::{Action, Shared, Writer};

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

/// The open log. All operations are queued to one writer thread and become durable in the order of the calls; what becomes durable
/// together is completed newest first, so a completion means «up to here».
/// Clones are the same log; when the last is dropped, what is queued is synced and the thread ends.
#[derive(Clone, Debug)]
pub struct Wal {
    handle: Arc<Handle>,
}

/// Ends the threads when the last `Wal` goes.
struct Handle {
    shared: Arc<Shared>,
    /// The writer first: the background thread ends once the writer has dropped its sender.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wal").field("failure", &self.shared.failure()).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

impl Handle {
    fn close(&self) {
        self.shared.close();
        let this = std::thread::current().id();
        // A callback that closes the log runs on the writer thread, which cannot wait for itself.
        for thread in self.threads.lock().drain(..).filter(|thread| thread.thread().id() != this) {
            // A panic of the thread has been reported by its own hook.
            let _ = thread.join();
        }
    }
}

impl Wal {
    /// Opens or creates the log, cuts a torn tail, and starts the writer thread.
    ///
    /// # Errors
    /// If a file cannot be read, is damaged in the middle, or is another cluster's.
    pub fn open(disk: Arc<dyn Disk>, options: WalOptions) -> Result<(Self, Recovered), WalError> {
        let mut opened = recovery::recover(&*disk, &options)?;
        let recovered = opened.recovered.clone();
        let index = std::mem::take(&mut opened.index);
        let (next, empty) = (index.next(), index.last().is_none());
        let shared = Arc::new(Shared::new(index));
        let no_thread = |source| WalError::Io { path: options.dir.clone(), source };
        let (jobs, background) =
            background::start(Arc::clone(&disk), options.dir.clone(), Arc::clone(&shared)).map_err(no_thread)?;
        let writer = Writer::new(disk, options.clone(), Arc::clone(&shared), jobs, opened, next, empty);
        let writer = Builder::new().name("wal-writer".into()).spawn(move || writer.run()).map_err(no_thread)?;
        let threads = Mutex::new(vec![writer, background]);
        Ok((Self { handle: Arc::new(Handle { shared, threads }) }, recovered))
    }

    /// Appends entries with consecutive indexes. An index that does not follow the last entry kills the log: it would
    /// be a hole.
    ///
    /// # Panics
    /// If a payload is longer than [`PAYLOAD_BYTES_MAX`].
    pub fn append(&self, frames: Vec<Frame>, done: Done) {
        for frame in &frames {
            let len: usize = frame.payload.iter().map(Bytes::len).sum();
            assert!(len <= PAYLOAD_BYTES_MAX, "an entry of {len} bytes");
        }
        self.handle.shared.enqueue(Action::Append(frames), done);
    }

    /// Stores the vote (opaque); durable when `done` is called.
    ///
    /// # Panics
    /// If it is longer than [`OPAQUE_BYTES_MAX`].
    pub fn save_vote(&self, vote: Bytes, done: Done) {
        assert!(vote.len() <= OPAQUE_BYTES_MAX, "a vote of {} bytes", vote.len());
        self.handle.shared.enqueue(Action::Vote(vote), done);
    }

    /// Stores the committed marker (opaque) with the next group, or alone after some milliseconds; nobody waits for it.
    ///
    /// # Panics
    /// If it is longer than [`OPAQUE_BYTES_MAX`].
    pub fn save_committed(&self, committed: Bytes) {
        assert!(committed.len() <= OPAQUE_BYTES_MAX, "a committed marker of {} bytes", committed.len());
        self.handle.shared.leave_committed(committed);
    }

    /// Removes every entry after `last` (all, if None).
    pub fn truncate_after(&self, last: Option<LogIndex>, done: Done) {
        let from = LogIndex(last.map_or(0, |last| last.0 + 1));
        self.handle.shared.enqueue(Action::TruncateFrom(from), done);
    }

    /// Forgets entries up to and including `index`, which may lie beyond the last one; files are unlinked later.
    ///
    /// # Panics
    /// If the log id is longer than [`OPAQUE_BYTES_MAX`].
    pub fn purge(&self, index: LogIndex, log_id: Bytes, done: Done) {
        assert!(log_id.len() <= OPAQUE_BYTES_MAX, "a log id of {} bytes", log_id.len());
        self.handle.shared.enqueue(Action::Purge(index, log_id), done);
    }

    /// Reads entries from `from` to before `to`, stopping after about `bytes_max` but never before the first.
    /// Only what was durable or written before the call is found; the caller caches what is still queued.
    ///
    /// # Errors
    /// If one is missing or damaged.
    pub fn read(&self, from: LogIndex, to: LogIndex, bytes_max: usize) -> Result<Vec<StoredFrame>, WalError> {
        let mut out = Vec::new();
        let mut bytes = 0;
        let mut next = from;
        while next < to {
            let place = self.handle.shared.index.read().locate(next).ok_or(WalError::Missing(next))?;
            next = reader::read_run(&place, next, to, bytes_max, &mut bytes, &mut out)?;
            if next <= place.run_last {
                break;
            }
        }
        Ok(out)
    }

    /// First stored index of the newest `files` files; None if there are no more than that.
    pub fn first_of_newest_files(&self, files: usize) -> Option<LogIndex> {
        self.handle.shared.index.read().first_of_newest_files(files)
    }

    /// The first error of the writer, if the log is dead: the node must stop.
    pub fn failure(&self) -> Option<Arc<std::io::Error>> {
        self.handle.shared.failure()
    }

    /// Counters for metrics.
    pub fn stats(&self) -> WalStats {
        let shared = &self.handle.shared;
        WalStats {
            syncs: shared.syncs.load(Ordering::Relaxed),
            sync_ns: shared.sync_ns.load(Ordering::Relaxed),
            sync_ns_max: shared.sync_ns_max.swap(0, Ordering::Relaxed),
            bytes: shared.bytes.load(Ordering::Relaxed),
            files_bytes: shared.files_bytes.load(Ordering::Relaxed),
        }
    }

    /// Syncs what is queued and stops the writer thread. Later operations fail.
    pub fn close(&self) {
        self.handle.close();
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
