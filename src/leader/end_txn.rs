//! EndTxn, exactly (transactions.md §3). A commit is ONE entry; an abort drops the stage and proposes a small one.
//!
//! TV2 (v5) bumps the epoch with every EndTxn, so a retry is told by the previous pair. TV1 has one epoch for many
//! transactions: what tells a retry is `last_end`, and what tells a lost transaction is its begin marker. Answers without
//! an entry confirm leadership first: a deposed leader would otherwise answer for a commit it never saw (T1).

use std::sync::Arc;

use super::connections::Class;
use super::proposals::Purpose;
use super::request::{Caller, EndTxn, Request, Response, Token};
use super::stage::{Doom, Stage};
use super::transactions::{Asked, Ending, EndingKind, Queued, judge_pair};
use super::{Leader, Ticket, Turn};
use crate::state::command::{Command, Outcome, TxnAbort};
use crate::state::transactions::{TransactionalId, TxnResult};
use crate::types::{ProducerIdAndEpoch, Refusal};

/// EndTxn from this version on bumps the epoch (KIP-890).
const END_TXN_TV2: i16 = 5;

/// What is to be done with an EndTxn at the current pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Propose it.
    Propose,
    /// It is done already, or there is nothing to do.
    Done,
    /// Refused.
    Refused(Refusal),
}

impl Leader {
    /// EndTxn.
    pub(super) fn end_txn(
        &mut self,
        turn: &mut Turn<'_>,
        id: &Arc<str>,
        caller: &Caller,
        token: Token,
        request: &EndTxn,
    ) {
        let state = turn.machine.transactions().get(id);
        if let Err(refusal) = judge_pair(state, request.producer) {
            let answer = if request.version >= END_TXN_TV2 { retry(state, request) } else { Err(refusal) };
            self.stats.fenced += u64::from(answer == Err(Refusal::ProducerFenced));
            return confirmed(turn, token, answer);
        }
        let Some(state) = state else { unreachable!("judged above") };
        let tv1 = request.version < END_TXN_TV2;
        let asked = Asked { producer: request.producer, tv1, class: Class::Coordinator, connection: caller.connection };
        if !self.is_in_time(id, asked) {
            return turn.reply(token, Response::Close);
        }
        if request.commit && self.awaits_unknown_commit(id) {
            return turn.reply(token, Response::Refused(Refusal::FateUnknown));
        }
        if request.commit && (self.chunk_if_large(turn, id) || self.awaits_commit(id)) {
            // The commit carries what no chunk holds: it waits until that fits into one entry. And it tells which plain
            // commits its offsets are newer than: it waits until their indexes are known.
            let queued = Queued { caller: caller.clone(), token, request: Request::EndTxn(request.clone()) };
            return self.transactions.entry(id).queue.push_front(queued);
        }
        let verdict = self.judge_end(turn, id, state, request);
        self.transactions.entry(id).handled = Some(request.producer);
        match verdict {
            Verdict::Propose => self.propose_end(turn, id, state, token, request),
            Verdict::Done => confirmed(turn, token, Ok(state.producer)),
            Verdict::Refused(refusal) => confirmed(turn, token, Err(refusal)),
        }
    }

    fn judge_end(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, state: &TransactionalId, request: &EndTxn) -> Verdict {
        let stage = self.transactions.by_id.get(id).and_then(|transaction| transaction.stage.as_ref());
        let tv2 = request.version >= END_TXN_TV2;
        if let Some(stage) = stage.filter(|stage| stage.is_live()) {
            let whole = stage.is_whole();
            if !request.commit || whole && !self.is_over_entry(id) {
                return Verdict::Propose;
            }
            self.doom(turn, id, if whole { Doom::OverBudget } else { Doom::Hole });
            return Verdict::Refused(Refusal::TransactionLost);
        }
        let clean = turn.machine.transactions().is_clean(id, state, turn.term);
        let lost = stage.is_some() || state.open_begin.is_some() || tv2 && !clean;
        if lost {
            return if request.commit { Verdict::Refused(Refusal::TransactionLost) } else { Verdict::Propose };
        }
        if tv2 {
            return if request.commit { Verdict::Refused(Refusal::InvalidTxnState) } else { Verdict::Propose };
        }
        // TV1 without a transaction: the retry of the last EndTxn of this epoch, or of one that never began.
        let last = state.last_end.filter(|last| last.epoch == request.producer.epoch).map(|last| last.result);
        let same = last.map_or(!request.commit, |last| last == result_of(request.commit));
        if same { Verdict::Done } else { Verdict::Refused(Refusal::InvalidTxnState) }
    }

    fn propose_end(
        &mut self,
        turn: &mut Turn<'_>,
        id: &Arc<str>,
        state: &TransactionalId,
        token: Token,
        request: &EndTxn,
    ) {
        let bump = request.version >= END_TXN_TV2;
        let transaction = self.transactions.entry(id);
        let stage = transaction.stage.as_ref();
        let mut held = Vec::new();
        let command = match stage.filter(|_| request.commit) {
            Some(stage) => {
                held.extend(stage.offsets.keys().cloned());
                Command::TxnCommit(stage.commit(id, bump))
            }
            None => Command::TxnAbort(TxnAbort {
                transactional_id: id.to_string(),
                producer: request.producer,
                begin: state.open_begin.map(|begin| begin.index),
                bump,
                skipped: stage.filter(|_| !bump).map(Stage::skipped).unwrap_or_default(),
                skips_unknown: !bump
                    && (state.open_begin.is_some_and(|begin| begin.term != turn.term)
                        || stage.is_some_and(|stage| stage.skips_unknown)),
            }),
        };
        self.transactions.stop_clock(id);
        held.iter().for_each(|group| self.groups.hold(group));
        let ticket = self.proposals.propose(turn, command, Purpose::Ending(id.clone()));
        let kind = EndingKind::End { producer: request.producer, commit: request.commit, bump };
        let ending = Ending { ticket, kind, waiters: vec![token], held, unknown: false };
        self.transactions.entry(id).ending = Some(ending);
    }

    /// An EndTxn or InitProducerId was applied.
    pub(super) fn ending_applied(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, ticket: Ticket, outcome: &Outcome) {
        let Some(ending) = self.take_ending(id, ticket) else { return };
        match ending.kind {
            EndingKind::Init => self.init_applied(turn, id, &ending, outcome),
            EndingKind::End { commit, .. } => self.end_applied(turn, id, &ending, commit, outcome),
        }
        self.release(turn, &ending);
        self.run_queue(turn, id);
    }

    fn end_applied(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, ending: &Ending, commit: bool, outcome: &Outcome) {
        let Outcome::Ended(result) = outcome else { unreachable!("an EndTxn entry has an Ended outcome") };
        let response = match *result {
            Ok(pair) => {
                let stage = self.close_stage(id);
                self.transactions.entry(id).handled = Some(pair);
                if commit {
                    self.stats.committed += 1;
                    self.stats.raft_entries += 1;
                } else if stage.is_some_and(|stage| stage.doomed != Some(Doom::TimedOut)) {
                    self.stats.aborted += 1;
                }
                Response::Ended(pair)
            }
            Err(refusal) => {
                // A no-op: nothing of it will ever be committed, and only an abort or InitProducerId ends it (T16).
                self.doom(turn, id, Doom::Refused);
                self.stats.fenced += u64::from(refusal == Refusal::ProducerFenced);
                Response::Refused(refusal)
            }
        };
        for token in &ending.waiters {
            turn.reply_applied(*token, response.clone());
        }
    }

    /// An EndTxn or InitProducerId is certainly not in the log: its stage is as before.
    pub(super) fn ending_discarded(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, ticket: Ticket) {
        let Some(ending) = self.take_ending(id, ticket) else { return };
        self.thaw(turn, id);
        self.forget_if_unknown(turn, id);
        for token in &ending.waiters {
            turn.reply(*token, Response::Refused(Refusal::NotLeader));
        }
        self.release(turn, &ending);
        self.run_queue(turn, id);
    }

    /// Its deadline passed: frozen until the fate is known or the term ends, and never proposed again (T5).
    pub(super) fn ending_unknown(&mut self, turn: &mut Turn<'_>, id: &Arc<str>, ticket: Ticket) {
        let ending = self.transactions.entry(id).ending.as_mut().filter(|ending| ending.ticket == ticket);
        let Some(ending) = ending else { return };
        ending.unknown = true;
        for token in std::mem::take(&mut ending.waiters) {
            turn.reply(token, Response::Refused(Refusal::FateUnknown));
        }
        self.refuse_queue(turn, id, Refusal::FateUnknown);
        self.answer_fetches(turn);
    }

    /// An InitProducerId that never was leaves nothing behind: ids that nobody knows would add up.
    fn forget_if_unknown(&mut self, turn: &Turn<'_>, id: &str) {
        let idle = |transaction: &super::transactions::Transaction| {
            transaction.stage.is_none() && transaction.queue.is_empty() && transaction.ending.is_none()
        };
        if turn.machine.transactions().get(id).is_none() && self.transactions.by_id.get(id).is_some_and(idle) {
            self.transactions.by_id.remove(id);
        }
    }

    fn take_ending(&mut self, id: &str, ticket: Ticket) -> Option<Ending> {
        let transaction = self.transactions.by_id.get_mut(id)?;
        transaction.ending.take_if(|ending| ending.ticket == ticket)
    }

    /// The fate is known: rebalances and OffsetFetches that waited for it go on.
    fn release(&mut self, turn: &mut Turn<'_>, ending: &Ending) {
        if ending.held.is_empty() {
            return;
        }
        for group in &ending.held {
            self.groups.release(turn.now, group, &mut turn.out);
        }
        self.answer_fetches(turn);
        self.follow_groups(turn);
    }
}

fn result_of(commit: bool) -> TxnResult {
    if commit { TxnResult::Commit } else { TxnResult::Abort }
}

/// TV2: an EndTxn that does not name the current pair may be the retry of the one that made it.
fn retry(state: Option<&TransactionalId>, request: &EndTxn) -> Result<ProducerIdAndEpoch, Refusal> {
    let state = state.ok_or(Refusal::InvalidProducerIdMapping)?;
    if state.previous == Some(request.producer) {
        let last = state.last_end.filter(|last| last.epoch == request.producer.epoch);
        // Without a last end the pair was bumped by InitProducerId: its holder is fenced.
        let last = last.ok_or(Refusal::ProducerFenced)?;
        let same = last.result == result_of(request.commit);
        return if same { Ok(state.producer) } else { Err(Refusal::InvalidTxnState) };
    }
    judge_pair(Some(state), request.producer).map(|state| state.producer)
}

fn confirmed(turn: &mut Turn<'_>, token: Token, answer: Result<ProducerIdAndEpoch, Refusal>) {
    let response = answer.map_or_else(Response::Refused, Response::Ended);
    turn.reply_confirmed(token, response);
}
