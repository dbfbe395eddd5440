//! openraft's log storage over [`Wal`]: the wal keeps bytes, this keeps the newest entries (see [`Tail`]) and the ids.
//!
//! - `append` makes entries readable, queues them and returns; the wal's writer thread completes them, one fdatasync per group.
//! - A vote is durable before `save_vote` returns, in the same queue. The committed id goes with the next group.
//! - `truncate_after` waits, so that no completion of a removed entry can be taken for one of its successor.
//! - Any error of the writer is final: it is reported once through [`Fatal`] and every later operation fails.
//!
//! Reads take from memory what is there and the rest from the wal, in pieces of about 4 MiB.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use futures_util::Stream;
use openraft::errors::LeaderChanged;
use openraft::storage::{
    IOFlushed, LeaderBoundedStreamError, LeaderBoundedStreamResult, LogState, RaftLogReader, RaftLogStorage,
};
use openraft::type_config::alias::LeaderIdOf;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::fatal::Fatal;
use super::meters::Meters;
use super::raft_types::{self, LogId, RaftEntry, TypeConfig, Vote, index_and_term};
use super::tail::Tail;
use crate::config::limits::LOG_READ_BYTES_MAX;
use crate::types::LogIndex;
use crate::wal::{Frame, Recovered, Wal, WalError};

/// The log store; clones share everything, and each is a reader too.
#[derive(Clone)]
pub struct LogStore {
    shared: Arc<Shared>,
}

struct Shared {
    wal: Wal,
    tail: Mutex<Tail>,
    /// Index behind the last entry known to be durable here. The writer thread raises it, checkpoints wait for it.
    durable: watch::Sender<u64>,
    /// Bytes appended since the log was opened: what the checkpoint interval counts.
    appended_bytes: AtomicU64,
    fatal: Fatal,
    meters: Arc<Meters>,
}

/// What the log contained when it was opened, beyond what openraft asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The last committed id that was saved.
    pub committed: Option<LogId>,
    /// The last purged id.
    pub purged: Option<LogId>,
    /// The last id, of an entry or purged.
    pub last: Option<LogId>,
}

impl LogStore {
    /// The store over an open wal.
    ///
    /// # Errors
    /// If what the wal recovered is not ours: a vote or id of another length.
    pub fn new(
        wal: Wal,
        recovered: &Recovered,
        cache_bytes_max: usize,
        fatal: Fatal,
        meters: Arc<Meters>,
    ) -> Result<Self, io::Error> {
        let id = |what: &str, bytes: &Bytes| raft_types::decode_log_id(bytes).ok_or_else(|| foreign(what));
        let purged = recovered.purged.as_ref().map(|(_, bytes)| id("purged id", bytes)).transpose()?;
        let committed = recovered.committed.as_ref().map(|bytes| id("committed id", bytes)).transpose()?;
        let vote = match &recovered.vote {
            Some(bytes) => Some(raft_types::decode_vote(bytes).ok_or_else(|| foreign("vote"))?),
            None => None,
        };
        let last = recovered.last.map(|(index, term)| raft_types::log_id(index, term));
        let last = last.filter(|last| purged.is_none_or(|purged| last.index() > purged.index()));
        let first = last.and(recovered.first);
        let mut tail = Tail::new(cache_bytes_max, first, last, purged);
        tail.vote = vote;
        tail.committed = committed;
        let (durable, _) = watch::channel(tail.stored().1);
        let shared = Shared { wal, tail: Mutex::new(tail), durable, appended_bytes: AtomicU64::new(0), fatal, meters };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The ids that recovery starts from.
    pub fn stored(&self) -> Stored {
        let tail = self.shared.tail.lock();
        Stored { committed: tail.committed, purged: tail.purged, last: tail.last }
    }

    /// Whether this node has taken another one for its leader, and so promised to elect nobody for a while.
    pub fn has_followed(&self, me: u64) -> bool {
        let vote = self.shared.tail.lock().vote;
        vote.is_some_and(|vote| vote.committed && vote.leader_id.voted_for != me)
    }

    /// Follows the index behind the last durable entry.
    pub fn durable(&self) -> watch::Receiver<u64> {
        self.shared.durable.subscribe()
    }

    /// Bytes appended since the log was opened.
    pub fn appended_bytes(&self) -> u64 {
        self.shared.appended_bytes.load(Ordering::Relaxed)
    }

    /// The wal below.
    pub fn wal(&self) -> &Wal {
        &self.shared.wal
    }

    /// Entries from `from` to before `to`, as far as the log holds them: about `bytes_max`, but at least one if there
    /// is one. Reads files where memory does not reach: call it where blocking is fine, or through `read`.
    ///
    /// # Errors
    /// If an entry is missing or damaged.
    pub fn read_blocking(&self, from: u64, to: u64, bytes_max: usize) -> io::Result<Vec<RaftEntry>> {
        match self.read_cached(from, to, bytes_max) {
            Ok(entries) => Ok(entries),
            Err(range) => self.read_stored(range, bytes_max),
        }
    }

    /// The same for async callers: files are read on the blocking pool, and the cache answers at once.
    async fn read(&self, from: u64, to: u64, bytes_max: usize) -> io::Result<Vec<RaftEntry>> {
        match self.read_cached(from, to, bytes_max) {
            Ok(entries) => Ok(entries),
            Err(range) => {
                let store = self.clone();
                let read = tokio::task::spawn_blocking(move || store.read_stored(range, bytes_max));
                read.await.map_err(io::Error::other)?
            }
        }
    }

    /// What memory has; Err names the part in front of it, which is on disk.
    fn read_cached(&self, from: u64, to: u64, bytes_max: usize) -> Result<Vec<RaftEntry>, (u64, u64)> {
        let tail = self.shared.tail.lock();
        let (start, end) = tail.stored();
        let (from, to) = (from.max(start), to.min(end));
        if from >= to || from >= tail.first() {
            Ok(tail.read(from, to, bytes_max))
        } else {
            Err((from, to.min(tail.first())))
        }
    }

    fn read_stored(&self, (from, to): (u64, u64), bytes_max: usize) -> io::Result<Vec<RaftEntry>> {
        let frames = match self.shared.wal.read(LogIndex(from), LogIndex(to), bytes_max) {
            Ok(frames) => frames,
            // Purged or truncated since the range was taken: ask again with the bounds of now.
            Err(WalError::Missing(_)) if self.shared.tail.lock().stored().0 > from => {
                return self.read_blocking(from, to, bytes_max);
            }
            Err(error) => return Err(io::Error::other(error)),
        };
        let decode = |frame: crate::wal::StoredFrame| {
            raft_types::decode(frame.index, frame.term, frame.payload)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{:?}: {error}", frame.index)))
        };
        frames.into_iter().map(decode).collect()
    }

    /// Runs an operation of the wal and waits until it is durable.
    async fn durably(&self, queue: impl FnOnce(&Wal, crate::wal::Done)) -> io::Result<()> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let fatal = self.shared.fatal.clone();
        let done = Box::new(move |result: Result<(), Arc<io::Error>>| {
            let _ = sender.send(result.map_err(|error| lost(&fatal, &error)));
        });
        queue(&self.shared.wal, done);
        receiver.await.map_err(|_| io::Error::other("the log is closed"))?
    }
}

/// An error of the writer, reported and made openraft's.
fn lost(fatal: &Fatal, error: &io::Error) -> io::Error {
    fatal.report(format!("the log cannot be written: {error}"));
    io::Error::new(error.kind(), error.to_string())
}

fn foreign(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the log's {what} cannot be decoded"))
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(from) => *from,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(to) => *to,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

/// Entries of a range, piece by piece: never more than a piece is in memory beyond the cache.
fn pieces(store: LogStore, from: u64, to: u64) -> impl Stream<Item = io::Result<RaftEntry>> + Send {
    use futures_util::{StreamExt, TryStreamExt, stream};
    let piece = move |from: u64| {
        let store = store.clone();
        async move {
            let entries = store.read(from, to, LOG_READ_BYTES_MAX).await?;
            let Some(last) = entries.last() else { return Ok::<_, io::Error>(None) };
            let next = last.log_id.index() + 1;
            Ok(Some((stream::iter(entries.into_iter().map(Ok)), next)))
        }
    };
    stream::try_unfold(from, piece).try_flatten().boxed()
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: RB,
    ) -> Result<Vec<RaftEntry>, io::Error> {
        let (mut from, to) = bounds(&range);
        let mut all = Vec::new();
        loop {
            let piece = self.read(from, to, LOG_READ_BYTES_MAX).await?;
            let Some(last) = piece.last() else { return Ok(all) };
            from = last.log_id.index() + 1;
            all.extend(piece);
        }
    }

    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = Result<RaftEntry, io::Error>> + Send
    where
        RB: RangeBounds<u64> + Clone + Debug + Send,
    {
        let (from, to) = bounds(&range);
        pieces(self.clone(), from, to)
    }

    async fn leader_bounded_stream<RB>(
        &mut self,
        leader: LeaderIdOf<TypeConfig>,
        range: RB,
    ) -> impl Stream<Item = LeaderBoundedStreamResult<TypeConfig>> + Send
    where
        RB: RangeBounds<u64> + Clone + Debug + Send,
    {
        use futures_util::{StreamExt, stream};
        let (from, to) = bounds(&range);
        let store = self.clone();
        // The vote is looked at again after every entry was taken: entries of another leader must not be sent as this one's.
        let entries = pieces(self.clone(), from, to).map(Some).chain(stream::iter([None]));
        let checked = entries.scan(false, move |ended, entry| {
            let vote = store.shared.tail.lock().vote;
            let leads = vote.is_some_and(|vote| vote.leader_id == leader && vote.committed);
            let item = match entry {
                _ if *ended => None,
                _ if !leads => {
                    *ended = true;
                    Some(Some(Err(LeaderBoundedStreamError::LeaderChanged(LeaderChanged::new(leader, vote)))))
                }
                Some(entry) => Some(Some(entry.map_err(LeaderBoundedStreamError::IoError))),
                None => Some(None),
            };
            std::future::ready(item)
        });
        checked.filter_map(std::future::ready).boxed()
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.shared.tail.lock().vote)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<RaftEntry>, io::Error> {
        self.read(start, end, LOG_READ_BYTES_MAX).await
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let tail = self.shared.tail.lock();
        Ok(LogState { last_purged_log_id: tail.purged, last_log_id: tail.last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let bytes = raft_types::encode_vote(vote);
        self.durably(|wal, done| wal.save_vote(bytes, done)).await?;
        self.shared.tail.lock().vote = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        let Some(id) = committed else { return Ok(()) };
        self.shared.tail.lock().committed = Some(id);
        self.shared.wal.save_committed(raft_types::encode_log_id(&id));
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.shared.tail.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = RaftEntry> + Send,
        I::IntoIter: Send,
    {
        let queued = Instant::now();
        let mut frames = Vec::new();
        let mut bytes = 0;
        {
            let mut tail = self.shared.tail.lock();
            for entry in entries {
                let payload = raft_types::encode(&entry);
                let size = payload.iter().map(Bytes::len).sum::<usize>();
                let (index, term) = index_and_term(&entry.log_id);
                self.shared.meters.appending(&entry, queued);
                tail.push(entry, size, payload.len());
                frames.push(Frame { term, index, payload });
                bytes += size;
            }
        }
        let Some(last) = frames.last().map(|frame| frame.index) else {
            callback.io_completed(Ok(()));
            return Ok(());
        };
        self.shared.appended_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.shared.meters.append_entries.record(frames.len() as f64);
        let shared = self.shared.clone();
        let done = Box::new(move |result: Result<(), Arc<io::Error>>| match result {
            Ok(()) => {
                shared.tail.lock().written(last);
                // A watermark: the writer completes a group's newest append first.
                let end = last.0 + 1;
                shared.durable.send_if_modified(|durable| end > std::mem::replace(durable, end.max(*durable)));
                shared.meters.append_latency.record(queued.elapsed());
                callback.io_completed(Ok(()));
            }
            Err(error) => callback.io_completed(Err(lost(&shared.fatal, &error))),
        });
        self.shared.wal.append(frames, done);
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        self.shared.tail.lock().truncate_after(last_log_id);
        let last = last_log_id.map(|id| LogIndex(id.index()));
        self.durably(|wal, done| wal.truncate_after(last, done)).await?;
        let end = {
            let mut tail = self.shared.tail.lock();
            // Appends that were under way when the cut was asked for have ended meanwhile, and counted as written.
            tail.truncate_after(last_log_id);
            tail.stored().1
        };
        self.shared.durable.send_if_modified(|durable| std::mem::replace(durable, end.min(*durable)) > end);
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        self.shared.tail.lock().purge(log_id);
        let fatal = self.shared.fatal.clone();
        let shared = self.shared.clone();
        let done = Box::new(move |result: Result<(), Arc<io::Error>>| match result {
            Ok(()) => {
                // Beyond the last entry: a checkpoint was received, which holds what the log never had.
                let end = log_id.index() + 1;
                shared.durable.send_if_modified(|durable| end > std::mem::replace(durable, end.max(*durable)));
            }
            Err(error) => {
                lost(&fatal, &error);
            }
        });
        self.shared.wal.purge(LogIndex(log_id.index()), raft_types::encode_log_id(&log_id), done);
        Ok(())
    }
}
