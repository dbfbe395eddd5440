//! The newest connection of a producer, by accept order: what makes a late TV1 request recognisable (T2, T3).
//!
//! In TV1 consecutive transactions share one epoch, so a request that sat unread on an old connection while the client
//! retried on a new one looks like one of the next transaction. It is never executed; its connection is closed.
//! Remembered per producer id and epoch: another pair is told by the pair itself.

use crate::types::{ConnectionId, ProducerIdAndEpoch};

/// Clients may use one connection to the coordinator and another one for records. TxnOffsetCommit comes on either:
/// librdkafka sends it where it sends its records, aiokafka where it sends its EndTxn; so it is judged by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// AddPartitionsToTxn, AddOffsetsToTxn, EndTxn.
    Coordinator,
    /// TxnOffsetCommit.
    Offsets,
    /// Produce.
    Produce,
}

/// The newest connections that one pair has used.
#[derive(Debug, Default)]
pub(super) struct Newest {
    producer: Option<ProducerIdAndEpoch>,
    coordinator: ConnectionId,
    offsets: ConnectionId,
    produce: ConnectionId,
}

impl Newest {
    /// Notes a request of the current pair; false if a newer connection of its class has been seen.
    pub fn note(&mut self, producer: ProducerIdAndEpoch, class: Class, connection: ConnectionId) -> bool {
        if self.producer != Some(producer) {
            *self = Self { producer: Some(producer), ..Self::default() };
        }
        let newest = match class {
            Class::Coordinator => &mut self.coordinator,
            Class::Offsets => &mut self.offsets,
            Class::Produce => &mut self.produce,
        };
        *newest = (*newest).max(connection);
        let is_newest = *newest == connection;
        // One older than both the others in use is of a connection that its client has given up.
        let given_up = class == Class::Offsets && connection < self.coordinator.min(self.produce);
        is_newest && !given_up
    }
}

/// Connections of earlier terms: what they still carry was meant for stages that are gone.
///
/// One number suffices: connections are numbered in accept order, so whatever is not newer than the newest one that was
/// there before the term may carry such a request, read or not yet, and reconnecting costs a client next to nothing.
#[derive(Debug, Default)]
pub(super) struct EarlierTerms {
    newest_ever: Option<ConnectionId>,
    closed_up_to: Option<ConnectionId>,
}

impl EarlierTerms {
    /// A term ended: its connections carry no more transactional requests.
    pub fn term_ended(&mut self) {
        self.closed_up_to = self.newest_ever;
    }

    /// A term starts, and these connections were there before it.
    pub fn term_started(&mut self, newest: ConnectionId) {
        self.closed_up_to = self.closed_up_to.max(Some(newest));
    }

    /// Notes a transactional request; false if its connection is one of an earlier term.
    pub fn note(&mut self, connection: ConnectionId) -> bool {
        let current = self.closed_up_to.is_none_or(|closed| connection > closed);
        if current {
            self.newest_ever = self.newest_ever.max(Some(connection));
        }
        current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: ProducerIdAndEpoch = ProducerIdAndEpoch { producer_id: 1, epoch: 0 };

    #[test]
    fn an_older_connection_is_late_within_its_class_and_pair_only() {
        let mut newest = Newest::default();
        assert!(newest.note(PAIR, Class::Coordinator, ConnectionId(2)));
        assert!(newest.note(PAIR, Class::Produce, ConnectionId(1)), "another class");
        assert!(newest.note(PAIR, Class::Offsets, ConnectionId(1)), "another class");
        assert!(newest.note(PAIR, Class::Coordinator, ConnectionId(5)));
        assert!(!newest.note(PAIR, Class::Coordinator, ConnectionId(2)));
        let bumped = ProducerIdAndEpoch { epoch: 1, ..PAIR };
        assert!(newest.note(bumped, Class::Coordinator, ConnectionId(2)), "another pair");
    }

    #[test]
    fn offsets_may_come_on_either_connection_in_use_but_on_none_older() {
        let mut newest = Newest::default();
        assert!(newest.note(PAIR, Class::Produce, ConnectionId(3)));
        assert!(newest.note(PAIR, Class::Coordinator, ConnectionId(4)));
        assert!(!newest.note(PAIR, Class::Offsets, ConnectionId(2)), "given up");
        assert!(newest.note(PAIR, Class::Offsets, ConnectionId(3)), "as librdkafka");
        assert!(newest.note(PAIR, Class::Offsets, ConnectionId(4)), "as aiokafka");
        assert!(!newest.note(PAIR, Class::Offsets, ConnectionId(3)), "not the newest of its class");
    }

    #[test]
    fn connections_of_an_earlier_term_stay_closed() {
        let mut earlier = EarlierTerms::default();
        assert!(earlier.note(ConnectionId(3)));
        earlier.term_ended();
        assert!(!earlier.note(ConnectionId(3)));
        assert!(!earlier.note(ConnectionId(2)), "it may have carried one");
        assert!(earlier.note(ConnectionId(4)));
        earlier.term_started(ConnectionId(6));
        assert!(!earlier.note(ConnectionId(5)), "it may have been sent before, and not been read");
        assert!(earlier.note(ConnectionId(7)));
    }
}
