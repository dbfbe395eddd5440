//! What this node gives to one that is far behind: the newest durable manifest, and the files it names, piece by piece.
//!
//! A checkpoint that somebody pulls is held: files that it names are not removed meanwhile, and the log behind it is kept
//! (`Segments::held`). A hold ends when nobody has asked for a while, and in any case after a bound, so that a node that
//! pulls without ever finishing cannot fill this one's disk. Segment files only ever grow, so a piece below the length in
//! the manifest is the same whenever it is read; the manifest itself stays readable through its open handle.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::index::read_exact;
use super::segment::Kind;
use super::{SegmentError, Segments};
use crate::config::limits::{TRANSFER_HOLD_MS_MAX, TRANSFER_IDLE_MS_MAX, TRANSFER_PIECE_BYTES_MAX, TRANSFERS_MAX};
use crate::disk::File;
use crate::types::{LogIndex, Term, TopicPartition};

/// A checkpoint that can be pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Index of the last entry in it.
    pub index: LogIndex,
    /// That entry's term.
    pub term: Term,
    /// Length of its manifest.
    pub manifest_bytes: u64,
}

/// A file of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRef(pub(super) Name);

/// Which file of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Name {
    /// The manifest.
    Manifest,
    /// A file of the segment with this base offset.
    Segment(TopicPartition, i64, Kind),
}

/// A piece that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// Of the checkpoint at this index.
    pub checkpoint: LogIndex,
    /// Of this file.
    pub file: FileRef,
    /// Where it starts.
    pub position: u64,
    /// Its length.
    pub len: u32,
    /// The bytes; false if their checksum is enough, because the asker may have them.
    pub bytes: bool,
}

/// A piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// CRC-32C of the piece.
    pub crc: u32,
    /// The piece, if it was asked for.
    pub bytes: Bytes,
}

impl Piece {
    /// Whether it came as it was sent, and is as long as what was asked for.
    pub fn answers(&self, want: &Want) -> bool {
        !want.bytes || (self.bytes.len() == want.len as usize && crc32c::crc32c(&self.bytes) == self.crc)
    }
}

/// Why there is no piece.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The checkpoint is not held any more (or the piece is too large): ask for an offer again.
    #[error("this checkpoint is not held (any more)")]
    Gone,
    /// The file cannot be read.
    #[error(transparent)]
    Segments(#[from] SegmentError),
}

/// A durable checkpoint with its manifest, open.
#[derive(Clone, Debug)]
struct Durable {
    offer: Offer,
    manifest: Arc<dyn File>,
}

#[derive(Debug)]
struct Held {
    of: Durable,
    since: Instant,
    used: Instant,
}

#[derive(Debug, Default)]
struct State {
    newest: Option<Durable>,
    /// At most [`TRANSFERS_MAX`], one per checkpoint.
    held: Vec<Held>,
}

impl State {
    fn expire(&mut self, now: Instant) {
        self.held.retain(|held| {
            now.duration_since(held.used) < Duration::from_millis(TRANSFER_IDLE_MS_MAX)
                && now.duration_since(held.since) < Duration::from_millis(TRANSFER_HOLD_MS_MAX)
        });
    }
}

/// The newest durable checkpoint, and those that are being pulled.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    state: Mutex<State>,
}

impl Transfers {
    /// A manifest has become durable. To be called before anything is removed that it does not name.
    pub(super) fn wrote(&self, offer: Offer, manifest: Arc<dyn File>) {
        self.state.lock().newest = Some(Durable { offer, manifest });
    }

    /// Whether files of older manifests must stay: asked by whoever is about to remove some.
    pub(super) fn hold_files(&self) -> bool {
        let mut state = self.state.lock();
        state.expire(Instant::now());
        !state.held.is_empty()
    }

    fn offer(&self, now: Instant) -> Option<Offer> {
        let mut state = self.state.lock();
        state.expire(now);
        let newest = state.newest.clone()?;
        let offer = newest.offer;
        if let Some(held) = state.held.iter_mut().find(|held| held.of.offer.index == offer.index) {
            held.used = now;
        } else if state.held.len() < TRANSFERS_MAX {
            state.held.push(Held { of: newest, since: now, used: now });
        } else {
            return None;
        }
        Some(offer)
    }

    fn manifest(&self, checkpoint: LogIndex, now: Instant) -> Option<Arc<dyn File>> {
        let mut state = self.state.lock();
        state.expire(now);
        let held = state.held.iter_mut().find(|held| held.of.offer.index == checkpoint)?;
        held.used = now;
        Some(held.of.manifest.clone())
    }

    fn keep(&self, checkpoint: LogIndex, now: Instant) {
        let mut state = self.state.lock();
        if let Some(held) = state.held.iter_mut().find(|held| held.of.offer.index == checkpoint) {
            held.used = now;
        }
    }

    fn least(&self, now: Instant) -> Option<LogIndex> {
        let mut state = self.state.lock();
        state.expire(now);
        state.held.iter().map(|held| held.of.offer.index).min()
    }
}

impl Segments {
    /// The newest durable checkpoint, held from now on for whoever pulls it. None if there is none, or too many are pulled.
    pub fn offer(&self) -> Option<Offer> {
        self.shared.transfers.offer(Instant::now())
    }

    /// Somebody waits to pull this checkpoint.
    pub fn keep(&self, checkpoint: LogIndex) {
        self.shared.transfers.keep(checkpoint, Instant::now());
    }

    /// The oldest checkpoint that is being pulled: the log behind it is still needed.
    pub fn held(&self) -> Option<LogIndex> {
        self.shared.transfers.least(Instant::now())
    }

    /// A piece of a held checkpoint. Reads files: call it where blocking is fine.
    ///
    /// # Errors
    /// If the checkpoint is not held any more, or a file cannot be read.
    pub fn piece(&self, want: &Want) -> Result<Piece, TransferError> {
        let manifest = self.shared.transfers.manifest(want.checkpoint, Instant::now()).ok_or(TransferError::Gone)?;
        let len = want.len as usize;
        if len > TRANSFER_PIECE_BYTES_MAX {
            return Err(TransferError::Gone);
        }
        let (file, path) = match want.file.0 {
            Name::Manifest => (manifest, self.shared.files.dir().join(super::checkpoint::NAME)),
            Name::Segment(of, base, kind) => {
                let partition = self.shared.table.read().get(&of).cloned().ok_or(TransferError::Gone)?;
                let path = self.shared.files.path(&partition, base, kind);
                let file = self.shared.files.get(&partition, base, kind, false);
                (file.map_err(|source| SegmentError::Io { path: path.clone(), source })?, path)
            }
        };
        let mut bytes = BytesMut::zeroed(len);
        read_exact(&file, &mut bytes, want.position).map_err(|source| SegmentError::Io { path, source })?;
        let crc = crc32c::crc32c(&bytes);
        Ok(Piece { crc, bytes: if want.bytes { bytes.freeze() } else { Bytes::new() } })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::disk::{Disk, FaultyDisk};

    fn durable(index: u64) -> (Offer, Arc<dyn File>) {
        let file = FaultyDisk::new(1).open(Path::new("/m"), true).unwrap();
        (Offer { index: LogIndex(index), term: Term(1), manifest_bytes: 0 }, file)
    }

    #[test]
    fn a_hold_ends_when_nobody_asks_and_after_its_bound() {
        let transfers = Transfers::default();
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        assert_eq!(transfers.offer(start), None, "there is no checkpoint yet");
        transfers.wrote(durable(7).0, durable(7).1);
        assert_eq!(transfers.offer(start), Some(durable(7).0));
        transfers.wrote(durable(9).0, durable(9).1);
        assert_eq!(transfers.least(start), Some(LogIndex(7)), "a newer one does not end the hold");
        let idle = Duration::from_millis(TRANSFER_IDLE_MS_MAX);
        assert!(transfers.manifest(LogIndex(7), start + idle - second).is_some());
        assert!(transfers.manifest(LogIndex(7), start + idle + second).is_some(), "used meanwhile");
        assert!(transfers.manifest(LogIndex(7), start + idle * 3).is_none());
        assert_eq!(transfers.least(start + idle * 3), None);
        let again = start + idle * 4;
        assert_eq!(transfers.offer(again), Some(durable(9).0));
        let mut now = again;
        while now < again + Duration::from_millis(TRANSFER_HOLD_MS_MAX) {
            assert!(transfers.manifest(LogIndex(9), now).is_some());
            now += idle / 2;
        }
        assert!(transfers.manifest(LogIndex(9), now).is_none(), "not for ever");
    }

    #[test]
    fn only_so_many_checkpoints_are_held() {
        let (transfers, now) = (Transfers::default(), Instant::now());
        for index in 0..TRANSFERS_MAX as u64 {
            transfers.wrote(durable(index).0, durable(index).1);
            assert!(transfers.offer(now).is_some());
        }
        transfers.wrote(durable(99).0, durable(99).1);
        assert_eq!(transfers.offer(now), None);
    }
}
