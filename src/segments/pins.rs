//! What readers hold: the visible indexes that requests in progress answer at.
//!
//! A batch may leave the tail only when no reader holds an index below the batch's, because the high watermark at an
//! index is found in the tail. A pin lasts for one look at the logs (microseconds to a few file reads), never while a
//! fetch waits, so trimming is never held up for long.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::types::LogIndex;

/// The visible index and who reads at which.
#[derive(Debug)]
pub(super) struct Pins {
    /// The visible index + 1, 0 before the first. Stored by apply (Release) after all pushes of the entry, loaded once
    /// per request (Acquire): whoever sees the index sees the pushes.
    visible: AtomicU64,
    /// (visible index + 1, how many readers), ascending: pins are taken at the newest index under this lock.
    held: Mutex<VecDeque<(u64, usize)>>,
}

impl Pins {
    /// Everything up to `visible` can be read.
    pub(super) fn new(visible: Option<LogIndex>) -> Self {
        Self { visible: AtomicU64::new(visible.map_or(0, |index| index.0 + 1)), held: Mutex::default() }
    }

    /// Makes everything up to `index` visible.
    pub(super) fn publish(&self, index: LogIndex) {
        self.visible.store(index.0 + 1, Ordering::Release);
    }

    /// The visible index.
    pub(super) fn visible(&self) -> Option<LogIndex> {
        self.visible.load(Ordering::Acquire).checked_sub(1).map(LogIndex)
    }

    /// Holds the visible index.
    pub(super) fn pin(&self) -> Option<LogIndex> {
        let mut held = self.held.lock();
        let visible = self.visible.load(Ordering::Acquire);
        match held.back_mut() {
            Some((index, readers)) if *index == visible => *readers += 1,
            _ => held.push_back((visible, 1)),
        }
        visible.checked_sub(1).map(LogIndex)
    }

    /// Gives back what [`Pins::pin`] returned.
    pub(super) fn unpin(&self, pinned: Option<LogIndex>) {
        let key = pinned.map_or(0, |index| index.0 + 1);
        let mut held = self.held.lock();
        let at = held.partition_point(|(index, _)| *index < key);
        held[at].1 -= 1;
        while held.front().is_some_and(|(_, readers)| *readers == 0) {
            held.pop_front();
        }
    }

    /// The least index that a reader has or may still get; None while a reader sees nothing.
    pub(super) fn least(&self) -> Option<LogIndex> {
        let held = self.held.lock();
        let least = held.front().map_or_else(|| self.visible.load(Ordering::Acquire), |(index, _)| *index);
        least.checked_sub(1).map(LogIndex)
    }
}
