//! A full disk, a full queue, a failing disk.

use std::time::{Duration, Instant};

use super::*;

/// Waits for something that another thread does, which has no event to wait for.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_full_disk_loses_nothing_and_ends_when_space_returns() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    world.append(partition(1, 0), opaque(1, 100, 0));
    world.flush();
    world.disk.set_capacity(1_000);
    (1..9).for_each(|n| world.append(partition(1, 0), opaque(1, 700, n)));
    eventually("is_full", || world.segments.is_full());
    world.assert_reads_as_expected();
    assert_eq!(world.segments.failure(), None);
    world.disk.set_capacity(u64::MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(20), world.segments.until_room()).await })
        .unwrap();
    world.flush();
    assert!(!world.segments.is_full());
    world.assert_reads_as_expected();
}

#[test]
fn a_checkpoint_that_finds_no_space_leaves_the_old_one() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    world.append(partition(1, 0), opaque(1, 100, 0));
    world.checkpoint().unwrap();
    let free = |world: &World| world.disk.free_bytes(Path::new(DIR)).unwrap();
    let used = u64::MAX - free(&world);
    world.disk.set_capacity(used + 10);
    assert!(matches!(world.checkpoint(), Err(SegmentError::Io { .. })));
    assert_eq!(world.segments.failure(), None);
    let survivor = world.disk.crash();
    survivor.set_capacity(u64::MAX);
    world.reopen(survivor).assert_reads_as_expected();
}

#[test]
fn too_many_unwritten_bytes_are_full_until_written() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    world.disk.set_capacity(0);
    let limit = options().unwritten_bytes_max;
    (0..limit / 100_000 + 1).for_each(|n| world.append(partition(1, 0), opaque(1, 100_000, n as u8)));
    assert!(world.segments.is_full());
    world.disk.set_capacity(u64::MAX);
    world.flush();
    assert!(!world.segments.is_full());
}

#[test]
fn tiny_batches_are_counted_with_what_they_take_besides_their_bytes() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    world.disk.set_capacity(0);
    let tiny = opaque(1, 1, 7);
    let each = tiny.size_bytes() + SEGMENT_BATCH_OVERHEAD_BYTES;
    let fitting = options().unwritten_bytes_max.div_ceil(each);
    (1..fitting).for_each(|_| world.append(partition(1, 0), tiny.clone()));
    assert!(!world.segments.is_behind());
    world.append(partition(1, 0), tiny);
    assert!(world.segments.is_behind());
    world.disk.set_capacity(u64::MAX);
    world.flush();
    assert!(!world.segments.is_behind(), "what is taken off is what was put on");
}

#[test]
fn closing_gives_up_on_a_full_disk() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    world.disk.set_capacity(0);
    world.append(partition(1, 0), opaque(1, 100, 0));
    eventually("is_full", || world.segments.is_full());
    world.segments.close();
    assert!(world.checkpoint().is_err(), "a checkpoint after the end is answered");
    let survivor = world.disk.crash();
    survivor.set_capacity(u64::MAX);
    world.reopen(survivor).assert_reads_as_expected();
}

#[test]
fn any_other_error_is_a_failure_with_the_files_name() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    world.append(partition(1, 0), opaque(1, 100, 0));
    world.disk.fail_sync_in(1);
    assert!(world.checkpoint().is_err());
    let failure = world.segments.failure().expect("failed");
    assert!(failure.contains("/segments/topic-0/00000000000000000000.log"), "{failure}");
    assert!(world.segments.is_full());
    assert!(world.checkpoint().is_err(), "no checkpoint after a failed sync");
}
