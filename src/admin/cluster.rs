//! The cluster's members: how they stand, and changing them. What the words mean is `log`'s ([`Change`]).
//!
//! | | |
//! |---|---|
//! | `GET /v1/cluster/status` | leader, members, how far each is |
//! | `POST /v1/cluster/nodes` | `{"address": "host:port", "node_id": 4}` adds a node; the id is optional |
//! | `DELETE /v1/cluster/nodes/{id}`, `PUT` or `POST /v1/brokers/{id}/decommission` | removes one |
//! | `POST /v1/cluster/transfer_leadership` | `{"to": 2}` moves leadership; the target is optional |
//!
//! 200: done; 202: it follows and will vote; 4xx: refused, in words; 503: no leader; 504: asked for, and its end is unknown.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::AdminState;
use crate::log::membership::{Change, Changed, MembershipError};

type Answer = (StatusCode, Json<Value>);

/// Which node to add.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewNode {
    address: String,
    node_id: Option<u64>,
}

/// Who shall lead.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    to: Option<u64>,
}

/// `GET /v1/cluster/status`
pub async fn status(State(state): State<AdminState>) -> Answer {
    let Some(rooms) = state.rooms.get() else { return starting() };
    let overview = rooms.log.overview().await;
    let value = serde_json::to_value(overview).unwrap_or_else(|error| json!({ "error": error.to_string() }));
    (StatusCode::OK, Json(value))
}

/// `POST /v1/cluster/nodes`
pub async fn add(State(state): State<AdminState>, body: Result<Json<NewNode>, JsonRejection>) -> Answer {
    match body {
        Ok(Json(NewNode { address, node_id: id })) => change(&state, Change::Add { id, address }).await,
        Err(rejection) => refused(rejection.status(), &rejection.body_text()),
    }
}

/// `DELETE /v1/cluster/nodes/{id}`, and Redpanda's decommission
pub async fn remove(State(state): State<AdminState>, Path(id): Path<u64>) -> Answer {
    change(&state, Change::Remove(id)).await
}

/// `POST /v1/cluster/transfer_leadership`; without a body, to whoever follows most closely.
pub async fn transfer(State(state): State<AdminState>, body: bytes::Bytes) -> Answer {
    let target = if body.is_empty() { Ok(Target::default()) } else { serde_json::from_slice::<Target>(&body) };
    match target {
        Ok(Target { to }) => change(&state, Change::Transfer(to)).await,
        Err(error) => refused(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

async fn change(state: &AdminState, change: Change) -> Answer {
    let Some(rooms) = state.rooms.get() else { return starting() };
    match rooms.log.change_members(change).await {
        Ok(changed) => done(changed),
        Err(error) => refused(code_of(&error), &error.to_string()),
    }
}

fn done(changed: Changed) -> Answer {
    let (code, outcome, node) = match changed {
        Changed::Learns(node) => (StatusCode::ACCEPTED, "learns", Some(node)),
        Changed::Votes(node) => (StatusCode::OK, "votes", Some(node)),
        Changed::Gone => (StatusCode::OK, "gone", None),
        Changed::Leads(node) => (StatusCode::OK, "leads", Some(node)),
    };
    (code, Json(json!({ "outcome": outcome, "node_id": node })))
}

fn code_of(error: &MembershipError) -> StatusCode {
    match error {
        MembershipError::NoLeader => StatusCode::SERVICE_UNAVAILABLE,
        MembershipError::Busy
        | MembershipError::LastVoter(_)
        | MembershipError::NoMajority { .. }
        | MembershipError::Taken { .. } => StatusCode::CONFLICT,
        MembershipError::NotAddable { .. } => StatusCode::BAD_REQUEST,
        MembershipError::NotAVoter(_) => StatusCode::NOT_FOUND,
        MembershipError::Unknown(_) => StatusCode::GATEWAY_TIMEOUT,
    }
}

fn starting() -> Answer {
    refused(StatusCode::SERVICE_UNAVAILABLE, "this node is still replaying its log")
}

fn refused(code: StatusCode, why: &str) -> Answer {
    // `code` and `message` are Redpanda's names.
    (code, Json(json!({ "code": code.as_u16(), "message": why })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_tell_whether_to_wait_to_give_up_or_to_ask_again() {
        assert_eq!(done(Changed::Learns(4)).0, StatusCode::ACCEPTED);
        assert_eq!(done(Changed::Leads(2)).1.0, json!({ "outcome": "leads", "node_id": 2 }));
        assert_eq!(code_of(&MembershipError::NoLeader), StatusCode::SERVICE_UNAVAILABLE);
        let harm = MembershipError::NoMajority { id: 2, close: 1, remaining: 2 };
        assert_eq!(code_of(&harm), StatusCode::CONFLICT);
        let said = refused(code_of(&harm), &harm.to_string()).1.0;
        assert!(said["message"].as_str().is_some_and(|text| text.contains("no majority")), "{said}");
    }
}
