//! One copy attempt of one table (group K): snapshot, guard, rows, until they are durable. How the
//! rows go stands in `rows`; what follows them is the private replay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::attempt_steps::{AttemptOp, Step};
use super::copy_slot::Busy;
use super::main_slot::check_created;
use super::readers::Readers;
use super::rows::Rows;
use super::schema::private_described;
use super::{Pipeline, Purpose, source_fault};
use crate::batch::{CopyMode, CopyStart, Durability};
use crate::config::COLUMNS_MAX;
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
use crate::source::SnapshotFacts;
use crate::stream::{Gate, Stream};
use crate::timers::Wakeup;

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
    pub(super) heap_bytes: u64,
    pub(super) readers: Readers,
    pub(super) rows: Rows<R>,
    /// The slot outlives its session, so that it has to be removed (K-05).
    pub(super) leaves_slot: bool,
    pub(super) busy: Option<Busy>,
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
            heap_bytes: 0,
            readers: Readers::default(),
            rows: Rows::default(),
            leaves_slot: false,
            busy: None,
            running: BTreeSet::new(),
            stream: None,
            gate: Gate::Open,
            lane: LaneState::default(),
            owned: BTreeMap::new(),
            describing: false,
        }
    }

    /// Handed over, failed or given back: nothing of the attempt changes the record any more.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.step, Step::HandedOver(_)) || self.is_ending()
    }

    pub(super) const fn is_ending(&self) -> bool {
        matches!(self.step, Step::Ending | Step::Closing | Step::SlotLeft | Step::DroppingSlot)
    }

    /// No operation is outstanding.
    pub(super) fn is_quiet(&self) -> bool {
        self.running.is_empty()
    }

    pub(super) const fn is_adoption(&self) -> bool {
        matches!(self.mode, CopyMode::Adopt { .. })
    }

    /// Governs the read of the rows and, from the replay on, the private stream.
    pub(super) const fn gate(&self) -> Gate {
        self.gate
    }

    /// The private stream's own gate: what runs only to keep its slot alive is not read (K-29).
    pub(super) fn stream_gate(&self) -> Gate {
        if self.keeps_slot_alive() { Gate::Closed } else { self.gate }
    }

    /// B-05, B-07.
    pub(super) fn move_gate(&mut self, share: u64) {
        let over = self.is_over();
        self.gate = if over { Gate::Closed } else { self.gate.moved(self.held(), share) };
        let gate = self.stream_gate();
        if let Some(stream) = &mut self.stream {
            stream.gate = gate;
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
            | Step::SlotBusy
            | Step::Preparing
            | Step::Reading
            | Step::ClosingReaders
            | Step::Replaying
            | Step::HandedOver(_)
            | Step::Ending
            | Step::Closing
            | Step::SlotLeft
            | Step::DroppingSlot => false,
        };
        calling || self.rows.is_being_written() || !self.lane.is_settled()
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
        let gone = match what {
            AttemptOp::CloseCopy => !(run.leaves_slot && self.drop_copy_slot(&mut run)),
            AttemptOp::DropSlot => self.copy_slot_dropped(&mut run, result.clone()),
            AttemptOp::InspectSlot
            | AttemptOp::RemoveSlot
            | AttemptOp::OpenSnapshot
            | AttemptOp::OpenReader { .. }
            | AttemptOp::ReadSchema
            | AttemptOp::DescribeAdopted
            | AttemptOp::BeginCopy
            | AttemptOp::ReadRange
            | AttemptOp::WriteRows
            | AttemptOp::FlushRows
            | AttemptOp::FinishCopy
            | AttemptOp::FlushCopy
            | AttemptOp::CloseReaders
            | AttemptOp::OpenStream
            | AttemptOp::Describe
            | AttemptOp::WriteChanges
            | AttemptOp::FlushChanges => false,
        };
        if gone {
            self.turns.forget(lane);
            self.timers.clear(Wakeup::Feedback(StreamId::Copy(table)));
            self.timers.clear(Wakeup::Silence(StreamId::Copy(table)));
            self.timers.clear(Wakeup::Flush(lane));
            self.timers.clear(Wakeup::Copy(table));
            return Ok(());
        }
        let outcome = match result {
            _ if run.is_over() => Ok(()),
            Ok(answer) => self.attempt_advanced(&mut run, op, what, answer),
            Err(fault) if what == AttemptOp::WriteRows => {
                self.rows_failed(&mut run, op, fault);
                Ok(())
            }
            Err(fault) => {
                self.fail_attempt(&mut run, fault);
                Ok(())
            }
        };
        self.copies.insert(table, run);
        outcome
    }

    /// One operation of a living attempt succeeded. `Err(())` is an answer of the wrong kind.
    #[expect(clippy::too_many_lines, reason = "one arm for each operation and its answer")]
    fn attempt_advanced(
        &mut self,
        run: &mut CopyRun<R>,
        op: OpId,
        what: AttemptOp,
        answer: Answer,
    ) -> Result<(), ()> {
        let step = match (what, answer) {
            (AttemptOp::InspectSlot, Answer::Slot(report)) => {
                self.copy_slot_inspected(run, &report)
            }
            (AttemptOp::RemoveSlot, Answer::Done) => {
                self.open_snapshot(run);
                Ok(())
            }
            (AttemptOp::OpenSnapshot, Answer::Snapshot(facts)) => self.snapshot_open(run, &facts),
            (AttemptOp::OpenReader { reader }, Answer::Reader(facts)) => {
                self.reader_open(run, reader, facts)
            }
            (AttemptOp::ReadSchema, Answer::Schema(facts)) => schema_read(run, facts.schema),
            (AttemptOp::DescribeAdopted, Answer::Described(described)) => {
                Self::adopted_described(run, described)
            }
            (AttemptOp::BeginCopy, Answer::Done) => {
                if run.is_adoption() {
                    self.hand_over_adopted(run);
                } else {
                    run.step = Step::Reading;
                }
                Ok(())
            }
            (AttemptOp::ReadRange, Answer::RangeRead(facts)) => run.readers.range_read(op, facts),
            (AttemptOp::WriteRows, Answer::Written(durability)) => {
                run.rows.written(op, durability);
                Ok(())
            }
            (AttemptOp::FlushRows, Answer::Done) => {
                run.rows.flushed();
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
                AttemptOp::InspectSlot
                | AttemptOp::RemoveSlot
                | AttemptOp::OpenSnapshot
                | AttemptOp::OpenReader { .. }
                | AttemptOp::ReadSchema
                | AttemptOp::DescribeAdopted
                | AttemptOp::BeginCopy
                | AttemptOp::ReadRange
                | AttemptOp::WriteRows
                | AttemptOp::FlushRows
                | AttemptOp::FinishCopy
                | AttemptOp::FlushCopy
                | AttemptOp::CloseReaders
                | AttemptOp::OpenStream
                | AttemptOp::Describe
                | AttemptOp::WriteChanges
                | AttemptOp::FlushChanges
                | AttemptOp::CloseCopy
                | AttemptOp::DropSlot,
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
        self.open_reader(run, 0);
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
                if run.is_adoption() {
                    self.describe_adopted(run);
                } else {
                    self.begin_snapshot(run);
                }
                true
            }
            Step::SlotBusy => self.look_at_copy_slot(run),
            Step::SlotLeft => self.drop_copy_slot(run),
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
            Step::Ending if run.is_quiet() => {
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
            | Step::Closing
            | Step::DroppingSlot => false,
        }
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
        run.busy = None;
        self.timers.clear(Wakeup::Copy(run.table));
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
pub(super) fn schema_read<R>(run: &mut CopyRun<R>, schema: TableSchema) -> Result<(), Fault> {
    if schema.columns.len() > COLUMNS_MAX {
        let message = format!("{} has {} columns", schema.qualified_name(), schema.columns.len());
        return Err(source_fault(FaultKind::Limit { name: "1,600 columns" }, message));
    }
    run.schema = Some(Arc::new(schema));
    run.step = Step::BeginDue;
    Ok(())
}
