//! Who belongs to the cluster: adding, removing and replacing nodes.
//!
//! ```text
//!  add:     ask the node who it is ─▶ learner ─▶ (checkpoint, log) ─▶ close to the end ─▶ voter
//!  remove:  the leader itself first gives leadership away; then joint consensus without the node, which is told
//!  replace: add, then remove
//! ```
//!
//! Decided at the leader; any other node passes the question on. One change at a time, and each is idempotent. Whoever leads
//! makes voters of learners that have caught up and ends a change that its predecessor left half done
//! ([`Membership::tend`]), so an operator needs to ask only once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::ChangeMembers;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::raft::ClientWriteResponse;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, MutexGuard};

use super::entry::Node;
use super::peers::client::Link;
use super::peers::message::{Answer, Ask, Class, Discovered, Standing};
use super::peers::{ANSWER_WITHIN, IN_SYNC_WITHIN, Peers, Progress, seen_by_leader};
use super::raft_types::{RaftMetrics, TypeConfig};
use super::sequencer::Raft;
use super::transfer::Transfer;
use super::{Log, Member};

/// A learner this close to the end of the log becomes a voter: what is in flight under load.
const CAUGHT_UP_ENTRIES: u64 = 1024;
/// How long a change waits for another one to end.
const BUSY_WITHIN: Duration = Duration::from_secs(5);
/// How long a change may take to be committed before its fate is called unknown.
const CHANGED_WITHIN: Duration = Duration::from_secs(20);
/// How long a node that passes a change on waits for the leader: a transfer of leadership may come first.
const PASSED_ON_WITHIN: Duration = Duration::from_secs(30);

/// How often a node to be added is asked who it is before it counts as unreachable.
const FIND_TRIES: u32 = 3;
/// How often the members are looked after.
const TEND_EVERY: Duration = Duration::from_millis(200);
/// A node that has heard from no leader for that long asks whether it still is a member, and as often again.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// After that long a node tells that it waits to be added: one that is just being founded knows soon.
const TELL_AFTER: Duration = Duration::from_secs(2);
/// How often it tells so.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// What an operator asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Take in the node that listens for peers there; it must have this id, if one is given.
    Add {
        /// The id it must have.
        id: Option<u64>,
        /// Where it listens for peers.
        address: String,
    },
    /// Let a node go.
    Remove(u64),
    /// Make that node the leader, or any other.
    Transfer(Option<u64>),
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Changed {
    /// The node with this id follows, and votes as soon as it has caught up.
    Learns(u64),
    /// The node with this id votes.
    Votes(u64),
    /// It is not a member (any more).
    Gone,
    /// This node leads.
    Leads(u64),
}

/// Why nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum MembershipError {
    /// There is no leader, or it changed meanwhile.
    #[error("no node leads the cluster at the moment; ask again")]
    NoLeader,
    /// One change at a time.
    #[error("another change of members is under way; ask again when it has ended")]
    Busy,
    /// Nobody would be left.
    #[error("node {0} is the only one that votes: nobody would be left")]
    LastVoter(u64),
    /// The remaining nodes would have no majority.
    #[error(
        "without node {id}, {close} of {remaining} voters follow closely: no majority, so the cluster would stand still"
    )]
    NoMajority {
        /// Who was to go.
        id: u64,
        /// Remaining voters that follow closely.
        close: usize,
        /// Remaining voters.
        remaining: usize,
    },
    /// The id is in use.
    #[error("node {id} is a member already, at {address}; remove it before another one takes its id")]
    Taken {
        /// The id.
        id: u64,
        /// Where that node is.
        address: String,
    },
    /// The node does not answer, or not as a node of this cluster.
    #[error("the node at {address} cannot be added: {why}")]
    NotAddable {
        /// Where it should be.
        address: String,
        /// What is wrong.
        why: String,
    },
    /// No such voter.
    #[error("node {0} is not a voter other than the leader")]
    NotAVoter(u64),
    /// The change was asked for, and its end is not known.
    #[error("{0}")]
    Unknown(String),
}

/// Changes members, where this node leads.
pub struct Membership {
    /// Over this.
    pub raft: Raft,
    /// The way to the others.
    pub peers: Arc<Peers>,
    /// Gives leadership away.
    pub transfer: Transfer,
    /// One change at a time.
    pub one: Mutex<()>,
}

impl Membership {
    fn me(&self) -> u64 {
        self.peers.identity().node_id
    }

    /// The addresses of all members, and of the leader if another node leads.
    fn look<T>(&self, look: impl FnOnce(&RaftMetrics) -> T) -> T {
        let metrics = self.raft.metrics();
        look(&metrics.borrow_watched())
    }

    /// Changes what is asked, here or at the leader.
    ///
    /// # Errors
    /// See [`MembershipError`].
    pub async fn change(&self, change: &Change) -> Result<Changed, MembershipError> {
        let (leader, node) = self.look(|metrics| {
            let leader = metrics.current_leader;
            (leader, leader.and_then(|id| metrics.membership_config.membership().get_node(&id).cloned()))
        });
        match (leader, node) {
            (Some(leader), _) if leader == self.me() => self.change_here(change).await,
            (Some(leader), Some(node)) => self.pass_on(leader, &node, change).await,
            _ => Err(MembershipError::NoLeader),
        }
    }

    async fn pass_on(&self, leader: u64, node: &Node, change: &Change) -> Result<Changed, MembershipError> {
        let asked = async {
            let mut link = Link::open(self.peers.clone(), Some(leader), &node.rpc, Class::Control).await?;
            link.ask(&Ask::Change(change.clone()), None, PASSED_ON_WITHIN).await
        };
        match asked.await {
            Ok((Answer::Changed(changed), _)) => changed,
            Ok((Answer::No(why), _)) => Err(MembershipError::Unknown(format!("node {leader}: {why}"))),
            Ok((other, _)) => Err(MembershipError::Unknown(format!("node {leader} answers {other:?}"))),
            Err(error) => Err(MembershipError::Unknown(format!("node {leader}, the leader, cannot be asked: {error}"))),
        }
    }

    /// Changes what is asked, as the leader.
    ///
    /// # Errors
    /// See [`MembershipError`].
    pub async fn change_here(&self, change: &Change) -> Result<Changed, MembershipError> {
        if self.look(|metrics| metrics.current_leader) != Some(self.me()) {
            return Err(MembershipError::NoLeader);
        }
        match change {
            Change::Add { id, address } => self.add(*id, address).await,
            Change::Remove(id) if *id == self.me() => self.remove_myself().await,
            Change::Remove(id) => self.remove(*id).await,
            Change::Transfer(to) => self.give_away(*to).await.map(Changed::Leads),
        }
    }

    /// Waits for the end of another change: often it is a learner that becomes a voter.
    async fn alone(&self) -> Result<MutexGuard<'_, ()>, MembershipError> {
        tokio::time::timeout(BUSY_WITHIN, self.one.lock()).await.map_err(|_| MembershipError::Busy)
    }

    async fn give_away(&self, to: Option<u64>) -> Result<u64, MembershipError> {
        use super::transfer::TransferError as Error;
        if to == Some(self.me()) {
            return Ok(self.me());
        }
        self.transfer.run(to).await.map_err(|error| match error {
            Error::NotLeader => MembershipError::NoLeader,
            Error::Busy => MembershipError::Busy,
            Error::NobodyElse => MembershipError::LastVoter(self.me()),
            Error::NotAVoter(id) => MembershipError::NotAVoter(id),
            Error::NotElected => MembershipError::Unknown(error.to_string()),
        })
    }

    async fn add(&self, id: Option<u64>, address: &str) -> Result<Changed, MembershipError> {
        let _one = self.alone().await?;
        let not = |why: String| MembershipError::NotAddable { address: address.to_owned(), why };
        let found = self.find(id, address).await.map_err(|error| not(error.to_string()))?;
        let (found_id, node) = (found.node_id, found.node);
        if id.is_some_and(|id| id != found_id) {
            return Err(not(format!("it is node {found_id}")));
        }
        let (known, voter) = self.look(|metrics| {
            let membership = metrics.membership_config.membership();
            (membership.get_node(&found_id).cloned(), membership.voter_ids().any(|voter| voter == found_id))
        });
        match (known, found.standing) {
            (Some(known), _) if known.rpc != node.rpc => {
                return Err(MembershipError::Taken { id: found_id, address: known.rpc });
            }
            (Some(_), _) if voter => return Ok(Changed::Votes(found_id)),
            (Some(_), _) => return Ok(Changed::Learns(found_id)),
            (None, Standing::Empty) => {
                return Err(not("it still looks for a cluster; give it these nodes as --seeds".into()));
            }
            (None, Standing::Invited(cluster) | Standing::Formed(cluster, _) | Standing::Removed(cluster))
                if cluster != self.peers.identity().cluster_id =>
            {
                return Err(not(format!("it belongs to cluster {}", uuid::Uuid::from_bytes(cluster))));
            }
            (None, Standing::Invited(_) | Standing::Formed(..) | Standing::Removed(_)) => {}
        }
        tracing::info!(node = found_id, address = node.rpc, "a node is added; it learns first");
        let added = self.raft.add_learner(found_id, node, false);
        ended(tokio::time::timeout(CHANGED_WITHIN, added).await, found_id)?;
        Ok(Changed::Learns(found_id))
    }

    /// Asks a node who it is; a busy machine may need a second call.
    async fn find(&self, id: Option<u64>, address: &str) -> std::io::Result<Discovered> {
        let mut tries = 1..=FIND_TRIES;
        loop {
            let last = tries.next().is_none_or(|this| this == FIND_TRIES);
            match self.discover(id, address).await {
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut && !last => {}
                found => return found,
            }
        }
    }

    async fn discover(&self, id: Option<u64>, address: &str) -> std::io::Result<Discovered> {
        let mut link = Link::open(self.peers.clone(), id, address, Class::Control).await?;
        match link.ask(&Ask::Discover, None, ANSWER_WITHIN).await?.0 {
            Answer::Discovered(discovered) => Ok(discovered),
            other => Err(std::io::Error::other(format!("{other:?}"))),
        }
    }

    async fn remove(&self, id: u64) -> Result<Changed, MembershipError> {
        let _one = self.alone().await?;
        let (node, voters, close) = self.look(|metrics| {
            let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
            let node = metrics.membership_config.membership().get_node(&id).cloned();
            (node, voters, seen_by_leader(metrics).in_sync)
        });
        let Some(node) = node else { return Ok(Changed::Gone) };
        let removal = if voters.contains(&id) {
            let remaining = voters.len() - 1;
            if remaining == 0 {
                return Err(MembershipError::LastVoter(id));
            }
            let close = close.iter().filter(|voter| **voter != id).count();
            if close <= remaining / 2 {
                return Err(MembershipError::NoMajority { id, close, remaining });
            }
            ChangeMembers::RemoveVoters(BTreeSet::from([id]))
        } else {
            ChangeMembers::RemoveNodes(BTreeSet::from([id]))
        };
        tracing::info!(node = id, "a node is removed");
        let removed = self.raft.change_membership(removal, false);
        ended(tokio::time::timeout(CHANGED_WITHIN, removed).await, id)?;
        self.tell_removed(id, &node).await;
        Ok(Changed::Gone)
    }

    /// Leadership goes first; whoever takes it removes this node.
    async fn remove_myself(&self) -> Result<Changed, MembershipError> {
        let leader = self.give_away(None).await?;
        let node = self.look(|metrics| metrics.membership_config.membership().get_node(&leader).cloned());
        let node = node.ok_or(MembershipError::NoLeader)?;
        self.pass_on(leader, &node, &Change::Remove(self.me())).await
    }

    /// Nobody sends it the entry that removed it. If it cannot be reached it finds out when it asks.
    async fn tell_removed(&self, id: u64, node: &Node) {
        let told = async {
            let mut link = Link::open(self.peers.clone(), Some(id), &node.rpc, Class::Control).await?;
            link.ask(&Ask::Removed, None, ANSWER_WITHIN).await
        };
        if let Err(error) = told.await {
            tracing::info!(node = id, %error, "the removed node could not be told");
        }
    }

    /// Looks after the members while this node leads, and after its own membership while it does not.
    pub async fn run(self: Arc<Self>) {
        let (mut asked, mut told) = (Instant::now(), Instant::now());
        let mut tell_after = TELL_AFTER;
        loop {
            tokio::time::sleep(TEND_EVERY).await;
            let (leads, member) = self.look(|metrics| {
                let member = metrics.membership_config.membership().get_node(&self.me()).is_some();
                (metrics.current_leader == Some(self.me()), member)
            });
            if leads {
                self.peers.note_removed(false);
                self.tend().await;
            } else if self.peers.heard_within(ASK_EVERY) {
                self.peers.note_removed(false);
            } else if member && asked.elapsed() >= ASK_EVERY {
                if self.is_removed().await {
                    self.peers.note_removed(true);
                }
                asked = Instant::now();
            } else if !member && told.elapsed() >= tell_after {
                (told, tell_after) = (Instant::now(), TELL_EVERY);
                let command = format!("katomic cluster add {}", self.peers.me().rpc);
                tracing::info!(command, "this node is not a member yet; it waits to be added");
            }
        }
    }

    /// What a leader looks after: learners that have caught up become voters, and a change that was left half done is
    /// ended. Does one thing at a time; errors are tried again by the next call.
    pub async fn tend(&self) {
        let Ok(_one) = self.one.try_lock() else { return };
        let Some(change) = self.look(due) else { return };
        if let ChangeMembers::ReplaceAllVoters(voters) = &change
            && !voters.contains(&self.me())
        {
            // The other leader ends the change. openraft would let this one go without giving up its lease.
            let given = self.give_away(None).await;
            return tracing::info!(?given, "this node is being removed, and gives leadership away first");
        }
        let what = format!("{change:?}");
        let changed = self.raft.change_membership(change, false);
        match ended(tokio::time::timeout(CHANGED_WITHIN, changed).await, self.me()) {
            Ok(()) => tracing::info!(what, "the members changed"),
            Err(error) => tracing::warn!(what, %error, "the members could not be changed"),
        }
    }

    /// Whether another member says that this node is none (any more). Asked by a node that hears from no leader.
    pub async fn is_removed(&self) -> bool {
        let me = self.me();
        let others: BTreeMap<u64, Node> =
            self.look(|metrics| metrics.membership_config.nodes().map(|(id, node)| (*id, node.clone())).collect());
        for (id, node) in others.into_iter().filter(|(id, _)| *id != me) {
            if let Ok(Discovered { standing: Standing::Formed(cluster, members), .. }) =
                self.discover(Some(id), &node.rpc).await
                && cluster == self.peers.identity().cluster_id
                && !members.nodes.contains_key(&me)
            {
                return true;
            }
        }
        false
    }
}

/// What a leader should do about its members.
fn due(metrics: &RaftMetrics) -> Option<ChangeMembers<u64, Node>> {
    metrics.replication.as_ref()?;
    let effective = &metrics.membership_config;
    if effective.log_id() != metrics.committed_membership_config.log_id() {
        return None;
    }
    let joint = effective.membership().get_joint_config();
    if joint.len() > 1 {
        return joint.last().cloned().map(ChangeMembers::ReplaceAllVoters);
    }
    let last = metrics.last_log_index.unwrap_or(0);
    let progress = seen_by_leader(metrics);
    // How far a learner was is known of a dead one too; as a voter it would only raise the majority.
    let ready = |id: &u64| {
        let close = progress.matched.get(id).is_some_and(|at| at.0.saturating_add(CAUGHT_UP_ENTRIES) >= last);
        let heard = progress.heard_ms.get(id).is_some_and(|ago| u128::from(*ago) < IN_SYNC_WITHIN.as_millis());
        close && heard
    };
    let ready: BTreeSet<u64> = effective.membership().learner_ids().filter(ready).collect();
    let voters = effective.voter_ids().collect::<BTreeSet<_>>().len() + ready.len();
    let majority = progress.in_sync.len() + ready.len() > voters / 2;
    (!ready.is_empty() && majority).then_some(ChangeMembers::AddVoterIds(ready))
}

type Written = Result<ClientWriteResponse<TypeConfig>, RaftError<TypeConfig, ClientWriteError<TypeConfig>>>;

fn ended(result: Result<Written, tokio::time::error::Elapsed>, id: u64) -> Result<(), MembershipError> {
    match result {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => Err(MembershipError::NoLeader),
        Ok(Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error)))) => Err(match error {
            ChangeMembershipError::InProgress(_) => MembershipError::Busy,
            ChangeMembershipError::EmptyMembership(_) => MembershipError::LastVoter(id),
            other => MembershipError::Unknown(other.to_string()),
        }),
        Ok(Err(error)) => Err(MembershipError::Unknown(error.to_string())),
        Err(_) => Err(MembershipError::Unknown(format!(
            "the change is not committed after {} s; it may still be, ask for the status",
            CHANGED_WITHIN.as_secs()
        ))),
    }
}

impl Log {
    /// Adds the node that listens for peers at `address`, with that id if one is given; at any node. It follows then, and
    /// votes as soon as it has caught up. Idempotent.
    ///
    /// # Errors
    /// See [`MembershipError`].
    pub async fn add_node(&self, id: Option<u64>, address: &str) -> Result<Changed, MembershipError> {
        self.change_members(Change::Add { id, address: address.to_owned() }).await
    }

    /// Removes a node; at any node, which may be the one to go. Idempotent.
    ///
    /// # Errors
    /// See [`MembershipError`].
    pub async fn remove_node(&self, id: u64) -> Result<Changed, MembershipError> {
        self.change_members(Change::Remove(id)).await
    }

    /// Changes members or who leads; at any node.
    ///
    /// # Errors
    /// See [`MembershipError`].
    pub async fn change_members(&self, change: Change) -> Result<Changed, MembershipError> {
        let membership = self.node.membership.clone();
        let Some(runtime) = &self.node.runtime.0 else { return Err(MembershipError::NoLeader) };
        // A task of its own: a caller that goes away must not leave a change half done.
        let running = runtime.spawn(async move { membership.change(&change).await });
        running.await.unwrap_or_else(|error| Err(MembershipError::Unknown(error.to_string())))
    }
}

/// The members as clients and operators see them, ascending. A node that no entry names is alone in its own eyes.
pub fn members(metrics: &RaftMetrics, progress: &Progress, me: &Member) -> Vec<Member> {
    let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
    let mut members: Vec<Member> = metrics
        .membership_config
        .nodes()
        .map(|(id, node)| Member {
            node_id: *id,
            host: node.host.clone(),
            port: node.port,
            rack: node.rack.clone(),
            rpc: node.rpc.clone(),
            voter: voters.contains(id),
            in_sync: progress.in_sync.contains(id),
            matched: progress.matched.get(id).copied(),
            heard_ms: progress.heard_ms.get(id).copied(),
        })
        .collect();
    // This node knows its own addresses better than the entry that once added it.
    for mine in members.iter_mut().filter(|member| member.node_id == me.node_id) {
        *mine = Member { voter: mine.voter, in_sync: mine.in_sync, matched: mine.matched, ..me.clone() };
    }
    if members.is_empty() {
        members.push(me.clone());
    }
    members.sort_by_key(|member| member.node_id);
    members
}

#[cfg(test)]
mod tests {
    use openraft::type_config::TypeConfigExt;

    use super::*;
    use crate::log::peers::message::of_id;

    /// What leader 1 of these voters and of learner 4 sees: all have the whole log, and these are heard.
    fn seen(voters: &[u64], heard: &[u64]) -> RaftMetrics {
        let voters: BTreeSet<u64> = voters.iter().copied().collect();
        let node = |id: u64| (id, Node { rpc: format!("n{id}:1"), host: format!("n{id}"), port: 1, rack: None });
        let nodes: BTreeMap<u64, Node> = voters.iter().copied().chain([4]).map(node).collect();
        let membership = openraft::Membership::new(vec![voters], nodes.clone()).expect("they have a node each");
        let entry = std::sync::Arc::new(openraft::StoredMembership::new(Some(of_id((1, 3))), membership));
        let now = TypeConfig::now();
        let long_ago = now - 2 * IN_SYNC_WITHIN;
        let heard = |id: &u64| (*id, Some((if heard.contains(id) { now } else { long_ago }).into()));
        RaftMetrics {
            last_log_index: Some(9),
            replication: Some(nodes.keys().map(|id| (*id, Some(of_id((1, 9))))).collect()),
            heartbeat: Some(nodes.keys().map(heard).collect()),
            membership_config: entry.clone(),
            committed_membership_config: entry,
            ..RaftMetrics::new_initial(1)
        }
    }

    #[test]
    fn a_learner_that_is_not_heard_does_not_become_a_voter() {
        let promoted = Some(ChangeMembers::AddVoterIds(BTreeSet::from([4])));
        assert_eq!(due(&seen(&[1, 2, 3], &[2, 3, 4])), promoted);
        assert_eq!(due(&seen(&[1, 2, 3], &[2, 3])), None);
        assert_eq!(due(&seen(&[1], &[])), None);
        assert_eq!(due(&seen(&[1], &[4])), promoted);
    }

    #[test]
    fn nobody_becomes_a_voter_of_a_cluster_without_a_majority() {
        assert_eq!(due(&seen(&[1, 2, 3], &[4])), None, "two of four");
        assert!(due(&seen(&[1, 2, 3], &[2, 4])).is_some(), "three of four");
    }
}
