//! A read-only picture of a pipeline for status, progress and tests. Nothing is decided from it.

use crate::ids::{Attempt, Epoch, TableId};
use crate::lsn::Position;
use crate::record::Phase;

/// The picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// `initializing`, `running`, `stopping`, `failing` or `ended`.
    pub lifecycle: &'static str,
    /// Whether a health check passes: the run streams and something moves if there is something to
    /// do (L-02).
    pub ready: bool,
    /// What is waited for, if for a minute something was to do and nothing moved.
    pub stalled: Option<String>,
    /// Ownership of the record.
    pub epoch: Epoch,
    /// Positions of the main stream.
    pub positions: Positions,
    /// The tables of the record, by OID.
    pub tables: Vec<TableView>,
    /// Memory held in queues and batches, in bytes.
    pub held_bytes: u64,
    /// Operations outstanding.
    pub outstanding: usize,
}

/// The five positions of the law: each is at most the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// Last reported to the server.
    pub confirmed: Position,
    /// Saved.
    pub checkpoint: Position,
    /// Durable.
    pub frontier: Position,
    /// Projected.
    pub dispatched: Position,
    /// Read.
    pub received: Position,
}

/// One table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableView {
    /// The table.
    pub table: TableId,
    /// `schema.table`.
    pub name: String,
    /// Where it stands.
    pub phase: Phase,
    /// Its running attempt.
    pub copy: Option<CopyView>,
}

/// A running attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyView {
    /// The attempt.
    pub attempt: Attempt,
    /// What it does: `preparing`, `reading`, `finishing`, `replaying` or `closing`.
    pub step: &'static str,
    /// Rows read so far.
    pub rows: u64,
    /// Bytes of rows read so far.
    pub bytes: u64,
    /// Size of heap and TOAST at the source, in bytes; 0 until it is known.
    pub heap_bytes: u64,
    /// Position of the private replay; the cutoff until it streams.
    pub position: Position,
}
