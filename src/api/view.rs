//! What clients are told of the cluster: brokers, leader, epoch, replicas.
//!
//! One log has one leader, so it leads every partition, coordinates every group and transaction, and is the controller;
//! the leader epoch is its term. Every voter has every partition, so replicas are the voters, and ISR those in step.
//!
//! - A voter out of step is told as offline: clients need not tell late from gone, and stop reading from either.
//! - A node that acts as a proxy (`katomic.proxy`) names itself alone, so that clients behind one address never look for another.
//! - An epoch never goes back. While nobody is known to lead, it is that of the last leader that this node knew: the current term
//!   may be that of an election nobody won, and clients would pass over the true leader's epoch as older.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::BrokerId;
use parking_lot::Mutex;

use crate::log::{Log, LogStatus, Member};
use crate::types::{Refusal, Term};

/// How long every voter is named after the leader changed, also the dead one. librdkafka takes a broker that is named no more
/// off all its partitions at once, and finds them a leader a second later, even if the same answer names one.
const NAMED_AFTER_CHANGE: Duration = Duration::from_secs(2);

/// The newest term of which this node knew the leader.
#[derive(Clone, Debug, Default)]
pub struct KnownTerm {
    newest: Arc<AtomicU64>,
    /// The last leader's term that was told, and when it was told first; no time for the first one of this process.
    told: Arc<Mutex<Option<ToldTerm>>>,
}

type ToldTerm = (Term, Option<Instant>);

impl KnownTerm {
    /// The term to tell, given how the log stands and the term of the last applied entry.
    fn told(&self, status: &LogStatus, applied: Term) -> Term {
        let led = if status.leader.is_some() { status.term } else { applied };
        Term(self.newest.fetch_max(led.0, Ordering::Relaxed).max(led.0))
    }

    /// Whether the leader changed lately, as far as clients of this node were told.
    fn changed_lately(&self, status: &LogStatus) -> bool {
        let mut told = self.told.lock();
        match *told {
            _ if status.leader.is_none() => told.is_some(),
            None => {
                *told = Some((status.term, None));
                false
            }
            Some((term, since)) if term == status.term => {
                since.is_some_and(|since| since.elapsed() < NAMED_AFTER_CHANGE)
            }
            Some(_) => {
                *told = Some((status.term, Some(Instant::now())));
                true
            }
        }
    }
}

/// How this node stands in its cluster, for every handler that asks.
#[derive(Clone)]
pub struct Cluster {
    log: Log,
    known_term: KnownTerm,
    proxy: bool,
    /// What tests say of the log instead of it.
    #[cfg(test)]
    pub(super) pretended: Option<LogStatus>,
}

impl Cluster {
    /// As this log says.
    pub fn new(log: Log, proxy: bool) -> Self {
        Self {
            log,
            known_term: KnownTerm::default(),
            proxy,
            #[cfg(test)]
            pretended: None,
        }
    }

    /// How the log stands.
    pub fn status(&self) -> LogStatus {
        #[cfg(test)]
        if let Some(pretended) = &self.pretended {
            return pretended.clone();
        }
        self.log.status()
    }

    /// The term in which this node leads and serves.
    ///
    /// # Errors
    /// Loading while it leads and does not serve yet, else NotLeader. Whoever looks anything up for an answer that only
    /// the leader may give asks this first: what a follower has not applied yet would look as if it did not exist.
    pub fn serving(&self) -> Result<Term, Refusal> {
        #[cfg(test)]
        if let Some(pretended) = &self.pretended {
            return if pretended.serving { Ok(pretended.term) } else { Err(not_serving(pretended)) };
        }
        self.log.serving().ok_or_else(|| not_serving(&self.log.status()))
    }

    /// The epoch in which this node leads, only while no other can have been elected.
    pub fn leased(&self) -> Option<i32> {
        #[cfg(test)]
        if let Some(pretended) = &self.pretended {
            return pretended.serving.then(|| pretended.term.leader_epoch());
        }
        self.log.leased().map(Term::leader_epoch)
    }

    /// As whom this node answers what is asked of a partition's leader.
    pub fn standing(&self) -> Standing {
        // The usual case is decided without the members.
        self.serving().map_or_else(|_| Standing::of(&self.status()), |term| Standing::Leads(term.leader_epoch()))
    }

    /// Waits until this node no longer takes `leader` for the leader of `term`.
    pub async fn led_otherwise(&self, leader: u64, term: Term) {
        #[cfg(test)]
        if self.pretended.is_some() {
            return std::future::pending().await;
        }
        self.log.led_otherwise(leader, term).await;
    }

    /// What clients are told of the cluster.
    pub fn view(&self) -> View {
        self.view_of(&self.status())
    }

    /// The same, of a status that is there already.
    pub fn view_of(&self, status: &LogStatus) -> View {
        let applied = self.log.read(|machine| machine.applied().map(|(_, term)| term).unwrap_or_default());
        View::new(status, applied, &self.known_term, self.proxy)
    }
}

fn not_serving(status: &LogStatus) -> Refusal {
    if status.leader == Some(status.node_id) { Refusal::Loading } else { Refusal::NotLeader }
}

/// The cluster as one answer shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The brokers that are there, by id.
    pub brokers: Vec<Member>,
    /// The leader of everything, −1 if nobody is known to lead.
    pub leader: BrokerId,
    /// Who takes administrative requests: the leader, and this node while none is known, since any node passes them on. Clients
    /// that are told of no controller may not ask again for minutes (librdkafka); Kafka's brokers name one of them too.
    pub controller: BrokerId,
    /// The leader's epoch, or that of the last leader known.
    pub leader_epoch: i32,
    /// Who has every partition.
    pub replicas: Vec<BrokerId>,
    /// Those of them that are in step.
    pub in_sync: Vec<BrokerId>,
    /// Those that are not.
    pub offline: Vec<BrokerId>,
}

impl View {
    /// What clients of this node see.
    pub fn new(status: &LogStatus, applied: Term, known: &KnownTerm, proxy: bool) -> Self {
        let leader_epoch = known.told(status, applied).leader_epoch();
        let leader = status.leader.filter(|leader| status.members.iter().any(|member| member.node_id == *leader));
        if proxy {
            let me: Vec<Member> =
                status.members.iter().filter(|member| member.node_id == status.node_id).cloned().collect();
            let leader = leader.map_or(BrokerId(-1), |_| id(status.node_id));
            let replicas = vec![id(status.node_id)];
            return Self {
                brokers: me,
                leader,
                controller: id(status.node_id),
                leader_epoch,
                in_sync: replicas.clone(),
                replicas,
                offline: Vec::new(),
            };
        }
        let in_step = |member: &Member| member.in_sync || Some(member.node_id) == leader;
        let voters = |in_sync: Option<bool>| -> Vec<BrokerId> {
            let wanted = |member: &&Member| in_sync.is_none_or(|wanted| wanted == in_step(member));
            let voters = status.members.iter().filter(|member| member.voter);
            voters.filter(wanted).map(|member| id(member.node_id)).collect()
        };
        let (replicas, in_sync) = (voters(None), voters(Some(true)));
        // A node that is gone is named no more, as Kafka does: sarama asks a coordinator that it knows for as long as it is
        // named. But all are named by a leader too new to have heard from a quorum, or clients would know one node only.
        let heard = in_sync.len() > replicas.len() / 2;
        let all = !heard || known.changed_lately(status);
        let named = |member: &&Member| all || !member.voter || in_step(member) || member.node_id == status.node_id;
        Self {
            brokers: status.members.iter().filter(named).cloned().collect(),
            leader: leader.map_or(BrokerId(-1), id),
            controller: id(leader.unwrap_or(status.node_id)),
            leader_epoch,
            replicas,
            in_sync,
            offline: voters(Some(false)),
        }
    }

    /// The leader with its addresses, if known.
    pub fn leader(&self) -> Option<&Member> {
        self.brokers.iter().find(|broker| id(broker.node_id) == self.leader)
    }
}

/// As whom this node answers what is asked of a partition's leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It leads in this epoch and serves.
    Leads(i32),
    /// It follows the leader of this epoch closely enough to serve consumers that were sent to it.
    Follows(i32),
    /// It serves nobody: no leader is known, it lost touch with it, or it does not serve yet. The leader's epoch, if known.
    Away(Option<i32>),
}

impl Standing {
    /// As the log stands.
    pub fn of(status: &LogStatus) -> Self {
        let epoch = status.term.leader_epoch();
        let me = status.members.iter().find(|member| member.node_id == status.node_id);
        match status.leader {
            Some(_) if status.serving => Standing::Leads(epoch),
            Some(leader) if leader != status.node_id && me.is_some_and(|me| me.in_sync) => Standing::Follows(epoch),
            leader => Standing::Away(leader.map(|_| epoch)),
        }
    }

    /// The epoch in which this node may answer as the leader, or to a `follower`'s reader, given the one the client knows.
    ///
    /// # Errors
    /// As Kafka's `Partition.getLocalLog`: FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH come before NOT_LEADER_OR_FOLLOWER.
    pub fn admit(self, known: i32, follower: bool) -> Result<i32, E> {
        let ours = match self {
            Standing::Leads(epoch) | Standing::Follows(epoch) => epoch,
            Standing::Away(epoch) => epoch.ok_or(E::NotLeaderOrFollower)?,
        };
        match known {
            0.. if known < ours => Err(E::FencedLeaderEpoch),
            0.. if known > ours => Err(E::UnknownLeaderEpoch),
            _ => match self {
                Standing::Leads(_) => Ok(ours),
                Standing::Follows(_) if follower => Ok(ours),
                Standing::Follows(_) | Standing::Away(_) => Err(E::NotLeaderOrFollower),
            },
        }
    }
}

/// A node id as Kafka's broker id; ids beyond are refused at start.
pub fn id(node_id: u64) -> BrokerId {
    BrokerId(i32::try_from(node_id).unwrap_or(i32::MAX))
}

/// The follower that a consumer in `rack` should read from (KIP-392, Kafka's `RackAwareReplicaSelector`): None is the leader.
///
/// Kafka takes the most caught-up of the rack that has the offset; an index of our log says the same of all partitions.
pub fn preferred_replica(status: &LogStatus, rack: &str) -> Option<BrokerId> {
    let in_rack = |member: &&Member| member.rack.as_deref() == Some(rack);
    let leader = status.members.iter().find(|member| Some(member.node_id) == status.leader)?;
    if rack.is_empty() || in_rack(&leader) {
        return None;
    }
    let candidates = status.members.iter().filter(in_rack).filter(|member| member.voter && member.in_sync);
    candidates.max_by_key(|member| (member.matched, std::cmp::Reverse(member.node_id))).map(|member| id(member.node_id))
}

#[cfg(test)]
mod tests {
    use super::super::metadata::sample;
    use super::*;
    use crate::types::LogIndex;

    fn ids(of: &[i32]) -> Vec<BrokerId> {
        of.iter().map(|id| BrokerId(*id)).collect()
    }

    fn view(status: &LogStatus) -> View {
        View::new(status, Term(4), &KnownTerm::default(), false)
    }

    #[test]
    fn replicas_are_the_voters_and_isr_those_in_step() {
        let mut status = sample::status(5, Some(2));
        status.members[1].in_sync = false;
        status.members[2].in_sync = false;
        status.members[4].voter = false;
        let view = view(&status);
        let named = |view: &View| view.brokers.iter().map(|broker| broker.node_id).collect::<Vec<_>>();
        assert_eq!(named(&view), [1, 2, 4, 5], "a learner is a broker too, a node that is gone is none");
        assert_eq!((view.leader, view.leader_epoch), (BrokerId(2), 5));
        assert_eq!(view.replicas, ids(&[1, 2, 3, 4]));
        assert_eq!(view.in_sync, ids(&[1, 2, 4]), "the leader always is");
        assert_eq!(view.offline, ids(&[3]));
        status.members.iter_mut().for_each(|member| member.in_sync = false);
        assert_eq!(named(&self::view(&status)), [1, 2, 3, 4, 5], "nobody was heard yet");
    }

    #[test]
    fn an_epoch_never_goes_back_and_a_term_without_a_leader_is_none() {
        let known = KnownTerm::default();
        let told = |term, leader, applied| {
            let status = LogStatus { term: Term(term), ..sample::status(3, leader) };
            View::new(&status, Term(applied), &known, false).leader_epoch
        };
        assert_eq!(told(5, None, 4), 4, "term 5 has no leader yet");
        assert_eq!(told(5, Some(2), 4), 5);
        assert_eq!(told(9, None, 4), 5, "elections nobody wins raise the term alone");
        assert_eq!(told(9, None, 6), 6);
        assert_eq!(told(9, Some(3), 6), 9);
    }

    #[test]
    fn a_dead_leader_is_named_until_clients_have_turned_to_the_new_one() {
        let known = KnownTerm::default();
        let named = |term, leader, gone: Option<usize>| {
            let mut status = LogStatus { term: Term(term), ..sample::status(3, leader) };
            status.members.iter_mut().for_each(|member| member.in_sync = true);
            if let Some(gone) = gone {
                status.members[gone].in_sync = false;
            }
            let view = View::new(&status, Term(4), &known, false);
            view.brokers.iter().map(|broker| broker.node_id).collect::<Vec<_>>()
        };
        assert_eq!(named(5, Some(2), Some(2)), [1, 2], "the first leader that is told of is no change");
        assert_eq!(named(6, None, Some(1)), [1, 2, 3], "nobody leads yet");
        assert_eq!(named(6, Some(3), Some(1)), [1, 2, 3], "the dead leader is named");
        *known.told.lock() = Some((Term(6), Instant::now().checked_sub(NAMED_AFTER_CHANGE)));
        assert_eq!(named(6, Some(3), Some(1)), [1, 3], "and then no more");
    }

    #[test]
    fn a_leader_that_is_no_member_is_unknown() {
        let mut status = sample::status(3, Some(2));
        status.members.remove(1);
        assert_eq!((view(&status).leader, view(&status).leader()), (BrokerId(-1), None));
        assert_eq!(view(&status).controller, id(status.node_id), "it passes on what it is asked");
    }

    #[test]
    fn a_proxy_names_itself_alone() {
        let told = |leader| View::new(&sample::status(3, leader), Term(4), &KnownTerm::default(), true);
        let view = told(Some(2));
        assert_eq!(view.brokers.iter().map(|broker| broker.node_id).collect::<Vec<_>>(), [1]);
        assert_eq!((view.leader, &view.replicas, &view.in_sync), (BrokerId(1), &ids(&[1]), &ids(&[1])));
        assert_eq!(told(None).leader, BrokerId(-1));
    }

    #[test]
    fn only_a_follower_in_step_stands_in_for_the_leader_and_epochs_are_checked_first() {
        let status = |leader, serving, in_sync: bool| {
            let mut status = LogStatus { serving, ..sample::status(3, leader) };
            status.members[0].in_sync = in_sync;
            status
        };
        let cases = [
            (status(Some(1), true, true), [Ok(5), Ok(5)]),
            (status(Some(1), false, true), [Err(E::NotLeaderOrFollower); 2]),
            (status(Some(2), false, true), [Err(E::NotLeaderOrFollower), Ok(5)]),
            (status(Some(2), false, false), [Err(E::NotLeaderOrFollower); 2]),
            (status(None, false, true), [Err(E::NotLeaderOrFollower); 2]),
        ];
        for (status, expected) in cases {
            let standing = Standing::of(&status);
            assert_eq!([false, true].map(|follower| standing.admit(-1, follower)), expected, "{standing:?}");
            assert_eq!([false, true].map(|follower| standing.admit(5, follower)), expected, "{standing:?}");
            let known = status.leader.is_some();
            for (epoch, error) in [(4, E::FencedLeaderEpoch), (6, E::UnknownLeaderEpoch)] {
                let error = if known { error } else { E::NotLeaderOrFollower };
                assert_eq!(standing.admit(epoch, true), Err(error), "{standing:?} {epoch}");
            }
        }
    }

    #[test]
    fn a_consumer_reads_from_the_most_caught_up_replica_of_its_rack() {
        let mut status = sample::status(5, Some(1));
        for (at, rack, matched) in [(1, "b", 7), (2, "b", 9), (3, "b", 9), (4, "c", 9)] {
            status.members[at].rack = Some(rack.to_owned());
            status.members[at].matched = Some(LogIndex(matched));
        }
        assert_eq!(preferred_replica(&status, "b"), Some(BrokerId(3)));
        assert_eq!(preferred_replica(&status, "c"), Some(BrokerId(5)));
        assert_eq!(preferred_replica(&status, "rack-a"), None, "the leader's own");
        assert_eq!(preferred_replica(&status, "nowhere"), None);
        assert_eq!(preferred_replica(&status, ""), None);
        status.members[4].in_sync = false;
        assert_eq!(preferred_replica(&status, "c"), None, "it is out of step");
        status.members[4] = Member { in_sync: true, voter: false, ..status.members[4].clone() };
        assert_eq!(preferred_replica(&status, "c"), None, "a learner is no replica yet");
        status.leader = None;
        assert_eq!(preferred_replica(&status, "b"), None);
    }
}
