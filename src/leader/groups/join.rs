//! JoinGroup, SyncGroup and LeaveGroup of one group: who may, and what it starts (Kafka's `classicGroupJoinToClassicGroup`,
//! `classicGroupSyncToClassicGroup`, `classicGroupLeaveToClassicGroup`).
//!
//! A request that replaces a parked one of the same member answers the earlier with 27: its client has given it up,
//! or asks again after that answer; 25 would make a live client throw its member id away.

use std::sync::Arc;

use bytes::Bytes;

use super::Context;
use super::group::{Group, Member, State};
use super::timers::Timer;
use crate::config::limits;
use crate::leader::rebalance;
use crate::leader::request::{Caller, JoinGroup, Response, SyncGroup, Token};
use crate::types::Refusal;

/// JoinGroup to a group that exists (by now).
pub(super) fn join(group: &mut Group, caller: &Caller, token: Token, request: JoinGroup, cx: &mut Context<'_>) {
    let member_id = Arc::clone(&request.member.member_id);
    if !accepts(group, &member_id, cx.settings.group_max_size) {
        forget(group, &member_id, cx);
        return cx.refuse(token, Refusal::GroupMaxSizeReached);
    }
    if !group.supports(&request.protocol_type, &request.protocols) {
        return cx.refuse(token, Refusal::InconsistentGroupProtocol);
    }
    if member_id.is_empty() {
        join_unknown(group, caller, token, request, cx);
    } else if group.is_pending(&member_id) {
        if request.member.instance_id.is_some() {
            // A static member never gets an id in advance.
            return cx.refuse(token, Refusal::UnknownMemberId);
        }
        add(group, caller, token, member_id, request, cx);
    } else {
        join_known(group, token, request, cx);
    }
}

/// Room for this member (Kafka's `acceptJoiningMember`). While members join, those who wait are counted: the last to
/// rejoin are left out of a group that became too large.
fn accepts(group: &Group, member_id: &str, size_max: usize) -> bool {
    match group.state {
        State::Empty => true,
        State::PreparingRebalance => {
            group.members.get(member_id).is_some_and(Member::is_joining) || group.awaiting_join() < size_max
        }
        State::CompletingRebalance | State::Stable => {
            group.members.contains_key(member_id) || group.members.len() < size_max
        }
    }
}

/// A member that found no room is out, also if it was one until now.
fn forget(group: &mut Group, member_id: &Arc<str>, cx: &mut Context<'_>) {
    drop_pending(group, member_id, cx);
    rebalance::remove_member(group, member_id, cx);
    rebalance::continue_join(group, cx);
}

fn drop_pending(group: &mut Group, member_id: &Arc<str>, cx: &mut Context<'_>) -> bool {
    let known = group.is_pending(member_id);
    if known {
        group.pending.retain(|id| id != member_id);
        cx.shared.timers.cancel(Timer::Session(Arc::clone(&group.id), Arc::clone(member_id)));
    }
    known
}

/// A join without a member id.
fn join_unknown(group: &mut Group, caller: &Caller, token: Token, request: JoinGroup, cx: &mut Context<'_>) {
    let fresh = Arc::clone(&request.fresh_member_id);
    if let Some(instance_id) = &request.member.instance_id {
        match group.static_members.get(instance_id).cloned() {
            Some(old_id) => replace_static(group, token, &old_id, request, cx),
            None => add(group, caller, token, fresh, request, cx),
        }
    } else if request.version >= 4 {
        hand_out_id(group, token, &request, cx);
    } else {
        add(group, caller, token, fresh, request, cx);
    }
}

/// KIP-394: a new member first learns its id, so that a retry does not make a second member of it.
fn hand_out_id(group: &mut Group, token: Token, request: &JoinGroup, cx: &mut Context<'_>) {
    if group.pending.len() >= limits::GROUP_PENDING_MEMBERS_MAX
        && let Some(oldest) = group.pending.front().cloned()
    {
        drop_pending(group, &oldest, cx);
    }
    let fresh = Arc::clone(&request.fresh_member_id);
    group.pending.push_back(Arc::clone(&fresh));
    let timer = Timer::Session(Arc::clone(&group.id), Arc::clone(&fresh));
    cx.shared.timers.set(timer, cx.now.mono_ms + timeout_ms(request.session_timeout_ms));
    cx.reply(token, Response::MemberIdRequired(fresh));
}

/// A new member: parks its join and starts or goes on with a rebalance.
fn add(group: &mut Group, caller: &Caller, token: Token, id: Arc<str>, request: JoinGroup, cx: &mut Context<'_>) {
    let (client_id, host) = (Arc::clone(&caller.client_id), Arc::clone(&caller.host));
    let mut member = Member::new(Arc::clone(&id), request.member.instance_id.clone(), client_id, host);
    set_timeouts(&mut member, &request);
    member.protocols = kept(&request.protocols);
    if group.state == State::PreparingRebalance && group.generation == 0 {
        group.new_member_added = true;
    }
    group.add(member, &request.protocol_type);
    group.park_join(&id, token);
    rebalance::start_first_session(group, &id, cx);
    rebalance::start_or_continue(group, cx);
}

/// A join with a member id that is not pending.
fn join_known(group: &mut Group, token: Token, request: JoinGroup, cx: &mut Context<'_>) {
    let member_id = Arc::clone(&request.member.member_id);
    let unchanged = match group.validate(&member_id, request.member.instance_id.as_ref()) {
        Ok(member) => member.protocols == kept(&request.protocols),
        Err(refusal) => return cx.refuse(token, refusal),
    };
    match group.state {
        State::Empty => cx.refuse(token, Refusal::UnknownMemberId),
        State::PreparingRebalance => rejoin(group, token, &request, cx),
        // It may not have received the answer to its join: it gets it again.
        State::CompletingRebalance if unchanged => answer_current(group, token, &member_id, cx),
        // The leader rejoins to have partitions assigned anew, for instance after a topic grew.
        State::Stable if unchanged && !group.is_leader(&member_id) => answer_current(group, token, &member_id, cx),
        State::CompletingRebalance | State::Stable => rejoin(group, token, &request, cx),
    }
}

fn answer_current(group: &Group, token: Token, member_id: &Arc<str>, cx: &mut Context<'_>) {
    cx.reply(token, Response::Joined(rebalance::current_generation(group, member_id)));
    cx.restart_session(group, member_id);
}

/// A member joins again, perhaps with other metadata.
fn rejoin(group: &mut Group, token: Token, request: &JoinGroup, cx: &mut Context<'_>) {
    update(group, &request.member.member_id, token, request, cx);
    rebalance::start_or_continue(group, cx);
}

fn update(group: &mut Group, member_id: &Arc<str>, token: Token, request: &JoinGroup, cx: &mut Context<'_>) {
    group.set_protocols(member_id, kept(&request.protocols));
    if let Some(member) = group.members.get_mut(member_id) {
        set_timeouts(member, request);
    }
    if let Some(earlier) = group.park_join(member_id, token) {
        cx.refuse(earlier, Refusal::RebalanceInProgress);
    }
}

/// KIP-345: the instance id is known, so a static member restarted. It takes its place under a new member id; the old id
/// is fenced at once, in every state, also where it waits (GR07, GR08).
fn replace_static(group: &mut Group, token: Token, old_id: &Arc<str>, request: JoinGroup, cx: &mut Context<'_>) {
    let new_id = Arc::clone(&request.fresh_member_id);
    let old_leader = group.leader.clone();
    cx.shared.timers.cancel(Timer::Session(Arc::clone(&group.id), Arc::clone(old_id)));
    let (joining, syncing) = group.replace(old_id, &new_id);
    for fenced in joining.into_iter().chain(syncing) {
        cx.refuse(fenced, Refusal::FencedInstanceId);
    }
    cx.shared.changed.insert(Arc::clone(&group.id));
    update(group, &new_id, token, &request, cx);
    cx.restart_session(group, &new_id);
    match group.state {
        State::Stable if group.protocol_name == group.select_protocol() => {
            answer_replaced(group, &new_id, old_leader, request.version, cx);
        }
        // In CompletingRebalance the leader may already assign to the old id; in Stable the protocol would change.
        State::Stable | State::CompletingRebalance => rebalance::prepare(group, cx),
        State::Empty | State::PreparingRebalance => rebalance::continue_join(group, cx),
    }
}

/// The group goes on unchanged. From v9 a leader is told to skip the assignment; before that, naming the old id as leader
/// makes it a follower, with the same effect.
fn answer_replaced(
    group: &mut Group,
    new_id: &Arc<str>,
    old_leader: Option<Arc<str>>,
    version: i16,
    cx: &mut Context<'_>,
) {
    let Some(token) = group.take_join(new_id) else { return };
    let mut joined = rebalance::current_generation(group, new_id);
    if version >= 9 {
        joined.skip_assignment = group.is_leader(new_id);
    } else {
        joined.leader = old_leader.unwrap_or_default();
        joined.members.clear();
    }
    cx.reply(token, Response::Joined(joined));
}

/// SyncGroup to a group that exists.
pub(super) fn sync(group: &mut Group, token: Token, request: SyncGroup, cx: &mut Context<'_>) {
    let member_id = Arc::clone(&request.member.member_id);
    if let Err(refusal) = group.validate_generation(&request.member) {
        return cx.refuse(token, refusal);
    }
    let differs = |asked: &Option<Arc<str>>, ours: &Option<Arc<str>>| asked.is_some() && asked != ours;
    if differs(&request.protocol_type, &group.protocol_type) || differs(&request.protocol_name, &group.protocol_name) {
        return cx.refuse(token, Refusal::InconsistentGroupProtocol);
    }
    match group.state {
        State::Empty => cx.refuse(token, Refusal::UnknownMemberId),
        State::PreparingRebalance => cx.refuse(token, Refusal::RebalanceInProgress),
        State::CompletingRebalance => {
            let earlier = group.members.get_mut(&member_id).and_then(|member| member.syncing.replace(token));
            if let Some(earlier) = earlier {
                cx.refuse(earlier, Refusal::RebalanceInProgress);
            }
            rebalance::synced(group, &member_id, cx);
            if group.is_leader(&member_id) {
                rebalance::assign(group, &request.assignments, cx);
            }
        }
        State::Stable => {
            rebalance::synced(group, &member_id, cx);
            cx.reply(token, Response::Synced(rebalance::current_assignment(group, &member_id)));
        }
    }
}

/// LeaveGroup of some members of a group that exists; one rebalance for all of them.
pub(super) fn leave(
    group: &mut Group,
    members: &[(Arc<str>, Option<Arc<str>>)],
    cx: &mut Context<'_>,
) -> Vec<Result<(), Refusal>> {
    let mut left = false;
    let mut outcomes = Vec::with_capacity(members.len());
    for (member_id, instance_id) in members {
        if instance_id.is_none() && drop_pending(group, member_id, cx) {
            outcomes.push(Ok(()));
            continue;
        }
        let outcome = leaving_id(group, member_id, instance_id.as_ref());
        if let Ok(id) = &outcome {
            rebalance::remove_member(group, id, cx);
            left = true;
        }
        outcomes.push(outcome.map(|_| ()));
    }
    if left {
        rebalance::members_left(group, cx);
    }
    outcomes
}

/// Whom a leave means. An operator removes a static member by its instance id alone (KIP-345).
fn leaving_id(group: &Group, member_id: &Arc<str>, instance_id: Option<&Arc<str>>) -> Result<Arc<str>, Refusal> {
    if member_id.is_empty()
        && let Some(instance_id) = instance_id
    {
        return group.static_members.get(instance_id).cloned().ok_or(Refusal::UnknownMemberId);
    }
    group.validate(member_id, instance_id).map(|member| Arc::clone(&member.id))
}

/// Timeouts as of the latest join. A rebalance timeout that is absent or not positive is the session timeout (GR01).
fn set_timeouts(member: &mut Member, request: &JoinGroup) {
    member.session_timeout_ms = timeout_ms(request.session_timeout_ms);
    let rebalance_ms = request.rebalance_timeout_ms;
    member.rebalance_timeout_ms = if rebalance_ms > 0 { timeout_ms(rebalance_ms) } else { member.session_timeout_ms };
}

fn timeout_ms(given: i32) -> u64 {
    u64::try_from(given).unwrap_or(1).max(1)
}

/// The protocols as kept: each name once (the first counts, as in Kafka's keyed collection), bytes copied so that they do
/// not hold the whole request.
fn kept(protocols: &[(Arc<str>, Bytes)]) -> Vec<(Arc<str>, Bytes)> {
    let mut kept: Vec<(Arc<str>, Bytes)> = Vec::with_capacity(protocols.len());
    let mut names = std::collections::BTreeSet::new();
    for (name, metadata) in protocols {
        if names.insert(name) {
            kept.push((Arc::clone(name), Bytes::copy_from_slice(metadata)));
        }
    }
    kept
}
