//! The snapshot's rows on their way from the readers to the destination (K-17): batched by bytes,
//! written within what the destination takes at the same time, sent again as they are when it fails
//! for a while (K-28).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::Pipeline;
use super::attempt::CopyRun;
use super::attempt_steps::{AttemptOp, Step};
use super::main_retry::least_delay;
use crate::batch::{CopyBatch, Durability};
use crate::effect::Work;
use crate::fault::{Fault, Origin};
use crate::ids::{Lane, OpId};
use crate::notice::Notice;
use crate::retry::{self, Decision, Place};
use crate::schema::TableSchema;
use crate::time::Instant;
use crate::timers::Wakeup;

/// A sealed batch. Whatever becomes of it, it goes out with the same identity and rows (K-I2).
#[derive(Debug)]
struct Sealed<R> {
    batch: Arc<CopyBatch<R>>,
    /// How often it has failed.
    failures: u32,
}

/// Batches that the destination has accepted and may still lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Debt {
    None,
    Owed,
    /// A write failed for a while: the debt is settled before anything is sent again. A sink that lost
    /// accepted rows fails every write until it has failed a flush (DS-03).
    FlushDue,
    Flushing,
}

/// Snapshot rows on their way to the destination.
#[derive(Debug)]
pub(super) struct Rows<R> {
    blocks: Vec<R>,
    rows: u64,
    bytes: u64,
    waiting: VecDeque<Sealed<R>>,
    in_flight: BTreeMap<OpId, Sealed<R>>,
    /// Failed for a while, each with the time from which it may be sent again.
    delayed: Vec<(Instant, Sealed<R>)>,
    debt: Debt,
    pub(super) sequence: u64,
    /// Memory of everything above.
    pub(super) held: u64,
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
            delayed: Vec::new(),
            debt: Debt::None,
            sequence: 0,
            held: 0,
            total: 0,
            total_bytes: 0,
        }
    }
}

impl<R> Rows<R> {
    /// Whether the destination owes an answer for some.
    pub(super) fn is_being_written(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether everything that was read has been taken by the destination.
    fn are_written(&self) -> bool {
        self.blocks.is_empty()
            && self.waiting.is_empty()
            && self.in_flight.is_empty()
            && self.delayed.is_empty()
    }

    pub(super) fn written(&mut self, op: OpId, durability: Durability) {
        if let Some(sealed) = self.in_flight.remove(&op) {
            self.held -= sealed.batch.bytes;
        }
        if self.debt == Debt::None && durability == Durability::Accepted {
            self.debt = Debt::Owed;
        }
    }

    pub(super) const fn flushed(&mut self) {
        self.debt = Debt::None;
    }

    /// The batches whose delay is over go to the head of the queue, in the order of their numbers.
    fn end_delays(&mut self, now: Instant) {
        let due = self.delayed.extract_if(.., |(at, _)| *at <= now);
        let mut due: Vec<_> = due.map(|(_, sealed)| sealed).collect();
        due.sort_by_key(|sealed| sealed.batch.sequence);
        due.into_iter().rev().for_each(|sealed| self.waiting.push_front(sealed));
    }
}

impl<R> Pipeline<R> {
    /// Rows of an unfinished range; those of an attempt that is over are dropped.
    pub(super) fn copy_rows(&mut self, op: OpId, block: R, rows: u64, bytes: u64) {
        let mut running = self.copies.values_mut().filter(|run| !run.is_over());
        let Some(run) = running.find_map(|run| run.readers.came(op, rows).then_some(run)) else {
            return;
        };
        run.rows.blocks.push(block);
        run.rows.rows += rows;
        run.rows.bytes += bytes;
        run.rows.held += bytes;
        run.rows.total += rows;
        run.rows.total_bytes += bytes;
    }

    /// K-17: batches by bytes; several writes in flight if the destination wants that. Sequences come
    /// from one counter, whoever read the rows (K-20).
    pub(super) fn settle_rows(&mut self, run: &mut CopyRun<R>) -> bool {
        let Some(schema) = run.schema.clone() else { return false };
        let mut moved = self.read_ranges(run);
        let read = run.readers.are_done();
        if run.rows.bytes >= self.batch_target(self.copies.len() + 1)
            || (read && !run.rows.blocks.is_empty())
        {
            self.seal_rows(run, schema);
            moved = true;
        }
        moved |= self.offer_rows(run);
        if read && run.rows.are_written() {
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
        run.rows.waiting.push_back(Sealed { batch: Arc::new(batch), failures: 0 });
    }

    fn offer_rows(&mut self, run: &mut CopyRun<R>) -> bool {
        run.rows.end_delays(self.now);
        self.arm_rows_timer(run);
        match run.rows.debt {
            Debt::None | Debt::Owed => (),
            Debt::FlushDue => return self.flush_rows(run),
            Debt::Flushing => return false,
        }
        let in_flight_max =
            usize::try_from(self.config.destination.copy_in_flight_max).unwrap_or(usize::MAX);
        let mut moved = false;
        while run.rows.in_flight.len() < in_flight_max
            && !run.rows.waiting.is_empty()
            && self.turns.enter(Lane::Table(run.table))
        {
            let Some(sealed) = run.rows.waiting.pop_front() else { break };
            let budget = Some(self.config.limits.destination_ms);
            let work = Work::WriteRows(Arc::clone(&sealed.batch));
            let op = self.start_in_attempt(run, AttemptOp::WriteRows, budget, work);
            run.rows.in_flight.insert(op, sealed);
            moved = true;
        }
        moved
    }

    /// A flush never overlaps a write (DS-02).
    fn flush_rows(&mut self, run: &mut CopyRun<R>) -> bool {
        let lane = Lane::Table(run.table);
        if !run.rows.in_flight.is_empty() || !self.turns.enter(lane) {
            return false;
        }
        run.rows.debt = Debt::Flushing;
        let budget = Some(self.config.limits.destination_ms);
        self.start_in_attempt(run, AttemptOp::FlushRows, budget, Work::Flush { lane });
        true
    }

    /// K-28: sent again in the same attempt, with the same identity and rows, while the budget lasts;
    /// anything else fails the attempt.
    pub(super) fn rows_failed(&mut self, run: &mut CopyRun<R>, op: OpId, fault: Fault) {
        let Some(mut sealed) = run.rows.in_flight.remove(&op) else { return };
        let transient = fault.origin == Origin::Destination
            && retry::decide(&fault.kind, Place::Attempt) == Decision::Retry;
        let limits = &self.config.limits;
        if !transient || u64::from(sealed.failures) >= limits.main_retries_max {
            self.fail_attempt(run, fault);
            return;
        }
        sealed.failures += 1;
        let delay = retry::delay(limits, self.seed.random(), run.table.0, sealed.failures);
        let delay = delay.max(least_delay(&fault.kind).unwrap_or_default());
        // It may have been taken all the same, and a sink that has lost what it took says so at a
        // flush only (DS-03).
        if run.rows.debt != Debt::Flushing {
            run.rows.debt = Debt::FlushDue;
        }
        run.rows.delayed.push((self.now.after(delay), sealed));
        let task = "writing copied rows (tried again)";
        self.report(Notice::SideTaskFailed { task, fault });
    }

    fn arm_rows_timer(&mut self, run: &CopyRun<R>) {
        if let Some(at) = run.rows.delayed.iter().map(|(at, _)| *at).min() {
            self.timers.set(Wakeup::Copy(run.table), at);
        }
    }
}
