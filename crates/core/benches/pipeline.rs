//! What the core costs per change, from `handle(Stream)` over dispatch and `WriteChanges` to
//! `Written`, save and confirmation. Budget: 100 ns.
//!
//! `cargo bench -p walferry-core --bench pipeline`; divan's item rate is changes per second, and what
//! it says of allocations is for one input of 1,000 changes: a few for each transaction and batch,
//! none for a change.

use std::cell::RefCell;
use std::sync::Arc;

use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher};
use walferry_core::batch::{Declaration, DeliveryClass, Durability};
use walferry_core::config::{Config, Limits};
use walferry_core::effect::{Effect, Work};
use walferry_core::event::{Event, RowKind};
use walferry_core::ids::{OpId, Session, StreamId, TableId};
use walferry_core::input::{Answer, Input};
use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::schema::{
    Column, Relation, RelationColumn, ReplicaIdentity, SchemaSupport, TableSchema,
};
use walferry_core::source::{
    CreatedSlot, HeapFacts, ListedTable, Listing, RangeFacts, ReaderFacts, SchemaFacts,
    ServerFacts, SlotFacts, SlotReport, SnapshotFacts, SourceSeen,
};
use walferry_core::time::Instant;
use walferry_core::{Pipeline, Seed};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

/// Changes of one input: about what a reader hands over at once.
const CHANGES: u64 = 1_000;
const TABLES: u32 = 4;
const ROW_BYTES: u32 = 100;

fn main() {
    divan::main();
}

/// A pipeline whose every operation succeeds at once.
struct Driver {
    pipeline: Pipeline<u64>,
    session: Session,
    /// End of the WAL made so far.
    end: u64,
    seen: SourceSeen,
}

impl Driver {
    /// Streaming, all tables Ready.
    fn ready() -> Self {
        let config = Config {
            publication: "app".to_owned(),
            database: "app".to_owned(),
            destination: Declaration {
                id: "null:".to_owned(),
                class: DeliveryClass::Append,
                lanes_max: 1,
                copy_in_flight_max: 1,
                wants_messages: false,
                partial_rows: true,
                schema_changes: SchemaSupport::NONE,
            },
            until: None,
            limits: Limits { batch_ms: 0, ..Limits::default() },
        };
        let Ok(pipeline) = Pipeline::new(config, None, Seed([1; 32]), Instant(0)) else {
            panic!("the configuration is valid");
        };
        let seen = SourceSeen { system_id: "1".into(), timeline: 1, database: "app".into() };
        let mut driver = Self { pipeline, session: Session(0), end: 16, seen };
        driver.drain();
        driver.stream((0..TABLES).map(|n| Event::Relation(relation(TableId(n + 1)))).collect());
        driver
    }

    fn stream(&mut self, events: Vec<Event<u64>>) {
        let session = self.session;
        self.input(Input::Stream { stream: StreamId::Main, session, events });
        self.drain();
    }

    fn input(&mut self, input: Input<u64>) {
        if let Err(violation) = self.pipeline.handle(input, Instant(0)) {
            panic!("{violation}");
        }
    }

    fn drain(&mut self) {
        while let Some(effect) = self.pipeline.poll_effect() {
            if let Effect::Start { op, work, .. } = effect {
                self.perform(op, &work);
            }
        }
    }

    fn perform(&mut self, op: OpId, work: &Work<u64>) {
        if let Work::OpenStream { session, .. } = work {
            self.session = *session;
        }
        let result = Ok(self.answer(work));
        self.input(Input::Completed { op, result });
    }

    fn answer(&self, work: &Work<u64>) -> Answer {
        let seen = self.seen.clone();
        let end = Position(Lsn(self.end));
        let made = |slot: &str| CreatedSlot {
            slot: slot.to_owned(),
            plugin: "pgoutput".to_owned(),
            consistent: end,
        };
        match work {
            Work::WriteChanges(_) | Work::WriteRows(_) | Work::FinishCopy { .. } => {
                Answer::Written(Durability::Durable)
            }
            Work::Identify => Answer::Identified(ServerFacts {
                seen,
                version: 180_000,
                in_recovery: false,
                wal_level: "logical".to_owned(),
                copy_slot_risks: Vec::new(),
                idle_slot_timeout: false,
            }),
            Work::ListPublication => Answer::Publication(Some(listing(end))),
            Work::ListSlots { .. } => Answer::Slots(Vec::new()),
            Work::InspectSlot { slot } => Answer::Slot(SlotReport {
                seen,
                slot: self.slot_is_made().then(|| slot_facts(slot)),
                wal_end: end.0,
                publication: Some(1),
            }),
            Work::CreateSlot { slot, .. } => Answer::Created(made(slot)),
            Work::OpenStream { .. } => Answer::Opened(seen),
            Work::OpenSnapshot { slot, .. } => {
                Answer::Snapshot(SnapshotFacts { seen, slot: made(slot) })
            }
            Work::OpenReader { table, .. } => Answer::Reader(reader(seen, *table)),
            Work::ReadSchema { table, .. } => {
                Answer::Schema(SchemaFacts { schema: schema(*table) })
            }
            Work::ReadRange { .. } => Answer::RangeRead(RangeFacts { rows: 0 }),
            Work::Save { .. }
            | Work::DropSlot { .. }
            | Work::ReadBlockers { .. }
            | Work::ReadWalPosition
            | Work::CheckOwner
            | Work::ReadTimelineHistory { .. }
            | Work::EnableFailover { .. }
            | Work::DescribeTable { .. }
            | Work::WriteHeartbeat { .. }
            | Work::Monitor { .. }
            | Work::CloseStream { .. }
            | Work::CloseReaders { .. }
            | Work::CloseCopy { .. }
            | Work::Startup { .. }
            | Work::BeginCopy(_)
            | Work::Flush { .. }
            | Work::Shutdown => Answer::Done,
        }
    }

    fn slot_is_made(&self) -> bool {
        self.pipeline.view().positions.checkpoint > Position::default()
    }

    /// Transactions of `size` changes each, `CHANGES` in all, over the first `tables` tables.
    fn load(&mut self, size: u64, tables: u32) -> Vec<Event<u64>> {
        let mut events = Vec::new();
        for _ in 0..CHANGES / size {
            let commit = CommitLsn(Lsn(self.end));
            self.end += 10;
            events.push(Event::Begin { commit, time_us: 0 });
            for ordinal in 0..size {
                events.push(Event::Row {
                    table: TableId(1 + u32::try_from(ordinal).unwrap_or(0) % tables),
                    ordinal,
                    kind: RowKind::Insert,
                    row: ordinal,
                    bytes: ROW_BYTES,
                });
            }
            events.push(Event::Commit { commit, end: Position(Lsn(self.end)) });
        }
        events
    }
}

/// Transactions of 1,000 changes of one table, of 1,000 changes that take turns over four tables, and
/// of one change.
#[divan::bench(args = [(1_000, 1), (1_000, 4), (100, 4), (1, 1)])]
fn changes(bencher: Bencher<'_, '_>, (size, tables): (u64, u32)) {
    let driver = RefCell::new(Driver::ready());
    bencher
        .counter(ItemsCount::new(CHANGES))
        .with_inputs(|| driver.borrow_mut().load(size, tables))
        .bench_local_values(|events| driver.borrow_mut().stream(events));
}

fn listing(position: Position) -> Listing {
    let table = |number: u32| ListedTable {
        table: TableId(number),
        namespace: "public".to_owned(),
        name: format!("t{number}"),
        membership: number,
    };
    let tables = (1..=TABLES).map(table).collect();
    Listing { publication: 1, missing_actions: Vec::new(), tables, position }
}

fn slot_facts(name: &str) -> SlotFacts {
    SlotFacts {
        name: name.to_owned(),
        plugin: "pgoutput".to_owned(),
        database: "app".to_owned(),
        logical: true,
        temporary: false,
        active: None,
        restart_lsn: Some(Lsn(1)),
        confirmed_flush_lsn: Some(Lsn(1)),
        wal_status: None,
        safe_wal_size: None,
        failover: false,
        invalidation_reason: None,
    }
}

fn reader(seen: SourceSeen, table: TableId) -> ReaderFacts {
    let heap = HeapFacts {
        relation: table,
        filenode_in_snapshot: 1,
        filenode_now: 1,
        columns_in_snapshot: Vec::new(),
        columns_now: Vec::new(),
        bytes: 0,
        blocks: 1,
    };
    ReaderFacts { seen, published: true, filter: None, heaps: vec![heap] }
}

fn schema(table: TableId) -> TableSchema {
    let column = |number: i16| Column {
        number,
        name: format!("column_{number}"),
        type_oid: 25,
        modifier: -1,
        not_null: false,
        default: None,
        key: number == 1,
    };
    TableSchema {
        table,
        namespace: "public".to_owned(),
        name: format!("t{table}"),
        identity: ReplicaIdentity::Default,
        columns: (1..=8).map(column).collect(),
        unpublished: Vec::new(),
        storage: None,
    }
}

fn relation(table: TableId) -> Arc<Relation> {
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
