//! Kafka's protocol, byte by byte: raw sockets, no client library in between. What clients never send, and what they
//! never look at closely: torn and lying frames, unknown APIs and versions, error codes, the order of answers.
//!
//! Starts a node of its own for each test; with `BOOTSTRAP=host:port` all of them run against that broker instead, which
//! is how each is first proved against Apache Kafka (`./run.sh` beside this file).
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::print_stderr,
    reason = "tests: a panic is a failure, time is the wall's, and a node's log is shown where its test fails"
)]

mod admin;
mod changing;
mod client;
mod cluster;
mod data_dir;
mod fetching;
mod frames;
mod groups;
mod offsets;
mod producing;
mod retention;
mod transactions;
mod versions;
