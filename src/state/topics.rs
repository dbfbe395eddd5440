//! Topics by id and by name, with their partitions and settings.
//!
//! Invariant: `by_id`, `by_name` and `by_metric_name` have the same members. A topic created again under an old name is another
//! topic, with another id.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Machine;
use super::command::{Effects, NewPartitions, NewTopic, Outcome};
use super::partitions::Partition;
use crate::types::settings::TopicSettings;
use crate::types::{Refusal, TopicId, TopicPartition};

/// Partitions of the cluster: each is state in memory and a folder on every node. More is refused (44). Part of what entries
/// mean: replicas with different bounds would diverge.
pub const PARTITIONS_MAX: usize = 200_000;

/// One topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Topic {
    /// Its id, for ever.
    pub id: TopicId,
    /// Its name.
    pub name: String,
    /// Its partitions, by number.
    pub partitions: Vec<Partition>,
    /// Settings that were given, by name; everything else has its default.
    pub configs: BTreeMap<String, String>,
    /// The settings the broker acts on, worked out from `configs`.
    pub settings: TopicSettings,
}

/// All topics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Topics {
    /// `Arc`: a checkpoint shares what does not change meanwhile.
    pub(super) by_id: imbl::OrdMap<TopicId, Arc<Topic>>,
    pub(super) by_name: imbl::OrdMap<String, TopicId>,
    /// By the name that metrics show, in which `.` and `_` are one character: two topics must not share it.
    pub(super) by_metric_name: imbl::OrdMap<String, TopicId>,
}

fn metric_name(name: &str) -> String {
    name.replace('.', "_")
}

impl Topics {
    /// The topic of that id.
    pub fn get(&self, id: TopicId) -> Option<&Arc<Topic>> {
        self.by_id.get(&id)
    }

    /// The topic of that name.
    pub fn named(&self, name: &str) -> Option<&Arc<Topic>> {
        self.by_name.get(name).and_then(|id| self.by_id.get(id))
    }

    /// The partition, if topic and partition exist.
    pub fn partition(&self, of: TopicPartition) -> Option<&Partition> {
        let topic = self.by_id.get(&of.topic)?;
        topic.partitions.get(usize::try_from(of.partition).ok()?)
    }

    /// All topics in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.by_name.iter().filter_map(|(_, id)| self.by_id.get(id))
    }

    /// How many topics there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The topic whose name differs from `name` at most in `.` and `_` (Kafka's `Topic.hasCollision`).
    pub fn colliding(&self, name: &str) -> Option<&Arc<Topic>> {
        self.by_metric_name.get(&metric_name(name)).and_then(|id| self.by_id.get(id))
    }

    pub(super) fn get_mut(&mut self, id: TopicId) -> Option<&mut Topic> {
        self.by_id.get_mut(&id).map(Arc::make_mut)
    }

    /// Each topic is judged alone: of two requests that raced for a name, the second is refused here.
    pub(super) fn apply_create(&mut self, topics: &[NewTopic], effects: &mut Effects) -> Vec<Result<TopicId, Refusal>> {
        let mut room = self.room();
        topics.iter().map(|new| self.create_one(new, &mut room, effects)).collect()
    }

    /// How many partitions there may be more.
    fn room(&self) -> usize {
        PARTITIONS_MAX.saturating_sub(self.by_id.iter().map(|(_, topic)| topic.partitions.len()).sum())
    }

    fn create_one(&mut self, new: &NewTopic, room: &mut usize, effects: &mut Effects) -> Result<TopicId, Refusal> {
        if self.named(&new.name).is_some() || self.get(new.id).is_some() {
            return Err(Refusal::TopicAlreadyExists);
        }
        if self.colliding(&new.name).is_some() {
            return Err(Refusal::InvalidTopic);
        }
        let count =
            usize::try_from(new.partitions).ok().filter(|count| *count > 0).ok_or(Refusal::InvalidPartitions)?;
        *room = room.checked_sub(count).ok_or(Refusal::PolicyViolation)?;
        let configs: BTreeMap<String, String> = new.configs.iter().cloned().collect();
        let settings = settings_of(&configs);
        let partitions = vec![Partition::default(); count];
        let topic = Topic { id: new.id, name: new.name.clone(), partitions, configs, settings };
        self.by_id.insert(new.id, Arc::new(topic));
        self.by_name.insert(new.name.clone(), new.id);
        self.by_metric_name.insert(metric_name(&new.name), new.id);
        assert!(self.by_id.len() == self.by_name.len() && self.by_id.len() == self.by_metric_name.len());
        effects.created.push((new.id, new.name.clone(), new.partitions));
        Ok(new.id)
    }

    /// Of two requests that raced for the same number, the second is refused here.
    pub(super) fn apply_grow(
        &mut self,
        more: &[NewPartitions],
        effects: &mut Effects,
    ) -> Vec<Result<TopicId, Refusal>> {
        let mut room = self.room();
        more.iter().map(|more| self.grow_one(more, &mut room, effects)).collect()
    }

    fn grow_one(&mut self, more: &NewPartitions, room: &mut usize, effects: &mut Effects) -> Result<TopicId, Refusal> {
        let known = self.get(more.topic).ok_or(Refusal::UnknownTopicOrPartition)?.partitions.len();
        let count = usize::try_from(more.count).ok().filter(|count| *count > known);
        let count = count.ok_or(Refusal::InvalidPartitions)?;
        *room = room.checked_sub(count - known).ok_or(Refusal::PolicyViolation)?;
        let topic = self.get_mut(more.topic).expect("it was just found");
        topic.partitions.resize(count, Partition::default());
        effects.created.push((more.topic, topic.name.clone(), more.count));
        Ok(more.topic)
    }

    fn remove(&mut self, id: TopicId) -> Result<TopicId, Refusal> {
        let topic = self.by_id.remove(&id).ok_or(Refusal::UnknownTopicId)?;
        self.by_name.remove(&topic.name);
        self.by_metric_name.remove(&metric_name(&topic.name));
        assert!(self.by_id.len() == self.by_name.len() && self.by_id.len() == self.by_metric_name.len());
        Ok(id)
    }

    /// Sets or removes a setting; false if there is no such topic.
    pub(super) fn apply_config(&mut self, id: TopicId, name: &str, value: Option<&str>) -> bool {
        let Some(topic) = self.get_mut(id) else { return false };
        match value {
            Some(value) => topic.configs.insert(name.to_owned(), value.to_owned()),
            None => topic.configs.remove(name),
        };
        topic.settings = settings_of(&topic.configs);
        true
    }
}

fn settings_of(configs: &BTreeMap<String, String>) -> TopicSettings {
    TopicSettings::from_configs(configs.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

impl Machine {
    /// A topic takes its producer state and its committed offsets with it: nothing of them means anything under another id.
    pub(super) fn apply_delete_topics(&mut self, ids: &[TopicId], effects: &mut Effects) -> Outcome {
        let results: Vec<_> = ids.iter().map(|id| self.topics.remove(*id)).collect();
        effects.deleted.extend(results.iter().flatten());
        if !effects.deleted.is_empty() {
            self.producers.forget_topics(|partition| effects.deleted.contains(&partition.topic));
            self.group_offsets.forget(|_, partition, _| effects.deleted.contains(&partition.topic));
        }
        Outcome::Topics(results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_partitions_than_the_bound_are_refused_whoever_asks() {
        let mut topics = Topics::default();
        let mut effects = Effects::default();
        let new = |n: u8, partitions: usize| NewTopic {
            id: TopicId([n; 16]),
            name: format!("t{n}"),
            partitions: i32::try_from(partitions).unwrap(),
            configs: Vec::new(),
        };
        // One entry of several, as Metadata makes them.
        let results = topics.apply_create(&[new(1, PARTITIONS_MAX - 3), new(2, 4), new(3, 1)], &mut effects);
        assert_eq!(results, [Ok(TopicId([1; 16])), Err(Refusal::PolicyViolation), Ok(TopicId([3; 16]))]);
        let grow = |count: i32| NewPartitions { topic: TopicId([3; 16]), count };
        assert_eq!(topics.apply_grow(&[grow(4)], &mut effects), [Err(Refusal::PolicyViolation)]);
        assert_eq!(topics.apply_grow(&[grow(3)], &mut effects), [Ok(TopicId([3; 16]))]);
        assert_eq!(topics.apply_create(&[new(4, 1)], &mut effects), [Err(Refusal::PolicyViolation)]);
    }
}
