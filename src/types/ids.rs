//! Ids and numbers that must never mix: each is a type of its own.
//!
//! Three integers look alike and are not: [`LogIndex`] counts Raft entries, [`Offset`]
//! counts records of one partition, [`Position`] counts bytes of one file. Convert by name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The index of an entry in the Raft log; the first entry has index 0 (as in openraft).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogIndex(pub u64);

/// A Raft term. The leader epoch that Kafka clients see is the term (one leader per term).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Term(pub u64);

impl Term {
    /// The term as Kafka's `leader_epoch`, an i32. Terms grow by one per election, so this saturates only in theory.
    pub fn leader_epoch(self) -> i32 {
        i32::try_from(self.0).unwrap_or(i32::MAX)
    }
}

/// The offset of a record within its partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Offset(pub i64);

/// A byte position within one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position(pub u64);

/// The number of a partition within its topic, from 0.
pub type PartitionId = i32;

/// A topic's unique id (KIP-516). A topic created again under the same name has another id.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicId(pub [u8; 16]);

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// One partition of one topic, by topic id: a recreated topic is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicPartition {
    /// The topic.
    pub topic: TopicId,
    /// The partition's number within it.
    pub partition: PartitionId,
}

/// A producer id and its epoch (Kafka's class of the same name): who may write, and which life of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProducerIdAndEpoch {
    /// The producer id; −1 on the wire means none.
    pub producer_id: i64,
    /// The epoch, 0 to 32,767.
    pub epoch: i16,
}

/// A client connection, numbered in the order in which connections were accepted: a greater one is newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Both clocks, read once per request by an I/O room and passed to the pure ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Wall clock, milliseconds since the Unix epoch: for time stamps that are stored.
    pub wall_ms: i64,
    /// Milliseconds on a clock that only goes forward and counts suspension: for timers.
    pub mono_ms: u64,
}
