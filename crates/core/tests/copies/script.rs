//! A driver that a test plays by hand: work waits until the test says how it ends.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use walferry_core::batch::{Declaration, DeliveryClass, Durability};
use walferry_core::config::{Config, Limits};
use walferry_core::effect::{Effect, Work};
use walferry_core::event::{Event, RowKind};
use walferry_core::fault::{DestinationClass, Fault, FaultKind, Origin};
use walferry_core::ids::{OpId, Session, StreamId, TableId};
use walferry_core::input::{Answer, Input};
use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::notice::{Notice, Outcome};
use walferry_core::record::{Phase, Record};
use walferry_core::schema::TableSchema;
use walferry_core::schema::{Column, Relation, RelationColumn, ReplicaIdentity, SchemaSupport};
use walferry_core::source::{
    CreatedSlot, Described, HeapFacts, ListedTable, Listing, MonitorFacts, RangeFacts, ReaderFacts,
    SchemaFacts, ServerFacts, SlotFacts, SlotReport, SnapshotFacts, SourceSeen, TimelineSwitch,
};
use walferry_core::time::Instant;
use walferry_core::{Pipeline, Seed};

pub(crate) const T: TableId = TableId(101);
pub(crate) const U: TableId = TableId(102);

/// One process, its source and what came out of it.
pub(crate) struct Script {
    pub(crate) pipeline: Pipeline<u32>,
    pub(crate) now: Instant,
    pub(crate) working: VecDeque<(OpId, Work<u32>)>,
    /// Everything that was ever asked for, in order.
    pub(crate) started: Vec<Work<u32>>,
    pub(crate) cancelled: BTreeSet<OpId>,
    pub(crate) notices: Vec<Notice>,
    pub(crate) confirmed: Vec<(StreamId, Position, bool)>,
    pub(crate) ended: Option<Outcome>,
    /// What a completed save has stored last.
    pub(crate) saved: Option<Record>,
    /// End of the server's WAL, and where every new slot begins.
    pub(crate) head: u64,
    pub(crate) tables: Vec<TableId>,
    /// Size of every heap.
    pub(crate) heap: (u64, u32),
    pub(crate) idle_slot_timeout: bool,
    /// Version of the server, and the timeline it is on.
    pub(crate) version: u32,
    pub(crate) timeline: u32,
    pub(crate) history: Vec<TimelineSwitch>,
    pub(crate) slots: BTreeMap<String, SlotFacts>,
    sessions: BTreeMap<StreamId, Session>,
    rows: BTreeMap<OpId, u64>,
}

pub(crate) fn at(lsn: u64) -> Position {
    Position(Lsn(lsn))
}

fn seen(timeline: u32) -> SourceSeen {
    SourceSeen { system_id: "7".to_owned(), timeline, database: "app".to_owned() }
}

pub(crate) fn transient() -> Fault {
    let class = DestinationClass::Transient { retry_after: None };
    Fault::new(Origin::Destination, FaultKind::Destination { class }, "")
}

pub(crate) fn source_fault(kind: FaultKind) -> Fault {
    Fault::new(Origin::Source, kind, "")
}

pub(crate) fn slot(name: &str) -> SlotFacts {
    SlotFacts {
        name: name.to_owned(),
        plugin: "pgoutput".to_owned(),
        database: "app".to_owned(),
        logical: true,
        temporary: false,
        active: None,
        restart_lsn: Some(Lsn(1)),
        confirmed_flush_lsn: Some(Lsn(1)),
        wal_status: Some("reserved".to_owned()),
        safe_wal_size: None,
        failover: true,
        invalidation_reason: None,
    }
}

fn columns() -> Vec<(&'static str, bool)> {
    vec![("id", true), ("note", false)]
}

pub(crate) fn schema(table: TableId) -> TableSchema {
    let column = |(number, (name, key)): (i16, (&str, bool))| Column {
        number,
        name: name.to_owned(),
        type_oid: 23,
        modifier: -1,
        not_null: key,
        default: None,
        key,
    };
    TableSchema {
        table,
        namespace: "public".to_owned(),
        name: format!("t{table}"),
        identity: ReplicaIdentity::Default,
        columns: (1..).zip(columns()).map(column).collect(),
        unpublished: Vec::new(),
        storage: None,
    }
}

pub(crate) fn relation(table: TableId) -> Event<u32> {
    let column = |(name, key): (&str, bool)| RelationColumn {
        key,
        name: name.to_owned(),
        type_oid: 23,
        modifier: -1,
    };
    Event::Relation(std::sync::Arc::new(Relation {
        table,
        namespace: "public".to_owned(),
        name: format!("t{table}"),
        identity: ReplicaIdentity::Default,
        columns: columns().into_iter().map(column).collect(),
    }))
}

/// A transaction of one row.
pub(crate) fn transaction(commit: u64, table: TableId) -> Vec<Event<u32>> {
    let (begin, end) = (CommitLsn(Lsn(commit)), at(commit + 2));
    vec![
        Event::Begin { commit: begin, time_us: 0 },
        relation(table),
        Event::Row { table, ordinal: 0, kind: RowKind::Insert, row: 0, bytes: 10 },
        Event::Commit { commit: begin, end },
    ]
}

impl Script {
    pub(crate) fn new(edit: impl FnOnce(&mut Config)) -> Self {
        Self::resumed(None, edit)
    }

    pub(crate) fn resumed(record: Option<Record>, edit: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config {
            publication: "app".to_owned(),
            database: "app".to_owned(),
            destination: Declaration {
                id: "script:".to_owned(),
                class: DeliveryClass::ExactlyOnce,
                lanes_max: 8,
                copy_in_flight_max: 4,
                wants_messages: false,
                partial_rows: true,
                schema_changes: SchemaSupport::NONE,
            },
            until: None,
            limits: Limits { batch_ms: 0, ..Limits::default() },
        };
        edit(&mut config);
        let now = Instant(0);
        let pipeline = Pipeline::new(config, record.clone(), Seed([3; 32]), now).expect("valid");
        let mut slots = BTreeMap::new();
        if let Some(record) = &record {
            let name = &record.identity.slot;
            slots.insert(name.clone(), slot(name));
        }
        let mut script = Self {
            pipeline,
            now,
            working: VecDeque::new(),
            started: Vec::new(),
            cancelled: BTreeSet::new(),
            notices: Vec::new(),
            confirmed: Vec::new(),
            ended: None,
            saved: record,
            head: 100,
            tables: vec![T],
            heap: (8_192, 1),
            idle_slot_timeout: false,
            version: 180_000,
            timeline: 1,
            history: Vec::new(),
            slots,
            sessions: BTreeMap::new(),
            rows: BTreeMap::new(),
        };
        script.drain();
        script
    }

    fn drain(&mut self) {
        while let Some(effect) = self.pipeline.poll_effect() {
            match effect {
                Effect::Start { op, work, .. } => {
                    if let Work::OpenStream { stream, session, .. } = &work {
                        self.sessions.insert(*stream, *session);
                    }
                    self.started.push(work.clone());
                    self.working.push_back((op, work));
                }
                Effect::Cancel { op } => {
                    self.cancelled.insert(op);
                }
                Effect::Confirm { stream, position, ask_reply, .. } => {
                    self.confirmed.push((stream, position, ask_reply));
                }
                Effect::Report(notice) => self.notices.push(notice),
                Effect::Ended(outcome) => self.ended = Some(outcome),
            }
        }
    }

    pub(crate) fn input(&mut self, input: Input<u32>) {
        self.pipeline.handle(input, self.now).expect("the script keeps the contract");
        self.drain();
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now = self.now.after(by);
        self.pipeline.handle_timeout(self.now);
        self.drain();
    }

    /// Lets time pass while the main stream shows signs of life.
    pub(crate) fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.advance(Duration::from_secs(1));
            self.deliver(StreamId::Main, Vec::new());
        }
    }

    pub(crate) fn deliver(&mut self, stream: StreamId, events: Vec<Event<u32>>) {
        let session = self.sessions[&stream];
        self.input(Input::Stream { stream, session, events });
    }

    pub(crate) fn end_stream(&mut self, stream: StreamId, fault: Fault) {
        let session = self.sessions[&stream];
        self.input(Input::StreamEnded { stream, session, fault });
    }

    /// Rows of a range that is being read.
    pub(crate) fn rows(&mut self, op: OpId, block: u32, bytes: u64) {
        *self.rows.entry(op).or_default() += 1;
        self.input(Input::CopyRows { op, block, rows: 1, bytes });
    }

    pub(crate) fn find(&self, is: impl Fn(&Work<u32>) -> bool) -> Vec<OpId> {
        self.working.iter().filter(|(_, work)| is(work)).map(|(op, _)| *op).collect()
    }

    pub(crate) fn has(&self, is: impl Fn(&Work<u32>) -> bool) -> bool {
        !self.find(is).is_empty()
    }

    pub(crate) fn work(&self, op: OpId) -> Work<u32> {
        let found = self.working.iter().find(|(other, _)| *other == op);
        found.map(|(_, work)| work.clone()).expect("work in flight")
    }

    pub(crate) fn complete(&mut self, op: OpId, result: Result<Answer, Fault>) {
        let work = self.work(op);
        self.working.retain(|(other, _)| *other != op);
        if result.is_ok() {
            self.take_effect(&work);
        }
        self.input(Input::Completed { op, result });
    }

    fn take_effect(&mut self, work: &Work<u32>) {
        match work {
            Work::Save { record, .. } => self.saved = Some(Record::clone(record)),
            Work::CreateSlot { slot: name, .. } => {
                self.slots.insert(name.clone(), slot(name));
            }
            Work::OpenSnapshot { slot: name, failover: true, .. } => {
                self.slots.insert(name.clone(), slot(name));
            }
            Work::DropSlot { slot } => {
                self.slots.remove(slot);
            }
            Work::EnableFailover { slot } => {
                if let Some(facts) = self.slots.get_mut(slot) {
                    facts.failover = true;
                }
            }
            _ => {}
        }
    }

    pub(crate) fn fail(&mut self, op: OpId, fault: Fault) {
        self.complete(op, Err(fault));
    }

    /// Completes an operation as the source and the sink do when nothing is wrong.
    pub(crate) fn perform(&mut self, op: OpId) {
        let work = self.work(op);
        let cancelled = self.cancelled.contains(&op);
        let result = match work {
            Work::CloseCopy { .. } | Work::CloseStream { .. } | Work::DropSlot { .. } => {
                Ok(self.answer(op, &work))
            }
            _ if cancelled => Err(source_fault(FaultKind::Stopped)),
            _ => Ok(self.answer(op, &work)),
        };
        self.complete(op, result);
    }

    fn answer(&self, op: OpId, work: &Work<u32>) -> Answer {
        let made = |slot: &str| CreatedSlot {
            slot: slot.to_owned(),
            plugin: "pgoutput".to_owned(),
            consistent: at(self.head),
        };
        match work {
            Work::Identify => Answer::Identified(ServerFacts {
                seen: seen(self.timeline),
                version: self.version,
                in_recovery: false,
                wal_level: "logical".to_owned(),
                copy_slot_risks: Vec::new(),
                idle_slot_timeout: self.idle_slot_timeout,
            }),
            Work::ListPublication => Answer::Publication(Some(self.listing())),
            Work::InspectSlot { slot } => Answer::Slot(SlotReport {
                seen: seen(self.timeline),
                slot: self.slots.get(slot).cloned(),
                wal_end: Lsn(self.head),
                publication: Some(1),
            }),
            Work::ListSlots { prefix } => {
                let ours = self.slots.values().filter(|slot| slot.name.starts_with(prefix));
                Answer::Slots(ours.cloned().collect())
            }
            Work::CreateSlot { slot, .. } => Answer::Created(made(slot)),
            Work::ReadBlockers { .. } => Answer::Blockers(Vec::new()),
            Work::ReadTimelineHistory { .. } => Answer::History(self.history.clone()),
            Work::DescribeTable { table } => Answer::Described(Some(Described {
                schema: schema(*table),
                missing: Vec::new(),
                position: at(self.head),
            })),
            Work::ReadWalPosition => Answer::WalPosition(Lsn(self.head)),
            Work::Monitor { slot } => Answer::Monitored(MonitorFacts {
                wal_end: Lsn(self.head),
                slot: self.slots.get(slot).cloned(),
            }),
            Work::OpenStream { .. } => Answer::Opened(seen(self.timeline)),
            Work::OpenSnapshot { slot, .. } => {
                Answer::Snapshot(SnapshotFacts { seen: seen(self.timeline), slot: made(slot) })
            }
            Work::OpenReader { table, reader, .. } => Answer::Reader(self.reader(*table, *reader)),
            Work::ReadSchema { table, .. } => {
                Answer::Schema(SchemaFacts { schema: schema(*table) })
            }
            Work::ReadRange { .. } => {
                Answer::RangeRead(RangeFacts { rows: self.rows.get(&op).copied().unwrap_or(0) })
            }
            Work::WriteRows(_) | Work::FinishCopy { .. } | Work::WriteChanges(_) => {
                Answer::Written(Durability::Durable)
            }
            Work::Save { .. }
            | Work::CheckOwner
            | Work::EnableFailover { .. }
            | Work::DropSlot { .. }
            | Work::WriteHeartbeat { .. }
            | Work::CloseStream { .. }
            | Work::CloseReaders { .. }
            | Work::CloseCopy { .. }
            | Work::Startup { .. }
            | Work::BeginCopy(_)
            | Work::Flush { .. }
            | Work::Shutdown => Answer::Done,
        }
    }

    fn listing(&self) -> Listing {
        let table = |&table: &TableId| ListedTable {
            table,
            namespace: "public".to_owned(),
            name: format!("t{table}"),
            membership: table.0,
        };
        Listing {
            publication: 1,
            missing_actions: Vec::new(),
            tables: self.tables.iter().map(table).collect(),
            position: at(self.head),
        }
    }

    fn reader(&self, table: TableId, reader: u32) -> ReaderFacts {
        let (bytes, blocks) = self.heap;
        let heap = HeapFacts {
            relation: table,
            filenode_in_snapshot: 1,
            filenode_now: 1,
            columns_in_snapshot: Vec::new(),
            columns_now: Vec::new(),
            bytes,
            blocks,
        };
        let heaps = if reader == 0 { vec![heap] } else { Vec::new() };
        ReaderFacts { seen: seen(self.timeline), published: true, filter: None, heaps }
    }

    /// Completes the oldest work, again and again, until work of a kind is in flight.
    pub(crate) fn until(&mut self, is: impl Fn(&Work<u32>) -> bool) -> OpId {
        for _ in 0..500 {
            if let Some(op) = self.find(&is).first() {
                return *op;
            }
            let Some((op, _)) = self.working.front() else { break };
            self.perform(*op);
        }
        panic!("never came: {:?}", self.working);
    }

    /// Completes everything.
    pub(crate) fn settle(&mut self) {
        for _ in 0..500 {
            let Some((op, _)) = self.working.front() else { return };
            self.perform(*op);
        }
        panic!("never calm: {:?}", self.working);
    }

    pub(crate) fn phase(&self, table: TableId) -> Phase {
        let view = self.pipeline.view();
        let found = view.tables.into_iter().find(|t| t.table == table);
        found.map(|t| t.phase).expect("a table of the record")
    }

    /// The name of the main slot.
    pub(crate) fn main_slot(&self) -> String {
        self.record().identity.slot.clone()
    }

    /// The record that a crash would find.
    pub(crate) fn record(&self) -> &Record {
        self.saved.as_ref().expect("a saved record")
    }

    /// The kind with which the run failed.
    pub(crate) fn failed(&self) -> Option<&FaultKind> {
        match &self.ended {
            Some(Outcome::Failed { fault, .. }) => Some(&fault.kind),
            Some(Outcome::Stopped { .. }) | None => None,
        }
    }

    /// Whether work of a kind was ever asked for.
    pub(crate) fn asked(&self, is: impl Fn(&Work<u32>) -> bool) -> bool {
        self.started.iter().any(is)
    }

    /// Whether any notice is of a kind.
    pub(crate) fn told(&self, is: impl Fn(&Notice) -> bool) -> bool {
        self.notices.iter().any(is)
    }
}

pub(crate) fn is_save(work: &Work<u32>) -> bool {
    matches!(work, Work::Save { .. })
}

pub(crate) fn is_range(work: &Work<u32>) -> bool {
    matches!(work, Work::ReadRange { .. })
}

pub(crate) fn is_rows(work: &Work<u32>) -> bool {
    matches!(work, Work::WriteRows(_))
}
