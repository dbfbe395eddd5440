//! Produce outside transactions: one entry for each request, several if it is larger than an entry may be.
//!
//! A request is answered once, when every part of it is decided.

use super::admission::Admitted;
use super::proposals::Purpose;
use super::request::{Acked, Produce, Response, Token};
use super::{Leader, Ticket, Turn};
use crate::config::limits;
use crate::state::Machine;
use crate::state::command::{Batch, Command, Outcome};
use crate::types::{RecordBatch, Refusal, TopicPartition};

/// A Produce that waits for entries.
#[derive(Debug)]
pub(super) struct ProduceCall {
    parts: Vec<Option<Result<Acked, Refusal>>>,
    missing: usize,
    /// A part was applied: this node led when it decided the others.
    proved: bool,
}

/// Whether a batch can be stored at that partition at all.
pub(super) fn check_size(machine: &Machine, at: TopicPartition, batch: &RecordBatch) -> Result<(), Refusal> {
    let topic = machine.topics().get(at.topic).ok_or(Refusal::UnknownTopicOrPartition)?;
    if usize::try_from(at.partition).map_or(true, |number| number >= topic.partitions.len()) {
        return Err(Refusal::UnknownTopicOrPartition);
    }
    // A batch is one piece of an entry, so one over the entry cap can never be proposed, whatever the topic allows.
    let too_large = batch.size_bytes() > (topic.settings.max_message_bytes as usize).min(limits::ENTRY_BYTES_MAX);
    if too_large { Err(Refusal::MessageTooLarge) } else { Ok(()) }
}

impl Leader {
    /// A Produce request without transactional id.
    pub(super) fn produce(&mut self, turn: &mut Turn<'_>, token: Token, request: Produce) {
        if self.calls.len() >= limits::WAITING_PRODUCES_MAX {
            return turn.reply(token, Response::Refused(Refusal::Overloaded));
        }
        let mut parts = vec![None; request.batches.len()];
        let mut proposed = Vec::new();
        for (part, (at, batch)) in request.batches.into_iter().enumerate() {
            match self.admit(turn.machine, at, &batch) {
                Admitted::Propose => proposed.push((part, at, batch)),
                Admitted::Written(outcome) => parts[part] = Some(Ok(Acked::Written(outcome))),
                Admitted::Refused(refusal) => parts[part] = Some(Err(refusal)),
                Admitted::InFlight(ticket, slot) => {
                    if self.unknown_produces.contains(&ticket) || !self.proposals.join(ticket, slot, (token, part)) {
                        parts[part] = Some(Err(Refusal::FateUnknown));
                    }
                }
            }
        }
        self.count_fenced(parts.iter().flatten());
        let missing = parts.iter().filter(|part| part.is_none()).count();
        if missing == 0 {
            return turn.reply(token, Response::Produced(parts.into_iter().flatten().collect()));
        }
        self.calls.insert(token, ProduceCall { parts, missing, proved: false });
        self.propose_split(turn, token, proposed);
    }

    fn admit(&self, machine: &Machine, at: TopicPartition, batch: &RecordBatch) -> Admitted {
        if let Err(refusal) = check_size(machine, at, batch) {
            return Admitted::Refused(refusal);
        }
        if batch.is_transactional() {
            return Admitted::Refused(Refusal::InvalidTxnState);
        }
        self.admission.judge(machine, at, batch)
    }

    /// Proposes batches in as few entries as the entry cap allows.
    fn propose_split(&mut self, turn: &mut Turn<'_>, token: Token, parts: Vec<(usize, TopicPartition, RecordBatch)>) {
        let mut entry: Vec<(usize, TopicPartition, RecordBatch)> = Vec::new();
        let mut entry_bytes = 0;
        for part in parts {
            let cost = part.2.size_bytes() + limits::ENTRY_OVERHEAD_BYTES;
            if !entry.is_empty() && entry_bytes + cost > self.settings.entry_bytes_max {
                self.propose_batches(turn, token, std::mem::take(&mut entry));
                entry_bytes = 0;
            }
            entry_bytes += cost;
            entry.push(part);
        }
        if !entry.is_empty() {
            self.propose_batches(turn, token, entry);
        }
    }

    fn propose_batches(&mut self, turn: &mut Turn<'_>, token: Token, entry: Vec<(usize, TopicPartition, RecordBatch)>) {
        let batches = entry.iter().map(|(_, at, batch)| Batch::new(*at, batch)).collect();
        let waiters = entry.iter().map(|(part, _, _)| vec![(token, *part)]).collect();
        let ticket = self.proposals.propose(turn, Command::Produce(batches), Purpose::Produce(waiters));
        for (slot, (_, at, batch)) in entry.iter().enumerate() {
            self.admission.proposed(turn.machine, ticket, slot, *at, batch);
        }
    }

    /// A Produce entry was applied.
    pub(super) fn produce_applied(
        &mut self,
        turn: &mut Turn<'_>,
        ticket: Ticket,
        slots: Vec<Vec<(Token, usize)>>,
        outcome: Outcome,
    ) {
        self.settle_produce(turn.machine, ticket);
        let Outcome::Produced(results) = outcome else { unreachable!("a Produce entry has a Produced outcome") };
        self.count_fenced(results.iter());
        for (waiters, result) in slots.into_iter().zip(results) {
            for (token, part) in waiters {
                if let Some(call) = self.calls.get_mut(&token) {
                    call.proved = true;
                }
                self.resolve(turn, token, part, result.map(Acked::Written));
            }
        }
    }

    /// A Produce entry will not be answered by its apply.
    pub(super) fn produce_failed(
        &mut self,
        turn: &mut Turn<'_>,
        slots: impl IntoIterator<Item = Vec<(Token, usize)>>,
        refusal: Refusal,
    ) {
        for (token, part) in slots.into_iter().flatten() {
            self.resolve(turn, token, part, Err(refusal));
        }
    }

    /// A Produce entry's fate is known.
    pub(super) fn settle_produce(&mut self, machine: &Machine, ticket: Ticket) {
        self.unknown_produces.remove(&ticket);
        self.admission.settled(machine, ticket);
    }

    fn resolve(&mut self, turn: &mut Turn<'_>, token: Token, part: usize, result: Result<Acked, Refusal>) {
        let Some(call) = self.calls.get_mut(&token) else { return };
        if call.parts[part].replace(result).is_none() {
            call.missing -= 1;
        }
        if call.missing == 0
            && let Some(call) = self.calls.remove(&token)
        {
            let response = Response::Produced(call.parts.into_iter().flatten().collect());
            // A refusal that was decided here is true only of the leader, whatever became of the other parts.
            if call.proved { turn.reply_applied(token, response) } else { turn.reply(token, response) }
        }
    }

    /// Counts parts refused because the producer was fenced.
    pub(super) fn count_fenced<'a, T: 'a>(&mut self, parts: impl Iterator<Item = &'a Result<T, Refusal>>) {
        let fenced = parts.filter(|part| matches!(part, Err(Refusal::InvalidProducerEpoch | Refusal::ProducerFenced)));
        self.stats.fenced += fenced.count() as u64;
    }
}
