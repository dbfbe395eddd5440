//! Cluster and partition gauges, from the replicated state. Partition labels only on offsets (surface.md, cardinality rule).

use metrics::{counter, describe_counter, describe_gauge, gauge};

use crate::log::LogStatus;
use crate::state::Machine;

pub(super) fn describe() {
    describe_gauge!("redpanda_cluster_brokers", "Nodes of the cluster");
    describe_gauge!("redpanda_cluster_topics", "Topics");
    describe_gauge!("redpanda_cluster_partitions", "Partitions");
    describe_gauge!("redpanda_cluster_unavailable_partitions", "Partitions without a leader");
    describe_counter!(
        "redpanda_raft_leadership_changes",
        "Leader changes seen: the current term, as there is one group"
    );
    describe_gauge!("redpanda_kafka_partitions", "Partitions of a topic");
    describe_gauge!("redpanda_kafka_replicas", "Replicas of each partition of a topic");
    describe_gauge!("redpanda_kafka_under_replicated_replicas", "Replicas that lack what is acknowledged");
    describe_gauge!("redpanda_kafka_max_offset", "High watermark");
    describe_gauge!("katomic_partition_last_stable_offset", "Last stable offset: always the high watermark");
    describe_gauge!("katomic_partition_log_start_offset", "First offset that can be read");
}

/// `machine` is a cut of the state: apply does not wait for this.
pub(super) fn record(machine: &Machine, status: &LogStatus) {
    let brokers = status.members.len() as f64;
    gauge!("redpanda_cluster_brokers").set(brokers);
    // Every node has every partition, so each lacks on a node that is behind.
    let lacking = status.members.iter().filter(|member| member.voter && !member.in_sync).count() as f64;
    counter!("redpanda_raft_leadership_changes", "redpanda_namespace" => "kafka", "redpanda_topic" => "")
        .absolute(status.term.0);
    let (mut topics, mut partitions) = (0, 0);
    for topic in machine.topics().iter() {
        topics += 1;
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
            gauge!("redpanda_kafka_under_replicated_replicas", &labels).set(lacking);
            gauge!("redpanda_kafka_max_offset", &labels).set(partition.next_offset.0 as f64);
            let labels = [("topic", topic.name.clone()), ("partition", number.to_string())];
            gauge!("katomic_partition_last_stable_offset", &labels).set(partition.next_offset.0 as f64);
            gauge!("katomic_partition_log_start_offset", &labels).set(partition.log_start_offset.0 as f64);
        }
    }
    gauge!("redpanda_cluster_topics").set(f64::from(topics));
    gauge!("redpanda_cluster_partitions").set(partitions as f64);
    let unavailable = if status.leader.is_some() { 0 } else { partitions };
    gauge!("redpanda_cluster_unavailable_partitions").set(unavailable as f64);
}
