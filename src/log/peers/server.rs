//! Accepts peers' connections and hands what they say to openraft.
//!
//! A stream of appends goes to openraft as a stream: it appends the next request while the last one is being synced, and
//! answers in order. Heartbeats and questions are answered one by one, each on its own connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::frame::{self, Frame, FrameReader};
use super::message::{self, Answer, Ask, Ballot, Class, Hello, Standing};
use super::{CONNECT_WITHIN, Counted, Peers};
use crate::config::limits::{ACCEPT_RETRY_MS, PEER_APPENDS_MAX, PEER_CONNECTIONS_MAX};
use crate::log::catch_up;
use crate::log::membership::Membership;
use crate::log::raft_types::{self, TypeConfig, index_and_term};
use crate::log::sequencer::Raft;

/// How long one append may wait for the segments: less than the leader's deadline for its answer.
const BEHIND_MAX: Duration = Duration::from_secs(1);
const BEHIND_POLL: Duration = Duration::from_millis(2);

/// Accepts connections until the runtime ends.
pub async fn serve(listener: TcpListener, peers: Arc<Peers>) {
    let room = Arc::new(tokio::sync::Semaphore::new(PEER_CONNECTIONS_MAX));
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a peer's connection cannot be accepted");
                tokio::time::sleep(Duration::from_millis(ACCEPT_RETRY_MS)).await;
                continue;
            }
        };
        let Ok(room) = room.clone().try_acquire_owned() else {
            tracing::warn!(%address, "too many connections between nodes; closed");
            continue;
        };
        let peers = peers.clone();
        tokio::spawn(async move {
            let _room = room;
            if let Err(error) = connection(stream, &peers).await {
                tracing::debug!(%address, %error, "a peer's connection ended");
            }
        });
    }
}

async fn connection(stream: TcpStream, peers: &Arc<Peers>) -> io::Result<()> {
    let _counted = Counted::new(peers);
    stream.set_nodelay(true)?;
    socket2::SockRef::from(&stream).set_keepalive(true)?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = FrameReader::new(reader);
    let hello = hello(&mut reader).await?;
    if let Err(why) = judge(&hello, peers) {
        tracing::warn!(from = hello.from, why, "a peer is refused");
        frame::write(&mut writer, message::REFUSED, 0, &[Bytes::from(why)]).await?;
        return Ok(());
    }
    frame::write(&mut writer, message::WELCOME, 0, &[]).await?;
    match (hello.class, peers.raft.get()) {
        (Class::Append, Some(raft)) => appends(reader, writer, raft, peers).await,
        (Class::Append, None) => Ok(()),
        (Class::Heartbeat | Class::Control | Class::Bulk, _) => calls(reader, writer, peers).await,
    }
}

/// The first frame of a connection.
///
/// # Errors
/// If it does not come in time, or is something else.
pub async fn hello(reader: &mut FrameReader<OwnedReadHalf>) -> io::Result<Hello> {
    let first = tokio::time::timeout(CONNECT_WITHIN, reader.next()).await??;
    let first = first.ok_or(io::ErrorKind::UnexpectedEof)?;
    if first.kind != message::HELLO {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the connection opens with something else than a hello",
        ));
    }
    Ok(message::decode::<Hello>(first.body).map_err(io::Error::other)?.0)
}

fn judge(hello: &Hello, peers: &Peers) -> Result<(), String> {
    let me = peers.identity();
    if hello.version != message::VERSION {
        return Err(format!("this node speaks version {} to its peers, not {}", message::VERSION, hello.version));
    }
    if hello.to.is_some_and(|to| to != me.node_id) {
        return Err(format!("this is node {}, not {}", me.node_id, hello.to.unwrap_or_default()));
    }
    match hello.cluster_id {
        Some(cluster) if cluster != me.cluster_id => {
            let of = |id| uuid::Uuid::from_bytes(id);
            Err(format!("node {} belongs to cluster {}, not to {}", me.node_id, of(me.cluster_id), of(cluster)))
        }
        // Who looks for a cluster may only ask for one.
        None if hello.class != Class::Control => Err("a node without a cluster may only ask for one".to_owned()),
        Some(_) | None => Ok(()),
    }
}

async fn appends(
    reader: FrameReader<OwnedReadHalf>,
    mut writer: OwnedWriteHalf,
    raft: &Raft,
    peers: &Arc<Peers>,
) -> io::Result<()> {
    let receiving = peers.clone();
    let input = stream::unfold(reader, move |mut reader| {
        let peers = receiving.clone();
        async move {
            match next_append(&mut reader, &peers).await {
                Ok(Some(request)) => Some((request, reader)),
                Ok(None) => None,
                Err(error) => {
                    tracing::debug!(%error, "a stream of appends ended");
                    None
                }
            }
        }
    });
    let results = raft.stream_append(Box::pin(input));
    let mut results = std::pin::pin!(results.ready_chunks(PEER_APPENDS_MAX));
    let mut id = 0;
    while let Some(chunk) = results.next().await {
        for result in chunk {
            let result = result.map_err(io::Error::other)?;
            id += 1;
            let bytes = frame::write(&mut writer, message::APPENDED, id, &[message::encode_appended(&result)]).await?;
            peers.meters.sent.increment(bytes);
        }
    }
    Ok(())
}

async fn next_append(
    reader: &mut FrameReader<OwnedReadHalf>,
    peers: &Peers,
) -> io::Result<Option<AppendEntriesRequest<TypeConfig>>> {
    // What is applied and not written to segments yet is in memory: a node that catches up takes no more than it can write.
    // Heartbeats have a connection of their own, and the leader's deadline for an answer is kept.
    let segments = peers.catch_up.segments();
    let began = std::time::Instant::now();
    while segments.is_behind() && !segments.is_out_of_space() && began.elapsed() < BEHIND_MAX {
        tokio::time::sleep(BEHIND_POLL).await;
    }
    let Some(frame) = reader.next().await? else { return Ok(None) };
    peers.meters.received.increment(frame.body.len() as u64);
    append_of(frame, peers).map(Some)
}

fn append_of(frame: Frame, peers: &Peers) -> io::Result<AppendEntriesRequest<TypeConfig>> {
    if frame.kind != message::APPEND {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("kind {} in a stream of appends", frame.kind)));
    }
    let (request, in_sync) = message::decode_append(frame.body).map_err(io::Error::other)?;
    peers.tell(crate::types::Term(request.vote.leader_id.term), in_sync);
    Ok(request)
}

/// Answers frame by frame.
async fn calls(
    mut reader: FrameReader<OwnedReadHalf>,
    mut writer: OwnedWriteHalf,
    peers: &Arc<Peers>,
) -> io::Result<()> {
    while let Some(frame) = reader.next().await? {
        let id = frame.id;
        peers.meters.received.increment(frame.body.len() as u64);
        let (kind, pieces) = match frame.kind {
            message::APPEND => {
                let Some(raft) = peers.raft.get() else { return Ok(()) };
                let result = append_once(raft, append_of(frame, peers)?).await?;
                (message::APPENDED, vec![result])
            }
            message::ASK => {
                let (ask, attached) = message::decode(frame.body).map_err(io::Error::other)?;
                let (answer, attached) = answer(peers, ask, attached).await;
                (message::ANSWER, message::encode(&answer, attached))
            }
            other => return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of kind {other}"))),
        };
        let bytes = frame::write(&mut writer, kind, id, &pieces).await?;
        peers.meters.sent.increment(bytes);
    }
    Ok(())
}

async fn append_once(raft: &Raft, request: AppendEntriesRequest<TypeConfig>) -> io::Result<Bytes> {
    let prev = request.prev_log_id;
    let last = request.entries.last().map(|entry| entry.log_id).or(prev);
    let response = raft.append_entries(request).await.map_err(io::Error::other)?;
    if matches!(response, AppendEntriesResponse::Conflict) && prev.is_none() {
        return Err(io::Error::other("a conflict with nothing"));
    }
    Ok(message::encode_appended(&response.into_stream_result(prev, last)))
}

/// Answers a question.
async fn answer(peers: &Arc<Peers>, ask: Ask, attached: Bytes) -> (Answer, Option<Bytes>) {
    let _ = attached;
    if let Ask::Piece(want) = ask {
        let segments = peers.catch_up.segments().clone();
        let read = tokio::task::spawn_blocking(move || catch_up::piece(&segments, &want)).await;
        return read.unwrap_or_else(|panic| (Answer::No(panic.to_string()), None));
    }
    let Some(raft) = peers.raft.get() else {
        let answer = match ask {
            Ask::Discover => Answer::Discovered(peers.discovered()),
            Ask::Found(founding) => invited(peers, &founding.cluster_id),
            _ => Answer::No("this node is still starting".to_owned()),
        };
        return (answer, None);
    };
    let answer = match ask {
        // openraft forgets over a restart what it promised the leader before it. One who was asked by the leader may ask.
        Ask::Vote(ballot) | Ask::PreVote(ballot) if !ballot.transfer && !peers.lease.may_vote() => {
            Answer::No("this node has just been started, and may have promised not to vote".to_owned())
        }
        Ask::Vote(ballot) => vote(raft, ballot, false).await,
        Ask::PreVote(ballot) => vote(raft, ballot, true).await,
        Ask::TransferLeader { from, to, last } => match raft_types::decode_vote(&from) {
            Some(from) => take_over(raft, TransferLeaderRequest::new(from, to, last.map(message::of_id))).await,
            None => Answer::No("a vote that cannot be decoded".to_owned()),
        },
        Ask::Discover => Answer::Discovered(peers.discovered()),
        Ask::Found(founding) => invited(peers, &founding.cluster_id),
        Ask::Offer { vote, offer, from, address } => match raft_types::decode_vote(&vote) {
            Some(vote) => Answer::Offered(peers.catch_up.offered(peers, raft, vote, offer, (from, address))),
            None => Answer::No("a vote that cannot be decoded".to_owned()),
        },
        Ask::Piece(_) => Answer::No("answered above".to_owned()),
        Ask::Change(_) | Ask::Overview => match peers.membership.get().and_then(std::sync::Weak::upgrade) {
            Some(membership) => operate(&membership, ask).await,
            None => Answer::No("this node is still starting, or stops".to_owned()),
        },
        Ask::Removed => {
            peers.note_removed(true);
            Answer::Noted
        }
    };
    (answer, None)
}

/// What another node's operator wants of the leader. It is not passed on: leaders that point at each other would go on for
/// ever.
async fn operate(membership: &Membership, ask: Ask) -> Answer {
    match ask {
        Ask::Change(change) => Answer::Changed(membership.change_here(&change).await),
        _ => Answer::Overview(membership.overview_here()),
    }
}

/// A founder that was cut short invites again: the answer is the same, unless there is a cluster already.
fn invited(peers: &Peers, cluster: &[u8; 16]) -> Answer {
    match peers.discovered().standing {
        Standing::Invited(mine) if mine == *cluster => Answer::Founded,
        Standing::Formed(mine, _) if mine == *cluster => Answer::No("the cluster is formed already".to_owned()),
        Standing::Empty | Standing::Invited(_) | Standing::Formed(..) | Standing::Removed(_) => {
            Answer::No(format!("this node belongs to cluster {}", uuid::Uuid::from_bytes(peers.identity().cluster_id)))
        }
    }
}

async fn vote(raft: &Raft, ballot: Ballot, pre: bool) -> Answer {
    let Some(vote) = raft_types::decode_vote(&ballot.vote) else {
        return Answer::No("a vote that cannot be decoded".to_owned());
    };
    let mut request = VoteRequest::new(vote, ballot.last.map(message::of_id));
    request.leadership_transfer = ballot.transfer;
    let voted = if pre { raft.pre_vote(request).await } else { raft.vote(request).await };
    match voted {
        Ok(response) => Answer::Voted {
            vote: raft_types::encode_vote(&response.vote).to_vec(),
            granted: response.vote_granted,
            last: response.last_log_id.as_ref().map(message::id_of),
        },
        Err(error) => Answer::No(error.to_string()),
    }
}

async fn take_over(raft: &Raft, request: TransferLeaderRequest<TypeConfig>) -> Answer {
    let (last, to) = (request.last_log_id().map(index_and_term), *request.to_node_id());
    match raft.handle_transfer_leader(request).await {
        Ok(Ok(())) => {
            tracing::info!(?last, to, "the leader lets go");
            Answer::TakingOver
        }
        Ok(Err(error)) => Answer::No(error.to_string()),
        Err(error) => Answer::No(error.to_string()),
    }
}
