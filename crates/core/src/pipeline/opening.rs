//! Everything that must hold before the main stream opens, at start-up and at each
//! re-opening: a refusal sends neither a start nor feedback and leaves the record untouched.

use core::time::Duration;

use super::life::Life;
use super::reopen::ReopenOp;
use super::startup::StartupOp;
use super::{NOWHERE, Pipeline, source_fault};
use crate::config::BUSY_SLOT_POLL;
use crate::fault::{Fault, FaultKind};
use crate::notice::Notice;
use crate::slot_state::{self, SlotState};
use crate::source::{SlotFacts, SlotReport, SourceSeen};
use crate::timers::Wakeup;

/// Whether the stream may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    Free,
    /// Somebody holds the slot: it is looked at again.
    Busy,
}

impl<R> Pipeline<R> {
    /// S-06: every further connection must reach the run's source.
    pub(super) fn check_seen(&self, found: &SourceSeen) -> Result<(), Fault> {
        let failover = self.config.limits.policies.slot_failover;
        let differs =
            self.seen.as_ref().and_then(|seen| slot_state::differs(seen, found, failover));
        differs.map_or(Ok(()), |kind| Err(source_fault(kind, "")))
    }

    /// M-12, against the persisted checkpoint.
    pub(super) fn judge_slot(&self, report: &SlotReport) -> Result<(), Fault> {
        let record = self.ledger.record();
        let (slot, database) = (&record.identity.slot, &record.identity.database);
        let checkpoint = self.ledger.persisted_checkpoint().unwrap_or(NOWHERE);
        match slot_state::inspect(slot, database, report.slot.as_ref(), checkpoint) {
            SlotState::Healthy => Ok(()),
            SlotState::Unusable(kind) => Err(source_fault(kind, "")),
        }
    }

    ///
    pub(super) fn check_opening(&mut self, report: &SlotReport) -> Result<Opening, Fault> {
        self.check_seen(&report.seen)?;
        self.judge_slot(report)?;
        let checkpoint = self.main.started_at;
        if report.wal_end < checkpoint.0 {
            let kind = FaultKind::CheckpointAhead { found: report.wal_end, checkpoint };
            return Err(source_fault(kind, ""));
        }
        if report.publication.is_none() {
            let name = self.config.publication.clone();
            return Err(source_fault(FaultKind::PublicationMissing { name }, ""));
        }
        if report.publication != self.listing.as_ref().map(|listing| listing.publication) {
            // T-11: made again since the last listing, whose successor finds all stamps changed.
            self.listing_is_stale = true;
        }
        if let Some(slot) = report.slot.as_ref().filter(|slot| slot.active.is_some()) {
            self.wait_for_busy_slot(slot)?;
            return Ok(Opening::Busy);
        }
        self.busy_since = None;
        Ok(Opening::Free)
    }

    /// M-01: a slot held by another session is looked at again and again; its holder is named and
    /// never ended.
    pub(super) fn wait_for_busy_slot(&mut self, slot: &SlotFacts) -> Result<(), Fault> {
        let budget = Duration::from_millis(self.config.limits.slot_busy_ms);
        let since = *self.busy_since.get_or_insert(self.now);
        let holder = slot.active.clone();
        if self.now.since(since) >= budget {
            self.busy_since = None;
            let who = holder.map_or_else(String::new, |holder| {
                format!(" by pid {} ({})", holder.pid, holder.application)
            });
            let message = format!("replication slot {} is held{who}", slot.name);
            return Err(source_fault(FaultKind::Timeout { budget }, message));
        }
        if let Some(holder) = holder.filter(|_| since == self.now) {
            self.report(Notice::SlotBusy { slot: slot.name.clone(), holder });
        }
        self.timers.set(Wakeup::BusySlot, self.now.after(BUSY_SLOT_POLL));
        Ok(())
    }

    pub(super) fn look_at_busy_slot(&mut self) {
        match self.life {
            Life::Starting => self.start_startup(self.busy_step.clone()),
            Life::Reopening(_) => self.start_reopen(ReopenOp::Inspect),
            Life::Saving(_)
            | Life::Waiting(_)
            | Life::Running
            | Life::Leaving(_)
            | Life::Stopping(_)
            | Life::Failing(_)
            | Life::Ended => (),
        }
    }

    /// Start-up waits for a busy slot at this step.
    pub(super) fn wait_in_startup(
        &mut self,
        slot: &SlotFacts,
        step: StartupOp,
    ) -> Result<(), Fault> {
        self.busy_step = step;
        self.wait_for_busy_slot(slot)
    }
}
