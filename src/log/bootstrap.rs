//! How a node with an empty directory comes to a cluster through its seeds.
//!
//! - All seeds must answer, be empty, have different node ids and the same list of seeds. Then the one with the lowest id
//!   founds the cluster: it draws the cluster id, notes it durably, invites the others, and forms the cluster once all of
//!   them have noted it durably. So a node that is alone, or was given a wrong list, founds nothing.
//! - If a seed has a cluster already, this node takes its id and waits to be added, once a majority of the newest voters
//!   that any answer lists have answered, those that are no seeds too. If any of them counts this node id among its
//!   members, the directory that it voted with is lost: it must not vote again, and is refused. A single answer would not
//!   do: it may be older than this node's membership. No newer list can have been committed without that majority.
//!
//! The note (`node.json`) says which of these happened, so that a restart, with whatever seeds, goes on where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::entry::Node;
use super::identity::{Identity, IdentityError, Role};
use super::peers::client::{Link, greet};
use super::peers::message::{self, Answer, Ask, Class, Discovered, Founding, Hello, Members, Standing};
use super::peers::{ANSWER_WITHIN, Peers, frame, server};
use crate::disk::Disk;

/// How often the seeds are asked.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// How often is told what is waited for.
const TELL_EVERY: Duration = Duration::from_secs(3);

/// Connections answered at a time while there is no cluster.
const CONNECTIONS_MAX: usize = 16;

/// A node that looks for its cluster.
pub struct Seeker<'a> {
    /// Its id.
    pub node_id: u64,
    /// Its addresses.
    pub me: Node,
    /// Where the seeds listen for peers.
    pub seeds: Vec<String>,
    /// The only cluster it may join, if the operator named one.
    pub cluster_id: Option<[u8; 16]>,
    /// Its directory.
    pub data_dir: &'a Path,
    /// Where that is.
    pub disk: Arc<dyn Disk>,
}

/// What the seeds' answers mean.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Ask again; why.
    Wait(String),
    /// This node founds a cluster of these.
    Found(BTreeMap<u64, Node>),
    /// There is this cluster; it does not know this node.
    Join([u8; 16]),
    /// Never: why.
    Refuse(String),
}

impl Seeker<'_> {
    /// Looks until there is a cluster; its note is durable then.
    ///
    /// # Errors
    /// If this node must not join, or the note cannot be written.
    pub async fn seek(mut self, listener: &TcpListener) -> Result<Identity, IdentityError> {
        self.seeds.sort();
        self.seeds.dedup();
        let process = uuid::Uuid::new_v4().into_bytes();
        let answering = Answering {
            me: Discovered {
                node_id: self.node_id,
                process,
                node: self.me.clone(),
                seeds: self.seeds.clone(),
                standing: Standing::Empty,
            },
            cluster_id: self.cluster_id,
            data_dir: self.data_dir,
            disk: self.disk.clone(),
            noted: Mutex::new(None),
            invited: Notify::new(),
        };
        tracing::info!(seeds = ?self.seeds, "this node's directory is empty; asking its seeds for a cluster");
        tokio::select! {
            identity = self.ask(process) => identity,
            identity = answering.invited(listener) => Ok(identity),
        }
    }

    /// Asks the seeds until their answers mean something.
    async fn ask(&self, process: [u8; 16]) -> Result<Identity, IdentityError> {
        let mut told = Instant::now();
        loop {
            match self.judge(process, self.ask_all().await) {
                Verdict::Wait(why) => {
                    if told.elapsed() >= TELL_EVERY {
                        told = Instant::now();
                        tracing::info!(why, "waiting for the seeds");
                    }
                    tokio::time::sleep(ASK_EVERY).await;
                }
                Verdict::Found(members) => {
                    let cluster_id = self.cluster_id.unwrap_or_else(|| uuid::Uuid::new_v4().into_bytes());
                    tracing::info!(members = ?members.keys(), "founding a cluster");
                    return self.note(cluster_id, Role::Founder(members));
                }
                Verdict::Join(cluster_id) => {
                    let cluster = uuid::Uuid::from_bytes(cluster_id);
                    tracing::info!(%cluster, "this node belongs to an existing cluster now, and waits to be added to it");
                    return self.note(cluster_id, Role::Invited);
                }
                Verdict::Refuse(why) => return Err(IdentityError::Refused(why)),
            }
        }
    }

    fn note(&self, cluster_id: [u8; 16], role: Role) -> Result<Identity, IdentityError> {
        Identity::create(&self.disk, self.data_dir, Identity { cluster_id, node_id: self.node_id, role })
    }

    async fn ask_all(&self) -> Vec<(String, io::Result<Discovered>)> {
        let ask = |seed: String| async move {
            let answer = self.discover(&seed).await;
            (seed, answer)
        };
        let mut answers = futures_util::future::join_all(self.seeds.iter().cloned().map(ask)).await;
        let mut more: BTreeSet<String> =
            formed(&answers).flat_map(|(.., members)| members.nodes.values()).cloned().collect();
        more.retain(|address| !self.seeds.contains(address));
        answers.extend(futures_util::future::join_all(more.into_iter().map(ask)).await);
        answers
    }

    async fn discover(&self, address: &str) -> io::Result<Discovered> {
        let (cluster_id, from) = (None, self.node_id);
        let hello = Hello { version: message::VERSION, class: Class::Control, cluster_id, from, to: None };
        let (mut reader, mut writer) = greet(address, &hello).await?;
        frame::write(&mut writer, message::ASK, 1, &message::encode(&Ask::Discover, None)).await?;
        let answer = tokio::time::timeout(ANSWER_WITHIN, reader.next()).await??;
        let answer = answer.ok_or(io::ErrorKind::UnexpectedEof)?;
        match message::decode::<Answer>(answer.body).map_err(io::Error::other)?.0 {
            Answer::Discovered(discovered) => Ok(discovered),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    fn judge(&self, process: [u8; 16], asked: Vec<(String, io::Result<Discovered>)>) -> Verdict {
        if let Some(verdict) = self.existing(&asked) {
            return verdict;
        }
        let mut missing = Vec::new();
        let mut empty = Vec::new();
        for (seed, answer) in asked {
            match answer {
                Err(error) => missing.push(format!("{seed}: {error}")),
                Ok(Discovered { node_id, process: its, .. }) if node_id == self.node_id && its != process => {
                    return Verdict::Refuse(format!(
                        "{seed} has node id {node_id} as well: every node needs an id of its own (--node-id)"
                    ));
                }
                Ok(Discovered { standing: Standing::Invited(cluster), .. }) => {
                    missing.push(format!("{seed} is being invited to cluster {}", uuid::Uuid::from_bytes(cluster)));
                }
                Ok(Discovered { standing: Standing::Removed(cluster) | Standing::Formed(cluster, _), .. }) => {
                    missing.push(format!("{seed} was removed from cluster {}", uuid::Uuid::from_bytes(cluster)));
                }
                Ok(discovered) => empty.push((seed, discovered)),
            }
        }
        if !missing.is_empty() {
            return Verdict::Wait(missing.join("; "));
        }
        let mut members = BTreeMap::new();
        for (seed, discovered) in empty {
            if discovered.seeds != self.seeds {
                return Verdict::Wait(format!(
                    "{seed} was given other seeds ({}) than this node ({})",
                    discovered.seeds.join(","),
                    self.seeds.join(",")
                ));
            }
            if members.insert(discovered.node_id, discovered.node).is_some() {
                return Verdict::Wait(format!("two seeds have node id {}", discovered.node_id));
            }
        }
        match members.keys().next() {
            _ if !members.contains_key(&self.node_id) => {
                Verdict::Wait("the seeds have no cluster yet, and this node is not one of them".to_owned())
            }
            Some(first) if *first == self.node_id => Verdict::Found(members),
            _ => Verdict::Wait(format!("node {} founds the cluster", members.keys().next().unwrap_or(&0))),
        }
    }

    /// What the nodes that have a cluster say; None if none has.
    fn existing(&self, asked: &[(String, io::Result<Discovered>)]) -> Option<Verdict> {
        let mut newest: Option<(&str, [u8; 16], &Members)> = None;
        let mut answered = BTreeSet::new();
        for (seed, node, cluster, members) in formed(asked) {
            let name = uuid::Uuid::from_bytes(cluster);
            if self.cluster_id.is_some_and(|mine| mine != cluster) {
                let why = format!("{seed} belongs to cluster {name}, which is not the one asked for");
                return Some(Verdict::Refuse(why));
            }
            if node == self.node_id || members.nodes.contains_key(&self.node_id) {
                return Some(Verdict::Refuse(format!(
                    "cluster {name} has a node {id} already, as {seed} says, and this one's directory is empty. If it lost \
                     its disk: remove node {id} from the cluster (katomic cluster remove {id}), and start this one with a \
                     new id",
                    id = self.node_id
                )));
            }
            if let Some((other, its, _)) = newest.filter(|(_, its, _)| *its != cluster) {
                let its = uuid::Uuid::from_bytes(its);
                return Some(Verdict::Wait(format!("{other} belongs to cluster {its}, but {seed} to cluster {name}")));
            }
            answered.insert(node);
            if newest.is_none_or(|(.., known)| known.at < members.at) {
                newest = Some((seed, cluster, members));
            }
        }
        let (seed, cluster, members) = newest?;
        if members.voters.iter().all(|voters| voters.intersection(&answered).count() > voters.len() / 2) {
            return Some(Verdict::Join(cluster));
        }
        let silent = members.nodes.iter().filter(|(id, _)| !answered.contains(id));
        let silent: Vec<String> = silent.map(|(id, address)| format!("node {id} at {address}")).collect();
        Some(Verdict::Wait(format!(
            "a majority of the voters that {seed} lists must say that this node is none of them; no word from {}",
            silent.join(", ")
        )))
    }
}

/// Those that have a cluster's log: address, id, cluster, and its members.
fn formed(asked: &[(String, io::Result<Discovered>)]) -> impl Iterator<Item = (&str, u64, [u8; 16], &Members)> {
    asked.iter().filter_map(|(seed, answer)| match answer {
        Ok(Discovered { node_id, standing: Standing::Formed(cluster, members), .. }) => {
            Some((seed.as_str(), *node_id, *cluster, members))
        }
        Ok(_) | Err(_) => None,
    })
}

/// Answers the other seeds meanwhile.
struct Answering<'a> {
    me: Discovered,
    cluster_id: Option<[u8; 16]>,
    data_dir: &'a Path,
    disk: Arc<dyn Disk>,
    noted: Mutex<Option<Identity>>,
    invited: Notify,
}

impl Answering<'_> {
    /// Answers whoever asks, until an invitation is noted.
    async fn invited(&self, listener: &TcpListener) -> Identity {
        let connections = stream::unfold((), |()| async {
            match listener.accept().await {
                Ok((stream, _)) => Some((Some(stream), ())),
                Err(error) => {
                    tracing::warn!(%error, "a peer's connection cannot be accepted");
                    tokio::time::sleep(ASK_EVERY).await;
                    Some((None, ()))
                }
            }
        });
        let answering = connections.for_each_concurrent(CONNECTIONS_MAX, |stream| async {
            let Some(stream) = stream else { return };
            // One that says nothing must not keep the others waiting.
            match tokio::time::timeout(ANSWER_WITHIN, self.talk(stream)).await {
                Ok(Ok(())) | Err(_) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a seed's connection ended"),
            }
        });
        tokio::select! {
            () = answering => unreachable!("there is always another connection"),
            () = self.invited.notified() => {}
        }
        self.noted.lock().take().expect("noted before it is told")
    }

    async fn talk(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let (reader, mut writer) = stream.into_split();
        let mut reader = frame::FrameReader::new(reader);
        let hello = server::hello(&mut reader).await?;
        if hello.version != message::VERSION || hello.class != Class::Control {
            let why = "this node has no cluster yet";
            frame::write(&mut writer, message::REFUSED, 0, &[bytes::Bytes::from_static(why.as_bytes())]).await?;
            return Ok(());
        }
        frame::write(&mut writer, message::WELCOME, 0, &[]).await?;
        while let Some(frame) = reader.next().await? {
            let answer = match message::decode::<Ask>(frame.body).map_err(io::Error::other)?.0 {
                Ask::Discover => Answer::Discovered(self.me.clone()),
                Ask::Found(founding) => self.found(founding),
                _ => Answer::No("this node has no cluster yet".to_owned()),
            };
            frame::write(&mut writer, message::ANSWER, frame.id, &message::encode(&answer, None)).await?;
            if self.noted.lock().is_some() {
                self.invited.notify_one();
                return Ok(());
            }
        }
        Ok(())
    }

    /// An invitation: noted durably before it is accepted.
    fn found(&self, founding: Founding) -> Answer {
        let me = &self.me;
        if founding.members.get(&me.node_id) != Some(&me.node) {
            return Answer::No(format!("node {} is not as the founder believes", me.node_id));
        }
        if self.cluster_id.is_some_and(|mine| mine != founding.cluster_id) {
            return Answer::No("this node was told to join another cluster".to_owned());
        }
        let identity = Identity { cluster_id: founding.cluster_id, node_id: me.node_id, role: Role::Invited };
        match Identity::create(&self.disk, self.data_dir, identity) {
            Ok(identity) => {
                *self.noted.lock() = Some(identity);
                Answer::Founded
            }
            Err(error) => Answer::No(error.to_string()),
        }
    }
}

/// Invites all members of a new cluster until each has noted it.
pub async fn invite(peers: &Arc<Peers>, members: &BTreeMap<u64, Node>) {
    let founding = Founding { cluster_id: peers.identity().cluster_id, members: members.clone() };
    let me = peers.identity().node_id;
    let mut told = Instant::now();
    for (id, node) in members.iter().filter(|(id, _)| **id != me) {
        while let Err(error) = invite_one(peers, *id, &node.rpc, &founding).await {
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                tracing::info!(node = id, address = node.rpc, %error, "waiting for a member of the new cluster");
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
}

async fn invite_one(peers: &Arc<Peers>, id: u64, address: &str, founding: &Founding) -> io::Result<()> {
    let mut link = Link::open(peers.clone(), Some(id), address, Class::Control).await?;
    match link.ask(&Ask::Found(founding.clone()), None, ANSWER_WITHIN).await?.0 {
        Answer::Founded => Ok(()),
        Answer::No(why) => Err(io::Error::other(why)),
        other => Err(io::Error::other(format!("{other:?} to an invitation"))),
    }
}

#[cfg(test)]
mod tests;
