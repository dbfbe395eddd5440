//! A node that takes another's checkpoint: bytes, power cuts, what is reused.

use super::*;

/// Answers what `incoming` asks for from `source`, until it is complete or so many pieces have come.
fn pull(source: &Segments, incoming: &mut Incoming, pieces_max: usize) {
    for _ in 0..pieces_max {
        let Some(asked) = incoming.wants() else { break };
        let piece = source.piece(&asked.want).expect("it is held");
        incoming.got(&asked, &piece).expect("it fits");
    }
}

fn receive(source: &World, target: &World) -> (Staged, TransferProgress) {
    let offer = source.segments.offer().expect("a checkpoint");
    let mut incoming = Incoming::begin(target.segments.clone(), offer).unwrap();
    pull(&source.segments, &mut incoming, usize::MAX);
    assert!(incoming.is_complete());
    let progress = incoming.progress();
    assert_eq!(progress.done, progress.total);
    (incoming.finish().unwrap(), progress)
}

fn install(target: &mut World, staged: Staged) -> Result<(), SegmentError> {
    let (done, waiting) = mpsc::channel();
    target.segments.install(Arc::new(staged), Box::new(move |result| done.send(result).expect("the test waits")));
    let installed = waiting.recv().expect("it is always answered")?;
    target.segments.adopt(installed);
    Ok(())
}

/// A node that has applied the first `entries` of another's log.
fn behind(source: &World, seed: u64, entries: usize) -> World {
    let mut world = World::new(seed);
    for step in source.log[..entries].iter().cloned() {
        world.apply(step.effects);
        world.publish();
    }
    world
}

/// What `target` must contain once it has `source`'s checkpoint and the rest of its log.
fn catch_up(source: &World, target: &mut World, applied: usize) {
    for step in &source.log[applied..] {
        follow(&target.segments, step);
    }
    target.segments.publish(source.last_index());
    target.log = source.log.clone();
    target.expected = source.expected.clone();
    target.starts = source.starts.clone();
    target.flush();
}

fn assert_same(source: &World, target: &World) {
    source.flush();
    target.assert_reads_as_expected();
    assert!(files(&source.disk) == files(&target.disk), "the files differ");
}

/// Two topics; one is deleted and made again in the middle.
fn source(seed: u64) -> (World, usize) {
    let mut world = World::new(seed);
    world.create(1, "kept", 2);
    world.create(2, "again", 1);
    let mut middle = 0;
    for n in 0..60u8 {
        world.append(partition(1, i32::from(n % 2)), opaque(1 + i32::from(n % 3), 200 + usize::from(n) * 7, n));
        if n == 30 {
            world.append(partition(2, 0), opaque(2, 900, n));
            middle = world.log.len();
        }
        if n == 40 {
            world.delete(2);
            world.create(3, "again", 1);
        }
        if n > 40 {
            world.append(partition(3, 0), opaque(1, 300, n));
        }
    }
    (world, middle)
}

#[test]
fn an_empty_node_gets_the_same_bytes_and_goes_on_with_the_log() {
    let (mut leader, _) = source(1);
    leader.checkpoint().unwrap();
    let at = leader.log.len();
    (0..5).for_each(|n| leader.append(partition(3, 0), opaque(1, 100, n)));
    let mut target = World::new(2);
    let (staged, progress) = receive(&leader, &target);
    assert_eq!(staged.checkpoint().state, leader_state(at - 1));
    assert!(progress.pulled > progress.total, "the manifest counts too");
    install(&mut target, staged).unwrap();
    assert_eq!(target.segments.visible(), Some(LogIndex(at as u64 - 1)));
    catch_up(&leader, &mut target, at);
    assert_same(&leader, &target);
    target.append(partition(1, 0), opaque(1, 5_000, 9));
    target.checkpoint().unwrap();
    let disk = target.disk.crash();
    let target = target.reopen(disk);
    target.assert_reads_as_expected();
}

fn leader_state(index: usize) -> String {
    let index = LogIndex(index as u64);
    format!("state at {:?}", Some((index, term_at(index))))
}

#[test]
fn what_is_here_already_is_not_pulled() {
    let (leader, middle) = source(3);
    leader.checkpoint().unwrap();
    let mut target = behind(&leader, 4, middle);
    target.flush();
    let (staged, progress) = receive(&leader, &target);
    let missing: usize = leader.log[middle..].iter().flat_map(|step| &step.effects.appended).map(size).sum();
    let manifest = leader.segments.offer().unwrap().manifest_bytes as usize;
    let indexes = 200;
    assert!(progress.pulled as usize <= missing + manifest + indexes + 2 * 4096, "{progress:?} of {missing}");
    install(&mut target, staged).unwrap();
    catch_up(&leader, &mut target, leader.log.len());
    assert_same_after_cleanup(&leader, &target);
}

fn size(appended: &Appended) -> usize {
    appended.records.size_bytes()
}

/// Folders of deleted topics go with the next checkpoint.
fn assert_same_after_cleanup(source: &World, target: &World) {
    target.checkpoint().unwrap();
    assert_same(source, target);
    let names = target.disk.list(Path::new(DIR)).unwrap();
    assert!(!names.iter().any(|name| name.ends_with("incoming") || name.to_string_lossy().contains("delete")));
}

#[test]
fn own_bytes_that_differ_are_pulled_again() {
    let (leader, middle) = source(5);
    leader.checkpoint().unwrap();
    let mut target = behind(&leader, 6, middle);
    target.checkpoint().unwrap();
    let active = files(&target.disk).into_keys().rfind(|path| path.contains("kept-0") && path.ends_with(".log"));
    target.disk.damage(Path::new(&active.unwrap()), 70, 0xff);
    let (staged, _) = receive(&leader, &target);
    install(&mut target, staged).unwrap();
    catch_up(&leader, &mut target, leader.log.len());
    assert_same_after_cleanup(&leader, &target);
}

#[test]
fn a_transfer_goes_on_after_a_power_cut_with_what_is_there() {
    let (leader, _) = source(7);
    leader.checkpoint().unwrap();
    let mut least = u64::MAX;
    for pieces in [3, 9, 20, 27] {
        let target = World::new(8 + pieces as u64);
        let offer = leader.segments.offer().unwrap();
        let mut incoming = Incoming::begin(target.segments.clone(), offer).unwrap();
        pull(&leader.segments, &mut incoming, pieces);
        let before = incoming.progress();
        drop(incoming);
        let disk = target.disk.crash();
        let mut target = target.reopen(disk);
        let (staged, progress) = receive(&leader, &target);
        assert!(before.pulled > 0 && progress.done == progress.total);
        least = least.min(progress.pulled);
        install(&mut target, staged).unwrap();
        catch_up(&leader, &mut target, leader.log.len());
        assert_same_after_cleanup(&leader, &target);
    }
    let fresh = receive(&leader, &World::new(1)).1;
    assert!(least < fresh.pulled / 2, "{least} of {}", fresh.pulled);
}

#[test]
fn a_power_cut_at_any_step_leaves_the_old_checkpoint_or_the_new_one() {
    let (leader, middle) = source(9);
    leader.checkpoint().unwrap();
    let (mut old, mut new) = (0, 0);
    for step in 1.. {
        let mut target = behind(&leader, 1_000 + step, middle);
        target.checkpoint().unwrap();
        let offer = leader.segments.offer().unwrap();
        let mut incoming = Incoming::begin(target.segments.clone(), offer).unwrap();
        pull(&leader.segments, &mut incoming, usize::MAX);
        target.disk.cut_power_in(step as u32);
        let done = incoming.finish().and_then(|staged| install(&mut target, staged)).is_ok();
        let disk = target.disk.crash();
        drop(target.segments);
        let (segments, checkpoint) = Segments::open(Arc::new(disk.clone()), options()).unwrap();
        let checkpoint = checkpoint.expect("there was one");
        let at = checkpoint.applied.unwrap().0.0 as usize + 1;
        assert_eq!(checkpoint.state, leader_state(at - 1));
        assert_eq!(checkpoint.received, at == leader.log.len());
        assert!(at == middle || at == leader.log.len());
        assert!(at > middle || !done, "what was told is durable");
        *(if at == middle { &mut old } else { &mut new }) += 1;
        let mut target = World { disk, segments, ..World::new(0) };
        catch_up(&leader, &mut target, at);
        assert_same_after_cleanup(&leader, &target);
        if done {
            break;
        }
    }
    assert!(old > 10 && new > 1, "{old} old, {new} new");
}

#[test]
fn a_failed_sync_while_installing_is_final() {
    let (leader, _) = source(10);
    leader.checkpoint().unwrap();
    let mut target = World::new(11);
    let (staged, _) = receive(&leader, &target);
    target.disk.fail_sync_in(1);
    assert!(install(&mut target, staged).is_err());
    assert!(target.segments.failure().is_some());
}

#[test]
fn files_of_a_held_checkpoint_outlive_their_deletion() {
    let mut leader = World::new(12);
    leader.create(1, "topic", 1);
    (0..9).for_each(|n| leader.append(partition(1, 0), opaque(1, 900, n)));
    leader.checkpoint().unwrap();
    let at = leader.log.len();
    let target = World::new(13);
    let offer = leader.segments.offer().unwrap();
    let mut incoming = Incoming::begin(target.segments.clone(), offer).unwrap();
    pull(&leader.segments, &mut incoming, 2);
    leader.delete(1);
    leader.create(2, "topic", 1);
    leader.append(partition(2, 0), opaque(1, 20, 5));
    leader.checkpoint().unwrap();
    assert_eq!(leader.segments.held(), Some(offer.index));
    pull(&leader.segments, &mut incoming, usize::MAX);
    let mut target = target;
    install(&mut target, incoming.finish().unwrap()).unwrap();
    catch_up(&leader, &mut target, at);
    target.assert_reads_as_expected();
}

#[test]
fn readers_of_an_earlier_index_see_nothing_of_what_was_installed() {
    let (leader, middle) = source(14);
    leader.checkpoint().unwrap();
    let mut target = behind(&leader, 15, middle);
    let pin = target.segments.pin();
    let (staged, _) = receive(&leader, &target);
    install(&mut target, staged).unwrap();
    let bounds = target.segments.bounds(partition(1, 0), pin.visible().unwrap());
    assert!(matches!(bounds, Err(SegmentError::UnknownPartition)));
    assert!(target.segments.bounds(partition(1, 0), target.segments.visible().unwrap()).is_ok());
}

#[test]
fn a_topic_made_again_after_an_installation_keeps_its_files() {
    // The leader's log starts in the middle, or has no segment left; the target had begun to remove them itself, or not.
    for (start, noted) in [(6, false), (6, true), (18, false), (18, true)] {
        let mut leader = World::new(16);
        leader.create(1, "topic", 1);
        (0..9).for_each(|n| leader.append(partition(1, 0), opaque(2, 900, n)));
        let before = leader.log.len();
        leader.trim(partition(1, 0), start);
        let behind_at = if noted { leader.log.len() } else { before };
        leader.create(9, "other", 1);
        leader.checkpoint().unwrap();
        let mut target = behind(&leader, 17, before);
        target.checkpoint().unwrap();
        for step in &leader.log[before..behind_at] {
            follow(&target.segments, step);
        }
        target.flush();
        let (staged, _) = receive(&leader, &target);
        install(&mut target, staged).unwrap();
        let at = leader.log.len();
        leader.delete(1);
        leader.create(2, "topic", 1);
        leader.append(partition(2, 0), opaque(1, 40, 7));
        catch_up(&leader, &mut target, at);
        let live = Path::new("/segments/topic-0/00000000000000000000.log");
        assert_eq!(content(&target.disk, live).len(), 61 + 40, "{start} {noted}");
        target.checkpoint().unwrap();
        let paths: Vec<_> = files(&target.disk).into_keys().collect();
        assert_eq!(paths, [live.display().to_string()], "{start} {noted}");
        let disk = target.disk.crash();
        target.reopen(disk).assert_reads_as_expected();
    }
}

#[test]
fn segments_that_an_installation_left_over_go_with_the_next_checkpoint() {
    let mut leader = World::new(18);
    leader.create(1, "topic", 1);
    (0..9).for_each(|n| leader.append(partition(1, 0), opaque(2, 900, n)));
    let mut target = behind(&leader, 19, leader.log.len());
    target.checkpoint().unwrap();
    leader.trim(partition(1, 0), 8);
    let at = leader.log.len();
    follow(&target.segments, &leader.log[at - 1]);
    leader.create(9, "other", 1);
    leader.checkpoint().unwrap();
    let (staged, _) = receive(&leader, &target);
    install(&mut target, staged).unwrap();
    catch_up(&leader, &mut target, leader.log.len());
    let first = Path::new("/segments/topic-0/00000000000000000000.log");
    assert!(target.disk.open(first, false).is_ok(), "it is there until then");
    assert_same_after_cleanup(&leader, &target);
}

#[test]
fn a_manifest_that_does_not_decode_is_an_error_though_its_pieces_are_right() {
    let (leader, _) = source(20);
    leader.checkpoint().unwrap();
    let target = World::new(21);
    let mut incoming = Incoming::begin(target.segments.clone(), leader.segments.offer().unwrap()).unwrap();
    let asked = incoming.wants().unwrap();
    let mut piece = leader.segments.piece(&asked.want).unwrap();
    assert_eq!(piece.bytes.len() as u64, incoming.offer().manifest_bytes, "it is one piece");
    piece.bytes = vec![7; piece.bytes.len()].into();
    assert!(!piece.answers(&asked.want));
    piece.crc = crc32c::crc32c(&piece.bytes);
    assert!(piece.answers(&asked.want));
    assert!(matches!(incoming.got(&asked, &piece), Err(SegmentError::Damaged { .. })));
}

#[test]
fn an_index_that_stays_wrong_ends_the_transfer() {
    let (leader, _) = source(22);
    leader.checkpoint().unwrap();
    let target = World::new(23);
    let index = files(&leader.disk).into_keys().find(|path| path.ends_with(".timeindex")).expect("one was sealed");
    leader.disk.damage(Path::new(&index), 3, 0xff);
    let mut incoming = Incoming::begin(target.segments.clone(), leader.segments.offer().unwrap()).unwrap();
    let mut ended = None;
    for _ in 0..1_000 {
        let Some(asked) = incoming.wants() else { break };
        let piece = leader.segments.piece(&asked.want).expect("it is held");
        ended = incoming.got(&asked, &piece).err();
        if ended.is_some() {
            break;
        }
    }
    assert!(matches!(ended, Some(SegmentError::Damaged { .. })), "{ended:?}");
}
