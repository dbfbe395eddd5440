//! What is changed of topics that exist: their settings and their partitions; and what they take on disk.

use kafka_protocol::messages as m;
use kafka_protocol::protocol::StrBytes;

use super::client::{Broker, Client, NOBODY, batch, fresh, until};
use super::fetching::read_all;
use super::offsets::list;
use super::producing::produce;

pub const TOPIC: i8 = 2;
const BROKER: i8 = 4;
pub const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.into())
}

pub type Operation<'a> = (&'a str, i8, Option<&'a str>);

fn resource(
    kind: i8,
    name: &str,
    operations: &[Operation<'_>],
) -> m::incremental_alter_configs_request::AlterConfigsResource {
    use m::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
    let one = |(name, operation, value): &Operation<'_>| {
        AlterableConfig::default().with_name(text(name)).with_config_operation(*operation).with_value(value.map(text))
    };
    AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configs(operations.iter().map(one).collect())
}

/// The code of a change of one resource.
pub fn change(client: &mut Client, kind: i8, name: &str, operations: &[Operation<'_>], version: i16) -> i16 {
    let request = m::IncrementalAlterConfigsRequest::default().with_resources(vec![resource(kind, name, operations)]);
    let response = client.ask(&request, version).expect("an answer").responses.remove(0);
    assert_eq!((response.resource_type, &*response.resource_name), (kind, name));
    response.error_code
}

/// (value, source) of a setting.
fn described(client: &mut Client, topic: &m::TopicName, setting: &str) -> (String, i8) {
    let resource = m::describe_configs_request::DescribeConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(topic.0.clone())
        .with_configuration_keys(Some(vec![text(setting)]));
    let request = m::DescribeConfigsRequest::default().with_resources(vec![resource]);
    let config = client.ask(&request, 4).expect("an answer").results.remove(0).configs.remove(0);
    (config.value.expect("a value").to_string(), config.config_source)
}

#[test]
fn settings_are_set_deleted_appended_to_and_subtracted_from() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic_with(1, &[("retention.ms", "5000000")]), broker.connect());
    let mut is = |version, operations: &[Operation<'_>], setting: &str, value: &str, source: i8| {
        assert_eq!(change(&mut client, TOPIC, &topic, operations, version), 0, "{operations:?}");
        // Apache Kafka's broker hears of it after its controller.
        until(&format!("{setting} is {value}"), || described(&mut client, &topic, setting) == (value.into(), source));
    };
    for version in 0..=1 {
        is(version, &[("retention.ms", SET, Some("6000000"))], "retention.ms", "6000000", 1);
        is(version, &[("retention.ms", DELETE, None)], "retention.ms", "604800000", 5);
        is(version, &[("cleanup.policy", APPEND, Some("compact"))], "cleanup.policy", "delete,compact", 1);
        is(version, &[("cleanup.policy", SUBTRACT, Some("delete"))], "cleanup.policy", "compact", 1);
        is(version, &[("cleanup.policy", DELETE, Some("x"))], "cleanup.policy", "delete", 5);
    }
    is(1, &[("retention.bytes", SET, Some("7")), ("segment.ms", SET, Some("8"))], "segment.ms", "8", 1);
    is(1, &[], "retention.bytes", "7", 1);
}

#[test]
fn one_wrong_setting_and_nothing_of_its_resource_changes() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(1), broker.connect());
    let good = ("segment.ms", SET, Some("9"));
    for (code, wrong) in [
        (40, ("retention.ms", SET, Some("soon"))),
        (40, ("no.such.setting", SET, Some("1"))),
        (40, ("retention.ms", APPEND, Some("1"))),
        (40, ("cleanup.policy", SET, Some("burn"))),
        (42, ("segment.ms", SET, Some("9"))),
        (42, ("retention.ms", SET, None)),
    ] {
        assert_eq!(change(&mut client, TOPIC, &topic, &[good, wrong], 1), code, "{wrong:?}");
    }
    assert_eq!(change(&mut client, TOPIC, &fresh("unknown"), &[good], 1), 3);
    assert_eq!(change(&mut client, BROKER, "77", &[("log.retention.ms", SET, Some("1"))], 1), 42);
    assert_eq!(change(&mut client, BROKER, "", &[("log.retention.ms", SET, Some("soon"))], 1), 42);
    assert_eq!(described(&mut client, &topic, "segment.ms"), ("604800000".into(), 5));
    let both = [resource(TOPIC, &topic, &[good]), resource(TOPIC, &fresh("unknown"), &[good])];
    let request = m::IncrementalAlterConfigsRequest::default().with_resources(both.to_vec()).with_validate_only(true);
    let mut codes: Vec<i16> =
        client.ask(&request, 1).expect("an answer").responses.iter().map(|response| response.error_code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 3]);
    assert_eq!(described(&mut client, &topic, "segment.ms"), ("604800000".into(), 5), "it was only validated");
}

#[test]
fn the_older_request_puts_its_settings_in_the_place_of_all() {
    use m::alter_configs_request::{AlterConfigsResource, AlterableConfig};
    let broker = Broker::start();
    let mut client = broker.connect();
    for version in 0..=2 {
        let topic = broker.topic_with(1, &[("retention.ms", "5000000"), ("segment.ms", "9")]);
        let config = AlterableConfig::default().with_name(text("retention.ms")).with_value(Some(text("6000000")));
        let resource = AlterConfigsResource::default()
            .with_resource_type(TOPIC)
            .with_resource_name(topic.0.clone())
            .with_configs(vec![config]);
        let request = m::AlterConfigsRequest::default().with_resources(vec![resource]);
        assert_eq!(client.ask(&request, version).expect("an answer").responses[0].error_code, 0, "v{version}");
        until("both have changed", || {
            described(&mut client, &topic, "retention.ms") == ("6000000".into(), 1)
                && described(&mut client, &topic, "segment.ms") == ("604800000".into(), 5)
        });
    }
}

#[test]
fn a_shorter_retention_takes_effect_at_once_and_so_does_that_of_all_brokers() {
    // A broker that runs keeps its settings to itself.
    if std::env::var("BOOTSTRAP").is_ok() {
        return;
    }
    let broker = Broker::start_with(&["log.retention.check.interval.ms=50"]);
    let mut client = broker.connect();
    let old = super::client::batch_of(NOBODY, -1, &["a"], kafka_protocol::records::Compression::None, 1_000);
    let keeps = broker.topic_with(1, &[("retention.ms", "-1")]);
    let follows = broker.topic_with(1, &[]);
    produce(&mut client, &keeps, vec![(0, old.clone())], 9);
    assert_eq!(change(&mut client, BROKER, "", &[("log.retention.hours", SET, Some("-1"))], 1), 0);
    produce(&mut client, &follows, vec![(0, old)], 9);
    let earliest = |client: &mut Client, topic: &m::TopicName| list(client, topic, 0, -2, 5).2;
    assert_eq!(described(&mut client, &follows, "retention.ms"), ("-1".into(), 3));
    assert_eq!(change(&mut client, BROKER, "", &[("log.retention.ms", SET, Some("1000"))], 1), 0);
    assert_eq!(described(&mut client, &follows, "retention.ms"), ("1000".into(), 3));
    until("the topic follows", || earliest(&mut client, &follows) == 1);
    assert_eq!(earliest(&mut client, &keeps), 0);
    assert_eq!(change(&mut client, TOPIC, &keeps, &[("retention.ms", DELETE, None)], 1), 0);
    until("the other too", || earliest(&mut client, &keeps) == 1);
}

/// The code of asking for that many partitions, with assignments to brokers.
fn grow(client: &mut Client, topic: &m::TopicName, count: i32, assigned: Option<&[&[i32]]>, version: i16) -> i16 {
    use m::create_partitions_request::{CreatePartitionsAssignment, CreatePartitionsTopic};
    let assignments = assigned.map(|assigned| {
        let one = |brokers: &&[i32]| {
            let brokers = brokers.iter().map(|broker| m::BrokerId(*broker)).collect();
            CreatePartitionsAssignment::default().with_broker_ids(brokers)
        };
        assigned.iter().map(one).collect()
    });
    let topic =
        CreatePartitionsTopic::default().with_name(topic.clone()).with_count(count).with_assignments(assignments);
    let request = m::CreatePartitionsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    client.ask(&request, version).expect("an answer").results[0].error_code
}

#[test]
fn a_topic_gets_more_partitions_and_never_fewer() {
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(1), broker.connect());
    assert_eq!(produce(&mut client, &topic, vec![(0, batch(NOBODY, -1, &["a"]))], 9)[0].error_code, 0);
    for version in 0..=3 {
        let count = i32::from(version) + 2;
        assert_eq!(grow(&mut client, &topic, count, None, version), 0, "v{version}");
        until("it serves", || list(&mut client, &topic, count - 1, -1, 5) == (0, -1, 0));
        let records = batch(NOBODY, -1, &["b"]);
        assert_eq!(produce(&mut client, &topic, vec![(count - 1, records)], 9)[0].base_offset, 0);
    }
    assert_eq!(read_all(&mut client, &topic, 0), [(0, "a".into())], "what was there stays");
    for count in [5, 4, 0, -1] {
        assert_eq!(grow(&mut client, &topic, count, None, 3), 37, "{count}");
    }
    assert_eq!(grow(&mut client, &m::TopicName(fresh("unknown")), 9, None, 3), 3);
    let broker_id =
        client.ask(&m::MetadataRequest::default().with_topics(Some(vec![])), 9).unwrap().brokers[0].node_id.0;
    assert_eq!(grow(&mut client, &topic, 7, Some(&[&[broker_id]]), 3), 39, "one assignment for two");
    assert_eq!(grow(&mut client, &topic, 6, Some(&[&[77]]), 3), 39, "no such broker");
    assert_eq!(grow(&mut client, &topic, 6, Some(&[&[]]), 3), 39);
    assert_eq!(grow(&mut client, &topic, 6, Some(&[&[broker_id]]), 3), 0);
}

#[test]
fn every_version_tells_what_partitions_take_on_disk() {
    use m::describe_log_dirs_request::DescribableLogDirTopic;
    let broker = Broker::start();
    let (topic, mut client) = (broker.topic(2), broker.connect());
    let records = batch(NOBODY, -1, &["a"]);
    let size = records.len() as i64;
    assert_eq!(produce(&mut client, &topic, vec![(1, records)], 9)[0].error_code, 0);
    let mut sizes = |version: i16, asked: Option<Vec<i32>>| -> Vec<(i32, i64)> {
        let asked = asked
            .map(|numbers| vec![DescribableLogDirTopic::default().with_topic(topic.clone()).with_partitions(numbers)]);
        let request = m::DescribeLogDirsRequest::default().with_topics(asked);
        let response = client.ask(&request, version).expect("an answer");
        assert_eq!((response.error_code, response.results[0].error_code), (0, 0), "v{version}");
        assert!(!response.results[0].log_dir.is_empty());
        assert!(version < 4 || response.results[0].usable_bytes > 0);
        let topics = response.results.into_iter().flat_map(|dir| dir.topics).filter(|of| of.name == topic);
        let parts = topics.flat_map(|of| of.partitions);
        let mut sizes: Vec<_> = parts
            .map(|part| {
                assert_eq!((part.offset_lag, part.is_future_key), (0, false));
                (part.partition_index, part.partition_size)
            })
            .collect();
        sizes.sort_unstable();
        sizes
    };
    for version in 1..=4 {
        until("it is written", || sizes(version, None) == [(0, 0), (1, size)]);
        assert_eq!(sizes(version, Some(vec![1, 7])), [(1, size)], "v{version}");
    }
}
