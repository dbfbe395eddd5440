//! The sequencer of a whole node, with ends of proposals and terms told by hand.

use openraft::errors::{ClientWriteError, ForwardToLeader};

use super::*;
use crate::disk::faulty::FaultyDisk;
use crate::leader::request::{MemberRef, OffsetFetch};
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
    node.sequencer().leadership(None, true);
    let response = answer(waiting).await;
    assert!(!is_ack(&response), "{response:?}");
    assert_eq!(node.sequencer().serving(), None);
    assert!(!is_ack(&node.ask(produce(b"too late")).await));
    // Its entry was in raft's hands: it is applied, and the next term's requests follow it.
    gate.open();
    node.sequencer().leadership(Some(term), true);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn among_several_voters_an_answer_waits_for_the_read_index() {
    let node = start(&(Arc::new(FaultyDisk::new(25)) as Arc<dyn crate::disk::Disk>)).await;
    let fetch = || Request::OffsetFetch(OffsetFetch { group: "g".into(), partitions: None, require_stable: false });
    let alone = node.ask(fetch()).await;
    assert!(matches!(alone, Some(Response::Offsets(_))), "{alone:?}");
    // The only voter is a majority of itself, whatever the sequencer believes.
    node.sequencer().sole_voter.store(false, Ordering::Relaxed);
    assert_eq!(node.ask(fetch()).await, alone);
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
