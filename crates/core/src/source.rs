//! Facts about the source as adapters report them. The core compares; adapters never do.

use core::time::Duration;

use crate::ids::TableId;
use crate::lsn::{Lsn, Position};
use crate::schema::TableSchema;

/// Which cluster, timeline and database a connection reached (S-02, PG-37, PG-46).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSeen {
    /// System identifier in decimal.
    pub system_id: String,
    /// Present timeline.
    pub timeline: u32,
    /// Database of the connection.
    pub database: String,
}

/// Answer to `Identify`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// Who answered.
    pub seen: SourceSeen,
    /// `server_version_num`.
    pub version: u32,
    /// Whether the server is a standby.
    pub in_recovery: bool,
    /// Setting `wal_level`.
    pub wal_level: String,
    /// Settings that may end a copy slot (K-29), as `name = value`; empty if none is on.
    pub copy_slot_risks: Vec<String>,
    /// Whether `idle_replication_slot_timeout` is on (PG-36).
    pub idle_slot_timeout: bool,
}

/// A replication slot as `pg_replication_slots` shows it (PG-35).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotFacts {
    /// Its name.
    pub name: String,
    /// Output plugin; empty for a physical slot.
    pub plugin: String,
    /// Database; empty for a physical slot.
    pub database: String,
    /// Whether it is a logical one.
    pub logical: bool,
    /// Whether it ends with its session.
    pub temporary: bool,
    /// Pid of the backend that holds it and its `application_name`.
    pub active: Option<SlotHolder>,
    /// Oldest WAL kept; absent while the slot is being created.
    pub restart_lsn: Option<Lsn>,
    /// Position confirmed; absent while the slot is being created.
    pub confirmed_flush_lsn: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// Bytes that may still be written before the slot is in danger.
    pub safe_wal_size: Option<i64>,
    /// Whether it is to survive a failover (17 and newer).
    pub failover: bool,
    /// Why it can no longer be used, if the server says so (`invalidation_reason`, `conflicting`).
    pub invalidation_reason: Option<String>,
}

/// Who holds an active slot (M-01).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotHolder {
    /// Backend process at the server.
    pub pid: i32,
    /// Its `application_name`, if the role may see it.
    pub application: String,
}

/// Answer to `InspectSlot`: everything the checks of A-03 compare, read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotReport {
    /// Who answered.
    pub seen: SourceSeen,
    /// The slot, if it exists.
    pub slot: Option<SlotFacts>,
    /// End of the server's WAL.
    pub wal_end: Lsn,
    /// OID of the publication, if it exists.
    pub publication: Option<u32>,
}

/// Answer to `CreateSlot` (M-05).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedSlot {
    /// Name in the server's answer.
    pub slot: String,
    /// Plugin in the server's answer.
    pub plugin: String,
    /// Consistent point.
    pub consistent: Position,
}

/// A session that slot creation waits for (M-06).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Backend process at the server.
    pub pid: i32,
    /// Age of its transaction, if the role may see it.
    pub age: Option<Duration>,
}

/// One line of a timeline history (PG-38).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimelineSwitch {
    /// The timeline that ended here for its successor.
    pub parent: u32,
    /// Where: everything below belongs to both.
    pub at: Position,
}

/// Answer to `DescribeTable`: the catalog as it is, not as of any position of the stream (D-08).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// All its columns, published or not, with the storage stamp.
    pub schema: TableSchema,
    /// Columns with a stored value for rows that lack them (PG-29), with that value as text.
    pub missing: Vec<(String, Option<String>)>,
    /// WAL insert position read after the snapshot of the query.
    pub position: Position,
}

/// One relation of a publication (T-01).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTable {
    /// Its OID.
    pub table: TableId,
    /// Schema (namespace) name.
    pub namespace: String,
    /// Table name.
    pub name: String,
    /// OID of the row that makes it a member (T-11); 0 if the publication is FOR ALL TABLES.
    pub membership: u32,
}

/// Answer to `ListPublication`: one consistent listing (T-01).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// OID of the publication.
    pub publication: u32,
    /// Actions it leaves out, of insert, update, delete, truncate; empty if none.
    pub missing_actions: Vec<&'static str>,
    /// Its relations, sorted by OID.
    pub tables: Vec<ListedTable>,
    /// WAL insert position read after the snapshot of the query.
    pub position: Position,
}

/// A column as the rewrite guard compares it (K-27).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardColumn {
    /// Attribute number.
    pub number: i16,
    /// Name.
    pub name: String,
    /// Type OID.
    pub type_oid: u32,
    /// Type modifier.
    pub modifier: i32,
    /// Whether the column is dropped.
    pub dropped: bool,
}

/// Physical positions to be read: `ctid` from the first block on, up to the end block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockRange {
    /// First block.
    pub first: u32,
    /// First block behind the range; `None` reads to the end, also what comes behind it (K-20).
    pub end: Option<u32>,
}

impl BlockRange {
    /// The whole heap.
    pub const ALL: Self = Self { first: 0, end: None };
}

/// One heap to be read, as the snapshot shows it and as it is (K-27).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapFacts {
    /// The relation: the table itself, or a leaf under a published root.
    pub relation: TableId,
    /// `pg_class.relfilenode` in the snapshot.
    pub filenode_in_snapshot: u32,
    /// `pg_relation_filenode(oid)` under the lock.
    pub filenode_now: u32,
    /// Columns in the snapshot.
    pub columns_in_snapshot: Vec<GuardColumn>,
    /// Columns read on another connection under the lock.
    pub columns_now: Vec<GuardColumn>,
    /// Bytes of heap and TOAST.
    pub bytes: u64,
    /// Blocks of the heap.
    pub blocks: u32,
}

/// Answer to `OpenReader`: what the first reader found under its lock (K-11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderFacts {
    /// Who answered.
    pub seen: SourceSeen,
    /// Whether the table is in the publication inside the snapshot.
    pub published: bool,
    /// Row filter of the publication inside the snapshot, as SQL.
    pub filter: Option<String>,
    /// What is to be read; more than one only for a published partition root. Empty for all readers
    /// but the first.
    pub heaps: Vec<HeapFacts>,
}

/// Answer to `OpenSnapshot` (K-08).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFacts {
    /// Who answered.
    pub seen: SourceSeen,
    /// The copy slot; its consistent point is the cutoff.
    pub slot: CreatedSlot,
}

/// Answer to `ReadRange`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeFacts {
    /// Rows handed over in all blocks of the range.
    pub rows: u64,
}

/// Answer to `ReadSchema`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaFacts {
    /// The schema in the snapshot, in the order in which rows will come.
    pub schema: TableSchema,
}

/// Answer to `Monitor` (G-06).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorFacts {
    /// End of the server's WAL.
    pub wal_end: Lsn,
    /// The main slot, if it exists.
    pub slot: Option<SlotFacts>,
}
