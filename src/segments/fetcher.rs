//! What this node takes from another to catch up: the manifest first, then every file that differs, into `incoming/`.
//!
//! Replicas write the same bytes, so a segment is known by (topic id, partition, base offset) and what its [`Segment`]
//! counts: an equal one stays where it is. Of others, what is here already (this node's own beginning of the file, or what
//! came before a restart) is compared by checksum, piece by piece, and only the rest is pulled. Nothing of the present
//! checkpoint is touched before [`Segments::install`]: a crash leaves the old one and the pieces.
//!
//! This file does no network and no waiting: [`Incoming::wants`] says what to ask for, [`Incoming::got`] takes answers.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::checkpoint::{self, Manifest};
use super::index::read_exact;
use super::segment::{Derived, Kind, Segment, file_name};
use super::transfer::{FileRef, Name, Offer, Piece, Want};
use super::{Checkpoint, SegmentError, Segments};
use crate::config::limits::{FREE_BYTES_MIN, MANIFEST_BYTES_MAX, TRANSFER_PIECE_BYTES_MAX};
use crate::disk::{Disk, File};
use crate::types::TopicPartition;

/// Where pulled files wait, beside the partitions' folders.
pub(super) const DIR: &str = "incoming";
/// Name of an empty file in there, followed by the index that the files are for.
pub(super) const MARKER: &str = "for-";
/// The manifest as it will be installed, in there.
pub(super) const MANIFEST: &str = "manifest.install";

/// How far a transfer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferProgress {
    /// Bytes of all files that differ, 0 while the manifest is not known.
    pub total: u64,
    /// Of these, found or pulled.
    pub done: u64,
    /// Bytes pulled.
    pub pulled: u64,
}

/// A piece that was handed out to be asked for; to be given back with its answer, or without.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// What to ask for.
    pub want: Want,
    /// Which plan it belongs to.
    plan: usize,
}

/// What may be right already of a file.
enum Seed {
    Nothing,
    /// This node's own file, up to its length in the segment.
    Own(Arc<dyn File>, u64),
    /// The file in `incoming/` itself.
    Itself(u64),
}

impl Seed {
    fn len(&self) -> u64 {
        match self {
            Seed::Nothing => 0,
            Seed::Own(_, len) | Seed::Itself(len) => *len,
        }
    }
}

/// A file to be made in `incoming/`.
struct Plan {
    of: TopicPartition,
    base: i64,
    kind: Kind,
    path: PathBuf,
    len: u64,
    /// What an index must be.
    derived: Option<Derived>,
    seed: Seed,
    /// Asked for up to here.
    asked: u64,
    /// Bytes in place.
    done: u64,
    /// It was complete and wrong once.
    repeated: bool,
    file: Option<Arc<dyn File>>,
}

/// A file in `incoming/`, complete and synced.
#[derive(Debug)]
pub(super) struct StagedFile {
    pub of: TopicPartition,
    pub base: i64,
    pub kind: Kind,
    pub path: PathBuf,
}

/// A checkpoint whose files are all here.
#[derive(Debug)]
pub struct Staged {
    pub(super) manifest: Manifest,
    pub(super) files: Vec<StagedFile>,
    checkpoint: Checkpoint,
}

impl Staged {
    /// What it contains.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }
}

/// A checkpoint on its way.
pub struct Incoming {
    segments: Segments,
    offer: Offer,
    /// The manifest's bytes, filled as they come.
    manifest: Vec<u8>,
    manifest_asked: u64,
    manifest_done: u64,
    decoded: Option<(Manifest, Checkpoint)>,
    plans: Vec<Plan>,
    /// Plans in front of this one have been asked for.
    next: usize,
    again: Vec<Asked>,
    progress: TransferProgress,
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> SegmentError {
    let path = path.to_owned();
    move |source| SegmentError::Io { path: path.clone(), source }
}

impl Incoming {
    /// Begins, or goes on with what an earlier attempt left in `incoming/`.
    ///
    /// # Errors
    /// If the manifest is larger than any.
    pub fn begin(segments: Segments, offer: Offer) -> Result<Self, SegmentError> {
        let dir = segments.shared.files.dir().join(DIR);
        let bytes = usize::try_from(offer.manifest_bytes).ok().filter(|_| offer.manifest_bytes <= MANIFEST_BYTES_MAX);
        let Some(bytes) = bytes else {
            return Err(io_error(&dir)(io::Error::other(format!("a manifest of {} bytes", offer.manifest_bytes))));
        };
        Ok(Self {
            segments,
            offer,
            manifest: vec![0; bytes],
            manifest_asked: 0,
            manifest_done: 0,
            decoded: None,
            plans: Vec::new(),
            next: 0,
            again: Vec::new(),
            progress: TransferProgress::default(),
        })
    }

    /// What is being pulled.
    pub fn offer(&self) -> Offer {
        self.offer
    }

    /// How far it is.
    pub fn progress(&self) -> TransferProgress {
        self.progress
    }

    /// Whether every file is here: time for [`Incoming::finish`].
    pub fn is_complete(&self) -> bool {
        self.decoded.is_some() && self.plans.iter().all(|plan| plan.done == plan.len)
    }

    fn want(&self, name: Name, position: u64, end: u64, bytes: bool) -> Want {
        let len = (end - position).min(TRANSFER_PIECE_BYTES_MAX as u64) as u32;
        Want { checkpoint: self.offer.index, file: FileRef(name), position, len, bytes }
    }

    /// The next piece to ask for; None while nothing is left, or the rest depends on pieces that are under way.
    pub fn wants(&mut self) -> Option<Asked> {
        if let Some(again) = self.again.pop() {
            return Some(again);
        }
        if self.manifest_asked < self.offer.manifest_bytes {
            let want = self.want(Name::Manifest, self.manifest_asked, self.offer.manifest_bytes, true);
            self.manifest_asked += u64::from(want.len);
            return Some(Asked { want, plan: 0 });
        }
        while let Some(plan) = self.plans.get(self.next) {
            if plan.asked < plan.len {
                let seeded = plan.seed.len();
                // A piece is compared only if all of it may be here.
                let whole = plan.len.min(plan.asked + TRANSFER_PIECE_BYTES_MAX as u64) <= seeded;
                let split = if !whole && plan.asked < seeded { seeded } else { plan.len };
                let bytes = plan.asked >= seeded;
                let name = Name::Segment(plan.of, plan.base, plan.kind);
                let want = self.want(name, plan.asked, split, bytes);
                self.plans[self.next].asked += u64::from(want.len);
                return Some(Asked { want, plan: self.next });
            }
            self.next += 1;
        }
        None
    }

    /// The piece did not come: it is asked for again.
    pub fn lost(&mut self, asked: Asked) {
        self.again.push(asked);
    }

    /// Takes an answer.
    ///
    /// # Errors
    /// If it does not answer the question ([`Piece::answers`]), what it completes is not what was offered, or a file
    /// cannot be written. This is of no use any more then.
    pub fn got(&mut self, asked: &Asked, piece: &Piece) -> Result<(), SegmentError> {
        let want = &asked.want;
        let len = u64::from(want.len);
        if !piece.answers(want) {
            let (path, what) = (self.path(), "a piece came damaged".to_owned());
            return Err(SegmentError::Damaged { path, position: want.position, what });
        }
        if want.file.0 == Name::Manifest {
            let at = want.position as usize;
            self.manifest[at..at + piece.bytes.len()].copy_from_slice(&piece.bytes);
            self.manifest_done += len;
            self.progress.pulled += len;
            return if self.manifest_done == self.offer.manifest_bytes { self.plan() } else { Ok(()) };
        }
        let plan = &mut self.plans[asked.plan];
        let file = plan.open(&**self.segments.shared.files.disk())?;
        if want.bytes {
            file.write_all_at(&[&piece.bytes], want.position).map_err(io_error(&plan.path))?;
            self.progress.pulled += len;
        } else {
            let (from, own) = match &plan.seed {
                Seed::Own(own, _) => (own, true),
                Seed::Itself(_) | Seed::Nothing => (&file, false),
            };
            let mut here = vec![0; want.len as usize];
            let read = read_exact(from, &mut here, want.position);
            if read.is_err() || crc32c::crc32c(&here) != piece.crc {
                self.again.push(Asked { want: Want { bytes: true, ..*want }, ..*asked });
                return Ok(());
            }
            if own {
                file.write_all_at(&[&here], want.position).map_err(io_error(&plan.path))?;
            }
        }
        plan.done += len;
        self.progress.done += len;
        let wrong = plan.done == plan.len && !plan.complete(&file)?;
        if wrong {
            // An index that is not what the manifest says: once more from the start.
            if plan.repeated {
                let what = "the other node's index is not what its manifest says".to_owned();
                return Err(SegmentError::Damaged { path: plan.path.clone(), position: 0, what });
            }
            self.progress.done -= plan.len;
            (plan.asked, plan.done, plan.seed, plan.repeated) = (0, 0, Seed::Nothing, true);
            self.next = self.next.min(asked.plan);
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.segments.shared.files.dir().join(DIR)
    }

    /// The manifest is here: finds out which files must come, and removes from `incoming/` what is not among them.
    fn plan(&mut self) -> Result<(), SegmentError> {
        let dir = self.path();
        let bytes = Bytes::from(std::mem::take(&mut self.manifest));
        let (manifest, checkpoint) = checkpoint::decode(&dir.join(checkpoint::NAME), bytes)?;
        if checkpoint.applied != Some((self.offer.index, self.offer.term)) {
            let what = "it is not the checkpoint that was offered".to_owned();
            return Err(SegmentError::Damaged { path: dir.join(checkpoint::NAME), position: 0, what });
        }
        let disk = self.segments.shared.files.disk().clone();
        disk.create_dir_all(&dir).map_err(io_error(&dir))?;
        // First: a checkpoint of this node takes what has no marker for left over.
        let marker = dir.join(format!("{MARKER}{}", self.offer.index.0));
        disk.open(&marker, true).map_err(io_error(&marker))?;
        let mut plans = Vec::new();
        for topic in &manifest.topics {
            for entry in &topic.partitions {
                let of = TopicPartition { topic: topic.id, partition: entry.partition };
                let own = self.own(of);
                let folder = dir.join(format!("{}-{}", topic.id, entry.partition));
                for segment in entry.segments.iter().filter(|segment| own.get(&segment.base) != Some(segment)) {
                    self.plan_segment(of, &folder, segment, own.get(&segment.base), &mut plans)?;
                }
            }
        }
        clean(&*disk, &dir, &plans, &marker)?;
        self.progress.total = plans.iter().map(|plan| plan.len).sum();
        let present: u64 = plans.iter().map(|plan| if let Seed::Itself(len) = plan.seed { len } else { 0 }).sum();
        let free = disk.free_bytes(&dir).map_err(io_error(&dir))?;
        let needed = (self.progress.total - present.min(self.progress.total)).saturating_add(FREE_BYTES_MIN);
        if free < needed {
            let source = io::Error::new(io::ErrorKind::StorageFull, format!("{needed} bytes are needed, {free} free"));
            return Err(SegmentError::Io { path: dir, source });
        }
        self.plans = plans;
        self.decoded = Some((manifest, checkpoint));
        Ok(())
    }

    fn own(&self, of: TopicPartition) -> BTreeMap<i64, Segment> {
        let partition = self.segments.shared.table.read().get(&of).cloned();
        let segments = partition.map(|partition| partition.files.lock().segments.clone()).unwrap_or_default();
        segments.into_iter().map(|segment| (segment.base, segment)).collect()
    }

    fn plan_segment(
        &self,
        of: TopicPartition,
        folder: &Path,
        segment: &Segment,
        own: Option<&Segment>,
        plans: &mut Vec<Plan>,
    ) -> Result<(), SegmentError> {
        let files = &self.segments.shared.files;
        files.disk().create_dir_all(folder).map_err(io_error(folder))?;
        let kinds = [
            (Kind::Log, segment.len, None),
            (Kind::Index, segment.index_len(), Some(segment.index)),
            (Kind::TimeIndex, segment.time_index_len(), Some(segment.time_index)),
        ];
        for (kind, len, derived) in kinds.into_iter().filter(|(kind, len, _)| *kind == Kind::Log || *len > 0) {
            let path = folder.join(file_name(segment.base, kind));
            let mut seed = Seed::Nothing;
            if kind == Kind::Log {
                let present = match files.disk().open(&path, false) {
                    Ok(file) => file.len().map_err(io_error(&path))?.min(len),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
                    Err(error) => return Err(io_error(&path)(error)),
                };
                let partition = self.segments.shared.table.read().get(&of).cloned();
                let own = own.zip(partition).filter(|(own, _)| own.len.min(len) > present);
                seed = match own {
                    Some((own, partition)) => match files.get(&partition, segment.base, kind, false) {
                        Ok(file) => Seed::Own(file, own.len.min(len)),
                        // It may be deleted at this moment: then it comes from the other node.
                        Err(_) => Seed::Itself(present),
                    },
                    None => Seed::Itself(present),
                };
            }
            let base = segment.base;
            plans.push(Plan {
                of,
                base,
                kind,
                path,
                len,
                derived,
                seed,
                asked: 0,
                done: 0,
                repeated: false,
                file: None,
            });
        }
        Ok(())
    }

    /// Makes everything durable, with the manifest to install.
    ///
    /// # Errors
    /// If something is missing, or a file cannot be written or synced.
    pub fn finish(mut self) -> Result<Staged, SegmentError> {
        let dir = self.path();
        let Some((manifest, checkpoint)) = self.decoded.take() else {
            return Err(io_error(&dir)(io::Error::other("the manifest is not here yet")));
        };
        let disk = self.segments.shared.files.disk().clone();
        let mut folders = BTreeSet::new();
        for plan in &mut self.plans {
            if plan.done != plan.len {
                return Err(io_error(&plan.path)(io::Error::other("pieces are missing")));
            }
            if plan.len == 0 {
                let file = plan.open(&*disk)?;
                plan.complete(&file)?;
            }
            folders.extend(plan.path.parent().map(Path::to_owned));
        }
        for folder in folders {
            disk.sync_dir(&folder).map_err(io_error(&folder))?;
        }
        let path = dir.join(MANIFEST);
        let file = disk.open(&path, true).map_err(io_error(&path))?;
        let written = checkpoint::write_to(&*file, &manifest, &checkpoint, true).and_then(|_| file.sync_data());
        written.map_err(io_error(&path))?;
        disk.sync_dir(&dir).map_err(io_error(&dir))?;
        let root = self.segments.shared.files.dir();
        disk.sync_dir(root).map_err(io_error(root))?;
        let staged = |plan: Plan| StagedFile { of: plan.of, base: plan.base, kind: plan.kind, path: plan.path };
        let files = self.plans.into_iter().map(staged).collect();
        Ok(Staged { manifest, files, checkpoint })
    }
}

impl Plan {
    fn open(&mut self, disk: &dyn Disk) -> Result<Arc<dyn File>, SegmentError> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let file = disk.open(&self.path, true).map_err(io_error(&self.path))?;
        self.file = Some(file.clone());
        Ok(file)
    }

    /// All pieces are in place: cuts, checks, syncs and closes the file. False if its content is not what was promised.
    fn complete(&mut self, file: &Arc<dyn File>) -> Result<bool, SegmentError> {
        let error = io_error(&self.path);
        if file.len().map_err(&error)? > self.len {
            file.set_len(self.len).map_err(&error)?;
        }
        if let Some(derived) = self.derived {
            let mut content = vec![0; usize::try_from(self.len).expect("an index is smaller than its segment")];
            read_exact(file, &mut content, 0).map_err(&error)?;
            if crc32c::crc32c(&content) != derived.crc {
                return Ok(false);
            }
        }
        file.sync_data().map_err(&error)?;
        self.file = None;
        Ok(true)
    }
}

/// Removes everything in `incoming/` that no plan wants.
fn clean(disk: &dyn Disk, dir: &Path, plans: &[Plan], marker: &Path) -> Result<(), SegmentError> {
    let wanted: BTreeSet<&Path> = plans.iter().map(|plan| plan.path.as_path()).collect();
    let folders: BTreeSet<&Path> = wanted.iter().filter_map(|path| path.parent()).collect();
    for name in disk.list(dir).map_err(io_error(dir))? {
        let path = dir.join(name);
        if path == marker {
            continue;
        }
        if !folders.contains(path.as_path()) {
            let removed = disk.remove_dir_all(&path).or_else(|_| disk.remove_file(&path));
            removed.map_err(io_error(&path))?;
            continue;
        }
        for file in disk.list(&path).map_err(io_error(&path))?.into_iter().map(|name| path.join(name)) {
            if !wanted.contains(file.as_path()) {
                disk.remove_file(&file).map_err(io_error(&file))?;
            }
        }
    }
    Ok(())
}
