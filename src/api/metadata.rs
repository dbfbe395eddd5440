//! Metadata (key 3, versions 0–13).
//!
//! - Brokers, leaders, replicas and epochs are those of [`View`]; the controller is the leader of the one log.
//! - v1 null asks for all topics (v0: an empty list); v2 cluster id; v4 `allow_auto_topic_creation` (before, always); v7 leader epoch, which
//!   is the Raft term; v8 (KIP-430) authorised operations, all of them while there are no ACLs; v10 (KIP-516) topic ids; v12 topics
//!   asked for by id; v11 drops the cluster's operations (KIP-700).
//! - A topic that may be created is created before the answer, so the answer is complete; Kafka says UNKNOWN_TOPIC_OR_PARTITION and
//!   lets the client ask again. Kafka's own topics, which do not exist here, are never created by asking.
//! - Not checked: `throttle_time_ms` is 0, there are no quotas; v13's top-level error is for a controller that restarts (KIP-1102).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{ApiKey, BrokerId, MetadataRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::errors::told;
use super::topics::{check_name, fresh_topic_id};
use super::view::{View, id};
use super::{ApiSettings, Call, Malformed, Reply, encode, errors};
use crate::config::limits::PARTITIONS_PER_REQUEST_MAX;
use crate::leader::request::{Caller, Request, Response};
use crate::log::Member;
use crate::state::Machine;
use crate::state::command::NewTopic;
use crate::state::topics::Topic;
use crate::types::{Refusal, TopicId};

/// READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: Kafka's `AclOperation` codes as bits.
const TOPIC_OPERATIONS: i32 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11;
/// CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE.
pub(super) const CLUSTER_OPERATIONS: i32 = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;

/// Topics that Kafka keeps its own state in.
const INTERNAL_TOPICS: [&str; 4] =
    ["__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"];

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    Name(TopicName),
    Id(TopicId),
}

/// Answers Metadata.
///
/// # Errors
/// If the request cannot be decoded.
pub fn handle(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: MetadataRequest = call.decode("Metadata")?;
    let version = call.version;
    let Some(wanted) = wanted(&request, version) else {
        return Ok(Reply::now(&all_invalid(&request, version), version));
    };
    let answer = Answer {
        version,
        topic_operations: request.include_topic_authorized_operations,
        cluster_operations: request.include_cluster_authorized_operations,
        wanted,
    };
    let api = call.api.clone();
    let may_create = api.settings.auto_create_topics && (version < 4 || request.allow_auto_topic_creation);
    let new = if may_create { api.log.read(|machine| answer.to_create(machine, &api.settings)) } else { Vec::new() };
    let respond = move |api: &super::Api, failed: &BTreeMap<String, i16>| {
        let status = api.cluster.status();
        let seen = Seen { view: api.cluster.view_of(&status), replayed: status.replayed };
        encode(&api.log.read(|machine| answer.response(machine, &seen, &api.settings, failed)), version)
    };
    if new.is_empty() {
        return Ok(Reply::Now(respond(&api, &BTreeMap::new())));
    }
    let names: Vec<String> = new.iter().map(|topic| topic.name.clone()).collect();
    let caller = Arc::clone(call.caller);
    Ok(call.answer(Request::CreateTopics(new), move |response| {
        let failed = failures(&names, response, version, &caller)?;
        Some(respond(&api, &failed))
    }))
}

/// What the request asks for, None for all topics; None at the outer level if it is not allowed at its version.
fn wanted(request: &MetadataRequest, version: i16) -> Option<Option<Vec<Wanted>>> {
    let Some(topics) = request.topics.as_ref().filter(|topics| version > 0 || !topics.is_empty()) else {
        return Some(None);
    };
    let nameless = |topic: &MetadataRequestTopic| topic.name.is_none() || !topic.topic_id.is_nil();
    if version < 12 && topics.iter().any(nameless) {
        return None;
    }
    // As in Kafka: once one topic is asked for by id, the others must be too, and names are passed over.
    let by_id = topics.iter().any(|topic| !topic.topic_id.is_nil());
    let mut seen = BTreeSet::new();
    let one = |topic: &MetadataRequestTopic| match (&topic.name, by_id) {
        (Some(name), false) => Some(Wanted::Name(name.clone())),
        (None, false) => None,
        (_, true) => Some(topic.topic_id).filter(|id| !id.is_nil()).map(|id| Wanted::Id(TopicId(*id.as_bytes()))),
    };
    Some(Some(topics.iter().filter_map(one).filter(|wanted| seen.insert(wanted.clone())).collect()))
}

fn all_invalid(request: &MetadataRequest, version: i16) -> MetadataResponse {
    let topics = request.topics.iter().flatten().map(|topic| {
        let out = MetadataResponseTopic::default()
            .with_error_code(told(E::InvalidRequest, ApiKey::Metadata))
            .with_name(Some(topic.name.clone().unwrap_or_default()));
        if version >= 10 { out.with_topic_id(topic.topic_id) } else { out }
    });
    MetadataResponse::default().with_controller_id(BrokerId(-1)).with_topics(topics.collect())
}

/// Which creations failed, by name; None if the answer cannot be given.
fn failures(names: &[String], response: Response, version: i16, caller: &Caller) -> Option<BTreeMap<String, i16>> {
    let code = |refusal| match refusal {
        // Whoever asked at the same time created it.
        Refusal::TopicAlreadyExists => None,
        Refusal::InvalidTopic | Refusal::PolicyViolation => {
            Some(errors::code(refusal, ApiKey::Metadata, version, caller))
        }
        // Not here, not now: clients ask again.
        _ => Some(told(E::LeaderNotAvailable, ApiKey::Metadata)),
    };
    match response {
        Response::Topics(results) => {
            let refused =
                names.iter().zip(results).filter_map(|(name, result)| Some((name.clone(), code(result.err()?)?)));
            Some(refused.collect())
        }
        Response::Refused(refusal) => {
            Some(names.iter().filter_map(|name| Some((name.clone(), code(refusal)?))).collect())
        }
        _ => None,
    }
}

/// What an answer is made from.
struct Seen {
    view: View,
    replayed: bool,
}

/// A request, worked out.
struct Answer {
    version: i16,
    topic_operations: bool,
    cluster_operations: bool,
    wanted: Option<Vec<Wanted>>,
}

impl Answer {
    /// Topics that are asked for by name, do not exist and may be created.
    fn to_create(&self, machine: &Machine, settings: &ApiSettings) -> Vec<NewTopic> {
        let missing = self.wanted.iter().flatten().filter_map(|wanted| match wanted {
            Wanted::Name(name) if machine.topics().named(name).is_none() => Some(name),
            Wanted::Name(_) | Wanted::Id(_) => None,
        });
        let allowed = missing.filter(|name| check_name(name).is_ok() && !INTERNAL_TOPICS.contains(&name.as_str()));
        let at_once = PARTITIONS_PER_REQUEST_MAX / usize::try_from(settings.default_partitions).unwrap_or(1).max(1);
        let new = |name: &TopicName| NewTopic {
            id: fresh_topic_id(),
            name: name.to_string(),
            partitions: settings.default_partitions,
            configs: Vec::new(),
        };
        allowed.take(at_once.max(1)).map(new).collect()
    }

    fn response(
        &self,
        machine: &Machine,
        seen: &Seen,
        settings: &ApiSettings,
        failed: &BTreeMap<String, i16>,
    ) -> MetadataResponse {
        let topics = match &self.wanted {
            None => machine.topics().iter().map(|topic| self.topic(topic, &seen.view)).collect(),
            Some(wanted) => wanted.iter().map(|wanted| self.one(wanted, machine, seen, failed)).collect(),
        };
        let mut response = MetadataResponse::default()
            .with_brokers(seen.view.brokers.iter().map(broker).collect())
            .with_cluster_id(Some(StrBytes::from_string(settings.cluster_id.clone())))
            .with_controller_id(seen.view.controller)
            .with_topics(topics);
        if self.cluster_operations && (8..=10).contains(&self.version) {
            response.cluster_authorized_operations = CLUSTER_OPERATIONS;
        }
        response
    }

    fn one(
        &self,
        wanted: &Wanted,
        machine: &Machine,
        seen: &Seen,
        failed: &BTreeMap<String, i16>,
    ) -> MetadataResponseTopic {
        let found = match wanted {
            Wanted::Name(name) => machine.topics().named(name),
            Wanted::Id(id) => machine.topics().get(*id),
        };
        if let Some(topic) = found {
            return self.topic(topic, &seen.view);
        }
        let error = match wanted {
            // Before the log is replayed nobody can tell what exists.
            _ if !seen.replayed => E::LeaderNotAvailable,
            Wanted::Id(_) => E::UnknownTopicId,
            Wanted::Name(name) if check_name(name).is_err() => E::InvalidTopicException,
            Wanted::Name(_) => E::UnknownTopicOrPartition,
        };
        let known_failure = match wanted {
            Wanted::Name(name) => failed.get(name.as_str()).copied(),
            Wanted::Id(_) => None,
        };
        let code = known_failure.unwrap_or_else(|| told(error, ApiKey::Metadata));
        let out = MetadataResponseTopic::default().with_error_code(code);
        match wanted {
            Wanted::Name(name) => out.with_name(Some(name.clone())),
            Wanted::Id(id) => out.with_name(None).with_topic_id(Uuid::from_bytes(id.0)),
        }
    }

    fn topic(&self, topic: &Topic, view: &View) -> MetadataResponseTopic {
        let error = if view.leader.0 < 0 { told(E::LeaderNotAvailable, ApiKey::Metadata) } else { 0 };
        let partition = |index: usize| {
            let out = MetadataResponsePartition::default()
                .with_error_code(error)
                .with_partition_index(i32::try_from(index).expect("partition numbers are i32"))
                .with_leader_id(view.leader)
                .with_leader_epoch(if self.version >= 7 { view.leader_epoch } else { -1 })
                .with_replica_nodes(view.replicas.clone())
                .with_isr_nodes(view.in_sync.clone());
            if self.version >= 5 { out.with_offline_replicas(view.offline.clone()) } else { out }
        };
        let mut out = MetadataResponseTopic::default()
            .with_name(Some(TopicName(StrBytes::from_string(topic.name.clone()))))
            .with_partitions((0..topic.partitions.len()).map(partition).collect());
        if self.version >= 10 {
            out.topic_id = Uuid::from_bytes(topic.id.0);
        }
        if self.topic_operations && self.version >= 8 {
            out.topic_authorized_operations = TOPIC_OPERATIONS;
        }
        out
    }
}

/// A member as Metadata lists it.
pub(super) fn broker(member: &Member) -> MetadataResponseBroker {
    MetadataResponseBroker::default()
        .with_node_id(id(member.node_id))
        .with_host(StrBytes::from_string(member.host.clone()))
        .with_port(i32::from(member.port))
        .with_rack(member.rack.clone().map(StrBytes::from_string))
}

/// A small cluster for tests of the handlers that read one.
#[cfg(test)]
pub(super) mod sample {
    use super::super::view::KnownTerm;
    use super::*;
    use crate::log::LogStatus;
    use crate::state::command::{Command, Entry};
    use crate::types::{LogIndex, Term};

    pub fn settings() -> ApiSettings {
        ApiSettings {
            cluster_id: "the-cluster".into(),
            auto_create_topics: true,
            default_partitions: 2,
            running: [("num.partitions", "2"), ("transaction.max.timeout.ms", "900000"), ("group.max.size", "50")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            transaction_version: 2,
            rack_aware_reads: false,
            proxy: false,
        }
    }

    /// What clients see of that status.
    pub fn view(status: &LogStatus) -> View {
        View::new(status, Term(4), &KnownTerm::default(), false)
    }

    /// Members 1 to `members`; `leader` leads term 5.
    pub fn status(members: u64, leader: Option<u64>) -> LogStatus {
        let member = |node_id: u64| Member {
            node_id,
            host: format!("host-{node_id}"),
            port: 9092,
            rack: (node_id == 1).then(|| "rack-a".to_owned()),
            voter: true,
            in_sync: true,
            ..Member::default()
        };
        LogStatus {
            node_id: 1,
            term: Term(5),
            leader,
            serving: leader == Some(1),
            replayed: true,
            members: (1..=members).map(member).collect(),
            ..LogStatus::default()
        }
    }

    /// Name, partitions and settings of a topic.
    pub type Sample<'a> = (&'a str, i32, &'a [(&'a str, &'a str)]);

    /// A state with topics; the n-th has id n, n, ….
    pub fn machine(topics: &[Sample<'_>]) -> Machine {
        let mut machine = Machine::default();
        let new = topics.iter().enumerate().map(|(at, (name, partitions, configs))| NewTopic {
            id: TopicId([u8::try_from(at + 1).expect("few topics"); 16]),
            name: (*name).to_owned(),
            partitions: *partitions,
            configs: configs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        });
        let command = Command::CreateTopics(new.collect());
        machine.apply(LogIndex(1), Term(5), &Entry { now_ms: 0, command });
        machine
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::Decodable;

    use super::*;
    use crate::log::LogStatus;

    fn name(name: &str) -> TopicName {
        TopicName(StrBytes::from_string(name.to_owned()))
    }

    fn by_name(names: &[&str]) -> MetadataRequest {
        let topics = names.iter().map(|topic| MetadataRequestTopic::default().with_name(Some(name(topic))));
        MetadataRequest::default().with_topics(Some(topics.collect()))
    }

    fn answer(request: &MetadataRequest, version: i16) -> Answer {
        Answer {
            version,
            topic_operations: request.include_topic_authorized_operations,
            cluster_operations: request.include_cluster_authorized_operations,
            wanted: wanted(request, version).expect("allowed at this version"),
        }
    }

    fn respond(request: &MetadataRequest, version: i16, status: &LogStatus) -> MetadataResponse {
        let machine = sample::machine(&[("a", 2, &[]), ("b", 1, &[])]);
        let seen = Seen { view: sample::view(status), replayed: status.replayed };
        answer(request, version).response(&machine, &seen, &sample::settings(), &BTreeMap::new())
    }

    fn codes(response: &MetadataResponse) -> Vec<(String, i16)> {
        let one = |topic: &MetadataResponseTopic| {
            (topic.name.as_ref().map_or("-".into(), |name| name.to_string()), topic.error_code)
        };
        response.topics.iter().map(one).collect()
    }

    #[test]
    fn every_version_can_be_encoded_and_read_back() {
        let mut request = by_name(&["a", "nobody", "not allowed"]);
        request.include_topic_authorized_operations = true;
        request.include_cluster_authorized_operations = true;
        for version in 0..=13 {
            let response = respond(&request, version, &sample::status(3, Some(2)));
            let mut bytes = bytes::Bytes::from(encode(&response, version).concat());
            let read: MetadataResponse = Decodable::decode(&mut bytes, version).expect("own bytes are read");
            assert!(bytes.is_empty());
            assert_eq!(codes(&read), [("a".into(), 0), ("nobody".into(), 3), ("not allowed".into(), 17)]);
            let partition = &read.topics[0].partitions[1];
            assert_eq!((partition.partition_index, partition.leader_id), (1, BrokerId(2)));
            assert_eq!(partition.isr_nodes, [BrokerId(1), BrokerId(2), BrokerId(3)]);
            assert_eq!(partition.leader_epoch, if version >= 7 { 5 } else { -1 });
            assert_eq!(read.topics[0].topic_id.is_nil(), version < 10);
            let operations = if version >= 8 { 3576 } else { i32::MIN };
            assert_eq!(read.topics[0].topic_authorized_operations, operations);
            let operations = if (8..=10).contains(&version) { 8096 } else { i32::MIN };
            assert_eq!(read.cluster_authorized_operations, operations);
        }
    }

    #[test]
    fn all_topics_are_asked_for_by_null_and_in_version_0_by_an_empty_list() {
        let (null, empty) = (MetadataRequest::default().with_topics(None), by_name(&[]));
        let count = |request, version| respond(request, version, &sample::status(1, Some(1))).topics.len();
        assert_eq!((count(&empty, 0), count(&empty, 1), count(&null, 1)), (2, 0, 2));
    }

    #[test]
    fn topics_are_found_by_id_from_version_12_on() {
        let id = |byte| MetadataRequestTopic::default().with_name(None).with_topic_id(Uuid::from_bytes([byte; 16]));
        let request = MetadataRequest::default().with_topics(Some(vec![id(2), id(9), id(2)]));
        let response = respond(&request, 12, &sample::status(1, Some(1)));
        assert_eq!(codes(&response), [("b".into(), 0), ("-".into(), 100)]);
        assert_eq!(wanted(&request, 11), None, "earlier versions cannot ask so");
        let refused = all_invalid(&request, 11);
        assert_eq!(codes(&refused)[0], (String::new(), 42));
        encode(&refused, 11);
    }

    #[test]
    fn without_a_leader_partitions_have_none_and_clients_ask_again() {
        let response = respond(&by_name(&["a"]), 9, &sample::status(3, None));
        assert_eq!(codes(&response), [("a".into(), 0)]);
        let partition = &response.topics[0].partitions[0];
        assert_eq!((partition.error_code, partition.leader_id), (5, BrokerId(-1)));
        assert_eq!(response.controller_id, BrokerId(1), "this node passes on what it is asked");
        let replaying = LogStatus { replayed: false, ..sample::status(3, None) };
        assert_eq!(codes(&respond(&by_name(&["later"]), 9, &replaying)), [("later".into(), 5)]);
    }

    #[test]
    fn only_missing_topics_with_good_names_are_created() {
        let request = by_name(&["a", "new", "bad name", "__consumer_offsets", "new"]);
        let machine = sample::machine(&[("a", 2, &[])]);
        let new = answer(&request, 9).to_create(&machine, &sample::settings());
        assert_eq!(new.iter().map(|topic| (topic.name.as_str(), topic.partitions)).collect::<Vec<_>>(), [("new", 2)]);
    }

    #[test]
    fn a_creation_that_failed_is_retried_unless_the_name_can_never_be() {
        let caller = Caller {
            connection: crate::types::ConnectionId(1),
            software: "".into(),
            client_id: "".into(),
            host: "".into(),
        };
        let names = ["x".to_owned(), "y".to_owned()];
        let overloaded = failures(&names, Response::Refused(Refusal::Overloaded), 9, &caller).expect("an answer");
        assert_eq!(overloaded["x"], 5);
        let raced = Response::Topics(vec![Err(Refusal::TopicAlreadyExists), Ok(TopicId([7; 16]))]);
        assert_eq!(failures(&names, raced, 9, &caller), Some(BTreeMap::new()));
        assert_eq!(failures(&names, Response::Close, 9, &caller), None);
    }
}
