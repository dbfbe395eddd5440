//! Calls to a peer, and streams of appends, for openraft.
//!
//! A connection is opened when it is needed, in a task of its own: openraft gives a heartbeat 80 ms and then drops the
//! call, which must not stop a connection from coming up. A call that is dropped leaves its answer behind; the next one
//! passes over it.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::{SnapshotOf, VoteOf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::frame::{self, Frame, FrameReader};
use super::message::{self, Answer, Ask, Ballot, Class, Hello};
use super::{ANSWER_WITHIN, CONNECT_WITHIN, Counted, Peers, WRITE_WITHIN, seen_by_leader};
use crate::config::limits::{PEER_APPENDS_MAX, PEER_UNACKNOWLEDGED_BYTES_MAX};
use crate::log::catch_up;
use crate::log::entry::Node;
use crate::log::raft_types::{self, TypeConfig};
use crate::log::snapshot::Cut;

type AppendStream<'s> =
    Pin<Box<dyn Stream<Item = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>> + Send + 's>>;
type Opening<'s> = Pin<Box<dyn Future<Output = Result<AppendStream<'s>, RPCError<TypeConfig>>> + Send + 's>>;

/// Makes the clients that openraft asks for.
#[derive(Clone)]
pub struct Network(pub Arc<Peers>);

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: u64, node: &Node) -> Client {
        Client::new(self.0.clone(), target, node.rpc.clone(), Class::Append)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Node) -> Client {
        Client::new(self.0.clone(), target, node.rpc.clone(), Class::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &Node) -> Client {
        Client::new(self.0.clone(), target, node.rpc.clone(), Class::Bulk)
    }
}

/// One open connection to a peer.
pub struct Link {
    peers: Arc<Peers>,
    reader: FrameReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    next_id: u64,
    /// A write was begun and not finished: what follows could not be read.
    torn: bool,
    _counted: Counted,
}

impl Link {
    /// Connects to `target` at `address`; it must be of this node's cluster.
    ///
    /// # Errors
    /// If the peer cannot be reached in time, or refuses: then in its words.
    pub async fn open(peers: Arc<Peers>, target: Option<u64>, address: &str, class: Class) -> io::Result<Self> {
        let cluster_id = Some(peers.identity.cluster_id);
        let from = peers.identity.node_id;
        let hello = Hello { version: message::VERSION, class, cluster_id, from, to: target };
        let (reader, writer) = greet(address, &hello).await?;
        let counted = Counted::new(&peers);
        Ok(Self { peers, reader, writer, next_id: 0, torn: false, _counted: counted })
    }

    /// Sends a frame; its id.
    async fn send(&mut self, kind: u8, pieces: &[Bytes]) -> io::Result<u64> {
        if std::mem::replace(&mut self.torn, true) {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "an earlier message was cut short"));
        }
        self.next_id += 1;
        let written = frame::write(&mut self.writer, kind, self.next_id, pieces);
        let bytes = tokio::time::timeout(WRITE_WITHIN, written).await.map_err(|_| slow("takes nothing"))??;
        self.peers.meters.sent.increment(bytes);
        self.torn = false;
        Ok(self.next_id)
    }

    /// The next frame. Dropping it loses nothing.
    async fn receive(&mut self) -> io::Result<Frame> {
        let frame = self.reader.next().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.peers.meters.received.increment(frame.body.len() as u64);
        Ok(frame)
    }

    /// Sends a frame and waits for its answer, past answers that nobody waited for.
    async fn exchange(&mut self, kind: u8, pieces: &[Bytes], within: Duration) -> io::Result<Frame> {
        let id = self.send(kind, pieces).await?;
        let answered = async {
            loop {
                let frame = self.receive().await?;
                if frame.id >= id {
                    return Ok(frame);
                }
            }
        };
        tokio::time::timeout(within, answered).await.map_err(|_| slow("does not answer"))?
    }

    /// Asks, and waits for the answer and what is attached to it.
    ///
    /// # Errors
    /// If the peer does not answer in time, or answers something else.
    pub async fn ask(&mut self, ask: &Ask, attached: Option<Bytes>, within: Duration) -> io::Result<(Answer, Bytes)> {
        let frame = self.exchange(message::ASK, &message::encode(ask, attached), within).await?;
        expect(&frame, message::ANSWER)?;
        message::decode(frame.body).map_err(io::Error::other)
    }
}

/// Opens a connection and introduces this node; the other side must be of the cluster named, if one is.
///
/// # Errors
/// If the peer cannot be reached in time, or refuses: then in its words.
pub async fn greet(address: &str, hello: &Hello) -> io::Result<(FrameReader<OwnedReadHalf>, OwnedWriteHalf)> {
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (reader, mut writer) = stream.into_split();
        let mut reader = FrameReader::new(reader);
        frame::write(&mut writer, message::HELLO, 0, &message::encode(hello, None)).await?;
        let answer = reader.next().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        match answer.kind {
            message::WELCOME => Ok((reader, writer)),
            message::REFUSED => {
                let why = String::from_utf8_lossy(&answer.body).into_owned();
                Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
            }
            other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("a greeting of kind {other}"))),
        }
    };
    tokio::time::timeout(CONNECT_WITHIN, connecting).await.map_err(|_| slow("does not accept a connection"))?
}

fn slow(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("the peer {what}"))
}

fn expect(frame: &Frame, kind: u8) -> io::Result<()> {
    if frame.kind == kind {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&frame.body[..frame.body.len().min(200)]).into_owned();
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("an answer of kind {}: {why}", frame.kind)))
}

/// openraft's way to one peer, for one class of messages.
pub struct Client {
    peers: Arc<Peers>,
    target: u64,
    address: String,
    class: Class,
    link: Option<Link>,
    opening: Option<JoinHandle<io::Result<Link>>>,
}

impl Client {
    /// A client of `target` at `address`; connects when it is used.
    pub fn new(peers: Arc<Peers>, target: u64, address: String, class: Class) -> Self {
        Self { peers, target, address, class, link: None, opening: None }
    }

    /// The open connection; opens one if there is none. Dropping the future leaves the opening under way.
    async fn link(&mut self, class: Class) -> io::Result<&mut Link> {
        if self.link.as_ref().is_none_or(|link| link.torn) {
            self.link = None;
            let opening = self.opening.get_or_insert_with(|| {
                let (peers, target, address) = (self.peers.clone(), self.target, self.address.clone());
                tokio::spawn(async move { Link::open(peers, Some(target), &address, class).await })
            });
            let opened = opening.await;
            self.opening = None;
            let opened = opened.unwrap_or_else(|panic| Err(io::Error::other(panic)));
            self.link = Some(opened.inspect_err(|_| self.peers.meters.errors.increment(1))?);
        }
        self.link.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Gives the connection up if something went wrong on it.
    fn judge<T>(&mut self, result: io::Result<T>) -> Result<T, RPCError<TypeConfig>> {
        result.map_err(|error| {
            self.link = None;
            self.peers.meters.errors.increment(1);
            self.unreachable(&error)
        })
    }

    fn unreachable(&self, error: &io::Error) -> RPCError<TypeConfig> {
        RPCError::Unreachable(Unreachable::from_string(format!("node {} at {}: {error}", self.target, self.address)))
    }

    /// A question on the control connection.
    async fn ask(&mut self, ask: Ask, within: Duration) -> Result<Answer, RPCError<TypeConfig>> {
        let asked = match self.link(Class::Control).await {
            Ok(link) => link.ask(&ask, None, within).await,
            Err(error) => Err(error),
        };
        match self.judge(asked)?.0 {
            Answer::No(why) => Err(RPCError::Network(NetworkError::from_string(why))),
            answer => Ok(answer),
        }
    }

    async fn ballot(&mut self, ask: Ask, within: Duration) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.ask(ask, within).await? {
            Answer::Voted { vote, granted, last } => {
                let vote = raft_types::decode_vote(&vote).ok_or_else(|| odd("a vote that cannot be decoded"))?;
                Ok(VoteResponse::new(vote, last.map(message::of_id), granted))
            }
            other => Err(odd(&format!("{other:?} to a ballot"))),
        }
    }

    /// One append, answered before the next: heartbeats.
    async fn append_one(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
    ) -> Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>> {
        let pieces = message::encode_append(&request, &self.peers.in_sync());
        let class = self.class;
        let answered = match self.link(class).await {
            Ok(link) => link.exchange(message::APPEND, &pieces, ANSWER_WITHIN).await,
            Err(error) => Err(error),
        };
        let appended = answered.and_then(appended);
        self.judge(appended)
    }

    async fn open_stream<'s, S>(&'s mut self, input: S) -> Result<AppendStream<'s>, RPCError<TypeConfig>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
    {
        if self.class == Class::Heartbeat {
            let state = (self, input, false);
            let one = stream::unfold(state, |(client, mut input, ended)| async move {
                if ended {
                    return None;
                }
                let result = client.append_one(input.next().await?).await;
                let ended = !matches!(result, Ok(Ok(_)));
                Some((result, (client, input, ended)))
            });
            return Ok(Box::pin(one));
        }
        // A stream has a connection to itself, so that nothing of an earlier one can be taken for an answer.
        self.link = None;
        let opened = self.link(Class::Append).await.err();
        if let Some(error) = opened {
            return Err(self.unreachable(&error));
        }
        let Some(link) = self.link.take() else { return Err(odd("no connection")) };
        let what = format!("node {} at {}", self.target, self.address);
        let appends = Appends::new(link, input, what);
        Ok(Box::pin(stream::unfold(Some(appends), |appends| async move {
            let mut appends = appends?;
            let item = appends.next().await?;
            let goes_on = matches!(item, Ok(Ok(_)));
            Some((item, goes_on.then_some(appends)))
        })))
    }
}

fn odd(what: &str) -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::from_string(format!("the peer answered {what}")))
}

fn appended(frame: Frame) -> io::Result<StreamAppendResult<TypeConfig>> {
    expect(&frame, message::APPENDED)?;
    message::decode_appended(frame.body).map_err(io::Error::other)
}

/// A stream of appends over one connection. One task sends and receives: a hand-over less on the way of every entry.
struct Appends<S> {
    link: Link,
    input: Option<S>,
    /// Bytes of each append that is not answered, in order.
    unanswered: VecDeque<usize>,
    bytes: usize,
    /// Rings when an answer may be overdue; looked at only then.
    alarm: Pin<Box<tokio::time::Sleep>>,
    heard: Instant,
    what: String,
}

enum Event {
    Request(Option<AppendEntriesRequest<TypeConfig>>),
    Frame(io::Result<Frame>),
    Alarm,
}

impl<S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin> Appends<S> {
    fn new(link: Link, input: S, what: String) -> Self {
        let alarm = Box::pin(tokio::time::sleep(ANSWER_WITHIN));
        Self { link, input: Some(input), unanswered: VecDeque::new(), bytes: 0, alarm, heard: Instant::now(), what }
    }

    /// The next result; None once the input has ended and everything is answered.
    async fn next(&mut self) -> Option<Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>> {
        loop {
            match self.event().await? {
                Event::Request(None) => self.input = None,
                Event::Request(Some(request)) => {
                    if let Err(error) = self.send(&request).await {
                        return Some(Err(self.lost(&error)));
                    }
                }
                Event::Frame(frame) => {
                    self.heard = Instant::now();
                    self.bytes -= self.unanswered.pop_front().unwrap_or(0);
                    return Some(frame.and_then(appended).map_err(|error| self.lost(&error)));
                }
                Event::Alarm => {
                    let overdue = self.heard + ANSWER_WITHIN;
                    if !self.unanswered.is_empty() && overdue <= Instant::now() {
                        return Some(Err(self.lost(&slow("does not answer"))));
                    }
                    let next = if self.unanswered.is_empty() { Instant::now() + ANSWER_WITHIN } else { overdue };
                    self.alarm.as_mut().reset(next);
                }
            }
        }
    }

    async fn event(&mut self) -> Option<Event> {
        let room = self.bytes < PEER_UNACKNOWLEDGED_BYTES_MAX && self.unanswered.len() < PEER_APPENDS_MAX;
        let owed = !self.unanswered.is_empty();
        if self.input.is_none() && !owed {
            return None;
        }
        let input = self.input.as_mut().filter(|_| room);
        let can_send = input.is_some();
        let request = async {
            match input {
                Some(input) => input.next().await,
                None => None,
            }
        };
        Some(tokio::select! {
            biased;
            frame = self.link.receive(), if owed => Event::Frame(frame),
            request = request, if can_send => Event::Request(request),
            () = self.alarm.as_mut() => Event::Alarm,
        })
    }

    async fn send(&mut self, request: &AppendEntriesRequest<TypeConfig>) -> io::Result<()> {
        let pieces = message::encode_append(request, &[]);
        let bytes = pieces.iter().map(Bytes::len).sum();
        if self.unanswered.is_empty() {
            self.heard = Instant::now();
        }
        self.unanswered.push_back(bytes);
        self.bytes += bytes;
        self.link.send(message::APPEND, &pieces).await.map(|_| ())
    }

    fn lost(&self, error: &io::Error) -> RPCError<TypeConfig> {
        self.link.peers.meters.errors.increment(1);
        RPCError::Unreachable(Unreachable::from_string(format!("{}: {error}", self.what)))
    }
}

impl Peers {
    /// Who follows closely, to tell the followers; empty where this node does not lead.
    fn in_sync(&self) -> Vec<u64> {
        use openraft::async_runtime::WatchReceiver;
        let Some(raft) = self.raft.get() else { return Vec::new() };
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        if metrics.replication.is_some() { seen_by_leader(&metrics).in_sync } else { Vec::new() }
    }
}

impl RaftNetworkV2<TypeConfig> for Client {
    type SnapshotData = Cut;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let last = rpc.entries.last().map(|entry| entry.log_id).or(rpc.prev_log_id);
        Ok(match self.append_one(rpc).await? {
            Ok(matched) if matched < last => AppendEntriesResponse::PartialSuccess(matched),
            result => result.into(),
        })
    }

    fn stream_append<'s, S>(&'s mut self, input: S, _option: RPCOption) -> Opening<'s>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
    {
        Box::pin(self.open_stream(input))
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ballot(Ask::Vote(ballot(&rpc)), option.hard_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ballot(Ask::PreVote(ballot(&rpc)), option.hard_ttl()).await
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let ask = Ask::TransferLeader {
            from: raft_types::encode_vote(req.from_leader()).to_vec(),
            to: *req.to_node_id(),
            last: req.last_log_id().map(message::id_of),
        };
        match self.ask(ask, option.hard_ttl()).await? {
            Answer::TakingOver => Ok(Ok(())),
            other => Err(odd(&format!("{other:?} to a transfer of leadership"))),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<TypeConfig>,
        snapshot: SnapshotOf<TypeConfig, Cut>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let least = snapshot.meta.last_log_id.map_or(0, |id| id.index());
        tracing::info!(node = self.target, "a node needs more than the log has; a checkpoint is offered");
        let (peers, target) = (self.peers.clone(), self.target);
        let offering = async {
            let link = self.link(Class::Bulk).await?;
            catch_up::offer(link, &peers, target, &vote, least).await
        };
        let offered = tokio::select! {
            closed = cancel => Err(closed),
            offered = offering => Ok(offered),
        };
        self.peers.note_pulling(self.target, None);
        let offered = offered?;
        let vote = self.judge(offered).map_err(|error| {
            tracing::debug!(%error, "an offered checkpoint is not installed yet");
            StreamingError::Unreachable(Unreachable::from_string(error.to_string()))
        })?;
        Ok(SnapshotResponse { vote })
    }

    fn backoff(&self) -> Option<Backoff> {
        // Short at first: a restarted peer must be back in step before the next fault.
        let steps = [20, 50, 100, 200].into_iter().chain(std::iter::repeat(500));
        Some(Backoff::new(steps.map(Duration::from_millis)))
    }
}

fn ballot(request: &VoteRequest<TypeConfig>) -> Ballot {
    Ballot {
        vote: raft_types::encode_vote(&request.vote).to_vec(),
        last: request.last_log_id.as_ref().map(message::id_of),
        transfer: request.leadership_transfer,
    }
}
