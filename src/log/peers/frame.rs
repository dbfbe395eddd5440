//! How peers cut a TCP stream into messages, in both directions.
//!
//! ```text
//! 0   len    u32  of what follows the checksum
//! 4   crc    u32  CRC-32C of what follows
//! 8   kind   u8
//! 9   id     u64  of the question; its answer repeats it
//! 17  body
//! ```
//!
//! Little endian. TCP's own checksum misses what a bad switch or memory can do, and what arrives here becomes the log.

use std::io::{self, IoSlice};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::config::limits::PEER_FRAME_BYTES_MAX;

const HEAD_BYTES: usize = 8;
const KIND_AND_ID_BYTES: usize = 9;
/// Read ahead; larger frames get what they need.
const READ_BYTES: usize = 64 << 10;
/// Allocated on the word of a length alone; beyond, the buffer grows with what arrives.
const EAGER_BYTES: usize = 1 << 20;
/// Up to this, a frame is copied together: cheaper than a vectored write of many pieces.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// Slices of one system call (IOV_MAX is 1024 on Linux).
const SLICES_MAX: usize = 512;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is; see [`message`](super::message).
    pub kind: u8,
    /// Which question it is, or answers.
    pub id: u64,
    /// Its content.
    pub body: Bytes,
}

/// Reads frames. Dropping a pending [`FrameReader::next`] loses nothing.
#[derive(Debug)]
pub struct FrameReader<R> {
    from: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader at the beginning of a stream.
    pub fn new(from: R) -> Self {
        Self { from, buffer: BytesMut::new() }
    }

    /// The next frame, None at a clean end.
    ///
    /// # Errors
    /// If the stream fails, ends within a frame, or what it carries is not a frame.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            if self.from.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// A whole frame from the buffer; otherwise makes room for more of it.
    fn take(&mut self) -> io::Result<Option<Frame>> {
        if self.buffer.len() < HEAD_BYTES {
            self.buffer.reserve(READ_BYTES);
            return Ok(None);
        }
        let len = (&self.buffer[..]).get_u32_le() as usize;
        if !(KIND_AND_ID_BYTES..=PEER_FRAME_BYTES_MAX).contains(&len) {
            return Err(malformed(format!("a frame of {len} bytes")));
        }
        let missing = (HEAD_BYTES + len).saturating_sub(self.buffer.len());
        if missing > 0 {
            self.buffer.reserve(missing.min(EAGER_BYTES));
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(HEAD_BYTES + len).freeze();
        frame.advance(4);
        let crc = frame.get_u32_le();
        if crc32c::crc32c(&frame) != crc {
            return Err(malformed("a frame whose checksum is wrong".to_owned()));
        }
        let (kind, id) = (frame.get_u8(), frame.get_u64_le());
        Ok(Some(Frame { kind, id, body: frame }))
    }
}

fn malformed(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Writes one frame whose body is the pieces in order; how many bytes it took. If the future is dropped, a part of the
/// frame may be written: the stream is of no use any more.
///
/// # Errors
/// If the stream fails, or the frame is larger than a peer would take.
pub async fn write<W: AsyncWrite + Unpin>(to: &mut W, kind: u8, id: u64, pieces: &[Bytes]) -> io::Result<u64> {
    let len = KIND_AND_ID_BYTES + pieces.iter().map(Bytes::len).sum::<usize>();
    if len > PEER_FRAME_BYTES_MAX {
        return Err(malformed(format!("a frame of {len} bytes")));
    }
    let mut head = [0; HEAD_BYTES + KIND_AND_ID_BYTES];
    head[..4].copy_from_slice(&(len as u32).to_le_bytes());
    head[8] = kind;
    head[9..].copy_from_slice(&id.to_le_bytes());
    let crc = pieces.iter().fold(crc32c::crc32c(&head[8..]), |crc, piece| crc32c::crc32c_append(crc, piece));
    head[4..8].copy_from_slice(&crc.to_le_bytes());
    if len <= COPIED_BYTES_MAX {
        let mut whole = Vec::with_capacity(HEAD_BYTES + len);
        whole.extend_from_slice(&head);
        pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
        to.write_all(&whole).await?;
    } else {
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(1 + pieces.len());
        slices.push(IoSlice::new(&head));
        slices.extend(pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| IoSlice::new(piece)));
        write_slices(to, &mut slices).await?;
    }
    Ok((HEAD_BYTES + len) as u64)
}

async fn write_slices<W: AsyncWrite + Unpin>(to: &mut W, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        let at_once = slices.len().min(SLICES_MAX);
        let written = to.write_vectored(&slices[..at_once]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut slices, written);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn round(pieces: Vec<Bytes>) -> Frame {
        let (mut near, far) = tokio::io::duplex(1000);
        let body: Vec<u8> = pieces.concat();
        let writing = tokio::spawn(async move { write(&mut near, 3, 77, &pieces).await });
        let frame = FrameReader::new(far).next().await.expect("readable").expect("one frame");
        writing.await.expect("no panic").expect("written");
        assert_eq!((frame.kind, frame.id), (3, 77));
        assert_eq!(frame.body, body);
        frame
    }

    #[tokio::test]
    async fn frames_arrive_as_they_were_sent_in_one_piece_or_many() {
        round(vec![]).await;
        round(vec![Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"d")]).await;
        round((0..2000u32).map(|piece| Bytes::from(vec![piece as u8; 100])).collect()).await;
        round(vec![Bytes::from(vec![9; 3 << 20])]).await;
    }

    #[tokio::test]
    async fn a_flipped_bit_or_a_foreign_length_is_an_error_and_so_is_a_torn_end() {
        let mut whole = Vec::new();
        write(&mut whole, 1, 2, &[Bytes::from_static(b"content")]).await.expect("written");
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 0x40;
            assert!(FrameReader::new(&bad[..]).next().await.is_err(), "byte {at}");
        }
        assert!(FrameReader::new(&whole[..whole.len() - 1]).next().await.is_err(), "torn");
        assert_eq!(FrameReader::new(&whole[..0]).next().await.expect("clean"), None);
    }
}
