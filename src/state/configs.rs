//! Settings of all brokers that were changed through the log.

use serde::{Deserialize, Serialize};

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
