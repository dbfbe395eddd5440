//! The Kafka APIs: decode, authorise, call, encode. The only room that knows Kafka structs.
//!
//! [`APIS`] is the ONE table: what we serve and in which versions. ApiVersions, metrics, the compat matrix and (later)
//! ACLs derive from it. An API that is not in the table is not advertised, and a version outside its range is refused.
//!
//! Order: [`Api::call`] runs the synchronous half of a handler (decode, hand to the leader) in the order in which
//! a connection's requests arrive, so decisions keep the order of the requests; the rest is a future,
//! and `net` sends the answers in the order of the requests.

pub mod alter_configs;
pub mod cluster;
pub mod configs;
pub mod context;
pub mod delete_records;
pub mod errors;
pub mod fetch;
pub mod forward;
pub mod group_membership;
pub mod group_offsets;
pub mod handshake;
pub mod list_offsets;
pub mod log_dirs;
pub mod metadata;
pub mod metrics;
pub mod partitions;
pub mod produce;
pub mod proxy;
pub mod quorum;
pub mod shape;
pub mod shapes;
pub mod topics;
pub mod transactions;
pub mod upstream;
pub mod view;
pub mod voters;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use kafka_protocol::messages::{ApiKey, RequestHeader};
use kafka_protocol::protocol::decode_request_header_from_buffer;

pub use context::{Call, Encoded, Malformed, Reply, TopicRef, encode};
use shape::Shape;

pub use crate::leader::request::Caller;
use crate::log::Log;
use crate::read::Reader;
use produce::gaps::Gaps;
use proxy::Link;
use upstream::RELAYED_TAG;
use view::Cluster;

/// Everything a handler may use.
#[derive(Clone)]
pub struct Api {
    /// The replicated log: writes go through it, state is read from it.
    pub log: Log,
    /// Reads.
    pub reader: Reader,
    /// What the operator chose.
    pub settings: Arc<ApiSettings>,
    /// Who leads, and what clients are told of it.
    pub cluster: Cluster,
    /// Where this connection's requests are passed on to.
    pub link: Link,
    /// What of this connection's batches was refused for the moment.
    gaps: Gaps,
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
    /// Every broker setting that runs, by Kafka's name, for DescribeConfigs.
    pub running: BTreeMap<String, String>,
    /// The finalized level of the feature `transaction.version`: 2, or 0 where only TV1 is served.
    pub transaction_version: i16,
    /// `replica.selector.class` is the rack-aware one: consumers with a rack are sent to a follower in it (KIP-392).
    pub rack_aware_reads: bool,
    /// `katomic.proxy`: requests for the leader are passed on to it, and clients see this node alone.
    pub proxy: bool,
}

/// A handler: the synchronous half; whatever waits goes into [`Reply::Later`].
pub type Handler = fn(Call<'_>) -> Result<Reply, Malformed>;

/// One row of the table.
pub struct ApiRow {
    /// Kafka's API key.
    pub key: ApiKey,
    /// Kafka's name for it.
    pub name: &'static str,
    /// Lowest version advertised.
    pub min: i16,
    /// Highest version advertised and served.
    pub max: i16,
    /// Lowest version served; differs from `min` only for Produce (KAFKA-18659).
    pub served_from: i16,
    /// The request's shape, walked over before it is decoded.
    pub shape: &'static Shape,
    /// Whether the request may add to the log, so that it waits until the sequencer admits more.
    pub admission: bool,
    /// Who serves it.
    pub handler: Handler,
}

const fn row(
    key: ApiKey,
    name: &'static str,
    (min, max): (i16, i16),
    shape: &'static Shape,
    handler: Handler,
) -> ApiRow {
    ApiRow { key, name, min, max, served_from: min, shape, admission: false, handler }
}

impl ApiRow {
    const fn served_from(mut self, version: i16) -> Self {
        self.served_from = version;
        self
    }

    /// It may add to the log.
    const fn writes(mut self) -> Self {
        self.admission = true;
        self
    }
}

/// What we serve, by key.
///
/// Never taken from the crate's `ApiKey::valid_versions()`: it promises OffsetCommit 10, OffsetFetch 10 and
/// InitProducerId 6, which its decoders refuse.
pub static APIS: &[ApiRow] = &[
    row(ApiKey::Produce, "Produce", (0, 13), &shapes::PRODUCE, produce::handle).served_from(3).writes(),
    row(ApiKey::Fetch, "Fetch", (4, 18), &shapes::FETCH, fetch::handle),
    row(ApiKey::ListOffsets, "ListOffsets", (1, 10), &shapes::LIST_OFFSETS, list_offsets::handle),
    row(ApiKey::Metadata, "Metadata", (0, 13), &shapes::METADATA, metadata::handle),
    row(ApiKey::OffsetCommit, "OffsetCommit", (2, 9), &shapes::OFFSET_COMMIT, group_offsets::commit).writes(),
    row(ApiKey::OffsetFetch, "OffsetFetch", (1, 9), &shapes::OFFSET_FETCH, group_offsets::fetch),
    row(ApiKey::FindCoordinator, "FindCoordinator", (0, 6), &shapes::FIND_COORDINATOR, cluster::find_coordinator),
    row(ApiKey::JoinGroup, "JoinGroup", (0, 9), &shapes::JOIN_GROUP, group_membership::join),
    row(ApiKey::Heartbeat, "Heartbeat", (0, 4), &shapes::HEARTBEAT, group_membership::heartbeat),
    row(ApiKey::LeaveGroup, "LeaveGroup", (0, 5), &shapes::LEAVE_GROUP, group_membership::leave),
    row(ApiKey::SyncGroup, "SyncGroup", (0, 5), &shapes::SYNC_GROUP, group_membership::sync),
    row(ApiKey::ApiVersions, "ApiVersions", (0, 4), &shapes::API_VERSIONS, handshake::handle),
    row(ApiKey::CreateTopics, "CreateTopics", (2, 7), &shapes::CREATE_TOPICS, topics::create).writes(),
    row(ApiKey::DeleteTopics, "DeleteTopics", (1, 6), &shapes::DELETE_TOPICS, topics::delete).writes(),
    row(ApiKey::DeleteRecords, "DeleteRecords", (0, 2), &shapes::DELETE_RECORDS, delete_records::handle).writes(),
    row(ApiKey::InitProducerId, "InitProducerId", (0, 5), &shapes::INIT_PRODUCER_ID, transactions::init).writes(),
    row(
        ApiKey::OffsetForLeaderEpoch,
        "OffsetForLeaderEpoch",
        (2, 4),
        &shapes::OFFSET_FOR_LEADER_EPOCH,
        list_offsets::handle_leader_epoch,
    ),
    row(
        ApiKey::AddPartitionsToTxn,
        "AddPartitionsToTxn",
        (0, 5),
        &shapes::ADD_PARTITIONS_TO_TXN,
        transactions::add_partitions,
    )
    .writes(),
    row(ApiKey::AddOffsetsToTxn, "AddOffsetsToTxn", (0, 4), &shapes::ADD_OFFSETS_TO_TXN, transactions::add_offsets)
        .writes(),
    row(ApiKey::EndTxn, "EndTxn", (0, 5), &shapes::END_TXN, transactions::end).writes(),
    row(ApiKey::TxnOffsetCommit, "TxnOffsetCommit", (0, 5), &shapes::TXN_OFFSET_COMMIT, transactions::commit_offsets)
        .writes(),
    row(ApiKey::DescribeConfigs, "DescribeConfigs", (1, 4), &shapes::DESCRIBE_CONFIGS, configs::handle),
    row(ApiKey::AlterConfigs, "AlterConfigs", (0, 2), &shapes::ALTER_CONFIGS, alter_configs::replace).writes(),
    row(ApiKey::DescribeLogDirs, "DescribeLogDirs", (1, 4), &shapes::DESCRIBE_LOG_DIRS, log_dirs::handle),
    row(ApiKey::CreatePartitions, "CreatePartitions", (0, 3), &shapes::CREATE_PARTITIONS, partitions::handle).writes(),
    row(ApiKey::ElectLeaders, "ElectLeaders", (0, 2), &shapes::ELECT_LEADERS, quorum::elect),
    row(
        ApiKey::IncrementalAlterConfigs,
        "IncrementalAlterConfigs",
        (0, 1),
        &shapes::INCREMENTAL_ALTER_CONFIGS,
        alter_configs::change,
    )
    .writes(),
    row(ApiKey::DescribeQuorum, "DescribeQuorum", (0, 2), &shapes::DESCRIBE_QUORUM, quorum::describe),
    row(ApiKey::DescribeCluster, "DescribeCluster", (0, 2), &shapes::DESCRIBE_CLUSTER, cluster::describe),
    row(ApiKey::AddRaftVoter, "AddRaftVoter", (0, 0), &shapes::ADD_RAFT_VOTER, voters::add),
    row(ApiKey::RemoveRaftVoter, "RemoveRaftVoter", (0, 0), &shapes::REMOVE_RAFT_VOTER, voters::remove),
];

/// Why a frame is not a request that can be served; the connection is closed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Shorter than key, version and correlation id.
    #[error("a frame of {0} bytes is too short for a request")]
    Short(usize),
    /// Not in the table.
    #[error("API key {0} is not served")]
    UnknownApi(i16),
    /// Outside the table's range.
    #[error("{api} version {version} is not served")]
    UnsupportedVersion {
        /// Which API.
        api: &'static str,
        /// Which version.
        version: i16,
    },
    /// The request header cannot be decoded.
    #[error("malformed header of {api} v{version}: {reason}")]
    Header {
        /// Which API.
        api: &'static str,
        /// Which version.
        version: i16,
        /// What is wrong.
        reason: String,
    },
    /// The body cannot be decoded.
    #[error(transparent)]
    Body(#[from] Malformed),
}

/// A frame whose key and version are in the table.
#[derive(Clone, Debug)]
pub struct Frame {
    row: usize,
    version: i16,
    correlation_id: i32,
    bytes: Bytes,
}

/// A request that was taken on.
pub struct Called {
    /// Which row of the table, for metrics.
    pub row: usize,
    /// The response header: the request's correlation id,
    pub correlation_id: i32,
    /// and in header version 1 an empty list of tagged fields.
    pub header_version: i16,
    /// The answer.
    pub reply: Reply,
}

impl Frame {
    /// Finds the table's row of a frame.
    ///
    /// # Errors
    /// If the frame is too short or its API or version is not served. ApiVersions of an unknown version passes: it is
    /// answered in version 0 (KIP-511).
    pub fn parse(bytes: Bytes) -> Result<Self, Fault> {
        let mut head = &bytes[..];
        if head.len() < 8 {
            return Err(Fault::Short(head.len()));
        }
        let (key, version, correlation_id) = (head.get_i16(), head.get_i16(), head.get_i32());
        let row = APIS.iter().position(|row| row.key as i16 == key).ok_or(Fault::UnknownApi(key))?;
        let ApiRow { name, max, .. } = APIS[row];
        let known = (0..=max).contains(&version) && (version >= APIS[row].min);
        if known || APIS[row].key == ApiKey::ApiVersions {
            Ok(Self { row, version, correlation_id, bytes })
        } else {
            Err(Fault::UnsupportedVersion { api: name, version })
        }
    }

    /// Whether it must wait until the sequencer admits more.
    pub fn waits_for_admission(&self) -> bool {
        APIS[self.row].admission
    }

    /// The number by which the client knows the answer.
    pub fn correlation_id(&self) -> i32 {
        self.correlation_id
    }

    /// Kafka's name of the API.
    pub fn api(&self) -> &'static str {
        APIS[self.row].name
    }
}

impl Api {
    /// The APIs over a log and its reader.
    pub fn new(log: Log, reader: Reader, settings: ApiSettings) -> Self {
        let cluster = Cluster::new(log.clone(), settings.proxy);
        Self { log, reader, settings: Arc::new(settings), cluster, link: Link::default(), gaps: Gaps::default() }
    }

    /// Whether this client may be told of other nodes. One behind a proxy cannot reach them.
    pub fn names_leaders(&self) -> bool {
        !self.settings.proxy && !self.link.is_relayed()
    }

    /// The same for another connection.
    pub fn for_connection(&self) -> Self {
        Self { link: Link::default(), gaps: Gaps::default(), ..self.clone() }
    }

    /// Runs the synchronous half of the request: decodes it and hands it to the leader.
    ///
    /// # Errors
    /// If the request cannot be decoded: the connection must be closed.
    pub fn call(&self, caller: &mut Arc<Caller>, frame: Frame) -> Result<Called, Fault> {
        if let Some(called) = proxy::pass_on(self, caller, &frame) {
            return Ok(called);
        }
        let Frame { row: index, version, correlation_id, .. } = frame;
        let row = &APIS[index];
        let answer = |header_version, reply| Ok(Called { row: index, correlation_id, header_version, reply });
        if row.key == ApiKey::ApiVersions && !(row.min..=row.max).contains(&version) {
            return answer(0, handshake::unsupported());
        }
        let mut body = frame.bytes.clone();
        let header = decode_header(row, version, &mut body)?;
        let client_id = header.client_id.as_deref().unwrap_or_default();
        if *caller.client_id != *client_id {
            Arc::make_mut(caller).client_id = client_id.into();
        }
        if row.key == ApiKey::ApiVersions && header.unknown_tagged_fields.contains_key(&RELAYED_TAG) {
            self.link.set_relayed();
        }
        if version < row.served_from {
            return answer(0, produce::refuse_old_version(version, body)?);
        }
        row.shape.check(version, &body).map_err(|fault| Malformed {
            api: row.name,
            version,
            reason: fault.to_string(),
        })?;
        let forwarded = forward::to_leader(self, caller, row, &frame, &body);
        let reply = match forwarded {
            Some(reply) => reply,
            None => (row.handler)(Call { api: self, caller, version, body })?,
        };
        answer(row.key.response_header_version(version), reply)
    }
}

/// Takes the request header off a frame, once its walk has shown that decoding it stays within bounds.
fn decode_header(row: &ApiRow, version: i16, frame: &mut Bytes) -> Result<RequestHeader, Fault> {
    let fault = |reason: String| Fault::Header { api: row.name, version, reason };
    shape::check_header(row.key.request_header_version(version), frame).map_err(|error| fault(error.to_string()))?;
    decode_request_header_from_buffer(frame).map_err(|error| fault(error.to_string().trim().to_owned()))
}

#[cfg(test)]
mod tests;
