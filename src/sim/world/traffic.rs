//! What goes over connections: in order, late if a link is cut, numbered by the node in the order of their acceptance.

use katomic::leader::request::{Caller, Request};
use katomic::types::ConnectionId;

use super::super::mutants::Mutant;
use super::super::network::{Conn, ConnId, RequestId};
use super::super::node::Reply;
use super::super::raft::NodeId;
use super::{Event, PROBE, RETRANSMIT_US, World};

impl World {
    /// A client opens a connection.
    pub fn open(&mut self, client: usize, node: NodeId) -> ConnId {
        self.last_conn += 1;
        let id = ConnId(self.last_conn);
        self.conns.insert(id, Conn::new(client, node));
        self.push_up(id);
        id
    }

    /// A client closes a connection. What it has sent arrives all the same; but before the server has accepted there is no
    /// connection, and nothing was sent.
    pub fn close(&mut self, conn: ConnId) {
        if let Some(found) = self.conns.get_mut(&conn) {
            found.open_at_client = false;
            found.open_at_server &= found.accepted.is_some();
        }
    }

    /// A client sends a request.
    pub fn send(&mut self, conn: ConnId, request: Request) -> RequestId {
        self.last_request += 1;
        let id = RequestId(self.last_request);
        if let Some(found) = self.conns.get_mut(&conn) {
            found.unanswered.insert(id);
            found.to_server.push_back(Some((id, request)));
            self.push_up(conn);
        }
        id
    }

    /// One more of the connection's queue will arrive, behind what is on its way.
    fn push_up(&mut self, conn: ConnId) {
        let delay_us = self.links.delay_us(&mut self.rng);
        let found = self.conns.get_mut(&conn).expect("it was just found");
        found.arrives_us = found.arrives_us.max(self.now_us + delay_us);
        let delay_us = found.arrives_us - self.now_us;
        self.after(delay_us, Event::Arrive(conn));
    }

    pub(super) fn arrive(&mut self, conn: ConnId) {
        let Some(found) = self.conns.get_mut(&conn) else { return };
        let node = found.node;
        if !found.open_at_server {
            return;
        }
        if found.held || self.links.cut_up[node] {
            let delay_us = self.rng.between(RETRANSMIT_US.0, RETRANSMIT_US.1);
            return self.after(delay_us, Event::Arrive(conn));
        }
        let life = self.places[node].life;
        if self.places[node].node.is_none() || found.accepted.is_some_and(|(accepted, _)| accepted != life) {
            return self.reset(conn);
        }
        match found.to_server.pop_front() {
            None => {}
            Some(None) => {
                self.places[node].accepted += 1;
                found.accepted = Some((life, ConnectionId(self.places[node].accepted)));
            }
            Some(Some((id, request))) => {
                let Some((_, mut number)) = found.accepted else { return self.reset(conn) };
                if self.setup.mutant == Mutant::ConnectionsUnordered {
                    self.places[node].accepted += 1;
                    number = ConnectionId(self.places[node].accepted);
                }
                let caller = Caller {
                    connection: number,
                    software: "sim".into(),
                    client_id: "".into(),
                    host: "/127.0.0.1".into(),
                };
                self.trace.note(self.now_us, || format!("{conn:?} {id:?} at node {node}: {request:?}"));
                self.with(node, None, |running, at| running.request(conn, id, &caller, request, at));
            }
        }
    }

    pub(super) fn send_back(&mut self, conn: ConnId, id: RequestId, reply: Reply) {
        self.trace.note(self.now_us, || format!("{conn:?} {id:?} is answered {reply:?}"));
        let Some(found) = self.conns.get_mut(&conn) else { return };
        if !found.open_at_server {
            return;
        }
        if matches!(reply, Reply::Closed) {
            return self.reset(conn);
        }
        found.to_client.push_back((id, reply));
        let delay_us = self.links.delay_us(&mut self.rng);
        found.returns_us = found.returns_us.max(self.now_us + delay_us);
        let delay_us = found.returns_us - self.now_us;
        self.after(delay_us, Event::Return(conn));
    }

    pub(super) fn give_back(&mut self, conn: ConnId) {
        let Some(found) = self.conns.get_mut(&conn) else { return };
        if self.links.cut_down[found.node] {
            let delay_us = self.rng.between(RETRANSMIT_US.0, RETRANSMIT_US.1);
            return self.after(delay_us, Event::Return(conn));
        }
        let Some((id, Reply::Answer(response))) = found.to_client.pop_front() else { return };
        if found.open_at_client {
            let client = found.client;
            found.unanswered.remove(&id);
            if client == PROBE {
                self.probed.insert(id, response);
                return;
            }
            self.as_client(client, |actor, world| actor.answered(world, id, response));
        }
    }

    /// The server closes a connection; the client learns it if it can.
    pub(super) fn reset(&mut self, conn: ConnId) {
        let Some(found) = self.conns.get_mut(&conn) else { return };
        if std::mem::take(&mut found.open_at_server) {
            let delay_us = self.links.delay_us(&mut self.rng);
            self.after(delay_us, Event::Gone(conn));
        }
    }
}
