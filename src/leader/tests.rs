//! The leader's rules as scripts, played against a real machine, and as properties of random interleavings.
//!
//! `scripts/<topic>/*.txt`: one script for each schedule that one node can play, each trap and each rule; [`player`] tells
//! what the commands mean.

mod player;
mod properties;

use crate::types::golden;

#[test]
fn the_scripts_play_as_written() {
    for topic in ["transactions", "end_txn", "stage", "chunks", "init", "admission", "offsets", "expiry", "bounds"] {
        golden::run(&format!("src/leader/scripts/{topic}"), || {
            let mut player = player::Player::new();
            Box::new(move |command| player.play(command))
        });
    }
}
