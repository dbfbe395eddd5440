//! A disk in memory that loses what was not synced: for tests and for the simulation, never for data.
//!
//! [`FaultyDisk::crash`] is a power cut. It leaves of each file, page by page (4 KiB), any state between the last sync
//! and the last write, so unsynced writes are dropped, reordered or torn at any byte; of the names in a directory, any
//! prefix of the changes since its last sync. Directories themselves are durable at once. A failed sync loses its
//! writes for good although they stay readable, as Linux does (the pages are marked clean).
//! Everything random comes from the seed, so one seed and one order of calls give one outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Disk, File};

mod content;

use content::{Change, Node, Random};

/// The disk. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct FaultyDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// After a crash the old handles answer nothing but errors.
    dead: bool,
    dirs: BTreeSet<PathBuf>,
    /// What programs see.
    names: BTreeMap<PathBuf, u64>,
    /// What a crash leaves, before the surviving prefix of `name_changes`.
    durable_names: BTreeMap<PathBuf, u64>,
    name_changes: Vec<NameChange>,
    nodes: BTreeMap<u64, Node>,
    next_node: u64,
    capacity_bytes: u64,
    /// Counts down; the sync or read that takes it to zero fails, and `None` never fails.
    fail_sync_in: Option<u32>,
    fail_read_in: Option<u32>,
    cut_power_in: Option<u32>,
    syncs: u64,
}

#[derive(Clone, Debug)]
enum NameChange {
    Create(PathBuf, u64),
    Rename(PathBuf, PathBuf),
    /// Of a directory, with all that is in it.
    RenameDir(PathBuf, PathBuf),
    Remove(PathBuf),
}

#[derive(Debug)]
struct FaultyFile {
    state: Arc<Mutex<State>>,
    node: u64,
    /// The `sync_errors` of the node that this handle has reported.
    sync_errors_told: AtomicU64,
}

impl FaultyDisk {
    /// An empty disk whose crashes follow from `seed`.
    pub fn new(seed: u64) -> Self {
        let state = State {
            random: Random(seed),
            dead: false,
            dirs: BTreeSet::from([PathBuf::from("/")]),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_changes: Vec::new(),
            nodes: BTreeMap::new(),
            next_node: 0,
            capacity_bytes: u64::MAX,
            fail_sync_in: None,
            fail_read_in: None,
            cut_power_in: None,
            syncs: 0,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Cuts the power. This disk and its open files answer only errors from now on; what survived is returned.
    pub fn crash(&self) -> Self {
        let mut state = self.state.lock();
        state.dead = true;
        let mut names = state.durable_names.clone();
        let changes = std::mem::take(&mut state.name_changes);
        let kept = state.random.up_to(changes.len());
        changes[..kept].iter().for_each(|change| change.apply(&mut names));
        let survivors = Self::new(state.random.draw());
        let mut after = survivors.state.lock();
        after.dirs = state.dirs.clone();
        for lost in changes[kept..].iter().rev() {
            if let NameChange::RenameDir(from, to) = lost {
                after.dirs = after.dirs.iter().map(|dir| moved_path(dir, to, from)).collect();
            }
        }
        for (path, id) in names {
            let node = state.nodes[&id].clone();
            let content = node.after_crash(&mut state.random);
            let id = after.next_node;
            after.next_node += 1;
            after.nodes.insert(id, Node { durable: content.clone(), current: content, ..Node::default() });
            // A directory whose removal did not survive is there too.
            after.dirs.extend(path.ancestors().skip(1).map(Path::to_owned));
            after.names.insert(path, id);
        }
        after.durable_names = after.names.clone();
        after.capacity_bytes = state.capacity_bytes;
        drop(after);
        survivors
    }

    /// Lets the `count`-th next sync (of a file or a directory) fail with an I/O error; 1 is the very next.
    pub fn fail_sync_in(&self, count: u32) {
        self.state.lock().fail_sync_in = Some(count);
    }

    /// Lets the `count`-th next read fail with an I/O error; 1 is the very next.
    pub fn fail_read_in(&self, count: u32) {
        self.state.lock().fail_read_in = Some(count);
    }

    /// Cuts the power at the `count`-th next call that changes something (a write, sync, creation, rename or removal):
    /// a write still reaches the cache, all else fails before it has any effect. Then call [`Self::crash`].
    pub fn cut_power_in(&self, count: u32) {
        self.state.lock().cut_power_in = Some(count);
    }

    /// Sets how many bytes all files may have together; a write over it fails with `StorageFull`.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity_bytes = bytes;
    }

    /// Flips the bits of `mask` in one durable byte, as a decaying medium would.
    ///
    /// # Panics
    /// If there is no such file or byte.
    pub fn damage(&self, path: &Path, position: u64, mask: u8) {
        let mut state = self.state.lock();
        let id = state.names[path];
        let node = state.nodes.get_mut(&id).expect("a named file has a node");
        let at = usize::try_from(position).expect("positions of files in memory fit");
        node.durable[at] ^= mask;
        node.current[at] ^= mask;
    }

    /// How many syncs succeeded.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Self::Create(path, id) => {
                names.insert(path.clone(), *id);
            }
            Self::Rename(from, to) => {
                if let Some(id) = names.remove(from) {
                    names.insert(to.clone(), id);
                }
            }
            Self::RenameDir(from, to) => {
                // A directory that had the name before was removed, with all that was in it.
                names.retain(|name, _| !name.starts_with(to));
                let moved: Vec<PathBuf> = names.keys().filter(|name| name.starts_with(from)).cloned().collect();
                for name in moved {
                    let id = names.remove(&name).expect("just listed");
                    names.insert(moved_path(&name, from, to), id);
                }
            }
            Self::Remove(path) => {
                names.remove(path);
            }
        }
    }

    fn dir(&self) -> Option<&Path> {
        match self {
            Self::Create(path, _) | Self::Rename(_, path) | Self::RenameDir(_, path) | Self::Remove(path) => {
                path.parent()
            }
        }
    }

    /// The same change after a directory got another name.
    fn moved(self, from: &Path, to: &Path) -> Self {
        match self {
            Self::Create(path, id) => Self::Create(moved_path(&path, from, to), id),
            Self::Rename(a, b) => Self::Rename(moved_path(&a, from, to), moved_path(&b, from, to)),
            Self::RenameDir(a, b) => Self::RenameDir(moved_path(&a, from, to), moved_path(&b, from, to)),
            Self::Remove(path) => Self::Remove(moved_path(&path, from, to)),
        }
    }
}

fn moved_path(path: &Path, from: &Path, to: &Path) -> PathBuf {
    match path.strip_prefix(from) {
        Ok(rest) if rest.as_os_str().is_empty() => to.to_owned(),
        Ok(rest) => to.join(rest),
        Err(_) => path.to_owned(),
    }
}

impl State {
    fn alive(&mut self) -> io::Result<&mut Self> {
        if self.dead { Err(io::Error::other("the machine has crashed")) } else { Ok(self) }
    }

    /// To be called by what changes something and cannot be half done.
    fn powered(&mut self) -> io::Result<()> {
        self.dead |= Self::strikes(&mut self.cut_power_in);
        self.alive().map(|_| ())
    }

    fn change_name(&mut self, change: NameChange) -> io::Result<()> {
        self.powered()?;
        change.apply(&mut self.names);
        self.name_changes.push(change);
        Ok(())
    }

    fn used_bytes(&self) -> u64 {
        self.names.values().map(|id| self.nodes[id].current.len() as u64).sum()
    }

    /// Whether the fault that counts down in `counter` strikes now.
    fn strikes(counter: &mut Option<u32>) -> bool {
        let Some(left) = counter else {
            return false;
        };
        *left = left.saturating_sub(1);
        let now = *left == 0;
        if now {
            *counter = None;
        }
        now
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path, create: bool) -> io::Result<Arc<dyn File>> {
        let mut state = self.state.lock();
        let state = state.alive()?;
        let node = match state.names.get(path) {
            Some(id) => *id,
            None if create => {
                if !path.parent().is_some_and(|dir| state.dirs.contains(dir)) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                let id = state.next_node;
                state.next_node += 1;
                state.nodes.insert(id, Node::default());
                state.change_name(NameChange::Create(path.to_owned(), id))?;
                id
            }
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        let sync_errors_told = AtomicU64::new(state.nodes[&node].sync_errors);
        Ok(Arc::new(FaultyFile { state: Arc::clone(&self.state), node, sync_errors_told }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let state = state.alive()?;
        state.dirs.extend(path.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let state = state.alive()?;
        if state.dirs.contains(from) {
            if state.dirs.contains(to) || state.names.contains_key(to) {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            state.change_name(NameChange::RenameDir(from.to_owned(), to.to_owned()))?;
            state.dirs = state.dirs.iter().map(|dir| moved_path(dir, from, to)).collect();
            return Ok(());
        }
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change_name(NameChange::Rename(from.to_owned(), to.to_owned()))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let state = state.alive()?;
        if !state.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change_name(NameChange::Remove(path.to_owned()))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let state = state.alive()?;
        if !state.dirs.contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let files: Vec<PathBuf> = state.names.keys().filter(|name| name.starts_with(path)).cloned().collect();
        for file in files {
            state.change_name(NameChange::Remove(file))?;
        }
        state.dirs.retain(|dir| !dir.starts_with(path));
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let mut state = self.state.lock();
        let state = state.alive()?;
        if !state.dirs.contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let all = state.names.keys().chain(state.dirs.iter());
        let mut names: Vec<PathBuf> = all
            .filter(|name| name.parent() == Some(path))
            .filter_map(|name| name.file_name().map(PathBuf::from))
            .collect();
        names.sort();
        Ok(names)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let state = state.alive()?;
        if !state.dirs.contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.powered()?;
        if State::strikes(&mut state.fail_sync_in) {
            return Err(io::Error::other("injected sync error"));
        }
        state.syncs += 1;
        let changes = std::mem::take(&mut state.name_changes);
        for change in changes {
            if change.dir() != Some(path) {
                state.name_changes.push(change);
                continue;
            }
            if let NameChange::RenameDir(from, to) = &change {
                // What happened before in the directory, and is not durable, goes with it.
                // What happened in the directory that had the name before is over.
                let mut before = std::mem::take(&mut state.name_changes);
                before.retain(|change| !change.dir().is_some_and(|dir| dir.starts_with(to)));
                state.name_changes = before.into_iter().map(|change| change.moved(from, to)).collect();
            }
            change.apply(&mut state.durable_names);
        }
        Ok(())
    }

    fn free_bytes(&self, _path: &Path) -> io::Result<u64> {
        let mut state = self.state.lock();
        let state = state.alive()?;
        Ok(state.capacity_bytes.saturating_sub(state.used_bytes()))
    }
}

impl FaultyFile {
    fn with<T>(&self, work: impl FnOnce(&mut Node) -> T) -> io::Result<T> {
        let mut state = self.state.lock();
        let node = state.alive()?.nodes.get_mut(&self.node).expect("nodes are never removed");
        Ok(work(node))
    }

    fn change(&self, change: Change) -> io::Result<()> {
        self.with(|node| {
            change.apply(&mut node.current);
            node.unsynced.push(change);
        })?;
        self.state.lock().powered()
    }
}

impl File for FaultyFile {
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        if State::strikes(&mut self.state.lock().alive()?.fail_read_in) {
            return Err(io::Error::other("injected read error"));
        }
        self.with(|node| {
            let from = usize::try_from(position).unwrap_or(usize::MAX).min(node.current.len());
            let count = buf.len().min(node.current.len() - from);
            buf[..count].copy_from_slice(&node.current[from..from + count]);
            count
        })
    }

    fn write_all_at(&self, slices: &[&[u8]], position: u64) -> io::Result<()> {
        let mut bytes = slices.concat();
        let at = usize::try_from(position).map_err(io::Error::other)?;
        let room = {
            let mut state = self.state.lock();
            let state = state.alive()?;
            let own = state.nodes[&self.node].current.len();
            let free = state.capacity_bytes.saturating_sub(state.used_bytes());
            usize::try_from(free).unwrap_or(usize::MAX).saturating_add(own).saturating_sub(at)
        };
        // As pwrite does, a full disk takes what fits.
        let full = bytes.len() > room;
        bytes.truncate(room);
        self.change(Change::Write(at, bytes))?;
        if full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        let state = state.alive()?;
        state.powered()?;
        let failed = State::strikes(&mut state.fail_sync_in);
        let node = state.nodes.get_mut(&self.node).expect("nodes are never removed");
        let changes = std::mem::take(&mut node.unsynced);
        if failed {
            node.sync_errors += 1;
        } else {
            changes.iter().for_each(|change| change.apply(&mut node.durable));
        }
        if self.sync_errors_told.swap(node.sync_errors, Ordering::Relaxed) != node.sync_errors {
            return Err(io::Error::other("injected sync error"));
        }
        state.syncs += 1;
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Change::SetLen(usize::try_from(len).map_err(io::Error::other)?))
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|node| node.current.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::content::PAGE_BYTES;
    use super::*;

    fn content(disk: &FaultyDisk, path: &str) -> Option<Vec<u8>> {
        let file = disk.open(Path::new(path), false).ok()?;
        let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
        file.read_at(&mut bytes, 0).unwrap();
        Some(bytes)
    }

    #[test]
    fn what_was_synced_survives_every_crash() {
        for seed in 0..200 {
            let disk = FaultyDisk::new(seed);
            let file = disk.open(Path::new("/f"), true).unwrap();
            file.write_all_at(&[&[1; 10_000]], 0).unwrap();
            file.sync_data().unwrap();
            disk.sync_dir(Path::new("/")).unwrap();
            file.write_all_at(&[&[2; 10_000]], 10_000).unwrap();
            let after = content(&disk.crash(), "/f").unwrap();
            assert_eq!(&after[..10_000], &[1; 10_000], "seed {seed}");
            assert!(file.sync_data().is_err(), "a crashed machine answers nothing");
        }
    }

    #[test]
    fn unsynced_writes_are_dropped_kept_reordered_and_torn() {
        let (mut dropped, mut kept, mut reordered, mut torn) = (0, 0, 0, 0);
        for seed in 0..500 {
            let disk = FaultyDisk::new(seed);
            let file = disk.open(Path::new("/f"), true).unwrap();
            file.write_all_at(&[&[9; 2 * PAGE_BYTES]], 0).unwrap();
            file.sync_data().unwrap();
            disk.sync_dir(Path::new("/")).unwrap();
            file.write_all_at(&[&[1; PAGE_BYTES]], 0).unwrap();
            file.write_all_at(&[&[2; PAGE_BYTES]], PAGE_BYTES as u64).unwrap();
            let after = content(&disk.crash(), "/f").unwrap();
            let (first, second) = after.split_at(PAGE_BYTES);
            dropped += usize::from(first == [9; PAGE_BYTES] && second == [9; PAGE_BYTES]);
            kept += usize::from(first == [1; PAGE_BYTES] && second == [2; PAGE_BYTES]);
            reordered += usize::from(first == [9; PAGE_BYTES] && second == [2; PAGE_BYTES]);
            torn += usize::from(first.contains(&1) && first.contains(&9));
        }
        assert!(dropped > 20 && kept > 20 && reordered > 5 && torn > 5, "{dropped} {kept} {reordered} {torn}");
    }

    #[test]
    fn names_need_a_sync_of_their_directory() {
        let mut lost = 0;
        for seed in 0..50 {
            let disk = FaultyDisk::new(seed);
            let file = disk.open(Path::new("/a"), true).unwrap();
            file.write_all_at(&[b"x"], 0).unwrap();
            file.sync_data().unwrap();
            disk.sync_dir(Path::new("/")).unwrap();
            disk.rename(Path::new("/a"), Path::new("/b")).unwrap();
            let after = disk.crash();
            let found = (content(&after, "/a").is_some(), content(&after, "/b").is_some());
            assert!(found.0 != found.1, "a rename is atomic");
            lost += usize::from(found.0);
        }
        assert!(0 < lost && lost < 50);
    }

    #[test]
    fn a_directory_is_renamed_with_all_that_is_in_it_or_not_at_all() {
        let mut lost = 0;
        for seed in 0..50 {
            let disk = FaultyDisk::new(seed);
            disk.create_dir_all(Path::new("/old")).unwrap();
            for name in ["/old/a", "/old/b"] {
                disk.open(Path::new(name), true).unwrap();
            }
            disk.sync_dir(Path::new("/old")).unwrap();
            disk.rename(Path::new("/old"), Path::new("/new")).unwrap();
            assert_eq!(disk.list(Path::new("/")).unwrap(), [PathBuf::from("new")]);
            if seed % 2 == 0 {
                disk.sync_dir(Path::new("/")).unwrap();
            }
            let after = disk.crash();
            let found = ["/old/a", "/old/b", "/new/a", "/new/b"].map(|path| content(&after, path).is_some());
            assert!(found == [true, true, false, false] || found == [false, false, true, true], "{found:?}");
            assert!(!found[0] || seed % 2 == 1, "a synced rename survives");
            lost += usize::from(found[0]);
        }
        assert!(0 < lost && lost < 25);
    }

    #[test]
    fn the_same_seed_leaves_the_same_bytes() {
        let run = || {
            let disk = FaultyDisk::new(42);
            let file = disk.open(Path::new("/f"), true).unwrap();
            disk.sync_dir(Path::new("/")).unwrap();
            for n in 0..20_u8 {
                file.write_all_at(&[&[n; 3000]], u64::from(n) * 2000).unwrap();
            }
            content(&disk.crash(), "/f")
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn a_failed_sync_loses_its_writes_although_they_stay_readable() {
        let disk = FaultyDisk::new(1);
        let file = disk.open(Path::new("/f"), true).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        file.write_all_at(&[b"abc"], 0).unwrap();
        disk.fail_sync_in(1);
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        assert_eq!(content(&disk, "/f").unwrap(), b"abc");
        assert_eq!(content(&disk.crash(), "/f").unwrap(), b"");
    }

    #[test]
    fn a_full_disk_takes_what_fits_and_says_so() {
        let disk = FaultyDisk::new(1);
        disk.set_capacity(5);
        let file = disk.open(Path::new("/f"), true).unwrap();
        assert_eq!(file.write_all_at(&[b"abcdefgh"], 0).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(content(&disk, "/f").unwrap(), b"abcde");
        assert_eq!(disk.free_bytes(Path::new("/")).unwrap(), 0);
        disk.fail_read_in(1);
        assert!(file.read_at(&mut [0], 0).is_err());
        assert_eq!(file.read_at(&mut [0], 0).unwrap(), 1);
    }

    #[test]
    fn a_directory_that_takes_the_name_of_a_removed_one_keeps_its_own_files() {
        for seed in 0..40 {
            let disk = FaultyDisk::new(seed);
            for (dir, content) in [("/d/kept", b"kept"), ("/d/name", b"gone")] {
                disk.create_dir_all(Path::new(dir)).unwrap();
                let file = disk.open(&Path::new(dir).join("f"), true).unwrap();
                file.write_all_at(&[content], 0).unwrap();
                file.sync_data().unwrap();
                disk.sync_dir(Path::new(dir)).unwrap();
            }
            disk.sync_dir(Path::new("/d")).unwrap();
            disk.remove_dir_all(Path::new("/d/name")).unwrap();
            disk.rename(Path::new("/d/kept"), Path::new("/d/name")).unwrap();
            disk.sync_dir(Path::new("/d")).unwrap();
            let survivor = disk.crash();
            let file = survivor.open(Path::new("/d/name/f"), false).expect("it is durable under its new name");
            let mut content = [0; 4];
            file.read_at(&mut content, 0).unwrap();
            assert_eq!(&content, b"kept");
            assert!(survivor.open(Path::new("/d/kept/f"), false).is_err());
        }
    }
}
