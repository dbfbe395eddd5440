//! ListOffsets and OffsetForLeaderEpoch.

use kafka_protocol::messages as m;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use kafka_protocol::records::Compression;

use super::client::{Broker, Client, NOBODY, batch_of};
use super::producing::produce;

/// (error, timestamp, offset)
pub fn list(
    client: &mut Client,
    topic: &m::TopicName,
    partition: i32,
    timestamp: i64,
    version: i16,
) -> (i16, i64, i64) {
    let part = ListOffsetsPartition::default()
        .with_partition_index(partition)
        .with_current_leader_epoch(-1)
        .with_timestamp(timestamp);
    let topic = ListOffsetsTopic::default().with_name(topic.clone()).with_partitions(vec![part]);
    let request = m::ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![topic]);
    let response = client.ask(&request, version).expect("an answer");
    let part = &response.topics[0].partitions[0];
    (part.error_code, part.timestamp, part.offset)
}

#[test]
fn special_and_ordinary_timestamps_find_their_offsets() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(1), broker.connect());
    for version in 1..=10 {
        assert_eq!(list(&mut client, &topic, 0, -1, version), (0, -1, 0), "v{version}, empty");
    }
    for time in [1_000, 5_000, 3_000] {
        let records = batch_of(NOBODY, -1, &["a", "b"], Compression::None, time);
        assert_eq!(produce(&mut client, &topic, vec![(0, records)], 9)[0].error_code, 0);
    }
    for version in 1..=10 {
        let mut at = |timestamp| list(&mut client, &topic, 0, timestamp, version);
        assert_eq!(at(-1), (0, -1, 6), "v{version} latest");
        assert_eq!(at(-2), (0, -1, 0), "v{version} earliest");
        assert_eq!(at(0), (0, 1_000, 0), "v{version}");
        assert_eq!(at(1_001), (0, 5_000, 2), "v{version}");
        assert_eq!(at(5_001), (0, -1, -1), "v{version}: none is not an error");
        let since = |first, found| if version >= first { found } else { (35, -1, -1) };
        assert_eq!(at(-3), since(7, (0, 5_000, 2)), "v{version} greatest timestamp");
        assert_eq!(at(-4), since(8, (0, -1, 0)), "v{version} earliest local");
        assert_eq!(at(-5), since(9, (0, -1, -1)), "v{version} latest tiered");
        assert_eq!(at(-77).0, 35, "v{version}");
    }
    assert_eq!(list(&mut client, &topic, 3, -1, 5).0, 3);
}

#[test]
fn an_epoch_ends_where_the_log_ends_and_a_future_one_is_refused() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(1), broker.connect());
    let records = batch_of(NOBODY, -1, &["a", "b"], Compression::None, 1_000);
    produce(&mut client, &topic, vec![(0, records)], 9);
    let stored = super::fetching::fetch_bytes(&mut client, &topic, 0, 0);
    let epoch = i32::from_be_bytes(stored[12..16].try_into().unwrap());
    for version in 2..=4 {
        let mut ask = |current, wanted| {
            let part = OffsetForLeaderPartition::default()
                .with_partition(0)
                .with_current_leader_epoch(current)
                .with_leader_epoch(wanted);
            let topic = OffsetForLeaderTopic::default().with_topic(topic.clone()).with_partitions(vec![part]);
            let mut request = m::OffsetForLeaderEpochRequest::default().with_topics(vec![topic]);
            if version >= 3 {
                request.replica_id = m::BrokerId(-1);
            }
            let response = client.ask(&request, version).expect("an answer");
            let part = &response.topics[0].partitions[0];
            (part.error_code, part.leader_epoch, part.end_offset)
        };
        assert_eq!(ask(-1, epoch), (0, epoch, 2), "v{version}");
        assert_eq!(ask(-1, epoch + 1_000), (0, -1, -1), "v{version}: an epoch nobody knows");
        assert_eq!(ask(i32::MAX, epoch).0, 75, "v{version}");
    }
}
