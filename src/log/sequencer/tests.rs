//! The sequencer of a whole node, with ends of proposals and terms told by hand.

use openraft::errors::{ClientWriteError, ForwardToLeader};

use super::*;
use crate::disk::faulty::FaultyDisk;
use crate::leader::request::{EndTxn, JoinGroup, MemberRef, OffsetFetch};
use crate::log::tests::gate::GateDisk;
use crate::log::tests::{TestNode, acked, answer, caller, is_ack, produce, start};

/// A node with a topic, whose fsyncs are held back, and a produce request that waits for one.
async fn with_a_proposal_in_flight(seed: u64) -> (TestNode, GateDisk, oneshot::Receiver<Response>, Ticket, Term) {
    let gate = GateDisk::new(FaultyDisk::new(seed));
    let node = start(&(Arc::new(gate.clone()) as Arc<dyn crate::disk::Disk>)).await;
    node.create_topic().await;
    gate.close();
    let waiting = node.log.submit(caller(), produce(b"held"));
    let (ticket, term) = {
        let state = node.sequencer().state.lock();
        let ticket = *state.proposals.keys().next().expect("the produce is proposed");
        (ticket, state.term.expect("it serves"))
    };
    (node, gate, waiting, ticket, term)
}

fn alone() -> Vec<BTreeSet<u64>> {
    vec![[1].into()]
}

fn forward<T>() -> ForwardToLeader<T>
where
    T: openraft::RaftTypeConfig<NodeId = u64, Node = crate::log::entry::Node>,
{
    ForwardToLeader::empty()
}

#[test]
fn only_what_was_refused_before_it_was_appended_is_definite() {
    let refused = ClientWriteError::ForwardToLeader(forward::<TypeConfig>());
    assert!(matches!(Fate::of(Some(Err(refused))), Fate::Discarded));
    let replaced = ClientWriteError::LogEntryDiscarded(forward::<TypeConfig>());
    assert!(matches!(Fate::of(Some(Err(replaced))), Fate::Unknown));
    assert!(matches!(Fate::of(None), Fate::Unknown));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_discarded_proposal_is_refused_as_certainly_not_written() {
    let (node, gate, waiting, ticket, term) = with_a_proposal_in_flight(21).await;
    node.sequencer().completions.push(Completion { term, ticket, fate: Fate::Discarded });
    let response = answer(waiting).await.expect("an answer, not a closed connection");
    let refusals = match response {
        Response::Refused(refusal) => vec![refusal],
        Response::Produced(parts) => parts.into_iter().filter_map(Result::err).collect(),
        other => panic!("{other:?}"),
    };
    assert_eq!(refusals.len(), 1);
    assert_ne!(refusals[0], Refusal::FateUnknown);
    gate.open();
    node.log.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_another_terms_proposal_is_not_told() {
    let (node, gate, mut waiting, ticket, term) = with_a_proposal_in_flight(22).await;
    let other = Term(term.0 + 1);
    node.sequencer().completions.push(Completion { term: other, ticket, fate: Fate::Discarded });
    node.sequencer().applied();
    assert!(waiting.try_recv().is_err(), "still waiting for its own");
    gate.open();
    assert_eq!(acked(answer(waiting).await), 0);
    node.log.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losing_the_term_answers_everyone_and_acknowledges_nothing() {
    let (node, gate, waiting, _, term) = with_a_proposal_in_flight(23).await;
    node.sequencer().leadership(None, alone());
    let response = answer(waiting).await;
    assert!(!is_ack(&response), "{response:?}");
    assert_eq!(node.sequencer().serving(), None);
    assert!(!is_ack(&node.ask(produce(b"too late")).await));
    // Its entry was in raft's hands: it is applied, and the next term's requests follow it.
    gate.open();
    node.sequencer().leadership(Some(term), alone());
    assert_eq!(acked(node.ask(produce(b"next")).await), 1);
    node.log.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_decided_in_another_term_is_never_appended() {
    let node = start(&(Arc::new(FaultyDisk::new(24)) as Arc<dyn crate::disk::Disk>)).await;
    node.create_topic().await;
    let real = node.sequencer().serving().expect("it serves");
    node.sequencer().state.lock().term = Some(Term(real.0 + 1));
    let response = node.ask(produce(b"stale")).await;
    assert!(!is_ack(&response), "{response:?}");
    node.sequencer().state.lock().term = Some(real);
    assert_eq!(acked(node.ask(produce(b"first")).await), 0);
    node.log.shutdown().await;
}

/// A node that believes two others vote too, from whom nothing was heard.
async fn among_three(seed: u64) -> (TestNode, Term) {
    let node = start(&(Arc::new(FaultyDisk::new(seed)) as Arc<dyn crate::disk::Disk>)).await;
    node.create_topic().await;
    let term = node.sequencer().serving().expect("it serves");
    node.sequencer().lease.set_voters(vec![[1, 2, 3].into()]);
    (node, term)
}

fn fetch() -> Request {
    Request::OffsetFetch(OffsetFetch { group: "g".into(), partitions: None, require_stable: false })
}

fn join(member_id: &str) -> Request {
    Request::JoinGroup(JoinGroup {
        version: 3,
        member: MemberRef { group: "g".into(), generation: -1, member_id: "".into(), instance_id: None },
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".into(),
        protocols: vec![("range".into(), bytes::Bytes::new())],
        reason: None,
        fresh_member_id: member_id.into(),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_leader_knows_is_told_with_a_lease_only() {
    let (node, term) = among_three(25).await;
    assert_eq!(node.log.leased(), None);
    let mut waiting = node.log.submit(caller(), fetch());
    assert_eq!(acked(node.ask(produce(b"what was applied needs none")).await), 0);
    assert!(waiting.try_recv().is_err());
    node.sequencer().lease.accepted(term, 2, Sent::now());
    assert!(matches!(answer(waiting).await, Some(Response::Offsets(_))));
    assert_eq!(node.log.leased(), Some(term));
    assert!(matches!(node.ask(fetch()).await, Some(Response::Offsets(_))), "at once, as long as it lasts");
    node.log.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_without_an_entry_waits_for_a_quorum_of_its_own() {
    let (node, term) = among_three(27).await;
    node.sequencer().lease.accepted(term, 2, Sent::now());
    let end = EndTxn {
        version: 3,
        transactional_id: "t".into(),
        producer: crate::types::ProducerIdAndEpoch { producer_id: 7, epoch: 0 },
        commit: true,
    };
    let mut waiting = node.log.submit(caller(), Request::EndTxn(end));
    node.sequencer().completions.stirred.notify_one();
    assert!(matches!(node.ask(fetch()).await, Some(Response::Offsets(_))), "the lease alone is not enough for an end");
    assert!(waiting.try_recv().is_err());
    node.sequencer().lease.accepted(term, 3, Sent::now());
    let unknown = Response::Refused(Refusal::InvalidProducerIdMapping);
    assert_eq!(answer(waiting).await, Some(unknown));
    node.log.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_nobody_is_kept_waiting_or_served() {
    let (node, gate, written, ..) = with_a_proposal_in_flight(28).await;
    assert!(matches!(node.ask(join("one")).await, Some(Response::Joined(_))));
    let term = node.sequencer().serving().expect("it serves");
    node.sequencer().lease.set_voters(vec![[1, 2, 3].into()]);
    let known = node.log.submit(caller(), fetch());
    let joining = node.log.submit(caller(), join("two"));
    assert_eq!(answer(known).await, Some(Response::Refused(Refusal::NotLeader)));
    let fate = Response::Produced(vec![Err(Refusal::FateUnknown)]);
    assert_eq!(answer(written).await, Some(fate), "it may still be written");
    assert_eq!(answer(joining).await, Some(Response::Refused(Refusal::NotLeader)), "not after the rebalance's time");
    assert_eq!(node.ask(fetch()).await, Some(Response::Refused(Refusal::NotLeader)));
    assert_eq!((node.log.serving(), node.log.status().leader), (None, None));
    // The quorum is back, in the same term: everything goes on.
    gate.open();
    node.sequencer().lease.accepted(term, 3, Sent::now());
    assert!(matches!(node.ask(fetch()).await, Some(Response::Offsets(_))));
    assert_eq!(node.log.status().leader, Some(1));
    assert_eq!(acked(node.ask(produce(b"next")).await), 1);
    node.log.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_may_give_its_entry_less_time() {
    let (node, gate, mut other, ..) = with_a_proposal_in_flight(29).await;
    let short = node.log.submit_within(caller(), produce(b"short"), Duration::from_millis(20));
    let fate = Response::Produced(vec![Err(Refusal::FateUnknown)]);
    assert_eq!(answer(short).await, Some(fate));
    assert!(other.try_recv().is_err(), "the one before it has its own time");
    gate.open();
    assert_eq!(acked(answer(other).await), 0);
    node.log.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unanswered_request_of_a_stopped_node_is_a_closed_connection() {
    let (node, gate, waiting, ..) = with_a_proposal_in_flight(26).await;
    node.sequencer().stop();
    let response = answer(waiting).await;
    assert!(!is_ack(&response), "{response:?}");
    let member = MemberRef { group: "g".into(), generation: 1, member_id: "m".into(), instance_id: None };
    assert_eq!(node.ask(Request::Heartbeat(member)).await, None);
    gate.open();
    node.log.shutdown().await;
}

#[test]
fn only_an_end_txn_that_ended_its_transaction_counts_as_a_commit() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        let meters = Meters::default();
        let pair = crate::types::ProducerIdAndEpoch { producer_id: 1, epoch: 0 };
        for response in [Response::Refused(Refusal::ProducerFenced), Response::Ended(pair)] {
            let (sender, _receiver) = oneshot::channel();
            Waiting { sender, end_txn: Some((Instant::now(), true)) }.answer(response, &meters);
        }
    });
    let page = page.render();
    assert!(page.contains("katomic_txn_commit_latency_seconds_count{result=\"committed\"} 1\n"), "{page}");
}
