//! Broker settings by Kafka's names (`katomic.` in front of those that are ours): one table of name, range and place.

use super::{ConfigError, Mode};

/// Every broker setting that this node acts on.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `auto.create.topics.enable`
    pub auto_create_topics_enable: bool,
    /// `num.partitions` of a topic created without a number.
    pub num_partitions: i32,
    /// `transaction.max.timeout.ms`
    pub transaction_max_timeout_ms: i32,
    /// `transactional.id.expiration.ms`
    pub transactional_id_expiration_ms: i64,
    /// `producer.id.expiration.ms`
    pub producer_id_expiration_ms: i64,
    /// `offsets.retention.minutes`
    pub offsets_retention_minutes: i64,
    /// `offset.metadata.max.bytes`
    pub offset_metadata_max_bytes: i64,
    /// `group.min.session.timeout.ms`
    pub group_min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`
    pub group_max_session_timeout_ms: i32,
    /// `group.initial.rebalance.delay.ms`
    pub group_initial_rebalance_delay_ms: i32,
    /// `group.max.size`
    pub group_max_size: i64,
    /// `connections.max.idle.ms`
    pub connections_max_idle_ms: i64,
    /// `max.connections`
    pub max_connections: i64,
    /// `queued.max.request.bytes`: requests of all connections that are in memory at a time.
    pub queued_max_request_bytes: i64,
    /// `katomic.txn.entry.bytes.max`: size at which a transaction goes to hidden chunks.
    pub txn_entry_bytes_max: i64,
    /// `katomic.txn.staged.bytes.max`: bytes of all open transactions; over it the newest is doomed.
    pub txn_staged_bytes_max: i64,
    /// `katomic.wal.file.bytes`
    pub wal_file_bytes: i64,
    /// `katomic.log.cache.bytes`: recent entries kept in memory.
    pub log_cache_bytes: i64,
    /// `katomic.segment.tail.bytes`: recent batches kept in memory for tail reads.
    pub segment_tail_bytes: i64,
    /// `katomic.segment.unwritten.bytes.max`: how far the segment writer may lag before writes wait.
    pub segment_unwritten_bytes_max: i64,
    /// `katomic.segment.open.files.max`
    pub segment_open_files_max: i64,
    /// `katomic.checkpoint.bytes`: log between two checkpoints.
    pub checkpoint_bytes: i64,
    /// `katomic.checkpoint.interval.ms`: longest time between two checkpoints.
    pub checkpoint_interval_ms: i64,
    /// `transaction.version`: 2 lets clients use KIP-890's protocol, 0 keeps them to the older one.
    pub transaction_version: i32,
}

const MIB: i64 = 1 << 20;
const DAY_MS: i64 = 24 * 3_600_000;

impl Settings {
    /// The defaults of a mode (surface.md §3).
    pub fn for_mode(mode: Mode) -> Self {
        let dev = mode != Mode::Production;
        Self {
            auto_create_topics_enable: dev,
            num_partitions: 1,
            transaction_max_timeout_ms: 900_000,
            transactional_id_expiration_ms: 7 * DAY_MS,
            producer_id_expiration_ms: DAY_MS,
            offsets_retention_minutes: 7 * 24 * 60,
            offset_metadata_max_bytes: 4_096,
            group_min_session_timeout_ms: 6_000,
            group_max_session_timeout_ms: 1_800_000,
            group_initial_rebalance_delay_ms: if dev { 0 } else { 3_000 },
            group_max_size: 100_000,
            connections_max_idle_ms: 600_000,
            max_connections: 10_000,
            queued_max_request_bytes: 256 * MIB,
            txn_entry_bytes_max: super::limits::ENTRY_BYTES_MAX as i64,
            txn_staged_bytes_max: 512 * MIB,
            wal_file_bytes: 256 * MIB,
            log_cache_bytes: 64 * MIB,
            segment_tail_bytes: 64 * MIB,
            segment_unwritten_bytes_max: 256 * MIB,
            segment_open_files_max: 1_024,
            checkpoint_bytes: 1_024 * MIB,
            checkpoint_interval_ms: 60_000,
            transaction_version: 2,
        }
    }

    /// Changes one setting.
    ///
    /// # Errors
    /// If there is no such setting or the value is not of its type or range.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        const POSITIVE_I32: std::ops::RangeInclusive<i64> = 1..=i32::MAX as i64;
        const POSITIVE: std::ops::RangeInclusive<i64> = 1..=i64::MAX;
        let int = |range: std::ops::RangeInclusive<i64>| integer(key, value, range);
        let int32 = |range| integer(key, value, range).map(|number| number as i32);
        match key {
            "auto.create.topics.enable" => self.auto_create_topics_enable = flag(key, value)?,
            "num.partitions" => self.num_partitions = int32(1..=100_000)?,
            "transaction.max.timeout.ms" => self.transaction_max_timeout_ms = int32(POSITIVE_I32)?,
            "transactional.id.expiration.ms" => self.transactional_id_expiration_ms = int(POSITIVE)?,
            "producer.id.expiration.ms" => self.producer_id_expiration_ms = int(POSITIVE)?,
            "offsets.retention.minutes" => self.offsets_retention_minutes = int(POSITIVE_I32)?,
            "offset.metadata.max.bytes" => self.offset_metadata_max_bytes = int(0..=MIB)?,
            "group.min.session.timeout.ms" => self.group_min_session_timeout_ms = int32(POSITIVE_I32)?,
            "group.max.session.timeout.ms" => self.group_max_session_timeout_ms = int32(POSITIVE_I32)?,
            "group.initial.rebalance.delay.ms" => {
                self.group_initial_rebalance_delay_ms = int32(0..=i64::from(i32::MAX))?;
            }
            "group.max.size" => self.group_max_size = int(POSITIVE_I32)?,
            "connections.max.idle.ms" => self.connections_max_idle_ms = int(POSITIVE)?,
            "max.connections" => self.max_connections = int(POSITIVE_I32)?,
            "queued.max.request.bytes" => self.queued_max_request_bytes = int(100 * MIB..=1 << 40)?,
            "katomic.txn.entry.bytes.max" => self.txn_entry_bytes_max = int(1_024..=16 * MIB)?,
            "katomic.txn.staged.bytes.max" => self.txn_staged_bytes_max = int(MIB..=1 << 40)?,
            "katomic.wal.file.bytes" => self.wal_file_bytes = int(4 * MIB..=16_384 * MIB)?,
            "katomic.log.cache.bytes" => self.log_cache_bytes = int(MIB..=1 << 40)?,
            "katomic.segment.tail.bytes" => self.segment_tail_bytes = int(MIB..=1 << 40)?,
            "katomic.segment.unwritten.bytes.max" => self.segment_unwritten_bytes_max = int(MIB..=1 << 40)?,
            "katomic.segment.open.files.max" => self.segment_open_files_max = int(16..=1_000_000)?,
            "katomic.checkpoint.bytes" => self.checkpoint_bytes = int(MIB..=1 << 40)?,
            "katomic.checkpoint.interval.ms" => self.checkpoint_interval_ms = int(POSITIVE)?,
            "transaction.version" => self.transaction_version = int32(0..=2)?,
            _ => return Err(ConfigError::UnknownKey { key: key.into() }),
        }
        Ok(())
    }
}

fn flag(key: &str, value: &str) -> Result<bool, ConfigError> {
    value.parse().map_err(|_| ConfigError::bad(key, value, "true or false"))
}

fn integer(key: &str, value: &str, range: std::ops::RangeInclusive<i64>) -> Result<i64, ConfigError> {
    let expected = || format!("a whole number from {} to {}", range.start(), range.end());
    match value.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(ConfigError::bad(key, value, &expected())),
    }
}
