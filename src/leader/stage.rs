//! One open transaction: its batches per partition and its group offsets, in the leader's memory only.
//!
//! Batches are kept in the order of their sequences, not of their arrival (T13). A gap is accepted and decides at the
//! commit; an exact duplicate (first, last *and* CRC, but for the time at which it was stamped) is stored once; any other
//! overlap is new data under old numbers and dooms the transaction (§4). Nothing here proposes: `transactions.rs`, `end_txn.rs` and `chunks.rs` do.
//!
//! Sequences wrap, so they are compared as distances from the *anchor*, the sequence that must come next by what is
//! committed at this epoch (T18).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::Ticket;
use super::request::{MemberRef, Response, Token};
use crate::config::limits;
use crate::state::Machine;
use crate::state::command::{Batch, Chunks, OffsetWrite, StagedOffsets, TxnCommit, TxnFence};
use crate::state::producers::{BATCHES_REMEMBERED, SEQUENCE_WINDOW};
use crate::state::transactions::chunks_crc;
use crate::types::record_batch::sequence_plus;
use crate::types::{LogIndex, ProducerIdAndEpoch, RecordBatch, TopicPartition};

/// Sequences are 31 bits wide.
const SEQUENCES: i64 = 1 << 31;

/// Why a transaction must never commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doom {
    /// What earlier terms acknowledged of it is gone.
    TermChanged,
    /// `transaction.timeout.ms` passed.
    TimedOut,
    /// Two different batches under the same sequences.
    Overlap,
    /// A sequence is missing at the commit.
    Hole,
    /// All stages together exceed their memory, or this one its partitions.
    OverBudget,
    /// A member whose offsets it holds is gone or lost the partition.
    MemberGone,
    /// Its commit was a no-op when it was applied.
    Refused,
    /// Its begin marker or a chunk of it never reached the log.
    EntryLost,
}

/// How far the begin marker of a TV1 transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// Not proposed: TV2, or doomed from the start.
    Absent,
    /// Proposed: every ack waits.
    Proposed(Ticket),
    /// Proposed, and its deadline passed.
    Unknown(Ticket),
    /// Applied: its index names the transaction.
    Applied(LogIndex),
}

/// Sequences and CRC of a batch, as distances from the anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: i64,
    last: i64,
    crc: u32,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inserted {
    /// Stored; it costs that many bytes.
    Stored(usize),
    /// The very batch is there already.
    Duplicate,
    /// Other data under the same sequences.
    Overlap,
}

/// The batches of one partition.
#[derive(Debug)]
pub(super) struct StagedPartition {
    /// The sequence that continues what is committed at this epoch.
    anchor: i32,
    /// Sequences that an aborted transaction of this epoch used, as distances: a commit may start inside or right behind.
    aborted: Option<(i64, i64)>,
    /// In the order of their sequences.
    batches: Vec<(Span, Batch)>,
    /// Behind the last batch that went to a chunk.
    chunked_next: Option<i64>,
    /// The last batches that went to chunks, to recognise retries.
    chunked: VecDeque<Span>,
    /// Least and greatest sequence acknowledged, stored or not: what an abort reports as skipped.
    acknowledged: Option<(i64, i64)>,
}

fn distance(anchor: i32, sequence: i32) -> i64 {
    (i64::from(sequence) - i64::from(anchor)).rem_euclid(SEQUENCES)
}

/// Whether a batch is the stored one sent again, perhaps stamped anew.
fn repeats((span, stored): (Span, &Batch), (again, batch): (Span, &RecordBatch)) -> bool {
    let stored_at = || RecordBatch::stored(stored.records.clone()).max_timestamp();
    span == again || span == Span { crc: batch.crc_moved_to(stored_at()), ..again }
}

impl StagedPartition {
    fn new(machine: &Machine, producer: ProducerIdAndEpoch, at: TopicPartition) -> Self {
        let written = machine.producers().at(producer.producer_id, at).filter(|state| state.epoch == producer.epoch);
        let anchor = written.and_then(|state| state.last_sequence()).map_or(0, |last| sequence_plus(last, 1));
        let aborted = written.and_then(|state| state.aborted);
        let aborted = aborted.map(|(first, last)| {
            let first_at = distance(anchor, first);
            (first_at, first_at + distance(first, last))
        });
        // Where nothing is written at this epoch, an aborted transaction may have used any sequences.
        let unknown = written.is_none() && machine.producers().may_skip(producer);
        let aborted = aborted.or_else(|| unknown.then_some((0, i64::from(SEQUENCE_WINDOW))));
        Self { anchor, aborted, batches: Vec::new(), chunked_next: None, chunked: VecDeque::new(), acknowledged: None }
    }

    fn span(&self, batch: &RecordBatch) -> Span {
        let first = distance(self.anchor, batch.base_sequence());
        Span { first, last: first + i64::from(batch.last_offset_delta()), crc: batch.crc() }
    }

    fn acknowledge(&mut self, span: Span) {
        let (low, high) = self.acknowledged.unwrap_or((span.first, span.last));
        self.acknowledged = Some((low.min(span.first), high.max(span.last)));
    }

    fn insert(&mut self, to: TopicPartition, batch: &RecordBatch) -> Inserted {
        let span = self.span(batch);
        self.acknowledge(span);
        if self.chunked_next.is_some_and(|next| span.first < next) {
            return if self.chunked.contains(&span) { Inserted::Duplicate } else { Inserted::Overlap };
        }
        let at = self.batches.partition_point(|(other, _)| other.first < span.first);
        if self.batches.get(at).is_some_and(|(other, stored)| repeats((*other, stored), (span, batch))) {
            return Inserted::Duplicate;
        }
        let meets_next = self.batches.get(at).is_some_and(|(other, _)| other.first <= span.last);
        let meets_last = at > 0 && self.batches[at - 1].0.last >= span.first;
        if meets_next || meets_last {
            return Inserted::Overlap;
        }
        self.batches.insert(at, (span, Batch::new(to, batch)));
        Inserted::Stored(batch.size_bytes() + limits::STAGED_OVERHEAD_BYTES)
    }

    fn may_start_at(&self, first: i64) -> bool {
        first == 0 || self.aborted.is_some_and(|(low, high)| (low..=high + 1).contains(&first))
    }

    /// How many batches from the front follow each other without a gap, from an allowed start on.
    fn contiguous(&self) -> usize {
        let mut next = self.chunked_next;
        let follows = |(span, _): &&(Span, Batch)| {
            let fits = next.map_or_else(|| self.may_start_at(span.first), |next| span.first == next);
            next = Some(span.last + 1);
            fits
        };
        self.batches.iter().take_while(follows).count()
    }

    fn is_whole(&self) -> bool {
        self.contiguous() == self.batches.len()
    }

    /// Takes batches for a chunk from the contiguous front while they fit into `room`; notes what is left of it.
    fn take_chunk(&mut self, room: &mut usize, into: &mut Vec<Batch>) {
        let mut count = 0;
        for (_, batch) in &self.batches[..self.contiguous()] {
            let cost = batch.records.len() + limits::ENTRY_OVERHEAD_BYTES;
            if cost > *room && !(into.is_empty() && count == 0) {
                *room = 0;
                break;
            }
            *room = room.saturating_sub(cost);
            count += 1;
        }
        for (span, batch) in self.batches.drain(..count) {
            self.chunked_next = Some(span.last + 1);
            self.chunked.push_back(span);
            if self.chunked.len() > BATCHES_REMEMBERED {
                self.chunked.pop_front();
            }
            into.push(batch);
        }
    }

    fn skipped(&self) -> Option<(i32, i32)> {
        let sequence = |at: i64| ((i64::from(self.anchor) + at) % SEQUENCES) as i32;
        self.acknowledged.map(|(low, high)| (sequence(low), sequence(high)))
    }
}

/// An offset staged for a group.
#[derive(Clone, Debug)]
pub(super) struct StagedOffset {
    /// What to commit.
    pub write: OffsetWrite,
    /// The member on whose behalf, as it was then.
    pub member: MemberRef,
    /// The last index applied then, or that of a plain commit proposed before and applied since (T21).
    pub at: LogIndex,
    /// The last ticket given out then.
    pub after: Ticket,
}

/// What a staged offset takes, in memory and in its entry; the group's name may stand before each.
pub(super) fn offset_cost(group: &str, write: &OffsetWrite) -> usize {
    group.len() + write.metadata.len() + limits::STAGED_OVERHEAD_BYTES
}

/// The hidden chunks of a large transaction.
#[derive(Debug, Default)]
pub(super) struct ChunkedPart {
    /// Known once the first chunk (TV2) or the marker (TV1) is applied.
    pub stage_id: Option<LogIndex>,
    /// Chunks proposed.
    pub count: u32,
    /// CRC-32C over their batches, in order.
    pub crc: u32,
    /// The one in flight: the next waits for it.
    pub in_flight: Option<Ticket>,
    /// Its deadline passed.
    pub unknown: bool,
}

/// One open transaction.
#[derive(Debug)]
pub(super) struct Stage {
    /// The pair that opened it.
    pub producer: ProducerIdAndEpoch,
    /// TV1: acks wait for the begin marker.
    pub gated: bool,
    /// How far that marker is.
    pub begin: Begin,
    /// Set: it must never commit, and it holds no data any more.
    pub doomed: Option<Doom>,
    /// It acknowledged sequences that it does not know (any more).
    pub skips_unknown: bool,
    /// Order of opening, for dooming the newest.
    pub number: u64,
    /// When it was opened (monotonic).
    pub opened_ms: u64,
    /// When it times out (monotonic).
    pub deadline_ms: u64,
    /// Whether anything of it was acknowledged.
    pub acknowledged: bool,
    /// Partitions added by AddPartitionsToTxn.
    pub added_partitions: BTreeSet<TopicPartition>,
    /// Groups added by AddOffsetsToTxn.
    pub added_groups: BTreeSet<Arc<str>>,
    partitions: BTreeMap<TopicPartition, StagedPartition>,
    /// Offsets by group.
    pub offsets: BTreeMap<Arc<str>, BTreeMap<TopicPartition, StagedOffset>>,
    /// Everything it holds or has put into chunks, for the memory cap.
    pub bytes: usize,
    /// Record bytes and metadata that its commit entry would carry now.
    pub entry_bytes: usize,
    /// The offsets' part of it, which no chunk can take.
    pub offset_bytes: usize,
    /// Its chunks.
    pub chunks: ChunkedPart,
    /// Answers that wait for the begin marker.
    pub acks: Vec<(Token, Response)>,
}

impl Stage {
    /// An empty one.
    pub fn new(producer: ProducerIdAndEpoch, number: u64, opened_ms: u64, deadline_ms: u64) -> Self {
        Self {
            producer,
            gated: false,
            begin: Begin::Absent,
            doomed: None,
            skips_unknown: false,
            number,
            opened_ms,
            deadline_ms,
            acknowledged: false,
            added_partitions: BTreeSet::new(),
            added_groups: BTreeSet::new(),
            partitions: BTreeMap::new(),
            offsets: BTreeMap::new(),
            bytes: 0,
            entry_bytes: 0,
            offset_bytes: 0,
            chunks: ChunkedPart::default(),
            acks: Vec::new(),
        }
    }

    /// Whether it may still commit.
    pub fn is_live(&self) -> bool {
        self.doomed.is_none()
    }

    /// Whether it names more than one entry may list.
    pub fn is_too_wide(&self) -> bool {
        let offsets: usize = self.offsets.values().map(BTreeMap::len).sum();
        let names = self.added_partitions.len() + self.added_groups.len() + self.partitions.len() + offsets;
        names > limits::STAGE_PARTITIONS_MAX
    }

    /// Stores a batch; of a doomed transaction only its sequences are noted.
    pub fn insert(&mut self, machine: &Machine, to: TopicPartition, batch: &RecordBatch) -> Inserted {
        let producer = self.producer;
        let noted = self.partitions.len() < limits::DOOMED_PARTITIONS_MAX || self.partitions.contains_key(&to);
        if self.doomed.is_some() && !noted {
            self.skips_unknown = true;
            return Inserted::Duplicate;
        }
        let partition = self.partitions.entry(to).or_insert_with(|| StagedPartition::new(machine, producer, to));
        if self.doomed.is_some() {
            let span = partition.span(batch);
            partition.acknowledge(span);
            return Inserted::Duplicate;
        }
        let inserted = partition.insert(to, batch);
        if let Inserted::Stored(bytes) = inserted {
            self.bytes += bytes;
            self.entry_bytes += batch.size_bytes() + limits::ENTRY_OVERHEAD_BYTES;
        }
        inserted
    }

    /// Notes partitions that AddPartitionsToTxn names; tells what they cost. A doomed stage notes nothing.
    pub fn add_partitions(&mut self, partitions: impl Iterator<Item = TopicPartition>) -> usize {
        let live = self.is_live();
        let fresh = partitions.filter(|at| live && self.added_partitions.insert(*at)).count();
        self.bytes += fresh * limits::STAGED_OVERHEAD_BYTES;
        fresh * limits::STAGED_OVERHEAD_BYTES
    }

    /// Notes a group that AddOffsetsToTxn names; tells what it costs. A doomed stage notes nothing.
    pub fn add_group(&mut self, group: &Arc<str>) -> usize {
        let fresh = self.is_live() && self.added_groups.insert(group.clone());
        let cost = if fresh { group.len() + limits::STAGED_OVERHEAD_BYTES } else { 0 };
        self.bytes += cost;
        cost
    }

    /// Stages an offset; a later one for the same partition replaces it.
    pub fn insert_offset(&mut self, group: &Arc<str>, offset: StagedOffset) {
        let cost = offset_cost(group, &offset.write);
        let replaced = self.offsets.entry(group.clone()).or_default().insert(offset.write.of, offset);
        let freed = replaced.map_or(0, |old| offset_cost(group, &old.write));
        self.bytes = self.bytes + cost - freed;
        self.entry_bytes = self.entry_bytes + cost - freed;
        self.offset_bytes = self.offset_bytes + cost - freed;
    }

    /// Whether no sequence is missing in any partition.
    pub fn is_whole(&self) -> bool {
        self.partitions.values().all(StagedPartition::is_whole)
    }

    /// Frees what it holds and notes why it can never commit. The first reason stays.
    pub fn doom(&mut self, why: Doom) {
        self.doomed.get_or_insert(why);
        if why == Doom::TermChanged || self.partitions.len() > limits::DOOMED_PARTITIONS_MAX {
            self.skips_unknown = true;
            self.partitions.clear();
        }
        for partition in self.partitions.values_mut() {
            partition.batches = Vec::new();
        }
        self.offsets.clear();
        self.added_partitions.clear();
        self.added_groups.clear();
        self.bytes = 0;
        self.entry_bytes = 0;
        self.offset_bytes = 0;
    }

    /// The sequences it acknowledged, for the entry that aborts it.
    pub fn skipped(&self) -> Vec<(TopicPartition, i32, i32)> {
        let ranges = self.partitions.iter();
        ranges.filter_map(|(at, staged)| staged.skipped().map(|(first, last)| (*at, first, last))).collect()
    }

    /// Takes the batches of the next chunk, at most `room` bytes of them.
    pub fn take_chunk(&mut self, mut room: usize) -> Vec<Batch> {
        let mut batches = Vec::new();
        for partition in self.partitions.values_mut() {
            if room == 0 {
                break;
            }
            partition.take_chunk(&mut room, &mut batches);
        }
        for batch in &batches {
            self.entry_bytes -= batch.records.len() + limits::ENTRY_OVERHEAD_BYTES;
        }
        self.chunks.crc = chunks_crc(self.chunks.crc, &batches);
        batches
    }

    /// The entry that commits it.
    pub fn commit(&self, transactional_id: &str, bump: bool) -> TxnCommit {
        let partitions = self.partitions.values();
        let batches = partitions.flat_map(|staged| staged.batches.iter().map(|(_, batch)| batch.clone())).collect();
        let fence = match self.begin {
            Begin::Applied(index) => TxnFence::Begin(index),
            Begin::Absent | Begin::Proposed(_) | Begin::Unknown(_) => TxnFence::Epoch,
        };
        let chunks = self.chunks.stage_id.filter(|_| self.chunks.count > 0);
        TxnCommit {
            transactional_id: transactional_id.to_owned(),
            producer: self.producer,
            fence,
            bump,
            batches,
            chunks: chunks.map(|stage_id| Chunks { stage_id, count: self.chunks.count, crc: self.chunks.crc }),
            offsets: self.staged_offsets(),
        }
    }

    /// Its offsets, one list for each group and staging index.
    fn staged_offsets(&self) -> Vec<StagedOffsets> {
        let mut lists: BTreeMap<(&str, LogIndex), Vec<OffsetWrite>> = BTreeMap::new();
        for (group, offsets) in &self.offsets {
            for offset in offsets.values() {
                lists.entry((group, offset.at)).or_default().push(offset.write.clone());
            }
        }
        let lists = lists.into_iter();
        lists
            .map(|((group, staged_at), offsets)| StagedOffsets { group: group.to_owned(), staged_at, offsets })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TopicId;
    use crate::types::record_batch::sample;

    #[test]
    fn a_batch_that_its_client_stamped_anew_is_stored_once_and_other_data_dooms() {
        let producer = ProducerIdAndEpoch { producer_id: 7, epoch: 0 };
        let to = TopicPartition { topic: TopicId([1; 16]), partition: 0 };
        let mut partition = StagedPartition::new(&Machine::default(), producer, to);
        let first = sample::batch((7, 0), 0, 3, true, b"abc");
        assert!(matches!(partition.insert(to, &first), Inserted::Stored(_)));
        assert_eq!(partition.insert(to, &sample::stamped_later(&first, 400)), Inserted::Duplicate);
        let other = sample::stamped_later(&sample::batch((7, 0), 0, 3, true, b"abd"), 400);
        assert_eq!(partition.insert(to, &other), Inserted::Overlap);
    }
}
