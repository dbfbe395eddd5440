//! A connection of ours to another node's Kafka address, over which clients' frames are passed on.
//!
//! - Frames go out in the order of [`Upstream::send`], answers are read in that order by whoever's turn it is, and only then: a client
//!   that does not read pushes back on the node that answers.
//! - The first frame tells the other node who the client is, and that it must not be passed on again: two nodes that take
//!   each other for the leader would pass it to and fro for ever.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, RequestHeader};
use kafka_protocol::protocol::{Encodable, StrBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::config::limits::{
    FORWARD_MS_MAX, FORWARDED_REQUESTS_MAX, PIPELINE_REQUESTS_MAX, RELAYED_ANSWER_BYTES_MAX, RELAYED_BYTES_MAX,
    UPSTREAM_CONNECT_MS_MAX,
};
use crate::leader::request::Caller;
use crate::log::Member;

/// The tagged field of a request header that says: this connection was passed on. No KIP uses tags of headers beyond 1.
pub const RELAYED_TAG: i32 = 0x4b41;

static BUDGET: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(RELAYED_BYTES_MAX)));
static FORWARDS: Semaphore = Semaphore::const_new(FORWARDED_REQUESTS_MAX);

/// A frame on its way out.
struct Outgoing {
    frame: Bytes,
    /// Told once its last byte is with the system.
    written: oneshot::Sender<()>,
}

/// The connection; it ends when this and all answers awaited of it are dropped.
#[derive(Clone)]
pub struct Upstream {
    frames: mpsc::Sender<Outgoing>,
    answers: Arc<Mutex<Answers>>,
}

enum Answers {
    Connecting(oneshot::Receiver<OwnedReadHalf>),
    Connected(OwnedReadHalf),
    Lost,
}

impl Upstream {
    /// Begins to connect to that node, on behalf of that client.
    pub fn open(to: &Member, caller: &Caller) -> Self {
        let (frames, outgoing) = mpsc::channel(PIPELINE_REQUESTS_MAX);
        let (connected, connecting) = oneshot::channel();
        let (address, greeting) = ((to.host.clone(), to.port), greeting(caller));
        tokio::spawn(async move {
            if let Err(error) = write(&address, greeting, connected, outgoing).await {
                tracing::info!(host = address.0, port = address.1, %error, "requests cannot be passed on");
            }
        });
        Self { frames, answers: Arc::new(Mutex::new(Answers::Connecting(connecting))) }
    }

    /// Sends a frame, without its length; None if the connection is lost. The receiver hears when it was written.
    pub fn send(&self, frame: Bytes) -> Option<oneshot::Receiver<()>> {
        let (written, told) = oneshot::channel();
        self.frames.try_send(Outgoing { frame, written }).ok()?;
        Some(told)
    }

    /// The next answer, without length and correlation id. To be awaited in the order of the requests.
    ///
    /// # Errors
    /// If the connection is lost, or the answer is another's: nothing more may be read.
    pub async fn answer(&self, correlation_id: i32) -> io::Result<Bytes> {
        let mut answers = self.answers.lock().await;
        // Whoever is dropped while it reads leaves a stream that is cut anywhere.
        let mut stream = match std::mem::replace(&mut *answers, Answers::Lost) {
            Answers::Connected(stream) => stream,
            Answers::Connecting(connecting) => {
                let mut stream = connecting.await.map_err(|_| io::ErrorKind::NotConnected)?;
                read(&mut stream).await?;
                stream
            }
            Answers::Lost => return Err(io::ErrorKind::NotConnected.into()),
        };
        let mut answer = read(&mut stream).await?;
        if answer.try_get_i32().ok() != Some(correlation_id) {
            return Err(io::Error::other("the answer is to another request"));
        }
        *answers = Answers::Connected(stream);
        Ok(answer)
    }
}

/// Puts one request to another node, on a connection of its own.
///
/// # Errors
/// If there is no answer in time; `NotConnected` if the request was certainly not sent.
pub async fn forward(to: &Member, caller: &Caller, frame: Bytes, correlation_id: i32) -> io::Result<Bytes> {
    let asked = async {
        let _turn = FORWARDS.acquire().await.map_err(io::Error::other)?;
        let upstream = Upstream::open(to, caller);
        upstream.send(frame).ok_or(io::ErrorKind::NotConnected)?;
        upstream.answer(correlation_id).await
    };
    tokio::time::timeout(Duration::from_millis(FORWARD_MS_MAX), asked).await?
}

/// Connects, and writes frames until nobody sends more.
async fn write(
    (host, port): &(String, u16),
    greeting: Bytes,
    connected: oneshot::Sender<OwnedReadHalf>,
    mut outgoing: mpsc::Receiver<Outgoing>,
) -> io::Result<()> {
    let connecting = TcpStream::connect((host.as_str(), *port));
    let stream = tokio::time::timeout(Duration::from_millis(UPSTREAM_CONNECT_MS_MAX), connecting).await??;
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    write_frame(&mut writer, &greeting).await?;
    // Nobody waits for answers any more: then nobody sends frames either.
    let _ = connected.send(reader);
    while let Some(Outgoing { frame, written }) = outgoing.recv().await {
        write_frame(&mut writer, &frame).await?;
        let _ = written.send(());
    }
    Ok(())
}

async fn write_frame(writer: &mut OwnedWriteHalf, frame: &Bytes) -> io::Result<()> {
    let length = i32::try_from(frame.len()).map_err(io::Error::other)?.to_be_bytes();
    let mut whole = Buf::chain(&length[..], &frame[..]);
    writer.write_all_buf(&mut whole).await
}

/// One frame, without its length; its share of the memory lives as long as its bytes.
async fn read(stream: &mut OwnedReadHalf) -> io::Result<Bytes> {
    struct Held {
        bytes: Vec<u8>,
        _share: OwnedSemaphorePermit,
    }
    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    let length = stream.read_i32().await?;
    let length = usize::try_from(length).ok().filter(|length| *length <= RELAYED_ANSWER_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("the answer's length is out of range"))?;
    let permits = u32::try_from(length).map_err(io::Error::other)?;
    let share = BUDGET.clone().acquire_many_owned(permits).await.map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(Bytes::from_owner(Held { bytes, _share: share }))
}

/// An ApiVersions request in the client's name: the other node chooses some codes by the client's software.
fn greeting(caller: &Caller) -> Bytes {
    let software = if caller.software.is_empty() { "unknown" } else { &*caller.software };
    let body = ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_string(software.to_owned()))
        .with_client_software_version(StrBytes::from_static_str("1"));
    frame(ApiKey::ApiVersions, 3, 0, caller, &[(RELAYED_TAG, Bytes::new())], |out| {
        body.encode(out, 3).expect("version 3 has these fields");
    })
}

/// A request's frame, without its length.
fn frame(
    key: ApiKey,
    version: i16,
    correlation_id: i32,
    caller: &Caller,
    tags: &[(i32, Bytes)],
    body: impl FnOnce(&mut BytesMut),
) -> Bytes {
    let mut out = BytesMut::new();
    let header = RequestHeader::default()
        .with_request_api_key(key as i16)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(StrBytes::from_string(caller.client_id.to_string())))
        .with_unknown_tagged_fields(tags.iter().cloned().collect::<BTreeMap<_, _>>());
    header.encode(&mut out, key.request_header_version(version)).expect("headers have these fields");
    body(&mut out);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;
    use tokio::net::TcpListener;

    use super::*;
    use crate::types::ConnectionId;

    fn caller() -> Caller {
        Caller { connection: ConnectionId(1), software: "kgo".into(), client_id: "me".into(), host: "".into() }
    }

    /// Answers the greeting, then each frame of `count` with its correlation id and its length.
    async fn echo(listener: TcpListener, count: usize) {
        let (mut stream, _) = listener.accept().await.unwrap();
        for _ in 0..=count {
            let mut frame = vec![0; stream.read_i32().await.unwrap() as usize];
            stream.read_exact(&mut frame).await.unwrap();
            let mut answer = BytesMut::new();
            answer.put_i32(8);
            answer.put_slice(&frame[4..8]);
            answer.put_i32(frame.len() as i32);
            stream.write_all(&answer).await.unwrap();
        }
    }

    async fn listen() -> (TcpListener, Member) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, Member { host: "127.0.0.1".into(), port, ..Member::default() })
    }

    fn request(correlation_id: i32, body_bytes: usize) -> Bytes {
        frame(ApiKey::Metadata, 1, correlation_id, &caller(), &[], |out| out.put_bytes(0, body_bytes))
    }

    #[tokio::test]
    async fn frames_are_answered_in_the_order_in_which_they_were_sent() {
        let (listener, node) = listen().await;
        let echoing = tokio::spawn(echo(listener, 3));
        let upstream = Upstream::open(&node, &caller());
        let frames = [7, 1_000_000, 0].map(|bytes| request(bytes, bytes as usize));
        for frame in &frames {
            upstream.send(frame.clone()).unwrap().await.unwrap();
        }
        for (sent, id) in frames.iter().zip([7, 1_000_000, 0]) {
            assert_eq!(upstream.answer(id).await.unwrap(), (sent.len() as i32).to_be_bytes()[..]);
        }
        echoing.await.unwrap();
        assert!(upstream.answer(0).await.is_err(), "it was closed");
        assert!(upstream.answer(0).await.is_err(), "and stays so");
    }

    #[tokio::test]
    async fn an_answer_to_another_request_ends_the_connection() {
        let (listener, node) = listen().await;
        let _echoing = tokio::spawn(echo(listener, 2));
        let upstream = Upstream::open(&node, &caller());
        upstream.send(request(1, 0)).unwrap();
        upstream.send(request(2, 0)).unwrap();
        assert!(upstream.answer(2).await.is_err());
        assert!(upstream.answer(2).await.is_err());
    }

    #[tokio::test]
    async fn a_node_that_is_not_there_answers_nothing() {
        let (listener, node) = listen().await;
        drop(listener);
        assert!(forward(&node, &caller(), request(1, 0), 1).await.is_err());
        let upstream = Upstream::open(&node, &caller());
        let written = upstream.send(request(1, 0)).unwrap();
        assert!(upstream.answer(1).await.is_err());
        assert!(written.await.is_err());
    }
}
