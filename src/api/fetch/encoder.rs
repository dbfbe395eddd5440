//! The bytes of a Fetch response. Record bytes pass through as the slices they are: the crate's encoder would copy
//! them into one buffer. A test compares every version with the crate's.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::TopicName;
use uuid::Uuid;

use crate::api::Encoded;
use crate::read::ReadBatches;

/// Pieces below this are copied next to what surrounds them: an entry in a vectored write costs about as much.
const PIECE_BYTES_MIN: usize = 512;

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
    /// The records.
    pub batches: ReadBatches,
}

/// Encodes a response without a session.
pub fn encode(version: i16, error: i16, topics: &[TopicAnswer]) -> Encoded {
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
    out.no_tagged_fields();
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
            self.head.put_i32(-1); // preferred read replica
        }
        self.count(partition.batches.bytes);
        for piece in &partition.batches.pieces {
            self.piece(piece);
        }
        self.no_tagged_fields();
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
    use kafka_protocol::messages::FetchResponse;
    use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
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
            batches,
        };
        vec![
            TopicAnswer {
                name: TopicName(StrBytes::from_static_str("first")),
                id: Uuid::from_bytes([3; 16]),
                partitions: vec![
                    partition(0, 0, true, pieces(&[16, 2_000, 16, 100, 16, 600])),
                    partition(7, 1, false, pieces(&[])),
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

    fn by_the_crate(version: i16, error: i16, topics: &[TopicAnswer]) -> Vec<u8> {
        let partition = |partition: &PartitionAnswer| {
            PartitionData::default()
                .with_partition_index(partition.index)
                .with_error_code(partition.error)
                .with_high_watermark(partition.high_watermark)
                .with_last_stable_offset(partition.last_stable_offset)
                .with_log_start_offset(partition.log_start_offset)
                .with_aborted_transactions(partition.aborted.then(Vec::new))
                .with_preferred_read_replica((-1).into())
                .with_records(Some(partition.batches.pieces.concat().into()))
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
            .encode(&mut out, version)
            .unwrap();
        out.to_vec()
    }

    #[test]
    fn every_version_is_encoded_as_by_the_generated_encoder() {
        for version in 4..=18 {
            assert_eq!(encode(version, 0, &topics()).concat(), by_the_crate(version, 0, &topics()), "v{version}");
            assert_eq!(encode(version, 70, &[]).concat(), by_the_crate(version, 70, &[]), "v{version}");
        }
    }

    #[test]
    fn large_pieces_pass_through_uncopied() {
        let topics = topics();
        let encoded = encode(12, 0, &topics);
        for piece in topics.iter().flat_map(|topic| &topic.partitions).flat_map(|partition| &partition.batches.pieces) {
            let through = encoded.iter().any(|sent| sent.as_ptr() == piece.as_ptr());
            assert_eq!(through, piece.len() >= PIECE_BYTES_MIN);
        }
    }
}
