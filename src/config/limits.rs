//! Every bound, with its reason. What happens when one is reached stands beside it.

/// Greatest request (Kafka's `socket.request.max.bytes`). A larger length closes the connection before anything is allocated.
pub const REQUEST_BYTES_MAX: usize = 100 << 20;

/// Greatest Raft entry (storage.md): a plain Produce over it is split by partition, a transaction goes to hidden chunks.
pub const ENTRY_BYTES_MAX: usize = 16 << 20;

/// Groups with members or a remembered generation. When full, the group that has been empty for longest is forgotten; if none is empty, a new group is refused as overload.
pub const GROUPS_MAX: usize = 100_000;

/// Member ids handed out by a group and not used yet (KIP-394). When full, the oldest id is forgotten: its owner gets 25 and asks again.
pub const GROUP_PENDING_MEMBERS_MAX: usize = 1_000;

/// Protocol names and metadata of one member; Streams, the largest known, sends some 100 KiB. More is refused (42).
pub const GROUP_METADATA_BYTES_MAX: usize = 4 << 20;

/// All assignments of one SyncGroup by a leader. More is refused (42).
pub const GROUP_ASSIGNMENT_BYTES_MAX: usize = 32 << 20;

/// Metadata and assignments of all groups together. Over it, joins and assignments are refused as overload; heartbeats and commits go on.
pub const GROUPS_BYTES_MAX: usize = 256 << 20;

/// How long a member without an answer to its first join is kept (Kafka's `NEW_MEMBER_JOIN_TIMEOUT_MS`): it cannot send heartbeats yet, and its retries would add up (GR03).
pub const GROUP_NEW_MEMBER_JOIN_MS: u64 = 5 * 60_000;
