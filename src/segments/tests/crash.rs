//! Rolls, restarts, power cuts, damage.

use super::*;

/// The same log without any interruption.
pub(super) fn undisturbed(log: &[Step]) -> World {
    let mut world = World::new(0);
    for step in log {
        world.settings = step.settings.clone();
        world.apply(step.effects.clone());
        world.publish();
    }
    world.flush();
    world
}

fn filled(seed: u64, entries: u64) -> World {
    let mut world = World::new(seed);
    world.create(1, "topic", 2);
    fill(&mut world, entries);
    world
}

fn fill(world: &mut World, entries: u64) {
    for n in 0..entries {
        let appended = [0, 1].map(|number| {
            let bytes = 50 + (n as usize * 97 + number as usize * 31) % 900;
            world.appended(partition(1, number), opaque(1 + (n % 4) as i32, bytes, n as u8))
        });
        world.apply(Effects { appended: appended.to_vec(), ..Effects::default() });
        world.publish();
    }
}

#[test]
fn segments_roll_at_segment_bytes_whatever_the_writes_were() {
    let (together, mut apart) = (filled(1, 60), World::new(1));
    together.flush();
    for step in together.log.clone() {
        apart.apply(step.effects);
        apart.flush();
    }
    let files = files(&together.disk);
    assert!(files == super::files(&apart.disk));
    let logs: Vec<_> = files.iter().filter(|(path, _)| path.ends_with(".log")).collect();
    assert!(logs.len() > 10);
    assert!(logs.iter().all(|(_, bytes)| (1..=SEGMENT_BYTES as usize).contains(&bytes.len())));
    assert!(files.contains_key("/segments/topic-1/00000000000000000000.log"));
    assert!(files.keys().any(|path| path.ends_with(".timeindex")));
}

#[test]
fn a_batch_larger_than_a_segment_gets_one_of_its_own() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    for bytes in [10, 9_000, 10] {
        world.append(partition(1, 0), opaque(1, bytes, 1));
    }
    world.flush();
    let logs = files(&world.disk).into_keys().filter(|path| path.ends_with(".log"));
    assert_eq!(logs.count(), 3);
    world.assert_reads_as_expected();
}

#[test]
fn after_any_power_cut_the_log_makes_the_same_bytes_again() {
    for seed in 0..60 {
        let mut world = filled(seed, 10 + seed % 17);
        world.checkpoint().unwrap();
        fill(&mut world, 5 + seed % 23);
        if seed % 2 == 0 {
            world.flush();
        }
        if seed % 3 == 0 {
            world.checkpoint().unwrap();
            fill(&mut world, 7);
        }
        let survivor = world.disk.crash();
        let world = world.reopen(survivor);
        world.assert_reads_as_expected();
        world.flush();
        world.assert_reads_as_expected();
        assert!(files(&world.disk) == files(&undisturbed(&world.log).disk), "seed {seed}");
        world.checkpoint().unwrap();
    }
}

#[test]
fn a_power_cut_around_a_checkpoint_leaves_the_old_one_or_the_new_one() {
    for fail_at in 1..12 {
        let mut world = filled(fail_at, 20);
        world.checkpoint().unwrap();
        fill(&mut world, 20);
        world.disk.fail_sync_in(fail_at as u32);
        let failed = world.checkpoint().is_err();
        assert_eq!(failed, world.segments.failure().is_some(), "a failed sync is final");
        let survivor = world.disk.crash();
        let world = world.reopen(survivor);
        world.flush();
        world.assert_reads_as_expected();
        assert!(files(&world.disk) == files(&undisturbed(&world.log).disk), "fail at {fail_at}");
    }
}

#[test]
fn files_and_folders_that_the_manifest_does_not_name_are_removed() {
    let world = filled(1, 20);
    world.checkpoint().unwrap();
    world.segments.close();
    let disk = world.disk.clone();
    for folder in ["/segments/gone-0", "/segments/kept"] {
        disk.create_dir_all(Path::new(folder)).unwrap();
    }
    for path in ["/segments/gone-0/a.log", "/segments/topic-0/00000000000000099999.log", "/segments/manifest.tmp"] {
        disk.open(Path::new(path), true).unwrap();
    }
    let world = world.reopen(disk);
    let names: Vec<_> = world.disk.list(Path::new(DIR)).unwrap().iter().map(|p| p.display().to_string()).collect();
    assert_eq!(names, ["kept", "manifest", "topic-0", "topic-1"]);
    assert!(files(&world.disk) == files(&undisturbed(&world.log).disk));
}

#[test]
fn missing_and_wrong_indexes_are_made_again() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    world.segments.configure(topic(1), &settings(1 << 20));
    (0..60).for_each(|n| world.append(partition(1, 0), opaque(2, 1_000, n)));
    world.segments.configure(topic(1), &settings(10));
    world.append(partition(1, 0), opaque(1, 10, 0));
    world.checkpoint().unwrap();
    world.segments.close();
    let before = files(&world.disk);
    let index = Path::new("/segments/topic-0/00000000000000000000.index");
    assert!(content(&world.disk, index).len() >= 10 * 8);
    let disk = world.disk.clone();
    disk.remove_file(index).unwrap();
    let world = world.reopen(disk.clone());
    assert!(files(&world.disk) == before, "missing");
    world.segments.close();
    disk.open(index, false).unwrap().set_len(16).unwrap();
    let world = world.reopen(disk);
    assert!(files(&world.disk) == before, "too short");
}

#[test]
fn a_wrong_index_of_the_active_segment_is_noticed_by_its_checksum() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    world.segments.configure(topic(1), &settings(1 << 20));
    (0..60).for_each(|n| world.append(partition(1, 0), opaque(2, 1_000, n)));
    world.checkpoint().unwrap();
    world.segments.close();
    let before = files(&world.disk);
    let disk = world.disk.clone();
    let index = Path::new("/segments/topic-0/00000000000000000000.index");
    disk.open(index, false).unwrap().write_all_at(&[&[0xff; 8]], 24).unwrap();
    let world = world.reopen(disk);
    assert!(files(&world.disk) == before);
}

#[test]
fn a_reader_passes_over_an_index_that_points_astray() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    world.segments.configure(topic(1), &settings(1 << 20));
    (0..60).for_each(|n| world.append(partition(1, 0), opaque(2, 1_000, n)));
    world.flush();
    let index = Path::new("/segments/topic-0/00000000000000000000.index");
    let file = world.disk.open(index, false).unwrap();
    for entry in 0..file.len().unwrap() / 8 {
        file.write_all_at(&[&[0, 0, 7, 7]], entry * 8 + 4).unwrap();
    }
    world.assert_reads_as_expected();
}

/// Closes, changes the disk, and tries to open again.
fn open_after(world: World, change: impl FnOnce(&FaultyDisk)) -> SegmentError {
    world.segments.close();
    change(&world.disk);
    match Segments::open(Arc::new(world.disk.clone()), options()) {
        Ok(_) => panic!("damage was not noticed"),
        Err(error) => error,
    }
}

#[test]
fn a_segment_shorter_than_the_manifest_says_is_refused_by_name_and_position() {
    let world = filled(1, 20);
    world.checkpoint().unwrap();
    let path = Path::new("/segments/topic-0/00000000000000000000.log");
    let error = open_after(world, |disk| disk.open(path, false).unwrap().set_len(100).unwrap());
    assert!(matches!(&error, SegmentError::Damaged { path: of, position: 100, .. } if of == path), "{error}");
    let world = filled(1, 20);
    world.checkpoint().unwrap();
    let error = open_after(world, |disk| disk.remove_file(path).unwrap());
    assert!(matches!(&error, SegmentError::Damaged { path: of, position: 0, .. } if of == path), "{error}");
}

#[test]
fn every_flipped_byte_of_the_manifest_is_noticed() {
    let world = filled(1, 3);
    world.checkpoint().unwrap();
    world.segments.close();
    let manifest = Path::new("/segments/manifest");
    for position in 0..content(&world.disk, manifest).len() as u64 {
        world.disk.damage(manifest, position, 0x10);
        let error = Segments::open(Arc::new(world.disk.clone()), options()).expect_err("damaged");
        assert!(matches!(&error, SegmentError::Damaged { path, .. } if path == manifest), "{position}: {error}");
        world.disk.damage(manifest, position, 0x10);
    }
    Segments::open(Arc::new(world.disk.clone()), options()).expect("whole again");
}

#[test]
fn a_damaged_batch_in_a_file_is_an_error_of_the_read_with_its_position() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    (0..10).for_each(|n| world.append(partition(1, 0), opaque(1, 500, n)));
    world.checkpoint().unwrap();
    world.flush();
    world.disk.damage(Path::new("/segments/topic-0/00000000000000000000.log"), 561 + 16, 0xff);
    let read = |from| world.segments.read(partition(1, 0), world.last_index(), Offset(from), 1, true);
    assert!(read(0).is_ok());
    assert!(matches!(read(1), Err(SegmentError::Damaged { position: 561, .. })));
}

#[test]
fn open_files_stay_bounded() {
    let mut world = World::new(1);
    world.create(1, "topic", 40);
    for round in 0..3 {
        for number in 0..40 {
            world.append(partition(1, number), opaque(1, 400, round));
            world.flush();
        }
    }
    assert!(world.segments.shared.files.open_count() <= 8);
    world.assert_reads_as_expected();
    assert!(world.segments.shared.files.open_count() <= 8);
}
