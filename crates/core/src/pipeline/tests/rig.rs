//! A pipeline whose surroundings answer everything at once unless a test keeps something back.

use std::collections::BTreeMap;
use std::sync::Arc;

use core::time::Duration;

use crate::batch::{Batch, ChangeBody, Declaration, DeliveryClass, Durability};
use crate::config::{Config, Limits};
use crate::effect::{Effect, Work};
use crate::event::{Event, RowKind};
use crate::fault::{Blame, DestinationClass, Fault, FaultKind, Origin};
use crate::ids::{Lane, OpId, Session, StreamId, TableId};
use crate::input::{Answer, Input, Request};
use crate::lsn::{CommitLsn, Lsn, Position};
use crate::notice::{Notice, Outcome};
use crate::pipeline::{Pipeline, Seed};
use crate::record::{Phase, Record};
use crate::schema::{Relation, ReplicaIdentity, SchemaSupport, TableSchema};
use crate::source::{
    CreatedSlot, HeapFacts, ListedTable, Listing, MonitorFacts, RangeFacts, ReaderFacts,
    SchemaFacts, ServerFacts, SlotFacts, SlotReport, SnapshotFacts, SourceSeen,
};
use crate::time::Instant;

pub(super) const A: TableId = TableId(1);
pub(super) const B: TableId = TableId(2);
pub(super) const C: TableId = TableId(3);

pub(super) struct Rig {
    pub(super) pipeline: Pipeline<u32>,
    pub(super) now: Instant,
    /// Work that is not completed yet.
    pub(super) work: BTreeMap<OpId, Work<u32>>,
    pub(super) notices: Vec<Notice>,
    /// Batches offered to the destination, by lane.
    pub(super) offered: Vec<Arc<Batch<u32>>>,
    /// Streams that were asked for a keepalive.
    pub(super) asked: Vec<StreamId>,
    pub(super) ended: Option<Outcome>,
    /// What the publication lists: tables with their membership; `None` without a publication.
    pub(super) tables: Option<BTreeMap<TableId, u32>>,
    /// End of the server's WAL.
    pub(super) head: u64,
    /// What a write is answered with.
    pub(super) durability: Durability,
    pub(super) saved: Option<Arc<Record>>,
    sessions: BTreeMap<StreamId, Session>,
    has_slot: bool,
}

pub(super) fn at(lsn: u64) -> Position {
    Position(Lsn(lsn))
}

pub(super) fn destination(class: DestinationClass, blame: Blame) -> Fault {
    let kind = FaultKind::Destination { class };
    Fault { blame, ..Fault::found(Origin::Destination, kind) }
}

pub(super) const TRANSIENT: DestinationClass = DestinationClass::Transient { retry_after: None };

pub(super) fn is_main_write(work: &Work<u32>) -> bool {
    matches!(work, Work::WriteChanges(batch) if batch.lane == Lane::Main)
}

pub(super) fn is_main_flush(work: &Work<u32>) -> bool {
    matches!(work, Work::Flush { lane: Lane::Main })
}

pub(super) fn is_listing(work: &Work<u32>) -> bool {
    matches!(work, Work::ListPublication)
}

pub(super) fn is_save(work: &Work<u32>) -> bool {
    matches!(work, Work::Save { .. })
}

/// Tables of the changes of a batch, one for each change.
pub(super) fn tables_of(batch: &Batch<u32>) -> Vec<TableId> {
    let table = |index: u32| batch.tables[index as usize].table;
    batch
        .changes
        .iter()
        .filter_map(|change| match change.body {
            ChangeBody::Row { table: index, .. }
            | ChangeBody::Truncate { table: index, .. }
            | ChangeBody::Schema { table: index, .. } => Some(table(index)),
            ChangeBody::Message { .. } => None,
        })
        .collect()
}

impl Rig {
    /// A run that streams, with these tables Ready, all at 100.
    pub(super) fn streaming(tables: &[TableId], edit: impl FnOnce(&mut Limits)) -> Self {
        let mut rig = Self::new(tables, edit);
        rig.settle();
        for &table in tables {
            assert!(matches!(rig.phase(table), Some(Phase::Ready { .. })));
        }
        rig.notices.clear();
        rig.asked.clear();
        rig
    }

    /// A run that has asked who the source is.
    pub(super) fn new(tables: &[TableId], edit: impl FnOnce(&mut Limits)) -> Self {
        let mut limits = Limits { batch_ms: 0, ..Limits::default() };
        edit(&mut limits);
        let config = Config {
            publication: "app".to_owned(),
            database: "app".to_owned(),
            destination: Declaration {
                id: "null:".to_owned(),
                class: DeliveryClass::ExactlyOnce,
                lanes_max: 8,
                copy_in_flight_max: 1,
                wants_messages: false,
                partial_rows: true,
                schema_changes: SchemaSupport::NONE,
            },
            until: None,
            limits,
        };
        let pipeline = Pipeline::new(config, None, Seed([3; 32]), Instant(0)).unwrap();
        let mut rig = Self {
            pipeline,
            now: Instant(0),
            work: BTreeMap::new(),
            notices: Vec::new(),
            offered: Vec::new(),
            asked: Vec::new(),
            ended: None,
            tables: Some(tables.iter().map(|&table| (table, 50 + table.0)).collect()),
            head: 100,
            durability: Durability::Durable,
            saved: None,
            sessions: BTreeMap::new(),
            has_slot: false,
        };
        rig.drain();
        rig
    }

    /// A run in which the table replays, from 100 on, and main is at 121; nothing is in flight. The
    /// other tables are Ready.
    pub(super) fn replaying(tables: &[TableId], edit: impl FnOnce(&mut Limits)) -> Self {
        let mut rig = Self::new(tables, edit);
        rig.settle_but(|work| matches!(work, Work::FinishCopy { table: A, .. }));
        rig.commit(120, &[A]);
        rig.settle();
        assert_eq!(rig.pipeline.view().tables[0].copy.unwrap().step, "replaying");
        rig
    }

    fn drain(&mut self) {
        while let Some(effect) = self.pipeline.poll_effect() {
            match effect {
                Effect::Start { op, work, .. } => {
                    if let Work::WriteChanges(batch) = &work {
                        self.offered.push(Arc::clone(batch));
                    }
                    self.work.insert(op, work);
                }
                Effect::Cancel { .. } => (),
                Effect::Confirm { stream, ask_reply, .. } => {
                    if ask_reply {
                        self.asked.push(stream);
                    }
                }
                Effect::Report(notice) => self.notices.push(notice),
                Effect::Ended(outcome) => self.ended = Some(outcome),
            }
        }
    }

    pub(super) fn handle(&mut self, input: Input<u32>) {
        self.pipeline.handle(input, self.now).unwrap();
        self.drain();
    }

    pub(super) fn request(&mut self, request: Request) {
        self.handle(Input::Request(request));
    }

    pub(super) fn wait(&mut self, ms: u64) {
        let end = self.now.after(Duration::from_millis(ms));
        while let Some((due, _)) = self.pipeline.poll_timeout().filter(|(due, _)| *due <= end) {
            self.now = self.now.max(due);
            self.pipeline.handle_timeout(self.now);
            self.drain();
        }
        self.now = end;
        self.pipeline.handle_timeout(end);
        self.drain();
    }

    /// As `wait`, and everything is answered meanwhile.
    pub(super) fn live(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(10) {
            self.wait(10);
            self.settle();
        }
    }

    pub(super) fn find(&self, is: impl Fn(&Work<u32>) -> bool) -> Option<OpId> {
        self.work.iter().find(|(_, work)| is(work)).map(|(&op, _)| op)
    }

    pub(super) fn settle(&mut self) {
        self.settle_but(|_| false);
    }

    /// Answers everything but the work for which `keep` holds.
    pub(super) fn settle_but(&mut self, keep: impl Fn(&Work<u32>) -> bool) {
        while let Some(op) = self.find(|work| !keep(work)) {
            self.finish_op(op);
        }
    }

    pub(super) fn finish(&mut self, is: impl Fn(&Work<u32>) -> bool) {
        let op = self.find(is).unwrap();
        self.finish_op(op);
    }

    pub(super) fn fail(&mut self, is: impl Fn(&Work<u32>) -> bool, fault: Fault) {
        let op = self.find(is).unwrap();
        self.work.remove(&op);
        self.handle(Input::Completed { op, result: Err(fault) });
    }

    fn finish_op(&mut self, op: OpId) {
        let work = self.work.remove(&op).unwrap();
        let answer = self.answer(&work);
        self.handle(Input::Completed { op, result: Ok(answer) });
    }

    fn answer(&mut self, work: &Work<u32>) -> Answer {
        match work {
            Work::Save { record, .. } => self.saved = Some(Arc::clone(record)),
            Work::Identify => {
                return Answer::Identified(ServerFacts {
                    seen: seen(),
                    version: 180_000,
                    in_recovery: false,
                    wal_level: "logical".to_owned(),
                    copy_slot_risks: Vec::new(),
                    idle_slot_timeout: false,
                });
            }
            Work::ListPublication => return Answer::Publication(self.listing()),
            Work::InspectSlot { slot } => {
                return Answer::Slot(SlotReport {
                    seen: seen(),
                    slot: self.has_slot.then(|| slot_facts(slot)),
                    wal_end: Lsn(self.head),
                    publication: self.tables.as_ref().map(|_| 9),
                });
            }
            Work::ListSlots { .. } => return Answer::Slots(Vec::new()),
            Work::CreateSlot { slot, .. } => {
                self.has_slot = true;
                return Answer::Created(self.created(slot));
            }
            Work::OpenStream { stream, session, .. } => {
                self.sessions.insert(*stream, *session);
                return Answer::Opened(seen());
            }
            Work::OpenSnapshot { slot, .. } => {
                return Answer::Snapshot(SnapshotFacts { seen: seen(), slot: self.created(slot) });
            }
            Work::OpenReader { table, .. } => return Answer::Reader(reader_facts(*table)),
            Work::ReadSchema { table, .. } => {
                return Answer::Schema(SchemaFacts { schema: schema(*table) });
            }
            Work::ReadRange { .. } => return Answer::RangeRead(RangeFacts { rows: 0 }),
            Work::WriteRows(_) | Work::FinishCopy { .. } => {
                return Answer::Written(Durability::Durable);
            }
            Work::WriteChanges(_) => return Answer::Written(self.durability),
            Work::ReadWalPosition => return Answer::WalPosition(Lsn(self.head)),
            Work::Monitor { slot } => {
                let (wal_end, slot) = (Lsn(self.head), Some(slot_facts(slot)));
                return Answer::Monitored(MonitorFacts { wal_end, slot });
            }
            Work::ReadTimelineHistory { .. } => return Answer::History(Vec::new()),
            Work::DescribeTable { .. } => return Answer::Described(None),
            Work::ReadBlockers { .. } => return Answer::Blockers(Vec::new()),
            Work::CheckOwner
            | Work::EnableFailover { .. }
            | Work::DropSlot { .. }
            | Work::WriteHeartbeat { .. }
            | Work::CloseStream { .. }
            | Work::CloseReaders { .. }
            | Work::CloseCopy { .. }
            | Work::Startup { .. }
            | Work::BeginCopy(_)
            | Work::Flush { .. }
            | Work::Shutdown => (),
        }
        Answer::Done
    }

    fn listing(&self) -> Option<Listing> {
        let listed = |(&table, &membership): (&TableId, &u32)| ListedTable {
            table,
            namespace: "public".to_owned(),
            name: format!("t{table}"),
            membership,
        };
        self.tables.as_ref().map(|tables| Listing {
            publication: 9,
            missing_actions: Vec::new(),
            tables: tables.iter().map(listed).collect(),
            position: at(self.head),
        })
    }

    fn created(&self, slot: &str) -> CreatedSlot {
        CreatedSlot {
            slot: slot.to_owned(),
            plugin: "pgoutput".to_owned(),
            consistent: at(self.head),
        }
    }

    /// A whole transaction on main, one row for each table; its end is one past its commit.
    pub(super) fn commit(&mut self, commit: u64, tables: &[TableId]) {
        let events = transaction(commit, tables);
        self.head = self.head.max(commit + 1);
        self.stream(StreamId::Main, events);
    }

    pub(super) fn stream(&mut self, stream: StreamId, events: Vec<Event<u32>>) {
        let session = self.sessions[&stream];
        self.handle(Input::Stream { stream, session, events });
    }

    pub(super) fn keepalive(&mut self, stream: StreamId, lsn: u64) {
        self.head = self.head.max(lsn);
        self.stream(stream, vec![Event::Keepalive { wal_end: at(lsn), reply: false }]);
    }

    pub(super) fn session(&self, stream: StreamId) -> Session {
        self.sessions[&stream]
    }

    pub(super) fn phase(&self, table: TableId) -> Option<Phase> {
        let view = self.pipeline.view();
        view.tables.into_iter().find(|found| found.table == table).map(|found| found.phase)
    }

    pub(super) fn dispatched(&self) -> Position {
        self.pipeline.view().positions.dispatched
    }

    pub(super) fn has_noticed(&self, is: impl Fn(&Notice) -> bool) -> bool {
        self.notices.iter().any(is)
    }

    /// The kind with which the run failed.
    pub(super) fn failed(&self) -> Option<&FaultKind> {
        match &self.ended {
            Some(Outcome::Failed { fault, .. }) => Some(&fault.kind),
            Some(Outcome::Stopped { .. }) | None => None,
        }
    }
}

pub(super) fn transaction(commit: u64, tables: &[TableId]) -> Vec<Event<u32>> {
    let end = at(commit + 1);
    let commit = CommitLsn(Lsn(commit));
    let mut events = vec![Event::Begin { commit, time_us: 0 }];
    events.extend((0..).zip(tables).map(|(ordinal, &table)| row(table, ordinal)));
    events.push(Event::Commit { commit, end });
    events
}

pub(super) fn row(table: TableId, ordinal: u64) -> Event<u32> {
    Event::Row { table, ordinal, kind: RowKind::Insert, row: 7, bytes: 10 }
}

pub(super) fn relation(table: TableId) -> Event<u32> {
    Event::Relation(Arc::new(Relation {
        table,
        namespace: "public".to_owned(),
        name: format!("t{table}"),
        identity: ReplicaIdentity::Default,
        columns: Vec::new(),
    }))
}

fn seen() -> SourceSeen {
    SourceSeen { system_id: "7".to_owned(), timeline: 1, database: "app".to_owned() }
}

fn slot_facts(name: &str) -> SlotFacts {
    SlotFacts {
        name: name.to_owned(),
        plugin: "pgoutput".to_owned(),
        database: "app".to_owned(),
        logical: true,
        temporary: false,
        active: None,
        restart_lsn: Some(Lsn(10)),
        confirmed_flush_lsn: Some(Lsn(10)),
        wal_status: Some("reserved".to_owned()),
        safe_wal_size: None,
        failover: false,
        invalidation_reason: None,
    }
}

fn schema(table: TableId) -> TableSchema {
    TableSchema {
        table,
        namespace: "public".to_owned(),
        name: format!("t{table}"),
        identity: ReplicaIdentity::Default,
        columns: Vec::new(),
        unpublished: Vec::new(),
        storage: None,
    }
}

fn reader_facts(relation: TableId) -> ReaderFacts {
    let heap = HeapFacts {
        relation,
        filenode_in_snapshot: 1,
        filenode_now: 1,
        columns_in_snapshot: Vec::new(),
        columns_now: Vec::new(),
        bytes: 0,
        blocks: 0,
    };
    ReaderFacts { seen: seen(), published: true, filter: None, heaps: vec![heap] }
}
