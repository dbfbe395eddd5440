//! The seam to the disk: everything `wal` and `segments` do to files goes through [`Disk`], so tests can tear, lose
//! and fail writes (`faulty`), and the simulation can run without a file system.

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub mod faulty;
pub mod real;

pub use faulty::FaultyDisk;
pub use real::{DirLock, RealDisk, lock_dir};

/// A file system, as far as the broker needs one. Paths are absolute.
pub trait Disk: Send + Sync + Debug {
    /// Opens a file for reading and writing; creates it (empty) if `create`.
    ///
    /// # Errors
    /// As the operating system says.
    fn open(&self, path: &Path, create: bool) -> io::Result<Arc<dyn File>>;
    /// Makes a directory and its parents.
    ///
    /// # Errors
    /// As the operating system says.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Renames atomically, replacing what is there. Durable only after [`Disk::sync_dir`].
    ///
    /// # Errors
    /// As the operating system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// As the operating system says.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with all that is in it.
    ///
    /// # Errors
    /// As the operating system says.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Names in a directory (not whole paths), sorted.
    ///
    /// # Errors
    /// As the operating system says.
    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>>;
    /// Makes names in a directory durable.
    ///
    /// # Errors
    /// As the operating system says; never retried.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Bytes that are free for us.
    ///
    /// # Errors
    /// As the operating system says.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
}

/// An open file. Writes are at positions; nothing is durable before [`File::sync_data`].
pub trait File: Send + Sync + Debug {
    /// Reads up to `buf.len()` bytes at `position`; fewer only at the end of the file.
    ///
    /// # Errors
    /// As the operating system says.
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize>;
    /// Writes all slices one after another at `position` (one pwritev where possible).
    ///
    /// # Errors
    /// As the operating system says.
    fn write_all_at(&self, slices: &[&[u8]], position: u64) -> io::Result<()>;
    /// fdatasync. An error is final: the caller must stop, never retry.
    ///
    /// # Errors
    /// As the operating system says.
    fn sync_data(&self) -> io::Result<()>;
    /// Cuts or grows (with zeros) to `len`.
    ///
    /// # Errors
    /// As the operating system says.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Length in bytes.
    ///
    /// # Errors
    /// As the operating system says.
    fn len(&self) -> io::Result<u64>;
    /// Whether it is empty.
    ///
    /// # Errors
    /// As the operating system says.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}
