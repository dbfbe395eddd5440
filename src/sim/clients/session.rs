//! A client's connections and its requests without an answer.
//!
//! A request is sent again, as it was, until an answer settles it: after «not the leader», after a timeout (which closes the
//! connection, as Java's and librdkafka's clients do), after a reset. Who leads is asked of any node, which may be wrong.

use std::collections::BTreeMap;

use katomic::leader::request::{Request, Response};
use katomic::types::Refusal;

use super::super::network::{ConnId, RequestId};
use super::super::raft::{NODES, NodeId};
use super::super::world::World;

/// Which connection a request belongs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Coordinator,
    Produce,
    Group,
}

/// What a request was for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tag {
    Init,
    Add,
    /// Parts of the transaction, or batches of a plain producer.
    Produce(Vec<usize>),
    AddOffsets,
    Offsets,
    End(bool),
    Join,
    Sync,
    Heartbeat,
    Fetch(u64),
    Commit,
    Create,
    Delete,
}

#[derive(Debug)]
struct Waiting {
    tag: Tag,
    class: Class,
    request: Request,
    conn: ConnId,
    due_us: u64,
    /// When it was first sent, by number.
    order: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    /// The client's number.
    pub client: usize,
    /// One connection for everything, as librdkafka has to a broker.
    pub shared: bool,
    /// After how long without an answer it gives up a connection.
    pub timeout_ms: u64,
    leader: NodeId,
    conns: [Option<ConnId>; 3],
    waiting: BTreeMap<RequestId, Waiting>,
    /// To be sent again, in the order in which they were first sent.
    again: Vec<(u64, Waiting)>,
    last_order: u64,
}

impl Session {
    /// No connections yet.
    pub fn new(client: usize) -> Self {
        Self {
            client,
            shared: false,
            timeout_ms: 700,
            leader: 0,
            conns: [None; 3],
            waiting: BTreeMap::new(),
            again: Vec::new(),
            last_order: 0,
        }
    }

    fn conn(&mut self, world: &mut World, class: Class) -> ConnId {
        let slot = if self.shared { 0 } else { class as usize };
        let usable = |conn: &ConnId| world.conns.get(conn).is_some_and(|found| found.open_at_client);
        match self.conns[slot].filter(usable) {
            Some(conn) => conn,
            None => {
                let conn = world.open(self.client, self.leader);
                self.conns[slot] = Some(conn);
                conn
            }
        }
    }

    /// Sends a request, and sends it again until it is settled.
    pub fn ask(&mut self, world: &mut World, class: Class, tag: Tag, request: Request) {
        self.last_order += 1;
        self.send(world, class, tag, request, self.last_order);
    }

    fn send(&mut self, world: &mut World, class: Class, tag: Tag, request: Request, order: u64) {
        let conn = self.conn(world, class);
        let timeout_ms = match tag {
            // Both may wait for other members.
            Tag::Join | Tag::Sync => 4 * self.timeout_ms,
            _ => self.timeout_ms,
        };
        let id = world.send(conn, request.clone());
        let due_us = world.now_us + timeout_ms * 1_000;
        self.waiting.insert(id, Waiting { tag, class, request, conn, due_us, order });
    }

    /// Whether a request of that kind is without an answer.
    pub fn has(&self, wanted: impl Fn(&Tag) -> bool) -> bool {
        self.waiting.values().chain(self.again.iter().map(|(_, waiting)| waiting)).any(|waiting| wanted(&waiting.tag))
    }

    /// How many of that kind are.
    pub fn count(&self, wanted: impl Fn(&Tag) -> bool) -> usize {
        let all = self.waiting.values().chain(self.again.iter().map(|(_, waiting)| waiting));
        all.filter(|waiting| wanted(&waiting.tag)).count()
    }

    /// Whether nothing is.
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.again.is_empty()
    }

    /// What is without an answer, for whoever reads a failure.
    pub fn describe(&self) -> String {
        let tags: Vec<_> = self.waiting.values().map(|waiting| &waiting.tag).collect();
        let again: Vec<_> = self.again.iter().map(|(_, waiting)| &waiting.tag).collect();
        format!("leader {} waiting {tags:?} again {again:?}", self.leader)
    }

    /// Forgets a request that nobody wants settled any more.
    pub fn forget(&mut self, unwanted: impl Fn(&Tag) -> bool) {
        self.waiting.retain(|_, waiting| !unwanted(&waiting.tag));
        self.again.retain(|(_, waiting)| !unwanted(&waiting.tag));
    }

    /// Timeouts, and what is to be sent again.
    pub fn pump(&mut self, world: &mut World) {
        while let Some(conn) = self.waiting.values().find(|waiting| waiting.due_us <= world.now_us).map(|w| w.conn) {
            world.close(conn);
            self.lost(world, conn);
        }
        let now_us = world.now_us;
        let (due, later) = std::mem::take(&mut self.again).into_iter().partition(|(at_us, _)| *at_us <= now_us);
        self.again = later;
        let due: Vec<(u64, Waiting)> = due;
        for (_, waiting) in due {
            self.send(world, waiting.class, waiting.tag, waiting.request, waiting.order);
        }
    }

    /// A connection is gone: what waited on it is sent again on another one.
    pub fn lost(&mut self, world: &mut World, conn: ConnId) {
        for slot in &mut self.conns {
            slot.take_if(|open| *open == conn);
        }
        let ids: Vec<RequestId> = self.waiting.iter().filter(|(_, w)| w.conn == conn).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(waiting) = self.waiting.remove(&id) {
                self.send_again(world, waiting);
            }
        }
    }

    fn send_again(&mut self, world: &mut World, waiting: Waiting) {
        self.find_leader(world);
        let delay_us = world.rng.between(0, 60_000);
        // All that is sent again is sent together, in the order in which it was first sent.
        let at_us = self.again.iter().map(|(at_us, _)| *at_us).max().unwrap_or(0).max(world.now_us + delay_us);
        self.again.push((at_us, waiting));
        self.again.iter_mut().for_each(|(due_us, _)| *due_us = at_us);
        self.again.sort_by_key(|(_, waiting)| waiting.order);
    }

    fn find_leader(&mut self, world: &mut World) {
        let asked = world.rng.index(NODES);
        let leader = world.leader_hint(asked).unwrap_or_else(|| world.rng.index(NODES));
        if leader != self.leader {
            self.leader = leader;
            // The old connections stay open: what is on its way there still arrives.
            self.conns = [None; 3];
        }
    }

    /// An answer: what it settles, or None if the request is sent again.
    pub fn take(&mut self, world: &mut World, id: RequestId, response: Response) -> Option<(Tag, Request, Response)> {
        let waiting = self.waiting.remove(&id)?;
        if settles(&response) {
            return Some((waiting.tag, waiting.request, response));
        }
        self.send_again(world, waiting);
        None
    }

    /// The process dies: nothing is waited for; what was sent still arrives.
    pub fn die(&mut self, world: &mut World) {
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            world.close(waiting.conn);
        }
        self.conns.iter().flatten().for_each(|conn| world.close(*conn));
        self.conns = [None; 3];
        self.again.clear();
    }

    /// Sends something again that an answer did not settle after all.
    pub fn once_more(&mut self, world: &mut World, class: Class, order: u64, tag: Tag, request: Request) {
        let waiting = Waiting { tag, class, request, conn: ConnId(0), due_us: 0, order };
        self.send_again(world, waiting);
    }
}

fn settles(response: &Response) -> bool {
    let again = |part: &Refusal| {
        matches!(part, Refusal::NotLeader | Refusal::FateUnknown | Refusal::Loading | Refusal::Overloaded)
    };
    match response {
        Response::Produced(parts) => !parts.iter().any(|part| part.as_ref().is_err_and(again)),
        Response::Parts(parts) => !parts.iter().any(|part| part.as_ref().is_err_and(again)),
        other => !other.claims_nothing(),
    }
}
