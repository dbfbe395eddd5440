//! Fetch (key 1), versions 4–18.
//!
//! - v4 isolation level; v5 log start offset; v7 (KIP-227) sessions; v9 (KIP-320) leader epochs; v11 (KIP-392) racks;
//!   v12 flexible; v13 (KIP-516) topic ids; v15 (KIP-903), v17 and v18 (KIP-1166) change what replicas send.
//! - Sessions: every answer has session id 0, «none made», after which clients go on with full requests. An incremental
//!   request names a session that we never gave out: FETCH_SESSION_ID_NOT_FOUND (70), and the client starts anew.
//! - Both isolation levels read the same records up to the same end, since a transaction is written when it commits:
//!   last_stable_offset = high_watermark. Aborted transactions: none with read_committed, null without, as Kafka.
//! - A partition that cannot be read ends the wait at once, an unknown one does not. The first batch is returned whatever its size.
//! - Not done: followers (there are none in Kafka's sense), diverging epochs, which only followers are told.

mod encoder;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::fetch_request::{FetchPartition as AskedPartition, FetchTopic};
use kafka_protocol::messages::{ApiKey, FetchRequest, TopicName};
use uuid::Uuid;

use super::context::TopicRef;
use super::errors;
use super::metrics::{self, TopicMetrics};
use super::{Call, Encoded, Malformed, Reply};
use crate::config::limits::{FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX};
use crate::read::{Answered, Fetch, FetchPartition, Fetched, SegmentError, Share};
use crate::state::topics::Topic;
use crate::types::{Offset, Term, TopicId, TopicPartition};
use encoder::{PartitionAnswer, TopicAnswer};

/// One topic of the request.
struct Asked {
    name: TopicName,
    id: Uuid,
    metrics: Option<Arc<TopicMetrics>>,
    /// (partition number, whether it is read or why not).
    parts: Vec<(i32, Result<(), E>)>,
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
        return Ok(Reply::Now(encoder::encode(version, error, &[])));
    }
    let read_committed = request.isolation_level == 1;
    let mut fetch = Fetch {
        partitions: Vec::new(),
        wait_max: Duration::from_millis(request.max_wait_ms.clamp(0, FETCH_WAIT_MS_MAX).unsigned_abs().into()),
        bytes_min: usize::try_from(request.min_bytes).unwrap_or(0),
        bytes_max: usize::try_from(request.max_bytes).unwrap_or(0).min(FETCH_BYTES_MAX),
    };
    let asked = plan(&call, request.topics, &mut fetch.partitions);
    let ended = asked.iter().flat_map(|topic| &topic.parts).any(|(_, verdict)| verdict.is_err_and(ends_the_wait));
    if ended || fetch.partitions.is_empty() {
        fetch.wait_max = Duration::ZERO;
    }
    let reader = call.api.reader.clone();
    Ok(Reply::later(async move {
        if fetch.partitions.is_empty() {
            metrics::fetch_answered(began.elapsed());
            return Some(respond(asked, Vec::new(), version, read_committed));
        }
        let Answered { fetched, share, waited } = reader.fetch(fetch).await;
        let encoded = respond(asked, fetched, version, read_committed);
        // A long poll waits because there is nothing to read, not because we are slow; a disk that is slow does count.
        metrics::fetch_answered(began.elapsed().saturating_sub(waited));
        Some(hold(encoded, share))
    }))
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
fn plan(call: &Call<'_>, topics: Vec<FetchTopic>, reads: &mut Vec<FetchPartition>) -> Vec<Asked> {
    let epoch = call.api.log.serving().map(Term::leader_epoch);
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
                    let verdict = judge(known.as_deref(), part, call.version, epoch);
                    (part.partition, verdict.map(|partition| reads.push(read(partition, part))))
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

fn judge(topic: Option<&Topic>, part: &AskedPartition, version: i16, epoch: Option<i32>) -> Result<TopicPartition, E> {
    // Before everything is replayed the log looks shorter than it is: a consumer would be told «out of range» and reset.
    let epoch = epoch.ok_or(E::NotLeaderOrFollower)?;
    let unknown = if version >= 13 { E::UnknownTopicId } else { E::UnknownTopicOrPartition };
    let topic = topic.ok_or(unknown)?;
    if !usize::try_from(part.partition).is_ok_and(|index| index < topic.partitions.len()) {
        return Err(E::UnknownTopicOrPartition);
    }
    check_leader_epoch(part.current_leader_epoch, epoch)?;
    Ok(TopicPartition { topic: topic.id, partition: part.partition })
}

/// Whether the leader epoch that a client knows (KIP-320) is ours; −1 is not checked.
pub(super) fn check_leader_epoch(known: i32, ours: i32) -> Result<(), E> {
    match known {
        -1 => Ok(()),
        known if known < ours => Err(E::FencedLeaderEpoch),
        known if known > ours => Err(E::UnknownLeaderEpoch),
        _ => Ok(()),
    }
}

fn read(partition: TopicPartition, part: &AskedPartition) -> FetchPartition {
    FetchPartition {
        partition,
        from: Offset(part.fetch_offset),
        bytes_max: usize::try_from(part.partition_max_bytes).unwrap_or(0),
    }
}

fn respond(asked: Vec<Asked>, fetched: Vec<Fetched>, version: i16, read_committed: bool) -> super::Encoded {
    let mut fetched = fetched.into_iter();
    let topics: Vec<TopicAnswer> = asked
        .into_iter()
        .map(|topic| {
            let partitions = topic
                .parts
                .into_iter()
                .map(|(index, verdict)| {
                    let read = verdict.and_then(|()| read_part(&mut fetched));
                    answer(index, read, topic.metrics.as_deref(), read_committed)
                })
                .collect();
            TopicAnswer { name: topic.name, id: topic.id, partitions }
        })
        .collect();
    encoder::encode(version, 0, &topics)
}

fn read_part(fetched: &mut impl Iterator<Item = Fetched>) -> Result<Fetched, E> {
    let mut fetched = fetched.next().expect("a fetch answers every partition in order");
    match &mut fetched.result {
        Ok(_) if fetched.bounds.is_some() => Ok(fetched),
        Ok(_) | Err(SegmentError::UnknownPartition) => Err(E::UnknownTopicOrPartition),
        Err(SegmentError::OffsetOutOfRange) => Err(E::OffsetOutOfRange),
        Err(error @ (SegmentError::Io { .. } | SegmentError::Damaged { .. })) => {
            tracing::error!(partition = ?fetched.partition, %error, "a fetch cannot read");
            Err(E::KafkaStorageError)
        }
    }
}

/// One partition of the response. All offsets are −1 beside an error, as Kafka's.
fn answer(
    index: i32,
    read: Result<Fetched, E>,
    metrics: Option<&TopicMetrics>,
    read_committed: bool,
) -> PartitionAnswer {
    let (fetched, error) = match read {
        Ok(fetched) => (Some(fetched), 0),
        Err(error) => (None, errors::told(error, ApiKey::Fetch)),
    };
    let bounds = fetched.as_ref().and_then(|fetched| fetched.bounds);
    let high_watermark = bounds.map_or(-1, |bounds| bounds.high_watermark.0);
    let batches = fetched.and_then(|fetched| fetched.result.ok()).unwrap_or_default();
    if let Some(metrics) = metrics {
        metrics.fetched_bytes.increment(batches.bytes as u64);
        metrics.fetched_records.increment(batches.records);
    }
    PartitionAnswer {
        index,
        error,
        high_watermark,
        last_stable_offset: high_watermark,
        log_start_offset: bounds.map_or(-1, |bounds| bounds.log_start_offset.0),
        aborted: read_committed,
        batches,
    }
}
