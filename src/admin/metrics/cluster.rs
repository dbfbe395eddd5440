//! Cluster and partition gauges, from the replicated state. Partition labels only on offsets (surface.md, cardinality rule).

use metrics::{describe_gauge, gauge};

use crate::log::Log;

pub(super) fn describe() {
    describe_gauge!("redpanda_cluster_brokers", "Nodes of the cluster");
    describe_gauge!("redpanda_cluster_topics", "Topics");
    describe_gauge!("redpanda_cluster_partitions", "Partitions");
    describe_gauge!("redpanda_cluster_unavailable_partitions", "Partitions without a leader");
    describe_gauge!("redpanda_raft_leadership_changes", "Leader changes seen: the current term, as there is one group");
    describe_gauge!("redpanda_kafka_partitions", "Partitions of a topic");
    describe_gauge!("redpanda_kafka_replicas", "Replicas of each partition of a topic");
    describe_gauge!("redpanda_kafka_max_offset", "High watermark");
    describe_gauge!("katomic_partition_last_stable_offset", "Last stable offset: always the high watermark");
    describe_gauge!("katomic_partition_log_start_offset", "First offset that can be read");
}

pub(super) fn record(log: &Log) {
    let status = log.status();
    let brokers = status.members.len() as f64;
    gauge!("redpanda_cluster_brokers").set(brokers);
    gauge!("redpanda_raft_leadership_changes", "redpanda_namespace" => "kafka").set(status.term.0 as f64);
    let topics: Vec<_> = log.read(|machine| machine.topics().iter().cloned().collect());
    let mut partitions = 0;
    for topic in &topics {
        partitions += topic.partitions.len();
        let labels = [("redpanda_namespace", "kafka".to_owned()), ("redpanda_topic", topic.name.clone())];
        gauge!("redpanda_kafka_partitions", &labels).set(topic.partitions.len() as f64);
        gauge!("redpanda_kafka_replicas", &labels).set(brokers);
        for (number, partition) in topic.partitions.iter().enumerate() {
            let labels = [
                ("redpanda_namespace", "kafka".to_owned()),
                ("redpanda_topic", topic.name.clone()),
                ("redpanda_partition", number.to_string()),
            ];
            gauge!("redpanda_kafka_max_offset", &labels).set(partition.next_offset.0 as f64);
            let labels = [("topic", topic.name.clone()), ("partition", number.to_string())];
            gauge!("katomic_partition_last_stable_offset", &labels).set(partition.next_offset.0 as f64);
            gauge!("katomic_partition_log_start_offset", &labels).set(partition.log_start_offset.0 as f64);
        }
    }
    gauge!("redpanda_cluster_topics").set(topics.len() as f64);
    gauge!("redpanda_cluster_partitions").set(partitions as f64);
    let unavailable = if status.leader.is_some() { 0 } else { partitions };
    gauge!("redpanda_cluster_unavailable_partitions").set(unavailable as f64);
}
