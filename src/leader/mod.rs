//! The leader's soft state, PURE: dies with leadership. Open transactions, admission of producers, group members.
//!
//! Events in, actions out (openraft's engine is the model): the sequencer calls [`Leader::handle`] for a request,
//! [`Leader::applied`] / [`Leader::discarded`] / [`Leader::fate_unknown`] for a proposal it made,
//! [`Leader::handle_timeout`] for the clock, and carries out the [`Action`]s in order, before the next event.
//! Decision order is log order.
//!
//! Nothing here reads a clock, blocks, or touches the network; the machine is read, never changed.

mod consumer_protocol;
pub mod groups;
mod rebalance;
pub mod request;

use crate::state::Machine;
use crate::state::command::{Entry, Outcome};
use crate::types::{LogIndex, Now, Refusal, Term};
use request::{Caller, Request, Response, Token};

/// Names one proposal until its fate is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What the leader wants done. Carried out in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Answer a request.
    Reply(Token, Response),
    /// Propose an entry under the current term.
    Propose(Ticket, Entry),
    /// Answer once leadership has been confirmed by a quorum after this point (read index); if it is lost instead,
    /// answer with the refusal: EndTxn answered without an entry, and group answers (transactions.md §2).
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

/// All soft state of a leader.
#[derive(Debug)]
pub struct Leader {
    settings: LeaderSettings,
}

impl Leader {
    /// A leader that does not lead yet: everything is refused until [`Leader::start_term`].
    pub fn new(settings: LeaderSettings) -> Self {
        Self { settings }
    }

    /// This node leads `term`, and its first entry has been applied: `machine` holds all that earlier terms committed.
    pub fn start_term(&mut self, machine: &Machine, term: Term, now: Now) -> Vec<Action> {
        let _ = (machine, term, now, &self.settings);
        todo!("leader helpers")
    }

    /// Leadership is lost: drops all soft state; everything waiting is answered (16, 6 or a close, never definitively).
    pub fn end_term(&mut self) -> Vec<Action> {
        todo!("leader helpers")
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
        let _ = (machine, now, caller, token, request);
        todo!("leader helpers")
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
        let _ = (machine, now, ticket, index, outcome);
        todo!("leader helpers")
    }

    /// The proposal will certainly never be applied (not sent, discarded, forwarded).
    pub fn discarded(&mut self, machine: &Machine, now: Now, ticket: Ticket) -> Vec<Action> {
        let _ = (machine, now, ticket);
        todo!("leader helpers")
    }

    /// The proposal's deadline passed: it may still be applied. What waits for it is answered; its stage stays frozen.
    pub fn fate_unknown(&mut self, machine: &Machine, now: Now, ticket: Ticket) -> Vec<Action> {
        let _ = (machine, now, ticket);
        todo!("leader helpers")
    }

    /// What became due: transaction timeouts, group sessions, delayed joins, expiry.
    pub fn handle_timeout(&mut self, machine: &Machine, now: Now) -> Vec<Action> {
        let _ = (machine, now);
        todo!("leader helpers")
    }

    /// When [`Leader::handle_timeout`] wants to be called next (monotonic ms), None for never.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        todo!("leader helpers")
    }

    /// Counts for metrics.
    pub fn stats(&self) -> LeaderStats {
        todo!("leader helpers")
    }
}
