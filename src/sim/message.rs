//! What nodes say to each other, as in figure 2 of the Raft paper.

use std::sync::Arc;

use bytes::Bytes;

use super::disk::Checkpoint;

/// A node, from 0.
pub type NodeId = usize;

/// How many nodes there are.
pub const NODES: usize = 3;

/// An entry as the log keeps it.
#[derive(Clone, Debug)]
pub struct LogEntry {
    /// The term it was proposed in.
    pub term: u64,
    /// As `log::entry` encodes it.
    pub bytes: Bytes,
}

/// From node to node.
#[derive(Clone, Debug)]
pub enum Message {
    /// RequestVote: term of the candidate, term of its last entry, length of its log.
    Vote { term: u64, last_term: u64, len: u64 },
    /// Its answer.
    Voted { term: u64, granted: bool },
    /// AppendEntries, also a heartbeat.
    Append { term: u64, prev_len: u64, prev_term: u64, entries: Vec<LogEntry>, committed: u64, round: u64 },
    /// Its answer: how long the logs agree and are durable, or where to try again.
    Appended { term: u64, round: u64, matched: Option<u64>, hint: u64 },
    /// The answer to a leader of an earlier term: nothing of it counts but the term.
    Deposed { term: u64 },
    /// A leader lets go: nobody is bound to it any more, and one of them stands at once (TimeoutNow).
    LetGo { term: u64, next: NodeId },
    /// InstallSnapshot.
    Install { term: u64, checkpoint: Arc<Checkpoint>, round: u64 },
}
