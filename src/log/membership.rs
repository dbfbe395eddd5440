//! Who belongs to the cluster.

use super::Member;
use super::peers::Progress;
use super::raft_types::RaftMetrics;

/// The members as clients and operators see them, ascending. A node that no entry names is alone in its own eyes.
pub fn members(metrics: &RaftMetrics, progress: &Progress, me: &Member) -> Vec<Member> {
    let voters: std::collections::BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
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
