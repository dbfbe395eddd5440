//! Prometheus metrics. Rooms record what they do through the `metrics` crate; what is only a view of the state
//! (offsets, lag, sizes) is set here at each scrape. One family a file: labels, description, values.
//!
//! Names: Redpanda's where its dashboards and alerts query them, `katomic_*` for ours (surface.md §4).

mod cluster;
mod groups;
mod process;
mod storage;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;

use super::AdminState;

/// Seconds: from 50 µs, where one fdatasync lies, to 10 s.
const LATENCY_BUCKETS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.000_75, 0.001, 0.001_5, 0.002, 0.003, 0.005, 0.007_5, 0.01, 0.02,
    0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
];

/// Gauges are set at every scrape, never as things happen; one that is not set (its topic or group is gone) leaves after
/// this time.
const GAUGE_IDLE_MAX: Duration = Duration::from_secs(300);

/// How often samples of histograms are drained.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Renders what was recorded.
pub struct Exporter {
    handle: PrometheusHandle,
    started: Instant,
    data_dir: PathBuf,
    fsync_disabled: bool,
}

impl Exporter {
    /// Installs the recorder of this process, and a task on this runtime that drains its histograms.
    ///
    /// # Errors
    /// If another recorder is installed already.
    pub fn install(
        data_dir: PathBuf,
        fsync_disabled: bool,
    ) -> Result<Arc<Self>, metrics_exporter_prometheus::BuildError> {
        let handle = PrometheusBuilder::new()
            .idle_timeout(MetricKindMask::GAUGE, Some(GAUGE_IDLE_MAX))
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), LATENCY_BUCKETS)?
            .set_buckets_for_metric(
                Matcher::Full("katomic_aggregator_batch_requests".into()),
                &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0],
            )?
            .install_recorder()?;
        describe();
        // Histograms gather samples until somebody drains them, and a node that is not scraped must not grow.
        let drained = handle.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP_EVERY).await;
                drained.run_upkeep();
            }
        });
        Ok(Arc::new(Self { handle, started: Instant::now(), data_dir, fsync_disabled }))
    }

    fn record_build(&self) {
        metrics::gauge!("katomic_fsync_disabled").set(if self.fsync_disabled { 1.0 } else { 0.0 });
        metrics::gauge!(
            "redpanda_application_build",
            "redpanda_version" => env!("CARGO_PKG_VERSION"),
            "redpanda_revision" => "katomic"
        )
        .set(1.0);
        metrics::gauge!("redpanda_application_uptime_seconds_total").set(self.started.elapsed().as_secs_f64());
    }
}

/// `/metrics` and `/public_metrics`
pub async fn page(State(state): State<AdminState>) -> impl IntoResponse {
    let exporter = &state.metrics;
    exporter.record_build();
    let connections = (state.connections)() as f64;
    metrics::gauge!("redpanda_rpc_active_connections", "redpanda_server" => "kafka").set(connections);
    let mut topics = String::new();
    process::record();
    storage::record(&exporter.data_dir);
    if let Some(rooms) = state.rooms.get() {
        rooms.log.publish_metrics();
        let peers = rooms.log.peer_connections() as f64;
        metrics::gauge!("redpanda_rpc_active_connections", "redpanda_server" => "internal").set(peers);
        // One cut for all families: O(1), and apply does not wait while it is walked over.
        let machine = rooms.log.read(Clone::clone);
        topics = (state.topics_page)(&machine);
        cluster::record(&machine, &rooms.log.status());
        groups::record(&machine, &rooms.log.group_members(), groups::SERIES_MAX);
        storage::record_sizes(&rooms.reader, &machine);
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], exporter.handle.render() + &topics)
}

/// HELP texts and units of everything that any room records.
fn describe() {
    cluster::describe();
    groups::describe();
    process::describe();
    storage::describe();
    describe_gauge!("redpanda_application_uptime_seconds_total", Unit::Seconds, "Time since this process started");
    describe_gauge!("redpanda_application_build", "Always 1; the labels name the build");
    describe_gauge!("katomic_fsync_disabled", "1 if this node acknowledges from the page cache");

    describe_gauge!("redpanda_rpc_active_connections", "Open connections");
    describe_counter!("redpanda_rpc_received_bytes", Unit::Bytes, "Bytes of requests received");
    describe_counter!("redpanda_rpc_sent_bytes", Unit::Bytes, "Bytes of responses sent");
    describe_counter!("redpanda_rpc_request_errors_total", "Requests answered with an error, or not at all");
    describe_histogram!("redpanda_rpc_request_latency_seconds", Unit::Seconds, "Time from request to response");
    describe_histogram!("redpanda_kafka_handler_latency_seconds", Unit::Seconds, "Time in a handler, by Kafka API");
    describe_histogram!(
        "redpanda_kafka_request_latency_seconds",
        Unit::Seconds,
        "Produce: request to response; consume: without the wait of a long poll"
    );
    describe_counter!("katomic_api_errors_total", "Errors answered, by API and Kafka error");

    describe_counter!("katomic_txn_total", "Transactions that ended, by result");
    describe_histogram!(
        "katomic_txn_commit_latency_seconds",
        Unit::Seconds,
        "EndTxn received to its answer, by result"
    );
    describe_gauge!("katomic_txn_open", "Open transactions");
    describe_gauge!("katomic_txn_oldest_open_seconds", Unit::Seconds, "Age of the oldest open transaction");
    describe_gauge!("katomic_txn_buffered_bytes", Unit::Bytes, "Staged, uncommitted record bytes");
    describe_counter!("katomic_txn_raft_entries_total", "Begin, chunk and commit entries applied");
    describe_histogram!(
        "katomic_aggregator_batch_requests",
        "Entries per append to the log: requests that share an fdatasync"
    );
    describe_gauge!("katomic_aggregator_queue_depth", "Proposals in flight");
    describe_histogram!("katomic_aggregator_queue_wait_seconds", Unit::Seconds, "Proposed until appended to the log");
    describe_counter!("katomic_group_rebalances_total", "Completed rebalances, all groups");
    describe_gauge!("katomic_raft_log_size_bytes", Unit::Bytes, "Files of the replicated log");
    describe_gauge!("katomic_raft_term", "Current term");
    describe_gauge!("katomic_raft_is_leader", "1 if this node leads and serves");
    describe_gauge!("katomic_raft_commit_index", "Last committed log index");
    describe_gauge!("katomic_raft_applied_index", "Last applied log index");
    describe_histogram!("katomic_raft_append_latency_seconds", Unit::Seconds, "Append queued to durable");
    describe_histogram!("katomic_raft_fsync_latency_seconds", Unit::Seconds, "One fdatasync of the log");
    describe_gauge!(
        "katomic_raft_snapshot_last_success_timestamp_seconds",
        Unit::Seconds,
        "When this process made its last checkpoint; absent before its first"
    );
    describe_gauge!("katomic_raft_snapshot_size_bytes", Unit::Bytes, "State bytes of that checkpoint");
}
