//! Produce (key 0), versions 3–13, advertised from 0.
//!
//! - v3 transactional id, magic 2 only; v5 log start offset; v7 zstd; v8 (KIP-467) record errors and a message;
//!   v9 flexible; v10 (KIP-951) leader hints; v12 (KIP-890) adds partitions to the transaction; v13 (KIP-516) topic ids.
//! - v0–2 are answered UNSUPPORTED_VERSION: librdkafka ≤ 2.8 drops compression if they are not advertised (KAFKA-18659).
//! - Each partition is judged alone, in the order of Kafka's `ProduceRequest.validateRecords` and `UnifiedLog`; the good
//!   ones go to the leader as one request. acks=0 and 1 are carried out as −1; with 0 nothing is sent, and an error
//!   closes the connection.
//! - A node that does not serve judges nothing: by what it has applied a good batch may look bad.
//! - A batch behind one that was refused for the moment is not called a gap (`gaps`).
//! - Staged batches have no offset yet: −1, or −n for clients that add the record's index (transactions.md §1).
//! - Not checked: the records inside a batch. The header's counts, times and CRC are.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::produce_request::TopicProduceData;
use kafka_protocol::messages::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, ProduceResponse,
    TopicProduceResponse,
};
use kafka_protocol::messages::{ApiKey, ProduceRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::context::{TopicRef, wall_clock_ms};
use super::errors::{self, JAVA};
use super::metrics::{self, TopicMetrics};
use super::view::{View, id};
use super::{Api, Call, Encoded, Malformed, Reply, encode};
use crate::config::limits::PRODUCE_TIMEOUT_MS_MIN;
use crate::leader::request::{Acked, Caller, Produce, Request, Response};
use crate::state::topics::Topic;
use crate::types::settings::TopicSettings;
use crate::types::{ProducerIdAndEpoch, RecordBatch, Refusal, TopicId, TopicPartition};
use gaps::{Gaps, Numbered};
use judge::{Asked, Rejected};

pub(super) mod gaps;
mod judge;

/// First version with the leader beside an error (KIP-951).
const LEADER_HINTS: i16 = 10;

/// One partition of the request.
struct Part {
    index: i32,
    /// The batch's bytes and records, or why it is refused.
    verdict: Result<(usize, i32), Rejected>,
    metrics: Option<Arc<TopicMetrics>>,
    /// Its number, if an idempotent producer gave it one.
    numbered: Option<Numbered>,
}

/// One topic of the request.
struct Parts {
    name: TopicName,
    id: Uuid,
    parts: Vec<Part>,
}

/// Answers Produce.
///
/// # Errors
/// If the request cannot be decoded.
pub fn handle(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: ProduceRequest = call.decode("Produce")?;
    let (acks, version, timeout_ms) = (request.acks, call.version, request.timeout_ms);
    let transactional_id: Option<Arc<str>> = request.transactional_id.as_ref().map(|id| Arc::from(id.0.as_str()));
    if let Err(refusal) = call.api.cluster.serving() {
        return Ok(elsewhere(&call, request, refusal));
    }
    let (mut topics, batches, refused) = judge(&call, request, transactional_id.as_deref());
    if !matches!(acks, -1..=1) {
        for part in topics.iter_mut().flat_map(|topic| &mut topic.parts) {
            part.verdict = Err(Rejected::plain(E::InvalidRequiredAcks));
        }
        return Ok(Reply::Now(respond(topics, Vec::new(), version, call.caller, &call.api.gaps, || {
            who_leads(call.api)
        })));
    }
    if batches.is_empty() && refused.is_none() {
        return Ok(match acks {
            0 => Reply::Silent(Box::pin(std::future::ready(topics.is_empty()))),
            _ => Reply::Now(respond(topics, Vec::new(), version, call.caller, &call.api.gaps, || who_leads(call.api))),
        });
    }
    let count = batches.len();
    // What a transaction replicates before its end does not belong to one of its requests.
    let within = transactional_id.is_none().then(|| patience(timeout_ms));
    let produce = Request::Produce(Produce { version, transactional_id, batches, refused });
    if acks == 0 {
        let receiver = call.submit(produce);
        let all_good = topics.iter().flat_map(|topic| &topic.parts).all(|part| part.verdict.is_ok());
        return Ok(Reply::Silent(Box::pin(async move {
            let written = match receiver.await {
                Ok(Response::Produced(results)) => results.iter().all(Result::is_ok),
                _ => false,
            };
            all_good && written
        })));
    }
    let (caller, cluster, named) = (Arc::clone(call.caller), call.api.cluster.clone(), call.api.names_leaders());
    let gaps = call.api.gaps.clone();
    let receiver = match within {
        Some(within) => call.submit_within(produce, within),
        None => call.submit(produce),
    };
    Ok(Call::answer_of(receiver, move |response| {
        let results = match response {
            Response::Produced(results) => results,
            Response::Refused(refusal) => vec![Err(refusal); count],
            _ => return None,
        };
        Some(respond(topics, results, version, &caller, &gaps, || named.then(|| cluster.view())))
    }))
}

/// How long the records may take to be written, as the request says.
fn patience(timeout_ms: i32) -> Duration {
    Duration::from_millis(u64::from(timeout_ms.unsigned_abs()).max(PRODUCE_TIMEOUT_MS_MIN))
}

/// This node does not serve: nothing is judged by a state that may be old, and clients ask the leader.
fn elsewhere(call: &Call<'_>, request: ProduceRequest, refusal: Refusal) -> Reply {
    if request.acks == 0 {
        return Reply::Silent(Box::pin(std::future::ready(request.topic_data.is_empty())));
    }
    let topic = |data: TopicProduceData| {
        // One record of no bytes: what a refusal is not counted by.
        let parts = data.partition_data.iter().map(|partition| Part {
            index: partition.index,
            verdict: Ok((0, 1)),
            metrics: None,
            numbered: Numbered::of_bytes(partition.records.as_ref()),
        });
        let parts = parts.collect();
        Parts { name: data.name, id: data.topic_id, parts }
    };
    let topics: Vec<Parts> = request.topic_data.into_iter().map(topic).collect();
    let count = topics.iter().map(|topic| topic.parts.len()).sum();
    let results = vec![Err(refusal); count];
    Reply::Now(respond(topics, results, call.version, call.caller, &call.api.gaps, || who_leads(call.api)))
}

/// Judges every partition; the batches of the good ones, in order, go to the leader.
fn judge(
    call: &Call<'_>,
    request: ProduceRequest,
    transactional_id: Option<&str>,
) -> (Vec<Parts>, Vec<(TopicPartition, RecordBatch)>, Option<ProducerIdAndEpoch>) {
    // Copied out: apply would have to copy a topic that is held here, while the batches are checked.
    let known: Vec<Option<Known>> = call.api.log.read(|machine| {
        let find = |topic| topic_ref(topic, call.version).resolve(machine).map(|topic| Known::of(topic));
        request.topic_data.iter().map(find).collect()
    });
    let asked = Asked { version: call.version, transactional_id, now_ms: wall_clock_ms() };
    let (mut batches, mut refused) = (Vec::new(), None);
    let mut seen = BTreeSet::new();
    let mut topics = Vec::with_capacity(request.topic_data.len());
    for (data, topic) in request.topic_data.into_iter().zip(known) {
        let mut parts = Vec::with_capacity(data.partition_data.len());
        for partition in data.partition_data {
            let records = partition.records.clone();
            let located = locate(topic.as_ref(), partition.index, call.version);
            let named = located.as_ref().ok().and(records.as_ref()).and_then(|records| asked.pair_of(records));
            let mut numbered = None;
            let verdict = located
                .and_then(|at| asked.judge(at.1, partition.records).map(|batch| (at.0, batch)))
                .and_then(|(to, batch)| match seen.insert(to) {
                    true => Ok((to, batch)),
                    false => Err(Rejected::new(E::InvalidRequest, "the request names the partition twice")),
                })
                .map(|(to, batch)| {
                    let size = (batch.size_bytes(), batch.record_count());
                    numbered = Numbered::of(&batch);
                    batches.push((to, batch));
                    size
                });
            refused = refused.or(named.filter(|_| verdict.is_err()));
            let metrics = topic.as_ref().map(|topic| Arc::clone(&topic.metrics));
            parts.push(Part { index: partition.index, verdict, metrics, numbered });
        }
        topics.push(Parts { name: data.name, id: data.topic_id, parts });
    }
    // Kafka authorises the transactional id of the whole request, and there is none to authorise.
    if transactional_id.is_none() && batches.iter().any(|(_, batch)| batch.is_transactional()) {
        batches.clear();
        for part in topics.iter_mut().flat_map(|topic| &mut topic.parts) {
            part.verdict = Err(Rejected::plain(E::TransactionalIdAuthorizationFailed));
        }
    }
    keep_no_more_than_needed(&mut batches, call.body.len());
    (topics, batches, refused)
}

/// A slice keeps the whole frame alive: where the batches are less than half of it, they are copied out.
fn keep_no_more_than_needed(batches: &mut [(TopicPartition, RecordBatch)], frame_bytes: usize) {
    let kept: usize = batches.iter().map(|(_, batch)| batch.size_bytes()).sum();
    if kept * 2 < frame_bytes {
        for (_, batch) in batches {
            *batch = RecordBatch::stored(Bytes::copy_from_slice(batch.bytes()));
        }
    }
}

fn topic_ref(topic: &TopicProduceData, version: i16) -> TopicRef<'_> {
    if version >= 13 { TopicRef::Id(TopicId(*topic.topic_id.as_bytes())) } else { TopicRef::Name(&topic.name) }
}

/// What is needed of a topic.
struct Known {
    id: TopicId,
    partitions: usize,
    settings: TopicSettings,
    metrics: Arc<TopicMetrics>,
}

impl Known {
    fn of(topic: &Topic) -> Self {
        Self {
            id: topic.id,
            partitions: topic.partitions.len(),
            settings: topic.settings.clone(),
            metrics: metrics::of_topic(topic),
        }
    }
}

fn locate(topic: Option<&Known>, index: i32, version: i16) -> Result<(TopicPartition, &TopicSettings), Rejected> {
    let unknown = if version >= 13 { E::UnknownTopicId } else { E::UnknownTopicOrPartition };
    let topic = topic.ok_or(Rejected::plain(unknown))?;
    let known = usize::try_from(index).is_ok_and(|index| index < topic.partitions);
    match known {
        true => Ok((TopicPartition { topic: topic.id, partition: index }, &topic.settings)),
        false => Err(Rejected::plain(E::UnknownTopicOrPartition)),
    }
}

type Results = Vec<Result<Acked, Refusal>>;

/// Joins what was refused here with what the leader said, in the order of the request.
fn respond(
    topics: Vec<Parts>,
    results: Results,
    version: i16,
    caller: &Caller,
    gaps: &Gaps,
    view: impl FnOnce() -> Option<View>,
) -> Encoded {
    let mut results = results.into_iter();
    let mut answer = |topic: (&TopicName, Uuid), part: Part| {
        let response = PartitionProduceResponse::default()
            .with_index(part.index)
            .with_base_offset(-1)
            .with_log_append_time_ms(-1)
            .with_log_start_offset(-1);
        match part.verdict {
            Err(rejected) => refuse(response, rejected),
            Ok((bytes, records)) => match gaps.told(
                topic,
                part.index,
                part.numbered,
                results.next().expect("the leader answers every batch"),
            ) {
                Ok(acked) => {
                    if let Some(metrics) = part.metrics {
                        metrics.produced_bytes.increment(bytes as u64);
                        metrics.produced_records.increment(u64::from(records.unsigned_abs()));
                    }
                    acknowledge(response, acked, caller)
                }
                Err(refusal) => response.with_error_code(errors::code(refusal, ApiKey::Produce, version, caller)),
            },
        }
    };
    let responses = topics
        .into_iter()
        .map(|topic| {
            let parts = topic.parts.into_iter().map(|part| answer((&topic.name, topic.id), part)).collect();
            TopicProduceResponse::default()
                .with_name(topic.name)
                .with_topic_id(topic.id)
                .with_partition_responses(parts)
        })
        .collect();
    let mut response = ProduceResponse::default().with_responses(responses);
    if version >= LEADER_HINTS {
        name_leader(&mut response, view);
    }
    encode(&response, version)
}

fn who_leads(api: &Api) -> Option<View> {
    api.names_leaders().then(|| api.cluster.view())
}

/// Beside NOT_LEADER_OR_FOLLOWER, who leads (KIP-951): the client need not ask for metadata first.
fn name_leader(response: &mut ProduceResponse, view: impl FnOnce() -> Option<View>) {
    let parts = response.responses.iter_mut().flat_map(|topic| &mut topic.partition_responses);
    let mut elsewhere = parts.filter(|part| part.error_code == E::NotLeaderOrFollower.code()).peekable();
    if elsewhere.peek().is_none() {
        return;
    }
    let view = view();
    let Some((view, leader)) = view.as_ref().and_then(|view| Some((view, view.leader()?))) else { return };
    for part in elsewhere {
        part.current_leader =
            LeaderIdAndEpoch::default().with_leader_id(view.leader).with_leader_epoch(view.leader_epoch);
    }
    let endpoint = NodeEndpoint::default()
        .with_node_id(id(leader.node_id))
        .with_host(StrBytes::from_string(leader.host.clone()))
        .with_port(i32::from(leader.port))
        .with_rack(leader.rack.clone().map(StrBytes::from_string));
    response.node_endpoints = vec![endpoint];
}

fn refuse(response: PartitionProduceResponse, rejected: Rejected) -> PartitionProduceResponse {
    let message = rejected.message.map(StrBytes::from_string);
    let record_errors = rejected
        .record
        .map(|index| {
            BatchIndexAndErrorMessage::default().with_batch_index(index).with_batch_index_error_message(message.clone())
        })
        .into_iter()
        .collect();
    response
        .with_error_code(errors::told(rejected.error, ApiKey::Produce))
        .with_error_message(message)
        .with_record_errors(record_errors)
}

fn acknowledge(response: PartitionProduceResponse, acked: Acked, caller: &Caller) -> PartitionProduceResponse {
    match acked {
        Acked::Written(outcome) => response
            .with_base_offset(outcome.base_offset.0)
            .with_log_append_time_ms(outcome.log_append_time_ms)
            .with_log_start_offset(outcome.log_start_offset.0),
        Acked::Staged { log_start_offset, record_count } => response
            .with_base_offset(staged_base_offset(&caller.software, record_count))
            .with_log_start_offset(log_start_offset.0),
    }
}

/// The offset that means «none yet». These clients take −1 as such; all others add the record's index to it and would
/// report plausible wrong offsets, so theirs starts at −n.
fn staged_base_offset(software: &str, record_count: i32) -> i64 {
    let takes_minus_one = matches!(software, JAVA | "kgo" | "kafka-python" | "kafkajs");
    if takes_minus_one { -1 } else { -i64::from(record_count.max(1)) }
}

/// Produce v0–2: every partition UNSUPPORTED_VERSION, in the body of that version; with acks=0 the connection is closed.
///
/// # Errors
/// If the request cannot be decoded.
pub fn refuse_old_version(version: i16, mut body: Bytes) -> Result<Reply, Malformed> {
    let cut = || Malformed { api: "Produce", version, reason: "cut short".into() };
    let (acks, _timeout) = (body.try_get_i16().map_err(|_| cut())?, body.try_get_i32().map_err(|_| cut())?);
    let mut out = BytesMut::new();
    let topics = body.try_get_i32().map_err(|_| cut())?;
    out.put_i32(topics.max(0));
    for _ in 0..topics {
        let name_len = usize::try_from(body.try_get_i16().map_err(|_| cut())?).map_err(|_| cut())?;
        if body.remaining() < name_len {
            return Err(cut());
        }
        out.put_u16(name_len as u16);
        out.put_slice(&body.split_to(name_len));
        let partitions = body.try_get_i32().map_err(|_| cut())?;
        out.put_i32(partitions.max(0));
        for _ in 0..partitions {
            out.put_i32(body.try_get_i32().map_err(|_| cut())?);
            let records = usize::try_from(body.try_get_i32().map_err(|_| cut())?).unwrap_or(0);
            if body.remaining() < records {
                return Err(cut());
            }
            body.advance(records);
            out.put_i16(errors::told(E::UnsupportedVersion, ApiKey::Produce));
            out.put_i64(-1);
            if version >= 2 {
                out.put_i64(-1);
            }
        }
    }
    if version >= 1 {
        out.put_i32(0);
    }
    Ok(match acks {
        0 => Reply::Silent(Box::pin(std::future::ready(false))),
        _ => Reply::Now(vec![out.freeze()]),
    })
}

#[cfg(test)]
mod tests;
