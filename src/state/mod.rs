//! The replicated state, PURE: what committed entries made, the same on every replica.
//!
//! [`Machine::apply`] takes the next committed entry and returns its [`Effects`] and [`Outcome`].
//! The contract (compare toydb's `src/raft/state.rs`):
//!
//! 1. Deterministic: a function of the state and of the entry only. No clock, no randomness, no unordered map, no I/O.
//! 2. It cannot fail and cannot wait. A command that must not take effect is a no-op with a refusal as its outcome.
//! 3. Entries are applied in log order, each exactly once; the applied index goes up with every one.
//! 4. All or nothing per command where Kafka's meaning demands it: a TxnCommit changes everything or nothing.
//!
//! Everything else may read the machine, nobody else may change it.

pub mod command;
pub mod configs;
mod end_txn;
mod expiry;
pub mod group_offsets;
pub mod handover;
pub mod partitions;
mod produce;
pub mod producers;
pub mod snapshot;
pub mod topics;
pub mod transactions;
mod trim;

#[cfg(test)]
mod tests;

use crate::types::{LogIndex, Term};
use command::{Command, Effects, Entry, Outcome};

/// The whole replicated state of a cluster.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Machine {
    /// The last entry applied, None before the first.
    pub(crate) applied: Option<(LogIndex, Term)>,
    /// Topics, their partitions and settings.
    pub(crate) topics: topics::Topics,
    /// Idempotence state per producer and partition.
    pub(crate) producers: producers::Producers,
    /// Transactional ids and the chunks of open transactions.
    pub(crate) transactions: transactions::Transactions,
    /// Committed offsets per group.
    pub(crate) group_offsets: group_offsets::GroupOffsetsTable,
    /// Settings of all brokers, where they differ from the defaults.
    pub(crate) configs: configs::Configs,
}

/// Where and when an entry is applied: all that its command may depend on besides itself and the state.
#[derive(Clone, Copy, Debug)]
struct At {
    index: LogIndex,
    term: Term,
    now_ms: i64,
}

impl Machine {
    /// Applies one committed entry at `index` of `term`.
    ///
    /// # Panics
    /// If entries come out of order: replicas would diverge.
    pub fn apply(&mut self, index: LogIndex, term: Term, entry: &Entry) -> (Effects, Outcome) {
        self.advance(index, term);
        let at = At { index, term, now_ms: entry.now_ms };
        let mut effects = Effects { now_ms: entry.now_ms, ..Effects::default() };
        let outcome = match &entry.command {
            Command::Produce(batches) => self.apply_produce(at, batches, &mut effects),
            Command::OffsetCommit(commit) => {
                Outcome::Offsets(self.group_offsets.apply_commit(at, commit, &self.topics))
            }
            Command::InitProducerId(init) => {
                Outcome::ProducerId(self.transactions.apply_init(at, init, &mut self.producers))
            }
            Command::TxnBegin(begin) => Outcome::Staged(self.transactions.apply_begin(at, begin)),
            Command::TxnChunk(chunk) => Outcome::Staged(self.transactions.apply_chunk(at, chunk)),
            Command::TxnCommit(commit) => Outcome::Ended(self.apply_txn_commit(at, commit, &mut effects)),
            Command::TxnAbort(abort) => Outcome::Ended(self.apply_txn_abort(at, abort)),
            Command::CreateTopics(topics) => Outcome::Topics(self.topics.apply_create(topics, &mut effects)),
            Command::CreatePartitions(more) => Outcome::Topics(self.topics.apply_grow(more, &mut effects)),
            Command::DeleteTopics(ids) => self.apply_delete_topics(ids, &mut effects),
            Command::AlterConfigs(changes) => {
                self.apply_alter_configs(changes, &mut effects);
                Outcome::Done
            }
            Command::Expire(expire) => {
                self.apply_expire(expire);
                Outcome::Done
            }
            Command::DropStages(stages) => {
                self.transactions.apply_drop_stages(stages);
                Outcome::Done
            }
            Command::TrimPartitions(trims) => self.apply_trim(trims, &mut effects),
            Command::HandOver(list) => {
                self.transactions.apply_hand_over(at, list);
                Outcome::Done
            }
        };
        (effects, outcome)
    }

    /// Notes a blank or membership entry: the applied index moves, and a new term frees what only the old one could commit.
    ///
    /// # Panics
    /// If entries come out of order.
    pub fn apply_blank(&mut self, index: LogIndex, term: Term) {
        self.advance(index, term);
    }

    /// The first entry of a term frees all chunks: their stages died with the leader that staged the rest
    /// (transactions.md §1), and no entry of the old term can follow.
    fn advance(&mut self, index: LogIndex, term: Term) {
        if let Some((last_index, last_term)) = self.applied {
            assert!(index > last_index && term >= last_term, "entries are applied in log order, each once");
            if term > last_term {
                self.transactions.free_all_chunks();
            }
        }
        self.applied = Some((index, term));
    }

    /// The last entry applied.
    pub fn applied(&self) -> Option<(LogIndex, Term)> {
        self.applied
    }

    /// Topics and partitions, to read.
    pub fn topics(&self) -> &topics::Topics {
        &self.topics
    }

    /// Idempotence state, to read.
    pub fn producers(&self) -> &producers::Producers {
        &self.producers
    }

    /// Transactional ids, to read.
    pub fn transactions(&self) -> &transactions::Transactions {
        &self.transactions
    }

    /// Committed offsets, to read.
    pub fn group_offsets(&self) -> &group_offsets::GroupOffsetsTable {
        &self.group_offsets
    }

    /// Broker settings, to read.
    pub fn configs(&self) -> &configs::Configs {
        &self.configs
    }
}
