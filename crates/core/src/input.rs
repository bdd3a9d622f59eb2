//! Everything that can happen: the one way in.

use crate::batch::Durability;
use crate::event::Event;
use crate::fault::Fault;
use crate::ids::{OpId, Session, StreamId, TableId};
use crate::lsn::{Lsn, Position};
use crate::source::{
    Blocker, CreatedSlot, Described, Listing, MonitorFacts, RangeFacts, ReaderFacts, SchemaFacts,
    ServerFacts, SlotFacts, SlotReport, SnapshotFacts, SourceSeen, TimelineSwitch,
};

/// What the driver tells the core.
#[derive(Clone, Debug, PartialEq)]
pub enum Input<R> {
    /// The one completion of an operation.
    Completed {
        /// The operation.
        op: OpId,
        /// How it ended.
        result: Result<Answer, Fault>,
    },
    /// Events of a stream, in stream order. An empty list says that bytes came.
    Stream {
        /// Which stream.
        stream: StreamId,
        /// The session they belong to.
        session: Session,
        /// The events.
        events: Vec<Event<R>>,
    },
    /// A stream ended although nobody closed it.
    StreamEnded {
        /// Which stream.
        stream: StreamId,
        /// The session that ended.
        session: Session,
        /// Why.
        fault: Fault,
    },
    /// Rows of an unfinished `ReadRange`.
    CopyRows {
        /// The `ReadRange`.
        op: OpId,
        /// A block of rows as the driver holds it.
        block: R,
        /// Rows in it, at least 1.
        rows: u64,
        /// Memory it keeps alive, in bytes.
        bytes: u64,
    },
    /// A person or a supervisor wants something.
    Request(Request),
}

/// What can be asked of a running pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Stop in order: drain, save, confirm, shut down (Q).
    Stop,
    /// End without waiting: as safe as a crash.
    StopNow,
    /// A new attempt of a table that is Errored (Y-09).
    Retry(TableId),
    /// A new copy of a table, whatever its phase (Y-09).
    Resync(TableId),
    /// Create the main slot again and copy every table anew (I-01).
    Recreate,
    /// Hold main dispatch at the next boundary (L-07).
    Hold,
    /// While held: dispatch exactly what is below the position, and hold again (L-07).
    Advance(Position),
    /// End the hold.
    Release,
}

/// What a completed operation answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Nothing but success.
    Done,
    /// Of `Identify`.
    Identified(ServerFacts),
    /// Of `ListPublication`; `None` if there is no such publication.
    Publication(Option<Listing>),
    /// Of `InspectSlot`.
    Slot(SlotReport),
    /// Of `ListSlots`.
    Slots(Vec<SlotFacts>),
    /// Of `CreateSlot`.
    Created(CreatedSlot),
    /// Of `ReadBlockers`.
    Blockers(Vec<Blocker>),
    /// Of `ReadTimelineHistory`: the entries, oldest first.
    History(Vec<TimelineSwitch>),
    /// Of `DescribeTable`; `None` if there is no such table.
    Described(Option<Described>),
    /// Of `ReadWalPosition`.
    WalPosition(Lsn),
    /// Of `Monitor`.
    Monitored(MonitorFacts),
    /// Of `OpenStream`.
    Opened(SourceSeen),
    /// Of `OpenSnapshot`.
    Snapshot(SnapshotFacts),
    /// Of `OpenReader`.
    Reader(ReaderFacts),
    /// Of `ReadSchema`.
    Schema(SchemaFacts),
    /// Of `ReadRange`.
    RangeRead(RangeFacts),
    /// Of `WriteRows`, `FinishCopy`, `WriteChanges`.
    Written(Durability),
}
