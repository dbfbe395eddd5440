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
    /// `katomic.log.retained.bytes`: log kept behind a checkpoint for members that are behind; the rest get the checkpoint.
    pub log_retained_bytes: i64,
    /// `katomic.recovery.bytes.per.second`: how fast this node pulls a checkpoint from another.
    pub recovery_bytes_per_second: i64,
    /// `katomic.checkpoint.bytes`: log between two checkpoints.
    pub checkpoint_bytes: i64,
    /// `katomic.checkpoint.interval.ms`: longest time between two checkpoints.
    pub checkpoint_interval_ms: i64,
    /// `log.retention.ms`: goes before `.minutes`, and that before `.hours`.
    pub log_retention_ms: Option<i64>,
    /// `log.retention.minutes`
    pub log_retention_minutes: Option<i64>,
    /// `log.retention.hours`
    pub log_retention_hours: i32,
    /// `log.retention.bytes`
    pub log_retention_bytes: i64,
    /// `log.retention.check.interval.ms`
    pub log_retention_check_interval_ms: i64,
    /// `katomic.proposal.timeout.ms`: how long an entry may take before its client is told that its fate is unknown; below
    /// the 30 s after which clients give up by themselves.
    pub proposal_timeout_ms: i64,
    /// `katomic.transfer.drain.ms`: how long open transactions may take to end before leadership moves as planned.
    pub transfer_drain_ms: i64,
    /// `transaction.version`: 2 lets clients use KIP-890's protocol, 0 keeps them to the older one.
    pub transaction_version: i32,
    /// `replica.selector.class`: who serves a consumer that names its rack.
    pub replica_selector_class: &'static str,
    /// `katomic.proxy`: this node passes on to the leader what only the leader answers, and names itself alone to clients.
    pub proxy: bool,
}

/// Values of `replica.selector.class`, by Kafka's names; the first is what Kafka does when none is given.
const REPLICA_SELECTORS: &[&str] = &["org.apache.kafka.common.replica.LeaderSelector", RACK_AWARE];
const RACK_AWARE: &str = "org.apache.kafka.common.replica.RackAwareReplicaSelector";

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
            log_retained_bytes: 4_096 * MIB,
            recovery_bytes_per_second: 100 * MIB,
            checkpoint_bytes: 1_024 * MIB,
            checkpoint_interval_ms: 60_000,
            log_retention_ms: None,
            log_retention_minutes: None,
            log_retention_hours: 168,
            log_retention_bytes: -1,
            log_retention_check_interval_ms: 300_000,
            proposal_timeout_ms: 20_000,
            transfer_drain_ms: 1_000,
            transaction_version: 2,
            replica_selector_class: REPLICA_SELECTORS[0],
            proxy: false,
        }
    }

    /// How long records are kept where a topic does not say; −1 = for ever. The finest setting given rules, as in Kafka.
    pub fn retention_ms(&self) -> i64 {
        let in_minutes = |minutes: i64| minutes.saturating_mul(60_000);
        let given = self.log_retention_ms.or_else(|| self.log_retention_minutes.map(in_minutes));
        given.unwrap_or_else(|| in_minutes(60 * i64::from(self.log_retention_hours))).max(-1)
    }

    /// Whether a consumer that names its rack is sent to a follower in it (KIP-392).
    pub fn rack_aware_reads(&self) -> bool {
        self.replica_selector_class == RACK_AWARE
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
            Unset(place, range) => *place = Some(integer(key, value, range)?),
            OneOf(place, values) => {
                let known = values.iter().find(|known| **known == value);
                *place = known.ok_or_else(|| ConfigError::bad(key, value, &values.join(" or ")))?;
            }
        }
        Ok(())
    }

    /// One setting as text; None if there is none of that name, or it was not set and has no default.
    pub fn get(&self, key: &str) -> Option<String> {
        let mut copy = self.clone();
        Some(match copy.place(key)? {
            Flag(place) => place.to_string(),
            Int(place, _) => place.to_string(),
            Long(place, _) => place.to_string(),
            Unset(place, _) => place.as_ref()?.to_string(),
            OneOf(place, _) => (*place).to_owned(),
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
    /// Without a default.
    Unset(&'a mut Option<i64>, RangeInclusive<i64>),
    OneOf(&'a mut &'static str, &'static [&'static str]),
}

use Place::{Flag, Int, Long, OneOf, Unset};

const POSITIVE_I32: RangeInclusive<i64> = 1..=i32::MAX as i64;
const POSITIVE: RangeInclusive<i64> = 1..=i64::MAX;
/// −1 is no limit.
const LIMIT: RangeInclusive<i64> = -1..=i64::MAX;

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
    ("katomic.log.retained.bytes", |s| Long(&mut s.log_retained_bytes, 0..=1 << 50)),
    ("katomic.recovery.bytes.per.second", |s| Long(&mut s.recovery_bytes_per_second, MIB..=1 << 40)),
    ("katomic.checkpoint.bytes", |s| Long(&mut s.checkpoint_bytes, MIB..=1 << 40)),
    ("katomic.checkpoint.interval.ms", |s| Long(&mut s.checkpoint_interval_ms, POSITIVE)),
    ("log.retention.ms", |s| Unset(&mut s.log_retention_ms, LIMIT)),
    ("log.retention.minutes", |s| Unset(&mut s.log_retention_minutes, -1..=i64::from(i32::MAX))),
    ("log.retention.hours", |s| Int(&mut s.log_retention_hours, -1..=i64::from(i32::MAX))),
    ("log.retention.bytes", |s| Long(&mut s.log_retention_bytes, LIMIT)),
    ("log.retention.check.interval.ms", |s| Long(&mut s.log_retention_check_interval_ms, POSITIVE)),
    ("katomic.proposal.timeout.ms", |s| Long(&mut s.proposal_timeout_ms, 100..=600_000)),
    ("katomic.transfer.drain.ms", |s| Long(&mut s.transfer_drain_ms, 0..=60_000)),
    ("transaction.version", |s| Int(&mut s.transaction_version, 0..=2)),
    ("replica.selector.class", |s| OneOf(&mut s.replica_selector_class, REPLICA_SELECTORS)),
    ("katomic.proxy", |s| Flag(&mut s.proxy)),
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
                Int(_, range) | Long(_, range) | Unset(_, range) => range.end().to_string(),
                OneOf(_, values) => values.last().expect("there is a choice").to_string(),
            };
            let before = settings.all();
            settings.set(name, &value).expect("it is in range");
            assert_eq!(settings.get(name), Some(value), "{name}");
            let changed: Vec<_> =
                settings.all().into_iter().filter(|pair| before.get(&pair.0) != Some(&pair.1)).collect();
            assert_eq!(changed.len(), 1, "{name} changes itself alone: {changed:?}");
        }
        let names: std::collections::BTreeSet<_> = TABLE.iter().map(|(name, _)| name).collect();
        assert_eq!(TABLE.len(), names.len(), "no name twice");
        assert_eq!(Settings::for_mode(Mode::Dev).get("no.such.setting"), None);
    }

    #[test]
    fn the_finest_retention_given_rules() {
        let of = |given: &[(&str, &str)]| {
            let mut settings = Settings::for_mode(Mode::Production);
            given.iter().for_each(|(key, value)| settings.set(key, value).expect("it is in range"));
            settings.retention_ms()
        };
        assert_eq!(of(&[]), 7 * DAY_MS);
        assert_eq!(of(&[("log.retention.hours", "2")]), 7_200_000);
        assert_eq!(of(&[("log.retention.minutes", "3"), ("log.retention.hours", "2")]), 180_000);
        assert_eq!(of(&[("log.retention.minutes", "3"), ("log.retention.ms", "4")]), 4);
        assert_eq!(of(&[("log.retention.ms", "-1"), ("log.retention.hours", "2")]), -1);
        assert_eq!(of(&[("log.retention.hours", "-1")]), -1);
    }
}
