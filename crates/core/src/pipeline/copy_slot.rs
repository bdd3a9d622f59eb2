//! The persistent copy slot of a table with slot failover (K-05, K-07): removed if one is left, made,
//! and removed on every exit. Without failover the slot is temporary and goes with its session.

use core::time::Duration;

use super::attempt::CopyRun;
use super::attempt_steps::{AttemptOp, Step};
use super::{Pipeline, Purpose, source_fault};
use crate::config::{BLOCKER_REPORT, BUSY_SLOT_POLL};
use crate::effect::Work;
use crate::fault::{Fault, FaultKind, SqlState};
use crate::ids::{Attempt, TableId};
use crate::input::Answer;
use crate::names;
use crate::notice::Notice;
use crate::slot_state;
use crate::source::SlotReport;
use crate::time::Instant;
use crate::timers::Wakeup;

/// The slot is held by a session that is about to end: it is looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Busy {
    /// First seen so.
    since: Instant,
    /// Next look.
    at: Instant,
}

/// Object in use: the slot is active.
const ACTIVE: SqlState = SqlState(*b"55006");

impl<R> Pipeline<R> {
    /// N-04, N-05.
    pub(super) fn copy_slot_name(&self, table: TableId, attempt: Attempt) -> String {
        let main = self.main_slot();
        if self.config.limits.policies.slot_failover {
            names::failover_copy_slot(&main, table)
        } else {
            names::copy_slot(&main, attempt)
        }
    }

    /// The first step of an attempt at the source.
    pub(super) fn begin_snapshot(&mut self, run: &mut CopyRun<R>) {
        run.step = Step::Preparing;
        // Whoever ends the attempt from here on has to remove it.
        run.leaves_slot = self.left_slots.remove(&run.table);
        if self.config.limits.policies.slot_failover {
            self.inspect_copy_slot(run);
        } else {
            self.open_snapshot(run);
        }
    }

    fn inspect_copy_slot(&mut self, run: &mut CopyRun<R>) {
        let slot = run.slot.clone();
        let budget = Some(self.config.limits.query_ms);
        self.start_in_attempt(run, AttemptOp::InspectSlot, budget, Work::InspectSlot { slot });
    }

    pub(super) fn open_snapshot(&mut self, run: &mut CopyRun<R>) {
        let (table, attempt, slot) = (run.table, run.number, run.slot.clone());
        let failover = self.config.limits.policies.slot_failover;
        run.leaves_slot = failover;
        let budget = Some(self.config.limits.slot_creation_ms);
        self.timers.set_if_unset(Wakeup::Blockers, self.now.after(BLOCKER_REPORT));
        let work = Work::OpenSnapshot { table, attempt, slot, failover };
        self.start_in_attempt(run, AttemptOp::OpenSnapshot, budget, work);
    }

    /// K-07: only ours is removed, once nobody holds it.
    pub(super) fn copy_slot_inspected(
        &mut self,
        run: &mut CopyRun<R>,
        report: &SlotReport,
    ) -> Result<(), Fault> {
        self.check_seen(&report.seen)?;
        let Some(slot) = &report.slot else {
            self.open_snapshot(run);
            return Ok(());
        };
        run.leaves_slot = true;
        if let Some(kind) = slot_state::foreign(slot, &self.config.database) {
            run.leaves_slot = false;
            self.report(Notice::ForeignSlotLeft { slot: slot.name.clone() });
            return Err(source_fault(kind, ""));
        }
        if let Some(holder) = slot.active.clone() {
            let (slot, first) = (slot.name.clone(), run.busy.is_none());
            let budget = Duration::from_millis(self.config.limits.slot_busy_ms);
            if !self.wait_for_copy_slot(run, Step::SlotBusy, budget) {
                let message = format!("copy slot {slot} is held by pid {}", holder.pid);
                return Err(source_fault(FaultKind::Timeout { budget }, message));
            }
            if first {
                self.report(Notice::SlotBusy { slot, holder });
            }
            return Ok(());
        }
        run.busy = None;
        let slot = run.slot.clone();
        let budget = Some(self.config.limits.query_ms);
        self.start_in_attempt(run, AttemptOp::RemoveSlot, budget, Work::DropSlot { slot });
        Ok(())
    }

    /// Sets the next look at an active slot; `false` once the budget is used up.
    fn wait_for_copy_slot(&mut self, run: &mut CopyRun<R>, step: Step, budget: Duration) -> bool {
        let since = run.busy.map_or(self.now, |busy| busy.since);
        if self.now.since(since) >= budget {
            return false;
        }
        let at = self.now.after(BUSY_SLOT_POLL);
        run.busy = Some(Busy { since, at });
        run.step = step;
        self.timers.set(Wakeup::Copy(run.table), at);
        true
    }

    fn is_look_due(&self, run: &CopyRun<R>) -> bool {
        run.busy.is_none_or(|busy| self.now >= busy.at)
    }

    pub(super) fn look_at_copy_slot(&mut self, run: &mut CopyRun<R>) -> bool {
        let due = self.is_look_due(run);
        if due {
            run.step = Step::Preparing;
            self.inspect_copy_slot(run);
        }
        due
    }

    /// K-05: after every connection of the attempt has ended.
    pub(super) fn drop_copy_slot(&mut self, run: &mut CopyRun<R>) -> bool {
        let due = self.is_look_due(run);
        if due {
            run.step = Step::DroppingSlot;
            let slot = run.slot.clone();
            let budget = Some(self.config.limits.query_ms);
            self.start_in_attempt(run, AttemptOp::DropSlot, budget, Work::DropSlot { slot });
        }
        due
    }

    /// Whether the attempt has ended. The server may need a moment to see that the session is gone; a
    /// slot that stays is reported and left to the next start (U-09).
    pub(super) fn copy_slot_dropped(
        &mut self,
        run: &mut CopyRun<R>,
        result: Result<Answer, Fault>,
    ) -> bool {
        let Err(fault) = result else { return true };
        let limits = &self.config.limits;
        // A stop must not wait for it as long as a start may.
        let most = if self.life.is_stopping() { limits.stop_ms / 4 } else { limits.slot_busy_ms };
        let budget = Duration::from_millis(limits.slot_busy_ms.min(most));
        let active = fault.kind == FaultKind::Server { code: ACTIVE };
        if active && self.wait_for_copy_slot(run, Step::SlotLeft, budget) {
            return false;
        }
        self.report(Notice::SideTaskFailed { task: "removing a copy slot", fault });
        self.left_slots.insert(run.table);
        true
    }

    /// K-05: a slot that could not be removed keeps WAL at the server, so it is tried again with
    /// each look at the main slot.
    pub(super) fn drop_left_slots(&mut self) {
        for table in self.left_slots.clone() {
            if !self.copies.contains_key(&table) && !self.is_left_slot_dropped(table) {
                let slot = names::failover_copy_slot(&self.main_slot(), table);
                let budget = Some(self.config.limits.query_ms);
                self.start(Purpose::DropLeft { table }, budget, Work::DropSlot { slot });
            }
        }
    }

    /// Whether such a removal is under way: a new attempt, whose slot has the same name, waits.
    pub(super) fn is_left_slot_dropped(&self, table: TableId) -> bool {
        self.pending.values().any(|purpose| *purpose == Purpose::DropLeft { table })
    }

    pub(super) fn left_slot_dropped(&mut self, table: TableId, result: Result<Answer, Fault>) {
        match result {
            Ok(_) => {
                self.left_slots.remove(&table);
            }
            Err(fault) if self.life.is_running() => {
                self.report(Notice::SideTaskFailed { task: "removing a copy slot", fault });
            }
            Err(_) => (),
        }
    }
}
