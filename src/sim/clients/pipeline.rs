//! Consume, transform, produce: members of a group that read `in` and write one batch to `out` for each they read.
//!
//! [`Pipeline`] commits what it read in the same transaction (KIP-447): exactly once. [`Worker`] writes, waits until all is
//! acknowledged, then commits its offsets (what an outbox does): at least once, and never an offset without its records.

use std::collections::VecDeque;
use std::sync::Arc;

use katomic::leader::request::{OffsetCommit, Request, Response};
use katomic::state::command::OffsetWrite;
use katomic::types::{Offset, Refusal, TopicPartition};

use super::super::oracle::Meaning;
use super::super::raft::NODES;
use super::super::records::Record;
use super::super::world::World;
use super::core::{Core, Finished, Plan, Style};
use super::membership::Membership;
use super::plain::Writer;
use super::{Class, Client, Session, Tag};

/// Batches read at once.
const READ_MAX: usize = 3;

/// Reads from one of the partitions owned, at any replica that can be reached.
fn read(world: &mut World, membership: &Membership) -> Option<(TopicPartition, i64, Vec<Record>)> {
    let known: Vec<(TopicPartition, i64)> =
        membership.owned.iter().filter_map(|(at, position)| Some((*at, (*position)?))).collect();
    if known.is_empty() {
        return None;
    }
    let (at, position) = known[world.rng.index(known.len())];
    let node = world.rng.index(NODES);
    if world.links.cut_up[node] || world.links.cut_down[node] {
        return None;
    }
    let log = world.places[node].node.as_ref()?.logs.get(&at)?;
    let from = log.iter().position(|record| record.base >= position)?;
    let records: Vec<Record> = log.iter().skip(from).take(1 + world.rng.index(READ_MAX)).copied().collect();
    assert_eq!(records[0].base, position, "non-monotonic poll: a gap at the position of a reader");
    Some((at, position, records))
}

fn outputs(world: &mut World, at: TopicPartition, records: &[Record]) -> Vec<(TopicPartition, (TopicPartition, i64))> {
    let partitions = world.topics["out"].1 as u64;
    let mut out = Vec::new();
    for record in records {
        let partition = world.rng.below(partitions) as i32;
        out.push((world.partition("out", partition), (at, record.base)));
    }
    out
}

fn is_of_member(tag: &Tag) -> bool {
    matches!(tag, Tag::Join | Tag::Sync | Tag::Heartbeat | Tag::Fetch(_))
}

/// Exactly once.
pub struct Pipeline {
    core: Core,
    membership: Membership,
    stopped: bool,
    /// Whether it joins again while a transaction is open.
    hasty: bool,
}

impl Pipeline {
    /// A member of `group` with a transactional id of its own.
    pub fn new(group: &str, id: Arc<str>, style: Style, hasty: bool) -> Self {
        let membership = Membership::new(group.into(), id.clone());
        Self { core: Core::new(id, style), membership, stopped: false, hasty }
    }

    fn begin(&mut self, world: &mut World) {
        let Some((at, from, records)) = read(world, &self.membership) else { return };
        let next = records[records.len() - 1].next;
        let batches = outputs(world, at, &records).into_iter().map(|(to, of)| (to, Some(of))).collect();
        let offsets = Some((self.membership.member(), vec![(at, from, next)]));
        self.membership.owned.insert(at, Some(next));
        let aborts = world.rng.chance(100);
        self.core.begin(world, Plan { batches, offsets, aborts });
    }
}

impl Client for Pipeline {
    fn turn(&mut self, world: &mut World, session: &mut Session) {
        if self.core.dead {
            return;
        }
        if self.membership.must_rejoin {
            if !self.core.is_open() || self.hasty {
                self.membership.rejoin();
            } else if world.rng.chance(100) {
                self.core.give_up();
            }
        }
        if !self.stopped || self.core.is_open() {
            self.membership.turn(world, session);
        }
        let may_begin = self.core.is_ready() && self.membership.is_in() && !self.membership.must_rejoin;
        if may_begin && !self.stopped && world.rng.chance(600) {
            self.begin(world);
        }
        self.core.turn(world, session);
    }

    fn answer(&mut self, world: &mut World, session: &mut Session, tag: Tag, request: Request, response: Response) {
        if is_of_member(&tag) {
            return self.membership.answer(world, session, &tag, &response);
        }
        let finished = self.core.answer(world, &tag, &request, &response);
        if std::mem::take(&mut self.core.member_refused) {
            self.membership.must_rejoin = true;
        }
        if finished == Some(Finished::Aborted) {
            self.membership.rewind();
        }
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn is_idle(&self) -> bool {
        self.core.dead || !self.core.is_open()
    }

    fn restart(&mut self, world: &mut World, session: &mut Session) {
        session.die(world);
        self.core.restart();
        self.membership.restart();
    }

    fn describe(&self) -> String {
        format!("{} {:?}", self.core.describe(), self.membership)
    }
}

/// At least once.
pub struct Worker {
    group: Arc<str>,
    writer: Writer,
    membership: Membership,
    /// Read and to be written, in order.
    unsent: VecDeque<(TopicPartition, Meaning)>,
    /// Written, to be committed once it is acknowledged: partition, next offset.
    written: Option<(TopicPartition, i64)>,
    committing: bool,
    stopped: bool,
}

impl Worker {
    /// A member of `group`.
    pub fn new(group: &str, name: Arc<str>) -> Self {
        Self {
            group: group.into(),
            writer: Writer::default(),
            membership: Membership::new(group.into(), name),
            unsent: VecDeque::new(),
            written: None,
            committing: false,
            stopped: false,
        }
    }

    fn work(&mut self, world: &mut World) {
        let Some((at, _, records)) = read(world, &self.membership) else { return };
        let next = records[records.len() - 1].next;
        for (to, (of, offset)) in outputs(world, at, &records) {
            self.unsent.push_back((to, Meaning { group: self.group.clone(), of, offset }));
        }
        self.written = Some((at, next));
    }

    fn write(&mut self, world: &mut World, session: &mut Session) {
        while let Some((to, meaning)) = self.unsent.pop_front_if(|(to, _)| self.writer.may_send(session, *to)) {
            self.writer.send(world, session, to, Some(meaning));
        }
    }

    fn commit(&mut self, world: &mut World, session: &mut Session, at: TopicPartition, next: i64) {
        self.committing = true;
        let write = OffsetWrite { of: at, offset: Offset(next), leader_epoch: -1, metadata: String::new() };
        let commit = OffsetCommit { member: self.membership.member(), offsets: vec![write] };
        session.ask(world, Class::Group, Tag::Commit, Request::OffsetCommit(commit));
    }

    fn committed(&mut self, refusal: Option<Refusal>) {
        self.committing = false;
        let Some((at, next)) = self.written else { return };
        match refusal {
            None => {
                self.written = None;
                if let Some(position) = self.membership.owned.get_mut(&at) {
                    *position = Some(next);
                }
            }
            // O3: it joins again, keeps its position and commits once more, if it still owns the partition.
            Some(Refusal::RebalanceInProgress) => self.membership.must_rejoin = true,
            Some(Refusal::UnknownMemberId) => {
                self.membership.is_forgotten();
                self.written = None;
            }
            Some(Refusal::IllegalGeneration) => {
                self.membership.must_rejoin = true;
                self.written = None;
            }
            Some(other) => panic!("{}: OffsetCommit was answered with {other:?}", self.group),
        }
    }
}

impl Client for Worker {
    fn turn(&mut self, world: &mut World, session: &mut Session) {
        self.writer.turn(world, session);
        self.write(world, session);
        let written = self.unsent.is_empty() && self.writer.unacked.is_empty();
        if self.membership.must_rejoin && written && !self.committing {
            self.membership.rejoin();
        }
        if !self.stopped || self.written.is_some() {
            self.membership.turn(world, session);
        }
        if !self.membership.is_in() || self.membership.must_rejoin || self.committing {
            return;
        }
        match self.written {
            None if !self.stopped && written && world.rng.chance(500) => self.work(world),
            None => {}
            Some((at, _)) if !self.membership.owned.contains_key(&at) => self.written = None,
            Some((at, next)) if written => self.commit(world, session, at, next),
            Some(_) => {}
        }
    }

    fn answer(&mut self, world: &mut World, session: &mut Session, tag: Tag, request: Request, response: Response) {
        match (&tag, &response) {
            (Tag::Commit, Response::Parts(parts)) => self.committed(parts[0].err()),
            (Tag::Commit, Response::Refused(refusal)) => self.committed(Some(*refusal)),
            (tag, response) if is_of_member(tag) => self.membership.answer(world, session, tag, response),
            _ => self.writer.answer(world, session, tag, request, &response),
        }
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn is_idle(&self) -> bool {
        self.writer.unacked.is_empty() && self.written.is_none()
    }

    fn restart(&mut self, world: &mut World, session: &mut Session) {
        session.die(world);
        self.writer = Writer::default();
        self.unsent.clear();
        (self.written, self.committing) = (None, false);
        self.membership.restart();
    }

    fn describe(&self) -> String {
        format!("worker {:?} {:?} {:?}", self.writer, self.written, self.membership)
    }
}
