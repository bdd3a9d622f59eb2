//! What the simulated tables hold, and how a change is applied to them. Values are never used
//! twice, so that a change that is lost, doubled or out of order shows.

use std::collections::BTreeMap;

use walferry_core::event::RowKind;
use walferry_core::ids::EventKey;

/// Rows of a table: key to value.
pub type Rows = BTreeMap<u32, u32>;

/// The row type of a simulated pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// A change of one row.
    Change(Change),
    /// Rows of a snapshot.
    Block(Vec<(u32, u32)>),
}

/// A change of one row with its value before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Key of the row.
    pub key: u32,
    /// Value before, absent for an insert.
    pub old: Option<u32>,
    /// Value after, absent for a delete.
    pub new: Option<u32>,
}

/// One event of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        match (self.old, self.new) {
            (None, _) => RowKind::Insert,
            (Some(_), Some(_)) => RowKind::Update,
            (Some(_), None) => RowKind::Delete,
        }
    }
}

impl TableEvent {
    /// Applies the event.
    ///
    /// # Panics
    /// If the rows are not those that the event was made on: one before it is missing or doubled.
    pub fn apply(&self, rows: &mut Rows, key: EventKey) {
        match self {
            Self::Truncate => rows.clear(),
            Self::Row(change) => {
                let found = rows.get(&change.key).copied();
                assert_eq!(found, change.old, "hole before {change:?} of {key:?} (O-1)");
                match change.new {
                    Some(value) => rows.insert(change.key, value),
                    None => rows.remove(&change.key),
                };
            }
        }
    }
}
