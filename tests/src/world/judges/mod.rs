//! Who watches: after every effect, and at every crash point, what a crash at this moment could leave
//! behind must be whole. Each judge counts the rule when its premise held.

pub mod fault_points;
mod fences;
mod hits;
mod lanes;
mod outcome;
mod positions;
pub mod record;
mod works;

pub(super) use positions::Step;
pub use positions::Watch;

use walferry_core::ids::TableId;
use walferry_core::lsn::{Lsn, Position};
use walferry_core::record::{Record, TableEntry};

use super::World;
use super::source::Source;
use crate::coverage::reached;

/// The position one byte further.
pub(in crate::world) const fn next(at: Position) -> Position {
    Position(Lsn(at.0.0 + 1))
}

impl World {
    /// Whether a crash at this moment would leave everything whole, whatever the save in flight
    /// and the accepted work become.
    ///
    /// # Panics
    /// If not (C-I2, C-I3, C-I4, R-I6, O-1).
    pub fn judge(&self) {
        for record in self.store.in_doubt() {
            // What a record says of one timeline is not true of another (P-07).
            let Some(source) = self.source.on_timeline(record.identity.timeline) else { continue };
            if record.recreate {
                continue;
            }
            self.judge_record(record, source);
        }
        self.judge_slot();
    }

    fn judge_record(&self, record: &Record, source: &Source) {
        let checkpoint = record.checkpoint.unwrap_or_default();
        for (&table, entry) in &*record.tables {
            if let Some(handover) = entry.phase.handover() {
                self.judge_table(table, entry, checkpoint.max(handover), source);
            }
        }
    }

    /// C-I3, R-I6, O-1: nothing below is missing at the destination.
    fn judge_table(&self, table: TableId, entry: &TableEntry, below: Position, source: &Source) {
        let Some(target) = self.destination.durable.get(&table) else {
            panic!("table {table} is {} without a target", entry.phase.word());
        };
        assert_eq!(Some(target.attempt), entry.attempt, "attempt of table {table}");
        assert!(target.finished, "table {table} handed over before its rows (O-1)");
        let due = target.next_due(table, source).map(|(key, _)| key);
        let lost = due.filter(|key| below.covers(key.commit));
        assert_eq!(
            lost, None,
            "table {table}, durable below {below}, lacks an event (C-I3, R-I6, O-1)"
        );
        if target.watermark().is_some() {
            reached("C-I3");
            reached("R-I6");
            reached("O-1");
        }
    }

    fn judge_slot(&self) {
        let Some(record) = self.store.persisted() else { return };
        if record.recreate || record.identity.timeline != self.source.timeline {
            return;
        }
        if let (Some(slot), Some(checkpoint)) =
            (self.source.slots.get(&record.identity.slot), record.checkpoint)
        {
            let ours = slot.confirmed <= checkpoint || slot.advanced;
            assert!(ours, "confirmed past the checkpoint (C-I4, O-5)");
            reached("C-I4");
            reached("O-5");
        }
    }
}
