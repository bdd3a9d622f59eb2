//! Work takes effect and is answered, or fails without an effect.

use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::ids::OpId;
use walferry_core::input::{Answer, Input};
use walferry_core::source::{MonitorFacts, RangeFacts, SchemaFacts};

use super::row::Row;
use super::source::schema;
use super::{MAIN, World};

impl World {
    /// Work takes effect and succeeds; a cancelled one of the source ends as such. Snapshot rows
    /// that are left are handed over first.
    pub fn perform(&mut self, op: OpId, durability: Durability) {
        let Some((work, cancelled)) =
            self.process.as_ref().and_then(|process| process.working.get(&op)).cloned()
        else {
            return;
        };
        if cancelled && !self.ends_by_itself(&work) {
            self.refuse(op, FaultKind::Stopped);
            return;
        }
        while self.hand_rows(op, 3) {}
        if self.is_doomed() || !self.is_alive() {
            return;
        }
        let answer = match &work {
            Work::Save { .. }
            | Work::BeginCopy(_)
            | Work::WriteRows(_)
            | Work::FinishCopy { .. }
            | Work::WriteChanges(_)
            | Work::Flush { .. }
            | Work::Startup { .. }
            | Work::Shutdown => self.perform_sink(op, &work, durability),
            Work::OpenStream { .. }
            | Work::CloseStream { .. }
            | Work::OpenSnapshot { .. }
            | Work::OpenReader { .. }
            | Work::ReadSchema { .. }
            | Work::ReadRange { .. }
            | Work::CloseReaders { .. }
            | Work::CloseCopy { .. } => self.perform_session(op, &work),
            Work::Identify
            | Work::ListPublication
            | Work::InspectSlot { .. }
            | Work::ListSlots { .. }
            | Work::CreateSlot { .. }
            | Work::DropSlot { .. }
            | Work::ReadBlockers { .. }
            | Work::ReadWalPosition
            | Work::Monitor { .. } => self.perform_query(&work),
        };
        self.complete(op, Ok(answer));
    }

    /// Calls of the store and the destination are not cut off by a cancellation.
    const fn ends_by_itself(&self, work: &Work<Row>) -> bool {
        matches!(
            work,
            Work::Save { .. }
                | Work::BeginCopy(_)
                | Work::WriteRows(_)
                | Work::FinishCopy { .. }
                | Work::WriteChanges(_)
                | Work::Flush { .. }
                | Work::Startup { .. }
                | Work::Shutdown
                | Work::CloseCopy { .. }
                | Work::CloseStream { .. }
        )
    }

    /// Work fails without an effect.
    pub fn refuse(&mut self, op: OpId, kind: FaultKind) {
        let origin = match &kind {
            FaultKind::StoreFailed => Origin::Store,
            FaultKind::Destination { .. } => Origin::Destination,
            _ => Origin::Source,
        };
        if kind == FaultKind::StoreFailed {
            self.store.doubt(false);
        }
        self.destination.failed(op);
        self.complete(op, Err(Fault::new(origin, kind, "")));
    }

    /// The save in flight takes effect and reports failure (R-F9).
    pub fn save_in_doubt(&mut self, op: OpId) {
        self.store.doubt(true);
        self.complete(op, Err(Fault::new(Origin::Store, FaultKind::StoreFailed, "")));
    }

    /// Some rows of a read; whether any were left.
    pub fn hand_rows(&mut self, op: OpId, most: usize) -> bool {
        let process = self.process.as_mut();
        let Some(read) = process.and_then(|process| process.reads.get_mut(&op)) else {
            return false;
        };
        if read.rest.is_empty() || self.crash_at == Some(self.effects) {
            return false;
        }
        let rows: Vec<_> = read.rest.drain(..most.clamp(1, read.rest.len())).collect();
        let number = rows.len() as u64;
        read.done += number;
        self.handle(Input::CopyRows {
            op,
            block: Row::Block(rows),
            rows: number,
            bytes: 64 * number,
        });
        true
    }

    fn perform_sink(&mut self, op: OpId, work: &Work<Row>, durability: Durability) -> Answer {
        match work {
            Work::Save { .. } => self.store.saved(),
            Work::Startup { pipeline, epoch } => self.destination.startup(pipeline, *epoch),
            Work::Shutdown => self.destination.shutdown(),
            Work::BeginCopy(start) => self.destination.begin_copy(op, start),
            Work::Flush { lane } => self.destination.flushed(op, *lane, &self.source),
            _ => {
                self.destination.written(op, durability, &self.source);
                return Answer::Written(durability);
            }
        }
        Answer::Done
    }

    fn perform_session(&mut self, op: OpId, work: &Work<Row>) -> Answer {
        match work {
            Work::OpenStream { stream, session, slot, from } => {
                self.source.open_stream(*stream, *session, slot, *from);
                Answer::Opened(self.source.seen())
            }
            Work::CloseStream { stream } => {
                self.source.senders.remove(stream);
                Answer::Done
            }
            Work::OpenSnapshot { table, attempt, slot } => {
                Answer::Snapshot(self.source.open_snapshot(*table, *attempt, slot))
            }
            Work::OpenReader { table, attempt } => {
                Answer::Reader(self.source.open_reader(*table, *attempt))
            }
            Work::ReadSchema { table, .. } => {
                Answer::Schema(SchemaFacts { schema: schema(*table) })
            }
            Work::ReadRange { table, attempt, .. } => {
                let cutoff = self.source.cutoff(*table, *attempt);
                let now = self.source.filenode_at(*table, self.source.head);
                assert_eq!(now, self.source.filenode_at(*table, cutoff), "no guard (K-I6)");
                let reads = self.process.as_ref().and_then(|process| process.reads.get(&op));
                Answer::RangeRead(RangeFacts { rows: reads.map_or(0, |read| read.done) })
            }
            Work::CloseReaders { table, attempt } => {
                self.source.unlock(*table, *attempt);
                Answer::Done
            }
            Work::CloseCopy { table, attempt } => {
                let slot = self
                    .store
                    .persisted()
                    .map(|record| walferry_core::names::copy_slot(&record.identity.slot, *attempt));
                self.source.close_copy(*table, *attempt, slot.as_deref());
                Answer::Done
            }
            _ => Answer::Done,
        }
    }

    fn perform_query(&mut self, work: &Work<Row>) -> Answer {
        match work {
            Work::Identify => Answer::Identified(self.source.server()),
            Work::ListPublication => Answer::Publication(Some(self.source.listing())),
            Work::InspectSlot { slot } => {
                let mut report = self.source.report(slot);
                if let Some(found) = &mut report.slot {
                    found.active = None;
                }
                Answer::Slot(report)
            }
            Work::ListSlots { prefix } => {
                let names = self.source.slots.keys().filter(|name| name.starts_with(prefix));
                Answer::Slots(names.filter_map(|name| self.source.slot(name)).collect())
            }
            Work::CreateSlot { slot } => Answer::Created(self.source.create_slot(slot, false)),
            Work::DropSlot { slot } => {
                self.source.slots.remove(slot);
                Answer::Done
            }
            Work::ReadBlockers { .. } => Answer::Blockers(Vec::new()),
            Work::ReadWalPosition => Answer::WalPosition(self.source.head.0),
            Work::Monitor { slot } => Answer::Monitored(MonitorFacts {
                wal_end: self.source.head.0,
                slot: self.source.slot(slot),
            }),
            _ => Answer::Done,
        }
    }

    /// Completes everything in flight, oldest first, until nothing is left but monitoring.
    pub fn settle(&mut self, durability: Durability) {
        while self.is_alive() && !self.is_doomed() {
            let Some((op, _)) = self.working().into_iter().next() else { return };
            self.perform(op, durability);
        }
    }

    /// Completes the oldest work of a kind, which must be there.
    ///
    /// # Panics
    /// If it is not.
    pub fn perform_first(&mut self, durability: Durability, is: impl Fn(&Work<Row>) -> bool) {
        let Some((op, _)) = self.working().into_iter().find(|(_, work)| is(work)) else {
            panic!("no such work among {:?}", self.working());
        };
        self.perform(op, durability);
    }

    /// Whether the main stream runs.
    #[must_use]
    pub fn streams(&self) -> bool {
        self.source.senders.contains_key(&MAIN)
    }
}
