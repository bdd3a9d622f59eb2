//! The snapshot's rows on their way from the reader to the destination (K-17): read range by range,
//! batched by bytes, written within what the destination takes at the same time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::attempt::{AttemptOp, CopyRun, Step};
use super::{Pipeline, source_fault};
use crate::batch::CopyBatch;
use crate::effect::Work;
use crate::fault::{Fault, FaultKind};
use crate::ids::{Lane, OpId};
use crate::schema::TableSchema;
use crate::source::{BlockRange, RangeFacts};

/// Snapshot rows on their way to the destination.
#[derive(Debug)]
pub(super) struct Rows<R> {
    blocks: Vec<R>,
    rows: u64,
    bytes: u64,
    waiting: VecDeque<CopyBatch<R>>,
    pub(super) in_flight: BTreeMap<OpId, u64>,
    pub(super) sequence: u64,
    /// Memory of everything above.
    pub(super) held: u64,
    /// Rows of the range that is being read.
    range_rows: u64,
    pub(super) total: u64,
    pub(super) total_bytes: u64,
}

impl<R> Default for Rows<R> {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            rows: 0,
            bytes: 0,
            waiting: VecDeque::new(),
            in_flight: BTreeMap::new(),
            sequence: 0,
            held: 0,
            range_rows: 0,
            total: 0,
            total_bytes: 0,
        }
    }
}

impl<R> Pipeline<R> {
    /// Rows of an unfinished range; those of an attempt that is over are dropped.
    pub(super) fn copy_rows(&mut self, op: OpId, block: R, rows: u64, bytes: u64) {
        let run = self.copies.values_mut().find(|run| run.reading == Some(op));
        let Some(run) = run.filter(|run| !run.is_ending()) else { return };
        run.rows.blocks.push(block);
        run.rows.rows += rows;
        run.rows.bytes += bytes;
        run.rows.held += bytes;
        run.rows.range_rows += rows;
        run.rows.total += rows;
        run.rows.total_bytes += bytes;
    }

    /// K-17: ranges one after another; batches by bytes; several writes in flight if the
    /// destination wants that.
    pub(super) fn settle_rows(&mut self, run: &mut CopyRun<R>) -> bool {
        let Some(schema) = run.schema.clone() else { return false };
        let mut moved = false;
        if run.reading.is_none()
            && let Some(relation) = run.heaps.pop_front()
        {
            run.rows.range_rows = 0;
            let work = Work::ReadRange {
                table: run.table,
                attempt: run.number,
                reader: 0,
                relation,
                blocks: BlockRange::ALL,
                schema: Arc::clone(&schema),
                filter: run.filter.clone(),
            };
            let op = self.start_in_attempt(run, AttemptOp::ReadRange, None, work);
            run.reading = Some(op);
            moved = true;
        }
        let read = run.reading.is_none() && run.heaps.is_empty();
        if run.rows.bytes >= self.batch_target(self.copies.len() + 1)
            || (read && !run.rows.blocks.is_empty())
        {
            self.seal_rows(run, schema);
            moved = true;
        }
        moved |= self.offer_rows(run);
        let rows = &run.rows;
        if read && rows.blocks.is_empty() && rows.waiting.is_empty() && rows.in_flight.is_empty() {
            run.step = Step::FinishDue;
            moved = true;
        }
        moved
    }

    fn seal_rows(&self, run: &mut CopyRun<R>, schema: Arc<TableSchema>) {
        run.rows.sequence += 1;
        let batch = CopyBatch {
            table: run.table,
            attempt: run.number,
            epoch: self.epoch(),
            sequence: run.rows.sequence,
            schema,
            blocks: core::mem::take(&mut run.rows.blocks),
            rows: core::mem::take(&mut run.rows.rows),
            bytes: core::mem::take(&mut run.rows.bytes),
        };
        run.rows.waiting.push_back(batch);
    }

    fn offer_rows(&mut self, run: &mut CopyRun<R>) -> bool {
        let in_flight_max =
            usize::try_from(self.config.destination.copy_in_flight_max).unwrap_or(usize::MAX);
        let mut moved = false;
        while run.rows.in_flight.len() < in_flight_max
            && !run.rows.waiting.is_empty()
            && self.turns.enter(Lane::Table(run.table))
        {
            let Some(batch) = run.rows.waiting.pop_front() else { break };
            let bytes = batch.bytes;
            let budget = Some(self.config.limits.destination_ms);
            let work = Work::WriteRows(Arc::new(batch));
            let op = self.start_in_attempt(run, AttemptOp::WriteRows, budget, work);
            run.rows.in_flight.insert(op, bytes);
            moved = true;
        }
        moved
    }
}

pub(super) fn range_read<R>(run: &mut CopyRun<R>, facts: RangeFacts) -> Result<(), Fault> {
    run.reading = None;
    if facts.rows != run.rows.range_rows {
        let message = format!(
            "the read of a range ended after {} rows, {} came",
            facts.rows, run.rows.range_rows
        );
        return Err(source_fault(FaultKind::Protocol, message));
    }
    Ok(())
}
