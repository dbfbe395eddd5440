//! Produce: codes per partition, every version, acks, idempotence.

use bytes::Bytes;
use kafka_protocol::messages as m;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::Compression;

use super::client::{Broker, Client, NOBODY, Writer, batch, batch_of, now_ms, patched};
use super::fetching::read_all;

pub fn request(topic: &m::TopicName, parts: Vec<(i32, Bytes)>) -> m::ProduceRequest {
    let parts = parts
        .into_iter()
        .map(|(index, records)| PartitionProduceData::default().with_index(index).with_records(Some(records)));
    let topic = TopicProduceData::default().with_name(topic.clone()).with_partition_data(parts.collect());
    m::ProduceRequest::default().with_acks(-1).with_timeout_ms(10_000).with_topic_data(vec![topic])
}

pub fn produce(
    client: &mut Client,
    topic: &m::TopicName,
    parts: Vec<(i32, Bytes)>,
    version: i16,
) -> Vec<PartitionProduceResponse> {
    let response = client.ask(&request(topic, parts), version).expect("an answer");
    response.responses.into_iter().flat_map(|topic| topic.partition_responses).collect()
}

#[test]
fn every_version_stores_and_tells_the_offset() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(1), broker.connect());
    let id = broker.topic_id(&topic);
    for version in 3..=13 {
        let mut request = request(&topic, vec![(0, batch(NOBODY, -1, &["a", "b"]))]);
        if version >= 13 {
            request.topic_data[0].topic_id = id;
        }
        let response = client.ask(&request, version).expect("an answer");
        let part = &response.responses[0].partition_responses[0];
        assert_eq!((part.error_code, part.base_offset), (0, 2 * i64::from(version - 3)), "v{version}");
        assert_eq!(part.log_append_time_ms, -1);
        assert_eq!(part.log_start_offset, if version >= 5 { 0 } else { -1 });
    }
    assert_eq!(read_all(&mut client, &topic, 0).len(), 22);
}

#[test]
fn a_fault_in_one_partition_leaves_its_neighbours_alone() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(3), broker.connect());
    let good = batch(NOBODY, -1, &["good"]);
    let mut bad_crc = good.to_vec();
    *bad_crc.last_mut().unwrap() ^= 1;
    let huge = "x".repeat(1_100_000);
    let cases: Vec<(&str, Bytes, i16)> = vec![
        ("corrupt CRC", bad_crc.into(), 2),
        ("too large", batch(NOBODY, -1, &[&huge]), 10),
        ("two batches", Bytes::from([&good[..], &good[..]].concat()), 87),
        ("control batch", patched(&good, 21, &0x20i16.to_be_bytes()), 87),
        ("record count", patched(&good, 57, &2i32.to_be_bytes()), 87),
        ("magic 1", patched(&good, 16, &[1]), 87),
        ("far future", batch_of(NOBODY, -1, &["late"], Compression::None, now_ms() + 7_200_000), 32),
        ("empty", Bytes::new(), 87),
    ];
    for (at, (name, bad, code)) in cases.into_iter().enumerate() {
        let parts = vec![(0, good.clone()), (1, bad), (2, good.clone()), (9, good.clone())];
        let parts = produce(&mut client, &topic, parts, 9);
        let by_index = |index| parts.iter().find(|part| part.index == index).expect("every partition is answered");
        assert_eq!(by_index(1).error_code, code, "{name}");
        assert_eq!(by_index(1).base_offset, -1, "{name}");
        if !broker.is_kafka() {
            // Kafka tells the log's start beside the faults that its `LogValidator` finds.
            assert_eq!(by_index(1).log_start_offset, -1, "{name}");
        }
        assert_eq!(by_index(9).error_code, 3);
        for index in [0, 2] {
            assert_eq!((by_index(index).error_code, by_index(index).base_offset), (0, at as i64), "{name}");
        }
    }
    assert!(read_all(&mut client, &topic, 1).is_empty());
}

#[test]
fn unknown_topics_and_ids_are_named_so() {
    let broker = Broker::start();
    let mut client = broker.connect();
    let unknown = m::TopicName(StrBytes::from_static_str("nobody-made-this"));
    let parts = vec![(0, batch(NOBODY, -1, &["a"]))];
    assert_eq!(produce(&mut client, &unknown, parts.clone(), 9)[0].error_code, 3);
    let mut by_id = request(&unknown, parts);
    by_id.topic_data[0].topic_id = uuid::Uuid::from_bytes([9; 16]);
    let response = client.ask(&by_id, 13).expect("an answer");
    assert_eq!(response.responses[0].partition_responses[0].error_code, 100);
}

#[test]
fn acks_0_is_silent_and_its_error_closes_the_connection() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(1), broker.connect());
    for _ in 0..5 {
        client.send(&request(&topic, vec![(0, batch(NOBODY, -1, &["quiet"]))]).with_acks(0), 9);
    }
    let parts = produce(&mut client, &topic, vec![(0, batch(NOBODY, -1, &["loud"]))], 9);
    assert_eq!((parts[0].error_code, parts[0].base_offset), (0, 5));
    client.send(&request(&topic, vec![(7, batch(NOBODY, -1, &["nowhere"]))]).with_acks(0), 9);
    assert!(client.is_closed());
}

#[test]
fn other_acks_are_refused() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(1), broker.connect());
    for acks in [2, -2] {
        let request = request(&topic, vec![(0, batch(NOBODY, -1, &["a"]))]).with_acks(acks);
        let response = client.ask(&request, 9).expect("an answer");
        assert_eq!(response.responses[0].partition_responses[0].error_code, 21);
    }
}

#[test]
fn all_codecs_pass_through_byte_for_byte_and_zstd_needs_version_7() {
    let broker = Broker::start();
    let mut client = broker.connect();
    for codec in [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd] {
        let topic = broker.topic(1);
        let sent = batch_of(NOBODY, -1, &["one", "two", "three"], codec, now_ms());
        assert_eq!(produce(&mut client, &topic, vec![(0, sent.clone())], 9)[0].error_code, 0, "{codec:?}");
        let stored = super::fetching::fetch_bytes(&mut client, &topic, 0, 0);
        assert_eq!(stored.slice(16..), sent.slice(16..), "{codec:?}");
        if codec == Compression::Zstd {
            assert_eq!(produce(&mut client, &topic, vec![(0, sent)], 6)[0].error_code, 76);
        }
    }
}

#[test]
fn the_brokers_time_replaces_the_clients_where_the_topic_asks_for_it() {
    let broker = Broker::start();
    let topic = broker.topic_with(1, &[("message.timestamp.type", "LogAppendTime")]);
    let mut client = broker.connect();
    let before = now_ms();
    let part = &produce(&mut client, &topic, vec![(0, batch_of(NOBODY, -1, &["a"], Compression::None, 1_000))], 9)[0];
    assert_eq!(part.error_code, 0);
    assert!((before..=now_ms()).contains(&part.log_append_time_ms), "{}", part.log_append_time_ms);
    let stored = super::fetching::fetch_bytes(&mut client, &topic, 0, 0);
    assert_eq!(i64::from_be_bytes(stored[35..43].try_into().unwrap()), part.log_append_time_ms);
    assert_eq!(stored[22] & 8, 8, "the timestamp type");
}

#[test]
fn a_retried_batch_is_stored_once_and_a_gap_is_refused() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(1), broker.connect());
    let init = m::InitProducerIdRequest::default().with_transactional_id(None).with_transaction_timeout_ms(1_000);
    let id = client.ask(&init, 4).expect("an answer");
    assert_eq!((id.error_code, id.producer_epoch), (0, 0));
    let writer = Writer { id: id.producer_id.0, epoch: 0, transactional: false };
    let mut send = |sequence: i32, values: &[&str]| {
        let part = produce(&mut client, &topic, vec![(0, batch(writer, sequence, values))], 9).remove(0);
        (part.error_code, part.base_offset)
    };
    assert_eq!(send(0, &["a", "b"]), (0, 0));
    assert_eq!(send(2, &["c"]), (0, 2));
    let retry = batch(writer, 3, &["d"]);
    for _ in 0..3 {
        let part = produce(&mut client, &topic, vec![(0, retry.clone())], 9).remove(0);
        assert_eq!((part.error_code, part.base_offset), (0, 3));
    }
    let gap = produce(&mut client, &topic, vec![(0, batch(writer, 9, &["z"]))], 9).remove(0);
    assert_eq!((gap.error_code, gap.base_offset), (45, -1));
    assert_eq!(read_all(&mut client, &topic, 0).len(), 4);
}
