//! How much memory all answers together may hold, from before a fetch reads until its response has been written.
//!
//! A fetch never waits here: where memory is short it reads less, and at least one batch, as under any other limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes of all answers.
#[derive(Debug)]
pub(super) struct Memory {
    max: usize,
    used: AtomicUsize,
}

/// The part of them that one answer has; given back when dropped.
#[derive(Debug)]
pub struct Share {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Memory {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, used: AtomicUsize::new(0) })
    }

    /// As much of `wanted` as is left, maybe nothing.
    pub(super) fn take(self: &Arc<Self>, wanted: usize) -> Share {
        let mut bytes = 0;
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            bytes = wanted.min(self.max.saturating_sub(used));
            Some(used + bytes)
        });
        Share { memory: Arc::clone(self), bytes }
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl Share {
    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What was read in the end: less than was taken, or one batch that is larger.
    pub(super) fn settle(&mut self, bytes: usize) {
        let used = &self.memory.used;
        if bytes < self.bytes {
            used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        } else {
            used.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
