//! The simulation: three nodes, their network, disks and clocks, and clients, all from one seed.
//!
//! See `src/docs/decisions/0003-the-simulator-has-two-levels.md`. A failure names its seed; `SIM_SEED=n cargo test --test sim
//! one_seed -- --ignored` runs it again, and `scripts/sim.sh` runs many.

mod clients;
mod disk;
mod faults;
mod invariants;
mod message;
mod meta;
mod mutants;
mod network;
mod node;
mod oracle;
mod raft;
mod records;
mod rng;
mod run;
mod scenarios;
mod trace;
mod world;
