//! Expiry: what nobody used for long leaves the replicated state, by an entry, so that replicas agree.
//!
//! Producer ids idle for `producer.id.expiration.ms`, transactional ids for `transactional.id.expiration.ms` without a
//! live stage (a marker or a doom does not count, T15), offsets for `offsets.retention.minutes` of groups without
//! members. The entry names the time too: whatever was used meanwhile stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::proposals::Purpose;
use super::transactions::Transaction;
use super::{Leader, Turn};
use crate::config::limits;
use crate::state::command::{Command, Expire};
use crate::types::TopicPartition;

/// When expiry was last looked at, and what it must remember.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    /// When to look next (monotonic ms); None outside a term.
    pub next_ms: Option<u64>,
    /// Before this time no committed offset expires. When a group lost its last member is not replicated, so a new leader
    /// counts from its own beginning: late, never early (KIP-211 counts from when the group became empty).
    offsets_from_ms: u64,
    /// When a group that has offsets last had members (wall clock). Bounded by the groups that have offsets.
    last_members_ms: BTreeMap<Arc<str>, i64>,
    /// Entries in flight: the next look waits for them.
    in_flight: usize,
    /// Whose list was full.
    more: BTreeSet<Kind>,
    /// What the next look is for, a pass over all ids each; None for everything.
    due: Option<BTreeSet<Kind>>,
    /// Transactional ids in such an entry: none of them opens a stage meanwhile, for a stage leaves no trace in the log
    /// that would keep the id (TV2). Their clients retry. At most one entry's worth.
    pub expiring: BTreeSet<Arc<str>>,
}

/// What expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Producers,
    TransactionalIds,
    Offsets,
    /// Producer ids beyond the bound.
    Excess,
}

/// How full the list of one entry is.
#[derive(Debug, Default)]
struct List {
    len: usize,
    name_bytes: usize,
    full: bool,
}

impl List {
    /// Takes one more, with a name of so many bytes; false if the entry is full.
    fn takes(&mut self, name_bytes: usize) -> bool {
        let fits =
            self.len < limits::EXPIRED_PER_ENTRY_MAX && self.name_bytes + name_bytes <= limits::EXPIRED_NAME_BYTES_MAX;
        self.full |= !fits;
        self.len += 1;
        self.name_bytes += name_bytes;
        fits
    }
}

impl Expiry {
    /// A term started.
    pub fn start(now_ms: u64, offsets_retention_ms: i64) -> Self {
        let next_ms = Some(now_ms + limits::EXPIRY_INTERVAL_MS);
        let offsets_from_ms = now_ms.saturating_add(u64::try_from(offsets_retention_ms).unwrap_or(0));
        Self { next_ms, offsets_from_ms, ..Self::default() }
    }
}

impl Leader {
    /// Looks for what has expired, if it is time to.
    pub(super) fn expire(&mut self, turn: &mut Turn<'_>) {
        if self.expiry.next_ms.is_none_or(|next_ms| next_ms > turn.now.mono_ms) {
            return;
        }
        self.expiry.next_ms = Some(turn.now.mono_ms + limits::EXPIRY_INTERVAL_MS);
        if self.expiry.in_flight > 0 {
            return;
        }
        let now_ms = turn.now.wall_ms;
        let due = self.expiry.due.take();
        let due = |kind| due.as_ref().is_none_or(|due| due.contains(&kind));
        self.expiry.more.clear();
        if due(Kind::Producers) {
            let since = now_ms - self.settings.producer_id_expiration_ms;
            self.propose_expired(turn, Kind::Producers, since, |leader, turn, since, list| Expire {
                producers: leader.idle_producers(turn, since, list),
                ..Expire::default()
            });
        }
        if due(Kind::TransactionalIds) {
            let since = now_ms - self.settings.transactional_id_expiration_ms;
            self.propose_expired(turn, Kind::TransactionalIds, since, |leader, turn, since, list| Expire {
                transactional_ids: leader.idle_transactional_ids(turn, since, list),
                ..Expire::default()
            });
        }
        if due(Kind::Offsets) {
            let since = now_ms - self.settings.offsets_retention_ms;
            self.propose_expired(turn, Kind::Offsets, since, |leader, turn, since, list| Expire {
                offsets: leader.idle_offsets(turn, since, list),
                ..Expire::default()
            });
        }
        if due(Kind::Excess) {
            self.propose_excess_producers(turn);
        }
    }

    fn propose_expired(
        &mut self,
        turn: &mut Turn<'_>,
        kind: Kind,
        idle_since_ms: i64,
        find: impl FnOnce(&mut Self, &Turn<'_>, i64, &mut List) -> Expire,
    ) {
        let mut list = List::default();
        let expired = Expire { idle_since_ms, ..find(self, turn, idle_since_ms, &mut list) };
        if list.full {
            self.expiry.more.insert(kind);
        }
        if expired.producers.is_empty() && expired.transactional_ids.is_empty() && expired.offsets.is_empty() {
            return;
        }
        self.expiry.in_flight += 1;
        self.expiry.expiring.extend(expired.transactional_ids.iter().map(|id| Arc::from(id.as_str())));
        self.proposals.propose(turn, Command::Expire(expired), Purpose::Expire);
    }

    /// Idle producer ids that nothing can write with any more, those without state included: wraps of the epoch leave
    /// thousands a day behind.
    fn idle_producers(&self, turn: &Turn<'_>, since_ms: i64, list: &mut List) -> Vec<i64> {
        let (transactions, producers) = (turn.machine.transactions(), turn.machine.producers());
        let idle = producers.iter().filter(|(_, producer)| producer.last_used_ms < since_ms).map(|(id, _)| id);
        let stateless = transactions.owned_producer_ids().map(|(id, _)| id).filter(|id| producers.get(*id).is_none());
        let gone = idle.chain(stateless).filter(|id| !transactions.may_still_write(*id));
        gone.take_while(|_| list.takes(0)).collect()
    }

    fn idle_transactional_ids(&self, turn: &Turn<'_>, since_ms: i64, list: &mut List) -> Vec<String> {
        let in_use = |id: &str| {
            let transaction = self.transactions.by_id.get(id);
            transaction.is_some_and(|transaction| transaction.live().is_some() || transaction.ending.is_some())
        };
        let ids = turn.machine.transactions().iter();
        let idle = ids.filter(|(id, state)| state.last_used_ms < since_ms && !in_use(id));
        idle.take_while(|(id, _)| list.takes(id.len())).map(|(id, _)| id.to_owned()).collect()
    }

    /// Offsets of groups that had no members for the whole retention time, as far as this term knows.
    fn idle_offsets(&mut self, turn: &Turn<'_>, since_ms: i64, list: &mut List) -> Vec<(String, TopicPartition)> {
        let mut last_members_ms = BTreeMap::new();
        let mut idle = Vec::new();
        for (group, state) in turn.machine.group_offsets().iter() {
            let name: Arc<str> = group.into();
            if self.groups.has_members(group) {
                last_members_ms.insert(name, turn.now.wall_ms);
                continue;
            }
            let last = self.expiry.last_members_ms.get(group).copied().filter(|last| *last >= since_ms);
            if let Some(last) = last {
                last_members_ms.insert(name, last);
            } else if turn.now.mono_ms >= self.expiry.offsets_from_ms
                && !self.transactions.by_group.contains_key(group)
                && !list.full
            {
                let old = state.offsets.iter().filter(|(_, committed)| committed.committed_ms < since_ms);
                let old = old.take_while(|_| list.takes(group.len()));
                idle.extend(old.map(|(partition, _)| (group.to_owned(), *partition)));
            }
        }
        self.expiry.last_members_ms = last_members_ms;
        idle
    }

    /// More producer ids than the bound: those idle longest leave first (ID04).
    fn propose_excess_producers(&mut self, turn: &mut Turn<'_>) {
        let excess = turn.machine.producers().len().saturating_sub(limits::PRODUCER_IDS_MAX);
        if excess == 0 {
            return;
        }
        let transactions = turn.machine.transactions();
        let removable = turn.machine.producers().iter().filter(|(id, _)| !transactions.may_still_write(*id));
        let mut by_use: Vec<(i64, i64)> = removable.map(|(id, producer)| (producer.last_used_ms, id)).collect();
        by_use.sort_unstable();
        if by_use.len().min(excess) > limits::EXPIRED_PER_ENTRY_MAX {
            self.expiry.more.insert(Kind::Excess);
        }
        by_use.truncate(excess.min(limits::EXPIRED_PER_ENTRY_MAX));
        let Some((last_ms, _)) = by_use.last().copied() else { return };
        let producers = by_use.into_iter().map(|(_, id)| id).collect();
        self.propose_expired(turn, Kind::Excess, last_ms + 1, |_, _, _, _| Expire { producers, ..Expire::default() });
    }

    /// An expiry entry was applied, or (`again` false) will not be: forgets what is gone. If a list was full, the rest
    /// follows at once.
    pub(super) fn expired(&mut self, turn: &Turn<'_>, again: bool) {
        if !again {
            self.expiry.more.clear();
        }
        self.expiry.in_flight -= 1;
        if self.expiry.in_flight > 0 {
            return;
        }
        let more = std::mem::take(&mut self.expiry.more);
        if !more.is_empty() {
            self.expiry.due = Some(more);
            self.expiry.next_ms = Some(turn.now.mono_ms);
        }
        let known = turn.machine.transactions();
        for id in std::mem::take(&mut self.expiry.expiring) {
            let busy = |transaction: &Transaction| {
                transaction.live().is_some() || transaction.ending.is_some() || !transaction.queue.is_empty()
            };
            if known.get(&id).is_none() && self.transactions.by_id.get(&id).is_some_and(|found| !busy(found)) {
                self.transactions.by_id.remove(&id);
            }
        }
    }
}
