//! An application that writes transactions, some of which it aborts, over several topics, one of which comes and goes.

use std::sync::Arc;

use katomic::leader::request::{Request, Response};

use super::super::world::World;
use super::core::{Core, Plan, Style};
use super::{Client, Session, Tag};

/// See the module.
pub struct Producer {
    core: Core,
    stopped: bool,
}

impl Producer {
    /// A producer of that transactional id.
    pub fn new(id: Arc<str>, style: Style) -> Self {
        Self { core: Core::new(id, style), stopped: false }
    }
}

impl Client for Producer {
    fn turn(&mut self, world: &mut World, session: &mut Session) {
        if self.core.is_ready() && !self.stopped && world.rng.chance(500) {
            let count = 1 + world.rng.index(5);
            let mut batches = Vec::new();
            for _ in 0..count {
                let topic = if world.topics.contains_key("temp") && world.rng.chance(60) { "temp" } else { "out" };
                let partitions = world.topics[topic].1 as u64;
                let partition = world.rng.below(partitions) as i32;
                batches.push((world.partition(topic, partition), None));
            }
            let aborts = world.rng.chance(150);
            self.core.begin(world, Plan { batches, offsets: None, aborts });
            if world.rng.chance(60) {
                self.core.give_up();
            }
        }
        self.core.turn(world, session);
    }

    fn answer(&mut self, world: &mut World, _: &mut Session, tag: Tag, request: Request, response: Response) {
        self.core.answer(world, &tag, &request, &response);
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn is_idle(&self) -> bool {
        self.core.dead || !self.core.is_open()
    }

    fn restart(&mut self, world: &mut World, session: &mut Session) {
        if world.rng.chance(300) {
            // The old process goes on, a zombie, beside its successor.
            let (id, style) = (self.core.id.clone(), self.core.style);
            let (shared, timeout_ms) = (session.shared, session.timeout_ms);
            let number = world.add(Box::new(Producer::new(id, style)));
            world.clients[number].session.shared = shared;
            world.clients[number].session.timeout_ms = timeout_ms;
        } else {
            session.die(world);
            self.core.restart();
        }
    }

    fn describe(&self) -> String {
        self.core.describe()
    }
}
