//! Start-up finds another timeline (group P): everything before the save of P-07 only reads, and the
//! first refusal ends it. The judgements themselves are the pure functions of `promotion`.

use super::startup::{StartupOp, StartupSave};
use super::{Pipeline, source_fault};
use crate::fault::{Fault, FaultKind};
use crate::lsn::Position;
use crate::notice::Notice;
use crate::policies::PromotionLoss;
use crate::promotion;
use crate::slot_state::{self, SlotState};
use crate::source::{SlotReport, TimelineSwitch};

impl<R> Pipeline<R> {
    /// P-02, P-06.
    pub(super) fn history_read(
        &mut self,
        timeline: u32,
        history: &[TimelineSwitch],
    ) -> Result<(), Fault> {
        let record = self.ledger.record();
        let fork = promotion::fork(history, record.identity.timeline, timeline)
            .map_err(|kind| source_fault(kind, ""))?;
        if self.is_recreating() {
            // P-09: the first save of group I carries the new timeline.
            return self.identity_settled();
        }
        match promotion::is_safe(record, fork) {
            Ok(()) => self.go_on(StartupOp::InspectFork { timeline, fork }),
            Err(kind) => match self.config.limits.policies.promotion_loss {
                PromotionLoss::Reject => Err(source_fault(kind, "")),
                PromotionLoss::Resync => {
                    self.recreate_decided = true;
                    self.identity_settled()
                }
            },
        }
    }

    /// P-04, P-07.
    pub(super) fn fork_inspected(
        &mut self,
        report: SlotReport,
        timeline: u32,
        fork: Position,
    ) -> Result<(), Fault> {
        self.check_seen(&report.seen)?;
        if let Err(fault) = self.judge_fork_slot(&report, fork) {
            self.lost_in_startup(fault)?;
            return self.identity_settled();
        }
        let from = self.ledger.record().identity.timeline;
        self.ledger.edit_all(|record| promotion::follow(record, timeline, fork));
        self.save_in_startup(StartupSave::Promoted { from, fork });
        Ok(())
    }

    fn judge_fork_slot(&self, report: &SlotReport, fork: Position) -> Result<(), Fault> {
        let record = self.ledger.record();
        let (slot, database) = (&record.identity.slot, &record.identity.database);
        let limit = record.checkpoint.unwrap_or_default().min(fork);
        let before = record.initial_lsn.is_some_and(|initial| fork < initial);
        let facts = report.slot.as_ref().filter(|_| !before);
        match slot_state::inspect(slot, database, facts, limit) {
            SlotState::Unusable(kind) => Err(source_fault(kind, "")),
            SlotState::Healthy if facts.is_some_and(|facts| !facts.failover) => Err(source_fault(
                FaultKind::SlotForeign {
                    slot: slot.clone(),
                    field: "failover property",
                    expected: "on".to_owned(),
                    found: "off".to_owned(),
                },
                "",
            )),
            SlotState::Healthy => Ok(()),
        }
    }

    /// P-10: start-up goes on at U-07.
    pub(super) fn promoted(&mut self, from: u32, fork: Position) {
        let record = self.ledger.record();
        let (to, checkpoint) = (record.identity.timeline, record.checkpoint.unwrap_or_default());
        self.report(Notice::Promoted { from, to, fork, checkpoint });
        if let Err(fault) = self.identity_settled() {
            self.main_failed("following a promotion", fault);
        }
    }
}
