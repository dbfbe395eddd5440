//! Looks at the segments from time to time, so that the leader can say which of them are no longer kept.
//!
//! Every node runs it; only the one that serves does anything. In pages, so that 200,000 partitions neither hold a lock for
//! long nor fill memory.

use std::sync::Arc;
use std::time::Duration;

use super::apply::Replica;
use super::sequencer::Sequencer;
use crate::config::limits::TRIMS_PER_ENTRY_MAX;
use crate::types::TopicPartition;

/// Looks every `every`, for as long as the node runs.
pub async fn run(replica: Arc<Replica>, sequencer: Arc<Sequencer>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        if sequencer.serving().is_none() {
            continue;
        }
        let partitions = deletable(&replica);
        for page in partitions.chunks(TRIMS_PER_ENTRY_MAX) {
            sequencer.retain(&replica.segments().facts(page));
            tokio::task::yield_now().await;
        }
    }
}

/// Partitions of topics whose old records are deleted.
fn deletable(replica: &Replica) -> Vec<TopicPartition> {
    let machine = replica.read();
    let topics = machine.topics().iter().filter(|topic| topic.settings.delete);
    let partitions = topics.flat_map(|topic| (0..).zip(&topic.partitions).map(|(number, _)| (topic.id, number)));
    partitions.map(|(topic, partition)| TopicPartition { topic, partition }).collect()
}
