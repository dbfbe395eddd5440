//! Requests that a member makes between rebalances: may it? (Kafka's `validateClassicGroupHeartbeat`,
//! `ClassicGroup.validateOffsetCommit`), and what became of what it staged (transactions.md §6).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::group::{Group, State};
use super::{Context, Groups};
use crate::leader::consumer_protocol;
use crate::leader::request::MemberRef;
use crate::state::Machine;
use crate::types::{Now, Refusal, TopicPartition};

impl Groups {
    /// Heartbeat.
    ///
    /// # Errors
    /// 25, 22, 27, 82 as Kafka; 24 for an empty group id.
    pub fn heartbeat(&mut self, now: Now, member: &MemberRef) -> Result<(), Refusal> {
        if member.group.is_empty() {
            return Err(Refusal::InvalidGroupId);
        }
        let group = self.table.get(&member.group).ok_or(Refusal::UnknownMemberId)?;
        group.validate_generation(member)?;
        let state = group.state;
        self.sign_of_life(now, member);
        match state {
            State::Empty => Err(Refusal::UnknownMemberId),
            State::PreparingRebalance => Err(Refusal::RebalanceInProgress),
            State::CompletingRebalance | State::Stable => Ok(()),
        }
    }

    /// Whether this member may commit offsets now (OffsetCommit); counts as a heartbeat.
    ///
    /// # Errors
    /// 25, 22, 27, 82 as Kafka's `validateOffsetCommit`: generation −1 without a member is allowed only to a group without members.
    pub fn check_offset_commit(&mut self, now: Now, member: &MemberRef) -> Result<(), Refusal> {
        let Some(group) = self.table.get(&member.group) else { return without_group(member) };
        validate_commit(group, member, false)?;
        if member.generation >= 0 {
            self.sign_of_life(now, member);
        }
        Ok(())
    }

    /// Whether this member may stage offsets in a transaction (transactions.md §6): empty member and generation −1: no check.
    ///
    /// # Errors
    /// 25 unknown member, 22 wrong generation, 82 fenced instance.
    pub fn check_txn_offset_commit(&self, member: &MemberRef) -> Result<(), Refusal> {
        match self.table.get(&member.group) {
            Some(group) => validate_commit(group, member, true),
            None => without_group(member),
        }
    }

    /// Whether a stage of that member (as it was when it staged) may still commit offsets of all these partitions.
    ///
    /// Ownership is compared, not the generation; where the assignment is not in ConsumerProtocol form, an older
    /// generation owns nothing. A member that is gone (a static member's old id counts as gone) owns nothing. Until the
    /// next assignment is made, a member that is still there keeps what it had.
    pub fn still_owns(&self, machine: &Machine, member: &MemberRef, partitions: &[TopicPartition]) -> bool {
        if member.generation < 0 {
            return true;
        }
        let Some(group) = self.table.get(&member.group) else { return false };
        let Some(found) = group.members.get(&member.member_id) else { return false };
        if member.generation >= group.assigned_generation {
            return true;
        }
        if group.protocol_type.as_deref() != Some(consumer_protocol::PROTOCOL_TYPE) {
            return false;
        }
        let mut missing = BTreeSet::new();
        for of in partitions {
            let Some(topic) = machine.topics().get(of.topic) else { return false };
            missing.insert((topic.name.as_str(), of.partition));
        }
        consumer_protocol::assigned(&found.assignment, &mut missing).is_some() && missing.is_empty()
    }

    fn sign_of_life(&mut self, now: Now, member: &MemberRef) {
        let Self { settings, table, shared } = self;
        if let Some(group) = table.get(&member.group) {
            let mut cx = Context { now, settings, shared, out: &mut Vec::new() };
            cx.restart_session(group, &Arc::clone(&member.member_id));
        }
    }
}

/// A commit to a group nobody joined: allowed to those who do not claim a generation of it.
fn without_group(member: &MemberRef) -> Result<(), Refusal> {
    if member.generation < 0 { Ok(()) } else { Err(Refusal::IllegalGeneration) }
}

/// Kafka's `ClassicGroup.validateOffsetCommit`. In PreparingRebalance the generation still owns its partitions; in
/// CompletingRebalance a member that knows the new generation is told to finish joining (GR09).
fn validate_commit(group: &Group, member: &MemberRef, transactional: bool) -> Result<(), Refusal> {
    let empty = group.state == State::Empty;
    if member.generation < 0 && empty {
        return Ok(());
    }
    if member.generation >= 0 || !member.member_id.is_empty() || member.instance_id.is_some() {
        group.validate_generation(member)?;
    } else if !transactional && !empty {
        return Err(Refusal::UnknownMemberId);
    }
    if !transactional && group.state == State::CompletingRebalance {
        return Err(Refusal::RebalanceInProgress);
    }
    Ok(())
}
