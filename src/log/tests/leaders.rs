//! Who may answer, and how leadership moves, over three real nodes.

use super::cluster::Cluster;
use super::*;
use crate::leader::request::{EndTxn, InitProducerId, OffsetFetch};
use crate::log::transfer::{Transfer, TransferError};
use crate::types::ProducerIdAndEpoch;

/// A planned transfer, from the call until another node serves.
const TRANSFER_WITHIN: Duration = Duration::from_millis(300);

fn on(connection: u64) -> Arc<Caller> {
    Arc::new(Caller { connection: ConnectionId(connection), ..(*caller()).clone() })
}

async fn ask(node: &TestNode, connection: u64, request: Request) -> Response {
    let answer = node.log.submit(on(connection), request);
    tokio::time::timeout(LONG, answer).await.expect("an answer in time").expect("no closed connection")
}

fn init(id: &str) -> Request {
    let transactional_id = Some(id.into());
    Request::InitProducerId(InitProducerId { version: 5, transactional_id, timeout_ms: 60_000, given: None })
}

fn stage(id: &str, producer: ProducerIdAndEpoch, body: &[u8]) -> Request {
    let pair = (producer.producer_id, producer.epoch);
    let batches = vec![(PARTITION, sample::batch(pair, 0, 1, true, body))];
    Request::Produce(Produce { version: 12, transactional_id: Some(id.into()), batches, refused: None })
}

fn end(id: &str, producer: ProducerIdAndEpoch, commit: bool) -> Request {
    Request::EndTxn(EndTxn { version: 5, transactional_id: id.into(), producer, commit })
}

fn fetch() -> Request {
    Request::OffsetFetch(OffsetFetch { group: "g".into(), partitions: None, require_stable: false })
}

async fn producer(node: &TestNode, connection: u64, id: &str) -> ProducerIdAndEpoch {
    match ask(node, connection, init(id)).await {
        Response::ProducerId(pair) => pair,
        other => panic!("{other:?}"),
    }
}

fn is_staged(response: &Response) -> bool {
    matches!(response, Response::Produced(parts) if matches!(parts[..], [Ok(Acked::Staged { .. })]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_transfer_takes_no_time_and_dooms_nobody() {
    let cluster = Cluster::new(31).await;
    let mut leader = cluster.leader().await;
    cluster.node(leader).create_topic().await;
    let mut pair = producer(cluster.node(leader), 1, "t").await;
    let mut best = Duration::MAX;
    for round in 0..6u8 {
        let started = Instant::now();
        let led = cluster.node(leader).log.transfer_leadership(None).await.expect("the others follow closely");
        assert_ne!(led, leader as u64 + 1);
        leader = cluster.leader().await;
        best = best.min(started.elapsed());
        // Its last transaction ended under another leader, and it is not lost.
        let (node, connection) = (cluster.node(leader), 10 + u64::from(round));
        let staged = ask(node, connection, stage("t", pair, &[round])).await;
        assert!(is_staged(&staged), "{staged:?}");
        match ask(node, connection, end("t", pair, true)).await {
            Response::Ended(next) => pair = next,
            other => panic!("{other:?}"),
        }
    }
    assert!(best < TRANSFER_WITHIN, "{best:?}");
    assert_eq!(cluster.node(leader).records(), (0..6u8).map(|round| vec![round]).collect::<Vec<_>>());
    cluster.agree(leader).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_open_may_end_before_leadership_moves_and_what_would_open_waits() {
    let cluster = Cluster::new(32).await;
    let leader = cluster.leader().await;
    let node = cluster.node(leader);
    node.create_topic().await;
    let (open, other) = (producer(node, 1, "open").await, producer(node, 1, "other").await);
    assert!(is_staged(&ask(node, 1, stage("open", open, b"open")).await));
    let log = node.log.clone();
    let transfer = tokio::spawn(async move { log.transfer_leadership(None).await });
    // Until the drain has begun it would be staged; that it waits is what shows it.
    let mut waiting = node.log.submit(on(1), stage("other", other, b"other"));
    while waiting.try_recv().is_ok() {
        waiting = node.log.submit(on(1), stage("other", other, b"other"));
        assert!(matches!(ask(node, 1, end("other", other, false)).await, Response::Ended(_) | Response::Refused(_)));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(node.log.transfer_leadership(None).await, Err(TransferError::Busy));
    assert!(matches!(ask(node, 1, end("open", open, true)).await, Response::Ended(_)));
    let led = transfer.await.unwrap().expect("nothing is open any more");
    let told = tokio::time::timeout(LONG, waiting).await.expect("an answer in time");
    assert_eq!(told, Ok(Response::Refused(Refusal::NotLeader)));
    let next = cluster.leader().await;
    assert_eq!(led, next as u64 + 1);
    assert_eq!(cluster.node(next).records(), [b"open".to_vec()]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stays_open_is_lost_as_a_whole() {
    let cluster = Cluster::new(33).await;
    let leader = cluster.leader().await;
    let node = cluster.node(leader);
    node.create_topic().await;
    let (open, idle) = (producer(node, 1, "open").await, producer(node, 1, "idle").await);
    assert!(is_staged(&ask(node, 1, stage("open", open, b"half")).await));
    let (raft, sequencer) = (node.log.node.raft.clone(), node.sequencer().clone());
    let transfer = Transfer { me: leader as u64 + 1, raft, sequencer, drain: Duration::from_millis(20) };
    transfer.run(None).await.expect("it goes all the same");
    let next = cluster.leader().await;
    let node = cluster.node(next);
    assert!(is_staged(&ask(node, 2, stage("open", open, b"other half")).await), "acknowledged, and lost");
    assert!(is_staged(&ask(node, 2, stage("idle", idle, b"whole")).await));
    assert_eq!(ask(node, 2, end("open", open, true)).await, Response::Refused(Refusal::TransactionLost));
    assert!(matches!(ask(node, 2, end("idle", idle, true)).await, Response::Ended(_)));
    assert_eq!(node.records(), [b"whole".to_vec()]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_without_an_entry_is_confirmed_by_a_quorum() {
    let mut cluster = Cluster::new(34).await;
    let leader = cluster.leader().await;
    let node = cluster.node(leader);
    node.create_topic().await;
    let nobody = ProducerIdAndEpoch { producer_id: 77, epoch: 0 };
    let unknown = Response::Refused(Refusal::InvalidProducerIdMapping);
    let mut best = Duration::MAX;
    for _ in 0..10 {
        let asked = Instant::now();
        assert_eq!(ask(node, 1, end("nobody", nobody, true)).await, unknown);
        best = best.min(asked.elapsed());
    }
    assert!(best < Duration::from_millis(80), "by a heartbeat of its own, not by the next one: {best:?}");
    // And with nobody to confirm it, it is not told, and nobody waits for ever.
    for at in (0..3).filter(|at| *at != leader) {
        cluster.kill(at);
    }
    let node = cluster.node(leader);
    let (end, offsets) = (ask(node, 1, end("nobody", nobody, true)), ask(node, 1, fetch()));
    let (end, offsets) =
        tokio::time::timeout(Duration::from_secs(5), async { (end.await, offsets.await) }).await.unwrap();
    assert_eq!(end, Response::Refused(Refusal::NotLeader));
    // Asked within the lease it may have been told; a moment later it is not.
    assert!(matches!(offsets, Response::Offsets(_) | Response::Refused(Refusal::NotLeader)), "{offsets:?}");
    assert_eq!(ask(node, 1, fetch()).await, Response::Refused(Refusal::NotLeader));
    let status = node.log.status();
    assert_eq!((status.leader, node.log.serving(), node.log.leased()), (None, None, None));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_go_on_soon_after_a_leader_died() {
    let mut cluster = Cluster::new(35).await;
    let mut leader = cluster.leader().await;
    cluster.node(leader).create_topic().await;
    let mut times = Vec::new();
    for round in 0..3u8 {
        cluster.node(leader).produce(&[round]).await;
        let dead = leader;
        cluster.kill(dead);
        let died = Instant::now();
        leader = cluster.leader().await;
        cluster.node(leader).produce(&[round]).await;
        times.push(died.elapsed());
        cluster.restart(dead).await;
    }
    times.sort_unstable();
    assert!(times[0] < Duration::from_secs(3), "{times:?}");
    cluster.stop().await;
}
