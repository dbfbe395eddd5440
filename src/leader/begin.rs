//! The gated begin marker of TV1 transactions and the hidden chunks of large ones: what a stage replicates before its EndTxn.
//!
//! Every ack of a TV1 transaction waits until its marker is applied: at a new leader the marker alone tells a lost
//! transaction from the retry of the one before (§2). Chunks keep an entry under its cap; the commit names how many
//! there are and their CRC, so a commit that lacks one is a no-op.

use std::sync::Arc;

use super::proposals::Purpose;
use super::request::Response;
use super::stage::{Begin, Doom};
use super::{Leader, Ticket, Turn};
use crate::state::command::{Command, Outcome, TxnChunk};
use crate::types::{LogIndex, Refusal};

impl Leader {
    /// The marker was applied: what waited is acknowledged.
    pub(super) fn begin_applied(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, index: LogIndex, outcome: &Outcome) {
        if let Outcome::Staged(Err(refusal)) = outcome {
            return self.begin_failed(turn, id, *refusal);
        }
        self.stats.raft_entries += 1;
        if let Some(stage) = self.transactions.entry(id).stage.as_mut() {
            stage.begin = Begin::Applied(index);
            for (token, response) in std::mem::take(&mut stage.acks) {
                stage.acknowledged = true;
                turn.reply(token, response);
            }
        }
        self.chunk_if_large(turn, id);
        self.run_queue(turn, id);
    }

    /// The marker is certainly not in the log. Unless something was acknowledged before it, the transaction never began.
    pub(super) fn begin_failed(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, refusal: Refusal) {
        if let Some(stage) = self.transactions.entry(id).stage.as_mut() {
            stage.begin = Begin::Absent;
            for (token, _) in std::mem::take(&mut stage.acks) {
                turn.reply(token, Response::Refused(refusal));
            }
            if stage.acknowledged {
                self.doom(turn, id, Doom::EntryLost);
            } else {
                self.close_stage(id);
            }
        }
        self.run_queue(turn, id);
    }

    /// The marker's deadline passed.
    pub(super) fn begin_unknown(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, ticket: Ticket) {
        if let Some(stage) = self.transactions.entry(id).stage.as_mut() {
            stage.begin = Begin::Unknown(ticket);
            for (token, _) in std::mem::take(&mut stage.acks) {
                turn.reply(token, Response::Refused(Refusal::FateUnknown));
            }
        }
        self.refuse_queue(turn, id, Refusal::FateUnknown);
    }

    /// Whether the stage's commit would not fit into one entry as it stands.
    pub(super) fn is_over_entry(&self, id: &str) -> bool {
        let stage = self.transactions.by_id.get(id).and_then(|transaction| transaction.live());
        stage.is_some_and(|stage| stage.entry_bytes > self.settings.entry_bytes_max)
    }

    /// Proposes a chunk if the stage has outgrown one entry and no chunk is in flight; tells whether one is now.
    pub(super) fn chunk_if_large(&mut self, turn: &mut Turn<'_>, id: &Arc<str>) -> bool {
        if !self.is_over_entry(id) {
            return false;
        }
        let room = self.settings.entry_bytes_max;
        let Some(stage) = self.transactions.entry(id).stage.as_mut() else { return false };
        if stage.chunks.in_flight.is_some() {
            return true;
        }
        if stage.chunks.stage_id.is_none() {
            match stage.begin {
                Begin::Applied(index) => stage.chunks.stage_id = Some(index),
                Begin::Proposed(_) | Begin::Unknown(_) => return false,
                Begin::Absent => {}
            }
        }
        let batches = stage.take_chunk(room);
        if batches.is_empty() {
            return false;
        }
        let chunk = TxnChunk {
            transactional_id: id.to_string(),
            producer: stage.producer,
            stage_id: stage.chunks.stage_id,
            number: stage.chunks.count,
            batches,
        };
        stage.chunks.count += 1;
        let ticket = self.proposals.propose(turn, Command::TxnChunk(chunk), Purpose::Chunk(id.clone()));
        stage.chunks.in_flight = Some(ticket);
        true
    }

    /// A chunk was applied: the next one may follow, and an EndTxn that waited for it.
    pub(super) fn chunk_applied(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, index: LogIndex, outcome: &Outcome) {
        if matches!(outcome, Outcome::Staged(Err(_))) {
            return self.chunk_lost(turn, id);
        }
        self.stats.raft_entries += 1;
        if let Some(stage) = self.transactions.entry(id).stage.as_mut() {
            stage.chunks.in_flight = None;
            stage.chunks.unknown = false;
            stage.chunks.stage_id.get_or_insert(index);
            if !stage.is_live() {
                self.drop_chunks(turn, id);
            }
        }
        self.chunk_if_large(turn, id);
        self.run_queue(turn, id);
    }

    /// A chunk is certainly not in the log.
    pub(super) fn chunk_lost(&mut self, turn: &mut Turn<'_>, id: &Arc<str>) {
        if let Some(stage) = self.transactions.entry(id).stage.as_mut() {
            stage.chunks.in_flight = None;
            stage.chunks.unknown = false;
            self.doom(turn, id, Doom::EntryLost);
            self.drop_chunks(turn, id);
        }
        self.run_queue(turn, id);
    }

    /// A chunk's deadline passed.
    pub(super) fn chunk_unknown(&mut self, turn: &mut Turn<'_>, id: &Arc<str>) {
        if let Some(stage) = self.transactions.entry(id).stage.as_mut() {
            stage.chunks.unknown = true;
        }
        self.refuse_queue(turn, id, Refusal::FateUnknown);
    }

    /// Frees the chunks of a doomed stage. One still in flight is freed when it is applied.
    pub(super) fn drop_chunks(&mut self, turn: &mut Turn<'_>, id: &Arc<str>) {
        let Some(stage) = self.transactions.entry(id).stage.as_mut() else { return };
        if stage.chunks.count == 0 || stage.chunks.in_flight.is_some() {
            return;
        }
        stage.chunks.count = 0;
        if let Some(stage_id) = stage.chunks.stage_id {
            self.proposals.propose(turn, Command::DropStages(vec![stage_id]), Purpose::Nothing);
        }
    }
}
