//! The machine as bytes, for the checkpoint, and back.
//!
//! ```text
//! 0 format u8 | 1 crc32c u32, little-endian, of all that follows | 5 the Machine in postcard | the records of all open chunks,
//!                                                                                   by stage id, in order
//! ```
//!
//! The checksum comes first of all: a decoder that meets a damaged length would allocate what it says.
//! Record bytes stand behind the rest, as in an entry: their lengths are in the metadata (`Batch::records_len`).

use std::sync::Arc;

use bytes::Bytes;

use super::Machine;

/// Why checkpointed state cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes are not a machine of a version we know.
    #[error("the checkpoint's state cannot be decoded: {0}")]
    Decode(#[from] postcard::Error),
    /// A format this build does not know.
    #[error("the checkpoint's state has format {0}, this build reads up to {max}", max = FORMAT)]
    Format(u8),
    /// The checksum does not match.
    #[error("the checkpoint's state is damaged: its checksum does not match")]
    Checksum,
    /// The bytes end too early.
    #[error("the checkpoint's state is cut short")]
    Truncated,
    /// More bytes than the state accounts for.
    #[error("{0} bytes follow the checkpoint's state")]
    Trailing(usize),
}

/// The format written by this build.
pub const FORMAT: u8 = 2;

const BODY_AT: usize = 5;

impl Machine {
    /// The whole state as bytes.
    ///
    /// # Panics
    /// Never: writing to memory cannot fail, and every type of the state can be encoded.
    pub fn to_bytes(&self) -> Vec<u8> {
        let head = vec![FORMAT, 0, 0, 0, 0];
        let mut out = postcard::to_extend(self, head).expect("the state can be encoded into memory");
        for batch in self.transactions.open_chunks().flat_map(|(_, stage)| &stage.batches) {
            assert!(batch.records.len() == batch.records_len as usize, "metadata and bytes agree");
            out.extend_from_slice(&batch.records);
        }
        let crc = crc32c::crc32c(&out[BODY_AT..]);
        out[1..BODY_AT].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The state that [`Machine::to_bytes`] wrote.
    ///
    /// # Errors
    /// If the bytes are of another format or damaged.
    pub fn from_bytes(bytes: &Bytes) -> Result<Self, SnapshotError> {
        let format = *bytes.first().ok_or(SnapshotError::Truncated)?;
        if format != FORMAT {
            return Err(SnapshotError::Format(format));
        }
        let (head, body) = bytes.split_at_checked(BODY_AT).ok_or(SnapshotError::Truncated)?;
        if head[1..] != crc32c::crc32c(body).to_le_bytes() {
            return Err(SnapshotError::Checksum);
        }
        let (mut machine, rest): (Self, &[u8]) = postcard::take_from_bytes(body)?;
        let mut records = rest;
        let stages: Vec<_> = machine.transactions.chunks.keys().copied().collect();
        for id in stages {
            let stage = machine.transactions.chunks.get_mut(&id).expect("its key was just read");
            for batch in &mut Arc::make_mut(stage).batches {
                let length = batch.records_len as usize;
                let (own, behind) = records.split_at_checked(length).ok_or(SnapshotError::Truncated)?;
                // Copied: a slice would keep the whole checkpoint in memory.
                batch.records = Bytes::copy_from_slice(own);
                records = behind;
            }
        }
        if records.is_empty() { Ok(machine) } else { Err(SnapshotError::Trailing(records.len())) }
    }
}
