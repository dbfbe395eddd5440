//! Schedules in which leadership moves: T1, T5, T9, T10, T14, T16, and what only terms tell apart.

use katomic::types::Refusal;

use super::super::faults::Fault;
use super::*;

#[test]
fn t01_a_deposed_leader_does_not_answer_for_a_commit_it_never_saw() {
    t01(Mutant::None);
}

#[test]
fn t10_after_the_list_of_a_planned_transfer_nothing_is_staged_though_the_transfer_fails() {
    t10(Mutant::None);
}

/// What mutants of the model are tried on that chance meets seldom.
pub const SELDOM: [fn(Mutant); 3] = [t01, t10, a_voter_that_restarts_within_a_lease];

fn t01(mutant: Mutant) {
    let mut stage = Stage::with(mutant);
    let (old, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(old, "x", None);
    stage.must(old, add("x", pair, &[at]));
    let first = stage.stage(old, "x", pair, at, (0, 1), false);
    stage.end(old, "x", pair, true, false);
    // Cut off from the others, not from the client.
    stage.fault(Fault::Isolate(0, true));
    stage.elect(1);
    let new = stage.open(1);
    stage.must(new, add("x", pair, &[at]));
    let second = stage.stage(new, "x", pair, at, (1, 1), false);
    let flipped = stage.ask(old, end("x", pair, true, false));
    assert!(claims_nothing(flipped.as_ref()), "L1 answers {flipped:?} from the commit before");
    stage.end(new, "x", pair, true, false);
    assert_eq!(stage.log(at), [first, second]);
}

#[test]
fn t01_tv2_a_deposed_leader_does_not_call_the_current_epoch_unknown() {
    let mut stage = Stage::new();
    let (old, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(old, "x", None);
    stage.fault(Fault::Isolate(0, true));
    stage.elect(1);
    let new = stage.open(1);
    // Lost with the term, aborted: the epoch is bumped at L2 only.
    stage.stage(new, "x", pair, at, (0, 1), true);
    assert_eq!(refused(stage.ask(new, end("x", pair, true, true))), Some(Refusal::TransactionLost));
    let pair = stage.end(new, "x", pair, false, true);
    let kept = stage.stage(new, "x", pair, at, (0, 1), true);
    for flipped in [end("x", pair, true, true), stage.batch("x", pair, at, (1, 1), true).0] {
        let answer = stage.ask(old, flipped);
        assert!(claims_nothing(answer.as_ref()), "L1 answers {answer:?}: a needless fatal");
    }
    stage.end(new, "x", pair, true, true);
    assert_eq!(stage.log(at), [kept]);
}

#[test]
fn t05_a_commit_whose_deadline_passed_is_applied_once_and_answered_when_asked_again() {
    let mut stage = Stage::new();
    let (conn, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(conn, "x", None);
    let number = stage.stage(conn, "x", pair, at, (0, 1), true);
    // It hears nobody, so nothing is committed; nobody misses it, so it goes on leading.
    stage.fault(Fault::OneWay(0, true, true));
    let first = stage.send(conn, end("x", pair, true, true));
    stage.world.run_ms(4_000);
    let answer = stage.answer(first);
    assert_eq!(refused(answer.clone()), Some(Refusal::FateUnknown), "{answer:?}");
    assert!(claims_nothing(stage.ask(conn, end("x", pair, true, true)).as_ref()), "it is not proposed again");
    stage.fault(Fault::OneWay(0, true, false));
    stage.world.run_ms(500);
    let next = stage.end(conn, "x", pair, true, true);
    assert_eq!(next.epoch, pair.epoch + 1, "one bump");
    assert_eq!(stage.log(at), [number]);
}

#[test]
fn t09_chunks_of_an_earlier_leader_are_never_taken_for_complete() {
    let mut stage = Stage::new();
    let (conn, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(conn, "x", None);
    for batch in 0..20 {
        stage.stage(conn, "x", pair, at, (batch, 1), true);
    }
    stage.world.run_ms(100);
    let chunks = |stage: &Stage, node: usize| {
        stage.world.places[node].node.as_ref().expect("it runs").machine.transactions().open_chunks().count()
    };
    assert_eq!(chunks(&stage, 1), 1, "part of it is replicated");
    stage.fault(Fault::Isolate(0, true));
    stage.elect(1);
    let new = stage.open(1);
    let lost = stage.ask(new, end("x", pair, true, true));
    assert_eq!(refused(lost), Some(Refusal::TransactionLost));
    assert_eq!(chunks(&stage, 1), 0, "and freed with its term");
    stage.end(new, "x", pair, false, true);
    assert!(stage.log(at).is_empty());
}

fn t10(mutant: Mutant) {
    let mut stage = Stage::with(mutant);
    let (conn, at) = (stage.open(0), stage.at(0));
    let (open, clean) = (stage.init(conn, "open", None), stage.init(conn, "clean", None));
    stage.stage(conn, "open", open, at, (0, 1), true);
    stage.fault(Fault::Transfer(0));
    // The list is out; then nobody hears that the leader lets go.
    stage.world.run_ms(310);
    stage.fault(Fault::OneWay(0, false, true));
    let (request, _) = stage.batch("clean", clean, at, (0, 1), true);
    let late = stage.ask(conn, request);
    assert!(claims_nothing(late.as_ref()), "it stages nothing more: {late:?}");
    stage.elect(1);
    let new = stage.open(1);
    let kept = stage.stage(new, "clean", clean, at, (0, 1), true);
    stage.end(new, "clean", clean, true, true);
    assert_eq!(refused(stage.ask(new, end("open", open, true, true))), Some(Refusal::TransactionLost));
    assert_eq!(stage.log(at), [kept]);
}

#[test]
fn t14_a_transaction_whose_begin_was_lost_can_be_aborted() {
    let mut stage = Stage::new();
    let (conn, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(conn, "x", None);
    stage.fault(Fault::Isolate(0, true));
    let added = stage.ask(conn, add("x", pair, &[at]));
    assert!(claims_nothing(added.as_ref()), "no ack before the marker is replicated: {added:?}");
    stage.elect(1);
    let new = stage.open(1);
    stage.end(new, "x", pair, false, false);
    assert!(stage.log(at).is_empty());
}

#[test]
fn t16_a_commit_that_was_a_no_op_stays_lost_also_at_the_next_leader() {
    let mut stage = Stage::new();
    let (conn, other, at) = (stage.open(0), stage.open(0), stage.at(0));
    stage.create(conn, "b", 1);
    let (id, gone) = (stage.world.topics["b"].0, stage.world.partition("b", 0));
    let pair = stage.init(conn, "x", None);
    stage.stage(conn, "x", pair, at, (0, 1), true);
    stage.stage(conn, "x", pair, gone, (0, 1), true);
    // The deletion stands in front of the commit in the log, and was not applied when the commit was decided.
    stage.fault(Fault::OneWay(0, true, true));
    stage.send(other, Request::DeleteTopics(vec![id]));
    stage.world.run_ms(20);
    let lost = stage.send(conn, end("x", pair, true, true));
    stage.world.run_ms(20);
    stage.fault(Fault::CutClients(0, false, true));
    stage.fault(Fault::OneWay(0, true, false));
    stage.world.run_ms(300);
    assert!(stage.answer(lost).is_none(), "the answer is lost");
    stage.fault(Fault::Isolate(0, true));
    stage.elect(1);
    let new = stage.open(1);
    assert_eq!(refused(stage.ask(new, end("x", pair, true, true))), Some(Refusal::TransactionLost));
    stage.end(new, "x", pair, false, true);
    assert!(stage.log(at).is_empty());
}

#[test]
fn trap_03_a_deposed_leader_acknowledges_nothing() {
    let mut stage = Stage::new();
    let (conn, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(conn, "x", None);
    stage.stage(conn, "x", pair, at, (0, 1), true);
    stage.fault(Fault::Isolate(0, true));
    stage.elect(1);
    let (request, _) = stage.batch("x", pair, at, (1, 1), true);
    let answer = stage.ask(conn, request);
    assert!(claims_nothing(answer.as_ref()), "{answer:?}");
}

#[test]
fn what_was_acknowledged_survives_the_power_loss_of_all_nodes() {
    let mut stage = Stage::new();
    let (conn, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(conn, "x", None);
    let number = stage.stage(conn, "x", pair, at, (0, 1), true);
    stage.end(conn, "x", pair, true, true);
    for node in 0..3 {
        stage.world.crash(node);
    }
    (0..3).for_each(|node| stage.world.start(node));
    stage.elect(2);
    let conn = stage.open(2);
    let again = stage.end(conn, "x", pair, true, true);
    assert_eq!(again.epoch, pair.epoch + 1, "the retry finds the outcome");
    assert_eq!(stage.log(at), [number]);
}

/// A voter that has promised the leader its lease crashes and comes back before the lease is over, and another node stands.
/// Whatever the leader answers then must still be so.
fn a_voter_that_restarts_within_a_lease(mutant: Mutant) {
    let mut stage = Stage::with(mutant);
    let (conn, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(conn, "x", None);
    // Node 1 has not heard the leader for long; node 2 has, up to now.
    for (from, to) in [(0, 1), (1, 0)] {
        stage.fault(Fault::Cut(from, to, true));
    }
    stage.world.run_ms(800);
    stage.fault(Fault::Cut(0, 2, true));
    stage.world.crash(2);
    stage.world.start(2);
    let stands = stage.world.places[1].node.as_mut().expect("it runs");
    stands.raft.may_stand = true;
    stage.world.run_ms(60);
    let (request, _) = stage.batch("x", pair, at, (0, 1), true);
    let answer = stage.ask(conn, request);
    if stage.world.serving().is_some_and(|(_, node)| node == 1) {
        assert!(claims_nothing(answer.as_ref()), "stale leader: {answer:?} while node 1 serves");
    }
    assert_eq!(stage.world.serving().map(|(_, node)| node), Some(0), "nobody else was elected within the lease");
}

#[test]
fn a_restarted_voter_keeps_the_promise_of_the_process_before_it() {
    a_voter_that_restarts_within_a_lease(Mutant::None);
}
