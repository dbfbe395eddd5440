//! What openraft is instantiated with, and how its ids are written as bytes.
//!
//! One leader per term (`leader_id_std`), so that the term is the leader epoch clients see. The application data is an
//! entry behind an `Arc`, with its encoded pieces: the tail cache, replication and apply share one copy.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use openraft::raft::responder::Responder;

use super::entry::{self, EntryError, Members, Node, Stored};
use crate::state::command::{Entry, Outcome};
use crate::types::{LogIndex, Term};

/// The types of our Raft. (`declare_raft_types` takes no generic responder.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeConfig;

impl openraft::RaftTypeConfig for TypeConfig {
    type D = Proposal;
    type R = Outcome;
    type NodeId = u64;
    type Node = Node;
    type Term = u64;
    type LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Proposal, u64, Node>;
    type Entry = openraft::Entry<CommittedLeaderId, Self::Payload>;
    type AsyncRuntime = openraft::TokioRuntime;
    type Responder<T>
        = Completer<T>
    where
        T: Send + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: Send + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

type CommittedLeaderId =
    <openraft::impls::leader_id_std::LeaderId<u64, u64> as openraft::vote::RaftLeaderId>::Committed;
/// A log id: term and index.
pub type LogId = openraft::type_config::alias::LogIdOf<TypeConfig>;
/// A vote.
pub type Vote = openraft::type_config::alias::VoteOf<TypeConfig>;
/// A log entry.
pub type RaftEntry = openraft::type_config::alias::EntryOf<TypeConfig>;
/// The members with the log id of the entry that set them.
pub type StoredMembership = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
/// The members.
pub type Membership = openraft::Membership<u64, Node>;
/// How openraft stands.
pub type RaftMetrics = openraft::metrics::RaftMetrics<TypeConfig>;
/// What a write ends with.
pub type WriteResult = openraft::raft::ClientWriteResult<TypeConfig>;

/// An entry to replicate, with the bytes it is stored as.
#[derive(Clone)]
pub struct Proposal(Arc<Inner>);

struct Inner {
    entry: Entry,
    pieces: Vec<Bytes>,
    bytes: usize,
    proposed: Option<Instant>,
}

impl Proposal {
    /// Encodes an entry that this node proposes.
    pub fn new(entry: Entry) -> Self {
        let pieces = entry::encode(&entry);
        let bytes = pieces.iter().map(Bytes::len).sum();
        Self(Arc::new(Inner { entry, pieces, bytes, proposed: Some(Instant::now()) }))
    }

    /// The entry.
    pub fn entry(&self) -> &Entry {
        &self.0.entry
    }

    /// Its encoded pieces.
    pub fn pieces(&self) -> &[Bytes] {
        &self.0.pieces
    }

    /// Bytes of all pieces.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// When this node proposed it; None if it came from the log or from a peer.
    pub fn proposed(&self) -> Option<Instant> {
        self.0.proposed
    }
}

impl std::fmt::Debug for Proposal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.entry.fmt(f)
    }
}

impl std::fmt::Display for Proposal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.bytes)
    }
}

/// What a [`Completer`] calls: the result, or None where openraft dropped the proposal without one.
pub type OnComplete<T> = Box<dyn FnOnce(Option<T>) + Send>;

/// Hands the end of a proposal to whoever made it, exactly once, also when openraft stops and drops it.
pub struct Completer<T> {
    on: Option<OnComplete<T>>,
}

impl<T> Completer<T> {
    /// Calls `on` once.
    pub fn new(on: OnComplete<T>) -> Self {
        Self { on: Some(on) }
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        if let Some(on) = self.on.take() {
            on(None);
        }
    }
}

impl<T: Send + 'static> Responder<TypeConfig, T> for Completer<T> {
    fn on_complete(mut self, result: T) {
        if let Some(on) = self.on.take() {
            on(Some(result));
        }
    }
}

/// A log id of our numbers.
pub fn log_id(index: LogIndex, term: Term) -> LogId {
    LogId::new_term_index(term.0, index.0)
}

/// Our numbers of a log id.
pub fn index_and_term(id: &LogId) -> (LogIndex, Term) {
    (LogIndex(id.index()), Term(id.committed_leader_id().term))
}

/// The pieces an entry is stored as.
pub fn encode(entry: &RaftEntry) -> Vec<Bytes> {
    match &entry.payload {
        openraft::EntryPayload::Blank => vec![entry::encode_blank()],
        openraft::EntryPayload::Normal(proposal) => proposal.pieces().to_vec(),
        openraft::EntryPayload::Membership(members) => vec![entry::encode_members(&members_of(members))],
    }
}

/// An entry from its stored bytes.
///
/// # Errors
/// If the bytes are not an entry.
pub fn decode(index: LogIndex, term: Term, bytes: Bytes) -> Result<RaftEntry, EntryError> {
    let payload = match entry::decode_stored(bytes.clone())? {
        Stored::Blank => openraft::EntryPayload::Blank,
        Stored::Command(entry) => {
            let inner = Inner { entry, bytes: bytes.len(), pieces: vec![bytes], proposed: None };
            openraft::EntryPayload::Normal(Proposal(Arc::new(inner)))
        }
        Stored::Members(members) => openraft::EntryPayload::Membership(membership_of(members)?),
    };
    Ok(RaftEntry { log_id: log_id(index, term), payload })
}

/// The members as they are stored.
pub fn members_of(membership: &Membership) -> Members {
    Members {
        voters: membership.get_joint_config().clone(),
        nodes: membership.nodes().map(|(id, node)| (*id, node.clone())).collect(),
    }
}

/// The members from what is stored.
///
/// # Errors
/// If a voter has no address, or a set of voters is empty.
pub fn membership_of(members: Members) -> Result<Membership, EntryError> {
    if members == Members::default() {
        return Ok(Membership::default());
    }
    Membership::new(members.voters, members.nodes).map_err(|error| EntryError::Members(error.to_string()))
}

const LOG_ID_BYTES: usize = 16;
const VOTE_BYTES: usize = 17;

/// A log id as 16 bytes: term, index, little endian.
pub fn encode_log_id(id: &LogId) -> Bytes {
    let (index, term) = index_and_term(id);
    Bytes::from([term.0.to_le_bytes(), index.0.to_le_bytes()].concat())
}

/// The log id of [`encode_log_id`], None for other bytes.
pub fn decode_log_id(bytes: &[u8]) -> Option<LogId> {
    let bytes: &[u8; LOG_ID_BYTES] = bytes.try_into().ok()?;
    let (term, index) = bytes.split_at(8);
    let number = |part: &[u8]| part.try_into().ok().map(u64::from_le_bytes);
    Some(log_id(LogIndex(number(index)?), Term(number(term)?)))
}

/// A vote as 17 bytes: term, node, whether it is committed.
pub fn encode_vote(vote: &Vote) -> Bytes {
    let id = &vote.leader_id;
    Bytes::from([&id.term.to_le_bytes()[..], &id.voted_for.to_le_bytes()[..], &[u8::from(vote.committed)]].concat())
}

/// The vote of [`encode_vote`], None for other bytes.
pub fn decode_vote(bytes: &[u8]) -> Option<Vote> {
    let bytes: &[u8; VOTE_BYTES] = bytes.try_into().ok()?;
    let number = |from: usize| bytes[from..from + 8].try_into().ok().map(u64::from_le_bytes);
    let (term, node) = (number(0)?, number(8)?);
    match bytes[16] {
        0 => Some(Vote::new(term, node)),
        1 => Some(Vote::new_committed(term, node)),
        _ => None,
    }
}

/// What the checkpoint keeps for Raft: the members and the log id of the entry that set them.
pub fn encode_membership(membership: &StoredMembership) -> Bytes {
    let at = membership.log_id().as_ref().map(|id| {
        let (index, term) = index_and_term(id);
        (index.0, term.0)
    });
    let stored = (at, members_of(membership.membership()));
    Bytes::from(postcard::to_stdvec(&stored).expect("a Vec takes any number of bytes"))
}

/// The membership of [`encode_membership`].
///
/// # Errors
/// If the bytes are not one.
pub fn decode_membership(bytes: &[u8]) -> Result<StoredMembership, EntryError> {
    let (at, members): (Option<(u64, u64)>, Members) = postcard::from_bytes(bytes)?;
    let at = at.map(|(index, term)| log_id(LogIndex(index), Term(term)));
    Ok(StoredMembership::new(at, membership_of(members)?))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn ids_and_votes_survive_their_bytes() {
        let id = log_id(LogIndex(7), Term(3));
        assert_eq!(decode_log_id(&encode_log_id(&id)), Some(id));
        for vote in [Vote::new(5, 2), Vote::new_committed(u64::MAX, 0)] {
            assert_eq!(decode_vote(&encode_vote(&vote)), Some(vote));
        }
        assert_eq!(decode_log_id(&[0; 15]), None);
        assert_eq!(decode_vote(&[2; VOTE_BYTES]), None, "neither committed nor not");
    }

    #[test]
    fn membership_survives_its_bytes() {
        let node = Node { rpc: "a:1".into(), host: "h".into(), port: 1, rack: None };
        let members = Members { voters: vec![[1].into()], nodes: [(1, node)].into() };
        let stored = StoredMembership::new(Some(log_id(LogIndex(0), Term(0))), membership_of(members).unwrap());
        assert_eq!(decode_membership(&encode_membership(&stored)).unwrap(), stored);
        assert!(decode_membership(&[9; 3]).is_err());
    }

    #[test]
    fn a_dropped_proposal_is_told_so_and_a_completed_one_only_once() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let completer = || {
            let seen = seen.clone();
            Completer::<u8>::new(Box::new(move |result| seen.lock().unwrap().push(result)))
        };
        drop(completer());
        completer().on_complete(4);
        assert_eq!(*seen.lock().unwrap(), [None, Some(4)]);
    }
}
