//! Listings of the publication while the run streams (T-03..T-07, T-10, T-12): when one is asked for,
//! and what its answer says about tables that the record does not know. What it means for the record
//! stands in `tables`.
//!
//! Main never waits for a listing (T-06), and a listing that fails changes nothing (T-07).

use std::collections::{BTreeMap, BTreeSet};

use core::time::Duration;

use super::{Pipeline, Purpose, source_fault};
use crate::effect::Work;
use crate::fault::{Fault, FaultKind};
use crate::ids::TableId;
use crate::input::Answer;
use crate::notice::Notice;
use crate::record::{TABLES_MAX, Tombstone};
use crate::source::Listing;
use crate::timers::Wakeup;

const ACTION: &str = "listing the publication";

/// Tables seen on the main stream that the record does not know.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// They had a row or a truncate.
    changed: BTreeSet<TableId>,
    /// They were announced; it may be a leaf under a published root (PG-20).
    announced: BTreeSet<TableId>,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.changed.extend(other.changed);
        self.announced.extend(other.announced);
    }
}

#[derive(Debug, Default)]
pub(super) struct Listings {
    /// A listing is in flight.
    running: bool,
    /// One more is wanted behind it.
    again: bool,
    /// For the next listing to judge.
    seen: Seen,
    /// For the listing in flight to judge: it was read after they were seen.
    asked: Seen,
    /// Tables that listings did not show although they were asked for (T-04).
    unlisted: BTreeSet<TableId>,
    /// Changes skipped since the last report, of tables that are not in the record (T-10).
    skipped: BTreeMap<TableId, u64>,
}

impl<R> Pipeline<R> {
    /// T-03, T-10: changes that a dispatch dropped. Those of a table of the record are inside its
    /// copy, or it is Errored.
    pub(super) fn note_skipped(&mut self, skipped: BTreeMap<TableId, u64>) {
        let mut wanted = false;
        for (table, changes) in skipped {
            let record = self.ledger.record();
            if record.tables.contains_key(&table) {
                continue;
            }
            *self.listings.skipped.entry(table).or_default() += changes;
            if !record.tombstones.contains_key(&table) {
                self.listings.seen.changed.insert(table);
                wanted |= !self.listings.unlisted.contains(&table);
            }
        }
        if wanted {
            self.request_listing();
        }
    }

    /// T-03: relations announced and schema messages read on the main stream.
    pub(super) fn note_announced(&mut self, tables: &[TableId], ddl: bool) {
        let mut wanted = ddl;
        for &table in tables {
            let record = self.ledger.record();
            let known =
                record.tables.contains_key(&table) || record.tombstones.contains_key(&table);
            if !known && !self.listings.unlisted.contains(&table) {
                self.listings.seen.announced.insert(table);
                wanted = true;
            }
        }
        if wanted {
            self.request_listing();
        }
    }

    /// One at a time; requests meanwhile cause one more (T-03).
    pub(super) fn request_listing(&mut self) {
        if !self.life.is_running() {
            return;
        }
        if self.listings.running {
            self.listings.again = true;
            return;
        }
        self.listings.running = true;
        self.listings.again = false;
        self.listings.asked = core::mem::take(&mut self.listings.seen);
        self.timers.clear(Wakeup::Listing);
        let budget = Some(self.config.limits.query_ms);
        self.start(Purpose::Listing, budget, Work::ListPublication);
    }

    /// The timer finds tables without any change.
    pub(super) fn arm_listing(&mut self) {
        if self.life.is_running() && !self.listings.running {
            let delay = Duration::from_millis(self.config.limits.listing_ms);
            self.timers.set_if_unset(Wakeup::Listing, self.now.after(delay));
        }
    }

    pub(super) fn listing_completed(&mut self, result: Result<Answer, Fault>) -> Result<(), ()> {
        self.listings.running = false;
        let asked = core::mem::take(&mut self.listings.asked);
        if !self.life.is_running() {
            self.listings.seen.add(asked);
            return Ok(());
        }
        let name = self.config.publication.clone();
        match result {
            // T-12: the last save of a failed run holds what is persisted
            Ok(Answer::Publication(None)) => {
                let kind = FaultKind::PublicationMissing { name };
                self.fail_run(ACTION, source_fault(kind, ""));
            }
            Ok(Answer::Publication(Some(listing))) if listing.tables.is_empty() => {
                let kind = FaultKind::PublicationEmpty { name };
                self.fail_run(ACTION, source_fault(kind, ""));
            }
            Ok(Answer::Publication(Some(listing))) if listing.tables.len() > TABLES_MAX => {
                let message = format!("{} tables in publication {name}", listing.tables.len());
                let kind = FaultKind::Limit { name: "65,536 tables" };
                self.listing_failed(asked, source_fault(kind, message));
            }
            Ok(Answer::Publication(Some(listing))) => {
                self.take_listing(listing, asked);
                if self.listings.again {
                    self.request_listing();
                }
            }
            Ok(_) => return Err(()),
            Err(fault) => self.listing_failed(asked, fault),
        }
        Ok(())
    }

    /// T-07: the record is left alone; the next timer tries again.
    fn listing_failed(&mut self, asked: Seen, fault: Fault) {
        self.listings.again = false;
        self.listings.seen.add(asked);
        self.report(Notice::SideTaskFailed { task: "listing of the publication", fault });
    }

    fn take_listing(&mut self, listing: Listing, asked: Seen) {
        let before = self.listing.as_ref().map(|before| &before.missing_actions);
        if !listing.missing_actions.is_empty() && before != Some(&listing.missing_actions) {
            let actions = listing.missing_actions.clone();
            self.report(Notice::ActionsMissing { actions });
        }
        self.apply_listing(&listing);
        for &table in &asked.changed {
            self.bury_unlisted(table, &listing);
        }
        let unlisted = &mut self.listings.unlisted;
        unlisted.extend(asked.changed);
        unlisted.extend(asked.announced);
        let tables = &self.ledger.record().tables;
        self.listings.unlisted.retain(|table| !tables.contains_key(table));
        self.listing = Some(listing);
        self.report_skipped();
    }

    /// T-05: a table that had changes and is not listed is remembered as gone.
    fn bury_unlisted(&mut self, table: TableId, listing: &Listing) {
        let record = self.ledger.record();
        let known = record.tables.contains_key(&table) || record.tombstones.contains_key(&table);
        if known || record.tombstones.len() >= TABLES_MAX {
            return;
        }
        let relation = self.main.relations.get(&table);
        let name = relation.map_or_else(
            || format!("table {table}"),
            |relation| format!("{}.{}", relation.namespace, relation.name),
        );
        let tombstone = Tombstone {
            name: name.clone(),
            ignored_from: record.checkpoint.unwrap_or_default(),
            absent_at: listing.position,
            attempt: None,
            handed_over: None,
        };
        self.ledger.bury(table, tombstone);
        self.report(Notice::TableGone { table, name });
    }

    /// T-10, O-10. What became a table of the record is inside its copy; what no listing has judged
    /// yet is kept.
    pub(super) fn report_skipped(&mut self) {
        let skipped = core::mem::take(&mut self.listings.skipped);
        for (table, changes) in skipped {
            let Listings { seen, asked, .. } = &self.listings;
            if self.ledger.record().tables.contains_key(&table) {
                continue;
            }
            if seen.changed.contains(&table) || asked.changed.contains(&table) {
                self.listings.skipped.insert(table, changes);
            } else {
                self.report(Notice::TombstoneSkipped { table, changes });
            }
        }
    }
}
