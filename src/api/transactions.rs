//! InitProducerId (key 22, versions 0–5), AddPartitionsToTxn (24, 0–5), AddOffsetsToTxn (25, 0–4), EndTxn (26, 0–5) and
//! TxnOffsetCommit (28, 0–5).
//!
//! - InitProducerId v3 (KIP-360) the pair that the client holds; v4 (KIP-588) PRODUCER_FENCED; v6 (two-phase commit) is not served.
//! - AddPartitionsToTxn v4 (KIP-890) several transactions, which brokers send one another; here each is carried out as a
//!   request of its own. `verify_only` asks whether partitions were added, which only Kafka's brokers need: INVALID_REQUEST.
//!   An unknown topic fails the transaction's whole request: 3 for it, OPERATION_NOT_ATTEMPTED for the others.
//! - TxnOffsetCommit v3 (KIP-447) the group member; v5 (KIP-890) adds the group to the transaction.
//! - EndTxn v5 (KIP-890) returns the pair to go on with.
//! - What the answers mean is decided in `leader`; here names become ids, and refusals codes.

use std::sync::Arc;

use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::add_partitions_to_txn_request::{AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction};
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::txn_offset_commit_request::TxnOffsetCommitRequestTopic;
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, ApiKey,
    EndTxnRequest, EndTxnResponse, InitProducerIdRequest, InitProducerIdResponse, ProducerId, TransactionalId,
    TxnOffsetCommitRequest, TxnOffsetCommitResponse,
};
use tokio::sync::oneshot;

use super::context::{TopicRef, answered, refused};
use super::{Call, Malformed, Reply, encode, errors};
use crate::leader::request::{
    AddOffsetsToTxn, AddPartitionsToTxn, Caller, EndTxn, InitProducerId, MemberRef, Request, Response, TxnOffsetCommit,
};
use crate::state::Machine;
use crate::state::command::OffsetWrite;
use crate::types::{Offset, PartitionId, ProducerIdAndEpoch, Refusal, TopicPartition};

fn arc(string: &str) -> Arc<str> {
    Arc::from(string)
}

fn pair(producer_id: ProducerId, epoch: i16) -> ProducerIdAndEpoch {
    ProducerIdAndEpoch { producer_id: producer_id.0, epoch }
}

/// Answers InitProducerId.
///
/// # Errors
/// If the request cannot be decoded.
pub fn init(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: InitProducerIdRequest = call.decode("InitProducerId")?;
    let version = call.version;
    let refused = |code| {
        InitProducerIdResponse::default().with_error_code(code).with_producer_id(ProducerId(-1)).with_producer_epoch(-1)
    };
    let given = match (request.producer_id.0, request.producer_epoch) {
        (-1, -1) => Ok(None),
        (-1, _) | (_, -1) => Err(E::InvalidRequest),
        (producer_id, epoch) => Ok(Some(ProducerIdAndEpoch { producer_id, epoch })),
    };
    let transactional_id = request.transactional_id.as_ref().map(|id| arc(id));
    let given = match given {
        Ok(given) if transactional_id.as_deref() != Some("") => given,
        _ => return Ok(Reply::now(&refused(errors::told(E::InvalidRequest, ApiKey::InitProducerId)), version)),
    };
    let init = InitProducerId { version, transactional_id, timeout_ms: request.transaction_timeout_ms, given };
    // An idempotent producer has no coordinator to look for; told of none, the Java client asks for one without a key.
    let has_coordinator = init.transactional_id.is_some();
    let caller = Arc::clone(call.caller);
    Ok(call.answer(Request::InitProducerId(init), move |response| {
        let response = match response {
            Response::Refused(Refusal::NotLeader | Refusal::FateUnknown | Refusal::StorageError)
                if !has_coordinator =>
            {
                refused(errors::told(E::CoordinatorLoadInProgress, ApiKey::InitProducerId))
            }
            Response::ProducerId(pair) => InitProducerIdResponse::default()
                .with_producer_id(ProducerId(pair.producer_id))
                .with_producer_epoch(pair.epoch),
            Response::Refused(refusal) => refused(errors::code(refusal, ApiKey::InitProducerId, version, &caller)),
            _ => return None,
        };
        Some(encode(&response, version))
    }))
}

/// One transaction of an AddPartitionsToTxn request.
struct Adding {
    transactional_id: TransactionalId,
    topics: Vec<AddPartitionsToTxnTopic>,
    outcome: AddOutcome,
}

enum AddOutcome {
    /// The leader was asked.
    Asked(oneshot::Receiver<Response>),
    /// Some topics or partitions are unknown: true where known.
    Unknown(Vec<bool>),
    /// It was not asked for another reason.
    Refused(E),
}

/// Answers AddPartitionsToTxn.
///
/// # Errors
/// If the request cannot be decoded.
pub fn add_partitions(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: AddPartitionsToTxnRequest = call.decode("AddPartitionsToTxn")?;
    let version = call.version;
    let transactions = if version >= 4 {
        request.transactions
    } else {
        vec![
            AddPartitionsToTxnTransaction::default()
                .with_transactional_id(request.v3_and_below_transactional_id)
                .with_producer_id(request.v3_and_below_producer_id)
                .with_producer_epoch(request.v3_and_below_producer_epoch)
                .with_topics(request.v3_and_below_topics),
        ]
    };
    let adding: Vec<Adding> = transactions.into_iter().map(|transaction| add(&call, transaction)).collect();
    let caller = Arc::clone(call.caller);
    Ok(Reply::later(async move {
        let mut results = Vec::with_capacity(adding.len());
        for one in adding {
            results.push(added(one, version, &caller).await?);
        }
        let response = if version >= 4 {
            AddPartitionsToTxnResponse::default().with_results_by_transaction(results)
        } else {
            let topics = results.pop().map(|result| result.topic_results).unwrap_or_default();
            AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(topics)
        };
        Some(encode(&response, version))
    }))
}

fn add(call: &Call<'_>, transaction: AddPartitionsToTxnTransaction) -> Adding {
    let named =
        transaction.topics.iter().flat_map(|topic| topic.partitions.iter().map(|index| (&**topic.name, *index)));
    let elsewhere = call.elsewhere();
    let found = locate(call, named);
    let outcome = if let Some(refusal) = elsewhere {
        AddOutcome::Asked(refused(refusal))
    } else if transaction.verify_only {
        AddOutcome::Refused(E::InvalidRequest)
    } else if found.iter().any(Option::is_none) {
        AddOutcome::Unknown(found.iter().map(Option::is_some).collect())
    } else {
        AddOutcome::Asked(call.submit(Request::AddPartitionsToTxn(AddPartitionsToTxn {
            version: call.version,
            transactional_id: arc(&transaction.transactional_id),
            producer: pair(transaction.producer_id, transaction.producer_epoch),
            partitions: found.into_iter().flatten().collect(),
        })))
    };
    Adding { transactional_id: transaction.transactional_id, topics: transaction.topics, outcome }
}

/// The result of one transaction; None closes the connection.
async fn added(adding: Adding, version: i16, caller: &Caller) -> Option<AddPartitionsToTxnResult> {
    const API: ApiKey = ApiKey::AddPartitionsToTxn;
    let count = adding.topics.iter().map(|topic| topic.partitions.len()).sum();
    let codes: Vec<i16> = match adding.outcome {
        AddOutcome::Refused(error) => vec![errors::told(error, API); count],
        AddOutcome::Unknown(known) => {
            let error = |known| if known { E::OperationNotAttempted } else { E::UnknownTopicOrPartition };
            known.into_iter().map(|known| errors::told(error(known), API)).collect()
        }
        AddOutcome::Asked(receiver) => match receiver.await.ok()? {
            Response::Refused(refusal) => vec![errors::code(refusal, API, version, caller); count],
            Response::Parts(parts) => parts.into_iter().map(|part| code_of(part, API, version, caller)).collect(),
            Response::Done => vec![0; count],
            _ => return None,
        },
    };
    let mut codes = codes.into_iter();
    let topics = adding.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|index| {
            let code = codes.next().expect("the leader answers every partition");
            AddPartitionsToTxnPartitionResult::default().with_partition_index(*index).with_partition_error_code(code)
        });
        let partitions = partitions.collect();
        AddPartitionsToTxnTopicResult::default().with_name(topic.name).with_results_by_partition(partitions)
    });
    let topics = topics.collect();
    Some(AddPartitionsToTxnResult::default().with_transactional_id(adding.transactional_id).with_topic_results(topics))
}

fn code_of(part: Result<(), Refusal>, api: ApiKey, version: i16, caller: &Caller) -> i16 {
    part.map_or_else(|refusal| errors::code(refusal, api, version, caller), |()| 0)
}

/// Finds partitions by topic name, all at one moment.
fn locate<'n>(call: &Call<'_>, named: impl Iterator<Item = (&'n str, PartitionId)>) -> Vec<Option<TopicPartition>> {
    let find = |machine: &Machine, name: &str, index: PartitionId| {
        let topic = TopicRef::Name(name).resolve(machine)?;
        topic.partitions.get(usize::try_from(index).ok()?)?;
        Some(TopicPartition { topic: topic.id, partition: index })
    };
    call.api.log.read(|machine| named.map(|(name, index)| find(machine, name, index)).collect())
}

/// Answers AddOffsetsToTxn.
///
/// # Errors
/// If the request cannot be decoded.
pub fn add_offsets(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: AddOffsetsToTxnRequest = call.decode("AddOffsetsToTxn")?;
    let (version, caller) = (call.version, Arc::clone(call.caller));
    let add = AddOffsetsToTxn {
        version,
        transactional_id: arc(&request.transactional_id),
        producer: pair(request.producer_id, request.producer_epoch),
        group: arc(&request.group_id),
    };
    Ok(call.answer(Request::AddOffsetsToTxn(add), move |response| {
        let code = match response {
            Response::Done => 0,
            Response::Refused(refusal) => errors::code(refusal, ApiKey::AddOffsetsToTxn, version, &caller),
            _ => return None,
        };
        Some(encode(&AddOffsetsToTxnResponse::default().with_error_code(code), version))
    }))
}

/// Answers EndTxn.
///
/// # Errors
/// If the request cannot be decoded.
pub fn end(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: EndTxnRequest = call.decode("EndTxn")?;
    let (version, caller) = (call.version, Arc::clone(call.caller));
    let end = EndTxn {
        version,
        transactional_id: arc(&request.transactional_id),
        producer: pair(request.producer_id, request.producer_epoch),
        commit: request.committed,
    };
    Ok(call.answer(Request::EndTxn(end), move |response| {
        let answer = EndTxnResponse::default();
        let answer = match response {
            // Older versions cannot carry the pair.
            Response::Ended(pair) if version >= 5 => {
                answer.with_producer_id(ProducerId(pair.producer_id)).with_producer_epoch(pair.epoch)
            }
            Response::Ended(_) => answer,
            Response::Refused(refusal) => {
                answer.with_error_code(errors::code(refusal, ApiKey::EndTxn, version, &caller))
            }
            _ => return None,
        };
        Some(encode(&answer, version))
    }))
}

/// Answers TxnOffsetCommit.
///
/// # Errors
/// If the request cannot be decoded.
pub fn commit_offsets(call: Call<'_>) -> Result<Reply, Malformed> {
    const API: ApiKey = ApiKey::TxnOffsetCommit;
    let request: TxnOffsetCommitRequest = call.decode("TxnOffsetCommit")?;
    let (version, caller) = (call.version, Arc::clone(call.caller));
    let named = request
        .topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|part| (&**topic.name, part.partition_index)));
    let elsewhere = call.elsewhere();
    let found = locate(&call, named);
    let written = request.topics.iter().flat_map(|topic| &topic.partitions);
    let offsets: Vec<OffsetWrite> = written
        .zip(&found)
        .filter_map(|(part, of)| {
            Some(OffsetWrite {
                of: (*of)?,
                offset: Offset(part.committed_offset),
                leader_epoch: part.committed_leader_epoch,
                metadata: part.committed_metadata.as_deref().unwrap_or_default().to_owned(),
            })
        })
        .collect();
    let count = offsets.len();
    let commit = TxnOffsetCommit {
        version,
        transactional_id: arc(&request.transactional_id),
        producer: pair(request.producer_id, request.producer_epoch),
        member: MemberRef {
            group: arc(&request.group_id),
            generation: request.generation_id,
            member_id: arc(&request.member_id),
            instance_id: request.group_instance_id.as_deref().map(arc),
        },
        offsets,
    };
    let topics = request.topics;
    let shape = move |response| {
        let code = |refusal| errors::code(refusal, API, version, &caller);
        Some(encode(&offsets_committed(response, topics, found, count, code)?, version))
    };
    Ok(match elsewhere {
        Some(refusal) => answered(shape(Response::Refused(refusal))),
        None => call.answer(Request::TxnOffsetCommit(commit), shape),
    })
}

fn offsets_committed(
    response: Response,
    topics: Vec<TxnOffsetCommitRequestTopic>,
    found: Vec<Option<TopicPartition>>,
    count: usize,
    code: impl Fn(Refusal) -> i16,
) -> Option<TxnOffsetCommitResponse> {
    // Whether a topic exists the leader alone knows, and says.
    let everywhere = match response {
        Response::Refused(refusal) if refusal.is_of_the_moment() => Some(refusal),
        _ => None,
    };
    let results = match response {
        Response::Parts(parts) => parts,
        Response::Done => vec![Ok(()); count],
        Response::Refused(refusal) => vec![Err(refusal); count],
        _ => return None,
    };
    let (mut results, mut found) = (results.into_iter(), found.into_iter());
    let topics = topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|part| {
            let code = match found.next().flatten() {
                None => code(everywhere.unwrap_or(Refusal::UnknownTopicOrPartition)),
                Some(_) => results.next().expect("the leader answers every offset").map_or_else(&code, |()| 0),
            };
            TxnOffsetCommitResponsePartition::default().with_partition_index(part.partition_index).with_error_code(code)
        });
        let partitions = partitions.collect();
        TxnOffsetCommitResponseTopic::default().with_name(topic.name).with_partitions(partitions)
    });
    Some(TxnOffsetCommitResponse::default().with_topics(topics.collect()))
}
