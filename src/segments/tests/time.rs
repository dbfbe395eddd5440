//! Time queries, exact to the record.

use bytes::BytesMut;
use kafka_protocol::records::{Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType};

use super::*;

const CODECS: [Compression; 5] =
    [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

/// A batch with these timestamps.
pub(super) fn timed(timestamps: &[i64], compression: Compression) -> RecordBatch {
    timed_with(timestamps, compression, &Bytes::from(vec![b'v'; 100]))
}

pub(super) fn timed_with(timestamps: &[i64], compression: Compression, value: &Bytes) -> RecordBatch {
    let records: Vec<Record> = timestamps
        .iter()
        .zip(0..)
        .map(|(timestamp, offset)| Record {
            transactional: false,
            control: false,
            delete_horizon: false,
            partition_leader_epoch: -1,
            producer_id: -1,
            producer_epoch: -1,
            timestamp_type: TimestampType::Creation,
            offset,
            sequence: offset as i32 - 1,
            timestamp: *timestamp,
            key: (offset % 2 == 0).then(|| Bytes::from_static(b"key")),
            value: Some(value.clone()),
            headers: Default::default(),
        })
        .collect();
    let mut bytes = BytesMut::new();
    RecordBatchEncoder::encode(&mut bytes, &records, &RecordEncodeOptions { version: 2, compression }).unwrap();
    RecordBatch::check(bytes.freeze()).unwrap()
}

/// Timestamps that go up and down: 60 batches of 4.
fn timestamps() -> Vec<[i64; 4]> {
    (0..60_i64).map(|n| [0, 1, 2, 3].map(|k| 1_000 + n * 10 + (n * 7 + k * 13) % 29)).collect()
}

fn world_of(compression: Compression) -> World {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    timestamps().iter().for_each(|batch| world.append(partition(1, 0), timed(batch, compression)));
    world
}

fn first_at(all: &[i64], timestamp: i64) -> Option<(i64, Offset)> {
    let at = all.iter().position(|of_record| *of_record >= timestamp)?;
    Some((all[at], Offset(at as i64)))
}

#[test]
fn times_are_found_exactly_with_every_codec_in_tails_and_files() {
    let all: Vec<i64> = timestamps().concat();
    for compression in CODECS {
        let world = world_of(compression);
        for written in [false, true] {
            if written {
                world.flush();
            }
            for timestamp in 990..1_640 {
                let found =
                    world.segments.offset_for_timestamp(partition(1, 0), world.last_index(), timestamp).unwrap();
                assert_eq!(found, first_at(&all, timestamp), "{compression:?} at {timestamp}, written: {written}");
            }
        }
    }
}

#[test]
fn a_time_query_sees_no_later_entry() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    let pin = world.segments.pin();
    timestamps().iter().for_each(|batch| world.append(partition(1, 0), timed(batch, Compression::Zstd)));
    let all: Vec<i64> = timestamps().concat();
    for visible in 0..=world.last_index().0 {
        let seen = &all[..4 * visible as usize];
        let visible = LogIndex(visible);
        let found = |timestamp| world.segments.offset_for_timestamp(partition(1, 0), visible, timestamp).unwrap();
        let max = world.segments.max_timestamp(partition(1, 0), visible).unwrap();
        let expected = seen.iter().max().map(|max| first_at(seen, *max).unwrap());
        assert_eq!(max, expected, "at {visible:?}");
        assert_eq!(found(seen.iter().max().map_or(0, |max| max + 1)), None);
        assert_eq!(found(0), first_at(seen, 0));
    }
    drop(pin);
}

#[test]
fn the_greatest_timestamp_is_found_wherever_it_is() {
    for at in [0, 3, 57, 118, 119] {
        for compression in [Compression::None, Compression::Lz4] {
            let mut world = World::new(1);
            world.create(1, "topic", 1);
            for n in 0..60 {
                let batch = [0, 1].map(|k| if n * 2 + k == at { 9_999 } else { 1_000 + n });
                world.append(partition(1, 0), timed(&batch, compression));
            }
            let max = |world: &World| world.segments.max_timestamp(partition(1, 0), world.last_index()).unwrap();
            assert_eq!(max(&world), Some((9_999, Offset(at))), "in the tail");
            world.flush();
            assert_eq!(max(&world), Some((9_999, Offset(at))), "written");
            world.checkpoint().unwrap();
            world.segments.close();
            let disk = world.disk.clone();
            assert_eq!(max(&world.reopen(disk)), Some((9_999, Offset(at))), "reopened");
        }
    }
}

#[test]
fn with_log_append_time_every_record_has_the_batchs_time() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    world.append(partition(1, 0), timed(&[5, 6], Compression::Gzip).with_log_append_time(7_000));
    let visible = world.last_index();
    let found = world.segments.offset_for_timestamp(partition(1, 0), visible, 6_500).unwrap();
    assert_eq!(found, Some((7_000, Offset(0))));
    assert_eq!(world.segments.max_timestamp(partition(1, 0), visible).unwrap(), Some((7_000, Offset(0))));
}

#[test]
fn an_empty_partition_has_no_times() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    let visible = world.last_index();
    assert_eq!(world.segments.offset_for_timestamp(partition(1, 0), visible, 0).unwrap(), None);
    assert_eq!(world.segments.max_timestamp(partition(1, 0), visible).unwrap(), None);
}

#[test]
fn records_that_cannot_be_decoded_answer_as_a_whole_batch() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    world.append(partition(1, 0), opaque(3, 50, 0xff));
    let found = world.segments.offset_for_timestamp(partition(1, 0), world.last_index(), 1_002).unwrap();
    assert_eq!(found, Some((1_002, Offset(0))));
}

#[test]
fn a_batch_that_unpacks_without_end_answers_as_a_whole() {
    for compression in [Compression::Gzip, Compression::Zstd] {
        let mut world = World::new(1);
        world.create(1, "topic", 1);
        let value = vec![0; crate::config::limits::UNPACKED_BYTES_MAX as usize + 1_000];
        let batch = timed_with(&[5, 6], compression, &value.into());
        assert!(batch.size_bytes() < 100_000);
        world.append(partition(1, 0), batch);
        let at =
            |timestamp| world.segments.offset_for_timestamp(partition(1, 0), world.last_index(), timestamp).unwrap();
        assert_eq!(at(5), Some((5, Offset(0))), "the first record is within the bound");
        assert_eq!(at(6), Some((6, Offset(0))), "the second is not");
    }
}

#[test]
fn bare_snappy_blocks_are_read_and_lying_ones_refused() {
    let plain = timed(&[5, 9, 7], Compression::None);
    let with_records = |records: &[u8]| {
        let mut bytes = plain.bytes()[..61].to_vec();
        bytes.extend_from_slice(records);
        let length = bytes.len() as i32 - 12;
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        bytes[22] |= 2;
        RecordBatch::stored(bytes.into())
    };
    let packed = snap::raw::Encoder::new().compress_vec(&plain.bytes()[61..]).unwrap();
    let first = |batch: &RecordBatch| records::first_where(batch, 0, |timestamp| timestamp >= 6);
    assert_eq!(first(&with_records(&packed)).unwrap(), Some((9, 1)));
    let mut framed = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
    framed.extend((packed.len() as u32).to_be_bytes());
    framed.extend(&packed);
    assert_eq!(first(&with_records(&framed)).unwrap(), Some((9, 1)));
    // Claims 4 GiB - 1.
    let lying = [&[0xff, 0xff, 0xff, 0xff, 0x0f], &packed[2..]].concat();
    assert!(first(&with_records(&lying)).is_err());
    for cut in 0..framed.len() {
        let _ = first(&with_records(&framed[..cut]));
    }
}
