//! The simulated destination: what is durable, what is only accepted on each lane, and what is in
//! flight. It refuses everything that breaks the contract (DS) and every hole (O-1).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use walferry_core::batch::{Batch, CopyBatch, CopyMode, CopyStart, DeliveryClass, Durability};
use walferry_core::effect::Work;
use walferry_core::ids::{Attempt, Epoch, Lane, OpId, TableId};

use super::row::Row;
use super::source::Source;
use super::target::{Content, Target};

/// A call that answers Accepted or Durable.
#[derive(Clone, Debug)]
pub enum Call {
    /// `write_rows`.
    Rows(Arc<CopyBatch<Row>>),
    /// `finish_copy`.
    Finish(TableId, Attempt, u64),
    /// `write_changes`.
    Changes(Arc<Batch<Row>>),
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
    /// Accepted and not durable, in the order of each lane.
    accepted: BTreeMap<Lane, Vec<Call>>,
    /// Operations in flight with their lanes.
    in_flight: BTreeMap<OpId, (Lane, Option<Call>)>,
    epoch: Option<Epoch>,
    pipeline: Option<String>,
    /// Whether `startup` was called in this process and `shutdown` was not.
    started: bool,
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
            accepted: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            epoch: None,
            pipeline: None,
            started: false,
        }
    }

    /// A call begins: checks DS-02 and DS-I3.
    ///
    /// # Panics
    /// If it may not begin now.
    pub fn begin(&mut self, op: OpId, work: &Work<Row>) {
        let Some((lane, call)) = call_of(work) else { return };
        assert!(self.started, "a call before startup or after shutdown (DS-I3): {work:?}");
        let on_lane = || self.in_flight.values().filter(|(other, _)| *other == lane);
        let rows = |call: &Option<Call>| matches!(call, Some(Call::Rows(_)));
        let overlap = on_lane().any(|(_, other)| !rows(other) || !rows(&call));
        assert!(!overlap, "calls of lane {lane:?} overlap (DS-02): {work:?}");
        assert!(on_lane().count() < self.copy_in_flight_max, "too many write_rows (DS-02)");
        self.in_flight.insert(op, (lane, call));
        let lanes: BTreeSet<_> = self.in_flight.values().map(|(lane, _)| *lane).collect();
        assert!(lanes.len() <= self.lanes_max, "{lanes:?} at the same time (DS-02)");
    }

    /// A call ends without any effect.
    pub fn failed(&mut self, op: OpId) {
        self.in_flight.remove(&op);
    }

    /// `startup` (DS-16).
    ///
    /// # Panics
    /// If the sink belongs to another pipeline or a newer epoch, or on a second call.
    pub fn startup(&mut self, pipeline: &str, epoch: Epoch) {
        assert!(!self.started, "startup twice (DS-09)");
        assert!(self.epoch.is_none_or(|known| known <= epoch), "fenced (DS-16)");
        let owner = self.pipeline.get_or_insert_with(|| pipeline.to_owned());
        assert_eq!(owner, pipeline, "target of another pipeline (DS-16)");
        self.epoch = Some(epoch);
        self.started = true;
    }

    /// `shutdown`.
    ///
    /// # Panics
    /// If something is still in flight.
    pub fn shutdown(&mut self) {
        assert!(self.in_flight.is_empty(), "shutdown with calls in flight (DS-I3)");
        self.started = false;
    }

    /// `begin_copy` takes effect; it is durable when it completes (DS-05).
    ///
    /// # Panics
    /// If the mode does not fit what the sink holds.
    pub fn begin_copy(&mut self, op: OpId, start: &CopyStart) {
        self.in_flight.remove(&op);
        self.check_epoch(start.epoch);
        let found = self.visible.get(&start.table);
        match start.mode {
            CopyMode::Fresh => {
                assert!(found.is_none(), "target of {} not empty (DS-05)", start.table);
            }
            CopyMode::Recopy { previous } => assert!(
                found.is_none_or(|target| target.attempt <= previous),
                "recopy of {} names an attempt that is not the latest (DS-05)",
                start.table
            ),
            CopyMode::Adopt { .. } => panic!("this world adopts no table"),
        }
        assert!(found.is_none_or(|target| target.attempt < start.attempt), "attempt again (N-I6)");
        let target = Target::new(start.attempt, start.cutoff);
        self.durable.insert(start.table, target.clone());
        self.visible.insert(start.table, target);
    }

    fn check_epoch(&self, epoch: Epoch) {
        assert_eq!(self.epoch, Some(epoch), "a call with another epoch (DS-14)");
    }

    /// A write takes effect with the given promise.
    pub fn written(&mut self, op: OpId, durability: Durability, source: &Source) {
        let Some((lane, Some(call))) = self.in_flight.remove(&op) else { return };
        self.check_epoch_of(&call);
        self.take(lane, call, source);
        if durability == Durability::Durable {
            self.make_durable(lane, usize::MAX, source);
        }
    }

    fn check_epoch_of(&self, call: &Call) {
        match call {
            Call::Rows(batch) => self.check_epoch(batch.epoch),
            Call::Changes(batch) => self.check_epoch(batch.epoch),
            Call::Finish(..) => (),
        }
    }

    fn take(&mut self, lane: Lane, call: Call, source: &Source) {
        apply(&mut self.visible, &call, self.class, source);
        self.accepted.entry(lane).or_default().push(call);
    }

    /// `flush` takes effect.
    pub fn flushed(&mut self, op: OpId, lane: Lane, source: &Source) {
        self.in_flight.remove(&op);
        self.make_durable(lane, usize::MAX, source);
    }

    fn make_durable(&mut self, lane: Lane, most: usize, source: &Source) {
        let calls = self.accepted.entry(lane).or_default();
        for call in calls.drain(..most.min(calls.len())) {
            apply(&mut self.durable, &call, self.class, source);
        }
    }

    /// Whether anything is accepted on a lane and not durable.
    #[must_use]
    pub fn owes(&self, lane: Lane) -> bool {
        self.accepted.get(&lane).is_some_and(|calls| !calls.is_empty())
    }

    /// The process dies: of each lane a suffix of what is accepted is lost; a call in flight may
    /// have taken effect.
    pub fn crash(&mut self, source: &Source, mut survives: impl FnMut(usize) -> usize) {
        let in_flight = core::mem::take(&mut self.in_flight);
        for (lane, call) in in_flight.into_values() {
            if let Some(call) = call
                && survives(1) == 1
            {
                self.take(lane, call, source);
            }
        }
        for lane in self.accepted.keys().copied().collect::<Vec<_>>() {
            let most = survives(self.accepted[&lane].len());
            self.make_durable(lane, most, source);
        }
        self.accepted.clear();
        self.visible = self.durable.clone();
        self.started = false;
    }
}

/// Lane of a call, and the call if it is one with a promise.
fn call_of(work: &Work<Row>) -> Option<(Lane, Option<Call>)> {
    match work {
        Work::BeginCopy(start) => Some((Lane::Table(start.table), None)),
        Work::WriteRows(batch) => {
            Some((Lane::Table(batch.table), Some(Call::Rows(Arc::clone(batch)))))
        }
        Work::FinishCopy { table, attempt, sequences, .. } => {
            Some((Lane::Table(*table), Some(Call::Finish(*table, *attempt, *sequences))))
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
                target.write_rows(batch.sequence, rows.collect());
            }
        }
        Call::Finish(table, attempt, sequences) => {
            if let Some(target) = living(content, *table, *attempt) {
                target.finish(*sequences);
                let shown = source.rows_at(*table, target.cutoff);
                assert_eq!(target.copied_rows(), shown, "the snapshot of {table} (K-I5)");
            }
        }
        Call::Changes(batch) => {
            for (index, entry) in batch.tables.iter().enumerate() {
                if let Some(target) = living(content, entry.table, entry.attempt) {
                    target.write_changes(batch, index, class, source);
                }
            }
        }
    }
}

/// The target of a call, unless a newer attempt owns it (DS-14).
fn living(content: &mut Content, table: TableId, attempt: Attempt) -> Option<&mut Target> {
    let target = content.get_mut(&table);
    let known = target.as_ref().map(|target| target.attempt);
    assert!(known >= Some(attempt), "table {table}: attempt {attempt} before its begin_copy");
    target.filter(|target| target.attempt == attempt)
}
