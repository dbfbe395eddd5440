//! Log starts that move up: what readers see, which files stay, what power cuts leave; replicas stay byte-identical.

use kafka_protocol::records::Compression;
use proptest::prelude::*;

use super::crash::undisturbed;
use super::time::timed;
use super::*;

const OF: TopicPartition = TopicPartition { topic: TopicId([1; 16]), partition: 0 };

/// A log of `batches` times two records, four batches to a segment.
fn world_of(batches: u8) -> World {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    (0..batches).for_each(|n| world.append(OF, opaque(2, 600, n)));
    world.flush();
    world
}

/// Base offsets of the log files in the topic's folder.
fn logs(world: &World) -> Vec<i64> {
    let bases = files(&world.disk).into_keys().filter_map(|path| {
        let name = path.strip_prefix("/segments/topic-0/")?.strip_suffix(".log")?.to_owned();
        Some(name.parse().expect("a base offset"))
    });
    bases.collect()
}

fn is_out_of_range(world: &World, visible: LogIndex, from: i64) -> bool {
    matches!(world.segments.read(OF, visible, Offset(from), 1, true), Err(SegmentError::OffsetOutOfRange))
}

#[test]
fn a_log_starts_where_the_entry_says_from_that_entry_on() {
    let mut world = world_of(20);
    let before = world.segments.pin();
    world.trim(OF, 17);
    let between = world.segments.pin();
    world.trim(OF, 30);
    let visible = |pin: &Pin| pin.visible().unwrap();
    let start = |visible| world.segments.bounds(OF, visible).unwrap().log_start_offset;
    assert_eq!([visible(&before), visible(&between), world.last_index()].map(start), [0, 17, 30].map(Offset));
    for at in [visible(&before), visible(&between), world.last_index()] {
        assert!(world.read_all(OF, at, 900) == world.expected_bytes(OF, at));
    }
    assert!(!is_out_of_range(&world, visible(&before), 0));
    assert!(is_out_of_range(&world, visible(&between), 16) && !is_out_of_range(&world, visible(&between), 17));
    assert!(is_out_of_range(&world, world.last_index(), 29) && !is_out_of_range(&world, world.last_index(), 30));
}

#[test]
fn files_below_the_start_stay_until_the_next_manifest_is_durable_and_the_last_reader_gone() {
    let mut world = world_of(20);
    world.checkpoint().unwrap();
    assert_eq!(logs(&world), [0, 8, 16, 24, 32]);
    let reader = world.segments.pin();
    world.trim(OF, 27);
    world.flush();
    assert_eq!(logs(&world), [0, 8, 16, 24, 32], "the newest manifest names them");
    world.checkpoint().unwrap();
    assert_eq!(logs(&world), [0, 8, 16, 24, 32], "a reader has them");
    let visible = reader.visible().unwrap();
    assert!(world.read_all(OF, visible, 900) == world.expected_bytes(OF, visible));
    drop(reader);
    world.flush();
    assert_eq!(logs(&world), [24, 32], "the start lies in the first");
    world.assert_reads_as_expected();
    let size = world.segments.sizes()[0].1;
    let disk = world.disk.clone();
    let mut world = world.reopen(disk);
    world.assert_reads_as_expected();
    assert_eq!(world.segments.sizes()[0].1, size);
    world.trim(OF, 32);
    world.checkpoint().unwrap();
    world.flush();
    assert_eq!(logs(&world), [32]);
    world.assert_reads_as_expected();
}

#[test]
fn files_stay_while_somebody_pulls_a_checkpoint_that_names_them() {
    let mut world = world_of(20);
    world.checkpoint().unwrap();
    assert!(world.segments.offer().is_some(), "held from now on");
    world.trim(OF, 40);
    world.checkpoint().unwrap();
    world.flush();
    assert_eq!(logs(&world), [0, 8, 16, 24, 32]);
}

#[test]
fn an_emptied_log_goes_on_in_a_new_file() {
    let mut world = world_of(6);
    world.checkpoint().unwrap();
    world.trim(OF, 12);
    assert_eq!(world.segments.facts(&[OF])[0].segments.len(), 2, "the writer is behind");
    world.flush();
    assert_eq!(world.segments.facts(&[OF])[0].segments, []);
    assert_eq!(world.segments.sizes(), [(OF, 0)]);
    world.append(OF, opaque(1, 50, 7));
    world.checkpoint().unwrap();
    world.flush();
    assert_eq!(logs(&world), [12]);
    world.assert_reads_as_expected();
    world.trim(OF, 13);
    world.checkpoint().unwrap();
    world.flush();
    assert_eq!(logs(&world), [] as [i64; 0]);
    let disk = world.disk.clone();
    world.segments.close();
    let mut world = world.reopen(disk);
    let bounds = world.segments.bounds(OF, world.last_index()).unwrap();
    assert_eq!(bounds, Bounds { log_start_offset: Offset(13), high_watermark: Offset(13) });
    world.append(OF, opaque(1, 50, 8));
    world.flush();
    assert_eq!(logs(&world), [13]);
    world.assert_reads_as_expected();
}

#[test]
fn the_manifest_says_where_the_log_started_at_its_index_and_not_later() {
    let mut world = world_of(8);
    // Trimmed by an entry behind the checkpoint, which the writer has not seen when it writes the manifest.
    let (done, waiting) = mpsc::channel();
    let applied = Some((world.last_index(), term_at(world.last_index())));
    let (go, wait) = mpsc::channel::<()>();
    let state = move || {
        wait.recv().expect("the test goes on");
        Ok(format!("state at {applied:?}").into_bytes())
    };
    let raft = Bytes::from_static(b"raft");
    world.segments.checkpoint(applied, raft, Box::new(state), Box::new(move |result| done.send(result).unwrap()));
    world.trim(OF, 10);
    go.send(()).unwrap();
    waiting.recv().unwrap().unwrap();
    let survivor = world.disk.crash();
    let (segments, checkpoint) = Segments::open(Arc::new(survivor.clone()), options()).unwrap();
    let visible = checkpoint.unwrap().applied.unwrap().0;
    assert_eq!(segments.bounds(OF, visible).unwrap().log_start_offset, Offset(0));
    drop(segments);
    world.reopen(survivor).assert_reads_as_expected();
}

#[test]
fn a_power_cut_at_any_step_leaves_the_files_of_the_old_manifest_or_of_the_new_one() {
    let mut cut = 0;
    loop {
        cut += 1;
        let mut world = World::new(u64::from(cut));
        world.create(1, "topic", 2);
        for n in 0..24 {
            world.append(partition(1, i32::from(n % 2)), opaque(2, 600, n));
        }
        world.checkpoint().unwrap();
        world.disk.cut_power_in(cut);
        world.trim(OF, 19);
        world.trim(partition(1, 1), 24);
        (0..3).for_each(|n| world.append(OF, opaque(1, 500, n)));
        world.trim(OF, 22);
        world.append(partition(1, 1), opaque(1, 500, 9));
        let finished = world.checkpoint().is_ok();
        let survivor = world.disk.crash();
        let mut world = world.reopen(survivor);
        world.append(OF, opaque(1, 30, 8));
        world.assert_reads_as_expected();
        world.checkpoint().unwrap();
        world.flush();
        world.assert_reads_as_expected();
        let undisturbed = undisturbed(&world.log);
        undisturbed.checkpoint().unwrap();
        undisturbed.flush();
        assert!(files(&world.disk) == files(&undisturbed.disk), "cut at {cut}");
        if finished {
            break;
        }
    }
    assert!(cut > 10, "the checkpoint took {cut} steps");
}

#[test]
fn readers_without_a_pin_are_told_out_of_range_when_files_go_and_nothing_worse() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    (0..200).for_each(|n| world.append(OF, opaque(1, 600, n)));
    world.checkpoint().unwrap();
    let segments = world.segments.clone();
    std::thread::scope(|scope| {
        let readers = [0, 1].map(|reader| {
            let segments = segments.clone();
            scope.spawn(move || {
                loop {
                    let visible = segments.visible().unwrap();
                    let start = segments.bounds(OF, visible).unwrap().log_start_offset;
                    match segments.read(OF, visible, start, 5_000, true) {
                        Ok(read) => assert!(start == Offset(200) || read.records > 0),
                        Err(SegmentError::OffsetOutOfRange) => {}
                        Err(error) => panic!("{error}"),
                    }
                    if reader == 0 {
                        segments.offset_for_timestamp(OF, visible, 0).map(drop).or_else(out_of_range).unwrap();
                    }
                    if start == Offset(200) {
                        return;
                    }
                }
            })
        });
        for to in 1..=200 {
            world.trim(OF, to);
            if to % 3 == 0 {
                world.checkpoint().unwrap();
            }
        }
        world.checkpoint().unwrap();
        world.flush();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert_eq!(logs(&world), [] as [i64; 0]);
    assert_eq!(world.segments.shared.files.open_count(), 0, "nothing keeps an unlinked file");
}

fn out_of_range(error: SegmentError) -> Result<(), SegmentError> {
    if matches!(error, SegmentError::OffsetOutOfRange) { Ok(()) } else { Err(error) }
}

#[test]
fn times_below_the_start_are_not_found_wherever_it_lies() {
    let all: Vec<i64> = (0..120).map(|n| 1_000 + (n * 37) % 90 + n).collect();
    for written in [false, true] {
        let mut world = World::new(1);
        world.create(1, "topic", 1);
        all.chunks(4).for_each(|batch| world.append(OF, timed(batch, Compression::Lz4)));
        if written {
            world.flush();
        }
        for start in (1..=120).step_by(7) {
            world.trim(OF, start);
            let kept = |at: &usize| *at as i64 >= start;
            let visible = world.last_index();
            for timestamp in (990..1_220).step_by(3) {
                let expected = all.iter().enumerate().find(|(at, of)| kept(at) && **of >= timestamp);
                let expected = expected.map(|(at, of)| (*of, Offset(at as i64)));
                let found = world.segments.offset_for_timestamp(OF, visible, timestamp).unwrap();
                assert_eq!(found, expected, "at {timestamp} from {start} on, written: {written}");
            }
            let max = all.iter().enumerate().filter(|(at, _)| kept(at)).map(|(_, of)| *of).max();
            let first = max.map(|max| {
                (max, Offset(all.iter().enumerate().position(|(at, of)| kept(&at) && *of == max).unwrap() as i64))
            });
            assert_eq!(
                world.segments.max_timestamp(OF, visible).unwrap(),
                first,
                "from {start} on, written: {written}"
            );
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// One entry, later by so much, with a batch for each of these partitions: records, bytes, timestamp step.
    Append(i64, Vec<(i32, i32, usize, i64)>),
    /// To this share of what is left.
    Trim(i32, u8),
    /// segment.bytes, segment.ms, segment.index.bytes.
    Set(u64, i64, u32),
    Recreate,
}

fn op() -> impl Strategy<Value = Op> {
    let batch = (0..2, 1..5, 0..1_200_usize, -20..60_i64);
    prop_oneof![
        12 => (0..50_i64, prop::collection::vec(batch, 1..4)).prop_map(|(ms, batches)| Op::Append(ms, batches)),
        3 => (0..2, 0..=100_u8).prop_map(|(partition, share)| Op::Trim(partition, share)),
        1 => (1_000..9_000_u64, 20..900_i64, 8..200_u32).prop_map(|(bytes, ms, index)| Op::Set(bytes, ms, index)),
        1 => Just(Op::Recreate),
    ]
}

/// What one replica does between two entries and the other does not.
#[derive(Clone, Debug)]
enum Pace {
    GoOn,
    Flush,
    Checkpoint,
    Restart,
    PowerCut,
}

fn pace() -> impl Strategy<Value = Pace> {
    prop_oneof![
        8 => Just(Pace::GoOn),
        3 => Just(Pace::Flush),
        2 => Just(Pace::Checkpoint),
        1 => Just(Pace::Restart),
        1 => Just(Pace::PowerCut),
    ]
}

/// Appends the entries of `ops` to a fresh log; only their effects are of interest.
fn steps_of(ops: &[Op]) -> Vec<Step> {
    let mut world = World::new(1);
    let (mut now_ms, mut id) = (10_000, 1);
    world.create(id, "topic", 2);
    for op in ops {
        match op {
            Op::Append(later, batches) => {
                now_ms += later;
                let mut effects = Effects { now_ms, ..Effects::default() };
                for (number, records, bytes, step) in batches {
                    let of = partition(id, *number);
                    if effects.appended.iter().any(|appended: &Appended| appended.to == of) {
                        continue;
                    }
                    // Some without timestamps.
                    let timestamp = if *step < -15 { -1 } else { now_ms + step };
                    let value = Bytes::from(vec![b'v'; *bytes]);
                    let timestamps = vec![timestamp; *records as usize];
                    let batch = super::time::timed_with(&timestamps, Compression::None, &value);
                    effects.appended.push(world.appended(of, batch));
                }
                world.apply(effects);
            }
            Op::Trim(number, share) => {
                let of = partition(id, *number);
                let start = world.start(of, LogIndex(u64::MAX));
                let to = start + (world.end(of) - start) * i64::from(*share) / 100;
                if to > start {
                    world.trim(of, to);
                }
            }
            Op::Set(bytes, ms, index) => {
                world.settings.segment_bytes = *bytes;
                world.settings.segment_ms = *ms;
                world.settings.segment_index_bytes = *index;
                world.set(id);
            }
            Op::Recreate => {
                world.delete(id);
                id += 1;
                world.create(id, "topic", 2);
            }
        }
    }
    world.log
}

/// A replica at its own pace; at the end everything is checkpointed and nobody reads.
fn replica(seed: u64, steps: &[Step], paces: &[Pace]) -> World {
    let mut world = World::new(seed);
    for (step, pace) in steps.iter().zip(paces.iter().cycle()) {
        world.settings = step.settings.clone();
        world.apply(step.effects.clone());
        world.publish();
        match pace {
            Pace::GoOn => {}
            Pace::Flush => world.flush(),
            Pace::Checkpoint => world.checkpoint().unwrap(),
            Pace::Restart => {
                let disk = world.disk.clone();
                world.segments.close();
                world = world.reopen(disk);
            }
            Pace::PowerCut => {
                let survivor = world.disk.crash();
                world = world.reopen(survivor);
            }
        }
    }
    world.assert_reads_as_expected();
    world.checkpoint().unwrap();
    world.flush();
    world.assert_reads_as_expected();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn replicas_are_byte_identical_whatever_their_pace(
        ops in prop::collection::vec(op(), 1..80),
        one in prop::collection::vec(pace(), 1..20),
        other in prop::collection::vec(pace(), 1..20),
    ) {
        let steps = steps_of(&ops);
        let (one, other) = (replica(1, &steps, &one), replica(2, &steps, &other));
        let (one, other) = (files(&one.disk), files(&other.disk));
        prop_assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
        prop_assert!(one == other, "contents differ");
    }
}
