//! Whether this node lives and serves, and what it knows of its cluster. JSON in the shape of Redpanda's admin API,
//! as far as `rpk` and Console read it.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::AdminState;
use crate::config::address::Address;
use crate::log::{LogStatus, Member};

fn status(state: &AdminState) -> Option<LogStatus> {
    state.rooms.get().map(|rooms| rooms.log.status())
}

/// `/v1/status/ready`
pub async fn ready(State(state): State<AdminState>) -> (StatusCode, Json<Value>) {
    let (code, word) = match status(&state) {
        Some(status) if status.replayed && status.leader.is_some() => (StatusCode::OK, "ready"),
        Some(status) if status.replayed => (StatusCode::SERVICE_UNAVAILABLE, "no leader"),
        Some(_) | None => (StatusCode::SERVICE_UNAVAILABLE, "replaying the log"),
    };
    (code, Json(json!({ "status": word })))
}

/// `/v1/status/live`
pub async fn live() -> Json<Value> {
    Json(json!({ "status": "live" }))
}

/// `/v1/cluster/health_overview`
pub async fn overview(State(state): State<AdminState>) -> Json<Value> {
    Json(health(&status(&state).unwrap_or_default()))
}

/// What this node knows: the leader sees who follows closely, and tells the others.
fn health(status: &LogStatus) -> Value {
    let nodes: Vec<u64> = status.members.iter().map(|member| member.node_id).collect();
    let behind: Vec<u64> =
        status.members.iter().filter(|member| member.voter && !member.in_sync).map(|member| member.node_id).collect();
    let mut reasons = Vec::new();
    if status.leader.is_none() {
        reasons.push("leaderless_partitions");
    }
    if !behind.is_empty() {
        reasons.extend(["nodes_down", "under_replicated_partitions"]);
    }
    json!({
        "is_healthy": reasons.is_empty(),
        "unhealthy_reasons": reasons,
        "controller_id": status.leader.map_or(-1, |id| id as i64),
        "all_nodes": nodes,
        "nodes_down": behind,
        "leaderless_partitions": [],
        "under_replicated_partitions": [],
    })
}

/// `/v1/brokers`
pub async fn brokers(State(state): State<AdminState>) -> Json<Value> {
    Json(broker_list(&status(&state).unwrap_or_default()))
}

/// `/v1/cluster_view`
pub async fn cluster_view(State(state): State<AdminState>) -> Json<Value> {
    let status = status(&state).unwrap_or_default();
    Json(json!({ "version": status.term.0, "brokers": broker_list(&status) }))
}

fn broker_list(status: &LogStatus) -> Value {
    let broker = |member: &Member| {
        let rpc = Address::parse(&member.rpc).ok();
        json!({
            "node_id": member.node_id,
            "internal_rpc_address": rpc.as_ref().map(|rpc| &rpc.host),
            "internal_rpc_port": rpc.as_ref().map(|rpc| rpc.port),
            "rack": member.rack,
            "membership_status": "active",
            "is_alive": member.in_sync || member.node_id == status.node_id,
            "version": env!("CARGO_PKG_VERSION"),
        })
    };
    status.members.iter().map(broker).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_listed_with_the_address_for_other_nodes_not_that_for_clients() {
        let rpc = "for-nodes:33145".to_owned();
        let me = Member { node_id: 4, host: "for-clients".into(), port: 9092, rpc, ..Member::default() };
        let status = LogStatus { node_id: 4, members: vec![me], ..LogStatus::default() };
        let list = broker_list(&status);
        assert_eq!(
            (&list[0]["internal_rpc_address"], &list[0]["internal_rpc_port"]),
            (&json!("for-nodes"), &json!(33145))
        );
    }
    #[test]
    fn health_names_what_is_wrong() {
        let member = |node_id, in_sync| Member { node_id, voter: true, in_sync, ..Member::default() };
        let mut status =
            LogStatus { leader: Some(1), members: vec![member(1, true), member(2, true)], ..LogStatus::default() };
        assert_eq!(health(&status)["is_healthy"], json!(true));
        status.members[1].in_sync = false;
        let one_down = health(&status);
        assert_eq!((&one_down["is_healthy"], &one_down["nodes_down"]), (&json!(false), &json!([2])));
        status.leader = None;
        let reasons = health(&status)["unhealthy_reasons"].clone();
        assert_eq!(reasons, json!(["leaderless_partitions", "nodes_down", "under_replicated_partitions"]));
    }
}
