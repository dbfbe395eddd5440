//! Deadlines of groups and members: one per key, ordered by time. Setting one replaces it, so that retries add up to nothing.
//!
//! Bounded by what it times: two keys per group, one per member or pending member id.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What becomes due.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::leader) enum Timer {
    /// The join phase of a group: its initial delay or its rebalance timeout.
    Join(Arc<str>),
    /// Members of a group that have not sent SyncGroup yet.
    Sync(Arc<str>),
    /// The session of a member (group, member id), or a member id that was given out and not used.
    Session(Arc<str>, Arc<str>),
}

/// All deadlines, monotonic milliseconds.
#[derive(Debug, Default)]
pub(in crate::leader) struct Timers {
    by_time: BTreeSet<(u64, Timer)>,
    due: BTreeMap<Timer, u64>,
}

impl Timers {
    /// Sets the deadline, replacing an earlier one.
    pub(in crate::leader) fn set(&mut self, timer: Timer, due_ms: u64) {
        if let Some(old) = self.due.insert(timer.clone(), due_ms) {
            self.by_time.remove(&(old, timer.clone()));
        }
        self.by_time.insert((due_ms, timer));
    }

    /// Forgets the deadline.
    pub(in crate::leader) fn cancel(&mut self, timer: Timer) {
        if let Some(due) = self.due.remove(&timer) {
            self.by_time.remove(&(due, timer));
        }
    }

    /// The earliest deadline.
    pub(in crate::leader) fn next_ms(&self) -> Option<u64> {
        self.by_time.first().map(|(due, _)| *due)
    }

    /// Takes the earliest deadline that has come.
    pub(in crate::leader) fn pop_due(&mut self, now_ms: u64) -> Option<Timer> {
        if self.next_ms()? > now_ms {
            return None;
        }
        let (_, timer) = self.by_time.pop_first()?;
        self.due.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_set_again_comes_once_and_at_its_new_time() {
        let mut timers = Timers::default();
        let key = || Timer::Session("g".into(), "m".into());
        timers.set(key(), 10);
        timers.set(key(), 30);
        timers.set(Timer::Join("g".into()), 20);
        assert_eq!(timers.next_ms(), Some(20));
        assert_eq!(timers.pop_due(25), Some(Timer::Join("g".into())));
        assert_eq!(timers.pop_due(25), None);
        assert_eq!(timers.pop_due(30), Some(key()));
        assert_eq!(timers.next_ms(), None);
        timers.set(key(), 5);
        timers.cancel(key());
        assert_eq!(timers.pop_due(100), None);
    }
}
