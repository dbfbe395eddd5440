//! The way to other nodes. This build runs single nodes: every call is refused as unreachable, so that a membership
//! that names others could never reach a majority and nothing would be acknowledged.
//!
//! Pre-vote is refused like the rest: openraft's default would grant it unasked.

use std::future::Future;

use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::type_config::alias::{SnapshotOf, VoteOf};

use super::entry::Node;
use super::raft_types::TypeConfig;
use super::snapshot::Cut;

/// Makes connections to peers that refuse every call.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

/// A peer that cannot be reached.
#[derive(Clone, Copy, Debug)]
pub struct NoPeer {
    target: u64,
}

impl NoPeer {
    fn refuse(self) -> Unreachable<TypeConfig> {
        Unreachable::from_string(format!("node {}: this build connects to no peers", self.target))
    }
}

impl RaftNetworkFactory<TypeConfig> for NoPeers {
    type Network = NoPeer;

    async fn new_client(&mut self, target: u64, _node: &Node) -> NoPeer {
        NoPeer { target }
    }
}

impl RaftNetworkV2<TypeConfig> for NoPeer {
    type SnapshotData = Cut;

    async fn append_entries(
        &mut self,
        _rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(self.refuse()))
    }

    async fn vote(
        &mut self,
        _rpc: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(self.refuse()))
    }

    async fn pre_vote(
        &mut self,
        _rpc: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(self.refuse()))
    }

    async fn full_snapshot(
        &mut self,
        _vote: VoteOf<TypeConfig>,
        _snapshot: SnapshotOf<TypeConfig, Cut>,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        Err(StreamingError::Unreachable(self.refuse()))
    }
}
