//! What the simulated tables hold, and what a change of them looks like. Values are never used
//! twice, so that a change that is lost, doubled or out of order shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use walferry_core::event::RowKind;
use walferry_core::schema::TableSchema;

/// A value of a column; NULL is none.
pub type Value = Option<u32>;
/// The columns of a row behind its key, by attribute number: a rename does not touch them.
pub type Cells = BTreeMap<i16, Value>;
/// Rows of a table at the source: key to columns.
pub type Rows = BTreeMap<u32, Cells>;
/// The values of a row behind its key, in the order of its shape.
pub type Tuple = Arc<[Value]>;

/// The row type of a simulated pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// A change of one row.
    Change(Change),
    /// Rows of a snapshot.
    Block(Vec<(u32, Tuple)>),
}

/// A change of one row with its values before and after, and the shape that both really have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Key of the row.
    pub key: u32,
    /// Values before, absent for an insert.
    pub old: Option<Tuple>,
    /// Values after, absent for a delete.
    pub new: Option<Tuple>,
    /// What the columns were when it happened (PG-14).
    pub shape: Arc<TableSchema>,
}

/// One event of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableEvent {
    /// A row changed.
    Row(Change),
    /// All rows went.
    Truncate,
}

impl Change {
    /// The kind that a stream would announce.
    #[must_use]
    pub const fn kind(&self) -> RowKind {
        match (&self.old, &self.new) {
            (None, _) => RowKind::Insert,
            (Some(_), Some(_)) => RowKind::Update,
            (Some(_), None) => RowKind::Delete,
        }
    }
}

/// The values of a row in the order of a shape; the first column is the key.
#[must_use]
pub fn tuple(cells: &Cells, shape: &TableSchema) -> Tuple {
    let columns = shape.columns.iter().skip(1);
    columns.map(|column| cells.get(&column.number).copied().flatten()).collect()
}
