//! Three nodes: what each says of the others, where it sends clients, and what it says while the leader changes.
//!
//! Against a broker that runs (`BOOTSTRAP`) there are no three nodes to kill, and nothing here runs.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use kafka_protocol::messages as m;
use kafka_protocol::messages::{BrokerId, GroupId, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::client::{Client, NOBODY, Writer, batch, fresh, port, records_of, until};

const NOT_LEADER: i16 = 6;
const LOADING: i16 = 14;
const NO_COORDINATOR: i16 = 15;
const NOT_COORDINATOR: i16 = 16;

/// Three nodes with ids 1 to 3, in racks r1 to r3.
struct Cluster {
    nodes: Vec<Child>,
    addrs: Vec<String>,
    dir: tempfile::TempDir,
}

impl Cluster {
    fn start(settings: &[&str]) -> Option<Self> {
        if std::env::var("BOOTSTRAP").is_ok() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let addrs: Vec<String> = (0..9).map(|_| port()).collect();
        let seeds = addrs[3..6].join(",");
        let node = |at: usize| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_katomic"));
            command
                .args(["serve", "--node-id", &(at + 1).to_string(), "--rack", &format!("r{}", at + 1)])
                .args(["--kafka-addr", &addrs[at], "--rpc-addr", &addrs[3 + at], "--admin-addr", &addrs[6 + at]])
                .args(["--seeds", &seeds, "--data-dir"])
                .arg(dir.path().join(format!("data-{at}")))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(std::fs::File::create(dir.path().join(format!("log-{at}"))).unwrap());
            for setting in settings {
                command.args(["--set", setting]);
            }
            command.spawn().expect("the binary was built with this test")
        };
        let nodes = (0..3).map(node).collect();
        let cluster = Self { nodes, addrs: addrs[..3].to_vec(), dir };
        until("a leader serves", || cluster.leader().is_some());
        Some(cluster)
    }

    fn connect(&self, node: usize) -> Option<Client> {
        let client = Client::over(TcpStream::connect(&self.addrs[node - 1]).ok()?);
        Some(client)
    }

    fn metadata(&self, node: usize, topic: Option<&TopicName>) -> Option<m::MetadataResponse> {
        use m::metadata_request::MetadataRequestTopic;
        let topics = topic.map(|topic| vec![MetadataRequestTopic::default().with_name(Some(topic.clone()))]);
        let request = m::MetadataRequest::default().with_topics(topics).with_allow_auto_topic_creation(false);
        self.connect(node)?.ask(&request, 12)
    }

    /// The node that serves as the leader.
    fn leader(&self) -> Option<usize> {
        let init = m::InitProducerIdRequest::default().with_transactional_id(Some(m::TransactionalId(fresh("any"))));
        let init = init.with_transaction_timeout_ms(1_000);
        (1..=3).find(|node| {
            self.connect(*node).and_then(|mut client| client.ask(&init, 4)).is_some_and(|answer| answer.error_code == 0)
        })
    }

    fn follower(&self) -> usize {
        let leader = self.leader().expect("there is a leader");
        (1..=3).find(|node| *node != leader).expect("there are others")
    }

    /// A topic of one partition, asked for at `node`.
    fn created_by(&self, node: usize) -> TopicName {
        use m::create_topics_request::CreatableTopic;
        let name = TopicName(fresh("cluster"));
        let topic = CreatableTopic::default().with_name(name.clone()).with_num_partitions(1).with_replication_factor(3);
        let request = m::CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        let response = self.connect(node).and_then(|mut client| client.ask(&request, 7)).expect("an answer");
        assert_eq!(response.topics[0].error_code, 0, "{:?}", response.topics[0].error_message);
        name
    }

    /// The same, known by every node.
    fn topic_by(&self, node: usize) -> TopicName {
        let name = self.created_by(node);
        until("every node has the topic", || {
            (1..=3).all(|node| self.metadata(node, Some(&name)).is_some_and(|answer| answer.topics[0].error_code == 0))
        });
        name
    }

    fn signal(&self, node: usize, signal: &str) {
        let pid = self.nodes[node - 1].id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    fn kill(&mut self, node: usize) {
        self.nodes[node - 1].kill().unwrap();
        self.nodes[node - 1].wait().unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (at, node) in self.nodes.iter_mut().enumerate() {
            let _ = node.kill();
            let _ = node.wait();
            if std::thread::panicking() {
                let log = std::fs::read_to_string(self.dir.path().join(format!("log-{at}")));
                eprintln!("--- the log of node {}\n{}", at + 1, log.unwrap_or_default());
            }
        }
    }
}

fn produce(client: &mut Client, topic: &TopicName, value: &str, version: i16) -> Option<m::ProduceResponse> {
    produce_as(client, topic, NOBODY, -1, value, version)
}

fn produce_as(
    client: &mut Client,
    topic: &TopicName,
    writer: Writer,
    sequence: i32,
    value: &str,
    version: i16,
) -> Option<m::ProduceResponse> {
    use m::produce_request::{PartitionProduceData, TopicProduceData};
    let data = PartitionProduceData::default().with_records(Some(batch(writer, sequence, &[value])));
    let data = TopicProduceData::default().with_name(topic.clone()).with_partition_data(vec![data]);
    let request = m::ProduceRequest::default().with_acks(-1).with_timeout_ms(10_000).with_topic_data(vec![data]);
    client.ask(&request, version)
}

/// Produces until it is acknowledged, by whoever leads.
fn produce_somewhere(cluster: &Cluster, topic: &TopicName, value: &str) {
    until("a record is acknowledged", || {
        (1..=3).any(|node| {
            let answer = cluster.connect(node).and_then(|mut client| produce(&mut client, topic, value, 9));
            answer.is_some_and(|answer| answer.responses[0].partition_responses[0].error_code == 0)
        })
    });
}

fn fetch(client: &mut Client, topic: &TopicName, from: i64, rack: &str) -> Option<m::fetch_response::PartitionData> {
    use m::fetch_request::{FetchPartition, FetchTopic};
    let part = FetchPartition::default().with_fetch_offset(from).with_partition_max_bytes(1 << 20);
    let topic = FetchTopic::default().with_topic(topic.clone()).with_partitions(vec![part]);
    let request = m::FetchRequest::default()
        .with_max_wait_ms(500)
        .with_min_bytes(1)
        .with_rack_id(StrBytes::from_string(rack.to_owned()))
        .with_topics(vec![topic]);
    Some(client.ask(&request, 12)?.responses.remove(0).partitions.remove(0))
}

#[test]
fn every_node_names_the_same_leader_replicas_and_racks() {
    let Some(cluster) = Cluster::start(&[]) else { return };
    let topic = cluster.topic_by(cluster.follower());
    until("all are in step", || {
        (1..=3).all(|node| {
            let Some(metadata) = cluster.metadata(node, Some(&topic)) else { return false };
            metadata.topics[0].partitions[0].isr_nodes.len() == 3
        })
    });
    let leader = BrokerId(i32::try_from(cluster.leader().unwrap()).unwrap());
    let all = [BrokerId(1), BrokerId(2), BrokerId(3)];
    for node in 1..=3 {
        let metadata = cluster.metadata(node, Some(&topic)).unwrap();
        let brokers: Vec<_> = metadata.brokers.iter().map(|broker| broker.rack.as_deref().unwrap_or("-")).collect();
        assert_eq!((metadata.controller_id, brokers), (leader, vec!["r1", "r2", "r3"]));
        let part = &metadata.topics[0].partitions[0];
        assert_eq!((part.leader_id, part.error_code), (leader, 0));
        assert_eq!((&part.replica_nodes[..], &part.isr_nodes[..]), (&all[..], &all[..]));
        assert!(part.leader_epoch >= 1 && part.offline_replicas.is_empty());
        let mut client = cluster.connect(node).unwrap();
        for key_type in [0, 1] {
            let find = m::FindCoordinatorRequest::default().with_key_type(key_type);
            let found = client.ask(&find.with_coordinator_keys(vec![fresh("any")]), 4).unwrap();
            assert_eq!((found.coordinators[0].node_id, found.coordinators[0].error_code), (leader, 0));
        }
        let described = client.ask(&m::DescribeClusterRequest::default(), 1).unwrap();
        assert_eq!((described.controller_id, described.brokers.len()), (leader, 3));
        // Kafka's own tools ask any node.
        use m::describe_quorum_request::{PartitionData, TopicData};
        let log = TopicData::default().with_topic_name(TopicName(StrBytes::from_static_str("__cluster_metadata")));
        let log = log.with_partitions(vec![PartitionData::default()]);
        let quorum = client.ask(&m::DescribeQuorumRequest::default().with_topics(vec![log]), 2).unwrap();
        let part = &quorum.topics[0].partitions[0];
        assert_eq!((quorum.error_code, part.leader_id, part.current_voters.len()), (0, leader, 3));
        assert!(part.high_watermark > 0 && part.current_voters.iter().all(|voter| voter.log_end_offset > 0));
        assert_eq!(quorum.nodes.len(), 3);
    }
}

#[test]
fn a_follower_sends_producers_to_the_leader_and_serves_consumers_of_its_rack() {
    let selector = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector";
    let Some(cluster) = Cluster::start(&[selector]) else { return };
    let follower = cluster.follower();
    let topic = cluster.topic_by(follower);
    let leader = cluster.leader().unwrap();
    let mut at_follower = cluster.connect(follower).unwrap();
    let refused = produce(&mut at_follower, &topic, "lost", 12).unwrap();
    let part = &refused.responses[0].partition_responses[0];
    assert_eq!((part.error_code, part.base_offset), (NOT_LEADER, -1));
    assert_eq!(part.current_leader.leader_id, BrokerId(i32::try_from(leader).unwrap()), "KIP-951");
    assert_eq!(refused.node_endpoints.len(), 1);
    assert_eq!(fetch(&mut at_follower, &topic, 0, "").unwrap().error_code, NOT_LEADER, "no rack, no follower");
    let mut at_leader = cluster.connect(leader).unwrap();
    let written = produce(&mut at_leader, &topic, "kept", 12).unwrap();
    assert_eq!(written.responses[0].partition_responses[0].error_code, 0);
    let rack = format!("r{follower}");
    until("the leader sends the consumer to its rack", || {
        let part = fetch(&mut at_leader, &topic, 0, &rack).unwrap();
        assert_eq!(part.error_code, 0);
        part.preferred_read_replica == BrokerId(i32::try_from(follower).unwrap())
    });
    // A follower that is out of step for a moment sends its consumers back to the leader.
    let mut in_step = |from| loop {
        let part = fetch(&mut at_follower, &topic, from, &rack).unwrap();
        if part.error_code != NOT_LEADER {
            return part;
        }
    };
    // Whatever the leader acknowledged arrives within one long poll, if not at once.
    let part = in_step(0);
    let values: Vec<_> = records_of(part.records.unwrap()).into_iter().map(|(_, value)| value).collect();
    assert_eq!((part.error_code, part.high_watermark, values), (0, 1, vec!["kept".to_owned()]));
    assert_eq!(in_step(7).error_code, 78);
    assert_eq!(fetch(&mut at_leader, &topic, 7, &rack).unwrap().error_code, 1);
}

/// GR13: every answer while the leader changes is an error that clients ask again upon, or true.
#[test]
fn offsets_are_true_or_refused_while_the_leader_dies() {
    let Some(mut cluster) = Cluster::start(&[]) else { return };
    let topic = cluster.topic_by(1);
    for value in ["a", "b", "c"] {
        produce_somewhere(&cluster, &topic, value);
    }
    let group = GroupId(fresh("group"));
    commit(&cluster, &group, &topic, 2);
    let leader = cluster.leader().unwrap();
    let epoch = cluster.metadata(leader, Some(&topic)).unwrap().topics[0].partitions[0].leader_epoch;
    cluster.kill(leader);
    let rest: Vec<usize> = (1..=3).filter(|node| *node != leader).collect();
    let mut epochs = [epoch; 4];
    let mut told = [false; 3];
    until("a new leader tells all offsets", || {
        for node in &rest {
            let part = cluster.metadata(*node, Some(&topic)).unwrap().topics.remove(0).partitions.remove(0);
            assert!(part.leader_epoch >= epochs[*node], "an epoch goes back");
            epochs[*node] = part.leader_epoch;
            let mut client = cluster.connect(*node).unwrap();
            let (code, _, end) = super::offsets::list(&mut client, &topic, 0, -1, 5);
            assert!((code == 0 && end == 3) || (code == NOT_LEADER && end == -1), "ListOffsets {code} {end}");
            told[0] |= code == 0;
            let (code, offset) = committed(&mut client, &group, &topic);
            let refused = [LOADING, NO_COORDINATOR, NOT_COORDINATOR].contains(&code);
            assert!((code == 0 && offset == 2) || refused, "OffsetFetch {code} {offset}");
            told[1] |= code == 0;
            let part = fetch(&mut client, &topic, 3, "").unwrap();
            let (code, end) = (part.error_code, part.high_watermark);
            assert!((code == 0 && end == 3) || (code == NOT_LEADER && end == -1), "Fetch {code} {end}");
            told[2] |= code == 0;
        }
        told == [true; 3]
    });
    let elected = rest.iter().map(|node| epochs[*node]).max().unwrap();
    assert!(elected > epoch, "a new leader has a new epoch");
}

fn commit(cluster: &Cluster, group: &GroupId, topic: &TopicName, offset: i64) {
    use m::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
    let part = OffsetCommitRequestPartition::default().with_committed_offset(offset);
    let topics = vec![OffsetCommitRequestTopic::default().with_name(topic.clone()).with_partitions(vec![part])];
    let request = m::OffsetCommitRequest::default().with_group_id(group.clone()).with_topics(topics);
    let request = request.with_generation_id_or_member_epoch(-1);
    until("an offset is committed", || {
        (1..=3).any(|node| {
            let answer = cluster.connect(node).and_then(|mut client| client.ask(&request, 8));
            answer.is_some_and(|answer| answer.topics[0].partitions[0].error_code == 0)
        })
    });
}

/// (code, offset)
fn committed(client: &mut Client, group: &GroupId, topic: &TopicName) -> (i16, i64) {
    use m::offset_fetch_request::OffsetFetchRequestTopic;
    let topic = OffsetFetchRequestTopic::default().with_name(topic.clone()).with_partition_indexes(vec![0]);
    let request = m::OffsetFetchRequest::default().with_group_id(group.clone()).with_topics(Some(vec![topic]));
    let answer = client.ask(&request, 6).expect("an answer");
    match answer.topics.first() {
        Some(topic) => (topic.partitions[0].error_code, topic.partitions[0].committed_offset),
        None => (answer.error_code, i64::MIN),
    }
}

#[test]
fn a_proxy_serves_everything_from_one_address_and_lets_go_when_another_node_leads() {
    let Some(mut cluster) = Cluster::start(&["katomic.proxy=true"]) else { return };
    // Every node serves: which one leads only Kafka's metadata of a cluster without proxies would say.
    let leader = (1..=3).find(|node| leads(&cluster, *node)).expect("one of them leads");
    let at = if leader == 1 { 2 } else { 1 };
    let topic = cluster.topic_by(at);
    let mut client = cluster.connect(at).unwrap().introduced("kgo");
    for version in [3, 8, 9, 12] {
        let answer = produce(&mut client, &topic, "x", version).unwrap();
        assert_eq!(answer.responses[0].partition_responses[0].error_code, 0, "v{version}");
    }
    let me = BrokerId(i32::try_from(at).unwrap());
    let metadata = cluster.metadata(at, Some(&topic)).unwrap();
    let part = &metadata.topics[0].partitions[0];
    assert_eq!((metadata.brokers.len(), metadata.brokers[0].node_id), (1, me));
    assert_eq!((metadata.controller_id, part.leader_id, &part.isr_nodes[..]), (me, me, &[me][..]));
    let found = client.ask(&m::FindCoordinatorRequest::default().with_key(fresh("any")), 3).unwrap();
    assert_eq!((found.error_code, found.node_id), (0, me));
    // Several requests at once keep their order, whoever answers them.
    let sent = [client.send(&m::MetadataRequest::default(), 9), client.send(&m::DescribeClusterRequest::default(), 0)];
    let both =
        [client.receive::<m::MetadataRequest>(9).unwrap().0, client.receive::<m::DescribeClusterRequest>(0).unwrap().0];
    assert_eq!(both, sent);
    let mut client = cluster.connect(at).unwrap();
    let fetched = fetch(&mut client, &topic, 0, "").unwrap();
    assert_eq!((fetched.error_code, records_of(fetched.records.unwrap()).len()), (0, 4));
    cluster.kill(leader);
    assert!(client.ask(&m::MetadataRequest::default(), 9).is_none(), "its client connects anew");
    produce_somewhere(&cluster, &topic, "after");
    until("the record is read through any node", || {
        let Some(part) = cluster.connect(at).and_then(|mut client| fetch(&mut client, &topic, 4, "")) else {
            return false;
        };
        part.error_code == 0 && part.records.is_some_and(|records| records_of(records).len() == 1)
    });
}

/// Whether a node leads, asked as another node would: what was passed on once is not passed on again.
fn leads(cluster: &Cluster, node: usize) -> bool {
    let mut client = cluster.connect(node).unwrap();
    // Header version 2 with the mark, then ApiVersions v3.
    let greeting = b"\0\0\0\x1b\0\x12\0\x03\0\0\0\x09\0\x04wire\x01\xc1\x96\x01\0\x05wire\x02\x31\0";
    client.write(greeting);
    let (id, _) = client.receive_raw().expect("an answer");
    assert_eq!(id, 9);
    let init = m::InitProducerIdRequest::default().with_transaction_timeout_ms(1_000);
    let init = init.with_transactional_id(Some(m::TransactionalId(fresh("any"))));
    client.ask(&init, 4).expect("an answer").error_code == 0
}

/// Moves leadership to node 1.
fn elect_first(cluster: &Cluster) {
    let elect = m::ElectLeadersRequest::default().with_topic_partitions(None).with_timeout_ms(20_000);
    until("node 1 leads", || {
        // Any node takes it; while nobody leads it is refused as what it is.
        let answer = cluster.connect(2).and_then(|mut client| client.ask(&elect, 2)).expect("an answer");
        assert!([0, 41].contains(&answer.error_code), "{}", answer.error_code);
        let moved: Vec<_> = answer.replica_election_results.iter().flat_map(|topic| &topic.partition_result).collect();
        assert!(moved.iter().all(|part| [0, 7, 41, 80].contains(&part.error_code)), "{moved:?}");
        cluster.leader() == Some(1)
    });
}

#[test]
fn an_election_moves_everything_to_the_first_replica() {
    let Some(cluster) = Cluster::start(&[]) else { return };
    let topic = cluster.topic_by(1);
    elect_first(&cluster);
    let known = cluster.metadata(1, Some(&topic)).unwrap().topics.remove(0).partitions.remove(0);
    assert_eq!(known.leader_id, BrokerId(1));
    use m::elect_leaders_request::TopicPartitions;
    let asked = TopicPartitions::default().with_topic(topic).with_partitions(vec![0, 9]);
    let again = m::ElectLeadersRequest::default().with_topic_partitions(Some(vec![asked])).with_timeout_ms(20_000);
    let answer = cluster.connect(3).and_then(|mut client| client.ask(&again, 2)).expect("an answer");
    let codes: Vec<_> =
        answer.replica_election_results[0].partition_result.iter().map(|part| part.error_code).collect();
    assert_eq!(codes, [84, 3], "it leads already; there is no partition 9");
}

/// While nobody leads an administrative request waits at whatever node it came to, and a client is told of a controller:
/// librdkafka does not ask again for one before its metadata is old.
#[test]
fn a_topic_is_created_while_a_leader_is_elected() {
    let Some(mut cluster) = Cluster::start(&[]) else { return };
    let (leader, other) = (cluster.leader().unwrap(), cluster.follower());
    let mut client = cluster.connect(other).unwrap();
    cluster.kill(leader);
    cluster.created_by(other);
    until("the new leader is known", || {
        let told = client.ask(&m::MetadataRequest::default().with_topics(None), 12).unwrap();
        assert!(told.controller_id.0 > 0, "no controller");
        told.controller_id.0 as usize != leader
    });
}

/// librdkafka takes OUT_OF_ORDER_SEQUENCE_NUMBER of a batch as a reason to send those before it under a new epoch, and what
/// was stored of them is stored twice. So a gap that a refusal of ours made is not called one.
#[test]
fn what_a_new_leader_refused_as_a_follower_is_no_gap() {
    let Some(cluster) = Cluster::start(&[]) else { return };
    let topic = cluster.topic_by(1);
    if cluster.leader() == Some(1) {
        cluster.signal(1, "-STOP");
        until("another node leads", || [2, 3].iter().any(|node| leads(&cluster, *node)));
        cluster.signal(1, "-CONT");
    }
    let mut first = cluster.connect(1).unwrap();
    let init = m::InitProducerIdRequest::default().with_transactional_id(None).with_transaction_timeout_ms(1_000);
    let mut pair = None;
    until("a producer id is given", || {
        pair = first.ask(&init, 4).filter(|answer| answer.error_code == 0);
        pair.is_some()
    });
    let writer = Writer { id: pair.unwrap().producer_id.0, epoch: 0, transactional: false };
    let code = |client: &mut Client, sequence: i32| {
        let answer = produce_as(client, &topic, writer, sequence, &format!("number {sequence}"), 9).unwrap();
        answer.responses[0].partition_responses[0].error_code
    };
    until("number 0 is stored", || {
        (2..=3).any(|node| cluster.connect(node).is_some_and(|mut client| code(&mut client, 0) == 0))
    });
    assert_eq!(code(&mut first, 1), NOT_LEADER);
    elect_first(&cluster);
    let (try_again, gap) = (19, 45);
    assert_eq!(code(&mut first, 2), try_again, "behind what the same node refused");
    assert_eq!([code(&mut first, 1), code(&mut first, 2)], [0, 0]);
    assert_eq!(code(&mut first, 9), gap, "the client's own");
    assert_eq!(code(&mut cluster.connect(1).unwrap(), 9), gap);
}
