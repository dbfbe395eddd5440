//! What peers say to each other, and its bytes.
//!
//! - `HELLO` opens a connection and says who calls whom, and for what ([`Class`]); `WELCOME` or `REFUSED` answers it.
//! - `APPEND` carries entries from the leader, on append and heartbeat connections; `APPENDED` answers, in order.
//! - `ASK` and `ANSWER` carry everything else: a small message ([`Ask`], [`Answer`]) and bytes that go with it.
//!
//! Small messages are postcard; entries lie in the frame as the log stores them, so they are neither copied nor encoded
//! again.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use openraft::raft::{AppendEntriesRequest, StreamAppendError, StreamAppendResult};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::super::catch_up::Offered;
use super::super::entry::{EntryError, Node};
use super::super::membership::{Change, Changed, MembershipError};
use super::super::overview::Overview;
use super::super::raft_types::{self, LogId, TypeConfig, Vote, index_and_term, log_id};
use crate::segments::{Offer, Want};
use crate::types::{LogIndex, Term};

/// The protocol spoken by this build; peers with another are refused in words.
pub const VERSION: u16 = 1;

/// Opens a connection.
pub const HELLO: u8 = 1;
/// The hello is accepted.
pub const WELCOME: u8 = 2;
/// The hello is not accepted; the body says why.
pub const REFUSED: u8 = 3;
/// Entries from the leader.
pub const APPEND: u8 = 4;
/// What became of them.
pub const APPENDED: u8 = 5;
/// A question.
pub const ASK: u8 = 6;
/// Its answer.
pub const ANSWER: u8 = 7;

/// What a connection is for: a large transfer must not stand in front of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// One stream of entries, pipelined; ends with the stream.
    Append,
    /// Heartbeats.
    Heartbeat,
    /// Votes, transfers of leadership, bootstrap.
    Control,
    /// Checkpoints and segments.
    Bulk,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of the caller.
    pub version: u16,
    /// What the connection is for.
    pub class: Class,
    /// The caller's cluster; None while it looks for one.
    pub cluster_id: Option<[u8; 16]>,
    /// The caller.
    pub from: u64,
    /// Who it believes to call; None if it only knows the address.
    pub to: Option<u64>,
}

/// A log id in small messages: (term, index).
pub type Id = (u64, u64);

/// A candidate's ballot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ballot {
    /// Its vote, as the log stores votes.
    pub vote: Vec<u8>,
    /// Its last log id.
    pub last: Option<Id>,
    /// The leader asked it to take over: a fresh lease is no reason to refuse.
    pub transfer: bool,
}

/// What is asked on control and bulk connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Vote for me.
    Vote(Ballot),
    /// Would you vote for me?
    PreVote(Ballot),
    /// Take over leadership.
    TransferLeader {
        /// The leader's vote.
        from: Vec<u8>,
        /// Who takes over.
        to: u64,
        /// Its log must reach this.
        last: Option<Id>,
    },
    /// Who are you, and do you have a cluster?
    Discover,
    /// You are a member of this new cluster.
    Found(Founding),
    /// Here is a checkpoint to catch up with; or, how does it go?
    Offer {
        /// The leader's vote.
        vote: Vec<u8>,
        /// The checkpoint.
        offer: Offer,
        /// Who holds it.
        from: u64,
        /// Where that node listens for peers.
        address: String,
    },
    /// Give me a piece of a checkpoint that you hold.
    Piece(Want),
    /// You lead: change the members, or who leads.
    Change(Change),
    /// You lead: how does the cluster stand?
    Overview,
    /// You are not a member any more.
    Removed,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Ask::Vote`] and [`Ask::PreVote`].
    Voted {
        /// The voter's vote.
        vote: Vec<u8>,
        /// Whether it is for the candidate.
        granted: bool,
        /// The voter's last log id.
        last: Option<Id>,
    },
    /// To [`Ask::TransferLeader`]: it starts an election now.
    TakingOver,
    /// To [`Ask::Discover`].
    Discovered(Discovered),
    /// To [`Ask::Found`]: noted durably.
    Founded,
    /// The question cannot be answered, for the reason given.
    No(String),
    /// To [`Ask::Offer`].
    Offered(Offered),
    /// To [`Ask::Piece`]: its checksum; the bytes go with it.
    Piece {
        /// CRC-32C of the piece.
        crc: u32,
    },
    /// To [`Ask::Piece`]: that checkpoint is not held.
    NotHeld,
    /// To [`Ask::Change`].
    Changed(Result<Changed, MembershipError>),
    /// To [`Ask::Overview`].
    Overview(Overview),
    /// To [`Ask::Removed`].
    Noted,
}

/// A new cluster, as its founder tells the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Founding {
    /// Its id.
    pub cluster_id: [u8; 16],
    /// Its first members.
    pub members: BTreeMap<u64, Node>,
}

/// Who a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovered {
    /// Its id.
    pub node_id: u64,
    /// Drawn when its process started: tells a node from another one with the same id.
    pub process: [u8; 16],
    /// Its addresses.
    pub node: Node,
    /// The seeds that it was given, sorted.
    pub seeds: Vec<String>,
    /// Whether it has a cluster.
    pub standing: Standing,
}

/// Whether a node has a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// Its directory is empty.
    Empty,
    /// It belongs to this cluster, whose log it has not seen yet.
    Invited([u8; 16]),
    /// It has the log of this cluster, with these members.
    Formed([u8; 16], Members),
    /// It was removed from this cluster, and does not know its members any more.
    Removed([u8; 16]),
}

/// The members of a cluster by the newest entry about them that a node has, committed or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// That entry.
    pub at: Id,
    /// Who votes: one set, or two while they change.
    pub voters: Vec<BTreeSet<u64>>,
    /// All members, learners too, and where they listen for peers.
    pub nodes: BTreeMap<u64, String>,
}

/// The bytes of a small message with what goes with it: `len` of the message, the message, the rest.
pub fn encode<M: Serialize>(message: &M, attached: Option<Bytes>) -> Vec<Bytes> {
    let encoded = postcard::to_extend(message, vec![0; 4]).expect("a Vec takes any number of bytes");
    let mut encoded = encoded;
    let len = u32::try_from(encoded.len() - 4).expect("small messages are small");
    encoded[..4].copy_from_slice(&len.to_le_bytes());
    std::iter::once(Bytes::from(encoded)).chain(attached).collect()
}

/// The message of [`encode`] and what went with it.
///
/// # Errors
/// If the bytes are not one.
pub fn decode<M: DeserializeOwned>(mut body: Bytes) -> Result<(M, Bytes), EntryError> {
    let len = body.try_get_u32_le().map_err(|_| EntryError::Truncated)? as usize;
    if len > body.len() {
        return Err(EntryError::Truncated);
    }
    let message = postcard::from_bytes(&body.split_to(len))?;
    Ok((message, body))
}

/// An append as its frame's body: the head, then the entries' own bytes. `in_sync` tells the follower who follows
/// closely.
pub fn encode_append(request: &AppendEntriesRequest<TypeConfig>, in_sync: &[u64]) -> Vec<Bytes> {
    let mut head = BytesMut::with_capacity(128 + 20 * request.entries.len());
    head.put(raft_types::encode_vote(&request.vote));
    put_id(&mut head, request.prev_log_id.as_ref());
    put_id(&mut head, request.leader_commit.as_ref());
    head.put_u32_le(in_sync.len() as u32);
    in_sync.iter().for_each(|node| head.put_u64_le(*node));
    head.put_u32_le(request.entries.len() as u32);
    let mut payloads = Vec::with_capacity(request.entries.len());
    for entry in &request.entries {
        let pieces = raft_types::encode(entry);
        let (index, term) = index_and_term(&entry.log_id);
        head.put_u64_le(term.0);
        head.put_u64_le(index.0);
        head.put_u32_le(pieces.iter().map(Bytes::len).sum::<usize>() as u32);
        payloads.extend(pieces);
    }
    std::iter::once(head.freeze()).chain(payloads).collect()
}

/// Entries below this are copied out of their frame: copying is cheap beside what a buffer of frames would hold.
const COPIED_BELOW: usize = 32 << 10;

/// The append of [`encode_append`]; its entries are slices of `body` or, where small, copies.
///
/// # Errors
/// If the bytes are not one.
pub fn decode_append(mut body: Bytes) -> Result<(AppendEntriesRequest<TypeConfig>, Vec<u64>), EntryError> {
    let whole = body.len();
    let vote = get_vote(&mut body)?;
    let prev_log_id = get_id(&mut body)?;
    let leader_commit = get_id(&mut body)?;
    let mut in_sync = Vec::new();
    for _ in 0..count(&mut body, 8)? {
        in_sync.push(body.get_u64_le());
    }
    let mut heads = Vec::new();
    for _ in 0..count(&mut body, 20)? {
        heads.push((Term(body.get_u64_le()), LogIndex(body.get_u64_le()), body.get_u32_le() as usize));
    }
    let mut entries = Vec::with_capacity(heads.len());
    for (term, index, len) in heads {
        if len > body.len() {
            return Err(EntryError::Truncated);
        }
        let entry = body.split_to(len);
        // Its records are kept in memory until they are in segments and in nobody's way: they must not keep a frame with all its
        // entries, nor the buffer it was read into.
        let entry = if len < COPIED_BELOW || len < whole / 2 { Bytes::copy_from_slice(&entry) } else { entry };
        entries.push(raft_types::decode(index, term, entry)?);
    }
    if !body.is_empty() {
        return Err(EntryError::Lengths);
    }
    Ok((AppendEntriesRequest { vote, prev_log_id, entries, leader_commit }, in_sync))
}

/// A count of elements of `bytes` each, which must be there.
fn count(body: &mut Bytes, bytes: usize) -> Result<usize, EntryError> {
    let count = body.try_get_u32_le().map_err(|_| EntryError::Truncated)? as usize;
    if count.checked_mul(bytes).is_none_or(|needed| needed > body.len()) {
        return Err(EntryError::Truncated);
    }
    Ok(count)
}

fn put_id(to: &mut BytesMut, id: Option<&LogId>) {
    to.put_u8(u8::from(id.is_some()));
    if let Some(id) = id {
        to.put(raft_types::encode_log_id(id));
    }
}

fn get_id(body: &mut Bytes) -> Result<Option<LogId>, EntryError> {
    match body.try_get_u8().map_err(|_| EntryError::Truncated)? {
        0 => Ok(None),
        1 if body.len() >= 16 => raft_types::decode_log_id(&body.split_to(16)).map(Some).ok_or(EntryError::Truncated),
        _ => Err(EntryError::Truncated),
    }
}

fn get_vote(body: &mut Bytes) -> Result<Vote, EntryError> {
    if body.len() < 17 {
        return Err(EntryError::Truncated);
    }
    raft_types::decode_vote(&body.split_to(17)).ok_or(EntryError::Lengths)
}

const MATCHED: u8 = 0;
const CONFLICT: u8 = 1;
const HIGHER_VOTE: u8 = 2;

/// What became of an append.
pub fn encode_appended(result: &StreamAppendResult<TypeConfig>) -> Bytes {
    let mut body = BytesMut::with_capacity(32);
    match result {
        Ok(matched) => {
            body.put_u8(MATCHED);
            put_id(&mut body, matched.as_ref());
        }
        Err(StreamAppendError::Conflict(at)) => {
            body.put_u8(CONFLICT);
            put_id(&mut body, Some(at));
        }
        Err(StreamAppendError::HigherVote(vote)) => {
            body.put_u8(HIGHER_VOTE);
            body.put(raft_types::encode_vote(vote));
        }
    }
    body.freeze()
}

/// The result of [`encode_appended`].
///
/// # Errors
/// If the bytes are not one.
pub fn decode_appended(mut body: Bytes) -> Result<StreamAppendResult<TypeConfig>, EntryError> {
    Ok(match body.try_get_u8().map_err(|_| EntryError::Truncated)? {
        MATCHED => Ok(get_id(&mut body)?),
        CONFLICT => Err(StreamAppendError::Conflict(get_id(&mut body)?.ok_or(EntryError::Truncated)?)),
        HIGHER_VOTE => Err(StreamAppendError::HigherVote(get_vote(&mut body)?)),
        _ => return Err(EntryError::Lengths),
    })
}

/// Our numbers of a log id, for small messages.
pub fn id_of(id: &LogId) -> Id {
    let (index, term) = index_and_term(id);
    (term.0, index.0)
}

/// The log id of [`id_of`].
pub fn of_id((term, index): Id) -> LogId {
    log_id(LogIndex(index), Term(term))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::raft_types::{Proposal, RaftEntry};
    use crate::state::command::{Command, Entry};

    fn append() -> AppendEntriesRequest<TypeConfig> {
        let command = Entry { now_ms: 5, command: Command::DropStages(vec![LogIndex(3)]) };
        let entries = vec![
            RaftEntry { log_id: of_id((2, 8)), payload: openraft::EntryPayload::Blank },
            RaftEntry { log_id: of_id((2, 9)), payload: openraft::EntryPayload::Normal(Proposal::new(command)) },
        ];
        let vote = Vote::new_committed(2, 1);
        AppendEntriesRequest { vote, prev_log_id: Some(of_id((1, 7))), entries, leader_commit: None }
    }

    #[test]
    fn an_append_survives_its_bytes() {
        let sent = append();
        let body = Bytes::from(encode_append(&sent, &[1, 3]).concat());
        let (got, in_sync) = decode_append(body.clone()).expect("decodes");
        assert_eq!(in_sync, [1, 3]);
        assert_eq!((got.vote, got.prev_log_id, got.leader_commit), (sent.vote, sent.prev_log_id, sent.leader_commit));
        let bytes = |entries: &[RaftEntry]| {
            entries.iter().map(|e| (e.log_id, raft_types::encode(e).concat())).collect::<Vec<_>>()
        };
        assert_eq!(bytes(&got.entries), bytes(&sent.entries));
        for cut in 0..body.len() {
            assert!(decode_append(body.slice(..cut)).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn what_became_of_it_survives_its_bytes() {
        let results: [StreamAppendResult<TypeConfig>; 4] = [
            Ok(None),
            Ok(Some(of_id((4, 5)))),
            Err(StreamAppendError::Conflict(of_id((1, 2)))),
            Err(StreamAppendError::HigherVote(Vote::new(7, 3))),
        ];
        for result in results {
            assert_eq!(decode_appended(encode_appended(&result)).expect("decodes"), result);
        }
        assert!(decode_appended(Bytes::from_static(&[9])).is_err());
    }

    #[test]
    fn a_small_message_keeps_what_is_attached_to_it() {
        let ask = Ask::PreVote(Ballot { vote: vec![1; 17], last: Some((1, 2)), transfer: false });
        let body = Bytes::from(encode(&ask, Some(Bytes::from_static(b"more"))).concat());
        assert_eq!(decode::<Ask>(body.clone()).expect("decodes"), (ask, Bytes::from_static(b"more")));
        assert!(decode::<Ask>(body.slice(..5)).is_err());
    }
}
