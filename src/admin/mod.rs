//! HTTP for operators: health, cluster views and Prometheus metrics. Up before the log is replayed, so that
//! `ready` can say 503 with a reason meanwhile.
//!
//! | path | answers |
//! |---|---|
//! | `/metrics`, `/public_metrics` | Prometheus text, both the same body |
//! | `/v1/status/ready` | 200 when the log is replayed and this node serves, else 503 |
//! | `/v1/status/live` | 200 while the process runs |
//! | `/v1/cluster/status`, `/v1/cluster/nodes`, `/v1/cluster/transfer_leadership`, `/v1/brokers/{id}/decommission` | see [`cluster`] |
//! | `/v1/cluster/health_overview`, `/v1/brokers`, `/v1/cluster_view` | JSON, in Redpanda's shape |

pub mod cluster;
pub mod health;
pub mod metrics;

use std::future::Future;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::routing::{delete, get, post};

use crate::log::Log;
use crate::read::Reader;
use crate::state::Machine;

/// What the pages look at. The rooms are put in once they are open.
#[derive(Clone)]
pub struct AdminState {
    /// The rooms, after start-up.
    pub rooms: Arc<OnceLock<Rooms>>,
    /// Renders metrics.
    pub metrics: Arc<metrics::Exporter>,
    /// Open client connections; `server` knows whom to ask.
    pub connections: fn() -> usize,
    /// The counts of the topics that exist, in Prometheus' words.
    pub topics_page: fn(&Machine) -> String,
}

/// The rooms that the pages look at.
pub struct Rooms {
    /// The log.
    pub log: Log,
    /// Partition logs, for sizes.
    pub reader: Reader,
}

/// Serves the pages until `stop` completes.
///
/// # Errors
/// If the listener breaks.
pub async fn serve(
    listener: tokio::net::TcpListener,
    state: AdminState,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/metrics", get(metrics::page))
        .route("/public_metrics", get(metrics::page))
        .route("/v1/status/ready", get(health::ready))
        .route("/v1/status/live", get(health::live))
        .route("/v1/cluster/health_overview", get(health::overview))
        .route("/v1/brokers", get(health::brokers))
        .route("/v1/cluster_view", get(health::cluster_view))
        .route("/v1/cluster/status", get(cluster::status))
        .route("/v1/cluster/nodes", post(cluster::add))
        .route("/v1/cluster/nodes/{id}", delete(cluster::remove))
        .route("/v1/cluster/transfer_leadership", post(cluster::transfer))
        .route("/v1/brokers/{id}/decommission", post(cluster::remove).put(cluster::remove))
        .with_state(state);
    axum::serve(listener, router).with_graceful_shutdown(stop).await
}
