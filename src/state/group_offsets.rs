//! Committed offsets per group. Members and generations are soft and live in `leader/groups`: apply never checks them (T11).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::At;
use super::command::{GroupOffsets, OffsetWrite, StagedOffsets};
use super::topics::Topics;
use crate::types::{LogIndex, Offset, Refusal, TopicPartition};

/// One committed offset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommittedOffset {
    /// The next offset to read.
    pub offset: Offset,
    /// Leader epoch of the last record read, −1 if unknown.
    pub leader_epoch: i32,
    /// Free text of the client.
    pub metadata: String,
    /// When, for expiry.
    pub committed_ms: i64,
    /// How new it is: the index of the plain commit that wrote it, or the index at which the transaction that wrote it had
    /// staged it. A stage older than this does not overwrite it (T21; Kafka's `CommitRecordMetadataAndOffset.olderThan`).
    pub index: LogIndex,
}

/// One group's offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupOffsetsState {
    /// By partition.
    pub offsets: BTreeMap<TopicPartition, CommittedOffset>,
}

/// All groups that committed something.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupOffsetsTable {
    pub(super) groups: imbl::OrdMap<String, Arc<GroupOffsetsState>>,
}

impl GroupOffsetsTable {
    /// A group's offsets.
    pub fn group(&self, group: &str) -> Option<&GroupOffsetsState> {
        self.groups.get(group).map(|state| &**state)
    }

    /// One committed offset.
    pub fn get(&self, group: &str, partition: TopicPartition) -> Option<&CommittedOffset> {
        self.groups.get(group)?.offsets.get(&partition)
    }

    /// All groups, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &GroupOffsetsState)> {
        self.groups.iter().map(|(group, state)| (group.as_str(), &**state))
    }

    pub(super) fn apply_commit(&mut self, at: At, commit: &GroupOffsets, topics: &Topics) -> Vec<Result<(), Refusal>> {
        let mut write_one = |write: &OffsetWrite| {
            topics.partition(write.of).ok_or(Refusal::UnknownTopicOrPartition)?;
            self.put(at.now_ms, at.index, &commit.group, write);
            Ok(())
        };
        commit.offsets.iter().map(&mut write_one).collect()
    }

    /// Offsets of a transaction that commits: those that a later commit overtook stay as they are.
    pub(super) fn apply_staged(&mut self, at: At, staged: &StagedOffsets) {
        for write in &staged.offsets {
            let overtaken = self.get(&staged.group, write.of).is_some_and(|found| found.index > staged.staged_at);
            if !overtaken {
                self.put(at.now_ms, staged.staged_at, &staged.group, write);
            }
        }
    }

    fn put(&mut self, now_ms: i64, index: LogIndex, group: &str, write: &OffsetWrite) {
        let committed = CommittedOffset {
            offset: write.offset,
            leader_epoch: write.leader_epoch,
            metadata: write.metadata.clone(),
            committed_ms: now_ms,
            index,
        };
        if let Some(state) = self.groups.get_mut(group) {
            Arc::make_mut(state).offsets.insert(write.of, committed);
        } else {
            let state = GroupOffsetsState { offsets: BTreeMap::from([(write.of, committed)]) };
            self.groups.insert(group.to_owned(), Arc::new(state));
        }
    }

    /// Removes one offset, unless it was committed at or after that time.
    pub(super) fn forget_idle(&mut self, group: &str, partition: TopicPartition, idle_since_ms: i64) {
        if self.get(group, partition).is_none_or(|found| found.committed_ms >= idle_since_ms) {
            return;
        }
        let state = Arc::make_mut(self.groups.get_mut(group).expect("it was just found"));
        state.offsets.remove(&partition);
        if state.offsets.is_empty() {
            self.groups.remove(group);
        }
    }

    /// Removes the offsets that `gone` names; a group without offsets is no more.
    pub(super) fn forget(&mut self, gone: impl Fn(&str, &TopicPartition, &CommittedOffset) -> bool) {
        let touches =
            |(group, state): &(&str, &GroupOffsetsState)| state.offsets.iter().any(|(p, o)| gone(group, p, o));
        let touched: Vec<String> = self.iter().filter(touches).map(|(group, _)| group.to_owned()).collect();
        for group in touched {
            let state = Arc::make_mut(self.groups.get_mut(&group).expect("it was just found"));
            state.offsets.retain(|partition, offset| !gone(&group, partition, offset));
            if state.offsets.is_empty() {
                self.groups.remove(&group);
            }
        }
    }
}
