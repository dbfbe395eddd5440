//! Every bound has a behaviour when it is reached.

use std::sync::Arc;

use bytes::Bytes;

use super::{at, caller, join_request, member, settings};
use crate::config::limits;
use crate::leader::Action;
use crate::leader::groups::Groups;
use crate::leader::request::{JoinGroup, LeaveGroup, Response, SyncGroup, Token};
use crate::types::Refusal;

fn join(groups: &mut Groups, token: u64, request: JoinGroup) -> Vec<Response> {
    let mut out = Vec::new();
    groups.join(at(token), &caller("c"), Token(token), request, &mut out);
    responses(out)
}

fn responses(out: Vec<Action>) -> Vec<Response> {
    let response = |action| match action {
        Action::Reply(_, response) => response,
        other => panic!("{other:?}"),
    };
    out.into_iter().map(response).collect()
}

#[test]
fn a_full_table_forgets_the_group_that_is_empty_for_longest() {
    let mut groups = Groups::new(settings());
    for number in 0..limits::GROUPS_MAX as u64 {
        let id = format!("g{number}");
        assert!(matches!(join(&mut groups, number, join_request(&id, "", "m"))[..], [Response::Joined(_)]));
    }
    assert_eq!(join(&mut groups, 200_000, join_request("new", "", "m")), [Response::Refused(Refusal::Overloaded)]);
    for (token, id) in [(200_001, "g7"), (200_002, "g5")] {
        let leave = LeaveGroup { group: id.into(), members: vec![("m".into(), None)] };
        assert_eq!(groups.leave(at(token), &leave, &mut Vec::new()), [Ok(())]);
    }
    assert!(matches!(join(&mut groups, 200_003, join_request("new", "", "m"))[..], [Response::Joined(_)]));
    assert!(groups.get("g7").is_none());
    assert_eq!(groups.get("g5").map(|group| group.generation()), Some(2));
}

#[test]
fn ids_that_nobody_uses_are_bounded_and_the_oldest_is_forgotten() {
    let mut groups = Groups::new(settings());
    let count = limits::GROUP_PENDING_MEMBERS_MAX as u64 + 1;
    for number in 0..count {
        let mut request = join_request("g", "", &format!("m{number}"));
        request.version = 4;
        assert!(matches!(join(&mut groups, number, request)[..], [Response::MemberIdRequired(_)]));
    }
    assert_eq!(
        join(&mut groups, count, join_request("g", "m0", "x")),
        [Response::Refused(Refusal::UnknownMemberId)],
        "the oldest"
    );
    assert!(matches!(join(&mut groups, count, join_request("g", "m1", "x"))[..], [Response::Joined(_)]));
    // All of them expire, and nothing is left that would wake anybody.
    groups.leave(at(count), &LeaveGroup { group: "g".into(), members: vec![("m1".into(), None)] }, &mut Vec::new());
    groups.handle_timeout(at(100_000), &mut Vec::new());
    assert_eq!(groups.next_deadline_ms(), Some(count + 604_800_000), "only the empty group's own end");
}

#[test]
fn too_much_metadata_is_refused_and_the_group_does_not_come_to_be() {
    let mut groups = Groups::new(settings());
    let mut request = join_request("g", "", "m");
    request.protocols = vec![("range".into(), Bytes::from(vec![0; limits::GROUP_METADATA_BYTES_MAX]))];
    assert_eq!(join(&mut groups, 1, request), [Response::Refused(Refusal::InvalidRequest)]);
    assert!(groups.get("g").is_none());
}

#[test]
fn metadata_of_all_groups_together_is_bounded_and_freed_when_members_go() {
    let mut groups = Groups::new(settings());
    let mut request = join_request("g", "", "m");
    request.protocols = vec![("range".into(), Bytes::from(vec![0; limits::GROUP_METADATA_BYTES_MAX / 2]))];
    let mut count = 0;
    loop {
        request.member.group = format!("g{count}").into();
        match &join(&mut groups, count, request.clone())[..] {
            [Response::Joined(_)] => count += 1,
            [Response::Refused(Refusal::Overloaded)] => break,
            other => panic!("{other:?}"),
        }
    }
    assert!((100..=128).contains(&count), "{count}");
    assert_eq!(groups.heartbeat(at(count), &member("g0", "m", 1)), Ok(()), "members go on");
    for number in 0..count {
        let leave = LeaveGroup { group: format!("g{number}").into(), members: vec![("m".into(), None)] };
        groups.leave(at(count), &leave, &mut Vec::new());
    }
    assert_eq!(groups.shared.bytes, 0);
    assert!(matches!(join(&mut groups, count, request)[..], [Response::Joined(_)]));
}

#[test]
fn too_large_an_assignment_is_refused_and_the_leader_may_send_another() {
    let mut groups = Groups::new(settings());
    join(&mut groups, 1, join_request("g", "", "m"));
    let mut sync = SyncGroup {
        member: member("g", "m", 1),
        protocol_type: None,
        protocol_name: None,
        assignments: vec![(Arc::from("m"), Bytes::from(vec![0; limits::GROUP_ASSIGNMENT_BYTES_MAX + 1]))],
    };
    let mut out = Vec::new();
    groups.sync(at(2), Token(2), sync.clone(), &mut out);
    assert_eq!(responses(out), [Response::Refused(Refusal::InvalidRequest)]);
    sync.assignments = vec![("m".into(), Bytes::from_static(b"all"))];
    let mut out = Vec::new();
    groups.sync(at(3), Token(3), sync, &mut out);
    assert!(matches!(&responses(out)[..], [Response::Synced(synced)] if synced.assignment == "all"));
}

#[test]
fn members_that_join_anew_at_each_try_are_gone_after_their_session() {
    // GR03: 5,000 joins of v3 without an id, while a slow member holds up the rebalance.
    let mut chosen = settings();
    chosen.group_max_size = 10_000;
    let mut groups = Groups::new(chosen);
    join(&mut groups, 1, join_request("g", "", "slow"));
    for number in 2..5_002 {
        assert!(join(&mut groups, number, join_request("g", "", &format!("m{number}"))).is_empty());
    }
    let mut out = Vec::new();
    // The slow member's session ends; nobody heartbeats afterwards.
    groups.handle_timeout(at(20_000), &mut out);
    assert_eq!(out.len(), 5_000, "everyone who waits is answered");
    groups.handle_timeout(at(1_000_000), &mut out);
    let group = groups.get("g").unwrap();
    assert_eq!((group.state(), group.member_count()), ("Empty", 0));
    assert_eq!(groups.shared.bytes, 0);
}
