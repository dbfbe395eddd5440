//! `src/docs/log_format.md`, the constants in `format.rs` and a dumped file say the same.

use super::*;
use crate::wal::format::*;

const PAGE: &str = include_str!("../../docs/log_format.md");

/// Rows of the tables under a heading: trimmed cells, without the head.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let section = PAGE.split(&format!("\n## {heading}\n")).nth(1).unwrap().split("\n## ").next().unwrap();
    section
        .lines()
        .filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit())
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

#[test]
fn the_page_lists_the_fields_that_the_code_has() {
    for (heading, fields, total) in
        [("File header", FILE_FIELDS, FILE_HEADER_BYTES), ("Frame", FRAME_FIELDS, FRAME_HEADER_BYTES)]
    {
        let listed: Vec<_> = rows(heading)
            .iter()
            .filter_map(|row| Some((row[0].parse().ok()?, row[1].parse().ok()?, row[2])))
            .collect::<Vec<(usize, usize, &str)>>();
        assert_eq!(listed, fields, "{heading}");
        let end = fields.iter().fold(0, |at, (offset, bytes, name)| {
            assert_eq!(*offset, at, "{name} follows the field before it");
            offset + bytes
        });
        assert_eq!(end as u64, total);
    }
    let kinds: Vec<_> = rows("Frame")
        .iter()
        .filter(|row| row[1].parse::<u32>().is_err())
        .map(|row| format!("{} {}", row[0], row[1]))
        .collect();
    use FrameKind::{Committed, Entry, Purge, Truncate, Vote};
    let code: Vec<_> =
        [Entry, Vote, Committed, Truncate, Purge].iter().map(|k| format!("{} {k:?}", *k as u8)).collect();
    assert_eq!(kinds, code);
    assert!(PAGE.contains(std::str::from_utf8(&FILE_MAGIC).unwrap()) && PAGE.contains(&file_name(1)));
    assert!(PAGE.contains(std::str::from_utf8(&FRAME_MAGIC).unwrap()));
    assert!(PAGE.contains(&format!("at most {} MiB", PAYLOAD_BYTES_MAX >> 20)));
}

/// A file with one frame of each kind, and its bytes.
fn sample() -> (FaultyDisk, PathBuf, Vec<u8>) {
    let header = FileHeader {
        cluster_id: *b"0123456789abcdef",
        sequence: 3,
        salt: 0x0102_0304_0506_0708,
        first_index: LogIndex(41),
        previous: Some((LogIndex(40), Term(6))),
        previous_end: 9000,
        previous_crc: 0xc0ff_ee00,
        carried: Carried {
            vote: Some(Bytes::from_static(b"a vote")),
            committed: Some(Bytes::from_static(b"40")),
            purged: Some((LogIndex(7), Bytes::from_static(b"7@2"))),
        },
    };
    let (mut bytes, mut previous_crc) = header.encode();
    let frames: [(FrameKind, u64, u64, &[u8]); 5] = [
        (FrameKind::Entry, 6, 41, b"the bytes of an entry, more than are shown"),
        (FrameKind::Vote, 0, 0, b"another vote"),
        (FrameKind::Truncate, 0, 41, b""),
        (FrameKind::Purge, 0, 40, b"40@6"),
        (FrameKind::Committed, 0, 0, b"41"),
    ];
    for (kind, term, index, payload) in frames {
        let position = bytes.len() as u64;
        let frame = FrameHeader {
            kind,
            len: payload.len() as u32,
            previous_crc,
            term: Term(term),
            index: LogIndex(index),
            synced_to: if position == FILE_HEADER_BYTES { position } else { 4186 },
            payload_crc: crc32c::crc32c(payload),
        };
        previous_crc = frame.encode(header.salt, position, &mut bytes);
        bytes.extend_from_slice(payload);
    }
    let disk = FaultyDisk::new(0);
    let path = PathBuf::from("/sample.wal");
    disk.open(&path, true).unwrap().write_all_at(&[&bytes, &[0; 100]], 0).unwrap();
    (disk, path, bytes)
}

#[test]
fn the_page_shows_what_is_dumped_of_these_very_bytes() {
    let (disk, path, bytes) = sample();
    let dumped = dump(&disk, &path).unwrap().to_string();
    let shown = PAGE.split("```sample\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(dumped, shown);
    let crc = format!("CRC-32C of its bytes: `{:08x}`", crc32c::crc32c(&bytes));
    assert!(PAGE.contains(&crc), "{crc}");
}

#[test]
fn a_dump_goes_to_the_torn_frame_and_says_why() {
    let (disk, path, bytes) = sample();
    disk.open(&path, false).unwrap().write_all_at(&[b"X"], bytes.len() as u64 - 1).unwrap();
    let dumped = dump(&disk, &path).unwrap();
    assert_eq!(dumped.frames.len(), 4);
    assert_eq!(dumped.torn, Some((bytes.len() as u64 - dumped.end, "bad CRC of a payload")));
    assert!(matches!(dump(&disk, Path::new("/none")), Err(WalError::Io { .. })));
}
