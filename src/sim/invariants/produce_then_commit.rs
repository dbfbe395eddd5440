//! Whoever writes first and commits its offset when the write is acknowledged never has an offset without its records, through
//! any leader change (outbox schedules O1, O3, O4; at least once).

use std::sync::Arc;

use katomic::state::command::OffsetWrite;

use super::super::oracle::Oracle;

/// A plain OffsetCommit took effect.
pub fn committed(oracle: &Oracle, group: &str, write: &OffsetWrite) {
    let key = (Arc::from(group), write.of);
    let outputs = oracle.outputs.get(&key);
    // What lies before the last commit was looked at then.
    let from = oracle.committed.get(&key).copied().unwrap_or(0);
    let inputs = oracle.logs.get(&write.of).into_iter().flatten();
    let inputs = inputs.filter(|record| (from..write.offset.0).contains(&record.base));
    for input in inputs {
        assert!(
            outputs.is_some_and(|outputs| outputs.contains(&input.base)),
            "an offset without its records: {group} commits {:?} of {:?}, the output for {} is not there",
            write.offset,
            write.of,
            input.base
        );
    }
}
