//! Logs that start later: DeleteRecords, retention by size and by time.

use bytes::Bytes;
use kafka_protocol::messages as m;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::records::Compression;

use super::changing::{SET, TOPIC, change};
use super::client::{Broker, Client, NOBODY, Writer, batch, batch_of, fresh, now_ms, records_of, until};
use super::fetching;
use super::offsets::list;
use super::producing::produce;

const EARLIEST: i64 = -2;
const HOUR_MS: i64 = 3_600_000;

/// (error, low watermark)
fn delete(client: &mut Client, topic: &m::TopicName, partition: i32, offset: i64, version: i16) -> (i16, i64) {
    let part = DeleteRecordsPartition::default().with_partition_index(partition).with_offset(offset);
    let topic = DeleteRecordsTopic::default().with_name(topic.clone()).with_partitions(vec![part]);
    let request = m::DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    let response = client.ask(&request, version).expect("an answer");
    let part = &response.topics[0].partitions[0];
    assert_eq!(part.partition_index, partition);
    (part.error_code, part.low_watermark)
}

fn earliest(client: &mut Client, topic: &m::TopicName) -> i64 {
    let (error, _, offset) = list(client, topic, 0, EARLIEST, 5);
    assert_eq!(error, 0);
    offset
}

/// (error, log start, high watermark, first record)
fn fetch(client: &mut Client, topic: &m::TopicName, offset: i64) -> (i16, i64, i64, Option<i64>) {
    let response = client.ask(&fetching::request(topic, &[(0, offset)]), 11).expect("an answer");
    let part = response.responses[0].partitions[0].clone();
    let first = records_of(part.records.unwrap_or_default()).first().map(|(offset, _)| *offset);
    (part.error_code, part.log_start_offset, part.high_watermark, first)
}

#[test]
fn deleted_records_are_gone_in_every_answer() {
    let mut broker = Broker::start();
    let (topic, mut client) = (broker.topic_with(1, &[("retention.ms", "-1")]), broker.connect());
    for time in [1_000, 2_000, 3_000] {
        let records = batch_of(NOBODY, -1, &["a", "b", "c", "d"], Compression::None, time);
        assert_eq!(produce(&mut client, &topic, vec![(0, records)], 9)[0].error_code, 0);
    }
    for (version, offset) in [(0, 2), (1, 3), (2, 6)] {
        assert_eq!(delete(&mut client, &topic, 0, offset, version), (0, offset), "v{version}");
    }
    assert_eq!(delete(&mut client, &topic, 0, 1, 2), (0, 6), "below the start nothing changes");
    let check = |client: &mut Client| {
        assert_eq!(earliest(client, &topic), 6);
        assert_eq!(list(client, &topic, 0, -1, 5), (0, -1, 12));
        assert_eq!(list(client, &topic, 0, 1_500, 5), (0, 2_000, 6), "not in front of the start");
        assert_eq!(list(client, &topic, 0, 0, 5), (0, 2_000, 6));
        assert_eq!(list(client, &topic, 0, 2_500, 5), (0, 3_000, 8));
        let (error, ..) = fetch(client, &topic, 5);
        assert_eq!(error, 1);
        assert_eq!(fetch(client, &topic, 6), (0, 6, 12, Some(4)), "the batch around the start, whole");
    };
    check(&mut client);
    let part = &produce(&mut client, &topic, vec![(0, batch(NOBODY, -1, &["e"]))], 9)[0];
    assert_eq!((part.error_code, part.base_offset, part.log_start_offset), (0, 12, 6));
    assert_eq!(delete(&mut client, &topic, 0, -1, 2), (0, 13), "all of it");
    assert_eq!(fetch(&mut client, &topic, 13), (0, 13, 13, None));
    assert_eq!(list(&mut client, &topic, 0, 0, 5), (0, -1, -1));
    if broker.restart() {
        let mut client = broker.connect();
        assert_eq!(
            (earliest(&mut client, &topic), fetch(&mut client, &topic, 12).0),
            (13, 1),
            "a crash changes nothing"
        );
        let part = &produce(&mut client, &topic, vec![(0, batch(NOBODY, -1, &["f"]))], 9)[0];
        assert_eq!((part.base_offset, part.log_start_offset), (13, 13));
    }
}

#[test]
fn what_cannot_be_deleted_has_its_own_code_beside_what_can() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(2), broker.connect());
    let records = || batch(NOBODY, -1, &["a", "b"]);
    produce(&mut client, &topic, vec![(0, records()), (1, records())], 9);
    let compacted = broker.topic_with(1, &[("cleanup.policy", "compact")]);
    let both = broker.topic_with(1, &[("cleanup.policy", "compact,delete")]);
    assert_eq!(delete(&mut client, &topic, 0, 3, 2), (1, -1), "beyond the high watermark");
    assert_eq!(delete(&mut client, &topic, 0, -2, 2), (1, -1));
    assert_eq!(delete(&mut client, &topic, 7, 0, 2), (3, -1));
    assert_eq!(delete(&mut client, &m::TopicName(fresh("unknown")), 0, 0, 2), (3, -1));
    assert_eq!(delete(&mut client, &compacted, 0, 0, 2), (44, -1));
    assert_eq!(delete(&mut client, &both, 0, 0, 2), (0, 0));
    let part = |index, offset| DeleteRecordsPartition::default().with_partition_index(index).with_offset(offset);
    let of = |name: &m::TopicName, parts| DeleteRecordsTopic::default().with_name(name.clone()).with_partitions(parts);
    let topics = vec![of(&topic, vec![part(0, 9), part(1, 1), part(2, 0)]), of(&compacted, vec![part(0, -1)])];
    let request = m::DeleteRecordsRequest::default().with_topics(topics).with_timeout_ms(10_000);
    let response = client.ask(&request, 2).expect("an answer");
    let mut told: Vec<_> = response
        .topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|part| (topic.name.clone(), part)))
        .map(|(name, part)| (name == compacted, part.partition_index, part.error_code, part.low_watermark))
        .collect();
    told.sort_unstable();
    assert_eq!(told, [(false, 0, 1, -1), (false, 1, 0, 1), (false, 2, 3, -1), (true, 0, 44, -1)]);
}

#[test]
fn sequences_go_on_after_their_records_were_deleted() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(1), broker.connect());
    let init = m::InitProducerIdRequest::default().with_transactional_id(None);
    let pair = client.ask(&init, 4).expect("an answer");
    let writer = Writer { id: pair.producer_id.0, epoch: pair.producer_epoch, transactional: false };
    let first = batch(writer, 0, &["a", "b"]);
    assert_eq!(produce(&mut client, &topic, vec![(0, first.clone())], 9)[0].base_offset, 0);
    assert_eq!(delete(&mut client, &topic, 0, -1, 2), (0, 2));
    let again = &produce(&mut client, &topic, vec![(0, first)], 9)[0];
    assert_eq!((again.error_code, again.base_offset), (0, 0), "a retry is known");
    assert_eq!(produce(&mut client, &topic, vec![(0, batch(writer, 5, &["x"]))], 9)[0].error_code, 45);
    let next = &produce(&mut client, &topic, vec![(0, batch(writer, 2, &["c"]))], 9)[0];
    assert_eq!((next.error_code, next.base_offset), (0, 2));
}

// --- retention ---------------------------------------------------------------------------------------

/// A broker that looks at retention all the time, or None.
fn retaining() -> Option<Broker> {
    let runs = std::env::var("BOOTSTRAP").is_ok() && std::env::var("RETENTION_CHECKED").is_err();
    (!runs).then(|| Broker::start_with(&["log.retention.check.interval.ms=50"]))
}

/// One record of that time, of 300,000 bytes: three make a segment of 1 MiB.
fn large(time: i64) -> Bytes {
    batch_of(NOBODY, -1, &[&"x".repeat(300_000)], Compression::None, time)
}

/// A topic with a record of each of these times. Until all are there everything is kept.
fn topic_of(broker: &Broker, times: &[i64], configs: &[(&str, &str)]) -> m::TopicName {
    let (kept_by, others): (Vec<_>, Vec<_>) = configs.iter().partition(|(name, _)| name.starts_with("retention."));
    let at_first = [&[("segment.bytes", "1048576"), ("retention.ms", "-1")], &others[..]].concat();
    let topic = broker.topic_with(1, &at_first);
    let mut client = broker.connect();
    for time in times {
        assert_eq!(produce(&mut client, &topic, vec![(0, large(*time))], 9)[0].error_code, 0);
    }
    let set: Vec<_> = kept_by.iter().map(|(name, value)| (*name, SET, Some(*value))).collect();
    assert_eq!(change(&mut client, TOPIC, &topic, &set, 1), 0);
    topic
}

/// Retention has been looked at since: a topic of which nothing may stay is empty.
fn looked(broker: &Broker) {
    let topic = topic_of(broker, &[now_ms() - HOUR_MS], &[("retention.ms", "1000")]);
    until("retention is looked at", || earliest(&mut broker.connect(), &topic) == 1);
}

#[test]
fn whole_segments_leave_by_size_while_the_log_keeps_its_bytes() {
    let Some(broker) = retaining() else { return };
    let times = vec![now_ms(); 10];
    // Segments of 3, 3, 3 and 1 records of some 300,072 bytes: what stays must not be less than retention.bytes.
    let stays =
        [(-1, 0), (3_000_720, 0), (2_100_505, 0), (2_100_504, 3), (1_200_288, 6), (300_073, 6), (300_072, 9), (0, 10)];
    let topics = stays.map(|(bytes, start)| {
        let topic = topic_of(&broker, &times, &[("retention.bytes", &bytes.to_string()), ("retention.ms", "-1")]);
        (bytes, topic, start)
    });
    let mut client = broker.connect();
    for (bytes, topic, start) in &topics {
        until(&format!("{bytes} bytes: from {start} on"), || earliest(&mut client, topic) >= *start);
    }
    looked(&broker);
    for (bytes, topic, start) in &topics {
        assert_eq!(earliest(&mut client, topic), *start, "{bytes} bytes");
        assert_eq!(list(&mut client, topic, 0, -1, 5), (0, -1, 10));
    }
}

#[test]
fn segments_leave_by_their_greatest_timestamp_the_last_one_too() {
    let Some(broker) = retaining() else { return };
    let (now, old) = (now_ms(), now_ms() - 2 * HOUR_MS);
    let hour = &[("retention.ms", "3600000")][..];
    let cases = [
        ("all are old", vec![old; 4], hour, 4),
        ("the last is young", vec![old, old, old, old, old, old, now], hour, 6),
        ("one young record keeps its segment and those behind it", vec![old, old, old, old, now, old, old], hour, 3),
        ("no limit", vec![old; 4], &[("retention.ms", "-1")], 0),
        ("a time to come", vec![old, old, old, now + HOUR_MS / 2, old], hour, 3),
        (
            "by size and by time",
            vec![now, now, now, old, old, old, now],
            &[("retention.ms", "3600000"), ("retention.bytes", "1000000")],
            6,
        ),
        ("closed by time", vec![old - HOUR_MS, old, now], &[("retention.ms", "3600000"), ("segment.ms", "1800000")], 2),
    ];
    let topics = cases.map(|(case, times, configs, start)| (case, topic_of(&broker, &times, configs), start));
    let mut client = broker.connect();
    for (case, topic, start) in &topics {
        until(&format!("{case}: from {start} on"), || earliest(&mut client, topic) >= *start);
    }
    looked(&broker);
    for (case, topic, start) in &topics {
        assert_eq!(earliest(&mut client, topic), *start, "{case}");
    }
    let (_, topic, _) = &topics[0];
    let part = &produce(&mut client, topic, vec![(0, large(now))], 9)[0];
    assert_eq!((part.base_offset, part.log_start_offset), (4, 4), "an emptied log goes on");
}
