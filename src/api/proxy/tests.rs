//! A node that passes requests on to a real leader behind a socket.

use bytes::{BufMut, BytesMut};
use kafka_protocol::messages as m;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::{RequestHeader, TransactionalId};
use kafka_protocol::protocol::{Encodable, StrBytes};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::*;
use crate::api::ApiSettings;
use crate::api::metadata::sample;
use crate::api::tests::standing::{ask, call, name, node};
use crate::types::record_batch::sample as batches;

/// A leader that serves a socket, and a follower that takes it for the leader, as one of its connections sees it.
async fn cluster(settings: ApiSettings) -> (Api, Api) {
    let leader = node(sample::settings()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut status = LogStatus { node_id: 1, ..sample::status(3, Some(2)) };
    (status.members[1].host, status.members[1].port) = ("127.0.0.1".into(), listener.local_addr().unwrap().port());
    let (stop, stopping) = watch::channel(false);
    let serving = leader.clone();
    tokio::spawn(async move {
        crate::net::serve(listener, serving, crate::net::NetSettings::default(), stopping).await;
        drop(stop);
    });
    let mut follower = node(settings).await;
    follower.cluster = crate::api::view::Cluster::new(follower.log.clone(), follower.settings.proxy);
    follower.cluster.pretended = Some(status);
    (leader, follower.for_connection())
}

fn proxy() -> ApiSettings {
    ApiSettings { proxy: true, ..sample::settings() }
}

fn creating(topic: &'static str) -> m::CreateTopicsRequest {
    let topic = CreatableTopic::default().with_name(name(topic)).with_num_partitions(3).with_replication_factor(1);
    m::CreateTopicsRequest::default().with_topics(vec![topic])
}

fn producing(version: i16, acks: i16, topic: &'static str) -> m::ProduceRequest {
    use m::produce_request::{PartitionProduceData, TopicProduceData};
    let records = batches::batch((-1, -1), -1, 1, false, b"records").bytes().clone();
    let data = PartitionProduceData::default().with_index(2).with_records(Some(records));
    let topic = TopicProduceData::default().with_name(name(topic)).with_partition_data(vec![data]);
    let id = (version % 2 == 0).then(|| TransactionalId(StrBytes::from_static_str("id")));
    m::ProduceRequest::default().with_acks(acks).with_topic_data(vec![topic]).with_transactional_id(id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_carries_requests_to_the_leader_and_names_itself_alone() {
    let (leader, follower) = cluster(proxy()).await;
    let created: m::CreateTopicsResponse = ask(&follower, ApiKey::CreateTopics, &creating("far"), 7).await;
    assert_eq!((created.topics[0].error_code, created.topics[0].num_partitions), (0, 3));
    assert!(leader.log.read(|machine| machine.topics().named("far").is_some()));
    for acks in [-1, 0, 1, 0, -1] {
        let request = producing(9, acks, "far");
        if acks != 0 {
            let produced: m::ProduceResponse = ask(&follower, ApiKey::Produce, &request, 9).await;
            assert_eq!(produced.responses[0].partition_responses[0].error_code, 0, "{acks}");
        } else if let Reply::Silent(done) = call(&follower, ApiKey::Produce, &request, 9).reply {
            assert!(done.await);
        } else {
            panic!("acks=0 has no answer");
        }
    }
    for version in [1, 8, 9, 13] {
        let request = m::MetadataRequest::default().with_topics(None);
        let metadata: m::MetadataResponse = ask(&follower, ApiKey::Metadata, &request, version).await;
        let brokers: Vec<_> = metadata.brokers.iter().map(|broker| (broker.node_id.0, broker.host.as_str())).collect();
        assert_eq!((brokers, metadata.controller_id.0), (vec![(1, "host-1")], 1));
        let far = metadata.topics.iter().find(|topic| topic.name == Some(name("far"))).expect("it was created there");
        let part = &far.partitions[2];
        assert_eq!(
            (part.leader_id.0, &part.replica_nodes[..], &part.isr_nodes[..]),
            (1, &[1.into()][..], &[1.into()][..])
        );
    }
    let found: m::FindCoordinatorResponse =
        ask(&follower, ApiKey::FindCoordinator, &m::FindCoordinatorRequest::default(), 3).await;
    assert_eq!((found.error_code, found.node_id.0, found.host.as_str()), (0, 1, "host-1"));
    let cluster: m::DescribeClusterResponse =
        ask(&follower, ApiKey::DescribeCluster, &m::DescribeClusterRequest::default(), 1).await;
    assert_eq!((cluster.brokers.len(), cluster.controller_id.0), (1, 1));
    let ends = leader.log.read(|machine| machine.topics().named("far").unwrap().partitions[2].next_offset);
    assert_eq!(ends.0, 5, "every produce arrived once, those without an answer too");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_closed_when_another_node_leads_and_nobody_is_answered_twice() {
    let (_leader, mut follower) = cluster(proxy()).await;
    let listing = m::MetadataRequest::default().with_topics(None);
    let _: m::MetadataResponse = ask(&follower, ApiKey::Metadata, &listing, 9).await;
    let mut status = follower.cluster.pretended.clone().unwrap();
    for leader in [Some(3), Some(1), None] {
        status.leader = leader;
        follower.cluster.pretended = Some(status.clone());
        let Reply::Later(answer) = call(&follower, ApiKey::Metadata, &listing, 9).reply else { panic!("later") };
        assert_eq!(answer.await, None, "{leader:?}");
    }
    let fresh = follower.for_connection();
    let answered: m::MetadataResponse = ask(&fresh, ApiKey::Metadata, &listing, 9).await;
    assert_eq!((answered.controller_id.0, answered.topics[0].partitions[0].error_code), (1, 5), "nobody leads");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_passed_on_once_is_not_passed_on_again() {
    let (_leader, follower) = cluster(proxy()).await;
    let mut header = BytesMut::new();
    RequestHeader::default()
        .with_request_api_key(ApiKey::ApiVersions as i16)
        .with_request_api_version(3)
        .with_unknown_tagged_fields([(super::super::upstream::RELAYED_TAG, Bytes::new())].into())
        .encode(&mut header, 2)
        .unwrap();
    header.put_slice(b"\x04kgo\x02\x31\0");
    let mut caller = Arc::new(Caller {
        connection: crate::types::ConnectionId(1),
        software: "".into(),
        client_id: "".into(),
        host: "".into(),
    });
    follower.call(&mut caller, Frame::parse(header.freeze()).unwrap()).unwrap();
    assert_eq!(&*caller.software, "kgo");
    let produced: m::ProduceResponse = ask(&follower, ApiKey::Produce, &producing(11, -1, "t"), 11).await;
    let part = &produced.responses[0].partition_responses[0];
    assert_eq!((part.error_code, part.current_leader.leader_id.0), (6, -1), "nor is a node named that it cannot reach");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_asked_for_at_a_follower_is_created_by_the_leader() {
    let (leader, follower) = cluster(sample::settings()).await;
    use m::metadata_request::MetadataRequestTopic;
    let request = m::MetadataRequest::default()
        .with_topics(Some(vec![MetadataRequestTopic::default().with_name(Some(name("new")))]))
        .with_allow_auto_topic_creation(true);
    for version in [4, 9, 13] {
        let metadata: m::MetadataResponse = ask(&follower, ApiKey::Metadata, &request, version).await;
        assert_eq!((metadata.topics[0].error_code, metadata.topics[0].partitions.len()), (0, 2), "v{version}");
    }
    assert!(leader.log.read(|machine| machine.topics().named("new").is_some()));
    let mut alone = follower.clone();
    alone.cluster.pretended.as_mut().unwrap().members[1].port = 1;
    let metadata: m::MetadataResponse = ask(&alone, ApiKey::Metadata, &request, 9).await;
    assert_eq!(metadata.topics[0].error_code, 5, "the leader cannot be reached: ask again");
}

#[test]
fn a_produce_without_acknowledgement_is_known_in_every_version() {
    for version in 3..=13 {
        for acks in [-1, 0, 1] {
            let mut frame = BytesMut::new();
            frame.put_i16(0);
            frame.put_i16(version);
            frame.put_i32(9);
            frame.put_slice(b"\0\x02me");
            if version >= 9 {
                frame.put_u8(0);
            }
            let request = if version >= 13 {
                m::ProduceRequest::default().with_acks(acks)
            } else {
                producing(version, acks, "t")
            };
            request.encode(&mut frame, version).unwrap();
            let frame = Frame::parse(frame.freeze()).unwrap();
            assert_eq!(expects_no_answer(&frame), acks == 0, "v{version} acks={acks}");
            for cut in 8..frame.bytes.len().min(24) {
                let cut = Frame { bytes: frame.bytes.slice(..cut), ..frame.clone() };
                expects_no_answer(&cut);
            }
        }
    }
    assert!(!expects_no_answer(&Frame::parse(Bytes::from_static(b"\0\x03\0\x01\0\0\0\0\0\0\0\0")).unwrap()));
}
