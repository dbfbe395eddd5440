//! What the writer leaves to a second thread, off the acknowledgement path: zeros ahead of it, and unlinking.
//!
//! A fdatasync after overwriting zeros takes about half of one after growing the file (storage.md): the file's extents
//! and length need no journal commit. Zeros are synced here, through a handle of this thread's own, so that the
//! writer's next fdatasync does not have to carry them and an error is reported to both.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use super::file::LogFile;
use super::writer::Shared;
use crate::disk::Disk;

/// Zeros are written and synced in pieces of this size: the writer waits for one at most.
const ZEROS_BYTES: usize = 1 << 20;

/// Something to do when nobody waits for it.
#[derive(Debug)]
pub(super) enum Job {
    /// Zero-fill this file up to a position.
    Fill(Arc<LogFile>, u64),
    /// Remove these files, oldest first.
    Unlink(Vec<PathBuf>),
}

/// Starts the thread; it ends when all senders are gone.
///
/// # Errors
/// If no thread can be had.
pub(super) fn start(
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    shared: Arc<Shared>,
) -> io::Result<(Sender<Job>, JoinHandle<()>)> {
    // At most one Fill per file and one Unlink per purge are queued.
    let (sender, jobs) = channel();
    let thread = Builder::new().name("wal-background".into()).spawn(move || run(&*disk, &dir, &shared, jobs))?;
    Ok((sender, thread))
}

fn run(disk: &dyn Disk, dir: &Path, shared: &Shared, jobs: Receiver<Job>) {
    let zeros = vec![0; ZEROS_BYTES];
    let mut purged = VecDeque::new();
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Fill(file, target) => {
                if let Err(error) = fill(disk, &file, &zeros, target) {
                    shared.fail(error);
                }
                file.fill_asked.store(false, Ordering::Release);
            }
            Job::Unlink(paths) => {
                purged.extend(paths);
                if let Err(error) = unlink(disk, dir, &mut purged) {
                    // Space is not freed, but nothing is wrong with the log: the next purge or opening tries again.
                    tracing::warn!(dir = %dir.display(), %error, "cannot unlink purged log files");
                }
            }
        }
    }
}

/// Fills up to `target`, as far as there is space.
///
/// # Errors
/// If a sync fails: then what the writer wrote meanwhile may be lost too.
fn fill(disk: &dyn Disk, log: &LogFile, zeros: &[u8], target: u64) -> io::Result<()> {
    // Without a handle or space the writer grows the file itself and meets the error, if there is one.
    let Ok(file) = disk.open(&log.path, false) else {
        return Ok(());
    };
    while log.fill(&*file, zeros, target).unwrap_or(false) {
        file.sync_data()?;
    }
    Ok(())
}

/// Removes files one by one, each durably before the next, and keeps in `purged` what it did not get to: neither a
/// crash nor an error leaves a gap in their numbers.
fn unlink(disk: &dyn Disk, dir: &Path, purged: &mut VecDeque<PathBuf>) -> io::Result<()> {
    while let Some(path) = purged.front() {
        match disk.remove_file(path) {
            Ok(()) => {}
            // Removed before, but not known to be durably so.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        disk.sync_dir(dir)?;
        purged.pop_front();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::FaultyDisk;

    #[test]
    fn a_failed_unlink_is_finished_before_a_newer_file_goes() {
        let disk = FaultyDisk::new(1);
        let path = |n: u32| PathBuf::from(format!("/{n}"));
        (1..=4).for_each(|n| drop(disk.open(&path(n), true).unwrap()));
        disk.sync_dir(Path::new("/")).unwrap();
        let mut purged = VecDeque::from([path(1), path(2)]);
        disk.fail_sync_in(1);
        assert!(unlink(&disk, Path::new("/"), &mut purged).is_err());
        assert!(disk.open(&path(2), false).is_ok());
        purged.push_back(path(3));
        unlink(&disk, Path::new("/"), &mut purged).unwrap();
        assert_eq!(disk.crash().list(Path::new("/")).unwrap(), [PathBuf::from("4")]);
    }
}
