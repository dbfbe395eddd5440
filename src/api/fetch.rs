//! Fetch (key 1), versions 4–18.
//!
//! - v4 isolation level; v5 log start offset; v7 (KIP-227) sessions; v9 (KIP-320) leader epochs; v11 (KIP-392) racks;
//!   v12 flexible; v13 (KIP-516) topic ids; v15 (KIP-903), v17 and v18 (KIP-1166) change what replicas send.
//! - Sessions: every answer has session id 0, «none made», after which clients go on with full requests. An incremental
//!   request names a session that we never gave out: FETCH_SESSION_ID_NOT_FOUND (70), and the client starts anew.
//! - Both isolation levels read the same records up to the same end, since a transaction is written when it commits:
//!   last_stable_offset = high_watermark. Aborted transactions: none with read_committed, null without, as Kafka.
//! - A partition that cannot be read ends the wait at once, an unknown one does not. The first batch is returned whatever its size.
//! - A consumer that names its rack is sent to a follower in it, if `replica.selector.class` says so (KIP-392), and is served by any
//!   follower in step, at what that has applied. One that has seen more waits, and is told OFFSET_NOT_AVAILABLE when its
//!   time is over; only the leader can tell that an offset is out of range. Kafka serves consumers without a rack too.
//! - Errors for which another node leads carry that leader from v16 (KIP-951).
//! - Not done: fetches of replicas, diverging epochs, which only those are told.

mod encoder;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::fetch_request::{FetchPartition as AskedPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::NodeEndpoint;
use kafka_protocol::messages::{ApiKey, BrokerId, FetchRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::context::TopicRef;
use super::errors;
use super::metrics::{self, TopicMetrics};
use super::view::{Standing, View, id, preferred_replica};
use super::{Api, Call, Encoded, Malformed, Reply};
use crate::config::limits::{FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX};
use crate::read::{Answered, Fetch, FetchPartition, Fetched, SegmentError, Share};
use crate::state::topics::Topic;
use crate::types::{Offset, TopicId, TopicPartition};
use encoder::{LEADER_HINTS, PartitionAnswer, TopicAnswer};

/// First version with the consumer's rack.
const RACKS: i16 = 11;

/// One topic of the request.
struct Asked {
    name: TopicName,
    id: Uuid,
    metrics: Option<Arc<TopicMetrics>>,
    /// (partition number, from where it is read or why it is not).
    parts: Vec<(i32, Result<Offset, E>)>,
}

/// Answers Fetch.
///
/// # Errors
/// If the request cannot be decoded.
pub fn handle(call: Call<'_>) -> Result<Reply, Malformed> {
    let began = Instant::now();
    let request: FetchRequest = call.decode("Fetch")?;
    let version = call.version;
    // Epoch −1 and 0 ask for everything (KIP-227); only a greater one relies on a session.
    if version >= 7 && request.session_epoch > 0 {
        let error = errors::told(E::FetchSessionIdNotFound, ApiKey::Fetch);
        metrics::fetch_answered(began.elapsed());
        return Ok(Reply::Now(encoder::encode(version, error, &[], &[])));
    }
    let standing = call.api.cluster.standing();
    let rack = if version >= RACKS { request.rack_id.as_str() } else { "" };
    // Clients of a proxy, be it this node or another one, were sent to no follower.
    let reads_here = !rack.is_empty() && call.api.names_leaders();
    let mut form = Form {
        version,
        read_committed: request.isolation_level == 1,
        redirect: redirect(call.api, standing, rack),
        follows: matches!(standing, Standing::Follows(_)),
        certain: false,
        view: (version >= LEADER_HINTS && !matches!(standing, Standing::Leads(_)) && call.api.names_leaders())
            .then(|| call.api.cluster.view()),
    };
    let mut fetch = Fetch {
        partitions: Vec::new(),
        wait_max: Duration::from_millis(request.max_wait_ms.clamp(0, FETCH_WAIT_MS_MAX).unsigned_abs().into()),
        bytes_min: usize::try_from(request.min_bytes).unwrap_or(0),
        bytes_max: usize::try_from(request.max_bytes).unwrap_or(0).min(FETCH_BYTES_MAX),
        // Of a consumer with a rack the leader knows no more: it may have read what a follower applied sooner.
        may_be_ahead: reads_here,
    };
    let asked = plan(&call, request.topics, standing, reads_here, &mut fetch.partitions);
    let ended = asked.iter().flat_map(|topic| &topic.parts).any(|(_, verdict)| verdict.is_err_and(ends_the_wait));
    if ended || fetch.partitions.is_empty() {
        fetch.wait_max = Duration::ZERO;
    }
    if fetch.partitions.is_empty() || form.redirect.is_some() {
        let looked_up = call.api.reader.look_up(&fetch.partitions);
        if looked_up.iter().zip(&fetch.partitions).all(|(found, of)| !is_behind(found, of.from)) {
            metrics::fetch_answered(began.elapsed());
            form.certain = certain(call.api, standing);
            return Ok(Reply::Now(respond(asked, looked_up, &form)));
        }
        form.redirect = None;
    }
    let api = call.api.clone();
    Ok(Reply::later(async move {
        let Answered { fetched, share, waited } = api.reader.fetch(fetch).await;
        form.certain = certain(&api, standing);
        let encoded = respond(asked, fetched, &form);
        // A long poll waits because there is nothing to read, not because we are slow; a disk that is slow does count.
        metrics::fetch_answered(began.elapsed().saturating_sub(waited));
        Some(hold(encoded, share))
    }))
}

/// Whether what was read is the newest there is. For a follower it never is; what it may say is up to its log start.
fn certain(api: &Api, standing: Standing) -> bool {
    match standing {
        Standing::Leads(epoch) => api.cluster.leased() == Some(epoch),
        Standing::Follows(_) | Standing::Away(_) => true,
    }
}

/// Whether this node may not have applied yet what is asked for.
fn is_behind(found: &Fetched, from: Offset) -> bool {
    found.bounds.is_some_and(|bounds| from > bounds.high_watermark)
}

/// What all partitions of an answer have in common.
struct Form {
    version: i16,
    read_committed: bool,
    /// Where the consumer shall read instead.
    redirect: Option<BrokerId>,
    /// Answered by a follower.
    follows: bool,
    /// Nobody else can have been elected: only then is an offset certainly out of range. A consumer told so may reset.
    certain: bool,
    /// Who leads, where that can be told.
    view: Option<View>,
}

/// The follower that a consumer in `rack` is sent to, if any.
fn redirect(api: &Api, standing: Standing, rack: &str) -> Option<BrokerId> {
    let chosen = api.settings.rack_aware_reads && api.names_leaders() && !rack.is_empty();
    if chosen && matches!(standing, Standing::Leads(_)) { preferred_replica(&api.cluster.status(), rack) } else { None }
}

/// Ties the share to the last piece, which is dropped when it has been written or its connection ends.
fn hold(mut encoded: Encoded, share: Option<Share>) -> Encoded {
    struct Held {
        piece: Bytes,
        _share: Share,
    }
    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            &self.piece
        }
    }
    if let Some(share) = share.filter(|share| share.bytes() > 0)
        && let Some(piece) = encoded.pop()
    {
        encoded.push(Bytes::from_owner(Held { piece, _share: share }));
    }
    encoded
}

/// Decides per partition whether it may be read, and adds what may to `reads`, in order.
fn plan(
    call: &Call<'_>,
    topics: Vec<FetchTopic>,
    standing: Standing,
    reads_here: bool,
    reads: &mut Vec<FetchPartition>,
) -> Vec<Asked> {
    let known: Vec<Option<Arc<Topic>>> = call
        .api
        .log
        .read(|machine| topics.iter().map(|topic| topic_ref(topic, call.version).resolve(machine).cloned()).collect());
    topics
        .into_iter()
        .zip(known)
        .map(|(topic, known)| {
            let parts = topic
                .partitions
                .iter()
                .map(|part| {
                    let admitted = standing.admit(part.current_leader_epoch, reads_here);
                    let verdict = admitted.and_then(|_| {
                        let located = locate(known.as_deref(), part, call.version);
                        // A follower may only not have heard of it yet.
                        let follows = matches!(standing, Standing::Follows(_));
                        located.map_err(|error| if follows { E::NotLeaderOrFollower } else { error })
                    });
                    let read = |partition| {
                        reads.push(read(partition, part));
                        Offset(part.fetch_offset)
                    };
                    (part.partition, verdict.map(read))
                })
                .collect();
            let metrics = known.as_deref().map(metrics::of_topic);
            Asked { name: topic.topic, id: topic.topic_id, metrics, parts }
        })
        .collect()
}

/// As Kafka: an unknown topic beside quiet ones is no reason to answer, or its consumers would ask without pause.
fn ends_the_wait(error: E) -> bool {
    !matches!(error, E::UnknownTopicOrPartition | E::UnknownTopicId)
}

fn topic_ref(topic: &FetchTopic, version: i16) -> TopicRef<'_> {
    if version >= 13 { TopicRef::Id(TopicId(*topic.topic_id.as_bytes())) } else { TopicRef::Name(&topic.topic) }
}

/// Only once the node may answer: before everything is applied the log looks shorter than it is, and a topic may be missing.
fn locate(topic: Option<&Topic>, part: &AskedPartition, version: i16) -> Result<TopicPartition, E> {
    let unknown = if version >= 13 { E::UnknownTopicId } else { E::UnknownTopicOrPartition };
    let topic = topic.ok_or(unknown)?;
    if usize::try_from(part.partition).is_ok_and(|index| index < topic.partitions.len()) {
        Ok(TopicPartition { topic: topic.id, partition: part.partition })
    } else {
        Err(E::UnknownTopicOrPartition)
    }
}

fn read(partition: TopicPartition, part: &AskedPartition) -> FetchPartition {
    FetchPartition {
        partition,
        from: Offset(part.fetch_offset),
        bytes_max: usize::try_from(part.partition_max_bytes).unwrap_or(0),
    }
}

fn respond(asked: Vec<Asked>, fetched: Vec<Fetched>, form: &Form) -> Encoded {
    let mut fetched = fetched.into_iter();
    let topics: Vec<TopicAnswer> = asked
        .into_iter()
        .map(|topic| {
            let partitions = topic
                .parts
                .into_iter()
                .map(|(index, from)| {
                    let read = from.and_then(|from| read_part(&mut fetched, from, form));
                    answer(index, read, topic.metrics.as_deref(), form)
                })
                .collect();
            TopicAnswer { name: topic.name, id: topic.id, partitions }
        })
        .collect();
    let hinted = topics.iter().flat_map(|topic| &topic.partitions).any(|partition| partition.leader.is_some());
    let leader = form.view.as_ref().and_then(View::leader).filter(|_| hinted);
    let endpoint = leader.map(|leader| {
        NodeEndpoint::default()
            .with_node_id(id(leader.node_id))
            .with_host(StrBytes::from_string(leader.host.clone()))
            .with_port(i32::from(leader.port))
            .with_rack(leader.rack.clone().map(StrBytes::from_string))
    });
    encoder::encode(form.version, 0, &topics, endpoint.as_slice())
}

fn out_of_range(form: &Form) -> E {
    if form.certain { E::OffsetOutOfRange } else { E::NotLeaderOrFollower }
}

fn read_part(fetched: &mut impl Iterator<Item = Fetched>, from: Offset, form: &Form) -> Result<Fetched, E> {
    let fetched = fetched.next().expect("a fetch answers every partition in order");
    match &fetched.result {
        Ok(_) => match fetched.bounds {
            Some(_) if is_behind(&fetched, from) => {
                Err(if form.follows { E::OffsetNotAvailable } else { out_of_range(form) })
            }
            Some(_) => Ok(fetched),
            None => Err(E::UnknownTopicOrPartition),
        },
        Err(SegmentError::UnknownPartition) => Err(E::UnknownTopicOrPartition),
        Err(SegmentError::OffsetOutOfRange) => Err(out_of_range(form)),
        Err(error @ (SegmentError::Io { .. } | SegmentError::Damaged { .. })) => {
            tracing::error!(partition = ?fetched.partition, %error, "a fetch cannot read");
            Err(E::KafkaStorageError)
        }
    }
}

/// One partition of the response. All offsets are −1 beside an error, as Kafka's.
fn answer(index: i32, read: Result<Fetched, E>, metrics: Option<&TopicMetrics>, form: &Form) -> PartitionAnswer {
    let (fetched, error) = match read {
        Ok(fetched) => (Some(fetched), None),
        Err(error) => (None, Some(error)),
    };
    let bounds = fetched.as_ref().and_then(|fetched| fetched.bounds);
    let high_watermark = bounds.map_or(-1, |bounds| bounds.high_watermark.0);
    let batches = fetched.and_then(|fetched| fetched.result.ok()).unwrap_or_default();
    if let Some(metrics) = metrics {
        metrics.fetched_bytes.increment(batches.bytes as u64);
        metrics.fetched_records.increment(batches.records);
    }
    let elsewhere = matches!(error, Some(E::NotLeaderOrFollower | E::FencedLeaderEpoch));
    let view = form.view.as_ref().filter(|view| elsewhere && view.leader.0 >= 0);
    PartitionAnswer {
        index,
        error: error.map_or(0, |error| errors::told(error, ApiKey::Fetch)),
        high_watermark,
        last_stable_offset: high_watermark,
        log_start_offset: bounds.map_or(-1, |bounds| bounds.log_start_offset.0),
        aborted: form.read_committed,
        preferred_replica: form.redirect.filter(|_| error.is_none()).map_or(-1, |replica| replica.0),
        leader: view.map(|view| (view.leader.0, view.leader_epoch)),
        batches,
    }
}
