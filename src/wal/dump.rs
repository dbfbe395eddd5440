//! Prints a log file for people: `katomic dump`. Reads only, needs no other file, and goes on to the first bad frame.

use std::fmt;
use std::io;
use std::path::Path;

use super::WalError;
use super::format::{FILE_HEADER_BYTES, FileHeader, FrameHeader, FrameKind};
use super::reader::{End, Window, look_behind, walk};
use crate::disk::Disk;

/// Of a payload so many bytes are shown.
const SHOWN_BYTES: usize = 32;

/// A log file as text. `Display` prints all of it.
#[derive(Clone, Debug)]
pub struct Dump {
    /// What the file's header says.
    pub header: FileHeader,
    /// Its whole frames in order.
    pub frames: Vec<DumpedFrame>,
    /// Where the whole frames end.
    pub end: u64,
    /// Bytes that are not zero from `end` on, and why they are no frame; None after a clean end.
    pub torn: Option<(u64, &'static str)>,
}

/// One frame of a [`Dump`]; `Display` prints it on a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedFrame {
    /// Where it stands.
    pub position: u64,
    /// Its header.
    pub header: FrameHeader,
    /// The first bytes of its payload.
    pub payload_start: Vec<u8>,
}

/// Reads a log file.
///
/// # Errors
/// If it cannot be read or has no valid header.
pub fn dump(disk: &dyn Disk, path: &Path) -> Result<Dump, WalError> {
    let io_error = |source| WalError::Io { path: path.to_owned(), source };
    let mut window = Window::walking(disk.open(path, false).map_err(io_error)?);
    let head = window.bytes(0, FILE_HEADER_BYTES as usize).map_err(io_error)?;
    let (header, crc) = FileHeader::decode(head).map_err(|bad| WalError::Damaged {
        path: path.to_owned(),
        position: 0,
        what: bad.to_string(),
    })?;
    let mut frames = Vec::new();
    let End { position: end, why, .. } = walk(&mut window, header.salt, crc, |position, frame, payload| {
        let payload_start = payload[..payload.len().min(SHOWN_BYTES)].to_vec();
        frames.push(DumpedFrame { position, header: *frame, payload_start });
        Ok::<_, io::Error>(())
    })
    .map_err(io_error)?;
    let rest = look_behind(&mut window, header.salt, end).map_err(io_error)?;
    let torn = (rest.written_to > end).then_some((rest.written_to - end, why));
    Ok(Dump { header, frames, end, torn })
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = &self.header;
        write!(f, "file {} cluster {} ", header.sequence, hex(&header.cluster_id))?;
        write!(f, "salt {:016x} first_index {}", header.salt, header.first_index.0)?;
        if let Some((index, term)) = header.previous {
            write!(f, " previous {}@{}", index.0, term.0)?;
        }
        write!(f, " previous_end {} previous_crc {:08x}", header.previous_end, header.previous_crc)?;
        if let Some(vote) = &header.carried.vote {
            write!(f, " vote {}", hex(vote))?;
        }
        if let Some(committed) = &header.carried.committed {
            write!(f, " committed {}", hex(committed))?;
        }
        if let Some((index, id)) = &header.carried.purged {
            write!(f, " purged {} {}", index.0, hex(id))?;
        }
        writeln!(f)?;
        self.frames.iter().try_for_each(|frame| writeln!(f, "{frame}"))?;
        match self.torn {
            None => writeln!(f, "{} end", self.end),
            Some((bytes, why)) => writeln!(f, "{} torn: {why}; {bytes} bytes behind", self.end),
        }
    }
}

impl fmt::Display for DumpedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = &self.header;
        write!(f, "{} ", self.position)?;
        match header.kind {
            FrameKind::Entry => write!(f, "entry {}@{}", header.index.0, header.term.0)?,
            FrameKind::Vote => f.write_str("vote")?,
            FrameKind::Committed => f.write_str("committed")?,
            FrameKind::Truncate => write!(f, "truncate from {}", header.index.0)?,
            FrameKind::Purge => write!(f, "purge to {}", header.index.0)?,
        }
        write!(f, " synced_to {} len {}", header.synced_to, header.len)?;
        if header.len > 0 {
            write!(f, " {}", hex(&self.payload_start))?;
        }
        if header.len as usize > self.payload_start.len() { f.write_str("…") } else { Ok(()) }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
