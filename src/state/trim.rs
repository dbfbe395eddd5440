//! Where a log starts: retention and DeleteRecords move it up, by entries alone.
//!
//! The leader decides what has expired from what it sees (`leader/retention.rs`); here it only says «the log of this
//! partition starts at that offset». Sequences of producers are remembered for longer than the records that carried them, as in
//! Kafka: nothing about producers changes.

use super::Machine;
use super::command::{Effects, Outcome, Trim};
use crate::types::{Offset, Refusal};

impl Machine {
    pub(super) fn apply_trim(&mut self, trims: &[Trim], effects: &mut Effects) -> Outcome {
        Outcome::Trimmed(trims.iter().map(|trim| self.trim_one(*trim, effects)).collect())
    }

    /// As Kafka's `Partition.deleteRecordsOnLeader`: beyond the log's end is refused, below its start changes nothing.
    fn trim_one(&mut self, trim: Trim, effects: &mut Effects) -> Result<Offset, Refusal> {
        let topic = self.topics.get(trim.of.topic).ok_or(Refusal::UnknownTopicOrPartition)?;
        let partition = self.topics.partition(trim.of).ok_or(Refusal::UnknownTopicOrPartition)?;
        if topic.settings.compact && !topic.settings.delete {
            return Err(Refusal::PolicyViolation);
        }
        let to = if trim.to == Trim::ALL { partition.next_offset } else { trim.to };
        if to.0 < 0 || to > partition.next_offset {
            return Err(Refusal::OffsetOutOfRange);
        }
        if to <= partition.log_start_offset {
            return Ok(partition.log_start_offset);
        }
        let topic = self.topics.get_mut(trim.of.topic).expect("it was just found");
        let number = usize::try_from(trim.of.partition).expect("a partition that exists has a number from 0 on");
        topic.partitions[number].trim(to);
        effects.trimmed.push((trim.of, to));
        Ok(to)
    }
}
