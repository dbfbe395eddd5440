//! The segment writer: one thread that carries out the queue in log order and is the only one to change files.
//!
//! Batches of one drain are written per partition, many with one call, without fsync: the log has them, and a restart
//! makes the segments again from the last manifest. So the bytes must be a function of the log alone; where a write
//! begins and how many batches it holds must not show in the files.
//!
//! No space is not a failure: the writer keeps what it has, tries again, and nothing is admitted meanwhile
//! (`Segments::is_full`). Any other error is final and stops the node (`Segments::failure`).

mod install;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::checkpoint::{self, is_no_space};
use super::files::Files;
use super::queue::{CheckpointJob, Job};
use super::removal::{Gone, Removals};
use super::segment::{IndexBytes, Kind, Roll, Segment, folder};
use super::tail::{Partition, TailBatch};
use super::transfer::Offer;
use super::{Checkpoint, Shared};
use crate::config::limits;
use crate::types::settings::TopicSettings;
use crate::types::{LogIndex, Offset, TopicId, TopicPartition};

/// How long to wait before a write that found no space is tried again, and between looks at free space.
const SPACE_INTERVAL: Duration = Duration::from_millis(500);
/// Bytes between two looks at free space.
const SPACE_INTERVAL_BYTES: usize = 16 << 20;
/// How soon to look again whether readers let go of what should be trimmed.
const TRIM_INTERVAL: Duration = Duration::from_millis(50);

/// Why the writer ends early.
#[derive(Debug)]
enum Stop {
    /// Closed while it waited for space; the log has what was not written.
    Closed,
    /// An error that must stop the node.
    Failed(String),
}

/// A written stretch of a tail that may be trimmed, oldest first.
struct Written {
    partition: Arc<Partition>,
    /// Offset behind its last batch.
    through: i64,
    /// Bytes not trimmed yet.
    bytes: usize,
}

/// What the writer knows, in log order: apply may be ahead of it.
pub(super) struct Writer {
    shared: Arc<Shared>,
    /// When segments of topics end.
    rolls: BTreeMap<TopicId, Roll>,
    partitions: BTreeMap<TopicPartition, Arc<Partition>>,
    /// The log's start, and the offset behind the last batch written.
    bounds: BTreeMap<TopicPartition, (i64, i64)>,
    /// Segments with bytes that were not synced.
    dirty: BTreeSet<(TopicPartition, i64)>,
    /// Folders with names that were not synced.
    dirty_folders: BTreeSet<TopicPartition>,
    /// Folders were renamed and the root directory not synced since.
    renamed: bool,
    /// Folders were made and the root directory not synced since.
    root_dirty: bool,
    removals: Removals,
    written: VecDeque<Written>,
    /// Bytes of `written`.
    resident_bytes: usize,
    space_looked_at: Option<Instant>,
    bytes_since_space: usize,
}

impl Writer {
    /// A writer that goes on from a checkpoint's content.
    pub(super) fn new(
        shared: Arc<Shared>,
        rolls: BTreeMap<TopicId, Roll>,
        partitions: BTreeMap<TopicPartition, Arc<Partition>>,
    ) -> Self {
        let bounds = partitions.iter().map(|(id, partition)| (*id, bounds_of(partition))).collect();
        Self {
            shared,
            rolls,
            partitions,
            bounds,
            dirty: BTreeSet::new(),
            dirty_folders: BTreeSet::new(),
            renamed: false,
            root_dirty: false,
            removals: Removals::default(),
            written: VecDeque::new(),
            resident_bytes: 0,
            space_looked_at: None,
            bytes_since_space: 0,
        }
    }

    fn files(&self) -> &Files {
        &self.shared.files
    }

    /// Until closed and drained, or failed.
    pub(super) fn run(mut self) {
        while let Some(mut jobs) = self.shared.queue.take(self.idle_max()) {
            let result = self.look_at_space().and_then(|()| self.carry_out(&mut jobs));
            match result {
                Ok(()) => {
                    self.trim();
                    if let Err(failure) = self.removals.carry_out(&self.shared) {
                        return self.shared.queue.end(Some(failure), jobs);
                    }
                }
                Err(Stop::Closed) => return self.shared.queue.end(None, jobs),
                Err(Stop::Failed(failure)) => return self.shared.queue.end(Some(failure), jobs),
            }
        }
        self.shared.queue.end(None, None);
    }

    fn idle_max(&self) -> Option<Duration> {
        if self.resident_bytes > self.shared.tail_bytes_max {
            Some(TRIM_INTERVAL)
        } else {
            // Also without work here: the log and other programs take space that nobody else looks at.
            Some(SPACE_INTERVAL)
        }
    }

    fn carry_out(&mut self, jobs: &mut VecDeque<Job>) -> Result<(), Stop> {
        let mut runs: BTreeMap<TopicPartition, Vec<TailBatch>> = BTreeMap::new();
        while let Some(job) = jobs.pop_front() {
            match job {
                Job::Batch(partition, batch) => runs.entry(partition.id).or_default().push(batch),
                Job::Create(partition) => self.create(partition),
                Job::Configure(topic, roll) => {
                    self.write(&mut runs)?;
                    self.rolls.insert(topic, roll);
                }
                Job::Trim(partition, index, start) => {
                    self.write(&mut runs)?;
                    self.drop_below(&partition, index, start);
                }
                Job::Delete(topic, index) => {
                    self.write(&mut runs)?;
                    self.delete(topic, index)?;
                }
                Job::Checkpoint(job) => {
                    if let Err(stop) = self.write(&mut runs) {
                        jobs.push_front(Job::Checkpoint(job));
                        return Err(stop);
                    }
                    self.checkpoint(job)?;
                }
                Job::Install(job) => {
                    if let Err(stop) = self.write(&mut runs) {
                        jobs.push_front(Job::Install(job));
                        return Err(stop);
                    }
                    self.install(job)?;
                }
                #[cfg(test)]
                Job::Flush(done) => {
                    self.write(&mut runs)?;
                    self.trim();
                    self.removals.carry_out(&self.shared).map_err(Stop::Failed)?;
                    let _ = done.send(());
                }
            }
        }
        self.write(&mut runs)
    }

    fn create(&mut self, partition: Arc<Partition>) {
        self.rolls.entry(partition.id.topic).or_insert(Roll::of(&TopicSettings::default()));
        self.bounds.insert(partition.id, (0, 0));
        self.partitions.insert(partition.id, partition);
    }

    fn write(&mut self, runs: &mut BTreeMap<TopicPartition, Vec<TailBatch>>) -> Result<(), Stop> {
        for (id, batches) in std::mem::take(runs) {
            let partition = self.partitions.get(&id).expect("batches come between create and delete").clone();
            self.write_run(&partition, &batches)?;
            let bytes: usize = batches.iter().map(TailBatch::memory_bytes).sum();
            let last = batches.last().expect("a run is not empty");
            self.bounds.get_mut(&id).expect("made with the partition").1 = last.next;
            self.written.push_back(Written { partition, through: last.next, bytes });
            self.resident_bytes += bytes;
            self.bytes_since_space += batches.iter().map(|batch| batch.records.size_bytes()).sum::<usize>();
            self.shared.queue.written(bytes);
        }
        Ok(())
    }

    fn write_run(&mut self, partition: &Arc<Partition>, batches: &[TailBatch]) -> Result<(), Stop> {
        let roll = self.rolls[&partition.id.topic];
        let mut rest = batches;
        while let Some(first) = rest.first() {
            let last = partition.files.lock().live().last().copied();
            let Some(segment) = last else {
                self.start_segment(partition, first.base)?;
                continue;
            };
            let mut next = segment;
            let mut out = IndexBytes::default();
            let mut count = 0;
            for batch in rest {
                let batch = batch.measure();
                if !next.has_room(batch, roll) {
                    break;
                }
                next.note(batch, &mut out);
                count += 1;
            }
            if count == 0 {
                next.seal(&mut out);
                self.append(partition, &segment, next, &[], &out)?;
                self.start_segment(partition, first.base)?;
                continue;
            }
            self.append(partition, &segment, next, &rest[..count], &out)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    fn start_segment(&mut self, partition: &Arc<Partition>, base: i64) -> Result<(), Stop> {
        if self.renamed {
            // A folder of this name may have been renamed away: after a crash both must be told apart.
            self.sync_root()?;
        }
        let path = self.files().path(partition, base, Kind::Log);
        self.retry_no_space(&path, || {
            self.files().disk().create_dir_all(&self.files().folder(partition))?;
            self.files().get(partition, base, Kind::Log, true).map(drop)
        })?;
        self.dirty_folders.insert(partition.id);
        let mut list = partition.files.lock();
        self.root_dirty |= !list.folder;
        list.folder = true;
        list.segments.push(Segment::new(base));
        Ok(())
    }

    /// Writes batches and index entries behind `segment`'s content, then publishes `next` to readers.
    fn append(
        &mut self,
        partition: &Arc<Partition>,
        segment: &Segment,
        next: Segment,
        batches: &[TailBatch],
        out: &IndexBytes,
    ) -> Result<(), Stop> {
        let prefixes: Vec<_> = batches.iter().map(TailBatch::prefix).collect();
        let mut slices: Vec<&[u8]> = Vec::with_capacity(2 * batches.len());
        for (batch, prefix) in batches.iter().zip(&prefixes) {
            slices.push(prefix);
            slices.push(&batch.records.bytes()[prefix.len()..]);
        }
        let parts: [(Kind, &[&[u8]], u64); 3] = [
            (Kind::Log, &slices, segment.len),
            (Kind::Index, &[&out.index], segment.index_len()),
            (Kind::TimeIndex, &[&out.time_index], segment.time_index_len()),
        ];
        for (kind, slices, position) in parts {
            if slices.iter().all(|slice| slice.is_empty()) {
                continue;
            }
            let path = self.files().path(partition, segment.base, kind);
            self.retry_no_space(&path, || {
                self.files().get(partition, segment.base, kind, true)?.write_all_at(slices, position)
            })?;
            if kind != Kind::Log && position == 0 {
                self.dirty_folders.insert(partition.id);
            }
        }
        self.dirty.insert((partition.id, segment.base));
        *partition.files.lock().segments.last_mut().expect("append follows start_segment") = next;
        Ok(())
    }

    /// Does it, again and again while there is no space. Writes are at positions, so doing half of it first is harmless.
    fn retry_no_space(&self, path: &std::path::Path, mut attempt: impl FnMut() -> io::Result<()>) -> Result<(), Stop> {
        loop {
            match attempt() {
                Ok(()) => {
                    self.shared.queue.set_no_space(false);
                    return Ok(());
                }
                Err(error) if is_no_space(&error) => {
                    self.shared.queue.set_no_space(true);
                    if self.shared.queue.pause(SPACE_INTERVAL) {
                        return Err(Stop::Closed);
                    }
                }
                Err(error) => return Err(Stop::Failed(format!("{}: {error}", path.display()))),
            }
        }
    }

    /// Segments wholly below the log's start are not written to any more, and no manifest names them. The last one too: the
    /// next batch begins another.
    fn drop_below(&mut self, partition: &Arc<Partition>, index: LogIndex, start: i64) {
        self.bounds.get_mut(&partition.id).expect("trims come between create and delete").0 = start;
        let mut list = partition.files.lock();
        while let Some(segment) = list.live().first().filter(|segment| segment.next <= start) {
            self.dirty.remove(&(partition.id, segment.base));
            self.removals.note(index, Gone::Segment(partition.clone(), segment.base));
            list.dropped += 1;
        }
    }

    /// Renames the topic's folders; the files themselves stay until the next manifest is durable.
    fn delete(&mut self, topic: TopicId, index: LogIndex) -> Result<(), Stop> {
        let ids: Vec<_> = partitions_of(&self.partitions, topic).collect();
        for id in ids {
            let partition = self.partitions.remove(&id).expect("just listed");
            self.bounds.remove(&id);
            self.dirty.retain(|(dirty, _)| *dirty != id);
            self.dirty_folders.remove(&id);
            let has_folder = partition.files.lock().folder;
            if has_folder {
                let of = |deleted| folder(self.files().dir(), &partition.topic, topic, id.partition, deleted);
                self.retry_no_space(&of(false), || self.files().disk().rename(&of(false), &of(true)))?;
                self.renamed = true;
            }
            partition.files.lock().deleted = true;
            self.removals.note(index, Gone::Partition(partition));
        }
        self.removals.forget_leftovers(topic);
        self.rolls.remove(&topic);
        Ok(())
    }

    fn sync_root(&mut self) -> Result<(), Stop> {
        let dir = self.files().dir();
        self.files().disk().sync_dir(dir).map_err(|error| Stop::Failed(format!("{}: {error}", dir.display())))?;
        self.renamed = false;
        self.root_dirty = false;
        Ok(())
    }

    fn checkpoint(&mut self, job: CheckpointJob) -> Result<(), Stop> {
        let CheckpointJob { applied, raft, state, done } = job;
        if let Err(stop) = self.sync() {
            if let Stop::Failed(failure) = &stop {
                self.shared.queue.set_failure(failure.clone());
            }
            done(Err(error_of(self.files().dir().to_owned(), &stop)));
            return Err(stop);
        }
        let manifest = checkpoint::Manifest { topics: self.manifest_topics() };
        let early = |source| checkpoint::WriteError { path: self.files().dir().to_owned(), source, sync: false };
        let result = state().map_err(early).and_then(|state| {
            let content = Checkpoint { applied, raft, state: state.into(), received: false };
            checkpoint::write(self.files(), &manifest, &content)
        });
        match result {
            Ok((file, manifest_bytes)) => {
                if let Some((index, term)) = applied {
                    self.shared.transfers.wrote(Offer { index, term, manifest_bytes }, file);
                }
                let applied = applied.map_or(LogIndex(0), |(index, _)| index);
                self.removals.manifest_is_durable();
                let result = self.removals.carry_out(&self.shared).map_err(Stop::Failed);
                let result = result.and_then(|()| self.drop_stale_incoming(applied));
                done(Ok(()));
                result
            }
            Err(checkpoint::WriteError { path, source, sync: false })
                if is_no_space(&source) || source.kind() == io::ErrorKind::TimedOut =>
            {
                // The old manifest stays in force, and the next checkpoint tries again.
                done(Err(super::SegmentError::Io { path, source }));
                Ok(())
            }
            Err(checkpoint::WriteError { path, source, .. }) => {
                let failure = format!("{}: {source}", path.display());
                self.shared.queue.set_failure(failure.clone());
                done(Err(super::SegmentError::Io { path, source }));
                Err(Stop::Failed(failure))
            }
        }
    }

    /// Makes durable what the manifest will name. An active segment's indexes are not synced: the manifest has their
    /// checksums, and a restart that finds them wrong makes them again.
    fn sync(&mut self) -> Result<(), Stop> {
        for (id, base) in std::mem::take(&mut self.dirty) {
            let partition = &self.partitions[&id];
            let active = partition.files.lock().segments.last().is_some_and(|last| last.base == base);
            let segment = partition.segment_of(base).expect("a dirty segment exists");
            let present = [
                (Kind::Log, true),
                (Kind::Index, !active && segment.index.entries > 0),
                (Kind::TimeIndex, !active && segment.time_index.entries > 0),
            ];
            for (kind, _) in present.iter().filter(|(_, present)| *present) {
                let synced = self.files().get(partition, base, *kind, false).and_then(|file| file.sync_data());
                synced.map_err(|error| {
                    Stop::Failed(format!("{}: {error}", self.files().path(partition, base, *kind).display()))
                })?;
            }
        }
        for id in std::mem::take(&mut self.dirty_folders) {
            let folder = self.files().folder(&self.partitions[&id]);
            let synced = self.files().disk().sync_dir(&folder);
            synced.map_err(|error| Stop::Failed(format!("{}: {error}", folder.display())))?;
        }
        if self.root_dirty || self.renamed { self.sync_root() } else { Ok(()) }
    }

    fn manifest_topics(&self) -> Vec<checkpoint::Topic> {
        let mut topics: Vec<checkpoint::Topic> = Vec::with_capacity(self.rolls.len());
        for (id, partition) in &self.partitions {
            if topics.last().is_none_or(|topic| topic.id != id.topic) {
                let (name, roll) = (partition.topic.to_string(), self.rolls[&id.topic]);
                topics.push(checkpoint::Topic { id: id.topic, name, roll, partitions: Vec::new() });
            }
            // Not the tail's start: apply may be ahead of what the manifest is about.
            let (log_start, end) = self.bounds[id];
            let entry = checkpoint::Partition {
                partition: id.partition,
                log_start: Offset(log_start),
                end: Offset(end),
                segments: partition.files.lock().live().to_vec(),
            };
            topics.last_mut().expect("just pushed").partitions.push(entry);
        }
        topics
    }

    /// Brings written tails under their bound, oldest first, as far as readers let go of them.
    fn trim(&mut self) {
        if self.resident_bytes <= self.shared.tail_bytes_max {
            return;
        }
        let Some(least) = self.shared.pins.least() else { return };
        while let Some(oldest) = self.written.front_mut() {
            let excess = self.resident_bytes.saturating_sub(self.shared.tail_bytes_max);
            if excess == 0 {
                return;
            }
            let trimmed = oldest.partition.tail.lock().trim(oldest.through, least, excess);
            self.resident_bytes -= trimmed;
            oldest.bytes -= trimmed;
            if oldest.bytes == 0 {
                self.written.pop_front();
            } else if trimmed == 0 {
                // A reader holds an older index: tried again soon.
                return;
            }
        }
    }

    fn look_at_space(&mut self) -> Result<(), Stop> {
        let due = self.space_looked_at.is_none_or(|at| at.elapsed() >= SPACE_INTERVAL);
        if !due && self.bytes_since_space < SPACE_INTERVAL_BYTES {
            return Ok(());
        }
        self.space_looked_at = Some(Instant::now());
        self.bytes_since_space = 0;
        let dir = self.files().dir();
        let free = self.files().disk().free_bytes(dir);
        let free = free.map_err(|error| Stop::Failed(format!("{}: {error}", dir.display())))?;
        self.shared.queue.set_low_space(free < limits::FREE_BYTES_MIN, free);
        Ok(())
    }
}

/// Where a partition that was just taken from a manifest starts, for every reader, and ends: its tail is empty.
fn bounds_of(partition: &Partition) -> (i64, i64) {
    let tail = partition.tail.lock();
    (tail.log_start(LogIndex(u64::MAX)), tail.begin())
}

/// Ids of a topic's partitions.
fn partitions_of(
    partitions: &BTreeMap<TopicPartition, Arc<Partition>>,
    topic: TopicId,
) -> impl Iterator<Item = TopicPartition> {
    let first = TopicPartition { topic, partition: 0 };
    let last = TopicPartition { topic, partition: i32::MAX };
    partitions.range(first..=last).map(|(id, _)| *id)
}

fn error_of(path: PathBuf, stop: &Stop) -> super::SegmentError {
    let why = match stop {
        Stop::Closed => "the segment writer has stopped",
        Stop::Failed(failure) => failure,
    };
    super::SegmentError::Io { path, source: io::Error::other(why.to_owned()) }
}
