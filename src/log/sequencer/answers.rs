//! Answers on their way out. What a leader says from what it knows is true only while nobody else can lead, so it is
//! looked at here, after the decision: with a lease it goes out, without one it waits for one.
//!
//! - [`Action::Reply`](crate::leader::Action): a lease. `ReplyApplied`: nothing. `ReplyConfirmed`: that a quorum accepts
//!   something sent after the decision.
//! - Whatever waits here is given up with the refusal when the term ends, or when no quorum has been heard for
//!   [`LOST_MS`]. Then nothing is decided any more either, until the lease is back: the term
//!   is still this node's, and so are its stages.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::super::fatal::WholeOrDead;
use super::super::lease::{LOST_MS, Sent};
use super::super::meters::Meters;
use super::{Sequencer, State};
use crate::leader::request::{Response, Token};
use crate::types::{Now, Refusal};

/// A request that has no answer yet.
pub(super) struct Waiting {
    pub(super) sender: oneshot::Sender<Response>,
    /// For EndTxn: when it came, and whether it commits.
    pub(super) end_txn: Option<(Instant, bool)>,
}

impl Waiting {
    pub(super) fn answer(self, response: Response, meters: &Meters) {
        // A refusal, answered at once, would make commits look fast.
        if let (Some((came, commit)), Response::Ended(_)) = (self.end_txn, &response) {
            meters.end_txn[usize::from(!commit)].record(came.elapsed());
        }
        // The receiver is gone where the client is.
        let _ = self.sender.send(response);
    }
}

/// What an answer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// A lease.
    Lease,
    /// That a quorum has accepted something sent after this.
    Since(Sent),
}

/// An answer that waits.
pub(super) struct Held {
    waiting: Waiting,
    response: Response,
    need: Need,
    /// Given up then (monotonic ms).
    until_ms: u64,
}

impl Sequencer {
    /// Answers from what the leader knows: if nobody else can have been elected by now.
    pub(super) fn reply(&self, state: &mut State, now: Now, token: Token, response: Response) {
        let nothing = response.claims_nothing();
        if nothing || state.term.is_some_and(|term| self.lease.is_valid(term)) {
            return self.send(state, token, response);
        }
        self.hold(state, now, token, response, Need::Lease);
    }

    /// Answers once a quorum has confirmed after now that this node leads the term of the decision.
    pub(super) fn reply_confirmed(&self, state: &mut State, now: Now, token: Token, response: Response) {
        let since = Sent::now();
        if response.claims_nothing() || state.term.is_some_and(|term| self.lease.is_confirmed(term, since)) {
            return self.send(state, token, response);
        }
        self.hold(state, now, token, response, Need::Since(since));
    }

    /// Sends an answer that is true whoever leads.
    pub(super) fn send(&self, state: &mut State, token: Token, response: Response) {
        if let Some(waiting) = take(state, token) {
            self.send_to(state, waiting, response);
        }
    }

    fn send_to(&self, state: &mut State, waiting: Waiting, response: Response) {
        // While leadership moves, «not the leader» is told when it has moved: clients ask in vain before.
        if state.handing_over && matches!(response, Response::Refused(Refusal::NotLeader)) {
            state.parked.push(waiting);
        } else {
            waiting.answer(response, &self.meters);
        }
    }

    fn hold(&self, state: &mut State, now: Now, token: Token, response: Response, need: Need) {
        let Some(waiting) = take(state, token) else { return };
        let until_ms = now.mono_ms + LOST_MS;
        state.held.push_back(Held { waiting, response, need, until_ms });
        self.ask_for_a_lease(state);
    }

    /// Has a heartbeat sent, once for all who wait.
    fn ask_for_a_lease(&self, state: &mut State) {
        self.lease.await_renewal();
        let Some(running) = self.running.get().filter(|_| !state.asked) else { return };
        state.asked = true;
        let raft = running.raft.clone();
        running.runtime.spawn(async move {
            if raft.trigger().heartbeat().await.is_err() {
                tracing::debug!("raft has stopped; nothing confirms its leadership");
            }
        });
    }

    /// Sends what may be sent by now, and gives up what waited too long.
    pub(super) fn release(&self, state: &mut State, now: Now) {
        if state.held.is_empty() {
            return;
        }
        let leased = state.term.is_some_and(|term| self.lease.is_valid(term));
        let ready = |need: Need| match (need, state.term) {
            (_, None) => false,
            (Need::Lease, Some(_)) => leased,
            (Need::Since(since), Some(term)) => self.lease.is_confirmed(term, since),
        };
        let (mut kept, mut gone) = (std::collections::VecDeque::new(), Vec::new());
        for held in std::mem::take(&mut state.held) {
            if ready(held.need) {
                gone.push((held.waiting, held.response));
            } else if held.until_ms <= now.mono_ms {
                gone.push((held.waiting, Response::Refused(Refusal::NotLeader)));
            } else {
                kept.push_back(held);
            }
        }
        state.held = kept;
        for (waiting, response) in gone {
            self.send_to(state, waiting, response);
        }
        state.asked = false;
        if !state.held.is_empty() {
            self.ask_for_a_lease(state);
        }
    }

    /// Gives up every answer that waits.
    pub(super) fn refuse_held(&self, state: &mut State) {
        state.asked = false;
        for held in std::mem::take(&mut state.held) {
            self.send_to(state, held.waiting, Response::Refused(Refusal::NotLeader));
        }
    }

    /// Notes that the quorum is gone, or back. Without one nobody is served, and whoever waits is told to ask elsewhere:
    /// the fate of what is proposed is unknown.
    pub(super) fn follow_quorum(self: &Arc<Self>, state: &mut State) {
        // One that lets go has given its lease up itself.
        let Some(term) = state.term.filter(|_| !state.handing_over) else { return };
        let lost = self.lease.is_lost(term, state.began);
        if lost == state.lost {
            return;
        }
        let _whole = WholeOrDead;
        state.lost = lost;
        self.show_serving(state);
        if !lost {
            return tracing::info!(term = term.0, "a quorum answers again; this node goes on serving");
        }
        tracing::warn!(term = term.0, "no quorum answers; clients are told to look for another leader");
        self.lease.await_renewal();
        self.refuse_held(state);
        let waits = state.proposals.iter_mut().filter(|(_, unknown)| !**unknown);
        let tickets: Vec<_> = waits
            .map(|(ticket, unknown)| {
                *unknown = true;
                *ticket
            })
            .collect();
        state.deadlines.clear();
        for ticket in tickets {
            self.event(state, |leader, machine, now| leader.fate_unknown(machine, now, ticket));
        }
        // Members that wait for a rebalance: what the leader will say to them later goes to nobody.
        state.given_up = Token(state.next_token);
        for waiting in std::mem::take(&mut state.waiting).into_values() {
            self.send_to(state, waiting, Response::Refused(Refusal::NotLeader));
        }
    }
}

/// Who waits for that answer; nobody if it was given up.
fn take(state: &mut State, token: Token) -> Option<Waiting> {
    let waiting = state.waiting.remove(&token);
    if waiting.is_none() && token >= state.given_up {
        tracing::error!(?token, "a request is answered once");
    }
    waiting
}
