//! What clients did and were told, and what was committed: the history that the invariants judge.
//!
//! The first replica to apply an entry defines it; everyone after must agree. Each invariant is a file of its own in
//! `invariants`, with its source; this one keeps what they need and calls them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use katomic::state::command::{Command, InitProducerId, Outcome};
use katomic::types::{ProducerIdAndEpoch, TopicPartition};

use super::invariants;
use super::node::Applied;
use super::raft::{NODES, NodeId};
use super::records::{BatchNumber, Record, record};
use super::world::Place;

/// What a batch of `out` was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meaning {
    pub group: Arc<str>,
    pub of: TopicPartition,
    pub offset: i64,
}

/// What was read of a partition: from where, and the next offset.
pub type Consumed = (TopicPartition, i64, i64);

/// A partition as a group reads it.
pub type Reading = (Arc<str>, TopicPartition);

/// Offsets that go with a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offsets {
    pub group: Arc<str>,
    pub consumed: Vec<Consumed>,
}

/// How a transaction ended, as its client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Open,
    Committed,
    Nothing,
}

/// One transaction of a client.
#[derive(Debug)]
pub struct Txn {
    pub id: Arc<str>,
    pub batches: BTreeSet<BatchNumber>,
    pub offsets: Option<Offsets>,
    /// EndTxn(commit) was sent; EndTxn(abort) was.
    pub commit_sent: bool,
    pub abort_sent: bool,
    pub end: End,
    /// Where it was committed.
    pub index: Option<u64>,
}

/// One batch that some client sent.
#[derive(Debug)]
pub struct Sent {
    pub txn: Option<usize>,
    pub meaning: Option<Meaning>,
    /// Where it was written.
    pub written: Option<(TopicPartition, Record, u64)>,
}

/// An entry as the first replica applied it.
#[derive(Debug)]
pub struct Canon {
    pub term: u64,
    pub crc: u32,
    pub appended: Vec<Record>,
    pub outcome: Outcome,
    pub state: Option<u32>,
}

/// How much happened: a run in which nothing does proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub committed: u64,
    pub nothing: u64,
    pub lost: u64,
    pub fenced: u64,
    pub acked: u64,
    pub terms: u64,
    pub with_offsets: u64,
    pub plain_commits: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Oracle {
    pub counts: Counts,
    pub canon: Vec<Canon>,
    pub logs: BTreeMap<TopicPartition, Vec<Record>>,
    pub txns: Vec<Txn>,
    pub batches: BTreeMap<BatchNumber, Sent>,
    /// What each group has committed, by the log.
    pub committed: BTreeMap<Reading, i64>,
    /// What clients know to be committed: offset and when they knew.
    pub known: BTreeMap<Reading, Vec<(u64, i64)>>,
    pub clock: u64,
    pub applied: [u64; NODES],
    /// Who served a term, and from when on.
    pub terms: BTreeMap<u64, (NodeId, u64)>,
    pub last_init: BTreeMap<String, ProducerIdAndEpoch>,
    pub pairs: BTreeSet<(i64, i16)>,
    /// Inputs for which an output was written, by group.
    pub outputs: BTreeMap<Reading, BTreeSet<i64>>,
}

impl Oracle {
    // === What clients do and are told ===

    /// A transaction begins.
    pub fn begin(&mut self, id: &Arc<str>) -> usize {
        self.txns.push(Txn {
            id: id.clone(),
            batches: BTreeSet::new(),
            offsets: None,
            commit_sent: false,
            abort_sent: false,
            end: End::Open,
            index: None,
        });
        self.txns.len() - 1
    }

    /// A batch is about to be sent.
    pub fn sent(&mut self, number: BatchNumber, txn: Option<usize>, meaning: Option<Meaning>) {
        if let Some(txn) = txn {
            self.txns[txn].batches.insert(number);
        }
        self.batches.insert(number, Sent { txn, meaning, written: None });
    }

    /// Offsets go with a transaction.
    pub fn stages(&mut self, txn: usize, offsets: Offsets) {
        self.txns[txn].offsets = Some(offsets);
    }

    /// EndTxn is sent.
    pub fn ends(&mut self, txn: usize, commit: bool) {
        self.txns[txn].commit_sent |= commit;
        self.txns[txn].abort_sent |= !commit;
    }

    /// A transaction ended, as its client was told.
    pub fn ended(&mut self, txn: usize, end: End) {
        match end {
            End::Committed => self.counts.committed += 1,
            End::Nothing | End::Open => self.counts.nothing += 1,
        }
        self.txns[txn].end = end;
        invariants::lost_write::transaction(self, txn);
        invariants::aborted_read::ended(self, txn);
        self.clock += 1;
        if let Some(offsets) = self.txns[txn].offsets.clone().filter(|_| end == End::Committed) {
            self.counts.with_offsets += 1;
            for (at, _, next) in offsets.consumed {
                self.known.entry((offsets.group.clone(), at)).or_default().push((self.clock, next));
            }
        }
    }

    /// A plain batch was acknowledged at an offset, −1 if none was told.
    pub fn acked(&mut self, number: BatchNumber, to: TopicPartition, offset: i64) {
        self.counts.acked += 1;
        invariants::lost_write::batch(self, number, to, offset);
    }

    /// An OffsetFetch is about to be sent: the moment it must not look behind.
    pub fn fetch_asked(&self, _group: &Arc<str>) -> u64 {
        self.clock
    }

    /// An OffsetFetch asked at that moment was answered.
    pub fn fetched(&mut self, group: &Arc<str>, at: TopicPartition, offset: i64, asked: u64) {
        invariants::stale_offset::fetched(self, group, at, offset, asked);
    }

    /// A producer was told that it is of no use any more; it holds what this InitProducerId gave it.
    pub fn fatal(&mut self, id: &str, born: Option<ProducerIdAndEpoch>, told: &str) {
        self.counts.fenced += 1;
        invariants::needless_fatal::fatal(self, id, born, told);
    }

    // === What nodes do ===

    /// A node starts at so many entries.
    pub fn started(&mut self, node: NodeId, applied: u64) {
        self.applied[node] = applied;
    }

    /// A node serves a term.
    pub fn serves(&mut self, node: NodeId, term: u64, now_us: u64) {
        self.counts.terms += 1;
        invariants::one_leader::serves(self, node, term, now_us);
    }

    /// A node let out an answer that it had decided at that time: now, on the strength of its lease, or before a quorum
    /// confirmed that it leads.
    pub fn answered(&self, node: NodeId, term: u64, decided_us: u64) {
        invariants::stale_leader::answered(self, node, term, decided_us);
    }

    /// A node holds entries from there on to be committed.
    pub fn committed(&self, places: &[Place], node: NodeId, from: u64) {
        invariants::durable_majority::committed(places, node, from);
    }

    /// A node applied an entry.
    pub fn applied(&mut self, node: NodeId, applied: Applied) {
        let index = applied.index as usize;
        if index < self.canon.len() {
            return invariants::replicas_agree::applied(self, node, &applied);
        }
        assert_eq!(index, self.canon.len(), "entries are first applied in order");
        for topic in &applied.deleted {
            self.logs.retain(|at, _| at.topic != *topic);
        }
        let records: Vec<(TopicPartition, Record)> =
            applied.appended.iter().map(|appended| (appended.to, record(appended))).collect();
        for (at, record) in &records {
            invariants::dense_offsets::appended(self, *at, *record);
            invariants::duplicate::appended(self, *at, *record, applied.index);
            self.logs.entry(*at).or_default().push(*record);
        }
        self.follow(&applied, &records);
        self.canon.push(Canon {
            term: applied.term,
            crc: applied.crc,
            appended: records.into_iter().map(|(_, record)| record).collect(),
            outcome: applied.outcome,
            state: applied.state,
        });
    }

    /// What the entry means for transactions, groups and producer ids.
    fn follow(&mut self, applied: &Applied, records: &[(TopicPartition, Record)]) {
        let numbers: Vec<BatchNumber> = records.iter().map(|(_, record)| record.number).collect();
        invariants::whole_transaction::appended(self, applied, &numbers);
        match (applied.entry.as_ref().map(|entry| &entry.command), &applied.outcome) {
            (Some(Command::TxnCommit(commit)), Outcome::Ended(Ok(_))) => {
                invariants::offsets_together::committed(self, commit, &numbers);
            }
            (Some(Command::OffsetCommit(commit)), Outcome::Offsets(results)) => {
                self.counts.plain_commits += 1;
                for (write, result) in commit.offsets.iter().zip(results) {
                    if result.is_ok() {
                        invariants::produce_then_commit::committed(self, &commit.group, write);
                        let key = (Arc::from(commit.group.as_str()), write.of);
                        self.committed.insert(key, write.offset.0);
                    }
                }
            }
            (Some(Command::InitProducerId(init)), Outcome::ProducerId(Ok(pair))) => self.born(init, *pair),
            _ => {}
        }
        for number in numbers {
            if let Some(meaning) = self.batches.get(&number).and_then(|sent| sent.meaning.clone()) {
                self.outputs.entry((meaning.group, meaning.of)).or_default().insert(meaning.offset);
            }
        }
    }

    fn born(&mut self, init: &InitProducerId, pair: ProducerIdAndEpoch) {
        invariants::one_holder::born(self, init, pair);
        if let Some(id) = &init.transactional_id {
            self.last_init.insert(id.clone(), pair);
        }
    }
}
