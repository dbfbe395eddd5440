//! Nodes that need more than the log has, over loopback.

use super::cluster::Cluster;
use super::*;
use crate::segments::Incoming;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_whose_leader_dies_goes_on_with_the_next_leader_and_what_was_pulled() {
    // Slow enough to be interrupted: some 3 MB at 1.5 MB/s.
    let slow = |options: &mut LogOptions| {
        options.log_retained_bytes = 0;
        options.catch_up_bytes_per_second = 1_500_000;
    };
    let mut cluster = Cluster::with(12, slow).await;
    let leader = cluster.leader().await;
    cluster.node(leader).create_topic().await;
    let down = (leader + 1) % 3;
    cluster.kill(down);
    for n in 0..30u8 {
        cluster.node(leader).produce(&vec![n; 100_000]).await;
    }
    cluster.purge().await;
    cluster.restart(down).await;
    let progress = |cluster: &Cluster| cluster.node(down).log.node.peers.catch_up().progress();
    cluster.until("a third is pulled", |cluster| progress(cluster).done_bytes > 1_000_000).await;
    // The third node has seen all: it can lead with the one that catches up only after that has the checkpoint.
    cluster.kill(leader);
    cluster.restart(leader).await;
    let leader = cluster.leader().await;
    cluster.node(leader).produce(b"after").await;
    cluster.agree(leader).await;
    assert_eq!(cluster.node(down).records().len(), 31);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_loses_nothing_and_needs_no_checkpoint() {
    let mut cluster = Cluster::new(13).await;
    let mut leader = cluster.leader().await;
    cluster.node(leader).create_topic().await;
    let mut expected = 0;
    for at in 0..3 {
        for n in 0..10u8 {
            assert_eq!(cluster.node(leader).produce(&[at as u8, n]).await, expected);
            expected += 1;
        }
        let stopped = cluster.nodes[at].take().unwrap();
        stopped.log.step_aside().await;
        stopped.log.shutdown().await;
        stopped.segments.close();
        drop(stopped);
        leader = cluster.leader().await;
        cluster.node(leader).produce(b"meanwhile").await;
        expected += 1;
        cluster.restart(at).await;
        leader = cluster.leader().await;
        cluster.agree(leader).await;
    }
    for node in cluster.nodes.iter().flatten() {
        assert_eq!(node.log.node.peers.catch_up().progress().total_bytes, 0, "the log was enough");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_between_the_installed_checkpoint_and_the_log_is_survived() {
    let mut cluster = Cluster::with(14, keep_nothing).await;
    let leader = cluster.leader().await;
    cluster.node(leader).create_topic().await;
    let down = (leader + 1) % 3;
    cluster.kill(down);
    for n in 0..30u8 {
        cluster.node(leader).produce(&[n; 2_000]).await;
    }
    cluster.purge().await;
    // The checkpoint takes the old one's place, and the log does not hear of it.
    let source = cluster.node(leader).segments.clone();
    let (segments, _) = Segments::open(disk(&cluster.disks[down]), segment_options()).unwrap();
    let mut incoming = Incoming::begin(segments.clone(), source.offer().unwrap()).unwrap();
    while let Some(asked) = incoming.wants() {
        incoming.got(&asked, &source.piece(&asked.want).unwrap()).unwrap();
    }
    let (sender, installed) = std::sync::mpsc::channel();
    let staged = Arc::new(incoming.finish().unwrap());
    segments.install(staged, Box::new(move |result| sender.send(result.map(drop)).unwrap()));
    installed.recv().unwrap().unwrap();
    segments.close();
    cluster.disks[down] = cluster.disks[down].crash();
    cluster.restart(down).await;
    cluster.node(leader).produce(b"after").await;
    cluster.agree(leader).await;
    assert_eq!(cluster.node(down).log.node.peers.catch_up().progress().total_bytes, 0, "the log was enough from there");
    cluster.stop().await;
}
