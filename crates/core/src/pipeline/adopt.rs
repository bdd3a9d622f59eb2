//! Tables that are taken over as they are (K-18): no slot, no snapshot, no row. Their schema comes
//! from the catalog, and main owns them from its present position on.
//!
//! Owns what an adoption demands of others: main waits for those of the start, and offers nothing of
//! an adopted table before its handover is saved.

use std::collections::{BTreeMap, BTreeSet};

use super::attempt::{CopyRun, schema_read};
use super::attempt_steps::{AttemptOp, Step};
use super::{Pipeline, source_fault};
use crate::batch::CopyMode;
use crate::effect::Work;
use crate::fault::{Fault, FaultKind, SqlState};
use crate::ids::{Attempt, TableId};
use crate::lsn::Position;
use crate::notice::Notice;
use crate::record::Phase;
use crate::source::Described;

/// What the core remembers of adopted tables beside their phase.
#[derive(Debug, Default)]
pub(super) struct Adoptions {
    /// Those that were Pending at U-16 and are not settled yet: main waits for them.
    first: BTreeSet<TableId>,
    /// Up to where the rows of a table that left main were exact.
    exact_to: BTreeMap<TableId, Position>,
    /// Begun before, and main has not owned them since the main slot was made: nobody knows up to
    /// where their rows are exact.
    doubtful: BTreeSet<TableId>,
}

impl Adoptions {
    /// Handed over or Errored: main does not wait for it any longer.
    pub(super) fn settled(&mut self, table: TableId) {
        self.first.remove(&table);
    }
}

impl<R> Pipeline<R> {
    /// K-01: the mode of a new attempt.
    pub(super) fn copy_mode(&mut self, table: TableId, previous: Option<Attempt>) -> CopyMode {
        if self.is_adopted(table) {
            // Only what was handed over has events at the sink, and none from before a re-creation.
            let handed_over = self.ledger.table(table).and_then(|entry| entry.handed_over);
            if previous.is_some() && handed_over.is_none() {
                self.adoptions.doubtful.insert(table);
            }
            CopyMode::Adopt { previous: handed_over }
        } else {
            previous.map_or(CopyMode::Fresh, |previous| CopyMode::Recopy { previous })
        }
    }

    /// Whether the copy filter leaves the table out.
    pub(super) fn is_adopted(&self, table: TableId) -> bool {
        let filter = &self.config.limits.policies.copy;
        self.ledger.table(table).is_some_and(|entry| !filter.copies(&entry.name))
    }

    /// U-16: main waits for every table that is to be adopted now, so those go first and never stand
    /// behind a long copy.
    pub(super) fn begin_adoptions(&mut self) {
        let pending = self.jobs.iter().map(|(table, _)| *table);
        let first: BTreeSet<_> = pending.filter(|&table| self.is_adopted(table)).collect();
        self.jobs.make_contiguous().sort_by_key(|(table, _)| !first.contains(table));
        self.adoptions.first = first;
    }

    /// Whether main must not be dispatched yet: then every change since the checkpoint is delivered
    /// to the tables adopted at the start. A stop does not end it; what was read is read again.
    pub(super) fn awaits_adoptions(&mut self) -> bool {
        while let Some(&table) = self.adoptions.first.first() {
            let phase = self.ledger.table(table).map(|entry| &entry.phase);
            if matches!(phase, Some(Phase::Pending | Phase::Copying)) {
                return true;
            }
            self.adoptions.settled(table);
        }
        false
    }

    /// Whether the next batch of main holds events of a table whose adoption is not saved. After a
    /// crash it would be adopted again, under another attempt that does not know them.
    pub(super) fn awaits_saved_adoption(&self) -> bool {
        let unsaved = |table: TableId, attempt: Attempt| {
            self.copies.get(&table).is_some_and(|run| {
                run.number == attempt
                    && run.is_adoption()
                    && matches!(run.step, Step::HandedOver(at) if !self.ledger.has_persisted(at))
            })
        };
        self.main_lane.next_holds(unsaved)
    }

    /// A table leaves main: its rows are exact up to `to`. Reported when it is adopted again.
    pub(super) fn note_exact(&mut self, table: TableId, to: Position) {
        if self.is_adopted(table) {
            self.adoptions.exact_to.insert(table, to);
        }
    }

    /// All of them leave main at once: the main slot was created again.
    pub(super) fn note_exact_tables(&mut self) {
        let record = self.ledger.record();
        let to = record.checkpoint.unwrap_or_default();
        let handed_over =
            record.tables.iter().filter(|(_, entry)| entry.phase.handover().is_some());
        for table in handed_over.map(|(&table, _)| table).collect::<Vec<_>>() {
            self.note_exact(table, to);
        }
    }

    pub(super) fn describe_adopted(&mut self, run: &mut CopyRun<R>) {
        run.step = Step::Preparing;
        let budget = Some(self.config.limits.query_ms);
        let work = Work::DescribeTable { table: run.table };
        self.start_in_attempt(run, AttemptOp::DescribeAdopted, budget, work);
    }

    /// The position of the read is where the schema begins; no row is read.
    pub(super) fn adopted_described(
        run: &mut CopyRun<R>,
        described: Option<Described>,
    ) -> Result<(), Fault> {
        let Some(described) = described else {
            let kind = FaultKind::Server { code: SqlState(*b"42P01") };
            return Err(source_fault(kind, "the table is gone"));
        };
        run.cutoff = described.position;
        schema_read(run, described.schema)
    }

    /// H-02 for Adopt: `p := m`. Nothing of the table was ever dispatched on the lane of its own.
    pub(super) fn hand_over_adopted(&mut self, run: &mut CopyRun<R>) {
        let (table, to) = (run.table, self.main.dispatched);
        self.hand_over(run, to);
        self.adoptions.settled(table);
        let from = self.adoptions.exact_to.remove(&table);
        let doubtful = self.adoptions.doubtful.remove(&table);
        let initial = self.ledger.record().initial_lsn.unwrap_or_default();
        if from.is_some() || doubtful || to > initial {
            self.report(Notice::AdoptGap { table, from, to });
        }
    }
}
