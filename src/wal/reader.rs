//! Reading frames: one at a place, or all of a file in order.
//!
//! A frame counts as whole only if its header's CRC, its link to the frame before and its payload's CRC hold.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::file::LogFile;
use super::format::{FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FRAME_MAGIC, FrameHeader, FrameKind};
use super::index::Place;
use super::{StoredFrame, WalError};
use crate::disk::File;
use crate::types::LogIndex;

/// Read ahead when walking a file: large enough for a disk's full speed.
const WALK_BYTES: usize = 1 << 20;

/// Read ahead when entries are asked for: a few small ones need one read, large ones are read exactly.
const READ_BYTES: usize = 64 << 10;

/// A file seen through a buffer that moves forward.
#[derive(Debug)]
pub(super) struct Window {
    file: Arc<dyn File>,
    /// Allocated once per size and never cleared: only `filled` bytes of it count.
    buffer: Vec<u8>,
    filled: usize,
    start: u64,
    ahead: usize,
}

impl Window {
    pub fn new(file: Arc<dyn File>, ahead: usize) -> Self {
        Self { file, buffer: Vec::new(), filled: 0, start: 0, ahead }
    }

    /// For walking a whole file.
    pub fn walking(file: Arc<dyn File>) -> Self {
        Self::new(file, WALK_BYTES)
    }

    /// The bytes at `position`: `len` of them, or fewer at the end of the file.
    ///
    /// # Errors
    /// As the disk says.
    pub fn bytes(&mut self, position: u64, len: usize) -> io::Result<&[u8]> {
        let inside = position >= self.start && position + len as u64 <= self.start + self.filled as u64;
        if !inside {
            let want = len.max(self.ahead);
            if self.buffer.len() < want {
                self.buffer = vec![0; want];
            }
            // Nothing of the old content counts if the read fails.
            self.filled = 0;
            self.filled = self.file.read_at(&mut self.buffer[..want], position)?;
            self.start = position;
        }
        let from = usize::try_from(position - self.start).expect("within the buffer");
        Ok(&self.buffer[from..(from + len).min(self.filled)])
    }
}

/// What stands at a place where a frame is expected.
#[derive(Debug)]
pub(super) enum Found<'a> {
    Whole {
        header: FrameHeader,
        crc: u32,
        payload: &'a [u8],
    },
    /// The header is whole, the payload is not.
    BadPayload,
    BadHeader,
}

/// Looks for a frame at `position`.
///
/// # Errors
/// As the disk says.
pub(super) fn frame_at(window: &mut Window, salt: u64, position: u64) -> io::Result<Found<'_>> {
    let head = window.bytes(position, FRAME_HEADER_BYTES as usize)?;
    let Some((header, crc)) = FrameHeader::decode(head, salt, position) else {
        return Ok(Found::BadHeader);
    };
    let payload = window.bytes(position + FRAME_HEADER_BYTES, header.len as usize)?;
    if payload.len() != header.len as usize || crc32c::crc32c(payload) != header.payload_crc {
        return Ok(Found::BadPayload);
    }
    Ok(Found::Whole { header, crc, payload })
}

/// Where the whole frames of a file end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Behind the last whole frame.
    pub position: u64,
    /// CRC of the last whole frame (of the file header, if there is none).
    pub crc: u32,
    /// The highest `synced_to` in the whole frames.
    pub synced_to: u64,
    /// Why there is no further frame.
    pub why: &'static str,
}

/// Shows all whole frames from the first on to `visit`, with their positions, and says where and why they end.
///
/// # Errors
/// As the disk, or `visit`, says.
pub(super) fn walk<E: From<io::Error>>(
    window: &mut Window,
    salt: u64,
    header_crc: u32,
    mut visit: impl FnMut(u64, &FrameHeader, &[u8]) -> Result<(), E>,
) -> Result<End, E> {
    let mut end = End { position: FILE_HEADER_BYTES, crc: header_crc, synced_to: FILE_HEADER_BYTES, why: "" };
    loop {
        match frame_at(window, salt, end.position)? {
            Found::Whole { header, crc, payload } => {
                if header.previous_crc != end.crc {
                    return Ok(End { why: "a frame that does not follow the one before it", ..end });
                }
                visit(end.position, &header, payload)?;
                end.position += header.frame_bytes();
                end.crc = crc;
                end.synced_to = end.synced_to.max(header.synced_to);
            }
            Found::BadPayload => return Ok(End { why: "bad CRC of a payload", ..end }),
            Found::BadHeader => return Ok(End { why: "no frame header, or a bad CRC of it", ..end }),
        }
    }
}

/// What follows the last whole frame of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rest {
    /// The highest `synced_to` in any frame header that is whole by itself.
    pub synced_to: u64,
    /// Behind the last byte that is not zero; `from` if all are.
    pub written_to: u64,
}

/// Looks at everything from `from` on: an unsynced group may have left whole frames behind a torn one, and damage
/// leaves frames that know it was synced.
///
/// # Errors
/// As the disk says.
pub(super) fn look_behind(window: &mut Window, salt: u64, from: u64) -> io::Result<Rest> {
    let mut rest = Rest { synced_to: 0, written_to: from };
    let mut position = from;
    loop {
        let piece = window.bytes(position, WALK_BYTES)?;
        if let Some(at) = piece.iter().rposition(|byte| *byte != 0) {
            rest.written_to = position + at as u64 + 1;
            for at in (0..=at).filter(|at| piece[*at..].starts_with(&FRAME_MAGIC)) {
                if let Some((header, _)) = FrameHeader::decode(&piece[at..], salt, position + at as u64) {
                    rest.synced_to = rest.synced_to.max(header.synced_to);
                }
            }
        }
        if piece.len() < WALK_BYTES {
            return Ok(rest);
        }
        // Overlapping, so that a header across the seam is seen whole.
        position += (WALK_BYTES as u64) - FRAME_HEADER_BYTES;
    }
}

/// Reads entries that follow each other in one run, from `from` to before `to`, into `out`; stops at `bytes_max`
/// (counted in `bytes`) but never before the first of `out`. Returns the index it did not read.
///
/// # Errors
/// If a frame is damaged or cannot be read.
pub(super) fn read_run(
    place: &Place,
    from: LogIndex,
    to: LogIndex,
    bytes_max: usize,
    bytes: &mut usize,
    out: &mut Vec<StoredFrame>,
) -> Result<LogIndex, WalError> {
    let LogFile { file, salt, path, .. } = &*place.file;
    let io_error = |source| WalError::Io { path: path.clone(), source };
    let mut window = Window::new(Arc::clone(file), READ_BYTES.min(bytes_max.max(4096)));
    let mut position = place.position;
    let mut next = from;
    while next < to && next <= place.run_last {
        // The index leads to an entry somewhat before: those in between are passed by their headers alone.
        let head = window.bytes(position, FRAME_HEADER_BYTES as usize).map_err(io_error)?;
        if let Some((header, _)) = FrameHeader::decode(head, *salt, position)
            && (header.kind != FrameKind::Entry || header.index < next)
        {
            position += header.frame_bytes();
            continue;
        }
        let Found::Whole { header, payload, .. } = frame_at(&mut window, *salt, position).map_err(io_error)? else {
            let what = format!("the frame of entry {} or one before it is damaged", next.0);
            return Err(WalError::Damaged { path: path.clone(), position, what });
        };
        position += header.frame_bytes();
        if header.index > next {
            let what = format!("entry {} where {} should be", header.index.0, next.0);
            return Err(WalError::Damaged { path: path.clone(), position, what });
        }
        if !out.is_empty() && *bytes + payload.len() > bytes_max {
            break;
        }
        *bytes += payload.len();
        out.push(StoredFrame { term: header.term, index: next, payload: Bytes::copy_from_slice(payload) });
        next = LogIndex(next.0 + 1);
    }
    Ok(next)
}
