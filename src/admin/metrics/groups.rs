//! Committed offsets and lag per group, from the replicated state; members per group, from the leader.

use std::collections::BTreeSet;
use std::sync::Arc;

use metrics::{describe_gauge, gauge};

use crate::state::Machine;

/// Series of group × topic × partition above which they are left out and only the sums per group remain.
pub(super) const SERIES_MAX: usize = 10_000;

pub(super) fn describe() {
    describe_gauge!("redpanda_kafka_consumer_group_committed_offset", "Committed offset");
    describe_gauge!("redpanda_kafka_consumer_group_consumers", "Members, while the group has a generation to remember");
    describe_gauge!("redpanda_kafka_consumer_group_topics", "Topics with committed offsets");
    describe_gauge!("redpanda_kafka_consumer_group_lag_sum", "Records behind the high watermark, all partitions");
    describe_gauge!("redpanda_kafka_consumer_group_lag_max", "Records behind the high watermark, worst partition");
    describe_gauge!("katomic_group_lag_records", "Records behind the high watermark");
}

/// `machine` is a cut of the state: apply does not wait for this.
pub(super) fn record(machine: &Machine, members: &[(Arc<str>, usize)], series_max: usize) {
    for (group, count) in members {
        gauge!("redpanda_kafka_consumer_group_consumers", "redpanda_group" => group.to_string()).set(*count as f64);
    }
    let series: usize = machine.group_offsets().iter().map(|(_, state)| state.offsets.len()).sum();
    let detailed = series <= series_max;
    for (group, state) in machine.group_offsets().iter() {
        let mut topics = BTreeSet::new();
        let (mut sum, mut max) = (0, 0);
        for (of, committed) in &state.offsets {
            let Some(topic) = machine.topics().get(of.topic) else { continue };
            let Some(partition) = machine.topics().partition(*of) else { continue };
            let lag = (partition.next_offset.0 - committed.offset.0).max(0);
            topics.insert(of.topic);
            sum += lag;
            max = lag.max(max);
            if detailed {
                record_one(group, &topic.name, of.partition, committed.offset.0, lag);
            }
        }
        let labels = [("redpanda_group", group.to_owned())];
        gauge!("redpanda_kafka_consumer_group_topics", &labels).set(topics.len() as f64);
        gauge!("redpanda_kafka_consumer_group_lag_sum", &labels).set(sum as f64);
        gauge!("redpanda_kafka_consumer_group_lag_max", &labels).set(max as f64);
    }
}

fn record_one(group: &str, topic: &str, partition: i32, offset: i64, lag: i64) {
    let labels = [
        ("redpanda_group", group.to_owned()),
        ("redpanda_topic", topic.to_owned()),
        ("redpanda_partition", partition.to_string()),
    ];
    gauge!("redpanda_kafka_consumer_group_committed_offset", &labels).set(offset as f64);
    let labels = [("group", group.to_owned()), ("topic", topic.to_owned()), ("partition", partition.to_string())];
    gauge!("katomic_group_lag_records", &labels).set(lag as f64);
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::state::command::{Command, Entry, GroupOffsets, NewTopic, OffsetWrite};
    use crate::types::{LogIndex, Offset, Term, TopicId, TopicPartition};

    fn scrape(series_max: usize) -> String {
        let id = TopicId([1; 16]);
        let mut machine = Machine::default();
        let new = NewTopic { id, name: "t".into(), partitions: 2, configs: Vec::new() };
        machine.apply(LogIndex(1), Term(1), &Entry { now_ms: 0, command: Command::CreateTopics(vec![new]) });
        let write = |partition| OffsetWrite {
            of: TopicPartition { topic: id, partition },
            offset: Offset(0),
            leader_epoch: -1,
            metadata: String::new(),
        };
        let commit = GroupOffsets { group: "g".into(), offsets: vec![write(0), write(1)] };
        machine.apply(LogIndex(2), Term(1), &Entry { now_ms: 0, command: Command::OffsetCommit(commit) });
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || record(&machine, &[("g".into(), 3)], series_max));
        recorder.handle().render()
    }

    #[test]
    fn above_the_bound_of_series_only_sums_remain() {
        let (all, few) = (scrape(2), scrape(1));
        let partition = "katomic_group_lag_records{group=\"g\",topic=\"t\",partition=\"1\"} 0";
        assert!(all.contains(partition), "{all}");
        assert!(!few.contains("katomic_group_lag_records") && !few.contains("committed_offset"), "{few}");
        for line in
            ["topics{redpanda_group=\"g\"} 1", "consumers{redpanda_group=\"g\"} 3", "lag_sum{redpanda_group=\"g\"} 0"]
        {
            assert!(all.contains(line) && few.contains(line), "{line} in {few}");
        }
    }
}
