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
pub mod group_offsets;
pub mod partitions;
pub mod producers;
pub mod snapshot;
pub mod topics;
pub mod transactions;

use crate::types::{LogIndex, Term};
use command::{Effects, Entry, Outcome};

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

impl Machine {
    /// Applies one committed entry at `index` of `term`.
    pub fn apply(&mut self, index: LogIndex, term: Term, entry: &Entry) -> (Effects, Outcome) {
        let _ = (index, term, entry);
        todo!("state helper")
    }

    /// Notes a blank or membership entry: only the applied index moves.
    pub fn apply_blank(&mut self, index: LogIndex, term: Term) {
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
