//! The listing meets the record (T-05, T-09..T-11, U-13), and what becomes of a table that stops.

use core::time::Duration;

use super::Pipeline;
use crate::fault::Fault;
use crate::ids::TableId;
use crate::lsn::Position;
use crate::notice::Notice;
use crate::projection::Owned;
use crate::record::{Phase, Policy, Stamp, TableEntry, Tombstone};
use crate::retry;
use crate::source::{ListedTable, Listing};
use crate::timers::Wakeup;

impl<R> Pipeline<R> {
    /// U-13: makes the record fit the listing, settles what a died process left in Copying, and
    /// takes over the tables that main owns.
    pub(super) fn reconcile(&mut self) {
        let Some(listing) = self.listing.take() else { return };
        for listed in &listing.tables {
            let stamp = Stamp { publication: listing.publication, membership: listed.membership };
            self.reconcile_listed(listed, stamp);
        }
        self.bury_missing(&listing);
        self.settle_died();
        self.listing = Some(listing);
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

    fn own(&mut self, table: TableId, entry: &TableEntry, handover: Position) {
        let (Some(schema), Some(attempt)) = (entry.schema.clone(), entry.attempt) else { return };
        self.owned.insert(table, Owned { from: handover, attempt, schema });
        if matches!(entry.phase, Phase::Catchup { .. }) {
            self.catchup.insert(table, handover);
        }
    }

    fn reconcile_listed(&mut self, listed: &ListedTable, stamp: Stamp) {
        let table = listed.table;
        let name = format!("{}.{}", listed.namespace, listed.name);
        let Some(entry) = self.ledger.table(table) else {
            let buried = self.ledger.record().tombstones.get(&table);
            let attempt = buried.and_then(|tombstone| tombstone.attempt);
            self.ledger.insert_table(table, TableEntry::pending(name.clone(), stamp, attempt));
            self.report(Notice::TableAdded { table, name });
            return;
        };
        if entry.stamp != stamp {
            let attempt = entry.attempt;
            self.ledger.insert_table(table, TableEntry::pending(name, stamp, attempt));
            self.report(Notice::MembershipChanged { table });
        } else if entry.name != name {
            self.ledger.edit_table(table, |entry| entry.name = name);
        }
    }

    /// T-09: what is not listed any more becomes a tombstone.
    fn bury_missing(&mut self, listing: &Listing) {
        let record = self.ledger.record();
        let ignored_from = record.checkpoint.unwrap_or_default();
        let gone: Vec<_> = record
            .tables
            .iter()
            .filter(|(table, _)| !listing.tables.iter().any(|listed| listed.table == **table))
            .map(|(&table, entry)| (table, entry.name.clone(), entry.attempt))
            .collect();
        for (table, name, attempt) in gone {
            let absent_at = listing.position;
            let tombstone = Tombstone { name: name.clone(), ignored_from, absent_at, attempt };
            self.ledger.bury(table, tombstone);
            self.report(Notice::TableGone { table, name });
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
    pub(super) fn wait_for_retry(&mut self, table: TableId) -> Option<Duration> {
        let entry = self.ledger.table(table)?;
        let too_many = u64::from(entry.deaths).saturating_sub(self.config.limits.retries_max);
        let n = match u32::try_from(too_many) {
            Ok(0) => entry.tries.max(1),
            Ok(deaths) => deaths,
            Err(_) => u32::MAX,
        };
        let delay = retry::delay(&self.config.limits, self.seed.random(), table.0, n);
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
            self.wait_for_retry(table);
        }
    }

    pub(super) fn retry_due(&mut self, table: TableId) {
        let timed = self.ledger.table(table).is_some_and(|entry| is_timed(&entry.phase));
        if timed && self.life.is_running() {
            self.ledger.edit_table(table, |entry| entry.phase = Phase::Pending);
            self.jobs.push_back((table, self.ledger.version()));
        }
    }

    /// The table stops for a reason found on the main stream; the others and the checkpoint go on.
    /// Its events leave every batch that is offered from here on.
    pub(super) fn stop_table(&mut self, table: TableId, reason: String, fault: Option<Fault>) {
        self.note_exact(table, self.main.frontier);
        self.owned.remove(&table);
        self.catchup.remove(&table);
        self.main_lane.strip(table);
        self.ledger.edit_table(table, |entry| {
            entry.phase = Phase::errored(&reason, Policy::Manual);
            entry.schema = None;
        });
        let policy = Policy::Manual;
        self.report(Notice::TableErrored { table, reason, policy, retry_in: None, fault });
    }
}

const fn is_timed(phase: &Phase) -> bool {
    matches!(phase, Phase::Errored { policy: Policy::Timed, .. })
}
