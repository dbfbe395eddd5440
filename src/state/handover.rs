//! What a leader leaves to the next one when it goes as planned: which transactions are open (transactions.md §2,
//! «Planned transfer»).
//!
//! A stage dies with its term, so a transactional id that was last clean in another term counts as lost. Where the
//! leader says before it goes what is open, and stages nothing more in its term (T10), everyone else is as clean in the
//! next term as in its own. A chain of such terms (a rolling restart) hands that on. It ends with the first term that
//! begins otherwise: then the terms before say nothing about what the last one staged.

use serde::{Deserialize, Serialize};

use super::At;
use super::command::HandOver;
use super::transactions::{TransactionalId, Transactions};
use crate::types::Term;

/// The last planned transfer, and those right before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handed {
    /// The term for which it was made; it means nothing in any other.
    to: Term,
    /// The first term of the chain: who was clean in it or in a later one is clean in `to`,
    clean_since: Term,
    /// unless its transaction was open at the end of this term, and has not ended in a later one.
    open: imbl::OrdMap<String, Term>,
}

impl Transactions {
    /// Whether nothing that the id's producer was acknowledged can have been lost with a term before `term`.
    pub fn is_clean(&self, transactional_id: &str, state: &TransactionalId, term: Term) -> bool {
        if state.clean_term == term {
            return true;
        }
        let handed = &self.handed;
        handed.to == term
            && state.clean_term >= handed.clean_since
            && handed.open.get(transactional_id).is_none_or(|open_in| state.clean_term > *open_in)
    }

    pub(super) fn apply_hand_over(&mut self, at: At, list: &HandOver) {
        let last = std::mem::take(&mut self.handed);
        let (clean_since, open) =
            if last.to == at.term { (last.clean_since, last.open) } else { (at.term, imbl::OrdMap::new()) };
        // Whoever ended it since has become clean; what is forgotten cannot be asked for.
        let lost = |(id, open_in): &(String, Term)| self.get(id).is_some_and(|state| state.clean_term <= *open_in);
        let mut open: imbl::OrdMap<String, Term> = open.into_iter().filter(lost).collect();
        for (id, producer) in &list.open {
            // An EndTxn or InitProducerId in flight when the list was made stands before it in the log.
            if self.get(id).is_some_and(|state| state.producer == *producer) {
                open.insert(id.clone(), at.term);
            }
        }
        self.handed = Handed { to: Term(at.term.0 + 1), clean_since, open };
    }
}
