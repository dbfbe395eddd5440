//! One partition's replicated numbers: where its log starts and ends, and which term wrote what.

use serde::{Deserialize, Serialize};

use crate::types::{Offset, Term};

/// What replicas agree on about one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// First offset that can be read.
    pub log_start_offset: Offset,
    /// Offset that the next record gets: the log end, and the high watermark of what is applied.
    pub next_offset: Offset,
    /// (term, first offset written in it), ascending: answers OffsetForLeaderEpoch (KIP-101).
    pub leader_epochs: Vec<(Term, Offset)>,
}

impl Partition {
    /// Where the epoch that is `<= leader_epoch` and known ends: (that epoch, its end offset).
    ///
    /// As Kafka's `LeaderEpochFileCache.endOffsetFor`: a newer epoch than any known yields None.
    pub fn end_offset_for(&self, leader_epoch: i32, current: Term) -> Option<(i32, Offset)> {
        let _ = (leader_epoch, current);
        todo!("state helper")
    }
}
