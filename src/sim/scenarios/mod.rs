//! Schedules as scenarios, by name: each is a sequence of events that breaks a build without its rule (T1–T21 of the
//! transactions, O1–O9 of outboxes). Nothing is left to chance: delays are fixed, one node may stand for election, links and
//! connections are cut and held by hand.
//!
//! Not here: T6's epochs that run out, and T15 and T17's expiry after days, which need other bounds or another clock (golden
//! scripts of `state` and `leader` have them); T9's replicated staging, which is not built; O2 and O5, which are about settings
//! and calls of an outbox that is not built.

mod groups;
mod outbox;
mod requests;
pub mod terms;

use std::sync::Arc;

use katomic::leader::request::{
    AddOffsetsToTxn, AddPartitionsToTxn, EndTxn, InitProducerId, MemberRef, OffsetCommit, OffsetFetch, Produce,
    Request, Response, TxnOffsetCommit,
};
use katomic::state::command::{NewTopic, OffsetWrite};
use katomic::types::{Offset, ProducerIdAndEpoch, Refusal, TopicId, TopicPartition};

use super::faults::{Fault, strike};
use super::invariants::everything_ends;
use super::mutants::Mutant;
use super::network::{ConnId, RequestId};
use super::raft::{NODES, NodeId};
use super::records::{BatchNumber, batch};
use super::world::{PROBE, Setup, World, settings};

/// How long a request is waited for.
const WITHIN_MS: u64 = 400;

type Pair = ProducerIdAndEpoch;

/// A world in which a scenario decides what happens.
struct Stage {
    world: World,
}

impl Stage {
    /// Node 0 serves, topic `a` has two partitions.
    fn new() -> Self {
        Self::with(Mutant::None)
    }

    fn with(mutant: Mutant) -> Self {
        let setup = Setup { seed: 1, mutant, rough: false, settings: settings() };
        let mut stage = Self { world: World::new(setup) };
        stage.elect(0);
        let conn = stage.open(0);
        stage.create(conn, "a", 2);
        stage
    }

    /// Lets a node lead; whoever led before must not be able to hold it up.
    fn elect(&mut self, node: NodeId) {
        for other in 0..NODES {
            if let Some(running) = self.world.places[other].node.as_mut() {
                running.raft.may_stand = other == node;
            }
        }
        let served = self.world.run_until(5_000, |world| world.serving().is_some_and(|(_, serving)| serving == node));
        assert!(served, "node {node} is not elected");
    }

    fn fault(&mut self, fault: Fault) {
        strike(&mut self.world, fault);
    }

    fn open(&mut self, node: NodeId) -> ConnId {
        let conn = self.world.open(PROBE, node);
        self.world.run_ms(5);
        conn
    }

    fn hold(&mut self, conn: ConnId, held: bool) {
        self.world.conns.get_mut(&conn).expect("it was opened").held = held;
    }

    fn send(&mut self, conn: ConnId, request: Request) -> RequestId {
        self.world.send(conn, request)
    }

    /// The answer, if it is there by then; `Close` if the connection was closed instead.
    fn answer(&mut self, id: RequestId) -> Option<Response> {
        self.world.run_until(WITHIN_MS, |world| world.probed.contains_key(&id));
        self.world.probed.get(&id).cloned()
    }

    fn ask(&mut self, conn: ConnId, request: Request) -> Option<Response> {
        let id = self.send(conn, request);
        self.answer(id)
    }

    /// Asks for what must succeed.
    fn must(&mut self, conn: ConnId, request: Request) -> Response {
        let asked = format!("{request:?}");
        let answer = self.ask(conn, request);
        let good = answer.as_ref().is_some_and(|answer| match answer {
            Response::Refused(_) | Response::Close => false,
            Response::Produced(parts) => parts.iter().all(Result::is_ok),
            Response::Parts(parts) => parts.iter().all(Result::is_ok),
            _ => true,
        });
        assert!(good, "{asked} was answered with {answer:?}");
        answer.expect("looked at")
    }

    fn create(&mut self, conn: ConnId, name: &'static str, partitions: i32) {
        let mut id = [0; 16];
        (id[0], id[15]) = (name.as_bytes()[0], self.world.topics.len() as u8 + 1);
        let new = NewTopic { id: TopicId(id), name: name.to_owned(), partitions, configs: Vec::new() };
        self.must(conn, Request::CreateTopics(vec![new]));
        self.world.topics.insert(name, (TopicId(id), partitions));
    }

    fn at(&self, partition: i32) -> TopicPartition {
        self.world.partition("a", partition)
    }

    /// A new producer id for a transactional id.
    fn init(&mut self, conn: ConnId, id: &str, given: Option<Pair>) -> Pair {
        match self.must(conn, init(id, given)) {
            Response::ProducerId(pair) => pair,
            other => panic!("{other:?}"),
        }
    }

    /// A transactional Produce of one batch of `count` records, and the batch's number. TV2 if `tv2`.
    fn batch(&mut self, id: &str, pair: Pair, to: TopicPartition, at: (i32, i32), tv2: bool) -> (Request, BatchNumber) {
        let number = self.number();
        let version = if tv2 { 12 } else { 9 };
        let batches = vec![(to, batch(Some(pair), at.0, at.1, true, number))];
        (Request::Produce(Produce { version, transactional_id: Some(id.into()), batches, refused: None }), number)
    }

    /// A plain Produce of one batch.
    fn plain(&mut self, pair: Pair, to: TopicPartition, at: (i32, i32)) -> (Request, BatchNumber) {
        let number = self.number();
        let batches = vec![(to, batch(Some(pair), at.0, at.1, false, number))];
        (Request::Produce(Produce { version: 9, transactional_id: None, batches, refused: None }), number)
    }

    fn number(&mut self) -> BatchNumber {
        let number = self.world.batch_number();
        self.world.oracle.sent(number, None, None);
        number
    }

    /// Stages a batch that must be acknowledged.
    fn stage(
        &mut self,
        conn: ConnId,
        id: &str,
        pair: Pair,
        to: TopicPartition,
        at: (i32, i32),
        tv2: bool,
    ) -> BatchNumber {
        let (request, number) = self.batch(id, pair, to, at, tv2);
        self.must(conn, request);
        number
    }

    /// Ends a transaction, which must succeed; tells the pair to use from now on.
    fn end(&mut self, conn: ConnId, id: &str, pair: Pair, commit: bool, tv2: bool) -> Pair {
        match self.must(conn, end(id, pair, commit, tv2)) {
            Response::Ended(pair) => pair,
            other => panic!("{other:?}"),
        }
    }

    fn offset(&self, group: &str, at: TopicPartition) -> Option<i64> {
        let (_, node) = self.world.serving().expect("somebody serves");
        let running = self.world.places[node].node.as_ref().expect("it runs");
        running.machine.group_offsets().get(group, at).map(|found| found.offset.0)
    }

    /// What a partition holds once everything is well again, on every node alike.
    fn log(&mut self, at: TopicPartition) -> Vec<BatchNumber> {
        self.settle();
        self.world.oracle.logs.get(&at).into_iter().flatten().map(|record| record.number).collect()
    }

    /// Everything is put right, and all replicas agree.
    fn settle(&mut self) {
        for place in &mut self.world.places {
            place.node.iter_mut().for_each(|running| running.raft.may_stand = true);
        }
        self.fault(Fault::Peace);
        everything_ends::finish(&mut self.world);
    }
}

/// Whether an answer, or none, promises nothing.
fn claims_nothing(answer: Option<&Response>) -> bool {
    answer.is_none_or(Response::claims_nothing)
}

fn refused(answer: Option<Response>) -> Option<Refusal> {
    match answer {
        Some(Response::Refused(refusal)) => Some(refusal),
        Some(Response::Produced(parts)) => parts.into_iter().find_map(Result::err),
        Some(Response::Parts(parts)) => parts.into_iter().find_map(Result::err),
        _ => None,
    }
}

fn init(id: &str, given: Option<Pair>) -> Request {
    let transactional_id = Some(id.into());
    Request::InitProducerId(InitProducerId { version: 4, transactional_id, timeout_ms: 60_000, given })
}

fn add(id: &str, producer: Pair, partitions: &[TopicPartition]) -> Request {
    let partitions = partitions.to_vec();
    Request::AddPartitionsToTxn(AddPartitionsToTxn { version: 3, transactional_id: id.into(), producer, partitions })
}

fn add_group(id: &str, producer: Pair, group: &str) -> Request {
    let group = group.into();
    Request::AddOffsetsToTxn(AddOffsetsToTxn { version: 3, transactional_id: id.into(), producer, group })
}

fn end(id: &str, producer: Pair, commit: bool, tv2: bool) -> Request {
    let version = if tv2 { 5 } else { 3 };
    Request::EndTxn(EndTxn { version, transactional_id: id.into(), producer, commit })
}

/// Somebody who is no member.
fn nobody(group: &str) -> MemberRef {
    MemberRef { group: group.into(), generation: -1, member_id: "".into(), instance_id: None }
}

fn write(of: TopicPartition, offset: i64) -> OffsetWrite {
    OffsetWrite { of, offset: Offset(offset), leader_epoch: -1, metadata: String::new() }
}

fn txn_offsets(id: &str, producer: Pair, member: MemberRef, of: TopicPartition, offset: i64, tv2: bool) -> Request {
    let version = if tv2 { 5 } else { 3 };
    let offsets = vec![write(of, offset)];
    Request::TxnOffsetCommit(TxnOffsetCommit { version, transactional_id: id.into(), producer, member, offsets })
}

fn commit(member: MemberRef, of: TopicPartition, offset: i64) -> Request {
    Request::OffsetCommit(OffsetCommit { member, offsets: vec![write(of, offset)] })
}

fn fetch(group: &str, of: TopicPartition, require_stable: bool) -> Request {
    let group: Arc<str> = group.into();
    Request::OffsetFetch(OffsetFetch { group, partitions: Some(vec![of]), require_stable })
}

/// The offset that an OffsetFetch of one partition was answered with.
fn fetched(answer: Option<Response>) -> Option<Result<Option<i64>, Refusal>> {
    match answer {
        Some(Response::Offsets(offsets)) => {
            offsets.into_iter().next().map(|(_, found)| found.map(|found| found.map(|found| found.offset.0)))
        }
        _ => None,
    }
}
