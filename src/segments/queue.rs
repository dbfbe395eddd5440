//! The way from apply to the writer thread: one queue in log order, and the writer's state that others look at.
//!
//! Apply never waits here: the bound on unwritten bytes is kept by whoever admits requests (`Segments::is_full`).
//! The writer lingers for a moment unless much is waiting or somebody waits for a checkpoint: data is already durable
//! in the log and readable in the tails, so fewer and larger writes are better.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use super::fetcher::Staged;
use super::segment::Roll;
use super::tail::{Partition, TailBatch};
use super::{OnInstalled, SegmentError};
use crate::types::{LogIndex, Term, TopicId};

/// How long the writer gathers.
const LINGER: Duration = Duration::from_millis(20);
/// Bytes at which it stops gathering.
const EAGER_BYTES: usize = 1 << 20;

/// A checkpoint that was asked for.
pub(super) struct CheckpointJob {
    pub applied: Option<(LogIndex, Term)>,
    pub raft: Bytes,
    pub state: Box<dyn FnOnce() -> io::Result<Vec<u8>> + Send>,
    pub done: Box<dyn FnOnce(Result<(), SegmentError>) + Send>,
}

/// A received checkpoint that takes the place of this node's own.
pub(super) struct InstallJob {
    pub staged: Arc<Staged>,
    pub done: OnInstalled,
}

/// What the writer does next, in log order.
pub(super) enum Job {
    /// Write a batch.
    Batch(Arc<Partition>, TailBatch),
    /// Partitions that exist from here on.
    Create(Arc<Partition>),
    /// A topic that does not exist any more, since that entry.
    Delete(TopicId, LogIndex),
    /// When the topic's segments end, from here on.
    Configure(TopicId, Roll),
    /// The log starts at that offset from that entry on.
    Trim(Arc<Partition>, LogIndex, i64),
    /// Make everything before this durable.
    Checkpoint(CheckpointJob),
    /// Put a received checkpoint in place.
    Install(InstallJob),
    /// Tell when everything before this is written.
    #[cfg(test)]
    Flush(std::sync::mpsc::Sender<()>),
}

impl Job {
    /// What it takes in memory, bytes of records included.
    fn bytes(&self) -> usize {
        match self {
            Job::Batch(_, batch) => batch.memory_bytes(),
            _ => 0,
        }
    }

    fn is_urgent(&self) -> bool {
        match self {
            Job::Checkpoint(_) | Job::Install(_) => true,
            #[cfg(test)]
            Job::Flush(_) => true,
            Job::Batch(..) | Job::Create(_) | Job::Delete(..) | Job::Configure(..) | Job::Trim(..) => false,
        }
    }
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    bytes: usize,
    urgent: bool,
    closed: bool,
}

/// The queue and the writer's state.
pub(super) struct Queue {
    /// Named in errors.
    dir: PathBuf,
    waiting: Mutex<Waiting>,
    wake: Condvar,
    /// Bytes pushed and not yet in the files.
    unwritten: AtomicUsize,
    unwritten_max: usize,
    /// A write was refused for lack of space; the writer keeps the data and tries again.
    no_space: AtomicBool,
    /// Free space is below the floor: nothing new should be admitted before it is gone altogether.
    low_space: AtomicBool,
    failure: OnceLock<String>,
    /// Who waits for `is_full` to turn false, each once.
    waiting_for_room: Mutex<Vec<Waker>>,
}

impl Queue {
    /// Full at `unwritten_max` bytes.
    pub(super) fn new(dir: PathBuf, unwritten_max: usize) -> Self {
        Self {
            dir,
            waiting: Mutex::default(),
            wake: Condvar::new(),
            unwritten: AtomicUsize::new(0),
            unwritten_max,
            no_space: AtomicBool::new(false),
            low_space: AtomicBool::new(false),
            failure: OnceLock::new(),
            waiting_for_room: Mutex::default(),
        }
    }

    /// Appends jobs; they are never refused. Checkpoints after a failure are answered at once.
    pub(super) fn push(&self, jobs: Vec<Job>) {
        let bytes: usize = jobs.iter().map(Job::bytes).sum();
        self.unwritten.fetch_add(bytes, Ordering::Relaxed);
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            drop(waiting);
            return self.refuse(jobs);
        }
        let was_idle = waiting.jobs.is_empty();
        let was_eager = waiting.bytes >= EAGER_BYTES;
        waiting.bytes += bytes;
        let urgent = jobs.iter().any(Job::is_urgent);
        waiting.urgent |= urgent;
        waiting.jobs.extend(jobs);
        if was_idle || urgent || (!was_eager && waiting.bytes >= EAGER_BYTES) {
            self.wake.notify_one();
        }
    }

    /// The next jobs. Nothing is waiting if `idle` passed first; None once closed and drained.
    pub(super) fn take(&self, idle: Option<Duration>) -> Option<VecDeque<Job>> {
        let mut waiting = self.waiting.lock();
        while waiting.jobs.is_empty() && !waiting.closed {
            match idle {
                None => self.wake.wait(&mut waiting),
                Some(idle) => {
                    if self.wake.wait_for(&mut waiting, idle).timed_out() {
                        return Some(VecDeque::new());
                    }
                }
            }
        }
        let until = Instant::now() + LINGER;
        while !waiting.urgent && !waiting.closed && waiting.bytes < EAGER_BYTES {
            if self.wake.wait_until(&mut waiting, until).timed_out() {
                break;
            }
        }
        if waiting.jobs.is_empty() {
            return None;
        }
        waiting.urgent = false;
        waiting.bytes = 0;
        Some(std::mem::take(&mut waiting.jobs))
    }

    /// Waits; true if the queue was closed meanwhile.
    pub(super) fn pause(&self, duration: Duration) -> bool {
        let mut waiting = self.waiting.lock();
        let until = Instant::now() + duration;
        while !waiting.closed {
            if self.wake.wait_until(&mut waiting, until).timed_out() {
                break;
            }
        }
        waiting.closed
    }

    /// Lets the writer drain and end.
    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.wake.notify_all();
        self.wake_waiting();
    }

    /// The writer has written that many bytes.
    pub(super) fn written(&self, bytes: usize) {
        self.unwritten.fetch_sub(bytes, Ordering::Relaxed);
        self.tell_room();
    }

    /// Sets or clears «a write was refused for lack of space».
    pub(super) fn set_no_space(&self, on: bool) {
        if self.no_space.swap(on, Ordering::Relaxed) != on {
            match on {
                true => tracing::warn!("no space left for segments: nothing is admitted until there is"),
                false => tracing::info!("segments can be written again"),
            }
            self.tell_room();
        }
    }

    /// Sets or clears «free space is below the floor».
    pub(super) fn set_low_space(&self, on: bool, free_bytes: u64) {
        if self.low_space.swap(on, Ordering::Relaxed) != on {
            match on {
                true => tracing::warn!(free_bytes, "little space left: nothing is admitted until there is more"),
                false => tracing::info!(free_bytes, "enough space again"),
            }
            self.tell_room();
        }
    }

    /// Whether free space was below the floor at the last look.
    pub(super) fn is_low_space(&self) -> bool {
        self.low_space.load(Ordering::Relaxed)
    }

    /// Whether too many bytes wait to be written.
    pub(super) fn is_behind(&self) -> bool {
        self.unwritten.load(Ordering::Relaxed) >= self.unwritten_max
    }

    /// Whether the disk has no room: waiting may take for ever, so writes are refused.
    pub(super) fn is_out_of_space(&self) -> bool {
        self.no_space.load(Ordering::Relaxed) || self.is_low_space()
    }

    /// Whether nothing more should be admitted.
    pub(super) fn is_full(&self) -> bool {
        self.is_behind() || self.is_out_of_space() || self.failure.get().is_some()
    }

    fn tell_room(&self) {
        if !self.is_full() {
            self.wake_waiting();
        }
    }

    fn wake_waiting(&self) {
        std::mem::take(&mut *self.waiting_for_room.lock()).into_iter().for_each(Waker::wake);
    }

    /// Waits until not full. Returns on failure and on close too: then there is nothing to wait for.
    pub(super) async fn until_room(&self) {
        let over = || !self.is_full() || self.failure.get().is_some() || self.waiting.lock().closed;
        std::future::poll_fn(|context| {
            {
                let mut waiting = self.waiting_for_room.lock();
                if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiting.push(context.waker().clone());
                }
            }
            // Looked at after registering: a change in between is not missed.
            if over() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// The first error.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    /// Notes an error, before anybody is told of its consequences. The first one stays.
    pub(super) fn set_failure(&self, failure: String) {
        if self.failure.set(failure.clone()).is_ok() {
            tracing::error!(failure, "the segment writer failed");
        }
    }

    /// The writer ends: because of an error, or closed with work undone. Refuses what waits.
    pub(super) fn end(&self, failure: Option<String>, undone: impl IntoIterator<Item = Job>) {
        if let Some(failure) = failure {
            self.set_failure(failure);
        }
        let waiting = {
            let mut waiting = self.waiting.lock();
            waiting.closed = true;
            std::mem::take(&mut waiting.jobs)
        };
        self.wake_waiting();
        self.refuse(undone.into_iter().chain(waiting));
    }

    fn refuse(&self, jobs: impl IntoIterator<Item = Job>) {
        for job in jobs {
            let why = || self.failure().unwrap_or_else(|| "the segment writer has stopped".to_owned());
            let error = || SegmentError::Io { path: self.dir.clone(), source: std::io::Error::other(why()) };
            match job {
                Job::Checkpoint(checkpoint) => (checkpoint.done)(Err(error())),
                Job::Install(install) => (install.done)(Err(error())),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::limits::SEGMENT_BATCH_OVERHEAD_BYTES;

    #[test]
    fn the_overhead_counted_is_not_less_than_the_structures() {
        // Half of a queue and of a tail may be empty; the buffer of a batch has a shared header.
        let structures = 2 * (size_of::<Job>() + size_of::<TailBatch>()) + 40;
        assert!(structures <= SEGMENT_BATCH_OVERHEAD_BYTES, "{structures}");
    }
}
