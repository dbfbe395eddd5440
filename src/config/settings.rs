//! Broker settings by Kafka's names (`katomic.` in front of those that are ours): one table of name, range and place.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

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
    /// `katomic.proposal.timeout.ms`: how long an entry may take before its client is told that its fate is unknown; below
    /// the 30 s after which clients give up by themselves.
    pub proposal_timeout_ms: i64,
    /// `katomic.transfer.drain.ms`: how long open transactions may take to end before leadership moves as planned.
    pub transfer_drain_ms: i64,
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
            proposal_timeout_ms: 20_000,
            transfer_drain_ms: 1_000,
            transaction_version: 2,
        }
    }

    /// Changes one setting.
    ///
    /// # Errors
    /// If there is no such setting or the value is not of its type or range.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        match self.place(key).ok_or_else(|| ConfigError::UnknownKey { key: key.into() })? {
            Flag(place) => *place = value.parse().map_err(|_| ConfigError::bad(key, value, "true or false"))?,
            Int(place, range) => *place = integer(key, value, range)? as i32,
            Long(place, range) => *place = integer(key, value, range)?,
        }
        Ok(())
    }

    /// One setting as text; None if there is none of that name.
    pub fn get(&self, key: &str) -> Option<String> {
        let mut copy = self.clone();
        Some(match copy.place(key)? {
            Flag(place) => place.to_string(),
            Int(place, _) => place.to_string(),
            Long(place, _) => place.to_string(),
        })
    }

    /// All settings as text, by name.
    pub fn all(&self) -> BTreeMap<String, String> {
        TABLE.iter().filter_map(|(name, _)| Some(((*name).to_owned(), self.get(name)?))).collect()
    }

    fn place(&mut self, key: &str) -> Option<Place<'_>> {
        let (_, place) = TABLE.iter().find(|(name, _)| *name == key)?;
        Some(place(self))
    }
}

/// Where a setting's value is, of which type and in which range.
enum Place<'a> {
    Flag(&'a mut bool),
    Int(&'a mut i32, RangeInclusive<i64>),
    Long(&'a mut i64, RangeInclusive<i64>),
}

use Place::{Flag, Int, Long};

const POSITIVE_I32: RangeInclusive<i64> = 1..=i32::MAX as i64;
const POSITIVE: RangeInclusive<i64> = 1..=i64::MAX;

/// A setting's name and its place.
type Row = (&'static str, for<'a> fn(&'a mut Settings) -> Place<'a>);

/// Every setting: what is read and what is written cannot drift apart.
const TABLE: &[Row] = &[
    ("auto.create.topics.enable", |s| Flag(&mut s.auto_create_topics_enable)),
    ("num.partitions", |s| Int(&mut s.num_partitions, 1..=100_000)),
    ("transaction.max.timeout.ms", |s| Int(&mut s.transaction_max_timeout_ms, POSITIVE_I32)),
    ("transactional.id.expiration.ms", |s| Long(&mut s.transactional_id_expiration_ms, POSITIVE)),
    ("producer.id.expiration.ms", |s| Long(&mut s.producer_id_expiration_ms, POSITIVE)),
    ("offsets.retention.minutes", |s| Long(&mut s.offsets_retention_minutes, POSITIVE_I32)),
    ("offset.metadata.max.bytes", |s| Long(&mut s.offset_metadata_max_bytes, 0..=MIB)),
    ("group.min.session.timeout.ms", |s| Int(&mut s.group_min_session_timeout_ms, POSITIVE_I32)),
    ("group.max.session.timeout.ms", |s| Int(&mut s.group_max_session_timeout_ms, POSITIVE_I32)),
    ("group.initial.rebalance.delay.ms", |s| Int(&mut s.group_initial_rebalance_delay_ms, 0..=i32::MAX as i64)),
    ("group.max.size", |s| Long(&mut s.group_max_size, POSITIVE_I32)),
    ("connections.max.idle.ms", |s| Long(&mut s.connections_max_idle_ms, POSITIVE)),
    ("max.connections", |s| Long(&mut s.max_connections, POSITIVE_I32)),
    ("queued.max.request.bytes", |s| Long(&mut s.queued_max_request_bytes, 100 * MIB..=1 << 40)),
    ("katomic.txn.entry.bytes.max", |s| Long(&mut s.txn_entry_bytes_max, 1_024..=16 * MIB)),
    ("katomic.txn.staged.bytes.max", |s| Long(&mut s.txn_staged_bytes_max, MIB..=1 << 40)),
    ("katomic.wal.file.bytes", |s| Long(&mut s.wal_file_bytes, 4 * MIB..=16_384 * MIB)),
    ("katomic.log.cache.bytes", |s| Long(&mut s.log_cache_bytes, MIB..=1 << 40)),
    ("katomic.segment.tail.bytes", |s| Long(&mut s.segment_tail_bytes, MIB..=1 << 40)),
    ("katomic.segment.unwritten.bytes.max", |s| Long(&mut s.segment_unwritten_bytes_max, MIB..=1 << 40)),
    ("katomic.segment.open.files.max", |s| Long(&mut s.segment_open_files_max, 16..=1_000_000)),
    ("katomic.checkpoint.bytes", |s| Long(&mut s.checkpoint_bytes, MIB..=1 << 40)),
    ("katomic.checkpoint.interval.ms", |s| Long(&mut s.checkpoint_interval_ms, POSITIVE)),
    ("katomic.proposal.timeout.ms", |s| Long(&mut s.proposal_timeout_ms, 100..=600_000)),
    ("katomic.transfer.drain.ms", |s| Long(&mut s.transfer_drain_ms, 0..=60_000)),
    ("transaction.version", |s| Int(&mut s.transaction_version, 0..=2)),
];

fn integer(key: &str, value: &str, range: RangeInclusive<i64>) -> Result<i64, ConfigError> {
    let expected = || format!("a whole number from {} to {}", range.start(), range.end());
    match value.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(ConfigError::bad(key, value, &expected())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_read_back_as_it_was_set() {
        for (name, _) in TABLE {
            let mut settings = Settings::for_mode(Mode::Production);
            let value = match settings.place(name).expect("it is in the table") {
                Flag(place) => (!*place).to_string(),
                Int(place, range) if i64::from(*place) == *range.end() => range.start().to_string(),
                Long(place, range) if *place == *range.end() => range.start().to_string(),
                Int(_, range) | Long(_, range) => range.end().to_string(),
            };
            let before = settings.all();
            settings.set(name, &value).expect("it is in range");
            assert_eq!(settings.get(name), Some(value), "{name}");
            let changed: Vec<_> =
                settings.all().into_iter().filter(|pair| before.get(&pair.0) != Some(&pair.1)).collect();
            assert_eq!(changed.len(), 1, "{name} changes itself alone: {changed:?}");
        }
        assert_eq!(TABLE.len(), Settings::for_mode(Mode::Dev).all().len(), "no name twice");
        assert_eq!(Settings::for_mode(Mode::Dev).get("no.such.setting"), None);
    }
}
