//! One group and its members (Kafka's `ClassicGroup`, `ClassicGroupMember`): data, and the questions asked of it.
//!
//! Nothing here answers a request or sets a timer; that is `leader/rebalance` and `join`. Members are kept in the order
//! of their ids, so that every choice among them is the same each time.
//!
//! Invariants: `awaiting_join` counts the members with a parked join; `supported` counts, per protocol, the members that
//! offer it; `static_members` maps each instance id to a member that exists; with members there is a leader, and at least
//! one protocol that all of them offer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::leader::request::{MemberRef, Token};
use crate::types::Refusal;

/// State of a group. Kafka's fifth, Dead, is a group that is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::leader) enum State {
    /// No members; the generation is remembered.
    Empty,
    /// Waits for members to join.
    PreparingRebalance,
    /// Waits for the leader's assignment.
    CompletingRebalance,
    /// Everyone has, or may fetch, its assignment.
    Stable,
}

impl State {
    /// Kafka's name for it, as DescribeGroups shows it.
    pub(in crate::leader) fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::PreparingRebalance => "PreparingRebalance",
            State::CompletingRebalance => "CompletingRebalance",
            State::Stable => "Stable",
        }
    }
}

/// What the join phase waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::leader) enum JoinWait {
    /// More first members, for a while (`group.initial.rebalance.delay.ms`): the phase does not end before its timer.
    Initial {
        /// The delay that runs now.
        delay_ms: u64,
        /// By how much it may still be extended.
        remaining_ms: u64,
    },
    /// All members, at most for the rebalance timeout.
    Members,
    /// EndTxns in flight, nothing else.
    EndTxns,
}

/// One member.
#[derive(Debug)]
pub(in crate::leader) struct Member {
    pub(in crate::leader) id: Arc<str>,
    pub(in crate::leader) instance_id: Option<Arc<str>>,
    pub(in crate::leader) client_id: Arc<str>,
    pub(in crate::leader) host: Arc<str>,
    pub(in crate::leader) session_timeout_ms: u64,
    pub(in crate::leader) rebalance_timeout_ms: u64,
    /// (name, metadata), in order of preference; each name once.
    pub(in crate::leader) protocols: Vec<(Arc<str>, Bytes)>,
    /// Of the generation that was stable last; empty before the first.
    pub(in crate::leader) assignment: Bytes,
    /// Its first join is not answered yet.
    pub(in crate::leader) is_new: bool,
    /// A parked JoinGroup. Changed only by [`Group::park_join`] and [`Group::take_join`], which count.
    joining: Option<Token>,
    /// A parked SyncGroup.
    pub(in crate::leader) syncing: Option<Token>,
}

impl Member {
    /// A member whose first join is about to be parked.
    pub(in crate::leader) fn new(
        id: Arc<str>,
        instance_id: Option<Arc<str>>,
        client_id: Arc<str>,
        host: Arc<str>,
    ) -> Self {
        Self {
            id,
            instance_id,
            client_id,
            host,
            session_timeout_ms: 0,
            rebalance_timeout_ms: 0,
            protocols: Vec::new(),
            assignment: Bytes::new(),
            is_new: true,
            joining: None,
            syncing: None,
        }
    }

    /// Whether its JoinGroup is parked.
    pub(in crate::leader) fn is_joining(&self) -> bool {
        self.joining.is_some()
    }

    /// Its metadata for a protocol.
    pub(in crate::leader) fn metadata(&self, protocol: &str) -> Bytes {
        self.protocols.iter().find(|(name, _)| &**name == protocol).map(|(_, bytes)| bytes.clone()).unwrap_or_default()
    }

    fn bytes(&self) -> usize {
        protocols_bytes(&self.protocols) + self.assignment.len() + MEMBER_BYTES
    }
}

/// What a member costs besides its metadata: ids, client, host, timers. A rounded guess; it bounds members without metadata.
const MEMBER_BYTES: usize = 512;

/// Bytes of a protocol list.
pub(in crate::leader) fn protocols_bytes(protocols: &[(Arc<str>, Bytes)]) -> usize {
    protocols.iter().map(|(name, metadata)| name.len() + metadata.len()).sum()
}

/// One group.
#[derive(Debug)]
pub(in crate::leader) struct Group {
    pub(in crate::leader) id: Arc<str>,
    pub(in crate::leader) state: State,
    /// Wall clock of the last change of state.
    pub(in crate::leader) state_since_ms: i64,
    pub(in crate::leader) generation: i32,
    /// The generation whose assignments the members hold.
    pub(in crate::leader) assigned_generation: i32,
    pub(in crate::leader) protocol_type: Option<Arc<str>>,
    pub(in crate::leader) protocol_name: Option<Arc<str>>,
    pub(in crate::leader) leader: Option<Arc<str>>,
    pub(in crate::leader) members: BTreeMap<Arc<str>, Member>,
    pub(in crate::leader) static_members: BTreeMap<Arc<str>, Arc<str>>,
    /// Ids given out (79) and not used yet, oldest first. They hold up nothing (GR02).
    pub(in crate::leader) pending: VecDeque<Arc<str>>,
    /// Members that have the new generation and did not ask for its assignment yet.
    pub(in crate::leader) pending_sync: BTreeSet<Arc<str>>,
    pub(in crate::leader) join_wait: JoinWait,
    /// A member came during the initial delay: it is extended once more.
    pub(in crate::leader) new_member_added: bool,
    /// When it became empty, the key of its place in the order in which empty groups are forgotten.
    pub(in crate::leader) empty_since_ms: Option<u64>,
    /// Metadata and assignments of all members.
    pub(in crate::leader) bytes: usize,
    supported: BTreeMap<Arc<str>, usize>,
    awaiting_join: usize,
}

impl Group {
    /// A group nobody has joined.
    pub(in crate::leader) fn new(id: Arc<str>, wall_ms: i64) -> Self {
        Self {
            id,
            state: State::Empty,
            state_since_ms: wall_ms,
            generation: 0,
            assigned_generation: 0,
            protocol_type: None,
            protocol_name: None,
            leader: None,
            members: BTreeMap::new(),
            static_members: BTreeMap::new(),
            pending: VecDeque::new(),
            pending_sync: BTreeSet::new(),
            join_wait: JoinWait::Members,
            new_member_added: false,
            empty_since_ms: None,
            bytes: 0,
            supported: BTreeMap::new(),
            awaiting_join: 0,
        }
    }

    /// Whether it says nothing that a group not in the table would not say.
    pub(in crate::leader) fn is_blank(&self) -> bool {
        self.state == State::Empty && self.generation == 0 && self.members.is_empty() && self.pending.is_empty()
    }

    /// Members with a parked join.
    pub(in crate::leader) fn awaiting_join(&self) -> usize {
        self.awaiting_join
    }

    /// Whether every member has a parked join. Kafka also waits for pending ids; a client that asked twice and uses the
    /// second would stop the group for a session timeout (GR02).
    pub(in crate::leader) fn all_joined(&self) -> bool {
        self.awaiting_join == self.members.len()
    }

    /// Whether a member id is the leader's.
    pub(in crate::leader) fn is_leader(&self, member_id: &str) -> bool {
        self.leader.as_deref() == Some(member_id)
    }

    /// Whether a member id was given out and not used yet.
    pub(in crate::leader) fn is_pending(&self, member_id: &str) -> bool {
        self.pending.iter().any(|id| &**id == member_id)
    }

    /// The longest rebalance timeout of the members.
    pub(in crate::leader) fn rebalance_timeout_ms(&self) -> u64 {
        self.members.values().map(|member| member.rebalance_timeout_ms).max().unwrap_or(1)
    }

    /// Whether a member with these protocols fits (Kafka's `supportsProtocols`): type as the group's, and one protocol
    /// that every member offers. An empty group takes any type and any protocol, but some.
    pub(in crate::leader) fn supports(&self, protocol_type: &str, protocols: &[(Arc<str>, Bytes)]) -> bool {
        if self.state == State::Empty {
            return !protocol_type.is_empty() && !protocols.is_empty();
        }
        if self.members.is_empty() {
            return self.protocol_type.as_deref() == Some(protocol_type) && !protocols.is_empty();
        }
        self.protocol_type.as_deref() == Some(protocol_type)
            && protocols.iter().any(|(name, _)| self.supported.get(name) == Some(&self.members.len()))
    }

    /// The protocol most members prefer among those that all offer; a tie goes to the leader's order.
    pub(in crate::leader) fn select_protocol(&self) -> Option<Arc<str>> {
        let offered_by_all = |name: &Arc<str>| self.supported.get(name) == Some(&self.members.len());
        let mut votes: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        for member in self.members.values() {
            if let Some((name, _)) = member.protocols.iter().find(|(name, _)| offered_by_all(name)) {
                *votes.entry(name).or_default() += 1;
            }
        }
        let most = votes.values().max()?;
        let leader = self.members.get(self.leader.as_ref()?)?;
        let preferred = leader.protocols.iter().map(|(name, _)| name).find(|name| votes.get(name) == Some(most));
        preferred.cloned()
    }

    /// Who a member is: its id must be known and, for a static one, be the one its instance id has now.
    ///
    /// # Errors
    /// 82 if another member took over the instance id, 25 if the member is unknown (Kafka's `validateMember`).
    pub(in crate::leader) fn validate(
        &self,
        member_id: &str,
        instance_id: Option<&Arc<str>>,
    ) -> Result<&Member, Refusal> {
        if let Some(instance_id) = instance_id {
            match self.static_members.get(instance_id) {
                None => return Err(Refusal::UnknownMemberId),
                Some(current) if &**current != member_id => return Err(Refusal::FencedInstanceId),
                Some(_) => {}
            }
        }
        self.members.get(member_id).ok_or(Refusal::UnknownMemberId)
    }

    /// The same, for a request that names a generation.
    ///
    /// # Errors
    /// As [`Group::validate`], and 22 for another generation.
    pub(in crate::leader) fn validate_generation(&self, member: &MemberRef) -> Result<&Member, Refusal> {
        let found = self.validate(&member.member_id, member.instance_id.as_ref())?;
        if member.generation == self.generation { Ok(found) } else { Err(Refusal::IllegalGeneration) }
    }

    /// Takes in a member. The first one leads and gives the group its type.
    pub(in crate::leader) fn add(&mut self, member: Member, protocol_type: &Arc<str>) {
        if self.members.is_empty() {
            self.protocol_type = Some(Arc::clone(protocol_type));
        }
        self.pending.retain(|id| *id != member.id);
        self.leader.get_or_insert_with(|| Arc::clone(&member.id));
        if let Some(instance_id) = &member.instance_id {
            self.static_members.insert(Arc::clone(instance_id), Arc::clone(&member.id));
        }
        self.count(&member.protocols);
        self.bytes += member.bytes();
        self.members.insert(Arc::clone(&member.id), member);
    }

    /// Lets a member go; leadership passes to the next. What it waited for is the caller's to answer.
    pub(in crate::leader) fn remove(&mut self, member_id: &str) -> Option<(Member, Option<Token>)> {
        let joining = self.take_join(member_id);
        let member = self.members.remove(member_id)?;
        self.discount(&member.protocols);
        self.bytes -= member.bytes();
        self.pending_sync.remove(member_id);
        if let Some(instance_id) = &member.instance_id {
            self.static_members.remove(instance_id);
        }
        if self.is_leader(member_id) {
            self.leader = self.members.keys().next().cloned();
        }
        Some((member, joining))
    }

    /// A static member came back under a new id (KIP-345): it takes over everything, the parked requests excepted, which are
    /// returned: (join, sync).
    pub(in crate::leader) fn replace(&mut self, old_id: &str, new_id: &Arc<str>) -> (Option<Token>, Option<Token>) {
        let joining = self.take_join(old_id);
        let Some(mut member) = self.members.remove(old_id) else { return (joining, None) };
        let syncing = member.syncing.take();
        member.id = Arc::clone(new_id);
        if let Some(instance_id) = &member.instance_id {
            self.static_members.insert(Arc::clone(instance_id), Arc::clone(new_id));
        }
        if self.is_leader(old_id) {
            self.leader = Some(Arc::clone(new_id));
        }
        if self.pending_sync.remove(old_id) {
            self.pending_sync.insert(Arc::clone(new_id));
        }
        self.members.insert(Arc::clone(new_id), member);
        (joining, syncing)
    }

    /// A member's protocols as of its latest join.
    pub(in crate::leader) fn set_protocols(&mut self, member_id: &str, protocols: Vec<(Arc<str>, Bytes)>) {
        let Some(member) = self.members.get_mut(member_id) else { return };
        let (old, new) = (protocols_bytes(&member.protocols), protocols_bytes(&protocols));
        let before = std::mem::replace(&mut member.protocols, protocols.clone());
        self.bytes = self.bytes - old + new;
        self.discount(&before);
        self.count(&protocols);
    }

    /// A member's assignment of the current generation.
    pub(in crate::leader) fn set_assignment(&mut self, member_id: &str, assignment: Bytes) {
        let Some(member) = self.members.get_mut(member_id) else { return };
        self.bytes = self.bytes - member.assignment.len() + assignment.len();
        member.assignment = assignment;
    }

    /// Parks a join; an earlier one of the same member that was parked is returned.
    pub(in crate::leader) fn park_join(&mut self, member_id: &str, token: Token) -> Option<Token> {
        let member = self.members.get_mut(member_id)?;
        let before = member.joining.replace(token);
        if before.is_none() {
            self.awaiting_join += 1;
        }
        before
    }

    /// Takes a parked join, to answer it.
    pub(in crate::leader) fn take_join(&mut self, member_id: &str) -> Option<Token> {
        let token = self.members.get_mut(member_id)?.joining.take()?;
        self.awaiting_join -= 1;
        Some(token)
    }

    /// A leader that joined (Kafka's `maybeElectNewJoinedLeader`); false if nobody did.
    pub(in crate::leader) fn elect_joined_leader(&mut self) -> bool {
        let joined = |id: &Arc<str>| self.members.get(id).is_some_and(Member::is_joining);
        if self.leader.as_ref().is_some_and(joined) {
            return true;
        }
        match self.members.values().find(|member| member.is_joining()) {
            Some(member) => {
                self.leader = Some(Arc::clone(&member.id));
                true
            }
            None => false,
        }
    }

    /// Tokens of everything parked.
    pub(in crate::leader) fn waiting(&self) -> impl Iterator<Item = Token> {
        self.members.values().flat_map(|member| member.joining.into_iter().chain(member.syncing))
    }

    fn count(&mut self, protocols: &[(Arc<str>, Bytes)]) {
        for (name, _) in protocols {
            *self.supported.entry(Arc::clone(name)).or_default() += 1;
        }
    }

    fn discount(&mut self, protocols: &[(Arc<str>, Bytes)]) {
        for (name, _) in protocols {
            if let Some(count) = self.supported.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    self.supported.remove(name);
                }
            }
        }
    }
}
