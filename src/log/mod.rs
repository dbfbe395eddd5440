//! The one log: decide → propose → commit → apply. The only room that knows openraft.

use std::sync::Arc;

use crate::leader::LeaderStats;
use crate::leader::request::{Caller, Request, Response};
use crate::state::Machine;
use crate::types::{LogIndex, Term};

/// How the replicated log stands, for health, metrics and Metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStatus {
    /// This node's id.
    pub node_id: u64,
    /// The current term.
    pub term: Term,
    /// Who leads, if known.
    pub leader: Option<u64>,
    /// This node leads and its first entry of the term has been applied: it serves.
    pub serving: bool,
    /// Last committed index.
    pub committed: Option<LogIndex>,
    /// Last applied index.
    pub applied: Option<LogIndex>,
    /// Whether start-up replay is done.
    pub replayed: bool,
    /// All members: (node id, advertised Kafka host, port, rack).
    pub members: Vec<Member>,
}

/// One node of the cluster as clients see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub node_id: u64,
    /// Advertised Kafka host.
    pub host: String,
    /// Advertised Kafka port.
    pub port: u16,
    /// Its rack.
    pub rack: Option<String>,
}

/// The running log of this node.
#[derive(Clone)]
pub struct Log {}

impl Log {
    /// Hands a request to the leader, in the order of the calls. The answer arrives through the receiver;
    /// a dropped sender means that the node is stopping: close the connection.
    pub fn submit(&self, caller: Arc<Caller>, request: Request) -> tokio::sync::oneshot::Receiver<Response> {
        let _ = (caller, request);
        todo!("log helper")
    }

    /// Waits until the sequencer admits more (in-flight bytes and unwritten segments are within their bounds).
    pub async fn admitted(&self) {
        todo!("log helper")
    }

    /// Looks at the replicated state. Short: apply waits meanwhile.
    pub fn read<T>(&self, look: impl FnOnce(&Machine) -> T) -> T {
        let _ = look;
        todo!("log helper")
    }

    /// How the log stands.
    pub fn status(&self) -> LogStatus {
        todo!("log helper")
    }

    /// The leader's counts.
    pub fn leader_stats(&self) -> LeaderStats {
        todo!("log helper")
    }
}
