//! Schedules of late, repeated and racing requests: T2–T4, T6–T8, T13, T17–T19.

use katomic::types::Refusal;

use super::super::faults::Fault;
use super::*;

/// A TV1 transaction begun, with a batch acknowledged.
fn begun(stage: &mut Stage, conn: ConnId, pair: Pair, sequence: i32) -> BatchNumber {
    let at = stage.at(0);
    stage.must(conn, add("x", pair, &[at]));
    stage.stage(conn, "x", pair, at, (sequence, 1), false)
}

#[test]
fn t02_a_commit_that_sat_unread_does_not_commit_half_of_the_next_transaction() {
    for late in ["commit", "abort", "add"] {
        let mut stage = Stage::new();
        let (first, at) = (stage.open(0), stage.at(0));
        let pair = stage.init(first, "x", None);
        let one = begun(&mut stage, first, pair, 0);
        stage.hold(first, true);
        let unread = match late {
            "commit" => end("x", pair, true, false),
            "abort" => end("x", pair, false, false),
            _ => add("x", pair, &[stage.at(1)]),
        };
        let unread = stage.send(first, unread);
        let second = stage.open(0);
        stage.end(second, "x", pair, true, false);
        let two = begun(&mut stage, second, pair, 1);
        stage.hold(first, false);
        assert_eq!(stage.answer(unread), Some(Response::Close), "late {late}");
        let three = stage.stage(second, "x", pair, at, (2, 1), false);
        stage.end(second, "x", pair, true, false);
        assert_eq!(stage.log(at), [one, two, three], "late {late}");
    }
}

#[test]
fn t03_a_late_produce_opens_no_phantom_transaction() {
    let mut stage = Stage::new();
    let (coordinator, records, at) = (stage.open(0), stage.open(0), stage.at(0));
    let pair = stage.init(coordinator, "x", None);
    stage.must(coordinator, add("x", pair, &[at]));
    stage.hold(records, true);
    let (request, _) = stage.batch("x", pair, at, (0, 1), false);
    let late = stage.send(records, request);
    stage.end(coordinator, "x", pair, false, false);
    stage.hold(records, false);
    let answer = stage.answer(late);
    assert_eq!(refused(answer), Some(Refusal::InvalidTxnState), "nothing is stored");
    // The next transaction is its own, and the phantom does not make it a lost one.
    stage.must(coordinator, add("x", pair, &[at]));
    let kept = stage.stage(records, "x", pair, at, (0, 1), false);
    stage.end(coordinator, "x", pair, true, false);
    assert_eq!(stage.log(at), [kept]);
}

#[test]
fn t04_new_data_under_the_numbers_of_an_aborted_transaction_is_new() {
    let mut stage = Stage::new();
    let (conn, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(conn, "x", None);
    stage.must(conn, add("x", pair, &[at]));
    let first = stage.stage(conn, "x", pair, at, (0, 10), false);
    stage.end(conn, "x", pair, true, false);
    stage.must(conn, add("x", pair, &[at]));
    stage.stage(conn, "x", pair, at, (10, 5), false);
    stage.end(conn, "x", pair, false, false);
    stage.must(conn, add("x", pair, &[at]));
    let rewound = stage.stage(conn, "x", pair, at, (10, 5), false);
    stage.end(conn, "x", pair, true, false);
    assert_eq!(stage.log(at), [first, rewound]);
}

#[test]
fn t06_two_that_race_for_an_id_get_two_epochs_and_the_first_is_fenced() {
    let mut stage = Stage::new();
    let (one, two, at) = (stage.open(0), stage.open(0), stage.at(0));
    stage.init(one, "x", None);
    let racing = [stage.send(one, init("x", None)), stage.send(two, init("x", None))];
    let pairs: Vec<Pair> = racing
        .into_iter()
        .map(|id| match stage.answer(id) {
            Some(Response::ProducerId(pair)) => pair,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_ne!(pairs[0], pairs[1]);
    let (request, _) = stage.batch("x", pairs[0], at, (0, 1), true);
    assert_eq!(refused(stage.ask(one, request)), Some(Refusal::InvalidProducerEpoch));
    let kept = stage.stage(two, "x", pairs[1], at, (0, 1), true);
    stage.end(two, "x", pairs[1], true, true);
    assert_eq!(stage.log(at), [kept]);
}

#[test]
fn t07_an_init_asked_again_and_again_is_answered_and_bumps_once() {
    let mut stage = Stage::new();
    let conn = stage.open(0);
    let pair = stage.init(conn, "x", None);
    let bumped = stage.init(conn, "x", Some(pair));
    assert_eq!(bumped.epoch, pair.epoch + 1);
    assert_eq!(stage.init(conn, "x", Some(pair)), bumped, "the answer was lost");
    stage.fault(Fault::Isolate(0, true));
    stage.elect(1);
    let new = stage.open(1);
    assert_eq!(stage.init(new, "x", Some(pair)), bumped, "also at the next leader");
    let at = stage.at(0);
    stage.must(new, add("x", bumped, &[at]));
    let kept = stage.stage(new, "x", bumped, at, (0, 1), false);
    stage.end(new, "x", bumped, true, false);
    assert_eq!(stage.log(at), [kept]);
}

#[test]
fn t08_chunks_of_an_aborted_transaction_are_not_committed_with_the_next_one() {
    let mut stage = Stage::new();
    let (conn, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(conn, "x", None);
    let mut kept = Vec::new();
    for commits in [false, true] {
        stage.must(conn, add("x", pair, &[at]));
        kept = (0..20).map(|batch| stage.stage(conn, "x", pair, at, (batch, 1), false)).collect();
        stage.end(conn, "x", pair, commits, false);
    }
    assert_eq!(stage.log(at), kept);
}

#[test]
fn t13_batches_are_committed_in_the_order_of_their_sequences() {
    let mut stage = Stage::new();
    let (one, two, at) = (stage.open(0), stage.open(0), stage.at(0));
    let pair = stage.init(one, "x", None);
    let (request, first) = stage.batch("x", pair, at, (0, 5), true);
    stage.hold(one, true);
    stage.send(one, request.clone());
    let second = stage.stage(two, "x", pair, at, (5, 5), true);
    stage.must(two, request);
    stage.hold(one, false);
    stage.end(two, "x", pair, true, true);
    assert_eq!(stage.log(at), [first, second]);
}

#[test]
fn t17_a_zombie_and_an_unknown_producer_are_told_at_once() {
    let mut stage = Stage::new();
    let (conn, at) = (stage.open(0), stage.at(0));
    let zombie = stage.init(conn, "x", None);
    stage.init(conn, "x", None);
    let (request, _) = stage.batch("x", zombie, at, (0, 1), true);
    assert_eq!(refused(stage.ask(conn, request)), Some(Refusal::InvalidProducerEpoch));
    let stranger = Pair { producer_id: 777, epoch: 0 };
    let (request, _) = stage.batch("x", stranger, at, (0, 1), true);
    assert_eq!(refused(stage.ask(conn, request)), Some(Refusal::InvalidProducerIdMapping));
    assert!(stage.log(at).is_empty());
}

#[test]
fn t18_sequences_go_on_when_a_client_turns_to_tv2() {
    let mut stage = Stage::new();
    let (conn, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(conn, "x", None);
    stage.must(conn, add("x", pair, &[at]));
    let first = stage.stage(conn, "x", pair, at, (0, 5), false);
    assert_eq!(stage.end(conn, "x", pair, true, false), pair);
    let second = stage.stage(conn, "x", pair, at, (5, 5), true);
    let next = stage.end(conn, "x", pair, true, true);
    let third = stage.stage(conn, "x", next, at, (0, 1), true);
    stage.end(conn, "x", next, true, true);
    assert_eq!(stage.log(at), [first, second, third]);
}

#[test]
fn t19_a_commit_in_flight_neither_shrinks_nor_grows() {
    for tv2 in [false, true] {
        let mut stage = Stage::new();
        let (one, two, at) = (stage.open(0), stage.open(0), stage.at(0));
        let pair = stage.init(one, "x", None);
        if !tv2 {
            stage.must(one, add("x", pair, &[at]));
        }
        let kept = stage.stage(two, "x", pair, at, (0, 1), tv2);
        stage.fault(Fault::OneWay(0, true, true));
        let committing = stage.send(one, end("x", pair, true, tv2));
        stage.world.run_ms(10);
        let (request, _) = stage.batch("x", pair, at, (1, 1), tv2);
        let (aborting, growing) = (stage.send(one, end("x", pair, false, tv2)), stage.send(two, request));
        stage.world.run_ms(50);
        stage.fault(Fault::OneWay(0, true, false));
        assert!(matches!(stage.answer(committing), Some(Response::Ended(_))), "tv2 {tv2}");
        assert_eq!(refused(stage.answer(aborting)), Some(Refusal::InvalidTxnState), "tv2 {tv2}");
        let grown = refused(stage.answer(growing));
        let expected = if tv2 { Refusal::InvalidProducerEpoch } else { Refusal::InvalidTxnState };
        assert_eq!(grown, Some(expected), "tv2 {tv2}");
        assert_eq!(stage.log(at), [kept], "tv2 {tv2}");
    }
}
