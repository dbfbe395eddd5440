//! The leader's rules as scripts, played against a real machine, and as properties of random interleavings.
//!
//! `scripts/<topic>/*.txt`: one script for each schedule that one node can play, each trap and each rule; [`player`] tells
//! what the commands mean.

mod player;

use crate::types::golden;

#[test]
fn the_scripts_play_as_written() {
    for topic in ["transactions", "admission"] {
        golden::run(&format!("src/leader/scripts/{topic}"), || {
            let mut player = player::Player::new();
            Box::new(move |command| player.play(command))
        });
    }
}
