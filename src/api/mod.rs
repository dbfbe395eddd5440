//! The Kafka APIs: decode, authorise, call, encode. The only room that knows Kafka structs.
//!
//! [`APIS`] is the ONE table: what we serve and in which versions. ApiVersions, metrics, the compat matrix and (later)
//! ACLs derive from it. An API that is not in the table is not advertised, and a version outside its range is refused.
//!
//! Order: [`Api::call`] runs the synchronous half of a handler (decode, hand to the leader) in the order in which
//! a connection's requests arrive, so decisions keep the order of the requests; the rest is a future,
//! and `net` sends the answers in the order of the requests.

pub mod cluster;
pub mod configs;
pub mod errors;
pub mod metadata;
pub mod topics;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use crate::leader::request::Caller;
use crate::log::Log;
use crate::read::Reader;

/// Everything a handler may use.
#[derive(Clone)]
pub struct Api {
    /// The replicated log: writes go through it, state is read from it.
    pub log: Log,
    /// Reads.
    pub reader: Reader,
    /// What the operator chose.
    pub settings: Arc<ApiSettings>,
}

/// The settings of this room.
#[derive(Clone, Debug)]
pub struct ApiSettings {
    /// `cluster.id` as clients see it.
    pub cluster_id: String,
    /// `auto.create.topics.enable`.
    pub auto_create_topics: bool,
    /// `num.partitions` of a topic created without a number.
    pub default_partitions: i32,
    /// `transaction.max.timeout.ms`, for DescribeConfigs.
    pub transaction_max_timeout_ms: i32,
    /// Whether two TV2 features are finalized: `transaction.version` 2 (else 0: TV1 only).
    pub transaction_version: i16,
}

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
    /// Not at all: Produce with acks=0.
    Nothing,
    /// At once.
    Now(Encoded),
    /// Later; None closes the connection.
    Later(Pin<Box<dyn Future<Output = Option<Encoded>> + Send>>),
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

/// A handler: the synchronous half; whatever waits goes into [`Reply::Later`].
pub type Handler = fn(Call<'_>) -> Result<Reply, Malformed>;

/// One row of the table.
pub struct ApiRow {
    /// Kafka's API key.
    pub key: i16,
    /// Kafka's name for it.
    pub name: &'static str,
    /// Lowest version advertised.
    pub min: i16,
    /// Highest version advertised and served.
    pub max: i16,
    /// Lowest version served; differs from `min` only for Produce (KAFKA-18659).
    pub served_from: i16,
    /// Who serves it.
    pub handler: Handler,
}

impl Call<'_> {
    /// Decodes the body, which must be consumed to the last byte.
    ///
    /// # Errors
    /// If the bytes are not such a request.
    pub fn decode<R: kafka_protocol::protocol::Decodable>(&self, api: &'static str) -> Result<R, Malformed> {
        let malformed = |reason: String| Malformed { api, version: self.version, reason };
        let mut body = self.body.clone();
        let request = R::decode(&mut body, self.version).map_err(|error| malformed(error.to_string()))?;
        if body.is_empty() { Ok(request) } else { Err(malformed(format!("{} bytes left over", body.len()))) }
    }
}

/// Encodes a response body.
///
/// # Panics
/// If the response has a field that its version cannot carry: a bug of the handler.
pub fn encode<R: kafka_protocol::protocol::Encodable>(response: &R, version: i16) -> Encoded {
    let mut body = bytes::BytesMut::new();
    response.encode(&mut body, version).expect("a handler fills only what the version has");
    vec![body.freeze()]
}
