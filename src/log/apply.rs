//! Committed entries become state: the machine, the partition tails and the membership move together, under the
//! machine's write lock, and every change of an entry becomes visible at once.
//!
//! One hold of the lock is bounded (64 entries or 1 ms), so readers and decisions never queue behind a long apply.
//! No file I/O here: openraft's apply queue is bounded, and a full one would stall heartbeats. Inside the lock a
//! proposal's result is only queued; answers go out after the lock was released ([`Sequencer::applied`]).

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use openraft::EntryPayload;
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine, Snapshot};
use openraft::type_config::alias::SnapshotMetaOf;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::fatal::Fatal;
use super::raft_types::{LogId, RaftEntry, StoredMembership, TypeConfig, index_and_term, log_id};
use super::sequencer::Sequencer;
use super::snapshot::{Builder, Checkpoints, Cut};
use crate::config::limits::{APPLY_ENTRIES_MAX, APPLY_MICROS_MAX};
use crate::segments::{Installed, Segments};
use crate::state::Machine;
use crate::state::command::Outcome;
use crate::types::{TopicId, TopicPartition};

/// Told which partitions have new batches, once per hold of the lock, without duplicates.
pub type Wake = Arc<dyn Fn(&[TopicPartition]) + Send + Sync>;

/// An entry to apply, with the proposal to complete if it is ours.
pub type Item = (RaftEntry, Option<ApplyResponder<TypeConfig>>);

/// What entries are applied to. Readers take the read lock; only [`Replica::apply`] takes the other.
pub struct Replica {
    machine: RwLock<Machine>,
    segments: Segments,
    /// Changed inside the machine's write lock only, so it always belongs to the machine's applied index.
    membership: Mutex<StoredMembership>,
}

impl Replica {
    /// A replica that stands at `machine`; `segments` contain the same entries.
    pub fn new(machine: Machine, segments: Segments, membership: StoredMembership) -> Self {
        configure(&segments, &machine, machine.topics().iter().map(|topic| &topic.id));
        if let Some((index, _)) = machine.applied() {
            segments.publish(index);
        }
        Self { machine: RwLock::new(machine), segments, membership: Mutex::new(membership) }
    }

    /// The state, to read. Apply waits meanwhile; never take it twice in one thread.
    pub fn read(&self) -> RwLockReadGuard<'_, Machine> {
        self.machine.read()
    }

    /// The partition logs.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The members as of `machine`, the guard of this replica's lock.
    pub fn membership(&self, machine: &Machine) -> StoredMembership {
        let _ = machine;
        self.membership.lock().clone()
    }

    /// The last entry applied and the members as of it.
    pub fn applied(&self) -> (Option<LogId>, StoredMembership) {
        let machine = self.machine.read();
        (machine.applied().map(|(index, term)| log_id(index, term)), self.membership(&machine))
    }

    /// Puts another machine in place, as a snapshot demands, with its partitions: all of it visible at once.
    pub fn install(&self, machine: Machine, membership: StoredMembership, installed: Option<Installed>) {
        let mut place = self.machine.write();
        match (installed, machine.applied()) {
            (Some(installed), _) => self.segments.adopt(installed),
            (None, Some((index, _))) => self.segments.publish(index),
            (None, None) => {}
        }
        let old = std::mem::replace(&mut *place, machine);
        *self.membership.lock() = membership;
        drop(place);
        // It may be large, and nobody waits for its end.
        drop(old);
    }

    /// Every partition that exists.
    pub fn partitions(&self) -> Vec<TopicPartition> {
        let machine = self.machine.read();
        let of = |topic: &Arc<crate::state::topics::Topic>| {
            let (topic, count) = (topic.id, topic.partitions.len());
            (0..count as i32).map(move |partition| TopicPartition { topic, partition })
        };
        machine.topics().iter().flat_map(of).collect()
    }

    /// Applies entries in order, in bounded holds of the lock; after each `released` gets the partitions it touched.
    pub fn apply(&self, items: Vec<Item>, mut released: impl FnMut(&[TopicPartition])) {
        let mut items = items.into_iter().peekable();
        let mut touched = Vec::new();
        while items.peek().is_some() {
            touched.clear();
            self.apply_held(&mut items, &mut touched);
            touched.sort_unstable();
            touched.dedup();
            released(&touched);
        }
    }

    /// One hold of the lock.
    fn apply_held(&self, items: &mut impl Iterator<Item = Item>, touched: &mut Vec<TopicPartition>) {
        let mut machine = self.machine.write();
        let started = Instant::now();
        let mut last = None;
        for (entry, responder) in items.take(APPLY_ENTRIES_MAX) {
            let (index, term) = index_and_term(&entry.log_id);
            let outcome = match &entry.payload {
                EntryPayload::Normal(proposal) => {
                    let (effects, outcome) = machine.apply(index, term, proposal.entry());
                    self.segments.apply(index, term, &effects);
                    let changed = effects.created.iter().map(|(topic, ..)| topic).chain(&effects.reconfigured);
                    configure(&self.segments, &machine, changed);
                    touched.extend(effects.appended.iter().map(|appended| appended.to));
                    outcome
                }
                EntryPayload::Blank => {
                    machine.apply_blank(index, term);
                    Outcome::Done
                }
                EntryPayload::Membership(members) => {
                    machine.apply_blank(index, term);
                    *self.membership.lock() = StoredMembership::new(Some(entry.log_id), members.clone());
                    Outcome::Done
                }
            };
            last = Some(index);
            if let Some(responder) = responder {
                responder.send(outcome);
            }
            if started.elapsed() >= Duration::from_micros(APPLY_MICROS_MAX) {
                break;
            }
        }
        if let Some(last) = last {
            self.segments.publish(last);
        }
    }
}

/// Tells the segments how topics are to be rolled, at the same place in the log on every replica.
fn configure<'a>(segments: &Segments, machine: &Machine, topics: impl IntoIterator<Item = &'a TopicId>) {
    for topic in topics.into_iter().filter_map(|id| machine.topics().get(*id)) {
        segments.configure(topic.id, &topic.settings);
    }
}

/// openraft's state machine: applies to the replica and lets the sequencer answer.
pub struct StateMachine {
    /// What is applied to.
    pub replica: Arc<Replica>,
    /// Who answers proposals.
    pub sequencer: Arc<Sequencer>,
    /// Checkpoints, which are openraft's snapshots.
    pub checkpoints: Arc<Checkpoints>,
    /// Where the end of this node is reported.
    pub fatal: Fatal,
    /// Who waits for batches.
    pub wake: Wake,
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = Cut;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok(self.replica.applied())
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + Send,
    {
        let mut chunks = entries.ready_chunks(APPLY_ENTRIES_MAX);
        while let Some(chunk) = chunks.next().await {
            if let Some(error) = self.fatal.error() {
                return Err(io::Error::other(error));
            }
            let items = chunk.into_iter().collect::<Result<Vec<_>, _>>()?;
            self.replica.apply(items, |touched| {
                self.sequencer.applied();
                if !touched.is_empty() {
                    (self.wake)(touched);
                }
            });
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Builder> {
        if force || self.checkpoints.current().is_some() {
            Some(Builder { checkpoints: self.checkpoints.clone(), fresh: force })
        } else {
            None
        }
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder { checkpoints: self.checkpoints.clone(), fresh: true }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<TypeConfig>, cut: Cut) -> Result<(), io::Error> {
        self.checkpoints.install(meta, cut).await?;
        self.sequencer.applied();
        // Whoever waits for records looks again: there may be many, or the partition may be gone.
        (self.wake)(&self.replica.partitions());
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<openraft::type_config::alias::SnapshotOf<TypeConfig, Cut>>, io::Error> {
        Ok(self.checkpoints.current().map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}
