//! A warning that clients can cause as often as they like is told once a second, with the number of those left out.
//! Without this, a client that reconnects in a loop fills the disk with log.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::config::limits::WARNING_INTERVAL_MS;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// One kind of warning.
#[derive(Debug)]
pub struct Seldom {
    /// Milliseconds since the start, plus one interval; 0 before the first.
    next_ms: AtomicU64,
    left_out: AtomicU64,
}

impl Seldom {
    pub const fn new() -> Self {
        Self { next_ms: AtomicU64::new(0), left_out: AtomicU64::new(0) }
    }

    /// Whether to tell it now: how many were left out before, None to leave out this one too.
    pub fn turn(&self) -> Option<u64> {
        self.turn_at(u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn turn_at(&self, now_ms: u64) -> Option<u64> {
        let next = self.next_ms.load(Ordering::Relaxed);
        let mine = now_ms >= next
            && self
                .next_ms
                .compare_exchange(next, now_ms + WARNING_INTERVAL_MS, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if mine {
            Some(self.left_out.swap(0, Ordering::Relaxed))
        } else {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_an_interval_is_told_and_the_others_are_counted() {
        let seldom = Seldom::new();
        let at: Vec<_> = [0, 1, 999, 1_000, 1_001, 5_000, 5_001, 6_000].map(|now_ms| seldom.turn_at(now_ms)).into();
        assert_eq!(at, [Some(0), None, None, Some(2), None, Some(1), None, Some(1)]);
    }
}
