//! The record in memory and its saves (R-08..R-11): one save in flight, `persisted` moves only by a
//! completed one, and who waits for a save waits for a version.

use std::sync::Arc;

use crate::effect::Changed;
use crate::ids::{Epoch, TableId};
use crate::lsn::Position;
use crate::record::{Record, TableEntry, Tombstone};

/// Number of a state of the record in memory; grows with every change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u64);

#[derive(Debug)]
pub(crate) struct Ledger {
    record: Record,
    version: Version,
    changed: Changed,
    persisted: Option<Arc<Record>>,
    persisted_version: Version,
    saving: Option<(Version, Arc<Record>)>,
    poisoned: bool,
}

impl Ledger {
    /// Starts from a loaded record, which is the persisted one, or from an intent in memory.
    pub(crate) fn new(record: Record, persisted: Option<Record>) -> Self {
        Self {
            record,
            version: Version(1),
            changed: Changed { head: true, checkpoint: true, tables: true },
            persisted: persisted.map(Arc::new),
            persisted_version: Version(0),
            saving: None,
            poisoned: false,
        }
    }

    pub(crate) const fn record(&self) -> &Record {
        &self.record
    }

    pub(crate) fn persisted(&self) -> Option<&Record> {
        self.persisted.as_deref()
    }

    /// The restart position that a crash would find.
    pub(crate) fn persisted_checkpoint(&self) -> Option<Position> {
        self.persisted.as_ref().and_then(|record| record.checkpoint)
    }

    /// The write horizon that a crash would find, whatever becomes of a save in flight.
    pub(crate) fn saved_horizon(&self) -> Option<Position> {
        let persisted = self.persisted.as_ref().and_then(|record| record.write_horizon);
        match &self.saving {
            Some((_, record)) => persisted.min(record.write_horizon),
            None => persisted,
        }
    }

    pub(crate) const fn poisoned(&self) -> bool {
        self.poisoned
    }

    pub(crate) const fn is_saving(&self) -> bool {
        self.saving.is_some()
    }

    pub(crate) fn is_dirty(&self) -> bool {
        let saved = self.saving.as_ref().map_or(self.persisted_version, |(version, _)| *version);
        self.version > saved
    }

    /// The state in memory: once `has_persisted` says so, it survives a crash.
    pub(crate) const fn version(&self) -> Version {
        self.version
    }

    pub(crate) fn has_persisted(&self, version: Version) -> bool {
        self.persisted_version >= version
    }

    pub(crate) fn edit_head(&mut self, edit: impl FnOnce(&mut Record)) {
        edit(&mut self.record);
        self.changed.head = true;
        self.version.0 += 1;
    }

    /// Changes anything, tables too.
    pub(crate) fn edit_all(&mut self, edit: impl FnOnce(&mut Record)) {
        edit(&mut self.record);
        self.changed = Changed { head: true, checkpoint: true, tables: true };
        self.version.0 += 1;
    }

    /// U-04: the persisted record again, or the intent, in the ownership of this run.
    pub(crate) fn start_over(&mut self, intent: Record, epoch: Epoch) {
        let record = self.persisted.as_deref().cloned().unwrap_or(intent);
        self.edit_all(|current| *current = Record { epoch, ..record });
    }

    pub(crate) fn set_checkpoint(&mut self, checkpoint: Position) {
        debug_assert!(self.record.checkpoint.is_some_and(|old| old <= checkpoint));
        self.record.checkpoint = Some(checkpoint);
        self.changed.checkpoint = true;
        self.version.0 += 1;
    }

    /// T-10: a tombstone goes in the save in which the checkpoint reaches its listing, and not before:
    /// a table that comes back until then is still known.
    fn drop_passed_tombstones(&mut self) {
        let checkpoint = self.record.checkpoint.unwrap_or_default();
        if self.record.tombstones.values().any(|tombstone| tombstone.absent_at <= checkpoint) {
            Arc::make_mut(&mut self.record.tombstones).retain(|_, t| t.absent_at > checkpoint);
            self.changed.tables = true;
        }
    }

    pub(crate) fn table(&self, table: TableId) -> Option<&TableEntry> {
        self.record.tables.get(&table).map(Arc::as_ref)
    }

    /// Changes a table's entry, if it is there.
    pub(crate) fn edit_table(&mut self, table: TableId, edit: impl FnOnce(&mut TableEntry)) {
        if let Some(entry) = Arc::make_mut(&mut self.record.tables).get_mut(&table) {
            edit(Arc::make_mut(entry));
            self.changed.tables = true;
            self.version.0 += 1;
        }
    }

    pub(crate) fn insert_table(&mut self, table: TableId, entry: TableEntry) {
        Arc::make_mut(&mut self.record.tables).insert(table, Arc::new(entry));
        Arc::make_mut(&mut self.record.tombstones).remove(&table);
        self.changed.tables = true;
        self.version.0 += 1;
    }

    pub(crate) fn bury(&mut self, table: TableId, tombstone: Tombstone) {
        Arc::make_mut(&mut self.record.tables).remove(&table);
        Arc::make_mut(&mut self.record.tombstones).insert(table, tombstone);
        self.changed.tables = true;
        self.version.0 += 1;
    }

    /// Takes what has to be saved. The caller emits it and reports with `saved` or `failed`.
    pub(crate) fn begin_save(&mut self) -> (Arc<Record>, Changed) {
        debug_assert!(self.saving.is_none() && !self.poisoned);
        self.drop_passed_tombstones();
        let record = Arc::new(self.record.clone());
        self.saving = Some((self.version, Arc::clone(&record)));
        (record, core::mem::take(&mut self.changed))
    }

    /// the only place where `persisted` moves.
    pub(crate) fn saved(&mut self) {
        if let Some((version, record)) = self.saving.take() {
            self.persisted = Some(record);
            self.persisted_version = version;
        }
    }

    /// what a failed save left behind is unknown, so nothing may be saved any more.
    pub(crate) fn failed(&mut self) {
        self.saving = None;
        self.poisoned = true;
    }

    /// Q-06, T-12: goes back to what is persisted, so that a last save of a failed run holds no
    /// position and no phase that this run could not finish.
    pub(crate) fn revert_to_persisted(&mut self) -> bool {
        let Some(persisted) = self.persisted.clone() else { return false };
        self.record = Arc::unwrap_or_clone(persisted);
        self.changed = Changed { head: true, checkpoint: true, tables: true };
        self.version.0 += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Attempt;
    use crate::lsn::Lsn;
    use crate::record::{FORMAT, Identity, Stamp};

    fn position(lsn: u64) -> Position {
        Position(Lsn(lsn))
    }

    fn ledger() -> Ledger {
        let record = Record {
            format: FORMAT,
            epoch: Epoch(1),
            identity: Identity {
                system_id: "7".to_owned(),
                timeline: 1,
                database: "app".to_owned(),
                slot: "s".to_owned(),
                publication: "p".to_owned(),
            },
            slot_prefix: "walferry".to_owned(),
            destination_id: "null:".to_owned(),
            initial_lsn: Some(position(10)),
            checkpoint: Some(position(10)),
            write_horizon: None,
            recreate: false,
            attempt_seq: 0,
            tables: Arc::default(),
            tombstones: Arc::default(),
        };
        Ledger::new(record.clone(), Some(record))
    }

    // C-10
    #[test]
    fn what_changes_during_a_save_goes_into_the_next_one() {
        let mut ledger = ledger();
        assert!(ledger.is_dirty(), "the first save of a run carries its epoch (U-13)");
        ledger.set_checkpoint(position(20));
        let first = ledger.version();
        let (saved, changed) = ledger.begin_save();
        assert!(changed.checkpoint);
        assert!(!ledger.is_dirty());
        ledger.set_checkpoint(position(30));
        assert!(ledger.is_dirty());
        assert_eq!(saved.checkpoint, Some(position(20)));
        assert_eq!(ledger.persisted_checkpoint(), Some(position(10)), "not before it is done");
        let second = ledger.version();
        ledger.saved();
        assert_eq!(ledger.persisted_checkpoint(), Some(position(20)));
        assert!(ledger.has_persisted(first) && !ledger.has_persisted(second));
        let (_, changed) = ledger.begin_save();
        assert!(changed.checkpoint && !changed.head && !changed.tables, "R-08: what differs");
    }

    // R-11, R-I4
    #[test]
    fn a_failed_save_moves_nothing_and_poisons() {
        let mut ledger = ledger();
        ledger.set_checkpoint(position(20));
        let version = ledger.version();
        let _save = ledger.begin_save();
        ledger.failed();
        assert!(ledger.poisoned() && !ledger.is_saving());
        assert!(!ledger.has_persisted(version));
        assert_eq!(ledger.persisted_checkpoint(), Some(position(10)));
        walferry_coverage::reached("R-I4");
    }

    // T-10
    #[test]
    fn a_tombstone_goes_with_the_checkpoint_that_reaches_it() {
        let mut ledger = ledger();
        let tombstone = |absent_at| Tombstone {
            name: "t".to_owned(),
            ignored_from: position(10),
            absent_at: position(absent_at),
            attempt: None,
            handed_over: None,
        };
        ledger.bury(TableId(1), tombstone(20));
        ledger.bury(TableId(2), tombstone(21));
        ledger.set_checkpoint(position(20));
        assert_eq!(
            ledger.record().tombstones.len(),
            2,
            "until the save a table that is back is known"
        );
        let (saved, _) = ledger.begin_save();
        assert_eq!(saved.tombstones.keys().copied().collect::<Vec<_>>(), [TableId(2)]);
        let stamp = Stamp { publication: 1, membership: 1 };
        ledger.insert_table(TableId(2), TableEntry::pending("t".to_owned(), stamp, None));
        assert!(ledger.record().tombstones.is_empty(), "the table is back");
    }

    // Q-06, T-12
    #[test]
    fn a_last_save_can_go_back_to_what_is_persisted() {
        let mut ledger = ledger();
        let _save = ledger.begin_save();
        ledger.saved();
        ledger.set_checkpoint(position(20));
        ledger.edit_head(|record| record.attempt_seq = Attempt(7).0);
        assert!(ledger.revert_to_persisted());
        assert_eq!(ledger.record().checkpoint, Some(position(10)));
        assert!(ledger.is_dirty(), "the give-back that follows is saved");
    }
}
