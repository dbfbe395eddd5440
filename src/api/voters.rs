//! AddRaftVoter (key 80, version 0) and RemoveRaftVoter (key 81, version 0): members of the cluster, for `kafka-metadata-quorum`.
//!
//! - Any node takes them, as Kafka's clients expect. AddRaftVoter answers once the node follows; it votes when it has caught up.
//! - The listener tells where the node listens for peers; with several it is the one with the controllers' name.
//! - Directory ids (KIP-853) tell two disks of one node apart. Ours has none: a node whose disk was emptied is refused when it
//!   comes back under its old id, so an id names one disk. Adding ignores it, removing takes the zero that DescribeQuorum shows.
//! - Not served: v1, which may answer before the change is committed.

use std::time::Duration;

use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::add_raft_voter_request::Listener;
use kafka_protocol::messages::{
    AddRaftVoterRequest, AddRaftVoterResponse, ApiKey, RemoveRaftVoterRequest, RemoveRaftVoterResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::errors::told;
use super::quorum::LISTENER;
use super::{Api, Call, Malformed, Reply, encode};
use crate::log::membership::MembershipError;

type Fault = (E, String);

/// Answers AddRaftVoter.
///
/// # Errors
/// If the request cannot be decoded.
pub fn add(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: AddRaftVoterRequest = call.decode("AddRaftVoter")?;
    let (api, version) = (call.api.clone(), call.version);
    Ok(Reply::later(async move {
        let within = Duration::from_millis(request.timeout_ms.max(0).unsigned_abs().into());
        let added = tokio::time::timeout(within, add_voter(&api, &request)).await;
        let (code, message) = answer(added.unwrap_or_else(|_| Err(late())), ApiKey::AddRaftVoter);
        Some(encode(&AddRaftVoterResponse::default().with_error_code(code).with_error_message(message), version))
    }))
}

async fn add_voter(api: &Api, request: &AddRaftVoterRequest) -> Result<(), Fault> {
    check_cluster(api, request.cluster_id.as_deref())?;
    let voter = voter(request.voter_id)?;
    let status = api.cluster.status();
    if status.members.iter().any(|member| member.node_id == voter && member.voter) {
        return Err((E::DuplicateVoter, format!("The voter id for {voter} is already part of the set of voters.")));
    }
    let address = address(&request.listeners)?;
    api.log.add_node(Some(voter), &address).await.map(drop).map_err(fault)
}

/// Answers RemoveRaftVoter.
///
/// # Errors
/// If the request cannot be decoded.
pub fn remove(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: RemoveRaftVoterRequest = call.decode("RemoveRaftVoter")?;
    let (api, version) = (call.api.clone(), call.version);
    Ok(Reply::later(async move {
        let (code, message) = answer(remove_voter(&api, &request).await, ApiKey::RemoveRaftVoter);
        Some(encode(&RemoveRaftVoterResponse::default().with_error_code(code).with_error_message(message), version))
    }))
}

async fn remove_voter(api: &Api, request: &RemoveRaftVoterRequest) -> Result<(), Fault> {
    check_cluster(api, request.cluster_id.as_deref())?;
    let voter = voter(request.voter_id)?;
    let known = api.cluster.status().members.iter().any(|member| member.node_id == voter && member.voter);
    if !known || !request.voter_directory_id.is_nil() {
        return Err((E::VoterNotFound, format!("Cannot remove voter {voter}: it is not in the set of voters.")));
    }
    api.log.remove_node(voter).await.map(drop).map_err(fault)
}

fn check_cluster(api: &Api, asked: Option<&str>) -> Result<(), Fault> {
    match asked {
        Some(asked) if asked != api.settings.cluster_id => {
            Err((E::InconsistentClusterId, format!("This is cluster {}, not {asked}.", api.settings.cluster_id)))
        }
        _ => Ok(()),
    }
}

fn voter(id: i32) -> Result<u64, Fault> {
    u64::try_from(id).map_err(|_| (E::InvalidRequest, format!("A voter cannot have the id {id}.")))
}

/// Where the node listens for its peers.
fn address(listeners: &[Listener]) -> Result<String, Fault> {
    let named = listeners.iter().find(|listener| listener.name.as_str() == LISTENER);
    let chosen = named.or(match listeners {
        [only] => Some(only),
        _ => None,
    });
    let listener =
        chosen.ok_or_else(|| (E::InvalidRequest, format!("Which listener is for peers? None is named {LISTENER}.")))?;
    let host = listener.host.as_str();
    // An IPv6 address has colons of its own.
    let bare_v6 = host.contains(':') && !host.starts_with('[');
    Ok(if bare_v6 { format!("[{host}]:{}", listener.port) } else { format!("{host}:{}", listener.port) })
}

fn late() -> Fault {
    (E::RequestTimedOut, "The change is not committed yet; it may still be.".to_owned())
}

/// As Kafka's `AddVoterHandler` and `RemoveVoterHandler` say it.
fn fault(error: MembershipError) -> Fault {
    let code = match error {
        MembershipError::NoLeader => E::NotLeaderOrFollower,
        MembershipError::Busy | MembershipError::Unknown(_) => E::RequestTimedOut,
        MembershipError::LastVoter(_) | MembershipError::NoMajority { .. } | MembershipError::NotAddable { .. } => {
            E::InvalidRequest
        }
        MembershipError::Taken { .. } => E::DuplicateVoter,
        MembershipError::NotAVoter(_) => E::VoterNotFound,
    };
    (code, error.to_string())
}

fn answer(outcome: Result<(), Fault>, api: ApiKey) -> (i16, Option<StrBytes>) {
    match outcome {
        Ok(()) => (0, None),
        Err((error, message)) => (told(error, api), Some(StrBytes::from_string(message))),
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::Decodable;
    use uuid::Uuid;

    use super::super::metadata::sample;
    use super::super::tests::standing::{ask, node};
    use super::*;

    fn listener(name: &'static str, host: &'static str) -> Listener {
        let text = StrBytes::from_static_str;
        Listener::default().with_name(text(name)).with_host(text(host)).with_port(33_145)
    }

    #[test]
    fn the_peers_address_is_the_only_one_or_the_controllers() {
        assert_eq!(address(&[listener("ANY", "h")]).unwrap(), "h:33145");
        assert_eq!(address(&[listener("ANY", "a"), listener(LISTENER, "b")]).unwrap(), "b:33145");
        assert_eq!(address(&[listener("X", "::1")]).unwrap(), "[::1]:33145");
        assert_eq!(address(&[listener("X", "[::1]")]).unwrap(), "[::1]:33145");
        assert_eq!(address(&[listener("X", "a"), listener("Y", "b")]).unwrap_err().0, E::InvalidRequest);
        assert_eq!(address(&[]).unwrap_err().0, E::InvalidRequest);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn changes_that_cannot_be_are_refused_in_kafkas_words() {
        let api = node(sample::settings()).await;
        let me = i32::try_from(api.log.status().node_id).unwrap();
        let other = || Some(StrBytes::from_static_str("another"));
        let add = |id| {
            let request =
                AddRaftVoterRequest::default().with_cluster_id(None).with_voter_id(id).with_timeout_ms(10_000);
            request.with_listeners(vec![listener(LISTENER, "127.0.0.1").with_port(1)])
        };
        let added = async |request| {
            let answer: AddRaftVoterResponse = ask(&api, ApiKey::AddRaftVoter, &request, 0).await;
            answer.error_code
        };
        assert_eq!(added(add(me).with_cluster_id(other())).await, E::InconsistentClusterId.code());
        assert_eq!(added(add(me)).await, E::DuplicateVoter.code());
        assert_eq!(added(add(-3)).await, E::InvalidRequest.code());
        assert_eq!(added(add(9).with_listeners(Vec::new())).await, E::InvalidRequest.code());
        assert_eq!(added(add(9)).await, E::InvalidRequest.code(), "nobody is there");
        let remove = |id| RemoveRaftVoterRequest::default().with_cluster_id(None).with_voter_id(id);
        let removed = async |request| {
            let answer: RemoveRaftVoterResponse = ask(&api, ApiKey::RemoveRaftVoter, &request, 0).await;
            answer.error_code
        };
        assert_eq!(removed(remove(me).with_cluster_id(other())).await, E::InconsistentClusterId.code());
        assert_eq!(removed(remove(77)).await, E::VoterNotFound.code());
        assert_eq!(
            removed(remove(me).with_voter_directory_id(Uuid::from_bytes([1; 16]))).await,
            E::VoterNotFound.code()
        );
        assert_eq!(removed(remove(me)).await, E::InvalidRequest.code(), "nobody would be left");
    }

    #[test]
    fn answers_are_readable() {
        let (code, message) = answer(Err(fault(MembershipError::Busy)), ApiKey::AddRaftVoter);
        let response = AddRaftVoterResponse::default().with_error_code(code).with_error_message(message);
        let mut bytes = bytes::Bytes::from(encode(&response, 0).concat());
        let read = AddRaftVoterResponse::decode(&mut bytes, 0).unwrap();
        assert_eq!((read.error_code, read.error_message.is_some()), (7, true));
    }
}
