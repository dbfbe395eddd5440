//! Schedules of groups and their offsets: T11, T12, T20, T21.

use bytes::Bytes;
use katomic::leader::request::{JoinGroup, LeaveGroup, SyncGroup};
use katomic::types::Refusal;

use super::super::faults::Fault;
use super::*;

impl Stage {
    /// Joins a group as its only member and leader, with an assignment of its own.
    pub fn join(&mut self, conn: ConnId, group: &str, name: &str) -> MemberRef {
        let joined = self.must(
            conn,
            Request::JoinGroup(JoinGroup {
                version: 2,
                member: nobody(group),
                session_timeout_ms: 6_000,
                rebalance_timeout_ms: 6_000,
                protocol_type: "consumer".into(),
                protocols: vec![("range".into(), Bytes::new())],
                reason: None,
                fresh_member_id: name.into(),
            }),
        );
        let Response::Joined(joined) = joined else { panic!("{joined:?}") };
        let member = MemberRef { generation: joined.generation, member_id: joined.member_id, ..nobody(group) };
        let assignments = vec![(member.member_id.clone(), Bytes::new())];
        let (protocol_type, protocol_name) = (None, None);
        let sync = SyncGroup { member: member.clone(), protocol_type, protocol_name, assignments };
        self.must(conn, Request::SyncGroup(sync));
        member
    }

    fn leave(&mut self, conn: ConnId, member: &MemberRef) {
        let members = vec![(member.member_id.clone(), None)];
        self.must(conn, Request::LeaveGroup(LeaveGroup { group: member.group.clone(), members }));
    }
}

#[test]
fn t11_apply_does_not_ask_who_is_a_member() {
    let mut stage = Stage::new();
    let (conn, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(conn, "x", None);
    let member = stage.join(conn, "g", "m");
    stage.stage(conn, "x", pair, at, (0, 1), true);
    stage.must(conn, txn_offsets("x", pair, member.clone(), at, 1, true));
    stage.must(conn, commit(member, at, 1));
    stage.end(conn, "x", pair, true, true);
    // The followers know no members; all agree to the byte.
    assert_eq!(stage.log(at).len(), 1);
    assert_eq!(stage.offset("g", at), Some(1));
}

#[test]
fn t12_an_offset_fetch_waits_for_the_commit_in_flight() {
    let mut stage = Stage::new();
    let (conn, other, at) = (stage.open(0), stage.open(0), stage.at(0));
    let pair = stage.init(conn, "x", None);
    stage.stage(conn, "x", pair, at, (0, 1), true);
    stage.must(conn, txn_offsets("x", pair, nobody("g"), at, 7, true));
    stage.fault(Fault::OneWay(0, true, true));
    let ending = stage.send(conn, end("x", pair, true, true));
    stage.world.run_ms(10);
    let reading = stage.send(other, fetch("g", at, false));
    stage.world.run_ms(50);
    assert!(!stage.world.probed.contains_key(&reading), "it must not read the offset before");
    stage.fault(Fault::OneWay(0, true, false));
    assert!(matches!(stage.answer(ending), Some(Response::Ended(_))));
    assert_eq!(fetched(stage.answer(reading)), Some(Ok(Some(7))));
}

#[test]
fn t20_offsets_of_a_member_that_is_gone_hold_nobody_up() {
    let mut stage = Stage::new();
    let (conn, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(conn, "x", None);
    let gone = stage.join(conn, "g", "m1");
    stage.stage(conn, "x", pair, at, (0, 1), true);
    stage.must(conn, txn_offsets("x", pair, gone.clone(), at, 7, true));
    let held = fetched(stage.ask(conn, fetch("g", at, true)));
    assert_eq!(held, Some(Err(Refusal::UnstableOffsetCommit)));
    stage.leave(conn, &gone);
    stage.join(conn, "g", "m2");
    assert_eq!(fetched(stage.ask(conn, fetch("g", at, true))), Some(Ok(None)), "not for the whole timeout");
    assert_eq!(refused(stage.ask(conn, end("x", pair, true, true))), Some(Refusal::TransactionLost));
    assert!(stage.log(at).is_empty());
}

#[test]
fn t21_a_later_plain_commit_is_not_overwritten() {
    let mut stage = Stage::new();
    let (conn, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(conn, "x", None);
    let kept = stage.stage(conn, "x", pair, at, (0, 1), true);
    stage.must(conn, txn_offsets("x", pair, nobody("g"), at, 5, true));
    stage.must(conn, commit(nobody("g"), at, 9));
    stage.end(conn, "x", pair, true, true);
    assert_eq!(stage.log(at), [kept]);
    assert_eq!(stage.offset("g", at), Some(9));
}

#[test]
fn offsets_added_to_a_tv1_transaction_come_with_its_records() {
    let mut stage = Stage::new();
    let (conn, at) = (stage.open(0), stage.at(0));
    let pair = stage.init(conn, "x", None);
    stage.must(conn, add("x", pair, &[at]));
    let kept = stage.stage(conn, "x", pair, at, (0, 1), false);
    stage.must(conn, add_group("x", pair, "g"));
    stage.must(conn, txn_offsets("x", pair, nobody("g"), at, 5, false));
    assert_eq!(stage.offset("g", at), None, "not before the commit");
    stage.end(conn, "x", pair, true, false);
    assert_eq!((stage.offset("g", at), stage.log(at)), (Some(5), vec![kept]));
}
