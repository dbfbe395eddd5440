//! What every API answers while this node follows, leads and does not serve yet, or knows of no leader.
//!
//! A real single node whose log is pretended to stand otherwise: whatever its handlers would find in its state, they may not
//! tell. The table must name every API, so that a new one decides what it says.

use std::path::PathBuf;

use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::fetch_request as fr;
use kafka_protocol::messages::list_offsets_request as lo;
use kafka_protocol::messages::offset_for_leader_epoch_request as ofle;
use kafka_protocol::messages::{BrokerId, GroupId, TopicName, TransactionalId};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::*;
use crate::api::metadata::sample;
use crate::config::Mode;
use crate::config::settings::Settings;
use crate::disk::Disk;
use crate::disk::faulty::FaultyDisk;
use crate::log::{LogOptions, LogStatus, Member};
use crate::segments::{SegmentOptions, Segments};
use crate::server::leader_settings;
use crate::types::ConnectionId;

const NOT_LEADER: i16 = 6;
const LOADING: i16 = 14;
const NOT_COORDINATOR: i16 = 16;
const NOT_CONTROLLER: i16 = 41;

/// The APIs over a node that leads, with one topic `t` of one empty partition.
pub(in crate::api) async fn node(settings: ApiSettings) -> Api {
    let disk: Arc<dyn Disk> = Arc::new(FaultyDisk::new(1));
    let open = move || {
        let segments = SegmentOptions {
            dir: "/data/partitions".into(),
            unwritten_bytes_max: 64 << 20,
            tail_bytes_max: 16 << 20,
            open_files_max: 64,
        };
        let (segments, checkpoint) = Segments::open(disk.clone(), segments).unwrap();
        let me = Member { node_id: 1, host: "host-1".into(), port: 9092, ..Member::default() };
        let options = LogOptions::new(PathBuf::from("/data"), me, leader_settings(&Settings::for_mode(Mode::Dev)));
        let reader = Reader::new(segments.clone());
        let waiting = reader.clone();
        let wake: crate::log::apply::Wake = Arc::new(move |partitions: &[_]| waiting.wake(partitions));
        let log = Log::open(options, disk, segments, checkpoint, wake).unwrap();
        Api::new(log, reader, settings)
    };
    let api = tokio::task::spawn_blocking(open).await.unwrap();
    let topic = CreatableTopic::default().with_name(name("t")).with_num_partitions(1).with_replication_factor(1);
    let create = m::CreateTopicsRequest::default().with_topics(vec![topic]);
    let created = async {
        loop {
            let response: m::CreateTopicsResponse = ask(&api, ApiKey::CreateTopics, &create, 7).await;
            match response.topics[0].error_code {
                0 => return,
                // Its first election takes a moment.
                NOT_CONTROLLER => tokio::task::yield_now().await,
                other => panic!("{other}"),
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), created).await.expect("it serves");
    api
}

pub(in crate::api) fn name(name: &'static str) -> TopicName {
    TopicName(StrBytes::from_static_str(name))
}

/// Sends a request as a client does, and reads the answer.
pub(in crate::api) async fn ask<Q: Encodable, A: Decodable>(api: &Api, key: ApiKey, request: &Q, version: i16) -> A {
    let called = call(api, key, request, version);
    let answer = match called.reply {
        Reply::Now(encoded) => encoded,
        Reply::Later(answer) => answer.await.expect("an answer"),
        Reply::Silent(_) => panic!("no answer"),
    };
    let mut body = Bytes::from(answer.concat());
    if called.header_version < key.response_header_version(version) {
        assert_eq!(body.split_to(1), [0][..], "the response header is in what was passed on");
    }
    let response = A::decode(&mut body, version).expect("own bytes are read");
    assert!(body.is_empty(), "{} bytes left", body.len());
    response
}

/// Hands a request on as a connection does.
pub(in crate::api) fn call<Q: Encodable>(api: &Api, key: ApiKey, request: &Q, version: i16) -> Called {
    let mut frame = BytesMut::new();
    frame.put_i16(key as i16);
    frame.put_i16(version);
    frame.put_i32(77);
    frame.put_i16(-1);
    if key.request_header_version(version) >= 2 {
        frame.put_u8(0);
    }
    request.encode(&mut frame, version).expect("the version can carry it");
    let mut caller = Arc::new(Caller {
        connection: ConnectionId(1),
        software: "".into(),
        client_id: "".into(),
        host: "/127.0.0.1".into(),
    });
    api.call(&mut caller, Frame::parse(frame.freeze()).unwrap()).unwrap()
}

/// This node 1 of three as `leader` and `serving` say, out of step with the leader.
fn standing(leader: Option<u64>, serving: bool) -> LogStatus {
    let mut status = LogStatus { serving, ..sample::status(3, leader) };
    status.members[0].in_sync = leader == Some(1);
    // Nobody is there: what is passed on comes back as this node's own refusal.
    status.members.iter_mut().for_each(|member| (member.host, member.port) = ("127.0.0.1".into(), 1));
    status
}

/// The codes of one API's answer to a request about things that exist.
async fn codes(api: &Api, key: ApiKey, version: i16) -> Vec<i16> {
    let group = || GroupId(StrBytes::from_static_str("g"));
    let id = || TransactionalId(StrBytes::from_static_str("x"));
    let topic_id = api.log.read(|machine| Uuid::from_bytes(machine.topics().named("t").unwrap().id.0));
    match key {
        ApiKey::Produce => {
            use m::produce_request::{PartitionProduceData, TopicProduceData};
            let data = TopicProduceData::default().with_partition_data(vec![PartitionProduceData::default()]);
            let data = if version >= 13 { data.with_topic_id(topic_id) } else { data.with_name(name("t")) };
            let request = m::ProduceRequest::default().with_acks(-1).with_topic_data(vec![data]);
            let response: m::ProduceResponse = ask(api, key, &request, version).await;
            let parts = response.responses.into_iter().flat_map(|topic| topic.partition_responses);
            let judge = |part: m::produce_response::PartitionProduceResponse| {
                assert_eq!(part.base_offset, -1);
                part.error_code
            };
            parts.map(judge).collect()
        }
        ApiKey::Fetch => {
            let topic = fr::FetchTopic::default().with_partitions(vec![fr::FetchPartition::default()]);
            let topic = if version >= 13 { topic.with_topic_id(topic_id) } else { topic.with_topic(name("t")) };
            let request = m::FetchRequest::default().with_max_wait_ms(30_000).with_topics(vec![topic]);
            let request = if version >= 11 { request.with_rack_id(StrBytes::from_static_str("r")) } else { request };
            let response: m::FetchResponse = ask(api, key, &request, version).await;
            let parts = response.responses.into_iter().flat_map(|topic| topic.partitions);
            let judge = |part: m::fetch_response::PartitionData| {
                assert_eq!((part.high_watermark, part.last_stable_offset, part.log_start_offset), (-1, -1, -1));
                part.error_code
            };
            parts.map(judge).collect()
        }
        ApiKey::ListOffsets => {
            let parts = [-1, -2, 0].map(|at| lo::ListOffsetsPartition::default().with_timestamp(at));
            let topic = lo::ListOffsetsTopic::default().with_name(name("t")).with_partitions(parts.into());
            let request = m::ListOffsetsRequest::default().with_topics(vec![topic]);
            let response: m::ListOffsetsResponse = ask(api, key, &request, version).await;
            let parts = response.topics.into_iter().flat_map(|topic| topic.partitions);
            parts.map(|part| part.error_code * i16::from(part.offset == -1)).collect()
        }
        ApiKey::OffsetForLeaderEpoch => {
            let part = ofle::OffsetForLeaderPartition::default();
            let topic = ofle::OffsetForLeaderTopic::default().with_topic(name("t")).with_partitions(vec![part]);
            let request = m::OffsetForLeaderEpochRequest::default().with_topics(vec![topic]);
            let response: m::OffsetForLeaderEpochResponse = ask(api, key, &request, version).await;
            let parts = response.topics.into_iter().flat_map(|topic| topic.partitions);
            parts.map(|part| part.error_code * i16::from(part.end_offset == -1)).collect()
        }
        ApiKey::OffsetCommit => {
            use m::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
            let topic = |of| {
                let part = OffsetCommitRequestPartition::default();
                OffsetCommitRequestTopic::default().with_name(name(of)).with_partitions(vec![part])
            };
            let topics = vec![topic("t"), topic("not yet")];
            let request = m::OffsetCommitRequest::default().with_group_id(group()).with_topics(topics);
            let response: m::OffsetCommitResponse = ask(api, key, &request, version).await;
            response.topics.into_iter().flat_map(|topic| topic.partitions).map(|part| part.error_code).collect()
        }
        ApiKey::OffsetFetch => offset_fetch(api, version).await,
        ApiKey::JoinGroup => {
            let request = m::JoinGroupRequest::default().with_group_id(group());
            let response: m::JoinGroupResponse = ask(api, key, &request, version).await;
            vec![response.error_code]
        }
        ApiKey::SyncGroup => {
            let request = m::SyncGroupRequest::default().with_group_id(group());
            let response: m::SyncGroupResponse = ask(api, key, &request, version).await;
            vec![response.error_code]
        }
        ApiKey::Heartbeat => {
            let request = m::HeartbeatRequest::default().with_group_id(group());
            let response: m::HeartbeatResponse = ask(api, key, &request, version).await;
            vec![response.error_code]
        }
        ApiKey::LeaveGroup => {
            let request = m::LeaveGroupRequest::default().with_group_id(group());
            let response: m::LeaveGroupResponse = ask(api, key, &request, version).await;
            vec![response.error_code]
        }
        ApiKey::CreateTopics => {
            let topics = ["t", "new"].map(|of| CreatableTopic::default().with_name(name(of)).with_num_partitions(1));
            let request = m::CreateTopicsRequest::default().with_topics(topics.into());
            let response: m::CreateTopicsResponse = ask(api, key, &request, version).await;
            response.topics.into_iter().map(|topic| topic.error_code).collect()
        }
        ApiKey::DeleteTopics => {
            let names = ["t", "not yet"].map(name);
            let state = |name| m::delete_topics_request::DeleteTopicState::default().with_name(Some(name));
            let request = match version {
                6.. => m::DeleteTopicsRequest::default().with_topics(names.map(state).into()),
                _ => m::DeleteTopicsRequest::default().with_topic_names(names.into()),
            };
            let response: m::DeleteTopicsResponse = ask(api, key, &request, version).await;
            response.responses.into_iter().map(|topic| topic.error_code).collect()
        }
        ApiKey::CreatePartitions => {
            let topic = |of| m::create_partitions_request::CreatePartitionsTopic::default().with_name(name(of));
            let request = m::CreatePartitionsRequest::default().with_topics(vec![topic("t"), topic("not yet")]);
            let response: m::CreatePartitionsResponse = ask(api, key, &request, version).await;
            response.results.into_iter().map(|topic| topic.error_code).collect()
        }
        ApiKey::AlterConfigs => {
            let topic = |of| {
                let resource = m::alter_configs_request::AlterConfigsResource::default().with_resource_type(2);
                resource.with_resource_name(StrBytes::from_static_str(of))
            };
            let request = m::AlterConfigsRequest::default().with_resources(vec![topic("t"), topic("not yet")]);
            let response: m::AlterConfigsResponse = ask(api, key, &request, version).await;
            response.responses.into_iter().map(|resource| resource.error_code).collect()
        }
        ApiKey::IncrementalAlterConfigs => {
            let topic = |of| {
                let resource = m::incremental_alter_configs_request::AlterConfigsResource::default();
                resource.with_resource_type(2).with_resource_name(StrBytes::from_static_str(of))
            };
            let request = m::IncrementalAlterConfigsRequest::default();
            let request = request.with_resources(vec![topic("t"), topic("not yet")]);
            let response: m::IncrementalAlterConfigsResponse = ask(api, key, &request, version).await;
            response.responses.into_iter().map(|resource| resource.error_code).collect()
        }
        ApiKey::DeleteRecords => {
            use m::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
            let topic = |of| {
                let part = DeleteRecordsPartition::default();
                DeleteRecordsTopic::default().with_name(name(of)).with_partitions(vec![part])
            };
            let request = m::DeleteRecordsRequest::default().with_topics(vec![topic("t"), topic("not yet")]);
            let response: m::DeleteRecordsResponse = ask(api, key, &request, version).await;
            let parts = response.topics.into_iter().flat_map(|topic| topic.partitions);
            parts.map(|part| part.error_code * i16::from(part.low_watermark == -1)).collect()
        }
        ApiKey::InitProducerId => {
            let request = m::InitProducerIdRequest::default().with_transactional_id(Some(id()));
            let response: m::InitProducerIdResponse = ask(api, key, &request, version).await;
            assert_eq!(response.producer_id.0, -1);
            vec![response.error_code]
        }
        ApiKey::AddPartitionsToTxn => {
            use m::add_partitions_to_txn_request::{AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction};
            let topic = |of| AddPartitionsToTxnTopic::default().with_name(name(of)).with_partitions(vec![0]);
            let topics = vec![topic("t"), topic("not yet")];
            let request = m::AddPartitionsToTxnRequest::default();
            let request = if version >= 4 {
                let one = AddPartitionsToTxnTransaction::default().with_transactional_id(id()).with_topics(topics);
                request.with_transactions(vec![one])
            } else {
                request.with_v3_and_below_transactional_id(id()).with_v3_and_below_topics(topics)
            };
            let response: m::AddPartitionsToTxnResponse = ask(api, key, &request, version).await;
            let results = response.results_by_transaction.into_iter().flat_map(|one| one.topic_results);
            let results = results.chain(response.results_by_topic_v3_and_below);
            results.flat_map(|topic| topic.results_by_partition).map(|part| part.partition_error_code).collect()
        }
        ApiKey::AddOffsetsToTxn => {
            let request = m::AddOffsetsToTxnRequest::default().with_transactional_id(id()).with_group_id(group());
            let response: m::AddOffsetsToTxnResponse = ask(api, key, &request, version).await;
            vec![response.error_code]
        }
        ApiKey::EndTxn => {
            let request = m::EndTxnRequest::default().with_transactional_id(id()).with_committed(true);
            let response: m::EndTxnResponse = ask(api, key, &request, version).await;
            vec![response.error_code]
        }
        ApiKey::TxnOffsetCommit => {
            use m::txn_offset_commit_request::{TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic};
            let topic = |of| {
                let part = TxnOffsetCommitRequestPartition::default();
                TxnOffsetCommitRequestTopic::default().with_name(name(of)).with_partitions(vec![part])
            };
            let request = m::TxnOffsetCommitRequest::default().with_transactional_id(id()).with_group_id(group());
            let request = request.with_topics(vec![topic("t"), topic("not yet")]);
            let response: m::TxnOffsetCommitResponse = ask(api, key, &request, version).await;
            response.topics.into_iter().flat_map(|topic| topic.partitions).map(|part| part.error_code).collect()
        }
        ApiKey::ElectLeaders => {
            use m::elect_leaders_request::TopicPartitions;
            let topic = |of| TopicPartitions::default().with_topic(name(of)).with_partitions(vec![0]);
            let topics = Some(vec![topic("t"), topic("not yet")]);
            let request = m::ElectLeadersRequest::default().with_topic_partitions(topics);
            let response: m::ElectLeadersResponse = ask(api, key, &request, version).await;
            assert_eq!(response.error_code != 0, version >= 1);
            let parts = response.replica_election_results.into_iter().flat_map(|topic| topic.partition_result);
            parts.map(|part| part.error_code).collect()
        }
        ApiKey::DescribeQuorum => {
            let response: m::DescribeQuorumResponse =
                ask(api, key, &m::DescribeQuorumRequest::default(), version).await;
            vec![response.error_code]
        }
        // Every node answers these by itself, or asks the leader in its own way; that has tests of its own.
        ApiKey::Metadata
        | ApiKey::ApiVersions
        | ApiKey::FindCoordinator
        | ApiKey::DescribeConfigs
        | ApiKey::DescribeLogDirs
        | ApiKey::DescribeCluster
        | ApiKey::AddRaftVoter
        | ApiKey::RemoveRaftVoter => Vec::new(),
        other => panic!("{other:?} must decide what it says where another node leads"),
    }
}

async fn offset_fetch(api: &Api, version: i16) -> Vec<i16> {
    use m::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics};
    let group = GroupId(StrBytes::from_static_str("g"));
    let request = if version >= 8 {
        let topic = |of| OffsetFetchRequestTopics::default().with_name(name(of)).with_partition_indexes(vec![0]);
        let topics = Some(vec![topic("t"), topic("not yet")]);
        let group = OffsetFetchRequestGroup::default().with_group_id(group).with_topics(topics);
        m::OffsetFetchRequest::default().with_groups(vec![group])
    } else {
        let topic = |of| OffsetFetchRequestTopic::default().with_name(name(of)).with_partition_indexes(vec![0]);
        let topics = Some(vec![topic("t"), topic("not yet")]);
        m::OffsetFetchRequest::default().with_group_id(group).with_topics(topics)
    };
    let response: m::OffsetFetchResponse = ask(api, ApiKey::OffsetFetch, &request, version).await;
    match version {
        1 => response.topics.into_iter().flat_map(|topic| topic.partitions).map(|part| part.error_code).collect(),
        2..8 => vec![response.error_code],
        _ => response.groups.into_iter().map(|group| group.error_code).collect(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_does_not_lead_refuses_in_the_words_that_make_clients_ask_the_leader() {
    let mut api = node(sample::settings()).await;
    for (leader, who) in
        [(Some(2), "a follower"), (Some(1), "a leader that does not serve yet"), (None, "nobody leads")]
    {
        api.cluster.pretended = Some(standing(leader, false));
        for row in APIS {
            let expected = match row.key {
                ApiKey::Produce
                | ApiKey::Fetch
                | ApiKey::ListOffsets
                | ApiKey::OffsetForLeaderEpoch
                | ApiKey::DeleteRecords
                | ApiKey::DescribeQuorum => NOT_LEADER,
                ApiKey::CreateTopics
                | ApiKey::DeleteTopics
                | ApiKey::CreatePartitions
                | ApiKey::AlterConfigs
                | ApiKey::IncrementalAlterConfigs
                | ApiKey::ElectLeaders => NOT_CONTROLLER,
                _ if leader == Some(1) => LOADING,
                _ => NOT_COORDINATOR,
            };
            for version in row.served_from..=row.max {
                let codes = codes(&api, row.key, version).await;
                let anywhere = matches!(
                    row.key,
                    ApiKey::Metadata
                        | ApiKey::ApiVersions
                        | ApiKey::FindCoordinator
                        | ApiKey::DescribeConfigs
                        | ApiKey::DescribeLogDirs
                        | ApiKey::DescribeCluster
                        | ApiKey::AddRaftVoter
                        | ApiKey::RemoveRaftVoter
                );
                assert_eq!(codes.is_empty(), anywhere, "{} v{version}", row.name);
                let wrong: Vec<i16> = codes.into_iter().filter(|code| *code != expected).collect();
                assert_eq!(wrong, [0i16; 0], "{} v{version}, {who}", row.name);
            }
        }
    }
}

/// A fetch of `t` from `offset` by a consumer in `rack`: (code, high watermark, preferred replica, leader named).
async fn fetch(api: &Api, version: i16, offset: i64, rack: &'static str, epoch: i32) -> (i16, i64, i32, i32) {
    let part = fr::FetchPartition::default().with_fetch_offset(offset).with_current_leader_epoch(epoch);
    let topic = fr::FetchTopic::default().with_partitions(vec![part.with_partition_max_bytes(1 << 20)]);
    let topic_id = api.log.read(|machine| Uuid::from_bytes(machine.topics().named("t").unwrap().id.0));
    let topic = if version >= 13 { topic.with_topic_id(topic_id) } else { topic.with_topic(name("t")) };
    let request = m::FetchRequest::default().with_max_wait_ms(10).with_min_bytes(1).with_topics(vec![topic]);
    let request = if version >= 11 { request.with_rack_id(StrBytes::from_static_str(rack)) } else { request };
    let mut response: m::FetchResponse = ask(api, ApiKey::Fetch, &request, version).await;
    let part = response.responses.remove(0).partitions.remove(0);
    let named = response.node_endpoints.iter().map(|node| node.node_id).collect::<Vec<_>>();
    let leader = part.current_leader.leader_id;
    assert_eq!(named, if leader.0 < 0 { vec![] } else { vec![leader] });
    (part.error_code, part.high_watermark, part.preferred_read_replica.0, leader.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_in_step_serves_consumers_with_a_rack_and_no_others() {
    let mut api = node(sample::settings()).await;
    let mut status = standing(Some(2), false);
    status.members[0].in_sync = true;
    api.cluster.pretended = Some(status.clone());
    assert_eq!(fetch(&api, 11, 0, "r", 5).await, (0, 0, -1, -1));
    assert_eq!(fetch(&api, 18, 0, "r", -1).await, (0, 0, -1, -1));
    assert_eq!(fetch(&api, 18, 7, "r", 5).await, (78, -1, -1, -1), "only the leader knows that nothing is there");
    assert_eq!(fetch(&api, 11, 0, "", 5).await, (NOT_LEADER, -1, -1, -1));
    assert_eq!(fetch(&api, 10, 0, "", 5).await, (NOT_LEADER, -1, -1, -1));
    assert_eq!(fetch(&api, 16, 0, "", 5).await, (NOT_LEADER, -1, -1, 2), "KIP-951");
    assert_eq!(fetch(&api, 15, 0, "", 5).await, (NOT_LEADER, -1, -1, -1));
    assert_eq!(fetch(&api, 18, 0, "r", 4).await, (74, -1, -1, 2));
    assert_eq!(fetch(&api, 18, 0, "r", 6).await, (75, -1, -1, -1));
    status.members[0].in_sync = false;
    api.cluster.pretended = Some(status);
    assert_eq!(fetch(&api, 18, 0, "r", 5).await, (NOT_LEADER, -1, -1, 2), "out of step, it sends them back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_sends_consumers_to_a_follower_in_their_rack_if_it_is_told_to() {
    let mut api = node(ApiSettings { rack_aware_reads: true, ..sample::settings() }).await;
    let mut status = LogStatus { serving: true, ..sample::status(3, Some(1)) };
    status.members[2].rack = Some("r".into());
    api.cluster.pretended = Some(status.clone());
    assert_eq!(fetch(&api, 11, 0, "r", 5).await, (0, 0, 3, -1));
    assert_eq!(fetch(&api, 11, 9, "r", 5).await, (1, -1, -1, -1), "out of range is told and not passed on");
    assert_eq!(fetch(&api, 11, 0, "rack-a", 5).await, (0, 0, -1, -1));
    assert_eq!(fetch(&api, 11, 0, "elsewhere", 5).await, (0, 0, -1, -1));
    assert_eq!(fetch(&api, 10, 0, "", 5).await, (0, 0, -1, -1));
    let relayed = api.for_connection();
    relayed.link.set_relayed();
    assert_eq!(fetch(&relayed, 11, 0, "r", 5).await, (0, 0, -1, -1), "another node's client knows that node alone");
    api.settings = Arc::new(sample::settings());
    assert_eq!(fetch(&api, 11, 0, "r", 5).await, (0, 0, -1, -1), "off by default");
}

#[tokio::test(flavor = "multi_thread")]
async fn coordinators_and_metadata_name_the_leader_wherever_they_are_asked() {
    let mut api = node(sample::settings()).await;
    for leader in [Some(1), Some(3), None] {
        api.cluster.pretended = Some(standing(leader, leader == Some(1)));
        let expected = BrokerId(leader.map_or(-1, |leader| i32::try_from(leader).unwrap()));
        // Any node passes on what a controller does, so while nobody leads this one is named.
        let controller = if leader.is_none() { BrokerId(1) } else { expected };
        let request = m::MetadataRequest::default().with_topics(None);
        let metadata: m::MetadataResponse = ask(&api, ApiKey::Metadata, &request, 12).await;
        assert_eq!((metadata.controller_id, metadata.brokers.len()), (controller, 3));
        let part = &metadata.topics[0].partitions[0];
        assert_eq!((part.leader_id, part.error_code), (expected, if leader.is_none() { 5 } else { 0 }));
        let found: m::FindCoordinatorResponse =
            ask(&api, ApiKey::FindCoordinator, &m::FindCoordinatorRequest::default(), 3).await;
        assert_eq!((found.node_id, found.error_code), (expected, if leader.is_none() { 15 } else { 0 }));
        let cluster: m::DescribeClusterResponse =
            ask(&api, ApiKey::DescribeCluster, &m::DescribeClusterRequest::default(), 0).await;
        assert_eq!((cluster.controller_id, cluster.error_code), (controller, 0));
    }
}
