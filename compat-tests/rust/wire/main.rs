//! Wire tests: raw frames against a running broker.

fn main() {}
