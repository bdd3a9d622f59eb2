//! The simulated destination: what is durable, what is only accepted on each lane, what is in
//! flight and what comes late. It refuses everything that breaks the contract (DS) and every hole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use walferry_core::batch::{Batch, CopyBatch, CopyMode, CopyStart, DeliveryClass, Durability};
use walferry_core::effect::Work;
use walferry_core::fault::{DestinationClass, FaultKind};
use walferry_core::ids::{Attempt, Epoch, Lane, OpId, TableId};
use walferry_core::lsn::Position;

use super::row::{Row, Tuple, tuple};
use super::source::Source;
use super::target::{Content, Target, indexed};
use crate::coverage::reached;

/// A call that answers Accepted or Durable.
#[derive(Clone, Debug)]
pub enum Call {
    /// `write_rows`.
    Rows(Arc<CopyBatch<Row>>),
    /// `finish_copy`.
    Finish(TableId, Attempt, Epoch, u64),
    /// `write_changes`.
    Changes(Arc<Batch<Row>>),
}

/// A bug planted in the destination, which the judges must find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planted {
    /// None: it keeps its word.
    #[default]
    Nothing,
    /// It answers Durable and is not (DS-F4).
    DurableTooEarly,
}

/// The destination.
#[derive(Clone, Debug)]
pub struct Destination {
    class: DeliveryClass,
    lanes_max: usize,
    copy_in_flight_max: usize,
    /// What a crash leaves at least.
    pub durable: Content,
    /// What is to be seen while everything lives.
    pub visible: Content,
    /// What is wrong with it.
    pub planted: Planted,
    /// Accepted and not durable, in the order of each lane, with the timeline that it came from: what
    /// a dead attempt has left may become durable when the source is on another one.
    accepted: BTreeMap<Lane, Vec<(u32, Call)>>,
    /// Lanes whose accepted work was lost and which have not failed a flush yet (DS-03).
    debts: BTreeSet<Lane>,
    /// Operations in flight with their lanes.
    in_flight: BTreeMap<OpId, (Lane, Option<Call>)>,
    /// Lanes that took something of which the core does not know.
    stray: BTreeSet<Lane>,
    /// Calls that ended without an effect and may still have one (DS-12).
    late: Vec<(u32, Lane, Call)>,
    epoch: Option<Epoch>,
    pipeline: Option<String>,
    /// Whether `startup` was called in this process and `shutdown` was not.
    started: bool,
    /// Where adopted tables were handed over.
    adopted_from: BTreeMap<(TableId, Attempt), Position>,
}

impl Destination {
    /// An empty sink.
    #[must_use]
    pub fn new(class: DeliveryClass, lanes_max: u32, copy_in_flight_max: u32) -> Self {
        Self {
            class,
            lanes_max: usize::try_from(lanes_max).unwrap_or(usize::MAX),
            copy_in_flight_max: usize::try_from(copy_in_flight_max).unwrap_or(usize::MAX),
            durable: Content::default(),
            visible: Content::default(),
            planted: Planted::Nothing,
            accepted: BTreeMap::new(),
            debts: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            stray: BTreeSet::new(),
            late: Vec::new(),
            epoch: None,
            pipeline: None,
            started: false,
            adopted_from: BTreeMap::new(),
        }
    }

    /// A call begins: checks DS-02 and DS-I3.
    ///
    /// # Panics
    /// If it may not begin now.
    pub fn begin(&mut self, op: OpId, work: &Work<Row>) {
        let Some((lane, call)) = call_of(work) else { return };
        assert!(self.started, "a call before startup or after shutdown (DS-I3): {work:?}");
        reached("DS-I3");
        let on_lane = || self.in_flight.values().filter(|(other, _)| *other == lane);
        let rows = |call: &Option<Call>| matches!(call, Some(Call::Rows(_)));
        let overlap = on_lane().any(|(_, other)| !rows(other) || !rows(&call));
        assert!(!overlap, "calls of lane {lane:?} overlap (DS-02): {work:?}");
        assert!(on_lane().count() < self.copy_in_flight_max, "too many write_rows (DS-02)");
        if on_lane().next().is_some() {
            reached("DS-02");
        }
        if matches!(work, Work::Flush { .. }) {
            let doubt = self.debts.contains(&lane) || self.stray.contains(&lane);
            assert!(self.owes(lane) || doubt, "a flush of nothing (F-I2)");
            reached("F-I2");
        }
        self.in_flight.insert(op, (lane, call));
        let lanes: BTreeSet<_> = self.in_flight.values().map(|(lane, _)| *lane).collect();
        assert!(lanes.len() <= self.lanes_max, "{lanes:?} at the same time (DS-02)");
        if lane == Lane::Main && self.writing_main() > 1 {
            panic!("two writes on main (X-I5)");
        }
    }

    fn writing_main(&self) -> usize {
        self.in_flight.values().filter(|(lane, _)| *lane == Lane::Main).count()
    }

    /// A call ends without any effect; it may have one later, of the timeline `late`. A flush or
    /// `finish_copy` that fails, for whatever reason, has said that accepted work may be gone (DS-03).
    pub fn failed(&mut self, op: OpId, late: Option<u32>) {
        let Some((lane, call)) = self.in_flight.remove(&op) else { return };
        // The core cannot know whether the call was taken.
        self.stray.insert(lane);
        if matches!(call, None | Some(Call::Finish(..))) {
            self.debts.remove(&lane);
        }
        if let (Some(call), Some(timeline)) = (call, late) {
            self.late.push((timeline, lane, call));
        }
    }

    /// Lanes with accepted work.
    #[must_use]
    pub fn owing(&self) -> Vec<Lane> {
        self.accepted.iter().filter(|(_, calls)| !calls.is_empty()).map(|(lane, _)| *lane).collect()
    }

    /// A failure of the sink while the process lives: of each lane a suffix of what is accepted is
    /// lost, and the lane owes a failed flush (DS-03).
    pub fn lose_accepted(&mut self, source: &Source, mut keeps: impl FnMut(usize) -> usize) {
        for (lane, calls) in &mut self.accepted {
            let kept = keeps(calls.len());
            if kept < calls.len() {
                calls.truncate(kept);
                self.debts.insert(*lane);
                reached("DS-03");
            }
        }
        self.show_again(source);
    }

    fn show_again(&mut self, source: &Source) {
        self.visible.clone_from(&self.durable);
        let tables = self.accepted.keys().filter(|lane| **lane != Lane::Main);
        for lane in tables.copied().chain([Lane::Main]).collect::<Vec<_>>() {
            for (timeline, call) in self.accepted.get(&lane).into_iter().flatten() {
                let source = source.on_timeline(*timeline).unwrap_or(source);
                apply(&mut self.visible, call, self.class, source);
            }
        }
    }

    /// Whether a call has to fail as transient because accepted work of its lane was lost.
    #[must_use]
    pub fn must_fail(&self, work: &Work<Row>) -> bool {
        call_of(work).is_some_and(|(lane, _)| {
            self.debts.contains(&lane) && !matches!(work, Work::BeginCopy(_))
        })
    }

    /// The failure that `must_fail` asked for; that of a flush or `finish_copy` ends the debt.
    pub fn failed_for_debt(&mut self, op: OpId, work: &Work<Row>) {
        if let Some((lane, _)) = call_of(work)
            && matches!(work, Work::Flush { .. } | Work::FinishCopy { .. })
        {
            self.debts.remove(&lane);
        }
        if let Some((lane, _)) = self.in_flight.remove(&op) {
            self.stray.insert(lane);
        }
    }

    /// `startup` (DS-16).
    ///
    /// # Errors
    /// The sink belongs to another pipeline.
    ///
    /// # Panics
    /// If it belongs to a newer epoch, or on a second call.
    pub fn startup(&mut self, pipeline: &str, epoch: Epoch) -> Result<(), FaultKind> {
        assert!(!self.started, "startup twice (DS-09)");
        assert!(self.epoch.is_none_or(|known| known <= epoch), "fenced (DS-16)");
        let owner = self.pipeline.get_or_insert_with(|| pipeline.to_owned());
        if owner != pipeline {
            return Err(FaultKind::Destination { class: DestinationClass::Manual });
        }
        self.epoch = Some(epoch);
        self.started = true;
        reached("DS-16");
        Ok(())
    }

    /// `shutdown`.
    ///
    /// # Panics
    /// If something is still in flight.
    pub fn shutdown(&mut self) {
        assert!(self.in_flight.is_empty(), "shutdown with calls in flight (DS-I3)");
        assert!(self.started, "shutdown without startup (Q-I2)");
        self.started = false;
        reached("Q-I2");
    }

    /// Whether `startup` was called and `shutdown` was not.
    #[must_use]
    pub const fn is_started(&self) -> bool {
        self.started
    }

    /// `begin_copy` takes effect; it is durable when it completes (DS-05).
    ///
    /// # Panics
    /// If the mode does not fit what the sink holds.
    pub fn begin_copy(&mut self, op: OpId, start: &CopyStart, forgotten: bool) {
        self.in_flight.remove(&op);
        self.check_epoch(start.epoch);
        let found = self.visible.get(&start.table);
        match start.mode {
            CopyMode::Fresh => {
                // What is there is ours, and nobody remembers it any more (T-10).
                let free = found.is_none() || forgotten;
                assert!(free, "target of {} not empty (DS-05)", start.table);
                if forgotten {
                    reached("T-10");
                }
            }
            CopyMode::Recopy { previous } => assert!(
                found.is_none_or(|target| target.attempt <= previous),
                "recopy of {} names an attempt that is not the latest (DS-05)",
                start.table
            ),
            CopyMode::Adopt { .. } => reached("K-18"),
        }
        assert!(found.is_none_or(|target| target.attempt < start.attempt), "attempt again (N-I6)");
        reached("N-I6");
        let lane = Lane::Table(start.table);
        self.accepted.remove(&lane);
        self.debts.remove(&lane);
        self.stray.remove(&lane);
        let target = Target::begun(start, found);
        self.durable.insert(start.table, target.clone());
        self.visible.insert(start.table, target);
    }

    /// The world knows where a table was handed over: an adopted one owes its events from there.
    pub fn handed_over(&mut self, table: TableId, attempt: Attempt, at: Position) {
        self.adopted_from.insert((table, attempt), at);
        for content in [&mut self.durable, &mut self.visible] {
            if let Some(target) = content.get_mut(&table)
                && target.adopted
                && target.attempt == attempt
            {
                target.from = at;
            }
        }
    }

    /// A new timeline uses the positions beyond its fork again, for other events.
    pub fn forget_beyond(&mut self, fork: Position) {
        for target in self.durable.values_mut().chain(self.visible.values_mut()) {
            target.forget_beyond(fork);
        }
    }

    fn check_epoch(&self, epoch: Epoch) {
        assert_eq!(self.epoch, Some(epoch), "a call with another epoch (DS-14)");
        reached("DS-14");
    }

    /// A write takes effect with the given promise.
    pub fn written(&mut self, op: OpId, durability: Durability, source: &Source) {
        let Some((lane, Some(call))) = self.in_flight.remove(&op) else { return };
        self.check_epoch(epoch_of(&call));
        self.take(lane, call, source);
        if durability == Durability::Durable && self.planted != Planted::DurableTooEarly {
            self.make_durable(lane, usize::MAX, source);
        }
    }

    fn take(&mut self, lane: Lane, call: Call, source: &Source) {
        apply(&mut self.visible, &call, self.class, source);
        self.accepted.entry(lane).or_default().push((source.timeline, call));
    }

    /// `flush` takes effect.
    pub fn flushed(&mut self, op: OpId, lane: Lane, source: &Source) {
        self.in_flight.remove(&op);
        self.make_durable(lane, usize::MAX, source);
    }

    fn make_durable(&mut self, lane: Lane, most: usize, source: &Source) {
        self.stray.remove(&lane);
        let calls = self.accepted.entry(lane).or_default();
        for (timeline, call) in calls.drain(..most.min(calls.len())) {
            let source = source.on_timeline(timeline).unwrap_or(source);
            apply(&mut self.durable, &call, self.class, source);
        }
    }

    /// Whether anything is accepted on a lane and not durable.
    #[must_use]
    pub fn owes(&self, lane: Lane) -> bool {
        self.accepted.get(&lane).is_some_and(|calls| !calls.is_empty())
    }

    /// Lanes that owe something that the core knows of.
    #[must_use]
    pub fn owing_knowingly(&self) -> Vec<Lane> {
        self.owing().into_iter().filter(|lane| !self.stray.contains(lane)).collect()
    }

    /// A call took effect and reports failure (DS-F3).
    pub fn reported_failed(&mut self, work: &Work<Row>) {
        self.stray.extend(call_of(work).map(|(lane, _)| lane));
    }

    /// Whether something may still come late.
    #[must_use]
    pub const fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// A call that ended without an effect arrives after all: an older epoch is fenced, an older
    /// attempt skipped, and what would leave a hole is refused (DS-12, DS-14, O-8).
    pub fn comes_late(&mut self, source: &Source) {
        let Some((timeline, lane, call)) = self.late.pop() else { return };
        let source = source.on_timeline(timeline).unwrap_or(source);
        let fenced = self.epoch > Some(epoch_of(&call));
        if fenced {
            reached("O-8");
        }
        if fenced || self.debts.contains(&lane) || self.in_flight_writes(lane) {
            return;
        }
        if fits(&self.visible, &call, source) {
            reached("DS-12");
            self.stray.insert(lane);
            self.take(lane, call, source);
        }
    }

    fn in_flight_writes(&self, lane: Lane) -> bool {
        self.in_flight.values().any(|(other, _)| *other == lane)
    }

    /// Takes out events, accepted or in flight, that belong to attempts which no record counts.
    pub fn forget_what_is_over(&mut self, lives: impl Fn(TableId, Attempt) -> bool) {
        let keep = |call: &mut Call| match call {
            Call::Rows(batch) => lives(batch.table, batch.attempt),
            Call::Finish(table, attempt, ..) => lives(*table, *attempt),
            Call::Changes(batch) => {
                let over = |index: usize| {
                    let entry = &batch.tables[index];
                    !lives(entry.table, entry.attempt)
                };
                let stale = (0..).take(batch.tables.len()).any(over);
                if stale {
                    let mut left = Batch::clone(batch);
                    left.changes.retain(|change| {
                        indexed(&change.body).is_none_or(|(index, _)| !over(index))
                    });
                    *batch = Arc::new(left);
                }
                !batch.changes.is_empty()
            }
        };
        for calls in self.accepted.values_mut() {
            calls.retain_mut(|(_, call)| keep(call));
        }
        self.in_flight.retain(|_, (_, call)| call.as_mut().is_none_or(keep));
    }

    /// The process dies: of each lane a suffix of what is accepted is lost; a call in flight may
    /// have taken effect, or come late.
    pub fn crash(&mut self, source: &Source, mut survives: impl FnMut(usize) -> usize) {
        let in_flight = core::mem::take(&mut self.in_flight);
        for (lane, call) in in_flight.into_values() {
            let Some(call) = call else { continue };
            if survives(1) == 1 && !self.debts.contains(&lane) {
                self.take(lane, call, source);
            } else {
                self.late.push((source.timeline, lane, call));
            }
        }
        for lane in self.accepted.keys().copied().collect::<Vec<_>>() {
            let most = survives(self.accepted[&lane].len());
            self.make_durable(lane, most, source);
        }
        self.accepted.clear();
        self.debts.clear();
        self.stray.clear();
        self.visible = self.durable.clone();
        self.started = false;
    }
}

fn epoch_of(call: &Call) -> Epoch {
    match call {
        Call::Rows(batch) => batch.epoch,
        Call::Changes(batch) => batch.epoch,
        Call::Finish(_, _, epoch, _) => *epoch,
    }
}

/// Lane of a call, and the call if it is one with a promise.
fn call_of(work: &Work<Row>) -> Option<(Lane, Option<Call>)> {
    match work {
        Work::BeginCopy(start) => Some((Lane::Table(start.table), None)),
        Work::WriteRows(batch) => {
            Some((Lane::Table(batch.table), Some(Call::Rows(Arc::clone(batch)))))
        }
        Work::FinishCopy { table, attempt, epoch, sequences } => {
            Some((Lane::Table(*table), Some(Call::Finish(*table, *attempt, *epoch, *sequences))))
        }
        Work::WriteChanges(batch) => Some((batch.lane, Some(Call::Changes(Arc::clone(batch))))),
        Work::Flush { lane } => Some((*lane, None)),
        Work::Save { .. }
        | Work::Identify
        | Work::ListPublication
        | Work::InspectSlot { .. }
        | Work::ListSlots { .. }
        | Work::CreateSlot { .. }
        | Work::DropSlot { .. }
        | Work::ReadBlockers { .. }
        | Work::CheckOwner
        | Work::ReadTimelineHistory { .. }
        | Work::EnableFailover { .. }
        | Work::DescribeTable { .. }
        | Work::WriteHeartbeat { .. }
        | Work::ReadWalPosition
        | Work::Monitor { .. }
        | Work::OpenStream { .. }
        | Work::CloseStream { .. }
        | Work::OpenSnapshot { .. }
        | Work::OpenReader { .. }
        | Work::ReadSchema { .. }
        | Work::ReadRange { .. }
        | Work::CloseReaders { .. }
        | Work::CloseCopy { .. }
        | Work::Startup { .. }
        | Work::Shutdown => None,
    }
}

fn apply(content: &mut Content, call: &Call, class: DeliveryClass, source: &Source) {
    match call {
        Call::Rows(batch) => {
            let rows = batch.blocks.iter().flat_map(|block| match block {
                Row::Block(rows) => rows.clone(),
                Row::Change(_) => Vec::new(),
            });
            if let Some(target) = living(content, batch.table, batch.attempt) {
                target.write_rows(batch.sequence, rows.collect(), &batch.schema);
            }
        }
        Call::Finish(table, attempt, _, sequences) => {
            if let Some(target) = living(content, *table, *attempt) {
                target.finish(*sequences);
                check_snapshot(*table, target, source);
            }
        }
        Call::Changes(batch) => {
            let tables: BTreeSet<_> =
                batch.tables.iter().map(|entry| (entry.table, entry.attempt)).collect();
            for (table, attempt) in tables {
                if let Some(target) = living(content, table, attempt) {
                    target.write_changes(batch, table, class, source);
                }
            }
        }
    }
}

fn check_snapshot(table: TableId, target: &Target, source: &Source) {
    let shape = target.copied_shape();
    let shown = source.rows_at(table, target.from);
    let shown: BTreeMap<u32, Tuple> =
        shown.into_iter().map(|(key, cells)| (key, tuple(&cells, shape))).collect();
    assert_eq!(target.copied_rows(), shown, "the snapshot of {table} (K-I5)");
    reached("K-I5");
    if !shown.is_empty() {
        reached("K-I6");
    }
}

/// Whether what comes late would leave everything whole.
fn fits(content: &Content, call: &Call, source: &Source) -> bool {
    match call {
        Call::Rows(batch) => content
            .get(&batch.table)
            .is_some_and(|target| target.attempt == batch.attempt && !target.finished),
        Call::Finish(..) => false,
        Call::Changes(batch) => batch.tables.iter().all(|entry| {
            content.get(&entry.table).is_some_and(|target| {
                target.attempt > entry.attempt
                    || (target.attempt == entry.attempt && target.fits(batch, entry.table, source))
            })
        }),
    }
}

/// The target of a call, unless a newer attempt owns it (DS-14).
fn living(content: &mut Content, table: TableId, attempt: Attempt) -> Option<&mut Target> {
    let target = content.get_mut(&table);
    let known = target.as_ref().map(|target| target.attempt);
    assert!(known >= Some(attempt), "table {table}: attempt {attempt} before its begin_copy");
    if known > Some(attempt) {
        reached("DS-I2");
    }
    target.filter(|target| target.attempt == attempt)
}
