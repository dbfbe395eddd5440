//! Words every room shares: ids and numbers that must not mix, the view over a
//! record batch, refusals, and the names of settings. Holds no logic of any room.

#[cfg(test)]
pub mod golden;
pub mod ids;
pub mod record_batch;
pub mod refusal;
pub mod segment_facts;
pub mod settings;

pub use ids::{
    ConnectionId, LogIndex, Now, Offset, PartitionId, Position, ProducerIdAndEpoch, Term, TopicId, TopicPartition,
};
pub use record_batch::RecordBatch;
pub use refusal::Refusal;
pub use segment_facts::{PartitionFacts, SegmentFacts};
