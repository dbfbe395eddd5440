//! What the writer leaves to a second thread, off the acknowledgement path: zeros ahead of it, and unlinking.
//!
//! A fdatasync after overwriting zeros takes about half of one after growing the file (storage.md): the file's extents
//! and length need no journal commit. Zeros are synced here, through a handle of this thread's own, so that the
//! writer's next fdatasync does not have to carry them and an error is reported to both.

use std::io;
use std::path::PathBuf;
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

fn run(disk: &dyn Disk, dir: &std::path::Path, shared: &Shared, jobs: Receiver<Job>) {
    let zeros = vec![0; ZEROS_BYTES];
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Fill(file, target) => {
                if let Err(error) = fill(disk, &file, &zeros, target) {
                    shared.fail(error);
                }
                file.fill_asked.store(false, Ordering::Release);
            }
            Job::Unlink(paths) => {
                if let Err(error) = unlink(disk, dir, &paths) {
                    // Space is not freed, but nothing is wrong with the log: opening tries again.
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

/// Removes files one by one, each durably before the next: a crash leaves no gap in their numbers.
fn unlink(disk: &dyn Disk, dir: &std::path::Path, paths: &[PathBuf]) -> io::Result<()> {
    for path in paths {
        disk.remove_file(path)?;
        disk.sync_dir(dir)?;
    }
    Ok(())
}
