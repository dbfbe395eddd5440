//! Nodes that join and leave, over loopback.

use std::net::TcpListener;

use super::cluster::{Cluster, node_options};
use super::*;
use crate::log::membership::{Changed, MembershipError};
use crate::log::overview::MemberView;
use crate::log::peers::message::Standing;

impl Cluster {
    /// Starts a node with an empty disk that is given one node as its seed, and asks the others too; its place.
    async fn join(&mut self) -> usize {
        let at = self.nodes.len();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let seeds = vec![self.addresses[0].clone()];
        self.addresses.push(listener.local_addr().unwrap().to_string());
        self.disks.push(FaultyDisk::new(700 + at as u64));
        let mut options = node_options(at as u64 + 1, &self.addresses, Some(listener));
        options.seeds = seeds;
        let disk = disk(&self.disks[at]);
        let node = tokio::task::spawn_blocking(move || open(&disk, options).unwrap()).await.unwrap();
        self.nodes.push(Some(node));
        at
    }

    pub(super) async fn until(&self, what: &str, mut is: impl FnMut(&Self) -> bool) {
        let reached = async {
            while !is(self) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LONG, reached).await.unwrap_or_else(|_| panic!("{what} in time"));
    }

    fn voters(&self, at: usize) -> Vec<u64> {
        let members = self.node(at).log.status().members;
        members.iter().filter(|member| member.voter).map(|member| member.node_id).collect()
    }

    /// Someone who does not lead.
    fn follower(&self, leader: usize) -> usize {
        (0..self.nodes.len()).find(|at| *at != leader && self.nodes[*at].is_some()).unwrap()
    }
}

async fn filled(seed: u64, change: fn(&mut LogOptions)) -> (Cluster, usize) {
    let cluster = Cluster::with(seed, change).await;
    let leader = cluster.leader().await;
    cluster.node(leader).create_topic().await;
    for n in 0..30u8 {
        cluster.node(leader).produce(&[n; 2_000]).await;
    }
    (cluster, leader)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_node_is_added_catches_up_through_the_checkpoint_and_votes() {
    let (mut cluster, leader) = filled(21, |options| options.log_retained_bytes = 0).await;
    cluster.agree(leader).await;
    cluster.purge().await;
    let new = cluster.join().await;
    let address = cluster.addresses[new].clone();
    let asked = cluster.follower(leader);
    let added = cluster.node(asked).log.add_node(Some(4), &address).await;
    assert_eq!(added, Ok(Changed::Learns(4)), "any node passes it on to the leader");
    cluster.until("the new node votes", |cluster| cluster.voters(leader) == [1, 2, 3, 4]).await;
    assert!(cluster.node(new).log.node.peers.catch_up().progress().done_bytes > 60_000, "not through the log");
    cluster.node(leader).produce(b"after").await;
    cluster.agree(leader).await;
    assert_eq!(cluster.node(leader).log.add_node(None, &address).await, Ok(Changed::Votes(4)), "idempotent");
    let overview = cluster.node(new).log.overview().await;
    assert_eq!((overview.leader, overview.seen_by), (Some(leader as u64 + 1), leader as u64 + 1));
    assert!(overview.members.iter().all(|MemberView { voter, lag, .. }| *voter && lag.is_some()), "{overview:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_replaced_by_adding_one_and_removing_the_other() {
    let (mut cluster, leader) = filled(22, |_| ()).await;
    let new = cluster.join().await;
    cluster.node(leader).log.add_node(None, &cluster.addresses[new].clone()).await.unwrap();
    cluster.until("the new node votes", |cluster| cluster.voters(leader).len() == 4).await;
    let old = cluster.follower(leader);
    let id = old as u64 + 1;
    assert_eq!(cluster.node(new).log.remove_node(id).await, Ok(Changed::Gone));
    assert_eq!(cluster.node(leader).log.remove_node(id).await, Ok(Changed::Gone), "idempotent");
    assert!(!cluster.voters(leader).contains(&id) && cluster.voters(leader).len() == 3);
    cluster.until("the removed node knows", |cluster| cluster.node(old).log.status().leader.is_none()).await;
    let gone = cluster.nodes[old].take().unwrap();
    cluster.node(leader).produce(b"after").await;
    cluster.agree(leader).await;
    assert!(gone.log.status().applied < cluster.node(leader).log.status().applied);
    assert!(matches!(gone.log.node.peers.discovered().standing, Standing::Removed(_)), "it vouches for nobody");
    gone.log.shutdown().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_node_that_was_not_told_finds_out() {
    let (mut cluster, leader) = filled(23, |_| ()).await;
    let down = cluster.follower(leader);
    cluster.kill(down);
    assert_eq!(cluster.node(leader).log.remove_node(down as u64 + 1).await, Ok(Changed::Gone));
    cluster.restart(down).await;
    cluster
        .until("it knows", |cluster| {
            let node = &cluster.node(down).log;
            node.node.peers.is_removed() && node.status().leader.is_none()
        })
        .await;
    cluster.node(leader).produce(b"after").await;
    assert!(cluster.node(leader).log.status().serving, "it disturbs nobody");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_removes_itself_after_it_gave_leadership_away() {
    let (mut cluster, old) = filled(24, |_| ()).await;
    assert_eq!(cluster.node(old).log.remove_node(old as u64 + 1).await, Ok(Changed::Gone));
    cluster.until("it knows", |cluster| cluster.node(old).log.status().leader.is_none()).await;
    let gone = cluster.nodes[old].take().unwrap();
    let leader = cluster.leader().await;
    assert_eq!(cluster.voters(leader).len(), 2);
    cluster.node(leader).produce(b"after").await;
    cluster.agree(leader).await;
    gone.log.shutdown().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_would_harm_the_cluster_is_refused_in_words() {
    let (mut cluster, leader) = filled(25, |_| ()).await;
    let log = &cluster.node(leader).log;
    let nobody = log.add_node(None, "127.0.0.1:1").await;
    assert!(
        matches!(&nobody, Err(MembershipError::NotAddable { address, .. }) if address == "127.0.0.1:1"),
        "{nobody:?}"
    );
    let follower = cluster.follower(leader);
    let wrong = log.add_node(Some(9), &cluster.addresses[follower]).await;
    assert!(matches!(&wrong, Err(MembershipError::NotAddable { .. })), "{wrong:?}");
    assert_eq!(log.remove_node(77).await, Ok(Changed::Gone), "it is no member");
    let other = Cluster::new(26).await;
    let foreign = log.add_node(None, &other.addresses[0]).await.unwrap_err().to_string();
    assert!(foreign.contains("belongs to cluster"), "{foreign}");
    other.stop().await;
    let third = (0..3).find(|at| *at != leader && *at != follower).unwrap();
    cluster.kill(third);
    // The dead one counts as close until it has missed some heartbeats.
    let seen = |cluster: &Cluster| {
        let members = cluster.node(leader).log.status().members;
        members.iter().filter(|member| member.in_sync).count() == 2
    };
    cluster.until("its death is seen", seen).await;
    let refused = cluster.node(leader).log.remove_node(follower as u64 + 1).await;
    let id = follower as u64 + 1;
    assert_eq!(refused, Err(MembershipError::NoMajority { id, close: 1, remaining: 2 }));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_voter_cannot_be_removed() {
    let node = start(&disk(&FaultyDisk::new(27))).await;
    assert!(matches!(node.log.remove_node(1).await, Err(MembershipError::LastVoter(1))));
    node.log.shutdown().await;
}
