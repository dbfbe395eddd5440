//! The room without Kafka: a stand-in service whose answers the test decides.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, oneshot};

use super::*;
use crate::api::{Encoded, Reply};

/// Far more than the kernel's socket buffers take.
const BIG: usize = 64 << 20;

/// Answers by correlation id: < 100 at once with as many bytes, < 200 when the test says so, 200 never (acks=0), 201
/// with very much, 300 closes, 400 panics, 500 panics later.
#[derive(Clone, Default)]
struct StandIn {
    open: Arc<Mutex<BTreeMap<i32, oneshot::Sender<Encoded>>>>,
    called: Arc<Mutex<Vec<i32>>>,
    arrived: Arc<Notify>,
    closed: Arc<tokio::sync::watch::Sender<bool>>,
}

impl StandIn {
    async fn until_called(&self, count: usize) {
        loop {
            let arrived = self.arrived.notified();
            if self.called.lock().len() >= count {
                return;
            }
            arrived.await;
        }
    }

    fn answer(&self, id: i32, body: &'static [u8]) {
        let sender = self.open.lock().remove(&id).expect("it was asked");
        sender.send(vec![Bytes::from_static(body)]).expect("it waits");
    }
}

impl Service for StandIn {
    fn admitted(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut closed = self.closed.subscribe();
        async move {
            let _ = closed.wait_for(|closed| !closed).await;
        }
    }

    fn call(&self, _: &mut Arc<Caller>, frame: Frame) -> Result<Called, Fault> {
        let id = frame.correlation_id();
        self.called.lock().push(id);
        self.arrived.notify_waiters();
        let reply = match id {
            0..100 => Reply::Now(vec![Bytes::from(vec![id as u8; id as usize])]),
            100..200 => {
                let (sender, receiver) = oneshot::channel();
                self.open.lock().insert(id, sender);
                Reply::later(async move { receiver.await.ok() })
            }
            200 => Reply::Silent(Box::pin(std::future::ready(true))),
            201 => Reply::Now(vec![Bytes::from_static(&[0; BIG])]),
            300 => Reply::later(std::future::ready(None)),
            400 => panic!("at once"),
            _ => Reply::later(async { panic!("later") }),
        };
        Ok(Called { row: 0, correlation_id: id, header_version: 0, reply })
    }
}

struct Node {
    addr: SocketAddr,
    service: StandIn,
    stop: watch::Sender<bool>,
    served: tokio::task::JoinHandle<()>,
}

async fn node(settings: NetSettings) -> Node {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let service = StandIn::default();
    let (stop, stopped) = watch::channel(false);
    let served = tokio::spawn(serve(listener, service.clone(), settings, stopped));
    Node { addr, service, stop, served }
}

const WRITE: i16 = 0; // Produce waits for admission
const READ: i16 = 1; // Fetch does not

fn request(key: i16, id: i32) -> Vec<u8> {
    let version: i16 = 4;
    let body = vec![0; (id as usize * 97) % 20_000];
    let mut out = ((8 + body.len()) as i32).to_be_bytes().to_vec();
    out.extend(key.to_be_bytes());
    out.extend(version.to_be_bytes());
    out.extend(id.to_be_bytes());
    out.extend(body);
    out
}

async fn response(stream: &mut TcpStream) -> Option<(i32, Vec<u8>)> {
    let size = stream.read_i32().await.ok()?;
    let id = stream.read_i32().await.ok()?;
    let mut body = vec![0; size as usize - 4];
    stream.read_exact(&mut body).await.ok()?;
    Some((id, body))
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    // A close with unread input arrives as a reset.
    matches!(stream.read(&mut [0; 1]).await, Ok(0) | Err(_))
}

#[tokio::test]
async fn answers_keep_the_order_of_the_requests_whatever_the_order_they_finish_in() {
    let node = node(NetSettings::default()).await;
    let mut client = TcpStream::connect(node.addr).await.unwrap();
    for id in [101, 7, 200, 102] {
        client.write_all(&request(READ, id)).await.unwrap();
    }
    node.service.until_called(4).await;
    node.service.answer(102, b"second");
    node.service.answer(101, b"first");
    assert_eq!(response(&mut client).await.unwrap(), (101, b"first".to_vec()));
    assert_eq!(response(&mut client).await.unwrap(), (7, vec![7; 7]));
    assert_eq!(response(&mut client).await.unwrap(), (102, b"second".to_vec()));
}

#[tokio::test]
async fn a_thousand_pipelined_requests_of_all_sizes_in_odd_pieces_are_each_answered_once() {
    let node = node(NetSettings::default()).await;
    let client = TcpStream::connect(node.addr).await.unwrap();
    let ids: Vec<i32> = (0..1_000).map(|at| at * 31 % 100).collect();
    let all: Vec<u8> = ids.iter().flat_map(|id| request(WRITE, *id)).collect();
    let (mut from, mut to) = client.into_split();
    let sent = tokio::spawn(async move {
        let mut left = &all[..];
        for size in (1..4_000).step_by(13).cycle() {
            let (piece, rest) = left.split_at(left.len().min(size));
            to.write_all(piece).await.unwrap();
            left = rest;
            if left.is_empty() {
                return to;
            }
        }
        to
    });
    for id in ids {
        let size = from.read_i32().await.unwrap();
        assert_eq!((size, from.read_i32().await.unwrap()), (id + 4, id));
        from.read_exact(&mut vec![0; id as usize]).await.unwrap();
    }
    drop(sent.await.unwrap());
}

#[tokio::test]
async fn what_is_malformed_closes_its_own_connection_after_the_answers_before_it() {
    let node = node(NetSettings::default()).await;
    let mut good = TcpStream::connect(node.addr).await.unwrap();
    let cases: [&[u8]; 6] = [
        &(-1i32).to_be_bytes(),
        &i32::MAX.to_be_bytes(),
        b"GET / HTTP/1.1\r\n\r\n",
        &[0x16, 3, 1, 2, 0, 1, 0, 1],
        &[0, 0, 0, 3, 0, 1, 0],                 // shorter than a header
        &[0, 0, 0, 8, 0, 99, 0, 0, 0, 0, 0, 1], // an API that nobody serves
    ];
    for case in cases {
        let mut bad = TcpStream::connect(node.addr).await.unwrap();
        bad.write_all(&[&request(READ, 5)[..], case].concat()).await.unwrap();
        assert_eq!(response(&mut bad).await.unwrap().0, 5, "{case:?}");
        assert!(is_closed(&mut bad).await, "{case:?}");
    }
    good.write_all(&request(READ, 3)).await.unwrap();
    assert_eq!(response(&mut good).await.unwrap().0, 3);
}

#[tokio::test]
async fn a_frame_that_stops_half_way_closes_the_connection_only_after_the_stall_timeout() {
    let settings = NetSettings { stall_timeout: Duration::from_millis(20), ..NetSettings::default() };
    let node = node(settings).await;
    let mut torn = TcpStream::connect(node.addr).await.unwrap();
    torn.write_all(&request(READ, 5)[..20]).await.unwrap();
    assert!(is_closed(&mut torn).await);
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_one_that_waits_for_an_answer_is_not() {
    let settings = NetSettings { idle_timeout: Duration::from_millis(30), ..NetSettings::default() };
    let node = node(settings).await;
    let mut idle = TcpStream::connect(node.addr).await.unwrap();
    let mut waiting = TcpStream::connect(node.addr).await.unwrap();
    waiting.write_all(&request(READ, 150)).await.unwrap();
    node.service.until_called(1).await;
    assert!(is_closed(&mut idle).await);
    node.service.answer(150, b"late");
    assert_eq!(response(&mut waiting).await.unwrap(), (150, b"late".to_vec()));
}

#[tokio::test]
async fn an_answer_that_must_not_be_given_closes_the_connection() {
    let node = node(NetSettings::default()).await;
    let mut client = TcpStream::connect(node.addr).await.unwrap();
    for id in [4, 300, 5] {
        client.write_all(&request(READ, id)).await.unwrap();
    }
    assert_eq!(response(&mut client).await.unwrap().0, 4);
    assert!(is_closed(&mut client).await);
}

#[tokio::test]
async fn a_panic_in_a_handler_closes_its_connection_and_no_other() {
    let node = node(NetSettings::default()).await;
    let mut good = TcpStream::connect(node.addr).await.unwrap();
    for id in [400, 500] {
        let mut bad = TcpStream::connect(node.addr).await.unwrap();
        bad.write_all(&request(READ, id)).await.unwrap();
        assert!(is_closed(&mut bad).await);
    }
    good.write_all(&request(READ, 3)).await.unwrap();
    assert_eq!(response(&mut good).await.unwrap().0, 3);
}

#[tokio::test]
async fn a_write_that_is_not_admitted_holds_back_what_follows_it_on_its_connection_only() {
    let node = node(NetSettings::default()).await;
    node.service.closed.send_replace(true);
    let mut writer = TcpStream::connect(node.addr).await.unwrap();
    let mut reader = TcpStream::connect(node.addr).await.unwrap();
    for (key, id) in [(READ, 1), (WRITE, 2), (READ, 3)] {
        writer.write_all(&request(key, id)).await.unwrap();
    }
    assert_eq!(response(&mut writer).await.unwrap().0, 1);
    reader.write_all(&request(READ, 9)).await.unwrap();
    assert_eq!(response(&mut reader).await.unwrap().0, 9);
    assert_eq!(*node.service.called.lock(), [1, 9]);
    node.service.closed.send_replace(false);
    assert_eq!(response(&mut writer).await.unwrap().0, 2);
    assert_eq!(response(&mut writer).await.unwrap().0, 3);
}

#[tokio::test]
async fn the_pipeline_of_one_connection_is_bounded() {
    use crate::config::limits::PIPELINE_REQUESTS_MAX;
    let node = node(NetSettings::default()).await;
    let mut client = TcpStream::connect(node.addr).await.unwrap();
    client.write_all(&request(READ, 100)).await.unwrap();
    for _ in 0..PIPELINE_REQUESTS_MAX + 20 {
        client.write_all(&request(READ, 1)).await.unwrap();
    }
    node.service.until_called(PIPELINE_REQUESTS_MAX).await;
    // The task has gone as far as it can once another connection's round trip is through.
    let mut other = TcpStream::connect(node.addr).await.unwrap();
    other.write_all(&request(READ, 2)).await.unwrap();
    assert_eq!(response(&mut other).await.unwrap().0, 2);
    assert_eq!(node.service.called.lock().iter().filter(|id| **id != 2).count(), PIPELINE_REQUESTS_MAX);
    node.service.answer(100, b"go on");
    for _ in 0..PIPELINE_REQUESTS_MAX + 21 {
        response(&mut client).await.unwrap();
    }
}

#[tokio::test]
async fn at_shutdown_answers_are_finished_and_nothing_new_is_read() {
    let node = node(NetSettings::default()).await;
    let mut client = TcpStream::connect(node.addr).await.unwrap();
    client.write_all(&request(READ, 120)).await.unwrap();
    node.service.until_called(1).await;
    node.stop.send(true).unwrap();
    node.service.answer(120, b"the last");
    assert_eq!(response(&mut client).await.unwrap(), (120, b"the last".to_vec()));
    assert!(is_closed(&mut client).await);
    node.served.await.unwrap();
    assert!(TcpStream::connect(node.addr).await.is_err());
}

#[tokio::test]
async fn one_connection_too_many_is_closed_at_once() {
    let node = node(NetSettings { connections_max: 1, ..NetSettings::default() }).await;
    let mut first = TcpStream::connect(node.addr).await.unwrap();
    first.write_all(&request(READ, 1)).await.unwrap();
    assert_eq!(response(&mut first).await.unwrap().0, 1);
    let mut second = TcpStream::connect(node.addr).await.unwrap();
    assert!(is_closed(&mut second).await);
    first.write_all(&request(READ, 2)).await.unwrap();
    assert_eq!(response(&mut first).await.unwrap().0, 2);
}

#[tokio::test]
async fn open_connections_are_counted() {
    let node = node(NetSettings::default()).await;
    let mut streams = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(node.addr).await.unwrap();
        stream.write_all(&request(READ, 1)).await.unwrap();
        assert!(response(&mut stream).await.is_some());
        streams.push(stream);
    }
    // Tests beside this one have some open too.
    assert!(connections() >= 64, "{}", connections());
}

#[tokio::test]
async fn a_client_that_takes_none_of_its_answers_is_closed_whatever_is_queued() {
    let settings = NetSettings { write_stall_timeout: Duration::from_millis(50), ..NetSettings::default() };
    let node = node(settings).await;
    let mut client = TcpStream::connect(node.addr).await.unwrap();
    client.write_all(&[request(READ, 101), request(READ, 102)].concat()).await.unwrap();
    node.service.until_called(2).await;
    let mut queued = node.service.open.lock().remove(&102).unwrap();
    node.service.answer(101, &[0; BIG]);
    // The request behind is dropped with its connection, and so is its share of the budget.
    tokio::time::timeout(Duration::from_secs(10), queued.closed()).await.expect("the connection ends");
}

#[tokio::test]
async fn answers_that_are_there_and_wait_behind_another_count_against_the_bound() {
    let node = node(NetSettings::default()).await;
    let mut client = TcpStream::connect(node.addr).await.unwrap();
    let all = [request(READ, 150), request(READ, 201), request(READ, 3)].concat();
    client.write_all(&all).await.unwrap();
    node.service.until_called(2).await;
    let third = tokio::time::timeout(Duration::from_millis(200), node.service.until_called(3)).await;
    assert!(third.is_err(), "no further request is taken on");
    node.service.answer(150, b"first");
    assert_eq!(response(&mut client).await.unwrap(), (150, b"first".to_vec()));
    assert_eq!(response(&mut client).await.unwrap().1.len(), BIG);
    assert_eq!(response(&mut client).await.unwrap().0, 3);
}

#[tokio::test]
async fn the_bytes_of_all_requests_together_are_bounded_by_the_setting() {
    let node = node(NetSettings { requests_bytes_max: 20_000, ..NetSettings::default() }).await;
    let mut first = TcpStream::connect(node.addr).await.unwrap();
    first.write_all(&request(READ, 150)).await.unwrap();
    node.service.until_called(1).await;
    let mut second = TcpStream::connect(node.addr).await.unwrap();
    second.write_all(&request(READ, 151)).await.unwrap();
    let taken = tokio::time::timeout(Duration::from_millis(200), node.service.until_called(2)).await;
    assert!(taken.is_err(), "both together are over the bound");
    node.service.answer(150, b"one");
    node.service.until_called(2).await;
    node.service.answer(151, b"two");
    assert_eq!(response(&mut second).await.unwrap(), (151, b"two".to_vec()));
}

#[tokio::test]
async fn the_kernel_asks_whether_a_silent_peer_is_still_there() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, peer) = listener.accept().await.unwrap();
    assert_eq!(*welcome(&stream, peer).host, *"/127.0.0.1");
    assert!(SockRef::from(&stream).keepalive().unwrap() && stream.nodelay().unwrap());
}
