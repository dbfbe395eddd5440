//! The room as a whole, over the disk that loses what was not synced.

mod crash;
mod deletion;
mod model;
mod roll;
mod space;
mod time;
mod transfer;
mod trim;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc;

use super::*;
use crate::config::limits::SEGMENT_BATCH_OVERHEAD_BYTES;
use crate::disk::faulty::FaultyDisk;
use crate::state::command::Appended;
use crate::types::RecordBatch;
use crate::types::record_batch::sample;

const DIR: &str = "/segments";
/// Small, so that every test crosses tails, segments and open files.
const SEGMENT_BYTES: u64 = 3_000;

/// Room for three batches of some 500 bytes.
const TAIL_BYTES_MAX: usize = 2_000 + 3 * SEGMENT_BATCH_OVERHEAD_BYTES;

fn options() -> SegmentOptions {
    SegmentOptions { dir: DIR.into(), unwritten_bytes_max: 1 << 20, tail_bytes_max: TAIL_BYTES_MAX, open_files_max: 8 }
}

fn topic(number: u8) -> TopicId {
    TopicId([number; 16])
}

fn partition(of: u8, partition: i32) -> TopicPartition {
    TopicPartition { topic: topic(of), partition }
}

/// A batch of opaque records.
fn opaque(records: i32, bytes: usize, fill: u8) -> RecordBatch {
    sample::batch((-1, -1), -1, records, false, &vec![fill; bytes])
}

fn settings(segment_bytes: u64) -> TopicSettings {
    TopicSettings { segment_bytes, ..TopicSettings::default() }
}

/// Everything in the directory except the manifest.
fn files(disk: &dyn Disk) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for name in disk.list(Path::new(DIR)).unwrap() {
        let Ok(inner) = disk.list(&Path::new(DIR).join(&name)) else { continue };
        for file in inner {
            let path = Path::new(DIR).join(&name).join(&file);
            found.insert(path.display().to_string(), content(disk, &path));
        }
    }
    found
}

fn content(disk: &dyn Disk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, false).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// One step of the log as this room sees it.
#[derive(Clone, Debug)]
struct Step {
    index: LogIndex,
    effects: Effects,
    /// Of the topics that it creates or sets.
    settings: TopicSettings,
}

/// The log, the partition logs made from it, and what they must contain.
struct World {
    disk: FaultyDisk,
    segments: Segments,
    log: Vec<Step>,
    /// Batches as they must be read: (index, base offset, bytes as sent to clients).
    expected: BTreeMap<TopicPartition, Vec<(LogIndex, i64, Vec<u8>)>>,
    /// Where logs start, from which entry on.
    starts: BTreeMap<TopicPartition, Vec<(LogIndex, i64)>>,
    /// What topics are created with, and set to.
    settings: TopicSettings,
}

/// The term at an index: leader epochs must change in the middle of logs.
fn term_at(index: LogIndex) -> Term {
    Term(1 + index.0 / 7)
}

impl World {
    fn new(seed: u64) -> Self {
        let disk = FaultyDisk::new(seed);
        let (segments, checkpoint) = Segments::open(Arc::new(disk.clone()), options()).unwrap();
        assert!(checkpoint.is_none());
        let (expected, starts) = (BTreeMap::new(), BTreeMap::new());
        Self { disk, segments, log: Vec::new(), expected, starts, settings: settings(SEGMENT_BYTES) }
    }

    fn next_index(&self) -> LogIndex {
        LogIndex(self.log.len() as u64)
    }

    fn last_index(&self) -> LogIndex {
        self.log.last().expect("something was applied").index
    }

    fn end(&self, of: TopicPartition) -> i64 {
        let last = self.expected[&of].last();
        last.map_or(0, |(_, base, bytes)| {
            base + i64::from(RecordBatch::stored(bytes.clone().into()).last_offset_delta()) + 1
        })
    }

    /// Applies without publishing.
    fn apply(&mut self, effects: Effects) -> LogIndex {
        let step = Step { index: self.next_index(), effects, settings: self.settings.clone() };
        follow(&self.segments, &step);
        for appended in &step.effects.appended {
            let mut bytes = appended.records.bytes().to_vec();
            let epoch = term_at(step.index).leader_epoch();
            bytes[..16].copy_from_slice(&appended.records.patched_prefix(appended.base_offset.0, epoch));
            let log = self.expected.get_mut(&appended.to).expect("created");
            log.push((step.index, appended.base_offset.0, bytes));
        }
        for (topic, _, partitions) in &step.effects.created {
            (0..*partitions).for_each(|partition| {
                self.expected.insert(TopicPartition { topic: *topic, partition }, Vec::new());
            });
        }
        for (of, start) in &step.effects.trimmed {
            self.starts.entry(*of).or_default().push((step.index, start.0));
        }
        self.expected.retain(|id, _| !step.effects.deleted.contains(&id.topic));
        self.log.push(step);
        self.last_index()
    }

    fn publish(&self) {
        self.segments.publish(self.last_index());
    }

    fn create(&mut self, id: u8, name: &str, partitions: i32) {
        self.apply(Effects { created: vec![(topic(id), name.to_owned(), partitions)], ..Effects::default() });
        self.publish();
    }

    fn appended(&self, to: TopicPartition, records: RecordBatch) -> Appended {
        let base = self.end(to);
        let next = base + i64::from(records.record_count());
        Appended { to, base_offset: Offset(base), next_offset: Offset(next), records }
    }

    /// One entry with one batch, published.
    fn append(&mut self, to: TopicPartition, records: RecordBatch) {
        let appended = vec![self.appended(to, records)];
        self.apply(Effects { appended, ..Effects::default() });
        self.publish();
    }

    fn delete(&mut self, id: u8) {
        self.apply(Effects { deleted: vec![topic(id)], ..Effects::default() });
        self.publish();
    }

    fn trim(&mut self, of: TopicPartition, to: i64) {
        self.apply(Effects { trimmed: vec![(of, Offset(to))], ..Effects::default() });
        self.publish();
    }

    /// Where a log starts for a reader at that index.
    fn start(&self, of: TopicPartition, visible: LogIndex) -> i64 {
        let mut starts = self.starts.get(&of).into_iter().flatten();
        starts.rfind(|(index, _)| *index <= visible).map_or(0, |(_, start)| *start)
    }

    /// Gives a topic the settings of this moment.
    fn set(&mut self, id: u8) {
        self.apply(Effects { reconfigured: vec![topic(id)], ..Effects::default() });
        self.publish();
    }

    fn flush(&self) {
        let (done, waiting) = mpsc::channel();
        self.segments.shared.queue.push(vec![Job::Flush(done)]);
        waiting.recv().expect("the writer works");
    }

    fn checkpoint(&self) -> Result<(), SegmentError> {
        let (done, waiting) = mpsc::channel();
        let applied = self.log.last().map(|step| (step.index, term_at(step.index)));
        let state = format!("state at {applied:?}");
        self.segments.checkpoint(
            applied,
            Bytes::from_static(b"raft"),
            Box::new(move || Ok(state.into_bytes())),
            Box::new(move |result| done.send(result).expect("the test waits")),
        );
        waiting.recv().expect("a checkpoint is always answered")
    }

    /// Opens what a disk has and applies the rest of the log again, as a restart does.
    fn reopen(self, disk: FaultyDisk) -> Self {
        drop(self.segments);
        let (segments, checkpoint) = Segments::open(Arc::new(disk.clone()), options()).unwrap();
        let applied = checkpoint.as_ref().and_then(|checkpoint| checkpoint.applied);
        if let Some(checkpoint) = checkpoint {
            assert_eq!(checkpoint.state, format!("state at {applied:?}"));
            assert_eq!(checkpoint.raft, "raft");
        }
        assert_eq!(segments.visible(), applied.map(|(index, _)| index));
        let done = applied.map_or(0, |(index, _)| index.0 as usize + 1);
        self.log[done..].iter().for_each(|step| follow(&segments, step));
        if let Some(last) = self.log.last() {
            segments.publish(last.index);
        }
        Self { disk, segments, ..self }
    }

    /// Reads everything of a partition at `visible`, in pieces of about `bytes_max`.
    fn read_all(&self, of: TopicPartition, visible: LogIndex, bytes_max: usize) -> Vec<u8> {
        let mut all = Vec::new();
        let Bounds { log_start_offset: mut from, high_watermark: end } = self.segments.bounds(of, visible).unwrap();
        assert_eq!(from.0, self.start(of, visible));
        // The first batch may begin before the log's start.
        let before =
            self.expected[&of].iter().rfind(|(_, base, _)| *base <= from.0).map_or(0, |(_, base, _)| from.0 - base);
        if from < end {
            from.0 -= before;
        }
        while from < end {
            let at = from.0.max(self.start(of, visible));
            let read = self.segments.read(of, visible, Offset(at), bytes_max, true).unwrap();
            assert_eq!(read.bytes, read.pieces.iter().map(Bytes::len).sum::<usize>());
            assert!(read.records > 0, "at least one batch");
            from.0 += read.records as i64;
            read.pieces.iter().for_each(|piece| all.extend_from_slice(piece));
        }
        assert_eq!(from, end);
        all
    }

    fn expected_bytes(&self, of: TopicPartition, visible: LogIndex) -> Vec<u8> {
        let start = self.start(of, visible);
        let end =
            |base: i64, bytes: &Vec<u8>| base + i64::from(RecordBatch::stored(bytes.clone().into()).record_count());
        let log = self.expected[&of].iter().filter(|(_, base, bytes)| end(*base, bytes) > start);
        let seen = log.filter(|(index, _, _)| *index <= visible);
        seen.flat_map(|(_, _, bytes)| bytes.iter().copied()).collect()
    }

    fn assert_reads_as_expected(&self) {
        for of in self.expected.keys() {
            let visible = self.last_index();
            assert!(self.read_all(*of, visible, 700) == self.expected_bytes(*of, visible), "{of:?} differs");
        }
    }
}

fn follow(segments: &Segments, step: &Step) {
    segments.apply(step.index, term_at(step.index), &step.effects);
    let created = step.effects.created.iter().map(|(topic, _, _)| topic);
    for topic in created.chain(&step.effects.reconfigured) {
        segments.configure(*topic, &step.settings);
    }
}
