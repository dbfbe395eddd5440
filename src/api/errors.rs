//! The one place where our refusals become Kafka error codes (an exhaustive match, no wildcard arm).
//!
//! The same refusal has another code in another API, at another version, for another client: a code is chosen for what
//! that client does with it (transactions.md §2, table 2), not for how well it reads.

use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::ApiKey;

use super::metrics;
use crate::leader::request::Caller;
use crate::types::Refusal;

/// The name that the Java client and its descendants send as `client_software_name`.
pub const JAVA: &str = "apache-kafka-java";

/// For a request that would be taken at another time: every client asks again, without looking for another leader.
pub const ASK_AGAIN: Refusal = Refusal::Overloaded;

/// The code that this client, in this API and version, handles best; counts it.
pub fn code(refusal: Refusal, api: ApiKey, version: i16, caller: &Caller) -> i16 {
    told(error_for(refusal, api, version, caller), api)
}

/// The code of an error that the API's handler found itself; counts it.
pub fn told(error: E, api: ApiKey) -> i16 {
    metrics::count_error(api, error);
    error.code()
}

/// Who answers an API, in Kafka's words: it decides how «not here, not now» is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A partition's leader.
    Leader,
    /// A group's or a transaction's coordinator.
    Coordinator,
    /// The controller.
    Controller,
}

fn role(api: ApiKey) -> Role {
    match api {
        ApiKey::Produce
        | ApiKey::Fetch
        | ApiKey::ListOffsets
        | ApiKey::OffsetForLeaderEpoch
        | ApiKey::DeleteRecords
        | ApiKey::DescribeQuorum => Role::Leader,
        ApiKey::CreateTopics
        | ApiKey::DeleteTopics
        | ApiKey::CreatePartitions
        | ApiKey::AlterConfigs
        | ApiKey::IncrementalAlterConfigs
        | ApiKey::ElectLeaders => Role::Controller,
        _ => Role::Coordinator,
    }
}

fn error_for(refusal: Refusal, api: ApiKey, version: i16, caller: &Caller) -> E {
    match refusal {
        Refusal::NotLeader => match role(api) {
            Role::Leader => E::NotLeaderOrFollower,
            Role::Coordinator => E::NotCoordinator,
            Role::Controller => E::NotController,
        },
        Refusal::Loading => match role(api) {
            Role::Leader => E::NotLeaderOrFollower,
            Role::Coordinator => E::CoordinatorLoadInProgress,
            Role::Controller => E::NotController,
        },
        // Never definitive: the client must ask again and find out. librdkafka takes 6 as «certainly not stored» and 7 as
        // «perhaps» (`rd_kafka_err_action`), and tells its application so.
        Refusal::FateUnknown => match role(api) {
            Role::Leader | Role::Controller => E::RequestTimedOut,
            Role::Coordinator => E::NotCoordinator,
        },
        // Retried everywhere, and says that nothing was stored. kafkajs does not retry 51, so coordinators say 14.
        Refusal::Overloaded => match role(api) {
            Role::Leader => E::NotEnoughReplicas,
            Role::Coordinator => E::CoordinatorLoadInProgress,
            Role::Controller => E::RequestTimedOut,
        },
        Refusal::RequestTimedOut => E::RequestTimedOut,
        Refusal::StorageError => match role(api) {
            Role::Leader | Role::Controller => E::KafkaStorageError,
            Role::Coordinator => E::CoordinatorNotAvailable,
        },
        Refusal::CorruptMessage => E::CorruptMessage,
        Refusal::MessageTooLarge => E::MessageTooLarge,
        Refusal::InvalidRecord => E::InvalidRecord,
        Refusal::UnsupportedForMessageFormat => E::UnsupportedForMessageFormat,
        Refusal::InvalidRequiredAcks => E::InvalidRequiredAcks,
        Refusal::OutOfOrderSequenceNumber => E::OutOfOrderSequenceNumber,
        Refusal::DuplicateSequenceNumber => E::DuplicateSequenceNumber,
        Refusal::InvalidProducerEpoch => E::InvalidProducerEpoch,
        Refusal::ProducerFenced => fenced(api, version),
        Refusal::InvalidTxnState => E::InvalidTxnState,
        Refusal::InvalidProducerIdMapping => E::InvalidProducerIdMapping,
        Refusal::InvalidTransactionTimeout => E::InvalidTransactionTimeout,
        Refusal::TransactionLost => lost(api, version, caller),
        Refusal::InvalidGroupId => E::InvalidGroupId,
        Refusal::UnknownMemberId => E::UnknownMemberId,
        Refusal::IllegalGeneration => E::IllegalGeneration,
        Refusal::RebalanceInProgress => E::RebalanceInProgress,
        Refusal::InconsistentGroupProtocol => E::InconsistentGroupProtocol,
        Refusal::MemberIdRequired => E::MemberIdRequired,
        Refusal::FencedInstanceId => E::FencedInstanceId,
        Refusal::GroupMaxSizeReached => E::GroupMaxSizeReached,
        Refusal::InvalidSessionTimeout => E::InvalidSessionTimeout,
        Refusal::GroupIdNotFound => E::GroupIdNotFound,
        Refusal::NonEmptyGroup => E::NonEmptyGroup,
        Refusal::UnstableOffsetCommit => E::UnstableOffsetCommit,
        Refusal::OffsetMetadataTooLarge => E::OffsetMetadataTooLarge,
        Refusal::OffsetOutOfRange => E::OffsetOutOfRange,
        Refusal::UnknownTopicOrPartition => E::UnknownTopicOrPartition,
        Refusal::UnknownTopicId => E::UnknownTopicId,
        Refusal::TopicAlreadyExists => E::TopicAlreadyExists,
        Refusal::InvalidTopic => E::InvalidTopicException,
        Refusal::InvalidPartitions => E::InvalidPartitions,
        Refusal::InvalidReplicationFactor => E::InvalidReplicationFactor,
        Refusal::InvalidReplicaAssignment => E::InvalidReplicaAssignment,
        Refusal::InvalidConfig => E::InvalidConfig,
        Refusal::InvalidRequest => E::InvalidRequest,
        Refusal::PolicyViolation => E::PolicyViolation,
    }
}

/// PRODUCER_FENCED from the version that defines it (KIP-588), INVALID_PRODUCER_EPOCH before (`KafkaApis`). Produce and
/// TxnOffsetCommit never say 90: Kafka turns it into 47 there (`AddPartitionsToTxnManager`).
fn fenced(api: ApiKey, version: i16) -> E {
    let defined_from = match api {
        ApiKey::InitProducerId => 4,
        ApiKey::AddPartitionsToTxn | ApiKey::AddOffsetsToTxn | ApiKey::EndTxn => 2,
        _ => return E::InvalidProducerEpoch,
    };
    if version >= defined_from { E::ProducerFenced } else { E::InvalidProducerEpoch }
}

/// E_lost (transactions.md, table 2): the code after which this client aborts, and does not commit the rest or give up.
fn lost(api: ApiKey, version: i16, caller: &Caller) -> E {
    if api != ApiKey::EndTxn {
        // Only EndTxn tells of a lost transaction; elsewhere it would make some clients go on and commit.
        return E::InvalidTxnState;
    }
    let java = *caller.software == *JAVA;
    if caller.client_id.contains("-StreamThread-") {
        fenced(api, version)
    } else if version >= 5 || (version == 4 && java) {
        E::TransactionAbortable
    } else if java {
        E::InvalidProducerIdMapping
    } else {
        E::UnknownProducerId
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ConnectionId;

    fn caller(software: &str, client_id: &str) -> Caller {
        Caller {
            connection: ConnectionId(1),
            software: software.into(),
            client_id: client_id.into(),
            host: "/127.0.0.1".into(),
        }
    }

    #[test]
    fn a_lost_transaction_gets_the_code_of_table_2() {
        let cases = [
            ("apache-kafka-java", "producer-1", 5, 120),
            ("apache-kafka-java", "producer-1", 4, 120),
            ("apache-kafka-java", "producer-1", 3, 49),
            ("apache-kafka-java", "producer-1", 1, 49),
            ("kgo", "x", 5, 120),
            ("kgo", "x", 4, 59),
            ("librdkafka", "x", 4, 59),
            ("librdkafka", "x", 3, 59),
            ("", "sarama", 1, 59),
            ("apache-kafka-java", "app-StreamThread-1-producer", 5, 90),
            ("apache-kafka-java", "app-StreamThread-1-producer", 3, 90),
            ("apache-kafka-java", "app-StreamThread-1-producer", 1, 47),
        ];
        for (software, client_id, version, expected) in cases {
            let code = code(Refusal::TransactionLost, ApiKey::EndTxn, version, &caller(software, client_id));
            assert_eq!(code, expected, "{software} {client_id} v{version}");
        }
    }

    #[test]
    fn a_fenced_producer_is_told_90_from_the_version_that_defines_it() {
        let cases = [
            (ApiKey::InitProducerId, 3, 47),
            (ApiKey::InitProducerId, 4, 90),
            (ApiKey::AddPartitionsToTxn, 1, 47),
            (ApiKey::AddPartitionsToTxn, 2, 90),
            (ApiKey::AddOffsetsToTxn, 1, 47),
            (ApiKey::AddOffsetsToTxn, 2, 90),
            (ApiKey::EndTxn, 1, 47),
            (ApiKey::EndTxn, 2, 90),
            (ApiKey::TxnOffsetCommit, 2, 47),
            (ApiKey::TxnOffsetCommit, 5, 47),
            (ApiKey::Produce, 3, 47),
            (ApiKey::Produce, 13, 47),
        ];
        for (api, version, expected) in cases {
            assert_eq!(code(Refusal::ProducerFenced, api, version, &caller("", "")), expected, "{api:?} v{version}");
        }
    }

    #[test]
    fn who_does_not_lead_says_so_in_the_words_of_the_api() {
        let cases = [
            (Refusal::NotLeader, ApiKey::Produce, 6),
            (Refusal::Loading, ApiKey::Produce, 6),
            (Refusal::FateUnknown, ApiKey::Produce, 7),
            (Refusal::NotLeader, ApiKey::EndTxn, 16),
            (Refusal::Loading, ApiKey::EndTxn, 14),
            (Refusal::FateUnknown, ApiKey::EndTxn, 16),
            (Refusal::NotLeader, ApiKey::JoinGroup, 16),
            (Refusal::Loading, ApiKey::OffsetFetch, 14),
            (Refusal::NotLeader, ApiKey::CreateTopics, 41),
            (Refusal::FateUnknown, ApiKey::CreateTopics, 7),
        ];
        for (refusal, api, expected) in cases {
            assert_eq!(code(refusal, api, 3, &caller("", "")), expected, "{refusal:?} {api:?}");
        }
    }

    #[test]
    fn no_refusal_of_a_transactional_produce_makes_a_client_commit_the_rest() {
        // 59 and 45 do (table 2); 45 stays possible outside transactions only, where the leader alone says it.
        for refusal in [
            Refusal::NotLeader,
            Refusal::Loading,
            Refusal::FateUnknown,
            Refusal::Overloaded,
            Refusal::ProducerFenced,
            Refusal::InvalidProducerEpoch,
            Refusal::InvalidProducerIdMapping,
            Refusal::TransactionLost,
        ] {
            let code = code(refusal, ApiKey::Produce, 11, &caller("librdkafka", ""));
            assert!(code != 59 && code != 45, "{refusal:?}");
        }
    }
}
