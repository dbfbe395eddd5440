//! Two InitProducerId requests never get the same producer id and epoch, unless one is the retry of the other (T6, T7; KIP-360).

use katomic::state::command::InitProducerId;
use katomic::types::ProducerIdAndEpoch;

use super::super::oracle::Oracle;

/// InitProducerId was applied.
pub fn born(oracle: &mut Oracle, init: &InitProducerId, pair: ProducerIdAndEpoch) {
    let fresh = oracle.pairs.insert((pair.producer_id, pair.epoch));
    assert!(fresh || init.given.is_some(), "two holders: {pair:?} is given out again, for {init:?}");
}
