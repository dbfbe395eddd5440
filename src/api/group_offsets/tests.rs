//! What each version is told, and where a refusal goes.

use bytes::Bytes;
use kafka_protocol::messages::offset_commit_request::OffsetCommitRequestPartition;
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::protocol::{Decodable, Encodable};

use super::*;
use crate::state::command::{Command, Entry, NewTopic};
use crate::types::{LogIndex, Term, TopicId};

fn name(name: &'static str) -> TopicName {
    TopicName(StrBytes::from_static_str(name))
}

fn group(id: &'static str) -> GroupId {
    GroupId(StrBytes::from_static_str(id))
}

/// A state with `orders` (two partitions) and `payments` (one).
fn machine() -> Machine {
    let topic = |id, name: &str, partitions| NewTopic {
        id: TopicId([id; 16]),
        name: name.to_owned(),
        partitions,
        configs: Vec::new(),
    };
    let command = Command::CreateTopics(vec![topic(1, "orders", 2), topic(2, "payments", 1)]);
    let mut machine = Machine::default();
    machine.apply(LogIndex(0), Term(1), &Entry { now_ms: 0, command });
    machine
}

fn of(topic: u8, partition: PartitionId) -> TopicPartition {
    TopicPartition { topic: TopicId([topic; 16]), partition }
}

fn code(refusal: Refusal) -> i16 {
    match refusal {
        Refusal::UnknownTopicOrPartition => 3,
        Refusal::OffsetMetadataTooLarge => 12,
        Refusal::NotLeader => 16,
        Refusal::IllegalGeneration => 22,
        Refusal::UnstableOffsetCommit => 88,
        other => panic!("{other:?}"),
    }
}

fn read<R: Decodable + Encodable>(response: &R, version: i16) -> R {
    let mut body = Bytes::from(encode(response, version).concat());
    let read = R::decode(&mut body, version).unwrap();
    assert!(body.is_empty(), "v{version} leaves {} bytes", body.len());
    read
}

fn part(index: i32, offset: i64, metadata: Option<&'static str>) -> OffsetCommitRequestPartition {
    OffsetCommitRequestPartition::default()
        .with_partition_index(index)
        .with_committed_offset(offset)
        .with_committed_metadata(metadata.map(StrBytes::from_static_str))
}

fn commit_topics() -> Vec<OffsetCommitRequestTopic> {
    let topic =
        |topic, partitions| OffsetCommitRequestTopic::default().with_name(name(topic)).with_partitions(partitions);
    vec![
        topic("orders", vec![part(0, 10, None), part(7, 11, None), part(1, 12, Some("note"))]),
        topic("missing", vec![part(0, 13, None)]),
        topic("payments", vec![part(0, 14, None), part(-1, 15, None)]),
    ]
}

fn codes(response: &OffsetCommitResponse) -> Vec<(String, i32, i16)> {
    let topics = response.topics.iter();
    let parts = topics.flat_map(|topic| topic.partitions.iter().map(|part| (topic.name.to_string(), part)));
    parts.map(|(topic, part)| (topic, part.partition_index, part.error_code)).collect()
}

#[test]
fn what_exists_is_committed_and_the_rest_is_3_in_its_place() {
    let topics = commit_topics();
    let found = locate_all(&machine(), &topics);
    let writes = writes(&topics, &found);
    let written: Vec<_> = writes.iter().map(|write| (write.of, write.offset.0, &*write.metadata)).collect();
    assert_eq!(written, [(of(1, 0), 10, ""), (of(1, 1), 12, "note"), (of(2, 0), 14, "")]);
    assert!(writes.iter().all(|write| write.leader_epoch == -1), "absent epochs are unknown");
    for version in 2..=9 {
        let parts = Response::Parts(vec![Ok(()), Err(Refusal::OffsetMetadataTooLarge), Ok(())]);
        let response = read(&commit_response(parts, topics.clone(), &found, code).unwrap(), version);
        let expected = [
            ("orders", 0, 0),
            ("orders", 7, 3),
            ("orders", 1, 12),
            ("missing", 0, 3),
            ("payments", 0, 0),
            ("payments", -1, 3),
        ];
        assert_eq!(
            codes(&response),
            expected.map(|(topic, index, code)| (topic.to_owned(), index, code)),
            "v{version}"
        );
    }
}

#[test]
fn a_refused_commit_is_refused_in_every_part() {
    let topics = commit_topics();
    let found = locate_all(&machine(), &topics);
    let refused = Response::Refused(Refusal::IllegalGeneration);
    let response = commit_response(refused, topics.clone(), &found, code).unwrap();
    let told: Vec<i16> = codes(&response).into_iter().map(|(_, _, code)| code).collect();
    assert_eq!(told, [22, 3, 22, 3, 22, 3]);
    assert!(commit_response(Response::Close, topics, &found, code).is_none());
}

fn committed(offset: i64) -> Result<Option<FetchedOffset>, Refusal> {
    Ok(Some(FetchedOffset { offset: Offset(offset), leader_epoch: 4, metadata: "note".to_owned() }))
}

/// `orders` 0 and 1, 5 (which does not exist) and `missing` 0.
fn some_fetched() -> Fetched {
    let asked = vec![(name("orders"), vec![0, 5, 1]), (name("missing"), vec![0]), (name("payments"), vec![0])];
    let found = [Some(of(1, 0)), None, Some(of(1, 1)), None, Some(of(2, 0))];
    let offsets = vec![(of(1, 0), committed(10)), (of(1, 1), Ok(None)), (of(2, 0), Err(Refusal::UnstableOffsetCommit))];
    let topics = offsets_asked_for(asked, &found, offsets, code);
    Fetched { group: group("g"), code: 0, topics }
}

/// (topic, partition, code, offset, epoch, metadata)
type Row = (&'static str, i32, i16, i64, i32, &'static str);

const ROWS: [Row; 5] = [
    ("orders", 0, 0, 10, 4, "note"),
    ("orders", 5, 0, -1, -1, ""),
    ("orders", 1, 0, -1, -1, ""),
    ("missing", 0, 0, -1, -1, ""),
    ("payments", 0, 88, -1, -1, ""),
];

#[test]
fn fetched_offsets_keep_the_order_of_the_request() {
    for version in 1..=7 {
        let response = read(&fetch_response(vec![some_fetched()], version), version);
        assert_eq!(response.error_code, 0);
        let parts = response.topics.iter().flat_map(|topic| topic.partitions.iter().map(move |part| (topic, part)));
        let rows: Vec<_> = parts
            .map(|(topic, part)| {
                let metadata = part.metadata.as_deref().expect("metadata is never null (CO08)");
                let epoch = part.committed_leader_epoch;
                (&**topic.name, part.partition_index, part.error_code, part.committed_offset, epoch, metadata)
            })
            .collect();
        let expected = ROWS.map(|row| (row.0, row.1, row.2, row.3, if version >= 5 { row.4 } else { -1 }, row.5));
        assert_eq!(rows, expected, "v{version}");
    }
    for version in 8..=9 {
        let response = read(&fetch_response(vec![some_fetched()], version), version);
        let topics = response.groups[0].topics.iter();
        let rows: Vec<_> = topics
            .flat_map(|topic| topic.partitions.iter().map(move |part| (topic, part)))
            .map(|(topic, part)| {
                let metadata = part.metadata.as_deref().expect("metadata is never null (CO08)");
                let epoch = part.committed_leader_epoch;
                (&**topic.name, part.partition_index, part.error_code, part.committed_offset, epoch, metadata)
            })
            .collect();
        assert_eq!(rows, ROWS, "v{version}");
    }
}

#[test]
fn a_refused_group_has_its_code_where_the_version_has_room_for_it() {
    let refused_group = || refused(group("g"), Some(vec![(name("orders"), vec![0, 1])]), 16);
    for version in 1..=7 {
        let response = read(&fetch_response(vec![refused_group()], version), version);
        let parts: Vec<_> =
            response.topics[0].partitions.iter().map(|part| (part.committed_offset, part.error_code)).collect();
        assert_eq!(parts, [(-1, 16), (-1, 16)], "v{version}");
        assert_eq!(response.error_code, if version < 2 { 0 } else { 16 }, "v{version}");
    }
    for version in 8..=9 {
        let groups = vec![refused_group(), Fetched { group: group("h"), ..some_fetched() }];
        let response = read(&fetch_response(groups, version), version);
        let told: Vec<_> =
            response.groups.iter().map(|one| (&**one.group_id, one.error_code, one.topics.len())).collect();
        assert_eq!(told, [("g", 16, 0), ("h", 0, 3)], "v{version}");
    }
}

#[test]
fn all_offsets_of_a_group_come_by_topic_name() {
    let offsets = vec![
        (of(1, 0), committed(1)),
        (of(1, 1), Err(Refusal::UnstableOffsetCommit)),
        (of(2, 0), committed(2)),
        (of(9, 0), committed(3)),
    ];
    let topics = all_offsets(&machine(), offsets, code);
    let told: Vec<_> = topics
        .iter()
        .map(|(topic, parts)| (&***topic, parts.iter().map(|part| (part.index, part.offset, part.code)).collect()))
        .collect();
    let expected: Vec<(&str, Vec<_>)> = vec![("orders", vec![(0, 1, 0), (1, -1, 88)]), ("payments", vec![(0, 2, 0)])];
    assert_eq!(told, expected, "a deleted topic's offsets are gone with it");
}

#[test]
fn one_group_or_several_are_asked_for_by_version() {
    let topic = OffsetFetchRequestTopic::default().with_name(name("orders")).with_partition_indexes(vec![1]);
    let one = OffsetFetchRequest::default().with_group_id(group("g")).with_topics(Some(vec![topic]));
    assert_eq!(asked(one.clone(), 7), [(group("g"), Some(vec![(name("orders"), vec![1])]))]);
    assert_eq!(asked(one.with_topics(None), 2), [(group("g"), None)]);
    let topic = OffsetFetchRequestTopics::default().with_name(name("orders")).with_partition_indexes(vec![0]);
    let many = OffsetFetchRequest::default().with_groups(vec![
        OffsetFetchRequestGroup::default().with_group_id(group("g")).with_topics(Some(vec![topic])),
        OffsetFetchRequestGroup::default().with_group_id(group("h")).with_topics(None),
    ]);
    assert_eq!(asked(many, 8), [(group("g"), Some(vec![(name("orders"), vec![0])])), (group("h"), None)]);
}
