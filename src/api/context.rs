//! What a handler gets and gives: [`Call`] in, [`Reply`] out, and the few steps that all handlers share.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use kafka_protocol::protocol::{Decodable, Encodable};
use tokio::sync::oneshot;

use super::Api;
use crate::leader::request::{Caller, Request, Response};
use crate::state::Machine;
use crate::state::topics::Topic;
use crate::types::{Refusal, TopicId};

/// One request of one connection.
pub struct Call<'a> {
    /// What it may use.
    pub api: &'a Api,
    /// Who asks; ApiVersions replaces it when the client names its software.
    pub caller: &'a mut Arc<Caller>,
    /// Version of the request, within the table's range.
    pub version: i16,
    /// The body, behind the request header.
    pub body: Bytes,
}

/// A response body in pieces, without size and response header.
pub type Encoded = Vec<Bytes>;

/// How a request is answered.
pub enum Reply {
    /// Not at all (Produce with acks=0); false closes the connection, the only way to tell of an error.
    Silent(Pin<Box<dyn Future<Output = bool> + Send>>),
    /// At once.
    Now(Encoded),
    /// Later; None closes the connection.
    Later(Pin<Box<dyn Future<Output = Option<Encoded>> + Send>>),
}

impl Reply {
    /// An answer that is worked out by a future.
    pub fn later(answer: impl Future<Output = Option<Encoded>> + Send + 'static) -> Self {
        Reply::Later(Box::pin(answer))
    }

    /// A response that is ready.
    pub fn now<R: Encodable>(response: &R, version: i16) -> Self {
        Reply::Now(encode(response, version))
    }
}

/// The request cannot be decoded: the connection is closed and the reason logged.
#[derive(Debug, thiserror::Error)]
#[error("malformed {api} v{version}: {reason}")]
pub struct Malformed {
    /// Which API.
    pub api: &'static str,
    /// Which version.
    pub version: i16,
    /// What is wrong.
    pub reason: String,
}

impl Call<'_> {
    /// Decodes the body; stray bytes behind it are ignored (see [`Shape::check`](super::shape::Shape::check)).
    ///
    /// # Errors
    /// If the bytes are not such a request.
    pub fn decode<R: Decodable>(&self, api: &'static str) -> Result<R, Malformed> {
        let malformed = |reason: String| Malformed { api, version: self.version, reason };
        let mut body = self.body.clone();
        R::decode(&mut body, self.version).map_err(|error| malformed(error.to_string().trim().to_owned()))
    }

    /// Why this node decides nothing of what the leader decides, if so. To be asked before anything is looked up for it.
    pub fn elsewhere(&self) -> Option<Refusal> {
        self.api.cluster.serving().err()
    }

    /// Hands a request to the leader; decisions keep the order of these calls.
    pub fn submit(&self, request: Request) -> oneshot::Receiver<Response> {
        match self.elsewhere() {
            None => self.api.log.submit(Arc::clone(self.caller), request),
            Some(refusal) => refused(refusal),
        }
    }

    /// The same; what it adds to the log may take as long as `within`.
    pub fn submit_within(&self, request: Request, within: Duration) -> oneshot::Receiver<Response> {
        match self.elsewhere() {
            None => self.api.log.submit_within(Arc::clone(self.caller), request, within),
            Some(refusal) => refused(refusal),
        }
    }

    /// Hands a request to the leader and answers with what `shape` makes of the response; `None` closes the connection.
    ///
    /// A response that is there already (a staged acknowledgement, a refusal) is encoded without a task switch.
    pub fn answer(&self, request: Request, shape: impl FnOnce(Response) -> Option<Encoded> + Send + 'static) -> Reply {
        Self::answer_of(self.submit(request), shape)
    }

    /// The same for a response that was asked for already.
    pub fn answer_of(
        mut receiver: oneshot::Receiver<Response>,
        shape: impl FnOnce(Response) -> Option<Encoded> + Send + 'static,
    ) -> Reply {
        match receiver.try_recv() {
            Ok(response) => answered(shape(response)),
            Err(oneshot::error::TryRecvError::Closed) => Reply::later(std::future::ready(None)),
            Err(oneshot::error::TryRecvError::Empty) => Reply::later(async move { shape(receiver.await.ok()?) }),
        }
    }
}

/// A refusal, where an answer is waited for.
pub fn refused(refusal: Refusal) -> oneshot::Receiver<Response> {
    let (sender, receiver) = oneshot::channel();
    // The receiver is there.
    let _ = sender.send(Response::Refused(refusal));
    receiver
}

/// An answer that is there, shaped; `None` closes the connection.
pub fn answered(encoded: Option<Encoded>) -> Reply {
    match encoded {
        Some(encoded) => Reply::Now(encoded),
        None => Reply::later(std::future::ready(None)),
    }
}

/// Encodes a response body.
///
/// # Panics
/// If the response has a field that its version cannot carry: a bug of the handler.
pub fn encode<R: Encodable>(response: &R, version: i16) -> Encoded {
    let size = response.compute_size(version).expect("a handler fills only what the version has");
    let mut body = BytesMut::with_capacity(size);
    response.encode(&mut body, version).expect("a handler fills only what the version has");
    vec![body.freeze()]
}

/// How a request names a topic: by name, or (KIP-516) by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicRef<'a> {
    /// By name.
    Name(&'a str),
    /// By id.
    Id(TopicId),
}

impl TopicRef<'_> {
    /// The topic, if it exists.
    pub fn resolve<'m>(&self, machine: &'m Machine) -> Option<&'m Arc<Topic>> {
        match self {
            TopicRef::Name(name) => machine.topics().named(name),
            TopicRef::Id(id) => machine.topics().get(*id),
        }
    }
}

/// The broker's wall clock, milliseconds since the Unix epoch.
pub fn wall_clock_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
