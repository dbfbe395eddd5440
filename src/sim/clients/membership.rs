//! A member of a consumer group: joins, assigns if it leads, fetches where its partitions stand, keeps its session alive.
//!
//! Assignments are in ConsumerProtocol form, each partition to one member. Several topics are not needed: the group reads `in`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use katomic::leader::request::{JoinGroup, MemberRef, OffsetFetch, Request, Response, SyncGroup};
use katomic::types::{Refusal, TopicPartition};

use super::super::world::World;
use super::{Class, Session, Tag};

/// Between two heartbeats.
const HEARTBEAT_US: u64 = 120_000;
const SESSION_MS: i32 = 1_500;

/// Where a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Out,
    Joining,
    Syncing,
    In,
}

/// See the module.
#[derive(Debug)]
pub struct Membership {
    group: Arc<str>,
    name: Arc<str>,
    phase: Phase,
    member_id: Arc<str>,
    generation: i32,
    /// What it owns, and from where to read: None until it is fetched.
    pub owned: BTreeMap<TopicPartition, Option<i64>>,
    heartbeat_due_us: u64,
    /// The group moves on: finish, then join again.
    pub must_rejoin: bool,
}

impl Membership {
    /// Not a member yet.
    pub fn new(group: Arc<str>, name: Arc<str>) -> Self {
        Self {
            group,
            name,
            phase: Phase::Out,
            member_id: "".into(),
            generation: -1,
            owned: BTreeMap::new(),
            heartbeat_due_us: 0,
            must_rejoin: false,
        }
    }

    /// As requests name it.
    pub fn member(&self) -> MemberRef {
        MemberRef {
            group: self.group.clone(),
            generation: self.generation,
            member_id: self.member_id.clone(),
            instance_id: None,
        }
    }

    /// Whether it has an assignment.
    pub fn is_in(&self) -> bool {
        self.phase == Phase::In
    }

    /// Joins again; what it owned it may not own any more.
    pub fn rejoin(&mut self) {
        if self.phase == Phase::In {
            self.phase = Phase::Out;
        }
        self.must_rejoin = false;
    }

    /// The group does not know it any more.
    pub fn is_forgotten(&mut self) {
        self.member_id = "".into();
        self.generation = -1;
        self.must_rejoin = true;
    }

    /// Positions are to be fetched again.
    pub fn rewind(&mut self) {
        self.owned.values_mut().for_each(|position| *position = None);
    }

    /// The process dies and starts again.
    pub fn restart(&mut self) {
        *self = Self::new(self.group.clone(), self.name.clone());
    }

    /// Sends what is due.
    pub fn turn(&mut self, world: &mut World, session: &mut Session) {
        match self.phase {
            Phase::Out => self.join(world, session),
            Phase::Joining | Phase::Syncing => {}
            Phase::In => {
                if world.now_us >= self.heartbeat_due_us && !session.has(|tag| *tag == Tag::Heartbeat) {
                    self.heartbeat_due_us = world.now_us + HEARTBEAT_US;
                    session.ask(world, Class::Group, Tag::Heartbeat, Request::Heartbeat(self.member()));
                }
                let unknown = self.owned.values().any(Option::is_none);
                if unknown && !self.must_rejoin && !session.has(|tag| matches!(tag, Tag::Fetch(_))) {
                    let partitions = Some(self.owned.keys().copied().collect());
                    let fetch = OffsetFetch { group: self.group.clone(), partitions, require_stable: true };
                    let asked = world.oracle.fetch_asked(&self.group);
                    session.ask(world, Class::Group, Tag::Fetch(asked), Request::OffsetFetch(fetch));
                }
            }
        }
    }

    fn join(&mut self, world: &mut World, session: &mut Session) {
        session.forget(|tag| matches!(tag, Tag::Heartbeat | Tag::Fetch(_)));
        self.phase = Phase::Joining;
        let request = Request::JoinGroup(JoinGroup {
            version: 7,
            member: MemberRef { generation: -1, ..self.member() },
            session_timeout_ms: SESSION_MS,
            rebalance_timeout_ms: 2_000,
            protocol_type: "consumer".into(),
            protocols: vec![("range".into(), Bytes::new())],
            reason: None,
            fresh_member_id: format!("{}-{}", self.name, world.batch_number().0).into(),
        });
        session.ask(world, Class::Group, Tag::Join, request);
    }

    /// Takes an answer of one of its requests.
    pub fn answer(&mut self, world: &mut World, session: &mut Session, tag: &Tag, response: &Response) {
        match (tag, response) {
            (Tag::Join, Response::Joined(joined)) => {
                (self.generation, self.member_id, self.phase) =
                    (joined.generation, joined.member_id.clone(), Phase::Syncing);
                let members: Vec<Arc<str>> = joined.members.iter().map(|(id, ..)| id.clone()).collect();
                let assignments = assignments(world, &members);
                let request =
                    SyncGroup { member: self.member(), protocol_type: None, protocol_name: None, assignments };
                session.ask(world, Class::Group, Tag::Sync, Request::SyncGroup(request));
            }
            (Tag::Join, Response::MemberIdRequired(id)) => {
                (self.member_id, self.phase) = (id.clone(), Phase::Out);
            }
            (Tag::Sync, Response::Synced(synced)) => {
                self.phase = Phase::In;
                self.must_rejoin = false;
                self.owned = owned(world, &synced.assignment).into_iter().map(|at| (at, None)).collect();
                self.heartbeat_due_us = world.now_us + HEARTBEAT_US;
            }
            (Tag::Fetch(asked), Response::Offsets(offsets)) => {
                for (at, found) in offsets {
                    let Ok(found) = found else { continue };
                    let offset = found.as_ref().map_or(0, |found| found.offset.0);
                    world.oracle.fetched(&self.group, *at, offset, *asked);
                    if let Some(position) = self.owned.get_mut(at).filter(|position| position.is_none()) {
                        *position = Some(offset);
                    }
                }
            }
            (Tag::Heartbeat, Response::Done) => {}
            (Tag::Join | Tag::Sync | Tag::Heartbeat | Tag::Fetch(_), Response::Refused(refusal)) => {
                self.refused(tag, *refusal);
            }
            other => panic!("{}: {other:?}", self.name),
        }
    }

    fn refused(&mut self, tag: &Tag, refusal: Refusal) {
        if refusal == Refusal::UnknownMemberId {
            self.is_forgotten();
        }
        match tag {
            Tag::Join | Tag::Sync => self.phase = Phase::Out,
            _ => self.must_rejoin = true,
        }
    }
}

/// Every partition of `in` to one member, in turn.
fn assignments(world: &World, members: &[Arc<str>]) -> Vec<(Arc<str>, Bytes)> {
    let (_, partitions) = world.topics["in"];
    let assign = |(number, member): (usize, &Arc<str>)| {
        let own: Vec<i32> = (0..partitions).filter(|at| *at as usize % members.len() == number).collect();
        (member.clone(), encode("in", &own))
    };
    members.iter().enumerate().map(assign).collect()
}

fn encode(topic: &str, partitions: &[i32]) -> Bytes {
    let mut out = 0_i16.to_be_bytes().to_vec();
    out.extend(1_i32.to_be_bytes());
    out.extend((topic.len() as i16).to_be_bytes());
    out.extend(topic.as_bytes());
    out.extend((partitions.len() as i32).to_be_bytes());
    partitions.iter().for_each(|partition| out.extend(partition.to_be_bytes()));
    out.extend((-1_i32).to_be_bytes());
    out.into()
}

/// The partitions of an assignment that [`encode`] made.
fn owned(world: &World, assignment: &Bytes) -> Vec<TopicPartition> {
    let Some(rest) = assignment.get(2 + 4 + 2 + "in".len() + 4..) else { return Vec::new() };
    let numbers = rest.chunks_exact(4).map(|raw| i32::from_be_bytes([raw[0], raw[1], raw[2], raw[3]]));
    numbers.take_while(|number| *number >= 0).map(|number| world.partition("in", number)).collect()
}
