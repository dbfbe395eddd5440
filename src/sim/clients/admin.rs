//! An operator: makes the topics a run needs, deletes one of them now and then and makes it again under the same name.

use katomic::leader::request::{Request, Response};
use katomic::state::command::NewTopic;
use katomic::types::{Refusal, TopicId};

use super::super::world::World;
use super::{Class, Client, Session, Tag};

/// Topics, and how many partitions they have.
const TOPICS: [(&str, i32); 3] = [("in", 3), ("out", 3), ("temp", 2)];

/// See the module.
#[derive(Debug, Default)]
pub struct Admin {
    created: u8,
    stopped: bool,
    waits_until_us: u64,
}

impl Admin {
    fn create(&mut self, world: &mut World, session: &mut Session, name: &str, partitions: i32) {
        self.created += 1;
        let mut id = [0; 16];
        (id[0], id[15]) = (name.len() as u8, self.created);
        let topic = NewTopic { id: TopicId(id), name: name.to_owned(), partitions, configs: Vec::new() };
        session.ask(world, Class::Coordinator, Tag::Create, Request::CreateTopics(vec![topic]));
    }
}

impl Client for Admin {
    fn turn(&mut self, world: &mut World, session: &mut Session) {
        if !session.is_quiet() {
            return;
        }
        for (name, partitions) in TOPICS.into_iter().take(2) {
            if !world.topics.contains_key(name) {
                return self.create(world, session, name, partitions);
            }
        }
        if self.stopped || world.now_us < self.waits_until_us {
            return;
        }
        self.waits_until_us = world.now_us + world.rng.between(200_000, 2_000_000);
        match world.topics.get("temp") {
            None => self.create(world, session, TOPICS[2].0, TOPICS[2].1),
            Some((id, _)) => {
                let request = Request::DeleteTopics(vec![*id]);
                session.ask(world, Class::Coordinator, Tag::Delete, request);
            }
        }
    }

    fn answer(&mut self, world: &mut World, _: &mut Session, tag: Tag, request: Request, response: Response) {
        match (tag, request, response) {
            (Tag::Create, Request::CreateTopics(topics), Response::Topics(results)) => {
                let (name, partitions) = TOPICS.into_iter().find(|(name, _)| *name == topics[0].name).expect("ours");
                let id = match results[0] {
                    Ok(id) => Some(id),
                    // A retried creation finds the topic it made.
                    Err(Refusal::TopicAlreadyExists) => world.topic_id(name),
                    Err(refusal) => panic!("CreateTopics was answered with {refusal:?}"),
                };
                world.topics.extend(id.map(|id| (name, (id, partitions))));
            }
            (Tag::Delete, _, Response::Topics(_)) => {
                world.topics.remove("temp");
            }
            (tag, _, response) => panic!("{tag:?} was answered with {response:?}"),
        }
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn is_idle(&self) -> bool {
        true
    }

    fn restart(&mut self, _: &mut World, _: &mut Session) {}

    fn describe(&self) -> String {
        format!("{self:?}")
    }
}
