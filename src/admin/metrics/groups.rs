//! Committed offsets and lag per group, from the replicated state.

use metrics::{describe_gauge, gauge};

use crate::log::Log;

/// Series of group × topic × partition above which they are left out and only the sums per group remain.
const SERIES_MAX: usize = 10_000;

pub(super) fn describe() {
    describe_gauge!("redpanda_kafka_consumer_group_committed_offset", "Committed offset");
    describe_gauge!("redpanda_kafka_consumer_group_topics", "Topics with committed offsets");
    describe_gauge!("redpanda_kafka_consumer_group_lag_sum", "Records behind the high watermark, all partitions");
    describe_gauge!("redpanda_kafka_consumer_group_lag_max", "Records behind the high watermark, worst partition");
    describe_gauge!("katomic_group_lag_records", "Records behind the high watermark");
}

/// One committed offset with the lag it leaves.
struct Row {
    topic: String,
    partition: String,
    offset: i64,
    lag: i64,
}

pub(super) fn record(log: &Log) {
    let groups: Vec<(String, Vec<Row>)> = log.read(|machine| {
        machine
            .group_offsets()
            .iter()
            .map(|(group, state)| {
                let rows = state.offsets.iter().filter_map(|(of, committed)| {
                    let topic = machine.topics().get(of.topic)?;
                    let end = machine.topics().partition(*of)?.next_offset.0;
                    Some(Row {
                        topic: topic.name.clone(),
                        partition: of.partition.to_string(),
                        offset: committed.offset.0,
                        lag: (end - committed.offset.0).max(0),
                    })
                });
                (group.to_owned(), rows.collect())
            })
            .collect()
    });
    let detailed = groups.iter().map(|(_, rows)| rows.len()).sum::<usize>() <= SERIES_MAX;
    for (group, rows) in groups {
        let mut topics: Vec<&str> = rows.iter().map(|row| row.topic.as_str()).collect();
        topics.sort_unstable();
        topics.dedup();
        let labels = [("redpanda_group", group.clone())];
        gauge!("redpanda_kafka_consumer_group_topics", &labels).set(topics.len() as f64);
        gauge!("redpanda_kafka_consumer_group_lag_sum", &labels)
            .set(rows.iter().map(|row| row.lag).sum::<i64>() as f64);
        gauge!("redpanda_kafka_consumer_group_lag_max", &labels)
            .set(rows.iter().map(|row| row.lag).max().unwrap_or(0) as f64);
        for row in rows.iter().filter(|_| detailed) {
            let labels = [
                ("redpanda_group", group.clone()),
                ("redpanda_topic", row.topic.clone()),
                ("redpanda_partition", row.partition.clone()),
            ];
            gauge!("redpanda_kafka_consumer_group_committed_offset", &labels).set(row.offset as f64);
            let labels = [("group", group.clone()), ("topic", row.topic.clone()), ("partition", row.partition.clone())];
            gauge!("katomic_group_lag_records", &labels).set(row.lag as f64);
        }
    }
}
