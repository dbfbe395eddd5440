//! ListOffsets (key 2), versions 1–10, and OffsetForLeaderEpoch (key 23), versions 2–4.
//!
//! - ListOffsets v2 isolation level (both see the high watermark, since nothing is open in the log); v4 leader epochs;
//!   v7 (KIP-734) −3, the record with the greatest timestamp; v8 (KIP-405) −4, the earliest local offset: ours are all
//!   local; v9 (KIP-1005) −5, the latest tiered one: there is none, offset −1; v10 (KIP-1075) a timeout for tiered reads.
//! - A timestamp behind the last record finds nothing: offset −1 without an error. Other negative timestamps, and those
//!   above at lower versions: UNSUPPORTED_VERSION, as Kafka's `ReplicaManager.fetchOffset`.
//! - OffsetForLeaderEpoch tells where an epoch ends (KIP-101, KIP-320), which consumers ask after a leader change.

use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::list_offsets_request::ListOffsetsPartition;
use kafka_protocol::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
use kafka_protocol::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use kafka_protocol::messages::offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
use kafka_protocol::messages::{
    ApiKey, ListOffsetsRequest, ListOffsetsResponse, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
};

use super::context::TopicRef;
use super::view::Standing;
use super::{Api, Call, Malformed, Reply, encode, errors};
use crate::read::{Bounds, SegmentError};
use crate::state::Machine;
use crate::state::partitions::Partition;
use crate::types::{LogIndex, Offset, Term, TopicPartition};

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;

/// What was found: (timestamp, offset, leader epoch), each −1 for none.
type Found = (i64, i64, i32);

/// Answers ListOffsets. Looking for a timestamp may read files, so that it runs beside the tasks that serve sockets.
///
/// # Errors
/// If the request cannot be decoded.
pub fn handle(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: ListOffsetsRequest = call.decode("ListOffsets")?;
    let (api, version) = (call.api.clone(), call.version);
    let reads_files = request
        .topics
        .iter()
        .flat_map(|topic| &topic.partitions)
        .any(|part| part.timestamp >= 0 || part.timestamp == MAX_TIMESTAMP);
    if !reads_files {
        return Ok(Reply::now(&list(&api, request, version), version));
    }
    Ok(Reply::later(async move {
        let listed = tokio::task::spawn_blocking(move || list(&api, request, version)).await;
        listed.ok().map(|response| encode(&response, version))
    }))
}

fn list(api: &Api, request: ListOffsetsRequest, version: i16) -> ListOffsetsResponse {
    let lookup = Lookup::new(api);
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|part| {
            let response = ListOffsetsPartitionResponse::default().with_partition_index(part.partition_index);
            match lookup.list(&topic.name, part, version) {
                Ok((timestamp, offset, epoch)) => {
                    let epoch = if version >= 4 { epoch } else { -1 };
                    response.with_timestamp(timestamp).with_offset(offset).with_leader_epoch(epoch)
                }
                Err(error) => response.with_error_code(errors::told(error, ApiKey::ListOffsets)),
            }
        });
        let partitions = partitions.collect();
        ListOffsetsTopicResponse::default().with_name(topic.name).with_partitions(partitions)
    });
    ListOffsetsResponse::default().with_topics(topics.collect())
}

/// Answers OffsetForLeaderEpoch.
///
/// # Errors
/// If the request cannot be decoded.
pub fn handle_leader_epoch(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: OffsetForLeaderEpochRequest = call.decode("OffsetForLeaderEpoch")?;
    let lookup = Lookup::new(call.api);
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|part| {
            let response = EpochEndOffset::default().with_partition(part.partition);
            match lookup.end_of_epoch(&topic.topic, part) {
                Ok(Some((epoch, end))) => response.with_leader_epoch(epoch).with_end_offset(end.0),
                Ok(None) => response.with_leader_epoch(-1).with_end_offset(-1),
                Err(error) => response
                    .with_error_code(errors::told(error, ApiKey::OffsetForLeaderEpoch))
                    .with_leader_epoch(-1)
                    .with_end_offset(-1),
            }
        });
        let partitions = partitions.collect();
        OffsetForLeaderTopicResult::default().with_topic(topic.topic).with_partitions(partitions)
    });
    let response = OffsetForLeaderEpochResponse::default().with_topics(topics.collect());
    Ok(Reply::now(&response, call.version))
}

/// What all partitions of a request are looked up in: one visible index, one term.
struct Lookup<'a> {
    api: &'a Api,
    standing: Standing,
    visible: Option<LogIndex>,
}

impl<'a> Lookup<'a> {
    fn new(api: &'a Api) -> Self {
        Self { api, standing: api.cluster.standing(), visible: api.reader.visible() }
    }

    /// The partition's replicated numbers, after the checks that all requests share.
    fn partition(&self, topic: &str, index: i32, epoch: i32) -> Result<(TopicPartition, Partition, i32), E> {
        // As Kafka's, only the leader answers: what a follower has applied may end before what a client has seen.
        let epoch = self.standing.admit(epoch, false)?;
        let find = |machine: &Machine| {
            let topic = TopicRef::Name(topic).resolve(machine)?;
            let partition = topic.partitions.get(usize::try_from(index).ok()?)?;
            Some((TopicPartition { topic: topic.id, partition: index }, partition.clone()))
        };
        let (at, partition) = self.api.log.read(find).ok_or(E::UnknownTopicOrPartition)?;
        Ok((at, partition, epoch))
    }

    /// What was looked up, if no other node can have been elected until now: else there may be newer records.
    fn still_true<T>(&self, found: T) -> Result<T, E> {
        match self.standing {
            Standing::Leads(epoch) if self.api.cluster.leased() == Some(epoch) => Ok(found),
            _ => Err(E::NotLeaderOrFollower),
        }
    }

    fn end_of_epoch(&self, topic: &str, part: &OffsetForLeaderPartition) -> Result<Option<(i32, Offset)>, E> {
        let (_, partition, current) = self.partition(topic, part.partition, part.current_leader_epoch)?;
        self.still_true(partition.end_offset_for(part.leader_epoch, current))
    }

    fn list(&self, topic: &str, part: &ListOffsetsPartition, version: i16) -> Result<Found, E> {
        let (at, partition, current) = self.partition(topic, part.partition_index, part.current_leader_epoch)?;
        let segments = self.api.reader.segments();
        let visible = self.visible.ok_or(E::NotLeaderOrFollower)?;
        let bounds: Bounds = segments.bounds(at, visible).map_err(|error| failed(&error))?;
        check_timestamp(part.timestamp, version)?;
        let by_record = |found: Result<Option<(i64, Offset)>, SegmentError>| match found {
            Ok(Some((timestamp, offset))) => Ok((timestamp, offset.0, epoch_of(&partition, offset))),
            Ok(None) => Ok((-1, -1, -1)),
            Err(error) => Err(failed(&error)),
        };
        let found = match part.timestamp {
            LATEST => Ok((-1, bounds.high_watermark.0, current)),
            EARLIEST | EARLIEST_LOCAL => {
                let start = bounds.log_start_offset;
                Ok((-1, start.0, epoch_of(&partition, start)))
            }
            LATEST_TIERED => Ok((-1, -1, -1)),
            MAX_TIMESTAMP => by_record(segments.max_timestamp(at, visible)),
            timestamp => by_record(segments.offset_for_timestamp(at, visible, timestamp)),
        }?;
        self.still_true(found)
    }
}

/// From which version on a timestamp means something special.
fn check_timestamp(timestamp: i64, version: i16) -> Result<(), E> {
    let since = match timestamp {
        0.. | LATEST | EARLIEST => return Ok(()),
        MAX_TIMESTAMP => 7,
        EARLIEST_LOCAL => 8,
        LATEST_TIERED => 9,
        _ => return Err(E::UnsupportedVersion),
    };
    if version >= since { Ok(()) } else { Err(E::UnsupportedVersion) }
}

/// The epoch that wrote the record at `offset`, −1 where nothing is written yet.
fn epoch_of(partition: &Partition, offset: Offset) -> i32 {
    let written = |&&(_, first): &&(Term, Offset)| first <= offset;
    let last = partition.leader_epochs.iter().rev().find(written);
    last.or(partition.leader_epochs.first()).map_or(-1, |(term, _)| term.leader_epoch())
}

fn failed(error: &SegmentError) -> E {
    match error {
        SegmentError::UnknownPartition => E::UnknownTopicOrPartition,
        SegmentError::OffsetOutOfRange => E::OffsetOutOfRange,
        SegmentError::Io { .. } | SegmentError::Damaged { .. } => {
            tracing::error!(%error, "ListOffsets cannot read");
            E::KafkaStorageError
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_timestamps_need_the_version_that_defines_them() {
        let served = |timestamp| (1..=10).filter(|version| check_timestamp(timestamp, *version).is_ok()).min();
        assert_eq!([served(0), served(LATEST), served(EARLIEST)], [Some(1); 3]);
        assert_eq!(
            [served(MAX_TIMESTAMP), served(EARLIEST_LOCAL), served(LATEST_TIERED), served(-6), served(i64::MIN)],
            [Some(7), Some(8), Some(9), None, None]
        );
    }

    #[test]
    fn an_offset_belongs_to_the_epoch_that_wrote_it() {
        let leader_epochs = vec![(Term(2), Offset(0)), (Term(5), Offset(10))];
        let partition = Partition { leader_epochs, ..Partition::default() };
        assert_eq!([0, 9, 10, 11].map(|offset| epoch_of(&partition, Offset(offset))), [2, 2, 5, 5]);
        assert_eq!(epoch_of(&Partition::default(), Offset(0)), -1);
    }
}
