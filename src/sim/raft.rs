//! A model of Raft (Ongaro and Ousterhout, figure 2; leases and read index from Ongaro's thesis, §6.4), as pure as the rooms
//! above it: events in, [`Out`] out.
//!
//! Stands in for openraft: the same promises, none of its code. Indexes are log indexes from 0, lengths count entries. A
//! follower that heard its leader votes for nobody for [`LEASE_MS`], and so does a node that has just started, for it may
//! have promised that before; the leader's own lease is shorter by the margin for clocks that run at different speeds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::disk::{Checkpoint, Op};
pub use super::message::{LogEntry, Message, NODES, NodeId};
use super::mutants::Mutant;
use super::rng::Rng;

const MAJORITY: usize = 2;
/// Between two heartbeats.
const HEARTBEAT_MS: u64 = 60;
/// How long a follower that heard its leader votes for nobody.
pub const LEASE_MS: u64 = 300;
/// How long the leader relies on it: clocks may differ by 10 %.
const LEADER_LEASE_MS: u64 = LEASE_MS * 9 / 10;
const ELECTION_MS: (u64, u64) = (LEASE_MS + 20, 700);
/// Entries in one message.
const ENTRIES_MAX: u64 = 40;

/// What the node must do, in order.
#[derive(Debug)]
pub enum Out {
    /// Write.
    Write(Op),
    /// Send; not before everything written so far is durable if `durable`.
    Send { to: NodeId, message: Message, durable: bool },
    /// Send the last checkpoint: the log does not reach back far enough.
    SendCheckpoint { to: NodeId, round: u64 },
    /// Put another state in place.
    Install(Arc<Checkpoint>),
}

/// What a leader knows of the others.
#[derive(Debug)]
struct Leading {
    next: [u64; NODES],
    matched: [u64; NODES],
    acked_round: [u64; NODES],
    /// When the newest round that was acknowledged had been sent.
    acked_sent_ms: [Option<u64>; NODES],
    round: u64,
    sent_ms: BTreeMap<u64, u64>,
    heartbeat_due_ms: u64,
    /// It has let go: no lease, no heartbeats.
    let_go: bool,
}

#[derive(Debug)]
enum Role {
    Follower,
    Candidate(BTreeSet<NodeId>),
    Leader(Leading),
}

/// One node's Raft.
#[derive(Debug)]
pub struct Raft {
    me: NodeId,
    mutant: Mutant,
    term: u64,
    voted_for: Option<NodeId>,
    base: u64,
    base_term: u64,
    log: Vec<LogEntry>,
    /// Entries that are durable here, from the front.
    durable: u64,
    /// Entries known to be committed, from the front.
    pub committed: u64,
    role: Role,
    /// Who leads, as far as this node knows.
    pub leader: Option<NodeId>,
    /// Whether it stands for election by itself; a scenario chooses who does.
    pub may_stand: bool,
    votes_from_ms: u64,
    election_due_ms: u64,
}

impl Raft {
    /// A node that starts with what its disk has.
    pub fn new(me: NodeId, disk: &super::disk::Durable, now_ms: u64, mutant: Mutant, rng: &mut Rng) -> Self {
        let forgets = mutant == Mutant::VotesAfterRestart;
        Self {
            me,
            mutant,
            term: disk.term,
            voted_for: disk.voted_for,
            base: disk.base,
            base_term: disk.base_term,
            log: disk.log.clone(),
            durable: disk.base + disk.log.len() as u64,
            committed: disk.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.len),
            role: Role::Follower,
            leader: None,
            may_stand: true,
            votes_from_ms: if forgets { 0 } else { now_ms + LEASE_MS },
            election_due_ms: now_ms + rng.between(ELECTION_MS.0, ELECTION_MS.1),
        }
    }

    /// Entries in the log, those that checkpoints replaced included.
    pub fn len(&self) -> u64 {
        self.base + self.log.len() as u64
    }

    /// The entry at an index that no checkpoint replaced.
    pub fn entry(&self, index: u64) -> &LogEntry {
        &self.log[(index - self.base) as usize]
    }

    /// First index that the log still has.
    pub fn base(&self) -> u64 {
        self.base
    }

    fn term_before(&self, len: u64) -> u64 {
        if len == self.base { self.base_term } else { self.entry(len - 1).term }
    }

    /// The current term.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The term this node leads.
    pub fn leading(&self) -> Option<u64> {
        matches!(self.role, Role::Leader(_)).then_some(self.term)
    }

    /// The log up to here is in a checkpoint: forgets what lies before `base`.
    pub fn compact(&mut self, base: u64) {
        if base > self.base {
            self.base_term = self.term_before(base);
            self.log.drain(..(base - self.base) as usize);
            self.base = base;
        }
    }

    // === Time ===

    /// Elections and heartbeats that are due.
    pub fn tick(&mut self, now_ms: u64, rng: &mut Rng, out: &mut Vec<Out>) {
        match &self.role {
            Role::Leader(leading) if leading.heartbeat_due_ms <= now_ms && !leading.let_go => {
                self.broadcast(now_ms, out);
            }
            Role::Leader(_) => {}
            Role::Follower | Role::Candidate(_) if self.election_due_ms <= now_ms && self.may_stand => {
                self.stand(now_ms, rng, out);
            }
            Role::Follower | Role::Candidate(_) => {}
        }
    }

    fn stand(&mut self, now_ms: u64, rng: &mut Rng, out: &mut Vec<Out>) {
        self.term += 1;
        self.voted_for = Some(self.me);
        self.leader = None;
        self.role = Role::Candidate(BTreeSet::from([self.me]));
        self.election_due_ms = now_ms + rng.between(ELECTION_MS.0, ELECTION_MS.1);
        out.push(Out::Write(Op::Vote(self.term, self.voted_for)));
        let message = Message::Vote { term: self.term, last_term: self.term_before(self.len()), len: self.len() };
        for to in (0..NODES).filter(|to| *to != self.me) {
            out.push(Out::Send { to, message: message.clone(), durable: true });
        }
    }

    fn follow(&mut self, term: u64, out: &mut Vec<Out>) {
        if term > self.term {
            self.term = term;
            self.voted_for = None;
            self.leader = None;
            out.push(Out::Write(Op::Vote(term, None)));
        }
        self.role = Role::Follower;
    }

    // === Leading ===

    fn lead(&mut self, now_ms: u64, blank: Bytes, out: &mut Vec<Out>) {
        self.leader = Some(self.me);
        self.role = Role::Leader(Leading {
            next: [self.len(); NODES],
            matched: [0; NODES],
            acked_round: [0; NODES],
            acked_sent_ms: [None; NODES],
            round: 0,
            sent_ms: BTreeMap::new(),
            heartbeat_due_ms: now_ms,
            let_go: false,
        });
        self.propose(blank, out);
        self.broadcast(now_ms, out);
    }

    /// Appends an entry of this term; None if this node does not lead.
    pub fn propose(&mut self, bytes: Bytes, out: &mut Vec<Out>) -> Option<u64> {
        self.leading()?;
        let index = self.len();
        let entry = LogEntry { term: self.term, bytes };
        out.push(Out::Write(Op::append(index, &entry)));
        self.log.push(entry);
        Some(index)
    }

    /// Sends everyone what it lacks, as a new round; returns the round.
    pub fn broadcast(&mut self, now_ms: u64, out: &mut Vec<Out>) -> u64 {
        let Role::Leader(leading) = &mut self.role else { return 0 };
        leading.round += 1;
        leading.heartbeat_due_ms = now_ms + HEARTBEAT_MS;
        leading.sent_ms.insert(leading.round, now_ms);
        let round = leading.round;
        while leading.sent_ms.len() > 64 {
            leading.sent_ms.pop_first();
        }
        let me = self.me;
        for to in (0..NODES).filter(|to| *to != me) {
            self.send_entries(to, round, out);
        }
        round
    }

    fn send_entries(&mut self, to: NodeId, round: u64, out: &mut Vec<Out>) {
        let Role::Leader(leading) = &self.role else { return };
        let next = leading.next[to];
        let from = next.min(self.len());
        if from < self.base {
            return out.push(Out::SendCheckpoint { to, round });
        }
        let until = (from + ENTRIES_MAX).min(self.len());
        let entries: Vec<LogEntry> = (from..until).map(|index| self.entry(index).clone()).collect();
        let message = Message::Append {
            term: self.term,
            prev_len: from,
            prev_term: self.term_before(from),
            entries,
            committed: self.committed,
            round,
        };
        out.push(Out::Send { to, message, durable: false });
        let Role::Leader(leading) = &mut self.role else { return };
        leading.next[to] = until;
    }

    /// What was written up to here is durable.
    pub fn synced(&mut self, durable: u64) {
        self.durable = durable;
        self.commit();
    }

    fn commit(&mut self) {
        let Role::Leader(leading) = &mut self.role else { return };
        leading.matched[self.me] = self.durable;
        let mut matched = leading.matched;
        matched.sort_unstable();
        let quorum = if self.mutant == Mutant::CommitsAlone { self.durable } else { matched[NODES - MAJORITY] };
        if quorum > self.committed && quorum > self.base && self.entry(quorum - 1).term == self.term {
            self.committed = quorum;
        }
    }

    /// When that was sent which a majority acknowledged; 0 if nothing was, or if it does not count any more.
    pub fn quorum_sent_ms(&self, now_ms: u64) -> u64 {
        let Role::Leader(leading) = &self.role else { return 0 };
        let sent = |node: NodeId| if node == self.me { now_ms } else { leading.acked_sent_ms[node].unwrap_or(0) };
        let mut acked: Vec<u64> = (0..NODES).map(sent).collect();
        acked.sort_unstable();
        if leading.let_go { 0 } else { acked[NODES - MAJORITY] }
    }

    /// Until when no other node can lead.
    pub fn lease_until_ms(&self, now_ms: u64) -> u64 {
        self.quorum_sent_ms(now_ms) + LEADER_LEASE_MS
    }

    /// Lets go: answers nothing more, and tells the others that they may elect.
    pub fn let_go(&mut self, out: &mut Vec<Out>) {
        let Role::Leader(leading) = &mut self.role else { return };
        leading.let_go = true;
        let me = self.me;
        let others = || (0..NODES).filter(|node| *node != me);
        let next = others().max_by_key(|node| leading.matched[*node]).expect("there are others");
        for to in others() {
            out.push(Out::Send { to, message: Message::LetGo { term: self.term, next }, durable: false });
        }
    }

    /// Whether a majority acknowledged that round or a later one.
    pub fn is_confirmed(&self, round: u64) -> bool {
        let Role::Leader(leading) = &self.role else { return false };
        if leading.let_go {
            return false;
        }
        let acked = (0..NODES).filter(|node| *node == self.me || leading.acked_round[*node] >= round);
        acked.count() >= MAJORITY
    }

    // === Messages ===

    /// A message from another node; `blank` is the entry a new leader begins with.
    pub fn receive(
        &mut self,
        from: NodeId,
        message: Message,
        now_ms: u64,
        blank: &Bytes,
        rng: &mut Rng,
        out: &mut Vec<Out>,
    ) {
        match message {
            Message::Vote { term, last_term, len } => self.asked_for_vote(from, (term, last_term, len), now_ms, out),
            Message::Voted { term, granted } => self.voted(from, term, granted, now_ms, blank, out),
            Message::Append { term, prev_len, prev_term, entries, committed, round } => {
                if !self.heard(from, term, now_ms, rng, out) {
                    return;
                }
                let appended = self.append(prev_len, prev_term, entries, committed, out);
                let (matched, hint, durable) = match appended {
                    Ok((matched, true)) => (Some(matched), 0, true),
                    Ok((matched, false)) => (Some(matched.min(self.durable)), 0, false),
                    Err(hint) => (None, hint, false),
                };
                let message = Message::Appended { term, round, matched, hint };
                out.push(Out::Send { to: from, message, durable });
            }
            Message::Appended { term, round, matched, hint } => {
                self.appended(from, term, round, matched, hint, out);
            }
            Message::Deposed { term } if term > self.term => self.follow(term, out),
            Message::Deposed { .. } => {}
            Message::LetGo { term, next } if term == self.term && matches!(self.role, Role::Follower) => {
                self.votes_from_ms = 0;
                if next == self.me {
                    self.stand(now_ms, rng, out);
                }
            }
            Message::LetGo { .. } => {}
            Message::Install { term, checkpoint, round } => {
                if !self.heard(from, term, now_ms, rng, out) {
                    return;
                }
                let matched = Some(checkpoint.len);
                if checkpoint.len > self.committed {
                    self.install(checkpoint, out);
                }
                let message = Message::Appended { term, round, matched, hint: 0 };
                out.push(Out::Send { to: from, message, durable: true });
            }
        }
    }

    fn asked_for_vote(&mut self, from: NodeId, asked: (u64, u64, u64), now_ms: u64, out: &mut Vec<Out>) {
        let (term, last_term, len) = asked;
        let leased = match self.role {
            Role::Leader(_) => now_ms < self.lease_until_ms(now_ms),
            Role::Follower | Role::Candidate(_) => now_ms < self.votes_from_ms,
        };
        if leased || term < self.term {
            let message = Message::Voted { term: self.term, granted: false };
            return out.push(Out::Send { to: from, message, durable: true });
        }
        if term > self.term {
            self.follow(term, out);
        }
        let up_to_date = (last_term, len) >= (self.term_before(self.len()), self.len());
        let granted = up_to_date && self.voted_for.is_none_or(|voted| voted == from);
        if granted && self.voted_for.is_none() {
            self.voted_for = Some(from);
            self.election_due_ms = self.election_due_ms.max(now_ms + LEASE_MS);
            out.push(Out::Write(Op::Vote(self.term, self.voted_for)));
        }
        out.push(Out::Send { to: from, message: Message::Voted { term: self.term, granted }, durable: true });
    }

    fn voted(&mut self, from: NodeId, term: u64, granted: bool, now_ms: u64, blank: &Bytes, out: &mut Vec<Out>) {
        if term > self.term {
            return self.follow(term, out);
        }
        let Role::Candidate(votes) = &mut self.role else { return };
        if granted && term == self.term {
            votes.insert(from);
            if votes.len() >= MAJORITY {
                self.lead(now_ms, blank.clone(), out);
            }
        }
    }

    /// A message of a leader: false if it leads no more.
    fn heard(&mut self, from: NodeId, term: u64, now_ms: u64, rng: &mut Rng, out: &mut Vec<Out>) -> bool {
        if term < self.term {
            out.push(Out::Send { to: from, message: Message::Deposed { term: self.term }, durable: false });
            return false;
        }
        assert!(term > self.term || self.leading().is_none(), "two leaders of term {term}");
        self.follow(term, out);
        self.leader = Some(from);
        self.votes_from_ms = self.votes_from_ms.max(now_ms + LEASE_MS);
        self.election_due_ms = now_ms + rng.between(ELECTION_MS.0, ELECTION_MS.1);
        true
    }

    /// Appends what follows: how long the logs agree and whether something was added, or where to try again.
    fn append(
        &mut self,
        mut prev_len: u64,
        prev_term: u64,
        mut entries: Vec<LogEntry>,
        committed: u64,
        out: &mut Vec<Out>,
    ) -> Result<(u64, bool), u64> {
        if prev_len < self.base {
            // What a checkpoint contains is committed, so the logs agree there.
            let known = (self.base - prev_len).min(entries.len() as u64);
            entries.drain(..known as usize);
            prev_len += known;
            if prev_len < self.base {
                return Ok((self.base, false));
            }
        } else if prev_len > self.len() || self.term_before(prev_len) != prev_term {
            return Err(self.len().min(prev_len.saturating_sub(1)).max(self.committed));
        }
        let matched = prev_len + entries.len() as u64;
        let carries = !entries.is_empty();
        for (index, entry) in (prev_len..).zip(entries) {
            if index < self.len() {
                if self.entry(index).term == entry.term {
                    continue;
                }
                assert!(index >= self.committed, "node {} is to drop entry {index}, which is committed", self.me);
                self.log.truncate((index - self.base) as usize);
                self.durable = self.durable.min(index);
                out.push(Out::Write(Op::Truncate(index)));
            }
            out.push(Out::Write(Op::append(index, &entry)));
            self.log.push(entry);
        }
        self.committed = self.committed.max(committed.min(matched));
        Ok((matched, carries))
    }

    fn appended(&mut self, from: NodeId, term: u64, round: u64, matched: Option<u64>, hint: u64, out: &mut Vec<Out>) {
        let len = self.len();
        let (true, Role::Leader(leading)) = (term == self.term, &mut self.role) else { return };
        if round > leading.acked_round[from] {
            leading.acked_round[from] = round;
            leading.acked_sent_ms[from] = leading.sent_ms.get(&round).copied().or(leading.acked_sent_ms[from]);
        }
        match matched {
            Some(matched) => {
                leading.matched[from] = leading.matched[from].max(matched);
                leading.next[from] = leading.next[from].max(matched);
            }
            None => leading.next[from] = hint.max(leading.matched[from]).min(len),
        }
        let behind = leading.next[from] < len;
        self.commit();
        if behind || matched.is_none() {
            let round = if let Role::Leader(leading) = &self.role { leading.round } else { 0 };
            self.send_entries(from, round, out);
        }
    }

    fn install(&mut self, checkpoint: Arc<Checkpoint>, out: &mut Vec<Out>) {
        (self.base, self.base_term) = (checkpoint.len, checkpoint.term);
        self.log.clear();
        self.durable = self.base;
        self.committed = self.base;
        out.push(Out::Write(Op::Install(checkpoint.clone())));
        out.push(Out::Install(checkpoint));
    }
}
