//! Start-up: makes the files what the newest manifest says, and nothing else.
//!
//! Longer files are cut (the rest comes again from the log), files and folders that it does not name are removed, a
//! folder renamed by a deletion that is not part of the checkpoint gets its name back. A log shorter than the
//! manifest says is damage and refused. Indexes are derived: a wrong or missing one is made again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checkpoint::{self, Manifest};
use super::reading::Scan;
use super::segment::{IndexBytes, Kind, Measure, Roll, Segment, file_name, folder};
use super::tail::Partition;
use super::transfer::Offer;
use super::{Checkpoint, SegmentError};
use crate::disk::{Disk, File};
use crate::types::{LogIndex, TopicId, TopicPartition};

/// What start-up found.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    pub checkpoint: Option<Checkpoint>,
    /// The manifest, as it is offered to other nodes.
    pub manifest: Option<(Offer, Arc<dyn File>)>,
    pub partitions: BTreeMap<TopicPartition, Arc<Partition>>,
    pub rolls: BTreeMap<TopicId, Roll>,
}

/// Loads the newest manifest and makes the files follow it.
pub(super) fn recover(disk: &dyn Disk, dir: &Path) -> Result<Recovered, SegmentError> {
    disk.create_dir_all(dir).map_err(io_error(dir))?;
    let Some(checkpoint::Loaded { manifest, checkpoint, file, len }) = checkpoint::load(disk, dir)? else {
        clean_root(disk, dir, &Manifest::default())?;
        return Ok(Recovered::default());
    };
    clean_root(disk, dir, &manifest)?;
    let offer = checkpoint.applied.map(|(index, term)| (Offer { index, term, manifest_bytes: len }, file));
    if checkpoint.received {
        // It was installed; what it was made of is of no use any more.
        remove_incoming(disk, dir)?;
    }
    let mut recovered = Recovered { checkpoint: Some(checkpoint), manifest: offer, ..Recovered::default() };
    for topic in manifest.topics {
        recovered.rolls.insert(topic.id, topic.roll);
        let name: Arc<str> = topic.name.into();
        for entry in topic.partitions {
            let folder = folder(dir, &name, topic.id, entry.partition, false);
            if !entry.segments.is_empty() {
                recover_segments(disk, &folder, &entry.segments)?;
            }
            let id = TopicPartition { topic: topic.id, partition: entry.partition };
            let bounds = (entry.log_start.0, entry.end.0);
            let partition = Partition::new(id, name.clone(), LogIndex(0), bounds, entry.segments);
            recovered.partitions.insert(id, Arc::new(partition));
        }
    }
    Ok(recovered)
}

fn remove_incoming(disk: &dyn Disk, dir: &Path) -> Result<(), SegmentError> {
    let incoming = dir.join(super::fetcher::DIR);
    match disk.remove_dir_all(&incoming) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(&incoming)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> SegmentError {
    let path = path.to_owned();
    move |source| SegmentError::Io { path: path.clone(), source }
}

/// Whether a name in the root directory is one that this room gives: `<topic>-<number>` or `<id>-<number>.delete`.
fn is_ours(name: &str) -> bool {
    let name = name.strip_suffix(".delete").unwrap_or(name);
    name.rsplit_once('-').is_some_and(|(topic, number)| {
        !topic.is_empty() && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Gives folders back the names that the manifest knows them by, and removes the others.
fn clean_root(disk: &dyn Disk, dir: &Path, manifest: &Manifest) -> Result<(), SegmentError> {
    let mut names: BTreeSet<PathBuf> = disk.list(dir).map_err(io_error(dir))?.iter().map(|p| full(dir, p)).collect();
    let mut known = BTreeSet::new();
    for topic in &manifest.topics {
        for entry in topic.partitions.iter().filter(|entry| !entry.segments.is_empty()) {
            let of = |deleted| folder(dir, &topic.name, topic.id, entry.partition, deleted);
            if names.remove(&of(true)) {
                if names.remove(&of(false)) {
                    // Of a topic that was created under the name later: the log makes it again.
                    disk.remove_dir_all(&of(false)).map_err(io_error(&of(false)))?;
                }
                disk.rename(&of(true), &of(false)).map_err(io_error(&of(true)))?;
            }
            known.insert(of(false));
        }
    }
    for path in names {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name == checkpoint::TEMPORARY_NAME {
            disk.remove_file(&path).map_err(io_error(&path))?;
        } else if is_ours(&name) && !known.contains(&path) {
            disk.remove_dir_all(&path).map_err(io_error(&path))?;
        }
    }
    Ok(())
}

/// The path of what a listing of `dir` named.
fn full(dir: &Path, listed: &Path) -> PathBuf {
    if listed.is_absolute() { listed.to_owned() } else { dir.join(listed) }
}

fn recover_segments(disk: &dyn Disk, folder: &Path, segments: &[Segment]) -> Result<(), SegmentError> {
    let listed = match disk.list(folder) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(io_error(folder)(error)),
    };
    let known: BTreeSet<PathBuf> = segments.iter().flat_map(|segment| kept(folder, segment)).collect();
    let present: BTreeSet<PathBuf> = listed.iter().map(|path| full(folder, path)).collect();
    for path in present.difference(&known) {
        disk.remove_file(path).map_err(io_error(path))?;
    }
    for (number, segment) in segments.iter().enumerate() {
        let path = folder.join(file_name(segment.base, Kind::Log));
        let damaged = |position, what: &str| SegmentError::Damaged { path: path.clone(), position, what: what.into() };
        if !present.contains(&path) {
            return Err(damaged(0, "the manifest names this segment, but there is no such file"));
        }
        let log = disk.open(&path, false).map_err(io_error(&path))?;
        let len = log.len().map_err(io_error(&path))?;
        if len < segment.len {
            return Err(damaged(len, &format!("the manifest says it has {} bytes", segment.len)));
        }
        if len > segment.len {
            log.set_len(segment.len).map_err(io_error(&path))?;
        }
        let active = number + 1 == segments.len();
        if !indexes_match(disk, folder, segment, active)? {
            rebuild(disk, folder, segment, active, &log)?;
        }
    }
    Ok(())
}

/// The files of a segment: an index without entries has none.
fn kept(folder: &Path, segment: &Segment) -> impl Iterator<Item = PathBuf> {
    let kinds = [
        (Kind::Log, true),
        (Kind::Index, segment.index.entries > 0),
        (Kind::TimeIndex, segment.time_index.entries > 0),
    ];
    kinds.into_iter().filter(|(_, kept)| *kept).map(move |(kind, _)| folder.join(file_name(segment.base, kind)))
}

/// Cuts the indexes to their lengths and tells whether they are whole. Those of sealed segments were synced, so their
/// length tells; the active segment's were not, so their content is checked.
fn indexes_match(disk: &dyn Disk, folder: &Path, segment: &Segment, active: bool) -> Result<bool, SegmentError> {
    let indexes = [
        (Kind::Index, segment.index, segment.index_len()),
        (Kind::TimeIndex, segment.time_index, segment.time_index_len()),
    ];
    for (kind, derived, wanted) in indexes.into_iter().filter(|(_, derived, _)| derived.entries > 0) {
        let path = folder.join(file_name(segment.base, kind));
        let file = match disk.open(&path, false) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(io_error(&path)(error)),
        };
        let len = file.len().map_err(io_error(&path))?;
        if len < wanted {
            return Ok(false);
        }
        if len > wanted {
            file.set_len(wanted).map_err(io_error(&path))?;
        }
        if active {
            let mut content = vec![0; usize::try_from(wanted).expect("an index is smaller than its segment")];
            super::index::read_exact(&file, &mut content, 0).map_err(io_error(&path))?;
            if crc32c::crc32c(&content) != derived.crc {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Makes both indexes again from the log.
fn rebuild(
    disk: &dyn Disk,
    folder: &Path,
    segment: &Segment,
    active: bool,
    log: &Arc<dyn File>,
) -> Result<(), SegmentError> {
    let log_path = folder.join(file_name(segment.base, Kind::Log));
    tracing::warn!(path = %log_path.display(), "an index is missing or wrong: making it again");
    let mut scan = Scan::new(&**log, 0, segment.len);
    let mut again = Segment::new(segment.base);
    let mut out = IndexBytes::default();
    while let Some(found) = scan.next().map_err(|source| {
        let (path, position) = (log_path.clone(), scan.position());
        SegmentError::Damaged { path, position, what: source.to_string() }
    })? {
        let (size_bytes, max_timestamp) = (found.size, found.header.max_timestamp());
        again.note(Measure { size_bytes, last: found.last(), max_timestamp, entry_ms: 0 }, &mut out);
    }
    if !active {
        again.seal(&mut out);
    }
    if again.with_entry_times_of(segment) != *segment {
        let what = "its batches are not those that the manifest counted".to_owned();
        return Err(SegmentError::Damaged { path: log_path, position: segment.len, what });
    }
    for (kind, content) in [(Kind::Index, &out.index), (Kind::TimeIndex, &out.time_index)] {
        if content.is_empty() {
            continue;
        }
        let path = folder.join(file_name(segment.base, kind));
        let file = disk.open(&path, true).map_err(io_error(&path))?;
        let written = file.set_len(0).and_then(|()| file.write_all_at(&[content], 0)).and_then(|()| file.sync_data());
        written.map_err(io_error(&path))?;
    }
    disk.sync_dir(folder).map_err(io_error(folder))
}
