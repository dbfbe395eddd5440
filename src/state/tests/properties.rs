//! Properties of every sequence of entries: replicas that apply the same become the same, also through a checkpoint.

use bytes::Bytes;
use proptest::prelude::*;

use crate::state::Machine;
use crate::state::command::*;
use crate::types::record_batch::sample;
use crate::types::{LogIndex, Offset, ProducerIdAndEpoch, Term, TopicId, TopicPartition};

/// Few names, so that entries meet.
fn partition() -> impl Strategy<Value = TopicPartition> {
    (0..3u8, 0..2i32).prop_map(|(topic, partition)| TopicPartition { topic: TopicId([topic; 16]), partition })
}

fn producer() -> impl Strategy<Value = ProducerIdAndEpoch> {
    (0..4i64, 0..4i16).prop_map(|(producer_id, epoch)| ProducerIdAndEpoch { producer_id, epoch })
}

fn batches(by: ProducerIdAndEpoch, transactional: bool) -> impl Strategy<Value = Vec<Batch>> {
    let one = (partition(), 0..6i32, 1..4i32).prop_map(move |(to, first, count)| {
        Batch::new(to, &sample::batch((by.producer_id, by.epoch), first, count, transactional, b"records"))
    });
    prop::collection::vec(one, 0..4)
}

fn offset_write() -> impl Strategy<Value = OffsetWrite> {
    (partition(), 0..9i64).prop_map(|(of, offset)| OffsetWrite {
        of,
        offset: Offset(offset),
        leader_epoch: -1,
        metadata: String::new(),
    })
}

fn id() -> impl Strategy<Value = String> {
    prop_oneof![Just("t".to_owned()), Just("u".to_owned())]
}

fn index() -> impl Strategy<Value = LogIndex> {
    (0..60u64).prop_map(LogIndex)
}

fn commit() -> impl Strategy<Value = Command> {
    let parts = (producer().prop_flat_map(|by| (Just(by), batches(by, true))), id(), prop::option::of(index()));
    (parts, any::<bool>(), prop::option::of((index(), 1..3u32)), index(), prop::collection::vec(offset_write(), 0..2))
        .prop_map(|(((producer, batches), transactional_id, begin), bump, chunks, staged_at, offsets)| {
            Command::TxnCommit(TxnCommit {
                transactional_id,
                producer,
                fence: begin.map_or(TxnFence::Epoch, TxnFence::Begin),
                bump,
                batches,
                chunks: chunks.map(|(stage_id, count)| Chunks { stage_id, count, crc: 0 }),
                offsets: vec![StagedOffsets { group: "g".into(), staged_at, offsets }],
            })
        })
}

fn command() -> impl Strategy<Value = Command> {
    let plain = producer().prop_flat_map(|by| batches(by, false)).prop_map(Command::Produce);
    let init = (prop::option::of(id()), prop::option::of(producer())).prop_map(|(transactional_id, given)| {
        Command::InitProducerId(InitProducerId { transactional_id, timeout_ms: 1, given })
    });
    let begin = (id(), producer())
        .prop_map(|(transactional_id, producer)| Command::TxnBegin(TxnBegin { transactional_id, producer }));
    let chunk =
        (id(), producer().prop_flat_map(|by| (Just(by), batches(by, true))), prop::option::of(index()), 0..2u32)
            .prop_map(|(transactional_id, (producer, batches), stage_id, number)| {
                Command::TxnChunk(TxnChunk { transactional_id, producer, stage_id, number, batches })
            });
    let abort = (id(), producer(), prop::option::of(index()), any::<bool>(), partition()).prop_map(
        |(transactional_id, producer, begin, bump, at)| {
            let skipped = vec![(at, 3, 5)];
            Command::TxnAbort(TxnAbort { transactional_id, producer, begin, bump, skipped, skips_unknown: bump })
        },
    );
    let create = (0..3u8).prop_map(|topic| {
        let (id, name) = (TopicId([topic; 16]), format!("topic-{topic}"));
        Command::CreateTopics(vec![NewTopic { id, name, partitions: 2, configs: Vec::new() }])
    });
    let delete = (0..3u8).prop_map(|topic| Command::DeleteTopics(vec![TopicId([topic; 16])]));
    let offsets = prop::collection::vec(offset_write(), 0..3)
        .prop_map(|offsets| Command::OffsetCommit(GroupOffsets { group: "g".into(), offsets }));
    let expire = (prop::option::of(id()), 0..4i64, partition(), 0..60i64).prop_map(|(id, producer, at, since)| {
        Command::Expire(Expire {
            producers: vec![producer],
            transactional_ids: id.into_iter().collect(),
            offsets: vec![("g".into(), at)],
            idle_since_ms: since,
        })
    });
    let hand_over = (0..3i64, 0..3i16).prop_map(|(producer_id, epoch)| {
        let open = vec![("t".to_owned(), ProducerIdAndEpoch { producer_id, epoch })];
        Command::HandOver(HandOver { open })
    });
    let trim = (partition(), -2..6i64).prop_map(|(of, to)| Command::TrimPartitions(vec![Trim { of, to: Offset(to) }]));
    let grow = (0..3u8, 0..5i32).prop_map(|(topic, count)| {
        Command::CreatePartitions(vec![NewPartitions { topic: TopicId([topic; 16]), count }])
    });
    let drop = index().prop_map(|stage_id| Command::DropStages(vec![stage_id]));
    prop_oneof![
        6 => plain, 4 => init, 4 => begin, 3 => chunk, 8 => commit(), 3 => abort,
        6 => create, 1 => delete, 3 => offsets, 1 => expire, 1 => drop, 1 => hand_over, 2 => trim, 1 => grow
    ]
}

/// What must hold after every entry, whatever it was.
fn check_invariants(before: &Machine, after: &Machine, effects: &Effects) {
    for topic in before.topics.iter() {
        let Some(now) = after.topics.get(topic.id) else { continue };
        for (old, new) in topic.partitions.iter().zip(&now.partitions) {
            assert!(new.next_offset >= old.next_offset, "offsets never go back");
            assert!(new.log_start_offset >= old.log_start_offset, "nor do log starts");
            assert!(new.log_start_offset <= new.next_offset);
            assert!(
                new.leader_epochs.iter().all(|(_, first)| *first >= new.log_start_offset),
                "older terms are forgotten"
            );
        }
    }
    for one in &effects.appended {
        assert_eq!(one.next_offset.0 - one.base_offset.0, i64::from(one.records.record_count()));
        assert!(one.next_offset <= after.topics.partition(one.to).expect("it was written to").next_offset);
    }
    for (id, state) in after.transactions.iter() {
        assert_eq!(after.transactions.owner_of(state.producer.producer_id), Some(id));
        assert_ne!(Some(state.producer), state.previous);
    }
    for (_, stage) in after.transactions.open_chunks() {
        let owner = after.transactions.get(&stage.transactional_id).expect("chunks are freed with their id");
        assert_eq!(owner.producer, stage.producer, "any bump frees chunks");
    }
}

fn machine() -> Machine {
    let mut machine = Machine::default();
    machine.transactions.set_epoch_max(2);
    machine
}

fn through_bytes(machine: &Machine) -> Machine {
    let mut again = Machine::from_bytes(&Bytes::from(machine.to_bytes())).expect("own bytes are read");
    again.transactions.set_epoch_max(2);
    again
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn replicas_agree_also_through_a_checkpoint(
        commands in prop::collection::vec((command(), 0..20u8), 1..60),
        cut in 0..60usize,
    ) {
        let (mut one, mut other, mut term) = (machine(), machine(), 1);
        for (at, (command, dice)) in commands.into_iter().enumerate() {
            let index = LogIndex(at as u64);
            if at == cut {
                other = through_bytes(&other);
                prop_assert_eq!(&one, &other);
            }
            // Some entries are the first of a term.
            term += u64::from(dice == 0);
            if dice == 1 {
                one.apply_blank(index, Term(term));
                other.apply_blank(index, Term(term));
                continue;
            }
            let before = one.clone();
            let entry = Entry { now_ms: at as i64, command };
            let (effects, outcome) = one.apply(index, Term(term), &entry);
            prop_assert_eq!((effects.clone(), outcome), other.apply(index, Term(term), &entry));
            check_invariants(&before, &one, &effects);
        }
        prop_assert_eq!(&one, &other);
        prop_assert_eq!(through_bytes(&one), one);
    }

    #[test]
    fn damaged_checkpoints_are_refused(at in 0..400usize, flip in 1..255u8, cut in 0..400usize) {
        let mut machine = machine();
        let by = ProducerIdAndEpoch { producer_id: 0, epoch: 0 };
        let to = TopicPartition { topic: TopicId([1; 16]), partition: 0 };
        let chunk = vec![Batch::new(to, &sample::batch((0, 0), 0, 1, true, b"records"))];
        let commands = [
            Command::CreateTopics(vec![NewTopic { id: to.topic, name: "a".into(), partitions: 1, configs: vec![] }]),
            Command::InitProducerId(InitProducerId { transactional_id: Some("t".into()), timeout_ms: 1, given: None }),
            Command::TxnChunk(TxnChunk { transactional_id: "t".into(), producer: by, stage_id: None, number: 0, batches: chunk }),
        ];
        for (index, command) in commands.into_iter().enumerate() {
            machine.apply(LogIndex(index as u64), Term(1), &Entry { now_ms: 0, command });
        }
        let good = machine.to_bytes();
        let short = Bytes::copy_from_slice(&good[..cut.min(good.len() - 1)]);
        prop_assert!(Machine::from_bytes(&short).is_err());
        let mut bad = good;
        let position = at % bad.len();
        bad[position] ^= flip;
        prop_assert!(Machine::from_bytes(&Bytes::from(bad)).is_err());
    }
}

#[test]
fn a_producer_runs_through_all_epochs_of_the_real_maximum() {
    let mut machine = Machine::default();
    let mut index = 0;
    let mut apply = |machine: &mut Machine, command| {
        index += 1;
        machine.apply(LogIndex(index), Term(1), &Entry { now_ms: 0, command }).1
    };
    let init = InitProducerId { transactional_id: Some("t".into()), timeout_ms: 1, given: None };
    let to = TopicPartition { topic: TopicId([1; 16]), partition: 0 };
    let topic = NewTopic { id: to.topic, name: "a".into(), partitions: 1, configs: Vec::new() };
    apply(&mut machine, Command::CreateTopics(vec![topic]));
    let Outcome::ProducerId(Ok(mut pair)) = apply(&mut machine, Command::InitProducerId(init)) else {
        panic!("an id is given out")
    };
    let mut greatest = 0;
    for _ in 0..32_767 + 3 {
        let batch = sample::batch((pair.producer_id, pair.epoch), 0, 1, true, b"x");
        let commit = TxnCommit {
            transactional_id: "t".into(),
            producer: pair,
            fence: TxnFence::Epoch,
            bump: true,
            batches: vec![Batch::new(to, &batch)],
            chunks: None,
            offsets: Vec::new(),
        };
        greatest = greatest.max(pair.epoch);
        let Outcome::Ended(Ok(next)) = apply(&mut machine, Command::TxnCommit(commit)) else {
            panic!("{pair:?} commits")
        };
        pair = next;
    }
    assert_eq!(greatest, 32_766);
    assert_eq!(pair, ProducerIdAndEpoch { producer_id: 1, epoch: 3 });
    let state = machine.transactions.get("t").expect("it is known");
    assert_eq!(state.previous, Some(ProducerIdAndEpoch { producer_id: 1, epoch: 2 }));
    assert_eq!(machine.topics.partition(to).expect("it exists").next_offset, Offset(32_770));
}
