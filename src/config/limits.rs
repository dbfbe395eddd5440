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

/// Entries proposed and not applied yet, at which connections are not read until there is room: a memory bound for tiny
/// entries. Below the leader's own bound, so that clients wait rather than be refused.
pub const PROPOSALS_ADMITTED_MAX: usize = 4096;

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

/// What an entry takes in the tail cache besides its bytes, so that the bound holds for tiny entries too: its place in a
/// queue that may be half empty, the command behind its `Arc`, and the headers of some five allocations.
pub const TAIL_ENTRY_OVERHEAD_BYTES: usize = 512;

/// What each piece of such an entry takes besides its bytes: a batch is named once in the command and once among the
/// pieces to write.
pub const TAIL_PIECE_OVERHEAD_BYTES: usize = 96;

/// What a batch takes in a partition's tail and in the segment writer's queue besides its bytes: its place in both, of
/// which half may be empty, and its share of the headers of the buffer that it lies in.
pub const SEGMENT_BATCH_OVERHEAD_BYTES: usize = 384;

/// Entries that openraft sends to a follower in one message; bytes are bounded by [`LOG_READ_BYTES_MAX`].
pub const RAFT_PAYLOAD_ENTRIES_MAX: u64 = 1024;

/// Greatest message between nodes: one read of the log ([`LOG_READ_BYTES_MAX`]) whose last entry is the greatest. A larger
/// length closes the connection.
pub const PEER_FRAME_BYTES_MAX: usize = ENTRY_BYTES_MAX + ENTRY_METADATA_BYTES_MAX + LOG_READ_BYTES_MAX + (1 << 20);

/// Bytes of appends that a follower has not answered (storage.md); when reached, its log is not read further.
pub const PEER_UNACKNOWLEDGED_BYTES_MAX: usize = 16 << 20;

/// Appends that a follower has not answered: what openraft buffers on the other side.
pub const PEER_APPENDS_MAX: usize = 64;

/// Connections from other nodes: four classes each, while some are opened anew. One more is closed.
pub const PEER_CONNECTIONS_MAX: usize = 256;

// --- leader: open transactions and what waits; smaller under test, so that scripts reach them ------------------------------------------------------

/// Proposals whose fate is not known yet. The Raft core's channel is longer, so proposing never blocks; a request beyond is refused as overloaded.
pub const PROPOSALS_IN_FLIGHT_MAX: usize = if cfg!(test) { 512 } else { 8192 };

/// Open transactions of one leader. A stage costs about 1 KiB besides its records; a new one beyond is refused as overloaded.
pub const STAGES_MAX: usize = if cfg!(test) { 64 } else { 100_000 };

/// Bytes of the list of open transactions that a leader leaves to the next one. A longer one is not made: all are lost then.
pub const HAND_OVER_BYTES_MAX: usize = ENTRY_METADATA_BYTES_MAX / 2;

/// Requests that would open a transaction, kept waiting while a leader drains before it goes. One beyond is refused at once (16, 6).
pub const QUEUED_WHILE_DRAINING_MAX: usize = if cfg!(test) { 10 } else { 65_536 };

/// Partitions, and groups, of one transaction: what its entry lists. A transaction beyond is doomed, since it could never commit.
pub const STAGE_PARTITIONS_MAX: usize = if cfg!(test) { 40 } else { 50_000 };

/// Partitions whose sequences a doomed transaction notes, for its abort. A larger one says that it does not know them.
pub const DOOMED_PARTITIONS_MAX: usize = if cfg!(test) { 20 } else { 100 };

/// What a staged batch or offset costs besides its own bytes, so that many tiny ones count too.
pub const STAGED_OVERHEAD_BYTES: usize = 128;

/// Room in an entry for its metadata when batches are packed into it.
pub const ENTRY_OVERHEAD_BYTES: usize = 64;

/// Requests of one transactional id that wait behind its EndTxn, InitProducerId or begin marker. Clients keep 5 in
/// flight on a connection; one beyond is refused as overloaded.
pub const QUEUED_PER_TRANSACTIONAL_ID_MAX: usize = 256;

/// OffsetFetches that wait for an EndTxn; one beyond is refused as overloaded.
pub const WAITING_OFFSET_FETCHES_MAX: usize = if cfg!(test) { 100 } else { 10_000 };

/// Least time that a Produce gets, whatever its timeout says: some clients send 0, which no disk can meet.
pub const PRODUCE_TIMEOUT_MS_MIN: u64 = 1_000;

/// Produce requests that wait for their entries; one beyond is refused as overloaded. Their bytes have bounds of their own (storage.md).
pub const WAITING_PRODUCES_MAX: usize = 65_536;

/// Transactional ids in the replicated state. They expire after 7 days; a new one beyond is refused as overloaded.
pub const TRANSACTIONAL_IDS_MAX: usize = if cfg!(test) { 300 } else { 1_000_000 };

/// Producer ids in the replicated state; beyond, those idle longest leave first (ID04).
pub const PRODUCER_IDS_MAX: usize = if cfg!(test) { 200 } else { 1_000_000 };

/// How often expiry is looked at: expiry times are hours, a look costs one pass over the ids.
pub const EXPIRY_INTERVAL_MS: u64 = 60_000;

/// Ids removed by one expiry entry. When full, the rest follows as soon as it is applied.
pub const EXPIRED_PER_ENTRY_MAX: usize = if cfg!(test) { 100 } else { 10_000 };

/// Bytes of the names in one expiry entry: ids and groups may be 32 KiB long. When full, the rest follows likewise.
pub const EXPIRED_NAME_BYTES_MAX: usize = ENTRY_METADATA_BYTES_MAX / 2;

/// Partitions whose log starts one entry moves: retention's (the rest follows in further entries) and DeleteRecords' (more is
/// refused, 42). An apply of them takes some milliseconds.
pub const TRIMS_PER_ENTRY_MAX: usize = if cfg!(test) { 100 } else { 10_000 };

/// Free space below which nothing new is admitted: what is in flight (entries, unwritten segments, a manifest) still has to fit.
pub const FREE_BYTES_MIN: u64 = 64 << 20;

/// Fetches times partitions that wait to be woken, over all clients: about 100 bytes each. A fetch beyond it waits out
/// its time without being woken by new data.
pub const FETCH_WAITS_MAX: usize = 1 << 18;

/// Partitions that one request may create (Kafka's controller stops at 10,000 too): an entry must not keep apply busy for long. More is refused (44).
pub const PARTITIONS_PER_REQUEST_MAX: usize = 10_000;

/// Settings given to one topic: Kafka has some forty, and those of Redpanda that mean nothing here are kept too. More is refused (44).
pub const TOPIC_CONFIGS_MAX: usize = 256;

// --- net, api ---------------------------------------------------------------------------------------

/// Array elements of one request, of all arrays together: Kafka's own advice ends at 200,000 partitions in a cluster, and
/// an element takes up to ten times its bytes once decoded. A request with more is malformed.
pub const REQUEST_ELEMENTS_MAX: usize = 250_000;

/// Tagged fields of one request, of all its structs together. No client sends any that we do not know. A request with more is malformed.
pub const REQUEST_TAGGED_FIELDS_MAX: usize = 10_000;

/// Topics that are counted, those deleted since the last scrape among them. When full all counts begin anew, as after a
/// restart.
pub const TOPIC_METRICS_MAX: usize = 10_000;

/// Requests passed on to the leader at a time; one more waits.
pub const FORWARDED_REQUESTS_MAX: usize = 64;

/// How far a record's time may lie ahead of the broker's (Kafka's `message.timestamp.after.max.ms`): beyond, INVALID_TIMESTAMP.
pub const TIMESTAMP_AFTER_MS_MAX: i64 = 3_600_000;

/// Bytes of records in one fetch response (Kafka's and Redpanda's `fetch.max.bytes`), whatever the client asks for.
pub const FETCH_BYTES_MAX: usize = 57_671_680;

/// Longest wait of a fetch, whatever the client asks for: a connection is not held longer than it may be idle.
pub const FETCH_WAIT_MS_MAX: i32 = 300_000;

/// Bytes of record batches in answers, over all connections, from before they are read until they are written. A fetch
/// beyond reads less, at least one batch. Four of the largest answers.
pub const ANSWERS_BYTES_MAX: usize = 256 << 20;

/// Connections at a time (each has a task and small buffers). One more is closed as soon as it is accepted.
pub const CONNECTIONS_MAX: usize = 10_000;

/// Least time between two warnings that clients can cause as often as they like; those between are counted.
pub const WARNING_INTERVAL_MS: u64 = 1_000;

/// Bytes of all requests in memory that are not answered, where `queued.max.request.bytes` does not say. When full, frames that began wait, and sockets are not read.
pub const REQUESTS_BYTES_MAX: usize = 256 << 20;

/// How long a frame that began may wait for the byte budget before its connection is closed: what it holds may be what
/// the others wait for.
pub const BUDGET_WAIT_MS_MAX: u64 = 10_000;

/// Requests of one connection in work. When full the socket is not read. Clients keep 5 in flight (Java), librdkafka up to 1,000,000 on paper.
pub const PIPELINE_REQUESTS_MAX: usize = 128;

/// Bytes of requests of one connection in work, above which no further one is begun.
pub const PIPELINE_BYTES_MAX: usize = 32 << 20;

/// Bytes of one answer that is passed on from another node: the largest fetch, whose one batch may exceed its limit by an entry.
/// An answer beyond closes the connection.
pub const RELAYED_ANSWER_BYTES_MAX: usize = 96 << 20;

/// Bytes of all answers that are being passed on, until clients have taken them. Where they are used up the next is not read, and
/// TCP pushes back on the node that sends it.
pub const RELAYED_BYTES_MAX: usize = 256 << 20;

/// How long a request that is put to another node may take: small changes of the cluster, and a client asks again.
pub const FORWARD_MS_MAX: u64 = 10_000;

/// How long another node may take to accept a connection.
pub const UPSTREAM_CONNECT_MS_MAX: u64 = 2_000;

/// Bytes of answers that a connection has not taken, and of those that wait behind another one; above it none is added
/// and nothing is read.
pub const OUTBOX_BYTES_MAX: usize = 1 << 20;

/// Bytes of a frame that are allocated on its word alone; beyond, the buffer grows with what arrives.
pub const FRAME_EAGER_BYTES: usize = 128 << 10;

/// Bytes read ahead from a socket: several small requests with one system call. Every connection has such a buffer.
pub const SOCKET_READ_BYTES: usize = 8 << 10;

/// Pause after a failed accept (no descriptors left).
pub const ACCEPT_RETRY_MS: u64 = 100;

/// Bytes that a time query unpacks of one batch: half a second of zstd. A batch beyond answers as a whole, not to the record.
pub const UNPACKED_BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { 256 << 20 };

// --- catch-up ---------------------------------------------------------------------------------------

/// Bytes of a file that a node which catches up asks for at a time. Small, so that the rate limit is smooth and what is lost with a connection is little.
pub const TRANSFER_PIECE_BYTES_MAX: usize = if cfg!(test) { 4 << 10 } else { 1 << 20 };

/// Checkpoints that are pulled from this node at a time. A node more gets none until one is done.
pub const TRANSFERS_MAX: usize = 16;

/// How long a checkpoint is held for somebody who asks for nothing: a broken connection is back by then.
pub const TRANSFER_IDLE_MS_MAX: u64 = 30_000;

/// How long a checkpoint is held at most: what was deleted meanwhile takes space. Beyond, the node that pulls goes on with a newer one.
pub const TRANSFER_HOLD_MS_MAX: u64 = 2 * 3_600_000;

/// Greatest manifest that is accepted from another node, since it is read into memory as the state in it will be.
pub const MANIFEST_BYTES_MAX: u64 = 8 << 30;
