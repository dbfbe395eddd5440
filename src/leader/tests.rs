//! The leader's rules as scripts, played against a real machine, and as properties of random interleavings.
//!
//! `scripts/<topic>/*.txt`: one script for each schedule that one node can play, each trap and each rule; [`player`] tells
//! what the commands mean.

pub(super) mod player;
mod properties;

use super::Action;
use super::request::{Caller, MemberRef, OffsetCommit, Produce, Request, Response};
use crate::config::limits;
use crate::state::command::{Command, ConfigChange, ConfigResource, Entry, OffsetWrite};
use crate::types::record_batch::sample;
use crate::types::{ConnectionId, LogIndex, Offset, Refusal, Term, TopicPartition, golden};

#[test]
fn the_scripts_play_as_written() {
    for topic in [
        "transactions",
        "end_txn",
        "stage",
        "chunks",
        "init",
        "admission",
        "offsets",
        "expiry",
        "records",
        "bounds",
        "leaders",
    ] {
        golden::run(&format!("src/leader/scripts/{topic}"), || {
            let mut player = player::Player::new();
            Box::new(move |command| player.play(command))
        });
    }
}

/// A leader with one topic whose batches may be larger than an entry.
fn with_large_batches() -> (player::Player, TopicPartition) {
    let mut player = player::Player::new();
    let topic = player.topic("a", 1);
    let resource = ConfigResource::Topic(topic);
    let change = ConfigChange { resource, name: "max.message.bytes".into(), value: Some((64 << 20).to_string()) };
    let entry = Entry { now_ms: 0, command: Command::AlterConfigs(vec![change]) };
    player.machine.apply(LogIndex(1_000), Term(1), &entry);
    (player, TopicPartition { topic, partition: 0 })
}

fn asked(player: &mut player::Player, request: Request) -> Vec<Action> {
    let caller =
        Caller { connection: ConnectionId(100), software: "".into(), client_id: "".into(), host: "/127.0.0.1".into() };
    player.submit(&caller, request).1
}

#[test]
fn a_batch_over_the_entry_cap_is_refused_for_good() {
    let (mut player, at) = with_large_batches();
    let mut produce = |bytes: usize| {
        let batch = sample::batch((-1, -1), -1, 1, false, &vec![0; bytes]);
        let request = Produce { version: 12, transactional_id: None, batches: vec![(at, batch)], refused: None };
        asked(&mut player, Request::Produce(request))
    };
    let refused = produce(limits::ENTRY_BYTES_MAX);
    let expected = Response::Produced(vec![Err(Refusal::MessageTooLarge)]);
    assert!(matches!(&refused[..], [Action::Reply(_, response)] if *response == expected), "{refused:?}");
    assert!(matches!(produce(limits::ENTRY_BYTES_MAX - 100)[..], [Action::Propose(..)]));
}

#[test]
fn offsets_over_the_entry_cap_are_refused_for_good() {
    let (mut player, of) = with_large_batches();
    let mut commit = |count: usize| {
        let metadata = "m".repeat(4096);
        let write = OffsetWrite { of, offset: Offset(1), leader_epoch: -1, metadata };
        let member = MemberRef { group: "g".into(), generation: -1, member_id: "".into(), instance_id: None };
        asked(&mut player, Request::OffsetCommit(OffsetCommit { member, offsets: vec![write; count] }))
    };
    let refused = commit(4_000);
    let expected = Response::Refused(Refusal::OffsetMetadataTooLarge);
    assert!(matches!(&refused[..], [Action::Reply(_, response)] if *response == expected), "{refused:?}");
    assert!(matches!(commit(3_900)[..], [Action::Propose(..)]));
}
