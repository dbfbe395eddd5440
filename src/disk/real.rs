//! The operating system's disk: pread, pwritev, fdatasync, and a directory's fsync for its names.
//!
//! With `bypass_fsync` every sync answers at once without doing anything: data is then as safe as the page cache.
//! [`lock_dir`] keeps a second process out of a data directory.

use std::fs::{self, OpenOptions};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Disk, File};

/// The most slices one pwritev takes (Linux UIO_MAXIOV, POSIX IOV_MAX).
const SLICES_PER_WRITE_MAX: usize = 1024;

/// The real one.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk {
    /// `--unsafe-bypass-fsync`: acknowledge from the page cache. Named by the operator, logged and exported loudly.
    pub bypass_fsync: bool,
}

#[derive(Debug)]
struct RealFile {
    file: fs::File,
    bypass_fsync: bool,
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, create: bool) -> io::Result<Arc<dyn File>> {
        let file = OpenOptions::new().read(true).write(true).create(create).truncate(false).open(path)?;
        Ok(Arc::new(RealFile { file, bypass_fsync: self.bypass_fsync }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let mut names =
            fs::read_dir(path)?.map(|entry| Ok(PathBuf::from(entry?.file_name()))).collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        if self.bypass_fsync {
            return Ok(());
        }
        fs::File::open(path)?.sync_all()
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
        let mut stat = MaybeUninit::<libc::statvfs>::uninit();
        // SAFETY: `path` is a NUL-terminated string and `stat` is large enough; both live through the call.
        if unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: statvfs returned 0, so it filled the structure.
        let stat = unsafe { stat.assume_init() };
        // f_bavail, not f_bfree: what root keeps for itself is not ours.
        Ok(stat.f_bavail * stat.f_frsize)
    }
}

impl File for RealFile {
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], position + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_all_at(&self, slices: &[&[u8]], mut position: u64) -> io::Result<()> {
        let mut remaining = slices;
        // Bytes of `remaining[0]` that are already written.
        let mut skip = 0;
        let mut vector: Vec<IoSlice<'_>> = Vec::with_capacity(slices.len().min(SLICES_PER_WRITE_MAX));
        loop {
            while remaining.first().is_some_and(|slice| slice.len() == skip) {
                remaining = &remaining[1..];
                skip = 0;
            }
            let Some(first) = remaining.first() else {
                return Ok(());
            };
            vector.clear();
            vector.push(IoSlice::new(&first[skip..]));
            vector.extend(remaining[1..].iter().take(SLICES_PER_WRITE_MAX - 1).map(|slice| IoSlice::new(slice)));
            let mut written = write_vectored_at(&self.file, &vector, position)?;
            position += written as u64;
            while written > 0 {
                let left = remaining[0].len() - skip;
                if written < left {
                    skip += written;
                    break;
                }
                written -= left;
                remaining = &remaining[1..];
                skip = 0;
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.bypass_fsync { Ok(()) } else { self.file.sync_data() }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

/// One pwritev, repeated only when a signal interrupted it. Never returns 0 for a non-empty vector.
fn write_vectored_at(file: &fs::File, vector: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
    let offset = libc::off_t::try_from(position).map_err(io::Error::other)?;
    let count = libc::c_int::try_from(vector.len()).map_err(io::Error::other)?;
    loop {
        // SAFETY: IoSlice has the layout of iovec (std guarantees it on Unix), `count` of them are valid, and the
        // slices they borrow outlive the call.
        let n = unsafe { libc::pwritev(file.as_raw_fd(), vector.as_ptr().cast(), count, offset) };
        match usize::try_from(n) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => return Ok(n),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// A held lock on a data directory; released when dropped, and by the kernel when the process dies.
#[derive(Debug)]
pub struct DirLock {
    _file: fs::File,
}

/// Locks a directory against a second process, by flock on its file `LOCK`.
///
/// # Errors
/// `WouldBlock`, with the directory named, if another process (or another lock of this one) holds it; else as the
/// operating system says.
pub fn lock_dir(path: &Path) -> io::Result<DirLock> {
    let lock = path.join("LOCK");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lock)?;
    // SAFETY: the descriptor is open for as long as `file` lives.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(DirLock { _file: file });
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock {
        let text = format!("{} is in use by another process (lock file {})", path.display(), lock.display());
        return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_slices_than_one_pwritev_takes_are_all_written_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let file = RealDisk::default().open(&dir.path().join("f"), true).unwrap();
        let pieces: Vec<Vec<u8>> = (0..3000_u32).map(|i| vec![i as u8; (i % 5) as usize]).collect();
        let slices: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        file.write_all_at(&slices, 7).unwrap();
        file.sync_data().unwrap();
        let expected = [vec![0; 7], pieces.concat()].concat();
        let mut read = vec![0xff; expected.len() + 10];
        assert_eq!(file.read_at(&mut read, 0).unwrap(), expected.len());
        assert_eq!(&read[..expected.len()], &expected[..]);
        assert_eq!(file.len().unwrap(), expected.len() as u64);
    }

    #[test]
    fn names_are_listed_sorted_and_renames_replace() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::default();
        for name in ["b", "a", "c"] {
            disk.open(&dir.path().join(name), true).unwrap();
        }
        disk.rename(&dir.path().join("c"), &dir.path().join("a")).unwrap();
        disk.sync_dir(dir.path()).unwrap();
        assert_eq!(disk.list(dir.path()).unwrap(), [PathBuf::from("a"), PathBuf::from("b")]);
        assert_eq!(disk.open(&dir.path().join("d"), false).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(disk.free_bytes(dir.path()).unwrap() > 0);
    }

    #[test]
    fn a_locked_directory_is_refused_with_its_name_until_released() {
        let dir = tempfile::tempdir().unwrap();
        let lock = lock_dir(dir.path()).unwrap();
        let error = lock_dir(dir.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(error.to_string().contains(&dir.path().display().to_string()), "{error}");
        drop(lock);
        lock_dir(dir.path()).unwrap();
    }
}
