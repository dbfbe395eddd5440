//! Proposals in flight: what each ticket was for, so that its fate reaches whom it concerns.
//!
//! A ticket is never used twice, across terms included: news of an earlier term's proposal finds nothing here.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::request::Token;
use super::{Action, Ticket, Turn};
use crate::state::command::{Command, Entry};
use crate::types::Refusal;

/// What a proposal was made for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// A plain Produce: for each batch of the entry, who waits for it (a retry waits for the original's).
    Produce(Vec<Vec<(Token, usize)>>),
    /// InitProducerId without a transactional id.
    ProducerId(Token),
    /// EndTxn or InitProducerId of that transactional id; who waits stands in its `Ending`.
    Ending(Arc<str>),
    /// The begin marker of that id's stage.
    Begin(Arc<str>),
    /// A chunk of that id's stage.
    Chunk(Arc<str>),
    /// OffsetCommit of that group: which offsets were refused before.
    OffsetCommit(Token, Arc<str>, Vec<Option<Refusal>>),
    /// OffsetCommit of that group whose deadline passed: its index still tells what is newer.
    LateOffsetCommit(Arc<str>),
    /// CreateTopics or DeleteTopics.
    Topics(Token),
    /// DeleteRecords.
    Records(Token),
    /// AlterConfigs.
    Configs(Token),
    /// Expiry: forget what is gone.
    Expire,
    /// Nobody waits.
    Nothing,
}

/// All proposals whose fate is unknown, by ticket.
#[derive(Debug, Default)]
pub(super) struct Proposals {
    last_ticket: u64,
    in_flight: BTreeMap<Ticket, Purpose>,
}

impl Proposals {
    /// Proposes an entry.
    pub fn propose(&mut self, turn: &mut Turn<'_>, command: Command, purpose: Purpose) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.in_flight.insert(ticket, purpose);
        turn.out.push(Action::Propose(ticket, Entry { now_ms: turn.now.wall_ms, command }));
        ticket
    }

    /// The last ticket given out: what is proposed from now on has a greater one.
    pub fn last_ticket(&self) -> Ticket {
        Ticket(self.last_ticket)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// A proposal's purpose, once its fate is known.
    pub fn take(&mut self, ticket: Ticket) -> Option<Purpose> {
        self.in_flight.remove(&ticket)
    }

    /// Puts it back: the deadline passed, its fate will still be told.
    pub fn put_back(&mut self, ticket: Ticket, purpose: Purpose) {
        self.in_flight.insert(ticket, purpose);
    }

    /// One more who waits for a batch of a Produce in flight; false if nobody will tell.
    pub fn join(&mut self, ticket: Ticket, slot: usize, waiter: (Token, usize)) -> bool {
        match self.in_flight.get_mut(&ticket) {
            Some(Purpose::Produce(slots)) => slots.get_mut(slot).map(|waiters| waiters.push(waiter)).is_some(),
            _ => false,
        }
    }

    /// A term ended: nothing proposed in it is ours any more.
    pub fn drain(&mut self) -> impl Iterator<Item = Purpose> {
        std::mem::take(&mut self.in_flight).into_values()
    }
}
