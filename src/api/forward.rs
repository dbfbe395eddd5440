//! What any node takes, and only the leader does: passed on to the leader, whose answer goes back as it is.
//!
//! Kafka's brokers forward administrative requests to the controller (KIP-590) and get producer ids from it for whoever asks
//! (KIP-730), so clients send these to any broker and ask the same one again. What a client sends to a leader or a coordinator
//! that it looks for itself is not passed on: it gets the error upon which it looks again.
//!
//! A connection to the leader's Kafka address for each such request ([`upstream::forward`]): they are rare.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use kafka_protocol::messages::{ApiKey, InitProducerIdRequest, MetadataRequest};
use kafka_protocol::protocol::Decodable;

use super::{Api, ApiRow, Call, Caller, Encoded, Frame, Reply, proxy, upstream};

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
    // Who passed it on to this node took it for the leader, and will know better soon.
    let elsewhere = !api.link.is_relayed() && api.cluster.serving().is_err();
    if !elsewhere || !asks_any_node(api, row.key, version, body) {
        return None;
    }
    let leader = proxy::leader(&api.cluster.status())?.clone();
    let (api, mut caller, frame, body) = (api.clone(), caller.clone(), frame.clone(), body.clone());
    Some(Reply::later(async move {
        match upstream::forward(&leader, &caller, frame.bytes, frame.correlation_id).await {
            Ok(mut answer) => {
                // The header's end, where it has one, is written with this node's own.
                let flexible = row.key.response_header_version(version) >= 1;
                return if flexible && answer.try_get_u8() != Ok(0) { None } else { Some(vec![answer]) };
            }
            Err(error) => tracing::debug!(api = row.name, leader = leader.node_id, %error, "not passed on"),
        }
        // The leader may have done it, and this node, which leads by now, would do it again: the client asks anew.
        if api.cluster.serving().is_ok() {
            return None;
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
