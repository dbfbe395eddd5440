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

/// Bytes of metadata that an entry may have beyond [`ENTRY_BYTES_MAX`] of records; a larger proposal is discarded before it is sent.
pub const ENTRY_METADATA_BYTES_MAX: usize = 1 << 20;

/// Bytes of entries proposed and not applied yet (storage.md). When reached, connections are not read until there is room.
pub const PROPOSED_BYTES_MAX: usize = 64 << 20;

/// Entries proposed and not applied yet, at which connections are not read until there is room: a memory bound for tiny entries.
pub const PROPOSALS_ADMITTED_MAX: usize = 16_384;

/// Entries proposed and not applied yet, whatever they come from; above it a proposal is discarded before it is sent.
/// Below half of openraft's API channel, so that sending never waits.
pub const PROPOSALS_MAX: usize = 32_768;

/// Capacity of openraft's API channel.
pub const RAFT_CHANNEL: u64 = 65_536;

/// Requests that wait for their answer; above it a request is refused as overloaded.
pub const REQUESTS_WAITING_MAX: usize = 262_144;

/// Entries in one hold of the machine's write lock (storage.md, «Apply»): readers wait no longer.
pub const APPLY_ENTRIES_MAX: usize = 64;

/// Time of one hold of the machine's write lock, microseconds.
pub const APPLY_MICROS_MAX: u64 = 1_000;

/// Bytes that one read of the log returns: openraft asks again for the rest.
pub const LOG_READ_BYTES_MAX: usize = 4 << 20;

/// What an entry takes in the tail cache besides its bytes: so that the bound holds for tiny entries too.
pub const TAIL_ENTRY_OVERHEAD_BYTES: usize = 256;

/// Entries that openraft sends to a follower in one message; bytes are bounded by [`LOG_READ_BYTES_MAX`].
pub const RAFT_PAYLOAD_ENTRIES_MAX: u64 = 1024;
