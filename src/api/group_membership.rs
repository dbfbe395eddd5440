//! JoinGroup (key 11, versions 0–9), SyncGroup (14, 0–5), Heartbeat (12, 0–4) and LeaveGroup (13, 0–5): the classic group protocol.
//!
//! - JoinGroup v1 rebalance timeout; v4 (KIP-394) MEMBER_ID_REQUIRED; v5 (KIP-345) instance ids; v7 (KIP-559) protocol type in
//!   the answer, protocol name null on errors; v8 (KIP-800) reason; v9 (KIP-814) skip assignment.
//! - SyncGroup v3 (KIP-345) instance id; v5 (KIP-559) protocol type and name in both directions.
//! - Heartbeat v3 (KIP-345) instance id.
//! - LeaveGroup v3 (KIP-345) several members, by id or instance id, each with its own code; before, one member whose code is
//!   the answer's; v5 (KIP-800) reasons, which are not kept.
//! - What the answers mean is decided in `leader/groups`; here bytes become words, and refusals codes. A new member's id is
//!   made here, because the leader has no randomness: `<instance or client id>-<uuid>`, as Kafka's.

use std::sync::Arc;

use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{
    ApiKey, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    LeaveGroupResponse, SyncGroupRequest, SyncGroupResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::{Call, Malformed, Reply, encode, errors};
use crate::leader::request::{Caller, JoinGroup, Joined, LeaveGroup, MemberRef, Request, Response, SyncGroup, Synced};
use crate::types::Refusal;

/// First JoinGroup version with instance ids.
const JOIN_INSTANCE_ID: i16 = 5;
/// First JoinGroup version with the protocol type, and a null protocol name on errors.
const JOIN_PROTOCOL_TYPE: i16 = 7;
/// First SyncGroup version with protocol type and name.
const SYNC_PROTOCOL: i16 = 5;
/// First LeaveGroup version with several members.
const LEAVE_MEMBERS: i16 = 3;

fn arc(string: &StrBytes) -> Arc<str> {
    Arc::from(&**string)
}

fn wire(string: &str) -> StrBytes {
    StrBytes::from_string(string.to_owned())
}

/// Answers JoinGroup: when the rebalance completes.
///
/// # Errors
/// If the request cannot be decoded.
pub fn join(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: JoinGroupRequest = call.decode("JoinGroup")?;
    let (version, caller) = (call.version, Arc::clone(call.caller));
    let member_id = request.member_id.clone();
    let join = joining(request, version, &caller);
    Ok(call.answer(Request::JoinGroup(join), move |response| {
        let code = |refusal| errors::code(refusal, ApiKey::JoinGroup, version, &caller);
        Some(encode(&join_response(response, member_id, version, code)?, version))
    }))
}

/// Bytes of the client's or instance's id that a new member id begins with.
const STEM_BYTES_MAX: usize = 255;

fn joining(request: JoinGroupRequest, version: i16, caller: &Caller) -> JoinGroup {
    let instance_id = request.group_instance_id.as_ref().map(arc);
    let stem = instance_id.as_deref().unwrap_or(&caller.client_id);
    // Without its end it is still told apart, and the id fits into every version's strings.
    let stem = &stem[..stem.floor_char_boundary(STEM_BYTES_MAX)];
    let fresh_member_id = Arc::from(format!("{stem}-{}", uuid::Uuid::new_v4()));
    JoinGroup {
        version,
        member: MemberRef {
            group: arc(&request.group_id),
            generation: -1,
            member_id: arc(&request.member_id),
            instance_id,
        },
        session_timeout_ms: request.session_timeout_ms,
        rebalance_timeout_ms: request.rebalance_timeout_ms,
        protocol_type: arc(&request.protocol_type),
        protocols: request.protocols.into_iter().map(|protocol| (arc(&protocol.name), protocol.metadata)).collect(),
        reason: request.reason.as_ref().map(arc),
        fresh_member_id,
    }
}

fn join_response(
    response: Response,
    member_id: StrBytes,
    version: i16,
    code: impl Fn(Refusal) -> i16,
) -> Option<JoinGroupResponse> {
    let nameless = (version < JOIN_PROTOCOL_TYPE).then(StrBytes::new);
    let refused = |code, member_id| {
        JoinGroupResponse::default()
            .with_error_code(code)
            .with_generation_id(-1)
            .with_protocol_name(nameless)
            .with_member_id(member_id)
    };
    match response {
        Response::Joined(joined) => Some(joined_response(joined, version)),
        Response::MemberIdRequired(fresh) => Some(refused(code(Refusal::MemberIdRequired), wire(&fresh))),
        Response::Refused(refusal) => Some(refused(code(refusal), member_id)),
        _ => None,
    }
}

fn joined_response(joined: Joined, version: i16) -> JoinGroupResponse {
    let member = |(id, instance_id, metadata): (Arc<str>, Option<Arc<str>>, _)| {
        // An old leader cannot be told instance ids; it assigns by member id.
        let instance_id = instance_id.filter(|_| version >= JOIN_INSTANCE_ID);
        JoinGroupResponseMember::default()
            .with_member_id(wire(&id))
            .with_group_instance_id(instance_id.as_deref().map(wire))
            .with_metadata(metadata)
    };
    JoinGroupResponse::default()
        .with_generation_id(joined.generation)
        .with_protocol_type((version >= JOIN_PROTOCOL_TYPE).then(|| wire(&joined.protocol_type)))
        .with_protocol_name(Some(wire(&joined.protocol_name)))
        .with_leader(wire(&joined.leader))
        .with_skip_assignment(joined.skip_assignment)
        .with_member_id(wire(&joined.member_id))
        .with_members(joined.members.into_iter().map(member).collect())
}

/// Answers SyncGroup: when the leader's assignment is there.
///
/// # Errors
/// If the request cannot be decoded.
pub fn sync(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: SyncGroupRequest = call.decode("SyncGroup")?;
    let (version, caller) = (call.version, Arc::clone(call.caller));
    let sync = SyncGroup {
        member: MemberRef {
            group: arc(&request.group_id),
            generation: request.generation_id,
            member_id: arc(&request.member_id),
            instance_id: request.group_instance_id.as_ref().map(arc),
        },
        protocol_type: request.protocol_type.as_ref().map(arc),
        protocol_name: request.protocol_name.as_ref().map(arc),
        assignments: request.assignments.into_iter().map(|one| (arc(&one.member_id), one.assignment)).collect(),
    };
    Ok(call.answer(Request::SyncGroup(sync), move |response| {
        let code = |refusal| errors::code(refusal, ApiKey::SyncGroup, version, &caller);
        Some(encode(&sync_response(response, version, code)?, version))
    }))
}

fn sync_response(response: Response, version: i16, code: impl Fn(Refusal) -> i16) -> Option<SyncGroupResponse> {
    match response {
        Response::Synced(Synced { protocol_type, protocol_name, assignment }) => {
            let told = version >= SYNC_PROTOCOL;
            Some(
                SyncGroupResponse::default()
                    .with_protocol_type(told.then(|| wire(&protocol_type)))
                    .with_protocol_name(told.then(|| wire(&protocol_name)))
                    .with_assignment(assignment),
            )
        }
        Response::Refused(refusal) => Some(SyncGroupResponse::default().with_error_code(code(refusal))),
        _ => None,
    }
}

/// Answers Heartbeat.
///
/// # Errors
/// If the request cannot be decoded.
pub fn heartbeat(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: HeartbeatRequest = call.decode("Heartbeat")?;
    let (version, caller) = (call.version, Arc::clone(call.caller));
    let member = MemberRef {
        group: arc(&request.group_id),
        generation: request.generation_id,
        member_id: arc(&request.member_id),
        instance_id: request.group_instance_id.as_ref().map(arc),
    };
    Ok(call.answer(Request::Heartbeat(member), move |response| {
        let code = match response {
            Response::Done => 0,
            Response::Refused(refusal) => errors::code(refusal, ApiKey::Heartbeat, version, &caller),
            _ => return None,
        };
        Some(encode(&HeartbeatResponse::default().with_error_code(code), version))
    }))
}

/// Answers LeaveGroup.
///
/// # Errors
/// If the request cannot be decoded.
pub fn leave(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: LeaveGroupRequest = call.decode("LeaveGroup")?;
    let (version, caller) = (call.version, Arc::clone(call.caller));
    if request.group_id.is_empty() {
        let code = errors::told(E::InvalidGroupId, ApiKey::LeaveGroup);
        return Ok(Reply::now(&LeaveGroupResponse::default().with_error_code(code), version));
    }
    let members = leaving(&request, version);
    let named = members.iter().map(|member| (arc(&member.member_id), member.group_instance_id.as_ref().map(arc)));
    let leave = LeaveGroup { group: arc(&request.group_id), members: named.collect() };
    Ok(call.answer(Request::LeaveGroup(leave), move |response| {
        let code = |refusal| errors::code(refusal, ApiKey::LeaveGroup, version, &caller);
        Some(encode(&leave_response(response, members, version, code)?, version))
    }))
}

/// Who leaves; before v3 one member, by its id.
fn leaving(request: &LeaveGroupRequest, version: i16) -> Vec<MemberIdentity> {
    if version >= LEAVE_MEMBERS {
        request.members.clone()
    } else {
        vec![MemberIdentity::default().with_member_id(request.member_id.clone())]
    }
}

fn leave_response(
    response: Response,
    members: Vec<MemberIdentity>,
    version: i16,
    code: impl Fn(Refusal) -> i16,
) -> Option<LeaveGroupResponse> {
    let answer = LeaveGroupResponse::default();
    let left = match response {
        Response::Left(left) => left,
        Response::Refused(refusal) => return Some(answer.with_error_code(code(refusal))),
        _ => return None,
    };
    let codes = left.into_iter().map(|outcome| outcome.map_or_else(&code, |()| 0));
    if version < LEAVE_MEMBERS {
        return Some(answer.with_error_code(codes.into_iter().next().unwrap_or(0)));
    }
    let member = |(member, code): (MemberIdentity, i16)| {
        MemberResponse::default()
            .with_member_id(member.member_id)
            .with_group_instance_id(member.group_instance_id)
            .with_error_code(code)
    };
    Some(answer.with_members(members.into_iter().zip(codes).map(member).collect()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
    use kafka_protocol::protocol::Decodable;

    use super::*;
    use crate::types::ConnectionId;

    fn caller() -> Caller {
        Caller { connection: ConnectionId(1), software: "".into(), client_id: "app".into(), host: "/127.0.0.1".into() }
    }

    /// Stands in for the table of codes: these tests look at where a code goes, not at which it is.
    fn code(refusal: Refusal) -> i16 {
        match refusal {
            Refusal::MemberIdRequired => 79,
            Refusal::UnknownMemberId => 25,
            other => panic!("{other:?}"),
        }
    }

    /// The body as a client of that version reads it.
    fn read<R: Decodable + kafka_protocol::protocol::Encodable>(response: &R, version: i16) -> R {
        let mut body = encode(response, version).concat().into();
        let read = R::decode(&mut body, version).unwrap();
        assert!(Bytes::is_empty(&body), "v{version} leaves {} bytes", body.len());
        read
    }

    fn joined() -> Joined {
        Joined {
            generation: 3,
            protocol_type: "consumer".into(),
            protocol_name: "range".into(),
            leader: "a".into(),
            member_id: "a".into(),
            skip_assignment: false,
            members: vec![
                ("a".into(), None, Bytes::from_static(b"1")),
                ("b".into(), Some("i".into()), Bytes::from_static(b"2")),
            ],
        }
    }

    #[test]
    fn every_version_can_carry_a_completed_join() {
        for version in 0..=9 {
            let response = join_response(Response::Joined(joined()), wire("a"), version, code).unwrap();
            let read = read(&response, version);
            assert_eq!((read.error_code, read.generation_id, &*read.leader, &*read.member_id), (0, 3, "a", "a"));
            assert_eq!(read.protocol_name.as_deref(), Some("range"));
            assert_eq!(read.protocol_type.as_deref(), (version >= 7).then_some("consumer"));
            assert_eq!(read.members.len(), 2);
            assert_eq!(&read.members[1].metadata[..], b"2");
            assert_eq!(read.members[1].group_instance_id.as_deref(), (version >= 5).then_some("i"));
        }
    }

    #[test]
    fn a_static_leader_is_told_to_skip_the_assignment() {
        let response = Response::Joined(Joined { skip_assignment: true, ..joined() });
        assert!(read(&join_response(response, wire("a"), 9, code).unwrap(), 9).skip_assignment);
    }

    #[test]
    fn a_refused_join_names_the_member_and_no_generation() {
        for version in 0..=9 {
            let refused = Response::Refused(Refusal::UnknownMemberId);
            let read_back = read(&join_response(refused, wire("mine"), version, code).unwrap(), version);
            assert_eq!((read_back.error_code, read_back.generation_id, &*read_back.member_id), (25, -1, "mine"));
            // Null where the version knows null, as Kafka.
            assert_eq!(read_back.protocol_name.as_deref(), (version < 7).then_some(""));
            let required = Response::MemberIdRequired("fresh".into());
            let read_back = read(&join_response(required, wire(""), version, code).unwrap(), version);
            assert_eq!((read_back.error_code, &*read_back.member_id), (79, "fresh"));
        }
    }

    #[test]
    fn a_fresh_id_starts_with_the_instance_id_or_the_client_id() {
        let protocol = JoinGroupRequestProtocol::default().with_name(wire("range"));
        let request = JoinGroupRequest::default().with_protocols(vec![protocol]);
        let long = Caller { client_id: "é".repeat(16_000).into(), ..caller() };
        assert_eq!(
            joining(request.clone(), 5, &long).fresh_member_id.len(),
            254 + 37,
            "it fits into any version's string"
        );
        let fresh = joining(request.clone(), 9, &caller()).fresh_member_id;
        assert!(fresh.starts_with("app-") && fresh.len() == "app-".len() + 36, "{fresh}");
        let request = request.with_group_instance_id(Some(wire("worker")));
        assert!(joining(request.clone(), 9, &caller()).fresh_member_id.starts_with("worker-"));
        assert_ne!(
            joining(request.clone(), 9, &caller()).fresh_member_id,
            joining(request, 9, &caller()).fresh_member_id
        );
    }

    #[test]
    fn a_join_of_version_0_has_no_rebalance_timeout() {
        // GR01: group, session timeout, member id, type, no protocols.
        let mut body = Bytes::from_static(b"\0\x01g\0\0\x27\x10\0\0\0\x08consumer\0\0\0\0");
        let request = JoinGroupRequest::decode(&mut body, 0).unwrap();
        assert!(joining(request, 0, &caller()).rebalance_timeout_ms <= 0);
    }

    #[test]
    fn every_version_can_carry_an_assignment_and_a_refusal_of_it() {
        for version in 0..=5 {
            let synced = Synced {
                protocol_type: "consumer".into(),
                protocol_name: "range".into(),
                assignment: Bytes::from_static(b"mine"),
            };
            let read_back = read(&sync_response(Response::Synced(synced), version, code).unwrap(), version);
            assert_eq!((read_back.error_code, &read_back.assignment[..]), (0, &b"mine"[..]));
            assert_eq!(read_back.protocol_name.as_deref(), (version >= 5).then_some("range"));
            let refused = Response::Refused(Refusal::UnknownMemberId);
            let read_back = read(&sync_response(refused, version, code).unwrap(), version);
            assert_eq!((read_back.error_code, read_back.assignment.len()), (25, 0));
        }
    }

    #[test]
    fn one_leaving_member_has_the_answers_code_and_several_have_their_own() {
        let request = LeaveGroupRequest::default().with_member_id(wire("m")).with_members(vec![
            MemberIdentity::default().with_member_id(wire("a")),
            MemberIdentity::default().with_group_instance_id(Some(wire("i"))),
        ]);
        for version in 0..=2 {
            let members = leaving(&request, version);
            assert_eq!(members.iter().map(|member| &*member.member_id).collect::<Vec<_>>(), ["m"]);
            let left = Response::Left(vec![Err(Refusal::UnknownMemberId)]);
            assert_eq!(read(&leave_response(left, members, version, code).unwrap(), version).error_code, 25);
        }
        for version in 3..=5 {
            let left = Response::Left(vec![Ok(()), Err(Refusal::UnknownMemberId)]);
            let response = leave_response(left, leaving(&request, version), version, code).unwrap();
            let read = read(&response, version);
            assert_eq!(read.error_code, 0);
            let members =
                read.members.iter().map(|one| (&*one.member_id, one.group_instance_id.as_deref(), one.error_code));
            assert_eq!(members.collect::<Vec<_>>(), [("a", None, 0), ("", Some("i"), 25)]);
        }
    }

    #[test]
    fn an_answer_of_another_kind_closes_the_connection() {
        assert!(join_response(Response::Close, wire(""), 9, code).is_none());
        assert!(sync_response(Response::Close, 5, code).is_none());
        assert!(leave_response(Response::Close, Vec::new(), 5, code).is_none());
    }
}
