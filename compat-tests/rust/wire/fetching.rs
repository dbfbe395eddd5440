//! Fetch: every version, sessions, epochs, limits, long poll.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages as m;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;

use super::client::{Broker, Client, NOBODY, batch, committed_of, records_of};
use super::producing::produce;

pub fn request(topic: &m::TopicName, parts: &[(i32, i64)]) -> m::FetchRequest {
    let parts = parts.iter().map(|(partition, offset)| {
        FetchPartition::default()
            .with_partition(*partition)
            .with_fetch_offset(*offset)
            .with_current_leader_epoch(-1)
            .with_partition_max_bytes(1 << 20)
    });
    let topic = FetchTopic::default().with_topic(topic.clone()).with_partitions(parts.collect());
    m::FetchRequest::default()
        .with_replica_id((-1).into())
        .with_max_wait_ms(0)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![topic])
}

fn only(response: m::FetchResponse) -> PartitionData {
    response.responses.into_iter().flat_map(|topic| topic.partitions).next().expect("one partition")
}

pub fn fetch_bytes(client: &mut Client, topic: &m::TopicName, partition: i32, offset: i64) -> Bytes {
    let part = only(client.ask(&request(topic, &[(partition, offset)]), 11).expect("an answer"));
    assert_eq!(part.error_code, 0);
    part.records.unwrap_or_default()
}

/// Every record, with read_committed.
pub fn read_all(client: &mut Client, topic: &m::TopicName, partition: i32) -> Vec<(i64, String)> {
    let mut all: Vec<(i64, String)> = Vec::new();
    loop {
        let from = all.last().map_or(0, |(offset, _)| offset + 1);
        let part =
            only(client.ask(&request(topic, &[(partition, from)]).with_isolation_level(1), 11).expect("an answer"));
        assert_eq!(part.error_code, 0);
        let aborted: Vec<(i64, i64)> = part
            .aborted_transactions
            .unwrap_or_default()
            .iter()
            .map(|aborted| (aborted.producer_id.0, aborted.first_offset))
            .collect();
        let records = committed_of(part.records.unwrap_or_default(), &aborted);
        if records.is_empty() {
            return all;
        }
        all.extend(records.into_iter().filter(|(offset, _)| *offset >= from));
    }
}

#[test]
fn every_version_reads_the_same_bytes_at_both_isolation_levels() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(1), broker.connect());
    let id = broker.topic_id(&topic);
    produce(&mut client, &topic, vec![(0, batch(NOBODY, -1, &["a", "b", "c"]))], 9);
    let mut seen = Vec::new();
    for version in 4..=18 {
        for isolation in [0, 1] {
            let mut request = request(&topic, &[(0, 0)]).with_isolation_level(isolation);
            if version >= 13 {
                request.topics[0].topic_id = id;
            }
            if version >= 15 {
                request.replica_id = m::BrokerId(-1);
            }
            let part = only(client.ask(&request, version).expect("an answer"));
            assert_eq!((part.error_code, part.high_watermark), (0, 3), "v{version}");
            assert_eq!(part.last_stable_offset, 3, "v{version}");
            let aborted = part.aborted_transactions.map(|aborted| aborted.len());
            assert_eq!(aborted, (isolation == 1).then_some(0), "v{version}");
            seen.push(part.records.expect("records"));
        }
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(records_of(seen.remove(0)).len(), 3);
}

#[test]
fn offsets_out_of_range_and_unknown_partitions_are_told_apart() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(1), broker.connect());
    produce(&mut client, &topic, vec![(0, batch(NOBODY, -1, &["a"]))], 9);
    let mut code = |partition, offset| {
        let part = only(client.ask(&request(&topic, &[(partition, offset)]), 11).expect("an answer"));
        part.error_code
    };
    assert_eq!(code(0, 1), 0, "the end of the log is in range");
    assert_eq!(code(0, 2), 1);
    assert_eq!(code(0, -5), 1);
    assert_eq!(code(4, 0), 3);
    let mut by_id = request(&topic, &[(0, 0)]);
    by_id.topics[0].topic_id = uuid::Uuid::from_bytes([8; 16]);
    assert_eq!(only(broker.connect().ask(&by_id, 13).expect("an answer")).error_code, 100);
}

#[test]
fn an_unknown_session_is_named_and_a_full_request_needs_none() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(1), broker.connect());
    let unknown = request(&topic, &[(0, 0)]).with_session_id(123_456).with_session_epoch(7);
    assert_eq!(client.ask(&unknown, 11).expect("an answer").error_code, 70);
    for epoch in [-1, 0] {
        let response = client.ask(&request(&topic, &[(0, 0)]).with_session_epoch(epoch), 11).expect("an answer");
        assert_eq!((response.error_code, response.responses.len()), (0, 1));
    }
}

#[test]
fn a_stale_or_future_leader_epoch_is_refused() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(1), broker.connect());
    let mut ask = |epoch| {
        let mut request = request(&topic, &[(0, 0)]);
        request.topics[0].partitions[0].current_leader_epoch = epoch;
        only(client.ask(&request, 11).expect("an answer")).error_code
    };
    assert_eq!(ask(i32::MAX), 75);
    let known = (0..100).find(|epoch| ask(*epoch) == 0).expect("the current epoch");
    if known > 0 {
        assert_eq!(ask(known - 1), 74);
    }
    assert_eq!(ask(known + 1), 75);
}

#[test]
fn the_first_batch_comes_whatever_the_limits_and_the_limits_hold_after_it() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(2), broker.connect());
    let large = "x".repeat(100_000);
    for _ in 0..3 {
        let parts = vec![(0, batch(NOBODY, -1, &[&large])), (1, batch(NOBODY, -1, &[&large]))];
        produce(&mut client, &topic, parts, 9);
    }
    let mut request = request(&topic, &[(0, 0), (1, 0)]).with_max_bytes(1);
    request.topics[0].partitions.iter_mut().for_each(|part| part.partition_max_bytes = 1);
    let response = client.ask(&request, 11).expect("an answer");
    let sizes: Vec<usize> = response.responses[0]
        .partitions
        .iter()
        .map(|part| records_of(part.records.clone().unwrap_or_default()).len())
        .collect();
    assert_eq!(sizes, [1, 0]);
}

#[test]
fn a_long_poll_waits_for_data_and_no_longer() {
    let broker = Broker::start();
    let topic = broker.topic(1);
    let (mut reader, mut writer) = (broker.connect(), broker.connect());
    let began = Instant::now();
    let empty = only(reader.ask(&request(&topic, &[(0, 0)]).with_max_wait_ms(300), 11).expect("an answer"));
    assert!(empty.records.unwrap_or_default().is_empty());
    assert!(began.elapsed() >= Duration::from_millis(290), "{:?}", began.elapsed());

    let began = Instant::now();
    let sent = reader.send(&request(&topic, &[(0, 0)]).with_max_wait_ms(20_000), 11);
    produce(&mut writer, &topic, vec![(0, batch(NOBODY, -1, &["wake"]))], 9);
    let (id, response) = reader.receive::<m::FetchRequest>(11).expect("an answer");
    assert_eq!(id, sent);
    assert_eq!(records_of(only(response).records.expect("records")).len(), 1);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn an_error_in_one_partition_ends_the_wait() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(2), broker.connect());
    let began = Instant::now();
    let response = client.ask(&request(&topic, &[(0, 0), (1, 77)]).with_max_wait_ms(20_000), 11).expect("an answer");
    assert!(began.elapsed() < Duration::from_secs(10));
    let codes: Vec<_> = response.responses[0].partitions.iter().map(|part| part.error_code).collect();
    assert_eq!(codes, [0, 1]);
}

#[test]
fn an_unknown_partition_beside_a_quiet_one_does_not() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(1), broker.connect());
    let began = Instant::now();
    let response = client.ask(&request(&topic, &[(0, 0), (5, 0)]).with_max_wait_ms(300), 11).expect("an answer");
    assert!(began.elapsed() >= Duration::from_millis(290), "{:?}", began.elapsed());
    let mut codes: Vec<_> =
        response.responses.iter().flat_map(|topic| &topic.partitions).map(|part| part.error_code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 3]);
}
