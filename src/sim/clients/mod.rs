//! Clients: what they do with an answer, and with none, is what Kafka's clients do (table 2 of the transaction rules).
//!
//! [`Session`] is the part all share: connections by class, timeouts, and the same request again until its answer settles
//! something. What a client wants stands in the files beside.

pub mod admin;
pub mod core;
pub mod membership;
pub mod pipeline;
pub mod plain;
pub mod producer;
pub mod session;

use katomic::leader::request::{Request, Response};

use super::network::{ConnId, RequestId};
use super::world::{Event, World};
pub use session::{Class, Session, Tag};

/// What a client does.
pub trait Client {
    /// Time to send what is due.
    fn turn(&mut self, world: &mut World, session: &mut Session);
    /// A request got an answer that settles it.
    fn answer(&mut self, world: &mut World, session: &mut Session, tag: Tag, request: Request, response: Response);
    /// Begin nothing new.
    fn stop(&mut self);
    /// Nothing is under way.
    fn is_idle(&self) -> bool;
    /// The process dies and starts again.
    fn restart(&mut self, world: &mut World, session: &mut Session);
    /// What it is doing, for whoever reads a failure.
    fn describe(&self) -> String;
}

/// A client with its session.
pub struct Actor {
    /// Its connections and requests.
    pub session: Session,
    logic: Option<Box<dyn Client>>,
}

impl Actor {
    /// A client that has asked nothing yet.
    pub fn new(number: usize, logic: Box<dyn Client>) -> Self {
        Self { session: Session::new(number), logic: Some(logic) }
    }

    /// Stands in for one that is acting.
    pub fn away() -> Self {
        Self { session: Session::new(usize::MAX), logic: None }
    }

    fn logic(&mut self) -> (&mut Session, &mut dyn Client) {
        (&mut self.session, self.logic.as_mut().expect("an actor acts once at a time").as_mut())
    }

    /// Its timer.
    pub fn wake(&mut self, world: &mut World) {
        self.session.pump(world);
        let (session, logic) = self.logic();
        logic.turn(world, session);
        let delay_us = world.rng.between(8_000, 40_000);
        world.after(delay_us, Event::Wake(session.client));
    }

    /// An answer.
    pub fn answered(&mut self, world: &mut World, id: RequestId, response: Response) {
        if let Some((tag, request, response)) = self.session.take(world, id, response) {
            let (session, logic) = self.logic();
            logic.answer(world, session, tag, request, response);
            logic.turn(world, session);
        }
    }

    /// A connection is gone.
    pub fn lost(&mut self, world: &mut World, conn: ConnId) {
        self.session.lost(world, conn);
    }

    /// See [`Client::restart`].
    pub fn restart(&mut self, world: &mut World) {
        let (session, logic) = self.logic();
        logic.restart(world, session);
    }

    /// See [`Client::stop`].
    pub fn stop(&mut self) {
        self.logic().1.stop();
    }

    /// Whether it has nothing under way.
    pub fn is_idle(&self) -> bool {
        self.logic.as_ref().is_none_or(|logic| logic.is_idle())
    }

    /// See [`Client::describe`].
    pub fn describe(&self) -> String {
        self.logic.as_ref().map_or_else(String::new, |logic| logic.describe())
    }
}
