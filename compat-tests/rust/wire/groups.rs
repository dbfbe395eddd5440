//! One round of the classic group protocol: join, sync, heartbeat, leave.

use bytes::Bytes;
use kafka_protocol::messages as m;
use kafka_protocol::protocol::StrBytes;

use super::client::{Broker, fresh};

#[test]
fn a_member_joins_syncs_beats_and_leaves_and_is_unknown_afterwards() {
    let broker = Broker::start();
    let group = m::GroupId(fresh("group"));
    let mut client = broker.connect();
    let protocol = m::join_group_request::JoinGroupRequestProtocol::default()
        .with_name(StrBytes::from_static_str("range"))
        .with_metadata(Bytes::from_static(b"subscription"));
    let join = |member: &StrBytes| {
        m::JoinGroupRequest::default()
            .with_group_id(group.clone())
            .with_session_timeout_ms(10_000)
            .with_rebalance_timeout_ms(10_000)
            .with_protocol_type(StrBytes::from_static_str("consumer"))
            .with_member_id(member.clone())
            .with_protocols(vec![protocol.clone()])
    };
    let first = client.ask(&join(&StrBytes::default()), 9).expect("an answer");
    assert_eq!(first.error_code, 79, "KIP-394: an id first");
    let member = first.member_id;
    let joined = client.ask(&join(&member), 9).expect("an answer");
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    assert_eq!((&joined.leader, joined.members.len()), (&member, 1));
    let assignment = m::sync_group_request::SyncGroupRequestAssignment::default()
        .with_member_id(member.clone())
        .with_assignment(Bytes::from_static(b"all of it"));
    let sync = m::SyncGroupRequest::default()
        .with_group_id(group.clone())
        .with_generation_id(1)
        .with_member_id(member.clone())
        .with_protocol_type(Some(StrBytes::from_static_str("consumer")))
        .with_protocol_name(Some(StrBytes::from_static_str("range")))
        .with_assignments(vec![assignment]);
    let synced = client.ask(&sync, 5).expect("an answer");
    assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"all of it"[..]));
    let beat = |generation| {
        m::HeartbeatRequest::default()
            .with_group_id(group.clone())
            .with_generation_id(generation)
            .with_member_id(member.clone())
    };
    assert_eq!(client.ask(&beat(1), 4).expect("an answer").error_code, 0);
    assert_eq!(client.ask(&beat(2), 4).expect("an answer").error_code, 22, "another generation");
    let leaver = m::leave_group_request::MemberIdentity::default().with_member_id(member.clone());
    let leave = m::LeaveGroupRequest::default().with_group_id(group.clone()).with_members(vec![leaver]);
    let left = client.ask(&leave, 5).expect("an answer");
    assert_eq!((left.error_code, left.members[0].error_code), (0, 0));
    assert_eq!(client.ask(&beat(1), 4).expect("an answer").error_code, 25, "it is gone");
}
