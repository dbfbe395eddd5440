//! Planned transfer: the leader goes, and dooms as few transactions as it can (transactions.md §2).
//!
//! First it drains: no new transaction is opened, those that are open may end. Requests that would open one wait, and are
//! told to look for the next leader when the term ends. Then it lists what is still open, and stages nothing more in this
//! term, also if the transfer fails (T10): whoever is not in the list counts as clean in the next one.

use super::proposals::Purpose;
use super::request::{Request, Response, Token};
use super::transactions::Transaction;
use super::{Action, Leader, Role, Turn};
use crate::config::limits;
use crate::state::Machine;
use crate::state::command::{Command, HandOver};
use crate::types::{Now, Refusal};

/// How far a leader is on its way out.
#[derive(Debug, Default)]
pub(super) enum Parting {
    /// It stays.
    #[default]
    No,
    /// It opens no new transactions; whose requests wait for it to be gone.
    Draining(Vec<Token>),
    /// The list is proposed: it serves no transactional request any more.
    Handed,
}

impl Leader {
    /// Opens no new transactions from now on.
    pub fn begin_drain(&mut self) {
        if matches!(self.parting, Parting::No) {
            self.parting = Parting::Draining(Vec::new());
        }
    }

    /// Whether no transaction is open, and nothing of one is in flight.
    pub fn is_drained(&self) -> bool {
        let idle = |transaction: &Transaction| {
            transaction.live().is_none() && transaction.ending.is_none() && transaction.queue.is_empty()
        };
        self.transactions.by_number.is_empty() && self.transactions.by_id.values().all(idle)
    }

    /// Goes on as before: the transfer is off, and no list was proposed.
    pub fn end_drain(&mut self) -> Vec<Action> {
        let Parting::Draining(waiting) = std::mem::take(&mut self.parting) else { return Vec::new() };
        waiting.into_iter().map(refused).collect()
    }

    /// Proposes the list of open transactions. A list too long for an entry is not made: everyone is lost then, as when a
    /// leader dies.
    pub fn hand_over(&mut self, machine: &Machine, now: Now) -> Vec<Action> {
        let Role::Leading(term) = self.role else { return Vec::new() };
        let mut turn = Turn { machine, now, term, out: self.end_drain() };
        self.parting = Parting::Handed;
        let queues =
            self.transactions.by_id.values_mut().flat_map(|transaction| std::mem::take(&mut transaction.queue));
        turn.out.extend(queues.map(|queued| refused(queued.token)));
        let stages = self.transactions.by_id.iter().filter_map(|(id, txn)| Some((id, txn.stage.as_ref()?)));
        let open: Vec<_> = stages.map(|(id, stage)| (id.to_string(), stage.producer)).collect();
        let bytes: usize = open.iter().map(|(id, _)| id.len() + limits::STAGED_OVERHEAD_BYTES).sum();
        if bytes <= limits::HAND_OVER_BYTES_MAX {
            self.proposals.propose(&mut turn, Command::HandOver(HandOver { open }), Purpose::Nothing);
        }
        turn.out
    }

    /// Whether this transactional request is not to be served any more; then it is answered, or waits for its answer.
    pub(super) fn is_parting(&mut self, turn: &mut Turn<'_>, id: &str, token: Token, request: &Request) -> bool {
        let opens = !matches!(request, Request::EndTxn(_) | Request::InitProducerId(_));
        let fresh = self.transactions.by_id.get(id).is_none_or(|transaction| {
            transaction.stage.is_none() && transaction.ending.is_none() && transaction.queue.is_empty()
        });
        match &mut self.parting {
            Parting::No => return false,
            Parting::Draining(_) if !(opens && fresh) => return false,
            Parting::Draining(waiting) if waiting.len() < limits::QUEUED_WHILE_DRAINING_MAX => waiting.push(token),
            Parting::Draining(_) | Parting::Handed => turn.out.push(refused(token)),
        }
        true
    }

    /// The term ends: whoever waited for that.
    pub(super) fn take_parting(&mut self) -> Vec<Token> {
        match std::mem::take(&mut self.parting) {
            Parting::Draining(waiting) => waiting,
            Parting::No | Parting::Handed => Vec::new(),
        }
    }
}

fn refused(token: Token) -> Action {
    Action::Reply(token, Response::Refused(Refusal::NotLeader))
}
