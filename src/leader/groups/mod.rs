//! Group members and generations: the classic group protocol (Kafka's `GroupCoordinator`, KIP-62, KIP-345, KIP-394).
//!
//! Soft: a new leader knows no members, so they are told UNKNOWN_MEMBER_ID and join again. Committed offsets are
//! replicated state and live in `state/group_offsets`.
//!
//! This file finds the group and holds what groups share: timers, holds, the bounds. `join` decides single requests,
//! `leader/rebalance` moves a group between generations, `group` is the data, `checks` answers who may commit,
//! `view` shows it. A group without members keeps its generation until it is forgotten: after
//! `offsets.retention.minutes`, or before that when the table is full.
//!
//! Where we differ from Kafka: unused member ids hold up no rebalance (GR02), a rebalance waits for EndTxns in flight
//! (transactions.md §6), and a join or sync that is replaced by a later one of the same member is answered (27), not dropped.

mod checks;
pub(in crate::leader) mod group;
mod join;
pub(in crate::leader) mod timers;
pub mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::rebalance;
use super::request::{Caller, JoinGroup, LeaveGroup, Response, SyncGroup, Token};
use super::{Action, LeaderSettings};
use crate::config::limits;
use crate::types::{Now, Refusal};
use group::{Group, State, protocols_bytes};
use timers::{Timer, Timers};
use view::GroupView;

/// All groups with members, or a generation to remember.
#[derive(Debug)]
pub struct Groups {
    settings: LeaderSettings,
    table: BTreeMap<Arc<str>, Group>,
    shared: Shared,
}

/// What the groups have in common.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) timers: Timers,
    /// See [`Groups::drain_changed`].
    pub(super) changed: BTreeSet<Arc<str>>,
    /// Completed rebalances.
    pub(super) rebalances: u64,
    /// EndTxns in flight per group; of groups without members too.
    holds: BTreeMap<Arc<str>, u32>,
    /// Groups without members, longest empty first.
    empty: BTreeSet<(u64, Arc<str>)>,
    /// Metadata and assignments of all groups.
    bytes: usize,
}

impl Shared {
    /// Whether an EndTxn with offsets of the group is in flight.
    pub(super) fn is_held(&self, group: &str) -> bool {
        self.holds.contains_key(group)
    }
}

/// What a decision about one group needs besides the group.
pub(super) struct Context<'a> {
    pub(super) now: Now,
    pub(super) settings: &'a LeaderSettings,
    pub(super) shared: &'a mut Shared,
    out: &'a mut Vec<Action>,
}

impl Context<'_> {
    /// Answers a request.
    pub(super) fn reply(&mut self, token: Token, response: Response) {
        self.out.push(Action::Reply(token, response));
    }

    /// Refuses a request.
    pub(super) fn refuse(&mut self, token: Token, refusal: Refusal) {
        self.reply(token, Response::Refused(refusal));
    }

    /// A sign of life of a member: its session starts anew.
    pub(super) fn restart_session(&mut self, group: &Group, member_id: &Arc<str>) {
        if let Some(member) = group.members.get(member_id) {
            let timer = Timer::Session(Arc::clone(&group.id), Arc::clone(member_id));
            self.shared.timers.set(timer, self.now.mono_ms + member.session_timeout_ms);
        }
    }

    /// Keeps the group's place among the empty ones true to its state.
    pub(super) fn track_empty(&mut self, group: &mut Group) {
        if let Some(since_ms) = group.empty_since_ms.take() {
            self.shared.empty.remove(&(since_ms, Arc::clone(&group.id)));
        }
        if group.state == State::Empty {
            group.empty_since_ms = Some(self.now.mono_ms);
            self.shared.empty.insert((self.now.mono_ms, Arc::clone(&group.id)));
        }
    }
}

impl Groups {
    /// No groups yet.
    pub fn new(settings: LeaderSettings) -> Self {
        Self { settings, table: BTreeMap::new(), shared: Shared::default() }
    }

    /// Forgets everything (a term ended) and tells who was waiting for an answer.
    pub fn clear(&mut self) -> Vec<Token> {
        let waiting = self.table.values().flat_map(Group::waiting).collect();
        self.table.clear();
        self.shared = Shared { rebalances: self.shared.rebalances, ..Shared::default() };
        waiting
    }

    /// JoinGroup; answered when the rebalance completes.
    pub fn join(&mut self, now: Now, caller: &Caller, token: Token, request: JoinGroup, out: &mut Vec<Action>) {
        let id = Arc::clone(&request.member.group);
        if let Err(refusal) = self.admit(now, &request) {
            return out.push(Action::Reply(token, Response::Refused(refusal)));
        }
        let joined = self.with(now, &id, out, |group, cx| join::join(group, caller, token, request, cx));
        if joined.is_none() {
            out.push(Action::Reply(token, Response::Refused(Refusal::UnknownMemberId)));
        }
    }

    /// What can be refused before the group is looked at; makes the group for a member without an id.
    fn admit(&mut self, now: Now, request: &JoinGroup) -> Result<(), Refusal> {
        let id = &request.member.group;
        let timeouts = self.settings.group_min_session_timeout_ms..=self.settings.group_max_session_timeout_ms;
        if id.is_empty() {
            return Err(Refusal::InvalidGroupId);
        }
        if !timeouts.contains(&request.session_timeout_ms) {
            return Err(Refusal::InvalidSessionTimeout);
        }
        let bytes = protocols_bytes(&request.protocols);
        if bytes > limits::GROUP_METADATA_BYTES_MAX {
            return Err(Refusal::InvalidRequest);
        }
        if self.shared.bytes + bytes > limits::GROUPS_BYTES_MAX {
            return Err(Refusal::Overloaded);
        }
        if !self.table.contains_key(id) && request.member.member_id.is_empty() {
            self.make_room()?;
            let mut group = Group::new(Arc::clone(id), now.wall_ms);
            let Self { settings, shared, .. } = self;
            Context { now, settings, shared, out: &mut Vec::new() }.track_empty(&mut group);
            self.table.insert(Arc::clone(id), group);
        }
        Ok(())
    }

    /// Forgets the group that has been empty for longest if the table is full.
    fn make_room(&mut self) -> Result<(), Refusal> {
        if self.table.len() < limits::GROUPS_MAX {
            return Ok(());
        }
        let (_, oldest) = self.shared.empty.first().ok_or(Refusal::Overloaded)?;
        let oldest = Arc::clone(oldest);
        self.forget(&oldest);
        Ok(())
    }

    /// Drops a group without members, with the ids it gave out.
    fn forget(&mut self, id: &str) {
        let Some(group) = self.table.remove(id) else { return };
        if let Some(since_ms) = group.empty_since_ms {
            self.shared.empty.remove(&(since_ms, Arc::clone(&group.id)));
        }
        for member_id in &group.pending {
            self.shared.timers.cancel(Timer::Session(Arc::clone(&group.id), Arc::clone(member_id)));
        }
        self.shared.bytes -= group.bytes;
    }

    /// DeleteGroups: forgets the members' side of a group. Its offsets are the log's.
    ///
    /// # Errors
    /// 68 while it has members; 69 if it is not known here (it may still have offsets).
    pub fn delete(&mut self, id: &str) -> Result<(), Refusal> {
        match self.table.get(id).map(|group| group.state) {
            None => Err(Refusal::GroupIdNotFound),
            Some(State::Empty) => {
                self.forget(id);
                Ok(())
            }
            Some(_) => Err(Refusal::NonEmptyGroup),
        }
    }

    /// Decides about one group; None if there is none of that name.
    fn with<T>(
        &mut self,
        now: Now,
        id: &str,
        out: &mut Vec<Action>,
        decide: impl FnOnce(&mut Group, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let Self { settings, table, shared } = self;
        let group = table.get_mut(id)?;
        let before = group.bytes;
        let mut cx = Context { now, settings, shared, out };
        let outcome = decide(group, &mut cx);
        shared.bytes = shared.bytes - before + group.bytes;
        if group.is_blank() {
            self.forget(id);
        }
        Some(outcome)
    }

    /// SyncGroup; followers are answered when the leader's assignment arrives.
    pub fn sync(&mut self, now: Now, token: Token, request: SyncGroup, out: &mut Vec<Action>) {
        let id = Arc::clone(&request.member.group);
        let bytes: usize = request.assignments.iter().map(|(_, assignment)| assignment.len()).sum();
        let refusal = if id.is_empty() {
            Refusal::InvalidGroupId
        } else if bytes > limits::GROUP_ASSIGNMENT_BYTES_MAX {
            Refusal::InvalidRequest
        } else if self.shared.bytes + bytes > limits::GROUPS_BYTES_MAX {
            Refusal::Overloaded
        } else if self.with(now, &id, out, |group, cx| join::sync(group, token, request, cx)).is_some() {
            return;
        } else {
            Refusal::UnknownMemberId
        };
        out.push(Action::Reply(token, Response::Refused(refusal)));
    }

    /// LeaveGroup, per member.
    pub fn leave(&mut self, now: Now, request: &LeaveGroup, out: &mut Vec<Action>) -> Vec<Result<(), Refusal>> {
        let refusal = if request.group.is_empty() { Refusal::InvalidGroupId } else { Refusal::UnknownMemberId };
        let left = self.with(now, &request.group, out, |group, cx| join::leave(group, &request.members, cx));
        left.unwrap_or_else(|| vec![Err(refusal); request.members.len()])
    }

    /// An EndTxn that carries offsets of this group is in flight: its rebalance must not complete before [`Groups::release`].
    pub fn hold(&mut self, group: &Arc<str>) {
        *self.shared.holds.entry(Arc::clone(group)).or_default() += 1;
    }

    /// One EndTxn less in flight; a rebalance that waited only for it completes.
    pub fn release(&mut self, now: Now, group: &str, out: &mut Vec<Action>) {
        let Some(holds) = self.shared.holds.get_mut(group) else { return };
        *holds -= 1;
        if *holds == 0 {
            self.shared.holds.remove(group);
            self.with(now, group, out, rebalance::released);
        }
    }

    /// Sessions that ended, rebalances whose time is up.
    pub fn handle_timeout(&mut self, now: Now, out: &mut Vec<Action>) {
        while let Some(timer) = self.shared.timers.pop_due(now.mono_ms) {
            match timer {
                Timer::Join(id) => self.with(now, &id, out, rebalance::join_time_is_up),
                Timer::Sync(id) => self.with(now, &id, out, rebalance::sync_time_is_up),
                Timer::Session(id, member_id) => {
                    self.with(now, &id, out, |group, cx| rebalance::session_is_up(group, &member_id, cx))
                }
            };
        }
        while let Some((since_ms, id)) = self.shared.empty.first().cloned() {
            if since_ms.saturating_add(self.empty_kept_ms()) > now.mono_ms {
                break;
            }
            self.forget(&id);
        }
    }

    fn empty_kept_ms(&self) -> u64 {
        u64::try_from(self.settings.offsets_retention_ms).unwrap_or(u64::MAX).max(1)
    }

    /// When [`Groups::handle_timeout`] wants to be called next (monotonic ms).
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let forget_ms = self.shared.empty.first().map(|(since_ms, _)| since_ms.saturating_add(self.empty_kept_ms()));
        self.shared.timers.next_ms().into_iter().chain(forget_ms).min()
    }

    /// Groups that became stable in a new generation, or lost a member, since the last call: stages of members that are
    /// gone or no longer own a partition must be doomed.
    pub fn drain_changed(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.shared.changed).into_iter().collect()
    }

    /// Whether the group has members now.
    pub fn has_members(&self, group: &str) -> bool {
        self.table.get(group).is_some_and(|group| !group.members.is_empty())
    }

    /// Rebalances completed since the start.
    pub fn rebalances(&self) -> u64 {
        self.shared.rebalances
    }

    /// One group, to show.
    pub fn get(&self, group: &str) -> Option<GroupView<'_>> {
        self.table.get(group).map(GroupView::new)
    }

    /// All groups, in the order of their names, to show.
    pub fn iter(&self) -> impl Iterator<Item = GroupView<'_>> {
        self.table.values().map(GroupView::new)
    }
}

#[cfg(test)]
mod tests;
