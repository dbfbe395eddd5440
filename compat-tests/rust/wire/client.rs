//! A broker to talk to, a connection to it, and record batches to send.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages as m;
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, RequestHeader};
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request, StrBytes, encode_request_header_into_buffer};
use kafka_protocol::records::{
    Compression, Record, RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};

/// A broker: a node started for one test, or the one that `BOOTSTRAP` names.
pub struct Broker {
    addr: String,
    started: Option<(Child, tempfile::TempDir)>,
}

impl Broker {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A node with these broker settings; a broker that runs has its own.
    pub fn start_with(settings: &[&str]) -> Self {
        if let Ok(addr) = std::env::var("BOOTSTRAP") {
            let broker = Self { addr, started: None };
            broker.wait_for_its_coordinators();
            return broker;
        }
        let dir = tempfile::tempdir().unwrap();
        let (addr, admin, rpc) = (port(), port(), port());
        let node = Command::new(env!("CARGO_BIN_EXE_katomic"))
            .args(["serve", "--kafka-addr", &addr, "--admin-addr", &admin, "--rpc-addr", &rpc, "--data-dir"])
            .arg(dir.path().join("data"))
            .args(settings.iter().flat_map(|setting| ["--set", setting]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .expect("the binary was built with this test");
        let broker = Self { addr, started: Some((node, dir)) };
        broker.wait_until_it_serves();
        broker
    }

    /// Kills the node and starts it again with its data; false if it is not ours.
    pub fn restart(&mut self) -> bool {
        let Some((node, dir)) = &mut self.started else { return false };
        node.kill().unwrap();
        node.wait().unwrap();
        *node = Command::new(env!("CARGO_BIN_EXE_katomic"))
            .args(["serve", "--kafka-addr", &self.addr, "--admin-addr", &port(), "--rpc-addr", &port(), "--data-dir"])
            .arg(dir.path().join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .expect("the binary was built with this test");
        self.wait_until_it_serves();
        true
    }

    /// A starting process tells nobody when its port is open.
    fn wait_until_it_serves(&self) {
        let request = m::InitProducerIdRequest::default().with_transactional_id(None);
        until("the node serves", || {
            let Ok(stream) = TcpStream::connect(&self.addr) else { return false };
            Client::over(stream).ask(&request, 4).is_some_and(|pair| pair.error_code == 0)
        });
    }

    /// Apache Kafka makes the topics behind its coordinators when they are first asked for.
    fn wait_for_its_coordinators(&self) {
        static READY: std::sync::Once = std::sync::Once::new();
        READY.call_once(|| {
            let find = m::FindCoordinatorRequest::default().with_key(fresh("any")).with_key_type(1);
            let find_group = m::FindCoordinatorRequest::default().with_key(fresh("any")).with_key_type(0);
            let init = m::InitProducerIdRequest::default()
                .with_transactional_id(Some(m::TransactionalId(fresh("any"))))
                .with_transaction_timeout_ms(1_000);
            until("the coordinators serve", || {
                let mut client = self.connect();
                [&find, &find_group].iter().all(|find| client.ask(*find, 3).expect("an answer").error_code == 0)
                    && client.ask(&init, 4).expect("an answer").error_code == 0
            });
        });
    }

    pub fn addr(&self) -> &str {
        &self.addr
    }

    pub fn connect(&self) -> Client {
        Client::over(TcpStream::connect(&self.addr).expect("the broker accepts"))
    }

    /// Memory of the node, if this test started it.
    pub fn resident_bytes(&self) -> Option<u64> {
        let (node, _) = self.started.as_ref()?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", node.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        Some(kib << 10)
    }

    /// Data directory and process, if this test started it.
    pub fn data_dir(&self) -> Option<std::path::PathBuf> {
        self.started.as_ref().map(|(_, dir)| dir.path().join("data"))
    }

    /// Ends the node without a word, and keeps its directory.
    pub fn kill(&mut self) {
        if let Some((node, _)) = &mut self.started {
            node.kill().unwrap();
            node.wait().unwrap();
        }
    }

    /// Whether what runs is not ours: some answers differ on purpose.
    pub fn is_kafka(&self) -> bool {
        self.started.is_none() && std::env::var("TARGET").is_ok_and(|target| target == "kafka")
    }

    /// A topic that no other test has.
    pub fn topic(&self, partitions: i32) -> m::TopicName {
        self.topic_with(partitions, &[])
    }

    pub fn topic_with(&self, partitions: i32, configs: &[(&str, &str)]) -> m::TopicName {
        use m::create_topics_request::{CreatableTopic, CreatableTopicConfig};
        let name = m::TopicName(fresh("wire"));
        let configs = configs.iter().map(|(name, value)| {
            CreatableTopicConfig::default()
                .with_name(StrBytes::from_string((*name).into()))
                .with_value(Some(StrBytes::from_string((*value).into())))
        });
        let topic = CreatableTopic::default()
            .with_name(name.clone())
            .with_num_partitions(partitions)
            .with_replication_factor(1)
            .with_configs(configs.collect());
        let request = m::CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        let response = self.connect().ask(&request, 7).expect("an answer");
        assert_eq!(response.topics[0].error_code, 0, "{:?}", response.topics[0].error_message);
        // Apache Kafka answers before the partitions have leaders.
        until("the topic's partitions serve", || {
            let mut client = self.connect();
            (0..partitions).all(|partition| super::offsets::list(&mut client, &name, partition, -1, 5).0 == 0)
        });
        name
    }

    pub fn topic_id(&self, name: &m::TopicName) -> uuid::Uuid {
        use m::metadata_request::MetadataRequestTopic;
        let topic = MetadataRequestTopic::default().with_name(Some(name.clone()));
        let request = m::MetadataRequest::default().with_topics(Some(vec![topic]));
        self.connect().ask(&request, 12).expect("an answer").topics[0].topic_id
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some((node, dir)) = &mut self.started {
            let _ = node.kill();
            let _ = node.wait();
            if std::thread::panicking() {
                let log = std::fs::read_to_string(dir.path().join("log"));
                eprintln!("--- the node's log\n{}", log.unwrap_or_default());
            }
        }
    }
}

/// A free address that nobody else here takes meanwhile: each is given once, below the ports that the system gives to
/// connections and to whoever asks for any.
pub fn port() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id().wrapping_mul(101).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let addr = format!("127.0.0.1:{}", 10_000 + number % 20_000);
        if TcpListener::bind(&addr).is_ok() {
            return addr;
        }
    }
}

/// Asks again until it is so: of another process nothing else can be known.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A name that no other test, and no earlier run against the same broker, has used.
pub fn fresh(prefix: &str) -> StrBytes {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    StrBytes::from_string(format!("{prefix}-{now}-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// One connection.
pub struct Client {
    stream: TcpStream,
    next: i32,
}

impl Client {
    pub fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream, next: 0 }
    }

    /// A connection that has told its software, as clients do first.
    pub fn introduced(mut self, software: &'static str) -> Self {
        let request = ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str(software))
            .with_client_software_version(StrBytes::from_static_str("1.0"));
        assert_eq!(self.ask(&request, 3).expect("an answer").error_code, 0);
        self
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the broker reads");
    }

    /// Sends a request, and tells its correlation id.
    pub fn send<R: Request>(&mut self, request: &R, version: i16) -> i32 {
        let mut body = BytesMut::new();
        request.encode(&mut body, version).expect("the test asks what the version has");
        self.send_raw(R::KEY, version, &body)
    }

    /// Sends a request with any body.
    pub fn send_raw(&mut self, key: i16, version: i16, body: &[u8]) -> i32 {
        self.next += 1;
        let frame = framed(key, version, self.next, body);
        self.write(&frame);
        self.next
    }

    /// The next response as it is: correlation id and what follows. None if the connection is closed.
    pub fn receive_raw(&mut self) -> Option<(i32, Bytes)> {
        let mut size = [0; 4];
        match self.stream.read_exact(&mut size) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer within 30 s"),
            Err(_) => return None,
        }
        let mut body = vec![0; u32::from_be_bytes(size) as usize];
        self.stream.read_exact(&mut body).expect("the rest of a response");
        let mut body = Bytes::from(body);
        Some((body.get_i32(), body))
    }

    pub fn receive<R: Request>(&mut self, version: i16) -> Option<(i32, R::Response)> {
        let (id, mut body) = self.receive_raw()?;
        if R::Response::header_version(version) >= 1 {
            assert_eq!(body.get_u8(), 0, "no tagged fields in the header");
        }
        let response = R::Response::decode(&mut body, version).expect("a response of that version");
        assert!(body.is_empty(), "{} bytes too many", body.len());
        Some((id, response))
    }

    /// Asks and waits; None if the connection was closed instead.
    pub fn ask<R: Request>(&mut self, request: &R, version: i16) -> Option<R::Response> {
        let sent = self.send(request, version);
        let (id, response) = self.receive::<R>(version)?;
        assert_eq!(id, sent);
        Some(response)
    }

    pub fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0; 1]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

/// A frame of any API and version.
pub fn framed(key: i16, version: i16, id: i32, body: &[u8]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    match ApiKey::try_from(key) {
        Ok(_) => {
            let header = RequestHeader::default()
                .with_request_api_key(key)
                .with_request_api_version(version)
                .with_correlation_id(id)
                .with_client_id(Some(StrBytes::from_static_str("wire")));
            encode_request_header_into_buffer(&mut frame, &header).expect("a header");
        }
        Err(_) => {
            frame.put_i16(key);
            frame.put_i16(version);
            frame.put_i32(id);
            frame.put_i16(-1);
        }
    }
    frame.put_slice(body);
    [&(frame.len() as i32).to_be_bytes()[..], &frame].concat()
}

/// Who writes: producer id, epoch, whether in a transaction.
#[derive(Clone, Copy)]
pub struct Writer {
    pub id: i64,
    pub epoch: i16,
    pub transactional: bool,
}

/// Not idempotent.
pub const NOBODY: Writer = Writer { id: -1, epoch: -1, transactional: false };

/// The wall clock.
pub fn now_ms() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64
}

/// A batch of these values from that sequence on, as a client would send it.
pub fn batch(writer: Writer, sequence: i32, values: &[&str]) -> Bytes {
    batch_of(writer, sequence, values, Compression::None, now_ms())
}

pub fn batch_of(writer: Writer, sequence: i32, values: &[&str], compression: Compression, time: i64) -> Bytes {
    let records: Vec<Record> = values
        .iter()
        .enumerate()
        .map(|(at, value)| Record {
            transactional: writer.transactional,
            control: false,
            partition_leader_epoch: -1,
            producer_id: writer.id,
            producer_epoch: writer.epoch,
            timestamp_type: TimestampType::Creation,
            offset: at as i64,
            sequence: sequence + at as i32, // the encoder would begin another batch at a gap
            timestamp: time,
            key: None,
            value: Some(Bytes::from(value.to_string())),
            headers: Default::default(),
            delete_horizon: false,
        })
        .collect();
    let mut out = BytesMut::new();
    RecordBatchEncoder::encode(&mut out, &records, &RecordEncodeOptions { version: 2, compression }).unwrap();
    out.freeze()
}

/// The batch with other header bytes, and its CRC made right again.
pub fn patched(batch: &Bytes, at: usize, with: &[u8]) -> Bytes {
    let mut bytes = batch.to_vec();
    bytes[at..at + with.len()].copy_from_slice(with);
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    Bytes::from(bytes)
}

/// (offset, value) of every record; Kafka's control records aside.
pub fn records_of(bytes: Bytes) -> Vec<(i64, String)> {
    committed_of(bytes, &[])
}

/// The same without the records of aborted transactions, (producer id, first offset), as a client leaves them out: up to
/// the control record that ends each.
pub fn committed_of(mut bytes: Bytes, aborted: &[(i64, i64)]) -> Vec<(i64, String)> {
    let sets = RecordBatchDecoder::decode_all(&mut bytes).expect("whole batches");
    let mut open = aborted.to_vec();
    let mut committed = Vec::new();
    for record in sets.into_iter().flat_map(|set| set.records) {
        let within = open.iter().position(|(id, from)| *id == record.producer_id && *from <= record.offset);
        match (within, record.control) {
            (Some(at), true) => drop(open.remove(at)),
            (None, false) => {
                let value = record.value.unwrap_or_default().to_vec();
                committed.push((record.offset, String::from_utf8(value).unwrap()));
            }
            (Some(_), false) | (None, true) => {}
        }
    }
    committed
}
