//! DescribeConfigs (key 32, versions 1–4).
//!
//! - Topics: every setting of the table, with the value given or the default, and what else was given at creation. Brokers: the settings that
//!   mean something here; an empty name asks for those that were changed for the whole cluster. Other resources are refused one by one.
//! - v1 (KIP-226) source and synonyms; v3 (KIP-569) type and documentation.
//! - An empty list of keys asks for all, as null does (KAFKA-14360 in Kafka's `ConfigHelper`).
//! - Not checked: nothing is sensitive while there is no security; a broker's settings are read-only here, they come from its start.

use std::collections::BTreeMap;

use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::{ApiKey, DescribeConfigsRequest, DescribeConfigsResponse};
use kafka_protocol::protocol::StrBytes;

use super::errors::told;
use super::topics::check_name;
use super::{ApiSettings, Call, Malformed, Reply};
use crate::log::LogStatus;
use crate::state::Machine;
use crate::types::settings::{BROKER_SETTINGS, Setting, SettingType, TOPIC_SETTINGS, broker_setting, topic_setting};

/// Kafka's `ConfigResource.Type`.
const TOPIC: i8 = 2;
pub(super) const BROKER: i8 = 4;

/// Kafka's `DescribeConfigsResponse.ConfigSource`.
const DYNAMIC_TOPIC: i8 = 1;
const DYNAMIC_DEFAULT_BROKER: i8 = 3;
const STATIC_BROKER: i8 = 4;
const DEFAULT: i8 = 5;

/// One setting with its effective value.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Its name.
    pub name: String,
    /// Its value; None is null.
    pub value: Option<String>,
    /// Where the value comes from.
    pub source: i8,
    /// The table's row; None for a setting that is kept and means nothing here.
    pub setting: Option<&'static Setting>,
    /// Where the value would come from otherwise: (name, value, source), nearest first, itself included.
    pub synonyms: Vec<(String, Option<String>, i8)>,
}

/// All settings of a topic, given those that were set. `of_brokers` tells what brokers say of a setting of theirs, nearest
/// first, where topics follow it.
pub fn topic_values<'a>(
    given: &'a BTreeMap<String, String>,
    of_brokers: impl Fn(&str) -> Vec<(String, i8)> + 'a,
) -> impl Iterator<Item = Value> + 'a {
    let one = move |setting: &'static Setting| {
        let default = setting.default.map(str::to_owned);
        let own = given.get(setting.name).cloned();
        let mut synonyms = Vec::new();
        synonyms.extend(own.clone().map(|value| (setting.name.to_owned(), Some(value), DYNAMIC_TOPIC)));
        let mut value = own.map(|value| (value, DYNAMIC_TOPIC));
        for &(name, unit) in broker_names(setting) {
            for (told, source) in of_brokers(name) {
                value = value.or_else(|| Some((in_units(&told, unit), source)));
                synonyms.push((name.to_owned(), Some(told), source));
            }
        }
        synonyms.extend(setting.broker_name.map(|name| (name.to_owned(), default.clone(), DEFAULT)));
        let (value, source) = value.map_or((default, DEFAULT), |(value, source)| (Some(value), source));
        Value { name: setting.name.to_owned(), value, source, setting: Some(setting), synonyms }
    };
    let unknown = given.iter().filter(|(name, _)| topic_setting(name).is_none()).map(|(name, value)| Value {
        name: name.clone(),
        value: Some(value.clone()),
        source: DYNAMIC_TOPIC,
        setting: None,
        synonyms: vec![(name.clone(), Some(value.clone()), DYNAMIC_TOPIC)],
    });
    TOPIC_SETTINGS.iter().map(one).chain(unknown)
}

/// The broker settings that a topic's default follows, finest first, and how many of its units one of theirs is.
fn broker_names(setting: &Setting) -> &'static [(&'static str, i64)] {
    match setting.name {
        "retention.ms" => {
            &[("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)]
        }
        "retention.bytes" => &[("log.retention.bytes", 1)],
        _ => &[],
    }
}

fn in_units(value: &str, unit: i64) -> String {
    match value.trim().parse::<i64>() {
        Ok(number) if unit > 1 => if number < 0 { -1 } else { number.saturating_mul(unit) }.to_string(),
        _ => value.to_owned(),
    }
}

/// What all brokers together were told of a setting, and what this one was started with, unless that is the default.
fn of_brokers(machine: &Machine, settings: &ApiSettings, name: &str) -> Vec<(String, i8)> {
    let default = broker_setting(name).and_then(|setting| setting.default);
    let started = settings.running.get(name).filter(|value| Some(value.as_str()) != default);
    let changed = machine.configs().get(name).map(|value| (value.to_owned(), DYNAMIC_DEFAULT_BROKER));
    changed.into_iter().chain(started.map(|value| (value.clone(), STATIC_BROKER))).collect()
}

/// All settings of this broker.
fn broker_values(machine: &Machine, status: &LogStatus, settings: &ApiSettings) -> Vec<Value> {
    let this = status.members.iter().find(|member| member.node_id == status.node_id);
    let chosen = |name: &str| match name {
        "node.id" | "broker.id" => Some(status.node_id.to_string()),
        "broker.rack" => this.and_then(|member| member.rack.clone()),
        "default.replication.factor" => Some(status.members.len().max(1).to_string()),
        _ => settings.running.get(name).cloned(),
    };
    let one = |setting: &'static Setting| {
        let name = setting.name.to_owned();
        let default = setting.default.map(str::to_owned);
        let mut synonyms = Vec::new();
        synonyms.extend(machine.configs().get(&name).map(|value| (value.to_owned(), DYNAMIC_DEFAULT_BROKER)));
        synonyms
            .extend(chosen(&name).filter(|value| Some(value) != default.as_ref()).map(|value| (value, STATIC_BROKER)));
        synonyms.extend(default.map(|value| (value, DEFAULT)));
        let (value, source) =
            synonyms.first().cloned().map_or((None, DEFAULT), |(value, source)| (Some(value), source));
        let synonyms = synonyms.into_iter().map(|(value, source)| (name.clone(), Some(value), source)).collect();
        Value { name, value, source, setting: Some(setting), synonyms }
    };
    BROKER_SETTINGS.iter().map(one).collect()
}

/// Settings that were changed for all brokers.
fn changed_values(machine: &Machine) -> Vec<Value> {
    let one = |(name, value): (&str, &str)| Value {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        source: DYNAMIC_DEFAULT_BROKER,
        setting: BROKER_SETTINGS.iter().find(|setting| setting.name == name),
        synonyms: vec![(name.to_owned(), Some(value.to_owned()), DYNAMIC_DEFAULT_BROKER)],
    };
    machine.configs().iter().map(one).collect()
}

/// Answers DescribeConfigs.
///
/// # Errors
/// If the request cannot be decoded.
pub fn handle(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: DescribeConfigsRequest = call.decode("DescribeConfigs")?;
    let status = call.api.cluster.status();
    let settings = &call.api.settings;
    let response = call.api.log.read(|machine| describe(&request, machine, &status, settings, call.version));
    Ok(Reply::now(&response, call.version))
}

fn describe(
    request: &DescribeConfigsRequest,
    machine: &Machine,
    status: &LogStatus,
    settings: &ApiSettings,
    version: i16,
) -> DescribeConfigsResponse {
    let one = |resource: &DescribeConfigsResource| {
        let out = DescribeConfigsResult::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name.clone());
        match values(resource, machine, status, settings) {
            Ok(values) => {
                let asked = |value: &Value| match &resource.configuration_keys {
                    Some(keys) if !keys.is_empty() => keys.iter().any(|key| key.as_str() == value.name),
                    _ => true,
                };
                let read_only = resource.resource_type == BROKER && !resource.resource_name.is_empty();
                let shape = |value| encode_value(value, read_only, request, version);
                out.with_configs(values.into_iter().filter(asked).map(shape).collect())
            }
            Err((error, message)) => out
                .with_error_code(told(error, ApiKey::DescribeConfigs))
                .with_error_message(Some(StrBytes::from_string(message))),
        }
    };
    DescribeConfigsResponse::default().with_results(request.resources.iter().map(one).collect())
}

fn values(
    resource: &DescribeConfigsResource,
    machine: &Machine,
    status: &LogStatus,
    settings: &ApiSettings,
) -> Result<Vec<Value>, (E, String)> {
    let name = resource.resource_name.as_str();
    match resource.resource_type {
        TOPIC => {
            check_name(name).map_err(|message| (E::InvalidTopicException, message))?;
            let unknown = || (E::UnknownTopicOrPartition, "This server does not host this topic-partition.".to_owned());
            let topic = machine.topics().named(name).ok_or_else(unknown)?;
            Ok(topic_values(&topic.configs, |name| of_brokers(machine, settings, name)).collect())
        }
        BROKER if name.is_empty() => Ok(changed_values(machine)),
        BROKER if name.parse::<i32>().is_err() => {
            Err((E::InvalidRequest, format!("Broker id must be an integer, but it is: {name}")))
        }
        BROKER if name.parse() == Ok(status.node_id) => Ok(broker_values(machine, status, settings)),
        BROKER => {
            let own = status.node_id;
            Err((
                E::InvalidRequest,
                format!("Unexpected broker id, expected {own} or empty string, but received {name}"),
            ))
        }
        other => Err((E::InvalidRequest, format!("Unsupported resource type: {other}"))),
    }
}

fn encode_value(
    value: Value,
    read_only: bool,
    request: &DescribeConfigsRequest,
    version: i16,
) -> DescribeConfigsResourceResult {
    let text = StrBytes::from_string;
    let mut out = DescribeConfigsResourceResult::default()
        .with_name(text(value.name))
        .with_value(value.value.map(text))
        .with_read_only(read_only)
        .with_config_source(value.source);
    if request.include_synonyms {
        let synonym = |(name, value, source): (String, Option<String>, i8)| {
            DescribeConfigsSynonym::default().with_name(text(name)).with_value(value.map(text)).with_source(source)
        };
        out.synonyms = value.synonyms.into_iter().map(synonym).collect();
    }
    if version >= 3 {
        out.config_type = value.setting.map_or(2, |setting| config_type(setting.kind));
        let documentation = value.setting.map(|setting| StrBytes::from_static_str(setting.documentation));
        out.documentation = documentation.filter(|_| request.include_documentation);
    }
    out
}

/// Kafka's `DescribeConfigsResponse.ConfigType`.
fn config_type(kind: SettingType) -> i8 {
    match kind {
        SettingType::Boolean => 1,
        SettingType::String => 2,
        SettingType::Int => 3,
        SettingType::Short => 4,
        SettingType::Long => 5,
        SettingType::Double => 6,
        SettingType::List => 7,
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::Decodable;

    use super::super::{encode, metadata::sample};
    use super::*;
    use crate::config::{Mode, settings::Settings};
    use crate::state::command::{Command, ConfigChange, ConfigResource, Entry};
    use crate::types::{LogIndex, Term};

    fn text(text: &str) -> StrBytes {
        StrBytes::from_string(text.to_owned())
    }

    fn resource(kind: i8, name: &str) -> DescribeConfigsResource {
        DescribeConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(text(name))
            .with_configuration_keys(None)
    }

    fn ask(resources: Vec<DescribeConfigsResource>, version: i16) -> DescribeConfigsResponse {
        let mut machine = sample::machine(&[("a", 1, &[("retention.ms", "5"), ("redpanda.remote.read", "true")])]);
        let change =
            ConfigChange { resource: ConfigResource::Broker, name: "log.retention.ms".into(), value: Some("7".into()) };
        let command = Command::AlterConfigs(vec![change]);
        machine.apply(LogIndex(2), Term(5), &Entry { now_ms: 0, command });
        let request = DescribeConfigsRequest::default()
            .with_resources(resources)
            .with_include_synonyms(true)
            .with_include_documentation(version >= 3);
        let response = describe(&request, &machine, &sample::status(1, Some(1)), &sample::settings(), version);
        let mut bytes = bytes::Bytes::from(encode(&response, version).concat());
        Decodable::decode(&mut bytes, version).expect("own bytes are read")
    }

    fn value<'a>(result: &'a DescribeConfigsResult, name: &str) -> &'a DescribeConfigsResourceResult {
        result.configs.iter().find(|config| config.name.as_str() == name).unwrap_or_else(|| panic!("{name} is told"))
    }

    #[test]
    fn a_topic_tells_what_was_given_and_every_default() {
        for version in 1..=4 {
            let response = ask(vec![resource(TOPIC, "a")], version);
            let result = &response.results[0];
            let retention = value(result, "retention.ms");
            assert_eq!((retention.value.clone(), retention.config_source), (Some(text("5")), DYNAMIC_TOPIC));
            let message_bytes = value(result, "max.message.bytes");
            assert_eq!(message_bytes.config_source, DEFAULT);
            assert_eq!(message_bytes.synonyms[0].name.as_str(), "message.max.bytes");
            assert_eq!(value(result, "redpanda.remote.read").value, Some(text("true")));
            assert_eq!(result.configs.len(), TOPIC_SETTINGS.len() + 1);
            assert!(!message_bytes.read_only && !message_bytes.is_sensitive);
            assert_eq!(message_bytes.config_type, if version >= 3 { 3 } else { 0 });
            let documentation = message_bytes.documentation.as_ref().map_or("", |text| text.as_str());
            assert_eq!(!documentation.is_empty(), version >= 3);
        }
    }

    #[test]
    fn a_topics_retention_follows_the_brokers_where_it_says_nothing() {
        let given = BTreeMap::new();
        let told = |brokers: &[(&str, &str, i8)]| {
            let of = |name: &str| {
                let named = brokers.iter().filter(|(known, ..)| *known == name);
                named.map(|(_, value, source)| ((*value).to_owned(), *source)).collect()
            };
            let value = topic_values(&given, of).find(|value| value.name == "retention.ms").expect("a known setting");
            (value.value.expect("it has a default"), value.source, value.synonyms.len())
        };
        assert_eq!(told(&[]), ("604800000".into(), DEFAULT, 0));
        let hours = ("log.retention.hours", "2", STATIC_BROKER);
        assert_eq!(told(&[hours]), ("7200000".into(), STATIC_BROKER, 1));
        let minutes = ("log.retention.minutes", "-1", DYNAMIC_DEFAULT_BROKER);
        assert_eq!(told(&[minutes, hours]), ("-1".into(), DYNAMIC_DEFAULT_BROKER, 2));
    }

    #[test]
    fn a_broker_tells_what_it_runs_with() {
        let response = ask(vec![resource(BROKER, "1"), resource(BROKER, "")], 4);
        let own = &response.results[0];
        let of =
            |name| (value(own, name).value.as_ref().map(|value| value.to_string()), value(own, name).config_source);
        assert_eq!(of("transaction.max.timeout.ms"), (Some("900000".into()), DEFAULT));
        assert_eq!(of("num.partitions"), (Some("2".into()), STATIC_BROKER));
        assert_eq!(of("group.max.size"), (Some("50".into()), STATIC_BROKER));
        assert_eq!(of("group.min.session.timeout.ms"), (Some("6000".into()), DEFAULT));
        assert_eq!(of("broker.rack"), (Some("rack-a".into()), STATIC_BROKER));
        assert_eq!(of("log.retention.ms"), (Some("7".into()), DYNAMIC_DEFAULT_BROKER));
        assert_eq!(of("log.retention.minutes"), (None, DEFAULT));
        let changed: Vec<&str> = response.results[1].configs.iter().map(|config| config.name.as_str()).collect();
        assert_eq!(changed, ["log.retention.ms"]);
    }

    #[test]
    fn the_defaults_told_are_those_of_a_mode() {
        let modes = [Mode::Dev, Mode::Production].map(Settings::for_mode);
        for setting in BROKER_SETTINGS {
            let ours: Vec<_> = modes.iter().filter_map(|settings| settings.get(setting.name)).collect();
            let told = setting.default.map(str::to_owned);
            assert!(
                ours.is_empty() || ours.iter().any(|value| Some(value) == told.as_ref()),
                "{}: {ours:?}",
                setting.name
            );
        }
    }

    #[test]
    fn only_the_keys_asked_for_are_told() {
        let keys = |keys: &[&str]| Some(keys.iter().map(|key| text(key)).collect());
        let some = resource(TOPIC, "a").with_configuration_keys(keys(&["segment.bytes", "no.such.setting"]));
        let all = resource(TOPIC, "a").with_configuration_keys(keys(&[]));
        let response = ask(vec![some, all], 4);
        assert_eq!(response.results[0].configs.len(), 1);
        assert_eq!(response.results[1].configs.len(), TOPIC_SETTINGS.len() + 1);
    }

    #[test]
    fn each_resource_that_cannot_be_told_has_its_own_error() {
        let wrong = vec![
            resource(TOPIC, "nobody"),
            resource(TOPIC, "not allowed"),
            resource(BROKER, "2"),
            resource(BROKER, "x"),
            resource(8, "1"),
            resource(99, "x"),
            resource(TOPIC, "a"),
        ];
        let response = ask(wrong, 4);
        let codes: Vec<i16> = response.results.iter().map(|result| result.error_code).collect();
        assert_eq!(codes, [3, 17, 42, 42, 42, 42, 0]);
    }
}
