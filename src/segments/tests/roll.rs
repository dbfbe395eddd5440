//! When a segment ends: by size, by time, by its indexes; the same on every replica.

use kafka_protocol::records::Compression;

use super::time::timed;
use super::*;

/// A topic whose segments end by nothing but what is changed here.
fn world_with(change: impl FnOnce(&mut TopicSettings)) -> World {
    let mut world = World::new(1);
    world.settings.segment_bytes = 1 << 30;
    change(&mut world.settings);
    world.create(1, "topic", 1);
    world
}

/// Base offsets of the segments.
fn bases(world: &World) -> Vec<i64> {
    world.flush();
    world.segments.facts(&[partition(1, 0)])[0].segments.iter().map(|segment| segment.base.0).collect()
}

/// Appends one record with that timestamp by an entry of that time.
fn append_at(world: &mut World, timestamp: i64, now_ms: i64) {
    let appended = vec![world.appended(partition(1, 0), timed(&[timestamp], Compression::None))];
    world.apply(Effects { now_ms, appended, ..Effects::default() });
    world.publish();
}

#[test]
fn a_segment_ends_when_a_batch_is_later_than_its_first_by_more_than_segment_ms() {
    let mut world = world_with(|settings| settings.segment_ms = 100);
    // Kafka compares greatest timestamps of batches: going back in time ends nothing.
    for timestamp in [1_000, 1_100, 500, 1_101, 1_150, 1_201, 1_202] {
        append_at(&mut world, timestamp, 0);
    }
    assert_eq!(bases(&world), [0, 3, 6]);
    world.settings.segment_ms = 1_000;
    world.set(1);
    append_at(&mut world, 1_400, 0);
    assert_eq!(bases(&world), [0, 3, 6], "the change takes effect");
}

#[test]
fn without_timestamps_the_times_of_entries_count() {
    let mut world = world_with(|settings| settings.segment_ms = 100);
    for now_ms in [5_000, 5_050, 5_100, 5_101, 5_120] {
        append_at(&mut world, -1, now_ms);
    }
    assert_eq!(bases(&world), [0, 3]);
    let greatest = world.segments.facts(&[partition(1, 0)])[0].segments[0].greatest_ms;
    assert_eq!(greatest, 5_100, "retention goes by them too");
}

#[test]
fn a_segment_ends_when_an_index_is_full() {
    // Every second batch of 3,000 bytes gets an entry of the offset index, and of the time index if it is later.
    let filled = |index_bytes, later: i64| {
        let mut world = world_with(|settings| settings.segment_index_bytes = index_bytes);
        for n in 0..40 {
            let value = Bytes::from(vec![b'v'; 3_000]);
            world.append(partition(1, 0), super::time::timed_with(&[1_000 + n * later], Compression::None, &value));
        }
        bases(&world)
    };
    assert_eq!(filled(1 << 20, 1), [0]);
    let by_offsets = filled(24, 0);
    let by_times = filled(48, 1);
    assert!(by_offsets.len() > 3 && by_times.len() > 3, "{by_offsets:?} {by_times:?}");
    for logs in [by_offsets, by_times] {
        let lengths: Vec<i64> = logs.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(lengths.windows(2).all(|pair| pair[0] == pair[1]), "{lengths:?}");
    }
    assert_eq!(filled(1, 1), (0..40).collect::<Vec<_>>(), "at least a batch each");
}

#[test]
fn what_a_segment_ends_by_survives_a_restart() {
    let mut world = world_with(|settings| settings.segment_ms = 100);
    append_at(&mut world, 1_000, 0);
    append_at(&mut world, -1, 70);
    world.checkpoint().unwrap();
    world.segments.close();
    let disk = world.disk.clone();
    let mut world = world.reopen(disk);
    append_at(&mut world, 1_100, 0);
    append_at(&mut world, 1_101, 0);
    assert_eq!(bases(&world), [0, 3]);
}
