//! Sockets: accepts clients, reads frames, keeps the order of requests and answers, and pushes back.
//!
//! One task per connection does everything (`connection`): a request is decoded and handed on as soon as its last byte
//! is there, and an answer is written by the task that was woken for it, without a further hop.
//!
//! Bounds: connections, requests in work per connection (by number and by bytes), answers not yet written, and the
//! bytes of all requests together (`queued.max.request.bytes`). At a bound the socket is simply not read, and TCP pushes back.

mod connection;
mod frame;
mod outbox;
mod seldom;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::api::{Api, Called, Caller, Fault, Frame};
use crate::config::limits::{ACCEPT_RETRY_MS, CONNECTIONS_MAX, REQUESTS_BYTES_MAX};
use crate::types::ConnectionId;
use connection::Connection;
use seldom::Seldom;

/// What the operator may choose about sockets.
#[derive(Clone, Copy, Debug)]
pub struct NetSettings {
    /// Connections at a time; one more is closed at once.
    pub connections_max: usize,
    /// `connections.max.idle.ms`: a connection without a request for so long is closed.
    pub idle_timeout: Duration,
    /// A frame that began and does not go on for so long closes the connection.
    pub stall_timeout: Duration,
    /// A client that takes nothing of its answers for so long is closed.
    pub write_stall_timeout: Duration,
    /// `queued.max.request.bytes`: bytes of all requests of the listener that are in memory and not answered.
    pub requests_bytes_max: usize,
    /// How long answers may take at shutdown.
    pub close_timeout: Duration,
}

impl Default for NetSettings {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            idle_timeout: Duration::from_secs(600),
            stall_timeout: Duration::from_secs(30),
            write_stall_timeout: Duration::from_secs(30),
            requests_bytes_max: REQUESTS_BYTES_MAX,
            close_timeout: Duration::from_secs(3),
        }
    }
}

/// Who carries out requests: [`Api`], or a stand-in in tests of this room.
pub trait Service: Clone + Send + Unpin + 'static {
    /// The same for one connection, with whatever that has of its own.
    fn for_connection(&self) -> Self {
        self.clone()
    }

    /// A connection was accepted.
    fn accepted(&self, _connection: ConnectionId) {}

    /// Waits until more may be written.
    fn admitted(&self) -> impl Future<Output = ()> + Send + 'static;

    /// Runs the synchronous half of a request.
    ///
    /// # Errors
    /// If it cannot be served: the connection is closed.
    fn call(&self, caller: &mut Arc<Caller>, frame: Frame) -> Result<Called, Fault>;
}

impl Service for Api {
    fn for_connection(&self) -> Self {
        Api::for_connection(self)
    }

    fn accepted(&self, connection: ConnectionId) {
        self.log.accepted(connection);
    }

    fn admitted(&self) -> impl Future<Output = ()> + Send + 'static {
        let log = self.log.clone();
        async move { log.admitted().await }
    }

    fn call(&self, caller: &mut Arc<Caller>, frame: Frame) -> Result<Called, Fault> {
        Api::call(self, caller, frame)
    }
}

/// Connections are numbered in the order in which they were accepted, over all listeners.
static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// Connections open now, over all listeners.
static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);

/// Connections open now. A number to ask for, not a gauge fed from here: an idle gauge leaves the exposition.
pub fn connections() -> usize {
    CONNECTIONS.load(Ordering::Relaxed)
}

/// Counts one connection while it lives, however its task ends.
struct Counted;

impl Counted {
    fn new() -> Self {
        CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

struct NetMetrics {
    received_bytes: Counter,
    sent_bytes: Counter,
    errors: Counter,
    latency: Histogram,
}

static METRICS: LazyLock<NetMetrics> = LazyLock::new(|| NetMetrics {
    received_bytes: counter!("redpanda_rpc_received_bytes", "redpanda_server" => "kafka"),
    sent_bytes: counter!("redpanda_rpc_sent_bytes", "redpanda_server" => "kafka"),
    errors: counter!("redpanda_rpc_request_errors_total", "redpanda_server" => "kafka"),
    latency: histogram!("redpanda_rpc_request_latency_seconds", "redpanda_server" => "kafka"),
});

/// Serves a listener until `stop` turns true, then lets every connection finish its answers within the close timeout.
pub async fn serve<S: Service>(
    listener: TcpListener,
    service: S,
    settings: NetSettings,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let budget = Arc::new(Semaphore::new(settings.requests_bytes_max.min(Semaphore::MAX_PERMITS)));
    let refused = Seldom::new();
    let for_connections = stop.clone();
    loop {
        tokio::select! {
            biased;
            () = async { drop(stop.wait_for(|stop| *stop).await) } => break,
            Some(ended) = connections.join_next() => log_panic(ended),
            accepted = listener.accept() => match accepted {
                Ok((_, peer)) if connections.len() >= settings.connections_max => {
                    METRICS.errors.increment(1);
                    if let Some(left_out) = refused.turn() {
                        let max = settings.connections_max;
                        tracing::warn!(%peer, max, left_out, "connection refused: too many are open");
                    }
                }
                Ok((stream, peer)) => {
                    let (caller, service) = (welcome(&stream, peer), service.for_connection());
                    service.accepted(caller.connection);
                    let (budget, stop) = (Arc::clone(&budget), for_connections.clone());
                    let client = Connection::new(stream, peer, service, caller, settings, budget, stop);
                    let counted = Counted::new();
                    connections.spawn(async move {
                        let _counted = counted;
                        client.await;
                    });
                }
                Err(error) => {
                    // Out of descriptors: nothing tells when there are some again.
                    tracing::error!(%error, "cannot accept connections");
                    tokio::time::sleep(Duration::from_millis(ACCEPT_RETRY_MS)).await;
                }
            },
        }
    }
    drop(listener);
    let finished = async {
        while let Some(ended) = connections.join_next().await {
            log_panic(ended);
        }
    };
    if tokio::time::timeout(settings.close_timeout, finished).await.is_err() {
        tracing::info!("connections are closed with answers outstanding");
    }
}

/// Sets up an accepted socket, and says who is behind it.
fn welcome(stream: &TcpStream, peer: SocketAddr) -> Arc<Caller> {
    let connection = ConnectionId(NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed));
    // A request that waits is never idle, so only the kernel can tell that a peer has vanished without a word.
    let set = stream.set_nodelay(true).and_then(|()| SockRef::from(stream).set_keepalive(true));
    if let Err(error) = set {
        tracing::debug!(%peer, %error, "a socket option cannot be set");
    }
    Arc::new(Caller {
        connection,
        software: Arc::from(""),
        client_id: Arc::from(""),
        host: Arc::from(format!("/{}", peer.ip())),
    })
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task panicked");
    }
}

#[cfg(test)]
mod tests;
