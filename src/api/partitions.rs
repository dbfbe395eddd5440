//! CreatePartitions (key 37, versions 0–3).
//!
//! - The count is the whole number that the topic has then; it may only grow (INVALID_PARTITIONS). What only the log can
//!   decide (two requests at once) is refused when the entry is applied.
//! - Every member replicates everything: an assignment is checked and then taken as all of them, as at creation.
//! - v2 is flexible, v3 may throttle (KIP-599): nothing is throttled.
//! - Not checked: `timeout_ms`; the log's own deadline is shorter than any sensible one.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::{ApiKey, CreatePartitionsRequest, CreatePartitionsResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::topics::{Fault, NOT_CONTROLLER, TOO_MANY_PARTITIONS, check_replicas, fault, per_topic};
use super::{Call, Malformed, Reply, encode, errors};
use crate::config::limits::PARTITIONS_PER_REQUEST_MAX;
use crate::leader::request::Request;
use crate::state::Machine;
use crate::state::command::NewPartitions;
use crate::state::topics::PARTITIONS_MAX;
use crate::types::Refusal;

/// Each topic of a request, in order: what it gets, or why not.
type Plan = Vec<(TopicName, Result<NewPartitions, Fault>)>;

/// Answers CreatePartitions.
///
/// # Errors
/// If the request cannot be decoded.
pub fn handle(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: CreatePartitionsRequest = call.decode("CreatePartitions")?;
    let version = call.version;
    if let Some(refusal) = call.elsewhere() {
        let code = errors::code(refusal, ApiKey::CreatePartitions, version, call.caller);
        let not_here = |topic: CreatePartitionsTopic| (topic.name, Err(Fault { code, message: NOT_CONTROLLER.into() }));
        return Ok(Reply::now(&answered(request.topics.into_iter().map(not_here).collect()), version));
    }
    let members: Vec<u64> = call.api.cluster.status().members.iter().map(|member| member.node_id).collect();
    let plan = call.api.log.read(|machine| plan(&request, machine, &members));
    let more: Vec<NewPartitions> = plan.iter().filter_map(|(_, planned)| planned.as_ref().ok().copied()).collect();
    if request.validate_only || more.is_empty() {
        return Ok(Reply::now(&answered(plan), version));
    }
    let caller = Arc::clone(call.caller);
    Ok(call.answer(Request::CreatePartitions(more), move |response| {
        let mut results = per_topic(response, plan.len())?.into_iter();
        let decide = |(name, planned): (TopicName, Result<NewPartitions, Fault>)| {
            let planned = planned.and_then(|more| match results.next().unwrap_or(Err(Refusal::FateUnknown)) {
                Ok(_) => Ok(more),
                Err(refusal) => {
                    let code = errors::code(refusal, ApiKey::CreatePartitions, version, &caller);
                    Err(Fault { code, message: refusal.to_string() })
                }
            });
            (name, planned)
        };
        Some(encode(&answered(plan.into_iter().map(decide).collect()), version))
    }))
}

fn plan(request: &CreatePartitionsRequest, machine: &Machine, members: &[u64]) -> Plan {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for topic in &request.topics {
        *times.entry(topic.name.as_str()).or_default() += 1;
    }
    let existing: usize = machine.topics().iter().map(|topic| topic.partitions.len()).sum();
    let mut wanted = 0;
    let one = |topic: &CreatePartitionsTopic| {
        let planned = if times[topic.name.as_str()] > 1 {
            Err(fault(ApiKey::CreatePartitions, E::InvalidRequest, "Duplicate topic name."))
        } else {
            plan_one(topic, machine, members).and_then(|(more, added)| {
                if wanted + added > PARTITIONS_PER_REQUEST_MAX || existing + wanted + added > PARTITIONS_MAX {
                    return Err(fault(ApiKey::CreatePartitions, E::PolicyViolation, TOO_MANY_PARTITIONS));
                }
                wanted += added;
                Ok(more)
            })
        };
        (topic.name.clone(), planned)
    };
    request.topics.iter().map(one).collect()
}

/// What a topic gets, and how many partitions are new.
fn plan_one(
    topic: &CreatePartitionsTopic,
    machine: &Machine,
    members: &[u64],
) -> Result<(NewPartitions, usize), Fault> {
    let refuse = |error, message: String| Err(fault(ApiKey::CreatePartitions, error, message));
    let Some(known) = machine.topics().named(&topic.name) else {
        return refuse(E::UnknownTopicOrPartition, "This server does not host this topic-partition.".into());
    };
    let (name, has) = (topic.name.as_str(), known.partitions.len());
    let count = usize::try_from(topic.count).unwrap_or(0);
    if count == has {
        return refuse(E::InvalidPartitions, format!("Topic already has {has} partition(s)."));
    }
    if count < has {
        let message =
            format!("The topic {name} currently has {has} partition(s); {} would not be an increase.", topic.count);
        return refuse(E::InvalidPartitions, message);
    }
    let added = count - has;
    if let Some(assignments) = &topic.assignments {
        if assignments.len() != added {
            let message = format!(
                "Attempted to add {added} additional partition(s), but only {} assignment(s) were specified.",
                assignments.len()
            );
            return refuse(E::InvalidReplicaAssignment, message);
        }
        for assignment in assignments {
            if let Err(message) = check_replicas(&assignment.broker_ids, members) {
                return refuse(E::InvalidReplicaAssignment, message);
            }
        }
    }
    Ok((NewPartitions { topic: known.id, count: topic.count }, added))
}

fn answered(plan: Plan) -> CreatePartitionsResponse {
    let one = |(name, planned): (TopicName, Result<NewPartitions, Fault>)| {
        let out = CreatePartitionsTopicResult::default().with_name(name);
        match planned {
            Ok(_) => out.with_error_message(None),
            Err(fault) => {
                out.with_error_code(fault.code).with_error_message(Some(StrBytes::from_string(fault.message)))
            }
        }
    };
    CreatePartitionsResponse::default().with_results(plan.into_iter().map(one).collect())
}
