//! What may be asked of the leader, and what it answers: plain data, no Kafka structs.
//!
//! `api` resolves topic names to ids, checks batches ([`RecordBatch::check`](crate::types::RecordBatch::check)) and authorises;
//! what arrives here is well-formed. One request, one response; parts keep the order of the request.

use std::sync::Arc;

use bytes::Bytes;

use crate::state::command::{ConfigChange, NewPartitions, NewTopic, OffsetWrite, ProduceOutcome, Trim};
use crate::types::{ConnectionId, Offset, ProducerIdAndEpoch, RecordBatch, Refusal, TopicId, TopicPartition};

/// Names one request until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The connection, by accept order.
    pub connection: ConnectionId,
    /// `client_software_name` of ApiVersions v3+, empty if none was sent.
    pub software: Arc<str>,
    /// `client_id` of the request header, empty if null.
    pub client_id: Arc<str>,
    /// The peer's address, as Kafka shows it: `/127.0.0.1`.
    pub host: Arc<str>,
}

/// Everything that goes through the leader.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Produce, plain or transactional.
    Produce(Produce),
    /// InitProducerId.
    InitProducerId(InitProducerId),
    /// AddPartitionsToTxn, one transaction of it.
    AddPartitionsToTxn(AddPartitionsToTxn),
    /// AddOffsetsToTxn.
    AddOffsetsToTxn(AddOffsetsToTxn),
    /// TxnOffsetCommit.
    TxnOffsetCommit(TxnOffsetCommit),
    /// EndTxn.
    EndTxn(EndTxn),
    /// JoinGroup.
    JoinGroup(JoinGroup),
    /// SyncGroup.
    SyncGroup(SyncGroup),
    /// Heartbeat.
    Heartbeat(MemberRef),
    /// LeaveGroup: each member by id or instance id.
    LeaveGroup(LeaveGroup),
    /// OffsetCommit.
    OffsetCommit(OffsetCommit),
    /// OffsetFetch of one group.
    OffsetFetch(OffsetFetch),
    /// CreateTopics; each was checked (name, counts, configs).
    CreateTopics(Vec<NewTopic>),
    /// DeleteTopics.
    DeleteTopics(Vec<TopicId>),
    /// CreatePartitions; each was checked.
    CreatePartitions(Vec<NewPartitions>),
    /// DeleteRecords.
    DeleteRecords(Vec<Trim>),
    /// AlterConfigs and IncrementalAlterConfigs, already worked out into changes.
    AlterConfigs(Vec<ConfigChange>),
}

/// Produce.
#[derive(Clone, Debug, PartialEq)]
pub struct Produce {
    /// Request version: ≤ 11 is TV1 where transactional.
    pub version: i16,
    /// `transactional_id` of the request.
    pub transactional_id: Option<Arc<str>>,
    /// Batches, one per partition at the most.
    pub batches: Vec<(TopicPartition, RecordBatch)>,
    /// The pair in the header of a transactional batch that `api` refused: it opens the transaction all the same, as
    /// Kafka adds the partition before it looks at the records.
    pub refused: Option<ProducerIdAndEpoch>,
}

/// InitProducerId.
#[derive(Clone, Debug, PartialEq)]
pub struct InitProducerId {
    /// Request version.
    pub version: i16,
    /// None for an idempotent producer.
    pub transactional_id: Option<Arc<str>>,
    /// `transaction_timeout_ms`.
    pub timeout_ms: i32,
    /// The pair the client holds (v3+), None for −1.
    pub given: Option<ProducerIdAndEpoch>,
}

/// AddPartitionsToTxn.
#[derive(Clone, Debug, PartialEq)]
pub struct AddPartitionsToTxn {
    /// Request version.
    pub version: i16,
    /// Whose transaction.
    pub transactional_id: Arc<str>,
    /// The pair the client holds.
    pub producer: ProducerIdAndEpoch,
    /// Partitions to add; unknown topics were taken out by `api`.
    pub partitions: Vec<TopicPartition>,
}

/// AddOffsetsToTxn.
#[derive(Clone, Debug, PartialEq)]
pub struct AddOffsetsToTxn {
    /// Request version.
    pub version: i16,
    /// Whose transaction.
    pub transactional_id: Arc<str>,
    /// The pair the client holds.
    pub producer: ProducerIdAndEpoch,
    /// The group whose offsets will follow.
    pub group: Arc<str>,
}

/// TxnOffsetCommit.
#[derive(Clone, Debug, PartialEq)]
pub struct TxnOffsetCommit {
    /// Request version: ≥ 5 is TV2.
    pub version: i16,
    /// Whose transaction.
    pub transactional_id: Arc<str>,
    /// The pair the client holds.
    pub producer: ProducerIdAndEpoch,
    /// The member on whose behalf (v3+); generation −1 and an empty member id: no check.
    pub member: MemberRef,
    /// The offsets.
    pub offsets: Vec<OffsetWrite>,
}

/// EndTxn.
#[derive(Clone, Debug, PartialEq)]
pub struct EndTxn {
    /// Request version: 5 is TV2.
    pub version: i16,
    /// Whose transaction.
    pub transactional_id: Arc<str>,
    /// The pair the client holds.
    pub producer: ProducerIdAndEpoch,
    /// Commit, or abort.
    pub commit: bool,
}

/// A member as the group requests name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRef {
    /// The group.
    pub group: Arc<str>,
    /// Generation, −1 for none.
    pub generation: i32,
    /// Member id, empty for none.
    pub member_id: Arc<str>,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<Arc<str>>,
}

/// JoinGroup.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinGroup {
    /// Request version: from 4 on a new member is asked to join again with an id (KIP-394).
    pub version: i16,
    /// Group, member id (empty for a new one), instance id; the generation is −1.
    pub member: MemberRef,
    /// Milliseconds without a heartbeat after which the member is gone.
    pub session_timeout_ms: i32,
    /// Milliseconds a rebalance waits for members to rejoin; ≤ 0 (v0, or absent) means the session timeout (GR01).
    pub rebalance_timeout_ms: i32,
    /// `consumer`, `connect`, …
    pub protocol_type: Arc<str>,
    /// (name, metadata) in the member's order of preference.
    pub protocols: Vec<(Arc<str>, Bytes)>,
    /// Why it joins (v8+), for the log.
    pub reason: Option<Arc<str>>,
    /// The id that a new member gets, chosen at random by `api`: `<client id or instance id>-<uuid>`, as Kafka's.
    pub fresh_member_id: Arc<str>,
}

/// SyncGroup.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncGroup {
    /// The member and its generation.
    pub member: MemberRef,
    /// `protocol_type` (v5+), to be compared with the group's.
    pub protocol_type: Option<Arc<str>>,
    /// `protocol_name` (v5+), to be compared with the group's.
    pub protocol_name: Option<Arc<str>>,
    /// From the leader: (member id, assignment).
    pub assignments: Vec<(Arc<str>, Bytes)>,
}

/// LeaveGroup.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaveGroup {
    /// The group.
    pub group: Arc<str>,
    /// Members that leave: id (may be empty) and instance id.
    pub members: Vec<(Arc<str>, Option<Arc<str>>)>,
}

/// OffsetCommit.
#[derive(Clone, Debug, PartialEq)]
pub struct OffsetCommit {
    /// The member that commits; generation −1 and an empty member id: a group that only stores offsets.
    pub member: MemberRef,
    /// The offsets.
    pub offsets: Vec<OffsetWrite>,
}

/// OffsetFetch of one group.
#[derive(Clone, Debug, PartialEq)]
pub struct OffsetFetch {
    /// The group.
    pub group: Arc<str>,
    /// Which partitions; None = all that have an offset.
    pub partitions: Option<Vec<TopicPartition>>,
    /// `require_stable`: 88 where an open transaction holds an offset.
    pub require_stable: bool,
}

/// One answer per request.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// The whole request is refused.
    Refused(Refusal),
    /// The connection must be closed without an answer: a late request that may not be executed, or an unknown fate.
    Close,
    /// Produce: per batch, in order.
    Produced(Vec<Result<Acked, Refusal>>),
    /// InitProducerId.
    ProducerId(ProducerIdAndEpoch),
    /// AddPartitionsToTxn, TxnOffsetCommit, OffsetCommit: per part, in order.
    Parts(Vec<Result<(), Refusal>>),
    /// AddOffsetsToTxn, Heartbeat, AlterConfigs: done.
    Done,
    /// EndTxn: the pair to use from now on (v5 returns it).
    Ended(ProducerIdAndEpoch),
    /// JoinGroup.
    Joined(Joined),
    /// JoinGroup of a new member: 79, join again with this id.
    MemberIdRequired(Arc<str>),
    /// SyncGroup.
    Synced(Synced),
    /// LeaveGroup: per member, in order.
    Left(Vec<Result<(), Refusal>>),
    /// OffsetFetch: per partition asked for (or that has one).
    Offsets(Vec<(TopicPartition, Result<Option<FetchedOffset>, Refusal>)>),
    /// CreateTopics, DeleteTopics, CreatePartitions: per topic, in order.
    Topics(Vec<Result<TopicId, Refusal>>),
    /// DeleteRecords: per partition, in order, where its log starts now.
    Trimmed(Vec<Result<Offset, Refusal>>),
}

impl Response {
    /// Whether it says nothing about the state that another leader could contradict: ask elsewhere, ask later, ask again.
    pub fn claims_nothing(&self) -> bool {
        let nothing = |refusal: &Refusal| {
            matches!(
                refusal,
                Refusal::NotLeader
                    | Refusal::Loading
                    | Refusal::FateUnknown
                    | Refusal::Overloaded
                    | Refusal::StorageError
            )
        };
        match self {
            Response::Close => true,
            Response::Refused(refusal) => nothing(refusal),
            Response::Produced(parts) => parts.iter().all(|part| part.as_ref().is_err_and(nothing)),
            Response::ProducerId(_)
            | Response::Parts(_)
            | Response::Done
            | Response::Ended(_)
            | Response::Joined(_)
            | Response::MemberIdRequired(_)
            | Response::Synced(_)
            | Response::Left(_)
            | Response::Offsets(_)
            | Response::Trimmed(_)
            | Response::Topics(_) => false,
        }
    }
}

/// How a batch was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acked {
    /// It is in the log.
    Written(ProduceOutcome),
    /// It is staged in an open transaction: no offset yet (transactions.md, «Staged produce acknowledgement»).
    Staged {
        /// First offset that the partition has.
        log_start_offset: Offset,
        /// Records of the batch: some clients add the index to the base offset.
        record_count: i32,
    },
}

/// A completed join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The new generation.
    pub generation: i32,
    /// Protocol type of the group.
    pub protocol_type: Arc<str>,
    /// The protocol chosen.
    pub protocol_name: Arc<str>,
    /// The leader's member id.
    pub leader: Arc<str>,
    /// This member's id.
    pub member_id: Arc<str>,
    /// A static member that came back to an unchanged group: the leader need not assign anew (v9).
    pub skip_assignment: bool,
    /// To the leader only: (member id, instance id, metadata).
    pub members: Vec<(Arc<str>, Option<Arc<str>>, Bytes)>,
}

/// An assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    /// Protocol type of the group.
    pub protocol_type: Arc<str>,
    /// The protocol chosen.
    pub protocol_name: Arc<str>,
    /// This member's assignment.
    pub assignment: Bytes,
}

/// A committed offset, as OffsetFetch tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedOffset {
    /// The next offset to read.
    pub offset: Offset,
    /// Leader epoch, −1 if unknown.
    pub leader_epoch: i32,
    /// Free text of the client.
    pub metadata: String,
}
