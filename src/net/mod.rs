//! Sockets: accepts clients, reads frames, keeps the order of requests and answers, and pushes back.
//!
//! One task per connection does everything (`connection`): a request is decoded and handed on as soon as its last byte
//! is there, and an answer is written by the task that was woken for it, without a further hop.
//!
//! Bounds: connections, requests in work per connection (by number and by bytes), answers not yet written, and the
//! bytes of all requests together (`budget`). At a bound the socket is simply not read, and TCP pushes back.

mod connection;
mod frame;
mod outbox;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use metrics::{Counter, counter};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::api::{Api, Called, Caller, Fault, Frame};
use crate::config::limits::{ACCEPT_RETRY_MS, CONNECTIONS_MAX, REQUESTS_BYTES_MAX};
use crate::types::ConnectionId;

/// What the operator may choose about sockets.
#[derive(Clone, Copy, Debug)]
pub struct NetSettings {
    /// Connections at a time; one more is closed at once.
    pub connections_max: usize,
    /// `connections.max.idle.ms`: a connection without a request for so long is closed.
    pub idle_timeout: Duration,
    /// A frame that began and does not go on for so long closes the connection.
    pub stall_timeout: Duration,
    /// How long answers may take at shutdown.
    pub close_timeout: Duration,
}

impl Default for NetSettings {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            idle_timeout: Duration::from_secs(600),
            stall_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(3),
        }
    }
}

/// Who carries out requests: [`Api`], or a stand-in in tests of this room.
pub trait Service: Clone + Send + Unpin + 'static {
    /// Waits until more may be written.
    fn admitted(&self) -> impl Future<Output = ()> + Send + 'static;

    /// Runs the synchronous half of a request.
    ///
    /// # Errors
    /// If it cannot be served: the connection is closed.
    fn call(&self, caller: &mut Arc<Caller>, frame: Frame) -> Result<Called, Fault>;
}

impl Service for Api {
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

/// The bytes of all requests in memory.
static BUDGET: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(REQUESTS_BYTES_MAX)));

struct NetMetrics {
    received_bytes: Counter,
    sent_bytes: Counter,
    errors: Counter,
}

static METRICS: LazyLock<NetMetrics> = LazyLock::new(|| NetMetrics {
    received_bytes: counter!("redpanda_rpc_received_bytes", "redpanda_server" => "kafka"),
    sent_bytes: counter!("redpanda_rpc_sent_bytes", "redpanda_server" => "kafka"),
    errors: counter!("redpanda_rpc_request_errors_total", "redpanda_server" => "kafka"),
});

/// Serves a listener until `stop` turns true, then lets every connection finish its answers within the close timeout.
pub async fn serve<S: Service>(
    listener: TcpListener,
    service: S,
    settings: NetSettings,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let for_connections = stop.clone();
    loop {
        tokio::select! {
            biased;
            () = async { drop(stop.wait_for(|stop| *stop).await) } => break,
            Some(ended) = connections.join_next() => log_panic(ended),
            accepted = listener.accept() => match accepted {
                Ok((_, peer)) if connections.len() >= settings.connections_max => {
                    tracing::warn!(%peer, max = settings.connections_max, "connection refused: too many are open");
                }
                Ok((stream, peer)) => spawn(&mut connections, stream, peer, service.clone(), settings, for_connections.clone()),
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

fn spawn<S: Service>(
    connections: &mut JoinSet<()>,
    stream: TcpStream,
    peer: SocketAddr,
    service: S,
    settings: NetSettings,
    stop: watch::Receiver<bool>,
) {
    let id = ConnectionId(NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed));
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "TCP_NODELAY cannot be set");
    }
    let caller = Arc::new(Caller {
        connection: id,
        software: Arc::from(""),
        client_id: Arc::from(""),
        host: Arc::from(format!("/{}", peer.ip())),
    });
    let counted = Counted::new();
    connections.spawn(async move {
        let _counted = counted;
        connection::Connection::new(stream, peer, service, caller, settings, stop).await;
    });
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
