//! Who is copied next (K-01), and how an attempt ends for the record (K-23, Y-06).

use super::Pipeline;
use super::attempt::CopyRun;
use crate::config::REWRITE_GUARD_REPEATS;
use crate::fault::{Fault, FaultKind};
use crate::ids::{Attempt, TableId};
use crate::ledger::Version;
use crate::notice::Notice;
use crate::record::{Phase, Policy};
use crate::retry::{self, Decision, Place};

use super::main_retry::least_delay;
use super::source_fault;

impl<R> Pipeline<R> {
    /// K-01: a free copy place takes the oldest job whose Pending is saved (T-I3) and whose table
    /// has no living attempt (T-I2).
    pub(super) fn settle_jobs(&mut self) -> bool {
        let places = usize::try_from(self.config.limits.copy_concurrency).unwrap_or(usize::MAX);
        if !self.life.is_running() || self.copies.len() >= places {
            return false;
        }
        let ready = |&(table, version): &(TableId, Version)| {
            self.ledger.has_persisted(version)
                && !self.copies.contains_key(&table)
                && !self.is_left_slot_dropped(table)
        };
        let Some(place) = self.jobs.iter().position(ready) else { return false };
        let Some((table, _)) = self.jobs.remove(place) else { return false };
        let previous = match self.ledger.table(table) {
            Some(entry) if entry.phase == Phase::Pending => entry.attempt,
            Some(_) | None => return true,
        };
        let number = Attempt(self.ledger.record().attempt_seq + 1);
        self.ledger.edit_head(|record| record.attempt_seq = number.0);
        self.ledger.edit_table(table, |entry| {
            entry.phase = Phase::Copying;
            entry.attempt = Some(number);
            entry.tries += 1;
        });
        let mode = self.copy_mode(table, previous);
        let slot = self.copy_slot_name(table, number);
        let run = CopyRun::new(table, number, mode, slot, self.ledger.version());
        self.copies.insert(table, run);
        self.report(Notice::CopyStarted { table, attempt: number });
        true
    }

    /// copies are cancelled, their try is given back. One that has handed over only waits for
    /// its save.
    pub(super) fn end_attempts_for_stop(&mut self) {
        for table in self.copies.keys().copied().collect::<Vec<_>>() {
            let Some(mut run) = self.copies.remove(&table) else { continue };
            if !run.is_over() {
                self.end_without_blame(&mut run);
            }
            self.copies.insert(table, run);
        }
    }

    /// Y-10: the try is given back and the table is queued again.
    pub(super) fn end_without_blame(&mut self, run: &mut CopyRun<R>) {
        let table = run.table;
        self.ledger.edit_table(table, |entry| {
            entry.phase = Phase::Pending;
            entry.tries = entry.tries.saturating_sub(1);
        });
        self.queue(table);
        self.cancel_attempt(run);
    }

    /// K-27: a table that was rewritten between its snapshot and its lock starts again at once; one
    /// that always is must surface.
    pub(super) fn rewritten(&mut self, run: &mut CopyRun<R>) {
        let repeats = self.guard_repeats.entry(run.table).or_default();
        *repeats += 1;
        let (repeats, table) = (*repeats, run.table);
        self.report(Notice::RewriteGuard { table, repeats });
        if repeats < REWRITE_GUARD_REPEATS {
            self.end_without_blame(run);
        } else {
            self.guard_repeats.remove(&table);
            let message = format!(
                "the table was truncated, rewritten or altered before it could be locked, \
                 {repeats} times in a row"
            );
            // 55006, object in use: transient, so that a later attempt may find it calm
            let code = crate::fault::SqlState(*b"55006");
            self.fail_attempt(run, source_fault(FaultKind::Server { code }, message));
        }
    }

    /// K-23: what the failure of an attempt does beyond it.
    pub(super) fn fail_attempt(&mut self, run: &mut CopyRun<R>, fault: Fault) {
        let tries = self.ledger.table(run.table).map_or(1, |entry| entry.tries);
        let policy = match retry::decide_fault(&fault, Place::Attempt) {
            Decision::Stopped => {
                self.end_without_blame(run);
                return;
            }
            Decision::Promotion => {
                self.end_without_blame(run);
                self.timeline_changed("copying a table", fault);
                return;
            }
            Decision::EndRun | Decision::SlotLoss | Decision::Repeat => {
                self.fail_run("copying a table", fault);
                return;
            }
            Decision::Retry if u64::from(tries) <= self.config.limits.retries_max => Policy::Timed,
            Decision::Retry => Policy::Manual,
            Decision::Errored(policy) => policy,
        };
        self.err_attempt(run, fault.to_string(), policy, Some(fault));
    }

    /// The table stops, by the failure of an operation or for a reason found here.
    pub(super) fn err_attempt(
        &mut self,
        run: &mut CopyRun<R>,
        reason: String,
        policy: Policy,
        fault: Option<Fault>,
    ) {
        let table = run.table;
        self.ledger.edit_table(table, |entry| entry.phase = Phase::errored(&reason, policy));
        let asked = fault.as_ref().and_then(|fault| least_delay(&fault.kind)).unwrap_or_default();
        let timed = policy == Policy::Timed;
        let retry_in = if timed { self.wait_for_retry(table, asked) } else { None };
        self.adoptions.settled(table);
        self.report(Notice::TableErrored { table, reason, policy, retry_in, fault });
        self.cancel_attempt(run);
    }
}
