//! What any node takes, and only the leader does: passed on to the leader, whose answer goes back as it is.
//!
//! Kafka's brokers forward administrative requests to the controller (KIP-590) and get producer ids from it for whoever asks
//! (KIP-730), so clients send these to any broker and ask the same one again. What a client sends to a leader or a coordinator
//! that it looks for itself is not passed on: it gets the error upon which it looks again.
//!
//! A connection to the leader's Kafka address for each such request: they are rare. It names itself by its software, so that
//! two nodes that each believe the other to lead do not send a request to and fro.

use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, InitProducerIdRequest, MetadataRequest, RequestHeader};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::{Api, ApiRow, Call, Caller, Encoded, Reply};
use crate::config::limits::{FORWARDED_REQUESTS_MAX, REQUEST_BYTES_MAX};
use crate::log::Member;

/// How this node names itself to the leader.
const SOFTWARE: &str = "katomic-forward";
/// How long the leader may take: what is passed on are small changes of the cluster, and a client asks again.
const WITHIN: Duration = Duration::from_secs(10);
/// The version of ApiVersions that names the software.
const NAMING_VERSION: i16 = 3;

static IN_FLIGHT: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(FORWARDED_REQUESTS_MAX));

/// Whether clients send this request to any node.
fn asks_any_node(api: &Api, key: ApiKey, version: i16, body: &Bytes) -> bool {
    let mut body = body.clone();
    match key {
        ApiKey::CreateTopics
        | ApiKey::DeleteTopics
        | ApiKey::CreatePartitions
        | ApiKey::AlterConfigs
        | ApiKey::IncrementalAlterConfigs => true,
        ApiKey::InitProducerId => {
            InitProducerIdRequest::decode(&mut body, version).is_ok_and(|init| init.transactional_id.is_none())
        }
        // Only where it would create a topic: the rest is answered from what is known here.
        ApiKey::Metadata => MetadataRequest::decode(&mut body, version).is_ok_and(|metadata| {
            let named = metadata.topics.iter().flatten().filter_map(|topic| topic.name.as_ref());
            let may_create = api.settings.auto_create_topics && (version < 4 || metadata.allow_auto_topic_creation);
            let known = |name: &str| api.log.read(|machine| machine.topics().named(name).is_some());
            may_create && named.into_iter().any(|name| !known(name.as_str()))
        }),
        _ => false,
    }
}

/// Passes the request on if clients send it to any node and another one leads; None where this node answers.
pub fn to_leader(
    api: &Api,
    caller: &Arc<Caller>,
    row: &'static ApiRow,
    version: i16,
    frame: &Bytes,
    body: &Bytes,
) -> Option<Reply> {
    if &*caller.software == SOFTWARE || api.cluster.serving().is_ok() || !asks_any_node(api, row.key, version, body) {
        return None;
    }
    let status = api.cluster.status();
    let leader = status.leader.filter(|leader| *leader != status.node_id)?;
    let leader = status.members.into_iter().find(|member| member.node_id == leader)?;
    let (api, mut caller, frame, body) = (api.clone(), caller.clone(), frame.clone(), body.clone());
    Some(Reply::later(async move {
        match tokio::time::timeout(WITHIN, exchange(&leader, row.key, version, &frame)).await {
            Ok(Ok(answer)) => return Some(vec![answer]),
            Ok(Err(error)) => tracing::debug!(api = row.name, leader = leader.node_id, %error, "not passed on"),
            Err(_) => tracing::debug!(api = row.name, leader = leader.node_id, "the leader does not answer"),
        }
        // This node's own answer is the error that says so.
        let own = (row.handler)(Call { api: &api, caller: &mut caller, version, body }).ok()?;
        finished(own).await
    }))
}

async fn finished(reply: Reply) -> Option<Encoded> {
    match reply {
        Reply::Now(encoded) => Some(encoded),
        Reply::Later(answer) => answer.await,
        Reply::Silent(_) => None,
    }
}

/// Sends the frame to the leader as it came; the body of the answer.
async fn exchange(leader: &Member, key: ApiKey, version: i16, frame: &Bytes) -> io::Result<Bytes> {
    let _share = IN_FLIGHT.acquire().await.map_err(io::Error::other)?;
    let mut stream = TcpStream::connect((leader.host.as_str(), leader.port)).await?;
    stream.set_nodelay(true)?;
    let mut out = BytesMut::new();
    put(&mut out, &naming()?);
    put(&mut out, frame);
    stream.write_all(&out).await?;
    read(&mut stream).await?;
    let mut answer = read(&mut stream).await?;
    answer.try_get_i32().map_err(io::Error::other)?;
    if key.response_header_version(version) >= 1 && answer.try_get_u8().map_err(io::Error::other)? != 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the answer's header has fields this node does not know",
        ));
    }
    Ok(answer)
}

/// ApiVersions, which names this node's software.
fn naming() -> io::Result<Bytes> {
    let header = RequestHeader::default()
        .with_request_api_key(ApiKey::ApiVersions as i16)
        .with_request_api_version(NAMING_VERSION)
        .with_client_id(Some(StrBytes::from_static_str(SOFTWARE)));
    let request = ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str(SOFTWARE))
        .with_client_software_version(StrBytes::from_static_str(env!("CARGO_PKG_VERSION")));
    let mut out = BytesMut::new();
    let encoded = header
        .encode(&mut out, ApiKey::ApiVersions.request_header_version(NAMING_VERSION))
        .and_then(|()| request.encode(&mut out, NAMING_VERSION));
    encoded.map_err(|error| io::Error::other(error.to_string()))?;
    Ok(out.freeze())
}

fn put(out: &mut BytesMut, frame: &Bytes) {
    out.put_u32(frame.len() as u32);
    out.put_slice(frame);
}

async fn read(stream: &mut TcpStream) -> io::Result<Bytes> {
    let len = stream.read_u32().await? as usize;
    if len > REQUEST_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("an answer of {len} bytes")));
    }
    let mut answer = vec![0; len];
    stream.read_exact(&mut answer).await?;
    Ok(Bytes::from(answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_frame_goes_as_it_came_and_the_answer_s_body_comes_back() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let leader = Member { host: "127.0.0.1".into(), port, ..Member::default() };
        let frame = Bytes::from_static(b"\0\x13\0\x07\0\0\0\x05rest of a CreateTopics v7");
        let expected = frame.clone();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("it connects");
            let first = read(&mut stream).await.expect("it names itself");
            assert!(String::from_utf8_lossy(&first).contains(SOFTWARE));
            assert_eq!(read(&mut stream).await.expect("then the frame"), expected);
            let mut out = BytesMut::new();
            put(&mut out, &Bytes::from_static(b"\0\0\0\0versions"));
            put(&mut out, &Bytes::from_static(b"\0\0\0\x05\0the body"));
            stream.write_all(&out).await.expect("answered");
        });
        let answer = exchange(&leader, ApiKey::CreateTopics, 7, &frame).await.expect("an answer");
        assert_eq!(answer, "the body");
        serving.await.expect("no panic");
    }
}
