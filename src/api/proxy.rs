//! `katomic.proxy`: any node takes any request, and passes on to the leader what only that answers. For load balancers with one
//! address, behind which clients cannot choose a node.
//!
//! - Each client connection has one [`Upstream`] of its own, so order and back-pressure are the client's. It is closed, and the
//!   client's connection with it, when another node leads: clients connect anew, and start where they must.
//! - ApiVersions, FindCoordinator, DescribeCluster and this node's own settings are answered here; answers to Metadata are
//!   rewritten. All name this node alone.
//! - The leader sees this node's address as the client's host.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use kafka_protocol::messages::{ApiKey, BrokerId, DescribeConfigsRequest, MetadataResponse};
use kafka_protocol::protocol::{Decodable, decode_request_header_from_buffer};
use parking_lot::Mutex;

use super::configs::BROKER;
use super::upstream::Upstream;
use super::view::{View, id};
use super::{APIS, Api, Called, Encoded, Frame, Reply, encode};
use crate::leader::request::Caller;
use crate::log::{LogStatus, Member};
use crate::types::Term;

/// Where requests of one client connection are passed on to.
#[derive(Clone, Default)]
pub struct Link(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// It comes from another node: what is asked over it is not passed on.
    relayed: bool,
    upstream: Option<(u64, Term, Upstream)>,
}

impl Link {
    /// The other end passes on requests of its own clients.
    pub fn set_relayed(&self) {
        self.0.lock().relayed = true;
    }

    /// Whether it does.
    pub fn is_relayed(&self) -> bool {
        self.0.lock().relayed
    }

    /// The connection to this leader; None if this client's goes to another.
    fn upstream(&self, status: &LogStatus, caller: &Caller) -> Option<Upstream> {
        let mut state = self.0.lock();
        let leader = leader(status)?;
        match &state.upstream {
            Some((node, term, upstream)) if (*node, *term) == (leader.node_id, status.term) => Some(upstream.clone()),
            Some(_) => None,
            None => {
                let upstream = Upstream::open(leader, caller);
                state.upstream = Some((leader.node_id, status.term, upstream.clone()));
                Some(upstream)
            }
        }
    }

    fn is_used(&self) -> bool {
        self.0.lock().upstream.is_some()
    }
}

/// The leader, if it is another node.
pub fn leader(status: &LogStatus) -> Option<&Member> {
    let leader = status.leader.filter(|leader| *leader != status.node_id)?;
    status.members.iter().find(|member| member.node_id == leader)
}

/// Passes a request on to the leader, if that is this node's task; None if it is answered here.
pub fn pass_on(api: &Api, caller: &Caller, frame: &Frame) -> Option<Called> {
    if !api.settings.proxy || api.link.is_relayed() || is_answered_here(frame) {
        return None;
    }
    let called = |reply| {
        // The response header is in what the leader answers.
        Some(Called { row: frame.row, correlation_id: frame.correlation_id, header_version: 0, reply })
    };
    let closed = || called(Reply::later(std::future::ready(None)));
    if api.cluster.serving().is_ok() {
        return if api.link.is_used() { closed() } else { None };
    }
    let status = api.cluster.status();
    if leader(&status).is_none() {
        // Errors that make clients ask again are known here too.
        return if api.link.is_used() { closed() } else { None };
    }
    let Some(upstream) = api.link.upstream(&status, caller) else { return closed() };
    let Some(written) = upstream.send(frame.bytes.clone()) else { return closed() };
    let (cluster, leader, term) = (api.cluster.clone(), status.leader.unwrap_or_default(), status.term);
    if expects_no_answer(frame) {
        // A host that vanished takes no more bytes, and does not say so.
        return called(Reply::Silent(Box::pin(async move {
            tokio::select! {
                biased;
                written = written => written.is_ok(),
                () = cluster.led_otherwise(leader, term) => false,
            }
        })));
    }
    let (key, version, correlation_id) = (APIS[frame.row].key, frame.version, frame.correlation_id);
    let view = (key == ApiKey::Metadata).then(|| api.cluster.view_of(&status));
    called(Reply::later(async move {
        let answer = tokio::select! {
            biased;
            answer = upstream.answer(correlation_id) => answer.ok()?,
            () = cluster.led_otherwise(leader, term) => return None,
        };
        match view {
            Some(view) => rewritten(answer, version, &view),
            None => Some(vec![answer]),
        }
    }))
}

fn is_answered_here(frame: &Frame) -> bool {
    match APIS[frame.row].key {
        ApiKey::ApiVersions | ApiKey::FindCoordinator | ApiKey::DescribeCluster => true,
        // Each node knows its own settings, and clients know this one alone.
        ApiKey::DescribeConfigs => {
            let mut body = frame.bytes.clone();
            let decoded = decode_request_header_from_buffer(&mut body)
                .and_then(|_| DescribeConfigsRequest::decode(&mut body, frame.version));
            decoded.is_ok_and(|request| request.resources.iter().any(|resource| resource.resource_type == BROKER))
        }
        _ => false,
    }
}

/// Whether it is a Produce with acks=0. What cannot be read is the leader's to refuse.
fn expects_no_answer(frame: &Frame) -> bool {
    const FLEXIBLE: i16 = 9;
    if APIS[frame.row].key != ApiKey::Produce {
        return false;
    }
    let mut body = frame.bytes.clone();
    if decode_request_header_from_buffer(&mut body).is_err() {
        return false;
    }
    let id_bytes = match frame.version {
        0..3 => Some(0),
        3..FLEXIBLE => body.try_get_i16().ok().map(|length| usize::try_from(length).unwrap_or(0)),
        _ => varint(&mut body).map(|length| length.saturating_sub(1)),
    };
    match id_bytes {
        Some(bytes) if bytes <= body.len() => {
            body.advance(bytes);
            body.try_get_i16() == Ok(0)
        }
        _ => false,
    }
}

fn varint(bytes: &mut Bytes) -> Option<usize> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let byte = bytes.try_get_u8().ok()?;
        value |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// The leader's answer to Metadata, naming this node where it names the leader; None if it is none.
fn rewritten(mut answer: Bytes, version: i16, view: &View) -> Option<Encoded> {
    let flexible = ApiKey::Metadata.response_header_version(version) >= 1;
    let header = answer.split_to(if flexible { 1 } else { 0 }.min(answer.len()));
    let mut response = MetadataResponse::decode(&mut answer, version).ok()?;
    let me = view.brokers.first().map_or(BrokerId(-1), |me| id(me.node_id));
    response.brokers = view.brokers.iter().map(super::metadata::broker).collect();
    if response.controller_id.0 >= 0 {
        response.controller_id = me;
    }
    for partition in response.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
        if partition.leader_id.0 >= 0 {
            partition.leader_id = me;
        }
        partition.replica_nodes = vec![me];
        partition.isr_nodes = vec![me];
        partition.offline_replicas.clear();
    }
    let mut encoded = vec![header];
    encoded.extend(encode(&response, version));
    Some(encoded)
}

#[cfg(test)]
mod tests;
