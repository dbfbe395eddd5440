//! The room's metrics (surface.md §4 B): histograms are fed as things happen, gauges and counters at each scrape.
//!
//! The handles are made once: the recorder must be installed before the log is opened, else they lead nowhere.

use std::time::Instant;

use metrics::{Histogram, counter, gauge, histogram};
use openraft::EntryPayload;

use super::LogStatus;
use super::raft_types::RaftEntry;
use crate::leader::LeaderStats;
use crate::wal::WalStats;

/// Handles of what is measured on the way of a request.
pub struct Meters {
    /// From queueing entries to their being durable, `katomic_raft_append_latency_seconds`.
    pub append_latency: Histogram,
    /// One fdatasync, `katomic_raft_fsync_latency_seconds`.
    fsync_latency: Histogram,
    /// Entries in one append: requests that share an fsync, `katomic_aggregator_batch_requests`.
    pub append_entries: Histogram,
    /// From proposing to appending, `katomic_aggregator_queue_wait_seconds`.
    queue_wait: Histogram,
    /// EndTxn received to answered, `katomic_txn_commit_latency_seconds`: commit, abort.
    pub end_txn: [Histogram; 2],
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            append_latency: histogram!("katomic_raft_append_latency_seconds"),
            fsync_latency: histogram!("katomic_raft_fsync_latency_seconds"),
            append_entries: histogram!("katomic_aggregator_batch_requests"),
            queue_wait: histogram!("katomic_aggregator_queue_wait_seconds"),
            end_txn: ["committed", "aborted"]
                .map(|result| histogram!("katomic_txn_commit_latency_seconds", "result" => result)),
        }
    }
}

impl Meters {
    /// An entry is appended: how long its proposal waited, if it is ours.
    pub fn appending(&self, entry: &RaftEntry, now: Instant) {
        if let EntryPayload::Normal(proposal) = &entry.payload
            && let Some(proposed) = proposal.proposed()
        {
            self.queue_wait.record(now.saturating_duration_since(proposed));
        }
    }

    /// Publishes everything that is not a histogram, and the fsyncs between the `before` and `now` counts of the wal.
    pub fn publish(&self, status: &LogStatus, stats: &LeaderStats, wal: (&WalStats, &WalStats), now_mono_ms: u64) {
        self.publish_fsyncs(wal.0, wal.1);
        let index = |index: Option<crate::types::LogIndex>| index.map_or(0.0, |index| index.0 as f64);
        gauge!("katomic_raft_term").set(status.term.0 as f64);
        gauge!("katomic_raft_is_leader").set(f64::from(u8::from(status.leader == Some(status.node_id))));
        gauge!("katomic_raft_commit_index").set(index(status.committed));
        gauge!("katomic_raft_applied_index").set(index(status.applied));
        gauge!("katomic_raft_log_size_bytes").set(wal.1.files_bytes as f64);
        for (result, count) in [
            ("committed", stats.committed),
            ("aborted", stats.aborted),
            ("timed_out", stats.timed_out),
            ("fenced", stats.fenced),
        ] {
            counter!("katomic_txn_total", "result" => result).absolute(count);
        }
        counter!("katomic_txn_raft_entries_total").absolute(stats.raft_entries);
        counter!("katomic_group_rebalances_total").absolute(stats.rebalances);
        gauge!("katomic_txn_open").set(stats.open as f64);
        gauge!("katomic_txn_buffered_bytes").set(stats.staged_bytes as f64);
        let oldest_ms = stats.oldest_open_mono_ms.map_or(0, |opened| now_mono_ms.saturating_sub(opened));
        gauge!("katomic_txn_oldest_open_seconds").set(oldest_ms as f64 / 1000.0);
    }

    /// The wal counts and sums its fsyncs and keeps the slowest: the slowest is recorded as itself and the rest at
    /// their mean, so that sum, count and maximum are exact and the quantiles in between an estimate.
    fn publish_fsyncs(&self, before: &WalStats, now: &WalStats) {
        let count = now.syncs.saturating_sub(before.syncs);
        if count == 0 {
            return;
        }
        let sum = now.sync_ns.saturating_sub(before.sync_ns);
        let slowest = now.sync_ns_max.min(sum);
        self.fsync_latency.record(slowest as f64 / 1e9);
        if count > 1 {
            let mean = (sum - slowest) as f64 / (count - 1) as f64;
            self.fsync_latency.record_many(mean / 1e9, usize::try_from(count - 1).unwrap_or(usize::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::types::{LogIndex, Term};

    #[test]
    fn a_scrape_shows_the_fsyncs_since_the_last_with_their_sum_and_count() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let text = metrics::with_local_recorder(&recorder, || {
            let meters = Meters::default();
            let status = LogStatus {
                node_id: 1,
                term: Term(4),
                leader: Some(1),
                applied: Some(LogIndex(9)),
                ..LogStatus::default()
            };
            let before = WalStats { syncs: 10, sync_ns: 1_000_000_000, ..WalStats::default() };
            let now = WalStats { syncs: 13, sync_ns: 2_000_000_000, sync_ns_max: 500_000_000, ..WalStats::default() };
            let stats = LeaderStats { committed: 7, oldest_open_mono_ms: Some(1_000), ..LeaderStats::default() };
            meters.publish(&status, &stats, (&before, &now), 3_500);
            meters.publish(&status, &stats, (&now, &now), 3_500);
            recorder.handle().render()
        });
        let expect = [
            "katomic_raft_fsync_latency_seconds_count 3",
            "katomic_raft_fsync_latency_seconds_sum 1",
            "katomic_raft_term 4",
            "katomic_raft_is_leader 1",
            "katomic_raft_applied_index 9",
            "katomic_txn_total{result=\"committed\"} 7",
            "katomic_txn_oldest_open_seconds 2.5",
        ];
        for line in expect {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
