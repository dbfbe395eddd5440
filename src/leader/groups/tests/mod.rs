//! Tests of the group protocol: golden scripts (`src/leader/scripts/groups`), random histories, and the bounds.

mod bounds;
mod random;
mod scripts;

use std::sync::Arc;

use bytes::Bytes;

use crate::leader::LeaderSettings;
use crate::leader::request::{Caller, JoinGroup, MemberRef};
use crate::types::{ConnectionId, Now};

pub(super) fn settings() -> LeaderSettings {
    LeaderSettings {
        transaction_max_timeout_ms: 900_000,
        entry_bytes_max: 1 << 20,
        staged_bytes_max: 1 << 24,
        group_min_session_timeout_ms: 6_000,
        group_max_session_timeout_ms: 1_800_000,
        group_initial_rebalance_delay_ms: 0,
        group_max_size: 100,
        offset_metadata_max_bytes: 4_096,
        producer_id_expiration_ms: 86_400_000,
        transactional_id_expiration_ms: 604_800_000,
        offsets_retention_ms: 604_800_000,
        log_retention_ms: 604_800_000,
        log_retention_bytes: -1,
    }
}

pub(super) fn at(mono_ms: u64) -> Now {
    Now { wall_ms: 1_000_000 + mono_ms as i64, mono_ms }
}

pub(super) fn caller(client: &str) -> Caller {
    Caller { connection: ConnectionId(1), software: "".into(), client_id: client.into(), host: "/127.0.0.1".into() }
}

pub(super) fn member(group: &str, id: &str, generation: i32) -> MemberRef {
    MemberRef { group: group.into(), generation, member_id: id.into(), instance_id: None }
}

pub(super) fn join_request(group: &str, id: &str, fresh: &str) -> JoinGroup {
    JoinGroup {
        version: 3,
        member: member(group, id, -1),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".into(),
        protocols: vec![(Arc::from("range"), Bytes::from_static(b"topics"))],
        reason: None,
        fresh_member_id: fresh.into(),
    }
}
