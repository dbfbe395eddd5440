//! Retention by size and time: which segments are too many or too old, as Kafka's `UnifiedLog.deleteOldSegments` finds them.
//!
//! What segments there are comes from this node's own files, which are a product of the log and so the same on every
//! replica; what the entry says is an offset. Whole segments only, oldest first; the last one too once it is expired and
//! holds everything that was written. A segment with a timestamp in the future is as young as that timestamp says.

use super::proposals::Purpose;
use super::{Action, Leader, Role, Turn};
use crate::config::limits::{PROPOSALS_IN_FLIGHT_MAX, TRIMS_PER_ENTRY_MAX};
use crate::state::Machine;
use crate::state::command::{Command, Trim};
use crate::state::topics::Topic;
use crate::types::{Now, Offset, PartitionFacts, SegmentFacts};

const MINUTE_MS: i64 = 60_000;

/// What a topic's segments are kept by; negative: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    ms: i64,
    bytes: i64,
}

impl Leader {
    /// Proposes to remove what retention no longer keeps of these partitions, in entries of a bounded size.
    ///
    /// Proposing something twice does no harm: a log start only moves up.
    pub fn retain(&mut self, machine: &Machine, now: Now, facts: &[PartitionFacts]) -> Vec<Action> {
        let Role::Leading(term) = self.role else { return Vec::new() };
        let mut turn = Turn { machine, now, term, out: Vec::new() };
        let trims: Vec<Trim> = facts.iter().filter_map(|of| self.no_longer_kept(machine, now, of)).collect();
        for part in trims.chunks(TRIMS_PER_ENTRY_MAX) {
            if self.proposals.len() >= PROPOSALS_IN_FLIGHT_MAX {
                // The next look finds the rest.
                break;
            }
            self.proposals.propose(&mut turn, Command::TrimPartitions(part.to_vec()), Purpose::Nothing);
        }
        turn.out
    }

    fn no_longer_kept(&self, machine: &Machine, now: Now, facts: &PartitionFacts) -> Option<Trim> {
        let topic = machine.topics().get(facts.of.topic).filter(|topic| topic.settings.delete)?;
        let partition = machine.topics().partition(facts.of)?;
        let to = expired_to(&facts.segments, self.kept(machine, topic), now.wall_ms, partition.next_offset)?;
        (to > partition.log_start_offset).then_some(Trim { of: facts.of, to })
    }

    /// The topic's word, else that of all brokers together, else this node's.
    fn kept(&self, machine: &Machine, topic: &Topic) -> Kept {
        let of_brokers = |name, unit: i64| {
            let value: i64 = machine.configs().get(name)?.trim().parse().ok()?;
            Some(if value < 0 { -1 } else { value.saturating_mul(unit) })
        };
        let ms = if topic.configs.contains_key("retention.ms") {
            topic.settings.retention_ms
        } else {
            let given = of_brokers("log.retention.ms", 1)
                .or_else(|| of_brokers("log.retention.minutes", MINUTE_MS))
                .or_else(|| of_brokers("log.retention.hours", 60 * MINUTE_MS));
            given.unwrap_or(self.settings.log_retention_ms)
        };
        let bytes = if topic.configs.contains_key("retention.bytes") {
            topic.settings.retention_bytes
        } else {
            of_brokers("log.retention.bytes", 1).unwrap_or(self.settings.log_retention_bytes)
        };
        Kept { ms, bytes }
    }
}

/// The offset behind the segments that are not kept, None if all are. First by size, then the rest by time.
fn expired_to(segments: &[SegmentFacts], kept: Kept, now_ms: i64, end: Offset) -> Option<Offset> {
    let mut rest = segments;
    // What is still on its way to the last segment would be lost to it.
    let may_go = |first: &SegmentFacts, more: &[SegmentFacts]| !more.is_empty() || first.next == end;
    if let Ok(bytes) = u64::try_from(kept.bytes) {
        let all: u64 = segments.iter().map(|segment| segment.bytes).sum();
        let mut excess = all.saturating_sub(bytes);
        while let [first, more @ ..] = rest
            && first.bytes <= excess
            && may_go(first, more)
        {
            excess -= first.bytes;
            rest = more;
        }
    }
    if kept.ms >= 0 {
        while let [first, more @ ..] = rest
            && now_ms.saturating_sub(first.greatest_ms) > kept.ms
            && may_go(first, more)
        {
            rest = more;
        }
    }
    let gone = segments.len() - rest.len();
    gone.checked_sub(1).map(|last| segments[last].next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::command::{Batch, ConfigChange, ConfigResource, Entry, NewTopic};
    use crate::types::record_batch::sample;
    use crate::types::{LogIndex, Term, TopicId, TopicPartition};

    const FOR_EVER: Kept = Kept { ms: -1, bytes: -1 };

    /// Segments of ten records each: (bytes, greatest timestamp).
    fn segments(of: &[(u64, i64)]) -> Vec<SegmentFacts> {
        let one = |((bytes, greatest_ms), number): (&(u64, i64), i64)| SegmentFacts {
            base: Offset(10 * number),
            next: Offset(10 * number + 10),
            bytes: *bytes,
            greatest_ms: *greatest_ms,
        };
        of.iter().zip(0..).map(one).collect()
    }

    fn to(of: &[(u64, i64)], kept: Kept, now_ms: i64) -> Option<i64> {
        let end = Offset(10 * of.len() as i64);
        expired_to(&segments(of), kept, now_ms, end).map(|offset| offset.0)
    }

    #[test]
    fn segments_leave_oldest_first_while_the_log_stays_at_its_size_or_above() {
        let log = [(100, 0), (100, 0), (100, 0), (40, 0)];
        let by = |bytes| to(&log, Kept { bytes, ..FOR_EVER }, 1_000);
        assert_eq!(by(-1), None);
        assert_eq!(by(340), None);
        assert_eq!(by(241), None, "one less would be too little");
        assert_eq!(by(240), Some(10));
        assert_eq!(by(239), Some(10));
        assert_eq!(by(41), Some(20));
        assert_eq!(by(40), Some(30));
        assert_eq!(by(1), Some(30));
        assert_eq!(by(0), Some(40), "the last one too");
    }

    #[test]
    fn segments_leave_by_their_greatest_timestamp_until_the_first_that_stays() {
        let log = [(1, 100), (1, 300), (1, 200), (1, 900)];
        let at = |now_ms| to(&log, Kept { ms: 50, ..FOR_EVER }, now_ms);
        assert_eq!(at(150), None, "not older than allowed");
        assert_eq!(at(151), Some(10));
        assert_eq!(at(300), Some(10), "the second keeps the third");
        assert_eq!(at(351), Some(30));
        assert_eq!(at(950), Some(30));
        assert_eq!(at(951), Some(40), "the last one too");
        assert_eq!(to(&log, FOR_EVER, i64::MAX), None);
        assert_eq!(to(&[(1, i64::MAX), (1, 0)], Kept { ms: 0, ..FOR_EVER }, 5_000), None, "the future never expires");
    }

    #[test]
    fn what_size_leaves_is_judged_by_time() {
        let log = [(100, 900), (100, 100), (100, 900)];
        assert_eq!(to(&log, Kept { ms: 50, bytes: 200 }, 500), Some(20));
        assert_eq!(to(&log, Kept { ms: 50, bytes: 201 }, 500), None);
    }

    #[test]
    fn the_last_segment_stays_while_records_are_on_their_way_to_it() {
        let log = segments(&[(100, 0), (100, 0)]);
        let all = Kept { ms: 0, bytes: 0 };
        assert_eq!(expired_to(&log, all, 1_000, Offset(21)), Some(Offset(10)));
        assert_eq!(expired_to(&log, all, 1_000, Offset(20)), Some(Offset(20)));
        assert_eq!(expired_to(&[], all, 1_000, Offset(20)), None);
    }

    /// Topic `a` with those settings and 20 records, a leader, and what it proposes at 10 s.
    fn proposed(
        configs: &[(&str, &str)],
        brokers: &[(&str, &str)],
        settings: super::super::LeaderSettings,
    ) -> Vec<Trim> {
        let at = TopicPartition { topic: TopicId([1; 16]), partition: 0 };
        let configs = configs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let new = NewTopic { id: at.topic, name: "a".to_owned(), partitions: 1, configs };
        let change = |(name, value): &(&str, &str)| ConfigChange {
            resource: ConfigResource::Broker,
            name: (*name).to_owned(),
            value: Some((*value).to_owned()),
        };
        let commands = [
            Command::CreateTopics(vec![new]),
            Command::AlterConfigs(brokers.iter().map(change).collect()),
            Command::Produce(vec![Batch::new(at, &sample::batch((-1, -1), -1, 20, false, b"x"))]),
        ];
        let mut machine = Machine::default();
        for (command, index) in commands.into_iter().zip(1..) {
            machine.apply(LogIndex(index), Term(1), &Entry { now_ms: 0, command });
        }
        let now = Now { mono_ms: 0, wall_ms: 10_000 };
        let mut leader = Leader::new(settings);
        let facts = PartitionFacts { of: at, segments: segments(&[(100, 1_000), (100, 2_000)]) };
        assert_eq!(leader.retain(&machine, now, std::slice::from_ref(&facts)), [], "it does not lead");
        leader.start_term(&machine, Term(1), now, crate::types::ConnectionId(0));
        let trims = leader.retain(&machine, now, &[facts]).into_iter().flat_map(|action| match action {
            Action::Propose(_, Entry { command: Command::TrimPartitions(trims), .. }) => trims,
            other => panic!("{other:?}"),
        });
        trims.collect()
    }

    #[test]
    fn the_topics_word_goes_before_that_of_all_brokers_and_theirs_before_the_nodes() {
        let settings =
            |ms| super::super::LeaderSettings { log_retention_ms: ms, ..super::super::tests::player::settings() };
        let starts = |configs, brokers, ms| -> Vec<i64> {
            proposed(configs, brokers, settings(ms)).iter().map(|trim| trim.to.0).collect()
        };
        assert_eq!(starts(&[], &[], 8_500), [10]);
        assert_eq!(starts(&[], &[("log.retention.ms", "7000")], 8_500), [20]);
        assert_eq!(starts(&[], &[("log.retention.hours", "-1")], 8_500), [] as [i64; 0]);
        assert_eq!(starts(&[], &[("log.retention.minutes", "0"), ("log.retention.hours", "-1")], -1), [20]);
        assert_eq!(starts(&[("retention.ms", "-1")], &[("log.retention.ms", "7000")], 8_500), [] as [i64; 0]);
        assert_eq!(starts(&[("retention.ms", "8500")], &[("log.retention.ms", "7000")], -1), [10]);
        assert_eq!(starts(&[("retention.bytes", "100")], &[("log.retention.bytes", "0")], -1), [10]);
        assert_eq!(starts(&[], &[("log.retention.bytes", "0")], -1), [20]);
        assert_eq!(starts(&[("cleanup.policy", "compact")], &[], 8_500), [] as [i64; 0], "compacted, not deleted");
        assert_eq!(starts(&[("cleanup.policy", "compact,delete")], &[], 8_500), [10]);
    }
}
