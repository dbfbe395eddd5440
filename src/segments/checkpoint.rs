//! The manifest: one file that says what a restart begins from.
//!
//! ```text
//! 0 magic "KATOMANI" | 8 format u32 | 12 crc32c u32 of bytes 16..40 | 16 tables u64 | 24 raft u64 | 32 state u64   lengths
//! 40 tables (postcard: applied, received, topics → partitions → segments) | crc32c u32 | raft | crc32c u32 | state | crc32c u32
//! ```
//!
//! Integers of this frame are little-endian. Every segment that it names was synced before; it becomes the newest by a
//! rename, and is durable once the directory is synced. Only then may files that it does not name be removed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::files::Files;
use super::index::read_exact;
use super::segment::{Roll, Segment};
use super::{Checkpoint, SegmentError};
use crate::disk::{Disk, File};
use crate::types::{LogIndex, Offset, PartitionId, Term, TopicId};

const MAGIC: &[u8; 8] = b"KATOMANI";
const FORMAT: u32 = 3;
const HEADER_BYTES: usize = 40;
const CRC_BYTES: usize = 4;
/// The newest durable checkpoint.
pub(super) const NAME: &str = "manifest";
/// The one being written.
pub(super) const TEMPORARY_NAME: &str = "manifest.tmp";

/// The partition logs at a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// By id.
    pub topics: Vec<Topic>,
}

/// One topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Topic {
    /// Its id.
    pub id: TopicId,
    /// Its name.
    pub name: String,
    /// When its segments end: replayed batches must roll where they rolled before.
    pub roll: Roll,
    /// By number.
    pub partitions: Vec<Partition>,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Partition {
    /// Its number.
    pub partition: PartitionId,
    /// First offset.
    pub log_start: Offset,
    /// Offset behind the last record.
    pub end: Offset,
    /// In offset order; none lies wholly below the first offset.
    pub segments: Vec<Segment>,
}

/// What comes first in the file.
#[derive(Serialize, Deserialize)]
struct Tables {
    applied: Option<(LogIndex, Term)>,
    received: bool,
    manifest: Manifest,
}

/// A manifest that could not be written.
#[derive(Debug)]
pub(super) struct WriteError {
    pub path: PathBuf,
    pub source: io::Error,
    /// The sync failed: what is on disk is unknown from here on.
    pub sync: bool,
}

/// The disk, or what one may have of it, is full: nothing is broken.
pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Writes a manifest into an empty file; returns its length.
pub(super) fn write_to(
    file: &dyn File,
    manifest: &Manifest,
    checkpoint: &Checkpoint,
    received: bool,
) -> io::Result<u64> {
    let tables = Tables { applied: checkpoint.applied, received, manifest: manifest.clone() };
    let tables = postcard::to_stdvec(&tables).expect("plain data without maps encodes into a growing vector");
    let sections: [&[u8]; 3] = [&tables, &checkpoint.raft, &checkpoint.state];
    let header = header(sections.map(|section| section.len() as u64));
    let checksums = sections.map(|section| crc32c::crc32c(section).to_le_bytes());
    let mut slices: Vec<&[u8]> = vec![&header];
    for (section, checksum) in sections.iter().zip(&checksums) {
        slices.extend([*section, &checksum[..]]);
    }
    file.set_len(0)?;
    file.write_all_at(&slices, 0)?;
    Ok(slices.iter().map(|slice| slice.len() as u64).sum())
}

/// Writes a manifest and makes it the newest one; returns the file, open, and its length.
pub(super) fn write(
    files: &Files,
    manifest: &Manifest,
    checkpoint: &Checkpoint,
) -> Result<(Arc<dyn File>, u64), WriteError> {
    let (path, temporary) = (files.dir().join(NAME), files.dir().join(TEMPORARY_NAME));
    let error = |path: &Path, sync| {
        let path = path.to_owned();
        move |source| WriteError { path, source, sync }
    };
    let disk = files.disk();
    let file = disk.open(&temporary, true).map_err(error(&temporary, false))?;
    let len = write_to(&*file, manifest, checkpoint, false).map_err(error(&temporary, false))?;
    file.sync_data().map_err(error(&temporary, true))?;
    disk.rename(&temporary, &path).map_err(error(&path, false))?;
    disk.sync_dir(files.dir()).map_err(error(files.dir(), true))?;
    Ok((file, len))
}

fn header(lengths: [u64; 3]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    for (length, at) in lengths.iter().zip([16, 24, 32]) {
        header[at..at + 8].copy_from_slice(&length.to_le_bytes());
    }
    let crc = crc32c::crc32c(&header[16..]);
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    header
}

/// A manifest that was read.
pub(super) struct Loaded {
    pub manifest: Manifest,
    pub checkpoint: Checkpoint,
    pub file: Arc<dyn File>,
    pub len: u64,
}

/// The newest manifest, if there is one.
pub(super) fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Loaded>, SegmentError> {
    let path = dir.join(NAME);
    let io_error = |source| SegmentError::Io { path: path.clone(), source };
    let file = match disk.open(&path, false) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(error)),
    };
    let len = usize::try_from(file.len().map_err(io_error)?).unwrap_or(usize::MAX);
    let mut bytes = BytesMut::zeroed(len);
    read_exact(&file, &mut bytes, 0).map_err(io_error)?;
    let (manifest, checkpoint) = decode(&path, bytes.freeze())?;
    Ok(Some(Loaded { manifest, checkpoint, file, len: len as u64 }))
}

/// A manifest from its bytes; `path` names it in errors.
pub(super) fn decode(path: &Path, bytes: Bytes) -> Result<(Manifest, Checkpoint), SegmentError> {
    let damaged = |position: usize, what: &str| SegmentError::Damaged {
        path: path.to_owned(),
        position: position as u64,
        what: what.to_owned(),
    };
    if bytes.len() < HEADER_BYTES {
        return Err(damaged(bytes.len(), "the manifest is shorter than its header"));
    }
    if &bytes[..8] != MAGIC {
        return Err(damaged(0, "this is not a manifest"));
    }
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    if u32_at(8) != FORMAT {
        return Err(damaged(8, "the manifest has a format that this build does not know"));
    }
    if crc32c::crc32c(&bytes[16..HEADER_BYTES]) != u32_at(12) {
        return Err(damaged(12, "the checksum of the manifest's header does not match"));
    }
    let mut at = HEADER_BYTES;
    let mut sections = [Bytes::new(), Bytes::new(), Bytes::new()];
    for (section, length_at) in sections.iter_mut().zip([16, 24, 32]) {
        let length = u64::from_le_bytes(bytes[length_at..length_at + 8].try_into().expect("eight bytes"));
        let end = usize::try_from(length).ok().and_then(|length| at.checked_add(length));
        let Some(end) = end.filter(|end| *end <= bytes.len().saturating_sub(CRC_BYTES)) else {
            return Err(damaged(bytes.len(), "the manifest is cut short"));
        };
        *section = bytes.slice(at..end);
        if crc32c::crc32c(section) != u32_at(end) {
            return Err(damaged(at, "the checksum of this part of the manifest does not match"));
        }
        at = end + CRC_BYTES;
    }
    if at != bytes.len() {
        return Err(damaged(at, "bytes follow the manifest"));
    }
    let [tables, raft, state] = sections;
    let tables: Tables = postcard::from_bytes(&tables).map_err(|error| damaged(HEADER_BYTES, &error.to_string()))?;
    Ok((tables.manifest, Checkpoint { applied: tables.applied, raft, state, received: tables.received }))
}
