//! Appending: plain Produce, and the one way in which any batch gets its offset.
//!
//! The same judgement ([`producers::judge`](super::producers::judge)) is made by `leader/admission` before proposing, over applied and
//! in-flight state; here it is made again on applied state, which alone decides.

use super::command::{Appended, Batch, Effects, Outcome, ProduceOutcome};
use super::producers::{Verdict, WrittenBatch, judge};
use super::{At, Machine};
use crate::types::{RecordBatch, Refusal, TopicPartition};

impl Machine {
    pub(super) fn apply_produce(&mut self, at: At, batches: &[Batch], effects: &mut Effects) -> Outcome {
        Outcome::Produced(batches.iter().map(|batch| self.produce_one(at, batch, effects)).collect())
    }

    fn produce_one(&mut self, at: At, batch: &Batch, effects: &mut Effects) -> Result<ProduceOutcome, Refusal> {
        let view = batch.view();
        let topic = self.topics.get(batch.to.topic).ok_or(Refusal::UnknownTopicOrPartition)?;
        let partition = self.topics.partition(batch.to).ok_or(Refusal::UnknownTopicOrPartition)?;
        // Transactional data has one way in: the commit of its transaction.
        if view.is_transactional() || self.transactions.owner_of(view.producer_id()).is_some() {
            return Err(Refusal::InvalidTxnState);
        }
        match judge(self.producers.at(view.producer_id(), batch.to), &view) {
            Verdict::New => Ok(self.append(at, batch.to, &view, effects)),
            Verdict::Refused(refusal) => Err(refusal),
            Verdict::Duplicate(base_offset) => {
                let original = self.producers.at(view.producer_id(), batch.to).and_then(|state| state.find(&view));
                let stamped = original.filter(|_| topic.settings.log_append_time);
                Ok(ProduceOutcome {
                    base_offset,
                    log_append_time_ms: stamped.map_or(-1, |original| original.timestamp_ms),
                    log_start_offset: partition.log_start_offset,
                })
            }
        }
    }

    /// Gives a batch the next offsets of a partition that is known to exist, and remembers its producer.
    pub(super) fn append(
        &mut self,
        at: At,
        to: TopicPartition,
        sent: &RecordBatch,
        effects: &mut Effects,
    ) -> ProduceOutcome {
        let topic = self.topics.get_mut(to.topic).expect("the caller found the partition");
        let log_append_time_ms = if topic.settings.log_append_time { at.now_ms } else { -1 };
        let stamped = topic.settings.log_append_time.then(|| sent.with_log_append_time(at.now_ms));
        let records = stamped.unwrap_or_else(|| sent.clone());
        let number = usize::try_from(to.partition).expect("a partition that exists has a number from 0 on");
        let partition = topic.partitions.get_mut(number).expect("the caller found the partition");
        let log_start_offset = partition.log_start_offset;
        let (base_offset, next_offset) = partition.append(at.term, sent.record_count());
        if let Some(producer) = sent.producer() {
            let written = WrittenBatch {
                first_sequence: sent.base_sequence(),
                last_sequence: sent.last_sequence(),
                // Of the batch as sent: a retry carries that one, not the stamped one.
                crc: sent.crc(),
                base_offset,
                timestamp_ms: records.max_timestamp(),
            };
            self.producers.write(at.now_ms, producer, to, written);
        }
        effects.appended.push(Appended { to, base_offset, next_offset, records });
        ProduceOutcome { base_offset, log_append_time_ms, log_start_offset }
    }
}
