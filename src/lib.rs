//! Katomic: a Kafka-wire-compatible broker in which every write of a cluster is an entry of one Raft log.
//!
//! The rooms, in reading order (`src/docs/architecture.md` tells how data flows through them):

pub mod types;

#[allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "an I/O room: threads, clocks and unordered maps are its trade"
)]
pub mod config;

#[allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "an I/O room: threads, clocks and unordered maps are its trade"
)]
pub mod disk;

#[allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "an I/O room: threads, clocks and unordered maps are its trade"
)]
pub mod wal;

pub mod state;

pub mod leader;

#[allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "an I/O room: threads, clocks and unordered maps are its trade"
)]
pub mod segments;

#[allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "an I/O room: threads, clocks and unordered maps are its trade"
)]
pub mod log;

#[allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "an I/O room: threads, clocks and unordered maps are its trade"
)]
pub mod read;

#[allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "an I/O room: threads, clocks and unordered maps are its trade"
)]
pub mod api;

#[allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "an I/O room: threads, clocks and unordered maps are its trade"
)]
pub mod net;

#[allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "an I/O room: threads, clocks and unordered maps are its trade"
)]
pub mod admin;

pub mod cli;

#[allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "an I/O room: threads, clocks and unordered maps are its trade"
)]
pub mod server;

#[cfg(test)]
mod tidy;
