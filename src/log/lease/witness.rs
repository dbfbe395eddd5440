//! Stands between openraft and the way to other nodes, and notes when that was sent which a peer has accepted.
//!
//! An answer counts for the one request it answers: answers come in the order of the requests, at most one for each.
//! Refused for a higher vote is not accepted; a conflict is, for the follower took the leader for one.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError};
use openraft::network::{
    Backoff, NetBackoff, NetSnapshot, NetStreamAppend, NetTransferLeader, NetVote, RPCOption, RaftNetworkFactory,
};
use openraft::raft::{
    AppendEntriesRequest, SnapshotResponse, StreamAppendError, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::{SnapshotOf, VoteOf};
use parking_lot::Mutex;

use super::{Lease, Sent};
use crate::log::entry::Node;
use crate::log::raft_types::TypeConfig;
use crate::types::Term;

type Answers<'s> =
    Pin<Box<dyn Stream<Item = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>> + Send + 's>>;
type Opening<'s> = Pin<Box<dyn Future<Output = Result<Answers<'s>, RPCError<TypeConfig>>> + Send + 's>>;

/// Makes clients whose answers are witnessed.
#[derive(Clone, Debug)]
pub struct Witnessed<F> {
    network: F,
    lease: Arc<Lease>,
}

impl<F> Witnessed<F> {
    /// Over that network.
    pub fn new(network: F, lease: Arc<Lease>) -> Self {
        Self { network, lease }
    }
}

impl<F: RaftNetworkFactory<TypeConfig>> RaftNetworkFactory<TypeConfig> for Witnessed<F> {
    type Network = Witness<F::Network>;

    async fn new_client(&mut self, target: u64, node: &Node) -> Self::Network {
        let client = self.network.new_client(target, node).await;
        Witness { client, target, lease: self.lease.clone() }
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Node) -> Self::Network {
        let client = self.network.new_heartbeat_client(target, node).await;
        Witness { client, target, lease: self.lease.clone() }
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &Node) -> Self::Network {
        let client = self.network.new_snapshot_client(target, node).await;
        Witness { client, target, lease: self.lease.clone() }
    }
}

/// A client of one peer.
#[derive(Debug)]
pub struct Witness<N> {
    client: N,
    target: u64,
    lease: Arc<Lease>,
}

impl<N: NetStreamAppend<TypeConfig>> NetStreamAppend<TypeConfig> for Witness<N> {
    fn stream_append<'s, S>(&'s mut self, input: S, option: RPCOption) -> Opening<'s>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
    {
        // What was sent and not answered; no longer than the client lets requests run ahead.
        let asked: Arc<Mutex<VecDeque<(Term, Sent)>>> = Arc::default();
        let (noting, answered) = (asked.clone(), asked);
        let input = input.inspect(move |request| {
            noting.lock().push_back((Term(request.vote.leader_id.term), Sent::now()));
        });
        let (lease, target) = (self.lease.clone(), self.target);
        let opening = self.client.stream_append(input, option);
        Box::pin(async move {
            let answers = opening.await?.inspect(move |answer| {
                let asked = answered.lock().pop_front();
                if let (Some((term, sent)), Ok(Ok(_) | Err(StreamAppendError::Conflict(_)))) = (asked, answer) {
                    lease.accepted(term, target, sent);
                }
            });
            Ok(Box::pin(answers) as Answers<'s>)
        })
    }
}

impl<N: NetBackoff<TypeConfig>> NetBackoff<TypeConfig> for Witness<N> {
    fn backoff(&self) -> Option<Backoff> {
        self.client.backoff()
    }
}

impl<N: NetVote<TypeConfig>> NetVote<TypeConfig> for Witness<N> {
    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.client.vote(rpc, option).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.client.pre_vote(rpc, option).await
    }
}

impl<N: NetSnapshot<TypeConfig>> NetSnapshot<TypeConfig> for Witness<N> {
    type SnapshotData = N::SnapshotData;

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<TypeConfig>,
        snapshot: SnapshotOf<TypeConfig, Self::SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        self.client.full_snapshot(vote, snapshot, cancel, option).await
    }
}

impl<N: NetTransferLeader<TypeConfig>> NetTransferLeader<TypeConfig> for Witness<N> {
    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.client.transfer_leader(request, option).await
    }
}
