//! A source in memory: tables with their present rows, and the changes that led there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use walferry_core::batch::{
    Batch, BatchTable, Change, ChangeBody, CopyBatch, CopyMode, CopyStart, TransactionPart,
};
use walferry_core::event::{RowKind, TruncateFlags};
use walferry_core::ids::{Attempt, Epoch, Lane, TableId};
use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::schema::{Column, ReplicaIdentity, TableSchema};
use walferry_core::wire::{Cell, OldKind, encode};

/// The values of a row as the source prints them; `None` is NULL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row(pub Vec<Option<String>>);

/// A row of the tables that [`Source::table`] makes.
#[must_use]
pub fn row(id: i64, note: &str, big: &str) -> Row {
    Row(vec![Some(id.to_string()), Some(note.to_owned()), Some(big.to_owned())])
}

/// Tables and the log of their changes.
#[derive(Debug, Default)]
pub struct Source {
    tables: BTreeMap<TableId, Table>,
    log: Vec<Logged>,
    commits: u64,
}

#[derive(Debug)]
struct Table {
    schema: Arc<TableSchema>,
    rows: Vec<Row>,
    attempt: Attempt,
}

#[derive(Clone, Debug)]
struct Logged {
    commit: u64,
    ordinal: u64,
    table: TableId,
    body: Body,
    first: bool,
    last: bool,
}

#[derive(Clone, Debug)]
enum Body {
    Row(RowKind, Bytes),
    Truncate,
}

/// Changes of one transaction while it is made.
#[derive(Debug)]
pub struct Transaction<'s> {
    source: &'s mut Source,
    changes: Vec<(u64, TableId, Body)>,
    ordinal: u64,
}

/// Distance of two commits, and of a commit and its end.
const STEP: u64 = 0x100;

impl Source {
    /// A source without tables.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a table `(id int8, note text, big text)`; `id` is the key unless the identity is FULL.
    pub fn table(&mut self, name: &str, identity: ReplicaIdentity) -> TableId {
        let count = u32::try_from(self.tables.len()).unwrap_or(u32::MAX);
        let table = TableId(16_384 + count);
        let column = |number, name: &str, type_oid, key| Column {
            number,
            name: name.to_owned(),
            type_oid,
            modifier: -1,
            not_null: number == 1,
            default: None,
            key: key || identity == ReplicaIdentity::Full,
        };
        let columns = vec![
            column(1, "id", 20, identity != ReplicaIdentity::Nothing),
            column(2, "note", 25, false),
            column(3, "big", 25, false),
        ];
        let (namespace, name) = ("public".to_owned(), name.to_owned());
        let schema = Arc::new(TableSchema {
            table,
            namespace,
            name,
            identity,
            columns,
            unpublished: Vec::new(),
            storage: None,
        });
        self.tables.insert(table, Table { schema, rows: Vec::new(), attempt: Attempt(0) });
        table
    }

    /// Makes a transaction and logs it.
    pub fn commit(&mut self, make: impl FnOnce(&mut Transaction<'_>)) {
        let mut transaction = Transaction { source: self, changes: Vec::new(), ordinal: 0 };
        make(&mut transaction);
        let changes = transaction.changes;
        self.commits += 1;
        let (commit, count) = (self.commits * STEP, changes.len());
        for (index, (ordinal, table, body)) in changes.into_iter().enumerate() {
            let (first, last) = (index == 0, index + 1 == count);
            self.log.push(Logged { commit, ordinal, table, body, first, last });
        }
    }

    /// Changes the rows of a table without a trace in the log, as if its changes had been dropped.
    pub fn unseen(&mut self, table: TableId, change: impl FnOnce(&mut Vec<Row>)) {
        if let Some(table) = self.tables.get_mut(&table) {
            change(&mut table.rows);
        }
    }

    /// Events so far.
    #[must_use]
    pub fn events(&self) -> usize {
        self.log.len()
    }

    /// Consistent point of a snapshot taken now.
    #[must_use]
    pub fn cutoff(&self) -> Position {
        Position(Lsn(self.commits * STEP + STEP / 2))
    }

    /// Its schema. A table that does not exist has none; the kit never asks for one.
    #[must_use]
    pub fn schema(&self, table: TableId) -> Arc<TableSchema> {
        self.tables.get(&table).map_or_else(
            || {
                Arc::new(TableSchema {
                    table,
                    namespace: String::new(),
                    name: String::new(),
                    identity: ReplicaIdentity::Nothing,
                    columns: Vec::new(),
                    unpublished: Vec::new(),
                    storage: None,
                })
            },
            |table| Arc::clone(&table.schema),
        )
    }

    /// The present rows, in order.
    #[must_use]
    pub fn rows(&self, table: TableId) -> Vec<Row> {
        let mut rows = self.tables.get(&table).map(|table| table.rows.clone()).unwrap_or_default();
        rows.sort();
        rows
    }

    /// Starts the next attempt of a table: what `begin_copy` is called with.
    pub fn begin(&mut self, table: TableId, epoch: Epoch) -> CopyStart {
        let cutoff = self.cutoff();
        let schema = self.schema(table);
        let attempt = self.tables.get_mut(&table).map_or(Attempt(1), |table| {
            table.attempt.0 += 1;
            table.attempt
        });
        let mode = match attempt.0 {
            0 | 1 => CopyMode::Fresh,
            number => CopyMode::Recopy { previous: Attempt(number - 1) },
        };
        CopyStart { table, attempt, epoch, mode, schema, cutoff }
    }

    /// Starts the next attempt of a table as an adoption (K-18): what `begin_copy` is called with.
    pub fn adopt(&mut self, table: TableId, epoch: Epoch) -> CopyStart {
        let start = self.begin(table, epoch);
        let previous = match start.mode {
            CopyMode::Fresh => None,
            CopyMode::Recopy { previous } => Some(previous),
            CopyMode::Adopt { previous } => previous,
        };
        CopyStart { mode: CopyMode::Adopt { previous }, ..start }
    }

    /// The present rows as the batches of a copy, `rows_max` rows in each.
    #[must_use]
    pub fn copy(&self, start: &CopyStart, rows_max: usize) -> Vec<Arc<CopyBatch<Bytes>>> {
        let rows = self.rows(start.table);
        let chunks = rows.chunks(rows_max.max(1)).zip(1..);
        chunks
            .map(|(chunk, sequence)| {
                let frames = chunk.iter().map(|row| {
                    let cells: Vec<Option<&[u8]>> =
                        row.0.iter().map(|cell| cell.as_deref().map(str::as_bytes)).collect();
                    encode::copy_row(&cells)
                });
                let block: Vec<u8> = frames.flatten().collect();
                Arc::new(CopyBatch {
                    table: start.table,
                    attempt: start.attempt,
                    epoch: start.epoch,
                    sequence,
                    schema: Arc::clone(&start.schema),
                    bytes: block.len() as u64,
                    blocks: vec![block.into()],
                    rows: chunk.len() as u64,
                })
            })
            .collect()
    }

    /// The logged events in `range` of the tables that `which` takes, `size` events in each batch.
    #[must_use]
    pub fn batches(
        &self,
        range: Range<usize>,
        size: usize,
        epoch: Epoch,
        which: impl Fn(TableId) -> bool,
    ) -> Vec<Arc<Batch<Bytes>>> {
        let events: Vec<&Logged> = self
            .log
            .get(range)
            .unwrap_or_default()
            .iter()
            .filter(|event| which(event.table))
            .collect();
        events.chunks(size.max(1)).map(|events| Arc::new(self.batch(events, epoch))).collect()
    }

    fn batch(&self, events: &[&Logged], epoch: Epoch) -> Batch<Bytes> {
        let mut batch = Batch {
            lane: Lane::Main,
            epoch,
            tables: Vec::new(),
            transactions: Vec::new(),
            changes: Vec::new(),
            bytes: 0,
        };
        for event in events {
            let known = batch.tables.iter().position(|of| of.table == event.table);
            let table = known.unwrap_or_else(|| {
                let attempt =
                    self.tables.get(&event.table).map_or(Attempt(0), |table| table.attempt);
                let schema = self.schema(event.table);
                batch.tables.push(BatchTable { table: event.table, attempt, schema });
                batch.tables.len() - 1
            });
            let commit = CommitLsn(Lsn(event.commit));
            if batch.transactions.last().is_none_or(|part| part.commit != commit) {
                let time_us = i64::try_from(event.commit).unwrap_or(0) * 1_000;
                let part = TransactionPart { commit, time_us, begins: event.first, end: None };
                batch.transactions.push(part);
            }
            if let Some(part) = batch.transactions.last_mut().filter(|_| event.last) {
                part.end = Some(Position(Lsn(event.commit + STEP / 4)));
            }
            let table = u32::try_from(table).unwrap_or(u32::MAX);
            let body = match &event.body {
                Body::Row(kind, row) => {
                    batch.bytes += row.len() as u64;
                    ChangeBody::Row { table, kind: *kind, row: row.clone() }
                }
                Body::Truncate => ChangeBody::Truncate { table, flags: TruncateFlags::default() },
            };
            let transaction = u32::try_from(batch.transactions.len() - 1).unwrap_or(u32::MAX);
            batch.changes.push(Change { transaction, ordinal: event.ordinal, body });
        }
        batch
    }
}

impl Transaction<'_> {
    /// Inserts a row.
    pub fn insert(&mut self, table: TableId, new: Row) {
        let bytes = encode::row(None, Some(&cells(&new, &[])));
        self.log(table, Body::Row(RowKind::Insert, bytes.into()));
        self.rows(table, |rows| rows.push(new));
    }

    /// Replaces the first row with this `id`. Columns of `unchanged` keep their value and are not
    /// sent.
    pub fn update(&mut self, table: TableId, id: i64, mut new: Row, unchanged: &[usize]) {
        let Some(old) = self.find(table, id) else { return };
        for &column in unchanged {
            if let (Some(new), Some(old)) = (new.0.get_mut(column), old.0.get(column)) {
                new.clone_from(old);
            }
        }
        let old_cells = cells(&old, &[]);
        let key_cells = key(&old);
        let before = match self.source.schema(table).identity {
            ReplicaIdentity::Full => Some((OldKind::Full, old_cells.as_slice())),
            _ if old.0.first() != new.0.first() => Some((OldKind::Key, key_cells.as_slice())),
            ReplicaIdentity::Nothing | ReplicaIdentity::Default | ReplicaIdentity::Index => None,
        };
        let bytes = encode::row(before, Some(&cells(&new, unchanged)));
        self.log(table, Body::Row(RowKind::Update, bytes.into()));
        self.rows(table, |rows| {
            if let Some(row) = rows.iter_mut().find(|row| **row == old) {
                *row = new;
            }
        });
    }

    /// Deletes the first row with this `id`.
    pub fn delete(&mut self, table: TableId, id: i64) {
        let Some(old) = self.find(table, id) else { return };
        let bytes = match self.source.schema(table).identity {
            ReplicaIdentity::Full => encode::row(Some((OldKind::Full, &cells(&old, &[]))), None),
            ReplicaIdentity::Nothing | ReplicaIdentity::Default | ReplicaIdentity::Index => {
                encode::row(Some((OldKind::Key, &key(&old))), None)
            }
        };
        self.log(table, Body::Row(RowKind::Delete, bytes.into()));
        self.rows(table, |rows| {
            if let Some(at) = rows.iter().position(|row| *row == old) {
                rows.remove(at);
            }
        });
    }

    /// Empties tables in one statement: all with the same key (J-04).
    pub fn truncate(&mut self, tables: &[TableId]) {
        for &table in tables {
            self.changes.push((self.ordinal, table, Body::Truncate));
            self.rows(table, Vec::clear);
        }
        self.ordinal += 1;
    }

    /// Logs bytes that are no row, and changes nothing.
    pub fn poison(&mut self, table: TableId) {
        self.log(table, Body::Row(RowKind::Insert, encode::row(None, Some(&[Cell::Null])).into()));
    }

    fn log(&mut self, table: TableId, body: Body) {
        self.changes.push((self.ordinal, table, body));
        self.ordinal += 1;
    }

    fn find(&self, table: TableId, id: i64) -> Option<Row> {
        let id = Some(id.to_string());
        let rows = &self.source.tables.get(&table)?.rows;
        rows.iter().find(|row| row.0.first() == Some(&id)).cloned()
    }

    fn rows(&mut self, table: TableId, change: impl FnOnce(&mut Vec<Row>)) {
        self.source.unseen(table, change);
    }
}

fn cells<'r>(row: &'r Row, unchanged: &[usize]) -> Vec<Cell<'r>> {
    let cell = |(index, value): (usize, &'r Option<String>)| match value {
        _ if unchanged.contains(&index) => Cell::Unchanged,
        None => Cell::Null,
        Some(value) => Cell::Text(value.as_bytes()),
    };
    row.0.iter().enumerate().map(cell).collect()
}

fn key(row: &Row) -> Vec<Cell<'_>> {
    let mut cells = cells(row, &[]);
    cells.iter_mut().skip(1).for_each(|cell| *cell = Cell::Null);
    cells
}
