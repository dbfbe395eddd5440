//! A disk whose fsyncs can be held back, to look at what happens meanwhile.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::disk::faulty::FaultyDisk;
use crate::disk::{Disk, File};

/// A disk with a gate in front of `sync_data`.
#[derive(Clone, Debug)]
pub struct GateDisk {
    disk: FaultyDisk,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
}

impl GateDisk {
    /// An open gate in front of `disk`.
    pub fn new(disk: FaultyDisk) -> Self {
        Self { disk, gate: Arc::default() }
    }

    /// Holds every fsync back from now on.
    pub fn close(&self) {
        *self.gate.closed.lock() = true;
    }

    /// Lets them through.
    pub fn open(&self) {
        *self.gate.closed.lock() = false;
        self.gate.opened.notify_all();
    }
}

impl Disk for GateDisk {
    fn open(&self, path: &Path, create: bool) -> io::Result<Arc<dyn File>> {
        let file = self.disk.open(path, create)?;
        Ok(Arc::new(GateFile { file, gate: self.gate.clone() }))
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir_all(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_file(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir_all(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        self.disk.list(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.sync_dir(path)
    }
    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.disk.free_bytes(path)
    }
}

#[derive(Debug)]
struct GateFile {
    file: Arc<dyn File>,
    gate: Arc<Gate>,
}

impl File for GateFile {
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        self.file.read_at(buf, position)
    }
    fn write_all_at(&self, slices: &[&[u8]], position: u64) -> io::Result<()> {
        self.file.write_all_at(slices, position)
    }
    fn sync_data(&self) -> io::Result<()> {
        let mut closed = self.gate.closed.lock();
        self.gate.opened.wait_while(&mut closed, |closed| *closed);
        drop(closed);
        self.file.sync_data()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
