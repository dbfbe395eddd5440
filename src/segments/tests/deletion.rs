//! Deleted and recreated topics.

use super::*;

fn names(world: &World) -> Vec<String> {
    world.disk.list(Path::new(DIR)).unwrap().iter().map(|path| path.display().to_string()).collect()
}

#[test]
fn files_of_a_deleted_topic_stay_until_the_next_manifest() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    world.append(partition(1, 0), opaque(1, 100, 1));
    world.checkpoint().unwrap();
    world.delete(1);
    world.flush();
    let deleted = format!("{}-0.delete", topic(1));
    assert_eq!(names(&world), [deleted, "manifest".to_owned()]);
    world.checkpoint().unwrap();
    assert_eq!(names(&world), ["manifest"]);
    assert!(world.segments.shared.table.read().is_empty());
}

#[test]
fn a_topic_created_again_under_its_name_starts_empty() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    (0..9).for_each(|n| world.append(partition(1, 0), opaque(1, 900, n)));
    world.flush();
    world.delete(1);
    world.create(2, "topic", 1);
    let bounds = world.segments.bounds(partition(2, 0), world.last_index()).unwrap();
    assert_eq!(bounds, Bounds { log_start_offset: Offset(0), high_watermark: Offset(0) });
    world.append(partition(2, 0), opaque(1, 10, 42));
    world.flush();
    world.assert_reads_as_expected();
    assert_eq!(content(&world.disk, Path::new("/segments/topic-0/00000000000000000000.log")).len(), 71);
    let read = world.segments.read(partition(1, 0), world.last_index(), Offset(0), 1, true);
    assert!(matches!(read, Err(SegmentError::UnknownPartition)));
}

#[test]
fn deletion_and_recreation_survive_power_cuts() {
    for seed in 0..60 {
        let mut world = World::new(seed);
        world.create(1, "topic", 2);
        (0..8).for_each(|n| world.append(partition(1, n % 2), opaque(1, 700, n as u8)));
        world.checkpoint().unwrap();
        world.append(partition(1, 0), opaque(1, 200, 1));
        world.delete(1);
        world.create(2, "topic", 2);
        world.append(partition(2, 0), opaque(3, 300, 9));
        world.flush();
        let survivor = world.disk.crash();
        let mut world = world.reopen(survivor);
        world.append(partition(2, 1), opaque(1, 30, 8));
        world.flush();
        world.assert_reads_as_expected();
        let files = files(&world.disk);
        assert_eq!(files.keys().filter(|path| path.starts_with("/segments/topic-")).count(), 2, "seed {seed}");
        world.checkpoint().unwrap();
        assert_eq!(names(&world), ["manifest", "topic-0", "topic-1"]);
    }
}

#[test]
fn a_power_cut_at_any_step_of_deletion_and_checkpoint_is_survived() {
    let mut cut = 0;
    loop {
        cut += 1;
        let mut world = World::new(u64::from(cut));
        world.create(1, "topic", 2);
        (0..8).for_each(|n| world.append(partition(1, n % 2), opaque(1, 700, n as u8)));
        world.checkpoint().unwrap();
        world.disk.cut_power_in(cut);
        world.append(partition(1, 0), opaque(1, 200, 1));
        world.delete(1);
        world.create(2, "topic", 2);
        world.append(partition(2, 0), opaque(3, 300, 9));
        let finished = world.checkpoint().is_ok();
        let survivor = world.disk.crash();
        let mut world = world.reopen(survivor);
        world.append(partition(2, 1), opaque(1, 30, 8));
        world.checkpoint().unwrap();
        world.assert_reads_as_expected();
        assert_eq!(names(&world), ["manifest", "topic-0", "topic-1"], "cut at {cut}");
        let logs = files(&world.disk).into_values().map(|bytes| bytes.len());
        assert_eq!(logs.collect::<Vec<_>>(), [361, 91], "cut at {cut}");
        if finished {
            break;
        }
    }
    assert!(cut > 10, "the checkpoint took {cut} steps");
}
