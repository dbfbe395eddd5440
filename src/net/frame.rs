//! Frames off a socket: a four-byte length, then as many bytes, in one buffer of exactly that size.
//!
//! A length is only a claim. It is checked before anything is allocated, and a large frame's buffer grows with the bytes
//! that arrive, at most to twice of them, so that a lying length takes no memory: nothing before as much has arrived as
//! is read ahead, then a first piece, then double of what there is. What is taken counts against the
//! budget that all connections share; where it is used up the reader waits, and the socket is not read.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::limits::{FRAME_EAGER_BYTES, REQUEST_BYTES_MAX, SOCKET_READ_BYTES};

/// Why a connection's bytes are no frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// Negative, or over [`REQUEST_BYTES_MAX`].
    #[error("a frame length of {0} is out of range")]
    Length(i32),
    /// The first bytes of a TLS handshake.
    #[error("a TLS handshake on a plaintext port")]
    Tls,
    /// The first bytes of an HTTP request.
    #[error("an HTTP request on the Kafka port")]
    Http,
}

/// A whole frame, and its share of the budget, given back when the request has been answered.
#[derive(Debug)]
pub struct Received {
    /// The bytes behind the length.
    pub bytes: Bytes,
    /// The share.
    pub share: OwnedSemaphorePermit,
}

/// What reading came to.
#[derive(Debug)]
pub enum Event {
    /// Some bytes arrived: how many.
    Bytes(usize),
    /// The peer sends no more.
    End,
}

/// A frame of which a part has arrived.
#[derive(Debug)]
struct Partial {
    length: usize,
    buffer: Vec<u8>,
    share: OwnedSemaphorePermit,
}

type Waiting = Pin<Box<dyn Future<Output = OwnedSemaphorePermit> + Send>>;

/// Reads frames.
pub struct FrameReader {
    budget: Arc<Semaphore>,
    /// Bytes read ahead: lengths, and small frames whole.
    ahead: BytesMut,
    partial: Option<Partial>,
    /// The budget was used up.
    waiting: Option<Waiting>,
}

impl FrameReader {
    pub fn new(budget: Arc<Semaphore>) -> Self {
        Self { budget, ahead: BytesMut::new(), partial: None, waiting: None }
    }

    /// Whether a frame has begun and is not whole.
    pub fn is_inside_a_frame(&self) -> bool {
        self.partial.is_some() || !self.ahead.is_empty()
    }

    /// Whether the budget is what keeps it from going on.
    pub fn waits_for_budget(&self) -> bool {
        self.waiting.is_some()
    }

    /// The next whole frame of what has been read, None if more must be read first; Pending while the budget is used up.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Received>, FrameFault>> {
        if self.partial.is_none() {
            let Some(length) = self.peek_length()? else { return Poll::Ready(Ok(None)) };
            // Nothing is taken for four bytes: thousands of silent connections would hold the whole budget.
            if self.ahead.len() < (4 + length).min(SOCKET_READ_BYTES) {
                return Poll::Ready(Ok(None));
            }
            let share = std::task::ready!(self.poll_share(length.min(FRAME_EAGER_BYTES), cx));
            self.ahead.advance(4);
            let buffer = Vec::with_capacity(length.min(FRAME_EAGER_BYTES));
            self.partial = Some(Partial { length, buffer, share });
        }
        loop {
            let Some(partial) = &mut self.partial else { return Poll::Ready(Ok(None)) };
            let room = partial.buffer.capacity().min(partial.length) - partial.buffer.len();
            let ready = self.ahead.len().min(room);
            partial.buffer.extend_from_slice(&self.ahead[..ready]);
            self.ahead.advance(ready);
            if partial.buffer.len() == partial.length {
                let partial = self.partial.take();
                return Poll::Ready(Ok(
                    partial.map(|Partial { buffer, share, .. }| Received { bytes: Bytes::from(buffer), share })
                ));
            }
            if ready < room {
                return Poll::Ready(Ok(None));
            }
            std::task::ready!(self.poll_grow(cx));
        }
    }

    /// Doubles the buffer of the partial frame, at most to the frame's length.
    fn poll_grow(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(partial) = &self.partial else { return Poll::Ready(()) };
        let (have, length) = (partial.buffer.len(), partial.length);
        let more = have.max(FRAME_EAGER_BYTES).min(length - have);
        let share = std::task::ready!(self.poll_share(more, cx));
        if let Some(partial) = &mut self.partial {
            partial.buffer.reserve_exact(more);
            partial.share.merge(share);
        }
        Poll::Ready(())
    }

    fn poll_share(&mut self, bytes: usize, cx: &mut Context<'_>) -> Poll<OwnedSemaphorePermit> {
        let count = u32::try_from(bytes).expect("a frame is at most 100 MiB");
        if self.waiting.is_none() {
            match Arc::clone(&self.budget).try_acquire_many_owned(count) {
                Ok(share) => return Poll::Ready(share),
                Err(_) => {
                    let budget = Arc::clone(&self.budget);
                    self.waiting = Some(Box::pin(async move {
                        budget.acquire_many_owned(count).await.expect("the budget is never closed")
                    }));
                }
            }
        }
        let waiting = self.waiting.as_mut().expect("it was put there a moment ago");
        let share = std::task::ready!(waiting.as_mut().poll(cx));
        self.waiting = None;
        Poll::Ready(share)
    }

    fn peek_length(&self) -> Result<Option<usize>, FrameFault> {
        let Some(head) = self.ahead.first_chunk::<4>() else { return Ok(None) };
        let length = i32::from_be_bytes(*head);
        match usize::try_from(length) {
            Ok(length) if length <= REQUEST_BYTES_MAX => Ok(Some(length)),
            _ => Err(other_protocol(*head).unwrap_or(FrameFault::Length(length))),
        }
    }

    /// Reads from the socket: into the partial frame where there is one, else ahead.
    pub fn poll_read(&mut self, stream: &mut TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<Event>> {
        let count = match &mut self.partial {
            Some(partial) => {
                let room = partial.buffer.capacity().min(partial.length) - partial.buffer.len();
                let mut buffer = (&mut partial.buffer).limit(room);
                std::task::ready!(pin!(stream.read_buf(&mut buffer)).poll(cx))?
            }
            None => {
                self.ahead.reserve(SOCKET_READ_BYTES - self.ahead.len());
                let room = SOCKET_READ_BYTES - self.ahead.len();
                let mut buffer = (&mut self.ahead).limit(room);
                std::task::ready!(pin!(stream.read_buf(&mut buffer)).poll(cx))?
            }
        };
        Poll::Ready(Ok(if count == 0 { Event::End } else { Event::Bytes(count) }))
    }
}

/// Names what else speaks first with four bytes that make no sensible length.
fn other_protocol(head: [u8; 4]) -> Option<FrameFault> {
    match &head {
        [0x16, 0x03, ..] => Some(FrameFault::Tls),
        b"GET " | b"POST" | b"PUT " | b"HEAD" | b"OPTI" | b"DELE" | b"PATC" | b"PRI " | b"CONN" => {
            Some(FrameFault::Http)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(budget: usize) -> FrameReader {
        FrameReader::new(Arc::new(Semaphore::new(budget)))
    }

    fn poll(reader: &mut FrameReader) -> Poll<Result<Option<Received>, FrameFault>> {
        reader.poll_frame(&mut Context::from_waker(std::task::Waker::noop()))
    }

    #[test]
    fn frames_are_found_however_the_bytes_are_cut() {
        let sent = b"\0\0\0\x03abc\0\0\0\0\0\0\0\x01d";
        for step in 1..=sent.len() {
            let mut reader = reader(1_000_000);
            let mut frames = Vec::new();
            for piece in sent.chunks(step) {
                reader.ahead.extend_from_slice(piece);
                while let Poll::Ready(Ok(Some(frame))) = poll(&mut reader) {
                    frames.push(frame.bytes);
                }
            }
            assert_eq!(frames, [&b"abc"[..], b"", b"d"], "in steps of {step}");
            assert!(!reader.is_inside_a_frame());
        }
    }

    #[test]
    fn impossible_lengths_and_other_protocols_are_named() {
        let max = REQUEST_BYTES_MAX as i32;
        let cases = [
            ((-1i32).to_be_bytes(), Some(FrameFault::Length(-1))),
            (i32::MIN.to_be_bytes(), Some(FrameFault::Length(i32::MIN))),
            ((max + 1).to_be_bytes(), Some(FrameFault::Length(max + 1))),
            (max.to_be_bytes(), None),
            ([0x16, 3, 1, 2], Some(FrameFault::Tls)),
            (*b"GET ", Some(FrameFault::Http)),
        ];
        for (head, expected) in cases {
            let mut reader = reader(1_000_000);
            reader.ahead.extend_from_slice(&head);
            assert_eq!(reader.peek_length().err(), expected, "{head:?}");
        }
    }

    #[test]
    fn a_lying_length_takes_no_more_memory_than_twice_what_arrived() {
        let mut reader = reader(usize::MAX >> 3);
        reader.ahead.extend_from_slice(&(REQUEST_BYTES_MAX as i32).to_be_bytes());
        let mut arrived = 0;
        for _ in 0..100 {
            assert!(matches!(poll(&mut reader), Poll::Ready(Ok(None))));
            let capacity = reader.partial.as_ref().map_or(0, |partial| partial.buffer.capacity());
            assert_eq!(reader.partial.is_some(), arrived > 0, "a length alone holds nothing of the budget");
            assert!(capacity <= FRAME_EAGER_BYTES.max(2 * arrived), "{capacity} for {arrived}");
            reader.ahead.extend_from_slice(&[7; SOCKET_READ_BYTES]);
            arrived += SOCKET_READ_BYTES;
        }
    }

    #[test]
    fn a_large_frame_ends_in_a_buffer_of_its_size() {
        let mut reader = reader(usize::MAX >> 3);
        let length = 3 * FRAME_EAGER_BYTES + 5;
        reader.ahead.extend_from_slice(&(length as i32).to_be_bytes());
        reader.ahead.extend_from_slice(&vec![7; length]);
        let Poll::Ready(Ok(Some(frame))) = poll(&mut reader) else { panic!("it is whole") };
        assert_eq!((frame.bytes.len(), frame.share.num_permits()), (length, length));
    }

    #[test]
    fn a_used_up_budget_holds_the_frame_until_some_is_given_back() {
        let mut reader = reader(10);
        let held = Arc::clone(&reader.budget).try_acquire_many_owned(8).unwrap();
        reader.ahead.extend_from_slice(b"\0\0\0\x03abc");
        assert!(poll(&mut reader).is_pending() && reader.waits_for_budget());
        drop(held);
        assert!(matches!(poll(&mut reader), Poll::Ready(Ok(Some(_)))));
        assert_eq!(reader.budget.available_permits(), 10);
    }
}
