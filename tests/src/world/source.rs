//! The simulated PostgreSQL: tables with their history, WAL of whole transactions, slots, exported
//! snapshots and walsenders, as far as the facts of the PG chapter that the rules rest on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use walferry_core::event::{Event, TruncateFlags};
use walferry_core::ids::{Attempt, EventKey, Session, StreamId, TableId};
use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::schema::{Column, Relation, RelationColumn, ReplicaIdentity, TableSchema};
use walferry_core::source::{
    CreatedSlot, GuardColumn, HeapFacts, ListedTable, Listing, ReaderFacts, ServerFacts, SlotFacts,
    SlotReport, SnapshotFacts, SourceSeen,
};

use super::row::{Change, Row, Rows, TableEvent};
use super::sender::Sender;

/// Where the WAL of every world begins.
const FIRST_LSN: u64 = 0x10;
/// OID of the publication.
const PUBLICATION: u32 = 9;

/// What a transaction does, as tests write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Inserts the row, or updates it if it is there.
    Put(TableId, u32),
    /// Deletes the row if it is there.
    Delete(TableId, u32),
    /// One TRUNCATE statement.
    Truncate(Vec<TableId>),
}

/// An event of a transaction; its ordinal is its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WalEvent {
    /// A row change.
    Row(TableId, Change),
    /// A truncate of several tables.
    Truncate(Vec<TableId>),
}

/// A committed transaction.
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
}

/// One table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Its rows at the head of the WAL.
    pub rows: Rows,
    /// Everything that ever happened to it.
    pub history: Vec<(EventKey, TableEvent)>,
    /// Its rows before any WAL.
    initial: Rows,
    /// OID of its membership row (T-11).
    pub membership: u32,
    /// The attempt whose reader holds a lock on it: no TRUNCATE meanwhile (PG-41).
    pub locked_by: Option<Attempt>,
}

/// A replication slot.
#[derive(Clone, Debug)]
pub struct Slot {
    /// WAL below may be gone.
    pub confirmed: Position,
    /// Whether it ends with the process.
    pub temporary: bool,
}

/// The server.
#[derive(Clone, Debug)]
pub struct Source {
    /// The published tables.
    pub tables: BTreeMap<TableId, Table>,
    /// All transactions, in commit order.
    pub wal: Vec<Transaction>,
    /// End of the WAL.
    pub head: Position,
    /// Replication slots by name.
    pub slots: BTreeMap<String, Slot>,
    /// Streams that run.
    pub senders: BTreeMap<StreamId, Sender>,
    /// Snapshots that live: table and attempt, with the cutoff.
    pub snapshots: BTreeMap<(TableId, Attempt), Position>,
    last_value: u32,
}

impl Source {
    /// A server with tables of OIDs 101.., each with `rows` rows.
    #[must_use]
    pub fn new(tables: u32, rows: u32) -> Self {
        let mut source = Self {
            tables: BTreeMap::new(),
            wal: Vec::new(),
            head: Position(Lsn(FIRST_LSN)),
            slots: BTreeMap::new(),
            senders: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            last_value: 0,
        };
        for number in 1..=tables {
            let values: Rows = (1..=rows).map(|key| (key, source.next_value())).collect();
            let table = Table {
                rows: values.clone(),
                initial: values,
                membership: 200 + number,
                ..Table::default()
            };
            source.tables.insert(TableId(100 + number), table);
        }
        source
    }

    const fn next_value(&mut self) -> u32 {
        self.last_value += 1;
        self.last_value
    }

    /// Writes WAL that no publication shows.
    pub const fn unpublished(&mut self, bytes: u64) {
        self.head.0.0 += bytes;
    }

    /// Commits a transaction `gap` bytes behind the head with a commit record of `length` bytes.
    ///
    /// # Panics
    /// If a truncated table is locked by a reader.
    pub fn commit(&mut self, edits: &[Edit], gap: u64, length: u64, row_bytes: u32) {
        let commit = CommitLsn(Lsn(self.head.0.0 + gap));
        let end = Position(Lsn(commit.0.0 + length.max(1)));
        let mut events = Vec::new();
        for edit in edits {
            let event = match edit {
                Edit::Put(table, key) => {
                    let new = Some(self.next_value());
                    self.change(*table, *key, new)
                }
                Edit::Delete(table, key) => self.change(*table, *key, None),
                Edit::Truncate(tables) => Some(WalEvent::Truncate(tables.clone())),
            };
            let Some(event) = event else { continue };
            let key = EventKey { commit, ordinal: events.len() as u64 };
            match &event {
                WalEvent::Row(table, change) => {
                    self.record(*table, key, TableEvent::Row(*change));
                }
                WalEvent::Truncate(tables) => {
                    for &table in tables {
                        self.record(table, key, TableEvent::Truncate);
                    }
                }
            }
            events.push(event);
        }
        self.wal.push(Transaction { commit, end, events, row_bytes });
        self.head = end;
    }

    fn change(&self, table: TableId, key: u32, new: Option<u32>) -> Option<WalEvent> {
        let old = self.tables[&table].rows.get(&key).copied();
        (old.is_some() || new.is_some()).then_some(WalEvent::Row(table, Change { key, old, new }))
    }

    fn record(&mut self, id: TableId, key: EventKey, event: TableEvent) {
        if let Some(table) = self.tables.get_mut(&id) {
            let free = event != TableEvent::Truncate || table.locked_by.is_none();
            assert!(free, "the world truncated table {id} under a lock");
            event.apply(&mut table.rows, key);
            table.history.push((key, event));
        }
    }

    /// Rows as a snapshot with this cutoff shows them (PG-01).
    #[must_use]
    pub fn rows_at(&self, table: TableId, cutoff: Position) -> Rows {
        let table = &self.tables[&table];
        let mut rows = table.initial.clone();
        for (key, event) in table.history.iter().filter(|(key, _)| cutoff.covers(key.commit)) {
            event.apply(&mut rows, *key);
        }
        rows
    }

    /// Events of a table at or past a position.
    pub fn history_from(
        &self,
        table: TableId,
        from: Position,
    ) -> impl Iterator<Item = &(EventKey, TableEvent)> {
        self.tables[&table].history.iter().filter(move |(key, _)| !from.covers(key.commit))
    }

    /// Number of the heap's file: each truncate makes a new one (PG-27).
    #[must_use]
    pub fn filenode_at(&self, table: TableId, cutoff: Position) -> u32 {
        let history = &self.tables[&table].history;
        let truncates = history
            .iter()
            .filter(|(key, event)| *event == TableEvent::Truncate && cutoff.covers(key.commit))
            .count();
        1 + u32::try_from(truncates).unwrap_or(u32::MAX)
    }

    /// Everything a process held goes with it: sessions, snapshots, locks, temporary slots.
    pub fn disconnect_all(&mut self) {
        self.senders.clear();
        self.snapshots.clear();
        self.slots.retain(|_, slot| !slot.temporary);
        for table in self.tables.values_mut() {
            table.locked_by = None;
        }
    }

    /// Ends the sessions of one attempt.
    pub fn close_copy(&mut self, table: TableId, attempt: Attempt, slot: Option<&str>) {
        self.snapshots.remove(&(table, attempt));
        self.unlock(table, attempt);
        self.senders.remove(&StreamId::Copy(table));
        if let Some(slot) = slot {
            self.slots.remove(slot);
        }
    }

    /// Ends the readers of one attempt.
    pub fn unlock(&mut self, table: TableId, attempt: Attempt) {
        if let Some(table) = self.tables.get_mut(&table)
            && table.locked_by == Some(attempt)
        {
            table.locked_by = None;
        }
    }

    /// Answer to `Identify`.
    #[must_use]
    pub fn server(&self) -> ServerFacts {
        ServerFacts {
            seen: self.seen(),
            version: 180_000,
            in_recovery: false,
            wal_level: "logical".to_owned(),
            copy_slot_risks: Vec::new(),
            idle_slot_timeout: false,
        }
    }

    /// Identity as every connection sees it.
    #[must_use]
    pub fn seen(&self) -> SourceSeen {
        SourceSeen { system_id: "7".to_owned(), timeline: 1, database: "app".to_owned() }
    }

    /// Answer to `ListPublication`.
    #[must_use]
    pub fn listing(&self) -> Listing {
        let listed = |(&table, found): (&TableId, &Table)| ListedTable {
            table,
            namespace: "public".to_owned(),
            name: table_name(table),
            membership: found.membership,
        };
        Listing {
            publication: PUBLICATION,
            missing_actions: Vec::new(),
            tables: self.tables.iter().map(listed).collect(),
            position: self.head,
        }
    }

    /// A slot as the catalog shows it.
    #[must_use]
    pub fn slot(&self, name: &str) -> Option<SlotFacts> {
        self.slots.get(name).map(|slot| SlotFacts {
            name: name.to_owned(),
            plugin: "pgoutput".to_owned(),
            database: "app".to_owned(),
            logical: true,
            temporary: slot.temporary,
            active: None,
            restart_lsn: Some(slot.confirmed.0),
            confirmed_flush_lsn: Some(slot.confirmed.0),
            wal_status: Some("reserved".to_owned()),
            safe_wal_size: None,
            failover: false,
            invalidation_reason: None,
        })
    }

    /// Answer to `ListSlots`.
    #[must_use]
    pub fn slots_of(&self, prefix: &str) -> Vec<SlotFacts> {
        let names = self.slots.keys().filter(|name| name.starts_with(prefix));
        names.filter_map(|name| self.slot(name)).collect()
    }

    /// Answer to `InspectSlot`.
    #[must_use]
    pub fn report(&self, name: &str) -> SlotReport {
        SlotReport {
            seen: self.seen(),
            slot: self.slot(name),
            wal_end: self.head.0,
            publication: Some(PUBLICATION),
        }
    }

    /// Creates a slot; its consistent point is the head.
    ///
    /// # Panics
    /// If the name is taken.
    pub fn create_slot(&mut self, name: &str, temporary: bool) -> CreatedSlot {
        let made = Slot { confirmed: self.head, temporary };
        let before = self.slots.insert(name.to_owned(), made);
        assert!(before.is_none(), "slot {name} exists");
        CreatedSlot { slot: name.to_owned(), plugin: "pgoutput".to_owned(), consistent: self.head }
    }

    /// Answer to `OpenSnapshot`.
    pub fn open_snapshot(&mut self, table: TableId, attempt: Attempt, slot: &str) -> SnapshotFacts {
        let slot = self.create_slot(slot, true);
        self.snapshots.insert((table, attempt), slot.consistent);
        SnapshotFacts { seen: self.seen(), slot }
    }

    /// Answer to `OpenReader`: locks the table and tells the guard facts.
    pub fn open_reader(&mut self, table: TableId, attempt: Attempt) -> ReaderFacts {
        let cutoff = self.cutoff(table, attempt);
        if let Some(table) = self.tables.get_mut(&table) {
            table.locked_by = Some(attempt);
        }
        let columns = guard_columns();
        let heap = HeapFacts {
            relation: table,
            filenode_in_snapshot: self.filenode_at(table, cutoff),
            filenode_now: self.filenode_at(table, Position(Lsn(u64::MAX))),
            columns_in_snapshot: columns.clone(),
            columns_now: columns,
            bytes: 8_192,
            blocks: 1,
        };
        ReaderFacts { seen: self.seen(), published: true, filter: None, heaps: vec![heap] }
    }

    /// Where the snapshot of a living attempt stands.
    #[must_use]
    pub fn cutoff(&self, table: TableId, attempt: Attempt) -> Position {
        self.snapshots[&(table, attempt)]
    }

    /// Starts a stream (PG-02, PG-05).
    pub fn open_stream(&mut self, stream: StreamId, session: Session, slot: &str, from: Position) {
        let start = from.max(self.slots[slot].confirmed);
        let sender = Sender::new(session, slot.to_owned(), start, &self.wal);
        self.senders.insert(stream, sender);
    }

    /// Feedback of a stream: WAL below `position` may go.
    pub fn confirm(&mut self, stream: StreamId, session: Session, position: Position, ask: bool) {
        let Some(sender) = self.senders.get_mut(&stream) else { return };
        if sender.session != session {
            return;
        }
        sender.reply_due |= ask;
        if let Some(slot) = self.slots.get_mut(&sender.slot) {
            slot.confirmed = slot.confirmed.max(position);
        }
    }

    /// The next events of a stream, at most `most`.
    pub fn read(&mut self, stream: StreamId, most: usize) -> (Session, Vec<Event<Row>>) {
        let Some(sender) = self.senders.get_mut(&stream) else { return (Session(0), Vec::new()) };
        let events = (0..most).map_while(|_| sender.next(&self.wal)).collect();
        (sender.session, events)
    }

    /// Whether a stream has something to send.
    #[must_use]
    pub fn has_unread(&self, stream: StreamId) -> bool {
        self.senders.get(&stream).is_some_and(|sender| sender.has_next(&self.wal))
    }

    /// A keepalive of a stream; `far` as far ahead as PG-09 allows.
    pub fn keepalive(&mut self, stream: StreamId, far: bool, reply: bool) -> (Session, Event<Row>) {
        let head = self.head;
        let Some(sender) = self.senders.get_mut(&stream) else {
            return (Session(0), Event::Keepalive { wal_end: head, reply });
        };
        sender.reply_due = false;
        let wal_end = sender.keepalive_position(&self.wal, head, far);
        (sender.session, Event::Keepalive { wal_end, reply })
    }
}

/// Short name of a table: a, b, ..
#[must_use]
pub fn table_name(table: TableId) -> String {
    char::from_u32('a' as u32 + table.0.saturating_sub(101))
        .map_or_else(|| table.to_string(), |letter| letter.to_string())
}

/// The schema of every simulated table.
#[must_use]
pub fn schema(table: TableId) -> TableSchema {
    let column = |number: i16, name: &str| Column {
        number,
        name: name.to_owned(),
        type_oid: 23,
        modifier: -1,
        not_null: true,
        default: None,
        key: number == 1,
    };
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
    let schema = schema(table);
    let columns = schema.columns.iter().map(|column| RelationColumn {
        key: column.key,
        name: column.name.clone(),
        type_oid: column.type_oid,
        modifier: column.modifier,
    });
    Arc::new(Relation {
        table,
        namespace: schema.namespace.clone(),
        name: schema.name.clone(),
        identity: schema.identity,
        columns: columns.collect(),
    })
}

fn guard_columns() -> Vec<GuardColumn> {
    vec![GuardColumn {
        number: 1,
        name: "id".to_owned(),
        type_oid: 23,
        modifier: -1,
        dropped: false,
    }]
}

/// Options of every simulated truncate.
pub const FLAGS: TruncateFlags = TruncateFlags { cascade: false, restart_identity: false };

/// Tables of an event.
#[must_use]
pub fn tables_of(event: &WalEvent) -> BTreeSet<TableId> {
    match event {
        WalEvent::Row(table, _) => BTreeSet::from([*table]),
        WalEvent::Truncate(tables) => tables.iter().copied().collect(),
    }
}
