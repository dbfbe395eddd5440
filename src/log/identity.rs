//! Who this data directory belongs to: `node.json` with the cluster's id, the node's, and how it came to the cluster,
//! written once.
//!
//! A directory of another cluster or node is refused: two nodes with one id, or a node with another's log, break Raft.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::entry::Node;
use crate::disk::Disk;

const FILE: &str = "node.json";
const VERSION: u32 = 2;
/// The version without [`Role`]: every node was alone.
const VERSION_ALONE: u32 = 1;
/// Far more than the file ever has; a longer one is not ours.
const FILE_BYTES_MAX: usize = 64 << 10;

/// The ids of a node and its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// The node.
    pub node_id: u64,
    /// How it came to the cluster.
    pub role: Role,
}

/// How a node came to its cluster: who may form one from an empty log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It forms a cluster of itself.
    #[default]
    Alone,
    /// It forms a cluster of these, once all of them know.
    Founder(BTreeMap<u64, Node>),
    /// It forms none: another node does, or did.
    Invited,
}

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// The file is not one of ours.
    #[error("{path} cannot be read: {what}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The directory is another node's.
    #[error("{path} belongs to node {found}, this is node {asked}")]
    OtherNode {
        /// Which file.
        path: PathBuf,
        /// The id in it.
        found: u64,
        /// The id asked for.
        asked: u64,
    },
    /// The directory is another cluster's.
    #[error("{path} belongs to cluster {found}, not to {asked}")]
    OtherCluster {
        /// Which file.
        path: PathBuf,
        /// The id in it.
        found: String,
        /// The id asked for.
        asked: String,
    },
    /// The cluster that the seeds have does not take this node, or the seeds contradict each other.
    #[error("this node cannot join through its seeds: {0}")]
    Refused(String),
}

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    /// A UUID, in its usual text form.
    cluster_id: String,
    node_id: u64,
    #[serde(default)]
    role: Role,
}

impl Identity {
    /// Reads who `data_dir` belongs to; None if it is nobody's yet.
    ///
    /// # Errors
    /// If it is another node's or cluster's, or cannot be read.
    pub fn read(
        disk: &Arc<dyn Disk>,
        data_dir: &Path,
        node_id: u64,
        cluster_id: Option<[u8; 16]>,
    ) -> Result<Option<Self>, IdentityError> {
        let path = data_dir.join(FILE);
        let io = |source| IdentityError::Io { path: path.clone(), source };
        disk.create_dir_all(data_dir).map_err(io)?;
        if !disk.list(data_dir).map_err(io)?.iter().any(|name| name.ends_with(FILE)) {
            return Ok(None);
        }
        let stored = read(disk, &path)?;
        if stored.node_id != node_id {
            return Err(IdentityError::OtherNode { path, found: stored.node_id, asked: node_id });
        }
        let found = uuid::Uuid::parse_str(&stored.cluster_id)
            .map_err(|error| IdentityError::Damaged { path: path.clone(), what: error.to_string() })?
            .into_bytes();
        match cluster_id {
            Some(asked) if asked != found => {
                let (found, asked) = (stored.cluster_id, uuid::Uuid::from_bytes(asked).to_string());
                Err(IdentityError::OtherCluster { path, found, asked })
            }
            _ => Ok(Some(Self { cluster_id: found, node_id, role: stored.role })),
        }
    }

    /// Makes `data_dir` this node's, durably.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(disk: &Arc<dyn Disk>, data_dir: &Path, identity: Self) -> Result<Self, IdentityError> {
        let io = |source| IdentityError::Io { path: data_dir.join(FILE), source };
        identity.write(disk, data_dir).map_err(io)?;
        Ok(identity)
    }

    fn write(&self, disk: &Arc<dyn Disk>, data_dir: &Path) -> std::io::Result<()> {
        let cluster_id = uuid::Uuid::from_bytes(self.cluster_id).to_string();
        let stored = Stored { version: VERSION, cluster_id, node_id: self.node_id, role: self.role.clone() };
        let text = serde_json::to_vec_pretty(&stored).map_err(std::io::Error::other)?;
        let next = data_dir.join("node.json.next");
        let file = disk.open(&next, true)?;
        file.set_len(0)?;
        file.write_all_at(&[&text], 0)?;
        file.sync_data()?;
        disk.rename(&next, &data_dir.join(FILE))?;
        disk.sync_dir(data_dir)
    }

    /// The cluster's id as Kafka's clients see it: base 64 in the URL alphabet, without padding (`Uuid.toString`).
    pub fn kafka_cluster_id(&self) -> String {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut out = String::with_capacity(22);
        for group in self.cluster_id.chunks(3) {
            let number =
                group.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
            for digit in 0..=group.len() {
                out.push(char::from(ALPHABET[(number >> (18 - 6 * digit)) as usize & 63]));
            }
        }
        out
    }
}

fn read(disk: &Arc<dyn Disk>, path: &Path) -> Result<Stored, IdentityError> {
    let io = |source| IdentityError::Io { path: path.to_owned(), source };
    let file = disk.open(path, false).map_err(io)?;
    let len = usize::try_from(file.len().map_err(io)?).unwrap_or(usize::MAX).min(FILE_BYTES_MAX);
    let mut text = vec![0; len];
    let read = file.read_at(&mut text, 0).map_err(io)?;
    let damaged = |what: String| IdentityError::Damaged { path: path.to_owned(), what };
    let stored: Stored = serde_json::from_slice(&text[..read]).map_err(|error| damaged(error.to_string()))?;
    match stored.version {
        VERSION | VERSION_ALONE => Ok(stored),
        version => Err(damaged(format!("version {version}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_ids_are_written_as_kafka_does() {
        let id = |bytes| Identity { cluster_id: bytes, node_id: 0, role: Role::Alone }.kafka_cluster_id();
        assert_eq!(id([0; 16]), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(id([0xff; 16]), "_____________________w");
        let uuid = uuid::Uuid::parse_str("0123456789abcdef0123456789abcdef").unwrap();
        assert_eq!(id(uuid.into_bytes()), "ASNFZ4mrze8BI0VniavN7w");
    }
}
