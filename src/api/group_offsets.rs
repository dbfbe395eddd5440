//! OffsetCommit (key 8, versions 2–9) and OffsetFetch (key 9, versions 1–9): committed offsets of groups.
//!
//! - OffsetCommit v2–4 retention time, ignored as Kafka does; v6 leader epoch; v7 (KIP-345) instance id. v10 (topic ids) is
//!   not served. An unknown topic or partition is 3 for its part, the rest is committed. Null metadata is stored as empty.
//! - OffsetFetch v2 null topics = all that have an offset, and a code for the whole answer, here with the same code
//!   in every partition, where v1 has its only one; v5 leader epoch; v7 (KIP-447) require_stable; v8 (KIP-709) several
//!   groups, each with its own code; v9 (KIP-848) member id and epoch, which classic groups do not check. v10 is not served.
//! - A partition without an offset, and one that does not exist, is −1 without an error, as in Kafka: the client then follows
//!   `auto.offset.reset`. Metadata is never null, though it could be (CO08).
//! - All of a request's groups are looked up at once, in the order of the request.

use std::sync::Arc;

use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::offset_commit_response::{OffsetCommitResponsePartition, OffsetCommitResponseTopic};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions, OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{
    ApiKey, GroupId, OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use tokio::sync::oneshot;

use super::context::{answered, refused as refused_as};
use super::{Call, Malformed, Reply, encode, errors};
use crate::leader::request::{FetchedOffset, MemberRef, OffsetCommit, OffsetFetch, Request, Response};
use crate::log::Log;
use crate::state::Machine;
use crate::state::command::OffsetWrite;
use crate::types::{Offset, PartitionId, Refusal, TopicPartition};

/// First OffsetFetch version with a code for the whole answer.
const FETCH_TOP_LEVEL_CODE: i16 = 2;
/// First OffsetFetch version with several groups.
const FETCH_GROUPS: i16 = 8;
/// What a partition without a committed offset is answered.
const NO_OFFSET: i64 = -1;

fn arc(string: &StrBytes) -> Arc<str> {
    Arc::from(&**string)
}

/// The partition of that topic name and number, if both exist.
fn locate(machine: &Machine, name: &TopicName, index: PartitionId) -> Option<TopicPartition> {
    let topic = machine.topics().named(name)?;
    topic.partitions.get(usize::try_from(index).ok()?)?;
    Some(TopicPartition { topic: topic.id, partition: index })
}

/// Answers OffsetCommit: when the entry is applied.
///
/// # Errors
/// If the request cannot be decoded.
pub fn commit(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: OffsetCommitRequest = call.decode("OffsetCommit")?;
    let (version, caller) = (call.version, Arc::clone(call.caller));
    let elsewhere = call.elsewhere();
    let found = call.api.log.read(|machine| locate_all(machine, &request.topics));
    let commit = OffsetCommit {
        member: MemberRef {
            group: arc(&request.group_id),
            generation: request.generation_id_or_member_epoch,
            member_id: arc(&request.member_id),
            instance_id: request.group_instance_id.as_ref().map(arc),
        },
        offsets: writes(&request.topics, &found),
    };
    let topics = request.topics;
    let shape = move |response| {
        let code = |refusal| errors::code(refusal, ApiKey::OffsetCommit, version, &caller);
        Some(encode(&commit_response(response, topics, &found, code)?, version))
    };
    Ok(match elsewhere {
        Some(refusal) => answered(shape(Response::Refused(refusal))),
        None => call.answer(Request::OffsetCommit(commit), shape),
    })
}

/// Every partition of the request, in order; None for those that do not exist.
fn locate_all(machine: &Machine, topics: &[OffsetCommitRequestTopic]) -> Vec<Option<TopicPartition>> {
    let named = topics.iter().flat_map(|topic| topic.partitions.iter().map(|part| (&topic.name, part.partition_index)));
    named.map(|(name, index)| locate(machine, name, index)).collect()
}

/// The offsets to commit: those of partitions that exist.
fn writes(topics: &[OffsetCommitRequestTopic], found: &[Option<TopicPartition>]) -> Vec<OffsetWrite> {
    let parts = topics.iter().flat_map(|topic| &topic.partitions).zip(found);
    let write = |(part, of): (&OffsetCommitRequestPartition, &Option<TopicPartition>)| {
        Some(OffsetWrite {
            of: (*of)?,
            offset: Offset(part.committed_offset),
            leader_epoch: part.committed_leader_epoch,
            metadata: part.committed_metadata.as_deref().unwrap_or_default().to_owned(),
        })
    };
    parts.filter_map(write).collect()
}

fn commit_response(
    response: Response,
    topics: Vec<OffsetCommitRequestTopic>,
    found: &[Option<TopicPartition>],
    code: impl Fn(Refusal) -> i16,
) -> Option<OffsetCommitResponse> {
    let known = found.iter().flatten().count();
    // Whether a topic exists the leader alone knows, and says: some clients take «unknown» for final.
    let everywhere = match response {
        Response::Refused(refusal) if refusal.is_of_the_moment() => Some(refusal),
        _ => None,
    };
    let parts = match response {
        Response::Parts(parts) => parts,
        Response::Done => vec![Ok(()); known],
        Response::Refused(refusal) => vec![Err(refusal); known],
        _ => return None,
    };
    let (mut parts, mut found) = (parts.into_iter(), found.iter());
    let mut code_of_next = || match found.next().copied().flatten() {
        None => code(everywhere.unwrap_or(Refusal::UnknownTopicOrPartition)),
        Some(_) => parts.next().expect("the leader answers every offset").map_or_else(&code, |()| 0),
    };
    let mut answered = Vec::with_capacity(topics.len());
    for topic in topics {
        let partition = |index| OffsetCommitResponsePartition::default().with_partition_index(index);
        let partitions = topic.partitions.iter();
        let partitions =
            partitions.map(|part| partition(part.partition_index).with_error_code(code_of_next())).collect();
        answered.push(OffsetCommitResponseTopic::default().with_name(topic.name).with_partitions(partitions));
    }
    Some(OffsetCommitResponse::default().with_topics(answered))
}

/// What one group is asked for: topics and partition numbers by name, or None for all.
type Asked = Option<Vec<(TopicName, Vec<PartitionId>)>>;

/// One group of an OffsetFetch on its way.
struct Fetching {
    group: GroupId,
    asked: Asked,
    /// The partitions asked for, in order; None for those that do not exist.
    found: Vec<Option<TopicPartition>>,
    answer: oneshot::Receiver<Response>,
}

/// One group's part of the answer, whatever the version.
#[derive(Debug, PartialEq)]
struct Fetched {
    group: GroupId,
    code: i16,
    topics: Vec<(TopicName, Vec<Part>)>,
}

/// One partition's part of it.
#[derive(Debug, PartialEq)]
struct Part {
    index: PartitionId,
    code: i16,
    offset: i64,
    leader_epoch: i32,
    metadata: String,
}

impl Part {
    fn without_offset(index: PartitionId, code: i16) -> Self {
        Self { index, code, offset: NO_OFFSET, leader_epoch: -1, metadata: String::new() }
    }

    fn of(index: PartitionId, result: Result<Option<FetchedOffset>, Refusal>, code: impl Fn(Refusal) -> i16) -> Self {
        match result {
            Ok(Some(FetchedOffset { offset, leader_epoch, metadata })) => {
                Self { index, code: 0, offset: offset.0, leader_epoch, metadata }
            }
            Ok(None) => Self::without_offset(index, 0),
            Err(refusal) => Self::without_offset(index, code(refusal)),
        }
    }
}

/// Answers OffsetFetch.
///
/// # Errors
/// If the request cannot be decoded.
pub fn fetch(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: OffsetFetchRequest = call.decode("OffsetFetch")?;
    let (version, caller, log) = (call.version, Arc::clone(call.caller), call.api.log.clone());
    let require_stable = request.require_stable;
    let groups = asked(request, version);
    let fetching: Vec<Fetching> =
        groups.into_iter().map(|(group, asked)| ask(&call, group, asked, require_stable)).collect();
    Ok(Reply::later(async move {
        let code = |refusal| errors::code(refusal, ApiKey::OffsetFetch, version, &caller);
        let mut groups = Vec::with_capacity(fetching.len());
        for Fetching { group, asked, found, answer } in fetching {
            groups.push(fetched(&log, group, asked, &found, answer.await.ok()?, code)?);
        }
        Some(encode(&fetch_response(groups, version), version))
    }))
}

/// The groups of a request of any version.
fn asked(request: OffsetFetchRequest, version: i16) -> Vec<(GroupId, Asked)> {
    if version < FETCH_GROUPS {
        let topics =
            request.topics.map(|topics| topics.into_iter().map(|one| (one.name, one.partition_indexes)).collect());
        return vec![(request.group_id, topics)];
    }
    let group = |group: OffsetFetchRequestGroup| {
        let topics =
            group.topics.map(|topics| topics.into_iter().map(|one| (one.name, one.partition_indexes)).collect());
        (group.group_id, topics)
    };
    request.groups.into_iter().map(group).collect()
}

fn ask(call: &Call<'_>, group: GroupId, asked: Asked, require_stable: bool) -> Fetching {
    let elsewhere = call.elsewhere();
    let locate_asked = |machine: &Machine| {
        let named = asked.iter().flatten().flat_map(|(name, indexes)| indexes.iter().map(move |index| (name, *index)));
        named.map(|(name, index)| locate(machine, name, index)).collect::<Vec<_>>()
    };
    let found = call.api.log.read(locate_asked);
    let partitions = asked.as_ref().map(|_| found.iter().copied().flatten().collect());
    let fetch = OffsetFetch { group: arc(&group), partitions, require_stable };
    // A topic that is not applied here yet would be answered «no offset», and its consumers would start anew (GR13).
    let answer = elsewhere.map_or_else(|| call.submit(Request::OffsetFetch(fetch)), refused_as);
    Fetching { group, asked, found, answer }
}

/// One group's answer; None closes the connection.
fn fetched(
    log: &Log,
    group: GroupId,
    asked: Asked,
    found: &[Option<TopicPartition>],
    response: Response,
    code: impl Fn(Refusal) -> i16,
) -> Option<Fetched> {
    match response {
        Response::Offsets(offsets) => {
            let topics = match asked {
                Some(asked) => offsets_asked_for(asked, found, offsets, code),
                None => log.read(|machine| all_offsets(machine, offsets, code)),
            };
            Some(Fetched { group, code: 0, topics })
        }
        Response::Refused(refusal) => Some(refused(group, asked, code(refusal))),
        _ => None,
    }
}

/// The parts in the order of the request.
fn offsets_asked_for(
    asked: Vec<(TopicName, Vec<PartitionId>)>,
    found: &[Option<TopicPartition>],
    offsets: Vec<(TopicPartition, Result<Option<FetchedOffset>, Refusal>)>,
    code: impl Fn(Refusal) -> i16,
) -> Vec<(TopicName, Vec<Part>)> {
    let (mut offsets, mut found) = (offsets.into_iter(), found.iter());
    let mut part = |index: PartitionId| match found.next().copied().flatten() {
        None => Part::without_offset(index, 0),
        Some(_) => {
            let (_, result) = offsets.next().expect("the leader answers every partition asked for");
            Part::of(index, result, &code)
        }
    };
    asked.into_iter().map(|(name, indexes)| (name, indexes.into_iter().map(&mut part).collect())).collect()
}

/// All offsets of a group by topic name; a topic that was deleted meanwhile took its offsets with it.
fn all_offsets(
    machine: &Machine,
    offsets: Vec<(TopicPartition, Result<Option<FetchedOffset>, Refusal>)>,
    code: impl Fn(Refusal) -> i16,
) -> Vec<(TopicName, Vec<Part>)> {
    let mut topics: Vec<(TopicName, Vec<Part>)> = Vec::new();
    let mut last = None;
    for (of, result) in offsets {
        let Some(topic) = machine.topics().get(of.topic) else { continue };
        // They come in the order of topics, so a topic's parts are neighbours.
        if last != Some(of.topic) {
            topics.push((TopicName(StrBytes::from_string(topic.name.clone())), Vec::new()));
            last = Some(of.topic);
        }
        if let Some((_, parts)) = topics.last_mut() {
            parts.push(Part::of(of.partition, result, &code));
        }
    }
    topics
}

/// A group that is refused as a whole. The parts carry the code too, for the version that has no other place.
fn refused(group: GroupId, asked: Asked, code: i16) -> Fetched {
    let part = |index| Part::without_offset(index, code);
    let topic = |(name, indexes): (TopicName, Vec<PartitionId>)| (name, indexes.into_iter().map(part).collect());
    Fetched { group, code, topics: asked.into_iter().flatten().map(topic).collect() }
}

fn fetch_response(groups: Vec<Fetched>, version: i16) -> OffsetFetchResponse {
    let answer = OffsetFetchResponse::default();
    if version >= FETCH_GROUPS {
        return answer.with_groups(groups.into_iter().map(group_response).collect());
    }
    let Some(Fetched { code, topics, .. }) = groups.into_iter().next() else { return answer };
    // The parts carry the code too. Kafka leaves them out, but aiokafka and kafka-python look nowhere else, and would take
    // the answer of a node that does not lead for «no offset committed» (GR13).
    let answer = if version >= FETCH_TOP_LEVEL_CODE { answer.with_error_code(code) } else { answer };
    let partition = |part: Part| {
        let answer = OffsetFetchResponsePartition::default()
            .with_partition_index(part.index)
            .with_committed_offset(part.offset)
            .with_metadata(Some(StrBytes::from_string(part.metadata)))
            .with_error_code(part.code);
        if version >= 5 { answer.with_committed_leader_epoch(part.leader_epoch) } else { answer }
    };
    let topic = |(name, parts): (TopicName, Vec<Part>)| {
        let partitions = parts.into_iter().map(partition).collect();
        OffsetFetchResponseTopic::default().with_name(name).with_partitions(partitions)
    };
    answer.with_topics(topics.into_iter().map(topic).collect())
}

fn group_response(fetched: Fetched) -> OffsetFetchResponseGroup {
    let answer = OffsetFetchResponseGroup::default().with_group_id(fetched.group).with_error_code(fetched.code);
    if fetched.code != 0 {
        return answer;
    }
    let partition = |part: Part| {
        OffsetFetchResponsePartitions::default()
            .with_partition_index(part.index)
            .with_committed_offset(part.offset)
            .with_committed_leader_epoch(part.leader_epoch)
            .with_metadata(Some(StrBytes::from_string(part.metadata)))
            .with_error_code(part.code)
    };
    let topic = |(name, parts): (TopicName, Vec<Part>)| {
        let partitions = parts.into_iter().map(partition).collect();
        OffsetFetchResponseTopics::default().with_name(name).with_partitions(partitions)
    };
    answer.with_topics(fetched.topics.into_iter().map(topic).collect())
}

#[cfg(test)]
mod tests;
