//! Expiry: the leader decides what has been idle for too long and says so in an entry, so that replicas agree (transactions.md §4).
//!
//! What was used since the leader looked is kept: the lists are candidates, `idle_since_ms` is the rule.

use std::collections::BTreeSet;

use super::Machine;
use super::command::Expire;

impl Machine {
    pub(super) fn apply_expire(&mut self, expire: &Expire) {
        let ids: BTreeSet<&String> = expire.transactional_ids.iter().filter(|id| self.id_is_idle(id, expire)).collect();
        if !ids.is_empty() {
            self.forget_transactional_ids(&ids);
        }
        for producer_id in &expire.producers {
            let idle = self.producers.get(*producer_id).is_none_or(|state| state.last_used_ms < expire.idle_since_ms);
            if idle && !self.transactions.may_still_write(*producer_id) {
                self.producers.by_id.remove(producer_id);
                self.transactions.by_producer_id.remove(producer_id);
            }
        }
        for (group, partition) in &expire.offsets {
            self.group_offsets.forget_idle(group, *partition, expire.idle_since_ms);
        }
    }

    fn id_is_idle(&self, transactional_id: &str, expire: &Expire) -> bool {
        self.transactions.get(transactional_id).is_some_and(|id| id.last_used_ms < expire.idle_since_ms)
    }

    /// An open begin marker does not keep an id alive (T15): a crashed producer's would stay for ever.
    fn forget_transactional_ids(&mut self, ids: &BTreeSet<&String>) {
        let transactions = &mut self.transactions;
        let owned = transactions.by_producer_id.iter().filter(|(_, owner)| ids.contains(owner));
        let producer_ids: Vec<i64> = owned.map(|(producer_id, _)| *producer_id).collect();
        for producer_id in producer_ids {
            transactions.by_producer_id.remove(&producer_id);
            self.producers.by_id.remove(&producer_id);
        }
        for id in ids {
            transactions.by_id.remove(*id);
            transactions.free_chunks_of(id);
        }
    }
}
