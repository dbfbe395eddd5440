//! Random histories: whatever clients do, each request is answered once, and no assignment is owned twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::{at, caller, join_request, member, settings};
use crate::leader::Action;
use crate::leader::groups::Groups;
use crate::leader::request::{LeaveGroup, MemberRef, Response, SyncGroup, Token};

const CLIENTS: usize = 5;

/// One step of one client of one group.
#[derive(Clone, Debug)]
enum Step {
    Join { client: usize, version: i16, forget_id: bool, protocols: u8 },
    Sync { client: usize },
    Heartbeat { client: usize },
    Commit { client: usize, transactional: bool },
    Leave { client: usize },
    Hold,
    Release,
    Wait { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let client = 0..CLIENTS;
    prop_oneof![
        5 => (client.clone(), prop::sample::select(vec![3_i16, 5, 9]), prop::bool::weighted(0.2), 1_u8..4)
            .prop_map(|(client, version, forget_id, protocols)| Step::Join { client, version, forget_id, protocols }),
        5 => client.clone().prop_map(|client| Step::Sync { client }),
        2 => client.clone().prop_map(|client| Step::Heartbeat { client }),
        1 => (client.clone(), any::<bool>()).prop_map(|(client, transactional)| Step::Commit { client, transactional }),
        1 => client.prop_map(|client| Step::Leave { client }),
        1 => Just(Step::Hold),
        2 => Just(Step::Release),
        2 => (1_u64..15_000).prop_map(|ms| Step::Wait { ms }),
    ]
}

/// What a client knows: clients 0 and 1 are static members.
#[derive(Clone, Debug, Default)]
struct Client {
    member_id: String,
    generation: i32,
    /// From the join answer, if it leads.
    members: Vec<Arc<str>>,
}

struct World {
    groups: Groups,
    clients: Vec<Client>,
    now_ms: u64,
    holds: u32,
    next_token: u64,
    /// Requests not answered yet: client, and member id and generation as sent.
    open: BTreeMap<Token, (usize, String, i32)>,
    /// Generation → the one SyncGroup whose assignments its members got.
    assigned: BTreeMap<i32, String>,
    sent: u64,
}

impl World {
    fn new(delay_ms: i32) -> Self {
        let mut chosen = settings();
        chosen.group_initial_rebalance_delay_ms = delay_ms;
        chosen.group_max_size = 4;
        Self {
            groups: Groups::new(chosen),
            clients: vec![Client::default(); CLIENTS],
            now_ms: 0,
            holds: 0,
            next_token: 0,
            open: BTreeMap::new(),
            assigned: BTreeMap::new(),
            sent: 0,
        }
    }

    fn token(&mut self, client: usize) -> Token {
        self.next_token += 1;
        let Client { member_id, generation, .. } = self.clients[client].clone();
        self.open.insert(Token(self.next_token), (client, member_id, generation));
        Token(self.next_token)
    }

    fn who(&self, client: usize) -> MemberRef {
        let mut who = member("g", &self.clients[client].member_id, self.clients[client].generation);
        who.instance_id = (client < 2).then(|| Arc::from(format!("i{client}")));
        who
    }

    fn generation(&self) -> i32 {
        self.groups.get("g").map_or(0, |group| group.generation())
    }

    fn take(&mut self, step: Step) {
        let mut out = Vec::new();
        let now = at(self.now_ms);
        let held = self.holds > 0 && !matches!(step, Step::Release);
        let before = self.generation();
        match step {
            Step::Join { client, version, forget_id, protocols } => {
                let token = self.token(client);
                if forget_id {
                    self.clients[client].member_id.clear();
                }
                let who = self.who(client);
                let mut request = join_request("g", &who.member_id, &format!("c{client}-{}", token.0));
                request.version = version;
                request.member = who;
                let offered = ["range", "sticky"].into_iter().enumerate().filter(|(bit, _)| protocols >> bit & 1 == 1);
                request.protocols = offered.map(|(_, name)| (Arc::from(name), Bytes::from_static(b"m"))).collect();
                self.groups.join(now, &caller("c"), token, request, &mut out);
            }
            Step::Sync { client } => {
                let token = self.token(client);
                let member = self.who(client);
                self.sent += 1;
                let assign = |id: &Arc<str>| (Arc::clone(id), Bytes::from(format!("{}:{id}", self.sent)));
                let assignments = self.clients[client].members.iter().map(assign).collect();
                let request = SyncGroup { member, protocol_type: None, protocol_name: None, assignments };
                self.groups.sync(now, token, request, &mut out);
            }
            Step::Heartbeat { client } => {
                let _ = self.groups.heartbeat(now, &self.who(client));
            }
            Step::Commit { client, transactional: true } => {
                let _ = self.groups.check_txn_offset_commit(&self.who(client));
            }
            Step::Commit { client, transactional: false } => {
                let _ = self.groups.check_offset_commit(now, &self.who(client));
            }
            Step::Leave { client } => {
                let who = self.who(client);
                let request = LeaveGroup { group: "g".into(), members: vec![(who.member_id, who.instance_id)] };
                self.groups.leave(now, &request, &mut out);
            }
            Step::Hold => {
                self.holds += 1;
                self.groups.hold(&Arc::from("g"));
            }
            Step::Release if self.holds > 0 => {
                self.holds -= 1;
                self.groups.release(now, "g", &mut out);
            }
            Step::Release => {}
            Step::Wait { ms } => {
                self.now_ms += ms;
                self.groups.handle_timeout(at(self.now_ms), &mut out);
                assert!(self.groups.next_deadline_ms().is_none_or(|due_ms| due_ms > self.now_ms));
            }
        }
        assert!(!held || self.generation() == before, "no rebalance completes while an EndTxn is in flight");
        self.receive(out);
        self.check();
    }

    fn receive(&mut self, out: Vec<Action>) {
        for action in out {
            let Action::Reply(token, response) = action else { panic!("{action:?}") };
            let (client, member_id, generation) = self.open.remove(&token).expect("answered once, and only if asked");
            match response {
                Response::MemberIdRequired(id) => self.clients[client].member_id = id.to_string(),
                Response::Joined(joined) => {
                    self.clients[client] = Client {
                        member_id: joined.member_id.to_string(),
                        generation: joined.generation,
                        members: joined.members.iter().map(|(id, _, _)| Arc::clone(id)).collect(),
                    };
                }
                Response::Synced(synced) if !synced.assignment.is_empty() => {
                    let text = String::from_utf8(synced.assignment.to_vec()).unwrap();
                    let (sent, owner) = text.split_once(':').unwrap();
                    // A static member's successor has another id and the same part.
                    let client_of = |id: &str| id.split('-').next().unwrap().to_owned();
                    assert_eq!(client_of(owner), client_of(&member_id), "each gets its own part");
                    let first = self.assigned.entry(generation).or_insert_with(|| sent.to_owned());
                    assert_eq!(first, sent, "one assignment per generation");
                }
                _ => {}
            }
        }
    }

    /// Invariants of the group that hold between any two steps.
    fn check(&self) {
        let Some(group) = self.groups.table.get("g") else {
            assert!(self.open.is_empty(), "somebody waits for a group that is gone");
            return;
        };
        assert_eq!(
            group.waiting().collect::<BTreeSet<_>>(),
            self.open.keys().copied().collect(),
            "who waits, is known"
        );
        assert_eq!(group.awaiting_join(), group.members.values().filter(|member| member.is_joining()).count());
        assert_eq!(group.state.name() == "Empty", group.empty_since_ms.is_some());
        assert_eq!(self.groups.shared.bytes, group.bytes);
        for id in group.static_members.values() {
            assert!(group.members.contains_key(id));
        }
        if !group.members.is_empty() {
            assert!(group.leader.as_ref().is_some_and(|leader| group.members.contains_key(leader)));
            assert!(group.select_protocol().is_some(), "all members offer one protocol at least");
            let parked = group.members.values().filter(|member| member.syncing.is_some()).count();
            assert!(parked == 0 || group.state.name() == "CompletingRebalance");
            assert!(group.awaiting_join() == 0 || group.state.name() == "PreparingRebalance");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_clients_do_each_request_is_answered_once(
        delay_ms in prop::sample::select(vec![0, 3_000]),
        steps in prop::collection::vec(step(), 1..120),
        cleared in any::<bool>(),
    ) {
        let mut world = World::new(delay_ms);
        for step in steps {
            world.take(step);
        }
        if cleared {
            let waiting: BTreeSet<Token> = world.groups.clear().into_iter().collect();
            prop_assert_eq!(waiting, world.open.keys().copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(world.groups.next_deadline_ms(), None);
            prop_assert!(world.groups.iter().next().is_none());
        } else {
            // EndTxns end, clients fall silent: everyone is answered and the group becomes empty (GR04).
            while world.holds > 0 {
                world.take(Step::Release);
            }
            for _ in 0..40 {
                world.take(Step::Wait { ms: 10_000 });
            }
            prop_assert!(world.open.is_empty());
            prop_assert!(!world.groups.has_members("g"));
        }
    }
}
