//! DeleteRecords (key 21, versions 0–2): moves the logs of partitions up to an offset.
//!
//! - −1 is the high watermark. Beyond it OFFSET_OUT_OF_RANGE; below the log's start nothing changes and the answer says where
//!   it starts. POLICY_VIOLATION where a topic is compacted only (Kafka's `Partition.deleteRecordsOnLeader`).
//! - v2 is flexible; the versions do not differ otherwise.
//! - All replicas follow through the log, so the low watermark is the leader's log start.
//! - Not checked: `timeout_ms`; the log's own deadline is shorter than any sensible one.

use std::sync::Arc;

use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::delete_records_response::{DeleteRecordsPartitionResult, DeleteRecordsTopicResult};
use kafka_protocol::messages::{ApiKey, DeleteRecordsRequest, DeleteRecordsResponse};

use super::{Call, Malformed, Reply, encode, errors};
use crate::config::limits::TRIMS_PER_ENTRY_MAX;
use crate::leader::request::{Request, Response};
use crate::state::Machine;
use crate::state::command::Trim;
use crate::types::{Offset, Refusal, TopicPartition};

/// Kafka's `DeleteRecordsResponse.INVALID_LOW_WATERMARK`.
const NO_WATERMARK: i64 = -1;

/// Answers DeleteRecords.
///
/// # Errors
/// If the request cannot be decoded.
pub fn handle(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: DeleteRecordsRequest = call.decode("DeleteRecords")?;
    let version = call.version;
    if let Some(refusal) = call.elsewhere() {
        let code = errors::code(refusal, ApiKey::DeleteRecords, version, call.caller);
        return Ok(Reply::now(&answered(request, |_| Err(code)), version));
    }
    let trims = call.api.log.read(|machine| trims(&request, machine));
    let known: Vec<Trim> = trims.iter().flatten().copied().collect();
    if known.is_empty() {
        let unknown = errors::told(E::UnknownTopicOrPartition, ApiKey::DeleteRecords);
        return Ok(Reply::now(&answered(request, |_| Err(unknown)), version));
    }
    if known.len() > TRIMS_PER_ENTRY_MAX {
        let too_many = errors::told(E::InvalidRequest, ApiKey::DeleteRecords);
        return Ok(Reply::now(&answered(request, |_| Err(too_many)), version));
    }
    let (caller, asked) = (Arc::clone(call.caller), known.len());
    Ok(call.answer(Request::DeleteRecords(known), move |response| {
        let mut results = per_partition(response, asked)?.into_iter();
        let code = |refusal| errors::code(refusal, ApiKey::DeleteRecords, version, &caller);
        let response = answered(request, |part| match trims.get(part) {
            Some(Some(_)) => results.next().unwrap_or(Err(Refusal::FateUnknown)).map_err(code),
            _ => Err(errors::told(E::UnknownTopicOrPartition, ApiKey::DeleteRecords)),
        });
        Some(encode(&response, version))
    }))
}

/// What is asked of each partition, in the order of the request; None where it does not exist.
fn trims(request: &DeleteRecordsRequest, machine: &Machine) -> Vec<Option<Trim>> {
    let mut trims = Vec::new();
    for topic in &request.topics {
        let known = machine.topics().named(&topic.name);
        trims.extend(topic.partitions.iter().map(|part| {
            let known = known?;
            usize::try_from(part.partition_index).ok().and_then(|number| known.partitions.get(number))?;
            let of = TopicPartition { topic: known.id, partition: part.partition_index };
            Some(Trim { of, to: Offset(part.offset) })
        }));
    }
    trims
}

/// A response as one result per trim; None closes the connection.
fn per_partition(response: Response, asked: usize) -> Option<Vec<Result<Offset, Refusal>>> {
    match response {
        Response::Trimmed(results) => Some(results),
        Response::Refused(refusal) => Some(vec![Err(refusal); asked]),
        _ => None,
    }
}

/// The request's topics and partitions, each with its result: by its place in the request.
fn answered(
    request: DeleteRecordsRequest,
    mut result: impl FnMut(usize) -> Result<Offset, i16>,
) -> DeleteRecordsResponse {
    let mut place = 0..;
    let mut one = |index| {
        let out = DeleteRecordsPartitionResult::default().with_partition_index(index);
        match result(place.next().unwrap_or_default()) {
            Ok(start) => out.with_low_watermark(start.0),
            Err(code) => out.with_error_code(code).with_low_watermark(NO_WATERMARK),
        }
    };
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|part| one(part.partition_index)).collect();
        DeleteRecordsTopicResult::default().with_name(topic.name).with_partitions(partitions)
    });
    let topics = topics.collect();
    DeleteRecordsResponse::default().with_topics(topics)
}
