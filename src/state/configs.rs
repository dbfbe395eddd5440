//! Settings of all brokers that were changed through the log, and the entry that changes settings.

use serde::{Deserialize, Serialize};

use super::Machine;
use super::command::{ConfigChange, ConfigResource, Effects};

/// Broker settings that differ from the defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Configs {
    pub(super) broker: imbl::OrdMap<String, String>,
}

impl Configs {
    /// A broker setting's changed value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.broker.get(name).map(String::as_str)
    }

    /// All changed ones.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.broker.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl Machine {
    /// Values were checked before proposing; a topic deleted meanwhile is passed over.
    pub(super) fn apply_alter_configs(&mut self, changes: &[ConfigChange], effects: &mut Effects) {
        for change in changes {
            match (&change.resource, &change.value) {
                (ConfigResource::Broker, Some(value)) => {
                    self.configs.broker.insert(change.name.clone(), value.clone());
                }
                (ConfigResource::Broker, None) => {
                    self.configs.broker.remove(&change.name);
                }
                (ConfigResource::Topic(id), value) => {
                    let changed = self.topics.apply_config(*id, &change.name, value.as_deref());
                    if changed && !effects.reconfigured.contains(id) {
                        effects.reconfigured.push(*id);
                    }
                }
            }
        }
    }
}
