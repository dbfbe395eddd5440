//! Plays golden scripts: a leader, the real machine, and a log of proposals that are applied on command.
//!
//! Requests (`c=` connection, `v=` version, `client=` software name; each request gets the next number, `#1`, `#2`, …):
//!   init ID|- [timeout=MS] [given=PID/EPOCH]        add ID PID/EPOCH a-0 b-1 …          addoffsets ID PID/EPOCH GROUP
//!   produce ID|- PID/EPOCH|- a-0:SEQUENCE+COUNT[=BODY] … [plain|txn]
//!   txnoffsets ID PID/EPOCH GROUP a-0=OFFSET … [member=M gen=N]                         end ID PID/EPOCH commit|abort
//!   commit GROUP a-0=OFFSET … [member=M gen=N]      fetch GROUP [a-0 …] [stable]
//!   join GROUP MEMBER|-    sync GROUP GENERATION MEMBER [MEMBER=a-0,a-1 …]    leave GROUP MEMBER
//!   create NAME PARTITIONS    delete NAME    trim a-0=OFFSET …
//! The log: `apply` the oldest proposal (`apply all`: until none is left), `discard` it, `unknown`: its deadline passes.
//! The world: `restart`: the node leads a new term, proposals not applied are lost; `deposed`: it leads no more; `loading`: a
//!   new leader whose first entry is not applied yet;
//!   `at +MS`: time passes; `behind`: the machine applies the oldest proposal, the leader is told by the next `apply`.
//! Nodes, the first of which is A (more in `nodes`): `elect B [with N]`: B leads the next term and has the first N proposals of
//!   the one before, who knows nothing of it; `on A COMMAND`: asked of another node; `learns A`: it hears that it was deposed.
//!   `cut` and `heal`: nobody hears this leader meanwhile, and nobody is elected.
//!   A planned transfer: `drain`, `drained`, `undrain`, `handover`.
//! Many: `flood N COMMAND`: the request N times over, all of which wait.
//! Set-up: `topic NAME PARTITIONS`, `set NAME VALUE` (leader settings), `epoch_max N`.
//! To see: `log a-0` (records), `show ID`, `offsets GROUP`, `stats`, `deadline`.

mod nodes;
mod requests;
mod shown;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use super::super::request::*;
use super::super::{Action, Leader, LeaderSettings, Ticket};
use crate::state::Machine;
use crate::state::command::{Appended, Command, Entry, NewTopic, Outcome};
use crate::types::{ConnectionId, LogIndex, Now, Refusal, Term, TopicId};
use nodes::{Committed, Node};
use requests::Line;

/// Settings small enough that scripts reach every bound.
pub fn settings() -> LeaderSettings {
    LeaderSettings {
        transaction_max_timeout_ms: 900_000,
        entry_bytes_max: 16 << 20,
        staged_bytes_max: 64 << 20,
        group_min_session_timeout_ms: 6_000,
        group_max_session_timeout_ms: 1_800_000,
        group_initial_rebalance_delay_ms: 0,
        group_max_size: 100,
        offset_metadata_max_bytes: 4096,
        producer_id_expiration_ms: 86_400_000,
        transactional_id_expiration_ms: 604_800_000,
        offsets_retention_ms: 604_800_000,
        log_retention_ms: 604_800_000,
        log_retention_bytes: -1,
    }
}

/// A proposal not applied yet, or applied without the leader knowing.
struct Pending {
    ticket: Ticket,
    entry: Entry,
    applied: Option<(LogIndex, Outcome)>,
}

/// See the module.
pub struct Player {
    pub machine: Machine,
    pub leader: Leader,
    settings: LeaderSettings,
    pending: VecDeque<Pending>,
    term: Term,
    now: Now,
    next_index: u64,
    last_token: u64,
    topics: BTreeMap<String, TopicId>,
    appended: Vec<Appended>,
    first_connection: u64,
    /// What a quorum has, of all terms.
    log: Vec<Committed>,
    /// How much of it this node has applied.
    applied: usize,
    here: String,
    away: BTreeMap<String, Node>,
    cut_off: bool,
    held: Vec<(Token, Response)>,
}

impl Player {
    /// A node that leads term 1.
    pub fn new() -> Self {
        let mut player = Self {
            machine: Machine::default(),
            leader: Leader::new(settings()),
            settings: settings(),
            pending: VecDeque::new(),
            term: Term(0),
            now: Now { wall_ms: 1_700_000_000_000, mono_ms: 1_000 },
            next_index: 0,
            last_token: 0,
            topics: BTreeMap::new(),
            appended: Vec::new(),
            first_connection: 1,
            log: Vec::new(),
            applied: 0,
            here: "A".to_owned(),
            away: BTreeMap::new(),
            cut_off: false,
            held: Vec::new(),
        };
        player.start_term();
        player
    }

    fn index(&mut self) -> LogIndex {
        self.next_index += 1;
        LogIndex(self.next_index - 1)
    }

    /// A script's connections are numbered by term, from 100 times the term on.
    fn start_term(&mut self) -> Vec<Action> {
        let newest = if self.term.0 == 0 { 0 } else { self.term.0 * 100 + 99 };
        self.start_term_after(ConnectionId(newest))
    }

    fn start_term_after(&mut self, newest: ConnectionId) -> Vec<Action> {
        self.term.0 += 1;
        let index = self.index();
        self.machine.apply_blank(index, self.term);
        self.log.push(Committed { index, term: self.term, entry: None });
        self.applied = self.log.len();
        self.first_connection = self.term.0 * 100;
        self.leader.start_term(&self.machine, self.term, self.now, newest)
    }

    /// Plays one command and tells what became visible.
    pub fn play(&mut self, command: &str) -> String {
        let mut words: Vec<&str> = command.split_whitespace().collect();
        let name = words.remove(0);
        let line = Line { options: words.iter().filter_map(|word| word.split_once('=')).collect(), words: &words };
        let needs_proposal = matches!((name, &words[..]), ("apply" | "behind" | "discard" | "unknown", []));
        if needs_proposal && self.pending.is_empty() {
            return "nothing is proposed".to_owned();
        }
        match name {
            "topic" => self.make_topic(words[0], line.number(1)),
            "set" => self.set(words[0], words[1]),
            "epoch_max" => self.machine.transactions.set_epoch_max(line.number(0)),
            "log" => return self.show_log(words[0]),
            "show" => return self.show_id(words[0]),
            "offsets" => return self.show_offsets(words[0]),
            "stats" => return format!("{:?}", self.leader.stats()).replace("LeaderStats ", ""),
            "deadline" => return format!("{:?}", self.leader.next_deadline_ms().map(|at| at - self.now.mono_ms)),
            "at" => return self.wait(words[0]),
            "apply" if words == ["all"] => return self.apply_all(),
            "apply" => return self.apply(),
            "behind" => return self.apply_behind(),
            "discard" => {
                let pending = self.pending.pop_front().expect("something is proposed");
                let actions = self.leader.discarded(&self.machine, self.now, pending.ticket);
                return self.carry_out(actions);
            }
            "unknown" => {
                let ticket = self.pending.front().expect("something is proposed").ticket;
                let actions = self.leader.fate_unknown(&self.machine, self.now, ticket);
                return self.carry_out(actions);
            }
            "restart" => {
                let mut out = self.depose();
                let actions = self.start_term();
                out += &self.carry_out(actions);
                return out;
            }
            "on" => {
                let (_, rest) = command.split_once(words[0]).expect("the node is a word of it");
                return self.play_on(words[0], rest.trim());
            }
            "elect" => return self.elect(words[0], words.get(2).map_or(0, |_| line.number(2))),
            "learns" => return self.learns(words[0]),
            "cut" => self.cut_off = true,
            "heal" => return self.heal(),
            "drain" => self.leader.begin_drain(),
            "drained" => return format!("{}", self.leader.is_drained()),
            "undrain" => {
                let actions = self.leader.end_drain();
                return self.carry_out(actions);
            }
            "handover" => {
                let actions = self.leader.hand_over(&self.machine, self.now);
                return self.carry_out(actions);
            }
            "deposed" => return self.depose(),
            "flood" => {
                let (_, repeated) = command.split_once(words[1]).expect("a command to repeat");
                let repeated = format!("{}{repeated}", words[1]);
                let outputs: Vec<String> = (0..line.number(0)).map(|_| self.play(&repeated)).collect();
                assert!(outputs.iter().all(|output| output.ends_with("waits\n")), "{:?}", outputs.last());
            }
            "producers" => self.make_producers(line.number(0), words.get(1).map_or(0, |_| line.number(1))),
            "stages" => self.make_stages(line.number(0)),
            "count" => return format!("{} producers remembered", self.machine.producers().len()),
            "loading" => self.leader = Leader::new(self.settings.clone()),
            _ => {
                let request = self.request(name, &words, &line);
                return self.ask(&line, request);
            }
        }
        String::new()
    }

    fn depose(&mut self) -> String {
        self.pending.clear();
        let actions = self.leader.end_term();
        self.carry_out(actions)
    }

    fn make_topic(&mut self, name: &str, partitions: i32) {
        let topic = self.new_topic(name, partitions);
        let entry = Entry { now_ms: self.now.wall_ms, command: Command::CreateTopics(vec![topic]) };
        self.apply_entry(&entry);
    }

    fn new_topic(&mut self, name: &str, partitions: i32) -> NewTopic {
        let mut id = [0; 16];
        id[14] = self.topics.len() as u8 + 1;
        id[15] = self.next_index as u8;
        self.topics.insert(name.to_owned(), TopicId(id));
        NewTopic { id: TopicId(id), name: name.to_owned(), partitions, configs: Vec::new() }
    }

    fn set(&mut self, name: &str, value: &str) {
        let value: usize = value.parse().expect("a number");
        match name {
            "entry_bytes_max" => self.settings.entry_bytes_max = value,
            "staged_bytes_max" => self.settings.staged_bytes_max = value,
            other => panic!("no setting {other}"),
        }
        self.leader = Leader::new(self.settings.clone());
        self.leader.start_term(&self.machine, self.term, self.now, ConnectionId(0));
    }

    /// So many idempotent producers from an id on, each with one batch written, a millisecond apart.
    fn make_producers(&mut self, count: i64, first: i64) {
        for pid in first..first + count {
            self.now.wall_ms += 1;
            self.play("init -");
            self.play(&format!("produce - {pid}/0 a-0:0+1"));
            self.play("apply all");
        }
    }

    /// So many open TV2 transactions.
    fn make_stages(&mut self, count: i64) {
        for pid in 0..count {
            self.play(&format!("init t{pid}"));
            self.play("apply");
            self.play(&format!("produce t{pid} {pid}/0 a-0:0+1"));
        }
    }

    fn wait(&mut self, by: &str) -> String {
        let by: u64 = by.trim_start_matches('+').parse().expect("milliseconds");
        self.now.mono_ms += by;
        self.now.wall_ms += by as i64;
        let mut out = String::new();
        if self.leader.next_deadline_ms().is_some_and(|deadline| deadline <= self.now.mono_ms) {
            let actions = self.leader.handle_timeout(&self.machine, self.now);
            out += &self.carry_out(actions);
        }
        out
    }

    /// Sends a request.
    pub fn submit(&mut self, caller: &Caller, request: Request) -> (Token, Vec<Action>) {
        self.last_token += 1;
        let token = Token(self.last_token);
        (token, self.leader.handle(&self.machine, self.now, caller, token, request))
    }

    fn ask(&mut self, line: &Line<'_>, request: Request) -> String {
        let caller = Caller {
            connection: ConnectionId(line.option("c").map_or(self.first_connection, |c| c.parse().expect("a number"))),
            software: line.option("client").unwrap_or_default().into(),
            client_id: "".into(),
            host: "/127.0.0.1".into(),
        };
        let (token, actions) = self.submit(&caller, request);
        let answered = actions.iter().any(|action| match action {
            Action::Reply(to, _) | Action::ReplyApplied(to, _) | Action::ReplyConfirmed(to, _, _) => *to == token,
            Action::Propose(..) => false,
        });
        let mut out = self.carry_out(actions);
        if !answered {
            let _ = writeln!(out, "#{} waits", token.0);
        }
        out
    }

    fn carry_out(&mut self, actions: Vec<Action>) -> String {
        let mut out = String::new();
        for action in actions {
            if let Some(held) = self.without_a_lease(&action) {
                out += &held;
                continue;
            }
            let _ = match action {
                Action::Reply(token, response) | Action::ReplyApplied(token, response) => {
                    writeln!(out, "#{} <- {}", token.0, self.told(&response))
                }
                Action::ReplyConfirmed(token, response, Refusal::NotLeader) => {
                    writeln!(out, "#{} <- {} (confirmed)", token.0, self.told(&response))
                }
                Action::ReplyConfirmed(..) => panic!("an answer that waits for leadership names NotLeader"),
                Action::Propose(ticket, entry) => {
                    let _ = writeln!(out, "propose {}", self.command(&entry.command));
                    self.pending.push_back(Pending { ticket, entry, applied: None });
                    Ok(())
                }
            };
        }
        out
    }

    /// Takes note of what the leader proposed, for tests that play without a script.
    pub fn keep(&mut self, actions: &[Action]) {
        for action in actions {
            if let Action::Propose(ticket, entry) = action {
                self.pending.push_back(Pending { ticket: *ticket, entry: entry.clone(), applied: None });
            }
        }
    }

    /// The oldest proposal will never be applied; None if there is none.
    pub fn discard_next(&mut self) -> Option<Vec<Action>> {
        let pending = self.pending.pop_front()?;
        Some(self.leader.discarded(&self.machine, self.now, pending.ticket))
    }

    /// The deadline of the oldest proposal passed.
    pub fn unknown_next(&mut self) -> Option<Vec<Action>> {
        let ticket = self.pending.front()?.ticket;
        Some(self.leader.fate_unknown(&self.machine, self.now, ticket))
    }

    /// A new term. The first `committed` proposals are applied without the leader knowing, the others are lost.
    pub fn restart(&mut self, committed: usize) -> Vec<Action> {
        for _ in 0..committed.min(self.pending.len()) {
            let pending = self.pending.pop_front().expect("counted");
            self.apply_entry(&pending.entry);
        }
        self.pending.clear();
        let mut actions = self.leader.end_term();
        actions.extend(self.start_term_after(ConnectionId(0)));
        actions
    }

    /// Time passes.
    pub fn pass(&mut self, by_ms: u64) -> Vec<Action> {
        self.now.mono_ms += by_ms;
        self.now.wall_ms += by_ms as i64;
        self.leader.handle_timeout(&self.machine, self.now)
    }

    /// Every batch that became visible, in order.
    pub fn appended(&self) -> &[Appended] {
        &self.appended
    }

    /// Makes a topic and tells its id.
    pub fn topic(&mut self, name: &str, partitions: i32) -> TopicId {
        self.make_topic(name, partitions);
        self.topics[name]
    }

    fn apply_entry(&mut self, entry: &Entry) -> (LogIndex, Outcome) {
        let index = self.index();
        assert!(!self.cut_off, "nothing is committed by a leader that nobody hears");
        let (effects, outcome) = self.machine.apply(index, self.term, entry);
        self.log.push(Committed { index, term: self.term, entry: Some(entry.clone()) });
        self.applied = self.log.len();
        self.appended.extend(effects.appended);
        (index, outcome)
    }

    fn apply_behind(&mut self) -> String {
        let at = self.pending.iter().position(|pending| pending.applied.is_none()).expect("something is proposed");
        let entry = self.pending[at].entry.clone();
        self.pending[at].applied = Some(self.apply_entry(&entry));
        String::new()
    }

    /// Applies the oldest proposal; None if there is none.
    pub fn apply_next(&mut self) -> Option<Vec<Action>> {
        let pending = self.pending.pop_front()?;
        let (index, outcome) = pending.applied.unwrap_or_else(|| self.apply_entry(&pending.entry));
        Some(self.leader.applied(&self.machine, self.now, pending.ticket, index, outcome))
    }

    fn apply(&mut self) -> String {
        let name = self.command(&self.pending.front().expect("something is proposed").entry.command);
        let kind = name.split_whitespace().next().expect("a command has a name").to_owned();
        let actions = self.apply_next().expect("something is proposed");
        format!("@{} {kind} applied\n{}", self.next_index - 1, self.carry_out(actions))
    }

    fn apply_all(&mut self) -> String {
        let mut out = String::new();
        while !self.pending.is_empty() {
            out += &self.apply();
        }
        out
    }
}
