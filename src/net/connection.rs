//! One client: a future that reads, calls, waits for answers and writes, in this order of the data:
//!
//! ```text
//! socket ▸ FrameReader ▸ (parked until admitted) ▸ Service::call ▸ queue of answers ▸ Outbox ▸ socket
//! ```
//!
//! Requests are handed on in the order of their arrival, and answers leave in that order: only the front of the queue is
//! polled. What is behind it goes on by itself, since the leader works without being polled.
//!
//! A connection that must close (malformed request, unknown fate, end of input, shutdown) reads no more, sends what was
//! asked before, and ends.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Sleep;

use super::frame::{Event, FrameFault, FrameReader};
use super::outbox::Outbox;
use super::seldom::Seldom;
use super::{METRICS, NetSettings, Service};
use crate::api::metrics as api_metrics;
use crate::api::{Called, Caller, Encoded, Fault, Frame, Reply};
use crate::config::limits::{BUDGET_WAIT_MS_MAX, OUTBOX_BYTES_MAX, PIPELINE_BYTES_MAX, PIPELINE_REQUESTS_MAX};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the client closed it")]
    ByClient,
    #[error("the node stops")]
    Stopping,
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameFault),
    #[error(transparent)]
    Request(#[from] Fault),
    #[error("a request of {api} may not be answered")]
    Unanswerable { api: &'static str },
    #[error("a handler panicked: {0}")]
    Panic(String),
    #[error("no request for {} s", .0.as_secs())]
    Idle(Duration),
    #[error("a frame that began did not go on for {} s", .0.as_secs())]
    Stalled(Duration),
    #[error("it took nothing of its answers for {} s", .0.as_secs())]
    NotReading(Duration),
    #[error("no memory for a frame that began: all requests together are at their bound")]
    Overloaded,
}

/// A request that was taken on and is not answered.
struct Waiting {
    called: Called,
    /// Its share of the byte budget.
    share: OwnedSemaphorePermit,
    received: Instant,
    /// Bytes of the answer, where it was there at once.
    ready_bytes: usize,
}

/// A request that waits until the log takes more.
struct Parked {
    frame: Frame,
    share: OwnedSemaphorePermit,
    received: Instant,
    admitted: Task,
}

/// One client's connection; the future ends with it.
pub struct Connection<S> {
    stream: TcpStream,
    peer: SocketAddr,
    service: S,
    caller: Arc<Caller>,
    settings: NetSettings,
    stopped: Task,
    reader: FrameReader,
    parked: Option<Parked>,
    queue: VecDeque<Waiting>,
    queue_bytes: usize,
    /// Bytes of answers in the queue that are there and wait for those in front of them.
    ready_bytes: usize,
    outbox: Outbox,
    /// Set once: nothing is read any more.
    ending: Option<End>,
    /// The last byte in either direction.
    last_active: Instant,
    /// When the client last took something of its answers, or they began to wait for it.
    last_taken: Instant,
    timer: Pin<Box<Sleep>>,
}

impl<S: Service> Connection<S> {
    pub fn new(
        stream: TcpStream,
        peer: SocketAddr,
        service: S,
        caller: Arc<Caller>,
        settings: NetSettings,
        budget: Arc<Semaphore>,
        mut stop: watch::Receiver<bool>,
    ) -> Self {
        Self {
            stream,
            peer,
            service,
            caller,
            settings,
            stopped: Box::pin(async move {
                let _ = stop.wait_for(|stop| *stop).await;
            }),
            reader: FrameReader::new(budget),
            parked: None,
            queue: VecDeque::new(),
            queue_bytes: 0,
            ready_bytes: 0,
            outbox: Outbox::default(),
            ending: None,
            last_active: Instant::now(),
            last_taken: Instant::now(),
            timer: Box::pin(tokio::time::sleep(tick(&settings))),
        }
    }

    /// Goes as far as it can; ready when there is nothing more to do for this client.
    fn poll_all(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        if self.ending.is_none() && self.stopped.as_mut().poll(cx).is_ready() {
            self.ending = Some(End::Stopping);
        }
        loop {
            let mut progress = false;
            progress |= self.poll_answers(cx);
            while self.outbox.bytes() > 0 {
                match self.outbox.poll_write(&mut self.stream, cx) {
                    Poll::Pending => break,
                    Poll::Ready(written) => {
                        METRICS.sent_bytes.increment(written? as u64);
                        self.last_active = Instant::now();
                        self.last_taken = self.last_active;
                        progress = true;
                    }
                }
            }
            if self.ending.is_none() {
                match self.poll_requests(cx) {
                    Ok(more) => progress |= more,
                    Err(end) => {
                        self.ending = Some(end);
                        progress = true;
                    }
                }
            }
            if self.ending.is_some() && self.queue.is_empty() && self.outbox.bytes() == 0 {
                return Poll::Ready(Ok(()));
            }
            if !progress {
                break;
            }
        }
        self.poll_timer(cx)
    }

    /// Moves finished answers from the front of the queue to the outbox, while it has room.
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        while self.outbox.bytes() < OUTBOX_BYTES_MAX
            && let Some(front) = self.queue.front_mut()
        {
            let polled = catch_unwind(AssertUnwindSafe(|| poll_reply(&mut front.called.reply, cx)));
            let answer = match polled {
                Ok(Poll::Pending) => break,
                Ok(Poll::Ready(answer)) => answer,
                Err(panic) => {
                    self.drop_queue(End::Panic(what(panic.as_ref())));
                    return true;
                }
            };
            progress = true;
            let Some(done) = self.queue.pop_front() else { break };
            self.queue_bytes -= done.share.num_permits();
            self.ready_bytes -= done.ready_bytes;
            let took = done.received.elapsed();
            METRICS.latency.record(took);
            api_metrics::answered(done.called.row, took);
            match answer {
                Some(body) if body.is_empty() => {}
                Some(body) => {
                    if self.outbox.bytes() == 0 {
                        self.last_taken = Instant::now();
                    }
                    self.outbox.push(done.called.correlation_id, done.called.header_version, body);
                }
                None => {
                    self.drop_queue(End::Unanswerable { api: crate::api::APIS[done.called.row].name });
                    return true;
                }
            }
        }
        progress
    }

    /// Nothing behind a request that cannot be answered is answered either.
    fn drop_queue(&mut self, end: End) {
        self.queue.clear();
        self.queue_bytes = 0;
        self.ready_bytes = 0;
        self.parked = None;
        self.ending = Some(end);
    }

    /// Takes on what has arrived, and reads on where there is room.
    fn poll_requests(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut progress = false;
        if let Some(parked) = &mut self.parked {
            if parked.admitted.as_mut().poll(cx).is_pending() {
                return Ok(false);
            }
            if let Some(Parked { frame, share, received, .. }) = self.parked.take() {
                self.call(frame, share, received)?;
            }
            progress = true;
        }
        while self.has_room() {
            match self.reader.poll_frame(cx) {
                Poll::Pending => return Ok(progress),
                Poll::Ready(Err(fault)) => return Err(fault.into()),
                Poll::Ready(Ok(Some(frame))) => {
                    progress = true;
                    self.take(Frame::parse(frame.bytes)?, frame.share, cx)?;
                }
                Poll::Ready(Ok(None)) => match self.reader.poll_read(&mut self.stream, cx) {
                    Poll::Pending => return Ok(progress),
                    Poll::Ready(Err(error)) => return Err(error.into()),
                    Poll::Ready(Ok(Event::End)) => return Err(End::ByClient),
                    Poll::Ready(Ok(Event::Bytes(count))) => {
                        METRICS.received_bytes.increment(count as u64);
                        self.last_active = Instant::now();
                        progress = true;
                    }
                },
            }
        }
        Ok(progress)
    }

    fn has_room(&self) -> bool {
        self.parked.is_none()
            && self.ending.is_none()
            && self.queue.len() < PIPELINE_REQUESTS_MAX
            && self.queue_bytes < PIPELINE_BYTES_MAX
            && self.outbox.bytes() + self.ready_bytes < OUTBOX_BYTES_MAX
    }

    /// Calls the service, or parks a write that the log does not admit yet; what follows it waits too.
    fn take(&mut self, frame: Frame, share: OwnedSemaphorePermit, cx: &mut Context<'_>) -> Result<(), End> {
        let received = Instant::now();
        if frame.waits_for_admission() {
            let mut admitted: Task = Box::pin(self.service.admitted());
            if admitted.as_mut().poll(cx).is_pending() {
                self.parked = Some(Parked { frame, share, received, admitted });
                return Ok(());
            }
        }
        self.call(frame, share, received)
    }

    fn call(&mut self, frame: Frame, share: OwnedSemaphorePermit, received: Instant) -> Result<(), End> {
        tracing::trace!(peer = %self.peer, api = frame.api(), bytes = share.num_permits(), "request");
        let (service, caller) = (&self.service, &mut self.caller);
        let called = catch_unwind(AssertUnwindSafe(|| service.call(caller, frame)))
            .map_err(|panic| End::Panic(what(panic.as_ref())))??;
        self.queue_bytes += share.num_permits();
        let ready_bytes = match &called.reply {
            Reply::Now(body) => body.iter().map(Bytes::len).sum(),
            Reply::Later(_) | Reply::Silent(_) => 0,
        };
        self.ready_bytes += ready_bytes;
        self.queue.push_back(Waiting { called, share, received, ready_bytes });
        Ok(())
    }

    /// Ends a connection on which nothing has moved for too long. The timer is set anew only when it has fired.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let still = self.last_active.elapsed();
            let stalled = self.reader.is_inside_a_frame() && self.queue.is_empty() && self.parked.is_none();
            let end = if self.reader.waits_for_budget() && still >= Duration::from_millis(BUDGET_WAIT_MS_MAX) {
                Some(End::Overloaded)
            } else if self.outbox.bytes() > 0 && self.last_taken.elapsed() >= self.settings.write_stall_timeout {
                // Whatever the queue holds: it would hold its share of the budget for as long as the client likes.
                Some(End::NotReading(self.settings.write_stall_timeout))
            } else if stalled && still >= self.settings.stall_timeout {
                Some(End::Stalled(self.settings.stall_timeout))
            } else if self.queue.is_empty() && self.parked.is_none() && still >= self.settings.idle_timeout {
                Some(End::Idle(self.settings.idle_timeout))
            } else {
                None
            };
            if let Some(end) = end {
                self.ending = Some(end);
                return Poll::Ready(Ok(()));
            }
            self.timer.as_mut().reset(tokio::time::Instant::now() + tick(&self.settings));
        }
        Poll::Pending
    }

    fn log_end(&self, result: Result<(), io::Error>) {
        let (peer, client_id) = (self.peer, &*self.caller.client_id);
        let end = match (result, &self.ending) {
            (Err(error), _) => return tracing::debug!(%peer, client_id, %error, "connection lost"),
            (Ok(()), Some(end)) => end,
            (Ok(()), None) => return,
        };
        match end {
            End::ByClient | End::Stopping | End::Socket(_) | End::Idle(_) => {
                tracing::debug!(%peer, client_id, reason = %end, "connection closed");
            }
            End::Unanswerable { .. } => tracing::info!(%peer, client_id, reason = %end, "connection closed"),
            End::Frame(_) | End::Request(_) | End::Stalled(_) | End::NotReading(_) | End::Overloaded => {
                METRICS.errors.increment(1);
                // At a client's will and as often as it likes, so the log tells one of many.
                static SELDOM: Seldom = Seldom::new();
                match SELDOM.turn() {
                    Some(left_out) => {
                        tracing::warn!(%peer, client_id, reason = %end, left_out, "connection closed");
                    }
                    None => tracing::debug!(%peer, client_id, reason = %end, "connection closed"),
                }
            }
            End::Panic(_) => {
                METRICS.errors.increment(1);
                tracing::error!(%peer, client_id, reason = %end, "connection closed");
            }
        }
    }
}

impl<S: Service> Future for Connection<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let result = ready!(self.poll_all(cx));
        self.log_end(result);
        Poll::Ready(())
    }
}

/// How often a connection looks whether it has been still for too long; it is closed at most so much late.
fn tick(settings: &NetSettings) -> Duration {
    let least = settings.stall_timeout.min(settings.write_stall_timeout).min(settings.idle_timeout);
    least.min(Duration::from_millis(BUDGET_WAIT_MS_MAX))
}

/// The answer, once it is there: None closes the connection, an empty one is not sent.
fn poll_reply(reply: &mut Reply, cx: &mut Context<'_>) -> Poll<Option<Encoded>> {
    match reply {
        Reply::Now(encoded) => Poll::Ready(Some(std::mem::take(encoded))),
        Reply::Later(answer) => answer.as_mut().poll(cx),
        Reply::Silent(done) => Poll::Ready(ready!(done.as_mut().poll(cx)).then(Vec::new)),
    }
}

fn what(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "something without words".to_owned())
}
