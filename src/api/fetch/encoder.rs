//! The bytes of a Fetch response. Record bytes pass through as the slices they are: the crate's encoder would copy
//! them into one buffer. A test compares every version with the crate's.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::fetch_response::NodeEndpoint;
use kafka_protocol::messages::{FetchResponse, TopicName};
use uuid::Uuid;

use crate::api::Encoded;
use crate::read::ReadBatches;

/// Pieces below this are copied next to what surrounds them: an entry in a vectored write costs about as much.
const PIECE_BYTES_MIN: usize = 512;

/// First version with the leader beside an error (KIP-951); Kafka leaves it out before, though the fields are older.
pub const LEADER_HINTS: i16 = 16;

/// Throttle time, error, session id and an empty list of topics: what is in front of a flexible response's tagged fields.
const EMPTY_RESPONSE_BYTES: usize = 4 + 2 + 4 + 1;

/// One topic of the response.
pub struct TopicAnswer {
    /// Its name, up to v12.
    pub name: TopicName,
    /// Its id, from v13.
    pub id: Uuid,
    /// Its partitions in the order of the request.
    pub partitions: Vec<PartitionAnswer>,
}

/// One partition of the response.
pub struct PartitionAnswer {
    /// Its number.
    pub index: i32,
    /// Kafka's error code, 0 for none.
    pub error: i16,
    /// End of what can be read.
    pub high_watermark: i64,
    /// The same, since nothing in the log is open.
    pub last_stable_offset: i64,
    /// First offset that can be read.
    pub log_start_offset: i64,
    /// The list of aborted transactions: empty, or (false) null.
    pub aborted: bool,
    /// Where to read from instead (KIP-392), −1 for nowhere else.
    pub preferred_replica: i32,
    /// Leader and epoch, beside an error that says it is another (KIP-951).
    pub leader: Option<(i32, i32)>,
    /// The records.
    pub batches: ReadBatches,
}

/// Encodes a response without a session. `endpoints` are the leaders that partitions name.
pub fn encode(version: i16, error: i16, topics: &[TopicAnswer], endpoints: &[NodeEndpoint]) -> Encoded {
    let mut out = Pieces { flexible: version >= 12, ..Pieces::default() };
    out.head.put_i32(0); // throttle time
    if version >= 7 {
        out.head.put_i16(error);
        out.head.put_i32(0); // session id
    }
    out.count(topics.len());
    for topic in topics {
        if version >= 13 {
            out.head.put_slice(topic.id.as_bytes());
        } else {
            out.string(&topic.name);
        }
        out.count(topic.partitions.len());
        for partition in &topic.partitions {
            out.partition(version, partition);
        }
        out.no_tagged_fields();
    }
    if version >= LEADER_HINTS && !endpoints.is_empty() {
        let response = FetchResponse::default().with_node_endpoints(endpoints.to_vec());
        let whole = super::super::encode(&response, version).concat();
        out.head.put_slice(&whole[EMPTY_RESPONSE_BYTES..]);
    } else {
        out.no_tagged_fields();
    }
    out.finish()
}

#[derive(Default)]
struct Pieces {
    flexible: bool,
    head: BytesMut,
    done: Encoded,
}

impl Pieces {
    fn partition(&mut self, version: i16, partition: &PartitionAnswer) {
        self.head.put_i32(partition.index);
        self.head.put_i16(partition.error);
        self.head.put_i64(partition.high_watermark);
        self.head.put_i64(partition.last_stable_offset);
        if version >= 5 {
            self.head.put_i64(partition.log_start_offset);
        }
        if partition.aborted {
            self.count(0);
        } else if self.flexible {
            self.head.put_u8(0);
        } else {
            self.head.put_i32(-1);
        }
        if version >= 11 {
            self.head.put_i32(partition.preferred_replica);
        }
        self.count(partition.batches.bytes);
        for piece in &partition.batches.pieces {
            self.piece(piece);
        }
        match partition.leader {
            Some((id, epoch)) if version >= LEADER_HINTS => {
                self.head.put_slice(&[1, 1, 9]); // one field: tag 1, nine bytes
                self.head.put_i32(id);
                self.head.put_i32(epoch);
                self.head.put_u8(0);
            }
            _ => self.no_tagged_fields(),
        }
    }

    fn piece(&mut self, piece: &Bytes) {
        if piece.len() < PIECE_BYTES_MIN {
            self.head.put_slice(piece);
        } else {
            if !self.head.is_empty() {
                self.done.push(self.head.split().freeze());
            }
            self.done.push(piece.clone());
        }
    }

    /// The length of an array or of bytes.
    fn count(&mut self, count: usize) {
        let count = u32::try_from(count).expect("a response is smaller than 2 GiB");
        if self.flexible { self.varint(count + 1) } else { self.head.put_u32(count) }
    }

    fn string(&mut self, string: &str) {
        let length = u16::try_from(string.len()).expect("a topic's name came in a string or is at most 249 bytes");
        if self.flexible {
            self.varint(u32::from(length) + 1)
        } else {
            self.head.put_u16(length)
        }
        self.head.put_slice(string.as_bytes());
    }

    fn no_tagged_fields(&mut self) {
        if self.flexible {
            self.head.put_u8(0);
        }
    }

    fn varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.head.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.head.put_u8(value as u8);
    }

    fn finish(mut self) -> Encoded {
        if !self.head.is_empty() {
            self.done.push(self.head.freeze());
        }
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, LeaderIdAndEpoch, PartitionData};
    use kafka_protocol::protocol::{Encodable, StrBytes};

    fn topics() -> Vec<TopicAnswer> {
        let pieces = |sizes: &[usize]| {
            let pieces: Vec<Bytes> = sizes.iter().map(|size| Bytes::from(vec![*size as u8; *size])).collect();
            ReadBatches { bytes: pieces.iter().map(Bytes::len).sum(), pieces, records: 1 }
        };
        let partition = |index, error, aborted, batches| PartitionAnswer {
            index,
            error,
            high_watermark: 900,
            last_stable_offset: if aborted { 900 } else { -1 },
            log_start_offset: 5,
            aborted,
            preferred_replica: if index == 200 { 3 } else { -1 },
            leader: (error == 6).then_some((2, 9)),
            batches,
        };
        vec![
            TopicAnswer {
                name: TopicName(StrBytes::from_static_str("first")),
                id: Uuid::from_bytes([3; 16]),
                partitions: vec![
                    partition(0, 0, true, pieces(&[16, 2_000, 16, 100, 16, 600])),
                    partition(7, 6, false, pieces(&[])),
                    partition(200, 0, false, pieces(&[100_000])),
                ],
            },
            TopicAnswer {
                name: TopicName(StrBytes::from_static_str("empty")),
                id: Uuid::from_bytes([4; 16]),
                partitions: vec![],
            },
        ]
    }

    fn by_the_crate(version: i16, error: i16, topics: &[TopicAnswer], endpoints: &[NodeEndpoint]) -> Vec<u8> {
        let told = if version >= LEADER_HINTS { endpoints.to_vec() } else { Vec::new() };
        let partition = |partition: &PartitionAnswer| {
            PartitionData::default()
                .with_partition_index(partition.index)
                .with_error_code(partition.error)
                .with_high_watermark(partition.high_watermark)
                .with_last_stable_offset(partition.last_stable_offset)
                .with_log_start_offset(partition.log_start_offset)
                .with_aborted_transactions(partition.aborted.then(Vec::new))
                .with_preferred_read_replica(if version >= 11 {
                    partition.preferred_replica.into()
                } else {
                    (-1).into()
                })
                .with_records(Some(partition.batches.pieces.concat().into()))
                .with_current_leader(match partition.leader {
                    Some((id, epoch)) if version >= LEADER_HINTS => {
                        LeaderIdAndEpoch::default().with_leader_id(id.into()).with_leader_epoch(epoch)
                    }
                    _ => LeaderIdAndEpoch::default(),
                })
        };
        let responses = topics.iter().map(|topic| {
            FetchableTopicResponse::default()
                .with_topic(topic.name.clone())
                .with_topic_id(topic.id)
                .with_partitions(topic.partitions.iter().map(partition).collect())
        });
        let mut out = BytesMut::new();
        FetchResponse::default()
            .with_error_code(error)
            .with_responses(responses.collect())
            .with_node_endpoints(told)
            .encode(&mut out, version)
            .unwrap();
        out.to_vec()
    }

    #[test]
    fn every_version_is_encoded_as_by_the_generated_encoder() {
        let endpoint = NodeEndpoint::default().with_node_id(2.into()).with_host(StrBytes::from_static_str("host"));
        let endpoints = [endpoint.with_port(9092).with_rack(Some(StrBytes::from_static_str("a")))];
        for version in 4..=18 {
            for endpoints in [&endpoints[..], &[]] {
                let ours = encode(version, 0, &topics(), endpoints).concat();
                assert_eq!(ours, by_the_crate(version, 0, &topics(), endpoints), "v{version}");
            }
            assert_eq!(encode(version, 70, &[], &[]).concat(), by_the_crate(version, 70, &[], &[]), "v{version}");
        }
    }

    #[test]
    fn large_pieces_pass_through_uncopied() {
        let topics = topics();
        let encoded = encode(12, 0, &topics, &[]);
        for piece in topics.iter().flat_map(|topic| &topic.partitions).flat_map(|partition| &partition.batches.pieces) {
            let through = encoded.iter().any(|sent| sent.as_ptr() == piece.as_ptr());
            assert_eq!(through, piece.len() >= PIECE_BYTES_MIN);
        }
    }
}
