//! AlterConfigs (key 33, versions 0–2) and IncrementalAlterConfigs (key 44, versions 0–1).
//!
//! - AlterConfigs puts what it names in the place of all that was given; IncrementalAlterConfigs (KIP-339) sets, deletes, and
//!   appends to or subtracts from lists.
//! - Topics, and (resource name empty) all brokers together: of those the settings that take effect while they run, which are
//!   the defaults of retention. Settings of one broker come from its start.
//! - Each resource is judged alone, as a whole: one wrong setting and nothing of it changes.
//! - Lists are worked out from what is applied now; of two that race, the later wins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResponse, ApiKey, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
    alter_configs_response, incremental_alter_configs_response,
};
use kafka_protocol::protocol::StrBytes;

use super::topics::{Fault, NOT_CONTROLLER, check_name, fault};
use super::{Call, Encoded, Malformed, Reply, encode, errors};
use crate::config::limits::TOPIC_CONFIGS_MAX;
use crate::leader::request::{Request, Response};
use crate::state::Machine;
use crate::state::command::{ConfigChange, ConfigResource};
use crate::types::settings::{SettingType, broker_setting, check_topic_config, topic_setting};

/// Kafka's `ConfigResource.Type`.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// Kafka's `AlterConfigOp.OpType`.
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// Broker settings that take effect while brokers run.
const DYNAMIC: [&str; 4] = ["log.retention.bytes", "log.retention.hours", "log.retention.minutes", "log.retention.ms"];

/// One resource of a request.
struct Asked {
    kind: i8,
    name: StrBytes,
    /// All that is not named goes.
    replaces: bool,
    /// Name, operation, value.
    operations: Vec<(String, i8, Option<String>)>,
}

/// Each resource of a request, in order: what changes, or why not.
type Plan = Vec<(Asked, Result<Vec<ConfigChange>, Fault>)>;

/// Answers AlterConfigs.
///
/// # Errors
/// If the request cannot be decoded.
pub fn replace(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: AlterConfigsRequest = call.decode("AlterConfigs")?;
    let resources = request.resources.into_iter().map(|resource| {
        let set = |config: kafka_protocol::messages::alter_configs_request::AlterableConfig| {
            (config.name.to_string(), SET, config.value.map(|value| value.to_string()))
        };
        let operations = resource.configs.into_iter().map(set).collect();
        Asked { kind: resource.resource_type, name: resource.resource_name, replaces: true, operations }
    });
    let (asked, version) = (resources.collect(), call.version);
    Ok(alter(call, ApiKey::AlterConfigs, asked, request.validate_only, move |results| {
        let one = |(asked, fault): (Asked, Option<Fault>)| {
            let (code, message) = told(fault);
            alter_configs_response::AlterConfigsResourceResponse::default()
                .with_error_code(code)
                .with_error_message(message)
                .with_resource_type(asked.kind)
                .with_resource_name(asked.name)
        };
        let responses = results.into_iter().map(one).collect();
        encode(&AlterConfigsResponse::default().with_responses(responses), version)
    }))
}

/// Answers IncrementalAlterConfigs.
///
/// # Errors
/// If the request cannot be decoded.
pub fn change(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: IncrementalAlterConfigsRequest = call.decode("IncrementalAlterConfigs")?;
    let resources = request.resources.into_iter().map(|resource| {
        let one = |config: kafka_protocol::messages::incremental_alter_configs_request::AlterableConfig| {
            (config.name.to_string(), config.config_operation, config.value.map(|value| value.to_string()))
        };
        let operations = resource.configs.into_iter().map(one).collect();
        Asked { kind: resource.resource_type, name: resource.resource_name, replaces: false, operations }
    });
    let (asked, version) = (resources.collect(), call.version);
    Ok(alter(call, ApiKey::IncrementalAlterConfigs, asked, request.validate_only, move |results| {
        let one = |(asked, fault): (Asked, Option<Fault>)| {
            let (code, message) = told(fault);
            incremental_alter_configs_response::AlterConfigsResourceResponse::default()
                .with_error_code(code)
                .with_error_message(message)
                .with_resource_type(asked.kind)
                .with_resource_name(asked.name)
        };
        let responses = results.into_iter().map(one).collect();
        encode(&IncrementalAlterConfigsResponse::default().with_responses(responses), version)
    }))
}

fn told(fault: Option<Fault>) -> (i16, Option<StrBytes>) {
    fault.map_or((0, None), |fault| (fault.code, Some(StrBytes::from_string(fault.message))))
}

/// What both requests have in common; `shape` gets each resource with its fault, in order.
fn alter(
    call: Call<'_>,
    api: ApiKey,
    asked: Vec<Asked>,
    validate_only: bool,
    shape: impl FnOnce(Vec<(Asked, Option<Fault>)>) -> Encoded + Send + 'static,
) -> Reply {
    if let Some(refusal) = call.elsewhere() {
        let code = errors::code(refusal, api, call.version, call.caller);
        let fault = Fault { code, message: NOT_CONTROLLER.into() };
        return Reply::Now(shape(asked.into_iter().map(|asked| (asked, Some(fault.clone()))).collect()));
    }
    let plan = call.api.log.read(|machine| plan(asked, api, machine));
    let changes: Vec<ConfigChange> =
        plan.iter().flat_map(|(_, planned)| planned.as_ref().ok().into_iter().flatten().cloned()).collect();
    let faults = |plan: Plan| plan.into_iter().map(|(asked, planned)| (asked, planned.err())).collect();
    if validate_only || changes.is_empty() {
        return Reply::Now(shape(faults(plan)));
    }
    let (caller, version) = (Arc::clone(call.caller), call.version);
    call.answer(Request::AlterConfigs(changes), move |response| match response {
        Response::Done => Some(shape(faults(plan))),
        Response::Refused(refusal) => {
            let code = errors::code(refusal, api, version, &caller);
            let refused = || Fault { code, message: refusal.to_string() };
            let one =
                |(asked, planned): (Asked, Result<_, Fault>)| (asked, Some(planned.err().unwrap_or_else(refused)));
            Some(shape(plan.into_iter().map(one).collect()))
        }
        _ => None,
    })
}

fn plan(asked: Vec<Asked>, api: ApiKey, machine: &Machine) -> Plan {
    let mut times: BTreeMap<(i8, StrBytes), usize> = BTreeMap::new();
    for one in &asked {
        *times.entry((one.kind, one.name.clone())).or_default() += 1;
    }
    let one = |asked: Asked| {
        let planned = if times[&(asked.kind, asked.name.clone())] > 1 {
            Err((E::InvalidRequest, "Each resource must appear at most once.".to_owned()))
        } else {
            changes(&asked, machine)
        };
        (asked, planned.map_err(|(error, message)| fault(api, error, message)))
    };
    asked.into_iter().map(one).collect()
}

/// What changes of one resource.
fn changes(asked: &Asked, machine: &Machine) -> Result<Vec<ConfigChange>, (E, String)> {
    let name = asked.name.as_str();
    let (resource, given) = match asked.kind {
        TOPIC => {
            check_name(name).map_err(|message| (E::InvalidTopicException, message))?;
            let unknown = || (E::UnknownTopicOrPartition, format!("The topic '{name}' does not exist."));
            let topic = machine.topics().named(name).ok_or_else(unknown)?;
            (ConfigResource::Topic(topic.id), topic.configs.clone())
        }
        BROKER if name.is_empty() => {
            let given = machine.configs().iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
            (ConfigResource::Broker, given.collect())
        }
        BROKER => {
            let message = "Settings of one broker cannot be changed while it runs; those of all brokers can.";
            return Err((E::InvalidRequest, message.to_owned()));
        }
        other => return Err((E::InvalidRequest, format!("Unsupported resource type: {other}"))),
    };
    let wanted = wanted(asked, &given)?;
    if wanted.len() > TOPIC_CONFIGS_MAX {
        return Err((E::PolicyViolation, format!("More than {TOPIC_CONFIGS_MAX} settings.")));
    }
    for (name, value) in wanted.iter().filter(|(name, value)| given.get(*name) != Some(value)) {
        check(asked.kind, name, value)?;
    }
    let names: BTreeSet<&String> = given.keys().chain(wanted.keys()).collect();
    let changed = names.into_iter().filter(|name| given.get(*name) != wanted.get(*name));
    let change = |name: &String| ConfigChange {
        resource: resource.clone(),
        name: name.clone(),
        value: wanted.get(name).cloned(),
    };
    Ok(changed.map(change).collect())
}

fn check(kind: i8, name: &str, value: &str) -> Result<(), (E, String)> {
    if kind == TOPIC {
        return check_topic_config(name, value).map_err(|message| (E::InvalidConfig, message));
    }
    match broker_setting(name).filter(|setting| DYNAMIC.contains(&setting.name)) {
        Some(setting) => setting.check(value).map_err(|message| (E::InvalidRequest, message)),
        None => Err((E::InvalidRequest, format!("Cannot update these configs dynamically: {name}"))),
    }
}

/// The settings given once the operations are carried out.
fn wanted(asked: &Asked, given: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, (E, String)> {
    let mut wanted = if asked.replaces { BTreeMap::new() } else { given.clone() };
    let mut seen = BTreeSet::new();
    for (name, operation, value) in &asked.operations {
        if !seen.insert(name) {
            return Err((E::InvalidRequest, "Error due to duplicate config keys".to_owned()));
        }
        if *operation == DELETE {
            wanted.remove(name);
            continue;
        }
        let Some(value) = value else {
            return Err((E::InvalidRequest, format!("Null value not supported for : {name}")));
        };
        let value = match *operation {
            SET => value.clone(),
            APPEND | SUBTRACT => listed(name, *operation == APPEND, value, given)?,
            other => return Err((E::InvalidRequest, format!("Unknown operation type: {other}"))),
        };
        wanted.insert(name.clone(), value);
    }
    Ok(wanted)
}

/// A list with members added, or without them.
fn listed(name: &str, append: bool, value: &str, given: &BTreeMap<String, String>) -> Result<String, (E, String)> {
    let Some(setting) = topic_setting(name).filter(|setting| setting.kind == SettingType::List) else {
        let what = if append { "APPEND" } else { "SUBTRACT" };
        return Err((E::InvalidConfig, format!("Can't {what} to key {name} because its type is not LIST.")));
    };
    let members = |list: &str| -> Vec<String> {
        list.split(',').map(str::trim).filter(|member| !member.is_empty()).map(str::to_owned).collect()
    };
    let mut now = members(given.get(name).map_or(setting.default.unwrap_or_default(), String::as_str));
    for member in members(value) {
        match append {
            true if !now.contains(&member) => now.push(member),
            true => {}
            false => now.retain(|known| *known != member),
        }
    }
    Ok(now.join(","))
}

#[cfg(test)]
mod tests {
    use super::super::metadata::sample;
    use super::*;

    fn asked(kind: i8, name: &str, replaces: bool, operations: &[(&str, i8, Option<&str>)]) -> Asked {
        let own = |(name, operation, value): &(&str, i8, Option<&str>)| {
            ((*name).to_owned(), *operation, value.map(str::to_owned))
        };
        let operations = operations.iter().map(own).collect();
        Asked { kind, name: StrBytes::from_string(name.to_owned()), replaces, operations }
    }

    /// What becomes of topic `a` with three settings: each change as `name=value` or `name`, or the error's code.
    fn changed(asked: Asked) -> Result<Vec<String>, i16> {
        let given = [("retention.ms", "5"), ("cleanup.policy", "compact"), ("redpanda.x", "1")];
        let machine = sample::machine(&[("a", 1, &given)]);
        let (_, planned) = plan(vec![asked], ApiKey::IncrementalAlterConfigs, &machine).remove(0);
        let one = |change: ConfigChange| match change.value {
            Some(value) => format!("{}={value}", change.name),
            None => change.name,
        };
        planned.map(|changes| changes.into_iter().map(one).collect()).map_err(|fault| fault.code)
    }

    #[test]
    fn operations_change_what_they_name_and_nothing_else() {
        let operations = |operations: &[_]| changed(asked(TOPIC, "a", false, operations));
        let ok = |changes: &[&str]| Ok(changes.iter().map(|change| (*change).to_owned()).collect());
        assert_eq!(operations(&[("retention.ms", SET, Some("6"))]), ok(&["retention.ms=6"]));
        assert_eq!(operations(&[("retention.ms", SET, Some("5"))]), ok(&[]), "as it is");
        assert_eq!(operations(&[("retention.ms", DELETE, None), ("segment.ms", DELETE, None)]), ok(&["retention.ms"]));
        let append = operations(&[("cleanup.policy", APPEND, Some("delete,compact"))]);
        assert_eq!(append, ok(&["cleanup.policy=compact,delete"]));
        assert_eq!(operations(&[("cleanup.policy", SUBTRACT, Some("compact"))]), ok(&["cleanup.policy="]));
        assert_eq!(operations(&[]), ok(&[]));
    }

    #[test]
    fn what_replaces_takes_all_else_away() {
        let replaced = changed(asked(TOPIC, "a", true, &[("retention.ms", SET, Some("6"))]));
        assert_eq!(replaced, Ok(vec!["cleanup.policy".into(), "redpanda.x".into(), "retention.ms=6".into()]));
    }

    #[test]
    fn one_wrong_setting_and_nothing_of_the_resource_changes() {
        let refused = |operations: &[_]| changed(asked(TOPIC, "a", false, operations)).expect_err("it is refused");
        let good = ("segment.ms", SET, Some("7"));
        assert_eq!(refused(&[good, ("retention.ms", SET, Some("soon"))]), 40);
        assert_eq!(refused(&[good, ("no.such.setting", SET, Some("1"))]), 40);
        assert_eq!(refused(&[good, ("retention.ms", APPEND, Some("1"))]), 40);
        assert_eq!(refused(&[good, ("cleanup.policy", APPEND, Some("burn"))]), 40);
        assert_eq!(refused(&[good, good]), 42);
        assert_eq!(refused(&[good, ("retention.ms", SET, None)]), 42);
        assert_eq!(refused(&[good, ("retention.ms", 9, Some("1"))]), 42);
        let names: Vec<String> = (0..TOPIC_CONFIGS_MAX).map(|n| format!("redpanda.{n}")).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), SET, Some("1"))).collect();
        assert_eq!(refused(&many), 44);
    }

    #[test]
    fn resources_that_cannot_be_changed_have_their_own_errors() {
        let refused = |kind, name, setting| {
            changed(asked(kind, name, false, &[(setting, SET, Some("1"))])).expect_err("it is refused")
        };
        assert_eq!(refused(TOPIC, "nobody", "retention.ms"), 3);
        assert_eq!(refused(TOPIC, "not allowed", "retention.ms"), 17);
        assert_eq!(refused(BROKER, "1", "log.retention.ms"), 42);
        assert_eq!(refused(BROKER, "", "num.partitions"), 42);
        assert_eq!(refused(BROKER, "", "no.such.setting"), 42);
        assert_eq!(refused(8, "1", "kafka"), 42);
        let brokers = changed(asked(BROKER, "", false, &[("log.retention.ms", SET, Some("1"))]));
        assert_eq!(brokers, Ok(vec!["log.retention.ms=1".into()]));
        let twice = (0..2).map(|_| asked(TOPIC, "a", false, &[("retention.ms", SET, Some("1"))])).collect();
        let plan = plan(twice, ApiKey::AlterConfigs, &sample::machine(&[("a", 1, &[])]));
        assert!(plan.iter().all(|(_, planned)| planned.as_ref().is_err_and(|fault| fault.code == 42)));
    }
}
