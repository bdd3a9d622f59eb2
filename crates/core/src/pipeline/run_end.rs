//! How a failed run ends: nothing is flushed, shut down or confirmed;
//! one last save gives back the try of each running attempt.

use super::life::Life;
use super::{Pipeline, Purpose};
use crate::effect::Effect;
use crate::fault::Fault;
use crate::notice::Outcome;
use crate::record::Phase;
use crate::timers::Wakeup;

#[derive(Debug)]
pub(super) struct Failure {
    action: &'static str,
    fault: Fault,
    last_save: bool,
}

impl<R> Pipeline<R> {
    /// Ends the run with a failure.
    pub(super) fn fail_run(&mut self, action: &'static str, fault: Fault) {
        if self.life.is_failing() || self.life.is_ended() {
            return;
        }
        self.life = Life::Failing(Failure { action, fault, last_save: false });
        // A failure in a stop still has to end within the stop's budget (L-I3).
        self.timers.clear_all_but(Wakeup::StopBudget);
        self.cancel_all_but_saves();
    }

    fn cancel_all_but_saves(&mut self) {
        for (&op, purpose) in &self.pending {
            if *purpose != Purpose::Save {
                self.effects.push_back(Effect::Cancel { op });
            }
        }
    }

    /// A save in flight is waited for: its result decides what the last one may say.
    pub(super) fn settle_failure(&mut self) -> bool {
        let Life::Failing(failure) = &mut self.life else { return false };
        if self.ledger.is_saving() {
            return false;
        }
        let first = !core::mem::replace(&mut failure.last_save, true);
        if first && !self.ledger.poisoned() && self.give_back_tries() {
            self.save();
            return true;
        }
        self.end_failed()
    }

    /// Ends a failing run with its own cause; whether it was failing.
    pub(super) fn end_failed(&mut self) -> bool {
        if !self.life.is_failing() {
            return false;
        }
        let life = core::mem::replace(&mut self.life, Life::Ended);
        if let Life::Failing(Failure { action, fault, .. }) = life {
            self.end(Outcome::Failed { action, fault });
        }
        true
    }

    /// The one place where a run ends; nothing follows.
    pub(super) fn end(&mut self, outcome: Outcome) {
        self.life = Life::Ended;
        self.timers.clear_all();
        self.effects.push_back(Effect::Ended(outcome));
    }

    /// Prepares the last save: what is persisted, with every attempt of this run given back.
    fn give_back_tries(&mut self) -> bool {
        let Some(persisted) = self.ledger.persisted() else { return false };
        let running: Vec<_> = self
            .copies
            .iter()
            .filter(|(table, run)| {
                persisted.tables.get(table).is_some_and(|entry| {
                    entry.phase == Phase::Copying && entry.attempt == Some(run.number)
                })
            })
            .map(|(&table, _)| table)
            .collect();
        // An attempt that failed and whose end is not saved yet did fail: its try is used up.
        let failed: Vec<_> = (self.ledger.record().tables.iter())
            .filter(|(_, entry)| matches!(entry.phase, Phase::Errored { .. }))
            .filter(|(table, entry)| {
                persisted.tables.get(table).is_some_and(|persisted| {
                    persisted.phase == Phase::Copying && persisted.attempt == entry.attempt
                })
            })
            .map(|(&table, entry)| (table, entry.phase.clone()))
            .collect();
        if (running.is_empty() && failed.is_empty()) || !self.ledger.revert_to_persisted() {
            return false;
        }
        for table in running {
            self.ledger.edit_table(table, |entry| {
                entry.phase = Phase::Pending;
                entry.tries = entry.tries.saturating_sub(1);
            });
        }
        for (table, phase) in failed {
            self.ledger.edit_table(table, |entry| entry.phase = phase);
        }
        true
    }
}
