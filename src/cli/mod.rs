//! What an operator types. Parses, hands over, and turns errors into one clear line and an exit code.

pub mod cluster;
pub mod http;
pub mod serve;

use clap::{Parser, Subcommand};

/// A Kafka-wire-compatible broker: every write of a cluster is an entry of one Raft log.
#[derive(Debug, Parser)]
#[command(name = "katomic", version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a node. Without flags: one node for development, data in ./katomic-data, fsync on.
    #[command(alias = "start")]
    Serve(Box<serve::ServeArgs>),
    /// Shows and changes who belongs to a cluster.
    Cluster(cluster::ClusterArgs),
}

/// Runs what was typed; the return value is the exit code.
pub fn run() -> std::process::ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Cluster(args) => cluster::run(&args),
    }
}
