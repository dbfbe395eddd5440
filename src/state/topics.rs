//! Topics by id and by name, with their partitions and settings.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::partitions::Partition;
use crate::types::settings::TopicSettings;
use crate::types::{TopicId, TopicPartition};

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
}
