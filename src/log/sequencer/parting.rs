//! The sequencer's part of a planned transfer ([`transfer`](super::super::transfer)): drain, list, let go.
//!
//! From the list on nothing is decided any more. Whoever asks is parked, and told to ask elsewhere once another node
//! leads: clients that were told at once would ask in vain, and some give up after a few times.

use std::sync::Arc;

use openraft::async_runtime::WatchReceiver;
use tokio::sync::Notify;

use super::Sequencer;
use crate::leader::request::Response;
use crate::types::{Refusal, Term};

impl Sequencer {
    /// Opens no new transactions; the bell rings when none is open any more, or the term ends. None if this is under way,
    /// or the node does not serve that term.
    pub fn begin_drain(self: &Arc<Self>, term: Term) -> Option<Arc<Notify>> {
        let mut state = self.state.lock();
        if state.draining.is_some() || state.handing_over || state.lost || state.stopping || state.term != Some(term) {
            return None;
        }
        let bell = Arc::new(Notify::new());
        state.draining = Some(bell.clone());
        self.event(&mut state, |leader, _, _| {
            leader.begin_drain();
            Vec::new()
        });
        Some(bell)
    }

    /// Takes it back.
    pub fn end_drain(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.draining.take().is_some() {
            self.event(&mut state, |leader, _, _| leader.end_drain());
        }
    }

    /// Proposes the list of what is open and decides nothing more. False if the term is over: then nothing was done.
    pub fn hand_over(self: &Arc<Self>, term: Term) -> bool {
        let mut state = self.state.lock();
        state.draining = None;
        if state.term != Some(term) {
            return false;
        }
        state.handing_over = true;
        self.event(&mut state, |leader, machine, now| leader.hand_over(machine, now));
        true
    }

    /// Answers nothing more in this term: the others are about to be told that they may elect.
    pub fn let_go(&self, term: Term) {
        self.lease.revoke(term);
    }

    /// The transfer is over, one way or the other: whoever was parked is told to look for the leader.
    pub fn end_transfer(&self) {
        let mut state = self.state.lock();
        state.handing_over = false;
        for waiting in std::mem::take(&mut state.parked) {
            waiting.answer(Response::Refused(Refusal::NotLeader), &self.meters);
        }
    }

    /// Whether raft still says that this node leads that term.
    pub fn leads(&self, term: Term) -> bool {
        self.state.lock().leading == Some(term)
    }

    /// The leader that raft knows.
    pub fn leader_known(&self) -> Option<u64> {
        self.running.get().and_then(|running| running.raft.server_metrics().borrow_watched().current_leader)
    }
}
