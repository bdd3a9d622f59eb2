//! How far the running copies are, for people (K-22).

use super::Pipeline;
use super::attempt_steps::Step;
use crate::config::COPY_MONITOR;
use crate::lsn::Position;
use crate::notice::Notice;
use crate::timers::Wakeup;

impl<R> Pipeline<R> {
    /// One report for each attempt that has a snapshot. The monitor of the main slot reads the
    /// server's WAL position; without its answer nothing is said.
    pub(super) fn report_copies(&mut self) {
        let Some(wal_end) = self.wal_end.filter(|_| self.life.is_running()) else { return };
        let has_snapshot = |step: Step| match step {
            Step::AwaitSave(_)
            | Step::SlotBusy
            | Step::Preparing
            | Step::BeginDue
            | Step::Beginning
            | Step::HandedOver(_)
            | Step::Ending
            | Step::Closing
            | Step::SlotLeft
            | Step::DroppingSlot => false,
            Step::Reading
            | Step::FinishDue
            | Step::Finishing
            | Step::FlushDue
            | Step::Flushing
            | Step::ClosingReaders
            | Step::Replaying => true,
        };
        let running = self.copies.values().filter(|run| has_snapshot(run.step));
        let notices: Vec<_> = running
            .map(|run| Notice::Copying {
                table: run.table,
                rows: run.rows_total(),
                bytes: run.bytes_total(),
                wal: Position(wal_end).0.bytes_past(run.cutoff.0),
            })
            .collect();
        notices.into_iter().for_each(|notice| self.report(notice));
    }

    pub(super) fn arm_copy_monitor(&mut self) {
        if self.copies.is_empty() || !self.life.is_running() {
            self.timers.clear(Wakeup::CopyMonitor);
        } else {
            self.timers.set_if_unset(Wakeup::CopyMonitor, self.now.after(COPY_MONITOR));
        }
    }
}
