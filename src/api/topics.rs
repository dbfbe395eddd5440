//! CreateTopics (key 19, versions 2–7) and DeleteTopics (key 20, versions 1–6).
//!
//! - Each topic is judged alone, in the order of the request. Names, counts, assignments and settings are checked here; what only the log
//!   can decide (two requests for one name) is refused when the entry is applied.
//! - Every member replicates everything: any replication factor up to the number of members is taken as all of them, a manual assignment is
//!   checked and then taken likewise.
//! - CreateTopics v4 (KIP-464) −1 for the default counts; v5 (KIP-525) answers with the topic's settings; v7 its id.
//! - DeleteTopics v5 error messages; v6 (KIP-516) by id.
//! - Not checked: `timeout_ms`; the log's own deadline is shorter than any sensible one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::{CreatableTopicConfigs, CreatableTopicResult};
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{
    ApiKey, BrokerId, CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest, DeleteTopicsResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::configs::topic_values;
use super::errors::told;
use super::{ApiSettings, Call, Malformed, Reply, encode, errors};
use crate::config::limits::{PARTITIONS_PER_REQUEST_MAX, TOPIC_CONFIGS_MAX};
use crate::leader::request::{Request, Response};
use crate::state::Machine;
use crate::state::command::NewTopic;
use crate::state::topics::PARTITIONS_MAX;
use crate::types::settings::check_topic_config;
use crate::types::{Refusal, TopicId};

/// Longest name of a topic (Kafka's `Topic.MAX_NAME_LENGTH`): with `-<partition>` it still is a file name.
const NAME_LENGTH_MAX: usize = 249;

/// Kafka's words for NOT_CONTROLLER.
pub(super) const NOT_CONTROLLER: &str = "This is not the correct controller for this cluster.";

/// An error code with its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Its code.
    pub code: i16,
    /// In words.
    pub message: String,
}

/// Bytes of an error's message.
const MESSAGE_BYTES_MAX: usize = 1_024;

pub(super) fn fault(api: ApiKey, error: E, message: impl Into<String>) -> Fault {
    let mut message: String = message.into();
    // It may quote a name, and a string of 32 KiB with words around it fits into no old version.
    message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
    Fault { code: told(error, api), message }
}

/// Whether a topic may have that name (Kafka's `Topic.validate`).
///
/// # Errors
/// What is wrong, in Kafka's words.
pub fn check_name(name: &str) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let wrong = match name {
        "" => "the empty string is not allowed".to_owned(),
        "." | ".." => format!("'{name}' is not allowed"),
        _ if name.len() > NAME_LENGTH_MAX => {
            format!("the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}")
        }
        _ if !name.chars().all(legal) => {
            format!("'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'")
        }
        _ => return Ok(()),
    };
    Err(format!("Topic name is invalid: {wrong}"))
}

/// A random id. Its text never starts with `-`, which command lines would take for an option (as Kafka's `Uuid.randomUuid`).
pub fn fresh_topic_id() -> TopicId {
    /// The first character of Kafka's text form (base64url) is the first six bits; this is `-`.
    const DASH: u8 = 62;
    loop {
        let bytes = *Uuid::new_v4().as_bytes();
        if bytes[0] >> 2 != DASH {
            return TopicId(bytes);
        }
    }
}

// --- CreateTopics ----------------------------------------------------------------------------------

/// Answers CreateTopics.
///
/// # Errors
/// If the request cannot be decoded.
pub fn create(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: CreateTopicsRequest = call.decode("CreateTopics")?;
    let version = call.version;
    if let Some(refusal) = call.elsewhere() {
        let code = errors::code(refusal, ApiKey::CreateTopics, version, call.caller);
        let not_here = |topic: CreatableTopic| (topic.name, Err(Fault { code, message: NOT_CONTROLLER.into() }));
        return Ok(Reply::now(&created(request.topics.into_iter().map(not_here).collect(), 0, version), version));
    }
    let members: Vec<u64> = call.api.cluster.status().members.iter().map(|member| member.node_id).collect();
    let plan = call.api.log.read(|machine| plan(&request, machine, &call.api.settings, &members));
    let new: Vec<NewTopic> = plan.iter().filter_map(|(_, planned)| planned.as_ref().ok().cloned()).collect();
    if request.validate_only || new.is_empty() {
        return Ok(Reply::now(&created(plan, members.len(), version), version));
    }
    let caller = Arc::clone(call.caller);
    Ok(call.answer(Request::CreateTopics(new), move |response| {
        let results = per_topic(response, plan.len())?;
        let refused = |topic: &NewTopic, refusal| Fault {
            code: errors::code(refusal, ApiKey::CreateTopics, version, &caller),
            message: creation_refused(refusal, &topic.name),
        };
        Some(encode(&created(decided(plan, results, refused), members.len(), version), version))
    }))
}

/// Each topic of a request, in order: what is to be created, or why not.
type Plan = Vec<(TopicName, Result<NewTopic, Fault>)>;

fn plan(request: &CreateTopicsRequest, machine: &Machine, settings: &ApiSettings, members: &[u64]) -> Plan {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for topic in &request.topics {
        *times.entry(topic.name.as_str()).or_default() += 1;
    }
    let mut seen = BTreeSet::new();
    let existing: usize = machine.topics().iter().map(|topic| topic.partitions.len()).sum();
    let mut wanted = 0;
    let once = request.topics.iter().filter(|topic| seen.insert(topic.name.as_str()));
    let plan_one = |topic: &CreatableTopic| {
        let planned = if times[topic.name.as_str()] > 1 {
            Err(fault(ApiKey::CreateTopics, E::InvalidRequest, "Duplicate topic name."))
        } else {
            plan_one(topic, machine, settings, members).and_then(|new| {
                wanted += usize::try_from(new.partitions).unwrap_or(usize::MAX);
                if wanted > PARTITIONS_PER_REQUEST_MAX || existing + wanted > PARTITIONS_MAX {
                    wanted -= usize::try_from(new.partitions).unwrap_or(usize::MAX);
                    return Err(fault(ApiKey::CreateTopics, E::PolicyViolation, TOO_MANY_PARTITIONS));
                }
                Ok(new)
            })
        };
        (topic.name.clone(), planned)
    };
    once.map(plan_one).collect()
}

pub(super) const TOO_MANY_PARTITIONS: &str = "Excessively large number of partitions per request or cluster.";

fn plan_one(
    topic: &CreatableTopic,
    machine: &Machine,
    settings: &ApiSettings,
    members: &[u64],
) -> Result<NewTopic, Fault> {
    let refuse = |error, message: String| Err(fault(ApiKey::CreateTopics, error, message));
    if let Err(message) = check_name(&topic.name) {
        return refuse(E::InvalidTopicException, message);
    }
    if machine.topics().named(&topic.name).is_some() {
        return refuse(E::TopicAlreadyExists, format!("Topic '{}' already exists.", topic.name.as_str()));
    }
    if let Some(other) = machine.topics().colliding(&topic.name) {
        let name = topic.name.as_str();
        return refuse(
            E::InvalidTopicException,
            format!("Topic '{name}' collides with existing topic: {}", other.name),
        );
    }
    let partitions = match assigned_partitions(topic, members) {
        Some(assigned) => assigned?,
        None => counted_partitions(topic, settings.default_partitions, members.len())?,
    };
    if topic.configs.len() > TOPIC_CONFIGS_MAX {
        return refuse(E::PolicyViolation, format!("More than {TOPIC_CONFIGS_MAX} settings."));
    }
    let mut configs = Vec::new();
    for config in &topic.configs {
        let name = config.name.to_string();
        let Some(value) = config.value.as_ref().map(ToString::to_string) else {
            return refuse(E::InvalidConfig, format!("Null value not supported for topic configs: {name}"));
        };
        if let Err(message) = check_topic_config(&name, &value) {
            return refuse(E::InvalidConfig, message);
        }
        configs.push((name, value));
    }
    Ok(NewTopic { id: fresh_topic_id(), name: topic.name.to_string(), partitions, configs })
}

/// How many partitions a topic without an assignment gets.
fn counted_partitions(topic: &CreatableTopic, default_partitions: i32, members: usize) -> Result<i32, Fault> {
    let refuse = |error, message: String| Err(fault(ApiKey::CreateTopics, error, message));
    let partitions = if topic.num_partitions == -1 { default_partitions } else { topic.num_partitions };
    if partitions < 1 {
        let message = "Number of partitions was set to an invalid non-positive value.";
        return refuse(E::InvalidPartitions, message.into());
    }
    match topic.replication_factor {
        -1 => Ok(partitions),
        factor if factor < 1 => {
            let message = "Replication factor must be larger than 0, or -1 to use the default value.";
            refuse(E::InvalidReplicationFactor, message.into())
        }
        factor if usize::from(factor.unsigned_abs()) > members => {
            let message = format!(
                "Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be \
                 reached because only {members} broker(s) are registered."
            );
            refuse(E::InvalidReplicationFactor, message)
        }
        _ => Ok(partitions),
    }
}

/// How many partitions a manual assignment makes, None without one.
fn assigned_partitions(topic: &CreatableTopic, members: &[u64]) -> Option<Result<i32, Fault>> {
    if topic.assignments.is_empty() {
        return None;
    }
    let refuse = |error, message: String| Some(Err(fault(ApiKey::CreateTopics, error, message)));
    if topic.replication_factor != -1 || topic.num_partitions != -1 {
        let message = "A manual partition assignment was specified, but the number of partitions or the replication factor \
                       was not set to -1.";
        return refuse(E::InvalidRequest, message.into());
    }
    let mut numbers = BTreeSet::new();
    for assignment in &topic.assignments {
        if let Err(message) = check_replicas(&assignment.broker_ids, members) {
            return refuse(E::InvalidReplicaAssignment, message);
        }
        if !numbers.insert(assignment.partition_index) {
            let message =
                format!("Found multiple manual partition assignments for partition {}", assignment.partition_index);
            return refuse(E::InvalidReplicaAssignment, message);
        }
    }
    let count = i32::try_from(numbers.len()).unwrap_or(i32::MAX);
    if numbers.first() != Some(&0) || numbers.last() != Some(&(count - 1)) {
        let message = "partitions should be a consecutive 0-based integer sequence";
        return refuse(E::InvalidReplicaAssignment, message.into());
    }
    Some(Ok(count))
}

pub(super) fn check_replicas(brokers: &[BrokerId], members: &[u64]) -> Result<(), String> {
    if brokers.is_empty() {
        return Err("The manual partition assignment includes an empty replica list.".into());
    }
    let mut seen = BTreeSet::new();
    for broker in brokers.iter().map(|broker| broker.0) {
        if !u64::try_from(broker).is_ok_and(|broker| members.contains(&broker)) {
            return Err(format!(
                "The manual partition assignment includes broker {broker}, but no such broker is registered."
            ));
        }
        if !seen.insert(broker) {
            return Err(format!("The manual partition assignment includes the broker {broker} more than once."));
        }
    }
    Ok(())
}

/// The leader's results for those topics of the plan that were asked of it.
fn decided(plan: Plan, results: Vec<Result<TopicId, Refusal>>, refused: impl Fn(&NewTopic, Refusal) -> Fault) -> Plan {
    let mut results = results.into_iter();
    let decide = |(name, planned): (TopicName, Result<NewTopic, Fault>)| {
        let planned = planned.and_then(|topic| match results.next() {
            Some(Ok(id)) => Ok(NewTopic { id, ..topic }),
            Some(Err(refusal)) => Err(refused(&topic, refusal)),
            None => Err(refused(&topic, Refusal::FateUnknown)),
        });
        (name, planned)
    };
    plan.into_iter().map(decide).collect()
}

fn creation_refused(refusal: Refusal, name: &str) -> String {
    match refusal {
        Refusal::TopicAlreadyExists => format!("Topic '{name}' already exists."),
        Refusal::InvalidTopic => format!("Topic '{name}' collides with an existing topic"),
        other => other.to_string(),
    }
}

fn created(plan: Plan, members: usize, version: i16) -> CreateTopicsResponse {
    let one = |(name, planned): (TopicName, Result<NewTopic, Fault>)| {
        let out = CreatableTopicResult::default().with_name(name);
        match planned {
            Ok(topic) => created_one(out, &topic, members, version),
            Err(fault) => out
                .with_error_code(fault.code)
                .with_error_message(Some(StrBytes::from_string(fault.message)))
                .with_configs(Some(Vec::new())),
        }
    };
    CreateTopicsResponse::default().with_topics(plan.into_iter().map(one).collect())
}

fn created_one(out: CreatableTopicResult, topic: &NewTopic, members: usize, version: i16) -> CreatableTopicResult {
    let mut out = out.with_error_message(None);
    if version >= 7 {
        out.topic_id = Uuid::from_bytes(topic.id.0);
    }
    if version >= 5 {
        let configs: BTreeMap<String, String> = topic.configs.iter().cloned().collect();
        let one = |value: super::configs::Value| {
            CreatableTopicConfigs::default()
                .with_name(StrBytes::from_string(value.name))
                .with_value(value.value.map(StrBytes::from_string))
                .with_config_source(value.source)
        };
        out.num_partitions = topic.partitions;
        out.replication_factor = i16::try_from(members).unwrap_or(i16::MAX);
        out.configs = Some(topic_values(&configs, |_| Vec::new()).map(one).collect());
    }
    out
}

/// A response as one result per topic; None closes the connection.
pub(super) fn per_topic(response: Response, asked: usize) -> Option<Vec<Result<TopicId, Refusal>>> {
    match response {
        Response::Topics(results) => Some(results),
        Response::Refused(refusal) => Some(vec![Err(refusal); asked]),
        _ => None,
    }
}

// --- DeleteTopics ----------------------------------------------------------------------------------

/// A topic to delete, as it is named in the request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Name(TopicName),
    Id(TopicId),
}

/// Each topic of a request: its name where known, its id, or why it is not deleted.
struct Deletion {
    name: Option<TopicName>,
    id: TopicId,
    result: Result<(), Fault>,
}

/// Answers DeleteTopics.
///
/// # Errors
/// If the request cannot be decoded.
pub fn delete(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: DeleteTopicsRequest = call.decode("DeleteTopics")?;
    let version = call.version;
    let elsewhere = call.elsewhere();
    let mut deletions = call.api.log.read(|machine| deletions(&request, machine, version));
    if let Some(refusal) = elsewhere {
        let code = errors::code(refusal, ApiKey::DeleteTopics, version, call.caller);
        for one in &mut deletions {
            one.result = Err(Fault { code, message: NOT_CONTROLLER.into() });
        }
    }
    let ids: Vec<TopicId> = deletions.iter().filter(|one| one.result.is_ok()).map(|one| one.id).collect();
    if ids.is_empty() {
        return Ok(Reply::now(&deleted(deletions, version), version));
    }
    let caller = Arc::clone(call.caller);
    Ok(call.answer(Request::DeleteTopics(ids), move |response| {
        let mut results = per_topic(response, deletions.len())?.into_iter();
        for one in deletions.iter_mut().filter(|one| one.result.is_ok()) {
            let refusal = results.next().unwrap_or(Err(Refusal::FateUnknown)).err();
            // Deleted by someone else meanwhile: who asked by name knows no id.
            let by_name = |refusal| {
                if version < 6 && refusal == Refusal::UnknownTopicId {
                    Refusal::UnknownTopicOrPartition
                } else {
                    refusal
                }
            };
            if let Some(refusal) = refusal.map(by_name) {
                let code = errors::code(refusal, ApiKey::DeleteTopics, version, &caller);
                one.result = Err(Fault { code, message: refusal.to_string() });
            }
        }
        Some(encode(&deleted(deletions, version), version))
    }))
}

fn deletions(request: &DeleteTopicsRequest, machine: &Machine, version: i16) -> Vec<Deletion> {
    let mut out = Vec::new();
    let refused = |name, id: Uuid, error, message: &str| Deletion {
        name,
        id: TopicId(*id.as_bytes()),
        result: Err(fault(ApiKey::DeleteTopics, error, message)),
    };
    let mut targets = Vec::new();
    if version < 6 {
        targets.extend(request.topic_names.iter().cloned().map(Target::Name));
    }
    for topic in &request.topics {
        match (&topic.name, topic.topic_id.is_nil()) {
            (Some(name), true) => targets.push(Target::Name(name.clone())),
            (None, false) => targets.push(Target::Id(TopicId(*topic.topic_id.as_bytes()))),
            (None, true) => {
                out.push(refused(None, topic.topic_id, E::InvalidRequest, "Neither topic name nor id were specified."));
            }
            (Some(name), false) => {
                let message = "You may not specify both topic name and topic id.";
                out.push(refused(Some(name.clone()), topic.topic_id, E::InvalidRequest, message));
            }
        }
    }
    let mut seen = BTreeSet::new();
    for target in targets {
        let found = match &target {
            Target::Name(name) => machine.topics().named(name),
            Target::Id(id) => machine.topics().get(*id),
        };
        let nil = Uuid::nil();
        out.push(match (&target, found) {
            (_, Some(topic)) if !seen.insert(topic.id) => {
                let name = TopicName(StrBytes::from_string(topic.name.clone()));
                refused(Some(name), nil, E::InvalidRequest, "The topic is named more than once.")
            }
            (_, Some(topic)) => Deletion {
                name: Some(TopicName(StrBytes::from_string(topic.name.clone()))),
                id: topic.id,
                result: Ok(()),
            },
            (Target::Name(name), None) => {
                let message = "This server does not host this topic-partition.";
                refused(Some(name.clone()), nil, E::UnknownTopicOrPartition, message)
            }
            (Target::Id(id), None) => {
                let message = "This server does not host this topic ID.";
                refused(None, Uuid::from_bytes(id.0), E::UnknownTopicId, message)
            }
        });
    }
    out
}

fn deleted(deletions: Vec<Deletion>, version: i16) -> DeleteTopicsResponse {
    let one = |deletion: Deletion| {
        let mut out = DeletableTopicResult::default().with_name(deletion.name);
        if version >= 6 {
            out.topic_id = Uuid::from_bytes(deletion.id.0);
        }
        if let Err(fault) = deletion.result {
            out.error_code = fault.code;
            out.error_message = (version >= 5).then(|| StrBytes::from_string(fault.message));
        }
        out
    };
    DeleteTopicsResponse::default().with_responses(deletions.into_iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopicConfig};
    use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
    use kafka_protocol::protocol::Decodable;

    use super::super::metadata::sample;
    use super::*;

    fn text(text: &str) -> StrBytes {
        StrBytes::from_string(text.to_owned())
    }

    fn topic(name: &str, partitions: i32, replicas: i16) -> CreatableTopic {
        let topic = CreatableTopic::default().with_name(TopicName(text(name)));
        topic.with_num_partitions(partitions).with_replication_factor(replicas)
    }

    fn planned(topics: Vec<CreatableTopic>) -> Vec<Result<i32, (i16, String)>> {
        let machine = sample::machine(&[("a.b", 1, &[])]);
        let request = CreateTopicsRequest::default().with_topics(topics);
        let plan = plan(&request, &machine, &sample::settings(), &[1, 2, 3]);
        let one = |(_, planned): (TopicName, Result<NewTopic, Fault>)| {
            planned.map(|topic| topic.partitions).map_err(|fault| (fault.code, fault.message))
        };
        plan.into_iter().map(one).collect()
    }

    fn code(topic: CreatableTopic) -> i16 {
        planned(vec![topic]).remove(0).map_or_else(|(code, _)| code, |_| 0)
    }

    fn assigned(partitions: &[(i32, &[i32])]) -> CreatableTopic {
        let one = |(index, brokers): &(i32, &[i32])| {
            let ids = brokers.iter().map(|id| BrokerId(*id)).collect();
            CreatableReplicaAssignment::default().with_partition_index(*index).with_broker_ids(ids)
        };
        topic("x", -1, -1).with_assignments(partitions.iter().map(one).collect())
    }

    fn configured(name: &str, value: Option<&str>) -> CreatableTopic {
        let config = CreatableTopicConfig::default().with_name(text(name)).with_value(value.map(text));
        topic("x", 1, 1).with_configs(vec![config])
    }

    #[test]
    fn names_are_those_of_kafka() {
        let long = "x".repeat(NAME_LENGTH_MAX);
        for good in ["a", "A-1_b.c", "...", "__consumer_offsets", &long] {
            assert_eq!(check_name(good), Ok(()));
        }
        for bad in ["", ".", "..", "a b", "a/b", "ä", &format!("{long}x")] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert_eq!(code(topic("a_b", 1, 1)), 17, "metrics could not tell it from a.b");
        assert_eq!(code(topic("a.b", 1, 1)), 36);
    }

    #[test]
    fn counts_have_defaults_and_limits() {
        assert_eq!(planned(vec![topic("x", -1, -1)]), [Ok(2)]);
        assert_eq!(planned(vec![topic("x", 7, 3)]), [Ok(7)]);
        assert_eq!(code(topic("x", 0, 1)), 37);
        assert_eq!(code(topic("x", -2, 1)), 37);
        assert_eq!(code(topic("x", 1, 0)), 38);
        assert_eq!(code(topic("x", 1, 4)), 38);
        assert_eq!(code(topic("x", i32::MAX, 1)), 44);
    }

    #[test]
    fn the_partitions_of_one_request_are_bounded_together() {
        let half = i32::try_from(PARTITIONS_PER_REQUEST_MAX / 2 + 1).expect("it fits");
        let results = planned(vec![topic("x", half, 1), topic("y", half, 1), topic("z", 1, 1)]);
        let codes: Vec<_> = results.into_iter().map(|result| result.map_err(|(code, _)| code)).collect();
        assert_eq!(codes, [Ok(half), Err(44), Ok(1)]);
    }

    #[test]
    fn assignments_must_be_whole() {
        assert_eq!(planned(vec![assigned(&[(1, &[1, 2]), (0, &[3])])]), [Ok(2)]);
        assert_eq!(code(assigned(&[(1, &[1])])), 39, "0 is missing");
        assert_eq!(code(assigned(&[(0, &[1]), (0, &[2])])), 39);
        assert_eq!(code(assigned(&[(0, &[9])])), 39);
        assert_eq!(code(assigned(&[(0, &[1, 1])])), 39);
        assert_eq!(code(assigned(&[(0, &[])])), 39);
        assert_eq!(code(assigned(&[(0, &[1])]).with_replication_factor(1)), 42);
    }

    #[test]
    fn settings_are_checked() {
        assert_eq!(code(configured("retention.ms", Some("1000"))), 0);
        assert_eq!(code(configured("retention.ms", Some("soon"))), 40);
        assert_eq!(code(configured("no.such.setting", Some("1"))), 40);
        assert_eq!(code(configured("retention.ms", None)), 40);
        assert_eq!(code(configured("redpanda.remote.read", Some("true"))), 0);
    }

    #[test]
    fn a_name_given_twice_is_refused_once_and_the_others_are_not() {
        let results = planned(vec![topic("x", 1, 1), topic("y", 1, 1), topic("x", 1, 1)]);
        assert_eq!(results, [Err((42, "Duplicate topic name.".into())), Ok(1)]);
    }

    #[test]
    fn every_version_of_both_answers_can_be_read() {
        let machine = sample::machine(&[]);
        let request = CreateTopicsRequest::default().with_topics(vec![
            topic("good", 1, 1).with_configs(configured("retention.ms", Some("5")).configs),
            topic("bad name", 1, 1),
            topic("late", 1, 1),
        ]);
        for version in 2..=7 {
            let plan = plan(&request, &machine, &sample::settings(), &[1]);
            let results = vec![Ok(TopicId([9; 16])), Err(Refusal::TopicAlreadyExists)];
            let refused =
                |topic: &NewTopic, refusal| Fault { code: 36, message: creation_refused(refusal, &topic.name) };
            let response = created(decided(plan, results, refused), 1, version);
            let mut bytes = bytes::Bytes::from(encode(&response, version).concat());
            let read: CreateTopicsResponse = Decodable::decode(&mut bytes, version).expect("own bytes are read");
            assert_eq!(read.topics.iter().map(|topic| topic.error_code).collect::<Vec<_>>(), [0, 17, 36]);
            assert_eq!(read.topics[2].error_message, Some(text("Topic 'late' already exists.")));
            assert_eq!(read.topics[0].topic_id.is_nil(), version < 7);
            if version >= 5 {
                let configs = read.topics[0].configs.as_ref().expect("v5 tells the settings");
                let retention =
                    configs.iter().find(|config| config.name.as_str() == "retention.ms").expect("it is known");
                assert_eq!((retention.value.clone(), retention.config_source), (Some(text("5")), 1));
                assert_eq!((read.topics[0].num_partitions, read.topics[0].replication_factor), (1, 1));
            }
        }
        for version in 1..=6 {
            let request = DeleteTopicsRequest::default().with_topic_names(vec![TopicName(text("nobody"))]);
            let response = deleted(deletions(&request, &machine, version.min(5)), version);
            let mut bytes = bytes::Bytes::from(encode(&response, version).concat());
            let read: DeleteTopicsResponse = Decodable::decode(&mut bytes, version).expect("own bytes are read");
            assert_eq!(read.responses[0].error_code, 3);
        }
    }

    #[test]
    fn topics_to_delete_are_named_once_by_name_or_by_id() {
        let machine = sample::machine(&[("a", 1, &[]), ("b", 1, &[])]);
        let named = |name: &str| DeleteTopicState::default().with_name(Some(TopicName(text(name))));
        let by_id = |id: u8| DeleteTopicState::default().with_name(None).with_topic_id(Uuid::from_bytes([id; 16]));
        let both = named("a").with_topic_id(Uuid::from_bytes([1; 16]));
        let neither = DeleteTopicState::default().with_name(None);
        let targets = vec![named("a"), by_id(2), by_id(1), named("z"), by_id(9), both, neither];
        let request = DeleteTopicsRequest::default().with_topics(targets);
        let mut codes: Vec<i16> = deletions(&request, &machine, 6)
            .into_iter()
            .map(|one| one.result.err().map_or(0, |fault| fault.code))
            .collect();
        codes.sort_unstable();
        assert_eq!(codes, [0, 0, 3, 42, 42, 42, 100]);
    }

    #[test]
    fn fresh_ids_never_look_like_an_option() {
        for _ in 0..1_000 {
            assert_ne!(fresh_topic_id().0[0] >> 2, 62);
        }
    }
}
