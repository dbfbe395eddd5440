//! ApiVersions (key 18), versions 0–4.
//!
//! - v0 the list; v1 throttle time; v3 (KIP-511) the client's software name and version, flexible, features; v4 (KIP-848's
//!   fix KAFKA-17011) features with a minimum of 0.
//! - A version we do not know (5 and up: Java 4.4) is answered UNSUPPORTED_VERSION in a v0 body that carries the list,
//!   so that the client asks again at once (KIP-511). The response header is always v0.
//! - `transaction.version` is finalized at 2 (or 0) with epoch 0, which never goes back; `kraft.version` and
//!   `group.version` are not ours.
//! - The software's name decides how staged batches are acknowledged and which code a lost transaction gets.
//!   Kafka refuses an invalid name with INVALID_REQUEST; so do we.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use kafka_protocol::protocol::StrBytes;

use super::{APIS, Call, Malformed, Reply};

/// The feature that tells clients of KIP-890's second protocol.
const TRANSACTION_VERSION: &str = "transaction.version";

/// Answers ApiVersions.
///
/// # Errors
/// If the request cannot be decoded.
pub fn handle(call: Call<'_>) -> Result<Reply, Malformed> {
    let request: ApiVersionsRequest = call.decode("ApiVersions")?;
    let mut response = ApiVersionsResponse::default().with_api_keys(advertised());
    if call.version >= 3 {
        let (name, version) = (&request.client_software_name, &request.client_software_version);
        if !is_software_word(name) || !is_software_word(version) {
            let refused = ApiVersionsResponse::default().with_error_code(ResponseError::InvalidRequest.code());
            return Ok(Reply::now(&refused, call.version));
        }
        Arc::make_mut(call.caller).software = Arc::from(name.as_str());
        let level = call.api.settings.transaction_version;
        response = response.with_supported_features(vec![
            SupportedFeatureKey::default()
                .with_name(StrBytes::from_static_str(TRANSACTION_VERSION))
                .with_min_version(0)
                .with_max_version(2),
        ]);
        response = response.with_finalized_features_epoch(0);
        if level > 0 {
            response = response.with_finalized_features(vec![
                FinalizedFeatureKey::default()
                    .with_name(StrBytes::from_static_str(TRANSACTION_VERSION))
                    .with_min_version_level(level)
                    .with_max_version_level(level),
            ]);
        }
        if call.version == 3 {
            // KAFKA-17011: clients of v3 cannot parse a feature whose minimum is 0.
            for feature in &mut response.supported_features {
                feature.min_version = 1;
            }
        }
    }
    Ok(Reply::now(&response, call.version))
}

/// The answer to a version that we do not know: v0, with the list.
pub fn unsupported() -> Reply {
    let response = ApiVersionsResponse::default()
        .with_error_code(ResponseError::UnsupportedVersion.code())
        .with_api_keys(advertised());
    Reply::now(&response, 0)
}

fn advertised() -> Vec<ApiVersion> {
    APIS.iter()
        .map(|row| {
            ApiVersion::default().with_api_key(row.key as i16).with_min_version(row.min).with_max_version(row.max)
        })
        .collect()
}

/// Kafka's `ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN`: `[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?`.
fn is_software_word(word: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let bytes = word.as_bytes();
    bytes.iter().copied().all(inner)
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
}
