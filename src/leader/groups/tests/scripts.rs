//! The language of the golden scripts.
//!
//! ```text
//! settings delay=3000 max=2           before anything else
//! join GROUP CLIENT [v=3] [member=ID] [instance=ID] [type=consumer] [protocols=range:meta,…] [session=10000] [rebalance=60000]
//! sync GROUP MEMBER GENERATION [instance=ID] [type=T] [protocol=P] [assign=MEMBER:BYTES,…]
//! heartbeat | commit | txncommit GROUP MEMBER GENERATION [instance=ID]       `-` is the empty member id
//! leave GROUP MEMBER[/INSTANCE] …
//! hold GROUP | release GROUP | changed | clear | show GROUP
//! topic NAME | owns GROUP MEMBER GENERATION TOPIC PARTITION
//! at MS                               runs every deadline until then, then the clock stands there
//! ```
//!
//! A new member's id is its client's (or instance's) name and the number of the join. Assignments are shown as text; `topic/0+2` is
//! written and shown for one in ConsumerProtocol form. Answers are `CLIENT(number): what it gets`, in order.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;

use super::{at, caller, member, settings};
use crate::leader::Action;
use crate::leader::consumer_protocol;
use crate::leader::groups::Groups;
use crate::leader::request::{JoinGroup, LeaveGroup, MemberRef, Response, SyncGroup, Token};
use crate::state::Machine;
use crate::state::command::{Command, Entry, NewTopic};
use crate::types::golden;
use crate::types::{LogIndex, Refusal, Term, TopicId, TopicPartition};

#[test]
fn group_scripts_show_what_they_say() {
    golden::run("src/leader/scripts/groups", || {
        let mut world = World::new();
        Box::new(move |line| world.run(line))
    });
}

struct World {
    groups: Groups,
    machine: Machine,
    now_ms: u64,
    labels: BTreeMap<Token, String>,
}

/// A command's words: positional ones and `key=value`.
struct Words<'a> {
    plain: Vec<&'a str>,
    named: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn parse(line: &'a str) -> Self {
        let mut words = Self { plain: Vec::new(), named: BTreeMap::new() };
        for word in line.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) => {
                    words.named.insert(key, value);
                }
                None => words.plain.push(word),
            }
        }
        words
    }

    fn number(&self, key: &str, default: i32) -> i32 {
        self.named.get(key).map_or(default, |value| value.parse().unwrap())
    }

    fn text(&self, key: &str) -> Option<Arc<str>> {
        self.named.get(key).map(|value| Arc::from(*value))
    }

    fn pairs(&self, key: &str) -> Vec<(Arc<str>, Bytes)> {
        let Some(list) = self.named.get(key).filter(|list| !list.is_empty()) else { return Vec::new() };
        list.split(',')
            .map(|pair| {
                let (name, bytes) = pair.split_once(':').unwrap_or((pair, ""));
                (Arc::from(name), written(bytes))
            })
            .collect()
    }

    /// GROUP MEMBER GENERATION from the second word on.
    fn member(&self) -> MemberRef {
        let id = if self.plain[2] == "-" { "" } else { self.plain[2] };
        let mut member = member(self.plain[1], id, self.plain[3].parse().unwrap());
        member.instance_id = self.text("instance");
        member
    }
}

fn written(text: &str) -> Bytes {
    match text.split_once('/') {
        Some((topic, partitions)) => {
            let partitions: Vec<i32> = partitions.split('+').map(|number| number.parse().unwrap()).collect();
            Bytes::from(consumer_protocol::sample::assignment(1, &[(topic, &partitions)]))
        }
        None => Bytes::copy_from_slice(text.as_bytes()),
    }
}

fn shown(bytes: &[u8]) -> String {
    let printable = bytes.iter().all(|byte| byte.is_ascii_graphic());
    if printable { String::from_utf8_lossy(bytes).into_owned() } else { format!("({} bytes)", bytes.len()) }
}

fn verdict(result: Result<(), Refusal>) -> String {
    match result {
        Ok(()) => "ok\n".to_owned(),
        Err(refusal) => format!("{refusal:?}\n"),
    }
}

impl World {
    fn new() -> Self {
        Self { groups: Groups::new(settings()), machine: Machine::default(), now_ms: 0, labels: BTreeMap::new() }
    }

    fn token(&mut self, label: &str) -> Token {
        let token = Token(self.labels.len() as u64 + 1);
        self.labels.insert(token, format!("{label}({})", token.0));
        token
    }

    fn run(&mut self, line: &str) -> String {
        let words = Words::parse(line);
        let now = at(self.now_ms);
        let mut out = Vec::new();
        let mut text = match words.plain[0] {
            "settings" => {
                let mut chosen = settings();
                chosen.group_initial_rebalance_delay_ms = words.number("delay", 0);
                chosen.group_max_size = words.number("max", 100) as usize;
                self.groups = Groups::new(chosen);
                String::new()
            }
            "join" => self.join(&words, &mut out),
            "sync" => self.sync(&words, &mut out),
            "heartbeat" => verdict(self.groups.heartbeat(now, &words.member())),
            "commit" => verdict(self.groups.check_offset_commit(now, &words.member())),
            "txncommit" => verdict(self.groups.check_txn_offset_commit(&words.member())),
            "leave" => self.leave(&words, &mut out),
            "hold" => {
                self.groups.hold(&Arc::from(words.plain[1]));
                String::new()
            }
            "release" => {
                self.groups.release(now, words.plain[1], &mut out);
                String::new()
            }
            "changed" => format!("changed: {}\n", self.groups.drain_changed().join(" ")),
            "clear" => {
                let waiting = self.groups.clear();
                let names: Vec<&str> = waiting.iter().map(|token| self.labels[token].as_str()).collect();
                format!("still waiting: {}\n", names.join(" "))
            }
            "show" => self.show(words.plain[1]),
            "topic" => self.create(words.plain[1]),
            "owns" => self.owns(&words),
            "at" => self.advance(words.plain[1].parse().unwrap()),
            other => panic!("unknown command {other}"),
        };
        text.push_str(&self.answers(&out));
        text
    }

    fn join(&mut self, words: &Words<'_>, out: &mut Vec<Action>) -> String {
        let client = words.plain[2];
        let token = self.token(client);
        let stem = words.named.get("instance").unwrap_or(&client);
        let mut protocols = words.pairs("protocols");
        if !words.named.contains_key("protocols") {
            protocols = vec![("range".into(), Bytes::from(format!("meta-{client}")))];
        }
        let mut who = member(words.plain[1], words.named.get("member").unwrap_or(&""), -1);
        who.instance_id = words.text("instance");
        let request = JoinGroup {
            version: words.number("v", 3) as i16,
            member: who,
            session_timeout_ms: words.number("session", 10_000),
            rebalance_timeout_ms: words.number("rebalance", 60_000),
            protocol_type: words.text("type").unwrap_or_else(|| "consumer".into()),
            protocols,
            reason: None,
            fresh_member_id: format!("{stem}-{}", token.0).into(),
        };
        self.groups.join(at(self.now_ms), &caller(client), token, request, out);
        String::new()
    }

    fn sync(&mut self, words: &Words<'_>, out: &mut Vec<Action>) -> String {
        let token = self.token(words.plain[2]);
        let request = SyncGroup {
            member: words.member(),
            protocol_type: words.text("type"),
            protocol_name: words.text("protocol"),
            assignments: words.pairs("assign"),
        };
        self.groups.sync(at(self.now_ms), token, request, out);
        String::new()
    }

    fn leave(&mut self, words: &Words<'_>, out: &mut Vec<Action>) -> String {
        let who = |word: &&str| match word.split_once('/') {
            Some((id, instance)) => (Arc::from(id), Some(Arc::from(instance))),
            None => (Arc::from(*word), None),
        };
        let request = LeaveGroup { group: words.plain[1].into(), members: words.plain[2..].iter().map(who).collect() };
        let left = self.groups.leave(at(self.now_ms), &request, out);
        let mut text = String::new();
        for (word, outcome) in words.plain[2..].iter().zip(left) {
            let _ = write!(text, "{word}: {}", verdict(outcome));
        }
        text
    }

    fn create(&mut self, name: &str) -> String {
        let id = topic_id(name);
        let topic = NewTopic { id, name: name.to_owned(), partitions: 8, configs: Vec::new() };
        let index = LogIndex(self.machine.applied().map_or(0, |(index, _)| index.0 + 1));
        let entry = Entry { now_ms: 0, command: Command::CreateTopics(vec![topic]) };
        let (_, outcome) = self.machine.apply(index, Term(1), &entry);
        assert!(format!("{outcome:?}").contains("Ok"), "{outcome:?}");
        String::new()
    }

    fn owns(&self, words: &Words<'_>) -> String {
        let partition = words.plain[5].parse().unwrap();
        let of = TopicPartition { topic: topic_id(words.plain[4]), partition };
        let owns = self.groups.still_owns(&self.machine, &words.member(), &[of]);
        if owns { "owns it\n".to_owned() } else { "owns nothing there\n".to_owned() }
    }

    fn advance(&mut self, to_ms: u64) -> String {
        let mut text = String::new();
        while let Some(due_ms) = self.groups.next_deadline_ms().filter(|due_ms| *due_ms <= to_ms) {
            self.now_ms = self.now_ms.max(due_ms);
            let mut out = Vec::new();
            self.groups.handle_timeout(at(self.now_ms), &mut out);
            for line in self.answers(&out).lines() {
                let _ = writeln!(text, "{:>6} {line}", self.now_ms);
            }
        }
        self.now_ms = to_ms;
        text
    }

    fn show(&self, group: &str) -> String {
        let Some(view) = self.groups.get(group) else { return "not known\n".to_owned() };
        let name = |name: Option<&Arc<str>>| name.map_or_else(|| "-".to_owned(), |name| name.to_string());
        let mut text = format!("{} generation={}", view.state(), view.generation());
        let (kind, protocol) = (name(view.protocol_type()), name(view.protocol_name()));
        let _ = writeln!(text, " type={kind} protocol={protocol} leader={}", name(view.leader()));
        for member in view.members() {
            let instance = name(member.instance_id());
            let assignment = shown(member.assignment());
            let _ = write!(text, "  {} instance={instance} client={}", member.id(), member.client_id());
            let _ = writeln!(text, " metadata={} assignment={assignment}", shown(&member.metadata()));
        }
        text
    }

    fn answers(&self, out: &[Action]) -> String {
        let mut text = String::new();
        for action in out {
            let Action::Reply(token, response) = action else {
                panic!("a group answers and does nothing else: {action:?}");
            };
            let _ = writeln!(text, "{}: {}", self.labels[token], told(response));
        }
        text
    }
}

fn told(response: &Response) -> String {
    match response {
        Response::Refused(refusal) => format!("{refusal:?}"),
        Response::MemberIdRequired(id) => format!("join again as {id}"),
        Response::Synced(synced) => {
            format!("assigned [{}] by {}/{}", shown(&synced.assignment), synced.protocol_type, synced.protocol_name)
        }
        Response::Joined(joined) => {
            let mut text = format!("joined generation {} as {}", joined.generation, joined.member_id);
            let _ = write!(text, " leader {} {}/{}", joined.leader, joined.protocol_type, joined.protocol_name);
            if joined.skip_assignment {
                text.push_str(" skip");
            }
            for (id, instance, metadata) in &joined.members {
                let instance = instance.as_ref().map(|id| format!("({id})")).unwrap_or_default();
                let _ = write!(text, " {id}{instance}={}", shown(metadata));
            }
            text
        }
        other => panic!("not a group's answer: {other:?}"),
    }
}

fn topic_id(name: &str) -> TopicId {
    let mut id = [0; 16];
    for (at, byte) in name.bytes().enumerate().take(16) {
        id[at] = byte;
    }
    TopicId(id)
}
