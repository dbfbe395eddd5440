//! A transactional producer: one transaction after another, as Kafka's clients make them.
//!
//! TV1 adds partitions and groups before it uses them, one request at a time; TV2 just produces. Batches are pipelined, the
//! EndTxn waits until all are acknowledged. After an abort TV1 clients differ: some take a new epoch (Java, librdkafka), some
//! rewind their sequences (T4), some go on behind them. A client may turn to TV2 after its first transaction (T18).

use std::collections::BTreeMap;
use std::sync::Arc;

use katomic::leader::request::{
    Acked, AddOffsetsToTxn, AddPartitionsToTxn, EndTxn, InitProducerId, MemberRef, Produce, Request, Response,
    TxnOffsetCommit,
};
use katomic::state::command::OffsetWrite;
use katomic::types::record_batch::sequence_plus;
use katomic::types::{Offset, ProducerIdAndEpoch, Refusal, TopicPartition};

use super::super::oracle::{Consumed, End, Meaning, Offsets};
use super::super::records::{BatchNumber, batch};
use super::super::world::World;
use super::{Class, Session, Tag};

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Todo,
    Sent,
    Done,
}

/// Which protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tv1,
    Tv2,
    /// TV1 for the first transaction, TV2 from then on (franz-go).
    Turns,
}

/// What a TV1 client does after an abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterAbort {
    Bumps,
    Rewinds,
    GoesOn,
}

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    pub protocol: Protocol,
    pub after_abort: AfterAbort,
    /// Produce requests in flight.
    pub pipelined: usize,
    /// `transaction.timeout.ms`.
    pub timeout_ms: i32,
    /// TxnOffsetCommit goes where the records go (librdkafka), not where EndTxn goes (aiokafka).
    pub offsets_with_records: bool,
    /// Times of a thousand that it idles in a transaction for a while.
    pub idles_per_mille: u64,
}

/// One batch of a transaction.
#[derive(Clone, Debug)]
struct Part {
    to: TopicPartition,
    number: BatchNumber,
    sequence: i32,
    count: i32,
    step: Step,
}

/// What a transaction is to contain.
#[derive(Debug)]
pub struct Plan {
    /// Where a batch goes, and what it means.
    pub batches: Vec<(TopicPartition, Option<(TopicPartition, i64)>)>,
    /// Group offsets, with the member on whose behalf.
    pub offsets: Option<(MemberRef, Vec<Consumed>)>,
    /// Whether it is to be aborted after all of it was sent.
    pub aborts: bool,
}

#[derive(Debug)]
struct Txn {
    number: usize,
    parts: Vec<Part>,
    member: Option<MemberRef>,
    writes: Vec<OffsetWrite>,
    added: Step,
    group_added: Step,
    offsets: Step,
    commits: bool,
    /// To be aborted after all of it was sent.
    aborts: bool,
    must_abort: bool,
    ending: Option<bool>,
    before: BTreeMap<TopicPartition, i32>,
    idle_until_us: u64,
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    Committed,
    Aborted,
}

/// See the module.
#[derive(Debug)]
pub struct Core {
    pub id: Arc<str>,
    pub style: Style,
    pair: Option<ProducerIdAndEpoch>,
    /// The pair its last InitProducerId gave it.
    born: Option<ProducerIdAndEpoch>,
    /// The pair to bump, if a bump is needed.
    given: Option<ProducerIdAndEpoch>,
    tv2: bool,
    sequences: BTreeMap<TopicPartition, i32>,
    txn: Option<Txn>,
    /// It was fenced, as it should be.
    pub dead: bool,
    /// The group said that the member must join again.
    pub member_refused: bool,
}

impl Core {
    /// A producer that has asked nothing yet.
    pub fn new(id: Arc<str>, style: Style) -> Self {
        Self {
            id,
            style,
            pair: None,
            born: None,
            given: None,
            tv2: style.protocol == Protocol::Tv2,
            sequences: BTreeMap::new(),
            txn: None,
            dead: false,
            member_refused: false,
        }
    }

    /// Whether a transaction is open.
    pub fn is_open(&self) -> bool {
        self.txn.is_some()
    }

    /// Whether a transaction may begin.
    pub fn is_ready(&self) -> bool {
        self.txn.is_none() && self.pair.is_some() && !self.dead
    }

    /// The open transaction is to be aborted, unless its end is on its way.
    pub fn give_up(&mut self) {
        if let Some(txn) = &mut self.txn {
            txn.commits = false;
        }
    }

    /// Begins a transaction.
    pub fn begin(&mut self, world: &mut World, plan: Plan) {
        let number = world.oracle.begin(&self.id);
        let before = self.sequences.clone();
        let mut parts = Vec::new();
        for (to, output) in plan.batches {
            let batch = world.batch_number();
            let count = 1 + world.rng.index(3) as i32;
            let sequence = self.sequences.get(&to).copied().unwrap_or(0);
            self.sequences.insert(to, sequence_plus(sequence, count));
            let group = plan.offsets.as_ref().map(|(member, _)| member.group.clone());
            let meaning = output.zip(group).map(|((of, offset), group)| Meaning { group, of, offset });
            world.oracle.sent(batch, Some(number), meaning);
            parts.push(Part { to, number: batch, sequence, count, step: Step::Todo });
        }
        let write = |(of, _, next): &Consumed| OffsetWrite {
            of: *of,
            offset: Offset(*next),
            leader_epoch: -1,
            metadata: String::new(),
        };
        let (member, writes) = match plan.offsets {
            None => (None, Vec::new()),
            Some((member, consumed)) => {
                let writes = consumed.iter().map(write).collect();
                world.oracle.stages(number, Offsets { group: member.group.clone(), consumed });
                (Some(member), writes)
            }
        };
        let offsets = if member.is_some() { Step::Todo } else { Step::Done };
        let idles = world.rng.chance(self.style.idles_per_mille);
        let idle_us = if idles { world.rng.between(100_000, 3_000_000) } else { 0 };
        self.txn = Some(Txn {
            number,
            parts,
            member,
            writes,
            added: if self.tv2 { Step::Done } else { Step::Todo },
            group_added: if self.tv2 { Step::Done } else { offsets },
            offsets,
            commits: true,
            aborts: plan.aborts,
            must_abort: false,
            ending: None,
            before,
            idle_until_us: world.now_us + idle_us,
        });
    }

    /// Sends what is due.
    pub fn turn(&mut self, world: &mut World, session: &mut Session) {
        if self.dead {
            return;
        }
        let Some(pair) = self.pair else { return self.init(world, session) };
        let Some(txn) = &mut self.txn else { return };
        if txn.ending.is_some() {
            return;
        }
        let busy = session.has(|tag| matches!(tag, Tag::Add | Tag::Produce(_) | Tag::AddOffsets | Tag::Offsets));
        let unsent = txn.parts.iter().any(|part| part.step != Step::Done) || txn.offsets != Step::Done;
        if txn.must_abort || !txn.commits {
            // In flight is waited for; what was not sent yet never is.
            if !busy {
                self.end(world, session, pair, false);
            }
            return;
        }
        if !unsent && !busy {
            if world.now_us >= txn.idle_until_us {
                let commit = !txn.aborts;
                self.end(world, session, pair, commit);
            }
            return;
        }
        self.send_parts(world, session, pair);
        self.send_offsets(world, session, pair);
    }

    fn init(&mut self, world: &mut World, session: &mut Session) {
        if session.has(|tag| *tag == Tag::Init) {
            return;
        }
        let request = Request::InitProducerId(InitProducerId {
            version: if self.style.protocol == Protocol::Tv2 { 5 } else { 4 },
            transactional_id: Some(self.id.clone()),
            timeout_ms: self.style.timeout_ms,
            given: self.given,
        });
        session.ask(world, Class::Coordinator, Tag::Init, request);
    }

    fn send_parts(&mut self, world: &mut World, session: &mut Session, pair: ProducerIdAndEpoch) {
        let (tv2, id, pipelined) = (self.tv2, self.id.clone(), self.style.pipelined);
        let Some(txn) = &mut self.txn else { return };
        if txn.added == Step::Todo && !session.has(|tag| matches!(tag, Tag::AddOffsets | Tag::Offsets)) {
            txn.added = Step::Sent;
            let partitions = txn.parts.iter().map(|part| part.to).collect();
            let add = AddPartitionsToTxn { version: 3, transactional_id: id.clone(), producer: pair, partitions };
            session.ask(world, Class::Coordinator, Tag::Add, Request::AddPartitionsToTxn(add));
        }
        if txn.added != Step::Done {
            return;
        }
        while session.count(|tag| matches!(tag, Tag::Produce(_))) < pipelined {
            let Some(first) = txn.parts.iter().position(|part| part.step == Step::Todo) else { return };
            // A second one of another partition goes along, now and then.
            let second = (first + 1..txn.parts.len())
                .find(|at| txn.parts[*at].step == Step::Todo && txn.parts[*at].to != txn.parts[first].to);
            let second = second.filter(|_| world.rng.chance(300));
            let in_order =
                |at: usize| !txn.parts[..at].iter().any(|part| part.step == Step::Todo && part.to == txn.parts[at].to);
            let chosen: Vec<usize> = [Some(first), second.filter(|at| in_order(*at))].into_iter().flatten().collect();
            let mut batches = Vec::new();
            for at in &chosen {
                let part = &mut txn.parts[*at];
                part.step = Step::Sent;
                batches.push((part.to, batch(Some(pair), part.sequence, part.count, true, part.number)));
            }
            let version = if tv2 { 12 } else { 9 };
            let produce = Produce { version, transactional_id: Some(id.clone()), batches, refused: None };
            session.ask(world, Class::Produce, Tag::Produce(chosen), Request::Produce(produce));
        }
    }

    fn send_offsets(&mut self, world: &mut World, session: &mut Session, pair: ProducerIdAndEpoch) {
        let (tv2, id) = (self.tv2, self.id.clone());
        let Some(txn) = &mut self.txn else { return };
        let Some(member) = txn.member.clone() else { return };
        if session.has(|tag| matches!(tag, Tag::Add | Tag::AddOffsets | Tag::Offsets)) || txn.added != Step::Done {
            return;
        }
        if txn.group_added == Step::Todo {
            txn.group_added = Step::Sent;
            let group = member.group;
            let add = AddOffsetsToTxn { version: 3, transactional_id: id, producer: pair, group };
            return session.ask(world, Class::Coordinator, Tag::AddOffsets, Request::AddOffsetsToTxn(add));
        }
        if txn.group_added == Step::Done && txn.offsets == Step::Todo {
            txn.offsets = Step::Sent;
            let commit = TxnOffsetCommit {
                version: if tv2 { 5 } else { 3 },
                transactional_id: id,
                producer: pair,
                member,
                offsets: txn.writes.clone(),
            };
            let class = if self.style.offsets_with_records { Class::Produce } else { Class::Coordinator };
            session.ask(world, class, Tag::Offsets, Request::TxnOffsetCommit(commit));
        }
    }

    fn end(&mut self, world: &mut World, session: &mut Session, pair: ProducerIdAndEpoch, commit: bool) {
        let version = if self.tv2 { 5 } else { 3 };
        let Some(txn) = &mut self.txn else { return };
        let staged = txn.member.is_some() && (txn.offsets != Step::Todo || !self.tv2 && txn.group_added != Step::Todo);
        let added = !self.tv2 && txn.added != Step::Todo;
        if !added && !staged && txn.parts.iter().all(|part| part.step == Step::Todo) {
            // Nothing was sent: as Java, which then sends no EndTxn either.
            world.oracle.ends(txn.number, false);
            world.oracle.ended(txn.number, End::Nothing);
            self.sequences = std::mem::take(&mut txn.before);
            self.txn = None;
            return;
        }
        txn.ending = Some(commit);
        world.oracle.ends(txn.number, commit);
        let end = EndTxn { version, transactional_id: self.id.clone(), producer: pair, commit };
        session.ask(world, Class::Coordinator, Tag::End(commit), Request::EndTxn(end));
    }

    /// Takes an answer; tells if it finished the transaction.
    pub fn answer(&mut self, world: &mut World, tag: &Tag, request: &Request, response: &Response) -> Option<Finished> {
        match (tag, response) {
            (Tag::Init, Response::ProducerId(pair)) => {
                (self.pair, self.born, self.given) = (Some(*pair), Some(*pair), None);
                self.sequences.clear();
            }
            (Tag::Produce(parts), Response::Produced(results)) => self.produced(world, parts, results),
            (Tag::Add, Response::Parts(results)) => self.added(world, results),
            (Tag::AddOffsets, Response::Done) => {
                if let Some(txn) = &mut self.txn {
                    txn.group_added = Step::Done;
                }
            }
            (Tag::Offsets, Response::Parts(results)) => match results.iter().find_map(|part| part.err()) {
                None => {
                    if let Some(txn) = &mut self.txn {
                        txn.offsets = Step::Done;
                    }
                }
                Some(refusal) => self.offsets_refused(world, refusal),
            },
            (Tag::Offsets, Response::Refused(refusal)) => self.offsets_refused(world, *refusal),
            (Tag::End(commit), Response::Ended(pair)) => return self.ended(world, *commit, *pair),
            (Tag::End(true), Response::Refused(Refusal::TransactionLost)) => {
                if let Some(txn) = &mut self.txn {
                    world.oracle.ended(txn.number, End::Nothing);
                    world.oracle.counts.lost += 1;
                    (txn.must_abort, txn.ending) = (true, None);
                }
            }
            (_, Response::Refused(refusal)) => self.fatal(world, request, *refusal),
            _ => panic!("{}: {request:?} was answered with {response:?}", self.id),
        }
        None
    }

    fn produced(&mut self, world: &mut World, parts: &[usize], results: &[Result<Acked, Refusal>]) {
        for (at, result) in parts.iter().zip(results) {
            let Some(txn) = &mut self.txn else { return };
            match result {
                Ok(Acked::Staged { .. }) => txn.parts[*at].step = Step::Done,
                Ok(Acked::Written(_)) => panic!("{}: a batch of an open transaction is told to be written", self.id),
                Err(Refusal::UnknownTopicOrPartition) => {
                    txn.parts[*at].step = Step::Done;
                    txn.must_abort = true;
                }
                Err(refusal) => self.fatal(world, &Request::DeleteTopics(Vec::new()), *refusal),
            }
        }
    }

    fn added(&mut self, world: &mut World, results: &[Result<(), Refusal>]) {
        let Some(txn) = &mut self.txn else { return };
        txn.added = Step::Done;
        match results.iter().find_map(|part| part.err()) {
            None => {}
            Some(Refusal::UnknownTopicOrPartition) => txn.must_abort = true,
            Some(refusal) => self.fatal(world, &Request::DeleteTopics(Vec::new()), refusal),
        }
    }

    fn offsets_refused(&mut self, world: &mut World, refusal: Refusal) {
        match refusal {
            Refusal::IllegalGeneration | Refusal::UnknownMemberId | Refusal::UnknownTopicOrPartition => {
                self.member_refused = true;
                if let Some(txn) = &mut self.txn {
                    txn.offsets = Step::Done;
                    txn.must_abort = true;
                }
            }
            other => self.fatal(world, &Request::DeleteTopics(Vec::new()), other),
        }
    }

    fn ended(&mut self, world: &mut World, commit: bool, pair: ProducerIdAndEpoch) -> Option<Finished> {
        let txn = self.txn.take()?;
        world.oracle.ended(txn.number, if commit { End::Committed } else { End::Nothing });
        let bumped = self.pair != Some(pair);
        self.pair = Some(pair);
        if bumped {
            self.sequences.clear();
        }
        let unsure = txn.parts.iter().any(|part| part.step == Step::Sent);
        if !commit && !self.tv2 {
            match self.style.after_abort {
                AfterAbort::Rewinds if !unsure => self.sequences = txn.before,
                AfterAbort::GoesOn if !unsure => {
                    // Behind what was sent: numbers of batches that never left are used again.
                    self.sequences = txn.before;
                    for part in txn.parts.iter().filter(|part| part.step == Step::Done) {
                        self.sequences.insert(part.to, sequence_plus(part.sequence, part.count));
                    }
                }
                AfterAbort::Bumps | AfterAbort::Rewinds | AfterAbort::GoesOn => {
                    self.given = Some(pair);
                    self.pair = None;
                }
            }
        }
        if self.style.protocol == Protocol::Turns {
            self.tv2 = true;
        }
        Some(if commit { Finished::Committed } else { Finished::Aborted })
    }

    /// An answer after which this producer is of no use: right only if another one took over.
    fn fatal(&mut self, world: &mut World, request: &Request, refusal: Refusal) {
        world.oracle.fatal(&self.id, self.born, &format!("{refusal:?} to {request:?}"));
        self.dead = true;
        self.txn = None;
    }

    /// The process dies and starts again.
    pub fn restart(&mut self) {
        *self = Self::new(self.id.clone(), self.style);
    }

    /// For whoever reads a failure.
    pub fn describe(&self) -> String {
        format!("{} pair {:?} dead {} txn {:?}", self.id, self.pair, self.dead, self.txn)
    }
}
