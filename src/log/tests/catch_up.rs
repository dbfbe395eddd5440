//! Nodes that need more than the log has, over loopback.

use super::cluster::Cluster;
use super::*;

/// No log is kept behind a checkpoint.
fn keep_nothing(options: &mut LogOptions) {
    options.log_retained_bytes = 0;
}

impl Cluster {
    /// Takes a checkpoint on every running node, and waits until its log is purged up to it.
    pub(super) async fn purge(&self) {
        for node in self.nodes.iter().flatten() {
            let purged = async {
                loop {
                    node.log.checkpoint().await.unwrap();
                    let checkpoint = node.log.node.checkpoints.current().and_then(|(meta, _)| meta.last_log_id);
                    if checkpoint.is_some() && node.log.node.store.stored().purged >= checkpoint {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::time::timeout(LONG, purged).await.expect("nobody holds the log");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_down_longer_than_the_log_is_kept_comes_back_through_the_checkpoint() {
    let mut cluster = Cluster::with(11, keep_nothing).await;
    let leader = cluster.leader().await;
    cluster.node(leader).create_topic().await;
    for n in 0..20u8 {
        cluster.node(leader).produce(&vec![n; 3_000]).await;
    }
    cluster.agree(leader).await;
    let down = (leader + 1) % 3;
    cluster.kill(down);
    for n in 20..60u8 {
        cluster.node(leader).produce(&vec![n; 3_000]).await;
    }
    cluster.purge().await;
    cluster.restart(down).await;
    for n in 60..80u8 {
        cluster.node(leader).produce(&[n; 100]).await;
    }
    cluster.agree(leader).await;
    assert_eq!(cluster.node(down).records().len(), 80);
    assert!(cluster.node(down).log.node.peers.catch_up().progress().done_bytes > 40 * 3_000, "not through the log");
    // What was installed is what a restart begins from.
    cluster.kill(down);
    cluster.restart(down).await;
    let leader = cluster.leader().await;
    cluster.agree(leader).await;
    cluster.stop().await;
}
