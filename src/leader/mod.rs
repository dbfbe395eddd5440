//! The leader's soft state, PURE: dies with leadership. Open transactions, admission of producers, group members.
//!
//! Events in, actions out (openraft's engine is the model): the sequencer calls [`Leader::handle`] for a request,
//! [`Leader::applied`] / [`Leader::discarded`] / [`Leader::fate_unknown`] for a proposal it made,
//! [`Leader::handle_timeout`] for the clock, and carries out the [`Action`]s in order, before the next event.
//! Decision order is log order.
//!
//! Nothing here reads a clock, blocks, or touches the network; the machine is read, never changed.
//!
//! Where a request goes: `dispatch` → `produce` + `admission` (plain), or `transactions` (one queue for each transactional id) →
//! `staging`, `end_txn`, `init_producer_id`, with the data in `stage` and what a stage replicates early in `begin`; groups and
//! their offsets in `groups` and `offsets`; what nobody uses any more in `expiry`, old records in `retention`.
//!
//! Whether this node still leads is not known here, and an answer may not presume it: the kind of [`Action`] says what must
//! hold before it is sent. `handover` is how a leader goes as planned.
//!
//! Left out so far (transactions.md §1, §2): `txn.staging=replicated`, parking.

mod admission;
mod begin;
mod connections;
mod consumer_protocol;
mod dispatch;
mod end_txn;
mod expiry;
pub mod groups;
mod handover;
mod init_producer_id;
mod offsets;
mod produce;
mod proposals;
mod rebalance;
pub mod request;
mod retention;
mod stage;
mod staging;
mod transactions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::state::Machine;
use crate::state::command::{Command, Entry, Outcome};
use crate::types::{ConnectionId, LogIndex, Now, Refusal, Term};
use groups::Groups;
use proposals::Purpose;
use request::{Caller, OffsetFetch, Request, Response, Token};

/// Names one proposal until its fate is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What the leader wants done. Carried out in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Answer a request from what this node knows: only while no other can have been elected since it was decided (a lease,
    /// transactions.md §2). Without a lease it waits for one; a response that claims nothing does not.
    Reply(Token, Response),
    /// Answer with the outcome of an entry that was applied: true whoever leads by now.
    ReplyApplied(Token, Response),
    /// Propose an entry under the current term.
    Propose(Ticket, Entry),
    /// Answer once leadership has been confirmed by a quorum after this point (read index); if it is lost instead,
    /// answer with the refusal: EndTxn answered without an entry (transactions.md §2).
    ReplyConfirmed(Token, Response, Refusal),
}

/// The settings of the leader's rooms.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaderSettings {
    /// `transaction.max.timeout.ms`.
    pub transaction_max_timeout_ms: i32,
    /// Bytes staged in one transaction before it goes to chunks: the entry cap.
    pub entry_bytes_max: usize,
    /// Bytes staged by all open transactions together; over it the newest is doomed.
    pub staged_bytes_max: usize,
    /// `group.min.session.timeout.ms`.
    pub group_min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`.
    pub group_max_session_timeout_ms: i32,
    /// `group.initial.rebalance.delay.ms`.
    pub group_initial_rebalance_delay_ms: i32,
    /// `group.max.size`.
    pub group_max_size: usize,
    /// `offset.metadata.max.bytes`.
    pub offset_metadata_max_bytes: usize,
    /// `producer.id.expiration.ms`.
    pub producer_id_expiration_ms: i64,
    /// `transactional.id.expiration.ms`.
    pub transactional_id_expiration_ms: i64,
    /// `offsets.retention.minutes`, in milliseconds.
    pub offsets_retention_ms: i64,
    /// `log.retention.ms` (or `.minutes`, or `.hours`) where a topic does not say; −1 = for ever.
    pub log_retention_ms: i64,
    /// `log.retention.bytes` where a topic does not say; −1 = unlimited.
    pub log_retention_bytes: i64,
}

/// Counts for metrics; only ever grow, except the gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaderStats {
    /// Transactions whose commit was applied.
    pub committed: u64,
    /// Transactions that the client aborted.
    pub aborted: u64,
    /// Transactions that ran into their timeout.
    pub timed_out: u64,
    /// Requests refused because the producer was fenced.
    pub fenced: u64,
    /// Begin, chunk and commit entries applied.
    pub raft_entries: u64,
    /// Gauge: open stages.
    pub open: u64,
    /// Gauge: bytes staged.
    pub staged_bytes: u64,
    /// Gauge: when the oldest open stage was opened (monotonic ms), None without one.
    pub oldest_open_mono_ms: Option<u64>,
    /// Completed rebalances.
    pub rebalances: u64,
}

/// Whether this node may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Not yet: no term has started here.
    Loading,
    /// The term's first entry is applied.
    Leading(Term),
    /// Leadership is lost.
    Following,
}

/// One event being handled: what it may read, and what is to be done in the end.
#[derive(Debug)]
struct Turn<'a> {
    machine: &'a Machine,
    now: Now,
    term: Term,
    out: Vec<Action>,
}

impl Turn<'_> {
    fn reply(&mut self, token: Token, response: Response) {
        self.out.push(Action::Reply(token, response));
    }

    /// Answers with what an entry came to.
    fn reply_applied(&mut self, token: Token, response: Response) {
        self.out.push(Action::ReplyApplied(token, response));
    }

    /// Answers without an entry of its own: leadership is confirmed first.
    fn reply_confirmed(&mut self, token: Token, response: Response) {
        self.out.push(Action::ReplyConfirmed(token, response, Refusal::NotLeader));
    }
}

/// All soft state of a leader.
#[derive(Debug)]
pub struct Leader {
    settings: LeaderSettings,
    role: Role,
    proposals: proposals::Proposals,
    transactions: transactions::Transactions,
    admission: admission::Admission,
    /// Plain Produce requests that wait for entries.
    calls: BTreeMap<Token, produce::ProduceCall>,
    /// Produce proposals whose deadline passed: a retry of their batches is told so at once.
    unknown_produces: BTreeSet<Ticket>,
    /// OffsetFetches that wait for an EndTxn.
    fetches: Vec<(Token, OffsetFetch)>,
    /// OffsetCommits in flight.
    commits: offsets::Commits,
    earlier_terms: connections::EarlierTerms,
    groups: Groups,
    expiry: expiry::Expiry,
    parting: handover::Parting,
    stats: LeaderStats,
}

impl Leader {
    /// A leader that does not lead yet: everything is refused until [`Leader::start_term`].
    pub fn new(settings: LeaderSettings) -> Self {
        Self {
            groups: Groups::new(settings.clone()),
            settings,
            role: Role::Loading,
            proposals: proposals::Proposals::default(),
            transactions: transactions::Transactions::default(),
            admission: admission::Admission::default(),
            calls: BTreeMap::new(),
            unknown_produces: BTreeSet::new(),
            fetches: Vec::new(),
            commits: offsets::Commits::default(),
            earlier_terms: connections::EarlierTerms::default(),
            expiry: expiry::Expiry::default(),
            parting: handover::Parting::default(),
            stats: LeaderStats::default(),
        }
    }

    /// This node leads `term`, and its first entry has been applied: `machine` holds all that earlier terms committed.
    ///
    /// Chunks of earlier terms can never be committed any more: an entry frees them.
    ///
    /// `newest` is the newest connection that this node has accepted: what comes on those until then may have been sent in
    /// an earlier term.
    pub fn start_term(&mut self, machine: &Machine, term: Term, now: Now, newest: ConnectionId) -> Vec<Action> {
        let out = self.end_term();
        self.earlier_terms.term_started(newest);
        self.role = Role::Leading(term);
        self.expiry = expiry::Expiry::start(now.mono_ms, self.settings.offsets_retention_ms);
        let mut turn = Turn { machine, now, term, out };
        let chunks: Vec<LogIndex> = machine.transactions().open_chunks().map(|(stage_id, _)| stage_id).collect();
        if !chunks.is_empty() {
            self.proposals.propose(&mut turn, Command::DropStages(chunks), Purpose::Nothing);
        }
        turn.out
    }

    /// Leadership is lost: drops all soft state; everything waiting is answered (16, 6 or a close, never definitively).
    pub fn end_term(&mut self) -> Vec<Action> {
        let mut out = Vec::new();
        let mut tell = |token, refusal| out.push(Action::Reply(token, Response::Refused(refusal)));
        for purpose in self.proposals.drain() {
            if let Some(token) = purpose.waits() {
                tell(token, Refusal::FateUnknown);
            }
        }
        for token in std::mem::take(&mut self.calls).into_keys() {
            tell(token, Refusal::FateUnknown);
        }
        for transaction in std::mem::take(&mut self.transactions).by_id.into_values() {
            let acks = transaction.stage.into_iter().flat_map(|stage| stage.acks).map(|(token, _)| token);
            acks.for_each(|token| tell(token, Refusal::FateUnknown));
            let waiters = transaction.ending.into_iter().flat_map(|ending| ending.waiters);
            waiters.for_each(|token| tell(token, Refusal::FateUnknown));
            transaction.queue.into_iter().for_each(|queued| tell(queued.token, Refusal::NotLeader));
        }
        self.take_parting().into_iter().for_each(|token| tell(token, Refusal::NotLeader));
        std::mem::take(&mut self.fetches).into_iter().for_each(|(token, _)| tell(token, Refusal::NotLeader));
        self.groups.clear().into_iter().for_each(|token| tell(token, Refusal::NotLeader));
        self.admission.clear();
        self.commits = offsets::Commits::default();
        self.unknown_produces.clear();
        self.expiry = expiry::Expiry::default();
        self.earlier_terms.term_ended();
        if matches!(self.role, Role::Leading(_)) {
            self.role = Role::Following;
        }
        out
    }

    /// A request. It is answered by a [`Action::Reply`], now or later.
    pub fn handle(
        &mut self,
        machine: &Machine,
        now: Now,
        caller: &Caller,
        token: Token,
        request: Request,
    ) -> Vec<Action> {
        let refusal = match self.role {
            Role::Loading => Refusal::Loading,
            Role::Following => Refusal::NotLeader,
            Role::Leading(term) => {
                let mut turn = Turn { machine, now, term, out: Vec::new() };
                self.doom_expired(&mut turn);
                self.dispatch(&mut turn, caller, token, request);
                return turn.out;
            }
        };
        vec![Action::Reply(token, Response::Refused(refusal))]
    }

    /// The proposal was applied at `index`.
    pub fn applied(
        &mut self,
        machine: &Machine,
        now: Now,
        ticket: Ticket,
        index: LogIndex,
        outcome: Outcome,
    ) -> Vec<Action> {
        self.fate(machine, now, ticket, |leader, turn, purpose| {
            leader.was_applied(turn, ticket, purpose, index, outcome);
        })
    }

    /// The proposal will certainly never be applied (not sent, discarded, forwarded).
    pub fn discarded(&mut self, machine: &Machine, now: Now, ticket: Ticket) -> Vec<Action> {
        self.fate(machine, now, ticket, |leader, turn, purpose| leader.was_discarded(turn, ticket, purpose))
    }

    /// The proposal's deadline passed: it may still be applied. What waits for it is answered; its stage stays frozen.
    pub fn fate_unknown(&mut self, machine: &Machine, now: Now, ticket: Ticket) -> Vec<Action> {
        self.fate(machine, now, ticket, |leader, turn, purpose| leader.is_unknown(turn, ticket, purpose))
    }

    /// News of a proposal of this term; that of an earlier one finds nothing.
    fn fate(
        &mut self,
        machine: &Machine,
        now: Now,
        ticket: Ticket,
        tell: impl FnOnce(&mut Self, &mut Turn<'_>, Purpose),
    ) -> Vec<Action> {
        let (Role::Leading(term), Some(purpose)) = (self.role, self.proposals.take(ticket)) else { return Vec::new() };
        let mut turn = Turn { machine, now, term, out: Vec::new() };
        tell(self, &mut turn, purpose);
        turn.out
    }

    /// What became due: transaction timeouts, group sessions, delayed joins, expiry.
    pub fn handle_timeout(&mut self, machine: &Machine, now: Now) -> Vec<Action> {
        let Role::Leading(term) = self.role else { return Vec::new() };
        let mut turn = Turn { machine, now, term, out: Vec::new() };
        self.doom_expired(&mut turn);
        self.groups.handle_timeout(now, &mut turn.out);
        self.follow_groups(&mut turn);
        self.expire(&mut turn);
        turn.out
    }

    /// When [`Leader::handle_timeout`] wants to be called next (monotonic ms), None for never.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let Role::Leading(_) = self.role else { return None };
        let stage = self.transactions.deadlines.first().map(|(deadline_ms, _)| *deadline_ms);
        [stage, self.groups.next_deadline_ms(), self.expiry.next_ms].into_iter().flatten().min()
    }

    /// The groups with a generation to remember, in order, and how many members each has.
    pub fn group_members(&self) -> impl Iterator<Item = (Arc<str>, usize)> {
        self.groups.iter().map(|group| (Arc::clone(group.id()), group.member_count()))
    }

    /// Counts for metrics.
    pub fn stats(&self) -> LeaderStats {
        let oldest = self.transactions.by_number.values().next();
        let oldest = oldest.and_then(|id| self.transactions.by_id.get(id)).and_then(|oldest| oldest.stage.as_ref());
        LeaderStats {
            open: self.transactions.by_number.len() as u64,
            staged_bytes: self.transactions.staged_bytes as u64,
            oldest_open_mono_ms: oldest.map(|stage| stage.opened_ms),
            rebalances: self.groups.rebalances(),
            ..self.stats
        }
    }
}

#[cfg(test)]
mod tests;
