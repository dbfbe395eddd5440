//! DescribeLogDirs (key 35, versions 1–4): what this node's partition logs take on its disk.
//!
//! - One directory, that of the partition logs. A null list of topics asks for all. Every node tells of itself alone.
//! - v3 an error for the whole (none here); v4 (KIP-827) space of the volume: what is usable, its total size is not known.
//! - Nothing is moved between directories: no future replicas. What is written lags behind by what is only in memory, which is no
//!   lag to a client.

use std::collections::BTreeMap;

use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::{Call, Malformed, Reply};
use crate::state::Machine;
use crate::types::{TopicId, TopicPartition};

/// Kafka's `DescribeLogDirsResponse.UNKNOWN_VOLUME_BYTES`.
const UNKNOWN_BYTES: i64 = -1;

/// Answers DescribeLogDirs.
///
/// # Errors
/// If the request cannot be decoded.
pub fn handle(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: DescribeLogDirsRequest = call.decode("DescribeLogDirs")?;
    let segments = call.api.reader.segments();
    let sizes = segments.sizes();
    let topics = call.api.log.read(|machine| topics(&request, machine, &sizes));
    let mut result = DescribeLogDirsResult::default()
        .with_log_dir(StrBytes::from_string(segments.dir().display().to_string()))
        .with_topics(topics);
    if call.version >= 4 {
        let usable = segments.free_bytes().ok().and_then(|bytes| i64::try_from(bytes).ok());
        result = result.with_total_bytes(UNKNOWN_BYTES).with_usable_bytes(usable.unwrap_or(UNKNOWN_BYTES));
    }
    let response = DescribeLogDirsResponse::default().with_results(vec![result]);
    Ok(Reply::now(&response, call.version))
}

fn topics(
    request: &DescribeLogDirsRequest,
    machine: &Machine,
    sizes: &[(TopicPartition, u64)],
) -> Vec<DescribeLogDirsTopic> {
    let asked = request.topics.as_ref().map(|topics| {
        let one = |of: (&TopicName, &i32)| {
            let topic = machine.topics().named(of.0)?.id;
            Some(TopicPartition { topic, partition: *of.1 })
        };
        let named = topics.iter().flat_map(|of| of.partitions.iter().map(|number| (&of.topic, number)));
        named.filter_map(one).collect::<std::collections::BTreeSet<_>>()
    });
    let mut by_topic: BTreeMap<TopicId, Vec<DescribeLogDirsPartition>> = BTreeMap::new();
    for (of, bytes) in sizes.iter().filter(|(of, _)| asked.as_ref().is_none_or(|asked| asked.contains(of))) {
        let partition = DescribeLogDirsPartition::default()
            .with_partition_index(of.partition)
            .with_partition_size(i64::try_from(*bytes).unwrap_or(i64::MAX));
        by_topic.entry(of.topic).or_default().push(partition);
    }
    let one = |(id, partitions): (TopicId, Vec<DescribeLogDirsPartition>)| {
        let name = TopicName(StrBytes::from_string(machine.topics().get(id)?.name.clone()));
        Some(DescribeLogDirsTopic::default().with_name(name).with_partitions(partitions))
    };
    by_topic.into_iter().filter_map(one).collect()
}
