//! The listing meets the record (T-05, T-09..T-11, U-13), and what becomes of a table that stops.

use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Pipeline, source_fault};
use crate::fault::{Fault, FaultKind};
use crate::ids::TableId;
use crate::lsn::Position;
use crate::notice::Notice;
use crate::policies::Doubt;
use crate::projection::Owned;
use crate::record::{Phase, Policy, Stamp, TABLES_MAX, TableEntry, Tombstone};
use crate::requests;
use crate::retry;
use crate::source::{ListedTable, Listing};
use crate::timers::Wakeup;

impl<R> Pipeline<R> {
    /// U-13: makes the record fit the listing, settles what a died process left in Copying, and
    /// takes over the tables that main owns.
    pub(super) fn reconcile(&mut self) {
        let Some(listing) = self.listing.take() else { return };
        self.apply_listing(&listing);
        self.settle_died();
        self.listing = Some(listing);
        self.jobs.clear();
        for (&table, entry) in &*self.ledger.record().tables.clone() {
            match &entry.phase {
                Phase::Pending => self.jobs.push_back((table, self.ledger.version())),
                Phase::Catchup { handover } | Phase::Ready { handover } => {
                    self.own(table, entry, *handover);
                }
                Phase::Copying | Phase::Errored { .. } => (),
            }
        }
    }

    /// T-05: the same at start-up and while running. What becomes Pending is queued, and taken only
    /// once it is saved.
    pub(super) fn apply_listing(&mut self, listing: &Listing) {
        for listed in &listing.tables {
            let stamp = Stamp { publication: listing.publication, membership: listed.membership };
            self.reconcile_listed(listed, stamp);
        }
        self.bury_missing(listing);
    }

    fn own(&mut self, table: TableId, entry: &TableEntry, handover: Position) {
        let (Some(schema), Some(attempt)) = (entry.schema.clone(), entry.attempt) else { return };
        let schema_from = entry.schema_from.unwrap_or(handover).max(handover);
        let owned = Owned::with_schema_from(handover, schema_from, attempt, schema);
        self.owned.insert(table, owned);
        if matches!(entry.phase, Phase::Catchup { .. }) {
            self.catchup.insert(table, handover);
        }
    }

    fn reconcile_listed(&mut self, listed: &ListedTable, stamp: Stamp) {
        let table = listed.table;
        let Some(entry) = self.ledger.table(table) else {
            // T-10: while the tombstone lives the attempt is known, so that the copy is a recopy
            let buried = self.ledger.record().tombstones.get(&table);
            let attempt = buried.and_then(|tombstone| tombstone.attempt);
            let handed_over = buried.and_then(|tombstone| tombstone.handed_over);
            let name = listed_name(listed);
            let pending = TableEntry::pending(name.clone(), stamp, attempt);
            self.ledger.insert_table(table, TableEntry { handed_over, ..pending });
            self.queue(table);
            self.report(Notice::TableAdded { table, name });
            return;
        };
        let joined_anew = entry.stamp != stamp;
        if joined_anew || !is_named(entry, listed) {
            let name = listed_name(listed);
            self.ledger.edit_table(table, |entry| (entry.name, entry.stamp) = (name, stamp));
        }
        if joined_anew {
            self.report(Notice::MembershipChanged { table });
            match self.config.limits.policies.membership_change {
                Doubt::Recopy => self.copy_anew(table),
                Doubt::Report => (),
            }
        }
    }

    /// T-09: what is not listed any more becomes a tombstone. Its destination data is exact up to
    /// the frontier, which is the checkpoint in memory.
    fn bury_missing(&mut self, listing: &Listing) {
        let listed: BTreeSet<_> = listing.tables.iter().map(|listed| listed.table).collect();
        let record = self.ledger.record();
        let ignored_from = record.checkpoint.unwrap_or_default();
        let gone: Vec<_> = record
            .tables
            .iter()
            .filter(|(table, _)| !listed.contains(table))
            .map(|(&table, entry)| (table, Arc::clone(entry)))
            .collect();
        if record.tombstones.len() + gone.len() > TABLES_MAX {
            let message = format!("{} tables have left the publication at once", gone.len());
            let kind = FaultKind::Limit { name: "65,536 tombstones" };
            self.fail_run("listing the publication", source_fault(kind, message));
            return;
        }
        for (table, entry) in gone {
            self.withdraw(table);
            let name = entry.name.clone();
            let tombstone = Tombstone {
                name: name.clone(),
                ignored_from,
                absent_at: listing.position,
                attempt: entry.attempt,
                handed_over: entry.handed_over,
            };
            self.ledger.bury(table, tombstone);
            self.report(Notice::TableGone { table, name });
        }
    }

    /// The table gives up what it is doing: its attempt is cancelled, main owns it no longer, and its
    /// events leave every batch that is offered, or offered again, from here on. What becomes
    /// of its phase is the caller's.
    pub(super) fn withdraw(&mut self, table: TableId) {
        self.catchup.remove(&table);
        if self.owned.remove(&table).is_some() {
            self.note_exact(table, self.main.frontier);
            self.strip_main_lane();
        }
        self.timers.clear(Wakeup::Retry(table));
        self.jobs.retain(|(other, _)| *other != table);
        if let Some(mut run) = self.copies.remove(&table) {
            // One that has handed over is released because the table is not owned (H-02).
            if !run.is_over() {
                self.cancel_attempt(&mut run);
            }
            self.copies.insert(table, run);
        }
    }

    /// Any phase to Pending: a new copy, whose tries are counted anew (T-11, Y-09).
    pub(super) fn copy_anew(&mut self, table: TableId) {
        self.withdraw(table);
        self.ledger.edit_table(table, requests::reset);
        self.queue(table);
    }

    /// T-I2: at most once. T-I3: the job waits until the record of this moment is saved.
    pub(super) fn queue(&mut self, table: TableId) {
        let version = self.ledger.version();
        match self.jobs.iter_mut().find(|(other, _)| *other == table) {
            Some((_, waits_for)) => *waits_for = version,
            None => self.jobs.push_back((table, version)),
        }
    }

    /// Y-10: tables found in Copying. The try is given back; a copy that kills its process again
    /// and again leaves the others room to go on.
    fn settle_died(&mut self) {
        let retries_max = self.config.limits.retries_max;
        let died: Vec<_> = self
            .ledger
            .record()
            .tables
            .iter()
            .filter(|(_, entry)| entry.phase == Phase::Copying)
            .map(|(&table, entry)| (table, entry.deaths + 1))
            .collect();
        for (table, deaths) in died {
            self.ledger.edit_table(table, |entry| {
                entry.tries = entry.tries.saturating_sub(1);
                entry.deaths = deaths;
                entry.phase = if u64::from(deaths) <= retries_max {
                    Phase::Pending
                } else {
                    let reason = format!("the process died {deaths} times while copying it");
                    Phase::errored(&reason, Policy::Timed)
                };
            });
            self.report(Notice::DiedCopying { table, deaths });
        }
    }

    /// Y-08: a timed table waits its delay anew at every start. After deaths the delay grows with
    /// the deaths that were too many, after failures with the tries.
    pub(super) fn wait_for_retry(&mut self, table: TableId, least: Duration) -> Option<Duration> {
        let entry = self.ledger.table(table)?;
        let too_many = u64::from(entry.deaths).saturating_sub(self.config.limits.retries_max);
        let n = match u32::try_from(too_many) {
            Ok(0) => entry.tries.max(1),
            Ok(deaths) => deaths,
            Err(_) => u32::MAX,
        };
        let delay = retry::delay(&self.config.limits, self.seed.random(), table.0, n);
        let delay = delay.max(least);
        self.timers.set(Wakeup::Retry(table), self.now.after(delay));
        Some(delay)
    }

    /// U-14: deadlines begin when the run does, however long start-up took.
    pub(super) fn wait_for_retries(&mut self) {
        let timed: Vec<_> = (self.ledger.record().tables.iter())
            .filter(|(_, entry)| is_timed(&entry.phase))
            .map(|(&table, _)| table)
            .collect();
        for table in timed {
            self.wait_for_retry(table, Duration::ZERO);
        }
    }

    pub(super) fn retry_due(&mut self, table: TableId) {
        let timed = self.ledger.table(table).is_some_and(|entry| is_timed(&entry.phase));
        if timed && self.life.keeps_tables() {
            self.ledger.edit_table(table, |entry| entry.phase = Phase::Pending);
            self.queue(table);
        }
    }

    /// The table stops for a reason found on the main stream; the others and the checkpoint go on.
    pub(super) fn stop_table(&mut self, table: TableId, reason: String, fault: Option<Fault>) {
        self.stop_table_with(table, reason, Policy::Manual, fault);
    }

    pub(super) fn stop_table_with(
        &mut self,
        table: TableId,
        reason: String,
        policy: Policy,
        fault: Option<Fault>,
    ) {
        self.withdraw(table);
        self.ledger.edit_table(table, |entry| {
            entry.phase = Phase::errored(&reason, policy);
            entry.schema = None;
        });
        self.report(Notice::TableErrored { table, reason, policy, retry_in: None, fault });
    }
}

/// `schema.table`, as the record has it.
fn listed_name(listed: &ListedTable) -> String {
    format!("{}.{}", listed.namespace, listed.name)
}

/// Whether an entry has the name of a listing, without building it: there may be 65,536 of them.
fn is_named(entry: &TableEntry, listed: &ListedTable) -> bool {
    let rest = entry.name.strip_prefix(&*listed.namespace);
    rest.and_then(|rest| rest.strip_prefix('.')) == Some(&*listed.name)
}

const fn is_timed(phase: &Phase) -> bool {
    matches!(phase, Phase::Errored { policy: Policy::Timed, .. })
}
