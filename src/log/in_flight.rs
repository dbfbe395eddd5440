//! Bounds on what is proposed and not applied yet, and the results on their way back to the sequencer.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use openraft::errors::ClientWriteError;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::raft_types::WriteResult;
use crate::config::limits::{PROPOSALS_ADMITTED_MAX, PROPOSALS_MAX, PROPOSED_BYTES_MAX};
use crate::leader::Ticket;
use crate::state::command::Outcome;
use crate::types::{LogIndex, Term};

/// How often a segment writer that is behind is asked again: it tells nobody when it has room.
const BEHIND_POLL: Duration = Duration::from_millis(2);

/// Counts proposals from being sent to being applied, dropped or refused.
#[derive(Debug, Default)]
pub struct InFlight {
    proposals: AtomicUsize,
    bytes: AtomicUsize,
    room: Notify,
}

/// One proposal's share of the counts; given back when dropped.
#[derive(Debug)]
pub struct Share {
    of: Arc<InFlight>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        let proposals = self.of.proposals.fetch_sub(1, Ordering::AcqRel);
        let bytes = self.of.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        // Only the one that makes room wakes those who wait for it, or each end would wake all of them.
        let had_room = proposals < PROPOSALS_ADMITTED_MAX && bytes < PROPOSED_BYTES_MAX;
        if proposals == 1 || (!had_room && self.of.has_room()) {
            self.of.room.notify_waiters();
        }
    }
}

impl InFlight {
    /// Counts one more proposal; None above the hard bound.
    pub fn enter(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        // The sequencer's lock serialises entering, so check and add need not be one step.
        if self.proposals() >= PROPOSALS_MAX {
            return None;
        }
        self.proposals.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(Share { of: self.clone(), bytes })
    }

    /// Proposals in flight.
    pub fn proposals(&self) -> usize {
        self.proposals.load(Ordering::Relaxed)
    }

    fn has_room(&self) -> bool {
        self.proposals() < PROPOSALS_ADMITTED_MAX && self.bytes.load(Ordering::Relaxed) < PROPOSED_BYTES_MAX
    }

    /// Has those who wait look again whether they still must.
    pub fn look_again(&self) {
        self.room.notify_waiters();
    }

    /// Waits until there is room and `segments_behind` says no, or `over` says that nobody must wait.
    pub async fn admitted(&self, segments_behind: impl Fn() -> bool, over: impl Fn() -> bool) {
        loop {
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            if over() {
                return;
            }
            match (self.has_room(), segments_behind()) {
                (true, false) => return,
                (false, _) => room.await,
                (true, true) => tokio::time::sleep(BEHIND_POLL).await,
            }
        }
    }

    /// Waits until nothing is in flight.
    pub async fn drained(&self) {
        loop {
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            if self.proposals() == 0 {
                return;
            }
            room.await;
        }
    }
}

/// How a proposal ended.
#[derive(Debug)]
pub enum Fate {
    /// Applied at this index.
    Applied(LogIndex, Outcome),
    /// Refused before it was appended: it will never be applied.
    Discarded,
    /// Another leader's log replaced it here, or openraft stopped: it may still be applied.
    Unknown,
}

impl Fate {
    /// The fate that a write's result tells.
    pub fn of(result: Option<WriteResult>) -> Self {
        match result {
            Some(Ok(written)) => Self::Applied(LogIndex(written.log_id.index()), written.data),
            Some(Err(ClientWriteError::ForwardToLeader(_) | ClientWriteError::PreconditionFailed(_)))
            | Some(Err(ClientWriteError::ChangeMembershipError(_))) => Self::Discarded,
            // openraft's own words: the commit status is unknown. A node that still holds the entry may win a later
            // election over the leader that replaced it here, and commit it then.
            Some(Err(ClientWriteError::LogEntryDiscarded(_))) | None => Self::Unknown,
        }
    }
}

/// A proposal's end, to be told to the leader of the term it was made in.
#[derive(Debug)]
pub struct Completion {
    /// That term.
    pub term: Term,
    /// Which proposal.
    pub ticket: Ticket,
    /// How it ended.
    pub fate: Fate,
}

/// Ends of proposals that the leader was not told yet. Filled from any thread, also under the machine's write lock:
/// the lock in here is a leaf. Bounded by the proposals in flight.
#[derive(Debug, Default)]
pub struct Completions {
    queue: Mutex<Vec<Completion>>,
    /// Rings when something ended that no apply will ask for.
    pub stirred: Notify,
}

impl Completions {
    /// Adds one.
    pub fn push(&self, completion: Completion) {
        let alone = !matches!(completion.fate, Fate::Applied(..));
        self.queue.lock().push(completion);
        if alone {
            self.stirred.notify_one();
        }
    }

    /// Takes all, in the order in which they ended.
    pub fn take(&self) -> Vec<Completion> {
        std::mem::take(&mut *self.queue.lock())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[tokio::test]
    async fn whoever_waits_for_room_is_let_in_where_nobody_must_wait() {
        let in_flight = Arc::new(InFlight::default());
        let share = in_flight.enter(PROPOSED_BYTES_MAX);
        let lost = Arc::new(AtomicBool::new(false));
        let waiting = tokio::spawn({
            let (in_flight, lost) = (in_flight.clone(), lost.clone());
            async move { in_flight.admitted(|| false, || lost.load(Ordering::Relaxed)).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(share.is_some() && !waiting.is_finished());
        lost.store(true, Ordering::Relaxed);
        in_flight.look_again();
        tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("it is let in").unwrap();
    }
}
