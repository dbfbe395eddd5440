//! One node: its Raft, its disk, its clock, the replicated state and, while it leads, the leader's room.
//!
//! How requests, proposals and answers meet stands in [`sequencer`].

mod sequencer;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use katomic::leader::LeaderSettings;
use katomic::leader::request::Response;
use katomic::log::entry;
use katomic::state::Machine;
use katomic::state::command::{Appended, Effects, Entry, Outcome};
use katomic::types::{LogIndex, Now, Term, TopicId};

use super::disk::{Checkpoint, Disk, Op};
use super::mutants::Mutant;
use super::network::{ConnId, RequestId};
use super::raft::{Message, NodeId, Out, Raft};
use super::records::{Logs, record};
use super::rng::Rng;
use sequencer::Sequencer;

/// Entries between two checkpoints, and entries kept in front of one.
const CHECKPOINT_ENTRIES: u64 = 150;
const CHECKPOINT_KEEPS: u64 = 20;
/// Every so many entries the whole state is compared.
const STATE_EVERY: u64 = 16;
/// Wall clock of the start of the world.
const WALL_MS: i64 = 1_700_000_000_000;

/// A node's clocks against the world's.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Parts of a thousand that the monotonic clock runs at: within 10 of 1,000.
    pub rate: u64,
    /// What the wall clock is off by.
    pub wall_offset_ms: i64,
}

impl Clock {
    /// Both clocks, at a time of the world.
    pub fn now(self, world_us: u64) -> Now {
        let mono_ms = world_us * self.rate / 1_000_000 + 1_000;
        Now { mono_ms, wall_ms: WALL_MS + (world_us / 1_000) as i64 + self.wall_offset_ms }
    }
}

/// What an apply did, for the oracle.
#[derive(Debug)]
pub struct Applied {
    pub index: u64,
    pub term: u64,
    /// None for a blank entry.
    pub entry: Option<Entry>,
    /// CRC of the entry as the log has it.
    pub crc: u32,
    pub appended: Vec<Appended>,
    pub deleted: Vec<TopicId>,
    pub outcome: Outcome,
    /// CRC of the whole state, now and then.
    pub state: Option<u32>,
}

/// What a client gets.
#[derive(Clone, Debug)]
pub enum Reply {
    /// An answer.
    Answer(Response),
    /// The connection is closed.
    Closed,
}

/// What the world must do after an event at a node.
#[derive(Debug, Default)]
pub struct Output {
    pub messages: Vec<(NodeId, Message)>,
    pub replies: Vec<(ConnId, RequestId, Reply)>,
    pub sync_started: bool,
    pub apply_due: bool,
    /// Answers went out: of which term, and when they were decided.
    pub answered: Vec<(u64, u64)>,
}

/// Where and when an event happens.
pub struct At<'a> {
    pub now: Now,
    pub world_us: u64,
    pub rng: &'a mut Rng,
    pub out: &'a mut Output,
}

/// One node that runs.
#[derive(Debug)]
pub struct Node {
    id: NodeId,
    mutant: Mutant,
    /// Its Raft.
    pub raft: Raft,
    /// Its disk.
    pub disk: Disk,
    /// Sent when so many writes are durable.
    after_sync: VecDeque<(u64, NodeId, Message)>,
    /// The replicated state.
    pub machine: Machine,
    /// What its partitions hold.
    pub logs: Logs,
    /// Entries applied.
    pub applied: u64,
    checkpoint: Option<Arc<Checkpoint>>,
    sequencer: Sequencer,
    /// Proposals of a thousand that are refused before they are sent.
    pub refuses_per_mille: u64,
}

impl Node {
    /// A node that starts with what its disk has.
    pub fn start(id: NodeId, disk: Disk, settings: &LeaderSettings, now: Now, mutant: Mutant, rng: &mut Rng) -> Self {
        let raft = Raft::new(id, &disk.durable, now.mono_ms, mutant, rng);
        let checkpoint = disk.durable.checkpoint.clone();
        let (machine, logs, applied) = match &checkpoint {
            None => (Machine::default(), Logs::default(), 0),
            Some(checkpoint) => (restored(checkpoint), checkpoint.logs.clone(), checkpoint.len),
        };
        let sequencer = Sequencer::new(settings);
        let after_sync = VecDeque::new();
        let refuses_per_mille = 0;
        Self { id, mutant, raft, disk, after_sync, machine, logs, applied, checkpoint, sequencer, refuses_per_mille }
    }

    /// The term this node serves.
    pub fn serving(&self) -> Option<u64> {
        self.sequencer.term
    }

    // === Events ===

    /// Time passed.
    pub fn tick(&mut self, at: &mut At<'_>) {
        let mut raft_out = Vec::new();
        self.raft.tick(at.now.mono_ms, at.rng, &mut raft_out);
        self.carry_out_raft(raft_out, at);
        self.follow_raft(at);
        self.sequence_time(at);
    }

    /// A message of another node.
    pub fn receive(&mut self, from: NodeId, message: Message, at: &mut At<'_>) {
        let mut raft_out = Vec::new();
        self.raft.receive(from, message, at.now.mono_ms, &entry::encode_blank(), at.rng, &mut raft_out);
        self.carry_out_raft(raft_out, at);
        self.follow_raft(at);
        self.release(at);
    }

    /// The sync under way ended.
    pub fn synced(&mut self, at: &mut At<'_>) {
        self.disk.synced();
        self.raft.synced(self.disk.durable_len(self.raft.len()));
        let durable = self.disk.durable_writes();
        while let Some((_, to, message)) = self.after_sync.pop_front_if(|(needs, ..)| *needs <= durable) {
            at.out.messages.push((to, message));
        }
        self.carry_out_raft(Vec::new(), at);
        self.follow_raft(at);
    }

    /// Applies what is committed.
    pub fn apply(&mut self, at: &mut At<'_>) -> Vec<Applied> {
        let mut all = Vec::new();
        while self.applied < self.raft.committed {
            all.push(self.apply_next(at.now));
        }
        self.take_checkpoint(at);
        self.event(at, |_, _, _| Vec::new());
        all
    }

    // === Raft ===

    fn carry_out_raft(&mut self, outs: Vec<Out>, at: &mut At<'_>) {
        for out in outs {
            match out {
                Out::Write(Op::Vote(..)) if self.mutant == Mutant::AcksBeforeSync => {}
                Out::Write(op) => self.disk.write(op),
                Out::Send { to, message, durable } => {
                    let waits = durable && self.disk.written() > self.disk.durable_writes();
                    let waits = waits || self.disk.has_unsynced_vote();
                    if waits && self.mutant != Mutant::AcksBeforeSync {
                        self.after_sync.push_back((self.disk.written(), to, message));
                    } else {
                        at.out.messages.push((to, message));
                    }
                }
                Out::SendCheckpoint { to, round } => {
                    let checkpoint = self.checkpoint.clone().expect("a log that was cut has a checkpoint");
                    let message = Message::Install { term: self.raft.term(), checkpoint, round };
                    at.out.messages.push((to, message));
                }
                Out::Install(checkpoint) => {
                    self.machine = restored(&checkpoint);
                    self.logs = checkpoint.logs.clone();
                    self.applied = checkpoint.len;
                    self.checkpoint = Some(checkpoint);
                }
            }
        }
        at.out.sync_started |= self.disk.start_sync();
        at.out.apply_due |= self.applied < self.raft.committed;
    }

    /// What Raft says about leadership.
    fn follow_raft(&mut self, at: &mut At<'_>) {
        if self.sequencer.term.is_some() && self.sequencer.term != self.raft.leading() {
            self.end_term(at);
        }
        self.event(at, |_, _, _| Vec::new());
    }

    // === The state ===

    fn apply_next(&mut self, now: Now) -> Applied {
        let index = self.applied;
        let log_entry = self.raft.entry(index).clone();
        let term = if self.mutant == Mutant::NoTermFence { Term(1) } else { Term(log_entry.term) };
        let crc = crc32c::crc32c(&log_entry.bytes);
        let (entry, effects, outcome) = match entry::decode_stored(log_entry.bytes).expect("a committed entry is whole")
        {
            entry::Stored::Command(mut entry) => {
                if self.mutant == Mutant::ApplyReadsClock {
                    entry.now_ms = now.wall_ms;
                }
                let (effects, outcome) = self.machine.apply(LogIndex(index), term, &entry);
                (Some(entry), effects, outcome)
            }
            entry::Stored::Blank | entry::Stored::Members(_) => {
                self.machine.apply_blank(LogIndex(index), term);
                (None, Effects::default(), Outcome::Done)
            }
        };
        let Effects { appended, deleted, .. } = effects;
        if !deleted.is_empty() {
            self.logs = self
                .logs
                .iter()
                .filter(|(at, _)| !deleted.contains(&at.topic))
                .map(|(at, log)| (*at, log.clone()))
                .collect();
        }
        for appended in &appended {
            self.logs.entry(appended.to).or_default().push_back(record(appended));
        }
        self.applied += 1;
        self.was_applied(index, log_entry.term, entry.as_ref(), &outcome);
        let state = index.is_multiple_of(STATE_EVERY).then(|| crc32c::crc32c(&self.machine.to_bytes()));
        Applied { index, term: log_entry.term, entry, crc, appended, deleted, outcome, state }
    }

    fn take_checkpoint(&mut self, at: &mut At<'_>) {
        let last = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.len);
        if self.applied < last + CHECKPOINT_ENTRIES {
            return;
        }
        let term = self.raft.entry(self.applied - 1).term;
        let (machine, logs) = (self.machine.to_bytes(), self.logs.clone());
        let checkpoint = Arc::new(Checkpoint { len: self.applied, term, machine, logs });
        self.checkpoint = Some(checkpoint.clone());
        let base = (self.applied - CHECKPOINT_KEEPS).min(self.disk.durable_len(self.raft.len())).max(self.raft.base());
        self.raft.compact(base);
        self.disk.write(Op::Checkpoint(checkpoint, base));
        at.out.sync_started |= self.disk.start_sync();
    }
}

fn restored(checkpoint: &Checkpoint) -> Machine {
    let bytes = Bytes::from(checkpoint.machine.clone());
    Machine::from_bytes(&bytes).expect("a checkpoint is read as it was written")
}
