//! Faults put into the model on purpose: a simulator that does not notice them proves nothing.
//!
//! They sit in the model of Raft, of the sequencer and of the server around the pure rooms, never in product code.

/// One deliberate fault, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The model as it should be.
    None,
    /// The leader commits what only it has made durable.
    CommitsAlone,
    /// Followers acknowledge entries, and voters votes, before they are durable.
    AcksBeforeSync,
    /// Answers go out whether or not the leader's lease is valid, and nothing is confirmed.
    NoLease,
    /// What should be confirmed by a quorum first is answered at once.
    NoReadIndex,
    /// A restarted node votes at once, though it may have promised a lease before it crashed.
    VotesAfterRestart,
    /// A new leader serves before its first entry is applied.
    ServesUnready,
    /// Terms look alike to the rooms, so nothing tells that a stage was lost.
    NoTermFence,
    /// A proposal whose deadline passed counts as discarded and may be made again.
    UnknownIsDiscarded,
    /// Connections have no order: late requests look like new ones.
    ConnectionsUnordered,
    /// A commit that was a no-op at apply is reported as done.
    NoOpIsSuccess,
    /// Apply reads the replica's own clock.
    ApplyReadsClock,
    /// A leader that leaves as planned lists no open transaction.
    HandsOverNothing,
    /// The leader acknowledges plain batches when it proposes them.
    AcksAtPropose,
}

/// All of them.
pub const ALL: [Mutant; 13] = [
    Mutant::CommitsAlone,
    Mutant::AcksBeforeSync,
    Mutant::NoLease,
    Mutant::NoReadIndex,
    Mutant::VotesAfterRestart,
    Mutant::ServesUnready,
    Mutant::NoTermFence,
    Mutant::UnknownIsDiscarded,
    Mutant::ConnectionsUnordered,
    Mutant::NoOpIsSuccess,
    Mutant::ApplyReadsClock,
    Mutant::HandsOverNothing,
    Mutant::AcksAtPropose,
];
