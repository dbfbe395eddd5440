//! Every bound, with its reason. What happens when one is reached stands beside it.

/// Greatest request (Kafka's `socket.request.max.bytes`). A larger length closes the connection before anything is allocated.
pub const REQUEST_BYTES_MAX: usize = 100 << 20;

/// Greatest Raft entry (storage.md): a plain Produce over it is split by partition, a transaction goes to hidden chunks.
pub const ENTRY_BYTES_MAX: usize = 16 << 20;
