//! The simulated PostgreSQL, as far as the facts of the PG chapter that the rules rest on: who it is,
//! its tables, its publication and its WAL. Slots, snapshots and failover stand beside it.
//!
//! It knows nothing of pipelines; it answers what a server would, errors included.

mod failover;
mod publication;
mod sender;
mod slots;
mod snapshot;
mod table;
mod wal;

use std::collections::BTreeMap;

use walferry_core::fault::{FaultKind, SqlState};
use walferry_core::ids::{Attempt, EventKey, OpId, StreamId, TableId};
use walferry_core::lsn::{Lsn, Position};
use walferry_core::source::{Described, ServerFacts, SourceSeen, TimelineSwitch};
use walferry_core::time::Instant;

use super::row::{Rows, TableEvent};

pub use publication::Publication;
pub use sender::Sender;
pub use slots::Slot;
pub use snapshot::Snapshot;
pub use table::{Alter, Filled, Table, relation, relation_of, schema, table_name};
pub use wal::{Edit, OpenTransaction, Shown, Transaction, WalEvent};

/// Where the WAL of every world begins.
const FIRST_LSN: u64 = 0x10;

/// What the server does instead of an answer.
pub type Refusal = FaultKind;

/// A server error with its code.
#[must_use]
pub const fn server_error(code: [u8; 5]) -> Refusal {
    FaultKind::Server { code: SqlState(code) }
}

/// The server.
#[derive(Clone, Debug)]
pub struct Source {
    /// All tables that ever were.
    pub tables: BTreeMap<TableId, Table>,
    /// All transactions, in commit order.
    pub wal: Vec<Transaction>,
    /// End of the WAL.
    pub head: Position,
    /// Replication slots by name.
    pub slots: BTreeMap<String, Slot>,
    /// Streams that run.
    pub senders: BTreeMap<StreamId, Sender>,
    /// Snapshots that live, by table and attempt.
    pub snapshots: BTreeMap<(TableId, Attempt), Snapshot>,
    /// The publication, if it exists.
    pub publication: Option<Publication>,
    /// Whether the schema trigger is installed (D-05).
    pub ddl_messages: bool,
    /// `server_version_num`.
    pub version: u32,
    /// Present timeline.
    pub timeline: u32,
    /// Where the timelines before parted, oldest first (PG-38).
    pub switches: Vec<TimelineSwitch>,
    /// Nobody is let in before.
    pub down_until: Option<Instant>,
    /// Whether it is a standby (S-09).
    pub in_recovery: bool,
    /// The world's clock.
    pub now: Instant,
    open: wal::Running,
    /// Slot creations under way, with the transactions that each waits for (PG-30).
    creating: BTreeMap<OpId, slots::Creating>,
    standby: Option<Box<Self>>,
    old: Option<Box<Self>>,
    last_value: u32,
    last_xid: u32,
    last_oid: u32,
}

impl Source {
    /// A server with published tables of OIDs 101.., each with `rows` rows.
    #[must_use]
    pub fn new(tables: u32, rows: u32) -> Self {
        let mut source = Self {
            tables: BTreeMap::new(),
            wal: Vec::new(),
            head: Position(Lsn(FIRST_LSN)),
            slots: BTreeMap::new(),
            senders: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            publication: Some(Publication::FIRST),
            ddl_messages: false,
            version: 180_000,
            timeline: 1,
            switches: Vec::new(),
            down_until: None,
            in_recovery: false,
            now: Instant(0),
            open: BTreeMap::new(),
            creating: BTreeMap::new(),
            standby: None,
            old: None,
            last_value: 0,
            last_xid: 0,
            last_oid: 1_000,
        };
        for number in 1..=tables {
            let values: BTreeMap<u32, u32> =
                (1..=rows).map(|key| (key, source.next_value())).collect();
            let id = TableId(100 + number);
            let mut table = Table::new(id, &values, table::ALWAYS);
            table.member = Some(200 + number);
            source.tables.insert(id, table);
        }
        source
    }

    /// CREATE TABLE, with a publication membership at once if `published`.
    pub fn create_table(&mut self, published: bool) -> TableId {
        let next = self.tables.last_key_value().map_or(101, |(id, _)| id.0 + 1);
        let id = TableId(next);
        let made = walferry_core::lsn::CommitLsn(self.head.0);
        self.unpublished(2);
        self.tables.insert(id, Table::new(id, &BTreeMap::new(), made));
        if published {
            self.join(id);
        }
        id
    }

    /// Tables that are there, published or not.
    #[must_use]
    pub fn living(&self) -> Vec<TableId> {
        let living = self.tables.iter().filter(|(_, table)| !table.dropped);
        living.map(|(&id, _)| id).collect()
    }

    /// Rows as a snapshot with this cutoff shows them (PG-01).
    #[must_use]
    pub fn rows_at(&self, table: TableId, cutoff: Position) -> Rows {
        self.tables.get(&table).map(|table| table.rows_at(cutoff)).unwrap_or_default()
    }

    /// Events of a table at or past a position.
    pub fn history_from(
        &self,
        table: TableId,
        from: Position,
    ) -> impl DoubleEndedIterator<Item = &(EventKey, TableEvent)> {
        let history = self.tables.get(&table).map(|table| table.history.as_slice());
        let history = history.unwrap_or_default();
        let begin = history.partition_point(|(key, _)| from.covers(key.commit));
        history[begin..].iter()
    }

    /// Why no connection is let in, if none is.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        self.down_until.is_some_and(|until| self.now < until).then_some(FaultKind::Transport)
    }

    /// Everything a process held goes with it: sessions, snapshots, locks, temporary slots.
    pub fn disconnect_all(&mut self) {
        self.senders.clear();
        self.snapshots.clear();
        self.creating.clear();
        self.slots.retain(|_, slot| !slot.temporary);
        for table in self.tables.values_mut() {
            table.locked_by = None;
        }
    }

    /// Answer to `Identify`.
    #[must_use]
    pub fn server(&self) -> ServerFacts {
        ServerFacts {
            seen: self.seen(),
            version: self.version,
            in_recovery: self.in_recovery,
            wal_level: "logical".to_owned(),
            copy_slot_risks: Vec::new(),
            idle_slot_timeout: false,
        }
    }

    /// Identity as every connection sees it.
    #[must_use]
    pub fn seen(&self) -> SourceSeen {
        SourceSeen {
            system_id: "7".to_owned(),
            timeline: self.timeline,
            database: "app".to_owned(),
        }
    }

    /// Answer to `DescribeTable` (D-08).
    #[must_use]
    pub fn describe(&self, table: TableId) -> Option<Described> {
        let found = self.tables.get(&table).filter(|table| !table.dropped)?;
        let mut schema = (*found.shape()).clone();
        schema.storage = Some(u64::from(found.file_at(Position(Lsn(u64::MAX)))));
        Some(Described { schema, missing: found.missing(), position: self.head })
    }

    /// End of everything that somebody waits for.
    #[must_use]
    pub fn last_end(&self) -> Option<Position> {
        self.wal.iter().rev().find(|t| !t.heartbeat).map(|t| t.end)
    }

    /// The transaction that a position lies inside of, between the start and the end of its commit
    /// record.
    #[must_use]
    pub fn transaction_around(&self, position: Position) -> Option<&Transaction> {
        let behind = self.wal.partition_point(|transaction| position.covers(transaction.commit));
        let last = self.wal[..behind].last()?;
        (position < last.end && !last.loose).then_some(last)
    }

    /// Transactions that have not ended.
    #[must_use]
    pub fn running(&self) -> Vec<u32> {
        self.open.keys().copied().collect()
    }
}
