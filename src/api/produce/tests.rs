use super::*;
use crate::config::limits::TIMESTAMP_AFTER_MS_MAX;
use crate::types::record_batch::sample;
use crate::types::{ConnectionId, Offset, Refusal};

fn topic(max_message_bytes: u32, log_append_time: bool) -> Topic {
    let mut settings = crate::types::settings::TopicSettings { log_append_time, ..Default::default() };
    settings.max_message_bytes = max_message_bytes;
    Topic {
        id: TopicId([7; 16]),
        name: "t".into(),
        partitions: vec![Default::default()],
        configs: Default::default(),
        settings,
    }
}

fn caller(software: &str) -> Caller {
    Caller { connection: ConnectionId(1), software: software.into(), client_id: "c".into(), host: "/127.0.0.1".into() }
}

/// The sample batch with other bytes at `at`, and the CRC made right again.
fn patched(batch: &RecordBatch, at: usize, with: &[u8]) -> Bytes {
    let mut bytes = batch.bytes().to_vec();
    bytes[at..at + with.len()].copy_from_slice(with);
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    Bytes::from(bytes)
}

fn judged(version: i16, transactional_id: Option<&str>, records: Bytes) -> Result<RecordBatch, E> {
    let asked = Asked { version, transactional_id, now_ms: 2_000 };
    asked.judge(&topic(1_000, false).settings, Some(records)).map_err(|rejected| rejected.error)
}

#[test]
fn each_fault_of_a_batch_gets_kafkas_code() {
    let good = sample::batch((-1, -1), -1, 2, false, b"records");
    let idempotent = sample::batch((5, 0), 0, 2, false, b"records");
    let mut bad_crc = good.bytes().to_vec();
    *bad_crc.last_mut().unwrap() ^= 1;
    let doubled = Bytes::from([&good.bytes()[..], &good.bytes()[..]].concat());
    let far_ahead = 2_000 + TIMESTAMP_AFTER_MS_MAX + 1;
    let big = sample::batch((-1, -1), -1, 1, false, &[0; 1_000]);
    let cases: Vec<(&str, Bytes, E)> = vec![
        ("empty", Bytes::new(), E::InvalidRecord),
        ("cut", good.bytes().slice(..good.size_bytes() - 1), E::InvalidRecord),
        ("two batches", doubled, E::InvalidRecord),
        ("crc", bad_crc.into(), E::CorruptMessage),
        ("impossible length", patched(&good, 8, &5i32.to_be_bytes()), E::CorruptMessage),
        ("magic 1", patched(&good, 16, &[1]), E::InvalidRecord),
        ("magic 3", patched(&good, 16, &[3]), E::CorruptMessage),
        ("base offset", patched(&good, 0, &9i64.to_be_bytes()), E::InvalidRecord),
        ("count", patched(&good, 57, &3i32.to_be_bytes()), E::InvalidRecord),
        ("control", patched(&good, 21, &0x20i16.to_be_bytes()), E::InvalidRecord),
        ("append time", patched(&good, 21, &0x08i16.to_be_bytes()), E::InvalidTimestamp),
        ("too far ahead", patched(&good, 35, &far_ahead.to_be_bytes()), E::InvalidTimestamp),
        ("no sequence", patched(&idempotent, 53, &(-1i32).to_be_bytes()), E::InvalidRecord),
        ("transactional, no id", patched(&good, 21, &0x10i16.to_be_bytes()), E::InvalidRecord),
        ("too large", big.bytes().clone(), E::MessageTooLarge),
    ];
    for (name, records, expected) in cases {
        assert_eq!(judged(9, None, records).unwrap_err(), expected, "{name}");
    }
    assert_eq!(judged(9, None, good.bytes().clone()).unwrap(), good);
    assert_eq!(judged(9, None, idempotent.bytes().clone()).unwrap(), idempotent);
}

#[test]
fn zstd_needs_version_7() {
    let zstd = patched(&sample::batch((-1, -1), -1, 1, false, b"x"), 21, &4i16.to_be_bytes());
    assert_eq!(judged(6, None, zstd.clone()).unwrap_err(), E::UnsupportedCompressionType);
    assert!(judged(7, None, zstd).is_ok());
}

#[test]
fn a_transactional_request_takes_transactional_batches_only() {
    let plain = sample::batch((5, 0), 0, 1, false, b"x");
    let transactional = sample::batch((5, 0), 0, 1, true, b"x");
    assert_eq!(judged(9, Some("t"), plain.bytes().clone()).unwrap_err(), E::InvalidRecord);
    assert!(judged(9, Some("t"), transactional.bytes().clone()).is_ok());
}

#[test]
fn the_pair_of_a_refused_transactional_batch_is_told() {
    let asked = |transactional_id| Asked { version: 12, transactional_id, now_ms: 2_000 };
    let transactional = sample::batch((5, 3), 0, 1, true, b"x");
    let mut bad_crc = transactional.bytes().to_vec();
    *bad_crc.last_mut().unwrap() ^= 1;
    let pair = Some(ProducerIdAndEpoch { producer_id: 5, epoch: 3 });
    assert_eq!(asked(Some("t")).pair_of(&bad_crc.clone().into()), pair);
    assert_eq!(asked(None).pair_of(&bad_crc.into()), None);
    assert_eq!(asked(Some("t")).pair_of(&patched(&transactional, 16, &[1])), None, "not even framed");
    let plain = sample::batch((5, 3), 0, 1, false, b"x");
    assert_eq!(asked(Some("t")).pair_of(plain.bytes()), None);
}

#[test]
fn with_the_brokers_time_the_clients_is_not_judged() {
    let far = patched(&sample::batch((-1, -1), -1, 1, false, b"x"), 35, &i64::MAX.to_be_bytes());
    let asked = Asked { version: 9, transactional_id: None, now_ms: 2_000 };
    assert!(asked.judge(&topic(1_000, true).settings, Some(far)).is_ok());
}

#[test]
fn a_staged_batch_is_acknowledged_as_its_client_understands_it() {
    for software in ["apache-kafka-java", "kgo", "kafka-python", "kafkajs"] {
        assert_eq!(staged_base_offset(software, 5), -1, "{software}");
    }
    for software in ["librdkafka", "", "sarama"] {
        assert_eq!(staged_base_offset(software, 5), -5, "{software}");
        assert_eq!(staged_base_offset(software, 1), -1, "{software}");
    }
}

#[test]
fn a_bad_partition_does_not_shift_the_results_of_its_neighbours() {
    use kafka_protocol::protocol::Decodable;
    let part = |index, verdict| Part { index, verdict, metrics: None, numbered: None };
    for version in 3..=13 {
        let topics = vec![Parts {
            name: TopicName(StrBytes::from_static_str("t")),
            id: Uuid::from_bytes([7; 16]),
            parts: vec![
                part(0, Ok((1, 1))),
                part(1, Err(Rejected::new(E::CorruptMessage, "crc"))),
                part(2, Ok((1, 4))),
                part(3, Ok((1, 1))),
            ],
        }];
        let results = vec![
            Ok(Acked::Written(crate::state::command::ProduceOutcome {
                base_offset: Offset(11),
                log_append_time_ms: -1,
                log_start_offset: Offset(3),
            })),
            Ok(Acked::Staged { log_start_offset: Offset(3), record_count: 4 }),
            Err(Refusal::OutOfOrderSequenceNumber),
        ];
        let encoded = respond(topics, results, version, &caller("librdkafka"), &Gaps::default(), || panic!("it leads"));
        let mut body = encoded.concat().as_slice().to_vec().into();
        let response = ProduceResponse::decode(&mut body as &mut Bytes, version).unwrap();
        let parts: Vec<_> = response.responses[0]
            .partition_responses
            .iter()
            .map(|part| (part.index, part.error_code, part.base_offset))
            .collect();
        assert_eq!(parts, [(0, 0, 11), (1, 2, -1), (2, 0, -4), (3, 45, -1)], "v{version}");
        if version >= 5 {
            let starts: Vec<_> =
                response.responses[0].partition_responses.iter().map(|part| part.log_start_offset).collect();
            assert_eq!(starts, [3, -1, 3, -1]);
        }
    }
}

#[test]
fn small_batches_of_a_large_frame_are_copied_out() {
    let frame = Bytes::from([&sample::batch((-1, -1), -1, 1, false, b"x").bytes()[..], &[0; 500]].concat());
    let records = frame.slice(..62);
    let to = TopicPartition { topic: TopicId([7; 16]), partition: 0 };
    let mut batches = vec![(to, RecordBatch::check(records.clone()).unwrap())];
    keep_no_more_than_needed(&mut batches, records.len() + 10);
    assert_eq!(batches[0].1.bytes().as_ptr(), frame.as_ptr());
    keep_no_more_than_needed(&mut batches, frame.len());
    assert_ne!(batches[0].1.bytes().as_ptr(), frame.as_ptr());
}

#[test]
fn versions_before_3_are_answered_in_their_own_words() {
    let mut request = BytesMut::new();
    request.put_i16(1);
    request.put_i32(1000);
    request.put_i32(1);
    request.put_i16(1);
    request.put_slice(b"t");
    request.put_i32(1);
    request.put_i32(4);
    request.put_i32(3);
    request.put_slice(b"abc");
    let request = request.freeze();
    for version in 0..=2 {
        let Reply::Now(encoded) = refuse_old_version(version, request.clone()).unwrap() else { panic!("an answer") };
        let mut body = Bytes::from(encoded.concat());
        assert_eq!((body.get_i32(), body.get_i16(), body.get_u8(), body.get_i32()), (1, 1, b't', 1));
        assert_eq!((body.get_i32(), body.get_i16(), body.get_i64()), (4, 35, -1));
        assert_eq!(body.len(), [0, 4, 12][version as usize]);
    }
    for cut in 0..request.len() {
        assert!(refuse_old_version(0, request.slice(..cut)).is_err(), "cut at {cut}");
    }
}

#[test]
fn whoever_comes_to_another_node_than_the_leader_is_told_who_leads() {
    use super::super::metadata::sample::{status, view};
    use kafka_protocol::protocol::Decodable;
    for (leader, version) in
        [Some(2), None].into_iter().flat_map(|leader| (3..=13).map(move |version| (leader, version)))
    {
        let part = |index| Part { index, verdict: Ok((0, 1)), metrics: None, numbered: None };
        let topics = vec![Parts { name: TopicName::default(), id: Uuid::nil(), parts: vec![part(0), part(1)] }];
        let results = vec![Err(Refusal::NotLeader), Err(Refusal::MessageTooLarge)];
        let encoded =
            respond(topics, results, version, &caller("kgo"), &Gaps::default(), || Some(view(&status(3, leader))));
        let mut body = Bytes::from(encoded.concat());
        let response = ProduceResponse::decode(&mut body, version).unwrap();
        let parts = &response.responses[0].partition_responses;
        assert_eq!((parts[0].error_code, parts[0].base_offset, parts[1].error_code), (6, -1, 10));
        let told =
            |part: &PartitionProduceResponse| (part.current_leader.leader_id.0, part.current_leader.leader_epoch);
        let known = leader.is_some() && version >= LEADER_HINTS;
        assert_eq!([told(&parts[0]), told(&parts[1])], [if known { (2, 5) } else { (-1, -1) }, (-1, -1)], "v{version}");
        let endpoints: Vec<_> =
            response.node_endpoints.iter().map(|node| (node.node_id.0, node.host.as_str())).collect();
        assert_eq!(endpoints, if known { vec![(2, "host-2")] } else { vec![] }, "v{version}");
    }
}
