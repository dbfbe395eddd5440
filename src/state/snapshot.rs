//! The machine as bytes, for the checkpoint, and back.

use super::Machine;
use bytes::Bytes;

/// Why checkpointed state cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes are not a machine of a version we know.
    #[error("the checkpoint's state cannot be decoded: {0}")]
    Decode(#[from] postcard::Error),
    /// A format this build does not know.
    #[error("the checkpoint's state has format {0}, this build reads up to {max}", max = FORMAT)]
    Format(u8),
    /// The bytes end too early.
    #[error("the checkpoint's state is cut short")]
    Truncated,
}

/// The format written by this build.
pub const FORMAT: u8 = 1;

impl Machine {
    /// The whole state as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        todo!("state helper")
    }

    /// The state that [`Machine::to_bytes`] wrote.
    ///
    /// # Errors
    /// If the bytes are of another format or damaged.
    pub fn from_bytes(bytes: &Bytes) -> Result<Self, SnapshotError> {
        let _ = bytes;
        todo!("state helper")
    }
}
