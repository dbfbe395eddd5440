//! The model of `log/sequencer.rs`: how requests, proposals and answers meet.
//!
//! Every event first tells the leader what has ended. An answer from what the leader knows goes out under a lease, or waits
//! for one; an answer without an entry waits until a quorum accepted something sent after it was decided; the outcome of an entry
//! goes out whoever leads. Without a quorum for long nobody is served, and what is proposed is of unknown fate. A term that
//! ends closes whoever is still unanswered. A planned transfer drains, lists, lets go (`log/transfer.rs`).

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use katomic::leader::request::{Acked, Caller, Produce, Request, Response, Token};
use katomic::leader::{Action, Leader, LeaderSettings, Ticket};
use katomic::log::entry;
use katomic::state::Machine;
use katomic::state::command::{Command, Entry, Outcome, ProduceOutcome};
use katomic::types::{ConnectionId, LogIndex, Now, Offset, Refusal, Term};

use super::super::mutants::Mutant;
use super::super::network::{ConnId, RequestId};
use super::super::raft::LEASE_MS;
use super::{At, Node, Reply};

/// How long a proposal may take.
const PROPOSAL_TIMEOUT_MS: u64 = 1_500;
/// Without a quorum for that long, nobody is served.
const LOST_MS: u64 = 2 * LEASE_MS;
/// How long open transactions may take to end before a transfer, and what is in flight after that.
const DRAIN_MS: u64 = 300;
const IN_FLIGHT_MS: u64 = 400;

/// What an answer waits for.
#[derive(Clone, Copy, Debug)]
enum Need {
    /// A lease.
    Lease,
    /// That a quorum accepted this round.
    Round(u64),
}

/// An answer that waits.
#[derive(Debug)]
struct Held {
    need: Need,
    decided_us: u64,
    until_ms: u64,
    token: Token,
    response: Response,
}

/// How far a planned transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parting {
    No,
    /// Open transactions may end.
    Draining {
        until_ms: u64,
    },
    /// The list is proposed; what is in flight may end.
    Listed {
        until_ms: u64,
    },
    /// The lease is gone, and the others may elect.
    LetGo,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Sequencer {
    leader: Leader,
    /// The term served.
    pub(super) term: Option<u64>,
    began_ms: u64,
    /// No quorum for long.
    lost: bool,
    next_token: u64,
    /// The newest connection that anything came on.
    newest: ConnectionId,
    waiting: BTreeMap<Token, (ConnId, RequestId)>,
    /// Own proposals of this term, by index.
    tickets: BTreeMap<u64, Ticket>,
    /// Their deadlines; what is no longer in `tickets` has ended.
    deadlines: VecDeque<(u64, u64)>,
    /// Applied and not told yet.
    ended: Vec<(Ticket, u64, Outcome)>,
    held: Vec<Held>,
    parting: Parting,
}

impl Sequencer {
    /// Serves nothing yet.
    pub(super) fn new(settings: &LeaderSettings) -> Self {
        Self {
            leader: Leader::new(settings.clone()),
            term: None,
            began_ms: 0,
            lost: false,
            next_token: 1,
            newest: ConnectionId(0),
            waiting: BTreeMap::new(),
            tickets: BTreeMap::new(),
            deadlines: VecDeque::new(),
            ended: Vec::new(),
            held: Vec::new(),
            parting: Parting::No,
        }
    }
}

impl Node {
    // === Events ===

    /// A request on a connection, which the node numbered `caller.connection`.
    pub fn request(&mut self, conn: ConnId, id: RequestId, caller: &Caller, request: Request, at: &mut At<'_>) {
        self.sequencer.newest = self.sequencer.newest.max(caller.connection);
        self.follow_quorum(at);
        if self.sequencer.lost || self.sequencer.parting == Parting::LetGo {
            at.out.replies.push((conn, id, Reply::Answer(Response::Refused(Refusal::NotLeader))));
            return;
        }
        let token = Token(self.sequencer.next_token);
        self.sequencer.next_token += 1;
        self.sequencer.waiting.insert(token, (conn, id));
        if let Request::Produce(produce) = &request
            && self.mutant == Mutant::AcksAtPropose
            && self.serving().is_some()
            && produce.transactional_id.is_none()
        {
            at.out.replies.push((conn, id, Reply::Answer(self.early_ack(produce))));
        }
        self.event(at, |leader, machine, now| leader.handle(machine, now, caller, token, request));
    }

    /// The mutant's answer to a plain Produce: as if it were applied.
    fn early_ack(&self, produce: &Produce) -> Response {
        let acked = produce.batches.iter().map(|(at, _)| {
            let base_offset = self.machine.topics().partition(*at).map_or(Offset(0), |found| found.next_offset);
            Ok(Acked::Written(ProduceOutcome { base_offset, log_append_time_ms: -1, log_start_offset: Offset(0) }))
        });
        Response::Produced(acked.collect())
    }

    /// Time passed: deadlines, the leader's timers, answers that wait, a transfer under way.
    pub(super) fn sequence_time(&mut self, at: &mut At<'_>) {
        self.follow_quorum(at);
        let now_ms = at.now.mono_ms;
        while let Some((_, index)) = self.sequencer.deadlines.pop_front_if(|(due_ms, _)| *due_ms <= now_ms) {
            self.overdue(index, at);
        }
        if self.sequencer.leader.next_deadline_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            self.event(at, |leader, machine, now| leader.handle_timeout(machine, now));
        }
        self.release(at);
        self.go_on_parting(at);
    }

    fn overdue(&mut self, index: u64, at: &mut At<'_>) {
        let Some(ticket) = self.sequencer.tickets.get(&index).copied() else { return };
        if self.mutant == Mutant::UnknownIsDiscarded {
            self.event(at, |leader, machine, now| leader.discarded(machine, now, ticket));
        } else {
            self.event(at, |leader, machine, now| leader.fate_unknown(machine, now, ticket));
        }
    }

    /// An entry was applied: if it is a proposal of the term that is served, the leader is told with the next event.
    pub(super) fn was_applied(&mut self, index: u64, term: u64, entry: Option<&Entry>, outcome: &Outcome) {
        let Some(ticket) = self.sequencer.tickets.remove(&index) else { return };
        if self.sequencer.term != Some(term) {
            return;
        }
        let told = match (entry.map(|entry| &entry.command), outcome) {
            (Some(Command::TxnCommit(commit)), Outcome::Ended(Err(_))) if self.mutant == Mutant::NoOpIsSuccess => {
                Outcome::Ended(Ok(commit.producer))
            }
            (_, outcome) => outcome.clone(),
        };
        self.sequencer.ended.push((ticket, index, told));
    }

    /// Tells the leader what ended, starts the term if it is time, lets `decide`, carries out.
    pub(super) fn event(&mut self, at: &mut At<'_>, decide: impl FnOnce(&mut Leader, &Machine, Now) -> Vec<Action>) {
        let before = self.raft.len();
        for (ticket, index, outcome) in std::mem::take(&mut self.sequencer.ended) {
            let leader = &mut self.sequencer.leader;
            let actions = leader.applied(&self.machine, at.now, ticket, LogIndex(index), outcome);
            self.carry_out(actions, at);
        }
        self.start_term_if_due(at);
        let actions = decide(&mut self.sequencer.leader, &self.machine, at.now);
        self.carry_out(actions, at);
        if self.raft.len() > before {
            let mut raft_out = Vec::new();
            self.raft.broadcast(at.now.mono_ms, &mut raft_out);
            self.carry_out_raft(raft_out, at);
        }
    }

    fn start_term_if_due(&mut self, at: &mut At<'_>) {
        let (None, Some(leading)) = (self.sequencer.term, self.raft.leading()) else { return };
        let applied = self.applied > self.raft.base() && self.raft.entry(self.applied - 1).term == leading;
        if !applied && self.mutant != Mutant::ServesUnready {
            return;
        }
        self.sequencer.term = Some(leading);
        self.sequencer.began_ms = at.now.mono_ms;
        let term = if self.mutant == Mutant::NoTermFence { 1 } else { leading };
        let newest = self.sequencer.newest;
        let actions = self.sequencer.leader.start_term(&self.machine, Term(term), at.now, newest);
        self.carry_out(actions, at);
    }

    pub(super) fn end_term(&mut self, at: &mut At<'_>) {
        self.sequencer.term = None;
        self.sequencer.lost = false;
        self.sequencer.parting = Parting::No;
        self.sequencer.tickets.clear();
        self.sequencer.deadlines.clear();
        self.sequencer.ended.clear();
        self.refuse_held(at);
        for action in self.sequencer.leader.end_term() {
            match action {
                Action::Reply(token, response) | Action::ReplyApplied(token, response) => {
                    self.send(token, response, at);
                }
                Action::ReplyConfirmed(token, _, refusal) => self.send(token, Response::Refused(refusal), at),
                Action::Propose(ticket, _) => panic!("a leader without a term proposes {ticket:?}"),
            }
        }
        for (conn, id) in std::mem::take(&mut self.sequencer.waiting).into_values() {
            at.out.replies.push((conn, id, Reply::Closed));
        }
    }

    // === Actions ===

    fn carry_out(&mut self, actions: Vec<Action>, at: &mut At<'_>) {
        let mut events = VecDeque::from([actions]);
        while let Some(actions) = events.pop_front() {
            let mut unsent = Vec::new();
            for action in actions {
                match action {
                    Action::Reply(token, response) => self.reply(token, response, at),
                    Action::ReplyApplied(token, response) => self.send(token, response, at),
                    Action::ReplyConfirmed(token, response, _) => self.reply_confirmed(token, response, at),
                    Action::Propose(ticket, entry) => {
                        if !self.propose(ticket, entry, at) {
                            unsent.push(ticket);
                        }
                    }
                }
            }
            let leader = &mut self.sequencer.leader;
            let told = unsent.into_iter().map(|ticket| leader.discarded(&self.machine, at.now, ticket));
            events.extend(told.collect::<Vec<_>>());
        }
    }

    fn propose(&mut self, ticket: Ticket, mut entry: Entry, at: &mut At<'_>) -> bool {
        if self.raft.leading().is_none() || at.rng.chance(self.refuses_per_mille) {
            return false;
        }
        if let Command::HandOver(list) = &mut entry.command
            && self.mutant == Mutant::HandsOverNothing
        {
            list.open.clear();
        }
        let bytes: Bytes = entry::concat(&entry::encode(&entry));
        let mut raft_out = Vec::new();
        let Some(index) = self.raft.propose(bytes, &mut raft_out) else { return false };
        self.sequencer.tickets.insert(index, ticket);
        self.sequencer.deadlines.push_back((at.now.mono_ms + PROPOSAL_TIMEOUT_MS, index));
        self.carry_out_raft(raft_out, at);
        true
    }

    fn reply(&mut self, token: Token, response: Response, at: &mut At<'_>) {
        if response.claims_nothing() {
            return self.send(token, response, at);
        }
        if self.is_leased(at) || self.mutant == Mutant::NoLease {
            return self.send_claim(token, response, at.world_us, at);
        }
        self.hold(Need::Lease, token, response, at);
    }

    fn reply_confirmed(&mut self, token: Token, response: Response, at: &mut At<'_>) {
        if response.claims_nothing() {
            return self.send(token, response, at);
        }
        if matches!(self.mutant, Mutant::NoLease | Mutant::NoReadIndex) {
            return self.send_claim(token, response, at.world_us, at);
        }
        let mut raft_out = Vec::new();
        let round = self.raft.broadcast(at.now.mono_ms, &mut raft_out);
        self.hold(Need::Round(round), token, response, at);
        self.carry_out_raft(raft_out, at);
    }

    fn hold(&mut self, need: Need, token: Token, response: Response, at: &mut At<'_>) {
        let until_ms = at.now.mono_ms + LOST_MS;
        self.sequencer.held.push(Held { need, decided_us: at.world_us, until_ms, token, response });
    }

    /// An answer about what this node knows.
    fn send_claim(&mut self, token: Token, response: Response, decided_us: u64, at: &mut At<'_>) {
        at.out.answered.extend(self.serving().map(|term| (term, decided_us)));
        self.send(token, response, at);
    }

    fn send(&mut self, token: Token, response: Response, at: &mut At<'_>) {
        let Some((conn, id)) = self.sequencer.waiting.remove(&token) else {
            panic!("node {} answers {token:?} twice", self.id)
        };
        let reply = if response == Response::Close { Reply::Closed } else { Reply::Answer(response) };
        at.out.replies.push((conn, id, reply));
    }

    // === Lease ===

    fn is_leased(&self, at: &At<'_>) -> bool {
        at.now.mono_ms < self.raft.lease_until_ms(at.now.mono_ms)
    }

    /// Sends what may be sent by now, and gives up what waited too long.
    pub(super) fn release(&mut self, at: &mut At<'_>) {
        let leased = self.is_leased(at);
        for held in std::mem::take(&mut self.sequencer.held) {
            let ready = match held.need {
                Need::Lease => leased,
                Need::Round(round) => self.raft.is_confirmed(round),
            };
            if ready {
                // A lease that is valid now proves that nobody else has led up to now.
                let true_us = if leased { at.world_us } else { held.decided_us };
                self.send_claim(held.token, held.response, true_us, at);
            } else if held.until_ms <= at.now.mono_ms {
                self.send(held.token, Response::Refused(Refusal::NotLeader), at);
            } else {
                self.sequencer.held.push(held);
            }
        }
    }

    fn refuse_held(&mut self, at: &mut At<'_>) {
        for held in std::mem::take(&mut self.sequencer.held) {
            self.send(held.token, Response::Refused(Refusal::NotLeader), at);
        }
    }

    /// Notes that the quorum is gone, or back.
    fn follow_quorum(&mut self, at: &mut At<'_>) {
        if self.sequencer.term.is_none() {
            return;
        }
        let heard_ms = self.raft.quorum_sent_ms(at.now.mono_ms).max(self.sequencer.began_ms);
        let lost = at.now.mono_ms >= heard_ms + LOST_MS && self.mutant != Mutant::NoLease;
        if lost == self.sequencer.lost {
            return;
        }
        self.sequencer.lost = lost;
        if lost {
            self.refuse_held(at);
            while let Some((_, index)) = self.sequencer.deadlines.pop_front() {
                self.overdue(index, at);
            }
        }
    }

    // === Planned transfer ===

    /// Leadership shall move, if this node has it.
    pub fn part(&mut self, at: &mut At<'_>) {
        if self.sequencer.term.is_none() || self.sequencer.lost || self.sequencer.parting != Parting::No {
            return;
        }
        self.sequencer.parting = Parting::Draining { until_ms: at.now.mono_ms + DRAIN_MS };
        self.event(at, |leader, _, _| {
            leader.begin_drain();
            Vec::new()
        });
    }

    fn go_on_parting(&mut self, at: &mut At<'_>) {
        let now_ms = at.now.mono_ms;
        match self.sequencer.parting {
            Parting::No | Parting::LetGo => {}
            Parting::Draining { until_ms } if until_ms <= now_ms || self.sequencer.leader.is_drained() => {
                if self.sequencer.lost || !self.is_leased(at) {
                    self.sequencer.parting = Parting::No;
                    return self.event(at, |leader, _, _| leader.end_drain());
                }
                self.sequencer.parting = Parting::Listed { until_ms: now_ms + IN_FLIGHT_MS };
                self.event(at, |leader, machine, now| leader.hand_over(machine, now));
            }
            Parting::Listed { until_ms } if until_ms <= now_ms || self.sequencer.tickets.is_empty() => {
                self.sequencer.parting = Parting::LetGo;
                let mut raft_out = Vec::new();
                self.raft.let_go(&mut raft_out);
                self.carry_out_raft(raft_out, at);
            }
            Parting::Draining { .. } | Parting::Listed { .. } => {}
        }
    }
}
