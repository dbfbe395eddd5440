//! Transactions on the wire: what is acknowledged when, and with which code a producer is sent away.

use bytes::Bytes;
use kafka_protocol::messages as m;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::protocol::StrBytes;

use super::client::{Broker, Client, Writer, batch, fresh, until};
use super::fetching::read_all;
use super::producing;

struct Producer {
    client: Client,
    id: m::TransactionalId,
    writer: Writer,
}

impl Producer {
    fn new(broker: &Broker, software: &'static str, id: &m::TransactionalId) -> Self {
        let mut client = broker.connect().introduced(software);
        let pair = init(&mut client, id, 4);
        assert_eq!(pair.error_code, 0);
        let writer = Writer { id: pair.producer_id.0, epoch: pair.producer_epoch, transactional: true };
        Self { client, id: id.clone(), writer }
    }

    fn produce(&mut self, topic: &m::TopicName, records: Bytes, version: i16) -> (i16, i64) {
        let mut request = producing::request(topic, vec![(0, records)]);
        request.transactional_id = Some(self.id.clone());
        let response = self.client.ask(&request, version).expect("an answer");
        let part = &response.responses[0].partition_responses[0];
        (part.error_code, part.base_offset)
    }

    fn add(&mut self, topics: &[&m::TopicName], version: i16) -> Vec<i16> {
        let topics = topics
            .iter()
            .map(|name| AddPartitionsToTxnTopic::default().with_name((*name).clone()).with_partitions(vec![0]));
        let request = m::AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(self.id.clone())
            .with_v3_and_below_producer_id(m::ProducerId(self.writer.id))
            .with_v3_and_below_producer_epoch(self.writer.epoch)
            .with_v3_and_below_topics(topics.collect());
        let client = &mut self.client;
        unless_busy(
            || {
                let response = client.ask(&request, version).expect("an answer");
                let topics = response.results_by_topic_v3_and_below.into_iter();
                let mut codes: Vec<_> = topics
                    .flat_map(|topic| {
                        topic.results_by_partition.into_iter().map(move |part| (topic.name.clone(), part))
                    })
                    .collect();
                codes.sort_by_key(|(name, _)| request.v3_and_below_topics.iter().position(|asked| asked.name == *name));
                codes.into_iter().map(|(_, part)| part.partition_error_code).collect()
            },
            |codes: &Vec<i16>| codes[0],
        )
    }

    fn end(&mut self, commit: bool, version: i16) -> m::EndTxnResponse {
        let request = m::EndTxnRequest::default()
            .with_transactional_id(self.id.clone())
            .with_producer_id(m::ProducerId(self.writer.id))
            .with_producer_epoch(self.writer.epoch)
            .with_committed(commit);
        let client = &mut self.client;
        unless_busy(|| client.ask(&request, version).expect("an answer"), |end| end.error_code)
    }
}

/// Asks again after CONCURRENT_TRANSACTIONS: Kafka answers EndTxn before the transaction is over.
fn unless_busy<A>(mut ask: impl FnMut() -> A, code: impl Fn(&A) -> i16) -> A {
    let mut answer = ask();
    until("the earlier transaction is over", || {
        let busy = code(&answer) == 51;
        if busy {
            answer = ask();
        }
        !busy
    });
    answer
}

fn init(client: &mut Client, id: &m::TransactionalId, version: i16) -> m::InitProducerIdResponse {
    let request = m::InitProducerIdRequest::default()
        .with_transactional_id(Some(id.clone()))
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(m::ProducerId(-1))
        .with_producer_epoch(-1);
    unless_busy(|| client.ask(&request, version).expect("an answer"), |pair| pair.error_code)
}

fn transactional_id() -> m::TransactionalId {
    m::TransactionalId(fresh("txn"))
}

#[test]
fn a_version_1_transaction_is_seen_whole_when_it_is_committed_and_never_when_aborted() {
    let broker = Broker::start();
    let (first, second) = (broker.topic(1), broker.topic(1));
    let mut reader = broker.connect();
    let mut producer = Producer::new(&broker, "librdkafka", &transactional_id());
    for (round, commit) in [true, false, true].into_iter().enumerate() {
        assert_eq!(producer.add(&[&first, &second], 3), [0, 0]);
        let sequence = round as i32;
        for topic in [&first, &second] {
            let records = batch(producer.writer, sequence, &[&format!("round {round}")]);
            assert_eq!(producer.produce(topic, records, 11).0, 0);
        }
        assert_eq!(producer.end(commit, 3).error_code, 0);
    }
    for topic in [&first, &second] {
        let values: Vec<String> = read_all(&mut reader, topic, 0).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, ["round 0", "round 2"]);
    }
}

#[test]
fn a_version_2_transaction_adds_partitions_by_producing_and_gets_a_new_epoch_at_its_end() {
    let broker = Broker::start();
    let topic = broker.topic(1);
    let mut producer = Producer::new(&broker, "apache-kafka-java", &transactional_id());
    for round in 0..3 {
        let records = batch(producer.writer, 0, &["a", "b"]);
        let (code, _) = producer.produce(&topic, records, 12);
        assert_eq!(code, 0);
        let end = producer.end(true, 5);
        assert_eq!((end.error_code, end.producer_id.0), (0, producer.writer.id));
        assert_eq!(end.producer_epoch, producer.writer.epoch + 1, "round {round}");
        producer.writer.epoch = end.producer_epoch;
    }
    assert_eq!(read_all(&mut broker.connect(), &topic, 0).len(), 6);
}

#[test]
fn a_staged_batch_has_no_offset_yet() {
    let broker = Broker::start();
    if broker.is_kafka() {
        return; // Kafka writes it at once
    }
    let topic = broker.topic(1);
    for (software, expected) in [("apache-kafka-java", -1), ("kgo", -1), ("librdkafka", -3), ("wire", -3)] {
        let mut producer = Producer::new(&broker, software, &transactional_id());
        let records = batch(producer.writer, 0, &["a", "b", "c"]);
        assert_eq!(producer.produce(&topic, records, 12), (0, expected), "{software}");
        assert_eq!(producer.end(false, 5).error_code, 0);
    }
    assert!(read_all(&mut broker.connect(), &topic, 0).is_empty());
}

#[test]
fn the_end_of_a_transaction_can_be_asked_again() {
    let broker = Broker::start();
    let topic = broker.topic(1);
    for version in [3, 4, 5] {
        let mut producer = Producer::new(&broker, "wire", &transactional_id());
        if version < 5 {
            assert_eq!(producer.add(&[&topic], 3), [0]);
        }
        let records = batch(producer.writer, 0, &["once"]);
        assert_eq!(producer.produce(&topic, records, if version < 5 { 11 } else { 12 }).0, 0);
        let first = producer.end(true, version);
        let again = producer.end(true, version);
        assert_eq!((first.error_code, again.error_code), (0, 0), "v{version}");
        assert_eq!(first.producer_epoch, again.producer_epoch);
        assert_eq!(producer.end(false, version).error_code, 48, "v{version}: the other end");
    }
    assert_eq!(read_all(&mut broker.connect(), &topic, 0).len(), 3);
}

#[test]
fn a_fenced_producer_is_told_in_the_words_of_the_version() {
    let broker = Broker::start();
    let topic = broker.topic(1);
    let id = transactional_id();
    let mut old = Producer::new(&broker, "wire", &id);
    assert_eq!(old.add(&[&topic], 3), [0]);
    let new = Producer::new(&broker, "wire", &id);
    assert!(new.writer.id == old.writer.id && new.writer.epoch > old.writer.epoch);
    assert_eq!(old.add(&[&topic], 1), [47]);
    assert_eq!(old.add(&[&topic], 2), [90]);
    assert_eq!(old.end(true, 1).error_code, 47);
    assert_eq!(old.end(true, 2).error_code, 90);
    let records = batch(old.writer, 0, &["late"]);
    assert_eq!(old.produce(&topic, records, 11).0, 47);
}

#[test]
fn an_unknown_topic_fails_the_whole_request_to_add_partitions() {
    let broker = Broker::start();
    let topic = broker.topic(1);
    let unknown = m::TopicName(fresh("nobody-made-this"));
    let mut producer = Producer::new(&broker, "wire", &transactional_id());
    assert_eq!(producer.add(&[&topic, &unknown], 3), [55, 3]);
}

#[test]
fn bad_requests_for_a_producer_id_are_refused() {
    let broker = Broker::start();
    let mut client = broker.connect();
    let mut code = |id: Option<&str>, timeout, pair: (i64, i16)| {
        let request = m::InitProducerIdRequest::default()
            .with_transactional_id(id.map(|id| m::TransactionalId(StrBytes::from_string(id.into()))))
            .with_transaction_timeout_ms(timeout)
            .with_producer_id(m::ProducerId(pair.0))
            .with_producer_epoch(pair.1);
        client.ask(&request, 4).expect("an answer").error_code
    };
    let id = fresh("txn");
    assert_eq!(code(Some(""), 1_000, (-1, -1)), 42);
    assert_eq!(code(Some(&id), 1_000, (5, -1)), 42);
    assert_eq!(code(Some(&id), 1_000, (-1, 5)), 42);
    assert_eq!(code(Some(&id), 900_001, (-1, -1)), 50);
    assert_eq!(code(Some(&id), 0, (-1, -1)), 50);
    assert_eq!(code(Some(&id), 1_000, (-1, -1)), 0);
    assert_eq!(code(None, 0, (-1, -1)), 0);
}

#[test]
fn transactional_records_need_a_transactional_id() {
    let broker = Broker::start();
    let topic = broker.topic(1);
    let mut producer = Producer::new(&broker, "wire", &transactional_id());
    let parts = vec![(0, batch(producer.writer, 0, &["a"]))];
    let parts = producing::produce(&mut producer.client, &topic, parts, 11);
    assert_eq!(parts[0].error_code, 53);
}

#[test]
fn offsets_of_a_transaction_are_taken_for_known_topics_only() {
    let broker = Broker::start();
    let topic = broker.topic(1);
    let unknown = m::TopicName(fresh("nobody-made-this"));
    let mut producer = Producer::new(&broker, "wire", &transactional_id());
    let topics = [&topic, &unknown].map(|name| {
        let part = TxnOffsetCommitRequestPartition::default().with_partition_index(0).with_committed_offset(3);
        TxnOffsetCommitRequestTopic::default().with_name(name.clone()).with_partitions(vec![part])
    });
    let group = m::GroupId(fresh("group"));
    let add = m::AddOffsetsToTxnRequest::default()
        .with_transactional_id(producer.id.clone())
        .with_producer_id(m::ProducerId(producer.writer.id))
        .with_producer_epoch(producer.writer.epoch)
        .with_group_id(group.clone());
    assert_eq!(producer.client.ask(&add, 3).expect("an answer").error_code, 0);
    let request = m::TxnOffsetCommitRequest::default()
        .with_transactional_id(producer.id.clone())
        .with_group_id(group)
        .with_producer_id(m::ProducerId(producer.writer.id))
        .with_producer_epoch(producer.writer.epoch)
        .with_generation_id(-1)
        .with_topics(topics.to_vec());
    let response = producer.client.ask(&request, 3).expect("an answer");
    let code = |name: &m::TopicName| {
        let found = response.topics.iter().find(|topic| topic.name == *name);
        found.expect("every topic is answered").partitions[0].error_code
    };
    assert_eq!((code(&topic), code(&unknown)), (0, 3));
    assert_eq!(producer.end(true, 3).error_code, 0);
}
