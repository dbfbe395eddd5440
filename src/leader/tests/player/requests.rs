//! Requests from the words of a script.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::Player;
use crate::leader::request::*;
use crate::state::command::{OffsetWrite, Trim};
use crate::types::record_batch::sample;
use crate::types::{Offset, ProducerIdAndEpoch, TopicId, TopicPartition};

/// The words of a command line, and those of the form `name=value`.
pub(super) struct Line<'a> {
    pub(super) words: &'a [&'a str],
    pub(super) options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Line<'a> {
    pub(super) fn option(&self, name: &str) -> Option<&'a str> {
        self.options.get(name).copied()
    }

    pub(super) fn number<T: std::str::FromStr<Err: std::fmt::Debug>>(&self, at: usize) -> T {
        self.words[at].parse().expect("a number")
    }

    pub(super) fn version(&self, default: i16) -> i16 {
        self.option("v").map_or(default, |version| version.parse().expect("a version"))
    }

    pub(super) fn member(&self, group: &str) -> MemberRef {
        MemberRef {
            group: group.into(),
            generation: self.option("gen").map_or(-1, |generation| generation.parse().expect("a number")),
            member_id: self.option("member").unwrap_or_default().into(),
            instance_id: None,
        }
    }
}

fn pair(word: &str) -> ProducerIdAndEpoch {
    let (producer_id, epoch) = word.split_once('/').expect("PID/EPOCH");
    ProducerIdAndEpoch { producer_id: producer_id.parse().expect("a pid"), epoch: epoch.parse().expect("an epoch") }
}

/// Requests from words.
impl Player {
    pub(super) fn partition(&self, word: &str) -> TopicPartition {
        let (topic, partition) = word.rsplit_once('-').expect("TOPIC-PARTITION");
        let topic = *self.topics.get(topic).unwrap_or(&TopicId([9; 16]));
        TopicPartition { topic, partition: partition.parse().expect("a number") }
    }

    pub(super) fn partitions(&self, words: &[&str]) -> Vec<TopicPartition> {
        words.iter().filter(|word| !word.contains('=')).map(|word| self.partition(word)).collect()
    }

    pub(super) fn writes(&self, words: &[&str]) -> Vec<OffsetWrite> {
        let writes = words.iter().filter_map(|word| word.split_once('=')).filter(|(name, _)| name.contains('-'));
        let write = |(name, value): (&str, &str)| OffsetWrite {
            of: self.partition(name),
            offset: Offset(value.parse().expect("an offset")),
            leader_epoch: -1,
            metadata: String::new(),
        };
        writes.map(write).collect()
    }

    pub(super) fn batch(
        &self,
        word: &str,
        producer: (i64, i16),
        transactional: bool,
    ) -> (TopicPartition, crate::types::RecordBatch) {
        let (to, rest) = word.split_once(':').expect("PARTITION:SEQUENCE+COUNT");
        let (range, body) = rest.split_once('=').unwrap_or((rest, "x"));
        let (sequence, count) = range.split_once('+').expect("SEQUENCE+COUNT");
        let sequence = sequence.parse().expect("a sequence");
        // A body of the form 100B is that many bytes.
        let bytes = body.strip_suffix('B').and_then(|count| count.parse().ok()).map(|count| vec![b'x'; count]);
        let body = bytes.unwrap_or_else(|| body.as_bytes().to_vec());
        let count = count.parse().expect("a count");
        (self.partition(to), sample::batch(producer, sequence, count, transactional, &body))
    }

    pub(super) fn request(&mut self, name: &str, words: &[&str], line: &Line<'_>) -> Request {
        match name {
            "init" => Request::InitProducerId(InitProducerId {
                version: line.version(5),
                transactional_id: Some(words[0]).filter(|id| *id != "-").map(Arc::from),
                timeout_ms: line.option("timeout").map_or(60_000, |timeout| timeout.parse().expect("a number")),
                given: line.option("given").map(pair),
            }),
            "add" => Request::AddPartitionsToTxn(AddPartitionsToTxn {
                version: line.version(3),
                transactional_id: words[0].into(),
                producer: pair(words[1]),
                partitions: self.partitions(&words[2..]),
            }),
            "addoffsets" => Request::AddOffsetsToTxn(AddOffsetsToTxn {
                version: line.version(3),
                transactional_id: words[0].into(),
                producer: pair(words[1]),
                group: words[2].into(),
            }),
            "produce" => self.produce(words, line),
            "txnoffsets" => Request::TxnOffsetCommit(TxnOffsetCommit {
                version: line.version(5),
                transactional_id: words[0].into(),
                producer: pair(words[1]),
                member: line.member(words[2]),
                offsets: self.writes(&words[3..]),
            }),
            "end" => Request::EndTxn(EndTxn {
                version: line.version(5),
                transactional_id: words[0].into(),
                producer: pair(words[1]),
                commit: words[2] == "commit",
            }),
            "commit" => {
                Request::OffsetCommit(OffsetCommit { member: line.member(words[0]), offsets: self.writes(&words[1..]) })
            }
            "fetch" => {
                let partitions = self.partitions(words[1..].strip_suffix(&["stable"]).unwrap_or(&words[1..]));
                Request::OffsetFetch(OffsetFetch {
                    group: words[0].into(),
                    partitions: Some(partitions).filter(|partitions| !partitions.is_empty()),
                    require_stable: words.contains(&"stable"),
                })
            }
            "create" => Request::CreateTopics(vec![self.new_topic(words[0], line.number(1))]),
            "delete" => Request::DeleteTopics(vec![self.topics[words[0]]]),
            "trim" => Request::DeleteRecords(
                self.writes(words).into_iter().map(|write| Trim { of: write.of, to: write.offset }).collect(),
            ),
            _ => self.group_request(name, words, line),
        }
    }

    pub(super) fn produce(&self, words: &[&str], line: &Line<'_>) -> Request {
        let transactional_id = Some(words[0]).filter(|id| *id != "-").map(Arc::from);
        let producer = if words[1] == "-" { (-1, -1) } else { (pair(words[1]).producer_id, pair(words[1]).epoch) };
        let transactional = (transactional_id.is_some() || words.contains(&"txn")) && !words.contains(&"plain");
        let batches = words[2..].iter().filter(|word| word.contains(':'));
        Request::Produce(Produce {
            version: line.version(12),
            transactional_id,
            batches: batches.map(|word| self.batch(word, producer, transactional)).collect(),
            refused: line.option("refused").map(pair),
        })
    }

    pub(super) fn group_request(&self, name: &str, words: &[&str], line: &Line<'_>) -> Request {
        let member = MemberRef {
            group: words[0].into(),
            generation: -1,
            member_id: words[words.len().min(2) - 1].trim_matches('-').into(),
            instance_id: None,
        };
        match name {
            "join" => Request::JoinGroup(JoinGroup {
                version: 3,
                fresh_member_id: line.option("id").unwrap_or("m").into(),
                member,
                session_timeout_ms: 10_000,
                rebalance_timeout_ms: 10_000,
                protocol_type: "consumer".into(),
                protocols: vec![("range".into(), Bytes::new())],
                reason: None,
            }),
            "sync" => Request::SyncGroup(SyncGroup {
                member: MemberRef { generation: line.number(1), member_id: words[2].into(), ..member },
                protocol_type: None,
                protocol_name: None,
                assignments: words[3..].iter().filter_map(|word| word.split_once('=')).map(assignment).collect(),
            }),
            "leave" => {
                Request::LeaveGroup(LeaveGroup { group: words[0].into(), members: vec![(words[1].into(), None)] })
            }
            other => panic!("no command {other}"),
        }
    }
}

/// A ConsumerProtocol assignment, version 0: topics with their partitions, no user data.
fn assignment((member, partitions): (&str, &str)) -> (Arc<str>, Bytes) {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in partitions.split(',').filter_map(|word| word.rsplit_once('-')) {
        topics.entry(topic).or_default().push(partition.parse().expect("a number"));
    }
    let mut out = BytesMut::new();
    out.put_i16(0);
    out.put_i32(topics.len() as i32);
    for (topic, partitions) in topics {
        out.put_i16(topic.len() as i16);
        out.put_slice(topic.as_bytes());
        out.put_i32(partitions.len() as i32);
        partitions.into_iter().for_each(|partition| out.put_i32(partition));
    }
    out.put_i32(-1);
    (member.into(), out.freeze())
}
