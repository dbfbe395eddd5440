//! ApiVersions, and requests outside what it advertises.

use bytes::{Buf, BufMut, BytesMut};
use kafka_protocol::messages::ApiVersionsRequest;
use kafka_protocol::protocol::{Decodable, StrBytes};

use super::client::Broker;

#[test]
fn a_version_from_the_future_is_answered_in_version_0_with_the_list() {
    let broker = Broker::start();
    for version in [5, 6, 99, i16::MAX] {
        if broker.is_kafka() && version == 5 {
            continue; // Kafka 4.4 knows it
        }
        let mut client = broker.connect();
        let sent = client.send_raw(18, version, b"\x05wire\x021\0");
        let (id, mut body) = client.receive_raw().expect("an answer");
        let response = kafka_protocol::messages::ApiVersionsResponse::decode(&mut body, 0).expect("a v0 body");
        assert_eq!((id, response.error_code, body.remaining()), (sent, 35, 0), "v{version}");
        let own = response.api_keys.iter().find(|api| api.api_key == 18).expect("ApiVersions itself");
        assert!(own.max_version >= 4);
        // The connection goes on, as KIP-511 wants.
        assert_eq!(client.ask(&ApiVersionsRequest::default(), 0).expect("an answer").error_code, 0);
    }
}

#[test]
fn every_version_of_api_versions_tells_the_same() {
    let broker = Broker::start();
    let mut client = broker.connect();
    let mut lists = Vec::new();
    for version in 0..=4 {
        let mut request = ApiVersionsRequest::default();
        if version >= 3 {
            request = request
                .with_client_software_name(StrBytes::from_static_str("wire"))
                .with_client_software_version(StrBytes::from_static_str("1"));
        }
        let response = client.ask(&request, version).expect("an answer");
        assert_eq!(response.error_code, 0);
        if version >= 3 {
            let finalized = response.finalized_features.iter().find(|feature| *feature.name == *"transaction.version");
            assert_eq!(finalized.map(|feature| feature.max_version_level), Some(2));
            assert!(response.finalized_features_epoch >= 0);
            assert!(response.supported_features.iter().all(|feature| version >= 4 || feature.min_version >= 1));
        }
        lists.push(response.api_keys);
    }
    assert!(lists.windows(2).all(|pair| pair[0] == pair[1]));
    let produce = lists[0].iter().find(|api| api.api_key == 0).expect("Produce");
    assert_eq!(produce.min_version, 0, "KAFKA-18659");
}

#[test]
fn a_bad_software_name_is_refused() {
    let broker = Broker::start();
    for name in ["", "-x", "a b", "naïve"] {
        let request = ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_string(name.into()))
            .with_client_software_version(StrBytes::from_static_str("1"));
        let response = broker.connect().ask(&request, 3).expect("an answer");
        assert_eq!(response.error_code, 42, "{name:?}");
    }
}

#[test]
fn produce_before_version_3_is_told_so_in_its_own_words() {
    let broker = Broker::start();
    if broker.is_kafka() {
        return; // Kafka 4 closes the connection
    }
    for version in 0..=2i16 {
        let mut body = BytesMut::new();
        body.put_i16(1);
        body.put_i32(1_000);
        body.put_i32(1);
        body.put_i16(1);
        body.put_slice(b"t");
        body.put_i32(1);
        body.put_i32(0);
        body.put_i32(0);
        let mut client = broker.connect();
        let sent = client.send_raw(0, version, &body);
        let (id, mut body) = client.receive_raw().expect("an answer");
        assert_eq!((id, body.get_i32(), body.get_i16(), body.get_u8()), (sent, 1, 1, b't'));
        assert_eq!((body.get_i32(), body.get_i32(), body.get_i16()), (1, 0, 35), "v{version}");
    }
}
