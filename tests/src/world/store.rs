//! The simulated store: one record, its owner's token, and one save in flight that a crash leaves in
//! doubt. What an owner from before sends late is fenced (V-03).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use walferry_core::ids::{Attempt, OpId, TableId};
use walferry_core::lsn::Position;
use walferry_core::record::Record;
use walferry_core::source::Listing;

use super::judges::record::check_transition;
use crate::coverage::reached;

/// The store.
#[derive(Clone, Debug, Default)]
pub struct Store {
    persisted: Option<Arc<Record>>,
    saving: Option<(OpId, Arc<Record>)>,
    /// Token of the last owner, durable before a load answers.
    token: u64,
    /// A save of an owner from before, which may still arrive.
    late: Option<(u64, Arc<Record>)>,
    /// Tables whose tombstone has gone: the record knows of no attempt any more (T-10).
    forgotten: BTreeSet<TableId>,
    /// Position of the first listing that lacks a table of the record.
    absent: BTreeMap<TableId, Position>,
}

impl Store {
    /// What a load answers.
    #[must_use]
    pub fn persisted(&self) -> Option<&Record> {
        self.persisted.as_deref()
    }

    /// A process takes the record over.
    pub const fn acquire(&mut self, token: u64) {
        self.token = token;
    }

    /// What a crash at this moment could leave behind.
    pub fn in_doubt(&self) -> impl Iterator<Item = &Record> {
        let saving = self.saving.as_ref().map(|(_, record)| record);
        self.persisted.iter().chain(saving).map(AsRef::as_ref)
    }

    /// The record of the save in flight.
    #[must_use]
    pub fn saving(&self) -> Option<&Record> {
        self.saving.as_ref().map(|(_, record)| record.as_ref())
    }

    /// A save begins, with the source on a timeline.
    ///
    /// # Panics
    /// If another one is in flight, or the record breaks its rules or those of its transitions.
    pub fn begin(&mut self, op: OpId, record: Arc<Record>, timeline: u32) {
        assert!(self.saving.is_none(), "two saves in flight (R-I7)");
        assert_eq!(record.validate(), Ok(()), "R-I2");
        reached("R-I2");
        reached("R-I7");
        if let Some(before) = &self.persisted {
            check_transition(before, &record, &self.absent, timeline);
        }
        self.saving = Some((op, record));
    }

    /// A listing is answered: which tables of the record it lacks, and since when (T-09).
    pub fn listed(&mut self, listing: &Listing) {
        let is_listed = |table: &TableId| listing.tables.iter().any(|found| found.table == *table);
        self.absent.retain(|table, _| !is_listed(table));
        let known: Vec<TableId> = self.in_doubt().flat_map(|r| r.tables.keys().copied()).collect();
        for table in known.into_iter().filter(|table| !is_listed(table)) {
            // A position from before a promotion may lie beyond the fork.
            let first = self.absent.entry(table).or_insert(listing.position);
            *first = listing.position.min(*first);
        }
    }

    /// The save in flight took effect.
    pub fn saved(&mut self) {
        if let Some((_, record)) = self.saving.take() {
            let before = self.persisted.iter();
            let before = before.flat_map(|r| r.tombstones.keys().chain(r.tables.keys()));
            for table in before {
                // A table may come back in the save in which its tombstone goes.
                let entry = record.tables.get(table);
                let known = record.tombstones.contains_key(table)
                    || entry.is_some_and(|entry| entry.attempt.is_some());
                if !known {
                    self.forgotten.insert(*table);
                }
            }
            self.persisted = Some(record);
        }
    }

    /// Whether the record has forgotten that a table was ever copied (T-10).
    #[must_use]
    pub fn is_forgotten(&self, table: TableId) -> bool {
        self.forgotten.contains(&table)
    }

    /// A table is being copied again; a late attempt of one that is gone does not count.
    pub fn remembers(&mut self, table: TableId, attempt: Attempt) {
        let entry = self.persisted().and_then(|record| record.tables.get(&table));
        if entry.is_some_and(|entry| entry.attempt == Some(attempt)) {
            self.forgotten.remove(&table);
        }
    }

    /// The save in flight ends, and whether it took effect is decided here. One that did not may
    /// arrive when the process is long dead.
    pub fn doubt(&mut self, took_effect: bool) {
        if took_effect {
            self.saved();
        }
        if let Some((_, record)) = self.saving.take() {
            self.late = Some((self.token, record));
        }
    }

    /// A command replaces the record while no run owns it (L-06).
    pub fn replace(&mut self, record: Arc<Record>) {
        self.token += 1_000_000;
        self.persisted = Some(record);
    }

    /// Whether a save of an owner from before is still under way.
    #[must_use]
    pub const fn has_late(&self) -> bool {
        self.late.is_some()
    }

    /// The save of an owner from before arrives: it is refused for its token or its epoch, and
    /// nothing else would keep it from taking effect.
    pub fn comes_late(&mut self) {
        let Some((token, record)) = self.late.take() else { return };
        let stored = self.persisted.as_ref().map(|record| record.epoch);
        if token == self.token && Some(record.epoch) >= stored {
            self.persisted = Some(record);
            return;
        }
        reached("V-I2");
        reached("O-8");
    }
}
