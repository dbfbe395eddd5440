//! The bytes of a log file: a header of 4 KiB, then frames, then zeros. `src/docs/log_format.md` draws it and gives
//! the crash argument; a test compares the two. All numbers are little-endian.
//!
//! Every CRC is CRC-32C. A frame header's CRC is seeded with the file's random salt and the frame's own position, and
//! covers the CRC of the frame before it: so old bytes of a recycled file, or a copy of a frame inside a payload, never
//! pass, a frame follows only the one it was written after, and yet each header can be checked alone. Recovery needs
//! the last to find whole frames behind a bad one.

use bytes::Bytes;

use crate::types::{LogIndex, Term};

/// First bytes of a log file.
pub const FILE_MAGIC: [u8; 8] = *b"KATOMWAL";
/// Version of this layout; another one is refused.
pub const FORMAT_VERSION: u32 = 1;
/// Bytes of a file's header; the first frame starts here.
pub const FILE_HEADER_BYTES: u64 = 4096;
/// First bytes of a frame.
pub const FRAME_MAGIC: [u8; 4] = *b"KFRM";
/// Bytes of a frame's header; its payload follows.
pub const FRAME_HEADER_BYTES: u64 = 48;
/// Greatest payload: four of the greatest entries (`ENTRY_BYTES_MAX`). A greater length in a header is damage.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;
/// Greatest vote, committed marker or purged log id: each has a fixed place in the file header.
pub const OPAQUE_BYTES_MAX: usize = 1024;

/// Field table of the file header: (offset, bytes, name).
pub const FILE_FIELDS: &[(usize, usize, &str)] = &[
    (0, 8, "magic"),
    (8, 4, "version"),
    (12, 4, "crc"),
    (16, 16, "cluster_id"),
    (32, 8, "sequence"),
    (40, 8, "salt"),
    (48, 8, "first_index"),
    (56, 8, "present"),
    (64, 8, "previous_index"),
    (72, 8, "previous_term"),
    (80, 8, "previous_end"),
    (88, 4, "previous_crc"),
    (92, 4, "reserved"),
    (96, 8, "purged_index"),
    (104, 2, "vote_len"),
    (106, 2, "committed_len"),
    (108, 2, "purged_len"),
    (110, 2, "reserved"),
    (112, 1024, "vote"),
    (1136, 1024, "committed"),
    (2160, 1024, "purged"),
    (3184, 912, "reserved"),
];

/// Field table of a frame's header: (offset, bytes, name).
pub const FRAME_FIELDS: &[(usize, usize, &str)] = &[
    (0, 4, "magic"),
    (4, 4, "len"),
    (8, 1, "kind"),
    (9, 3, "reserved"),
    (12, 4, "previous_crc"),
    (16, 8, "term"),
    (24, 8, "index"),
    (32, 8, "synced_to"),
    (40, 4, "payload_crc"),
    (44, 4, "header_crc"),
];

const HEADER_BYTES: usize = FILE_HEADER_BYTES as usize;
const FRAME_BYTES: usize = FRAME_HEADER_BYTES as usize;

const PRESENT_PREVIOUS: u64 = 1;
const PRESENT_VOTE: u64 = 2;
const PRESENT_COMMITTED: u64 = 4;
const PRESENT_PURGED: u64 = 8;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A log entry; payload: the entry.
    Entry = 1,
    /// The vote from here on; payload: opaque.
    Vote = 2,
    /// The committed marker from here on; payload: opaque.
    Committed = 3,
    /// Entries from `index` on are removed; no payload.
    Truncate = 4,
    /// Entries up to `index` are forgotten; payload: the log id, opaque.
    Purge = 5,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Entry, Self::Vote, Self::Committed, Self::Truncate, Self::Purge].into_iter().find(|k| *k as u8 == byte)
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame is.
    pub kind: FrameKind,
    /// Bytes of the payload.
    pub len: u32,
    /// Header CRC of the frame before, or the CRC of the file header before the first.
    pub previous_crc: u32,
    /// Term of an entry, else 0.
    pub term: Term,
    /// Index, as the kind says.
    pub index: LogIndex,
    /// Everything in this file below this position was known to be synced when the frame was written.
    pub synced_to: u64,
    /// CRC of the payload.
    pub payload_crc: u32,
}

impl FrameHeader {
    /// Appends the header's bytes, as they stand at `position` of a file with `salt`, and returns their CRC.
    pub fn encode(&self, salt: u64, position: u64, out: &mut Vec<u8>) -> u32 {
        let start = out.len();
        out.extend_from_slice(&FRAME_MAGIC);
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&[self.kind as u8, 0, 0, 0]);
        out.extend_from_slice(&self.previous_crc.to_le_bytes());
        out.extend_from_slice(&self.term.0.to_le_bytes());
        out.extend_from_slice(&self.index.0.to_le_bytes());
        out.extend_from_slice(&self.synced_to.to_le_bytes());
        out.extend_from_slice(&self.payload_crc.to_le_bytes());
        let crc = header_crc(salt, position, &out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
        crc
    }

    /// Reads a header and its CRC, if these bytes are one that was written at `position` of the file with `salt`.
    pub fn decode(bytes: &[u8], salt: u64, position: u64) -> Option<(Self, u32)> {
        let bytes: &[u8; FRAME_BYTES] = bytes.get(..FRAME_BYTES)?.try_into().ok()?;
        if bytes[..4] != FRAME_MAGIC {
            return None;
        }
        let crc = u32_at(bytes, 44);
        let kind = FrameKind::from_byte(bytes[8])?;
        let len = u32_at(bytes, 4);
        if crc != header_crc(salt, position, &bytes[..44]) || len as usize > PAYLOAD_BYTES_MAX {
            return None;
        }
        let header = Self {
            kind,
            len,
            previous_crc: u32_at(bytes, 12),
            term: Term(u64_at(bytes, 16)),
            index: LogIndex(u64_at(bytes, 24)),
            synced_to: u64_at(bytes, 32),
            payload_crc: u32_at(bytes, 40),
        };
        Some((header, crc))
    }

    /// Bytes of the frame with its payload.
    pub fn frame_bytes(&self) -> u64 {
        FRAME_HEADER_BYTES + u64::from(self.len)
    }
}

fn header_crc(salt: u64, position: u64, bytes: &[u8]) -> u32 {
    let mut seed = [0; 16];
    seed[..8].copy_from_slice(&salt.to_le_bytes());
    seed[8..].copy_from_slice(&position.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&seed), bytes)
}

/// What the log remembers besides entries; each file's header carries it on, so that older files can be unlinked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// The last vote.
    pub vote: Option<Bytes>,
    /// The last committed marker.
    pub committed: Option<Bytes>,
    /// The last purge: index and log id.
    pub purged: Option<(LogIndex, Bytes)>,
}

impl Carried {
    /// Remembers a purge, unless a later one is known.
    pub fn purge(&mut self, index: LogIndex, log_id: Bytes) {
        if self.purged.as_ref().is_none_or(|(purged, _)| *purged <= index) {
            self.purged = Some((index, log_id));
        }
    }
}

/// A file's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// The cluster the log belongs to.
    pub cluster_id: [u8; 16],
    /// Number of the file, from 1, without gaps.
    pub sequence: u64,
    /// Random; seeds the CRC of every frame in the file.
    pub salt: u64,
    /// The index the next entry was expected to have when the file was begun.
    pub first_index: LogIndex,
    /// The last entry before this file, if one was stored.
    pub previous: Option<(LogIndex, Term)>,
    /// Where the frames of the file before end (0 in file 1).
    pub previous_end: u64,
    /// CRC of the last frame of the file before (0 in file 1).
    pub previous_crc: u32,
    /// Vote, committed marker and purge as they stood.
    pub carried: Carried,
}

/// Why bytes are not a file header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadFileHeader {
    /// It does not begin with the magic.
    Magic,
    /// Written by another version of the format.
    Version(u32),
    /// The CRC does not match.
    Crc,
    /// Shorter than a header, or a length in it is impossible.
    Length,
}

impl std::fmt::Display for BadFileHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Magic => f.write_str("not a log file (bad magic)"),
            Self::Version(version) => write!(f, "format version {version}, this program reads {FORMAT_VERSION}"),
            Self::Crc => f.write_str("bad CRC of the file header"),
            Self::Length => f.write_str("the file header is cut short"),
        }
    }
}

impl FileHeader {
    /// The header's bytes and their CRC.
    ///
    /// # Panics
    /// If a vote, marker or log id is longer than [`OPAQUE_BYTES_MAX`]; `Wal` refuses those on entry.
    pub fn encode(&self) -> (Vec<u8>, u32) {
        let mut out = vec![0; HEADER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &FILE_MAGIC);
        put(8, &FORMAT_VERSION.to_le_bytes());
        put(16, &self.cluster_id);
        put(32, &self.sequence.to_le_bytes());
        put(40, &self.salt.to_le_bytes());
        put(48, &self.first_index.0.to_le_bytes());
        let mut present = 0;
        if let Some((index, term)) = self.previous {
            present |= PRESENT_PREVIOUS;
            put(64, &index.0.to_le_bytes());
            put(72, &term.0.to_le_bytes());
        }
        put(80, &self.previous_end.to_le_bytes());
        put(88, &self.previous_crc.to_le_bytes());
        let purged = self.carried.purged.as_ref();
        if let Some((index, _)) = purged {
            put(96, &index.0.to_le_bytes());
        }
        let opaque = [
            (PRESENT_VOTE, 104, 112, self.carried.vote.as_ref()),
            (PRESENT_COMMITTED, 106, 1136, self.carried.committed.as_ref()),
            (PRESENT_PURGED, 108, 2160, purged.map(|(_, id)| id)),
        ];
        for (flag, len_at, at, bytes) in opaque {
            let Some(bytes) = bytes else { continue };
            assert!(bytes.len() <= OPAQUE_BYTES_MAX, "a vote, marker or log id of {} bytes", bytes.len());
            present |= flag;
            put(len_at, &(bytes.len() as u16).to_le_bytes());
            put(at, bytes);
        }
        put(56, &present.to_le_bytes());
        let crc = crc32c::crc32c(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        (out, crc)
    }

    /// Reads a header and its CRC.
    ///
    /// # Errors
    /// If these bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u32), BadFileHeader> {
        if bytes.get(..8) != Some(&FILE_MAGIC[..]) {
            return Err(BadFileHeader::Magic);
        }
        let bytes: &[u8; HEADER_BYTES] =
            bytes.get(..HEADER_BYTES).and_then(|b| b.try_into().ok()).ok_or(BadFileHeader::Length)?;
        let version = u32_at(bytes, 8);
        if version != FORMAT_VERSION {
            return Err(BadFileHeader::Version(version));
        }
        let crc = u32_at(bytes, 12);
        let mut unsigned = *bytes;
        unsigned[12..16].fill(0);
        if crc != crc32c::crc32c(&unsigned) {
            return Err(BadFileHeader::Crc);
        }
        let present = u64_at(bytes, 56);
        let opaque = |flag, len_at, at: usize| {
            if present & flag == 0 {
                return Ok(None);
            }
            let len = usize::from(u16_at(bytes, len_at));
            if len > OPAQUE_BYTES_MAX {
                return Err(BadFileHeader::Length);
            }
            Ok(Some(Bytes::copy_from_slice(&bytes[at..at + len])))
        };
        let carried = Carried {
            vote: opaque(PRESENT_VOTE, 104, 112)?,
            committed: opaque(PRESENT_COMMITTED, 106, 1136)?,
            purged: opaque(PRESENT_PURGED, 108, 2160)?.map(|id| (LogIndex(u64_at(bytes, 96)), id)),
        };
        let header = Self {
            cluster_id: bytes[16..32].try_into().expect("16 bytes"),
            sequence: u64_at(bytes, 32),
            salt: u64_at(bytes, 40),
            first_index: LogIndex(u64_at(bytes, 48)),
            previous: (present & PRESENT_PREVIOUS != 0).then(|| (LogIndex(u64_at(bytes, 64)), Term(u64_at(bytes, 72)))),
            previous_end: u64_at(bytes, 80),
            previous_crc: u32_at(bytes, 88),
            carried,
        };
        Ok((header, crc))
    }
}

/// Name of the file with this number.
pub fn file_name(sequence: u64) -> String {
    format!("{sequence:016}.wal")
}

/// The number in a log file's name.
pub fn file_sequence(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".wal")?;
    let sequence = digits.parse().ok()?;
    (file_name(sequence) == name).then_some(sequence)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> FileHeader {
        FileHeader {
            cluster_id: *b"0123456789abcdef",
            sequence: 7,
            salt: 0x1122_3344_5566_7788,
            first_index: LogIndex(11),
            previous: Some((LogIndex(10), Term(3))),
            previous_end: 5000,
            previous_crc: 0xdead_beef,
            carried: Carried {
                vote: Some(Bytes::from_static(b"vote")),
                committed: None,
                purged: Some((LogIndex(4), Bytes::from_static(b""))),
            },
        }
    }

    #[test]
    fn a_file_header_reads_back_and_any_flipped_bit_is_noticed() {
        let (bytes, crc) = header().encode();
        assert_eq!(FileHeader::decode(&bytes), Ok((header(), crc)));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert!(FileHeader::decode(&bad).is_err(), "byte {at}");
        }
        assert_eq!(FileHeader::decode(&bytes[..100]), Err(BadFileHeader::Length));
    }

    #[test]
    fn a_frame_header_passes_only_in_its_place() {
        let frame = FrameHeader {
            kind: FrameKind::Entry,
            len: 9,
            previous_crc: 1,
            term: Term(2),
            index: LogIndex(3),
            synced_to: 4096,
            payload_crc: 5,
        };
        let mut bytes = Vec::new();
        let crc = frame.encode(77, 5000, &mut bytes);
        assert_eq!(bytes.len() as u64, FRAME_HEADER_BYTES);
        assert_eq!(FrameHeader::decode(&bytes, 77, 5000), Some((frame, crc)));
        assert_eq!(FrameHeader::decode(&bytes, 78, 5000), None, "another file's salt");
        assert_eq!(FrameHeader::decode(&bytes, 77, 5001), None, "another position");
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(FrameHeader::decode(&bad, 77, 5000), None, "byte {at}");
        }
    }

    #[test]
    fn only_names_that_we_write_are_log_files() {
        assert_eq!(file_sequence(&file_name(12)), Some(12));
        for name in ["12.wal", "0000000000000012.wal.tmp", "LOCK", "+000000000000012.wal"] {
            assert_eq!(file_sequence(name), None, "{name}");
        }
    }
}
