//! One log file: its handle, what its header said, and how far it is filled with zeros ahead of the writer.
//!
//! A file gets its name only once its header is durable, so a named file with a bad header is damage, never a torn
//! creation.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::format::{FileHeader, file_name};
use crate::disk::{Disk, File};

/// A log file that is open.
#[derive(Debug)]
pub(super) struct LogFile {
    pub path: PathBuf,
    pub file: Arc<dyn File>,
    pub sequence: u64,
    pub salt: u64,
    /// Bytes below this are zero-filled or written. Stored only under `filling`; the writer, which stays below it,
    /// reads it without the lock.
    filled_to: AtomicU64,
    /// Held while zeros are written and while the writer moves past `filled_to`: zeros never land on a frame.
    filling: Mutex<()>,
    /// Set by the writer when it asks for zeros, cleared by the thread that writes them.
    pub fill_asked: AtomicBool,
}

impl LogFile {
    pub fn new(path: PathBuf, file: Arc<dyn File>, header: &FileHeader, filled_to: u64) -> Self {
        Self {
            path,
            file,
            sequence: header.sequence,
            salt: header.salt,
            filled_to: AtomicU64::new(filled_to),
            filling: Mutex::new(()),
            fill_asked: AtomicBool::new(false),
        }
    }

    /// Makes a file with this header, durable in content and name, and returns it with the header's CRC.
    ///
    /// # Errors
    /// As the disk says; nothing of the file counts then.
    pub fn create(disk: &dyn Disk, dir: &Path, header: &FileHeader) -> io::Result<(Self, u32)> {
        let path = dir.join(file_name(header.sequence));
        let unnamed = path.with_extension("wal.tmp");
        let file = disk.open(&unnamed, true)?;
        file.set_len(0)?;
        let (bytes, crc) = header.encode();
        file.write_all_at(&[&bytes], 0)?;
        file.sync_data()?;
        disk.rename(&unnamed, &path)?;
        disk.sync_dir(dir)?;
        Ok((Self::new(path, file, header, bytes.len() as u64), crc))
    }

    pub fn filled_to(&self) -> u64 {
        self.filled_to.load(Ordering::Acquire)
    }

    /// Takes the bytes below `end` for frames: no zeros are written there once this returns.
    pub fn claim(&self, end: u64) {
        if end > self.filled_to() {
            let _held = self.filling.lock();
            self.filled_to.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Writes the next piece of zeros through `file` (another handle of this file), up to `target`. False if there was
    /// nothing to do.
    ///
    /// # Errors
    /// As the disk says, a full one above all.
    pub fn fill(&self, file: &dyn File, zeros: &[u8], target: u64) -> io::Result<bool> {
        let _held = self.filling.lock();
        let from = self.filled_to();
        let count = usize::try_from(target.saturating_sub(from)).unwrap_or(usize::MAX).min(zeros.len());
        if count == 0 {
            return Ok(false);
        }
        file.write_all_at(&[&zeros[..count]], from)?;
        self.filled_to.store(from + count as u64, Ordering::Release);
        Ok(true)
    }
}
