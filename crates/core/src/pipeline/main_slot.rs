//! The main slot (group M) and what is left over beside it (K-07): found, dropped, created, given
//! the failover property, and created again (group I). It is replaced only while nothing was offered
//! or a re-creation is recorded (U-I3).

use std::collections::VecDeque;

use super::startup::{StartupOp, StartupSave};
use super::{NOWHERE, Pipeline, Purpose, source_fault};
use crate::config::BLOCKER_REPORT;
use crate::effect::Work;
use crate::fault::{Fault, FaultKind, Origin};
use crate::input::Answer;
use crate::lsn::Position;
use crate::names;
use crate::notice::Notice;
use crate::policies::SlotLoss;
use crate::recreation;
use crate::slot_state;
use crate::source::{CreatedSlot, SlotFacts, SlotReport};
use crate::timers::Wakeup;

use super::attempt_steps::AttemptOp;

impl<R> Pipeline<R> {
    /// Whether the main slot is to be created again, by the record or by a decision of this run.
    pub(super) fn is_recreating(&self) -> bool {
        let record = self.ledger.record();
        let decided = self.recreate_wanted || self.recreate_decided;
        record.initial_lsn.is_some() && (record.recreate || decided)
    }

    /// U-08, P-04: a lost slot leads to group I if the policy says so; everything else is an error.
    pub(super) fn lost_in_startup(&mut self, fault: Fault) -> Result<(), Fault> {
        let lost =
            matches!(fault.kind, FaultKind::SlotMissing { .. } | FaultKind::SlotInvalidated { .. });
        let recreate = self.config.limits.policies.slot_loss == SlotLoss::Recreate;
        if lost && recreate {
            self.report(Notice::SlotLost { kind: fault.kind });
            self.recreate_decided = true;
            return Ok(());
        }
        Err(fault)
    }

    /// U-09, K-07: those of this main slot are dropped once they are inactive, foreign ones stay.
    pub(super) fn leftovers_listed(&mut self, slots: Vec<SlotFacts>) -> Result<(), Fault> {
        let database = self.config.database.clone();
        let prefix = names::copy_slot_prefix(&self.main_slot());
        let ours = slots.into_iter().filter(|slot| slot.name.starts_with(&prefix));
        let mut inactive = VecDeque::new();
        let mut busy = None;
        for slot in ours {
            if slot_state::foreign(&slot, &database).is_some() {
                if self.busy_since.is_some() {
                    // Said at the first look; this one is for a slot that is busy.
                    continue;
                }
                self.report(Notice::ForeignSlotLeft { slot: slot.name });
            } else if slot.active.is_some() {
                busy = Some(slot);
            } else {
                inactive.push_back(slot.name);
            }
        }
        if !inactive.is_empty() {
            self.go_on(StartupOp::DropLeftover { rest: inactive })
        } else if let Some(slot) = busy {
            self.wait_in_startup(&slot, StartupOp::ListLeftovers)
        } else {
            self.busy_since = None;
            self.go_on(StartupOp::List)
        }
    }

    pub(super) fn leftover_dropped(&mut self, mut rest: VecDeque<String>) {
        rest.pop_front();
        self.start_startup(if rest.is_empty() {
            StartupOp::ListLeftovers
        } else {
            StartupOp::DropLeftover { rest }
        });
    }

    /// Save R1, unless it was made before the process died (I-F2..I-F4).
    pub(super) fn begin_recreation(&mut self) {
        let slot = self.main_slot();
        self.report(Notice::Recreating { slot });
        let timeline = self.seen.as_ref().map_or(0, |seen| seen.timeline);
        let record = self.ledger.record();
        if record.recreate && record.identity.timeline == timeline {
            self.start_startup(StartupOp::InspectIntent);
        } else {
            self.ledger.edit_head(|record| recreation::begin(record, timeline));
            self.save_in_startup(StartupSave::Recreating);
        }
    }

    /// M-01, M-02, M-07: the name was random and saved first, so a slot of it is ours to replace.
    pub(super) fn intent_inspected(&mut self, report: &SlotReport) -> Result<(), Fault> {
        self.check_seen(&report.seen)?;
        let Some(slot) = &report.slot else {
            self.busy_since = None;
            return self.go_on(StartupOp::CheckCreate);
        };
        if let Some(kind) = slot_state::foreign(slot, &self.config.database) {
            return Err(source_fault(kind, ""));
        }
        if slot.active.is_some() {
            return self.wait_in_startup(slot, StartupOp::InspectIntent);
        }
        self.busy_since = None;
        self.go_on(StartupOp::CheckDrop)
    }

    /// M-05: save B of a new pipeline, save R2 of one whose slot was created again.
    pub(super) fn slot_created(&mut self, created: CreatedSlot) -> Result<(), Fault> {
        let initial = check_created(&created, &self.main_slot())?;
        let policies = self.config.limits.policies.clone();
        let again = self.ledger.record().recreate;
        self.report(Notice::MainSlotCreated { slot: created.slot, initial });
        self.horizon_offered = policies.slot_failover.then_some(initial);
        if again {
            self.note_exact_tables();
            self.ledger.edit_all(|record| recreation::finish(record, initial, &policies));
            self.save_in_startup(StartupSave::Recreated);
        } else {
            self.ledger.edit_head(|record| {
                record.initial_lsn = Some(initial);
                record.checkpoint = Some(initial);
                record.write_horizon = policies.slot_failover.then_some(initial);
            });
            self.save_in_startup(StartupSave::Initial);
        }
        Ok(())
    }

    /// U-12: the failover property and the horizon of a slot that exists.
    pub(super) fn settle_failover(&mut self) -> Result<(), Fault> {
        if !self.config.limits.policies.slot_failover {
            if self.ledger.record().write_horizon.is_some() {
                self.ledger.edit_head(|record| record.write_horizon = None);
            }
            self.horizon_offered = None;
            self.reconcile_and_save();
            return Ok(());
        }
        let facts = self.slot_report.as_ref().and_then(|report| report.slot.as_ref());
        if facts.is_some_and(|slot| !slot.failover) {
            return self.go_on(StartupOp::EnableFailover);
        }
        if self.ledger.record().write_horizon.is_none() {
            // Everything offered so far was read from this WAL.
            let end = self.slot_report.as_ref().map(|report| Position(report.wal_end));
            self.ledger.edit_head(|record| record.write_horizon = end);
            self.horizon_offered = end;
        }
        self.reconcile_and_save();
        Ok(())
    }

    /// M-09: only what was read back counts.
    pub(super) fn failover_enabled(&mut self, report: SlotReport) -> Result<(), Fault> {
        self.check_seen(&report.seen)?;
        self.judge_slot(&report)?;
        let slot = self.main_slot();
        if report.slot.as_ref().is_some_and(|facts| !facts.failover) {
            let message = format!("slot {slot} does not have the failover property it was given");
            return Err(source_fault(FaultKind::Protocol, message));
        }
        self.report(Notice::FailoverEnabled { slot });
        self.slot_report = Some(report);
        self.settle_failover()
    }

    /// Whether a slot is under creation, the main one or one of a copy.
    pub(super) fn is_a_slot_created(&self) -> bool {
        !self.slots_under_creation().is_empty()
    }

    fn slots_under_creation(&self) -> Vec<String> {
        let slot_of = |purpose: &Purpose| {
            if *purpose == Purpose::Startup(StartupOp::Create) {
                Some(self.main_slot())
            } else if let Purpose::Attempt { table, what: AttemptOp::OpenSnapshot, .. } = purpose {
                self.copies.get(table).map(|run| run.slot.clone())
            } else {
                None
            }
        };
        self.pending.values().filter_map(slot_of).collect()
    }

    /// M-06: who keeps slot creation waiting.
    pub(super) fn look_at_blockers(&mut self) {
        let asked = |slot: &String| {
            self.pending.values().any(|p| matches!(p, Purpose::Blockers { slot: s } if s == slot))
        };
        let slots = self.slots_under_creation();
        let due: Vec<_> = slots.iter().filter(|slot| !asked(slot)).cloned().collect();
        for slot in due {
            let budget = Some(self.config.limits.query_ms);
            let work = Work::ReadBlockers { slot: slot.clone() };
            self.start(Purpose::Blockers { slot }, budget, work);
        }
        if !slots.is_empty() {
            self.timers.set(Wakeup::Blockers, self.now.after(BLOCKER_REPORT));
        }
    }

    pub(super) fn blockers_completed(
        &mut self,
        slot: String,
        result: Result<Answer, Fault>,
    ) -> Result<(), ()> {
        match result {
            Ok(Answer::Blockers(blockers)) if blockers.is_empty() => Ok(()),
            Ok(Answer::Blockers(blockers)) => {
                self.report(Notice::SlotCreationWaits { slot, blockers });
                Ok(())
            }
            Ok(_) => Err(()),
            Err(fault) => {
                self.report(Notice::SideTaskFailed { task: "blockers of slot creation", fault });
                Ok(())
            }
        }
    }
}

/// M-05, K-09: the answer names what was asked for.
pub(super) fn check_created(created: &CreatedSlot, slot: &str) -> Result<Position, Fault> {
    if created.slot == slot && created.plugin == "pgoutput" && created.consistent > NOWHERE {
        return Ok(created.consistent);
    }
    let message = format!(
        "asked for slot {slot} with pgoutput, the server made {} with {} at {}",
        created.slot, created.plugin, created.consistent
    );
    Err(Fault::new(Origin::Source, FaultKind::Protocol, message))
}
