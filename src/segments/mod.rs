//! Partition logs: recent batches in memory (the tail), older ones in Kafka's own segment files, written behind
//! apply by one thread without fsync. Not a source of truth: after a crash they are cut to the checkpoint and made again from the log.
//!
//! Visibility: one atomic index. `log::apply` pushes an entry's batches to all tails and then publishes the index;
//! a reader loads it once per request and sees everything at it (storage.md, «Apply»).

mod checkpoint;
mod fetcher;
mod files;
mod index;
mod pins;
mod queue;
mod reading;
mod records;
mod recovery;
mod removal;
mod segment;
mod tail;
#[cfg(test)]
mod tests;
mod time_index;
mod times;
mod transfer;
mod writer;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use crate::disk::Disk;
use crate::state::command::Effects;
use crate::types::settings::TopicSettings;
use crate::types::{LogIndex, Offset, PartitionFacts, Term, TopicId, TopicPartition};

pub use fetcher::{Asked, Incoming, Staged, TransferProgress};
use files::Files;
use pins::Pins;
use queue::{CheckpointJob, InstallJob, Job, Queue};
use reading::Reading;
use segment::Roll;
use tail::{Partition, TailBatch, TailRead};
use transfer::Transfers;
pub use transfer::{FileRef, Offer, Piece, TransferError, Want};

/// Where and how.
#[derive(Clone, Debug)]
pub struct SegmentOptions {
    /// Directory with one folder per partition, `<topic>-<partition>`, and the manifest beside them.
    pub dir: PathBuf,
    /// Bytes of tails that wait for the segment writer, at which [`Segments::is_full`] turns true.
    pub unwritten_bytes_max: usize,
    /// Bytes of written batches that stay in memory for tail reads, over all partitions.
    pub tail_bytes_max: usize,
    /// Open segment files at a time.
    pub open_files_max: usize,
}

/// A checkpoint: what a restart begins from.
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    /// Last entry that state and segments contain.
    pub applied: Option<(LogIndex, Term)>,
    /// The log id of `applied` and the membership, as `log` encodes them.
    pub raft: Bytes,
    /// `Machine::to_bytes`.
    pub state: Bytes,
    /// It came from another node: this node's own log may end before it.
    pub received: bool,
}

/// Why segments cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// A file contradicts the manifest.
    #[error("{path} is damaged at byte {position}: {what}; refusing to start")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Where.
        position: u64,
        /// What is wrong.
        what: String,
    },
    /// No such offset (any more, or yet).
    #[error("offset out of range")]
    OffsetOutOfRange,
    /// No such partition.
    #[error("unknown partition")]
    UnknownPartition,
}

/// What a partition has to offer at a visible index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// First offset that can be read.
    pub log_start_offset: Offset,
    /// Offset behind the last visible record; equal to the last stable offset.
    pub high_watermark: Offset,
}

/// A stretch of whole batches, ready to send: base offsets and leader epochs are patched.
#[derive(Clone, Debug, Default)]
pub struct ReadBatches {
    /// Pieces in order: patched prefixes and slices of what is stored.
    pub pieces: Vec<Bytes>,
    /// Bytes of all pieces.
    pub bytes: usize,
    /// Records in them.
    pub records: u64,
}

impl ReadBatches {
    fn extend(&mut self, more: ReadBatches) {
        self.pieces.extend(more.pieces);
        self.bytes += more.bytes;
        self.records += more.records;
    }
}

/// The partitions of an installed checkpoint, to be shown to readers by [`Segments::adopt`].
#[derive(Debug)]
pub struct Installed {
    table: HashMap<TopicPartition, Arc<Partition>>,
    index: LogIndex,
}

/// Told how an installation ended.
pub type OnInstalled = Box<dyn FnOnce(Result<Installed, SegmentError>) + Send>;

/// What the handles, the readers and the writer thread share.
struct Shared {
    files: Files,
    /// Every partition by id, deleted ones until the next checkpoint. Apply adds, the writer removes.
    table: RwLock<HashMap<TopicPartition, Arc<Partition>>>,
    pins: Pins,
    queue: Queue,
    transfers: Transfers,
    tail_bytes_max: usize,
}

/// Ends the writer thread when the last handle is dropped without [`Segments::close`].
struct Closer {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.shared.queue.close();
    }
}

/// All partition logs of this node.
#[derive(Clone)]
pub struct Segments {
    shared: Arc<Shared>,
    closer: Arc<Closer>,
}

impl std::fmt::Debug for Segments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segments").field("dir", &self.shared.files.dir()).finish_non_exhaustive()
    }
}

/// A visible index, held: while it lives, every partition can be read exactly as of this index.
#[derive(Debug)]
pub struct Pin {
    segments: Segments,
    visible: Option<LogIndex>,
}

impl Pin {
    /// The index.
    pub fn visible(&self) -> Option<LogIndex> {
        self.visible
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.segments.shared.pins.unpin(self.visible);
    }
}

impl Segments {
    /// Loads the newest checkpoint, cuts every segment to it, removes what it does not name, starts the writer thread.
    ///
    /// # Errors
    /// If files cannot be read or contradict the manifest.
    pub fn open(disk: Arc<dyn Disk>, options: SegmentOptions) -> Result<(Self, Option<Checkpoint>), SegmentError> {
        let SegmentOptions { dir, unwritten_bytes_max, tail_bytes_max, open_files_max } = options;
        let recovered = recovery::recover(&*disk, &dir)?;
        let applied = recovered.checkpoint.as_ref().and_then(|checkpoint| checkpoint.applied);
        let shared = Arc::new(Shared {
            files: Files::new(disk, dir.clone(), open_files_max),
            table: RwLock::new(recovered.partitions.iter().map(|(id, of)| (*id, of.clone())).collect()),
            pins: Pins::new(applied.map(|(index, _)| index)),
            queue: Queue::new(dir.clone(), unwritten_bytes_max),
            transfers: Transfers::default(),
            tail_bytes_max,
        });
        if let Some((offer, manifest)) = recovered.manifest {
            shared.transfers.wrote(offer, manifest);
        }
        let writer = writer::Writer::new(shared.clone(), recovered.rolls, recovered.partitions);
        let thread = std::thread::Builder::new().name("segments".to_owned()).spawn(move || writer.run());
        let thread = thread.map_err(|source| SegmentError::Io { path: dir, source })?;
        let closer = Arc::new(Closer { shared: shared.clone(), writer: Mutex::new(Some(thread)) });
        Ok((Self { shared, closer }, recovered.checkpoint))
    }

    /// Follows an applied entry: creates and deletes partitions, pushes batches to the tails. No I/O; not yet visible.
    pub fn apply(&self, index: LogIndex, term: Term, effects: &Effects) {
        let mut jobs = Vec::with_capacity(effects.appended.len());
        for (topic, name, partitions) in &effects.created {
            self.create(index, *topic, name, *partitions, &mut jobs);
        }
        for appended in &effects.appended {
            let partition = self.shared.table.read().get(&appended.to).cloned();
            let partition = partition.expect("state appends only to partitions that it created");
            let batch = TailBatch {
                index,
                base: appended.base_offset.0,
                next: appended.next_offset.0,
                epoch: term.leader_epoch(),
                entry_ms: effects.now_ms,
                records: appended.records.clone(),
            };
            partition.tail.lock().push(batch.clone());
            jobs.push(Job::Batch(partition, batch));
        }
        for (of, start) in &effects.trimmed {
            let partition = self.shared.table.read().get(of).cloned();
            let partition = partition.expect("state trims only partitions that it created");
            partition.tail.lock().start_at(index, start.0, self.shared.pins.least());
            jobs.push(Job::Trim(partition, index, start.0));
        }
        for topic in &effects.deleted {
            let table = self.shared.table.read();
            let numbers = (0..).map_while(|partition| table.get(&TopicPartition { topic: *topic, partition }));
            numbers.for_each(|partition| partition.delete(index));
            jobs.push(Job::Delete(*topic, index));
        }
        if !jobs.is_empty() {
            self.shared.queue.push(jobs);
        }
    }

    fn create(&self, index: LogIndex, topic: TopicId, name: &str, partitions: i32, jobs: &mut Vec<Job>) {
        let name: Arc<str> = name.into();
        let mut table = self.shared.table.write();
        for partition in 0..partitions {
            let id = TopicPartition { topic, partition };
            table.entry(id).or_insert_with(|| {
                let partition = Arc::new(Partition::new(id, name.clone(), index, (0, 0), Vec::new()));
                jobs.push(Job::Create(partition.clone()));
                partition
            });
        }
    }

    /// Tells a topic's settings, in the order of the calls to [`Segments::apply`]: after the entry that created the topic
    /// or changed them. Segments roll by them, so every replica must call this at the same place in the log.
    pub fn configure(&self, topic: TopicId, settings: &TopicSettings) {
        self.shared.queue.push(vec![Job::Configure(topic, Roll::of(settings))]);
    }

    /// Makes everything up to `index` visible at once. Called inside the apply lock, after all pushes.
    pub fn publish(&self, index: LogIndex) {
        self.shared.pins.publish(index);
    }

    /// The index that a request should read at; load it once per request.
    ///
    /// Enough for one partition. To read several at exactly one index, hold a [`Segments::pin`]: without it a tail may be
    /// trimmed past the index meanwhile, and what was in memory then is all seen.
    pub fn visible(&self) -> Option<LogIndex> {
        self.shared.pins.visible()
    }

    /// The visible index, held for as long as the pin lives. Let go of it before waiting for anything.
    pub fn pin(&self) -> Pin {
        Pin { segments: self.clone(), visible: self.shared.pins.pin() }
    }

    fn find(&self, partition: TopicPartition, visible: LogIndex) -> Result<Arc<Partition>, SegmentError> {
        let found = self.shared.table.read().get(&partition).cloned();
        found.filter(|partition| partition.exists_at(visible)).ok_or(SegmentError::UnknownPartition)
    }

    /// Bounds of a partition at `visible`.
    ///
    /// # Errors
    /// If there is no such partition.
    pub fn bounds(&self, partition: TopicPartition, visible: LogIndex) -> Result<Bounds, SegmentError> {
        Ok(self.find(partition, visible)?.tail.lock().bounds(visible))
    }

    /// Whole batches from the one that contains `from` on, up to about `bytes_max`; the first is returned whatever its
    /// size if `at_least_one`. Empty at the high watermark. May read files: call it where blocking for the page cache is fine.
    ///
    /// # Errors
    /// OffsetOutOfRange before the start or beyond the high watermark.
    pub fn read(
        &self,
        partition: TopicPartition,
        visible: LogIndex,
        from: Offset,
        bytes_max: usize,
        at_least_one: bool,
    ) -> Result<ReadBatches, SegmentError> {
        let partition = self.find(partition, visible)?;
        let mut read = ReadBatches::default();
        let mut from = from.0;
        loop {
            let room = bytes_max.saturating_sub(read.bytes);
            let at_least_one = at_least_one && read.bytes == 0;
            let looked = partition.tail.lock().read(visible, from, room, at_least_one);
            match looked {
                TailRead::OutOfRange => return Err(SegmentError::OffsetOutOfRange),
                TailRead::Found(more) => {
                    read.extend(more);
                    return Ok(read);
                }
                TailRead::InFiles(until) => {
                    let segment = partition.segment_of(from).ok_or(SegmentError::OffsetOutOfRange)?;
                    let reading = Reading::open(&self.shared.files, &partition, segment)?;
                    let (more, next) = reading.read(from, until, room, at_least_one)?;
                    read.extend(more);
                    // The limit was reached within the segment; else go on in the next one or in the tail.
                    if next < until && partition.segment_of(next).is_some_and(|of| of.base == segment.base) {
                        return Ok(read);
                    }
                    from = next;
                }
            }
        }
    }

    /// As [`Segments::read`], but None where a file would have to be read.
    ///
    /// # Errors
    /// OffsetOutOfRange before the start or beyond the high watermark.
    pub fn read_memory(
        &self,
        partition: TopicPartition,
        visible: LogIndex,
        from: Offset,
        bytes_max: usize,
        at_least_one: bool,
    ) -> Result<Option<ReadBatches>, SegmentError> {
        let partition = self.find(partition, visible)?;
        let looked = partition.tail.lock().read(visible, from.0, bytes_max, at_least_one);
        match looked {
            TailRead::OutOfRange => Err(SegmentError::OffsetOutOfRange),
            TailRead::Found(read) => Ok(Some(read)),
            TailRead::InFiles(_) => Ok(None),
        }
    }

    /// Asks the writer thread for a checkpoint of everything applied so far, in the order of the calls to
    /// [`Segments::apply`]: drain, fdatasync dirty segments, write the manifest, fsync, rename, fsync the directory.
    /// `state` is called on the writer thread (encoding the machine's cut takes time); its error ends this checkpoint alone.
    /// `done` gets the result.
    pub fn checkpoint(
        &self,
        applied: Option<(LogIndex, Term)>,
        raft: Bytes,
        state: Box<dyn FnOnce() -> std::io::Result<Vec<u8>> + Send>,
        done: Box<dyn FnOnce(Result<(), SegmentError>) + Send>,
    ) {
        self.shared.queue.push(vec![Job::Checkpoint(CheckpointJob { applied, raft, state, done })]);
    }

    /// Puts a received checkpoint in the place of this node's own, behind everything applied so far: durable when `done` is
    /// told. Nothing may be applied before [`Segments::adopt`] was called with the result.
    pub fn install(&self, staged: Arc<Staged>, done: OnInstalled) {
        self.shared.queue.push(vec![Job::Install(InstallJob { staged, done })]);
    }

    /// Shows readers what was installed, all of it at once. Called inside the apply lock.
    pub fn adopt(&self, installed: Installed) {
        let Installed { table, index } = installed;
        *self.shared.table.write() = table;
        self.publish(index);
    }

    /// Whether the writer is so far behind that nothing more should be admitted.
    pub fn is_full(&self) -> bool {
        self.shared.queue.is_full()
    }

    /// Whether the writer alone is behind: what a replay waits for, since it must end on a nearly full disk too.
    pub fn is_behind(&self) -> bool {
        self.shared.queue.is_behind()
    }

    /// Whether the disk has no room for more: waiting may take for ever, so writes are refused meanwhile.
    pub fn is_out_of_space(&self) -> bool {
        self.shared.queue.is_out_of_space()
    }

    /// Waits until [`Segments::is_full`] is false, or the writer has failed or was closed.
    pub async fn until_room(&self) {
        self.shared.queue.until_room().await;
    }

    /// The writer's first error: the node must stop (no space is not an error but `is_full`).
    pub fn failure(&self) -> Option<String> {
        self.shared.queue.failure()
    }

    /// Bytes on disk per topic-partition, for metrics and DescribeLogDirs.
    pub fn sizes(&self) -> Vec<(TopicPartition, u64)> {
        let Some(visible) = self.visible() else { return Vec::new() };
        let partitions: Vec<_> = self.shared.table.read().values().cloned().collect();
        let existing = partitions.iter().filter(|partition| partition.exists_at(visible));
        let mut sizes: Vec<_> = existing.map(|partition| (partition.id, partition.size_bytes())).collect();
        sizes.sort_unstable();
        sizes
    }

    /// Where the partition logs are.
    pub fn dir(&self) -> &std::path::Path {
        self.shared.files.dir()
    }

    /// Free space there.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn free_bytes(&self) -> std::io::Result<u64> {
        self.shared.files.disk().free_bytes(self.dir())
    }

    /// The segments of partitions, for retention; unknown ones are left out.
    pub fn facts(&self, of: &[TopicPartition]) -> Vec<PartitionFacts> {
        let partitions: Vec<_> = {
            let table = self.shared.table.read();
            of.iter().filter_map(|of| table.get(of).cloned()).collect()
        };
        let facts = |of: &Arc<Partition>| {
            let segments = of.files.lock().live().iter().map(|segment| segment.facts()).collect();
            PartitionFacts { of: of.id, segments }
        };
        partitions.iter().map(facts).collect()
    }

    /// Drains and stops the writer thread.
    pub fn close(&self) {
        self.shared.queue.close();
        if let Some(writer) = self.closer.writer.lock().take() {
            // A panic of the writer was reported by its thread already; there is nothing left to stop.
            let _ = writer.join();
        }
    }
}
