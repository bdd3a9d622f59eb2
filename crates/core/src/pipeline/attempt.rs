//! One copy attempt of one table (group K): snapshot, guard, rows, until they are durable. How the
//! rows go stands in `rows`; what follows them is the private replay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::main_slot::check_created;
use super::rows::{Rows, range_read};
use super::schema::private_described;
use super::{Pipeline, Purpose, source_fault};
use crate::batch::{CopyMode, CopyStart, Durability};
use crate::config::{BLOCKER_REPORT, COLUMNS_MAX};
use crate::effect::{Effect, Work};
use crate::fault::{Fault, FaultKind};
use crate::ids::{Attempt, Lane, OpId, StreamId, TableId};
use crate::input::Answer;
use crate::lane::LaneState;
use crate::ledger::Version;
use crate::lsn::Position;
use crate::notice::Notice;
use crate::projection::Owned;
use crate::schema::TableSchema;
use crate::source::{ReaderFacts, SnapshotFacts};
use crate::stream::{Gate, Stream};
use crate::timers::Wakeup;

/// What an operation of an attempt does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptOp {
    OpenSnapshot,
    OpenReader,
    ReadSchema,
    BeginCopy,
    ReadRange,
    WriteRows,
    FinishCopy,
    FlushCopy,
    CloseReaders,
    OpenStream,
    /// The catalog explains the shape of a row (D-08).
    Describe,
    WriteChanges,
    FlushChanges,
    CloseCopy,
}

impl AttemptOp {
    /// Calls of the destination take turns and are never cancelled: they end by themselves.
    const fn is_destination(self) -> bool {
        match self {
            Self::BeginCopy
            | Self::WriteRows
            | Self::FinishCopy
            | Self::FlushCopy
            | Self::WriteChanges
            | Self::FlushChanges => true,
            Self::OpenSnapshot
            | Self::OpenReader
            | Self::ReadSchema
            | Self::ReadRange
            | Self::CloseReaders
            | Self::OpenStream
            | Self::Describe
            | Self::CloseCopy => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Copying is being saved (K-I1).
    AwaitSave(Version),
    /// A source operation is outstanding.
    Preparing,
    /// `begin_copy` waits for its turn, and for a main write of the table (K-16).
    BeginDue,
    Beginning,
    Reading,
    FinishDue,
    Finishing,
    FlushDue,
    Flushing,
    ClosingReaders,
    /// W.
    Replaying,
    /// H-02: the handover is being saved.
    HandedOver(Version),
    /// Failed or cancelled: what runs is waited for, then everything is closed.
    Ending,
    Closing,
}

#[derive(Debug)]
pub(super) struct CopyRun<R> {
    pub(super) table: TableId,
    pub(super) number: Attempt,
    pub(super) step: Step,
    mode: CopyMode,
    pub(super) slot: String,
    pub(super) cutoff: Position,
    pub(super) schema: Option<Arc<TableSchema>>,
    pub(super) filter: Option<String>,
    /// Heaps still to be read.
    pub(super) heaps: VecDeque<TableId>,
    heap_bytes: u64,
    pub(super) reading: Option<OpId>,
    pub(super) rows: Rows<R>,
    /// Operations outstanding, of the source and of the destination.
    running: BTreeSet<OpId>,
    pub(super) stream: Option<Stream<R>>,
    gate: Gate,
    pub(super) lane: LaneState<R>,
    /// The table alone, for the projection of the private stream.
    pub(super) owned: BTreeMap<TableId, Owned>,
    /// Whether private dispatch waits for a catalog read (D-08).
    pub(super) describing: bool,
}

impl<R> CopyRun<R> {
    pub(super) fn new(
        table: TableId,
        number: Attempt,
        mode: CopyMode,
        slot: String,
        version: Version,
    ) -> Self {
        Self {
            table,
            number,
            step: Step::AwaitSave(version),
            mode,
            slot,
            cutoff: Position::default(),
            schema: None,
            filter: None,
            heaps: VecDeque::new(),
            heap_bytes: 0,
            reading: None,
            rows: Rows::default(),
            running: BTreeSet::new(),
            stream: None,
            gate: Gate::Open,
            lane: LaneState::default(),
            owned: BTreeMap::new(),
            describing: false,
        }
    }

    pub(super) const fn has_handed_over(&self) -> bool {
        matches!(self.step, Step::HandedOver(_) | Step::Closing)
    }

    pub(super) const fn is_ending(&self) -> bool {
        matches!(self.step, Step::Ending | Step::Closing)
    }

    /// Governs the read of the rows and the private stream alike.
    pub(super) const fn gate(&self) -> Gate {
        self.gate
    }

    /// B-05, B-07.
    pub(super) fn move_gate(&mut self, share: u64) {
        let over = self.has_handed_over() || self.is_ending();
        self.gate = if over { Gate::Closed } else { self.gate.moved(self.held(), share) };
        if let Some(stream) = &mut self.stream {
            stream.gate = self.gate;
        }
    }

    /// Memory that the attempt holds.
    pub(super) fn held(&self) -> u64 {
        let queued = self.stream.as_ref().map_or(0, |stream| stream.queue.bytes());
        self.rows.held + self.lane.bytes() + queued
    }

    /// Whether the destination owes an answer, or something waits for it.
    pub(super) fn has_destination_work(&self) -> bool {
        let calling = match self.step {
            Step::BeginDue
            | Step::Beginning
            | Step::FinishDue
            | Step::Finishing
            | Step::FlushDue
            | Step::Flushing => true,
            Step::AwaitSave(_)
            | Step::Preparing
            | Step::Reading
            | Step::ClosingReaders
            | Step::Replaying
            | Step::HandedOver(_)
            | Step::Ending
            | Step::Closing => false,
        };
        calling || !self.rows.in_flight.is_empty() || !self.lane.is_settled()
    }

    pub(super) const fn rows_total(&self) -> u64 {
        self.rows.total
    }

    pub(super) const fn bytes_total(&self) -> u64 {
        self.rows.total_bytes
    }

    pub(super) const fn heap_bytes(&self) -> u64 {
        self.heap_bytes
    }
}

impl<R> Pipeline<R> {
    pub(super) fn start_in_attempt(
        &mut self,
        run: &mut CopyRun<R>,
        what: AttemptOp,
        budget: Option<u64>,
        work: Work<R>,
    ) -> OpId {
        let purpose = Purpose::Attempt { table: run.table, number: run.number, what };
        let op = self.start(purpose, budget, work);
        run.running.insert(op);
        op
    }

    pub(super) fn attempt_completed(
        &mut self,
        op: OpId,
        (table, number, what): (TableId, Attempt, AttemptOp),
        result: Result<Answer, Fault>,
    ) -> Result<(), ()> {
        let lane = Lane::Table(table);
        if what.is_destination() {
            self.turns.leave(lane);
        }
        let Some(mut run) = self.copies.remove(&table).filter(|run| run.number == number) else {
            return Err(());
        };
        run.running.remove(&op);
        if what == AttemptOp::CloseCopy {
            self.turns.forget(lane);
            self.timers.clear(Wakeup::Feedback(StreamId::Copy(table)));
            self.timers.clear(Wakeup::Silence(StreamId::Copy(table)));
            self.timers.clear(Wakeup::Flush(lane));
            return Ok(());
        }
        let outcome = if run.is_ending() {
            Ok(())
        } else {
            match result {
                Ok(answer) => self.attempt_advanced(&mut run, op, what, answer),
                Err(fault) => {
                    self.fail_attempt(&mut run, fault);
                    Ok(())
                }
            }
        };
        self.copies.insert(table, run);
        outcome
    }

    /// One operation of a living attempt succeeded. `Err(())` is an answer of the wrong kind.
    fn attempt_advanced(
        &mut self,
        run: &mut CopyRun<R>,
        op: OpId,
        what: AttemptOp,
        answer: Answer,
    ) -> Result<(), ()> {
        let step = match (what, answer) {
            (AttemptOp::OpenSnapshot, Answer::Snapshot(facts)) => self.snapshot_open(run, &facts),
            (AttemptOp::OpenReader, Answer::Reader(facts)) => self.reader_open(run, facts),
            (AttemptOp::ReadSchema, Answer::Schema(facts)) => schema_read(run, facts.schema),
            (AttemptOp::BeginCopy, Answer::Done) => {
                run.step = Step::Reading;
                Ok(())
            }
            (AttemptOp::ReadRange, Answer::RangeRead(facts)) => range_read(run, facts),
            (AttemptOp::WriteRows, Answer::Written(_)) => {
                run.rows.held -= run.rows.in_flight.remove(&op).unwrap_or_default();
                Ok(())
            }
            // DS-08: Accepted makes the core flush the lane next
            (AttemptOp::FinishCopy, Answer::Written(Durability::Accepted)) => {
                run.step = Step::FlushDue;
                Ok(())
            }
            (AttemptOp::FinishCopy, Answer::Written(Durability::Durable))
            | (AttemptOp::FlushCopy, Answer::Done) => {
                self.rows_durable(run);
                Ok(())
            }
            (AttemptOp::CloseReaders, Answer::Done) => {
                run.step = Step::Replaying;
                Ok(())
            }
            (AttemptOp::OpenStream, Answer::Opened(seen)) => self.private_open(run, &seen),
            (AttemptOp::Describe, Answer::Described(described)) => {
                private_described(run, described);
                Ok(())
            }
            (AttemptOp::WriteChanges, Answer::Written(durability)) => {
                run.lane.written(durability, self.now);
                Ok(())
            }
            (AttemptOp::FlushChanges, Answer::Done) => {
                run.lane.flushed();
                Ok(())
            }
            (
                AttemptOp::OpenSnapshot
                | AttemptOp::OpenReader
                | AttemptOp::ReadSchema
                | AttemptOp::BeginCopy
                | AttemptOp::ReadRange
                | AttemptOp::WriteRows
                | AttemptOp::FinishCopy
                | AttemptOp::FlushCopy
                | AttemptOp::CloseReaders
                | AttemptOp::OpenStream
                | AttemptOp::Describe
                | AttemptOp::WriteChanges
                | AttemptOp::FlushChanges
                | AttemptOp::CloseCopy,
                _,
            ) => return Err(()),
        };
        if let Err(fault) = step {
            self.fail_attempt(run, fault);
        }
        Ok(())
    }

    /// K-09.
    fn snapshot_open(&mut self, run: &mut CopyRun<R>, facts: &SnapshotFacts) -> Result<(), Fault> {
        self.check_seen(&facts.seen)?;
        let cutoff = check_created(&facts.slot, &run.slot)?;
        let initial = self.ledger.record().initial_lsn.unwrap_or_default();
        if cutoff < initial {
            let kind = FaultKind::IdentityMismatch {
                field: "position",
                expected: format!("{initial} or later"),
                found: cutoff.to_string(),
            };
            return Err(source_fault(kind, "the snapshot is older than the main slot"));
        }
        run.cutoff = cutoff;
        let (table, attempt) = (run.table, run.number);
        let budget = Some(self.config.limits.query_ms);
        let work = Work::OpenReader { table, attempt, reader: 0 };
        self.start_in_attempt(run, AttemptOp::OpenReader, budget, work);
        Ok(())
    }

    /// K-11, K-27: only what passed the guard under the lock is read (K-I6).
    fn reader_open(&mut self, run: &mut CopyRun<R>, facts: ReaderFacts) -> Result<(), Fault> {
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
        run.heaps = facts.heaps.into_iter().map(|heap| heap.relation).collect();
        let (table, attempt) = (run.table, run.number);
        let budget = Some(self.config.limits.query_ms);
        let work = Work::ReadSchema { table, attempt };
        self.start_in_attempt(run, AttemptOp::ReadSchema, budget, work);
        Ok(())
    }

    /// K-19.
    fn rows_durable(&mut self, run: &mut CopyRun<R>) {
        run.step = Step::ClosingReaders;
        let (table, attempt) = (run.table, run.number);
        let (rows, cutoff) = (run.rows.total, run.cutoff);
        self.report(Notice::CopyRowsDone { table, attempt, rows, cutoff });
        let budget = Some(self.config.limits.query_ms);
        let work = Work::CloseReaders { table, attempt };
        self.start_in_attempt(run, AttemptOp::CloseReaders, budget, work);
    }

    pub(super) fn settle_copies(&mut self) -> bool {
        let mut moved = false;
        if self.life.is_failing() {
            return false;
        }
        for table in self.copies.keys().copied().collect::<Vec<_>>() {
            let Some(mut run) = self.copies.remove(&table) else { continue };
            moved |= self.settle_copy(&mut run);
            self.copies.insert(table, run);
            if self.life.is_failing() {
                break;
            }
        }
        moved
    }

    fn settle_copy(&mut self, run: &mut CopyRun<R>) -> bool {
        let lane = Lane::Table(run.table);
        match run.step {
            Step::AwaitSave(version) if self.ledger.has_persisted(version) => {
                self.open_snapshot(run);
                true
            }
            Step::BeginDue => {
                let clear = !self.main_lane.is_writing(run.table);
                clear && self.turns.enter(lane) && self.begin_copy(run)
            }
            Step::Reading => self.settle_rows(run),
            Step::FinishDue if self.turns.enter(lane) => {
                run.step = Step::Finishing;
                let (table, attempt, epoch) = (run.table, run.number, self.epoch());
                let sequences = run.rows.sequence;
                let budget = Some(self.config.limits.destination_ms);
                let work = Work::FinishCopy { table, attempt, epoch, sequences };
                self.start_in_attempt(run, AttemptOp::FinishCopy, budget, work);
                true
            }
            Step::FlushDue if self.turns.enter(lane) => {
                run.step = Step::Flushing;
                let budget = Some(self.config.limits.destination_ms);
                self.start_in_attempt(run, AttemptOp::FlushCopy, budget, Work::Flush { lane });
                true
            }
            Step::Replaying => self.settle_replay(run),
            Step::HandedOver(version) => self.release_if_saved(run, version),
            Step::Ending if run.running.is_empty() => {
                self.close_copy(run);
                true
            }
            Step::AwaitSave(_)
            | Step::Preparing
            | Step::Beginning
            | Step::FinishDue
            | Step::Finishing
            | Step::FlushDue
            | Step::Flushing
            | Step::ClosingReaders
            | Step::Ending
            | Step::Closing => false,
        }
    }

    fn open_snapshot(&mut self, run: &mut CopyRun<R>) {
        run.step = Step::Preparing;
        let (table, attempt, slot) = (run.table, run.number, run.slot.clone());
        let budget = Some(self.config.limits.slot_creation_ms);
        self.timers.set_if_unset(Wakeup::Blockers, self.now.after(BLOCKER_REPORT));
        let work = Work::OpenSnapshot { table, attempt, slot, failover: false };
        self.start_in_attempt(run, AttemptOp::OpenSnapshot, budget, work);
    }

    /// K-16.
    fn begin_copy(&mut self, run: &mut CopyRun<R>) -> bool {
        let Some(schema) = run.schema.clone() else { return false };
        run.step = Step::Beginning;
        let owned = Owned::new(run.cutoff, run.number, Arc::clone(&schema));
        run.owned = BTreeMap::from([(run.table, owned)]);
        let start = CopyStart {
            table: run.table,
            attempt: run.number,
            epoch: self.epoch(),
            mode: run.mode,
            schema,
            cutoff: run.cutoff,
        };
        let budget = Some(self.config.limits.destination_ms);
        self.start_in_attempt(run, AttemptOp::BeginCopy, budget, Work::BeginCopy(start));
        true
    }

    /// The attempt is over for the record; what runs for it ends by itself or is cancelled.
    pub(super) fn cancel_attempt(&mut self, run: &mut CopyRun<R>) {
        run.step = Step::Ending;
        run.rows = Rows::default();
        if let Some(stream) = &mut run.stream {
            stream.open = false;
            stream.queue.clear();
        }
        self.turns.forget(Lane::Table(run.table));
        for op in &run.running {
            let source = matches!(
                self.pending.get(op),
                Some(Purpose::Attempt { what, .. }) if !what.is_destination()
            );
            if source {
                self.effects.push_back(Effect::Cancel { op: *op });
            }
        }
    }

    pub(super) fn close_copy(&mut self, run: &mut CopyRun<R>) {
        run.step = Step::Closing;
        let (table, attempt) = (run.table, run.number);
        let budget = Some(self.config.limits.query_ms);
        let work = Work::CloseCopy { table, attempt };
        self.start_in_attempt(run, AttemptOp::CloseCopy, budget, work);
    }
}

/// K-14, K-16.
fn schema_read<R>(run: &mut CopyRun<R>, schema: TableSchema) -> Result<(), Fault> {
    if schema.columns.len() > COLUMNS_MAX {
        let message = format!("{} has {} columns", schema.qualified_name(), schema.columns.len());
        return Err(source_fault(FaultKind::Limit { name: "1,600 columns" }, message));
    }
    run.schema = Some(Arc::new(schema));
    run.step = Step::BeginDue;
    Ok(())
}
