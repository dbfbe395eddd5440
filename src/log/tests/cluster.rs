//! Three nodes over loopback: real Raft, real sockets, a fault disk each.

use std::net::TcpListener;

use super::*;

const NODES: u64 = 3;

/// The disks and addresses of three nodes, and those that run.
pub(super) struct Cluster {
    pub(super) disks: Vec<FaultyDisk>,
    pub(super) addresses: Vec<String>,
    pub(super) nodes: Vec<Option<TestNode>>,
    /// What every node's options are changed by.
    change: fn(&mut LogOptions),
}

pub(super) fn node_options(id: u64, addresses: &[String], listener: Option<TcpListener>) -> LogOptions {
    let rpc = addresses[id as usize - 1].clone();
    let me = Member { node_id: id, host: format!("node-{id}"), port: 9092, rpc, ..Member::default() };
    LogOptions { listener, seeds: addresses.to_vec(), ..LogOptions::new(PathBuf::from(DIR), me, settings()) }
}

impl Cluster {
    pub(super) async fn new(seed: u64) -> Self {
        Self::with(seed, |_| ()).await
    }

    /// With options of its own.
    pub(super) async fn with(seed: u64, change: fn(&mut LogOptions)) -> Self {
        let listeners: Vec<TcpListener> = (0..NODES).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<String> = listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
        let disks: Vec<FaultyDisk> = (0..NODES).map(|node| FaultyDisk::new(seed * 10 + node)).collect();
        let starting = (1..=NODES).zip(listeners).map(|(id, listener)| {
            let (disk, mut options) = (disk(&disks[id as usize - 1]), node_options(id, &addresses, Some(listener)));
            change(&mut options);
            tokio::task::spawn_blocking(move || open(&disk, options).unwrap())
        });
        let starting: Vec<_> = starting.collect();
        let mut nodes = Vec::new();
        for node in starting {
            nodes.push(Some(node.await.unwrap()));
        }
        Self { disks, addresses, nodes, change }
    }

    /// The node that serves, as soon as there is one.
    pub(super) async fn leader(&self) -> usize {
        let found = async {
            loop {
                let serving = |node: &Option<TestNode>| node.as_ref().is_some_and(|node| node.log.status().serving);
                if let Some(at) = self.nodes.iter().position(serving) {
                    return at;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, found).await.expect("a leader in time")
    }

    pub(super) fn node(&self, at: usize) -> &TestNode {
        self.nodes[at].as_ref().expect("it runs")
    }

    /// The power of one node is cut: what it did not sync is lost, and nobody hears from it again.
    pub(super) fn kill(&mut self, at: usize) {
        let after = self.disks[at].crash();
        let node = self.nodes[at].take().expect("it runs");
        // Its old disk is no longer the machine's, whatever its threads still write.
        self.disks[at] = after;
        node.log.node.sequencer.stop();
        let raft = node.log.node.raft.clone();
        drop(node);
        drop(raft);
    }

    pub(super) async fn restart(&mut self, at: usize) {
        let (disk, mut options) = {
            // The killed node's listener goes with its runtime, a moment later.
            let bound = async {
                loop {
                    match TcpListener::bind(&self.addresses[at]) {
                        Ok(listener) => return listener,
                        Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                }
            };
            let listener = tokio::time::timeout(LONG, bound).await.expect("the port is free again");
            (disk(&self.disks[at]), node_options(at as u64 + 1, &self.addresses, Some(listener)))
        };
        (self.change)(&mut options);
        let node = tokio::task::spawn_blocking(move || open(&disk, options).unwrap()).await.unwrap();
        self.nodes[at] = Some(node);
    }

    /// Waits until every running node has applied what `at` has, and compares their states byte by byte.
    pub(super) async fn agree(&self, at: usize) {
        let state = |node: &TestNode| node.log.read(|machine| (machine.applied(), machine.to_bytes()));
        let (goal, expected) = state(self.node(at));
        for node in self.nodes.iter().flatten() {
            let reached = async {
                while node.log.status().applied < goal.map(|(index, _)| index) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(LONG, reached).await.expect("it follows in time");
            let (applied, bytes) = state(node);
            if applied == goal {
                assert_eq!(bytes, expected, "replicas are identical");
            }
            assert_eq!(node.records(), self.node(at).records());
        }
    }

    pub(super) async fn stop(self) {
        for node in self.nodes.into_iter().flatten() {
            node.log.shutdown().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_empty_nodes_found_one_cluster_and_hold_the_same() {
    let cluster = Cluster::new(1).await;
    let leader = cluster.leader().await;
    cluster.node(leader).create_topic().await;
    for n in 0..50u8 {
        assert_eq!(cluster.node(leader).produce(&[n]).await, i64::from(n));
    }
    cluster.agree(leader).await;
    let ids: Vec<String> = cluster.nodes.iter().flatten().map(|node| node.log.cluster_id()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    for node in cluster.nodes.iter().flatten() {
        let status = node.log.status();
        assert_eq!(status.leader, Some(leader as u64 + 1));
        assert_eq!(status.members.iter().filter(|member| member.voter).count(), 3);
        assert_eq!(
            status.members.iter().map(|member| member.host.as_str()).collect::<Vec<_>>(),
            ["node-1", "node-2", "node-3"]
        );
    }
    // The heartbeats tell the followers who follows closely.
    let told = async {
        let all = |node: &TestNode| node.log.status().members.iter().all(|member| member.in_sync);
        while !cluster.nodes.iter().flatten().all(all) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, told).await.expect("all are in sync, and know");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_outlives_every_leader() {
    let mut cluster = Cluster::new(2).await;
    let mut leader = cluster.leader().await;
    cluster.node(leader).create_topic().await;
    let mut expected = 0i64;
    let mut term = Term(0);
    for round in 0..4u8 {
        let status = cluster.node(leader).log.status();
        assert!(status.term > term, "every leader has a term of its own");
        term = status.term;
        for n in 0..20u8 {
            assert_eq!(cluster.node(leader).produce(&[round, n]).await, expected);
            expected += 1;
        }
        cluster.kill(leader);
        let dead = leader;
        leader = cluster.leader().await;
        assert_ne!(leader, dead);
        assert_eq!(cluster.node(leader).next_offset(), expected, "the new leader has all that was acknowledged");
        cluster.restart(dead).await;
    }
    cluster.agree(leader).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_followers_acknowledges_nothing() {
    let mut cluster = Cluster::new(3).await;
    let leader = cluster.leader().await;
    cluster.node(leader).create_topic().await;
    cluster.node(leader).produce(b"before").await;
    for at in (0..3).filter(|at| *at != leader) {
        cluster.kill(at);
    }
    let alone = cluster.node(leader).log.submit(caller(), produce(b"alone"));
    let early = tokio::time::timeout(Duration::from_millis(300), alone).await;
    assert!(!early.is_ok_and(|answer| is_ack(&answer.ok())), "a majority is dead");
    let dead: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    for at in dead {
        cluster.restart(at).await;
    }
    let leader = cluster.leader().await;
    cluster.node(leader).produce(b"after").await;
    cluster.agree(leader).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_disk_was_emptied_is_refused() {
    let mut cluster = Cluster::new(4).await;
    let leader = cluster.leader().await;
    let victim = (leader + 1) % 3;
    cluster.kill(victim);
    cluster.disks[victim] = FaultyDisk::new(99);
    let bound = async {
        loop {
            match TcpListener::bind(&cluster.addresses[victim]) {
                Ok(listener) => return listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let listener = tokio::time::timeout(LONG, bound).await.expect("the port is free again");
    let (empty, options) =
        (disk(&cluster.disks[victim]), node_options(victim as u64 + 1, &cluster.addresses, Some(listener)));
    let refused = tokio::task::spawn_blocking(move || open(&empty, options).err()).await.unwrap();
    let said = refused.expect("it must not vote again").to_string();
    assert!(said.contains("remove node") && said.contains("start this one with a new id"), "{said}");
    cluster.stop().await;
}
