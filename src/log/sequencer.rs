//! Decide, then propose, in one order: the only caller of [`Leader`].
//!
//! A mutex around the leader rather than a task of its own, which spares a request two thread hops. Under it an event is
//! decided and its actions are carried out before the next event, so decision order is log order.
//!
//! - Lock order: the leader's mutex, then the machine's read lock, then leaves. Apply never takes the mutex while it
//!   holds the write lock; it queues results ([`Completions`]) and calls [`Sequencer::applied`] afterwards.
//! - Every event first tells the leader what has ended, so a decision never sees a state whose entries the leader still
//!   believes in flight.
//! - A proposal carries the term it was decided in; its end is told only to the leader of that same term.
//! - A proposal's deadline passes → its fate is unknown, and it stays counted until it ends or the term does.
//! - What may be answered is looked at after the decision: `answers`. `timing`: deadlines. `parting`: a planned transfer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::apply::{Replica, StateMachine};
use super::clock;
use super::fatal::WholeOrDead;
use super::in_flight::{Completion, Completions, Fate, InFlight};
use super::lease::{Lease, Sent};
use super::meters::Meters;
use super::raft_types::{Completer, Proposal, TypeConfig};
use crate::config::limits::{ENTRY_BYTES_MAX, ENTRY_METADATA_BYTES_MAX, REQUESTS_WAITING_MAX};
use crate::leader::request::{Caller, Request, Response, Token};
use crate::leader::{Action, Leader, LeaderStats, Ticket};
use crate::state::Machine;
use crate::state::command::Entry;
use crate::types::{ConnectionId, Now, PartitionFacts, Refusal, Term};

mod answers;
mod parting;
mod timing;

use answers::{Held, Waiting};
use timing::Deadlines;

/// A running Raft node of ours.
pub type Raft = openraft::Raft<TypeConfig, StateMachine>;

/// What raft and its runtime are reached by, once they run.
struct Running {
    raft: Raft,
    runtime: tokio::runtime::Handle,
}

/// The sequencer of a node.
pub struct Sequencer {
    replica: Arc<Replica>,
    state: Mutex<State>,
    completions: Arc<Completions>,
    in_flight: Arc<InFlight>,
    running: OnceLock<Running>,
    lease: Arc<Lease>,
    /// The term served, 0 if none (a leader's term is at least 1), or while no quorum answers. Written under the mutex, read without.
    serving: AtomicU64,
    /// No quorum has answered for long.
    alone: AtomicBool,
    /// The newest connection accepted.
    newest: AtomicU64,
    /// When the timer will look next, so that only an earlier deadline rings it.
    armed_ms: AtomicU64,
    meters: Arc<Meters>,
    /// How long a proposal may take, where its request does not say less.
    proposal_timeout: Duration,
}

struct State {
    leader: Leader,
    /// The term that raft says this node leads.
    leading: Option<Term>,
    /// The term the leader was started for.
    term: Option<Term>,
    /// When it was, or when the node went on after it had stood still: the time without a quorum counts from then.
    began: Sent,
    /// When the timer last looked.
    looked: Sent,
    /// No quorum has answered for long: nothing is decided.
    lost: bool,
    next_token: u64,
    /// Requests without an answer; with those held and parked at most [`REQUESTS_WAITING_MAX`].
    waiting: BTreeMap<Token, Waiting>,
    /// Requests before this one were given up when the quorum was lost.
    given_up: Token,
    /// Answers that wait for a lease, in order.
    held: VecDeque<Held>,
    /// A heartbeat was asked for, for them.
    asked: bool,
    /// How the current event's request limits its proposals.
    within: Option<Duration>,
    /// Proposals of this term that have not ended; true once their fate was called unknown.
    proposals: BTreeMap<Ticket, bool>,
    deadlines: Deadlines,
    /// Rung when no transaction is open any more, for a planned transfer.
    draining: Option<Arc<Notify>>,
    /// Leadership is about to move: nothing more is decided, whoever asks is parked.
    handing_over: bool,
    /// Who is told to ask elsewhere once it has.
    parked: Vec<Waiting>,
    stopping: bool,
}

impl Sequencer {
    /// A sequencer that serves nothing until raft runs and leads.
    pub fn new(
        replica: Arc<Replica>,
        leader: Leader,
        lease: Arc<Lease>,
        meters: Arc<Meters>,
        proposal_timeout: Duration,
    ) -> Arc<Self> {
        let state = State {
            leader,
            leading: None,
            term: None,
            began: Sent::now(),
            looked: Sent::now(),
            lost: false,
            next_token: 0,
            waiting: BTreeMap::new(),
            given_up: Token(0),
            held: VecDeque::new(),
            asked: false,
            within: None,
            proposals: BTreeMap::new(),
            deadlines: Deadlines::new(),
            draining: None,
            handing_over: false,
            parked: Vec::new(),
            stopping: false,
        };
        Arc::new(Self {
            replica,
            state: Mutex::new(state),
            completions: Arc::default(),
            in_flight: Arc::default(),
            running: OnceLock::new(),
            lease,
            serving: AtomicU64::new(0),
            alone: AtomicBool::new(false),
            newest: AtomicU64::new(0),
            armed_ms: AtomicU64::new(0),
            meters,
            proposal_timeout,
        })
    }

    /// Raft runs from now on. Called once.
    pub fn start(&self, raft: Raft, runtime: tokio::runtime::Handle) {
        let first = self.running.set(Running { raft, runtime }).is_ok();
        assert!(first, "raft is started once");
    }

    // === Events ===

    /// A request: decided now, answered through the receiver. A dropped sender means: close the connection.
    /// What it proposes has as long as `within`, at most as long as any proposal.
    pub fn submit(
        self: &Arc<Self>,
        caller: &Caller,
        request: Request,
        within: Option<Duration>,
    ) -> oneshot::Receiver<Response> {
        let (sender, receiver) = oneshot::channel();
        let end_txn = match &request {
            Request::EndTxn(end) => Some((Instant::now(), end.commit)),
            _ => None,
        };
        let mut state = self.state.lock();
        if state.stopping {
            return receiver;
        }
        if state.waiting.len() + state.held.len() + state.parked.len() >= REQUESTS_WAITING_MAX {
            let _ = sender.send(Response::Refused(Refusal::Overloaded));
            return receiver;
        }
        if state.handing_over {
            state.parked.push(Waiting { sender, end_txn });
            return receiver;
        }
        if state.lost {
            self.follow_quorum(&mut state);
            if state.lost {
                let _ = sender.send(Response::Refused(Refusal::NotLeader));
                return receiver;
            }
        }
        // Waiting for space may take for ever, so the client is told; what is read or frees space goes on.
        if takes_space(&request) && self.replica.segments().is_out_of_space() {
            let _ = sender.send(Response::Refused(Refusal::StorageError));
            return receiver;
        }
        let token = Token(state.next_token);
        state.next_token += 1;
        state.waiting.insert(token, Waiting { sender, end_txn });
        state.within = within;
        self.event(&mut state, |leader, machine, now| leader.handle(machine, now, caller, token, request));
        receiver
    }

    /// Lets the leader, if this node is it, remove what retention no longer keeps of these partitions.
    pub fn retain(self: &Arc<Self>, facts: &[PartitionFacts]) {
        let mut state = self.state.lock();
        if !state.stopping {
            self.event(&mut state, |leader, machine, now| leader.retain(machine, now, facts));
        }
    }

    /// Entries were applied, and the machine's lock released.
    pub fn applied(self: &Arc<Self>) {
        let mut state = self.state.lock();
        self.event(&mut state, |_, _, _| Vec::new());
    }

    /// What raft says about leadership: the term led, and who votes (two sets while that changes).
    pub fn leadership(self: &Arc<Self>, leading: Option<Term>, voters: Vec<BTreeSet<u64>>) {
        self.lease.set_voters(voters);
        if let Some(term) = leading {
            self.lease.lead(term);
        }
        let mut state = self.state.lock();
        if state.leading == leading {
            return;
        }
        state.leading = leading;
        if state.term.is_some() && state.term != leading {
            self.end_term(&mut state);
        }
        self.event(&mut state, |_, _, _| Vec::new());
    }

    /// Tells the leader what ended, starts the term if it is time, lets `decide`, carries out.
    fn event(self: &Arc<Self>, state: &mut State, decide: impl FnOnce(&mut Leader, &Machine, Now) -> Vec<Action>) {
        let _whole = WholeOrDead;
        let machine = self.replica.read();
        let now = clock::now();
        let within = state.within.take();
        self.tell_ends(state, &machine, now);
        self.start_term_if_due(state, &machine, now);
        // Only what this event itself proposes: above it were others' proposals.
        state.within = within;
        let actions = decide(&mut state.leader, &machine, now);
        self.carry_out(state, &machine, now, actions);
        state.within = None;
        drop(machine);
        self.release(state, now);
        if let Some(drained) = state.draining.as_ref().filter(|_| state.leader.is_drained()) {
            drained.notify_one();
        }
        self.rearm(state);
    }

    fn tell_ends(self: &Arc<Self>, state: &mut State, machine: &Machine, now: Now) {
        for Completion { term, ticket, fate } in self.completions.take() {
            if state.term != Some(term) {
                continue;
            }
            let Some(unknown) = state.proposals.remove(&ticket) else { continue };
            let actions = match fate {
                Fate::Applied(index, outcome) => state.leader.applied(machine, now, ticket, index, outcome),
                Fate::Discarded => state.leader.discarded(machine, now, ticket),
                Fate::Unknown if unknown => continue,
                Fate::Unknown => state.leader.fate_unknown(machine, now, ticket),
            };
            self.carry_out(state, machine, now, actions);
        }
    }

    /// The term's first entry is applied: the machine holds all that earlier terms committed.
    fn start_term_if_due(self: &Arc<Self>, state: &mut State, machine: &Machine, now: Now) {
        let (None, Some(leading)) = (state.term, state.leading) else { return };
        if state.stopping || machine.applied().is_none_or(|(_, term)| term != leading) {
            return;
        }
        tracing::info!(term = leading.0, "this node leads and serves");
        state.term = Some(leading);
        (state.began, state.lost) = (Sent::now(), false);
        self.show_serving(state);
        let newest = ConnectionId(self.newest.load(Ordering::Relaxed));
        let actions = state.leader.start_term(machine, leading, now, newest);
        self.carry_out(state, machine, now, actions);
    }

    fn end_term(self: &Arc<Self>, state: &mut State) {
        let Some(term) = state.term.take() else { return };
        tracing::info!(term = term.0, "this node no longer leads");
        self.show_serving(state);
        state.proposals.clear();
        state.deadlines.clear();
        self.refuse_held(state);
        if let Some(drained) = state.draining.take() {
            drained.notify_one();
        }
        let actions = state.leader.end_term();
        for action in actions {
            match action {
                Action::Reply(token, response) | Action::ReplyApplied(token, response) => {
                    self.send(state, token, response)
                }
                Action::ReplyConfirmed(token, _, refusal) => self.send(state, token, Response::Refused(refusal)),
                Action::Propose(ticket, _) => tracing::error!(?ticket, "a leader without a term proposes nothing"),
            }
        }
        // Whoever is still unanswered gets a closed connection: a term never answers for another.
        state.waiting.clear();
    }

    // === Actions ===

    fn carry_out(self: &Arc<Self>, state: &mut State, machine: &Machine, now: Now, actions: Vec<Action>) {
        let mut events = VecDeque::from([actions]);
        while let Some(actions) = events.pop_front() {
            let mut unsent = Vec::new();
            for action in actions {
                match action {
                    Action::Reply(token, response) => self.reply(state, now, token, response),
                    Action::ReplyApplied(token, response) => self.send(state, token, response),
                    Action::Propose(ticket, entry) => {
                        if !self.propose(state, now, ticket, entry) {
                            unsent.push(ticket);
                        }
                    }
                    Action::ReplyConfirmed(token, response, _) => self.reply_confirmed(state, now, token, response),
                }
            }
            // The next events, after all actions of this one.
            events.extend(unsent.into_iter().map(|ticket| state.leader.discarded(machine, now, ticket)));
        }
    }

    /// Sends an entry to raft, behind all that was sent before; false if it certainly was not sent.
    fn propose(&self, state: &mut State, now: Now, ticket: Ticket, entry: Entry) -> bool {
        let (Some(running), Some(term)) = (self.running.get(), state.term) else { return false };
        let proposal = Proposal::new(entry);
        if proposal.bytes() > ENTRY_BYTES_MAX + ENTRY_METADATA_BYTES_MAX {
            tracing::error!(bytes = proposal.bytes(), "an entry over the cap is not proposed");
            return false;
        }
        let Some(share) = self.in_flight.enter(proposal.bytes()) else { return false };
        let within = state.within.map_or(self.proposal_timeout, |within| within.min(self.proposal_timeout));
        let deadline_ms = now.mono_ms + within.as_millis() as u64;
        state.proposals.insert(ticket, false);
        state.deadlines.insert((deadline_ms, ticket));
        let completions = self.completions.clone();
        let completer = Completer::new(Box::new(move |result| {
            drop(share);
            completions.push(Completion { term, ticket, fate: Fate::of(result) });
        }));
        let sending = running.raft.write(proposal).with_leader(term.0).responder(completer).into_future();
        // The channel holds more than may be in flight, so sending never waits. If it does, or raft has stopped, the
        // completer is dropped, which reports an unknown fate.
        if !matches!(tokio::task::unconstrained(sending).now_or_never(), Some(Ok(()))) {
            tracing::warn!(?ticket, "raft takes no proposals");
        }
        true
    }

    // === What others ask ===

    /// Notes a connection.
    pub fn accepted(&self, connection: ConnectionId) {
        self.newest.fetch_max(connection.0, Ordering::Relaxed);
    }

    fn show_serving(&self, state: &State) {
        let served = state.term.filter(|_| !state.lost);
        self.alone.store(state.term.is_some() && state.lost, Ordering::Relaxed);
        self.serving.store(served.map_or(0, |term| term.0), Ordering::Release);
        if state.lost {
            self.in_flight.look_again();
        }
    }

    /// The term that this node serves, if nobody else can have been elected by now: what was read before, under that
    /// term, was the newest there was.
    pub fn leased(&self) -> Option<Term> {
        self.serving().filter(|term| self.lease.is_valid(*term))
    }

    /// Whether this node leads by what raft knows, and no quorum has answered for long.
    pub fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed)
    }

    /// The term that this node serves.
    pub fn serving(&self) -> Option<Term> {
        Some(self.serving.load(Ordering::Acquire)).filter(|term| *term > 0).map(Term)
    }

    /// Proposals that are not applied yet.
    pub fn proposals(&self) -> usize {
        self.in_flight.proposals()
    }

    /// The leader's counts.
    pub fn stats(&self) -> LeaderStats {
        self.state.lock().leader.stats()
    }

    /// The leader's groups and how many members each has.
    pub fn group_members(&self) -> Vec<(Arc<str>, usize)> {
        self.state.lock().leader.group_members().collect()
    }

    /// Waits until more requests may come in. Neither a full disk nor a lost quorum is waited for: both refuse
    /// ([`Sequencer::submit`]), and what a lost quorum holds is in flight until somebody leads again.
    pub async fn admitted(&self) {
        let segments = self.replica.segments();
        let behind = || segments.is_behind() && !segments.is_out_of_space();
        self.in_flight.admitted(behind, || self.is_alone()).await;
    }

    /// Takes no more requests; those that come see a closed connection.
    pub fn stop_admitting(&self) {
        self.state.lock().stopping = true;
    }

    /// Waits until every proposal has ended.
    pub async fn drained(&self) {
        self.in_flight.drained().await;
    }

    /// Ends the term, if there is one: whoever waits is answered or closed. The timer stops.
    pub fn stop(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.stopping = true;
        self.end_term(&mut state);
        drop(state);
        self.completions.stirred.notify_one();
    }
}

/// Whether a request makes the log or the segments grow. Deleting topics or records or shortening retention helps a full disk,
/// and group members must be kept alive.
fn takes_space(request: &Request) -> bool {
    match request {
        Request::Produce(_)
        | Request::InitProducerId(_)
        | Request::AddPartitionsToTxn(_)
        | Request::AddOffsetsToTxn(_)
        | Request::TxnOffsetCommit(_)
        | Request::EndTxn(_)
        | Request::OffsetCommit(_)
        | Request::CreateTopics(_)
        | Request::CreatePartitions(_) => true,
        Request::JoinGroup(_)
        | Request::SyncGroup(_)
        | Request::Heartbeat(_)
        | Request::LeaveGroup(_)
        | Request::OffsetFetch(_)
        | Request::DeleteTopics(_)
        | Request::DeleteRecords(_)
        | Request::AlterConfigs(_) => false,
    }
}

#[cfg(test)]
mod tests;
