//! What any node takes, and only the leader does: passed on to the leader, whose answer goes back as it is.
//!
//! Kafka's brokers forward administrative requests to the controller (KIP-590) and get producer ids from it for whoever asks
//! (KIP-730), so clients send these to any broker and ask the same one again. What a client sends to a leader or a coordinator
//! that it looks for itself is not passed on: it gets the error upon which it looks again.
//!
//! A connection to the leader's Kafka address for each such request ([`upstream::forward`]): they are rare.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use kafka_protocol::messages::{ApiKey, InitProducerIdRequest, MetadataRequest};
use kafka_protocol::protocol::Decodable;

use super::{Api, ApiRow, Call, Caller, Encoded, Frame, Reply, proxy, upstream};
use crate::log::Member;
use crate::types::Refusal;

/// How long a request waits for somebody to lead: an election and a restart, and less than any client's own patience.
const LEADER_WITHIN: Duration = if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(5) };
const LEADER_POLL: Duration = Duration::from_millis(20);

/// Whether clients send this request to any node.
fn asks_any_node(api: &Api, key: ApiKey, version: i16, body: &Bytes) -> bool {
    let mut body = body.clone();
    match key {
        ApiKey::CreateTopics
        | ApiKey::DeleteTopics
        | ApiKey::CreatePartitions
        | ApiKey::AlterConfigs
        | ApiKey::IncrementalAlterConfigs
        | ApiKey::ElectLeaders
        | ApiKey::DescribeQuorum => true,
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
pub fn to_leader(api: &Api, caller: &Arc<Caller>, row: &'static ApiRow, frame: &Frame, body: &Bytes) -> Option<Reply> {
    let version = frame.version;
    // Who passed it on to this node took it for the leader: it waits until it serves, and is not passed on again.
    let waits = match api.cluster.serving() {
        Ok(_) => false,
        Err(refusal) => !api.link.is_relayed() || refusal == Refusal::Loading,
    };
    if !waits || !asks_any_node(api, row.key, version, body) {
        return None;
    }
    let (api, mut caller, frame, body) = (api.clone(), caller.clone(), frame.clone(), body.clone());
    Some(Reply::later(async move {
        let until = Instant::now() + LEADER_WITHIN;
        while let Some(leader) = awaited_leader(&api, until).await {
            match upstream::forward(&leader, &caller, frame.bytes.clone(), frame.correlation_id).await {
                Ok(mut answer) => {
                    // The header's end, where it has one, is written with this node's own.
                    let flexible = row.key.response_header_version(version) >= 1;
                    return if flexible && answer.try_get_u8() != Ok(0) { None } else { Some(vec![answer]) };
                }
                // Dead, and the next one is not elected yet. Nothing was sent.
                Err(error) if error.kind() == io::ErrorKind::NotConnected && Instant::now() < until => {
                    tokio::time::sleep(LEADER_POLL).await;
                    continue;
                }
                Err(error) => tracing::debug!(api = row.name, leader = leader.node_id, %error, "not passed on"),
            }
            // The leader may have done it, and this node, which leads by now, would do it again: the client asks anew.
            if api.cluster.serving().is_ok() {
                return None;
            }
            break;
        }
        // This node's own answer: it leads by now, or it says that it does not.
        let own = (row.handler)(Call { api: &api, caller: &mut caller, version, body }).ok()?;
        finished(own).await
    }))
}

/// The node that leads, waited for while nobody does, as Kafka's brokers wait for a controller; None where it is this one,
/// or nobody in time.
async fn awaited_leader(api: &Api, until: Instant) -> Option<Member> {
    loop {
        if api.cluster.serving().is_ok() {
            return None;
        }
        let leader = proxy::leader(&api.cluster.status()).cloned();
        if leader.is_some() && api.link.is_relayed() {
            return None;
        }
        if leader.is_some() || Instant::now() >= until {
            return leader;
        }
        tokio::time::sleep(LEADER_POLL).await;
    }
}

async fn finished(reply: Reply) -> Option<Encoded> {
    match reply {
        Reply::Now(encoded) => Some(encoded),
        Reply::Later(answer) => answer.await,
        Reply::Silent(_) => None,
    }
}
