//! Answers on their way to the socket: pieces in order, written several at a time.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;

/// Pieces in one vectored write: far below the kernel's 1024, and enough that a write is worth its system call.
const PIECES_PER_WRITE: usize = 64;

#[derive(Debug, Default)]
pub struct Outbox {
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Outbox {
    /// Bytes not written yet.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a response: size, header and body.
    pub fn push(&mut self, correlation_id: i32, header_version: i16, body: Vec<Bytes>) {
        let header_bytes = if header_version >= 1 { 5 } else { 4 };
        let size = header_bytes + body.iter().map(Bytes::len).sum::<usize>();
        let mut head = BytesMut::with_capacity(4 + header_bytes);
        head.put_u32(u32::try_from(size).expect("a response is smaller than 4 GiB"));
        head.put_i32(correlation_id);
        if header_version >= 1 {
            head.put_u8(0); // no tagged fields
        }
        self.pieces.push_back(head.freeze());
        self.pieces.extend(body.into_iter().filter(|piece| !piece.is_empty()));
        self.bytes += 4 + size;
    }

    /// Writes as much as the socket takes: how many bytes, or that it takes none now.
    pub fn poll_write(&mut self, stream: &mut TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let slices: Vec<IoSlice<'_>> =
            self.pieces.iter().take(PIECES_PER_WRITE).map(|piece| IoSlice::new(piece)).collect();
        let written = std::task::ready!(Pin::new(stream).poll_write_vectored(cx, &slices))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.advance(written);
        Poll::Ready(Ok(written))
    }

    fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        while let Some(front) = self.pieces.front_mut() {
            if written < front.len() {
                front.advance(written);
                return;
            }
            written -= front.len();
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_after_any_partial_write_is_the_rest_of_the_bytes() {
        let fill = || {
            let mut outbox = Outbox::default();
            outbox.push(7, 1, vec![Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"de")]);
            outbox.push(8, 0, vec![Bytes::from_static(b"f")]);
            outbox
        };
        let all: Vec<u8> = fill().pieces.iter().flatten().copied().collect();
        assert_eq!(all, b"\0\0\0\x0a\0\0\0\x07\0abcde\0\0\0\x05\0\0\0\x08f");
        for written in 0..=all.len() {
            let mut outbox = fill();
            outbox.advance(written);
            let left: Vec<u8> = outbox.pieces.iter().flatten().copied().collect();
            assert_eq!((left.as_slice(), outbox.bytes()), (&all[written..], all.len() - written));
        }
    }
}
