//! What must hold when the core asks for work: the order of start-up, what was saved before, and who
//! owns what.

use walferry_core::batch::{Batch, ChangeBody, CopyStart};
use walferry_core::config::Until;
use walferry_core::effect::Work;
use walferry_core::ids::{Attempt, Lane, StreamId, TableId};
use walferry_core::policies::{PromotionLoss, SlotLoss};
use walferry_core::record::{Phase, Record};

use super::lanes::check_size;
use crate::coverage::reached;
use crate::world::World;
use crate::world::row::Row;
use crate::world::target::check_owner;

impl World {
    /// Judges work as it begins.
    ///
    /// # Panics
    /// If it may not begin now.
    pub(in crate::world) fn judge_work(&mut self, work: &Work<Row>) {
        match work {
            Work::Save { record, .. } => {
                self.judge_save(record);
                self.judge_boundary(record);
                self.judge_fork(record);
            }
            Work::BeginCopy(start) => self.judge_begin(start),
            Work::WriteChanges(batch) => self.judge_batch(batch),
            Work::WriteRows(_) | Work::FinishCopy { .. } | Work::Flush { .. } => {
                self.judge_offer();
            }
            Work::OpenSnapshot { table, attempt, .. } => {
                let saved = self.is_copying(*table, *attempt);
                assert!(saved, "a snapshot before Copying is saved (K-01)");
                let mut others = self.source.snapshots.keys();
                let alive = others.any(|(other, _)| other == table);
                assert!(!alive, "two attempts of {table} live (T-I2)");
                reached("T-I2");
            }
            Work::DropSlot { slot } => self.judge_drop(slot),
            Work::CreateSlot { slot, .. } => self.judge_creation(slot),
            Work::CloseReaders { table, attempt } => {
                let target = self.destination.durable.get(table);
                let whole = target.is_some_and(|t| t.attempt == *attempt && t.finished);
                assert!(whole, "the readers of {table} end before its rows are durable (DS-I4)");
            }
            Work::Startup { .. } => {
                let Some(process) = &self.process else { return };
                assert!(process.watch.identified, "startup before the identity (S-I1)");
                assert!(process.watch.reconciled, "startup before save C (U-I1)");
                assert!(process.watch.openings > 0, "startup before the stream is open (U-I1)");
                reached("S-I1");
                reached("U-I1");
            }
            Work::OpenStream { stream: StreamId::Main, slot, from, .. } => {
                let Some(record) = self.store.persisted() else {
                    panic!("a stream without a record (U-17)")
                };
                assert_eq!(*slot, record.identity.slot, "another slot than the recorded one");
                assert_eq!(Some(*from), record.checkpoint, "it starts at the checkpoint (A-01)");
                assert!(!record.recreate, "a stream before save R2 (I-07)");
                self.judge_reopening();
            }
            Work::Identify
            | Work::ListPublication
            | Work::InspectSlot { .. }
            | Work::ListSlots { .. }
            | Work::ReadBlockers { .. }
            | Work::CheckOwner
            | Work::ReadTimelineHistory { .. }
            | Work::EnableFailover { .. }
            | Work::DescribeTable { .. }
            | Work::WriteHeartbeat { .. }
            | Work::ReadWalPosition
            | Work::Monitor { .. }
            | Work::OpenStream { stream: StreamId::Copy(_), .. }
            | Work::CloseStream { .. }
            | Work::OpenReader { .. }
            | Work::ReadSchema { .. }
            | Work::ReadRange { .. }
            | Work::CloseCopy { .. }
            | Work::Shutdown => (),
        }
    }

    fn judge_begin(&self, start: &CopyStart) {
        self.judge_offer();
        assert!(
            self.is_copying(start.table, start.attempt),
            "begin_copy before Copying is saved (K-I1)"
        );
        reached("K-I1");
        if let Some(cutoff) = self.source.cutoff(start.table, start.attempt) {
            assert_eq!(start.cutoff, cutoff, "the cutoff is the one of the snapshot (K-09)");
            let initial = self.store.persisted().and_then(|record| record.initial_lsn);
            assert!(Some(cutoff) >= initial, "a snapshot from before the slot (K-I3)");
            reached("K-I3");
        }
        self.judge_no_main_write(start.table);
    }

    fn is_copying(&self, table: TableId, attempt: Attempt) -> bool {
        let entry = self.store.persisted().and_then(|record| record.tables.get(&table));
        entry.is_some_and(|e| e.phase == Phase::Copying && e.attempt == Some(attempt))
    }

    fn judge_save(&self, record: &Record) {
        let loaded = self.process.as_ref().map_or(0, |process| process.loaded_epoch);
        assert_eq!(record.epoch.0, loaded + 1, "each run raises the epoch once (U-13)");
        if !self.config.limits.policies.slot_failover {
            assert_eq!(record.write_horizon, None, "a horizon with failover off (X-I2)");
            reached("X-I2");
        }
        self.judge_horizon(record);
    }

    /// C-I5: a checkpoint never lies inside a transaction.
    fn judge_boundary(&self, record: &Record) {
        // Save R1 of a resync carries the new timeline and the checkpoint of the old one (P-09).
        let Some(checkpoint) = record.checkpoint.filter(|_| !record.recreate) else { return };
        let Some(source) = self.source.on_timeline(record.identity.timeline) else { return };
        let inside = source.transaction_around(checkpoint).map(|found| found.commit);
        assert_eq!(inside, None, "the checkpoint {checkpoint} is inside a transaction (C-I5)");
        if record.checkpoint > record.initial_lsn {
            reached("C-I5");
        }
    }

    /// P-I3: a promotion lowers the checkpoint to the fork, if it was above.
    fn judge_fork(&self, record: &Record) {
        let Some(before) = self.store.persisted() else { return };
        let from = before.identity.timeline;
        if record.identity.timeline == from || record.recreate || before.initial_lsn.is_none() {
            return;
        }
        let Some(source) = self.source.on_timeline(record.identity.timeline) else { return };
        let fork = source.switches.iter().find(|switch| switch.parent == from);
        let wanted = before.checkpoint.min(fork.map(|switch| switch.at));
        assert_eq!(record.checkpoint, wanted, "the checkpoint behind a promotion (P-I3)");
        reached("P-I3");
    }

    /// X-I1: from a main-lane write on the persisted horizon covers it, also after later saves.
    fn judge_horizon(&self, record: &Record) {
        let Some(process) = &self.process else { return };
        if !self.config.limits.policies.slot_failover || record.recreate {
            return;
        }
        if let Some(offered) = process.watch.offered {
            assert!(
                record.write_horizon >= Some(offered),
                "horizon {:?} is below what was offered, {offered} (X-I1)",
                record.write_horizon
            );
            reached("X-I1");
        }
    }

    fn judge_offer(&self) {
        let recreating = self.store.persisted().is_some_and(|record| record.recreate);
        assert!(!recreating, "a data call before save R2 (I-07, I-I4)");
        reached("I-I4");
    }

    /// K-16.
    fn judge_no_main_write(&self, table: TableId) {
        let Some(process) = &self.process else { return };
        let writes = process.working.values().any(|running| {
            matches!(&running.work, Work::WriteChanges(batch) if batch.lane == Lane::Main
                && changed(batch).any(|found| found == table))
        });
        assert!(!writes, "begin_copy of {table} beside a main write of it (K-16, DS-I2)");
        reached("K-16");
    }

    fn judge_batch(&mut self, batch: &Batch<Row>) {
        self.judge_offer();
        check_size(batch, &self.config.limits, self.event_bytes);
        let Some(process) = &mut self.process else { return };
        process.watch.judge_order(batch);
        check_owner(batch, |table| process.handovers.get(&table).copied());
        for entry in &batch.tables {
            let has_changes = changed(batch).any(|table| table == entry.table);
            let begun = self.destination.visible.get(&entry.table).map(|target| target.attempt);
            let current = !has_changes || begun == Some(entry.attempt);
            assert!(current, "events of attempt {} after {begun:?} (DS-I2, X-15)", entry.attempt);
        }
        reached("DS-I2");
        if batch.lane != Lane::Main {
            reached("W-I1");
            return;
        }
        reached("DS-I5");
        reached("X-I5");
        // of the last transaction with something left.
        let last =
            batch.changes.last().map(|change| &batch.transactions[change.transaction as usize]);
        let value = last.map(|part| part.end.unwrap_or_else(|| part.commit.after_start()));
        process.watch.offered = process.watch.offered.max(value);
        if self.config.limits.policies.slot_failover {
            let persisted = self.store.persisted().and_then(|record| record.write_horizon);
            assert!(persisted >= value, "offered {value:?} above the horizon {persisted:?} (X-I1)");
            if let Some(saving) = self.store.saving() {
                assert!(saving.write_horizon >= value, "a save lowers the horizon (X-04, X-I1)");
            }
            reached("X-I1");
        }
    }

    /// X-13, X-I5: nothing of the old session is left when the main stream opens again.
    fn judge_reopening(&mut self) {
        let Some(process) = &mut self.process else { return };
        let busy = process.working.values().any(|running| {
            matches!(&running.work, Work::Flush { lane: Lane::Main })
                || matches!(&running.work, Work::WriteChanges(batch) if batch.lane == Lane::Main)
        });
        assert!(!busy, "a new session before the operations of the old one ended (X-I5)");
        process.watch.openings += 1;
        if process.watch.openings > 1 {
            reached("X-13");
            reached("H-08");
        }
    }

    /// U-I3, V-09, I-I3.
    fn judge_drop(&mut self, slot: &str) {
        if slot.starts_with("walferry_copy_") {
            return;
        }
        let Some(record) = self.store.persisted() else { panic!("{slot} dropped (U-I3)") };
        let main = record.identity.slot == *slot;
        let allowed = main && (record.initial_lsn.is_none() || record.recreate);
        assert!(allowed, "{slot} dropped (U-I3, I-I3)");
        self.judge_wish(record);
        reached("U-I3");
    }

    /// M-I1, M-I2, I-I3: a new main slot only for an intent or a re-creation that is saved.
    fn judge_creation(&self, slot: &str) {
        let Some(record) = self.store.persisted() else { panic!("{slot} before save A (U-I1)") };
        assert_eq!(record.identity.slot, slot, "another name than the recorded one (N-02)");
        let allowed = record.initial_lsn.is_none() || record.recreate;
        assert!(allowed, "the main slot is replaced silently (M-I2)");
        self.judge_wish(record);
        reached("M-I2");
    }

    /// I-I3: a re-creation was wanted by a policy or by a person.
    fn judge_wish(&self, record: &Record) {
        let policies = &self.config.limits.policies;
        let wanted = record.initial_lsn.is_none()
            || policies.slot_loss == SlotLoss::Recreate
            || policies.promotion_loss == PromotionLoss::Resync
            || self.config.until == Some(Until::Recreated)
            || self.recreation_asked;
        assert!(wanted, "a re-creation that nobody wants (I-I3)");
    }
}

/// Tables that a batch has events of.
fn changed(batch: &Batch<Row>) -> impl Iterator<Item = TableId> {
    batch.changes.iter().filter_map(|change| match &change.body {
        ChangeBody::Row { table, .. }
        | ChangeBody::Truncate { table, .. }
        | ChangeBody::Schema { table, .. } => Some(batch.tables[*table as usize].table),
        ChangeBody::Message { .. } => None,
    })
}
