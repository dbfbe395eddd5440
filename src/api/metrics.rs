//! What the API room counts. Handles are looked up once; a request only adds to them.
//!
//! `redpanda_kafka_handler_latency_seconds{handler}` for every API, `redpanda_kafka_request_latency_seconds{request}`
//! for produce and consume (a fetch's long poll excluded), bytes and records per topic,
//! `katomic_api_errors_total{api,error}`.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::ApiKey;
use metrics::{Counter, Histogram, counter, histogram};
use parking_lot::RwLock;

use super::APIS;
use crate::config::limits::TOPIC_METRICS_MAX;
use crate::state::topics::Topic;
use crate::types::TopicId;

static HANDLERS: LazyLock<Vec<Histogram>> = LazyLock::new(|| {
    APIS.iter().map(|row| histogram!("redpanda_kafka_handler_latency_seconds", "handler" => row.name)).collect()
});
static PRODUCE: LazyLock<Histogram> =
    LazyLock::new(|| histogram!("redpanda_kafka_request_latency_seconds", "redpanda_request" => "produce"));
static CONSUME: LazyLock<Histogram> =
    LazyLock::new(|| histogram!("redpanda_kafka_request_latency_seconds", "redpanda_request" => "consume"));
static TOPICS: LazyLock<RwLock<BTreeMap<TopicId, Arc<TopicMetrics>>>> = LazyLock::new(RwLock::default);

/// A request of this row of the table was answered, `took` after its last byte. A fetch counts itself
/// ([`fetch_answered`]): only it knows how long it waited for data.
pub fn answered(row: usize, took: Duration) {
    match APIS[row].key {
        ApiKey::Produce => {
            PRODUCE.record(took);
            HANDLERS[row].record(took);
        }
        ApiKey::Fetch => {}
        _ => HANDLERS[row].record(took),
    }
}

/// A fetch was answered, after so long without its wait for data.
pub fn fetch_answered(took: Duration) {
    CONSUME.record(took);
    if let Some(row) = APIS.iter().position(|row| row.key == ApiKey::Fetch) {
        HANDLERS[row].record(took);
    }
}

/// An error was told to a client.
pub fn count_error(api: ApiKey, error: ResponseError) {
    let name = APIS.iter().find(|row| row.key == api).map_or("other", |row| row.name);
    counter!("katomic_api_errors_total", "api" => name, "error" => format!("{error:?}")).increment(1);
    counter!("redpanda_rpc_request_errors_total", "redpanda_server" => "kafka").increment(1);
}

/// One topic's counters.
pub struct TopicMetrics {
    /// Bytes of batches that producers sent.
    pub produced_bytes: Counter,
    /// Records in them.
    pub produced_records: Counter,
    /// Bytes of batches that were sent to consumers.
    pub fetched_bytes: Counter,
    /// Records in them.
    pub fetched_records: Counter,
}

/// The counters of a topic.
pub fn of_topic(topic: &Topic) -> Arc<TopicMetrics> {
    if let Some(known) = TOPICS.read().get(&topic.id) {
        return Arc::clone(known);
    }
    let bytes = |request: &'static str| {
        counter!("redpanda_kafka_request_bytes_total", "redpanda_namespace" => "kafka",
            "redpanda_topic" => topic.name.clone(), "redpanda_request" => request)
    };
    let fresh = Arc::new(TopicMetrics {
        produced_bytes: bytes("produce"),
        fetched_bytes: bytes("consume"),
        produced_records: counter!("redpanda_kafka_records_produced_total", "redpanda_namespace" => "kafka",
            "redpanda_topic" => topic.name.clone()),
        fetched_records: counter!("redpanda_kafka_records_fetched_total", "redpanda_namespace" => "kafka",
            "redpanda_topic" => topic.name.clone()),
    });
    let mut topics = TOPICS.write();
    if topics.len() >= TOPIC_METRICS_MAX {
        topics.clear(); // handles only: the counts live in the exporter
    }
    topics.insert(topic.id, Arc::clone(&fresh));
    fresh
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_is_told_counts_as_a_request_answered_with_an_error() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let page = recorder.handle();
        metrics::with_local_recorder(&recorder, || count_error(ApiKey::Fetch, ResponseError::OffsetOutOfRange));
        let page = page.render();
        assert!(page.contains("redpanda_rpc_request_errors_total{redpanda_server=\"kafka\"} 1\n"), "{page}");
        assert!(page.contains("katomic_api_errors_total{api=\"Fetch\",error=\"OffsetOutOfRange\"} 1\n"), "{page}");
    }
}
