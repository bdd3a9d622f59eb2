//! The prepared statements of one table, and how a row goes through them.

use std::collections::HashMap;

use rusqlite::{Connection, Statement};
use walferry_core::event::RowKind;
use walferry_core::ids::TableId;
use walferry_core::wire::{Cell, CopyRow, OldKind, RowView, Tuple};

use super::bind::{self, Trouble};
use super::layout::{Layout, Mode};
use crate::values::Class;

/// Sets of updated columns whose statements are kept per table. Few occur: all columns, and all but
/// the large ones.
const UPDATES_MAX: usize = 16;

/// Statements of one table, prepared when they are first needed.
pub(super) struct Plan<'c> {
    connection: &'c Connection,
    layout: Layout,
    table: TableId,
    columns: u16,
    insert: Statement<'c>,
    delete: Option<Statement<'c>>,
    clear: Option<Statement<'c>>,
    /// Whether the index that old rows are found by is known to exist.
    hinted: bool,
    /// By the set of columns that they write.
    updates: HashMap<Vec<u64>, Statement<'c>>,
    mask: Vec<u64>,
    scratch: Vec<u8>,
    unescaped: Vec<u8>,
}

impl<'c> Plan<'c> {
    pub(super) fn new(
        connection: &'c Connection,
        table: TableId,
        layout: Layout,
    ) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            columns: u16::try_from(layout.columns.len()).unwrap_or(u16::MAX),
            insert: connection.prepare(&layout.insert())?,
            table,
            hinted: layout.hint_index(table.0).is_none(),
            layout,
            delete: None,
            clear: None,
            updates: HashMap::new(),
            mask: Vec::new(),
            scratch: Vec::new(),
            unescaped: Vec::new(),
        })
    }

    /// Inserts a row of a table copy.
    #[inline]
    pub(super) fn copy(&mut self, row: CopyRow<'_>) -> Result<(), Trouble> {
        let cells = row.cells(self.layout.columns.len());
        for (column, (cell, layout)) in cells.zip(&self.layout.columns).enumerate() {
            match cell?.value(&mut self.unescaped)? {
                None => bind::null(&mut self.insert, column + 1)?,
                Some(text) => {
                    let class = (column, layout.class);
                    bind::value(&mut self.insert, column + 1, class, text, &mut self.scratch)?;
                }
            }
        }
        self.insert.raw_execute()?;
        Ok(())
    }

    /// Applies a row change.
    #[inline]
    pub(super) fn change(&mut self, kind: RowKind, row: &[u8]) -> Result<(), Trouble> {
        let view = RowView::validate(kind, row, self.columns)?;
        match (kind, view.old, view.new) {
            (RowKind::Insert, _, Some(new)) => self.insert(new),
            (RowKind::Update, old, Some(new)) => {
                self.hint()?;
                self.update(old, new)
            }
            (RowKind::Delete, Some(old), _) => {
                self.hint()?;
                self.delete(old)
            }
            (RowKind::Insert | RowKind::Update, _, None) | (RowKind::Delete, None, _) => {
                Err(Trouble::NoOld)
            }
        }
    }

    /// Empties the table (DS-19).
    pub(super) fn clear(&mut self) -> Result<(), Trouble> {
        let (connection, layout) = (self.connection, &self.layout);
        prepared(&mut self.clear, || connection.prepare(&layout.clear()))?.raw_execute()?;
        Ok(())
    }

    /// Makes the index without which each old row would be searched in the whole table. Not before
    /// it is needed: a table that is only appended to has no use for it.
    fn hint(&mut self) -> rusqlite::Result<()> {
        if !self.hinted {
            if let Some(sql) = self.layout.hint_index(self.table.0) {
                self.connection.execute_batch(&sql)?;
            }
            self.hinted = true;
        }
        Ok(())
    }

    fn insert(&mut self, new: Tuple<'_>) -> Result<(), Trouble> {
        let Self { insert, layout, scratch, .. } = self;
        for (column, (cell, layout)) in new.cells().zip(&layout.columns).enumerate() {
            bind_cell(insert, column + 1, (column, layout.class), cell, scratch)?;
        }
        insert.raw_execute()?;
        Ok(())
    }

    fn delete(&mut self, old: (OldKind, Tuple<'_>)) -> Result<(), Trouble> {
        let Self { connection, layout, delete, scratch, .. } = self;
        let statement = prepared(delete, || connection.prepare(&layout.delete()))?;
        bind_old(statement, 0, layout, Some(old), None, scratch)?;
        if statement.raw_execute()? == 0 { Err(Trouble::NotFound) } else { Ok(()) }
    }

    /// Writes what was sent and leaves the rest (DS-15): one statement removes the old key, writes
    /// the new one and keeps the values that did not change.
    fn update(&mut self, old: Option<(OldKind, Tuple<'_>)>, new: Tuple<'_>) -> Result<(), Trouble> {
        let Self { connection, layout, updates, mask, scratch, .. } = self;
        let whole_old = match (layout.mode, old) {
            (Mode::Full, Some((OldKind::Full, old))) => Some(old),
            (Mode::Full, _) => return Err(Trouble::NoOld),
            (Mode::Keyed | Mode::InsertOnly, Some((OldKind::Full, old))) => Some(old),
            (Mode::Keyed | Mode::InsertOnly, _) => None,
        };
        mark(layout, mask, old.map(|(_, old)| old), new, whole_old);
        if !updates.contains_key(mask.as_slice()) {
            if updates.len() >= UPDATES_MAX {
                updates.clear();
            }
            let sql = layout.update(|column| is_marked(mask, column));
            updates.insert(mask.clone(), connection.prepare(&sql)?);
        }
        let Some(statement) = updates.get_mut(mask.as_slice()) else { return Err(Trouble::NoOld) };
        let mut place = 0;
        let mut olds = whole_old.map(|old| old.cells());
        for (column, (cell, layout)) in new.cells().zip(&layout.columns).enumerate() {
            let before = olds.as_mut().and_then(Iterator::next);
            if is_marked(mask, column) {
                place += 1;
                let cell = if cell == Cell::Unchanged { before.unwrap_or(cell) } else { cell };
                bind_cell(statement, place, (column, layout.class), cell, scratch)?;
            }
        }
        bind_old(statement, place, layout, old, Some(new), scratch)?;
        if statement.raw_execute()? == 0 { Err(Trouble::NotFound) } else { Ok(()) }
    }
}

/// Marks the columns that an update writes: all that were sent, those that a full old row supplies,
/// and of the key only what changed.
fn mark(
    layout: &Layout,
    mask: &mut Vec<u64>,
    old: Option<Tuple<'_>>,
    new: Tuple<'_>,
    whole_old: Option<Tuple<'_>>,
) {
    mask.clear();
    mask.resize(layout.columns.len().div_ceil(64), 0);
    let mut olds = old.map(|old| old.cells());
    for (column, (cell, layout)) in new.cells().zip(&layout.columns).enumerate() {
        let before = olds.as_mut().and_then(Iterator::next);
        let is_set = match cell {
            Cell::Unchanged => whole_old.is_some() && !layout.key,
            Cell::Null | Cell::Text(_) | Cell::Binary(_) => {
                !layout.key || before.is_some_and(|before| before != cell)
            }
        };
        if let Some(word) = mask.get_mut(column / 64).filter(|_| is_set) {
            *word |= 1 << (column % 64);
        }
    }
}

fn is_marked(mask: &[u64], column: usize) -> bool {
    mask.get(column / 64).is_some_and(|word| word >> (column % 64) & 1 == 1)
}

/// Binds what finds the row, after `place` other parameters: the key, of the old row if there is
/// one, or all old columns.
fn bind_old(
    statement: &mut Statement<'_>,
    mut place: usize,
    layout: &Layout,
    old: Option<(OldKind, Tuple<'_>)>,
    new: Option<Tuple<'_>>,
    scratch: &mut Vec<u8>,
) -> Result<(), Trouble> {
    let tuple = match (layout.mode, old, new) {
        (Mode::InsertOnly, _, _) => return Err(Trouble::NoIdentity),
        (Mode::Full, Some((OldKind::Full, old)), _) | (Mode::Keyed, Some((_, old)), _) => old,
        (Mode::Keyed, None, Some(new)) => new,
        (Mode::Full, _, _) | (Mode::Keyed, None, None) => return Err(Trouble::NoOld),
    };
    for (column, (cell, of)) in tuple.cells().zip(&layout.columns).enumerate() {
        if of.key || layout.mode == Mode::Full {
            place += 1;
            match cell {
                Cell::Unchanged => return Err(Trouble::NoOld),
                Cell::Null | Cell::Text(_) | Cell::Binary(_) => {
                    bind_cell(statement, place, (column, of.class), cell, scratch)?;
                }
            }
        }
    }
    Ok(())
}

#[inline]
fn bind_cell(
    statement: &mut Statement<'_>,
    place: usize,
    of: (usize, Class),
    cell: Cell<'_>,
    scratch: &mut Vec<u8>,
) -> Result<(), Trouble> {
    match cell {
        Cell::Text(text) => bind::value(statement, place, of, text, scratch),
        Cell::Null => Ok(bind::null(statement, place)?),
        Cell::Unchanged => Err(Trouble::Missing { column: of.0 }),
        Cell::Binary(_) => Err(Trouble::Binary { column: of.0 }),
    }
}

fn prepared<'s, 'c>(
    slot: &'s mut Option<Statement<'c>>,
    prepare: impl FnOnce() -> rusqlite::Result<Statement<'c>>,
) -> rusqlite::Result<&'s mut Statement<'c>> {
    match slot {
        Some(statement) => Ok(statement),
        None => Ok(slot.insert(prepare()?)),
    }
}
