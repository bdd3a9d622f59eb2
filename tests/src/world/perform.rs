//! Work takes effect and is answered, or fails without an effect.

use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::ids::{Attempt, OpId, TableId};
use walferry_core::input::{Answer, Input};
use walferry_core::names;
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
        if cancelled && !ends_by_itself(&work) {
            self.refuse(op, FaultKind::Stopped);
            return;
        }
        while self.hand_rows(op, 3) {}
        if self.is_doomed() || !self.is_alive() {
            return;
        }
        let answer = self.take_effect(op, &work, durability);
        self.complete(op, Ok(answer));
    }

    /// Work fails without an effect.
    pub fn refuse(&mut self, op: OpId, kind: FaultKind) {
        let origin = if kind == FaultKind::StoreFailed {
            Origin::Store
        } else if matches!(kind, FaultKind::Destination { .. }) {
            Origin::Destination
        } else {
            Origin::Source
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

    fn take_effect(&mut self, op: OpId, work: &Work<Row>, durability: Durability) -> Answer {
        match work {
            Work::Save { .. } => self.store.saved(),
            Work::CheckOwner | Work::EnableFailover { .. } | Work::WriteHeartbeat { .. } => (),
            Work::ReadTimelineHistory { .. } => return Answer::History(Vec::new()),
            Work::DescribeTable { .. } => return Answer::Described(None),
            Work::Startup { pipeline, epoch } => self.destination.startup(pipeline, *epoch),
            Work::Shutdown => self.destination.shutdown(),
            Work::BeginCopy(start) => self.destination.begin_copy(op, start),
            Work::Flush { lane } => self.destination.flushed(op, *lane, &self.source),
            Work::WriteRows(_) | Work::FinishCopy { .. } | Work::WriteChanges(_) => {
                self.destination.written(op, durability, &self.source);
                return Answer::Written(durability);
            }
            Work::OpenStream { stream, session, slot, from } => {
                self.source.open_stream(*stream, *session, slot, *from);
                return Answer::Opened(self.source.seen());
            }
            Work::CloseStream { stream } => drop(self.source.senders.remove(stream)),
            Work::OpenSnapshot { table, attempt, slot, failover: _ } => {
                return Answer::Snapshot(self.source.open_snapshot(*table, *attempt, slot));
            }
            Work::OpenReader { table, attempt, .. } => {
                return Answer::Reader(self.source.open_reader(*table, *attempt));
            }
            Work::ReadSchema { table, .. } => {
                return Answer::Schema(SchemaFacts { schema: schema(*table) });
            }
            Work::ReadRange { table, attempt, .. } => return self.end_range(op, *table, *attempt),
            Work::CloseReaders { table, attempt } => self.source.unlock(*table, *attempt),
            Work::CloseCopy { table, attempt } => self.close_copy(*table, *attempt),
            Work::Identify => return Answer::Identified(self.source.server()),
            Work::ListPublication => return Answer::Publication(Some(self.source.listing())),
            Work::InspectSlot { slot } => return Answer::Slot(self.source.report(slot)),
            Work::ListSlots { prefix } => return Answer::Slots(self.source.slots_of(prefix)),
            Work::CreateSlot { slot, failover: _ } => {
                return Answer::Created(self.source.create_slot(slot, false));
            }
            Work::DropSlot { slot } => drop(self.source.slots.remove(slot)),
            Work::ReadBlockers { .. } => return Answer::Blockers(Vec::new()),
            Work::ReadWalPosition => return Answer::WalPosition(self.source.head.0),
            Work::Monitor { slot } => {
                let (wal_end, slot) = (self.source.head.0, self.source.slot(slot));
                return Answer::Monitored(MonitorFacts { wal_end, slot });
            }
        }
        Answer::Done
    }

    fn end_range(&self, op: OpId, table: TableId, attempt: Attempt) -> Answer {
        let cutoff = self.source.cutoff(table, attempt);
        let now = self.source.filenode_at(table, self.source.head);
        assert_eq!(now, self.source.filenode_at(table, cutoff), "no guard (K-I6)");
        let reads = self.process.as_ref().and_then(|process| process.reads.get(&op));
        Answer::RangeRead(RangeFacts { rows: reads.map_or(0, |read| read.done) })
    }

    fn close_copy(&mut self, table: TableId, attempt: Attempt) {
        let main = self.store.persisted().map(|record| record.identity.slot.clone());
        let slot = main.map(|main| names::copy_slot(&main, attempt));
        self.source.close_copy(table, attempt, slot.as_deref());
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

/// Calls of the store and the destination are not cut off by a cancellation.
const fn ends_by_itself(work: &Work<Row>) -> bool {
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
