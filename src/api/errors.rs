//! The one place where our refusals become Kafka error codes (an exhaustive match, no wildcard arm).

use kafka_protocol::messages::ApiKey;

use crate::leader::request::Caller;
use crate::types::Refusal;

/// The code that this client, in this API and version, handles best.
pub fn code(refusal: Refusal, api: ApiKey, version: i16, caller: &Caller) -> i16 {
    let _ = (refusal, api, version, caller);
    todo!("api helper")
}
