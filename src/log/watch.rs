//! Waiting for another leader: for whoever acts on what one leader said.

use openraft::async_runtime::WatchReceiver;

use super::Log;
use crate::types::Term;

impl Log {
    /// Waits until this node no longer takes `leader` for the leader of `term`, or stops. While the node is cut off it hears of no
    /// other and keeps its belief.
    pub async fn led_otherwise(&self, leader: u64, term: Term) {
        let mut metrics = self.node.raft.server_metrics();
        loop {
            {
                let now = metrics.borrow_watched();
                if (now.current_leader, Term(now.vote.leader_id.term)) != (Some(leader), term) {
                    return;
                }
            }
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }
}
