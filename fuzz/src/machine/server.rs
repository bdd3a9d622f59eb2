//! The smallest source that keeps the facts which the core relies on (PG-01 to PG-13).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::event::{Event, RowKind, TruncateFlags};
use walferry_core::fault::{Fault, FaultKind, Origin, SqlState};
use walferry_core::ids::{Attempt, Session, StreamId, TableId};
use walferry_core::input::Answer;
use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::names;
use walferry_core::schema::{Column, Relation, RelationColumn, ReplicaIdentity, TableSchema};
use walferry_core::source::{
    CreatedSlot, Described, GuardColumn, HeapFacts, ListedTable, Listing, MonitorFacts, RangeFacts,
    ReaderFacts, SchemaFacts, ServerFacts, SlotFacts, SlotHolder, SlotReport, SnapshotFacts,
    SourceSeen,
};

use super::choices::Choices;

const PUBLICATION: u32 = 900;
const KINDS: [RowKind; 3] = [RowKind::Insert, RowKind::Update, RowKind::Delete];

#[derive(Clone)]
enum Body {
    Row(TableId, RowKind, u32),
    Truncate(Vec<TableId>),
    Message,
}

struct Transaction {
    commit: CommitLsn,
    end: Position,
    bodies: Vec<Body>,
}

struct Slot {
    confirmed: Position,
    temporary: bool,
}

struct Sender {
    session: Session,
    slot: String,
    next: usize,
    /// 0 is the begin, 1.. the bodies, then the commit.
    inside: usize,
    sent: Position,
    announced: BTreeSet<TableId>,
}

pub(super) struct Server {
    /// Members of the publication with the number of their membership (T-11).
    members: BTreeMap<TableId, u32>,
    wal: Vec<Transaction>,
    head: Position,
    slots: BTreeMap<String, Slot>,
    senders: BTreeMap<StreamId, Sender>,
}

impl Server {
    pub(super) fn new(tables: u32) -> Self {
        Self {
            members: (1..=tables).map(|table| (TableId(table), table)).collect(),
            wal: Vec::new(),
            head: Position(Lsn(10)),
            slots: BTreeMap::new(),
            senders: BTreeMap::new(),
        }
    }

    pub(super) const fn head(&self) -> Position {
        self.head
    }

    /// A transaction of some events, or WAL that nobody publishes, or a table that joins anew.
    pub(super) fn commit(&mut self, choices: &mut Choices<'_>) {
        let count = choices.below(8);
        if count == 6 {
            self.head.0.0 += 1 << choices.below(25);
            return;
        }
        if count == 7 {
            let table = TableId(1 + choices.index(3) as u32);
            self.members.entry(table).and_modify(|membership| *membership += 100);
            return;
        }
        let bodies = (0..count).map(|_| body(choices)).collect();
        let commit = CommitLsn(Lsn(self.head.0.0 + choices.below(3)));
        self.head = Position(Lsn(commit.0.0 + 1 + choices.below(3)));
        self.wal.push(Transaction { commit, end: self.head, bodies });
    }

    pub(super) fn confirm(&mut self, stream: StreamId, session: Session, position: Position) {
        let Some(sender) = self.senders.get(&stream).filter(|s| s.session == session) else {
            return;
        };
        if let Some(slot) = self.slots.get_mut(&sender.slot) {
            slot.confirmed = slot.confirmed.max(position);
        }
    }

    pub(super) fn disconnect_all(&mut self) {
        self.senders.clear();
        self.slots.retain(|_, slot| !slot.temporary);
    }

    pub(super) fn pick_stream(&self, choices: &mut Choices<'_>) -> Option<StreamId> {
        self.senders.keys().nth(choices.index(self.senders.len())).copied()
    }

    pub(super) fn lose(&mut self, stream: StreamId) -> Option<Session> {
        self.senders.remove(&stream).map(|sender| sender.session)
    }

    pub(super) fn read(&mut self, stream: StreamId, most: usize) -> (Session, Vec<Event<u32>>) {
        let Some(sender) = self.senders.get_mut(&stream) else { return (Session(0), Vec::new()) };
        let events = (0..most).map_while(|_| sender.next(&self.wal)).collect();
        (sender.session, events)
    }

    pub(super) fn keepalive(&mut self, stream: StreamId, reply: bool) -> (Session, Event<u32>) {
        let (head, wal) = (self.head, &self.wal);
        let Some(sender) = self.senders.get_mut(&stream) else {
            return (Session(0), Event::Keepalive { wal_end: Position::default(), reply });
        };
        if sender.inside == 0 {
            let unsent = wal.get(sender.next).map(|transaction| Position(transaction.commit.0));
            sender.sent = sender.sent.max(unsent.unwrap_or(head));
        }
        (sender.session, Event::Keepalive { wal_end: sender.sent, reply })
    }

    fn close_copy(&mut self, table: TableId, attempt: Attempt) {
        self.senders.remove(&StreamId::Copy(table));
        let copies = format!("_{attempt}");
        self.slots.retain(|name, slot| !(slot.temporary && name.ends_with(&copies)));
    }

    /// Work takes effect.
    pub(super) fn perform(
        &mut self,
        work: &Work<u32>,
        choices: &mut Choices<'_>,
    ) -> Result<Answer, Fault> {
        Ok(match work {
            Work::Identify => Answer::Identified(ServerFacts {
                seen: seen(),
                version: 180_000,
                in_recovery: false,
                wal_level: "logical".to_owned(),
                copy_slot_risks: Vec::new(),
                idle_slot_timeout: false,
            }),
            Work::ListPublication => Answer::Publication(Some(self.listing())),
            Work::InspectSlot { slot } => Answer::Slot(self.report(slot, choices)),
            Work::ListSlots { prefix } => {
                let names = self.slots.keys().filter(|name| name.starts_with(prefix));
                Answer::Slots(names.filter_map(|name| self.slot(name)).collect())
            }
            Work::ReadTimelineHistory { .. } => Answer::History(Vec::new()),
            Work::CreateSlot { slot, .. } => Answer::Created(self.create(slot, false)?),
            Work::ReadBlockers { .. } => Answer::Blockers(Vec::new()),
            Work::ReadWalPosition => Answer::WalPosition(self.head.0),
            Work::DescribeTable { table } => Answer::Described(Some(Described {
                schema: schema(*table),
                missing: Vec::new(),
                position: self.head,
            })),
            Work::Monitor { slot } => {
                Answer::Monitored(MonitorFacts { wal_end: self.head.0, slot: self.slot(slot) })
            }
            Work::OpenStream { stream, session, slot, from } => {
                self.open(*stream, *session, slot, *from);
                Answer::Opened(seen())
            }
            Work::OpenSnapshot { slot, failover, .. } => {
                let slot = self.create(slot, !failover)?;
                Answer::Snapshot(SnapshotFacts { seen: seen(), slot })
            }
            Work::OpenReader { table, reader, .. } => Answer::Reader(ReaderFacts {
                seen: seen(),
                published: true,
                filter: None,
                heaps: if *reader == 0 { vec![heap(*table, choices)] } else { Vec::new() },
            }),
            Work::ReadSchema { table, .. } => {
                Answer::Schema(SchemaFacts { schema: schema(*table) })
            }
            Work::ReadRange { .. } => Answer::RangeRead(RangeFacts { rows: 0 }),
            Work::CloseStream { stream } => {
                self.senders.remove(stream);
                Answer::Done
            }
            Work::CloseCopy { table, attempt } => {
                self.close_copy(*table, *attempt);
                Answer::Done
            }
            Work::DropSlot { slot } => {
                self.slots.remove(slot);
                Answer::Done
            }
            Work::Save { .. }
            | Work::CheckOwner
            | Work::EnableFailover { .. }
            | Work::WriteHeartbeat { .. }
            | Work::CloseReaders { .. }
            | Work::Startup { .. }
            | Work::BeginCopy(_)
            | Work::Flush { .. }
            | Work::Shutdown => Answer::Done,
            Work::WriteRows(_) | Work::FinishCopy { .. } | Work::WriteChanges(_) => {
                Answer::Written(Durability::Durable)
            }
        })
    }

    fn open(&mut self, stream: StreamId, session: Session, slot: &str, from: Position) {
        // PG-05
        let confirmed = self.slots.get(slot).map_or(from, |slot| slot.confirmed);
        let start = from.max(confirmed);
        let next = self.wal.partition_point(|transaction| start.covers(transaction.commit));
        let announced = BTreeSet::new();
        let slot = slot.to_owned();
        let sender = Sender { session, slot, next, inside: 0, sent: start, announced };
        self.senders.insert(stream, sender);
    }

    fn create(&mut self, name: &str, temporary: bool) -> Result<CreatedSlot, Fault> {
        assert!(names::valid_slot(name), "{name}");
        if self.slots.contains_key(name) {
            let kind = FaultKind::Server { code: SqlState(*b"42710") };
            return Err(Fault::new(Origin::Source, kind, ""));
        }
        self.slots.insert(name.to_owned(), Slot { confirmed: self.head, temporary });
        let plugin = "pgoutput".to_owned();
        Ok(CreatedSlot { slot: name.to_owned(), plugin, consistent: self.head })
    }

    fn listing(&self) -> Listing {
        let tables = self.members.iter().map(|(&table, &membership)| ListedTable {
            table,
            namespace: "public".to_owned(),
            name: format!("t{table}"),
            membership,
        });
        let (publication, missing_actions) = (PUBLICATION, Vec::new());
        Listing { publication, missing_actions, tables: tables.collect(), position: self.head }
    }

    fn slot(&self, name: &str) -> Option<SlotFacts> {
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

    /// Sometimes somebody holds the slot, and rarely it is lost.
    fn report(&self, name: &str, choices: &mut Choices<'_>) -> SlotReport {
        let mut slot = self.slot(name);
        if let Some(slot) = &mut slot {
            match choices.below(32) {
                1..=3 => slot.active = Some(SlotHolder { pid: 1, application: "x".to_owned() }),
                4 => slot.wal_status = Some("lost".to_owned()),
                _ => (),
            }
        }
        SlotReport { seen: seen(), slot, wal_end: self.head.0, publication: Some(PUBLICATION) }
    }
}

impl Sender {
    fn next(&mut self, wal: &[Transaction]) -> Option<Event<u32>> {
        let Transaction { commit, end, bodies } = wal.get(self.next)?;
        let (commit, end) = (*commit, *end);
        if self.inside == 0 {
            self.inside = 1;
            return Some(Event::Begin { commit, time_us: 0 });
        }
        let Some(body) = bodies.get(self.inside - 1) else {
            self.next += 1;
            self.inside = 0;
            self.sent = end;
            return Some(Event::Commit { commit, end });
        };
        let tables = match body {
            Body::Row(table, ..) => core::slice::from_ref(table),
            Body::Truncate(tables) => tables,
            Body::Message => &[],
        };
        if let Some(&table) = tables.iter().find(|&table| !self.announced.contains(table)) {
            self.announced.insert(table);
            return Some(Event::Relation(Arc::new(relation(table))));
        }
        let messages = bodies[..self.inside - 1].iter().filter(|b| matches!(b, Body::Message));
        let ordinal = (self.inside - 1 - messages.count()) as u64;
        self.inside += 1;
        Some(match body {
            Body::Row(table, kind, bytes) => {
                Event::Row { table: *table, ordinal, kind: *kind, row: 0, bytes: *bytes }
            }
            Body::Truncate(tables) => {
                let flags = TruncateFlags::default();
                Event::Truncate { tables: tables.clone().into(), flags, ordinal }
            }
            Body::Message => Event::Message {
                transactional: true,
                lsn: commit.0,
                prefix: "note".into(),
                content: 0,
                bytes: 10,
            },
        })
    }
}

fn body(choices: &mut Choices<'_>) -> Body {
    let table = TableId(1 + choices.index(4) as u32);
    match choices.below(16) {
        0 => Body::Truncate(vec![table]),
        1 => Body::Truncate(vec![TableId(1), TableId(2)]),
        2 => Body::Message,
        3 => Body::Row(table, RowKind::Insert, 6 << 20),
        kind => Body::Row(table, KINDS[kind as usize % 3], 100),
    }
}

fn seen() -> SourceSeen {
    SourceSeen { system_id: "7".to_owned(), timeline: 1, database: "app".to_owned() }
}

fn schema(table: TableId) -> TableSchema {
    let column = Column {
        number: 1,
        name: "id".to_owned(),
        type_oid: 23,
        modifier: -1,
        not_null: true,
        default: None,
        key: true,
    };
    TableSchema {
        table,
        namespace: "public".to_owned(),
        name: format!("t{table}"),
        identity: ReplicaIdentity::Default,
        columns: vec![column],
        unpublished: Vec::new(),
        storage: None,
    }
}

fn relation(table: TableId) -> Relation {
    let TableSchema { namespace, name, identity, columns, .. } = schema(table);
    let columns = columns.into_iter().map(|Column { key, name, type_oid, modifier, .. }| {
        RelationColumn { key, name, type_oid, modifier }
    });
    Relation { table, namespace, name, identity, columns: columns.collect() }
}

/// One heap; rarely it was rewritten behind the snapshot (K-27).
fn heap(table: TableId, choices: &mut Choices<'_>) -> HeapFacts {
    let column = GuardColumn {
        number: 1,
        name: "id".to_owned(),
        type_oid: 23,
        modifier: -1,
        dropped: false,
    };
    HeapFacts {
        relation: table,
        filenode_in_snapshot: 1,
        filenode_now: if choices.below(8) == 1 { 2 } else { 1 },
        columns_in_snapshot: vec![column.clone()],
        columns_now: vec![column],
        bytes: 8_192,
        blocks: 1,
    }
}
