//! What a stream delivers, in stream order. The row type is a parameter: the core moves rows and
//! never looks inside.

use std::sync::Arc;

use crate::ids::TableId;
use crate::lsn::{CommitLsn, Lsn, Position};
use crate::schema::{DdlMessage, Relation};

/// What a row change does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowKind {
    /// A new row.
    Insert,
    /// A changed row; it may carry the old one (PG-15).
    Update,
    /// A removed row; it carries the key or the whole old row.
    Delete,
}

/// Options of a TRUNCATE statement (PG-18).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TruncateFlags {
    /// CASCADE was given.
    pub cascade: bool,
    /// RESTART IDENTITY was given.
    pub restart_identity: bool,
}

/// One event of a stream. Ordinals are given by the decoder, before any filtering (J-02).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<R> {
    /// A transaction starts; its place is known before its first row (PG-03).
    Begin {
        /// Orders transactions.
        commit: CommitLsn,
        /// Commit time, microseconds since 2000-01-01 UTC.
        time_us: i64,
    },
    /// What the rows of a table that follow look like.
    Relation(Arc<Relation>),
    /// A row change.
    Row {
        /// The table.
        table: TableId,
        /// Number of the event inside its transaction.
        ordinal: u64,
        /// What it does.
        kind: RowKind,
        /// The row as the driver holds it.
        row: R,
        /// Memory it keeps alive, in bytes (B-05).
        bytes: u32,
    },
    /// One TRUNCATE statement over all its published tables.
    Truncate {
        /// The tables, in the order of the message.
        tables: Box<[TableId]>,
        /// Options of the statement.
        flags: TruncateFlags,
        /// Number of the event inside its transaction.
        ordinal: u64,
    },
    /// A logical message. It has no ordinal; its own LSN identifies it (N-09).
    Message {
        /// Whether it belongs to the open transaction.
        transactional: bool,
        /// Its own position.
        lsn: Lsn,
        /// What the writer called it.
        prefix: Box<str>,
        /// The content as the driver holds it.
        content: R,
        /// Memory it keeps alive, in bytes.
        bytes: u32,
    },
    /// A schema message inside its transaction (D-05); `Err` says why it is ignored.
    Ddl(Result<Arc<DdlMessage>, String>),
    /// The open transaction ends.
    Commit {
        /// Equal to the one of its Begin.
        commit: CommitLsn,
        /// First byte after the commit record.
        end: Position,
    },
    /// The server is alive; everything below `wal_end` was sent before (PG-09).
    Keepalive {
        /// Where the server's sender is.
        wal_end: Position,
        /// Whether it wants feedback at once.
        reply: bool,
    },
}
