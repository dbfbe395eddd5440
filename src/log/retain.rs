//! How much of the log is kept behind the newest checkpoint: enough for who is a little behind, bounded for who is gone.
//!
//! A node alone keeps nothing. In a cluster the leader knows how far each member is, and keeps what the slowest needs;
//! the others know nothing of each other, and keep what the budget allows, because any of them may lead next. Whoever needs
//! more than that is given a checkpoint. While one is pulled, the log behind it is kept within the same budget.

use std::collections::BTreeMap;

use super::raft_types::RaftMetrics;

/// What the decision depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// There is no other member.
    pub alone: bool,
    /// Of every other member, the last index it has; None if this node does not lead.
    pub matched: Option<BTreeMap<u64, u64>>,
    /// The oldest checkpoint that is being pulled.
    pub held: Option<u64>,
    /// First index of the newest log files that fit into the budget; None if all do.
    pub budget: Option<u64>,
    /// The disk has no room.
    pub no_space: bool,
}

/// The index up to which the log may be purged, None for nothing; never beyond the checkpoint, which ends at `checkpoint`.
pub fn purge_upto(checkpoint: u64, needs: &Needs) -> Option<u64> {
    if needs.alone && needs.held.is_none() {
        return Some(checkpoint);
    }
    if needs.no_space {
        return Some(checkpoint);
    }
    let over_budget = needs.budget.and_then(|first| first.checked_sub(1));
    let matched = needs.matched.as_ref().map(|matched| matched.values().copied().min().unwrap_or(checkpoint));
    let wanted = matched.into_iter().chain(needs.held).min();
    let wanted = if needs.matched.is_none() && !needs.alone { None } else { wanted };
    wanted.max(over_budget).map(|upto| upto.min(checkpoint))
}

impl Needs {
    /// What raft's metrics say; the rest is the caller's.
    pub fn of(metrics: &RaftMetrics) -> Self {
        let mut others: Vec<u64> = metrics.membership_config.nodes().map(|(id, _)| *id).collect();
        others.retain(|id| *id != metrics.id);
        let matched = metrics.replication.as_ref().map(|replication| {
            let at = |id: &u64| replication.get(id).cloned().flatten().map_or(0, |id| id.index());
            others.iter().map(|id| (*id, at(id))).collect()
        });
        Self { alone: others.is_empty(), matched, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(matched: &[u64]) -> Needs {
        let matched = matched.iter().enumerate().map(|(node, at)| (node as u64, *at)).collect();
        Needs { matched: Some(matched), ..Needs::default() }
    }

    #[test]
    fn a_node_alone_keeps_nothing_but_what_somebody_pulls() {
        let alone = Needs { alone: true, ..Needs::default() };
        assert_eq!(purge_upto(100, &alone), Some(100));
        assert_eq!(purge_upto(100, &Needs { held: Some(40), ..alone }), Some(40));
    }

    #[test]
    fn the_leader_keeps_what_the_slowest_member_needs() {
        assert_eq!(purge_upto(100, &leader(&[90, 120])), Some(90));
        assert_eq!(purge_upto(100, &leader(&[110, 120])), Some(100), "never beyond the checkpoint");
        assert_eq!(purge_upto(100, &Needs { held: Some(70), ..leader(&[90, 120]) }), Some(70));
    }

    #[test]
    fn a_member_that_is_gone_holds_the_log_only_within_the_budget() {
        assert_eq!(purge_upto(100, &Needs { budget: Some(51), ..leader(&[0, 120]) }), Some(50));
        assert_eq!(purge_upto(100, &Needs { budget: Some(0), ..leader(&[0, 120]) }), Some(0));
        assert_eq!(purge_upto(100, &Needs { budget: Some(500), ..leader(&[0]) }), Some(100));
        assert_eq!(purge_upto(100, &Needs { budget: Some(51), held: Some(20), ..leader(&[120]) }), Some(50));
    }

    #[test]
    fn a_follower_keeps_what_the_budget_allows() {
        assert_eq!(purge_upto(100, &Needs::default()), None);
        assert_eq!(purge_upto(100, &Needs { budget: Some(31), ..Needs::default() }), Some(30));
    }

    #[test]
    fn a_full_disk_comes_before_all() {
        assert_eq!(purge_upto(100, &Needs { no_space: true, held: Some(2), ..leader(&[3]) }), Some(100));
    }
}
