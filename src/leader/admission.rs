//! Admission of idempotent batches outside transactions (§4): judged against what is applied *and* in flight.
//!
//! `state::producers::judge` decides; here it sees the applied state with the batches in flight written on top. Apply
//! judges again, so an overlay that turns out too hopeful (an entry was discarded) costs a retry, never an order.

use std::collections::{BTreeMap, VecDeque};

use super::Ticket;
use crate::state::Machine;
use crate::state::command::ProduceOutcome;
use crate::state::producers::{PartitionProducer, Verdict, WrittenBatch, judge};
use crate::types::{Offset, RecordBatch, Refusal, TopicPartition};

/// What is to be done with a plain batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// Propose it.
    Propose,
    /// It is written already.
    Written(ProduceOutcome),
    /// It is in flight: batch number `slot` of that proposal.
    InFlight(Ticket, usize),
    /// It may not be written.
    Refused(Refusal),
}

/// A batch in flight.
#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    slot: usize,
    epoch: i16,
    batch: WrittenBatch,
}

/// One producer at one partition, with batches in flight.
#[derive(Debug)]
struct Overlay {
    /// Applied state and, on top of it, what is in flight.
    state: PartitionProducer,
    pending: VecDeque<Pending>,
}

/// All producers with plain batches in flight. Bounded by the proposals in flight.
#[derive(Debug, Default)]
pub(super) struct Admission {
    in_flight: BTreeMap<(i64, TopicPartition), Overlay>,
    by_ticket: BTreeMap<Ticket, Vec<(i64, TopicPartition)>>,
}

fn as_written(batch: &RecordBatch) -> WrittenBatch {
    WrittenBatch {
        first_sequence: batch.base_sequence(),
        last_sequence: batch.last_sequence(),
        crc: batch.crc(),
        base_offset: Offset(-1),
        timestamp_ms: batch.max_timestamp(),
    }
}

impl Admission {
    /// Judges a batch for an existing partition.
    pub fn judge(&self, machine: &Machine, at: TopicPartition, batch: &RecordBatch) -> Admitted {
        let Some(producer) = batch.producer() else { return Admitted::Propose };
        if machine.transactions().owner_of(producer.producer_id).is_some() {
            // Kafka's ProducerAppendInfo: a transactional producer writes transactional batches only.
            return Admitted::Refused(Refusal::InvalidTxnState);
        }
        let overlay = self.in_flight.get(&(producer.producer_id, at));
        let wanted = as_written(batch);
        let same = |pending: &&Pending| pending.epoch == producer.epoch && pending.batch == wanted;
        if let Some(original) = overlay.and_then(|overlay| overlay.pending.iter().find(same)) {
            return Admitted::InFlight(original.ticket, original.slot);
        }
        let applied = machine.producers().at(producer.producer_id, at);
        match judge(overlay.map(|overlay| &overlay.state).or(applied), batch) {
            Verdict::New => Admitted::Propose,
            Verdict::Refused(refusal) => Admitted::Refused(refusal),
            // A claim of the overlay alone, not of a batch that is written: apply decides.
            Verdict::Duplicate(offset) if offset < Offset(0) => Admitted::Propose,
            Verdict::Duplicate(offset) => Admitted::Written(duplicate(machine, at, batch, offset)),
        }
    }

    /// Notes that a batch was proposed.
    pub fn proposed(
        &mut self,
        machine: &Machine,
        ticket: Ticket,
        slot: usize,
        at: TopicPartition,
        batch: &RecordBatch,
    ) {
        let Some(producer) = batch.producer() else { return };
        let key = (producer.producer_id, at);
        let overlay = self.in_flight.entry(key).or_insert_with(|| Overlay {
            state: machine
                .producers()
                .at(producer.producer_id, at)
                .cloned()
                .unwrap_or_else(|| PartitionProducer::starting(producer.epoch)),
            pending: VecDeque::new(),
        });
        let written = as_written(batch);
        overlay.state.write(producer.epoch, written);
        overlay.pending.push_back(Pending { ticket, slot, epoch: producer.epoch, batch: written });
        self.by_ticket.entry(ticket).or_default().push(key);
    }

    /// The proposal's fate is known: its batches are part of the applied state, or nowhere.
    pub fn settled(&mut self, machine: &Machine, ticket: Ticket) {
        for key in self.by_ticket.remove(&ticket).unwrap_or_default() {
            let Some(overlay) = self.in_flight.get_mut(&key) else { continue };
            overlay.pending.retain(|pending| pending.ticket != ticket);
            if overlay.pending.is_empty() {
                self.in_flight.remove(&key);
                continue;
            }
            let applied = machine.producers().at(key.0, key.1);
            // The machine may be ahead of what we were told: what it holds already is not written twice.
            let held = |pending: &Pending| {
                let same = |batch: &WrittenBatch| {
                    (batch.first_sequence, batch.last_sequence, batch.crc)
                        == (pending.batch.first_sequence, pending.batch.last_sequence, pending.batch.crc)
                };
                applied.is_some_and(|applied| applied.epoch == pending.epoch && applied.batches.iter().any(same))
            };
            // Without applied state too: a batch that was discarded leaves no claim behind.
            let epoch = overlay.pending.front().map_or(0, |first| first.epoch);
            overlay.state = applied.cloned().unwrap_or_else(|| PartitionProducer::starting(epoch));
            for pending in overlay.pending.iter().filter(|pending| !held(pending)) {
                overlay.state.write(pending.epoch, pending.batch);
            }
        }
    }

    /// A term ended.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The answer for a batch that was written before.
pub(super) fn duplicate(machine: &Machine, at: TopicPartition, batch: &RecordBatch, offset: Offset) -> ProduceOutcome {
    let log_append_time = machine.topics().get(at.topic).is_some_and(|topic| topic.settings.log_append_time);
    let written = machine.producers().at(batch.producer_id(), at).and_then(|state| state.find(batch));
    ProduceOutcome {
        base_offset: offset,
        log_append_time_ms: written.filter(|_| log_append_time).map_or(-1, |written| written.timestamp_ms),
        log_start_offset: machine.topics().partition(at).map_or(Offset(-1), |partition| partition.log_start_offset),
    }
}
