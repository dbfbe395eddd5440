//! The leader's lease: until when no other node can have been elected, on a clock that counts suspension.
//!
//! A follower that accepts an append or a heartbeat promises to elect nobody for [`PROMISE_MS`] (openraft's vote handling;
//! what it does not keep over a restart is kept by [`Lease::may_vote`]). So from the moment at which requests were *sent*
//! that a quorum has accepted, nobody else can lead for that long. We rely on three quarters of it, for clocks that run
//! at different rates.
//!
//! Kept by ourselves and not taken from openraft's metrics, for two reasons. Their clock stands still while a machine is
//! suspended. And a stream's requests that add no entries are booked as accepted with the entries before them, at their
//! own, later time, though the follower may never have got them (`InflightAppendQueue`). Here an answer counts for the
//! one request it answers ([`witness`]).
//!
//! Readers take no lock: two atomics, term and time. The time is never of an earlier term than the term that is read
//! after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Log, clock};
use crate::types::Term;

pub mod witness;

/// How long a follower elects nobody after it heard from a leader: openraft's `election_timeout_max`.
pub const PROMISE_MS: u64 = 800;
/// How long the leader relies on that, from the sending of what a quorum has accepted.
pub const LEASE_MS: u64 = PROMISE_MS * 3 / 4;
/// Without a quorum for that long, a leader serves nobody any more: clients are told to look for another.
pub const LOST_MS: u64 = 2 * PROMISE_MS;

/// No quorum is needed but this node.
const ALWAYS: u64 = u64::MAX;

/// When a request was sent, microseconds of the clock that counts suspension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sent(u64);

impl Sent {
    /// Now, before it is sent.
    pub fn now() -> Self {
        Self(clock::boot_us())
    }

    /// More than that long ago.
    pub fn is_over(self, ms: u64) -> bool {
        !within(self.0, ms)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Lease {
    me: u64,
    book: Mutex<Book>,
    /// The term that `sent_us` is about.
    term: AtomicU64,
    /// When that was sent which a quorum has accepted; 0 for never.
    sent_us: AtomicU64,
    /// Somebody waits for the next renewal.
    awaited: AtomicBool,
    renewed: Notify,
    /// Before this time no vote is given: the promise of the process before this one may still hold.
    votes_from_us: u64,
}

#[derive(Debug, Default)]
struct Book {
    term: u64,
    /// Given up in this term: leadership is being transferred.
    revoked: u64,
    /// The voters in force; two sets while they change.
    voters: Vec<BTreeSet<u64>>,
    /// When that was sent which a peer has accepted last, in `term`.
    accepted: BTreeMap<u64, Sent>,
}

impl Lease {
    /// None yet. `restarted`: an earlier process of this node may have promised not to vote.
    pub fn new(me: u64, restarted: bool) -> Self {
        Self {
            me,
            book: Mutex::default(),
            term: AtomicU64::new(0),
            sent_us: AtomicU64::new(0),
            awaited: AtomicBool::new(false),
            renewed: Notify::new(),
            votes_from_us: if restarted { clock::boot_us() + PROMISE_MS * 1000 } else { 0 },
        }
    }

    // === What happens ===

    /// The voters in force: a majority of each set is a quorum.
    pub fn set_voters(&self, voters: Vec<BTreeSet<u64>>) {
        let mut book = self.book.lock();
        if book.voters != voters {
            book.voters = voters;
            self.publish(&book);
        }
    }

    /// This node leads that term.
    pub fn lead(&self, term: Term) {
        self.enter(&mut self.book.lock(), term.0);
    }

    /// `peer` accepted what was sent to it then, in that term.
    pub fn accepted(&self, term: Term, peer: u64, sent: Sent) {
        let mut book = self.book.lock();
        self.enter(&mut book, term.0);
        if book.term != term.0 {
            return;
        }
        let last = book.accepted.entry(peer).or_insert(sent);
        *last = sent.max(*last);
        self.publish(&book);
        drop(book);
        if self.awaited.load(Ordering::Acquire) && self.awaited.swap(false, Ordering::AcqRel) {
            self.renewed.notify_one();
        }
    }

    /// Gives the lease of this term up, for good: the followers are about to be released from their promise.
    pub fn revoke(&self, term: Term) {
        let mut book = self.book.lock();
        self.enter(&mut book, term.0);
        book.revoked = book.revoked.max(term.0);
        self.publish(&book);
    }

    fn enter(&self, book: &mut Book, term: u64) {
        if term > book.term {
            book.term = term;
            book.accepted.clear();
            // Not valid, until the term is another one.
            self.sent_us.store(0, Ordering::Release);
            self.term.store(term, Ordering::Release);
            self.publish(book);
        }
    }

    fn publish(&self, book: &Book) {
        let sent_us = if book.revoked == book.term { 0 } else { self.quorum_sent_us(book) };
        self.sent_us.store(sent_us, Ordering::Release);
    }

    /// The latest time such that a majority of every set accepted what was sent then or later.
    fn quorum_sent_us(&self, book: &Book) -> u64 {
        let of_peer = |id: &u64| book.accepted.get(id).map_or(0, |sent| sent.0);
        let of_set = |set: &BTreeSet<u64>| {
            let mut times: Vec<u64> = set.iter().map(|id| if *id == self.me { ALWAYS } else { of_peer(id) }).collect();
            times.sort_unstable_by(|one, other| other.cmp(one));
            times.get(times.len() / 2).copied().unwrap_or(0)
        };
        book.voters.iter().map(of_set).min().unwrap_or(0)
    }

    // === What is asked ===

    /// Nobody else led at `now`, and this node leads `term`.
    pub fn is_valid(&self, term: Term) -> bool {
        self.sent_us(term).is_some_and(|sent_us| within(sent_us, LEASE_MS))
    }

    /// A quorum has accepted, in that term, what was sent after `since`.
    pub fn is_confirmed(&self, term: Term, since: Sent) -> bool {
        self.sent_us(term).is_some_and(|sent_us| sent_us > since.0)
    }

    /// Without a quorum for so long that clients should look for another leader. `began`: when the term did here.
    pub fn is_lost(&self, term: Term, began: Sent) -> bool {
        let last_us = self.sent_us(term).unwrap_or(0).max(began.0);
        !within(last_us, LOST_MS)
    }

    /// When that was sent which a quorum has accepted in that term.
    fn sent_us(&self, term: Term) -> Option<u64> {
        let sent_us = self.sent_us.load(Ordering::Acquire);
        (sent_us > 0 && self.term.load(Ordering::Acquire) == term.0).then_some(sent_us)
    }

    /// Asks to be told of the next renewal by [`Lease::renewed`].
    pub fn await_renewal(&self) {
        self.awaited.store(true, Ordering::Release);
    }

    /// Waits for a renewal that was asked for.
    pub async fn renewed(&self) {
        self.renewed.notified().await;
    }

    /// Whether this node may vote, or ask for votes. openraft forgets at a restart that it has promised not to.
    pub fn may_vote(&self) -> bool {
        clock::boot_us() >= self.votes_from_us
    }

    /// How long it still may not.
    pub fn votes_in_ms(&self) -> u64 {
        self.votes_from_us.saturating_sub(clock::boot_us()).div_ceil(1000)
    }
}

impl Log {
    /// [`Log::serving`], and only while no other node can have been elected: whatever was read before this call, under
    /// that term, was the newest there was. For answers that name the newest state, as ListOffsets.
    pub fn leased(&self) -> Option<Term> {
        self.node.sequencer.leased()
    }
}

fn within(since_us: u64, ms: u64) -> bool {
    since_us == ALWAYS || clock::boot_us() < since_us.saturating_add(ms * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Term = Term(3);

    fn lease(voters: &[&[u64]]) -> Lease {
        let lease = Lease::new(1, false);
        lease.set_voters(voters.iter().map(|set| set.iter().copied().collect()).collect());
        lease.lead(TERM);
        lease
    }

    fn ago(ms: u64) -> Sent {
        Sent(clock::boot_us() - ms * 1000)
    }

    #[test]
    fn the_only_voter_needs_nobody() {
        let lease = lease(&[&[1]]);
        assert!(lease.is_valid(TERM) && lease.is_confirmed(TERM, Sent::now()) && !lease.is_lost(TERM, ago(60_000)));
        lease.set_voters(vec![[1, 2, 3].into()]);
        assert!(!lease.is_valid(TERM), "the others never accepted anything");
    }

    #[test]
    fn a_quorum_counts_from_when_its_requests_were_sent() {
        let lease = lease(&[&[1, 2, 3]]);
        assert!(!lease.is_valid(TERM));
        lease.accepted(TERM, 2, ago(LEASE_MS + 1));
        assert!(!lease.is_valid(TERM), "accepted late");
        let before = ago(100);
        lease.accepted(TERM, 3, Sent::now());
        assert!(lease.is_valid(TERM) && lease.is_confirmed(TERM, before));
        assert!(!lease.is_confirmed(TERM, Sent::now()), "nothing was sent since");
    }

    #[test]
    fn of_five_two_others_must_accept() {
        let lease = lease(&[&[1, 2, 3, 4, 5]]);
        lease.accepted(TERM, 2, Sent::now());
        assert!(!lease.is_valid(TERM));
        lease.accepted(TERM, 9, Sent::now());
        assert!(!lease.is_valid(TERM), "not a voter");
        lease.accepted(TERM, 5, Sent::now());
        assert!(lease.is_valid(TERM));
    }

    #[test]
    fn while_voters_change_both_majorities_count() {
        let lease = lease(&[&[1], &[1, 2, 3]]);
        assert!(!lease.is_valid(TERM));
        lease.accepted(TERM, 3, Sent::now());
        assert!(lease.is_valid(TERM));
    }

    #[test]
    fn a_leader_that_does_not_vote_needs_a_majority_of_others() {
        let lease = lease(&[&[2, 3, 4]]);
        lease.accepted(TERM, 2, Sent::now());
        assert!(!lease.is_valid(TERM));
        lease.accepted(TERM, 3, Sent::now());
        assert!(lease.is_valid(TERM));
    }

    #[test]
    fn a_term_says_nothing_about_another() {
        let lease = lease(&[&[1, 2, 3]]);
        lease.accepted(Term(2), 2, Sent::now());
        assert!(!lease.is_valid(TERM), "an answer to an earlier term");
        lease.accepted(TERM, 2, Sent::now());
        lease.lead(Term(4));
        assert!(!lease.is_valid(TERM) && !lease.is_valid(Term(4)));
    }

    #[test]
    fn a_lease_given_up_comes_back_with_another_term_only() {
        let lease = lease(&[&[1, 2, 3]]);
        lease.accepted(TERM, 2, Sent::now());
        lease.revoke(TERM);
        lease.accepted(TERM, 2, Sent::now());
        assert!(!lease.is_valid(TERM));
        lease.accepted(Term(4), 2, Sent::now());
        assert!(lease.is_valid(Term(4)));
    }

    #[test]
    fn without_a_quorum_it_is_lost_in_time() {
        let lease = lease(&[&[1, 2, 3]]);
        assert!(!lease.is_lost(TERM, ago(100)), "it has just begun");
        lease.accepted(TERM, 2, ago(LOST_MS - 100));
        assert!(!lease.is_valid(TERM) && !lease.is_lost(TERM, ago(60_000)));
        lease.revoke(TERM);
        assert!(lease.is_lost(TERM, ago(LOST_MS + 1)));
    }

    #[test]
    fn a_restarted_node_keeps_its_promise() {
        assert!(Lease::new(1, false).may_vote());
        let restarted = Lease::new(1, true);
        assert!(!restarted.may_vote() && restarted.votes_in_ms() > PROMISE_MS - 100);
    }
}
