//! Groups as DescribeGroups, ListGroups and the metrics see them: borrowed, read-only.

use std::sync::Arc;

use bytes::Bytes;

use super::group::{Group, Member};

/// One group.
#[derive(Clone, Copy, Debug)]
pub struct GroupView<'a> {
    group: &'a Group,
}

impl<'a> GroupView<'a> {
    pub(super) fn new(group: &'a Group) -> Self {
        Self { group }
    }

    /// Its id.
    pub fn id(self) -> &'a Arc<str> {
        &self.group.id
    }

    /// Kafka's name of its state: Empty, PreparingRebalance, CompletingRebalance or Stable. A group that is not in the
    /// table is Dead.
    pub fn state(self) -> &'static str {
        self.group.state.name()
    }

    /// Wall clock of the last change of state, milliseconds: offsets of an empty group expire from then on.
    pub fn state_since_ms(self) -> i64 {
        self.group.state_since_ms
    }

    /// `consumer`, `connect`, …; None before the first member.
    pub fn protocol_type(self) -> Option<&'a Arc<str>> {
        self.group.protocol_type.as_ref()
    }

    /// The protocol of the current generation.
    pub fn protocol_name(self) -> Option<&'a Arc<str>> {
        self.group.protocol_name.as_ref()
    }

    /// Its generation.
    pub fn generation(self) -> i32 {
        self.group.generation
    }

    /// Member id of its leader.
    pub fn leader(self) -> Option<&'a Arc<str>> {
        self.group.leader.as_ref()
    }

    /// How many members it has.
    pub fn member_count(self) -> usize {
        self.group.members.len()
    }

    /// Its members, in the order of their ids.
    pub fn members(self) -> impl Iterator<Item = MemberView<'a>> {
        let protocol = self.group.protocol_name.as_deref();
        self.group.members.values().map(move |member| MemberView { member, protocol })
    }
}

/// One member.
#[derive(Clone, Copy, Debug)]
pub struct MemberView<'a> {
    member: &'a Member,
    protocol: Option<&'a str>,
}

impl<'a> MemberView<'a> {
    /// Its member id.
    pub fn id(self) -> &'a Arc<str> {
        &self.member.id
    }

    /// Its `group.instance.id`.
    pub fn instance_id(self) -> Option<&'a Arc<str>> {
        self.member.instance_id.as_ref()
    }

    /// Its client id when it joined first.
    pub fn client_id(self) -> &'a Arc<str> {
        &self.member.client_id
    }

    /// Its host when it joined first.
    pub fn host(self) -> &'a Arc<str> {
        &self.member.host
    }

    /// Its metadata for the group's protocol; empty without one.
    pub fn metadata(self) -> Bytes {
        self.protocol.map(|protocol| self.member.metadata(protocol)).unwrap_or_default()
    }

    /// Its assignment.
    pub fn assignment(self) -> &'a Bytes {
        &self.member.assignment
    }

    /// Its session timeout.
    pub fn session_timeout_ms(self) -> u64 {
        self.member.session_timeout_ms
    }

    /// Its rebalance timeout.
    pub fn rebalance_timeout_ms(self) -> u64 {
        self.member.rebalance_timeout_ms
    }
}
