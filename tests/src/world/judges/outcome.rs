//! What must hold when a process has ended by itself (Q-I1, L-I1, K-I4), and which ends are allowed.

use walferry_core::fault::FaultKind;
use walferry_core::ids::Lane;
use walferry_core::notice::Outcome;
use walferry_core::policies::SlotLoss;
use walferry_core::record::Phase;

use crate::coverage::reached;
use crate::world::{Process, World};

impl World {
    /// Judges a run that ends in whatever way.
    ///
    /// # Panics
    /// If it has changed what it may not.
    pub(in crate::world) fn judge_end(&mut self, outcome: &Outcome) {
        let Some(process) = &self.process else { return };
        process.watch.judge_stop(self.now(), &self.config.limits, self.last_advance);
        if process.watch.stop.is_some() {
            reached("L-I3");
        }
        let Outcome::Failed { fault, .. } = outcome else { return };
        let before = process.watch.at_identify.as_ref();
        if is_refused_promotion(&fault.kind) && before.is_some() {
            assert_eq!(self.store.persisted(), before, "a refused promotion saves (P-I4)");
            reached("P-I4");
        }
        let reject = self.config.limits.policies.slot_loss == SlotLoss::Reject;
        if reject && is_slot_loss(&fault.kind) {
            let pending = fault.kind == FaultKind::RecreationPending;
            let flag = self.store.persisted().is_some_and(|record| record.recreate);
            assert_eq!(pending, flag, "{} with a re-creation begun: {flag} (I-I3)", fault.kind);
            reached("I-I3");
            self.hit(pending.then_some("I-F6"));
        }
    }

    /// Judges an orderly stop.
    ///
    /// # Panics
    /// If something is left over.
    pub(in crate::world) fn judge_stopped(&self, process: &Process) {
        assert!(process.working.is_empty(), "stopped with work in flight (L-I1)");
        reached("L-I1");
        let owed = self.destination.owing_knowingly().contains(&Lane::Main);
        assert!(!owed, "stopped with accepted work on main (Q-02)");
        assert!(!self.destination.is_started(), "stopped without shutdown (Q-03)");
        let slots = self.source.slots.values().filter(|slot| slot.temporary).count();
        assert_eq!(slots, 0, "copy slots after an orderly stop (K-I4)");
        let Some(record) = self.store.persisted() else { return };
        if record.epoch.0 <= process.loaded_epoch {
            return;
        }
        let copying = record.tables.values().any(|entry| entry.phase == Phase::Copying);
        assert!(!copying || !process.watch.reconciled, "stopped with a table in Copying (Q-01)");
        let Some(checkpoint) = record.checkpoint else { return };
        let behind = record.tables.values().any(
            |entry| matches!(entry.phase, Phase::Catchup { handover } if handover <= checkpoint),
        );
        assert!(!behind, "stopped in Catchup below the checkpoint (Q-I1)");
        if self.config.limits.policies.slot_failover && !record.recreate {
            let offered = process.watch.offered;
            assert!(record.write_horizon >= offered, "the horizon is not exact (Q-I1)");
        }
        reached("Q-I1");
        if process.watch.stop.is_some_and(|(_, copies)| copies) {
            // The copy that was alive has held nobody up.
            reached("Q-I3");
        }
    }
}

fn is_refused_promotion(kind: &FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::HorizonBeyondFork { .. } | FaultKind::IdentityMismatch { field: "timeline", .. }
    )
}

const fn is_slot_loss(kind: &FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::SlotMissing { .. }
            | FaultKind::SlotInvalidated { .. }
            | FaultKind::RecreationPending
    )
}
