//! Names, types and defaults of topic and broker settings, in Kafka's words (`TopicConfig`, `ServerConfigs`).
//!
//! Two tables, [`TOPIC_SETTINGS`] and [`BROKER_SETTINGS`], are the truth for what CreateTopics accepts and DescribeConfigs shows.
//! A value is text until [`TopicSettings::from_configs`] works out what the broker acts on. Ranges are those of Kafka 4.4.

mod broker_table;
mod topic_table;

pub use broker_table::BROKER_SETTINGS;
pub use topic_table::TOPIC_SETTINGS;

use serde::{Deserialize, Serialize};

/// The type of a setting's value (Kafka's `ConfigDef.Type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingType {
    /// `true` or `false`.
    Boolean,
    /// Text.
    String,
    /// A number of 32 bits.
    Int,
    /// A number of 16 bits.
    Short,
    /// A number of 64 bits.
    Long,
    /// A number with a fraction.
    Double,
    /// Texts separated by commas.
    List,
}

/// Which values a setting may have, besides being of its type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Valid {
    /// All.
    Any,
    /// Not less.
    AtLeast(i64),
    /// From … to, both included.
    Between(i64, i64),
    /// A number with a fraction, from 0 to 1.
    Ratio,
    /// One of these (for a list: each of its members).
    OneOf(&'static [&'static str]),
}

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// The type of its value.
    pub kind: SettingType,
    /// Its value where none was given; None is Kafka's null.
    pub default: Option<&'static str>,
    /// Which values it may have.
    pub valid: Valid,
    /// A topic setting's default comes from this broker setting.
    pub broker_name: Option<&'static str>,
    /// What it does here, for people.
    pub documentation: &'static str,
}

impl Setting {
    /// Whether the setting may have that value.
    ///
    /// # Errors
    /// What is wrong, in the words of Kafka's `ConfigDef`.
    pub fn check(&self, value: &str) -> Result<(), String> {
        let wrong = |what: String| format!("Invalid value {value} for configuration {}: {what}", self.name);
        let value = value.trim();
        match self.kind {
            SettingType::Boolean if !value.eq_ignore_ascii_case("true") && !value.eq_ignore_ascii_case("false") => {
                Err(wrong("Expected value to be either true or false".into()))
            }
            SettingType::Boolean => self.check_member(&value.to_ascii_lowercase()).map_err(wrong),
            SettingType::Int => self.check_number(value.parse::<i32>().map(i64::from).ok(), "INT").map_err(wrong),
            SettingType::Short => self.check_number(value.parse::<i16>().map(i64::from).ok(), "SHORT").map_err(wrong),
            SettingType::Long => self.check_number(value.parse::<i64>().ok(), "LONG").map_err(wrong),
            SettingType::Double => match value.parse::<f64>() {
                Err(_) => Err(wrong("Not a number of type DOUBLE".into())),
                Ok(number) if self.valid == Valid::Ratio && number > 1.0 => {
                    Err(wrong("Value must be no more than 1".into()))
                }
                Ok(number) if self.valid == Valid::Ratio && !(0.0..=1.0).contains(&number) => {
                    Err(wrong("Value must be at least 0".into()))
                }
                Ok(_) => Ok(()),
            },
            SettingType::String => self.check_member(value).map_err(wrong),
            SettingType::List => members(value).try_for_each(|member| self.check_member(member)).map_err(wrong),
        }
    }

    fn check_number(&self, number: Option<i64>, kind: &str) -> Result<(), String> {
        let Some(number) = number else { return Err(format!("Not a number of type {kind}")) };
        match self.valid {
            Valid::AtLeast(least) if number < least => Err(format!("Value must be at least {least}")),
            Valid::Between(least, _) if number < least => Err(format!("Value must be at least {least}")),
            Valid::Between(_, most) if number > most => Err(format!("Value must be no more than {most}")),
            Valid::Any | Valid::AtLeast(_) | Valid::Between(..) | Valid::Ratio | Valid::OneOf(_) => Ok(()),
        }
    }

    fn check_member(&self, member: &str) -> Result<(), String> {
        match self.valid {
            Valid::OneOf(known) if !known.contains(&member) => {
                Err(format!("String must be one of: {}", known.join(", ")))
            }
            Valid::Any | Valid::AtLeast(_) | Valid::Between(..) | Valid::Ratio | Valid::OneOf(_) => Ok(()),
        }
    }
}

fn members(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|member| !member.is_empty())
}

/// The topic settings that the broker acts on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicSettings {
    /// `segment.bytes`.
    pub segment_bytes: u64,
    /// `max.message.bytes`: greatest batch, header included.
    pub max_message_bytes: u32,
    /// `message.timestamp.type` is LogAppendTime.
    pub log_append_time: bool,
    /// `retention.ms`, −1 = for ever.
    pub retention_ms: i64,
    /// `retention.bytes`, −1 = unlimited.
    pub retention_bytes: i64,
    /// `cleanup.policy` contains `compact`.
    pub compact: bool,
    /// `cleanup.policy` contains `delete`.
    pub delete: bool,
    /// `segment.ms`.
    pub segment_ms: i64,
    /// `segment.index.bytes`.
    pub segment_index_bytes: u32,
}

impl Default for TopicSettings {
    fn default() -> Self {
        Self {
            segment_bytes: 128 << 20,
            max_message_bytes: 1_048_588,
            log_append_time: false,
            retention_ms: 7 * 24 * 3_600_000,
            retention_bytes: -1,
            compact: false,
            delete: true,
            segment_ms: 7 * 24 * 3_600_000,
            segment_index_bytes: 10 << 20,
        }
    }
}

impl TopicSettings {
    /// The settings that `configs` (already checked by [`check_topic_config`]) amount to.
    ///
    /// Part of apply, so it cannot fail: a value that does not parse (of a later build, say) leaves the default.
    pub fn from_configs<'a>(configs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut settings = Self::default();
        for (name, value) in configs {
            let value = value.trim();
            match name {
                "segment.bytes" => set(&mut settings.segment_bytes, value),
                "max.message.bytes" => set(&mut settings.max_message_bytes, value),
                "retention.ms" => set(&mut settings.retention_ms, value),
                "retention.bytes" => set(&mut settings.retention_bytes, value),
                "segment.ms" => set(&mut settings.segment_ms, value),
                "segment.index.bytes" => set(&mut settings.segment_index_bytes, value),
                "message.timestamp.type" => settings.log_append_time = value == "LogAppendTime",
                "cleanup.policy" => {
                    settings.compact = members(value).any(|policy| policy == "compact");
                    settings.delete = members(value).any(|policy| policy == "delete");
                }
                _ => {}
            }
        }
        settings
    }
}

fn set<T: std::str::FromStr>(field: &mut T, value: &str) {
    if let Ok(parsed) = value.parse() {
        *field = parsed;
    }
}

/// The topic setting of that name.
pub fn topic_setting(name: &str) -> Option<&'static Setting> {
    TOPIC_SETTINGS.iter().find(|setting| setting.name == name)
}

/// The broker setting of that name.
pub fn broker_setting(name: &str) -> Option<&'static Setting> {
    BROKER_SETTINGS.iter().find(|setting| setting.name == name)
}

/// Settings of Redpanda that mean nothing here and yet must not fail the creation of a topic (surface.md §3).
fn is_tolerated(name: &str) -> bool {
    const PREFIXES: [&str; 4] =
        ["redpanda.", "retention.local.target.", "initial.retention.local.target.", "write.caching"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a topic setting may have that value.
///
/// # Errors
/// What is wrong, in words for the client, where the name is unknown or the value not of its type or range.
pub fn check_topic_config(name: &str, value: &str) -> Result<(), String> {
    match topic_setting(name) {
        Some(setting) => setting.check(value),
        None if is_tolerated(name) => Ok(()),
        None => Err(format!("Unknown topic config name: {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tables_are_sorted_and_their_defaults_are_valid() {
        for table in [TOPIC_SETTINGS, BROKER_SETTINGS] {
            assert!(table.windows(2).all(|pair| pair[0].name < pair[1].name), "sorted, no name twice");
            for setting in table {
                let checked = setting.default.map_or(Ok(()), |value| setting.check(value));
                assert_eq!(checked, Ok(()), "{}", setting.name);
                assert!(!setting.documentation.is_empty(), "{}", setting.name);
            }
        }
    }

    #[test]
    fn topic_defaults_come_from_broker_settings_that_exist() {
        for topic in TOPIC_SETTINGS {
            let Some(name) = topic.broker_name else { continue };
            let broker = broker_setting(name).unwrap_or_else(|| panic!("{} names {name}", topic.name));
            assert_eq!((broker.kind, broker.default), (topic.kind, topic.default), "{}", topic.name);
        }
    }

    #[test]
    fn the_table_and_the_settings_acted_on_have_the_same_defaults() {
        let defaults = TOPIC_SETTINGS.iter().filter_map(|setting| Some((setting.name, setting.default?)));
        assert_eq!(TopicSettings::from_configs(defaults), TopicSettings::default());
    }

    #[test]
    fn values_are_worked_out_of_text() {
        let configs = [
            ("segment.bytes", "1048576"),
            ("cleanup.policy", "compact, delete"),
            ("message.timestamp.type", "LogAppendTime"),
            ("retention.ms", "-1"),
            ("redpanda.remote.read", "true"),
        ];
        let settings = TopicSettings::from_configs(configs);
        assert_eq!(settings.segment_bytes, 1 << 20);
        assert!(settings.compact && settings.delete && settings.log_append_time);
        assert_eq!(settings.retention_ms, -1);
    }

    #[test]
    fn wrong_values_are_refused_in_kafkas_words() {
        let refused = |name, value| check_topic_config(name, value).expect_err("it is refused");
        assert_eq!(refused("x", "1"), "Unknown topic config name: x");
        assert_eq!(
            refused("retention.ms", "soon"),
            "Invalid value soon for configuration retention.ms: Not a number of type LONG"
        );
        assert_eq!(
            refused("retention.ms", "-2"),
            "Invalid value -2 for configuration retention.ms: Value must be at least -1"
        );
        assert!(refused("cleanup.policy", "delete,burn").contains("must be one of"));
        assert!(refused("max.message.bytes", "2147483648").contains("INT"));
        assert!(refused("min.cleanable.dirty.ratio", "1.5").contains("no more than 1"));
        assert!(refused("min.cleanable.dirty.ratio", "NaN").contains("at least 0"));
        assert!(refused("preallocate", "yes").contains("true or false"));
        assert!(refused("remote.storage.enable", "true").contains("one of: false"));
        assert!(refused("compression.lz4.level", "18").contains("no more than 17"));
    }

    #[test]
    fn settings_of_redpanda_are_let_through() {
        for name in ["redpanda.remote.write", "retention.local.target.ms", "write.caching"] {
            assert_eq!(check_topic_config(name, "anything"), Ok(()));
        }
    }
}
