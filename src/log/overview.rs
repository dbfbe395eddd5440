//! How the cluster stands, for operators: what the leader sees of every member. Another node asks the leader.

use openraft::async_runtime::WatchReceiver;
use serde::{Deserialize, Serialize};

use super::Log;
use super::membership::Membership;
use super::peers::client::Link;
use super::peers::message::{Answer, Ask, Class};
use super::peers::{ANSWER_WITHIN, seen_by_leader};

/// The cluster, as one node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    /// Who sees it: the leader, unless there is none or it cannot be asked.
    pub seen_by: u64,
    /// The cluster's id, as clients see it.
    pub cluster_id: String,
    /// Who leads.
    pub leader: Option<u64>,
    /// Its term.
    pub term: u64,
    /// Last index of the log.
    pub last: Option<u64>,
    /// Last committed index.
    pub committed: Option<u64>,
    /// Last index of the newest checkpoint.
    pub checkpoint: Option<u64>,
    /// Voters and addresses change at this moment: two sets of voters are in force.
    pub changing: bool,
    /// The members, ascending.
    pub members: Vec<MemberView>,
}

/// A member, as the leader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    /// Its id.
    pub node_id: u64,
    /// Where it listens for peers.
    pub rpc: String,
    /// Where it listens for clients.
    pub kafka: String,
    /// Its rack.
    pub rack: Option<String>,
    /// It votes.
    pub voter: bool,
    /// It follows closely; the leader does.
    pub in_sync: bool,
    /// The last index known to be durable on it.
    pub matched: Option<u64>,
    /// Entries that it is behind the end of the log; None if that is not known.
    pub lag: Option<u64>,
    /// A checkpoint that it pulls: bytes that are there, and bytes it needs (0 while that is not known).
    pub pulling: Option<(u64, u64)>,
}

impl Membership {
    /// What this node sees itself.
    pub fn overview_here(&self) -> Overview {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let me = self.peers.identity().node_id;
        let leads = metrics.current_leader == Some(me);
        let progress = if leads { seen_by_leader(&metrics) } else { self.peers.progress(&metrics) };
        let voters: std::collections::BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
        let last = metrics.last_log_index;
        let mut members: Vec<MemberView> = metrics
            .membership_config
            .nodes()
            .map(|(id, node)| {
                let own = (*id == me).then_some(last).flatten();
                let matched = own.or_else(|| progress.matched.get(id).map(|index| index.0));
                MemberView {
                    node_id: *id,
                    rpc: node.rpc.clone(),
                    kafka: format!("{}:{}", node.host, node.port),
                    rack: node.rack.clone(),
                    voter: voters.contains(id),
                    in_sync: progress.in_sync.contains(id),
                    matched,
                    lag: leads.then(|| last.unwrap_or(0).saturating_sub(matched.unwrap_or(0))),
                    pulling: self.peers.pulling(*id),
                }
            })
            .collect();
        members.sort_by_key(|member| member.node_id);
        Overview {
            seen_by: me,
            cluster_id: self.peers.identity().kafka_cluster_id(),
            leader: metrics.current_leader,
            term: metrics.current_term,
            last,
            committed: metrics.local_committed.map(|id| id.index()),
            checkpoint: metrics.snapshot.map(|id| id.index()),
            changing: metrics.membership_config.membership().get_joint_config().len() > 1,
            members,
        }
    }

    /// What the leader sees, if another node leads and can be asked.
    async fn overview_there(&self) -> Option<Overview> {
        let (leader, node) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let leader = metrics.current_leader?;
            (leader, metrics.membership_config.membership().get_node(&leader).cloned()?)
        };
        if leader == self.peers.identity().node_id {
            return None;
        }
        let mut link = Link::open(self.peers.clone(), Some(leader), &node.rpc, Class::Control).await.ok()?;
        match link.ask(&Ask::Overview, None, ANSWER_WITHIN).await {
            Ok((Answer::Overview(overview), _)) => Some(overview),
            Ok(_) | Err(_) => None,
        }
    }
}

impl Log {
    /// How the cluster stands: as the leader sees it, if it can be asked.
    pub async fn overview(&self) -> Overview {
        let membership = self.node.membership.clone();
        let there = match &self.node.runtime.0 {
            Some(runtime) => {
                let membership = membership.clone();
                runtime.spawn(async move { membership.overview_there().await }).await.ok().flatten()
            }
            None => None,
        };
        there.unwrap_or_else(|| membership.overview_here())
    }

    /// Publishes how far each follower is behind, where this node leads.
    pub(super) fn publish_lags(&self) {
        let overview = self.node.membership.overview_here();
        for member in overview.members.iter().filter(|member| member.node_id != overview.seen_by) {
            let lag = member.lag.unwrap_or(0);
            metrics::gauge!("katomic_raft_replication_lag_entries", "peer" => member.node_id.to_string())
                .set(lag as f64);
        }
    }
}
