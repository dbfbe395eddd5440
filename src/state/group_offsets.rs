//! Committed offsets per group. Members and generations are soft and live in `leader/groups`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::types::{LogIndex, Offset, TopicPartition};

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
    /// The entry that wrote it: an older stage does not overwrite it (T21).
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
}
