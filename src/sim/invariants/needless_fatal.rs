//! A producer is fenced only by another one of its transactional id (KIP-98), and never meets another fatal answer
//! (transactions.md, table 2: what each client does with each code).

use katomic::types::ProducerIdAndEpoch;

use super::super::oracle::Oracle;

/// A producer got an answer after which it is of no use.
pub fn fatal(oracle: &Oracle, id: &str, born: Option<ProducerIdAndEpoch>, told: &str) {
    let last = oracle.last_init.get(id).copied();
    assert!(last != born, "needless fatal: {id}, which nobody has taken over from {born:?}, was told {told}");
}
