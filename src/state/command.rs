//! All an entry may say ([`Command`]), all an apply may tell ([`Effects`], [`Outcome`]).
//!
//! An [`Entry`] is what one Raft log entry carries: a command and the wall clock of the leader that
//! decided it. Record bytes are kept out of the encoded metadata (`log/entry.rs` writes them behind it,
//! as slices), so a batch is never copied between the socket and the disk.
//!
//! Variants are appended, never reordered: their numbers are part of the log format.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::types::{LogIndex, Offset, PartitionId, ProducerIdAndEpoch, RecordBatch, Refusal, TopicId, TopicPartition};

/// A decision of the leader, with its time: everything an apply may depend on besides the state itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The leader's wall clock when it decided, milliseconds. Replicas read no clock.
    pub now_ms: i64,
    /// What to do.
    pub command: Command,
}

/// What an entry does when it is applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Appends batches outside transactions; each batch is judged alone.
    Produce(Vec<Batch>),
    /// Commits offsets of one group, outside transactions.
    OffsetCommit(GroupOffsets),
    /// Gives out a producer id and epoch (transactions.md §1.1).
    InitProducerId(InitProducerId),
    /// The gated begin marker of a TV1 transaction.
    TxnBegin(TxnBegin),
    /// Hidden part of a transaction that is larger than one entry.
    TxnChunk(TxnChunk),
    /// EndTxn(commit): all of it or nothing.
    TxnCommit(TxnCommit),
    /// EndTxn(abort), where it changes replicated state.
    TxnAbort(TxnAbort),
    /// Creates topics; each is judged alone.
    CreateTopics(Vec<NewTopic>),
    /// Deletes topics with their records, producer state and committed offsets.
    DeleteTopics(Vec<TopicId>),
    /// Sets or removes settings of topics or of the brokers.
    AlterConfigs(Vec<ConfigChange>),
    /// Removes what has expired; the leader decides what, so that replicas agree.
    Expire(Expire),
    /// Frees chunks of stages that a new term made impossible to commit.
    DropStages(Vec<LogIndex>),
    /// Moves log starts up: retention and DeleteRecords. Each is judged alone.
    TrimPartitions(Vec<Trim>),
    /// A planned change of leader: which transactions are open. The leader stages nothing more in its term.
    HandOver(HandOver),
    /// Gives topics more partitions; each is judged alone.
    CreatePartitions(Vec<NewPartitions>),
}

/// One record batch for one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Where it goes.
    pub to: TopicPartition,
    /// Length of `records`: the metadata carries it, the bytes follow behind.
    pub records_len: u32,
    /// The batch as the client sent it. Not part of the metadata.
    #[serde(skip)]
    pub records: Bytes,
}

impl Batch {
    /// A batch for `to`.
    pub fn new(to: TopicPartition, records: &RecordBatch) -> Self {
        let records = records.bytes().clone();
        let records_len = u32::try_from(records.len()).expect("a batch is smaller than a request, at most 100 MiB");
        Self { to, records_len, records }
    }

    /// The header view.
    pub fn view(&self) -> RecordBatch {
        RecordBatch::stored(self.records.clone())
    }
}

/// An offset for one partition, as a client commits it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffsetWrite {
    /// The partition read from.
    pub of: TopicPartition,
    /// The next offset to read.
    pub offset: Offset,
    /// Leader epoch of the last record read, −1 if unknown.
    pub leader_epoch: i32,
    /// Free text of the client.
    pub metadata: String,
}

/// Offsets of one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupOffsets {
    /// The group.
    pub group: String,
    /// What it has read.
    pub offsets: Vec<OffsetWrite>,
}

/// Offsets of one group inside a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedOffsets {
    /// The group.
    pub group: String,
    /// The last index applied when they were staged, or of a plain commit that was in flight then: one with a later index
    /// wins (T21).
    pub staged_at: LogIndex,
    /// What it has read.
    pub offsets: Vec<OffsetWrite>,
}

/// Asks for a producer id. Epoch, wrap and the choice of the id are computed at apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitProducerId {
    /// None for a producer that is only idempotent.
    pub transactional_id: Option<String>,
    /// The transaction timeout, milliseconds.
    pub timeout_ms: i32,
    /// The pair the client says it holds (KIP-360), if any.
    pub given: Option<ProducerIdAndEpoch>,
}

/// The begin marker of a TV1 transaction; its own log index names the transaction from then on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxnBegin {
    /// Whose.
    pub transactional_id: String,
    /// The pair that must be current at apply.
    pub producer: ProducerIdAndEpoch,
}

/// How apply makes sure that a transaction's entry belongs to the transaction that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TxnFence {
    /// TV1: the marker at this index must be the one that is open; apply clears exactly that one.
    Begin(LogIndex),
    /// TV2: the epoch alone, since each EndTxn bumps it.
    Epoch,
}

/// Chunks that hold the earlier part of a large transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunks {
    /// Log index of its begin marker (TV1) or of its first chunk (TV2).
    pub stage_id: LogIndex,
    /// How many there must be.
    pub count: u32,
    /// CRC-32C over all chunked batches, in order.
    pub crc: u32,
}

/// Hidden part of a large transaction, kept aside until its commit names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxnChunk {
    /// Whose.
    pub transactional_id: String,
    /// The pair that must be current at apply.
    pub producer: ProducerIdAndEpoch,
    /// None on the first chunk of a TV2 transaction: its own index becomes the stage id.
    pub stage_id: Option<LogIndex>,
    /// Number of this chunk, from 0.
    pub number: u32,
    /// Its batches.
    pub batches: Vec<Batch>,
}

/// EndTxn(commit).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxnCommit {
    /// Whose.
    pub transactional_id: String,
    /// The pair that must be current at apply.
    pub producer: ProducerIdAndEpoch,
    /// How it is tied to its transaction.
    pub fence: TxnFence,
    /// Whether the epoch is bumped (TV2, EndTxn v5).
    pub bump: bool,
    /// The batches that no chunk holds, in staging order.
    pub batches: Vec<Batch>,
    /// Chunks that hold the earlier ones.
    pub chunks: Option<Chunks>,
    /// Group offsets that become visible together with the records.
    pub offsets: Vec<StagedOffsets>,
}

/// EndTxn(abort).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxnAbort {
    /// Whose.
    pub transactional_id: String,
    /// The pair that must be current at apply.
    pub producer: ProducerIdAndEpoch,
    /// TV1: the marker to clear, if there is one. None also for an abort without a begin.
    pub begin: Option<LogIndex>,
    /// Whether the epoch is bumped (TV2, EndTxn v5).
    pub bump: bool,
    /// Sequence ranges that were acknowledged inside the transaction and now never appear:
    /// (partition, first, last). Later batches at the same epoch may start behind or inside them.
    pub skipped: Vec<(TopicPartition, i32, i32)>,
    /// The transaction began under another leader, or had too many partitions to note: what else it acknowledged is not
    /// known. In every partition the next batch at this epoch may start anywhere from the expected sequence on.
    pub skips_unknown: bool,
}

/// A topic to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTopic {
    /// Its id, chosen at random before proposing.
    pub id: TopicId,
    /// Its name, already checked.
    pub name: String,
    /// How many partitions, at least 1.
    pub partitions: PartitionId,
    /// Settings that differ from the defaults, already checked.
    pub configs: Vec<(String, String)>,
}

/// More partitions for a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewPartitions {
    /// Which topic.
    pub topic: TopicId,
    /// How many partitions it has then.
    pub count: PartitionId,
}

/// What a setting belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConfigResource {
    /// A topic.
    Topic(TopicId),
    /// All brokers: one log, one set.
    Broker,
}

/// Sets or (None) removes one setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigChange {
    /// Of what.
    pub resource: ConfigResource,
    /// Its name.
    pub name: String,
    /// The new value; None restores the default.
    pub value: Option<String>,
}

/// What the leader found expired.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expire {
    /// Producer ids without transactional id, idle since before the given time.
    pub producers: Vec<i64>,
    /// Transactional ids, likewise.
    pub transactional_ids: Vec<String>,
    /// Committed offsets of groups without members.
    pub offsets: Vec<(String, TopicPartition)>,
    /// Nothing used at or after this time is removed, whatever the lists say.
    pub idle_since_ms: i64,
}

/// Removes the records of one partition below an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trim {
    /// Which partition.
    pub of: TopicPartition,
    /// The first offset that stays, or [`Trim::ALL`].
    pub to: Offset,
}

impl Trim {
    /// Everything that is there when the entry is applied (DeleteRecords writes −1 for the high watermark).
    pub const ALL: Offset = Offset(-1);
}

/// What a leader leaves to the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// Every transaction that is open, or must not commit: its id and the pair that opened it.
    pub open: Vec<(String, ProducerIdAndEpoch)>,
}

impl Command {
    /// Every batch of the command, in the order in which their bytes follow the metadata.
    pub fn batches(&self) -> &[Batch] {
        match self {
            Command::Produce(batches) => batches,
            Command::TxnChunk(chunk) => &chunk.batches,
            Command::TxnCommit(commit) => &commit.batches,
            Command::OffsetCommit(_)
            | Command::InitProducerId(_)
            | Command::TxnBegin(_)
            | Command::TxnAbort(_)
            | Command::CreateTopics(_)
            | Command::DeleteTopics(_)
            | Command::AlterConfigs(_)
            | Command::Expire(_)
            | Command::DropStages(_)
            | Command::TrimPartitions(_)
            | Command::HandOver(_)
            | Command::CreatePartitions(_) => &[],
        }
    }

    /// The same, to fill in the bytes after decoding.
    pub fn batches_mut(&mut self) -> &mut [Batch] {
        match self {
            Command::Produce(batches) => batches,
            Command::TxnChunk(chunk) => &mut chunk.batches,
            Command::TxnCommit(commit) => &mut commit.batches,
            Command::OffsetCommit(_)
            | Command::InitProducerId(_)
            | Command::TxnBegin(_)
            | Command::TxnAbort(_)
            | Command::CreateTopics(_)
            | Command::DeleteTopics(_)
            | Command::AlterConfigs(_)
            | Command::Expire(_)
            | Command::DropStages(_)
            | Command::TrimPartitions(_)
            | Command::HandOver(_)
            | Command::CreatePartitions(_) => &mut [],
        }
    }
}

/// A batch that got its place: what the tails, the segments and the readers need to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Where.
    pub to: TopicPartition,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Offset behind its last record.
    pub next_offset: Offset,
    /// The batch to store: as sent, or with the broker's time. Base offset and leader epoch are patched on the way out.
    pub records: RecordBatch,
}

/// What an apply changed that other rooms must follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// The entry's time: segments roll by it where records carry none.
    pub now_ms: i64,
    /// Batches, in order; all become visible at once.
    pub appended: Vec<Appended>,
    /// Partitions that exist from now on: topic, name, number of partitions, those included that it had before.
    pub created: Vec<(TopicId, String, PartitionId)>,
    /// Topics that are gone.
    pub deleted: Vec<TopicId>,
    /// Topics whose settings changed (the segment writer re-reads them).
    pub reconfigured: Vec<TopicId>,
    /// Partitions whose log starts at that offset from now on.
    pub trimmed: Vec<(TopicPartition, Offset)>,
}

/// Where a batch of a plain Produce ended up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProduceOutcome {
    /// Offset of its first record; the original's for a duplicate.
    pub base_offset: Offset,
    /// The broker's time where the topic asks for it, else −1.
    pub log_append_time_ms: i64,
    /// First offset that the partition still has.
    pub log_start_offset: Offset,
}

/// What the proposer is told when its entry has been applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Applied; there is nothing to add (OffsetCommit, AlterConfigs, Expire, blank and membership entries).
    Done,
    /// One result per batch of a Produce, in order.
    Produced(Vec<Result<ProduceOutcome, Refusal>>),
    /// InitProducerId.
    ProducerId(Result<ProducerIdAndEpoch, Refusal>),
    /// TxnBegin or TxnChunk: applied, or the pair was not current.
    Staged(Result<(), Refusal>),
    /// TxnCommit or TxnAbort: the pair to use from now on. A refusal means that nothing was applied.
    Ended(Result<ProducerIdAndEpoch, Refusal>),
    /// One result per topic of CreateTopics, DeleteTopics or CreatePartitions, in order.
    Topics(Vec<Result<TopicId, Refusal>>),
    /// OffsetCommit: one result per offset, in order (a topic deleted meanwhile is refused).
    Offsets(Vec<Result<(), Refusal>>),
    /// TrimPartitions: per partition, in order, where its log starts now.
    Trimmed(Vec<Result<Offset, Refusal>>),
}
