//! Deadlines: of proposals, of the leader's own timers, of answers that wait for a lease.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::clock;
use super::super::lease::Sent;
use super::{Sequencer, State};
use crate::leader::Ticket;

/// The longest sleep of the timer: its clock does not count suspension, the deadlines do.
const TIMER_MS_MAX: u64 = 500;
/// Without a look for that long the node stood still (SIGSTOP, a suspended machine) or was starved: nobody asked the quorum
/// meanwhile, so its silence says nothing.
const STOOD_STILL_MS: u64 = 2 * TIMER_MS_MAX;

impl Sequencer {
    /// Runs deadlines and timeouts until the sequencer stops.
    pub async fn run_timer(self: Arc<Self>) {
        loop {
            let Some(next_ms) = self.due() else { return };
            let wait_ms = next_ms.saturating_sub(clock::now().mono_ms).clamp(1, TIMER_MS_MAX);
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
                () = self.completions.stirred.notified() => {}
                () = self.lease.renewed() => {}
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
        let looked = std::mem::replace(&mut state.looked, Sent::now());
        if looked.is_over(STOOD_STILL_MS) && !state.lost {
            state.began = state.looked;
        }
        self.follow_quorum(&mut state);
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
    pub(super) fn rearm(&self, state: &State) {
        if let Some(next_ms) = next_deadline(state)
            && next_ms < self.armed_ms.load(Ordering::Relaxed)
        {
            self.armed_ms.store(next_ms, Ordering::Relaxed);
            self.completions.stirred.notify_one();
        }
    }
}

/// The next proposal whose deadline has passed, marked as of unknown fate.
fn expired(state: &mut State, now_ms: u64) -> Option<Ticket> {
    while let Some((deadline_ms, ticket)) = state.deadlines.first().copied() {
        match state.proposals.get_mut(&ticket) {
            Some(unknown) if deadline_ms <= now_ms => {
                *unknown = true;
                state.deadlines.pop_first();
                return Some(ticket);
            }
            Some(_) => return None,
            // It ended in time.
            None => {
                state.deadlines.pop_first();
            }
        }
    }
    None
}

/// Deadlines of proposals, ascending.
pub(super) type Deadlines = BTreeSet<(u64, Ticket)>;

fn next_deadline(state: &State) -> Option<u64> {
    let proposal = state.deadlines.first().map(|(deadline_ms, _)| *deadline_ms);
    [proposal, state.leader.next_deadline_ms()].into_iter().flatten().min()
}
