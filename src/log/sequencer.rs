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

use std::collections::{BTreeMap, VecDeque};
use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use openraft::ReadPolicy;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::apply::{Replica, StateMachine};
use super::clock;
use super::fatal::WholeOrDead;
use super::in_flight::{Completion, Completions, Fate, InFlight};
use super::meters::Meters;
use super::raft_types::{Completer, Proposal, TypeConfig};
use crate::config::limits::{ENTRY_BYTES_MAX, ENTRY_METADATA_BYTES_MAX, REQUESTS_WAITING_MAX};
use crate::leader::request::{Caller, Request, Response, Token};
use crate::leader::{Action, Leader, LeaderStats, Ticket};
use crate::state::Machine;
use crate::state::command::Entry;
use crate::types::{Now, PartitionFacts, Refusal, Term};

/// A running Raft node of ours.
pub type Raft = openraft::Raft<TypeConfig, StateMachine>;

/// The longest sleep of the timer: its clock does not count suspension, the deadlines do.
const TIMER_MS_MAX: u64 = 500;

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
    /// This node is the cluster's only voter: nobody can depose it, so its leadership needs no confirmation.
    sole_voter: AtomicBool,
    /// The term served, 0 if none (a leader's term is at least 1). Written under the mutex, read without.
    serving: AtomicU64,
    /// When the timer will look next, so that only an earlier deadline rings it.
    armed_ms: AtomicU64,
    meters: Arc<Meters>,
    /// How long a proposal may take.
    proposal_timeout: Duration,
}

struct State {
    leader: Leader,
    /// The term that raft says this node leads.
    leading: Option<Term>,
    /// The term the leader was started for.
    term: Option<Term>,
    next_token: u64,
    /// Requests without an answer, at most [`REQUESTS_WAITING_MAX`].
    waiting: BTreeMap<Token, Waiting>,
    /// Proposals of this term that have not ended; true once their fate was called unknown.
    proposals: BTreeMap<Ticket, bool>,
    /// Deadlines of them, ascending: all get the same time.
    deadlines: VecDeque<(u64, Ticket)>,
    stopping: bool,
}

struct Waiting {
    sender: oneshot::Sender<Response>,
    /// For EndTxn: when it came, and whether it commits.
    end_txn: Option<(Instant, bool)>,
}

impl Sequencer {
    /// A sequencer that serves nothing until raft runs and leads.
    pub fn new(replica: Arc<Replica>, leader: Leader, meters: Arc<Meters>, proposal_timeout: Duration) -> Arc<Self> {
        let state = State {
            leader,
            leading: None,
            term: None,
            next_token: 0,
            waiting: BTreeMap::new(),
            proposals: BTreeMap::new(),
            deadlines: VecDeque::new(),
            stopping: false,
        };
        Arc::new(Self {
            replica,
            state: Mutex::new(state),
            completions: Arc::default(),
            in_flight: Arc::default(),
            running: OnceLock::new(),
            sole_voter: AtomicBool::new(false),
            serving: AtomicU64::new(0),
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
    pub fn submit(self: &Arc<Self>, caller: &Caller, request: Request) -> oneshot::Receiver<Response> {
        let (sender, receiver) = oneshot::channel();
        let end_txn = match &request {
            Request::EndTxn(end) => Some((Instant::now(), end.commit)),
            _ => None,
        };
        let mut state = self.state.lock();
        if state.stopping {
            return receiver;
        }
        if state.waiting.len() >= REQUESTS_WAITING_MAX {
            let _ = sender.send(Response::Refused(Refusal::Overloaded));
            return receiver;
        }
        // Waiting for space may take for ever, so the client is told; what is read or frees space goes on.
        if takes_space(&request) && self.replica.segments().is_out_of_space() {
            let _ = sender.send(Response::Refused(Refusal::StorageError));
            return receiver;
        }
        let token = Token(state.next_token);
        state.next_token += 1;
        state.waiting.insert(token, Waiting { sender, end_txn });
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

    /// What raft says about leadership: the term led, and whether nobody else could vote.
    pub fn leadership(self: &Arc<Self>, leading: Option<Term>, sole_voter: bool) {
        self.sole_voter.store(sole_voter, Ordering::Relaxed);
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
        self.tell_ends(state, &machine, now);
        self.start_term_if_due(state, &machine, now);
        let actions = decide(&mut state.leader, &machine, now);
        self.carry_out(state, &machine, now, actions);
        drop(machine);
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
        self.serving.store(leading.0, Ordering::Release);
        let actions = state.leader.start_term(machine, leading, now);
        self.carry_out(state, machine, now, actions);
    }

    fn end_term(self: &Arc<Self>, state: &mut State) {
        let Some(term) = state.term.take() else { return };
        tracing::info!(term = term.0, "this node no longer leads");
        self.serving.store(0, Ordering::Release);
        state.proposals.clear();
        state.deadlines.clear();
        let actions = state.leader.end_term();
        for action in actions {
            match action {
                Action::Reply(token, response) => self.reply(state, token, response),
                Action::ReplyConfirmed(token, _, refusal) => self.reply(state, token, Response::Refused(refusal)),
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
                    Action::Reply(token, response) => self.reply(state, token, response),
                    Action::Propose(ticket, entry) => {
                        if !self.propose(state, now, ticket, entry) {
                            unsent.push(ticket);
                        }
                    }
                    Action::ReplyConfirmed(token, response, refusal) => {
                        self.reply_confirmed(state, token, response, refusal);
                    }
                }
            }
            // The next events, after all actions of this one.
            events.extend(unsent.into_iter().map(|ticket| state.leader.discarded(machine, now, ticket)));
        }
    }

    fn reply(&self, state: &mut State, token: Token, response: Response) {
        match state.waiting.remove(&token) {
            Some(waiting) => waiting.answer(response, &self.meters),
            None => tracing::error!(?token, "a request is answered once"),
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
        let deadline_ms = now.mono_ms + self.proposal_timeout.as_millis() as u64;
        state.proposals.insert(ticket, false);
        state.deadlines.push_back((deadline_ms, ticket));
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

    /// Answers once a quorum has confirmed after now that this node leads the term of the decision.
    fn reply_confirmed(self: &Arc<Self>, state: &mut State, token: Token, response: Response, refusal: Refusal) {
        let (Some(running), Some(term)) = (self.running.get(), state.term) else {
            return self.reply(state, token, Response::Refused(refusal));
        };
        if self.sole_voter.load(Ordering::Relaxed) {
            return self.reply(state, token, response);
        }
        let Some(waiting) = state.waiting.remove(&token) else { return };
        let (sequencer, raft) = (self.clone(), running.raft.clone());
        running.runtime.spawn(async move {
            let confirmed = raft.get_read_linearizer(ReadPolicy::ReadIndex);
            let confirmed = tokio::time::timeout(sequencer.proposal_timeout, confirmed).await;
            let led = matches!(confirmed, Ok(Ok(_))) && sequencer.serving() == Some(term);
            let response = if led { response } else { Response::Refused(refusal) };
            waiting.answer(response, &sequencer.meters);
        });
    }

    // === Time ===

    /// Runs deadlines and timeouts until the sequencer stops.
    pub async fn run_timer(self: Arc<Self>) {
        loop {
            let Some(next_ms) = self.due() else { return };
            let wait_ms = next_ms.saturating_sub(clock::now().mono_ms).clamp(1, TIMER_MS_MAX);
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
                () = self.completions.stirred.notified() => {}
            }
        }
    }

    /// Does what is due; returns when something will be, None once stopped.
    fn due(self: &Arc<Self>) -> Option<u64> {
        let mut state = self.state.lock();
        if state.stopping && state.term.is_none() {
            return None;
        }
        self.armed_ms.store(0, Ordering::Relaxed);
        while let Some(ticket) = expired(&mut state, clock::now().mono_ms) {
            self.event(&mut state, |leader, machine, now| leader.fate_unknown(machine, now, ticket));
        }
        let now_ms = clock::now().mono_ms;
        if state.leader.next_deadline_ms().is_some_and(|deadline| deadline <= now_ms) {
            self.event(&mut state, |leader, machine, now| leader.handle_timeout(machine, now));
        } else {
            self.event(&mut state, |_, _, _| Vec::new());
        }
        let next_ms = next_deadline(&state).unwrap_or(u64::MAX);
        self.armed_ms.store(next_ms, Ordering::Relaxed);
        Some(next_ms)
    }

    /// Rings the timer if a deadline came in front of the one it sleeps for.
    fn rearm(&self, state: &State) {
        if let Some(next_ms) = next_deadline(state)
            && next_ms < self.armed_ms.load(Ordering::Relaxed)
        {
            self.armed_ms.store(next_ms, Ordering::Relaxed);
            self.completions.stirred.notify_one();
        }
    }

    // === What others ask ===

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

    /// Waits until more requests may come in. A full disk is not waited for: it refuses ([`Sequencer::submit`]).
    pub async fn admitted(&self) {
        let segments = self.replica.segments();
        self.in_flight.admitted(|| segments.is_behind() && !segments.is_out_of_space()).await;
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

impl Waiting {
    fn answer(self, response: Response, meters: &Meters) {
        // A refusal, answered at once, would make commits look fast.
        if let (Some((came, commit)), Response::Ended(_)) = (self.end_txn, &response) {
            meters.end_txn[usize::from(!commit)].record(came.elapsed());
        }
        // The receiver is gone where the client is.
        let _ = self.sender.send(response);
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
        | Request::CreateTopics(_) => true,
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

/// The next proposal whose deadline has passed, marked as of unknown fate.
fn expired(state: &mut State, now_ms: u64) -> Option<Ticket> {
    while let Some((deadline_ms, ticket)) = state.deadlines.front().copied() {
        match state.proposals.get_mut(&ticket) {
            Some(unknown) if deadline_ms <= now_ms => {
                *unknown = true;
                state.deadlines.pop_front();
                return Some(ticket);
            }
            Some(_) => return None,
            // It ended in time.
            None => {
                state.deadlines.pop_front();
            }
        }
    }
    None
}

fn next_deadline(state: &State) -> Option<u64> {
    let proposal = state.deadlines.front().map(|(deadline_ms, _)| *deadline_ms);
    [proposal, state.leader.next_deadline_ms()].into_iter().flatten().min()
}

#[cfg(test)]
mod tests;
