//! Fetches that wait for data, by partition.
//!
//! A fetch registers once for all its partitions, looks again (so that nothing between its first look and the
//! registration is missed), and sleeps until it is woken or its time is over. Waking only marks the fetch: the apply
//! thread that wakes never reads for it. Dropping the registration, also by a closed connection, removes it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::config::limits::FETCH_WAITS_MAX;
use crate::types::TopicPartition;

#[derive(Debug, Default)]
struct Lists {
    by_partition: HashMap<TopicPartition, Vec<Arc<Notify>>>,
    /// Registrations over all partitions, at most [`FETCH_WAITS_MAX`].
    count: usize,
}

/// Who waits for what.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    lists: Mutex<Lists>,
}

/// One fetch that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    waiters: Arc<Waiters>,
    partitions: Vec<TopicPartition>,
    notify: Arc<Notify>,
}

impl Waiters {
    /// Registers a fetch; None when too many wait already.
    pub(super) fn register(self: &Arc<Self>, partitions: Vec<TopicPartition>) -> Option<Waiting> {
        let notify = Arc::new(Notify::new());
        let mut lists = self.lists.lock();
        if lists.count + partitions.len() > FETCH_WAITS_MAX {
            return None;
        }
        lists.count += partitions.len();
        for partition in &partitions {
            lists.by_partition.entry(*partition).or_default().push(notify.clone());
        }
        Some(Waiting { waiters: self.clone(), partitions, notify })
    }

    /// Wakes every fetch that waits for one of these.
    pub(super) fn wake(&self, partitions: &[TopicPartition]) {
        let lists = self.lists.lock();
        if lists.count == 0 {
            return;
        }
        let waiting = partitions.iter().filter_map(|partition| lists.by_partition.get(partition));
        // A permit is stored for a fetch that is not asleep yet; more than one wake before it looks count as one.
        waiting.flatten().for_each(|notify| notify.notify_one());
    }

    /// Registrations, over all partitions.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        let lists = self.lists.lock();
        assert_eq!(lists.count, lists.by_partition.values().map(Vec::len).sum::<usize>());
        lists.count
    }
}

impl Waiting {
    /// Until woken; at once if that happened since the last look.
    pub(super) async fn woken(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut lists = self.waiters.lists.lock();
        lists.count -= self.partitions.len();
        for partition in &self.partitions {
            if let Entry::Occupied(mut list) = lists.by_partition.entry(*partition) {
                // One of ours per mention: a partition named twice is in the list twice.
                if let Some(at) = list.get().iter().position(|notify| Arc::ptr_eq(notify, &self.notify)) {
                    list.get_mut().swap_remove(at);
                }
                if list.get().is_empty() {
                    list.remove();
                }
            }
        }
    }
}
