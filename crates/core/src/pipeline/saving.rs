//! Saves: when one is emitted, and what its completion sets free (R-08..R-11, C-10, X-12).

use super::{Pipeline, Purpose};
use crate::effect::Work;
use crate::fault::Fault;
use crate::ids::StreamId;
use crate::input::Answer;
use crate::violation::Violation;

impl<R> Pipeline<R> {
    /// C-10: at most one save in flight; what becomes dirty meanwhile goes into the next one.
    pub(super) fn settle_save(&mut self) -> bool {
        let due = self.life.has_started()
            && self.ledger.is_dirty()
            && !self.ledger.is_saving()
            && !self.ledger.poisoned();
        if due {
            self.save();
        }
        due
    }

    pub(super) fn save(&mut self) {
        self.make_horizon_exact();
        let (record, changed) = self.ledger.begin_save();
        let valid = if changed.head || changed.tables { record.validate() } else { Ok(()) };
        assert!(valid.is_ok(), "a record that breaks its own rules: {valid:?}");
        let budget = Some(self.config.limits.store_ms);
        self.start(Purpose::Save, budget, Work::Save { record, changed });
    }

    pub(super) fn save_completed(
        &mut self,
        result: Result<Answer, Fault>,
    ) -> Result<(), Violation> {
        match result {
            Ok(_) => {
                let before = self.ledger.persisted_checkpoint();
                self.ledger.saved();
                self.main_budget.saved(self.ledger.persisted_checkpoint());
                if self.ledger.persisted_checkpoint() > before {
                    self.checkpoint_saved_at = self.now;
                }
                self.prune_schemas();
                self.startup_saved();
                self.confirm_if_moved();
            }
            Err(fault) => {
                self.ledger.failed();
                self.fail_run("saving the state", fault);
            }
        }
        Ok(())
    }

    /// feedback at once after a save that moved the checkpoint.
    fn confirm_if_moved(&mut self) {
        let moved = self.ledger.persisted_checkpoint().is_some_and(|at| at > self.main.confirmed);
        if self.main.open && moved && !self.life.is_failing() {
            self.confirm(StreamId::Main, false);
        }
    }
}
