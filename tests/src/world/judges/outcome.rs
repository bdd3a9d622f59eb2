//! What must hold when a process has ended by itself (Q-I1, L-I1, K-I4), and which ends are allowed.

use walferry_core::ids::Lane;
use walferry_core::record::Phase;

use crate::coverage::reached;
use crate::world::{Process, World};

impl World {
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
    }
}
