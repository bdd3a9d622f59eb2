//! The readers of one attempt (K-10, K-11, K-19, K-20, K-27, K-29): who has imported the snapshot, and
//! who reads which range. Knows nothing of what becomes of the rows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::attempt::CopyRun;
use super::attempt_steps::{AttemptOp, Step};
use super::{Pipeline, source_fault};
use crate::effect::Work;
use crate::fault::{Fault, FaultKind};
use crate::ids::OpId;
use crate::ranges::{self, CopyRange};
use crate::source::{RangeFacts, ReaderFacts, SourceSeen};

/// A range on its way.
#[derive(Clone, Copy, Debug)]
struct Reading {
    reader: u32,
    rows: u64,
}

/// The connections that read, and what is left for them.
#[derive(Debug, Default)]
pub(super) struct Readers {
    /// Ranges that nobody has begun.
    ranges: VecDeque<CopyRange>,
    /// Readers that have imported the snapshot and read nothing.
    idle: BTreeSet<u32>,
    /// Imports outstanding.
    importing: u32,
    reading: BTreeMap<OpId, Reading>,
}

impl Readers {
    /// Counts rows of a range that is being read; whether there is such a read.
    pub(super) fn came(&mut self, op: OpId, rows: u64) -> bool {
        let Some(reading) = self.reading.get_mut(&op) else { return false };
        reading.rows += rows;
        true
    }

    /// Whether every range has been read, and nobody is importing any more: only then may the
    /// readers end.
    pub(super) fn are_done(&self) -> bool {
        self.ranges.is_empty() && self.reading.is_empty() && self.importing == 0
    }

    /// K-17, K-20: a range has ended with as many rows as it handed over.
    pub(super) fn range_read(&mut self, op: OpId, facts: RangeFacts) -> Result<(), Fault> {
        let Some(Reading { reader, rows }) = self.reading.remove(&op) else { return Ok(()) };
        self.idle.insert(reader);
        if facts.rows == rows {
            return Ok(());
        }
        let message = format!("the read of a range ended after {} rows, {rows} came", facts.rows);
        Err(source_fault(FaultKind::Protocol, message))
    }

    /// The next range for a reader that has nothing to do.
    fn next(&mut self) -> Option<(u32, CopyRange)> {
        let reader = *self.idle.first()?;
        let range = self.ranges.pop_front()?;
        self.idle.remove(&reader);
        Some((reader, range))
    }
}

impl<R> Pipeline<R> {
    pub(super) fn open_reader(&mut self, run: &mut CopyRun<R>, reader: u32) {
        run.readers.importing += 1;
        let (table, attempt) = (run.table, run.number);
        let budget = Some(self.config.limits.query_ms);
        let work = Work::OpenReader { table, attempt, reader };
        self.start_in_attempt(run, AttemptOp::OpenReader { reader }, budget, work);
    }

    pub(super) fn reader_open(
        &mut self,
        run: &mut CopyRun<R>,
        reader: u32,
        facts: ReaderFacts,
    ) -> Result<(), Fault> {
        run.readers.importing -= 1;
        if reader == 0 {
            self.first_reader_open(run, facts)?;
        } else {
            self.check_seen(&facts.seen)?;
            run.readers.idle.insert(reader);
        }
        // K-29: from here on the exporting connection need not be silent any more (PG-26)
        let imported = run.readers.importing == 0 && !run.is_over();
        if imported && self.idle_slot_timeout && run.stream.is_none() {
            self.open_private(run);
        }
        Ok(())
    }

    /// K-11, K-27: only what passed the guard under the lock is read (K-I6).
    fn first_reader_open(&mut self, run: &mut CopyRun<R>, facts: ReaderFacts) -> Result<(), Fault> {
        self.check_seen(&facts.seen)?;
        if !facts.published {
            let name = self.config.publication.clone();
            let kind = FaultKind::Configuration {
                setting: "publication",
                expected: format!("{name} with the table"),
                found: "without it in the snapshot".to_owned(),
            };
            return Err(source_fault(kind, ""));
        }
        let rewritten = facts.heaps.iter().any(|heap| {
            heap.filenode_in_snapshot != heap.filenode_now
                || heap.columns_in_snapshot != heap.columns_now
        });
        if rewritten {
            self.rewritten(run);
            return Ok(());
        }
        self.guard_repeats.remove(&run.table);
        run.filter = facts.filter;
        run.heap_bytes = facts.heaps.iter().map(|heap| heap.bytes).sum();
        let plan = ranges::cut(&facts.heaps, self.config.limits.copy_connections_per_table);
        run.readers.ranges = plan.ranges;
        run.readers.idle.insert(0);
        let (table, attempt) = (run.table, run.number);
        let budget = Some(self.config.limits.query_ms);
        let work = Work::ReadSchema { table, attempt };
        self.start_in_attempt(run, AttemptOp::ReadSchema, budget, work);
        for reader in 1..plan.readers {
            self.open_reader(run, reader);
        }
        Ok(())
    }

    /// K-20: one queue for all readers, each reads one range at a time.
    pub(super) fn read_ranges(&mut self, run: &mut CopyRun<R>) -> bool {
        let Some(schema) = run.schema.clone() else { return false };
        let mut moved = false;
        while let Some((reader, CopyRange { relation, blocks })) = run.readers.next() {
            let work = Work::ReadRange {
                table: run.table,
                attempt: run.number,
                reader,
                relation,
                blocks,
                schema: Arc::clone(&schema),
                filter: run.filter.clone(),
            };
            let op = self.start_in_attempt(run, AttemptOp::ReadRange, None, work);
            run.readers.reading.insert(op, Reading { reader, rows: 0 });
            moved = true;
        }
        moved
    }

    /// The private stream runs. Before the replay nothing of it is dispatched (K-29).
    pub(super) fn private_open(
        &mut self,
        run: &mut CopyRun<R>,
        seen: &SourceSeen,
    ) -> Result<(), Fault> {
        self.check_seen(seen)?;
        if let Some(stream) = &mut run.stream {
            stream.open = true;
            stream.heard = self.now;
        }
        Ok(())
    }
}

impl<R> CopyRun<R> {
    /// K-29: a private stream that runs before the rows are durable only keeps its slot alive.
    pub(super) fn keeps_slot_alive(&self) -> bool {
        self.stream.is_some() && self.step != Step::Replaying
    }
}
