//! Builds the rooms, joins them, starts and stops them. Decides nothing.

use crate::config::Config;

/// Why a node could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The data directory cannot be used.
    #[error("{0}")]
    Start(String),
}

/// Runs a node until SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot start, or had to stop.
pub fn run(config: Config) -> Result<(), ServerError> {
    Err(ServerError::Start(format!("not wired yet: {}", config.kafka_addr)))
}
