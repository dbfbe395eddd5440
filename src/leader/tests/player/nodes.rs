//! Several nodes over one replicated log: who was elected, who does not know yet that another one was.
//!
//! A leader that is cut off goes on deciding, for it knows nothing. Its proposals reach nobody, and what it may answer is
//! what the sequencer would let out: nothing that needs a lease or a quorum (`log/sequencer/answers.rs`).

use std::collections::VecDeque;
use std::fmt::Write as _;

use super::{Pending, Player};
use crate::leader::request::{Response, Token};
use crate::leader::{Action, Leader};
use crate::state::Machine;
use crate::state::command::Entry;
use crate::types::{LogIndex, Refusal, Term};

/// An entry that a quorum has.
pub(super) struct Committed {
    pub(super) index: LogIndex,
    pub(super) term: Term,
    /// None for the first entry of a term.
    pub(super) entry: Option<Entry>,
}

/// One node's own part of the world.
pub(super) struct Node {
    pub(super) machine: Machine,
    pub(super) leader: Leader,
    pub(super) pending: VecDeque<Pending>,
    /// How much of the log it has applied.
    pub(super) applied: usize,
    pub(super) first_connection: u64,
    /// No quorum hears it.
    pub(super) cut_off: bool,
    /// Answers that wait for a lease.
    pub(super) held: Vec<(Token, Response)>,
}

impl Player {
    /// Plays on as that node; its world is made if it is new.
    fn switch(&mut self, name: &str) {
        if self.here == name {
            return;
        }
        let fresh = || Node {
            machine: Machine::default(),
            leader: Leader::new(self.settings.clone()),
            pending: VecDeque::new(),
            applied: 0,
            first_connection: 1,
            cut_off: false,
            held: Vec::new(),
        };
        let mut node = self.away.remove(name).unwrap_or_else(fresh);
        self.exchange(&mut node);
        let last = std::mem::replace(&mut self.here, name.to_owned());
        self.away.insert(last, node);
    }

    fn exchange(&mut self, node: &mut Node) {
        std::mem::swap(&mut self.machine, &mut node.machine);
        std::mem::swap(&mut self.leader, &mut node.leader);
        std::mem::swap(&mut self.pending, &mut node.pending);
        std::mem::swap(&mut self.applied, &mut node.applied);
        std::mem::swap(&mut self.first_connection, &mut node.first_connection);
        std::mem::swap(&mut self.cut_off, &mut node.cut_off);
        std::mem::swap(&mut self.held, &mut node.held);
    }

    /// `on NODE COMMAND`.
    pub(super) fn play_on(&mut self, name: &str, command: &str) -> String {
        let here = self.here.clone();
        self.switch(name);
        let out = self.play(command);
        self.switch(&here);
        out
    }

    /// `elect NODE [with N]`: it has the first N proposals of the leader before it, who is cut off and knows nothing.
    pub(super) fn elect(&mut self, name: &str, with: usize) -> String {
        let carried: Vec<Entry> = self.pending.iter().take(with).map(|pending| pending.entry.clone()).collect();
        self.cut_off = true;
        self.switch(name);
        self.catch_up();
        for entry in &carried {
            self.apply_entry(entry);
        }
        self.pending.clear();
        let ended = self.leader.end_term();
        (self.cut_off, self.held) = (false, Vec::new());
        let mut out = self.carry_out(ended);
        let actions = self.start_term();
        out += &self.carry_out(actions);
        out
    }

    /// `learns NODE`: a node that was cut off hears of the leader after it.
    pub(super) fn learns(&mut self, name: &str) -> String {
        let here = self.here.clone();
        self.switch(name);
        self.pending.clear();
        let mut out = self.refuse_held();
        let actions = self.leader.end_term();
        out += &self.carry_out(actions);
        self.catch_up();
        self.cut_off = false;
        self.switch(&here);
        out
    }

    /// `heal`: the leader is heard again, and nobody was elected meanwhile.
    pub(super) fn heal(&mut self) -> String {
        self.cut_off = false;
        let mut out = String::new();
        for (token, response) in std::mem::take(&mut self.held) {
            let _ = writeln!(out, "#{} <- {}", token.0, self.told(&response));
        }
        out
    }

    fn refuse_held(&mut self) -> String {
        let mut out = String::new();
        for (token, _) in std::mem::take(&mut self.held) {
            let _ = writeln!(out, "#{} <- {:?}", token.0, Refusal::NotLeader);
        }
        out
    }

    fn catch_up(&mut self) {
        for committed in &self.log[self.applied..] {
            match &committed.entry {
                Some(entry) => {
                    self.machine.apply(committed.index, committed.term, entry);
                }
                None => self.machine.apply_blank(committed.index, committed.term),
            }
        }
        self.applied = self.log.len();
    }

    /// What the sequencer of a leader that nobody hears does with an action; None: as any other.
    pub(super) fn without_a_lease(&mut self, action: &Action) -> Option<String> {
        if !self.cut_off {
            return None;
        }
        let (token, response, why) = match action {
            Action::Reply(token, response) if !response.claims_nothing() => (*token, response, "no lease"),
            Action::ReplyConfirmed(token, response, _) => (*token, response, "no quorum"),
            Action::Reply(..) | Action::ReplyApplied(..) | Action::Propose(..) => return None,
        };
        self.held.push((token, response.clone()));
        Some(format!("#{} is not answered: {why}\n", token.0))
    }
}
