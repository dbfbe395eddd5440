//! Tails and files against a list of batches; visibility.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    /// One entry with a batch for each of these partitions.
    Append(Vec<(i32, i32, usize)>),
    Publish,
    Flush,
    Checkpoint,
    /// Of a partition, from this share of its log on, with this limit.
    Read(i32, u8, usize, bool),
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let batch = (0..3, 1..5, 0..1_200_usize);
    prop_oneof![
        6 => prop::collection::vec(batch, 1..4).prop_map(Op::Append),
        4 => Just(Op::Publish),
        2 => Just(Op::Flush),
        1 => Just(Op::Checkpoint),
        6 => (0..3, 0..=100_u8, 0..4_000_usize, any::<bool>()).prop_map(|(p, f, m, one)| Op::Read(p, f, m, one)),
        1 => Just(Op::Restart),
    ]
}

/// What a read must return, from the list alone.
fn model_read(
    log: &[(LogIndex, i64, Vec<u8>)],
    visible: LogIndex,
    from: i64,
    bytes_max: usize,
    at_least_one: bool,
) -> Option<Vec<u8>> {
    let next = |(_, base, bytes): &(LogIndex, i64, Vec<u8>)| {
        base + i64::from(RecordBatch::stored(bytes.clone().into()).record_count())
    };
    let seen: Vec<_> = log.iter().filter(|(index, _, _)| *index <= visible).collect();
    let high_watermark = seen.last().map_or(0, |batch| next(batch));
    if from > high_watermark {
        return None;
    }
    let mut out = Vec::new();
    for batch in seen.into_iter().filter(|batch| next(batch) > from) {
        if out.len() + batch.2.len() > bytes_max && !(out.is_empty() && at_least_one) {
            break;
        }
        out.extend_from_slice(&batch.2);
    }
    Some(out)
}

fn check_read(world: &World, visible: LogIndex, op: (i32, u8, usize, bool)) {
    let (number, share, bytes_max, at_least_one) = op;
    let of = partition(1, number);
    let from = (world.end(of) + 2) * i64::from(share) / 100;
    let expected = model_read(&world.expected[&of], visible, from, bytes_max, at_least_one);
    let read = world.segments.read(of, visible, Offset(from), bytes_max, at_least_one);
    match (read, expected) {
        (Ok(read), Some(expected)) => {
            let bytes = read.pieces.concat();
            assert_eq!(read.bytes, bytes.len());
            assert!(bytes == expected, "read from {from} of {of:?}: {} ≠ {} bytes", bytes.len(), expected.len());
        }
        (Err(SegmentError::OffsetOutOfRange), None) => {}
        (read, expected) => panic!("{read:?} instead of {:?} bytes", expected.map(|bytes| bytes.len())),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn reads_return_what_a_list_of_batches_would(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new(1);
        world.create(1, "topic", 3);
        let mut visible = world.last_index();
        for op in ops {
            match op {
                Op::Append(batches) => {
                    let mut effects = Effects::default();
                    for (number, records, bytes) in batches {
                        let of = partition(1, number);
                        if effects.appended.iter().any(|appended: &Appended| appended.to == of) {
                            continue;
                        }
                        effects.appended.push(world.appended(of, opaque(records, bytes, number as u8)));
                    }
                    world.apply(effects);
                }
                Op::Publish => {
                    world.publish();
                    visible = world.last_index();
                }
                Op::Flush => world.flush(),
                Op::Checkpoint => world.checkpoint().unwrap(),
                Op::Read(number, share, bytes_max, at_least_one) => {
                    prop_assert_eq!(world.segments.visible(), Some(visible));
                    check_read(&world, visible, (number, share, bytes_max, at_least_one));
                }
                Op::Restart => {
                    let disk = world.disk.clone();
                    world.segments.close();
                    world = world.reopen(disk);
                    visible = world.last_index();
                }
            }
        }
        world.publish();
        world.assert_reads_as_expected();
    }
}

#[test]
fn a_reader_never_sees_a_later_entry_and_all_partitions_of_an_entry_at_once() {
    let mut world = World::new(1);
    world.create(1, "topic", 3);
    let all = [0, 1, 2].map(|number| partition(1, number));
    let mut pins = vec![world.segments.pin()];
    for n in 0..40 {
        let appended = all.map(|of| world.appended(of, opaque(2, 300, n))).to_vec();
        let index = world.apply(Effects { appended, ..Effects::default() });
        assert!(world.segments.visible() < Some(index), "applied is not yet visible");
        world.flush();
        world.publish();
        pins.push(world.segments.pin());
    }
    // The last pin first: letting go of newer ones must not free what older ones need.
    while let Some(pin) = pins.pop() {
        let visible = pin.visible().unwrap();
        for of in all {
            let bounds = world.segments.bounds(of, visible).unwrap();
            assert_eq!(bounds.high_watermark, Offset(2 * visible.0 as i64), "at {visible:?}");
            assert!(world.read_all(of, visible, 5_000) == world.expected_bytes(of, visible));
        }
    }
}

#[test]
fn written_tails_are_trimmed_once_no_reader_needs_them() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    let of = partition(1, 0);
    let pin = world.segments.pin();
    (0..20).for_each(|n| world.append(of, opaque(1, 500, n)));
    world.flush();
    let begin = |world: &World| world.segments.find(of, world.last_index()).unwrap().tail.lock().begin();
    assert_eq!(begin(&world), 0, "the pinned reader's high watermark is found in the tail");
    drop(pin);
    world.flush();
    // 3 batches of 561 bytes and their overhead fit.
    assert_eq!(begin(&world), 17);
    world.assert_reads_as_expected();
}

#[test]
fn a_partition_is_not_seen_before_its_entry_nor_after_its_deletion() {
    let mut world = World::new(1);
    world.create(1, "first", 1);
    let before = world.last_index();
    world.create(2, "second", 1);
    let between = world.last_index();
    world.delete(2);
    let bounds = |visible| world.segments.bounds(partition(2, 0), visible);
    assert!(matches!(bounds(before), Err(SegmentError::UnknownPartition)));
    assert!(bounds(between).is_ok());
    assert!(matches!(bounds(world.last_index()), Err(SegmentError::UnknownPartition)));
    assert_eq!(world.segments.sizes(), [(partition(1, 0), 0)]);
}

#[test]
fn a_tail_read_copies_no_records() {
    let mut world = World::new(1);
    world.create(1, "topic", 1);
    let batch = opaque(3, 400, 7);
    world.append(partition(1, 0), batch.clone());
    let read = world.segments.read_memory(partition(1, 0), world.last_index(), Offset(1), 1, true).unwrap().unwrap();
    assert_eq!((read.pieces.len(), read.records), (2, 3));
    assert_eq!(read.pieces[1].as_ptr(), batch.bytes()[16..].as_ptr());
}

#[test]
fn readers_beside_apply_and_the_writer_see_whole_entries() {
    const ENTRIES: u64 = 1_500;
    let mut world = World::new(1);
    world.create(1, "topic", 3);
    let all = [0, 1, 2].map(|number| partition(1, number));
    let segments = world.segments.clone();
    std::thread::scope(|scope| {
        let readers = [0, 1].map(|_| {
            scope.spawn(|| {
                let (mut looks, mut in_files) = (0, 0);
                loop {
                    let pin = segments.pin();
                    let visible = pin.visible().expect("the topic was created");
                    for of in all {
                        let end = segments.bounds(of, visible).unwrap().high_watermark;
                        assert_eq!(end, Offset(visible.0 as i64), "one record an entry");
                        let from = Offset(end.0 * (looks % 10) / 10);
                        let memory = segments.read_memory(of, visible, from, 1 << 20, true).unwrap();
                        in_files += u64::from(memory.is_none());
                        let read = segments.read(of, visible, from, 1 << 20, true).unwrap();
                        assert_eq!(read.records as i64, end.0 - from.0);
                    }
                    looks += 1;
                    // The last look begins at offset 0, which is in files by then.
                    if visible == LogIndex(ENTRIES) && looks % 10 == 1 {
                        return in_files;
                    }
                }
            })
        });
        for n in 0..ENTRIES {
            let appended = all.map(|of| world.appended(of, opaque(1, 150, n as u8))).to_vec();
            world.apply(Effects { appended, ..Effects::default() });
            if n == ENTRIES - 1 {
                world.flush();
            }
            world.publish();
        }
        let in_files: u64 = readers.map(|reader| reader.join().unwrap()).iter().sum();
        assert!(in_files > 0, "some reads went to files");
    });
}
