//! What the API room counts. Handles are looked up once; a request only adds to them.
//!
//! `redpanda_kafka_handler_latency_seconds{handler}` for every API, `redpanda_kafka_request_latency_seconds{request}`
//! for produce and consume (a fetch's long poll excluded), bytes and records per topic,
//! `katomic_api_errors_total{api,error}`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::ApiKey;
use metrics::{Histogram, counter, histogram};
use parking_lot::RwLock;

use super::APIS;
use crate::config::limits::TOPIC_METRICS_MAX;
use crate::state::Machine;
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

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds to it.
    pub fn increment(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }
}

/// One topic's counts. Ours rather than the exporter's, which would keep the series of every topic that ever was.
#[derive(Debug, Default)]
pub struct TopicMetrics {
    name: String,
    /// Bytes of batches that producers sent.
    pub produced_bytes: Count,
    /// Records in them.
    pub produced_records: Count,
    /// Bytes of batches that were sent to consumers.
    pub fetched_bytes: Count,
    /// Records in them.
    pub fetched_records: Count,
}

/// The counts of a topic.
pub fn of_topic(topic: &Topic) -> Arc<TopicMetrics> {
    of(topic.id, &topic.name)
}

fn of(id: TopicId, name: &str) -> Arc<TopicMetrics> {
    if let Some(known) = TOPICS.read().get(&id) {
        return Arc::clone(known);
    }
    let mut topics = TOPICS.write();
    if topics.len() >= TOPIC_METRICS_MAX {
        topics.clear();
    }
    let fresh = || Arc::new(TopicMetrics { name: name.to_owned(), ..TopicMetrics::default() });
    Arc::clone(topics.entry(id).or_insert_with(fresh))
}

/// The counts of the topics that exist, as Prometheus reads them; those of others are forgotten.
pub fn topics_page(machine: &Machine) -> String {
    page_of(|id| machine.topics().get(id).is_some())
}

fn page_of(exists: impl Fn(TopicId) -> bool) -> String {
    let topics: Vec<_> = {
        let mut topics = TOPICS.write();
        topics.retain(|id, _| exists(*id));
        topics.values().cloned().collect()
    };
    type Of = fn(&TopicMetrics) -> &Count;
    /// Name, HELP, and per series its further label and where it is counted.
    type Family<'a> = (&'a str, &'a str, &'a [(&'a str, Of)]);
    let families: [Family; 3] = [
        (
            "redpanda_kafka_request_bytes_total",
            "Record bytes produced and consumed",
            &[
                (",redpanda_request=\"produce\"", |of| &of.produced_bytes),
                (",redpanda_request=\"consume\"", |of| &of.fetched_bytes),
            ],
        ),
        ("redpanda_kafka_records_produced_total", "Records produced", &[("", |of| &of.produced_records)]),
        ("redpanda_kafka_records_fetched_total", "Records fetched", &[("", |of| &of.fetched_records)]),
    ];
    let mut page = String::new();
    for (family, help, series) in families {
        page += &format!("# HELP {family} {help}\n# TYPE {family} counter\n");
        for topic in &topics {
            for (label, count) in series {
                // A topic's name needs no escape: letters, digits, dot, underscore, dash.
                let (name, count) = (&topic.name, count(topic).0.load(Ordering::Relaxed));
                page += &format!("{family}{{redpanda_namespace=\"kafka\",redpanda_topic=\"{name}\"{label}}} {count}\n");
            }
        }
    }
    page
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

    #[test]
    fn counts_of_a_topic_that_is_gone_are_forgotten() {
        let (kept, gone) = (TopicId([0xa1; 16]), TopicId([0xa2; 16]));
        of(kept, "kept").produced_bytes.increment(7);
        of(gone, "gone").fetched_records.increment(8);
        // Other tests' topics stay.
        let page = page_of(|id| id != gone);
        let series = "redpanda_kafka_request_bytes_total{redpanda_namespace=\"kafka\",redpanda_topic=\"kept\",\
                      redpanda_request=\"produce\"} 7\n";
        assert!(page.contains(series), "{page}");
        assert!(!page.contains("gone"), "{page}");
        assert!(!page_of(|_| true).contains("gone"));
    }
}
