//! Transactions: several run at a time, with savepoints and locks, and become WAL when they commit,
//! in another order than they began in (PG-04).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use walferry_core::event::TruncateFlags;
use walferry_core::ids::{EventKey, TableId};
use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::schema::{DdlMessage, TableSchema};

use super::Source;
use super::table::{Alter, Table};
use crate::world::row::{Change, TableEvent, tuple};

/// What a transaction does, as tests write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Inserts the row, or updates it if it is there.
    Put(TableId, u32),
    /// Deletes the row if it is there.
    Delete(TableId, u32),
    /// One TRUNCATE statement.
    Truncate(Vec<TableId>),
    /// One ALTER TABLE statement.
    Alter(TableId, Alter),
    /// DROP TABLE.
    Drop(TableId),
    /// A transactional logical message.
    Message(&'static str),
}

/// A table as an event shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The table.
    pub table: TableId,
    /// Its shape then (PG-14).
    pub shape: Arc<TableSchema>,
    /// When it has to be announced again (PG-13).
    pub generation: u32,
}

/// What a transaction left in the WAL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WalEvent {
    /// A row change.
    Row(Shown, Change),
    /// A truncate of several tables.
    Truncate(Vec<Shown>, TruncateFlags),
    /// A schema message of the trigger (D-05).
    Ddl(Arc<DdlMessage>),
    /// Another logical message.
    Message {
        /// Its own position.
        lsn: Lsn,
        /// What the writer called it.
        prefix: &'static str,
    },
}

/// A committed transaction, or a message that belongs to none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Orders transactions.
    pub commit: CommitLsn,
    /// First byte after the commit record.
    pub end: Position,
    /// Its events.
    pub events: Vec<WalEvent>,
    /// Memory that each of its rows claims to keep alive.
    pub row_bytes: u32,
    /// A message outside of any transaction (PG-25).
    pub loose: bool,
    /// Whether the publication existed, so that it can be decoded up to 17 (PG-24).
    pub decodable: bool,
    /// Whether it is a heartbeat, which nobody waits for.
    pub heartbeat: bool,
}

/// A transaction that has not ended.
#[derive(Clone, Debug, Default)]
pub struct OpenTransaction {
    /// Its statements, and whether the publication held the table then (PG-21).
    statements: Vec<(Edit, bool)>,
    savepoints: Vec<usize>,
    rows: BTreeSet<(TableId, u32)>,
    tables: BTreeSet<TableId>,
    /// Where its first record stands: slots keep WAL from here on.
    pub began: Position,
}

/// Options of a TRUNCATE at a position: each of them comes (PG-18).
const fn flags(commit: CommitLsn) -> TruncateFlags {
    TruncateFlags {
        cascade: commit.0.0.is_multiple_of(2),
        restart_identity: commit.0.0.is_multiple_of(3),
    }
}

impl Edit {
    /// The rows and the whole tables that it locks.
    fn locks(&self) -> (Option<(TableId, u32)>, Vec<TableId>) {
        match self {
            Self::Put(table, key) | Self::Delete(table, key) => (Some((*table, *key)), Vec::new()),
            Self::Truncate(tables) => (None, tables.clone()),
            Self::Alter(table, _) | Self::Drop(table) => (None, vec![*table]),
            Self::Message(_) => (None, Vec::new()),
        }
    }

    fn table(&self) -> Option<TableId> {
        match self {
            Self::Put(table, _)
            | Self::Delete(table, _)
            | Self::Alter(table, _)
            | Self::Drop(table) => Some(*table),
            Self::Truncate(tables) => tables.first().copied(),
            Self::Message(_) => None,
        }
    }
}

impl OpenTransaction {
    /// Whether it holds a lock that keeps readers out.
    pub(super) fn holds(&self, table: TableId) -> bool {
        self.tables.contains(&table)
    }
}

impl Source {
    /// Writes WAL that no publication shows.
    pub const fn unpublished(&mut self, bytes: u64) {
        self.head.0.0 += bytes;
    }

    /// Whether a statement finds its tables, and does not have to wait for a lock.
    #[must_use]
    pub fn may_run(&self, edit: &Edit, by: Option<u32>) -> bool {
        let (row, tables) = edit.locks();
        let named = row.iter().map(|(table, _)| table).chain(&tables);
        let there = |id: &TableId| self.tables.get(id).is_some_and(|table| !table.dropped);
        let mut others = self.open.iter().filter(|(xid, _)| Some(**xid) != by);
        let waits = others.any(|(_, other)| {
            row.is_some_and(|(table, key)| {
                other.rows.contains(&(table, key)) || other.tables.contains(&table)
            }) || tables.iter().any(|table| {
                other.tables.contains(table) || other.rows.iter().any(|(t, _)| t == table)
            })
        });
        let read = |id: &TableId| self.tables.get(id).is_some_and(|t| t.locked_by.is_some());
        named.clone().all(there) && !waits && !tables.iter().any(read)
    }

    /// Begins a transaction.
    pub fn begin(&mut self) -> u32 {
        self.last_xid += 1;
        let began = self.head;
        self.open.insert(self.last_xid, OpenTransaction { began, ..OpenTransaction::default() });
        self.last_xid
    }

    /// Executes a statement in an open transaction; false if it would have to wait.
    pub fn execute(&mut self, xid: u32, edit: Edit) -> bool {
        if !self.may_run(&edit, Some(xid)) {
            return false;
        }
        let shown = edit.table().is_none_or(|table| self.shows(table));
        let (row, tables) = edit.locks();
        let Some(open) = self.open.get_mut(&xid) else { return false };
        open.rows.extend(row);
        open.tables.extend(tables);
        open.statements.push((edit, shown));
        self.head.0.0 += 1;
        true
    }

    /// Sets a savepoint.
    pub fn savepoint(&mut self, xid: u32) {
        if let Some(open) = self.open.get_mut(&xid) {
            open.savepoints.push(open.statements.len());
        }
    }

    /// Takes back everything since the last savepoint; its locks stay.
    pub fn rollback_to_savepoint(&mut self, xid: u32) {
        if let Some(open) = self.open.get_mut(&xid)
            && let Some(kept) = open.savepoints.pop()
        {
            open.statements.truncate(kept);
        }
    }

    /// Takes a transaction back.
    pub fn abort(&mut self, xid: u32) {
        if self.open.remove(&xid).is_some() {
            self.head.0.0 += 1;
        }
    }

    /// Commits an open transaction.
    pub fn commit_open(&mut self, xid: u32, gap: u64, length: u64, row_bytes: u32) {
        if let Some(open) = self.open.remove(&xid) {
            self.write(&open.statements, gap, length, row_bytes);
        }
    }

    /// Commits a transaction `gap` bytes behind the head with a commit record of `length` bytes.
    ///
    /// # Panics
    /// If it would have to wait for a lock.
    pub fn commit(&mut self, edits: &[Edit], gap: u64, length: u64, row_bytes: u32) {
        let mut statements = Vec::new();
        for edit in edits {
            assert!(self.may_run(edit, None), "the world runs {edit:?} under a lock");
            let shown = edit.table().is_none_or(|table| self.shows(table));
            statements.push((edit.clone(), shown));
        }
        self.write(&statements, gap, length, row_bytes);
    }

    fn write(&mut self, statements: &[(Edit, bool)], gap: u64, length: u64, row_bytes: u32) {
        let commit = CommitLsn(Lsn(self.head.0.0 + gap));
        let end = Position(Lsn(commit.0.0 + length.max(1)));
        let mut writer =
            Writer { source: self, commit, events: Vec::new(), ordinal: 0, message: 0 };
        for (edit, shown) in statements {
            writer.statement(edit, *shown);
        }
        let events = writer.events;
        let decodable = self.publication.is_some() || events.is_empty();
        let heartbeat = matches!(events.first(), Some(WalEvent::Message { prefix, .. })
            if *prefix == "walferry_heartbeat");
        self.wal.push(Transaction {
            commit,
            end,
            events,
            row_bytes,
            loose: false,
            decodable,
            heartbeat,
        });
        self.head = end;
    }

    /// Writes a logical message that belongs to no transaction (PG-25).
    pub fn loose_message(&mut self, prefix: &'static str) {
        let lsn = self.head.0;
        let end = Position(Lsn(lsn.0 + 1));
        self.wal.push(Transaction {
            commit: CommitLsn(lsn),
            end,
            events: vec![WalEvent::Message { lsn, prefix }],
            row_bytes: 0,
            loose: true,
            decodable: true,
            heartbeat: false,
        });
        self.head = end;
    }

    pub(super) const fn next_value(&mut self) -> u32 {
        self.last_value += 1;
        self.last_value
    }
}

/// Turns the statements of a transaction into its WAL.
struct Writer<'a> {
    source: &'a mut Source,
    commit: CommitLsn,
    events: Vec<WalEvent>,
    /// Of the next event that has one.
    ordinal: u64,
    message: u64,
}

impl Writer<'_> {
    fn statement(&mut self, edit: &Edit, shown: bool) {
        match edit {
            Edit::Put(table, key) => self.put(*table, *key, shown),
            Edit::Delete(table, key) => self.delete(*table, *key, shown),
            Edit::Truncate(tables) => self.truncate(tables),
            Edit::Alter(table, alter) => self.alter(*table, *alter),
            Edit::Drop(table) => {
                if let Some(table) = self.source.tables.get_mut(table) {
                    table.dropped = true;
                    table.member = None;
                }
            }
            Edit::Message(prefix) => {
                self.message += 1;
                let lsn = Lsn(self.commit.0.0.saturating_sub(self.message));
                self.events.push(WalEvent::Message { lsn, prefix });
            }
        }
    }

    fn put(&mut self, id: TableId, key: u32, shown: bool) {
        let mut value = self.source.last_value;
        let Some(table) = self.source.tables.get_mut(&id) else { return };
        let cells = table.fresh_cells(|| {
            value += 1;
            value
        });
        self.source.last_value = value;
        self.change(id, key, Some(cells), shown);
    }

    fn delete(&mut self, id: TableId, key: u32, shown: bool) {
        if self.source.tables.get(&id).is_some_and(|table| table.rows.contains_key(&key)) {
            self.change(id, key, None, shown);
        }
    }

    fn change(
        &mut self,
        id: TableId,
        key: u32,
        cells: Option<crate::world::row::Cells>,
        shown: bool,
    ) {
        let Some(table) = self.source.tables.get_mut(&id) else { return };
        let shape = table.shape();
        let old = table.rows.get(&key).map(|cells| tuple(cells, &shape));
        let new = cells.as_ref().map(|cells| tuple(cells, &shape));
        table.set(self.commit, key, cells);
        if !shown {
            return;
        }
        table.shows_event(self.commit);
        let change = Change { key, old, new, shape };
        let event = TableEvent::Row(change.clone());
        table.history.push((EventKey { commit: self.commit, ordinal: self.ordinal }, event));
        self.ordinal += 1;
        let shown = show(id, table);
        self.events.push(WalEvent::Row(shown, change));
    }

    fn truncate(&mut self, tables: &[TableId]) {
        let key = EventKey { commit: self.commit, ordinal: self.ordinal };
        let mut listed = Vec::new();
        for &id in tables {
            let is_shown = self.source.shows(id);
            let Some(table) = self.source.tables.get_mut(&id) else { continue };
            if is_shown {
                table.history.push((key, TableEvent::Truncate));
                listed.push(show(id, table));
            }
            table.truncate(self.commit);
        }
        if !listed.is_empty() {
            self.ordinal += 1;
            self.events.push(WalEvent::Truncate(listed, flags(self.commit)));
        }
    }

    fn alter(&mut self, id: TableId, alter: Alter) {
        let mut value = self.source.last_value;
        let Some(table) = self.source.tables.get_mut(&id) else { return };
        let done = table.alter(self.commit, alter, || {
            value += 1;
            value
        });
        let shape = table.shape();
        self.source.last_value = value;
        if done && alter != Alter::Vacuum && self.source.ddl_messages {
            let message =
                DdlMessage { command: "ALTER TABLE".to_owned(), publication: None, schema: shape };
            self.events.push(WalEvent::Ddl(Arc::new(message)));
        }
    }
}

fn show(id: TableId, table: &Table) -> Shown {
    Shown { table: id, shape: table.shape(), generation: table.generation }
}

/// Transactions that run, by their number.
pub(super) type Running = BTreeMap<u32, OpenTransaction>;
