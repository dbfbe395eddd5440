//! Tests of the whole log, over the faulty disk unless they need the real one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use bytes::Bytes;

use super::*;
use crate::disk::{FaultyDisk, RealDisk};

mod crash_model;
mod documented;

const DIR: &str = "/data/wal";

fn options() -> WalOptions {
    WalOptions { dir: DIR.into(), cluster_id: *b"cluster-cluster-", file_bytes_max: 32 << 10, prefill_bytes: 0 }
}

fn open(disk: &FaultyDisk) -> (Wal, Recovered) {
    Wal::open(Arc::new(disk.clone()), options()).unwrap()
}

type Outcome = Result<(), Arc<std::io::Error>>;

fn callback() -> (Done, Receiver<Outcome>) {
    let (sender, receiver) = channel();
    (Box::new(move |outcome| sender.send(outcome).unwrap_or(())), receiver)
}

fn payload(index: u64) -> Bytes {
    Bytes::from(vec![index as u8; 100 + (index % 7) as usize * 150])
}

fn frame(index: u64) -> Frame {
    let bytes = payload(index);
    let cut = bytes.len() / 3;
    Frame { term: Term(1 + index / 40), index: LogIndex(index), payload: vec![bytes.slice(..cut), bytes.slice(cut..)] }
}

fn append(wal: &Wal, indexes: std::ops::Range<u64>) -> Outcome {
    let (done, outcome) = callback();
    wal.append(indexes.map(frame).collect(), done);
    outcome.recv().unwrap()
}

fn wait(call: impl FnOnce(Done)) -> Outcome {
    let (done, outcome) = callback();
    call(done);
    outcome.recv().unwrap()
}

fn assert_stored(wal: &Wal, indexes: std::ops::Range<u64>) {
    let read = wal.read(LogIndex(indexes.start), LogIndex(indexes.end), usize::MAX).unwrap();
    assert_eq!(read.len() as u64, indexes.end - indexes.start);
    for (stored, index) in read.iter().zip(indexes) {
        assert_eq!((stored.index, stored.term), (LogIndex(index), Term(1 + index / 40)));
        assert_eq!(stored.payload, payload(index));
    }
}

fn names(disk: &dyn Disk, dir: &Path) -> Vec<PathBuf> {
    disk.list(dir).unwrap()
}

#[test]
fn everything_is_found_again_after_files_were_rolled_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let options = WalOptions { dir: dir.path().join("wal"), prefill_bytes: 8 << 10, ..options() };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::default());
    let (wal, recovered) = Wal::open(Arc::clone(&disk), options.clone()).unwrap();
    assert_eq!(recovered, Recovered::default());
    wait(|done| wal.save_vote(Bytes::from_static(b"vote 1"), done)).unwrap();
    for start in (0..200).step_by(10) {
        append(&wal, start..start + 10).unwrap();
    }
    wal.save_committed(Bytes::from_static(b"199"));
    assert_stored(&wal, 0..200);
    assert!(wal.stats().syncs >= 21 && wal.stats().bytes > 100_000, "{:?}", wal.stats());
    wal.close();
    assert!(append(&wal, 200..201).is_err(), "closed");
    assert!(names(&*disk, &options.dir).len() > 3, "several files");
    let (wal, recovered) = Wal::open(disk, options).unwrap();
    assert_eq!(recovered.vote, Some(Bytes::from_static(b"vote 1")));
    assert_eq!(recovered.committed, Some(Bytes::from_static(b"199")));
    assert_eq!((recovered.first, recovered.last), (Some(LogIndex(0)), Some((LogIndex(199), Term(5)))));
    assert_eq!(recovered.torn_bytes, 0);
    assert_stored(&wal, 0..200);
    append(&wal, 200..210).unwrap();
    assert_stored(&wal, 195..210);
}

#[test]
fn a_read_stops_at_its_bytes_but_gives_at_least_one_entry() {
    let (wal, _) = open(&FaultyDisk::new(1));
    append(&wal, 0..50).unwrap();
    assert_eq!(wal.read(LogIndex(6), LogIndex(50), 1).unwrap().len(), 1);
    let some = wal.read(LogIndex(0), LogIndex(50), 5000).unwrap();
    assert!(some.len() > 1 && some.iter().map(|e| e.payload.len()).sum::<usize>() <= 5000);
    assert!(wal.read(LogIndex(3), LogIndex(3), 100).unwrap().is_empty());
    assert!(matches!(wal.read(LogIndex(49), LogIndex(51), usize::MAX), Err(WalError::Missing(LogIndex(50)))));
}

#[test]
fn entries_written_over_truncated_ones_are_read_also_across_files_and_restarts() {
    let disk = FaultyDisk::new(2);
    let (wal, _) = open(&disk);
    append(&wal, 0..150).unwrap();
    wait(|done| wal.truncate_after(Some(LogIndex(20)), done)).unwrap();
    assert!(matches!(wal.read(LogIndex(21), LogIndex(22), 1), Err(WalError::Missing(_))));
    let newer = |i: u64| Frame { term: Term(9), index: LogIndex(i), payload: vec![Bytes::from(vec![7; 300])] };
    wait(|done| wal.append((21..120).map(newer).collect(), done)).unwrap();
    let check = |wal: &Wal| {
        assert_stored(wal, 0..21);
        let read = wal.read(LogIndex(21), LogIndex(120), usize::MAX).unwrap();
        assert!(read.iter().all(|e| e.term == Term(9) && e.payload.len() == 300) && read.len() == 99);
    };
    check(&wal);
    drop(wal);
    let (wal, recovered) = open(&disk);
    assert_eq!(recovered.last, Some((LogIndex(119), Term(9))));
    check(&wal);
    wait(|done| wal.truncate_after(None, done)).unwrap();
    drop(wal);
    let (wal, recovered) = open(&disk);
    assert_eq!((recovered.first, recovered.last), (None, None));
    append(&wal, 0..3).unwrap();
    assert_stored(&wal, 0..3);
}

#[test]
fn purged_files_are_unlinked_and_a_purge_may_lie_beyond_the_last_entry() {
    let disk = FaultyDisk::new(3);
    let (wal, _) = open(&disk);
    append(&wal, 0..200).unwrap();
    let before = names(&disk, Path::new(DIR)).len();
    wait(|done| wal.purge(LogIndex(150), Bytes::from_static(b"150"), done)).unwrap();
    assert!(matches!(wal.read(LogIndex(150), LogIndex(151), 1), Err(WalError::Missing(_))));
    assert_stored(&wal, 151..200);
    wal.close();
    assert!(names(&disk, Path::new(DIR)).len() < before, "older files are gone");
    let (wal, recovered) = open(&disk);
    assert_eq!(recovered.purged, Some((LogIndex(150), Bytes::from_static(b"150"))));
    assert_eq!(recovered.first, Some(LogIndex(151)));
    wait(|done| wal.purge(LogIndex(500), Bytes::from_static(b"500"), done)).unwrap();
    drop(wal);
    assert_eq!(names(&disk, Path::new(DIR)).len(), 1, "only the active file is left");
    let (wal, recovered) = open(&disk);
    assert_eq!((recovered.first, recovered.last), (None, None));
    append(&wal, 501..600).unwrap();
    drop(wal);
    let (wal, recovered) = open(&disk);
    assert_eq!((recovered.first, recovered.last.map(|l| l.0)), (Some(LogIndex(501)), Some(LogIndex(599))));
    assert_stored(&wal, 501..600);
}

#[test]
fn a_group_is_written_and_synced_once_and_called_back_newest_first() {
    let disk = FaultyDisk::new(4);
    let (wal, _) = open(&disk);
    // The first callback holds the writer until all others are queued.
    let (release, held) = channel::<()>();
    let (order, finished) = channel();
    let first = order.clone();
    wal.append(
        vec![frame(0)],
        Box::new(move |_| {
            held.recv().unwrap();
            first.send(0).unwrap();
        }),
    );
    for i in 1..10 {
        let order = order.clone();
        wal.append(vec![frame(i)], Box::new(move |outcome| order.send(outcome.map(|()| i).unwrap()).unwrap()));
    }
    let before = disk.syncs();
    release.send(()).unwrap();
    let told: Vec<u64> = (0..10).map(|_| finished.recv().unwrap()).collect();
    // The writer took 0 alone, or with some that followed it; the rest is one group.
    let split = told.iter().position(|i| *i == 0).unwrap() as u64;
    assert_eq!(told, (0..=split).rev().chain((split + 1..10).rev()).collect::<Vec<_>>());
    // One for the nine; one more if the first operation was taken with none of them.
    assert!((1..=2).contains(&(disk.syncs() - before)), "{} syncs", disk.syncs() - before);
}

#[test]
fn a_committed_marker_alone_is_never_synced_but_travels_with_the_next_group() {
    let disk = FaultyDisk::new(5);
    let (wal, _) = open(&disk);
    append(&wal, 0..1).unwrap();
    let syncs = disk.syncs();
    let bytes = wal.stats().bytes;
    wal.save_committed(Bytes::from_static(b"0"));
    while wal.stats().bytes == bytes {
        std::thread::yield_now();
    }
    assert_eq!(disk.syncs(), syncs);
    wal.save_committed(Bytes::from_static(b"1"));
    append(&wal, 1..2).unwrap();
    let (_, recovered) = open(&disk.crash());
    assert_eq!(recovered.committed, Some(Bytes::from_static(b"1")));
}

#[test]
fn a_failed_sync_kills_the_log_for_good() {
    let disk = FaultyDisk::new(6);
    let (wal, _) = open(&disk);
    append(&wal, 0..5).unwrap();
    assert!(wal.failure().is_none());
    disk.fail_sync_in(1);
    let first = append(&wal, 5..6).unwrap_err();
    let syncs = disk.syncs();
    let later = wait(|done| wal.save_vote(Bytes::from_static(b"v"), done)).unwrap_err();
    assert!(Arc::ptr_eq(&first, &later), "the first error, for ever");
    assert!(Arc::ptr_eq(&first, &wal.failure().unwrap()));
    wal.close();
    assert_eq!(disk.syncs(), syncs, "no sync is tried again");
    let (wal, recovered) = open(&disk.crash());
    assert_eq!(recovered.last.map(|l| l.0), Some(LogIndex(4)));
    assert_stored(&wal, 0..5);
}

#[test]
fn frames_whose_sync_failed_are_written_again_by_the_next_start() {
    let disk = FaultyDisk::new(7);
    let (wal, _) = open(&disk);
    append(&wal, 0..5).unwrap();
    disk.fail_sync_in(1);
    append(&wal, 5..8).unwrap_err();
    drop(wal);
    // The process restarts, the machine does not: the pages are still in the cache, and marked clean.
    let (wal, recovered) = open(&disk);
    assert_eq!(recovered.last.map(|l| l.0), Some(LogIndex(7)));
    drop(wal);
    let (wal, _) = open(&disk.crash());
    assert_stored(&wal, 0..8);
}

#[test]
fn a_full_disk_kills_the_log_and_loses_nothing_acknowledged() {
    let disk = FaultyDisk::new(8);
    let (wal, _) = open(&disk);
    append(&wal, 0..20).unwrap();
    disk.set_capacity(20_000);
    let error = (20..200).step_by(5).find_map(|i| append(&wal, i..i + 5).err()).unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    assert!(wait(|done| wal.truncate_after(None, done)).is_err());
    assert_stored(&wal, 0..20);
    drop(wal);
    disk.set_capacity(u64::MAX);
    let (wal, recovered) = open(&disk);
    let last = recovered.last.unwrap().0.0;
    assert!(last >= 19);
    assert_stored(&wal, 0..last + 1);
    append(&wal, last + 1..last + 10).unwrap();
}

#[test]
fn an_entry_that_would_leave_a_hole_kills_the_log() {
    let (wal, _) = open(&FaultyDisk::new(9));
    append(&wal, 0..5).unwrap();
    assert_eq!(append(&wal, 6..7).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    assert!(append(&wal, 5..6).is_err() && wal.failure().is_some());
}

#[test]
fn another_clusters_log_is_refused() {
    let disk = FaultyDisk::new(10);
    drop(open(&disk));
    let other = WalOptions { cluster_id: [1; 16], ..options() };
    let error = Wal::open(Arc::new(disk), other).unwrap_err();
    assert!(matches!(&error, WalError::OtherCluster { path } if path.starts_with(DIR)), "{error}");
}

#[test]
fn damage_below_what_was_synced_is_refused_with_file_and_position() {
    let first = Path::new(DIR).join(format::file_name(1));
    for (entry, in_payload) in [(0, 50), (0, 0), (3, 47), (7, 60)] {
        let disk = FaultyDisk::new(11);
        let (wal, _) = open(&disk);
        (0..10).for_each(|i| append(&wal, i..i + 1).unwrap());
        drop(wal);
        let frames = dump(&disk, &first).unwrap().frames;
        let position = frames[entry].position;
        disk.damage(&first, position + in_payload, 0x10);
        match Wal::open(Arc::new(disk), options()) {
            Err(WalError::Damaged { path, position: at, .. }) => assert_eq!((path, at), (first.clone(), position)),
            other => panic!("entry {entry}, byte {in_payload}: {other:?}"),
        }
    }
}

/// A log of several files, closed.
fn several_files(seed: u64) -> FaultyDisk {
    let disk = FaultyDisk::new(seed);
    let (wal, _) = open(&disk);
    append(&wal, 0..200).unwrap();
    drop(wal);
    assert!(names(&disk, Path::new(DIR)).len() > 3);
    disk
}

#[test]
fn damage_in_a_sealed_file_or_a_header_is_refused() {
    let disk = several_files(12);
    let path = |n| Path::new(DIR).join(format::file_name(n));
    let last = dump(&disk, &path(2)).unwrap().frames.pop().unwrap();
    for (file, byte, told) in [(2, last.position + 60, last.position), (3, 20, 0), (4, 4000, 0)] {
        disk.damage(&path(file), byte, 1);
        match Wal::open(Arc::new(disk.clone()), options()) {
            Err(WalError::Damaged { path: at, position, .. }) => assert_eq!((at, position), (path(file), told)),
            other => panic!("file {file}, byte {byte}: {other:?}"),
        }
        disk.damage(&path(file), byte, 1);
    }
    assert_stored(&open(&disk).0, 0..200);
}

#[test]
fn a_missing_file_is_refused_by_name() {
    for missing in [1, 2] {
        let disk = several_files(13);
        let path = Path::new(DIR).join(format::file_name(missing));
        disk.remove_file(&path).unwrap();
        match Wal::open(Arc::new(disk), options()) {
            Err(WalError::Damaged { path: at, .. }) => assert_eq!(at, path),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_torn_frame_is_cut_with_the_whole_frames_behind_it() {
    let disk = FaultyDisk::new(13);
    let (wal, _) = open(&disk);
    append(&wal, 0..3).unwrap();
    append(&wal, 3..8).unwrap();
    drop(wal);
    let path = Path::new(DIR).join(format::file_name(1));
    let frames = dump(&disk, &path).unwrap().frames;
    // Entries 3 to 7 were one group: nothing on disk knows that it was synced.
    disk.damage(&path, frames[4].position + 50, 1);
    let (wal, recovered) = open(&disk);
    assert_eq!(recovered.last.map(|l| l.0), Some(LogIndex(3)));
    assert!(recovered.torn_bytes > 0);
    assert_stored(&wal, 0..4);
    append(&wal, 4..6).unwrap();
    let (wal, recovered) = open(&disk.crash());
    assert_eq!((recovered.last.map(|l| l.0), recovered.torn_bytes), (Some(LogIndex(5)), 0));
    assert_stored(&wal, 0..6);
}

#[test]
fn a_read_error_is_told_with_its_file() {
    let disk = FaultyDisk::new(14);
    let (wal, _) = open(&disk);
    append(&wal, 0..3).unwrap();
    disk.fail_read_in(1);
    let error = wal.read(LogIndex(0), LogIndex(3), 1 << 20).unwrap_err();
    assert!(matches!(&error, WalError::Io { path, .. } if path.ends_with(format::file_name(1))), "{error}");
    assert_stored(&wal, 0..3);
    drop(wal);
    disk.fail_read_in(2);
    assert!(matches!(Wal::open(Arc::new(disk), options()), Err(WalError::Io { .. })));
}
