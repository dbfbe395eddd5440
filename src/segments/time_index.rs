//! The time index of a segment, in Kafka's format: 12 bytes per entry, {timestamp i64, relative offset i32}, big-endian.
//!
//! An entry (t, o) says: t is the greatest timestamp up to and including offset o, and the batch that ends at o has it.
//! Timestamps and offsets both ascend. Entries are added beside those of the offset index, and one more when the
//! segment is sealed (Kafka's `LogSegment.onBecomeInactiveSegment`).

use std::io;
use std::sync::Arc;

use super::index::read_exact;
use crate::disk::File;

/// Bytes of one entry.
pub(super) const ENTRY_BYTES: u64 = 12;

/// Encodes an entry.
pub(super) fn encode(timestamp_ms: i64, relative_offset: i32) -> [u8; ENTRY_BYTES as usize] {
    let mut entry = [0; ENTRY_BYTES as usize];
    entry[..8].copy_from_slice(&timestamp_ms.to_be_bytes());
    entry[8..].copy_from_slice(&relative_offset.to_be_bytes());
    entry
}

fn entry_at(file: &Arc<dyn File>, number: u32) -> io::Result<(i64, i32)> {
    let mut entry = [0; ENTRY_BYTES as usize];
    read_exact(file, &mut entry, u64::from(number) * ENTRY_BYTES)?;
    let (timestamp, offset) = entry.split_at(8);
    Ok((
        i64::from_be_bytes(timestamp.try_into().expect("eight bytes")),
        i32::from_be_bytes(offset.try_into().expect("four bytes")),
    ))
}

/// The last of the first `entries` entries that satisfies `is_before`, which must hold for a prefix of them.
pub(super) fn last_where(
    file: &Arc<dyn File>,
    entries: u32,
    is_before: impl Fn(i64, i32) -> bool,
) -> io::Result<Option<(i64, i32)>> {
    let (mut low, mut high, mut found) = (0, entries, None);
    while low < high {
        let middle = low + (high - low) / 2;
        let (timestamp, offset) = entry_at(file, middle)?;
        if is_before(timestamp, offset) {
            found = Some((timestamp, offset));
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(found)
}
