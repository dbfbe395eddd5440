//! Gaps in a producer's sequence that this broker made itself are not held against it.
//!
//! An idempotent producer has several batches on their way on one connection. Where one of them is refused for a reason of
//! the moment (this node does not serve yet, the quorum is lost) and the next one comes when that moment is over, the next
//! one does not follow what is stored: OUT_OF_ORDER_SEQUENCE_NUMBER. The client will send the refused one again, but
//! librdkafka takes that error as its own: it gets a new epoch and sends everything in flight again under it
//! (`rd_kafka_handle_idempotent_Produce_error`, "skipped sequence numbers"), also what was stored with its answer unknown,
//! and that is stored twice. So what comes behind a batch that was refused like that is refused like that too.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use kafka_protocol::messages::TopicName;
use parking_lot::Mutex;
use uuid::Uuid;

use super::super::errors;
use crate::types::record_batch::HEADER_BYTES;
use crate::types::{ProducerIdAndEpoch, RecordBatch, Refusal};

/// Partitions of one connection with a batch refused for the moment. A producer beyond is told of a gap as Kafka tells it.
const REFUSED_MAX: usize = 1_000;
/// How many batches can be on their way behind the refused one: `max.in.flight.requests.per.connection` of idempotent
/// producers. More of them are a gap of the client's own, which must not be hidden for ever.
const BEHIND_MAX: u8 = 5;

/// What tells a batch of an idempotent producer from its others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbered {
    producer: ProducerIdAndEpoch,
    sequence: i32,
}

impl Numbered {
    /// None for a batch without a producer id.
    pub fn of(batch: &RecordBatch) -> Option<Self> {
        batch.producer().map(|producer| Self { producer, sequence: batch.base_sequence() })
    }

    /// The same of bytes that nobody has judged.
    pub fn of_bytes(records: Option<&bytes::Bytes>) -> Option<Self> {
        let records = records.filter(|records| records.len() >= HEADER_BYTES)?;
        Self::of(&RecordBatch::stored(records.clone()))
    }
}

#[derive(Clone, Copy, Debug)]
struct Refused {
    batch: Numbered,
    /// Batches behind it that may still be refused for its sake.
    behind: u8,
}

/// Of one connection: the batch of each partition that was refused for a reason of the moment.
///
/// By a hash of topic and partition, which bounds an entry: where two meet, a gap is told up to [`BEHIND_MAX`] batches later.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Gaps(Arc<Mutex<BTreeMap<u64, Refused>>>);

impl Gaps {
    /// What is said of a batch instead, given what was decided. A refusal that is ready at once may come
    /// here before the answer to a batch in front of it: that one ends no note but its own.
    pub(super) fn told<T>(
        &self,
        topic: (&TopicName, Uuid),
        index: i32,
        batch: Option<Numbered>,
        decided: Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let Some(batch) = batch else { return decided };
        let mut refused = self.0.lock();
        // The usual case: nothing is refused, and nothing was.
        if refused.is_empty() && decided.is_ok() {
            return decided;
        }
        let mut hasher = DefaultHasher::new();
        (topic.0.0.as_str(), topic.1, index).hash(&mut hasher);
        let key = hasher.finish();
        let noted = refused.get_mut(&key).filter(|noted| noted.batch.producer == batch.producer);
        match (decided, noted) {
            (Err(refusal), None) if refusal.is_of_the_moment() => {
                if refused.len() < REFUSED_MAX || refused.contains_key(&key) {
                    refused.insert(key, Refused { batch, behind: BEHIND_MAX });
                }
                Err(refusal)
            }
            (Err(Refusal::OutOfOrderSequenceNumber), Some(noted)) if noted.behind > 0 => {
                noted.behind -= 1;
                tracing::debug!(?batch, behind = ?noted.batch, "a gap that a refusal of ours made");
                Err(errors::ASK_AGAIN)
            }
            (decided, Some(noted)) if noted.batch == batch => {
                if decided.as_ref().is_err_and(|refusal| refusal.is_of_the_moment()) {
                    // Sent again and refused again: so may be what is sent again behind it.
                    noted.behind = BEHIND_MAX;
                } else {
                    refused.remove(&key);
                }
                decided
            }
            (decided, _) => decided,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::record_batch::sample;
    use kafka_protocol::protocol::StrBytes;

    const GAP: Result<(), Refusal> = Err(Refusal::OutOfOrderSequenceNumber);
    const LOST: Result<(), Refusal> = Err(Refusal::NotLeader);
    const AGAIN: Result<(), Refusal> = Err(errors::ASK_AGAIN);

    struct Partition(Gaps, i32);

    impl Partition {
        fn told(&self, epoch: i16, sequence: i32, decided: Result<(), Refusal>) -> Result<(), Refusal> {
            let name = TopicName(StrBytes::from_static_str("t"));
            let batch = sample::batch((7, epoch), sequence, 1, false, b"x");
            self.0.told((&name, Uuid::nil()), self.1, Numbered::of(&batch), decided)
        }
    }

    #[test]
    fn what_comes_behind_a_refused_batch_is_refused_until_that_is_stored() {
        for refusal in [Refusal::NotLeader, Refusal::FateUnknown, Refusal::Loading, Refusal::Overloaded] {
            let at = Partition(Gaps::default(), 0);
            assert_eq!(at.told(0, 3, Ok(())), Ok(()));
            assert_eq!(at.told(0, 4, Err(refusal)), Err(refusal));
            assert_eq!(at.told(0, 5, Err(refusal)), Err(refusal));
            assert_eq!(at.told(0, 6, GAP), AGAIN);
            // An answer to a batch in front of it changes nothing.
            assert_eq!(at.told(0, 3, Ok(())), Ok(()));
            assert_eq!(at.told(0, 7, GAP), AGAIN);
            assert_eq!(at.told(0, 4, Ok(())), Ok(()));
            assert_eq!(at.told(0, 6, GAP), GAP);
        }
    }

    #[test]
    fn a_gap_of_the_clients_own_is_told() {
        let at = Partition(Gaps::default(), 0);
        assert_eq!(at.told(0, 4, GAP), GAP);
        assert_eq!(at.told(0, 5, LOST), LOST);
        let other = Partition(at.0.clone(), 1);
        assert_eq!(other.told(0, 6, GAP), GAP, "another partition");
        assert_eq!(at.told(1, 6, GAP), GAP, "another epoch");
        for _ in 0..2 {
            for _ in 0..BEHIND_MAX {
                assert_eq!(at.told(0, 6, GAP), AGAIN);
            }
            assert_eq!(at.told(0, 5, LOST), LOST, "sent again, and so is all behind it");
        }
        for _ in 0..BEHIND_MAX {
            assert_eq!(at.told(0, 6, GAP), AGAIN);
        }
        assert_eq!(at.told(0, 6, GAP), GAP, "more than can be on their way");
    }

    #[test]
    fn a_batch_without_a_producer_is_not_noted() {
        let gaps = Gaps::default();
        let plain = sample::batch((-1, -1), -1, 1, false, b"x");
        assert_eq!(Numbered::of(&plain), None);
        assert_eq!(Numbered::of_bytes(Some(&plain.bytes().slice(..20))), None, "not even a header");
        assert_eq!(gaps.told((&TopicName::default(), Uuid::nil()), 0, None, LOST), LOST);
        assert!(gaps.0.lock().is_empty());
    }

    #[test]
    fn a_connection_notes_no_more_than_its_bound() {
        let gaps = Gaps::default();
        for index in 0..2_000 {
            let at = Partition(gaps.clone(), index);
            assert_eq!(at.told(0, 4, LOST), LOST);
        }
        assert_eq!(gaps.0.lock().len(), REFUSED_MAX);
        assert_eq!(Partition(gaps.clone(), 1_999).told(0, 5, GAP), GAP);
        assert_eq!(Partition(gaps, 0).told(0, 5, GAP), AGAIN);
    }
}
