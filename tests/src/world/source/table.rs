//! One table of the server: its shapes, its rows and its files over time, as catalogs and snapshots
//! of every age show them (PG-01, PG-14, PG-27..PG-29).

use std::collections::BTreeMap;
use std::sync::Arc;

use walferry_core::ids::{Attempt, EventKey, TableId};
use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::schema::{Column, Relation, RelationColumn, ReplicaIdentity, TableSchema};
use walferry_core::source::GuardColumn;

use crate::world::row::{Cells, Rows, TableEvent, Value};

/// Type OIDs that a column changes between.
const TYPES: [u32; 2] = [23, 20];
/// What a rewrite to another type adds to every value, so that it shows.
const RETYPED: u32 = 1_000_000;
/// Names that come and go, so that a dropped one returns (D-F10).
const NAMES: [&str; 5] = ["value", "c", "d", "e", "f"];

/// What a column that is added shows in the rows that are there (PG-29).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// NULL.
    Null,
    /// A constant default, kept in the catalog.
    Constant,
    /// A volatile default: the table is rewritten.
    Volatile,
}

/// What an ALTER TABLE does. Columns are chosen by a number, so that every statement makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alter {
    /// ADD COLUMN.
    Add(Filled),
    /// DROP COLUMN.
    Drop(usize),
    /// RENAME COLUMN.
    Rename(usize),
    /// ALTER TYPE, which rewrites the table.
    Type(usize),
    /// SET DEFAULT.
    Default(usize),
    /// RENAME TO.
    RenameTable,
    /// VACUUM FULL: other files, the same rows, and no stored default any more.
    Vacuum,
}

/// A change of what snapshots show.
#[derive(Clone, Debug)]
enum Delta {
    Row(u32, Option<Cells>),
    All(Rows),
}

/// One table.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its rows at the head of the WAL.
    pub rows: Rows,
    /// Every event that the publication shows.
    pub history: Vec<(EventKey, TableEvent)>,
    /// OID of its membership row, while it is a member (T-11).
    pub member: Option<u32>,
    /// The attempt whose reader holds a lock on it: no TRUNCATE or DDL meanwhile (PG-41).
    pub locked_by: Option<Attempt>,
    /// Whether it was dropped.
    pub dropped: bool,
    /// Raised by whatever makes the server announce the table again (PG-13).
    pub generation: u32,
    initial: Rows,
    deltas: Vec<(CommitLsn, Delta)>,
    shapes: Vec<(CommitLsn, Arc<TableSchema>)>,
    files: Vec<(CommitLsn, u32)>,
    /// The last change of shape or values that no event has followed yet.
    silent_at: Option<CommitLsn>,
    /// Columns as the first event after a change of shape or values showed them: when the change was,
    /// when the event, and what it showed.
    shown: Vec<(CommitLsn, CommitLsn, Signature)>,
    /// Stored defaults (`attmissingval`).
    missing: BTreeMap<i16, u32>,
    last_number: i16,
}

const BEGINNING: CommitLsn = CommitLsn(Lsn(0));
const END: Position = Position(Lsn(u64::MAX));

impl Table {
    /// A table of two columns with these rows.
    #[must_use]
    pub fn new(id: TableId, values: &BTreeMap<u32, u32>, made: CommitLsn) -> Self {
        let rows: Rows =
            values.iter().map(|(&key, &v)| (key, Cells::from([(2, Some(v))]))).collect();
        Self {
            initial: rows.clone(),
            rows,
            history: Vec::new(),
            member: None,
            locked_by: None,
            dropped: false,
            generation: 0,
            deltas: Vec::new(),
            silent_at: None,
            shown: Vec::new(),
            shapes: vec![(made, Arc::new(schema(id)))],
            files: vec![(made, 1)],
            missing: BTreeMap::new(),
            last_number: 2,
        }
    }

    /// Its shape at the head.
    #[must_use]
    pub fn shape(&self) -> Arc<TableSchema> {
        self.shape_at(END)
    }

    /// Its shape as a snapshot with this cutoff shows it.
    #[must_use]
    pub fn shape_at(&self, cutoff: Position) -> Arc<TableSchema> {
        let seen = self.shapes.iter().rev().find(|(at, _)| cutoff.covers(*at));
        Arc::clone(&seen.unwrap_or(&self.shapes[0]).1)
    }

    /// Rows as a snapshot with this cutoff shows them (PG-01).
    #[must_use]
    pub fn rows_at(&self, cutoff: Position) -> Rows {
        let mut rows = self.initial.clone();
        for (_, delta) in self.deltas.iter().filter(|(commit, _)| cutoff.covers(*commit)) {
            match delta {
                Delta::Row(key, Some(cells)) => drop(rows.insert(*key, cells.clone())),
                Delta::Row(key, None) => drop(rows.remove(key)),
                Delta::All(all) => rows.clone_from(all),
            }
        }
        rows
    }

    /// Number of the heap's file (PG-27).
    #[must_use]
    pub fn file_at(&self, cutoff: Position) -> u32 {
        let seen = self.files.iter().rev().find(|(at, _)| cutoff.covers(*at));
        seen.map_or(0, |(_, file)| *file)
    }

    /// What the rewrite guard compares (K-27).
    #[must_use]
    pub fn guard_columns(&self, cutoff: Position) -> Vec<GuardColumn> {
        let shape = self.shape_at(cutoff);
        let column = |column: &Column| GuardColumn {
            number: column.number,
            name: column.name.clone(),
            type_oid: column.type_oid,
            modifier: column.modifier,
            dropped: false,
        };
        shape.columns.iter().map(column).collect()
    }

    /// Columns with a stored default, by name (PG-29).
    #[must_use]
    pub fn missing(&self) -> Vec<(String, Option<String>)> {
        let shape = self.shape();
        let stored = |column: &Column| {
            let value = self.missing.get(&column.number)?;
            Some((column.name.clone(), Some(value.to_string())))
        };
        shape.columns.iter().filter_map(stored).collect()
    }

    /// Replaces a row.
    pub fn set(&mut self, commit: CommitLsn, key: u32, cells: Option<Cells>) {
        match &cells {
            Some(cells) => drop(self.rows.insert(key, cells.clone())),
            None => drop(self.rows.remove(&key)),
        }
        self.deltas.push((commit, Delta::Row(key, cells)));
    }

    /// Removes every row, in a new file.
    pub fn truncate(&mut self, commit: CommitLsn) {
        self.rewrite(commit, Rows::new());
    }

    fn rewrite(&mut self, commit: CommitLsn, rows: Rows) {
        self.rows.clone_from(&rows);
        self.deltas.push((commit, Delta::All(rows)));
        let file = self.file_at(END) + 1;
        self.files.push((commit, file));
        self.generation += 1;
        self.missing.clear();
    }

    /// Cells of a new row with a value of its own in every column.
    pub fn fresh_cells(&self, mut next: impl FnMut() -> u32) -> Cells {
        let shape = self.shape();
        shape.columns.iter().skip(1).map(|column| (column.number, Some(next()))).collect()
    }

    /// Executes an ALTER TABLE; false if it makes no sense for this table.
    pub fn alter(
        &mut self,
        commit: CommitLsn,
        alter: Alter,
        mut next: impl FnMut() -> u32,
    ) -> bool {
        let mut shape = (*self.shape()).clone();
        let others = shape.columns.len() - 1;
        let chosen = |number: usize| 1 + number % others.max(1);
        match alter {
            Alter::Add(filled) => {
                let free = NAMES.iter().find(|name| shape.columns.iter().all(|c| c.name != **name));
                let Some(name) = free else { return false };
                self.last_number += 1;
                let number = self.last_number;
                let mut column = column(number, name);
                column.not_null = false;
                self.fill(commit, number, filled, &mut next, &mut column);
                shape.columns.push(column);
            }
            Alter::Drop(_) | Alter::Rename(_) | Alter::Type(_) | Alter::Default(_)
                if others == 0 =>
            {
                return false;
            }
            Alter::Drop(number) => {
                let gone = shape.columns.remove(chosen(number)).number;
                let mut rows = self.rows.clone();
                for cells in rows.values_mut() {
                    cells.remove(&gone);
                }
                self.missing.remove(&gone);
                self.rows.clone_from(&rows);
                self.deltas.push((commit, Delta::All(rows)));
            }
            Alter::Rename(number) => {
                let free = NAMES.iter().find(|name| shape.columns.iter().all(|c| c.name != **name));
                let Some(name) = free else { return false };
                (*name).clone_into(&mut shape.columns[chosen(number)].name);
            }
            Alter::Type(number) => {
                let column = &mut shape.columns[chosen(number)];
                column.type_oid = if column.type_oid == TYPES[0] { TYPES[1] } else { TYPES[0] };
                let changed = column.number;
                let mut rows = self.rows.clone();
                for cells in rows.values_mut() {
                    if let Some(Some(value)) = cells.get_mut(&changed) {
                        *value += RETYPED;
                    }
                }
                self.rewrite(commit, rows);
            }
            Alter::Default(number) => {
                shape.columns[chosen(number)].default = Some(next().to_string());
            }
            Alter::RenameTable => shape.name = format!("{}x", shape.name),
            Alter::Vacuum => {
                let rows = self.rows.clone();
                self.rewrite(commit, rows);
                return true;
            }
        }
        self.generation += 1;
        self.shapes.push((commit, Arc::new(shape)));
        self.silent_at = Some(commit);
        true
    }

    /// The publication shows an event of the table: what it looks like is known from here on.
    pub fn shows_event(&mut self, commit: CommitLsn) {
        if let Some(changed) = self.silent_at.take() {
            self.shown.push((changed, commit, signature(&self.shape())));
        }
    }

    /// Whether a target that stands for a snapshot at `cutoff` cannot know every value (D-08, D-15).
    #[must_use]
    pub fn is_unclear_since(&self, cutoff: Position) -> bool {
        let behind = |at: CommitLsn| !cutoff.covers(at);
        let mut known = &signature(&self.shape_at(cutoff));
        let mut hidden = false;
        for (changed, _, columns) in self.shown.iter().filter(|(_, event, _)| behind(*event)) {
            // Columns look as before although something has happened to them: a stream cannot tell.
            hidden |= behind(*changed) && columns == known;
            known = columns;
        }
        hidden || self.silent_at.is_some_and(behind)
    }

    fn fill(
        &mut self,
        commit: CommitLsn,
        number: i16,
        filled: Filled,
        next: &mut impl FnMut() -> u32,
        column: &mut Column,
    ) {
        let mut rows = self.rows.clone();
        let constant = next();
        for cells in rows.values_mut() {
            let value: Value = match filled {
                Filled::Null => None,
                Filled::Constant => Some(constant),
                Filled::Volatile => Some(next()),
            };
            cells.insert(number, value);
        }
        match filled {
            Filled::Null => (),
            Filled::Constant => {
                column.default = Some(constant.to_string());
                self.missing.insert(number, constant);
            }
            Filled::Volatile => {
                column.default = Some("random()".to_owned());
                self.rewrite(commit, rows);
                return;
            }
        }
        self.rows.clone_from(&rows);
        self.deltas.push((commit, Delta::All(rows)));
    }
}

/// What a stream shows of columns: name and type.
type Signature = Vec<(String, u32)>;

fn signature(shape: &TableSchema) -> Signature {
    shape.columns.iter().map(|column| (column.name.clone(), column.type_oid)).collect()
}

/// Short name of a table: a, b, ..
#[must_use]
pub fn table_name(table: TableId) -> String {
    char::from_u32('a' as u32 + table.0.saturating_sub(101))
        .map_or_else(|| table.to_string(), |letter| letter.to_string())
}

fn column(number: i16, name: &str) -> Column {
    Column {
        number,
        name: name.to_owned(),
        type_oid: TYPES[0],
        modifier: -1,
        not_null: true,
        default: None,
        key: number == 1,
    }
}

/// The schema that every simulated table has at first.
#[must_use]
pub fn schema(table: TableId) -> TableSchema {
    TableSchema {
        table,
        namespace: "public".to_owned(),
        name: table_name(table),
        identity: ReplicaIdentity::Default,
        columns: vec![column(1, "id"), column(2, "value")],
        unpublished: Vec::new(),
        storage: None,
    }
}

/// What a stream announces for it.
#[must_use]
pub fn relation(table: TableId) -> Arc<Relation> {
    relation_of(&schema(table))
}

/// What a stream announces for a table of this shape.
#[must_use]
pub fn relation_of(schema: &TableSchema) -> Arc<Relation> {
    let columns = schema.columns.iter().map(|column| RelationColumn {
        key: column.key,
        name: column.name.clone(),
        type_oid: column.type_oid,
        modifier: column.modifier,
    });
    Arc::new(Relation {
        table: schema.table,
        namespace: schema.namespace.clone(),
        name: schema.name.clone(),
        identity: schema.identity,
        columns: columns.collect(),
    })
}

/// The beginning of every history.
pub(super) const ALWAYS: CommitLsn = BEGINNING;
