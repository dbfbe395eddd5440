//! What happened: always as a running checksum, in words only when somebody is going to read it.
//!
//! A run that breaks an invariant is run again with words: the same seed gives the same run.

use std::collections::VecDeque;

use super::world::Event;

/// Lines kept.
const LINES_MAX: usize = 400;

/// See the module.
#[derive(Debug, Default)]
pub struct Trace {
    /// Over everything that happened, in order.
    pub checksum: u64,
    /// How many events there were.
    pub events: u64,
    /// Whether words are kept.
    pub in_words: bool,
    lines: VecDeque<String>,
}

impl Trace {
    fn mix(&mut self, number: u64) {
        self.checksum = (self.checksum ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    /// An event is about to happen.
    pub fn event(&mut self, now_us: u64, event: &Event) {
        self.events += 1;
        self.mix(now_us);
        let (kind, detail) = match event {
            Event::Tick(node, _) => (1, *node as u64),
            Event::Peer { from, to, .. } => (2, (*from * 4 + *to) as u64),
            Event::Synced(node, _) => (3, *node as u64),
            Event::Apply(node, _) => (4, *node as u64),
            Event::Arrive(conn) => (5, conn.0),
            Event::Return(conn) => (6, conn.0),
            Event::Gone(conn) => (7, conn.0),
            Event::Wake(client) => (8, *client as u64),
            Event::Fault(_) => (9, 0),
        };
        self.mix(kind << 32 | detail);
        if let Event::Fault(fault) = event {
            self.note(now_us, || format!("{fault:?}"));
        }
    }

    /// Something to read, if somebody does.
    pub fn note(&mut self, now_us: u64, words: impl FnOnce() -> String) {
        if !self.in_words {
            return;
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        let mut words = words();
        if words.len() > 400 {
            let cut = (0..=400).rev().find(|at| words.is_char_boundary(*at)).unwrap_or(0);
            words.truncate(cut);
        }
        self.lines.push_back(format!("{:>10.3} {words}", now_us as f64 / 1_000.0));
    }

    /// The last lines.
    pub fn words(&self) -> String {
        self.lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}
