//! Open segment files: a bounded cache, least recently used out first. Files open on first use.
//!
//! Closing a file that was written but not synced loses nothing: its pages stay with the operating system, and a
//! later fdatasync through another handle covers them.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::segment::{self, Kind};
use super::tail::Partition;
use crate::disk::{Disk, File};
use crate::types::TopicPartition;

/// Which file. Topic ids are never used twice, so a key never changes its meaning.
type Key = (TopicPartition, i64, Kind);

#[derive(Debug, Default)]
struct Open {
    files: HashMap<Key, (Arc<dyn File>, u64)>,
    uses: u64,
    /// How often something was forgotten: a file opened meanwhile may be one of them, and is not kept.
    forgets: u64,
}

/// The cache.
#[derive(Debug)]
pub(super) struct Files {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    open_max: usize,
    open: Mutex<Open>,
}

impl Files {
    /// At most `open_max` files below `dir` at a time (a few more while they are in use).
    pub(super) fn new(disk: Arc<dyn Disk>, dir: PathBuf, open_max: usize) -> Self {
        Self { disk, dir, open_max: open_max.max(8), open: Mutex::default() }
    }

    /// The disk below.
    pub(super) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Where folders and the manifest are.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder of a partition, under the name that it has now.
    pub(super) fn folder(&self, of: &Partition) -> PathBuf {
        let deleted = of.files.lock().deleted;
        segment::folder(&self.dir, &of.topic, of.id.topic, of.id.partition, deleted)
    }

    /// The path of a file, under the name that its folder has now.
    pub(super) fn path(&self, of: &Partition, base: i64, kind: Kind) -> PathBuf {
        self.folder(of).join(segment::file_name(base, kind))
    }

    /// A file, opened if it is not open; created if missing and `create`.
    pub(super) fn get(&self, of: &Partition, base: i64, kind: Kind, create: bool) -> io::Result<Arc<dyn File>> {
        let key = (of.id, base, kind);
        let forgets = {
            let mut open = self.open.lock();
            open.uses += 1;
            let uses = open.uses;
            if let Some((file, last)) = open.files.get_mut(&key) {
                *last = uses;
                return Ok(file.clone());
            }
            open.forgets
        };
        let file = self.disk.open(&self.path(of, base, kind), create)?;
        let mut open = self.open.lock();
        if open.forgets != forgets {
            return Ok(file);
        }
        if open.files.len() >= self.open_max {
            open.evict();
        }
        let uses = open.uses;
        open.files.insert(key, (file.clone(), uses));
        Ok(file)
    }

    /// Closes the files of a partition that is gone.
    pub(super) fn forget(&self, of: TopicPartition) {
        let mut open = self.open.lock();
        open.forgets += 1;
        open.files.retain(|(partition, _, _), _| *partition != of);
    }

    /// Closes the files of a segment that is gone.
    pub(super) fn forget_segment(&self, of: TopicPartition, base: i64) {
        let mut open = self.open.lock();
        open.forgets += 1;
        for kind in Kind::ALL {
            open.files.remove(&(of, base, kind));
        }
    }

    /// How many files are open.
    #[cfg(test)]
    pub(super) fn open_count(&self) -> usize {
        self.open.lock().files.len()
    }
}

impl Open {
    /// Closes the least recently used eighth at once, so that evicting costs O(log n) per file opened.
    fn evict(&mut self) {
        let mut uses: Vec<u64> = self.files.values().map(|(_, last)| *last).collect();
        uses.sort_unstable();
        let limit = uses[uses.len() / 8];
        self.files.retain(|_, (_, last)| *last > limit);
    }
}
