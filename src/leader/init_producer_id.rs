//! InitProducerId: one entry; id, epoch and wrap are computed when it is applied, so two racing requests get two epochs
//! (transactions.md §1.1, KIP-360). For a transactional id it queues behind an EndTxn in flight and ends the open stage.

use std::sync::Arc;

use super::proposals::Purpose;
use super::request::{InitProducerId, Response, Token};
use super::transactions::{Ending, EndingKind};
use super::{Leader, Turn};
use crate::config::limits;
use crate::state::command::{self, Command, Outcome};
use crate::types::Refusal;

impl Leader {
    /// InitProducerId of a producer that is only idempotent.
    pub(super) fn init_idempotent(&mut self, turn: &mut Turn<'_>, token: Token, request: &InitProducerId) {
        let command =
            command::InitProducerId { transactional_id: None, timeout_ms: request.timeout_ms, given: request.given };
        self.proposals.propose(turn, Command::InitProducerId(command), Purpose::ProducerId(token));
    }

    /// InitProducerId of a transactional producer.
    pub(super) fn init_transactional(
        &mut self,
        turn: &mut Turn<'_>,
        id: &Arc<str>,
        token: Token,
        request: &InitProducerId,
    ) {
        if !(1..=self.settings.transaction_max_timeout_ms).contains(&request.timeout_ms) {
            return turn.reply(token, Response::Refused(Refusal::InvalidTransactionTimeout));
        }
        let transactions = turn.machine.transactions();
        if transactions.get(id).is_none() && transactions.len() >= limits::TRANSACTIONAL_IDS_MAX {
            return turn.reply(token, Response::Refused(Refusal::Overloaded));
        }
        let command = command::InitProducerId {
            transactional_id: Some(id.to_string()),
            timeout_ms: request.timeout_ms,
            given: request.given,
        };
        let ticket = self.proposals.propose(turn, Command::InitProducerId(command), Purpose::Ending(id.clone()));
        let transaction = self.transactions.entry(id);
        let waiters = vec![token];
        transaction.ending = Some(Ending { ticket, kind: EndingKind::Init, waiters, held: Vec::new(), unknown: false });
        self.transactions.stop_clock(id);
    }

    /// It was applied: another pair than the stage's ends the stage; the retry of an answered one touches nothing.
    pub(super) fn init_applied(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, ending: &Ending, outcome: &Outcome) {
        let Outcome::ProducerId(result) = outcome else { unreachable!("InitProducerId has a ProducerId outcome") };
        let stage = self.transactions.entry(id).stage.as_ref();
        match *result {
            Ok(pair) if stage.is_none_or(|stage| stage.producer != pair) => {
                // As Kafka: the open transaction is aborted. One that timed out is counted already.
                let aborted = self.close_stage(id).is_some_and(|stage| stage.is_live());
                self.stats.aborted += u64::from(aborted);
                self.transactions.entry(id).handled = Some(pair);
                self.answer_fetches(turn);
            }
            Ok(_) | Err(_) => self.thaw(turn, id),
        }
        let response = result.map_or_else(Response::Refused, Response::ProducerId);
        self.stats.fenced += u64::from(*result == Err(Refusal::ProducerFenced));
        for token in &ending.waiters {
            turn.reply_applied(*token, response.clone());
        }
    }
}
