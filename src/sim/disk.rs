//! A node's disk: what is durable, what was written and not synced, and what a crash leaves of that.
//!
//! A crash keeps some of the unsynced writes, in order, and may cut the next one short; recovery tells a torn entry by
//! its checksum and drops it. A failed sync ends the node like a crash: what was written is nowhere for certain
//! (PostgreSQL's fsync surprise).

use std::sync::Arc;

use super::raft::{LogEntry, NodeId};
use super::records::Logs;
use super::rng::Rng;

/// The state of a replica at one place of the log.
#[derive(Debug)]
pub struct Checkpoint {
    /// How many entries it contains.
    pub len: u64,
    /// Term of the last one.
    pub term: u64,
    /// `Machine::to_bytes`.
    pub machine: Vec<u8>,
    /// The partitions' logs.
    pub logs: Logs,
}

/// One write.
#[derive(Clone, Debug)]
pub enum Op {
    /// Term and vote.
    Vote(u64, Option<NodeId>),
    /// An entry at an index, with its checksum.
    Append(u64, LogEntry, u32),
    /// The log ends before this index.
    Truncate(u64),
    /// A checkpoint, and the log begins at this index.
    Checkpoint(Arc<Checkpoint>, u64),
    /// A checkpoint that replaces the log.
    Install(Arc<Checkpoint>),
}

impl Op {
    /// An entry to append.
    pub fn append(index: u64, entry: &LogEntry) -> Self {
        Op::Append(index, entry.clone(), crc32c::crc32c(&entry.bytes))
    }
}

/// What survives.
#[derive(Clone, Debug, Default)]
pub struct Durable {
    /// The term.
    pub term: u64,
    /// Whom it voted for in it.
    pub voted_for: Option<NodeId>,
    /// Index of the first entry in `log`.
    pub base: u64,
    /// Term of the entry before it.
    pub base_term: u64,
    /// Entries.
    pub log: Vec<LogEntry>,
    /// The last checkpoint.
    pub checkpoint: Option<Arc<Checkpoint>>,
}

impl Durable {
    fn take(&mut self, op: Op) {
        match op {
            Op::Vote(term, voted_for) => (self.term, self.voted_for) = (term, voted_for),
            Op::Append(index, entry, _) => {
                self.truncate(index);
                assert_eq!(self.base + self.log.len() as u64, index, "entries are written in order");
                self.log.push(entry);
            }
            Op::Truncate(index) => self.truncate(index),
            Op::Checkpoint(checkpoint, base) => {
                if base > self.base {
                    let cut = (base - self.base) as usize;
                    self.base_term = self.log[cut - 1].term;
                    self.log.drain(..cut);
                    self.base = base;
                }
                self.checkpoint = Some(checkpoint);
            }
            Op::Install(checkpoint) => {
                (self.base, self.base_term) = (checkpoint.len, checkpoint.term);
                self.log.clear();
                self.checkpoint = Some(checkpoint);
            }
        }
    }

    fn truncate(&mut self, index: u64) {
        self.log.truncate(index.saturating_sub(self.base) as usize);
    }

    /// Whether the entry at an index with that term is durable here.
    pub fn holds(&self, index: u64, term: u64) -> bool {
        index < self.base || self.log.get((index - self.base) as usize).is_some_and(|entry| entry.term == term)
    }
}

/// A disk.
#[derive(Debug, Default)]
pub struct Disk {
    /// What survives.
    pub durable: Durable,
    queue: Vec<Op>,
    /// How many of them the sync under way covers.
    syncing: Option<usize>,
    taken: u64,
}

impl Disk {
    /// Writes; not durable before a sync that starts later ends.
    pub fn write(&mut self, op: Op) {
        self.queue.push(op);
    }

    /// Starts a sync if there is something to sync and none runs.
    pub fn start_sync(&mut self) -> bool {
        let starts = self.syncing.is_none() && !self.queue.is_empty();
        if starts {
            self.syncing = Some(self.queue.len());
        }
        starts
    }

    /// The sync ends: what it covers is durable.
    pub fn synced(&mut self) {
        let Some(count) = self.syncing.take() else { return };
        self.taken += count as u64;
        for op in self.queue.drain(..count).collect::<Vec<_>>() {
            self.durable.take(op);
        }
    }

    /// How many writes there have been.
    pub fn written(&self) -> u64 {
        self.taken + self.queue.len() as u64
    }

    /// How many of them are durable.
    pub fn durable_writes(&self) -> u64 {
        self.taken
    }

    /// Whether a vote or term waits to become durable.
    pub fn has_unsynced_vote(&self) -> bool {
        self.queue.iter().any(|op| matches!(op, Op::Vote(..)))
    }

    /// The first index that is not durable, for a log of `len` entries.
    pub fn durable_len(&self, len: u64) -> u64 {
        let unsynced = self.queue.iter().filter_map(|op| match op {
            Op::Append(index, ..) => Some(*index),
            _ => None,
        });
        unsynced.min().unwrap_or(len)
    }

    /// The power goes: some of what was not synced survives, the next write perhaps in part.
    pub fn crash(&mut self, rng: &mut Rng) {
        let kept = rng.index(self.queue.len() + 1);
        let mut queue = std::mem::take(&mut self.queue).into_iter();
        for op in queue.by_ref().take(kept) {
            self.durable.take(op);
        }
        if let Some(Op::Append(index, mut entry, crc)) = queue.next()
            && rng.chance(500)
        {
            entry.bytes = entry.bytes.slice(..rng.index(entry.bytes.len()));
            // Recovery: the checksum does not match, so the log ends before it.
            if crc32c::crc32c(&entry.bytes) == crc {
                self.durable.take(Op::Append(index, entry, crc));
            } else {
                self.durable.take(Op::Truncate(index));
            }
        }
        self.syncing = None;
        self.taken = 0;
    }
}
