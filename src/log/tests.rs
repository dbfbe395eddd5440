//! A whole node over the fault disk: real Raft, wal, segments, machine and leader.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot::Receiver;

use super::*;
use crate::disk::faulty::FaultyDisk;
use crate::leader::LeaderSettings;
use crate::leader::request::{Acked, Produce};
use crate::segments::SegmentOptions;
use crate::state::command::NewTopic;
use crate::types::record_batch::sample;
use crate::types::{ConnectionId, Refusal, TopicId, TopicPartition};

mod catch_up;
mod cluster;
pub(super) mod gate;
mod leaders;
mod members;
mod suite;

use gate::GateDisk;

const DIR: &str = "/data";
const TOPIC: TopicId = TopicId([7; 16]);
const PARTITION: TopicPartition = TopicPartition { topic: TOPIC, partition: 0 };
const LONG: Duration = Duration::from_secs(20);

pub(super) fn settings() -> LeaderSettings {
    LeaderSettings {
        transaction_max_timeout_ms: 900_000,
        entry_bytes_max: 16 << 20,
        staged_bytes_max: 256 << 20,
        group_min_session_timeout_ms: 6_000,
        group_max_session_timeout_ms: 1_800_000,
        group_initial_rebalance_delay_ms: 0,
        group_max_size: 1000,
        offset_metadata_max_bytes: 4096,
        producer_id_expiration_ms: 86_400_000,
        transactional_id_expiration_ms: 604_800_000,
        offsets_retention_ms: 604_800_000,
        log_retention_ms: 604_800_000,
        log_retention_bytes: -1,
    }
}

fn options() -> LogOptions {
    let me = Member { node_id: 1, host: "localhost".into(), port: 9092, ..Member::default() };
    LogOptions::new(PathBuf::from(DIR), me, settings())
}

/// A node that was opened, with its segments.
pub(super) struct TestNode {
    pub(super) log: Log,
    segments: Segments,
}

pub(super) fn segment_options() -> SegmentOptions {
    SegmentOptions {
        dir: Path::new(DIR).join("partitions"),
        unwritten_bytes_max: 64 << 20,
        tail_bytes_max: 16 << 20,
        open_files_max: 64,
    }
}

fn open(disk: &Arc<dyn Disk>, options: LogOptions) -> Result<TestNode, LogError> {
    let (segments, checkpoint) = Segments::open(disk.clone(), segment_options()).unwrap();
    let log = Log::open(options, disk.clone(), segments.clone(), checkpoint, Arc::new(|_| ()))?;
    Ok(TestNode { log, segments })
}

pub(super) async fn start(disk: &Arc<dyn Disk>) -> TestNode {
    start_with(disk, options()).await
}

async fn start_with(disk: &Arc<dyn Disk>, options: LogOptions) -> TestNode {
    let disk = disk.clone();
    let node = tokio::task::spawn_blocking(move || open(&disk, options)).await.unwrap().unwrap();
    serving(&node.log).await;
    node
}

/// Waits until the node serves.
async fn serving(log: &Log) {
    let mut metrics = log.node.raft.metrics();
    while !log.status().serving {
        // Serving follows the first apply of the term at once; it has no event of its own.
        let _ = tokio::time::timeout(Duration::from_millis(5), metrics.changed()).await;
    }
}

pub(super) fn caller() -> Arc<Caller> {
    let text: Arc<str> = "".into();
    Arc::new(Caller { connection: ConnectionId(1), software: text.clone(), client_id: text.clone(), host: text })
}

fn topic(id: TopicId, name: &str) -> Request {
    Request::CreateTopics(vec![NewTopic { id, name: name.into(), partitions: 1, configs: Vec::new() }])
}

pub(super) fn produce(body: &[u8]) -> Request {
    let batches = vec![(PARTITION, sample::batch((-1, -1), -1, 1, false, body))];
    Request::Produce(Produce { version: 9, transactional_id: None, batches, refused: None })
}

impl TestNode {
    pub(super) fn sequencer(&self) -> &Arc<Sequencer> {
        &self.log.node.sequencer
    }

    pub(super) async fn ask(&self, request: Request) -> Option<Response> {
        let answer = self.log.submit(caller(), request);
        tokio::time::timeout(LONG, answer).await.expect("an answer in time").ok()
    }

    pub(super) async fn create_topic(&self) {
        assert_eq!(self.ask(topic(TOPIC, "t")).await, Some(Response::Topics(vec![Ok(TOPIC)])));
    }

    /// Produces a record and returns the offset acknowledged.
    async fn produce(&self, body: &[u8]) -> i64 {
        acked(self.ask(produce(body)).await)
    }

    fn next_offset(&self) -> i64 {
        self.log.read(|machine| machine.topics().partition(PARTITION).map_or(-1, |partition| partition.next_offset.0))
    }

    /// Every record body that a reader sees, in order.
    fn records(&self) -> Vec<Vec<u8>> {
        let visible = self.segments.visible().expect("something was applied");
        let read = self.segments.read(PARTITION, visible, crate::types::Offset(0), usize::MAX, true).unwrap();
        let bytes: Vec<u8> = read.pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        let mut rest = &bytes[..];
        let mut bodies = Vec::new();
        while !rest.is_empty() {
            let len = 12 + u32::from_be_bytes(rest[8..12].try_into().unwrap()) as usize;
            bodies.push(rest[61..len].to_vec());
            rest = &rest[len..];
        }
        bodies
    }
}

pub(super) fn acked(response: Option<Response>) -> i64 {
    match response {
        Some(Response::Produced(parts)) => match parts[..] {
            [Ok(Acked::Written(written))] => written.base_offset.0,
            ref other => panic!("not written: {other:?}"),
        },
        other => panic!("not produced: {other:?}"),
    }
}

pub(super) fn is_ack(response: &Option<Response>) -> bool {
    matches!(response, Some(Response::Produced(parts)) if parts.iter().any(Result::is_ok))
}

pub(super) async fn answer(receiver: Receiver<Response>) -> Option<Response> {
    tokio::time::timeout(LONG, receiver).await.expect("an answer in time").ok()
}

fn disk(faulty: &FaultyDisk) -> Arc<dyn Disk> {
    Arc::new(faulty.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_on_an_empty_disk_serves_within_half_a_second() {
    // The best of three: a busy machine must not decide, an election timeout (at least 400 ms of it) would.
    let mut best = Duration::MAX;
    for seed in 100..103 {
        let started = Instant::now();
        let node = start(&disk(&FaultyDisk::new(seed))).await;
        best = best.min(started.elapsed());
        let status = node.log.status();
        assert_eq!((status.node_id, status.leader, status.term), (1, Some(1), Term(1)));
        let me = Member { matched: status.members[0].matched, voter: true, in_sync: true, ..options().me };
        assert_eq!(status.members, [me]);
        node.log.shutdown().await;
    }
    assert!(best < Duration::from_millis(500), "{best:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_follow_the_order_of_the_requests() {
    let node = start(&disk(&FaultyDisk::new(2))).await;
    node.create_topic().await;
    let answers: Vec<_> = (0..500u32).map(|n| node.log.submit(caller(), produce(&n.to_be_bytes()))).collect();
    for (n, receiver) in answers.into_iter().enumerate() {
        assert_eq!(acked(answer(receiver).await), n as i64);
    }
    let expected: Vec<Vec<u8>> = (0..500u32).map(|n| n.to_be_bytes().to_vec()).collect();
    assert_eq!(node.records(), expected);
    node.log.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_crashes_under_load() {
    let mut faulty = FaultyDisk::new(3);
    let mut acknowledged = 0i64;
    let mut term = Term(0);
    for round in 0..6u32 {
        let node = start(&disk(&faulty)).await;
        let status = node.log.status();
        assert!(status.term > term, "every start is a new term");
        term = status.term;
        if round == 0 {
            node.create_topic().await;
        }
        assert!(node.next_offset() >= acknowledged, "{} of {acknowledged}", node.next_offset());
        let records = node.records();
        assert_eq!(records.len() as i64, node.next_offset(), "segments and state agree");
        acknowledged = node.next_offset();
        if round == 3 {
            node.log.checkpoint().await.unwrap();
        }
        // The power goes while these are in flight: some are acknowledged, some are not.
        let answers: Vec<_> = (0..200u32).map(|n| node.log.submit(caller(), produce(&n.to_be_bytes()))).collect();
        faulty.cut_power_in(20 + round * 7);
        for receiver in answers {
            if let Ok(Ok(Response::Produced(parts))) = tokio::time::timeout(Duration::from_millis(300), receiver).await
                && let [Ok(Acked::Written(written))] = parts[..]
            {
                assert_eq!(written.base_offset.0, acknowledged);
                acknowledged += 1;
            } else {
                break;
            }
        }
        faulty = faulty.crash();
    }
    assert!(acknowledged > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_stop_leaves_nothing_to_replay_and_a_purged_log() {
    let faulty = FaultyDisk::new(4);
    let node = start(&disk(&faulty)).await;
    node.create_topic().await;
    for n in 0..10u8 {
        assert_eq!(node.produce(&[n]).await, i64::from(n));
    }
    let applied = node.log.status().applied.unwrap();
    node.log.shutdown().await;
    assert_eq!(node.log.node.store.stored().purged.map(|id| id.index()), Some(applied.0));
    assert_eq!(answer(node.log.submit(caller(), produce(b"late"))).await, None, "a stopped node closes");
    node.segments.close();

    let again = options();
    let progress = again.progress.clone();
    let node = start_with(&disk(&faulty), again).await;
    assert_eq!(progress.entries.load(std::sync::atomic::Ordering::Relaxed), 0);
    assert_eq!(node.records().len(), 10);
    assert_eq!(node.produce(b"more").await, 10);
    node.log.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_behind_a_checkpoint_replays_only_what_follows_it() {
    let faulty = FaultyDisk::new(5);
    let node = start(&disk(&faulty)).await;
    node.create_topic().await;
    for n in 0..50u8 {
        node.produce(&[n]).await;
    }
    node.log.checkpoint().await.unwrap();
    for n in 50..60u8 {
        node.produce(&[n]).await;
    }
    let faulty = faulty.crash();
    let again = options();
    let progress = again.progress.clone();
    let node = start_with(&disk(&faulty), again).await;
    let replayed = progress.entries.load(std::sync::atomic::Ordering::Relaxed);
    assert!(replayed <= 11, "{replayed} entries replayed");
    assert_eq!(node.records(), (0..60u8).map(|n| vec![n]).collect::<Vec<_>>());
    node.log.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_fsync_stops_the_node_and_acknowledges_nothing() {
    let faulty = FaultyDisk::new(6);
    let node = start(&disk(&faulty)).await;
    node.create_topic().await;
    faulty.fail_sync_in(1);
    let receiver = node.log.submit(caller(), produce(b"x"));
    let error = tokio::time::timeout(LONG, node.log.failed()).await.expect("the failure is reported");
    assert!(error.contains("log"), "{error}");
    let response = answer(receiver).await;
    assert!(!is_ack(&response), "{response:?}");
    assert!(!is_ack(&answer(node.log.submit(caller(), produce(b"y"))).await));
    node.log.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_its_deadline_a_proposal_is_of_unknown_fate_and_may_still_be_applied() {
    let gate = GateDisk::new(FaultyDisk::new(7));
    let gated: Arc<dyn Disk> = Arc::new(gate.clone());
    let node = start_with(&gated, LogOptions { proposal_timeout: Duration::from_millis(300), ..options() }).await;
    node.create_topic().await;
    gate.close();
    let started = Instant::now();
    let response = node.ask(produce(b"slow")).await;
    assert!(started.elapsed() >= Duration::from_millis(300));
    let unknown = Response::Produced(vec![Err(Refusal::FateUnknown)]);
    assert!(
        [Some(unknown), Some(Response::Refused(Refusal::FateUnknown)), Some(Response::Close)].contains(&response),
        "{response:?}"
    );
    assert_eq!(node.next_offset(), 0, "not applied while its fsync is not done");
    gate.open();
    assert_eq!(node.produce(b"next").await, 1, "the slow one was applied in front");
    assert_eq!(node.records(), [b"slow".to_vec(), b"next".to_vec()]);
    node.log.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_admitted_while_too_much_is_in_flight() {
    let gate = GateDisk::new(FaultyDisk::new(8));
    let gated: Arc<dyn Disk> = Arc::new(gate.clone());
    let node = start(&gated).await;
    node.create_topic().await;
    node.log.admitted().await;
    gate.close();
    let body = vec![0; 1_000_000];
    let answers: Vec<_> = (0..70).map(|_| node.log.submit(caller(), produce(&body))).collect();
    let waited = tokio::time::timeout(Duration::from_millis(50), node.log.admitted()).await;
    assert!(waited.is_err(), "64 MiB are in flight");
    gate.open();
    tokio::time::timeout(LONG, node.log.admitted()).await.expect("there is room again");
    for receiver in answers {
        acked(answer(receiver).await);
    }
    node.log.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_and_recovers_when_space_returns() {
    let faulty = FaultyDisk::new(12);
    let node = start(&disk(&faulty)).await;
    node.create_topic().await;
    assert_eq!(node.produce(b"before").await, 0);
    let used = u64::MAX - disk(&faulty).free_bytes(Path::new(DIR)).unwrap();
    // Room for what the log still writes, but below the floor for more.
    faulty.set_capacity(used + (8 << 20));
    let until = Instant::now() + LONG;
    while !node.segments.is_full() {
        assert!(Instant::now() < until, "low space is noticed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    node.log.admitted().await;
    assert_eq!(node.ask(produce(b"refused")).await, Some(Response::Refused(Refusal::StorageError)));
    assert_eq!(node.records(), [b"before".to_vec()], "reads go on");
    faulty.set_capacity(u64::MAX);
    tokio::time::timeout(LONG, node.segments.until_room()).await.expect("space is noticed");
    assert_eq!(node.produce(b"after").await, 1);
    node.log.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_another_node_or_cluster_is_refused_by_name() {
    let faulty = FaultyDisk::new(9);
    let node = start(&disk(&faulty)).await;
    node.log.shutdown().await;
    node.segments.close();
    let refused = |change: fn(&mut LogOptions)| {
        let mut options = options();
        change(&mut options);
        let disk = disk(&faulty);
        std::thread::spawn(move || open(&disk, options).err().map(|error| error.to_string())).join().unwrap().unwrap()
    };
    let other_node = refused(|options| options.me.node_id = 2);
    assert_eq!(other_node, "/data/node.json belongs to node 1, this is node 2");
    let other_cluster = refused(|options| options.cluster_id = Some([9; 16]));
    assert!(other_cluster.starts_with("/data/node.json belongs to cluster"), "{other_cluster}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_lost_its_files_is_refused() {
    let faulty = FaultyDisk::new(10);
    let node = start(&disk(&faulty)).await;
    node.create_topic().await;
    node.log.shutdown().await;
    node.segments.close();
    disk(&faulty).remove_dir_all(&Path::new(DIR).join("log")).unwrap();
    let disk = disk(&faulty);
    let error = tokio::task::spawn_blocking(move || open(&disk, options()).err()).await.unwrap();
    assert!(matches!(error, Some(LogError::EndsBeforeCheckpoint { log: 0, .. })), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_scrape_tells_of_the_last_checkpoint() {
    let faulty = FaultyDisk::new(61);
    let node = start(&disk(&faulty)).await;
    node.create_topic().await;
    // A recorder of its own for each scrape: what is not set again is not there.
    let scrape = || {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || node.log.publish_metrics());
        recorder.handle().render()
    };
    let value = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok());
        line.unwrap_or(0.0)
    };
    assert_eq!(value(&scrape(), "katomic_raft_snapshot_size_bytes"), 0.0, "nothing was written yet");
    node.log.checkpoint().await.unwrap();
    for text in [scrape(), scrape()] {
        assert!(value(&text, "katomic_raft_snapshot_size_bytes") > 0.0, "{text}");
        assert!(value(&text, "katomic_raft_snapshot_last_success_timestamp_seconds") > 1.6e9, "{text}");
    }
    node.log.shutdown().await;
}

/// A node whose disk is slower than those of the majority has always applied more than its log holds durably.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_does_not_run_after_what_is_applied_meanwhile() {
    let node = start(&disk(&FaultyDisk::new(62))).await;
    node.create_topic().await;
    node.produce(b"in it").await;
    let (cut, _) = node.log.read(Machine::applied).expect("something is applied");
    let (now_durable, durable) = tokio::sync::watch::channel(cut.0);
    let checkpoints = Arc::new(snapshot::Checkpoints::new(node.log.node.replica.clone(), durable, None));
    let taking = tokio::spawn({
        let checkpoints = checkpoints.clone();
        async move { checkpoints.take().await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!taking.is_finished(), "entry {cut:?} is not durable yet");
    node.produce(b"not in it").await;
    now_durable.send(cut.0 + 1).unwrap();
    let taken = tokio::time::timeout(LONG, taking).await.expect("it waits for its own entry only").unwrap().unwrap();
    assert_eq!(taken.map(|id| id.index()), Some(cut.0));
    node.log.shutdown().await;
}
