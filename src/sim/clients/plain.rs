//! An idempotent producer outside transactions: batches in flight, sent again in order, never written twice, never lost.

use std::collections::{BTreeMap, BTreeSet};

use katomic::leader::request::{Acked, InitProducerId, Produce, Request, Response};
use katomic::types::record_batch::sequence_plus;
use katomic::types::{ProducerIdAndEpoch, Refusal, TopicPartition};

use super::super::oracle::Meaning;
use super::super::records::{BatchNumber, batch};
use super::super::world::World;
use super::{Class, Client, Session, Tag};

/// Produce requests in flight (`max.in.flight.requests.per.connection`).
const PIPELINED: usize = 3;

/// The part that batches of any plain producer have in common.
#[derive(Debug, Default)]
pub struct Writer {
    pair: Option<ProducerIdAndEpoch>,
    sequences: BTreeMap<TopicPartition, i32>,
    /// Partitions where something is acknowledged. Before that one batch is in flight: a broker that knows nothing of a producer
    /// takes whatever comes first (KIP-360).
    begun: BTreeSet<TopicPartition>,
    /// Batches sent again after all before them were acknowledged.
    asked_after: BTreeSet<usize>,
    /// By number of the batch: where it goes.
    pub unacked: BTreeMap<usize, TopicPartition>,
}

impl Writer {
    /// Whether another batch may be sent there.
    pub fn may_send(&self, session: &Session, to: TopicPartition) -> bool {
        let first = !self.begun.contains(&to) && self.unacked.values().any(|other| *other == to);
        self.pair.is_some() && !first && session.count(|tag| matches!(tag, Tag::Produce(_))) < PIPELINED
    }

    /// Gets a producer id.
    pub fn turn(&mut self, world: &mut World, session: &mut Session) {
        if self.pair.is_none() && !session.has(|tag| *tag == Tag::Init) {
            let init = InitProducerId { version: 4, transactional_id: None, timeout_ms: 60_000, given: None };
            session.ask(world, Class::Produce, Tag::Init, Request::InitProducerId(init));
        }
    }

    /// Sends a batch.
    pub fn send(
        &mut self,
        world: &mut World,
        session: &mut Session,
        to: TopicPartition,
        meaning: Option<Meaning>,
    ) -> BatchNumber {
        let number = world.batch_number();
        world.oracle.sent(number, None, meaning);
        let count = 1 + world.rng.index(3) as i32;
        let sequence = self.sequences.get(&to).copied().unwrap_or(0);
        self.sequences.insert(to, sequence_plus(sequence, count));
        self.unacked.insert(number.0 as usize, to);
        let batches = vec![(to, batch(self.pair, sequence, count, false, number))];
        let produce = Produce { version: 9, transactional_id: None, batches, refused: None };
        session.ask(world, Class::Produce, Tag::Produce(vec![number.0 as usize]), Request::Produce(produce));
        number
    }

    /// Takes an answer.
    pub fn answer(
        &mut self,
        world: &mut World,
        session: &mut Session,
        tag: Tag,
        request: Request,
        response: &Response,
    ) {
        match (&tag, response) {
            (Tag::Init, Response::ProducerId(pair)) => self.pair = Some(*pair),
            (Tag::Produce(numbers), Response::Produced(results)) => {
                let (number, to) = (numbers[0], self.unacked[&numbers[0]]);
                match results[0] {
                    Ok(Acked::Written(outcome)) => {
                        world.oracle.acked(BatchNumber(number as u64), to, outcome.base_offset.0);
                    }
                    Err(Refusal::DuplicateSequenceNumber) => world.oracle.acked(BatchNumber(number as u64), to, -1),
                    Err(Refusal::OutOfOrderSequenceNumber) => {
                        let earlier = self.unacked.range(..number).any(|(_, other)| *other == to);
                        // The answer may be older than the acknowledgement of the batch before: once is no proof.
                        assert!(
                            earlier || self.asked_after.insert(number),
                            "needless fatal: 45 for batch {number}, sent after all before it were acknowledged"
                        );
                        return session.once_more(world, Class::Produce, number as u64, tag, request);
                    }
                    other => panic!("needless fatal: batch {number} was answered with {other:?}"),
                }
                self.unacked.remove(&number);
                self.begun.insert(to);
            }
            (_, other) => panic!("{tag:?} was answered with {other:?}"),
        }
    }
}

/// An application that writes to `in`.
pub struct Plain {
    writer: Writer,
    stopped: bool,
}

impl Plain {
    /// A producer without a producer id yet.
    pub fn new() -> Self {
        Self { writer: Writer::default(), stopped: false }
    }
}

impl Client for Plain {
    fn turn(&mut self, world: &mut World, session: &mut Session) {
        self.writer.turn(world, session);
        while !self.stopped && world.rng.chance(400) {
            let partitions = world.topics["in"].1 as u64;
            let partition = world.rng.below(partitions) as i32;
            let to = world.partition("in", partition);
            if !self.writer.may_send(session, to) {
                return;
            }
            self.writer.send(world, session, to, None);
        }
    }

    fn answer(&mut self, world: &mut World, session: &mut Session, tag: Tag, request: Request, response: Response) {
        self.writer.answer(world, session, tag, request, &response);
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn is_idle(&self) -> bool {
        self.writer.unacked.is_empty()
    }

    fn restart(&mut self, world: &mut World, session: &mut Session) {
        session.die(world);
        self.writer = Writer::default();
    }

    fn describe(&self) -> String {
        format!("plain {:?}", self.writer)
    }
}
