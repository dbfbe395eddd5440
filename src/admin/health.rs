//! Whether this node lives and serves, and what it knows of its cluster. JSON in the shape of Redpanda's admin API,
//! as far as `rpk` and Console read it.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::AdminState;
use crate::config::address::Address;
use crate::log::LogStatus;

fn status(state: &AdminState) -> Option<LogStatus> {
    state.rooms.get().map(|rooms| rooms.log.status())
}

/// `/v1/status/ready`
pub async fn ready(State(state): State<AdminState>) -> (StatusCode, Json<Value>) {
    let (code, word) = match status(&state) {
        Some(status) if status.replayed && status.serving => (StatusCode::OK, "ready"),
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
    let status = status(&state).unwrap_or_default();
    let nodes: Vec<u64> = status.members.iter().map(|member| member.node_id).collect();
    Json(json!({
        "is_healthy": status.serving,
        "unhealthy_reasons": if status.serving { vec![] } else { vec!["leaderless_partitions"] },
        "controller_id": status.leader.map_or(-1, |id| id as i64),
        "all_nodes": nodes,
        "nodes_down": [],
        "leaderless_partitions": [],
        "under_replicated_partitions": [],
    }))
}

/// `/v1/brokers`
pub async fn brokers(State(state): State<AdminState>) -> Json<Value> {
    Json(broker_list(&status(&state).unwrap_or_default(), &state.rpc))
}

/// `/v1/cluster_view`
pub async fn cluster_view(State(state): State<AdminState>) -> Json<Value> {
    let status = status(&state).unwrap_or_default();
    Json(json!({ "version": status.term.0, "brokers": broker_list(&status, &state.rpc) }))
}

/// `rpc` is this node's own; the status tells nothing of the others'.
fn broker_list(status: &LogStatus, rpc: &Address) -> Value {
    status
        .members
        .iter()
        .map(|member| {
            let rpc = (member.node_id == status.node_id).then_some(rpc);
            json!({
                "node_id": member.node_id,
                "internal_rpc_address": rpc.map(|rpc| &rpc.host),
                "internal_rpc_port": rpc.map(|rpc| rpc.port),
                "rack": member.rack,
                "membership_status": "active",
                "is_alive": true,
                "version": env!("CARGO_PKG_VERSION"),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Member;

    #[test]
    fn a_broker_is_listed_with_the_address_for_other_nodes_not_that_for_clients() {
        let me = Member { node_id: 4, host: "for-clients".into(), port: 9092, ..Member::default() };
        let status = LogStatus { node_id: 4, members: vec![me], ..LogStatus::default() };
        let rpc = Address { host: "for-nodes".into(), port: 33145 };
        let list = broker_list(&status, &rpc);
        assert_eq!(
            (&list[0]["internal_rpc_address"], &list[0]["internal_rpc_port"]),
            (&json!("for-nodes"), &json!(33145))
        );
    }
}
