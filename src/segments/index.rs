//! The offset index of a segment, in Kafka's format: 8 bytes per entry, {relative offset i32, position i32}, big-endian.
//!
//! An entry names the last offset of a batch and the byte where that batch starts (Kafka's `LogSegment.append`), at most
//! one per [`INTERVAL_BYTES`] of log. So the greatest entry at or below an offset is where a scan for it may start.
//! Indexes are derived from the log: entries are read with pread by bisection, never kept in memory, and a wrong
//! index costs time, not correctness (a reader checks the batch that it lands on).

use std::io;
use std::sync::Arc;

use crate::disk::File;

/// Bytes of log between two entries (Kafka's `index.interval.bytes`).
pub(super) const INTERVAL_BYTES: u64 = 4096;
/// Bytes of one entry.
pub(super) const ENTRY_BYTES: u64 = 8;

/// Encodes an entry.
pub(super) fn encode(relative_offset: i32, position: u32) -> [u8; ENTRY_BYTES as usize] {
    let mut entry = [0; ENTRY_BYTES as usize];
    entry[..4].copy_from_slice(&relative_offset.to_be_bytes());
    entry[4..].copy_from_slice(&position.to_be_bytes());
    entry
}

fn entry_at(file: &Arc<dyn File>, number: u32) -> io::Result<(i32, u32)> {
    let mut entry = [0; ENTRY_BYTES as usize];
    read_exact(file, &mut entry, u64::from(number) * ENTRY_BYTES)?;
    let (offset, position) = entry.split_at(4);
    Ok((
        i32::from_be_bytes(offset.try_into().expect("four bytes")),
        u32::from_be_bytes(position.try_into().expect("four bytes")),
    ))
}

/// Position of the greatest of the first `entries` entries whose offset is at or below `relative_offset`; 0 without one.
pub(super) fn lookup(file: &Arc<dyn File>, entries: u32, relative_offset: i32) -> io::Result<u64> {
    let (mut low, mut high, mut found) = (0, entries, 0);
    while low < high {
        let middle = low + (high - low) / 2;
        let (offset, position) = entry_at(file, middle)?;
        if offset <= relative_offset {
            found = u64::from(position);
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(found)
}

/// Fills `buf` or fails with `UnexpectedEof`.
pub(super) fn read_exact(file: &Arc<dyn File>, buf: &mut [u8], position: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], position + done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => done += read,
        }
    }
    Ok(())
}
