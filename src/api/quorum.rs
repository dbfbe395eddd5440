//! DescribeQuorum (key 55, versions 0–2) and ElectLeaders (key 43, versions 0–2): Kafka's tools for the controllers' quorum and
//! for leaders of partitions, which are one thing here.
//!
//! - DescribeQuorum tells of `__cluster_metadata`, partition 0, which stands for the one log: offsets are its indexes. v1
//!   (KIP-836) when a voter was last heard and last level; v2 (KIP-853) directory ids, which are zero as in a static quorum, and
//!   the nodes' addresses for each other. Clients ask any node: see [`forward`](super::forward).
//! - ElectLeaders: the preferred leader is a partition's first replica, the voter with the least id, so an election moves the
//!   leadership of everything to it. v1 the type: an unclean election is never held, and not needed where there is a leader.
//! - A voter that acknowledges is level at the moment of its last acknowledgement if it has all that the leader had; when it
//!   was otherwise level is not kept (−1).

use std::collections::BTreeSet;
use std::time::Duration;

use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::describe_quorum_request::TopicData as AskedTopic;
use kafka_protocol::messages::describe_quorum_response::{Listener, Node, PartitionData, ReplicaState, TopicData};
use kafka_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_protocol::messages::{
    ApiKey, DescribeQuorumRequest, DescribeQuorumResponse, ElectLeadersRequest, ElectLeadersResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use super::context::wall_clock_ms;
use super::errors::{self, told};
use super::view::id;
use super::{Call, Encoded, Malformed, Reply, encode};
use crate::log::transfer::TransferError;
use crate::log::{LogStatus, Member};
use crate::state::Machine;

/// Kafka's name for the log of its controllers.
const METADATA_LOG: &str = "__cluster_metadata";
/// The name that Kafka's own configurations give the listener of controllers.
pub(super) const LISTENER: &str = "CONTROLLER";
/// Kafka's `ElectionType`.
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

fn text(text: impl Into<String>) -> StrBytes {
    StrBytes::from_string(text.into())
}

/// Answers DescribeQuorum.
///
/// # Errors
/// If the request cannot be decoded.
pub fn describe(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: DescribeQuorumRequest = call.decode("DescribeQuorum")?;
    let version = call.version;
    let Some(refusal) = call.elsewhere() else {
        let quorum = quorum(&request, &call.api.cluster.status(), version, wall_clock_ms());
        return Ok(Reply::now(&quorum, version));
    };
    let code = errors::code(refusal, ApiKey::DescribeQuorum, version, call.caller);
    let refused = DescribeQuorumResponse::default().with_error_code(code);
    Ok(Reply::now(&refused, version))
}

fn quorum(request: &DescribeQuorumRequest, status: &LogStatus, version: i16, now_ms: i64) -> DescribeQuorumResponse {
    let topic = |asked: &AskedTopic| {
        let partition = |index: i32| {
            let out = PartitionData::default().with_partition_index(index);
            if asked.topic_name.as_str() == METADATA_LOG && index == 0 {
                described(out, status, version, now_ms)
            } else {
                out.with_error_code(told(E::UnknownTopicOrPartition, ApiKey::DescribeQuorum))
            }
        };
        let partitions = asked.partitions.iter().map(|asked| partition(asked.partition_index)).collect();
        TopicData::default().with_topic_name(asked.topic_name.clone()).with_partitions(partitions)
    };
    let response = DescribeQuorumResponse::default().with_topics(request.topics.iter().map(topic).collect());
    if version < 2 {
        return response;
    }
    let node = |member: &Member| {
        let (host, port) = member.rpc.rsplit_once(':').unwrap_or((&member.rpc, "0"));
        let listener = Listener::default()
            .with_name(text(LISTENER))
            .with_host(text(host))
            .with_port(port.parse().unwrap_or_default());
        Node::default().with_node_id(id(member.node_id)).with_listeners(vec![listener])
    };
    response.with_nodes(status.members.iter().map(node).collect())
}

fn described(out: PartitionData, status: &LogStatus, version: i16, now_ms: i64) -> PartitionData {
    // The first index is 0, so the offset behind the last entry is one more than its index.
    let behind = |index: crate::types::LogIndex| i64::try_from(index.0 + 1).unwrap_or(i64::MAX);
    let last = status.members.iter().filter_map(|member| member.matched).max().or(status.committed);
    let replica = |member: &Member| {
        let leads = Some(member.node_id) == status.leader;
        let end = if leads { member.matched.max(status.committed) } else { member.matched };
        let heard = if leads { Some(0) } else { member.heard_ms };
        let heard_at = heard.map_or(-1, |ago| now_ms - i64::try_from(ago).unwrap_or(now_ms));
        let state =
            ReplicaState::default().with_replica_id(id(member.node_id)).with_log_end_offset(end.map_or(-1, behind));
        if version == 0 {
            return state;
        }
        let level = leads || (end.is_some() && end >= last);
        state.with_last_fetch_timestamp(heard_at).with_last_caught_up_timestamp(if level { heard_at } else { -1 })
    };
    let all = |voter| status.members.iter().filter(move |member| member.voter == voter).map(replica).collect();
    out.with_leader_id(status.leader.map_or((-1).into(), id))
        .with_leader_epoch(status.term.leader_epoch())
        .with_high_watermark(status.committed.map_or(0, behind))
        .with_current_voters(all(true))
        .with_observers(all(false))
}

// --- ElectLeaders ----------------------------------------------------------------------------------

/// Partitions by topic, as asked for, each with whether it exists.
type Asked = Vec<(TopicName, Vec<(i32, bool)>)>;

/// Answers ElectLeaders, once the preferred leader leads.
///
/// # Errors
/// If the request cannot be decoded.
pub fn elect(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: ElectLeadersRequest = call.decode("ElectLeaders")?;
    let version = call.version;
    let election = if version == 0 { PREFERRED } else { request.election_type };
    let elsewhere = call.elsewhere();
    let asked = call.api.log.read(|machine| asked(&request, machine));
    if let Some(refusal) = elsewhere {
        let code = errors::code(refusal, ApiKey::ElectLeaders, version, call.caller);
        return Ok(Reply::Now(elected(asked, code, Some((code, None)), version)));
    }
    let status = call.api.cluster.status();
    let preferred = status.members.iter().find(|member| member.voter).map(|member| member.node_id);
    let needless = || told(E::ElectionNotNeeded, ApiKey::ElectLeaders);
    match (election, preferred) {
        (PREFERRED, Some(preferred)) if status.leader != Some(preferred) => {
            let (log, within) =
                (call.api.log.clone(), Duration::from_millis(request.timeout_ms.max(0).unsigned_abs().into()));
            Ok(Reply::later(async move {
                let outcome = tokio::time::timeout(within, log.transfer_leadership(Some(preferred))).await;
                let failed = failure(outcome.unwrap_or(Err(TransferError::NotElected)));
                Some(elected(asked, 0, failed, version))
            }))
        }
        (PREFERRED | UNCLEAN, _) => {
            // Who asks for all partitions is told of those that changed.
            let asked = if request.topic_partitions.is_none() { Vec::new() } else { asked };
            Ok(Reply::Now(elected(asked, 0, Some((needless(), None)), version)))
        }
        _ => {
            let code = told(E::InvalidRequest, ApiKey::ElectLeaders);
            Ok(Reply::Now(elected(
                asked,
                code,
                Some((code, Some(format!("Unknown election type {election}")))),
                version,
            )))
        }
    }
}

/// The code for all partitions of an election that failed, and why.
fn failure(outcome: Result<u64, TransferError>) -> Option<(i16, Option<String>)> {
    let error = outcome.err()?;
    let code = match error {
        TransferError::NotLeader => E::NotController,
        TransferError::NobodyElse | TransferError::NotAVoter(_) => E::PreferredLeaderNotAvailable,
        TransferError::Busy | TransferError::NotElected => E::RequestTimedOut,
    };
    Some((told(code, ApiKey::ElectLeaders), Some(error.to_string())))
}

fn asked(request: &ElectLeadersRequest, machine: &Machine) -> Asked {
    let Some(topics) = &request.topic_partitions else {
        let all = machine.topics().iter().map(|topic| {
            let numbers = (0..topic.partitions.len()).filter_map(|number| Some((i32::try_from(number).ok()?, true)));
            (TopicName(text(topic.name.clone())), numbers.collect())
        });
        return all.collect();
    };
    let topic = |topic: &kafka_protocol::messages::elect_leaders_request::TopicPartitions| {
        let known = machine.topics().named(&topic.topic).map_or(0, |topic| topic.partitions.len());
        let numbers: BTreeSet<i32> = topic.partitions.iter().copied().collect();
        let exists = |number: i32| usize::try_from(number).is_ok_and(|number| number < known);
        (topic.topic.clone(), numbers.into_iter().map(|number| (number, exists(number))).collect())
    };
    topics.iter().map(topic).collect()
}

fn elected(asked: Asked, whole: i16, failed: Option<(i16, Option<String>)>, version: i16) -> Encoded {
    let partition = |(number, exists): (i32, bool)| {
        let (code, message) = match &failed {
            _ if whole != 0 => (whole, None),
            _ if !exists => (told(E::UnknownTopicOrPartition, ApiKey::ElectLeaders), None),
            Some((code, message)) => (*code, message.clone()),
            None => (0, None),
        };
        PartitionResult::default().with_partition_id(number).with_error_code(code).with_error_message(message.map(text))
    };
    let topic = |(name, partitions): (TopicName, Vec<(i32, bool)>)| {
        let results = partitions.into_iter().map(partition).collect();
        ReplicaElectionResult::default().with_topic(name).with_partition_result(results)
    };
    let response =
        ElectLeadersResponse::default().with_replica_election_results(asked.into_iter().map(topic).collect());
    encode(&if version >= 1 { response.with_error_code(whole) } else { response }, version)
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::Decodable;

    use super::super::metadata::sample;
    use super::*;
    use crate::types::LogIndex;

    fn asking(topic: &'static str, partitions: &[i32]) -> DescribeQuorumRequest {
        use kafka_protocol::messages::describe_quorum_request::PartitionData;
        let partitions = partitions.iter().map(|index| PartitionData::default().with_partition_index(*index)).collect();
        let topic = AskedTopic::default().with_topic_name(TopicName(text(topic))).with_partitions(partitions);
        DescribeQuorumRequest::default().with_topics(vec![topic])
    }

    fn status() -> LogStatus {
        let mut status = LogStatus { committed: Some(LogIndex(40)), ..sample::status(4, Some(2)) };
        let stands = [(Some(40), Some(30)), (Some(41), None), (Some(12), Some(70)), (None, None)];
        for (member, (matched, heard_ms)) in status.members.iter_mut().zip(stands) {
            member.matched = matched.map(LogIndex);
            member.heard_ms = heard_ms;
            member.rpc = format!("[::1]:{}", 33_000 + member.node_id);
        }
        status.members[0].matched = Some(LogIndex(41));
        status.members[3].voter = false;
        status
    }

    #[test]
    fn the_quorum_is_the_voters_of_the_one_log() {
        for version in 0..=2 {
            let response = quorum(&asking(METADATA_LOG, &[0]), &status(), version, 1_000);
            let mut bytes = bytes::Bytes::from(encode(&response, version).concat());
            let mut read = DescribeQuorumResponse::decode(&mut bytes, version).unwrap();
            let part = read.topics.remove(0).partitions.remove(0);
            assert_eq!((read.error_code, part.error_code, part.leader_id.0, part.leader_epoch), (0, 0, 2, 5));
            assert_eq!(part.high_watermark, 41);
            let seen = |of: &ReplicaState| (of.replica_id.0, of.log_end_offset);
            assert_eq!(part.current_voters.iter().map(seen).collect::<Vec<_>>(), [(1, 42), (2, 42), (3, 13)]);
            assert_eq!(part.observers.iter().map(seen).collect::<Vec<_>>(), [(4, -1)]);
            let times = |of: &ReplicaState| (of.last_fetch_timestamp, of.last_caught_up_timestamp);
            let times: Vec<_> = part.current_voters.iter().map(times).collect();
            let known = [(970, 970), (1_000, 1_000), (930, -1)];
            assert_eq!(times, if version == 0 { [(-1, -1); 3] } else { known });
            let nodes: Vec<_> = read.nodes.iter().map(|node| (node.node_id.0, node.listeners[0].port)).collect();
            let all = vec![(1, 33_001), (2, 33_002), (3, 33_003), (4, 33_004)];
            assert_eq!(nodes, if version >= 2 { all } else { vec![] });
            assert!(read.nodes.iter().all(|node| node.listeners[0].host.as_str() == "[::1]"));
        }
    }

    #[test]
    fn other_logs_have_no_quorum_of_their_own() {
        let codes = |request| {
            let response = quorum(&request, &status(), 2, 0);
            response.topics[0].partitions.iter().map(|part| part.error_code).collect::<Vec<_>>()
        };
        assert_eq!(codes(asking(METADATA_LOG, &[0, 1])), [0, 3]);
        assert_eq!(codes(asking("orders", &[0])), [3]);
    }

    fn results(encoded: Encoded, version: i16) -> (i16, Vec<(i32, i16)>) {
        let mut bytes = bytes::Bytes::from(encoded.concat());
        let read = ElectLeadersResponse::decode(&mut bytes, version).unwrap();
        let parts = read.replica_election_results.iter().flat_map(|topic| &topic.partition_result);
        (read.error_code, parts.map(|part| (part.partition_id, part.error_code)).collect())
    }

    #[test]
    fn every_partition_asked_for_has_a_result_in_every_version() {
        use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
        let machine = sample::machine(&[("a", 2, &[])]);
        let named = TopicPartitions::default().with_topic(TopicName(text("a"))).with_partitions(vec![1, 7, 1]);
        let some = ElectLeadersRequest::default().with_topic_partitions(Some(vec![named]));
        let all = ElectLeadersRequest::default().with_topic_partitions(None);
        for version in 0..=2 {
            let told =
                |request, whole, failed| results(elected(asked(request, &machine), whole, failed, version), version);
            let top = if version >= 1 { 41 } else { 0 };
            assert_eq!(told(&some, 41, Some((41, None))), (top, vec![(1, 41), (7, 41)]));
            assert_eq!(told(&some, 0, None), (0, vec![(1, 0), (7, 3)]));
            assert_eq!(told(&all, 0, failure(Err(TransferError::NobodyElse))), (0, vec![(0, 80), (1, 80)]));
            assert_eq!(told(&all, 0, failure(Ok(1))), (0, vec![(0, 0), (1, 0)]));
        }
    }
}
