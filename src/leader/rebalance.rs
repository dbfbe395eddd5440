//! How a group moves from one generation to the next (Kafka's `GroupMetadataManager`, the classic half).
//!
//! ```text
//!          first member                  all joined, or time is up            leader's SyncGroup
//!   Empty ─────────────► PreparingRebalance ─────────────► CompletingRebalance ─────────────► Stable
//!     ▲                    │   ▲  ▲                                  │                          │
//!     └── nobody is left ──┘   │  └─ a member comes, goes, changes ──┘                          │
//!                              └──────────────── a member comes, goes, changes ─────────────────┘
//! ```
//!
//! Every function takes the group and a [`Context`]; what clients see is pushed to `Context::out`, in order. A parked
//! request is taken before it is answered, so none is answered twice.

use std::sync::Arc;

use bytes::Bytes;

use super::groups::Context;
use super::groups::group::{Group, JoinWait, Member, State};
use super::groups::timers::Timer;
use super::request::{Joined, Response, Synced};
use crate::config::limits;
use crate::types::Refusal;

/// Changes the state, and the group's place among the empty ones.
fn transition(group: &mut Group, state: State, cx: &mut Context<'_>) {
    group.state = state;
    group.state_since_ms = cx.now.wall_ms;
    cx.track_empty(group);
}

/// A member came, left or changed: starts a rebalance, or sees whether the one that runs is complete.
pub(super) fn start_or_continue(group: &mut Group, cx: &mut Context<'_>) {
    if group.state == State::PreparingRebalance {
        continue_join(group, cx);
    } else {
        prepare(group, cx);
    }
}

/// Starts a rebalance (Kafka's `prepareRebalance`).
pub(super) fn prepare(group: &mut Group, cx: &mut Context<'_>) {
    if group.state == State::CompletingRebalance {
        refuse_syncs(group, cx);
    }
    group.pending_sync.clear();
    cx.shared.timers.cancel(Timer::Sync(Arc::clone(&group.id)));
    if group.state == State::Empty {
        let delay_ms = u64::try_from(cx.settings.group_initial_rebalance_delay_ms).unwrap_or(0);
        let remaining_ms = group.rebalance_timeout_ms().saturating_sub(delay_ms);
        group.new_member_added = false;
        transition(group, State::PreparingRebalance, cx);
        wait_initially(group, delay_ms, remaining_ms, cx);
        return;
    }
    transition(group, State::PreparingRebalance, cx);
    group.join_wait = JoinWait::Members;
    if group.all_joined() {
        complete_join(group, cx);
    } else {
        let due_ms = cx.now.mono_ms + group.rebalance_timeout_ms();
        cx.shared.timers.set(Timer::Join(Arc::clone(&group.id)), due_ms);
    }
}

/// The first members of a group usually start together: wait for them, so that they rebalance once and not one by one.
fn wait_initially(group: &mut Group, delay_ms: u64, remaining_ms: u64, cx: &mut Context<'_>) {
    group.join_wait = JoinWait::Initial { delay_ms, remaining_ms };
    if delay_ms == 0 {
        complete_join(group, cx);
    } else {
        cx.shared.timers.set(Timer::Join(Arc::clone(&group.id)), cx.now.mono_ms + delay_ms);
    }
}

/// Completes the join phase if everyone is there. The initial delay always runs to its end.
pub(super) fn continue_join(group: &mut Group, cx: &mut Context<'_>) {
    let initial = matches!(group.join_wait, JoinWait::Initial { .. });
    if group.state == State::PreparingRebalance && !initial && group.all_joined() {
        complete_join(group, cx);
    }
}

/// The timer of the join phase: extends the initial delay while members keep coming, else goes on without the missing.
pub(super) fn join_time_is_up(group: &mut Group, cx: &mut Context<'_>) {
    if group.state != State::PreparingRebalance {
        return;
    }
    match group.join_wait {
        JoinWait::Initial { delay_ms, remaining_ms } if group.new_member_added && remaining_ms > 0 => {
            group.new_member_added = false;
            let full_delay_ms = u64::try_from(cx.settings.group_initial_rebalance_delay_ms).unwrap_or(0);
            let next_ms = full_delay_ms.min(remaining_ms);
            wait_initially(group, next_ms, remaining_ms.saturating_sub(delay_ms), cx);
        }
        JoinWait::Initial { .. } | JoinWait::Members | JoinWait::EndTxns => complete_join(group, cx),
    }
}

/// The last EndTxn in flight has its outcome: completes a join phase that waited for nothing else.
pub(super) fn released(group: &mut Group, cx: &mut Context<'_>) {
    if group.state == State::PreparingRebalance && group.join_wait == JoinWait::EndTxns {
        complete_join(group, cx);
    }
}

/// Ends the join phase: those who did not come are out (static members stay until their session ends), the rest gets
/// the next generation.
///
/// While an EndTxn with offsets of this group is in flight it waits: the next owner of a partition must not start
/// from the offset before it (transactions.md §6).
fn complete_join(group: &mut Group, cx: &mut Context<'_>) {
    cx.shared.timers.cancel(Timer::Join(Arc::clone(&group.id)));
    if cx.shared.is_held(&group.id) {
        group.join_wait = JoinWait::EndTxns;
        return;
    }
    let gone = |member: &&Member| !member.is_joining() && member.instance_id.is_none();
    let missing: Vec<Arc<str>> = group.members.values().filter(gone).map(|member| Arc::clone(&member.id)).collect();
    for member_id in missing {
        remove_member(group, &member_id, cx);
    }
    if !group.elect_joined_leader() && !group.members.is_empty() {
        // Only static members are left and none of them came: ask again rather than hand out a generation nobody leads.
        group.join_wait = JoinWait::Members;
        let due_ms = cx.now.mono_ms + group.rebalance_timeout_ms();
        cx.shared.timers.set(Timer::Join(Arc::clone(&group.id)), due_ms);
        return;
    }
    group.generation = group.generation.saturating_add(1);
    group.pending_sync.clear();
    cx.shared.rebalances += 1;
    if group.members.is_empty() {
        group.protocol_name = None;
        group.leader = None;
        cx.shared.changed.insert(Arc::clone(&group.id));
        transition(group, State::Empty, cx);
        return;
    }
    group.protocol_name = group.select_protocol();
    transition(group, State::CompletingRebalance, cx);
    answer_joins(group, cx);
    let due_ms = cx.now.mono_ms + group.rebalance_timeout_ms();
    cx.shared.timers.set(Timer::Sync(Arc::clone(&group.id)), due_ms);
}

/// Tells every member that waits its new generation, and starts all sessions anew.
fn answer_joins(group: &mut Group, cx: &mut Context<'_>) {
    let member_ids: Vec<Arc<str>> = group.members.keys().cloned().collect();
    for member_id in member_ids {
        if let Some(token) = group.take_join(&member_id) {
            let joined = current_generation(group, &member_id);
            cx.reply(token, Response::Joined(joined));
        }
        if let Some(member) = group.members.get_mut(&member_id) {
            member.is_new = false;
        }
        cx.restart_session(group, &member_id);
        group.pending_sync.insert(member_id);
    }
}

/// The current generation as a join answer; members and their metadata go to the leader only.
pub(super) fn current_generation(group: &Group, member_id: &Arc<str>) -> Joined {
    let protocol_name = group.protocol_name.clone().unwrap_or_default();
    let members = if group.is_leader(member_id) { members_for_leader(group) } else { Vec::new() };
    Joined {
        generation: group.generation,
        protocol_type: group.protocol_type.clone().unwrap_or_default(),
        protocol_name,
        leader: group.leader.clone().unwrap_or_default(),
        member_id: Arc::clone(member_id),
        skip_assignment: false,
        members,
    }
}

/// What the leader needs for an assignment: (member id, instance id, metadata for the protocol chosen).
pub(super) fn members_for_leader(group: &Group) -> Vec<(Arc<str>, Option<Arc<str>>, Bytes)> {
    let protocol = group.protocol_name.as_deref().unwrap_or_default();
    let entry = |member: &Member| (Arc::clone(&member.id), member.instance_id.clone(), member.metadata(protocol));
    group.members.values().map(entry).collect()
}

/// The leader's assignment: everyone who waits gets its part, who is not named gets nothing (empty bytes).
pub(super) fn assign(group: &mut Group, assignments: &[(Arc<str>, Bytes)], cx: &mut Context<'_>) {
    let member_ids: Vec<Arc<str>> = group.members.keys().cloned().collect();
    for member_id in &member_ids {
        group.set_assignment(member_id, Bytes::new());
    }
    for (member_id, assignment) in assignments {
        // A copy: what is kept must not hold the whole request.
        group.set_assignment(member_id, Bytes::copy_from_slice(assignment));
    }
    group.assigned_generation = group.generation;
    transition(group, State::Stable, cx);
    cx.shared.changed.insert(Arc::clone(&group.id));
    for member_id in member_ids {
        let Some(token) = group.members.get_mut(&member_id).and_then(|member| member.syncing.take()) else { continue };
        let synced = current_assignment(group, &member_id);
        cx.reply(token, Response::Synced(synced));
        cx.restart_session(group, &member_id);
    }
}

/// A member's assignment as a sync answer.
pub(super) fn current_assignment(group: &Group, member_id: &str) -> Synced {
    Synced {
        protocol_type: group.protocol_type.clone().unwrap_or_default(),
        protocol_name: group.protocol_name.clone().unwrap_or_default(),
        assignment: group.members.get(member_id).map(|member| member.assignment.clone()).unwrap_or_default(),
    }
}

/// A rebalance begins while members wait for an assignment: they have to join again.
fn refuse_syncs(group: &mut Group, cx: &mut Context<'_>) {
    let member_ids: Vec<Arc<str>> = group.members.keys().cloned().collect();
    for member_id in member_ids {
        if let Some(token) = group.members.get_mut(&member_id).and_then(|member| member.syncing.take()) {
            cx.refuse(token, Refusal::RebalanceInProgress);
            cx.restart_session(group, &member_id);
        }
    }
}

/// Notes that a member asked for its assignment; the last one stops the clock for it.
pub(super) fn synced(group: &mut Group, member_id: &str, cx: &mut Context<'_>) {
    if group.pending_sync.remove(member_id) && group.pending_sync.is_empty() {
        cx.shared.timers.cancel(Timer::Sync(Arc::clone(&group.id)));
    }
}

/// Members that took a generation and never asked for its assignment are out (Kafka's `expirePendingSync`).
pub(super) fn sync_time_is_up(group: &mut Group, cx: &mut Context<'_>) {
    let waits = matches!(group.state, State::CompletingRebalance | State::Stable);
    if !waits || group.pending_sync.is_empty() {
        return;
    }
    for member_id in std::mem::take(&mut group.pending_sync) {
        remove_member(group, &member_id, cx);
    }
    prepare(group, cx);
}

/// Lets a member go: what it waits for is answered (25: it may join again), its session ends, its stages are looked at.
pub(super) fn remove_member(group: &mut Group, member_id: &Arc<str>, cx: &mut Context<'_>) {
    cx.shared.timers.cancel(Timer::Session(Arc::clone(&group.id), Arc::clone(member_id)));
    let Some((member, joining)) = group.remove(member_id) else { return };
    for token in joining.into_iter().chain(member.syncing) {
        cx.refuse(token, Refusal::UnknownMemberId);
    }
    cx.shared.changed.insert(Arc::clone(&group.id));
}

/// The group after some members left.
pub(super) fn members_left(group: &mut Group, cx: &mut Context<'_>) {
    match group.state {
        State::Empty => {}
        State::PreparingRebalance => continue_join(group, cx),
        State::CompletingRebalance | State::Stable => prepare(group, cx),
    }
}

/// A session timer: an unused id is forgotten, a silent member is out. One whose request is parked is not silent,
/// unless it is the first join of a member (see [`limits::GROUP_NEW_MEMBER_JOIN_MS`]).
pub(super) fn session_is_up(group: &mut Group, member_id: &Arc<str>, cx: &mut Context<'_>) {
    if group.is_pending(member_id) {
        group.pending.retain(|id| id != member_id);
        return;
    }
    let Some(member) = group.members.get(member_id) else { return };
    let parked = member.is_joining() || member.syncing.is_some();
    if parked && !member.is_new {
        return;
    }
    remove_member(group, member_id, cx);
    members_left(group, cx);
}

/// The session of a member whose first join is parked.
pub(super) fn start_first_session(group: &Group, member_id: &Arc<str>, cx: &mut Context<'_>) {
    let timer = Timer::Session(Arc::clone(&group.id), Arc::clone(member_id));
    cx.shared.timers.set(timer, cx.now.mono_ms + limits::GROUP_NEW_MEMBER_JOIN_MS);
}
