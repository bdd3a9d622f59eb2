//! What a destination gets: batches of changes and of copied rows (B-02), and what it declares (DS-01).

use std::sync::Arc;

use crate::event::{RowKind, TruncateFlags};
use crate::ids::{Attempt, Epoch, Lane, TableId};
use crate::lsn::{CommitLsn, Lsn, Position};
use crate::schema::{SchemaChange, SchemaSupport, TableSchema};

/// How often an event may take effect (DS-13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryClass {
    /// Data and watermark in one sink transaction (DS-18).
    ExactlyOnce,
    /// Effects are keyed, so replays converge.
    Idempotent,
    /// At least once; each appended row carries its event key.
    Append,
}

/// What a destination declares (DS-01).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Scheme, address and database or absolute path; no user, password or options (S-01).
    pub id: String,
    /// How often an event may take effect.
    pub class: DeliveryClass,
    /// Lanes with an operation in flight at the same time, at least 1.
    pub lanes_max: u32,
    /// `write_rows` calls of one attempt in flight at the same time, at least 1.
    pub copy_in_flight_max: u32,
    /// Whether logical messages are wanted.
    pub wants_messages: bool,
    /// Whether an update may leave columns out (DS-15).
    pub partial_rows: bool,
    /// Which schema changes it can apply.
    pub schema_changes: SchemaSupport,
}

/// A table of a batch: what its events belong to and what its rows look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchTable {
    /// The table.
    pub table: TableId,
    /// The attempt that was current when the events were projected (DS-14).
    pub attempt: Attempt,
    /// Shape of its rows.
    pub schema: Arc<TableSchema>,
}

/// A source transaction, or the part of one that lies in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionPart {
    /// Orders transactions.
    pub commit: CommitLsn,
    /// Commit time, microseconds since 2000-01-01 UTC.
    pub time_us: i64,
    /// Whether its begin lies in this batch.
    pub begins: bool,
    /// Its end, if that lies in this batch.
    pub end: Option<Position>,
}

/// What a change does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeBody<R> {
    /// A row.
    Row {
        /// Index into `Batch::tables`.
        table: u32,
        /// What it does.
        kind: RowKind,
        /// The row as the driver holds it.
        row: R,
    },
    /// The table is emptied at this place of the order (J-04, DS-19).
    Truncate {
        /// Index into `Batch::tables`.
        table: u32,
        /// Options of the statement.
        flags: TruncateFlags,
    },
    /// The table has another shape from here on (D-08). Rows behind it belong to the entry of
    /// `Batch::tables` with the new schema.
    Schema {
        /// Index into `Batch::tables`: the entry with the new schema.
        table: u32,
        /// What changes.
        change: Arc<SchemaChange>,
    },
    /// A logical message (J-06).
    Message {
        /// Its own position.
        lsn: Lsn,
        /// What the writer called it.
        prefix: Box<str>,
        /// Its content as the driver holds it.
        content: R,
    },
}

/// One event with its key: `(transactions[transaction].commit, ordinal)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<R> {
    /// Index into `Batch::transactions`.
    pub transaction: u32,
    /// Number of the event inside its source transaction. Messages have none: `u64::MAX`.
    pub ordinal: u64,
    /// What it does.
    pub body: ChangeBody<R>,
}

/// Consecutive events of one lane, of several transactions or a part of one (B-02).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<R> {
    /// The lane it belongs to.
    pub lane: Lane,
    /// Ownership of the record (DS-14).
    pub epoch: Epoch,
    /// The tables of its changes; a table whose schema changes inside has several entries, in order.
    pub tables: Vec<BatchTable>,
    /// The transactions of its changes, in order.
    pub transactions: Vec<TransactionPart>,
    /// The changes, in order.
    pub changes: Vec<Change<R>>,
    /// Memory the batch keeps alive, in bytes.
    pub bytes: u64,
}

/// One batch of snapshot rows. Its identity is (attempt, sequence) (N-10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyBatch<R> {
    /// The table.
    pub table: TableId,
    /// The attempt.
    pub attempt: Attempt,
    /// Ownership of the record (DS-14).
    pub epoch: Epoch,
    /// From 1, without a gap within the attempt.
    pub sequence: u64,
    /// Shape of the rows.
    pub schema: Arc<TableSchema>,
    /// Blocks of rows as the driver holds them.
    pub blocks: Vec<R>,
    /// Rows in all blocks.
    pub rows: u64,
    /// Memory the batch keeps alive, in bytes.
    pub bytes: u64,
}

/// What `begin_copy` has to make of the target (DS-05).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// No earlier attempt is known: the target must be empty or ours.
    Fresh,
    /// Rows of earlier attempts, and what any lane wrote for the table, must vanish.
    Recopy {
        /// The latest earlier attempt.
        previous: Attempt,
    },
    /// The rows that are there stay untouched (K-18), and so does the watermark of `previous`.
    Adopt {
        /// The latest earlier attempt, if any.
        previous: Option<Attempt>,
    },
}

/// Input of `begin_copy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyStart {
    /// The table.
    pub table: TableId,
    /// The attempt.
    pub attempt: Attempt,
    /// Ownership of the record (DS-14).
    pub epoch: Epoch,
    /// What to make of the target.
    pub mode: CopyMode,
    /// Exact schema of the snapshot.
    pub schema: Arc<TableSchema>,
    /// Consistent point of the snapshot.
    pub cutoff: Position,
}

/// Whether a completed call survives a crash (DS-03).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Taken, not durable: a flush is owed.
    Accepted,
    /// This call and everything accepted before it on its lane is durable.
    Durable,
}
