//! What outboxes do, before there is a special path for them: write, wait for the acknowledgement, commit the offset. The schedules
//! that break a fused outbox must not break the plain way either: O1, O3, O4, O6, O8, O9.

use katomic::leader::request::InitProducerId;
use katomic::types::Refusal;

use super::super::faults::Fault;
use super::*;

impl Stage {
    fn idempotent(&mut self, conn: ConnId) -> Pair {
        let init = InitProducerId { version: 4, transactional_id: None, timeout_ms: 60_000, given: None };
        match self.must(conn, Request::InitProducerId(init)) {
            Response::ProducerId(pair) => pair,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn o1_an_offset_committed_with_the_new_generation_does_not_outlive_its_records() {
    let mut stage = Stage::new();
    let (old, input, output) = (stage.open(0), stage.at(0), stage.at(1));
    let pair = stage.idempotent(old);
    stage.join(old, "g", "m");
    let (request, kept) = stage.plain(pair, output, (0, 1));
    stage.must(old, request);
    // L1 dies right after it acknowledged; the consumer joins at L2, and the old commit is sent with the new generation.
    stage.world.crash(0);
    stage.elect(1);
    let new = stage.open(1);
    let member = stage.join(new, "g", "m");
    stage.must(new, commit(member, input, 1));
    assert_eq!((stage.offset("g", input), stage.log(output)), (Some(1), vec![kept]));
}

#[test]
fn o3_a_worker_that_is_told_to_join_again_keeps_its_position_and_loses_nothing() {
    let mut stage = Stage::new();
    let (conn, input, output) = (stage.open(0), stage.at(0), stage.at(1));
    let pair = stage.idempotent(conn);
    let before = stage.join(conn, "g", "m");
    let (request, kept) = stage.plain(pair, output, (0, 1));
    stage.must(conn, request);
    let stale = MemberRef { generation: before.generation - 1, ..before.clone() };
    assert_eq!(refused(stage.ask(conn, commit(stale, input, 1))), Some(Refusal::IllegalGeneration));
    assert_eq!(stage.offset("g", input), None);
    stage.must(conn, commit(before, input, 1));
    assert_eq!((stage.offset("g", input), stage.log(output)), (Some(1), vec![kept]));
}

#[test]
fn o4_a_batch_for_a_topic_that_is_gone_is_refused_and_not_dropped() {
    let mut stage = Stage::new();
    let (one, two) = (stage.open(0), stage.open(0));
    stage.create(one, "b", 1);
    let (id, gone) = (stage.world.topics["b"].0, stage.world.partition("b", 0));
    let pair = stage.idempotent(one);
    // Decided while the topic was there, applied when it is not.
    stage.fault(Fault::OneWay(0, true, true));
    stage.send(two, Request::DeleteTopics(vec![id]));
    stage.world.run_ms(10);
    let (request, _) = stage.plain(pair, gone, (0, 1));
    let writing = stage.send(one, request);
    stage.world.run_ms(50);
    stage.fault(Fault::OneWay(0, true, false));
    assert_eq!(refused(stage.answer(writing)), Some(Refusal::UnknownTopicOrPartition));
}

#[test]
fn o6_a_crash_between_write_and_commit_repeats_and_never_skips() {
    let mut stage = Stage::new();
    let (conn, input, output) = (stage.open(0), stage.at(0), stage.at(1));
    let pair = stage.idempotent(conn);
    let member = stage.join(conn, "g", "m1");
    let (request, first) = stage.plain(pair, output, (0, 1));
    stage.must(conn, request);
    stage.world.crash(0);
    stage.elect(1);
    let new = stage.open(1);
    stage.join(new, "g", "m2");
    assert_eq!(fetched(stage.ask(new, fetch("g", input, true))), Some(Ok(None)), "the next owner starts where it was");
    let late = stage.ask(new, commit(member, input, 1));
    assert_eq!(refused(late), Some(Refusal::UnknownMemberId), "the old owner commits no more");
    let pair = stage.idempotent(new);
    let (request, again) = stage.plain(pair, output, (0, 1));
    stage.must(new, request);
    assert_eq!(stage.log(output), [first, again]);
}

#[test]
fn o8_o9_a_batch_sent_twice_does_not_stop_the_next_one() {
    let mut stage = Stage::new();
    let (old, output) = (stage.open(0), stage.at(1));
    let pair = stage.idempotent(old);
    let (request, first) = stage.plain(pair, output, (0, 3));
    stage.must(old, request.clone());
    stage.fault(Fault::Isolate(0, true));
    stage.elect(1);
    let new = stage.open(1);
    stage.must(new, request.clone());
    stage.must(new, request);
    let (next, second) = stage.plain(pair, output, (3, 1));
    stage.must(new, next);
    assert_eq!(stage.log(output), [first, second]);
}
