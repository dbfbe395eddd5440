//! DescribeCluster (key 60, versions 0–2) and FindCoordinator (key 10, versions 0–6).
//!
//! - One log, one leader: it is controller and coordinator of everything. FindCoordinator never looks at the key.
//! - DescribeCluster v1 (KIP-919) endpoint type: this is a broker's, so asking for controllers is MISMATCHED_ENDPOINT_TYPE; v2
//!   (KIP-1073) fenced brokers, of which there are none.
//! - FindCoordinator v1 key type: group 0, transaction 1; v4 (KIP-699) several keys in one request; v5, v6: share groups (key type 2),
//!   which are not served: INVALID_REQUEST, as for every other type.

use kafka_protocol::error::ResponseError as E;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{
    ApiKey, BrokerId, DescribeClusterRequest, DescribeClusterResponse, FindCoordinatorRequest, FindCoordinatorResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::errors::told;
use super::metadata::CLUSTER_OPERATIONS;
use super::view::{View, id};
use super::{ApiSettings, Call, Malformed, Reply};
use crate::log::Member;

/// Kafka's `EndpointType`.
const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

/// Kafka's `FindCoordinatorRequest.CoordinatorType`.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;

/// Answers DescribeCluster.
///
/// # Errors
/// If the request cannot be decoded.
pub fn describe(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: DescribeClusterRequest = call.decode("DescribeCluster")?;
    let response = cluster(&request, &call.api.cluster.view(), &call.api.settings, call.version);
    Ok(Reply::now(&response, call.version))
}

fn cluster(
    request: &DescribeClusterRequest,
    view: &View,
    settings: &ApiSettings,
    version: i16,
) -> DescribeClusterResponse {
    let refuse = |error, message: String| {
        DescribeClusterResponse::default()
            .with_error_code(told(error, ApiKey::DescribeCluster))
            .with_error_message(Some(StrBytes::from_string(message)))
            .with_controller_id(BrokerId(-1))
    };
    match if version == 0 { BROKERS } else { request.endpoint_type } {
        BROKERS => {}
        CONTROLLERS => {
            let message =
                "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER";
            return refuse(E::MismatchedEndpointType, message.into());
        }
        other => return refuse(E::UnsupportedEndpointType, format!("Unsupported endpoint type {other}")),
    }
    let broker = |member: &Member| {
        DescribeClusterBroker::default()
            .with_broker_id(id(member.node_id))
            .with_host(StrBytes::from_string(member.host.clone()))
            .with_port(i32::from(member.port))
            .with_rack(member.rack.clone().map(StrBytes::from_string))
    };
    let mut response = DescribeClusterResponse::default()
        .with_error_message(None)
        .with_cluster_id(StrBytes::from_string(settings.cluster_id.clone()))
        .with_controller_id(view.controller)
        .with_brokers(view.brokers.iter().map(broker).collect());
    if request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = CLUSTER_OPERATIONS;
    }
    response
}

/// Answers FindCoordinator.
///
/// # Errors
/// If the request cannot be decoded.
pub fn find_coordinator(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: FindCoordinatorRequest = call.decode("FindCoordinator")?;
    let response = coordinators(&request, &call.api.cluster.view(), call.version);
    Ok(Reply::now(&response, call.version))
}

fn coordinators(request: &FindCoordinatorRequest, view: &View, version: i16) -> FindCoordinatorResponse {
    let key_type = if version == 0 { GROUP } else { request.key_type };
    if version >= 4 {
        let one = |key: &StrBytes| coordinator(key.clone(), key_type, view);
        return FindCoordinatorResponse::default()
            .with_coordinators(request.coordinator_keys.iter().map(one).collect());
    }
    let one = coordinator(request.key.clone(), key_type, view);
    let response = FindCoordinatorResponse::default()
        .with_error_code(one.error_code)
        .with_node_id(one.node_id)
        .with_host(one.host)
        .with_port(one.port);
    if version >= 1 { response.with_error_message(one.error_message) } else { response }
}

fn coordinator(key: StrBytes, key_type: i8, view: &View) -> Coordinator {
    let out = Coordinator::default().with_key(key);
    let refuse = |out: Coordinator, error: E, message: Option<String>| {
        out.with_error_code(told(error, ApiKey::FindCoordinator))
            .with_error_message(message.map(StrBytes::from_string))
            .with_node_id(BrokerId(-1))
            .with_port(-1)
    };
    if !matches!(key_type, GROUP | TRANSACTION) {
        return refuse(out, E::InvalidRequest, Some(format!("Unsupported coordinator type {key_type}")));
    }
    match view.leader() {
        Some(member) => out
            .with_error_message(None)
            .with_node_id(id(member.node_id))
            .with_host(StrBytes::from_string(member.host.clone()))
            .with_port(i32::from(member.port)),
        None => refuse(out, E::CoordinatorNotAvailable, None),
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::Decodable;

    use super::super::{encode, metadata::sample};
    use super::*;
    use crate::log::LogStatus;

    fn keys(count: usize) -> Vec<StrBytes> {
        (0..count).map(|at| StrBytes::from_string(format!("key-{at}"))).collect()
    }

    fn find(request: &FindCoordinatorRequest, status: &LogStatus, version: i16) -> FindCoordinatorResponse {
        let view = sample::view(status);
        let mut bytes = bytes::Bytes::from(encode(&coordinators(request, &view, version), version).concat());
        Decodable::decode(&mut bytes, version).expect("own bytes are read")
    }

    #[test]
    fn the_leader_coordinates_every_group_and_transaction() {
        let status = sample::status(3, Some(2));
        for version in 0..=3 {
            let request = FindCoordinatorRequest::default().with_key(StrBytes::from_static_str("g"));
            let found = find(&request, &status, version);
            assert_eq!((found.error_code, found.node_id, found.host.as_str()), (0, BrokerId(2), "host-2"));
        }
        for version in 4..=6 {
            let request = FindCoordinatorRequest::default().with_key_type(TRANSACTION).with_coordinator_keys(keys(20));
            let found = find(&request, &status, version);
            assert_eq!(found.coordinators.len(), 20);
            let last = &found.coordinators[19];
            assert_eq!((last.key.as_str(), last.error_code, last.node_id, last.port), ("key-19", 0, BrokerId(2), 9092));
        }
    }

    #[test]
    fn an_unknown_key_type_is_an_invalid_request_in_the_body_of_its_version() {
        let status = sample::status(1, Some(1));
        let request = FindCoordinatorRequest::default().with_key_type(9);
        assert_eq!(find(&request, &status, 3).error_code, 42);
        let request = request.with_coordinator_keys(keys(2));
        let codes: Vec<_> = find(&request, &status, 4).coordinators.iter().map(|one| one.error_code).collect();
        assert_eq!(codes, [42, 42]);
        let share = FindCoordinatorRequest::default().with_key_type(2).with_coordinator_keys(keys(1));
        assert_eq!(find(&share, &status, 6).coordinators[0].error_code, 42);
    }

    #[test]
    fn without_a_leader_clients_ask_again() {
        let status = sample::status(3, None);
        let found = find(&FindCoordinatorRequest::default(), &status, 2);
        assert_eq!((found.error_code, found.node_id, found.port), (15, BrokerId(-1), -1));
        let request = FindCoordinatorRequest::default().with_coordinator_keys(keys(1));
        assert_eq!(find(&request, &status, 4).coordinators[0].error_code, 15);
    }

    fn ask(request: &DescribeClusterRequest, version: i16) -> DescribeClusterResponse {
        let response = cluster(request, &sample::view(&sample::status(3, Some(3))), &sample::settings(), version);
        let mut bytes = bytes::Bytes::from(encode(&response, version).concat());
        Decodable::decode(&mut bytes, version).expect("own bytes are read")
    }

    #[test]
    fn the_cluster_is_its_members_and_its_leader() {
        for version in 0..=2 {
            let request = DescribeClusterRequest::default().with_include_cluster_authorized_operations(true);
            let response = ask(&request, version);
            assert_eq!((response.error_code, response.cluster_id.as_str()), (0, "the-cluster"));
            assert_eq!((response.controller_id, response.brokers.len()), (BrokerId(3), 3));
            assert_eq!(response.brokers[0].rack, Some(StrBytes::from_static_str("rack-a")));
            assert_eq!(response.cluster_authorized_operations, 8096);
        }
        assert_eq!(ask(&DescribeClusterRequest::default(), 1).cluster_authorized_operations, i32::MIN);
    }

    #[test]
    fn only_brokers_are_described() {
        let code =
            |endpoint_type| ask(&DescribeClusterRequest::default().with_endpoint_type(endpoint_type), 1).error_code;
        assert_eq!((code(BROKERS), code(CONTROLLERS), code(7)), (0, 114, 115));
    }
}
