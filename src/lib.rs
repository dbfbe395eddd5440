//! Katomic: a Kafka-wire-compatible broker in which every write of a cluster is an entry of one Raft log.
//!
//! The rooms, in reading order (`src/docs/architecture.md` tells how data flows through them):

pub mod types;

pub mod config;

pub mod disk;

pub mod wal;

pub mod state;

pub mod leader;

pub mod segments;

pub mod log;

pub mod read;

pub mod api;
