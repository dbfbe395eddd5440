//! The bytes of one log entry, as the log stores them and peers receive them.
//!
//! ```text
//! 0  version   u8   1
//! 1  kind      u8   0 blank, 1 command, 2 membership
//! 2  meta len  u32  little endian
//! 6  meta           postcard (its own specification, v1): nothing, an `Entry`, or the members
//! …  records        command only: the bytes of every batch, in the order of `Command::batches`
//! ```
//!
//! Record bytes are never copied: encoding yields pieces that are written vectored, decoding yields slices.
//! The log puts a checksum around the whole; here damage is an error all the same, never a panic.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::state::command::Entry;
use crate::types::record_batch::HEADER_BYTES;

/// The version written by this build.
pub const VERSION: u8 = 1;

const PREFIX_BYTES: usize = 6;
const KIND_BLANK: u8 = 0;
const KIND_COMMAND: u8 = 1;
const KIND_MEMBERSHIP: u8 = 2;

/// Why bytes are not an entry.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// The bytes end before the entry does.
    #[error("the entry is cut short")]
    Truncated,
    /// Written by a build that knows more.
    #[error("the entry has version {0}, this build reads up to {VERSION}")]
    Version(u8),
    /// No such kind of entry.
    #[error("unknown kind {0} of entry")]
    Kind(u8),
    /// The metadata is not what its kind says.
    #[error("the entry's metadata cannot be decoded: {0}")]
    Meta(#[from] postcard::Error),
    /// The members contradict each other.
    #[error("the entry's members are invalid: {0}")]
    Members(String),
    /// Metadata and bytes disagree about lengths.
    #[error("the entry's lengths contradict each other")]
    Lengths,
}

/// One member of the cluster, as membership entries carry it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Where peers reach it.
    pub rpc: String,
    /// Advertised Kafka host.
    pub host: String,
    /// Advertised Kafka port.
    pub port: u16,
    /// Its rack.
    pub rack: Option<String>,
}

/// The members of the cluster: voters (two sets while they change), and every node's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// Sets of voters, each of which must have a majority.
    pub voters: Vec<BTreeSet<u64>>,
    /// All nodes, learners included.
    pub nodes: BTreeMap<u64, Node>,
}

/// What an entry of the log holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// A new leader's first entry.
    Blank,
    /// A command with its time.
    Command(Entry),
    /// New members.
    Members(Members),
}

/// The pieces of a command's entry; their concatenation is what [`decode`] takes.
///
/// # Panics
/// If a batch's length is not that of its bytes: whoever built it broke [`Batch`](crate::state::command::Batch).
pub fn encode(entry: &Entry) -> Vec<Bytes> {
    let batches = entry.command.batches();
    let mut pieces = Vec::with_capacity(1 + batches.len());
    pieces.push(head(KIND_COMMAND, entry));
    for batch in batches {
        assert_eq!(batch.records_len as usize, batch.records.len(), "a batch knows the length of its records");
        pieces.push(batch.records.clone());
    }
    pieces
}

/// The bytes of a blank entry.
pub fn encode_blank() -> Bytes {
    head(KIND_BLANK, &())
}

/// The bytes of a membership entry.
pub fn encode_members(members: &Members) -> Bytes {
    head(KIND_MEMBERSHIP, members)
}

fn head(kind: u8, meta: &impl Serialize) -> Bytes {
    let prefix = vec![VERSION, kind, 0, 0, 0, 0];
    let mut out = postcard::to_extend(meta, prefix).expect("a Vec takes any number of bytes");
    let meta_len = u32::try_from(out.len() - PREFIX_BYTES).expect("metadata is smaller than a request");
    out[2..PREFIX_BYTES].copy_from_slice(&meta_len.to_le_bytes());
    Bytes::from(out)
}

/// The command that [`encode`] wrote; its records are slices of `bytes`.
///
/// # Errors
/// If the bytes are anything else.
pub fn decode(bytes: Bytes) -> Result<Entry, EntryError> {
    match decode_stored(bytes)? {
        Stored::Command(entry) => Ok(entry),
        Stored::Blank => Err(EntryError::Kind(KIND_BLANK)),
        Stored::Members(_) => Err(EntryError::Kind(KIND_MEMBERSHIP)),
    }
}

/// An entry of any kind.
///
/// # Errors
/// If the bytes are not one entry, whole and with nothing behind it.
pub fn decode_stored(bytes: Bytes) -> Result<Stored, EntryError> {
    let Some(prefix) = bytes.get(..PREFIX_BYTES) else { return Err(EntryError::Truncated) };
    if prefix[0] != VERSION {
        return Err(EntryError::Version(prefix[0]));
    }
    let meta_len = u32::from_le_bytes([prefix[2], prefix[3], prefix[4], prefix[5]]) as usize;
    let meta_end = PREFIX_BYTES.checked_add(meta_len).ok_or(EntryError::Truncated)?;
    let meta = bytes.get(PREFIX_BYTES..meta_end).ok_or(EntryError::Truncated)?;
    match prefix[1] {
        KIND_BLANK => whole::<()>(meta).and_then(|()| nothing_behind(&bytes, meta_end)).map(|()| Stored::Blank),
        KIND_MEMBERSHIP => {
            let members = whole(meta)?;
            nothing_behind(&bytes, meta_end)?;
            Ok(Stored::Members(members))
        }
        KIND_COMMAND => {
            let mut entry: Entry = whole(meta)?;
            let mut at = meta_end;
            for batch in entry.command.batches_mut() {
                let end = at.checked_add(batch.records_len as usize).ok_or(EntryError::Lengths)?;
                // Whoever reads the batch relies on a whole header.
                if end > bytes.len() || (batch.records_len as usize) < HEADER_BYTES {
                    return Err(EntryError::Lengths);
                }
                batch.records = bytes.slice(at..end);
                at = end;
            }
            nothing_behind(&bytes, at)?;
            Ok(Stored::Command(entry))
        }
        kind => Err(EntryError::Kind(kind)),
    }
}

fn whole<T: for<'a> Deserialize<'a>>(meta: &[u8]) -> Result<T, EntryError> {
    let (value, rest) = postcard::take_from_bytes(meta)?;
    if rest.is_empty() { Ok(value) } else { Err(EntryError::Lengths) }
}

fn nothing_behind(bytes: &Bytes, end: usize) -> Result<(), EntryError> {
    if bytes.len() == end { Ok(()) } else { Err(EntryError::Lengths) }
}

/// All pieces as one: for tests and tools; the log writes the pieces themselves.
pub fn concat(pieces: &[Bytes]) -> Bytes {
    let mut out = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| out.put_slice(piece));
    out.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::state::command::{
        Batch, Chunks, Command, GroupOffsets, OffsetWrite, StagedOffsets, TxnChunk, TxnCommit, TxnFence,
    };
    use crate::types::record_batch::sample;
    use crate::types::{LogIndex, Offset, ProducerIdAndEpoch, TopicId, TopicPartition};

    fn batch() -> impl Strategy<Value = Batch> {
        (any::<[u8; 16]>(), 0..100i32, 1..50i32, proptest::collection::vec(any::<u8>(), 0..300)).prop_map(
            |(topic, partition, count, body)| {
                let to = TopicPartition { topic: TopicId(topic), partition };
                Batch::new(to, &sample::batch((7, 1), 0, count, true, &body))
            },
        )
    }

    fn batches() -> impl Strategy<Value = Vec<Batch>> {
        proptest::collection::vec(batch(), 0..6)
    }

    fn offsets() -> impl Strategy<Value = Vec<OffsetWrite>> {
        let offset = (any::<[u8; 16]>(), any::<i64>(), any::<i32>(), ".{0,20}").prop_map(|(topic, at, epoch, text)| {
            let of = TopicPartition { topic: TopicId(topic), partition: 0 };
            OffsetWrite { of, offset: Offset(at), leader_epoch: epoch, metadata: text }
        });
        proptest::collection::vec(offset, 0..4)
    }

    fn command() -> impl Strategy<Value = Command> {
        let producer = ProducerIdAndEpoch { producer_id: 7, epoch: 1 };
        prop_oneof![
            batches().prop_map(Command::Produce),
            (".{0,12}", offsets()).prop_map(|(group, offsets)| Command::OffsetCommit(GroupOffsets { group, offsets })),
            (".{0,12}", any::<u32>(), batches()).prop_map(move |(transactional_id, number, batches)| {
                Command::TxnChunk(TxnChunk { transactional_id, producer, stage_id: None, number, batches })
            }),
            (".{0,12}", any::<u64>(), batches(), offsets()).prop_map(
                move |(transactional_id, at, batches, offsets)| {
                    Command::TxnCommit(TxnCommit {
                        transactional_id,
                        producer,
                        fence: TxnFence::Begin(LogIndex(at)),
                        bump: false,
                        batches,
                        chunks: Some(Chunks { stage_id: LogIndex(at), count: 2, crc: 3 }),
                        offsets: vec![StagedOffsets { group: "g".into(), staged_at: LogIndex(at), offsets }],
                    })
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(now_ms in any::<i64>(), command in command()) {
            let entry = Entry { now_ms, command };
            prop_assert_eq!(decode(concat(&encode(&entry))).unwrap(), entry);
        }

        #[test]
        fn damaged_bytes_are_an_error_or_another_entry_and_never_a_panic(
            command in command(),
            at in any::<prop::sample::Index>(),
            flip in 1..=255u8,
            cut in any::<prop::sample::Index>(),
        ) {
            let good = concat(&encode(&Entry { now_ms: 1, command }));
            prop_assert!(decode_stored(good.slice(..cut.index(good.len()))).is_err(), "a part is not an entry");
            let longer = [&good[..], &[0]].concat();
            prop_assert!(decode_stored(Bytes::from(longer)).is_err(), "nothing may follow");
            let mut bad = good.to_vec();
            let at = at.index(bad.len());
            bad[at] ^= flip;
            let _ = decode_stored(Bytes::from(bad));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..3u8) {
            let _ = decode_stored(Bytes::from(bytes.clone()));
            let meta_len = u32::try_from(bytes.len()).unwrap().to_le_bytes();
            let framed = [&[VERSION, kind][..], &meta_len[..], &bytes[..]].concat();
            let _ = decode_stored(Bytes::from(framed));
        }
    }

    #[test]
    fn record_bytes_are_shared_and_not_copied() {
        let to = TopicPartition { topic: TopicId([1; 16]), partition: 0 };
        let records = sample::batch((-1, -1), -1, 1, false, b"x");
        let entry = Entry { now_ms: 0, command: Command::Produce(vec![Batch::new(to, &records)]) };
        let pieces = encode(&entry);
        assert_eq!(pieces[1].as_ptr(), records.bytes().as_ptr());
        let whole = concat(&pieces);
        let decoded = decode(whole.clone()).unwrap();
        assert_eq!(decoded.command.batches()[0].records.as_ptr(), whole[pieces[0].len()..].as_ptr());
    }

    #[test]
    fn blank_and_membership_entries_are_told_apart() {
        assert_eq!(decode_stored(encode_blank()).unwrap(), Stored::Blank);
        let node = Node { rpc: "a:1".into(), host: "b".into(), port: 9092, rack: Some("r".into()) };
        let members = Members { voters: vec![[1, 2].into()], nodes: [(1, node.clone()), (2, node)].into() };
        assert_eq!(decode_stored(encode_members(&members)).unwrap(), Stored::Members(members));
        assert!(matches!(decode(encode_blank()), Err(EntryError::Kind(KIND_BLANK))));
    }

    #[test]
    fn the_format_is_the_documented_one() {
        assert_eq!(&encode_blank()[..], &[1, 0, 0, 0, 0, 0]);
        let entry = Entry { now_ms: -1, command: Command::DropStages(vec![LogIndex(300)]) };
        // zigzag(−1) = 1, variant 11, one element, 300 as a varint.
        assert_eq!(&concat(&encode(&entry))[..], &[1, 1, 5, 0, 0, 0, 1, 11, 1, 0xac, 0x02]);
    }
}
