//! Plays golden scripts: a leader, the real machine, and a log of proposals that are applied on command.
//!
//! Requests (`c=` connection, `v=` version, `client=` software name; each request gets the next number, `#1`, `#2`, …):
//!   init ID|- [timeout=MS] [given=PID/EPOCH]        add ID PID/EPOCH a-0 b-1 …          addoffsets ID PID/EPOCH GROUP
//!   produce ID|- PID/EPOCH|- a-0:SEQUENCE+COUNT[=BODY] … [plain|txn]
//!   txnoffsets ID PID/EPOCH GROUP a-0=OFFSET … [member=M gen=N]                         end ID PID/EPOCH commit|abort
//!   commit GROUP a-0=OFFSET … [member=M gen=N]      fetch GROUP [a-0 …] [stable]
//!   join GROUP MEMBER|-    sync GROUP GENERATION MEMBER [MEMBER=a-0,a-1 …]    leave GROUP MEMBER
//!   create NAME PARTITIONS    delete NAME
//! The log: `apply` the oldest proposal (`apply all`: until none is left), `discard` it, `unknown`: its deadline passes.
//! The world: `restart`: the node leads a new term, proposals not applied are lost; `deposed`: it leads no more; `loading`: a
//!   new leader whose first entry is not applied yet;
//!   `at +MS`: time passes; `behind`: the machine applies the oldest proposal, the leader is told by the next `apply`.
//! Many: `flood N COMMAND`: the request N times over, all of which wait.
//! Set-up: `topic NAME PARTITIONS`, `set NAME VALUE` (leader settings), `epoch_max N`.
//! To see: `log a-0` (records), `show ID`, `offsets GROUP`, `stats`, `deadline`.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::super::request::*;
use super::super::{Action, Leader, LeaderSettings, Ticket};
use crate::state::Machine;
use crate::state::command::{Appended, Command, Entry, NewTopic, OffsetWrite, Outcome, TxnFence};
use crate::types::record_batch::sample;
use crate::types::{ConnectionId, LogIndex, Now, Offset, ProducerIdAndEpoch, Refusal, Term, TopicId, TopicPartition};

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
        };
        player.start_term();
        player
    }

    fn index(&mut self) -> LogIndex {
        self.next_index += 1;
        LogIndex(self.next_index - 1)
    }

    fn start_term(&mut self) -> Vec<Action> {
        self.term.0 += 1;
        let index = self.index();
        self.machine.apply_blank(index, self.term);
        self.first_connection = self.term.0 * 100;
        self.leader.start_term(&self.machine, self.term, self.now)
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
            "deposed" => return self.depose(),
            "flood" => {
                let (_, repeated) = command.split_once(words[1]).expect("a command to repeat");
                let repeated = format!("{}{repeated}", words[1]);
                let outputs: Vec<String> = (0..line.number(0)).map(|_| self.play(&repeated)).collect();
                assert!(outputs.iter().all(|output| output.ends_with("waits\n")), "{:?}", outputs.last());
            }
            "producers" => self.make_producers(line.number(0)),
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
        let index = self.index();
        self.machine.apply(index, self.term, &entry);
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
        self.leader.start_term(&self.machine, self.term, self.now);
    }

    /// So many idempotent producers, each with one batch written, a millisecond apart.
    fn make_producers(&mut self, count: i64) {
        for pid in 0..count {
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
            Action::Reply(to, _) | Action::ReplyConfirmed(to, _, _) => *to == token,
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
            let _ = match action {
                Action::Reply(token, response) => writeln!(out, "#{} <- {}", token.0, self.told(&response)),
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
        actions.extend(self.start_term());
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
        let (effects, outcome) = self.machine.apply(index, self.term, entry);
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

/// The words of a command line, and those of the form `name=value`.
struct Line<'a> {
    words: &'a [&'a str],
    options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Line<'a> {
    fn option(&self, name: &str) -> Option<&'a str> {
        self.options.get(name).copied()
    }

    fn number<T: std::str::FromStr<Err: std::fmt::Debug>>(&self, at: usize) -> T {
        self.words[at].parse().expect("a number")
    }

    fn version(&self, default: i16) -> i16 {
        self.option("v").map_or(default, |version| version.parse().expect("a version"))
    }

    fn member(&self, group: &str) -> MemberRef {
        MemberRef {
            group: group.into(),
            generation: self.option("gen").map_or(-1, |generation| generation.parse().expect("a number")),
            member_id: self.option("member").unwrap_or_default().into(),
            instance_id: None,
        }
    }
}

fn pair(word: &str) -> ProducerIdAndEpoch {
    let (producer_id, epoch) = word.split_once('/').expect("PID/EPOCH");
    ProducerIdAndEpoch { producer_id: producer_id.parse().expect("a pid"), epoch: epoch.parse().expect("an epoch") }
}

/// Requests from words.
impl Player {
    fn partition(&self, word: &str) -> TopicPartition {
        let (topic, partition) = word.rsplit_once('-').expect("TOPIC-PARTITION");
        let topic = *self.topics.get(topic).unwrap_or(&TopicId([9; 16]));
        TopicPartition { topic, partition: partition.parse().expect("a number") }
    }

    fn partitions(&self, words: &[&str]) -> Vec<TopicPartition> {
        words.iter().filter(|word| !word.contains('=')).map(|word| self.partition(word)).collect()
    }

    fn writes(&self, words: &[&str]) -> Vec<OffsetWrite> {
        let writes = words.iter().filter_map(|word| word.split_once('=')).filter(|(name, _)| name.contains('-'));
        let write = |(name, value): (&str, &str)| OffsetWrite {
            of: self.partition(name),
            offset: Offset(value.parse().expect("an offset")),
            leader_epoch: -1,
            metadata: String::new(),
        };
        writes.map(write).collect()
    }

    fn batch(
        &self,
        word: &str,
        producer: (i64, i16),
        transactional: bool,
    ) -> (TopicPartition, crate::types::RecordBatch) {
        let (to, rest) = word.split_once(':').expect("PARTITION:SEQUENCE+COUNT");
        let (range, body) = rest.split_once('=').unwrap_or((rest, "x"));
        let (sequence, count) = range.split_once('+').expect("SEQUENCE+COUNT");
        let sequence = sequence.parse().expect("a sequence");
        // A body of the form 100B is that many bytes.
        let bytes = body.strip_suffix('B').and_then(|count| count.parse().ok()).map(|count| vec![b'x'; count]);
        let body = bytes.unwrap_or_else(|| body.as_bytes().to_vec());
        let count = count.parse().expect("a count");
        (self.partition(to), sample::batch(producer, sequence, count, transactional, &body))
    }

    fn request(&mut self, name: &str, words: &[&str], line: &Line<'_>) -> Request {
        match name {
            "init" => Request::InitProducerId(InitProducerId {
                version: line.version(5),
                transactional_id: Some(words[0]).filter(|id| *id != "-").map(Arc::from),
                timeout_ms: line.option("timeout").map_or(60_000, |timeout| timeout.parse().expect("a number")),
                given: line.option("given").map(pair),
            }),
            "add" => Request::AddPartitionsToTxn(AddPartitionsToTxn {
                version: line.version(3),
                transactional_id: words[0].into(),
                producer: pair(words[1]),
                partitions: self.partitions(&words[2..]),
            }),
            "addoffsets" => Request::AddOffsetsToTxn(AddOffsetsToTxn {
                version: line.version(3),
                transactional_id: words[0].into(),
                producer: pair(words[1]),
                group: words[2].into(),
            }),
            "produce" => self.produce(words, line),
            "txnoffsets" => Request::TxnOffsetCommit(TxnOffsetCommit {
                version: line.version(5),
                transactional_id: words[0].into(),
                producer: pair(words[1]),
                member: line.member(words[2]),
                offsets: self.writes(&words[3..]),
            }),
            "end" => Request::EndTxn(EndTxn {
                version: line.version(5),
                transactional_id: words[0].into(),
                producer: pair(words[1]),
                commit: words[2] == "commit",
            }),
            "commit" => {
                Request::OffsetCommit(OffsetCommit { member: line.member(words[0]), offsets: self.writes(&words[1..]) })
            }
            "fetch" => {
                let partitions = self.partitions(words[1..].strip_suffix(&["stable"]).unwrap_or(&words[1..]));
                Request::OffsetFetch(OffsetFetch {
                    group: words[0].into(),
                    partitions: Some(partitions).filter(|partitions| !partitions.is_empty()),
                    require_stable: words.contains(&"stable"),
                })
            }
            "create" => Request::CreateTopics(vec![self.new_topic(words[0], line.number(1))]),
            "delete" => Request::DeleteTopics(vec![self.topics[words[0]]]),
            _ => self.group_request(name, words, line),
        }
    }

    fn produce(&self, words: &[&str], line: &Line<'_>) -> Request {
        let transactional_id = Some(words[0]).filter(|id| *id != "-").map(Arc::from);
        let producer = if words[1] == "-" { (-1, -1) } else { (pair(words[1]).producer_id, pair(words[1]).epoch) };
        let transactional = (transactional_id.is_some() || words.contains(&"txn")) && !words.contains(&"plain");
        let batches = words[2..].iter().filter(|word| word.contains(':'));
        Request::Produce(Produce {
            version: line.version(12),
            transactional_id,
            batches: batches.map(|word| self.batch(word, producer, transactional)).collect(),
        })
    }

    fn group_request(&self, name: &str, words: &[&str], line: &Line<'_>) -> Request {
        let member = MemberRef {
            group: words[0].into(),
            generation: -1,
            member_id: words[words.len().min(2) - 1].trim_matches('-').into(),
            instance_id: None,
        };
        match name {
            "join" => Request::JoinGroup(JoinGroup {
                version: 3,
                fresh_member_id: line.option("id").unwrap_or("m").into(),
                member,
                session_timeout_ms: 10_000,
                rebalance_timeout_ms: 10_000,
                protocol_type: "consumer".into(),
                protocols: vec![("range".into(), Bytes::new())],
                reason: None,
            }),
            "sync" => Request::SyncGroup(SyncGroup {
                member: MemberRef { generation: line.number(1), member_id: words[2].into(), ..member },
                protocol_type: None,
                protocol_name: None,
                assignments: words[3..].iter().filter_map(|word| word.split_once('=')).map(assignment).collect(),
            }),
            "leave" => {
                Request::LeaveGroup(LeaveGroup { group: words[0].into(), members: vec![(words[1].into(), None)] })
            }
            other => panic!("no command {other}"),
        }
    }
}

/// A ConsumerProtocol assignment, version 0: topics with their partitions, no user data.
fn assignment((member, partitions): (&str, &str)) -> (Arc<str>, Bytes) {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in partitions.split(',').filter_map(|word| word.rsplit_once('-')) {
        topics.entry(topic).or_default().push(partition.parse().expect("a number"));
    }
    let mut out = BytesMut::new();
    out.put_i16(0);
    out.put_i32(topics.len() as i32);
    for (topic, partitions) in topics {
        out.put_i16(topic.len() as i16);
        out.put_slice(topic.as_bytes());
        out.put_i32(partitions.len() as i32);
        partitions.into_iter().for_each(|partition| out.put_i32(partition));
    }
    out.put_i32(-1);
    (member.into(), out.freeze())
}

/// What is shown.
impl Player {
    fn name(&self, of: TopicPartition) -> String {
        let name = self.topics.iter().find(|(_, id)| **id == of.topic).map_or("?", |(name, _)| name);
        format!("{name}-{}", of.partition)
    }

    fn told(&self, response: &Response) -> String {
        let part =
            |result: &Result<(), Refusal>| result.as_ref().map_or_else(|why| format!("{why:?}"), |()| "ok".into());
        match response {
            Response::Refused(refusal) => format!("{refusal:?}"),
            Response::Close => "close".to_owned(),
            Response::Produced(parts) => {
                let part = |result: &Result<Acked, Refusal>| match result {
                    Ok(Acked::Written(outcome)) => format!("offset {}", outcome.base_offset.0),
                    Ok(Acked::Staged { record_count, .. }) => format!("staged {record_count}"),
                    Err(refusal) => format!("{refusal:?}"),
                };
                parts.iter().map(part).collect::<Vec<_>>().join(", ")
            }
            Response::ProducerId(pair) => format!("producer {}/{}", pair.producer_id, pair.epoch),
            Response::Ended(pair) => format!("ended, go on as {}/{}", pair.producer_id, pair.epoch),
            Response::Parts(parts) => parts.iter().map(part).collect::<Vec<_>>().join(", "),
            Response::Done => "ok".to_owned(),
            Response::Joined(joined) => format!("joined generation {} as {}", joined.generation, joined.member_id),
            Response::Synced(synced) => format!("synced, {} bytes", synced.assignment.len()),
            Response::Left(parts) => parts.iter().map(part).collect::<Vec<_>>().join(", "),
            Response::Offsets(offsets) if offsets.is_empty() => "no offsets".to_owned(),
            Response::Offsets(offsets) => {
                let one = |(of, result): &(TopicPartition, Result<Option<FetchedOffset>, Refusal>)| {
                    let told = match result {
                        Ok(Some(offset)) => offset.offset.0.to_string(),
                        Ok(None) => "none".to_owned(),
                        Err(refusal) => format!("{refusal:?}"),
                    };
                    format!("{} {told}", self.name(*of))
                };
                offsets.iter().map(one).collect::<Vec<_>>().join(", ")
            }
            Response::Topics(topics) => {
                let one =
                    |result: &Result<TopicId, Refusal>| result.map_or_else(|why| format!("{why:?}"), |_| "ok".into());
                topics.iter().map(one).collect::<Vec<_>>().join(", ")
            }
            other => format!("{other:?}"),
        }
    }

    fn batches(&self, batches: &[crate::state::command::Batch]) -> String {
        let one = |batch: &crate::state::command::Batch| {
            let view = batch.view();
            format!(" {}:{}+{}", self.name(batch.to), view.base_sequence(), view.record_count())
        };
        batches.iter().map(one).collect()
    }

    fn writes_told(&self, group: &str, offsets: &[OffsetWrite]) -> String {
        let one = |write: &OffsetWrite| format!(" {group}[{}={}]", self.name(write.of), write.offset.0);
        offsets.iter().map(one).collect()
    }

    fn command(&self, command: &Command) -> String {
        let told = |pair: ProducerIdAndEpoch| format!("{}/{}", pair.producer_id, pair.epoch);
        match command {
            Command::Produce(batches) => format!("Produce{}", self.batches(batches)),
            Command::OffsetCommit(commit) => {
                format!("OffsetCommit{}", self.writes_told(&commit.group, &commit.offsets))
            }
            Command::InitProducerId(init) => {
                let given = init.given.map(|given| format!(" given {}", told(given))).unwrap_or_default();
                format!("InitProducerId {}{given}", init.transactional_id.as_deref().unwrap_or("-"))
            }
            Command::TxnBegin(begin) => format!("TxnBegin {} {}", begin.transactional_id, told(begin.producer)),
            Command::TxnChunk(chunk) => format!(
                "TxnChunk {} {} stage {} number {}{}",
                chunk.transactional_id,
                told(chunk.producer),
                chunk.stage_id.map(|id| id.0).map_or("new".to_owned(), |id| id.to_string()),
                chunk.number,
                self.batches(&chunk.batches)
            ),
            Command::TxnCommit(commit) => {
                let fence = match commit.fence {
                    TxnFence::Begin(index) => format!("begin {}", index.0),
                    TxnFence::Epoch => "epoch".to_owned(),
                };
                let offsets = commit.offsets.iter().map(|staged| self.writes_told(&staged.group, &staged.offsets));
                format!(
                    "TxnCommit {} {} {}{}{}{}{}",
                    commit.transactional_id,
                    told(commit.producer),
                    fence,
                    if commit.bump { " bump" } else { "" },
                    commit
                        .chunks
                        .map(|chunks| format!(" after {} chunks of {}", chunks.count, chunks.stage_id.0))
                        .unwrap_or_default(),
                    self.batches(&commit.batches),
                    offsets.collect::<String>()
                )
            }
            Command::TxnAbort(abort) => {
                let skipped =
                    abort.skipped.iter().map(|(at, first, last)| format!(" skip {}:{first}-{last}", self.name(*at)));
                format!(
                    "TxnAbort {} {}{}{}{}",
                    abort.transactional_id,
                    told(abort.producer),
                    abort.begin.map(|begin| format!(" begin {}", begin.0)).unwrap_or_default(),
                    if abort.bump { " bump" } else { "" },
                    skipped.collect::<String>()
                )
            }
            Command::CreateTopics(topics) => format!("CreateTopics {}", topics[0].name),
            Command::DeleteTopics(topics) => format!("DeleteTopics {}", topics.len()),
            Command::Expire(expire) => {
                let (producers, ids) = (expire.producers.len(), &expire.transactional_ids);
                format!("Expire {producers} producers, ids {ids:?}, {} offsets", expire.offsets.len())
            }
            Command::DropStages(stages) => format!("DropStages {:?}", stages.iter().map(|id| id.0).collect::<Vec<_>>()),
            Command::AlterConfigs(changes) => format!("AlterConfigs {}", changes.len()),
        }
    }

    fn show_log(&self, word: &str) -> String {
        let of = self.partition(word);
        let one = |appended: &Appended| {
            let batch = &appended.records;
            let body = String::from_utf8_lossy(&batch.bytes()[61..]).chars().take(12).collect::<String>();
            let sequence = (batch.producer_id() >= 0).then(|| {
                format!(" {}/{} sequence {}", batch.producer_id(), batch.producer_epoch(), batch.base_sequence())
            });
            let (first, next) = (appended.base_offset.0, appended.next_offset.0);
            format!("{first}..{next}{} \"{body}\"\n", sequence.unwrap_or_default())
        };
        let shown: String = self.appended.iter().filter(|appended| appended.to == of).map(one).collect();
        if shown.is_empty() { format!("{word} is empty") } else { shown }
    }

    fn show_id(&self, id: &str) -> String {
        let Some(state) = self.machine.transactions().get(id) else { return format!("{id} is unknown") };
        let pair = |pair: ProducerIdAndEpoch| format!("{}/{}", pair.producer_id, pair.epoch);
        format!(
            "current {}, previous {}, last end {}, {}, clean in term {}, chunks of {} stages",
            pair(state.producer),
            state.previous.map_or("none".to_owned(), pair),
            state.last_end.map_or("none".to_owned(), |end| format!("{:?} at epoch {}", end.result, end.epoch)),
            state.open_begin.map_or("no begin open".to_owned(), |begin| format!("begin {} open", begin.index.0)),
            state.clean_term.0,
            self.machine.transactions().open_chunks().count()
        )
    }

    fn show_offsets(&self, group: &str) -> String {
        let Some(state) = self.machine.group_offsets().group(group) else { return format!("{group} has no offsets") };
        let one = |(of, committed): (&TopicPartition, &crate::state::group_offsets::CommittedOffset)| {
            format!("{} {}\n", self.name(*of), committed.offset.0)
        };
        state.offsets.iter().map(one).collect()
    }
}
