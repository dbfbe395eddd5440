pub(super) mod standing;

use std::collections::BTreeSet;

use bytes::{BufMut, BytesMut};
use kafka_protocol::messages as m;
use kafka_protocol::protocol::{Decodable, Encodable};

use super::shape::{Field, Kind, Misshapen};
use super::*;

/// Bytes of a request of that shape: two elements in every array, every struct with a tagged field nobody knows.
fn sample(shape: &Shape, version: i16) -> BytesMut {
    let mut out = BytesMut::new();
    put_struct(&mut out, shape.fields, version, version >= shape.flexible_since);
    out
}

fn put_struct(out: &mut BytesMut, fields: &[Field], version: i16, flexible: bool) {
    for field in fields.iter().filter(|field| (field.since..=field.until).contains(&version)) {
        put_field(out, &field.kind, version, flexible);
    }
    if flexible {
        out.put_slice(&[1, 0x88, 0x27, 3, b'x', b'y', b'z']); // one field: tag 5000, three bytes
    }
}

fn put_field(out: &mut BytesMut, kind: &Kind, version: i16, flexible: bool) {
    match kind {
        Kind::I8 => out.put_i8(1),
        Kind::I16 => out.put_i16(258),
        Kind::I32 => out.put_i32(16_909_060),
        Kind::I64 => out.put_i64(72_623_859_790_382_856),
        Kind::Uuid => out.put_slice(&[9; 16]),
        Kind::Str if flexible => out.put_slice(b"\x03ab"),
        Kind::Str => out.put_slice(b"\0\x02ab"),
        Kind::Bytes if flexible => out.put_slice(b"\x04\x01\x02\x03"),
        Kind::Bytes => out.put_slice(b"\0\0\0\x03\x01\x02\x03"),
        Kind::Structs(fields) => {
            put_count(out, 2, flexible);
            put_struct(out, fields, version, flexible);
            put_struct(out, fields, version, flexible);
        }
        Kind::Plain(kind) => {
            put_count(out, 2, flexible);
            put_field(out, kind, version, flexible);
            put_field(out, kind, version, flexible);
        }
    }
}

fn put_count(out: &mut BytesMut, count: i32, flexible: bool) {
    if flexible { out.put_u8(count as u8 + 1) } else { out.put_i32(count) }
}

fn round_trip<R: Decodable + Encodable>(bytes: &Bytes, version: i16) -> Bytes {
    let mut left = bytes.clone();
    let request = R::decode(&mut left, version).expect("the generated decoder reads it");
    assert!(left.is_empty(), "{} bytes left", left.len());
    let mut again = BytesMut::new();
    request.encode(&mut again, version).expect("the generated encoder writes it");
    again.freeze()
}

fn round_trip_of(key: ApiKey, bytes: &Bytes, version: i16) -> Bytes {
    match key {
        ApiKey::Produce => round_trip::<m::ProduceRequest>(bytes, version),
        ApiKey::Fetch => round_trip::<m::FetchRequest>(bytes, version),
        ApiKey::ListOffsets => round_trip::<m::ListOffsetsRequest>(bytes, version),
        ApiKey::Metadata => round_trip::<m::MetadataRequest>(bytes, version),
        ApiKey::OffsetCommit => round_trip::<m::OffsetCommitRequest>(bytes, version),
        ApiKey::OffsetFetch => round_trip::<m::OffsetFetchRequest>(bytes, version),
        ApiKey::FindCoordinator => round_trip::<m::FindCoordinatorRequest>(bytes, version),
        ApiKey::JoinGroup => round_trip::<m::JoinGroupRequest>(bytes, version),
        ApiKey::Heartbeat => round_trip::<m::HeartbeatRequest>(bytes, version),
        ApiKey::LeaveGroup => round_trip::<m::LeaveGroupRequest>(bytes, version),
        ApiKey::SyncGroup => round_trip::<m::SyncGroupRequest>(bytes, version),
        ApiKey::DescribeGroups => round_trip::<m::DescribeGroupsRequest>(bytes, version),
        ApiKey::ListGroups => round_trip::<m::ListGroupsRequest>(bytes, version),
        ApiKey::ApiVersions => round_trip::<m::ApiVersionsRequest>(bytes, version),
        ApiKey::CreateTopics => round_trip::<m::CreateTopicsRequest>(bytes, version),
        ApiKey::DeleteTopics => round_trip::<m::DeleteTopicsRequest>(bytes, version),
        ApiKey::DeleteRecords => round_trip::<m::DeleteRecordsRequest>(bytes, version),
        ApiKey::InitProducerId => round_trip::<m::InitProducerIdRequest>(bytes, version),
        ApiKey::OffsetForLeaderEpoch => round_trip::<m::OffsetForLeaderEpochRequest>(bytes, version),
        ApiKey::AddPartitionsToTxn => round_trip::<m::AddPartitionsToTxnRequest>(bytes, version),
        ApiKey::AddOffsetsToTxn => round_trip::<m::AddOffsetsToTxnRequest>(bytes, version),
        ApiKey::EndTxn => round_trip::<m::EndTxnRequest>(bytes, version),
        ApiKey::TxnOffsetCommit => round_trip::<m::TxnOffsetCommitRequest>(bytes, version),
        ApiKey::DescribeConfigs => round_trip::<m::DescribeConfigsRequest>(bytes, version),
        ApiKey::AlterConfigs => round_trip::<m::AlterConfigsRequest>(bytes, version),
        ApiKey::DescribeLogDirs => round_trip::<m::DescribeLogDirsRequest>(bytes, version),
        ApiKey::CreatePartitions => round_trip::<m::CreatePartitionsRequest>(bytes, version),
        ApiKey::DeleteGroups => round_trip::<m::DeleteGroupsRequest>(bytes, version),
        ApiKey::IncrementalAlterConfigs => round_trip::<m::IncrementalAlterConfigsRequest>(bytes, version),
        ApiKey::ElectLeaders => round_trip::<m::ElectLeadersRequest>(bytes, version),
        ApiKey::DescribeQuorum => round_trip::<m::DescribeQuorumRequest>(bytes, version),
        ApiKey::AddRaftVoter => round_trip::<m::AddRaftVoterRequest>(bytes, version),
        ApiKey::RemoveRaftVoter => round_trip::<m::RemoveRaftVoterRequest>(bytes, version),
        ApiKey::DescribeCluster => round_trip::<m::DescribeClusterRequest>(bytes, version),
        other => panic!("{other:?} needs a line here"),
    }
}

/// Every shape with the versions it stands for, served yet or not.
fn shapes() -> Vec<(ApiKey, i16, i16, &'static Shape)> {
    let mut shapes: Vec<_> = APIS.iter().map(|row| (row.key, row.served_from, row.max, row.shape)).collect();
    shapes.extend([
        (ApiKey::OffsetCommit, 2, 9, &shapes::OFFSET_COMMIT),
        (ApiKey::OffsetFetch, 1, 9, &shapes::OFFSET_FETCH),
        (ApiKey::JoinGroup, 0, 9, &shapes::JOIN_GROUP),
        (ApiKey::Heartbeat, 0, 4, &shapes::HEARTBEAT),
        (ApiKey::LeaveGroup, 0, 5, &shapes::LEAVE_GROUP),
        (ApiKey::SyncGroup, 0, 5, &shapes::SYNC_GROUP),
        (ApiKey::DescribeGroups, 0, 6, &shapes::DESCRIBE_GROUPS),
        (ApiKey::ListGroups, 0, 5, &shapes::LIST_GROUPS),
        (ApiKey::DeleteGroups, 0, 2, &shapes::DELETE_GROUPS),
    ]);
    shapes
}

#[test]
fn every_shape_is_the_one_the_generated_decoder_reads_in_every_version() {
    for (key, min, max, shape) in shapes() {
        for version in min..=max {
            let bytes = sample(shape, version).freeze();
            assert_eq!(shape.check(version, &bytes), Ok(()), "{key:?} v{version}");
            assert_eq!(round_trip_of(key, &bytes, version), bytes, "{key:?} v{version}");
        }
    }
}

#[test]
fn a_request_cut_anywhere_is_misshapen() {
    for (key, min, max, shape) in shapes() {
        for version in min..=max {
            let bytes = sample(shape, version);
            for cut in 0..bytes.len() {
                assert!(shape.check(version, &bytes[..cut]).is_err(), "{key:?} v{version} cut at {cut}");
            }
        }
    }
}

#[test]
fn stray_bytes_behind_a_request_are_ignored_as_kafka_does() {
    // What librdkafka 2.16 sends as Metadata v13 for all topics: a null array in one byte of the four it had reserved.
    let body = Bytes::from_static(&[0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(shapes::METADATA.check(13, &body), Ok(()));
    let mut left = body;
    let request = m::MetadataRequest::decode(&mut left, 13).expect("decodes");
    assert!(request.topics.is_none(), "all topics");
}

#[test]
fn an_array_that_claims_more_than_the_bytes_left_is_refused_before_anything_is_reserved() {
    let mut request = BytesMut::new();
    request.put_i32(i32::MAX); // Metadata v0: two thousand million topics
    assert_eq!(shapes::METADATA.check(0, &request), Err(Misshapen::Array(i32::MAX as u64, 0)));
    let compact = [0xff, 0xff, 0xff, 0xff, 0x0f, 1, 1];
    assert_eq!(shapes::METADATA.check(12, &compact), Err(Misshapen::Array(u64::from(u32::MAX - 1), 2)));
    assert_eq!(shapes::METADATA.check(0, &(-2i32).to_be_bytes()), Err(Misshapen::Negative(-2)));
    assert_eq!(shapes::METADATA.check(12, &[0xff; 6]), Err(Misshapen::Varint));
}

#[test]
fn elements_and_tagged_fields_of_a_request_are_bounded() {
    use crate::config::limits::{REQUEST_ELEMENTS_MAX, REQUEST_TAGGED_FIELDS_MAX};
    let metadata = |topics: usize| {
        let mut request = BytesMut::new();
        request.put_i32(topics as i32);
        request.put_bytes(0, 2 * topics);
        request
    };
    assert_eq!(shapes::METADATA.check(0, &metadata(REQUEST_ELEMENTS_MAX)), Ok(()));
    assert_eq!(shapes::METADATA.check(0, &metadata(REQUEST_ELEMENTS_MAX + 1)), Err(Misshapen::Elements));
    let mut tagged = BytesMut::from(&[0u8, 1, 1][..]);
    let mut count = REQUEST_TAGGED_FIELDS_MAX + 1;
    while count >= 0x80 {
        tagged.put_u8(count as u8 | 0x80);
        count >>= 7;
    }
    tagged.put_u8(count as u8);
    tagged.put_bytes(0, 2 * (REQUEST_TAGGED_FIELDS_MAX + 1));
    assert_eq!(shapes::METADATA.check(12, &tagged), Err(Misshapen::Elements));
}

#[test]
fn a_string_is_no_longer_than_kafkas() {
    let mut request = BytesMut::new();
    request.put_slice(&[0x81, 0x80, 0x02]); // 32,768 bytes
    request.put_bytes(b'x', 32_768);
    assert_eq!(shapes::API_VERSIONS.check(3, &request), Err(Misshapen::String(32_768)));
}

#[test]
fn the_table_is_in_order_and_has_no_api_twice() {
    let keys: Vec<i16> = APIS.iter().map(|row| row.key as i16).collect();
    let sorted: Vec<i16> = keys.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    assert_eq!(keys, sorted);
    for row in APIS {
        assert_eq!(format!("{:?}", row.key), row.name);
        assert!(row.min <= row.served_from && row.served_from <= row.max);
    }
}

fn frame(key: i16, version: i16) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_i16(key);
    frame.put_i16(version);
    frame.put_i32(77);
    frame.freeze()
}

#[test]
fn frames_outside_the_table_are_faults_except_api_versions() {
    assert!(matches!(Frame::parse(Bytes::from_static(&[0; 7])), Err(Fault::Short(7))));
    assert!(matches!(Frame::parse(frame(4, 0)), Err(Fault::UnknownApi(4))));
    assert!(matches!(Frame::parse(frame(-1, 0)), Err(Fault::UnknownApi(-1))));
    assert!(matches!(Frame::parse(frame(1, 3)), Err(Fault::UnsupportedVersion { version: 3, .. })));
    assert!(matches!(Frame::parse(frame(0, 14)), Err(Fault::UnsupportedVersion { .. })));
    assert!(matches!(Frame::parse(frame(0, -1)), Err(Fault::UnsupportedVersion { .. })));
    for (key, version) in [(0, 0), (0, 13), (1, 4), (18, 5), (18, 30_000), (18, -1)] {
        assert_eq!(Frame::parse(frame(key, version)).expect("it is answered").correlation_id(), 77);
    }
}

#[test]
fn an_unknown_version_of_api_versions_gets_the_list_in_version_0() {
    let Reply::Now(encoded) = handshake::unsupported() else { panic!("at once") };
    let mut body = Bytes::from(encoded.concat());
    let response = m::ApiVersionsResponse::decode(&mut body, 0).unwrap();
    assert!(body.is_empty());
    assert_eq!(response.error_code, 35);
    let served: Vec<_> = response.api_keys.iter().map(|api| (api.api_key, api.min_version, api.max_version)).collect();
    let table: Vec<_> = APIS.iter().map(|row| (row.key as i16, row.min, row.max)).collect();
    assert_eq!(served, table);
    assert!(served.contains(&(0, 0, 13)), "Produce is advertised from 0 (KAFKA-18659)");
}

#[test]
fn a_header_with_more_tagged_fields_than_a_request_may_have_is_refused_before_it_is_decoded() {
    use crate::config::limits::REQUEST_TAGGED_FIELDS_MAX;
    let row = APIS.iter().find(|row| row.key == ApiKey::Metadata).unwrap();
    let frame = |fields: usize| {
        let mut frame = BytesMut::from(&b"\0\x03\0\x0c\0\0\0\x07\0\x02me"[..]);
        put_varint(&mut frame, fields);
        for tag in 0..fields {
            put_varint(&mut frame, tag);
            frame.put_u8(0);
        }
        frame.put_slice(b"body");
        frame.freeze()
    };
    let mut most = frame(REQUEST_TAGGED_FIELDS_MAX);
    let header = decode_header(row, 12, &mut most).unwrap();
    assert_eq!((header.correlation_id, header.client_id.as_deref(), &most[..]), (7, Some("me"), &b"body"[..]));
    let more = decode_header(row, 12, &mut frame(REQUEST_TAGGED_FIELDS_MAX + 1));
    assert!(matches!(more, Err(Fault::Header { .. })), "{more:?}");
}

#[test]
fn a_header_cut_anywhere_is_refused_in_every_version() {
    let whole = b"\0\x03\0\x0c\0\0\0\x07\0\x02me\x01\x05\x01x";
    assert_eq!(shape::check_header(2, whole), Ok(&b""[..]));
    assert_eq!(shape::check_header(1, whole), Ok(&b"\x01\x05\x01x"[..]));
    for cut in 0..whole.len() {
        assert!(shape::check_header(2, &whole[..cut]).is_err(), "cut at {cut}");
    }
    assert_eq!(shape::check_header(1, b"\0\x03\0\0\0\0\0\x07\xff\xfe"), Err(Misshapen::Negative(-2)));
}

fn put_varint(out: &mut BytesMut, mut value: usize) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}
