//! The writer thread: takes everything that is queued, writes it with one vectored write, syncs once, and calls back
//! for all of it, newest first. While one fdatasync runs the next group gathers by itself; nobody waits on purpose.
//!
//! An error is sticky: after one failed write or sync nothing is written any more, and every later operation gets the
//! first error. A failed fdatasync says nothing about which pages were lost, and a second one lies, so it is never
//! repeated.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock};

use super::background::Job;
use super::file::LogFile;
use super::format::{Carried, FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader, FrameHeader, FrameKind};
use super::index::Index;
use super::recovery::{Opened, random_salt};
use super::{Done, Frame, WalOptions};
use crate::disk::Disk;
use crate::types::{LogIndex, Term};

/// How long a committed marker waits for a group to travel with before it is written alone. It is a hint for the next
/// start, so this only bounds how much an idle log's start applies again.
const COMMITTED_DELAY: Duration = Duration::from_millis(50);

/// What an operation writes.
#[derive(Debug)]
pub(super) enum Action {
    Append(Vec<Frame>),
    Vote(Bytes),
    /// Removes entries from this index on.
    TruncateFrom(LogIndex),
    Purge(LogIndex, Bytes),
}

/// A queued operation.
pub(super) struct Op {
    pub action: Action,
    pub done: Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    No,
    /// Will look at the committed marker by itself soon.
    Short,
    /// Until it is woken.
    Long,
}

/// What callers leave for the writer. Its bytes are bounded where proposals are admitted (storage.md, «byte
/// semaphore»): an operation is here only between its proposal and its acknowledgement.
struct Queue {
    ops: Vec<Op>,
    /// Only the newest marker counts.
    committed: Option<Bytes>,
    sleep: Sleep,
    closing: bool,
}

/// What the writer thread, the callers and the background thread share.
pub(super) struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Written by the writer once per group, after the write; read by callers of `read`.
    pub index: RwLock<Index>,
    failure: OnceLock<Arc<io::Error>>,
    pub syncs: AtomicU64,
    pub sync_ns: AtomicU64,
    pub sync_ns_max: AtomicU64,
    pub bytes: AtomicU64,
    pub files_bytes: AtomicU64,
}

impl Shared {
    pub fn new(index: Index) -> Self {
        let queue = Queue { ops: Vec::new(), committed: None, sleep: Sleep::No, closing: false };
        Self {
            queue: Mutex::new(queue),
            wake: Condvar::new(),
            index: RwLock::new(index),
            failure: OnceLock::new(),
            syncs: AtomicU64::new(0),
            sync_ns: AtomicU64::new(0),
            sync_ns_max: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            files_bytes: AtomicU64::new(0),
        }
    }

    /// Queues an operation; after `close` it gets an error at once, on the caller's thread.
    pub fn enqueue(&self, action: Action, done: Done) {
        let mut queue = self.queue.lock();
        if queue.closing {
            drop(queue);
            done(Err(Arc::new(io::Error::new(io::ErrorKind::BrokenPipe, "the log is closed"))));
            return;
        }
        queue.ops.push(Op { action, done });
        let asleep = queue.sleep != Sleep::No;
        drop(queue);
        if asleep {
            self.wake.notify_one();
        }
    }

    /// Leaves a committed marker for the next group.
    pub fn leave_committed(&self, committed: Bytes) {
        let mut queue = self.queue.lock();
        queue.committed = Some(committed);
        let asleep = queue.sleep == Sleep::Long;
        drop(queue);
        if asleep {
            self.wake.notify_one();
        }
    }

    /// Asks the writer to finish what is queued and end.
    pub fn close(&self) {
        self.queue.lock().closing = true;
        self.wake.notify_one();
    }

    /// Waits for something to do and moves it into `ops`. Returns the committed marker, and whether this is the end.
    fn take(&self, ops: &mut Vec<Op>) -> (Option<Bytes>, bool) {
        let mut queue = self.queue.lock();
        let mut waited = false;
        loop {
            if !queue.ops.is_empty() {
                std::mem::swap(&mut queue.ops, ops);
                return (queue.committed.take(), false);
            }
            if queue.closing || (waited && queue.committed.is_some()) {
                return (queue.committed.take(), queue.closing);
            }
            if waited {
                queue.sleep = Sleep::Long;
                self.wake.wait(&mut queue);
                // A marker that woke us may wait for company like any other.
                waited = queue.committed.is_none();
            } else {
                queue.sleep = Sleep::Short;
                waited = self.wake.wait_for(&mut queue, COMMITTED_DELAY).timed_out();
            }
            queue.sleep = Sleep::No;
        }
    }

    /// Kills the log: the first error wins.
    pub fn fail(&self, error: io::Error) -> Arc<io::Error> {
        let error = Arc::clone(self.failure.get_or_init(|| Arc::new(error)));
        tracing::error!(%error, "the log failed; nothing more is written");
        error
    }

    pub fn failure(&self) -> Option<Arc<io::Error>> {
        self.failure.get().cloned()
    }
}

/// A piece of the next vectored write.
enum Part {
    /// Frame headers: bytes of `Batch::heads` up to here, from where the one before ended.
    HeadsTo(usize),
    Payload(Bytes),
}

/// What the index learns once the batch is written.
enum Change {
    Entry(LogIndex, Term, u64),
    TruncateFrom(LogIndex),
    Purge(LogIndex),
}

/// Frames that are encoded but not written. Kept between groups for its allocations.
#[derive(Default)]
struct Batch {
    heads: Vec<u8>,
    parts: Vec<Part>,
    changes: Vec<Change>,
}

/// Which index the next entry may have: exactly `index`, or, in an empty log, any from it on.
#[derive(Clone, Copy, Debug)]
struct Next {
    index: LogIndex,
    exact: bool,
}

/// The thread's own state; nobody else sees it.
pub(super) struct Writer {
    disk: Arc<dyn Disk>,
    options: WalOptions,
    shared: Arc<Shared>,
    background: Sender<Job>,
    /// Oldest first; the last one is `active`.
    files: VecDeque<(Arc<LogFile>, u64)>,
    active: Arc<LogFile>,
    /// Where the next frame goes, batch included.
    position: u64,
    /// Where the batch begins.
    written_to: u64,
    /// All below is durable.
    synced_to: u64,
    /// CRC of the last frame, batch included.
    crc: u32,
    carried: Carried,
    next: Next,
    batch: Batch,
}

impl Writer {
    pub fn new(
        disk: Arc<dyn Disk>,
        options: WalOptions,
        shared: Arc<Shared>,
        background: Sender<Job>,
        opened: Opened,
        next: LogIndex,
        empty: bool,
    ) -> Self {
        let active = Arc::clone(opened.files.last().expect("recovery returns at least one file"));
        let files = opened
            .files
            .into_iter()
            .map(|file| {
                let len = file.filled_to();
                (file, len)
            })
            .collect();
        let writer = Self {
            disk,
            options,
            shared,
            background,
            files,
            active,
            position: opened.position,
            written_to: opened.position,
            synced_to: opened.position,
            crc: opened.crc,
            carried: opened.carried,
            next: Next { index: next, exact: !empty },
            batch: Batch::default(),
        };
        writer.count_files();
        writer
    }

    /// Works until the log is closed.
    pub fn run(mut self) {
        let mut ops = Vec::new();
        let mut dones = Vec::new();
        self.unlink_purged();
        self.ask_for_zeros();
        loop {
            let (committed, end) = self.shared.take(&mut ops);
            let result = match self.shared.failure() {
                Some(error) => Err(error),
                None => self.group(&mut ops, &mut dones, committed, end).map_err(|error| self.shared.fail(error)),
            };
            // The background thread's sync may have failed meanwhile; this group's own sync reported it as well then.
            dones.extend(ops.drain(..).map(|op| op.done));
            // The newest first: each completion says «durable up to here», so the reader of that watermark is woken
            // once per group, not once per append.
            for done in dones.drain(..).rev() {
                done(result.clone());
            }
            if result.is_ok() {
                self.unlink_purged();
                self.ask_for_zeros();
            }
            if end {
                return;
            }
        }
    }

    /// Writes a group, and syncs if anybody waits for it.
    fn group(
        &mut self,
        ops: &mut Vec<Op>,
        dones: &mut Vec<Done>,
        committed: Option<Bytes>,
        end: bool,
    ) -> io::Result<()> {
        let sync = end || !ops.is_empty();
        let mut actions = Vec::with_capacity(ops.len());
        for op in ops.drain(..) {
            actions.push(op.action);
            dones.push(op.done);
        }
        for action in actions {
            self.stage_action(action)?;
        }
        if let Some(committed) = committed {
            self.carried.committed = Some(committed.clone());
            self.stage(FrameKind::Committed, Term(0), LogIndex(0), vec![committed])?;
        }
        self.write_batch()?;
        if sync && self.synced_to < self.position { self.sync() } else { Ok(()) }
    }

    fn stage_action(&mut self, action: Action) -> io::Result<()> {
        let none = Term(0);
        match action {
            Action::Append(frames) => frames.into_iter().try_for_each(|frame| self.stage_entry(frame)),
            Action::Vote(vote) => {
                self.carried.vote = Some(vote.clone());
                self.stage(FrameKind::Vote, none, LogIndex(0), vec![vote]).map(|_| ())
            }
            Action::TruncateFrom(from) => {
                let kept_from = self.carried.purged.as_ref().map_or(LogIndex(0), |(purged, _)| LogIndex(purged.0 + 1));
                if from < self.next.index {
                    self.next = Next { index: from.max(kept_from), exact: from > kept_from };
                }
                self.stage(FrameKind::Truncate, none, from, Vec::new())?;
                self.batch.changes.push(Change::TruncateFrom(from));
                Ok(())
            }
            Action::Purge(index, log_id) => {
                if self.next.index <= LogIndex(index.0 + 1) {
                    self.next = Next { index: LogIndex(index.0 + 1), exact: false };
                }
                self.carried.purge(index, log_id.clone());
                self.stage(FrameKind::Purge, none, index, vec![log_id])?;
                self.batch.changes.push(Change::Purge(index));
                Ok(())
            }
        }
    }

    fn stage_entry(&mut self, frame: Frame) -> io::Result<()> {
        let fits = if self.next.exact { frame.index == self.next.index } else { frame.index >= self.next.index };
        if !fits {
            let text = format!("entry {} appended where {} comes next", frame.index.0, self.next.index.0);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.next = Next { index: LogIndex(frame.index.0 + 1), exact: true };
        let position = self.stage(FrameKind::Entry, frame.term, frame.index, frame.payload)?;
        self.batch.changes.push(Change::Entry(frame.index, frame.term, position));
        Ok(())
    }

    /// Encodes a frame behind the others, rolling first if it does not fit, and returns its position. The payload is
    /// not copied.
    fn stage(&mut self, kind: FrameKind, term: Term, index: LogIndex, payload: Vec<Bytes>) -> io::Result<u64> {
        let len: usize = payload.iter().map(Bytes::len).sum();
        let frame_bytes = FRAME_HEADER_BYTES + len as u64;
        if self.position + frame_bytes > self.options.file_bytes_max && self.position > FILE_HEADER_BYTES {
            self.roll()?;
        }
        let header = FrameHeader {
            kind,
            len: u32::try_from(len).expect("Wal bounds payloads far below 4 GiB"),
            previous_crc: self.crc,
            term,
            index,
            synced_to: self.synced_to,
            payload_crc: payload.iter().fold(0, |crc, piece| crc32c::crc32c_append(crc, piece)),
        };
        let position = self.position;
        self.crc = header.encode(self.active.salt, position, &mut self.batch.heads);
        self.batch.parts.push(Part::HeadsTo(self.batch.heads.len()));
        self.batch.parts.extend(payload.into_iter().map(Part::Payload));
        self.position += frame_bytes;
        Ok(position)
    }

    /// Writes the batch with one vectored write; after that its entries can be read.
    fn write_batch(&mut self) -> io::Result<()> {
        if self.batch.parts.is_empty() {
            return Ok(());
        }
        let mut slices: Vec<&[u8]> = Vec::with_capacity(self.batch.parts.len());
        let mut heads = 0;
        for part in &self.batch.parts {
            match part {
                Part::HeadsTo(end) => {
                    slices.push(&self.batch.heads[heads..*end]);
                    heads = *end;
                }
                Part::Payload(bytes) => slices.push(bytes),
            }
        }
        self.active.claim(self.position);
        self.active.file.write_all_at(&slices, self.written_to)?;
        self.shared.bytes.fetch_add(self.position - self.written_to, Ordering::Relaxed);
        self.written_to = self.position;
        drop(slices);
        self.batch.heads.clear();
        self.batch.parts.clear();
        let mut index = self.shared.index.write();
        for change in self.batch.changes.drain(..) {
            match change {
                Change::Entry(entry, term, position) => index.push(&self.active, entry, term, position),
                Change::TruncateFrom(from) => index.truncate_from(from),
                Change::Purge(to) => index.purge(to),
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let start = Instant::now();
        self.active.file.sync_data()?;
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.shared.syncs.fetch_add(1, Ordering::Relaxed);
        self.shared.sync_ns.fetch_add(ns, Ordering::Relaxed);
        self.shared.sync_ns_max.fetch_max(ns, Ordering::Relaxed);
        self.synced_to = self.written_to;
        Ok(())
    }

    /// Seals the active file and begins the next. The old file is durable before the new one has a name, and the name
    /// before the first frame: only the last file can have a torn tail.
    fn roll(&mut self) -> io::Result<()> {
        self.write_batch()?;
        self.sync()?;
        let (first_index, previous) = {
            let mut index = self.shared.index.write();
            index.seal(self.active.sequence);
            (index.next(), index.last())
        };
        let header = FileHeader {
            cluster_id: self.options.cluster_id,
            sequence: self.active.sequence + 1,
            salt: random_salt(),
            first_index,
            previous,
            previous_end: self.position,
            previous_crc: self.crc,
            carried: self.carried.clone(),
        };
        let (file, crc) = LogFile::create(&*self.disk, &self.options.dir, &header)?;
        if let Some((file, len)) = self.files.back_mut() {
            *len = file.filled_to();
        }
        self.active = Arc::new(file);
        self.files.push_back((Arc::clone(&self.active), FILE_HEADER_BYTES));
        self.position = FILE_HEADER_BYTES;
        self.written_to = FILE_HEADER_BYTES;
        self.synced_to = FILE_HEADER_BYTES;
        self.crc = crc;
        Ok(())
    }

    /// Has the files unlinked, oldest first, that hold no stored entry. The purge that allows it is durable.
    fn unlink_purged(&mut self) {
        let oldest = self.shared.index.read().oldest_file().unwrap_or(self.active.sequence);
        let mut paths = Vec::new();
        while let Some((file, _)) = self.files.front()
            && file.sequence < oldest.min(self.active.sequence)
        {
            paths.push(file.path.clone());
            self.files.pop_front();
        }
        if !paths.is_empty() {
            // The thread lives until this sender is dropped.
            let _ = self.background.send(Job::Unlink(paths));
        }
        self.count_files();
    }

    fn ask_for_zeros(&self) {
        let target = (self.position + self.options.prefill_bytes).min(self.options.file_bytes_max);
        let low = (self.position + self.options.prefill_bytes / 2).min(self.options.file_bytes_max);
        if self.options.prefill_bytes > 0
            && self.active.filled_to() < low
            && !self.active.fill_asked.swap(true, Ordering::AcqRel)
        {
            let _ = self.background.send(Job::Fill(Arc::clone(&self.active), target));
        }
    }

    fn count_files(&self) {
        let sealed: u64 = self.files.iter().map(|(_, len)| *len).sum();
        let active_counted = self.files.back().map_or(0, |(_, len)| *len);
        self.shared.files_bytes.store(sealed - active_counted + self.active.filled_to(), Ordering::Relaxed);
    }
}
