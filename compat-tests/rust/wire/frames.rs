//! Frames that no client sends.

use std::io::Write;
use std::os::fd::AsRawFd;

use kafka_protocol::messages::{ApiVersionsRequest, MetadataRequest};

use super::client::{Broker, framed};

/// The broker still answers, on the connection that was there before and on a new one.
fn assert_unharmed(broker: &Broker, before: &mut super::client::Client) {
    for client in [before, &mut broker.connect()] {
        assert_eq!(client.ask(&ApiVersionsRequest::default(), 0).expect("it answers").error_code, 0);
    }
}

#[test]
fn a_malformed_frame_closes_its_connection_and_harms_no_other() {
    let broker = Broker::start();
    let mut before = broker.connect();
    let frames: Vec<(&str, Vec<u8>)> = vec![
        ("negative length", (-1i32).to_be_bytes().to_vec()),
        ("least length", i32::MIN.to_be_bytes().to_vec()),
        ("oversized length", i32::MAX.to_be_bytes().to_vec()),
        ("one byte over 100 MiB", ((100 << 20) + 1i32).to_be_bytes().to_vec()),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("TLS", vec![0x16, 3, 1, 0x02, 0, 1, 0, 1, 0xfc, 3, 3]),
        ("no request", vec![0, 0, 0, 2, 0, 3]),
        ("header cut", vec![0, 0, 0, 9, 0, 3, 0, 1, 0, 0, 0, 1, 0]),
        ("client id longer than the frame", [&[0, 0, 0, 10, 0, 3, 0, 1, 0, 0, 0, 1][..], &[0x7f, 0xff]].concat()),
        ("unknown API", framed(9_999, 0, 1, &[])),
        ("negative API", framed(-5, 0, 1, &[])),
        ("unknown version", framed(3, 99, 1, &[0; 16])),
        ("negative version", framed(3, -2, 1, &[0; 16])),
        ("array longer than the frame", framed(3, 1, 1, &i32::MAX.to_be_bytes())),
        ("compact array longer than the frame", framed(3, 12, 1, &[0xff, 0xff, 0xff, 0xff, 0x0f])),
        ("negative array", framed(0, 3, 1, &[0xff, 0xff, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf0])),
        ("body cut", framed(22, 1, 1, &[0, 5, b'a'])),
    ];
    for (name, frame) in frames {
        let mut client = broker.connect();
        client.write(&frame);
        assert!(client.is_closed(), "{name}");
        assert_unharmed(&broker, &mut before);
    }
}

#[test]
fn a_torn_frame_and_a_close_leave_nothing_behind() {
    let broker = Broker::start();
    let mut before = broker.connect();
    let whole = framed(3, 1, 1, &(-1i32).to_be_bytes());
    for cut in 0..whole.len() {
        let mut client = broker.connect();
        client.write(&whole[..cut]);
    }
    assert_unharmed(&broker, &mut before);
}

#[test]
fn a_frame_in_pieces_is_one_request() {
    let broker = Broker::start();
    let mut client = broker.connect();
    let whole = framed(18, 0, 7, &[]);
    for byte in whole {
        client.write(&[byte]);
    }
    assert_eq!(client.receive::<ApiVersionsRequest>(0).expect("an answer").0, 7);
}

#[test]
fn a_lying_length_costs_only_what_arrives() {
    let broker = Broker::start();
    if broker.is_kafka() {
        return; // Kafka allocates what the length claims, and runs out of memory
    }
    let mut before = broker.connect();
    let mut liars = Vec::new();
    for _ in 0..64 {
        let mut client = broker.connect();
        client.write(&(100i32 << 20).to_be_bytes());
        client.write(&[0, 3, 0, 1]);
        liars.push(client);
    }
    if let Some(resident) = broker.resident_bytes() {
        assert!(resident < 1 << 30, "{resident} bytes for 6.4 GB claimed");
    }
    assert_unharmed(&broker, &mut before);
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let broker = Broker::start();
    let mut client = broker.connect();
    let all = MetadataRequest::default().with_topics(None);
    let none = MetadataRequest::default().with_topics(Some(vec![]));
    for round in 0..50 {
        if round % 3 == 0 {
            client.send(&ApiVersionsRequest::default(), 0);
        } else {
            client.send(if round % 3 == 1 { &all } else { &none }, 9);
        }
    }
    for round in 0..50 {
        let id = if round % 3 == 0 {
            client.receive::<ApiVersionsRequest>(0).expect("an answer").0
        } else {
            client.receive::<MetadataRequest>(9).expect("an answer").0
        };
        assert_eq!(id, round + 1);
    }
}

#[test]
fn requests_before_a_malformed_one_are_answered() {
    let broker = Broker::start();
    let mut client = broker.connect();
    client.send(&ApiVersionsRequest::default(), 0);
    assert_eq!(client.receive::<ApiVersionsRequest>(0).expect("an answer").0, 1);
    let both = [framed(18, 0, 2, &[]), (-1i32).to_be_bytes().to_vec()].concat();
    client.write(&both);
    if !broker.is_kafka() {
        // Kafka may close before it has read on.
        assert_eq!(client.receive::<ApiVersionsRequest>(0).expect("an answer").0, 2);
    }
    while let Some((id, _)) = client.receive_raw() {
        assert_eq!(id, 2);
    }
}

#[test]
fn a_client_that_never_reads_does_not_stop_the_broker() {
    let broker = Broker::start();
    let mut before = broker.connect();
    let stream = std::net::TcpStream::connect(broker.addr()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let request = framed(18, 0, 1, &[]);
    // Until nothing is taken any more, or far more than both socket buffers hold was taken.
    let mut taken = 0;
    while taken < (64 << 20) {
        match (&stream).write(&request) {
            Ok(count) => taken += count,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                if !is_writable_within(&stream, 1_500) {
                    break;
                }
            }
        }
    }
    assert!(taken < (64 << 20), "requests are taken without end while no answer is read");
    assert_unharmed(&broker, &mut before);
}

/// Whether the broker reads on within that time.
fn is_writable_within(stream: &std::net::TcpStream, millis: i32) -> bool {
    let mut poll = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid pollfd, which outlives the call.
    unsafe { libc::poll(&raw mut poll, 1, millis) > 0 }
}
