//! Group members and generations: the classic group protocol (Kafka's `GroupCoordinator`, KIP-62, KIP-345, KIP-394).
//!
//! Soft: a new leader knows no members, so they are told UNKNOWN_MEMBER_ID and join again. Committed offsets are
//! replicated state and live in `state/group_offsets`.

use std::sync::Arc;

use super::request::{Caller, JoinGroup, LeaveGroup, MemberRef, SyncGroup, Token};
use super::{Action, LeaderSettings};
use crate::state::Machine;
use crate::types::{Now, Refusal, TopicPartition};

/// All groups with members.
#[derive(Debug)]
pub struct Groups {
    settings: LeaderSettings,
}

impl Groups {
    /// No groups yet.
    pub fn new(settings: LeaderSettings) -> Self {
        Self { settings }
    }

    /// Forgets everything (a term ended) and tells who was waiting for an answer.
    pub fn clear(&mut self) -> Vec<Token> {
        let _ = &self.settings;
        todo!("groups helper")
    }

    /// JoinGroup; answered when the rebalance completes.
    pub fn join(&mut self, now: Now, caller: &Caller, token: Token, request: JoinGroup, out: &mut Vec<Action>) {
        let _ = (now, caller, token, request, out);
        todo!("groups helper")
    }

    /// SyncGroup; followers are answered when the leader's assignment arrives.
    pub fn sync(&mut self, now: Now, token: Token, request: SyncGroup, out: &mut Vec<Action>) {
        let _ = (now, token, request, out);
        todo!("groups helper")
    }

    /// Heartbeat.
    ///
    /// # Errors
    /// 25, 22, 27, 82 as Kafka.
    pub fn heartbeat(&mut self, now: Now, member: &MemberRef) -> Result<(), Refusal> {
        let _ = (now, member);
        todo!("groups helper")
    }

    /// LeaveGroup, per member.
    pub fn leave(&mut self, now: Now, request: &LeaveGroup, out: &mut Vec<Action>) -> Vec<Result<(), Refusal>> {
        let _ = (now, request, out);
        todo!("groups helper")
    }

    /// Whether this member may commit offsets now (OffsetCommit); counts as a heartbeat.
    ///
    /// # Errors
    /// 25, 22, 27, 82 as Kafka's `validateOffsetCommit`: generation −1 without a member is allowed only to a group without members.
    pub fn check_offset_commit(&mut self, now: Now, member: &MemberRef) -> Result<(), Refusal> {
        let _ = (now, member);
        todo!("groups helper")
    }

    /// Whether this member may stage offsets in a transaction (transactions.md §6): empty member and generation −1: no check.
    ///
    /// # Errors
    /// 25 unknown member, 22 wrong generation, 82 fenced instance.
    pub fn check_txn_offset_commit(&self, member: &MemberRef) -> Result<(), Refusal> {
        let _ = member;
        todo!("groups helper")
    }

    /// An EndTxn that carries offsets of this group is in flight: its rebalance must not complete before [`Groups::release`].
    pub fn hold(&mut self, group: &Arc<str>) {
        let _ = group;
        todo!("groups helper")
    }

    /// One EndTxn less in flight; a rebalance that waited only for it completes.
    pub fn release(&mut self, now: Now, group: &str, out: &mut Vec<Action>) {
        let _ = (now, group, out);
        todo!("groups helper")
    }

    /// Sessions that ended, rebalances whose time is up.
    pub fn handle_timeout(&mut self, now: Now, out: &mut Vec<Action>) {
        let _ = (now, out);
        todo!("groups helper")
    }

    /// When [`Groups::handle_timeout`] wants to be called next (monotonic ms).
    pub fn next_deadline_ms(&self) -> Option<u64> {
        todo!("groups helper")
    }

    /// Groups that became stable in a new generation, or lost a member, since the last call: stages of members that are
    /// gone or no longer own a partition must be doomed.
    pub fn drain_changed(&mut self) -> Vec<Arc<str>> {
        todo!("groups helper")
    }

    /// Whether a stage of that member (as it was when it staged) may still commit an offset of `partition`.
    ///
    /// Ownership is compared, not the generation; where the assignment is not in ConsumerProtocol form, an older
    /// generation owns nothing. A member that is gone (a static member's old id counts as gone) owns nothing.
    pub fn still_owns(&self, machine: &Machine, member: &MemberRef, partition: TopicPartition) -> bool {
        let _ = (machine, member, partition);
        todo!("groups helper")
    }

    /// Whether the group has members now.
    pub fn has_members(&self, group: &str) -> bool {
        let _ = group;
        todo!("groups helper")
    }

    /// Rebalances completed since the start.
    pub fn rebalances(&self) -> u64 {
        todo!("groups helper")
    }
}
