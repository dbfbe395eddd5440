//! Topics made and deleted with faults in them, and the versions of what describes a cluster.

use kafka_protocol::messages as m;
use kafka_protocol::protocol::StrBytes;
use m::create_topics_request::{CreatableTopic, CreatableTopicConfig};

use super::client::{Broker, fresh};

fn create(broker: &Broker, topic: CreatableTopic) -> i16 {
    let request = m::CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    broker.connect().ask(&request, 7).expect("an answer").topics[0].error_code
}

fn topic(name: &str) -> CreatableTopic {
    let name = m::TopicName(StrBytes::from_string(name.into()));
    CreatableTopic::default().with_name(name).with_num_partitions(1).with_replication_factor(1)
}

#[test]
fn a_topic_with_an_invalid_name_or_config_is_not_made() {
    let broker = Broker::start();
    for name in ["", ".", "..", "a b", "a/b", "na\u{ef}ve", &"x".repeat(250)] {
        assert_eq!(create(&broker, topic(name)), 17, "{name:?}");
    }
    for (config, value) in [("no.such.config", "1"), ("retention.ms", "soon"), ("cleanup.policy", "never")] {
        let config = CreatableTopicConfig::default()
            .with_name(StrBytes::from_string(config.into()))
            .with_value(Some(StrBytes::from_string(value.into())));
        let name = fresh("bad");
        assert_eq!(create(&broker, topic(&name).with_configs(vec![config.clone()])), 40, "{config:?}");
        let asked = m::metadata_request::MetadataRequestTopic::default().with_name(Some(m::TopicName(name)));
        let request =
            m::MetadataRequest::default().with_topics(Some(vec![asked])).with_allow_auto_topic_creation(false);
        let known = broker.connect().ask(&request, 12).expect("an answer");
        assert_eq!(known.topics[0].error_code, 3, "nothing was made");
    }
}

#[test]
fn an_unknown_topic_cannot_be_deleted_in_any_version() {
    let broker = Broker::start();
    for version in 1..=6 {
        let name = m::TopicName(fresh("unknown"));
        let mut request = m::DeleteTopicsRequest::default().with_timeout_ms(10_000);
        if version >= 6 {
            let state = m::delete_topics_request::DeleteTopicState::default().with_name(Some(name));
            request = request.with_topics(vec![state]);
        } else {
            request = request.with_topic_names(vec![name]);
        }
        let response = broker.connect().ask(&request, version).expect("an answer");
        assert_eq!(response.responses[0].error_code, 3, "v{version}");
    }
}

#[test]
fn every_version_describes_the_same_cluster_topic_and_configs() {
    let broker = Broker::start();
    let name = broker.topic(3);
    let mut client = broker.connect();
    for version in 0..=13 {
        let asked = m::metadata_request::MetadataRequestTopic::default().with_name(Some(name.clone()));
        let request = m::MetadataRequest::default().with_topics(Some(vec![asked]));
        let response = client.ask(&request, version).expect("an answer");
        assert_eq!((response.topics[0].error_code, response.topics[0].partitions.len()), (0, 3), "v{version}");
        assert_eq!(response.brokers.len(), 1, "v{version}");
    }
    for version in 0..=2 {
        let request = m::DescribeClusterRequest::default().with_endpoint_type(1);
        let response = client.ask(&request, version).expect("an answer");
        assert_eq!((response.error_code, response.brokers.len()), (0, 1), "v{version}");
    }
    for version in 1..=4 {
        let resource = m::describe_configs_request::DescribeConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(name.0.clone())
            .with_configuration_keys(None);
        let request = m::DescribeConfigsRequest::default().with_resources(vec![resource]);
        let response = client.ask(&request, version).expect("an answer");
        let result = &response.results[0];
        assert_eq!(result.error_code, 0, "v{version}");
        assert!(result.configs.iter().any(|config| *config.name == *"retention.ms"), "v{version}");
    }
}
