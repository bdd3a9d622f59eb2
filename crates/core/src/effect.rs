//! Everything the core can ask for: the one way out.

use core::time::Duration;
use std::sync::Arc;

use crate::batch::{Batch, CopyBatch, CopyStart};
use crate::ids::{Attempt, Epoch, Lane, OpId, Session, StreamId, TableId};
use crate::lsn::Position;
use crate::notice::{Notice, Outcome};
use crate::record::Record;
use crate::schema::TableSchema;
use crate::source::BlockRange;

/// What the driver has to do. Work with an operation id gets exactly one completion.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect<R> {
    /// Start `work` and report its end with `Input::Completed`.
    Start {
        /// Identity of the completion.
        op: OpId,
        /// After this time the driver cancels the work and completes it with `Timeout`.
        budget: Option<Duration>,
        /// What to do.
        work: Work<R>,
    },
    /// Give up on a running operation; its completion is still owed.
    Cancel {
        /// The operation.
        op: OpId,
    },
    /// Send feedback on a stream: everything below `position` may go at the server.
    Confirm {
        /// The stream.
        stream: StreamId,
        /// The session that is meant; an older one is ignored.
        session: Session,
        /// The position, in all three fields (C-08).
        position: Position,
        /// Whether the server shall answer with a keepalive (PG-11).
        ask_reply: bool,
    },
    /// Something for people and metrics.
    Report(Notice),
    /// The run is over; nothing follows.
    Ended(Outcome),
}

/// Which parts of the record a save changes, so that a store may write only those.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Anything but checkpoint, tables and tombstones.
    pub head: bool,
    /// The checkpoint.
    pub checkpoint: bool,
    /// Tables or tombstones.
    pub tables: bool,
}

/// Work with one terminal completion.
#[derive(Clone, Debug, PartialEq)]
pub enum Work<R> {
    /// Replace the durable record. Answer: `Done`.
    Save {
        /// The whole new value.
        record: Arc<Record>,
        /// What differs from the last one saved.
        changed: Changed,
    },

    /// Make sure that this run still owns the record (V-09). Answer: `Done`.
    CheckOwner,

    /// Ask the server who it is, on a replication connection. Answer: `Identified`.
    Identify,
    /// List the publication. Answer: `Publication`.
    ListPublication,
    /// Look at a slot and at what A-03 compares with it. Answer: `Slot`.
    InspectSlot {
        /// Its name.
        slot: String,
    },
    /// List slots whose name starts with a prefix, compared in code (N-I3). Answer: `Slots`.
    ListSlots {
        /// The prefix.
        prefix: String,
    },
    /// Read the history of a timeline (PG-38). Answer: `History`.
    ReadTimelineHistory {
        /// The timeline.
        timeline: u32,
    },
    /// Create a persistent logical slot without snapshot (M-04). Answer: `Created`.
    CreateSlot {
        /// Its name.
        slot: String,
        /// Whether it shall have the failover property (17 and newer).
        failover: bool,
    },
    /// Give a slot the failover property (M-09, PG-33). Answer: `Done`.
    EnableFailover {
        /// Its name.
        slot: String,
    },
    /// Drop a slot; an absent one is success. Answer: `Done`.
    DropSlot {
        /// Its name.
        slot: String,
    },
    /// Whom slot creation waits for (M-06). Answer: `Blockers`.
    ReadBlockers {
        /// The slot under creation.
        slot: String,
    },
    /// The server's flushed WAL position (L-08). Answer: `WalPosition`.
    ReadWalPosition,
    /// Read a table's columns and storage from the catalog (D-08). Answer: `Described`.
    DescribeTable {
        /// The table.
        table: TableId,
    },
    /// Write a transactional logical message. Answer: `Done`.
    WriteHeartbeat {
        /// Its prefix.
        prefix: &'static str,
        /// Its content.
        content: String,
    },
    /// Position of the server and state of the main slot (G-06). Answer: `Monitored`.
    Monitor {
        /// Name of the main slot.
        slot: String,
    },

    /// Start streaming. For a private stream: on the exporting connection. Answer: `Opened`.
    OpenStream {
        /// Which stream.
        stream: StreamId,
        /// Number of this opening.
        session: Session,
        /// Its slot.
        slot: String,
        /// Start position.
        from: Position,
    },
    /// End a stream's session; nothing of it is delivered after the completion. Answer: `Done`.
    CloseStream {
        /// Which stream.
        stream: StreamId,
    },

    /// Create the copy slot with its exported snapshot (K-08). Answer: `Snapshot`.
    OpenSnapshot {
        /// The table.
        table: TableId,
        /// The attempt.
        attempt: Attempt,
        /// Name of the copy slot.
        slot: String,
        /// Whether the slot is persistent and has the failover property (K-05); else temporary.
        failover: bool,
    },
    /// Import the snapshot, lock the table, read the guard facts (K-10, K-11). Answer: `Reader`.
    OpenReader {
        /// The table.
        table: TableId,
        /// The attempt.
        attempt: Attempt,
        /// Number of the reader, from 0. The first one locks and reads the guard facts, the others
        /// import the same snapshot only.
        reader: u32,
    },
    /// Read the schema in the snapshot (K-14). Answer: `Schema`.
    ReadSchema {
        /// The table.
        table: TableId,
        /// The attempt.
        attempt: Attempt,
    },
    /// COPY a part of one relation; rows come as `Input::CopyRows`. Answer: `RangeRead`.
    ReadRange {
        /// The table.
        table: TableId,
        /// The attempt.
        attempt: Attempt,
        /// Number of the reader, which reads one range at a time.
        reader: u32,
        /// The heap to read: the table, or a leaf under a published root.
        relation: TableId,
        /// The part of it.
        blocks: BlockRange,
        /// The columns, in order.
        schema: Arc<TableSchema>,
        /// Row filter as SQL.
        filter: Option<String>,
    },
    /// Commit the readers, which gives up lock and snapshot (K-19). Answer: `Done`.
    CloseReaders {
        /// The table.
        table: TableId,
        /// The attempt.
        attempt: Attempt,
    },
    /// End every connection of the attempt; its temporary slot goes with it. Answer: `Done`.
    CloseCopy {
        /// The table.
        table: TableId,
        /// The attempt.
        attempt: Attempt,
    },

    /// `startup` of the destination. Answer: `Done`.
    Startup {
        /// The main slot's name.
        pipeline: String,
        /// Ownership of the record.
        epoch: Epoch,
    },
    /// `begin_copy`. Answer: `Done`.
    BeginCopy(CopyStart),
    /// `write_rows`. Answer: `Written`.
    WriteRows(Arc<CopyBatch<R>>),
    /// `finish_copy`. Answer: `Written`.
    FinishCopy {
        /// The table.
        table: TableId,
        /// The attempt.
        attempt: Attempt,
        /// Ownership of the record.
        epoch: Epoch,
        /// How many sequences there are.
        sequences: u64,
    },
    /// `write_changes`. Answer: `Written`.
    WriteChanges(Arc<Batch<R>>),
    /// `flush`. Answer: `Done`.
    Flush {
        /// The lane.
        lane: Lane,
    },
    /// `shutdown` of the destination. Answer: `Done`.
    Shutdown,
}
