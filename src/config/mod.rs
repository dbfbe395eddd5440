//! What the operator chose: defaults < file < environment < flags. Parsed once at start, then only read.
//!
//! [`Config`] is what runs; [`Choices`] is one source of it (a TOML file, or the command line with its
//! environment twins), every field optional. [`Config::resolve`] lays the sources over each other and
//! refuses what contradicts itself, naming the key.

pub mod address;
pub mod limits;
pub mod settings;

use std::path::PathBuf;

use serde::Deserialize;

use address::Address;
use settings::Settings;

/// How the defaults lean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// One developer: topics are created on first use, groups start at once. fsync stays on.
    #[default]
    Dev,
    /// As `dev`; the name that Redpanda's compose files use. Unlike theirs it does not turn fsync off.
    DevContainer,
    /// Nothing is created by accident.
    Production,
}

impl std::str::FromStr for Mode {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text {
            "dev" | "development" => Ok(Mode::Dev),
            "dev-container" => Ok(Mode::DevContainer),
            "production" => Ok(Mode::Production),
            _ => Err(ConfigError::bad("mode", text, "dev, dev-container or production")),
        }
    }
}

/// A choice that cannot be followed. The text names the key, the value and what would do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A value is not of its type or range.
    #[error("{key}={value}: must be {expected}")]
    BadValue {
        /// Which setting.
        key: String,
        /// What was given.
        value: String,
        /// What would do.
        expected: String,
    },
    /// There is no such setting.
    #[error("{key}: no such setting")]
    UnknownKey {
        /// The name given.
        key: String,
    },
    /// A file cannot be read or parsed.
    #[error("{path}: {reason}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl ConfigError {
    /// A value that is not what it must be.
    pub fn bad(key: &str, value: &str, expected: &str) -> Self {
        ConfigError::BadValue { key: key.into(), value: value.into(), expected: expected.into() }
    }
}

/// One source of choices. Field names are the keys of the TOML file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choices {
    /// Where everything is stored.
    pub data_dir: Option<PathBuf>,
    /// This node's number.
    pub node_id: Option<u64>,
    /// Where Kafka clients connect.
    pub kafka_addr: Option<String>,
    /// What clients are told to connect to.
    pub advertise_kafka_addr: Option<String>,
    /// Where other nodes connect.
    pub rpc_addr: Option<String>,
    /// What other nodes are told to connect to.
    pub advertise_rpc_addr: Option<String>,
    /// Where operators and Prometheus connect.
    pub admin_addr: Option<String>,
    /// Nodes of the cluster to join.
    pub seeds: Option<String>,
    /// This node's rack.
    pub rack: Option<String>,
    /// How the defaults lean.
    pub mode: Option<Mode>,
    /// Acknowledge from the page cache.
    pub unsafe_bypass_fsync: Option<bool>,
    /// Any setting by name.
    #[serde(default)]
    pub set: std::collections::BTreeMap<String, SettingValue>,
}

/// A setting's value as TOML may write it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum SettingValue {
    /// `key = 5`
    Number(i64),
    /// `key = true`
    Flag(bool),
    /// `key = "text"`
    Text(String),
}

impl std::fmt::Display for SettingValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SettingValue::Number(number) => write!(f, "{number}"),
            SettingValue::Flag(flag) => write!(f, "{flag}"),
            SettingValue::Text(text) => f.write_str(text),
        }
    }
}

/// What runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where everything is stored.
    pub data_dir: PathBuf,
    /// This node's number.
    pub node_id: u64,
    /// Where Kafka clients connect.
    pub kafka_addr: Address,
    /// What clients are told to connect to.
    pub advertise_kafka_addr: Address,
    /// Where other nodes connect.
    pub rpc_addr: Address,
    /// Whether `rpc_addr` is listened on: a node that was given neither seeds nor an address for peers has none.
    pub listens_for_peers: bool,
    /// What other nodes are told to connect to.
    pub advertise_rpc_addr: Address,
    /// Where operators and Prometheus connect.
    pub admin_addr: Address,
    /// The nodes that found the cluster, this one among them, or any of an existing one: where they listen for peers.
    pub seeds: Vec<Address>,
    /// This node's rack.
    pub rack: Option<String>,
    /// How the defaults lean.
    pub mode: Mode,
    /// Acknowledge from the page cache: said loudly in the log and as a metric.
    pub unsafe_bypass_fsync: bool,
    /// All settings by Kafka's names.
    pub settings: Settings,
}

impl Config {
    /// Lays sources over the defaults, the last one uppermost.
    ///
    /// # Errors
    /// The first choice that cannot be followed.
    pub fn resolve(sources: &[Choices]) -> Result<Self, ConfigError> {
        fn last<T: Clone>(sources: &[Choices], field: impl Fn(&Choices) -> &Option<T>) -> Option<T> {
            sources.iter().rev().find_map(|source| field(source).clone())
        }
        let address = |key: &str, given: Option<String>, default: &str| {
            Address::parse(given.as_deref().unwrap_or(default))
                .map_err(|expected| ConfigError::bad(key, given.as_deref().unwrap_or(default), expected))
        };
        let mode = last(sources, |s| &s.mode).unwrap_or_default();
        let mut settings = Settings::for_mode(mode);
        for source in sources {
            for (key, value) in &source.set {
                settings.set(key, &value.to_string())?;
            }
        }
        let seeds = seeds(&last(sources, |s| &s.seeds).unwrap_or_default())?;
        let rpc_given = sources.iter().any(|source| source.rpc_addr.is_some());
        let node_id = last(sources, |s| &s.node_id).unwrap_or(0);
        if i32::try_from(node_id).is_err() {
            // Clients see it as a broker id of 32 bits.
            return Err(ConfigError::bad("node_id", &node_id.to_string(), &format!("at most {}", i32::MAX)));
        }
        let kafka_addr = address("kafka_addr", last(sources, |s| &s.kafka_addr), "127.0.0.1:9092")?;
        let advertised = last(sources, |s| &s.advertise_kafka_addr);
        let advertise_kafka_addr = match advertised {
            Some(given) => address("advertise_kafka_addr", Some(given), "")?,
            None => kafka_addr.clone(),
        };
        if advertise_kafka_addr.is_unspecified() {
            // A client that is told 0.0.0.0 connects once and then never again (AD07).
            return Err(ConfigError::bad(
                "advertise_kafka_addr",
                &advertise_kafka_addr.to_string(),
                "an address that clients can connect to; 0.0.0.0 is none",
            ));
        }
        let rpc_addr = address("rpc_addr", last(sources, |s| &s.rpc_addr), "127.0.0.1:33145")?;
        let advertise_rpc_addr = match last(sources, |s| &s.advertise_rpc_addr) {
            Some(given) => address("advertise_rpc_addr", Some(given), "")?,
            None => rpc_addr.clone(),
        };
        Ok(Self {
            data_dir: last(sources, |s| &s.data_dir).unwrap_or_else(|| PathBuf::from("katomic-data")),
            node_id,
            kafka_addr,
            advertise_kafka_addr,
            rpc_addr,
            listens_for_peers: rpc_given || !seeds.is_empty(),
            advertise_rpc_addr,
            admin_addr: address("admin_addr", last(sources, |s| &s.admin_addr), "127.0.0.1:9644")?,
            seeds,
            rack: last(sources, |s| &s.rack),
            mode,
            unsafe_bypass_fsync: last(sources, |s| &s.unsafe_bypass_fsync).unwrap_or(false),
            settings,
        })
    }
}

/// A list of addresses with commas between.
fn seeds(list: &str) -> Result<Vec<Address>, ConfigError> {
    let parse = |seed| Address::parse(seed).map_err(|expected| ConfigError::bad("seeds", seed, expected));
    list.split(',').map(str::trim).filter(|seed| !seed.is_empty()).map(parse).collect()
}

impl Choices {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// If it cannot be read, is not TOML, or has a key we do not know.
    pub fn from_file(path: &std::path::Path) -> Result<Self, ConfigError> {
        let failed = |reason: String| ConfigError::File { path: path.into(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        toml::from_str(&text).map_err(|error| failed(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toml(text: &str) -> Choices {
        toml::from_str(text).expect("valid test TOML")
    }

    #[test]
    fn nothing_chosen_is_a_loopback_dev_node_with_fsync() {
        let config = Config::resolve(&[]).expect("the defaults are valid");
        assert_eq!(config.kafka_addr.to_string(), "127.0.0.1:9092");
        assert_eq!(config.admin_addr.to_string(), "127.0.0.1:9644");
        assert!(!config.unsafe_bypass_fsync);
        assert!(config.settings.auto_create_topics_enable);
    }

    #[test]
    fn later_sources_lie_over_earlier_ones_key_by_key() {
        let file = toml("node_id = 3\nmode = \"production\"\n[set]\n\"num.partitions\" = 4\n");
        let flags = toml("node_id = 7\n[set]\n\"transaction.max.timeout.ms\" = 60000\n");
        let config = Config::resolve(&[file, flags]).expect("valid");
        assert_eq!(config.node_id, 7);
        assert_eq!(config.settings.num_partitions, 4);
        assert_eq!(config.settings.transaction_max_timeout_ms, 60_000);
        assert!(!config.settings.auto_create_topics_enable, "production creates nothing by accident");
    }

    #[test]
    fn an_unspecified_address_is_not_advertised() {
        let all = toml("kafka_addr = \"0.0.0.0:9092\"");
        assert!(Config::resolve(std::slice::from_ref(&all)).is_err());
        let named = toml("advertise_kafka_addr = \"broker.example:9092\"");
        let config = Config::resolve(&[all, named]).expect("an address was given");
        assert_eq!(config.advertise_kafka_addr.to_string(), "broker.example:9092");
    }

    #[test]
    fn a_node_id_that_clients_cannot_see_is_refused() {
        let id = |id: u64| Config::resolve(&[toml(&format!("node_id = {id}"))]);
        assert_eq!(id(2_147_483_647).expect("the largest").node_id, 2_147_483_647);
        let error = id(2_147_483_648).expect_err("too large for the protocol");
        assert!(error.to_string().contains("node_id=2147483648: must be at most 2147483647"), "{error}");
    }

    #[test]
    fn seeds_are_a_list_and_open_the_way_for_peers() {
        let alone = Config::resolve(&[toml("seeds = \"\"")]).expect("no seeds");
        assert!(alone.seeds.is_empty() && !alone.listens_for_peers);
        let config = Config::resolve(&[toml("seeds = \"a:33145, b:33146\"")]).expect("two seeds");
        assert_eq!(config.seeds.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a:33145", "b:33146"]);
        assert!(config.listens_for_peers);
        let error = Config::resolve(&[toml("seeds = \"a\"")]).expect_err("no port");
        assert!(error.to_string().contains("seeds=a"), "{error}");
    }

    #[test]
    fn several_listeners_are_refused_in_words() {
        let error =
            Config::resolve(&[toml("kafka_addr = \"internal://a:1,external://b:2\"")]).expect_err("two listeners");
        assert!(error.to_string().contains("several listeners are not served yet"), "{error}");
    }

    #[test]
    fn a_wrong_value_is_named_with_what_would_do() {
        let error = Config::resolve(&[toml("[set]\n\"num.partitions\" = 0\n")]).expect_err("0 partitions");
        assert!(error.to_string().contains("num.partitions=0"), "{error}");
        let error = Config::resolve(&[toml("[set]\n\"no.such.setting\" = 1\n")]).expect_err("unknown");
        assert!(error.to_string().contains("no.such.setting"), "{error}");
    }
}
