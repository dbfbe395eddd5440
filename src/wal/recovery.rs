//! Opening: finds the files, replays their frames, and makes the end of the last one fit to append to.
//!
//! All files are walked whole, sealed ones too: at the checkpoint interval (1 GiB or 60 s) there are a handful, the
//! start needs their entries anyway to apply them again, and every CRC gets checked. A bad frame in a sealed file, or
//! below the highest `synced_to` seen in the last one, is damage and refused. Any other bad frame is a torn tail: an
//! unsynced group, of which nothing was acknowledged. It is cut, and whole frames behind it with it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::file::LogFile;
use super::format::{Carried, FILE_HEADER_BYTES, FileHeader, FrameHeader, FrameKind, file_name, file_sequence};
use super::index::Index;
use super::reader::{End, Window, look_behind, walk};
use super::{Recovered, WalError, WalOptions};
use crate::disk::Disk;
use crate::types::LogIndex;

/// How much is zeroed or written again at once.
const PIECE_BYTES: usize = 1 << 20;

/// A log that is ready to be appended to.
#[derive(Debug)]
pub(super) struct Opened {
    /// Never empty; the last is the active one.
    pub files: Vec<Arc<LogFile>>,
    pub index: Index,
    pub carried: Carried,
    /// Where the next frame goes.
    pub position: u64,
    /// CRC of the last frame.
    pub crc: u32,
    pub recovered: Recovered,
}

/// Either error of a walk.
enum Stop {
    Io(io::Error),
    Entry(u64, String),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Opens the log of `options.dir`, or begins it.
///
/// # Errors
/// If a file cannot be read, is damaged, is missing, or is another cluster's.
pub(super) fn recover(disk: &dyn Disk, options: &WalOptions) -> Result<Opened, WalError> {
    let dir = &options.dir;
    let in_dir = |source| WalError::Io { path: dir.clone(), source };
    disk.create_dir_all(dir).map_err(in_dir)?;
    if let Some(parent) = dir.parent() {
        disk.sync_dir(parent).map_err(in_dir)?;
    }
    let mut paths = Vec::new();
    for name in disk.list(dir).map_err(in_dir)? {
        let path = dir.join(&name);
        if let Some(sequence) = name.to_str().and_then(file_sequence) {
            paths.push((sequence, path));
        } else if name.to_string_lossy().ends_with(".wal.tmp") {
            // A file whose creation did not finish: it held nothing.
            disk.remove_file(&path).map_err(in_dir)?;
        }
    }
    // Files we only saw in the cache of the file system must not vanish after we have built on them.
    disk.sync_dir(dir).map_err(in_dir)?;
    if paths.is_empty() { begin(disk, options) } else { replay(disk, options, paths) }
}

fn begin(disk: &dyn Disk, options: &WalOptions) -> Result<Opened, WalError> {
    let header = FileHeader {
        cluster_id: options.cluster_id,
        sequence: 1,
        salt: random_salt(),
        first_index: LogIndex(0),
        previous: None,
        previous_end: 0,
        previous_crc: 0,
        carried: Carried::default(),
    };
    let (file, crc) = LogFile::create(disk, &options.dir, &header)
        .map_err(|source| WalError::Io { path: options.dir.join(file_name(1)), source })?;
    Ok(Opened {
        files: vec![Arc::new(file)],
        index: Index::default(),
        carried: Carried::default(),
        position: FILE_HEADER_BYTES,
        crc,
        recovered: Recovered::default(),
    })
}

/// A salt for a new file.
pub(super) fn random_salt() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

fn replay(disk: &dyn Disk, options: &WalOptions, paths: Vec<(u64, PathBuf)>) -> Result<Opened, WalError> {
    let mut files: Vec<Arc<LogFile>> = Vec::with_capacity(paths.len());
    let mut index = Index::default();
    let mut carried = Carried::default();
    let mut end = End { position: 0, crc: 0, synced_to: 0, why: "" };
    for (sequence, path) in paths {
        let (file, header, header_crc) = open_file(disk, options, sequence, &path)?;
        match files.last() {
            None => index = Index::new(header.previous, header.carried.purged.as_ref().map(|(index, _)| *index)),
            Some(before) if before.sequence + 1 != sequence => {
                let path = options.dir.join(file_name(before.sequence + 1));
                return Err(damaged(path, 0, "the file is missing, older and newer ones are there"));
            }
            Some(before) if (header.previous_end, header.previous_crc) != (end.position, end.crc) => {
                return Err(damaged(before.path.clone(), end.position, format!("{}, in a sealed file", end.why)));
            }
            Some(before) => index.seal(before.sequence),
        }
        carried = header.carried;
        if let Some((purged, _)) = &carried.purged {
            // The header may know of a purge whose frame follows in this file, and may be torn.
            index.purge(*purged);
        }
        let file = Arc::new(file);
        let mut window = Window::walking(Arc::clone(&file.file));
        end = walk(&mut window, file.salt, header_crc, |position, frame, payload| {
            replay_frame(&file, position, frame, payload, &mut index, &mut carried)
        })
        .map_err(|stop| match stop {
            Stop::Io(source) => WalError::Io { path: path.clone(), source },
            Stop::Entry(position, what) => damaged(path.clone(), position, what),
        })?;
        files.push(file);
    }
    if let Some(missing) = index.lacks() {
        let path = options.dir.join(file_name(files[0].sequence - 1));
        return Err(damaged(path, 0, format!("the file is missing, and with it entries up to {}", missing.0)));
    }
    let torn_bytes = repair_end(files.last().expect("at least one file was found"), end)?;
    let recovered = Recovered {
        vote: carried.vote.clone(),
        committed: carried.committed.clone(),
        purged: carried.purged.clone(),
        first: index.first(),
        last: index.last(),
        torn_bytes,
    };
    Ok(Opened { files, index, carried, position: end.position, crc: end.crc, recovered })
}

fn damaged(path: PathBuf, position: u64, what: impl Into<String>) -> WalError {
    WalError::Damaged { path, position, what: what.into() }
}

fn open_file(
    disk: &dyn Disk,
    options: &WalOptions,
    sequence: u64,
    path: &Path,
) -> Result<(LogFile, FileHeader, u32), WalError> {
    let io_error = |source| WalError::Io { path: path.to_owned(), source };
    let file = disk.open(path, false).map_err(io_error)?;
    let len = file.len().map_err(io_error)?;
    let mut bytes = vec![0; FILE_HEADER_BYTES as usize];
    let count = file.read_at(&mut bytes, 0).map_err(io_error)?;
    let (header, crc) =
        FileHeader::decode(&bytes[..count]).map_err(|bad| damaged(path.to_owned(), 0, bad.to_string()))?;
    if header.cluster_id != options.cluster_id {
        return Err(WalError::OtherCluster { path: path.to_owned() });
    }
    if header.sequence != sequence {
        return Err(damaged(path.to_owned(), 0, format!("the header is of file {}", header.sequence)));
    }
    Ok((LogFile::new(path.to_owned(), file, &header, len), header, crc))
}

/// Does to the index and the rest what the writer did when it wrote this frame.
fn replay_frame(
    file: &Arc<LogFile>,
    position: u64,
    frame: &FrameHeader,
    payload: &[u8],
    index: &mut Index,
    carried: &mut Carried,
) -> Result<(), Stop> {
    match frame.kind {
        FrameKind::Entry => {
            if !index.accepts(frame.index) {
                let what = format!("entry {} where {} should be", frame.index.0, index.next().0);
                return Err(Stop::Entry(position, what));
            }
            index.push(file, frame.index, frame.term, position);
        }
        FrameKind::Vote => carried.vote = Some(Bytes::copy_from_slice(payload)),
        FrameKind::Committed => carried.committed = Some(Bytes::copy_from_slice(payload)),
        FrameKind::Truncate => index.truncate_from(frame.index),
        FrameKind::Purge => {
            index.purge(frame.index);
            carried.purge(frame.index, Bytes::copy_from_slice(payload));
        }
    }
    Ok(())
}

/// Cuts a torn tail off the active file and makes all before it durable. Returns the bytes cut.
fn repair_end(file: &LogFile, end: End) -> Result<u64, WalError> {
    let io_error = |source| WalError::Io { path: file.path.clone(), source };
    let mut window = Window::walking(Arc::clone(&file.file));
    let rest = look_behind(&mut window, file.salt, end.position).map_err(io_error)?;
    let synced_to = end.synced_to.max(rest.synced_to);
    if end.position < synced_to {
        let what = format!("{}, though the file was synced up to byte {synced_to}", end.why);
        return Err(damaged(file.path.clone(), end.position, what));
    }
    cut(file, end, rest.written_to, &mut window).map_err(io_error)?;
    Ok(rest.written_to - end.position)
}

fn cut(file: &LogFile, end: End, written_to: u64, window: &mut Window) -> io::Result<()> {
    // The frames that may never have been synced are written again: if a sync of them failed before this process,
    // the kernel took their pages for clean, and syncing once more would prove nothing.
    let mut position = end.synced_to;
    while position < end.position {
        let piece = window.bytes(position, PIECE_BYTES.min((end.position - position) as usize))?.to_vec();
        if piece.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.file.write_all_at(&[&piece], position)?;
        position += piece.len() as u64;
    }
    let zeros = vec![0; PIECE_BYTES];
    while position < written_to {
        let count = PIECE_BYTES.min((written_to - position) as usize);
        file.file.write_all_at(&[&zeros[..count]], position)?;
        position += count as u64;
    }
    file.file.sync_data()
}
