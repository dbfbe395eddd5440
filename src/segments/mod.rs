//! Partition logs: recent batches in memory (the tail), older ones in Kafka's own segment files, written behind
//! apply by one thread without fsync. Not a source of truth: after a crash they are cut to the checkpoint and made again from the log.
//!
//! Visibility: one atomic index. `log::apply` pushes an entry's batches to all tails and then publishes the index;
//! a reader loads it once per request and sees everything at it (storage.md, «Apply»).

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::disk::Disk;
use crate::state::command::Effects;
use crate::types::{LogIndex, Offset, Term, TopicPartition};

/// Where and how.
#[derive(Clone, Debug)]
pub struct SegmentOptions {
    /// Directory with one folder per partition, `<topic>-<partition>`, and the manifest beside them.
    pub dir: PathBuf,
    /// Bytes of tails that wait for the segment writer, at which [`Segments::is_full`] turns true.
    pub unwritten_bytes_max: usize,
    /// Bytes of written batches that stay in memory for tail reads, over all partitions.
    pub tail_bytes_max: usize,
    /// Open segment files at a time.
    pub open_files_max: usize,
}

/// A checkpoint: what a restart begins from.
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    /// Last entry that state and segments contain.
    pub applied: Option<(LogIndex, Term)>,
    /// The log id of `applied` and the membership, as `log` encodes them.
    pub raft: Bytes,
    /// `Machine::to_bytes`.
    pub state: Bytes,
}

/// Why segments cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// A file contradicts the manifest.
    #[error("{path} is damaged at byte {position}: {what}; refusing to start")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Where.
        position: u64,
        /// What is wrong.
        what: String,
    },
    /// No such offset (any more, or yet).
    #[error("offset out of range")]
    OffsetOutOfRange,
    /// No such partition.
    #[error("unknown partition")]
    UnknownPartition,
}

/// What a partition has to offer at a visible index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// First offset that can be read.
    pub log_start_offset: Offset,
    /// Offset behind the last visible record; equal to the last stable offset.
    pub high_watermark: Offset,
}

/// A stretch of whole batches, ready to send: base offsets and leader epochs are patched.
#[derive(Clone, Debug, Default)]
pub struct ReadBatches {
    /// Pieces in order: patched prefixes and slices of what is stored.
    pub pieces: Vec<Bytes>,
    /// Bytes of all pieces.
    pub bytes: usize,
    /// Records in them.
    pub records: u64,
}

/// All partition logs of this node.
#[derive(Clone, Debug)]
pub struct Segments {}

impl Segments {
    /// Loads the newest checkpoint, cuts every segment to it, removes what it does not name, starts the writer thread.
    ///
    /// # Errors
    /// If files cannot be read or contradict the manifest.
    pub fn open(disk: Arc<dyn Disk>, options: SegmentOptions) -> Result<(Self, Option<Checkpoint>), SegmentError> {
        let _ = (disk, options);
        todo!("segments helper")
    }

    /// Follows an applied entry: creates and deletes partitions, pushes batches to the tails. No I/O; not yet visible.
    pub fn apply(&self, index: LogIndex, term: Term, effects: &Effects) {
        let _ = (index, term, effects);
        todo!("segments helper")
    }

    /// Makes everything up to `index` visible at once. Called inside the apply lock, after all pushes.
    pub fn publish(&self, index: LogIndex) {
        let _ = index;
        todo!("segments helper")
    }

    /// The index that a request should read at; load it once per request.
    pub fn visible(&self) -> Option<LogIndex> {
        todo!("segments helper")
    }

    /// Bounds of a partition at `visible`.
    ///
    /// # Errors
    /// If there is no such partition.
    pub fn bounds(&self, partition: TopicPartition, visible: LogIndex) -> Result<Bounds, SegmentError> {
        let _ = (partition, visible);
        todo!("segments helper")
    }

    /// Whole batches from the one that contains `from` on, up to about `bytes_max`; the first is returned whatever its
    /// size if `at_least_one`. Empty at the high watermark. May read files: call it where blocking for the page cache is fine.
    ///
    /// # Errors
    /// OffsetOutOfRange before the start or beyond the high watermark.
    pub fn read(
        &self,
        partition: TopicPartition,
        visible: LogIndex,
        from: Offset,
        bytes_max: usize,
        at_least_one: bool,
    ) -> Result<ReadBatches, SegmentError> {
        let _ = (partition, visible, from, bytes_max, at_least_one);
        todo!("segments helper")
    }

    /// First record with a timestamp ≥ `timestamp_ms`: (timestamp, offset). Exact inside compressed batches.
    ///
    /// # Errors
    /// If there is no such partition or a file cannot be read.
    pub fn offset_for_timestamp(
        &self,
        partition: TopicPartition,
        visible: LogIndex,
        timestamp_ms: i64,
    ) -> Result<Option<(i64, Offset)>, SegmentError> {
        let _ = (partition, visible, timestamp_ms);
        todo!("segments helper")
    }

    /// The record with the greatest timestamp (KIP-734): (timestamp, offset), None in an empty partition.
    ///
    /// # Errors
    /// If there is no such partition or a file cannot be read.
    pub fn max_timestamp(
        &self,
        partition: TopicPartition,
        visible: LogIndex,
    ) -> Result<Option<(i64, Offset)>, SegmentError> {
        let _ = (partition, visible);
        todo!("segments helper")
    }

    /// Asks the writer thread for a checkpoint of everything applied so far, in the order of the calls to
    /// [`Segments::apply`]: drain, fdatasync dirty segments, write the manifest, fsync, rename, fsync the directory.
    /// `state` is called on the writer thread (encoding the machine's cut takes time). `done` gets the result.
    pub fn checkpoint(
        &self,
        applied: Option<(LogIndex, Term)>,
        raft: Bytes,
        state: Box<dyn FnOnce() -> Vec<u8> + Send>,
        done: Box<dyn FnOnce(Result<(), SegmentError>) + Send>,
    ) {
        let _ = (applied, raft, state, done);
        todo!("segments helper")
    }

    /// Whether the writer is so far behind that nothing more should be admitted.
    pub fn is_full(&self) -> bool {
        todo!("segments helper")
    }

    /// The writer's first error: the node must stop (no space is not an error but `is_full`).
    pub fn failure(&self) -> Option<String> {
        todo!("segments helper")
    }

    /// Bytes on disk per topic-partition, for metrics and DescribeLogDirs.
    pub fn sizes(&self) -> Vec<(TopicPartition, u64)> {
        todo!("segments helper")
    }

    /// Drains and stops the writer thread.
    pub fn close(&self) {
        todo!("segments helper")
    }
}
