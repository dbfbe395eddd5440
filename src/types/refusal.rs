//! Why a request is not done. A refusal is a value, decided by the pure rooms; `api/errors.rs` alone
//! turns it into the Kafka error code that the asking client, at its request's version, handles best.

use serde::{Deserialize, Serialize};

/// A reason for which a request, or a part of one, is refused.
///
/// Named after Kafka's errors where Kafka has the same notion. Refusals that entries produce at
/// apply are part of outcomes, so the order of the variants is not part of any stored format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    // --- who leads -------------------------------------------------------------------------------
    /// This node does not lead (Produce: 6, coordinator calls: 16). Definite: nothing was proposed.
    #[error("this node is not the leader")]
    NotLeader,
    /// The new leader has not applied its first entry yet (14; Produce: 6).
    #[error("the coordinator is loading")]
    Loading,
    /// Proposed, and not known whether it will be applied: NOT_COORDINATOR (16), REQUEST_TIMED_OUT (7), never definitive.
    #[error("the fate of the proposal is unknown")]
    FateUnknown,
    /// Too much is in flight or staged; retriable.
    #[error("overloaded")]
    Overloaded,
    /// The request's own timeout passed (7).
    #[error("timed out")]
    RequestTimedOut,
    /// The storage cannot take writes now (56).
    #[error("storage refuses writes")]
    StorageError,

    // --- records ---------------------------------------------------------------------------------
    /// CRC or framing of a batch is wrong (2).
    #[error("corrupt message")]
    CorruptMessage,
    /// A batch over `max.message.bytes` (10).
    #[error("message too large")]
    MessageTooLarge,
    /// The batch contradicts itself: counts, offset deltas, several batches, a control batch from a client (87).
    #[error("invalid record")]
    InvalidRecord,
    /// Magic 0 or 1 (43).
    #[error("unsupported message format")]
    UnsupportedForMessageFormat,
    /// `acks` other than −1, 0, 1 (21).
    #[error("invalid required acks")]
    InvalidRequiredAcks,

    // --- producers and transactions ----------------------------------------------------------------
    /// A gap in a producer's sequence (45).
    #[error("out of order sequence number")]
    OutOfOrderSequenceNumber,
    /// A duplicate older than the batches remembered (46); clients take it as success.
    #[error("duplicate sequence number")]
    DuplicateSequenceNumber,
    /// Produce at an old epoch (always 47: old clients do not know 90 there).
    #[error("invalid producer epoch")]
    InvalidProducerEpoch,
    /// A coordinator call by a fenced producer: 90 from the version that defines it, else 47.
    #[error("producer fenced")]
    ProducerFenced,
    /// 48.
    #[error("invalid transaction state")]
    InvalidTxnState,
    /// Unknown transactional id, or not that producer id (49).
    #[error("invalid producer id mapping")]
    InvalidProducerIdMapping,
    /// Over `transaction.max.timeout.ms`, or not positive (50).
    #[error("invalid transaction timeout")]
    InvalidTransactionTimeout,
    /// E_lost of transactions.md §2: the transaction's staged data is gone, or its commit was a no-op.
    /// Its code depends on client and version (table 2).
    #[error("the transaction was lost and must be aborted")]
    TransactionLost,

    // --- groups ------------------------------------------------------------------------------------
    /// 24.
    #[error("invalid group id")]
    InvalidGroupId,
    /// 25.
    #[error("unknown member id")]
    UnknownMemberId,
    /// 22.
    #[error("illegal generation")]
    IllegalGeneration,
    /// 27.
    #[error("rebalance in progress")]
    RebalanceInProgress,
    /// 23.
    #[error("inconsistent group protocol")]
    InconsistentGroupProtocol,
    /// 79: join again with the member id given.
    #[error("member id required")]
    MemberIdRequired,
    /// 82.
    #[error("fenced instance id")]
    FencedInstanceId,
    /// 81.
    #[error("group max size reached")]
    GroupMaxSizeReached,
    /// 26.
    #[error("invalid session timeout")]
    InvalidSessionTimeout,
    /// 69.
    #[error("group id not found")]
    GroupIdNotFound,
    /// 68.
    #[error("non-empty group")]
    NonEmptyGroup,
    /// 88: an open transaction holds offsets of this partition.
    #[error("unstable offset commit")]
    UnstableOffsetCommit,
    /// 12.
    #[error("offset metadata too large")]
    OffsetMetadataTooLarge,

    // --- partitions --------------------------------------------------------------------------------
    /// 1.
    #[error("offset out of range")]
    OffsetOutOfRange,

    // --- topics and settings -----------------------------------------------------------------------
    /// 3.
    #[error("unknown topic or partition")]
    UnknownTopicOrPartition,
    /// 100.
    #[error("unknown topic id")]
    UnknownTopicId,
    /// 36.
    #[error("topic already exists")]
    TopicAlreadyExists,
    /// 17.
    #[error("invalid topic name")]
    InvalidTopic,
    /// 37.
    #[error("invalid number of partitions")]
    InvalidPartitions,
    /// 38.
    #[error("invalid replication factor")]
    InvalidReplicationFactor,
    /// 39.
    #[error("invalid replica assignment")]
    InvalidReplicaAssignment,
    /// 40.
    #[error("invalid configuration")]
    InvalidConfig,
    /// 42.
    #[error("invalid request")]
    InvalidRequest,
    /// 44.
    #[error("policy violation")]
    PolicyViolation,
}

impl Refusal {
    /// It says nothing of the request itself: another node, or this one at another time, would have decided it.
    pub fn is_of_the_moment(self) -> bool {
        matches!(
            self,
            Refusal::NotLeader
                | Refusal::Loading
                | Refusal::FateUnknown
                | Refusal::Overloaded
                | Refusal::RequestTimedOut
                | Refusal::StorageError
        )
    }
}
