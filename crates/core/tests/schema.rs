//! Schema changes through the whole state machine (group D), with a driver whose operations succeed at
//! once unless a test keeps them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use walferry_core::batch::{Batch, ChangeBody, Declaration, DeliveryClass, Durability};
use walferry_core::config::{Config, Limits};
use walferry_core::effect::{Effect, Work};
use walferry_core::event::{Event, RowKind, TruncateFlags};
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::ids::{Attempt, OpId, Session, StreamId, TableId};
use walferry_core::input::{Answer, Input};
use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::notice::{Notice, Outcome};
use walferry_core::policies::Doubt;
use walferry_core::record::{Phase, Policy, Record};
use walferry_core::schema::{
    Column, DdlMessage, Existing, Relation, RelationColumn, ReplicaIdentity, SchemaStep,
    SchemaSupport, TableSchema,
};
use walferry_core::source::{
    CreatedSlot, Described, HeapFacts, ListedTable, Listing, MonitorFacts, RangeFacts, ReaderFacts,
    SchemaFacts, ServerFacts, SlotFacts, SlotReport, SnapshotFacts, SourceSeen,
};
use walferry_core::time::Instant;
use walferry_core::{Pipeline, Seed};

const A: TableId = TableId(1);
const B: TableId = TableId(2);
/// In no publication: its transactions move main and nothing else.
const OTHER: TableId = TableId(9);

struct Driver {
    pipeline: Pipeline<u64>,
    main: Session,
    private: Session,
    /// End of the WAL made so far.
    end: u64,
    keeps: fn(&Work<u64>) -> bool,
    kept: Vec<(OpId, Work<u64>)>,
    notices: Vec<Notice>,
    written: Vec<Arc<Batch<u64>>>,
    saved: Option<Arc<Record>>,
    ended: Option<Outcome>,
}

fn config(edit: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config {
        publication: "app".to_owned(),
        database: "app".to_owned(),
        destination: Declaration {
            id: "null:".to_owned(),
            class: DeliveryClass::Append,
            lanes_max: 4,
            copy_in_flight_max: 1,
            wants_messages: false,
            partial_rows: true,
            schema_changes: SchemaSupport::ALL,
        },
        until: None,
        limits: Limits { batch_ms: 0, ..Limits::default() },
    };
    edit(&mut config);
    config
}

impl Driver {
    fn start(config: Config, record: Option<Record>, keeps: fn(&Work<u64>) -> bool) -> Self {
        let checkpoint = record.as_ref().and_then(|record| record.checkpoint);
        let pipeline = Pipeline::new(config, record, Seed([1; 32]), Instant(0)).unwrap();
        let mut driver = Self {
            pipeline,
            main: Session(0),
            private: Session(0),
            end: checkpoint.map_or(100, |checkpoint| checkpoint.0.0),
            keeps,
            kept: Vec::new(),
            notices: Vec::new(),
            written: Vec::new(),
            saved: None,
            ended: None,
        };
        driver.drain();
        driver
    }

    /// Streaming, both tables Ready, catalog reads kept.
    fn ready(edit: impl FnOnce(&mut Config)) -> Self {
        Self::start(config(edit), None, |work| matches!(work, Work::DescribeTable { .. }))
    }

    fn input(&mut self, input: Input<u64>) {
        self.pipeline.handle(input, Instant(0)).unwrap();
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(effect) = self.pipeline.poll_effect() {
            match effect {
                Effect::Start { op, work, .. } if (self.keeps)(&work) => self.kept.push((op, work)),
                Effect::Start { op, work, .. } => {
                    let answer = self.answer(&work);
                    let input = Input::Completed { op, result: Ok(answer) };
                    self.pipeline.handle(input, Instant(0)).unwrap();
                }
                Effect::Cancel { op } => {
                    if let Some(at) = self.kept.iter().position(|(kept, _)| *kept == op) {
                        self.kept.remove(at);
                        let fault = Fault::found(Origin::Source, FaultKind::Stopped);
                        let input = Input::Completed { op, result: Err(fault) };
                        self.pipeline.handle(input, Instant(0)).unwrap();
                    }
                }
                Effect::Report(notice) => self.notices.push(notice),
                Effect::Ended(outcome) => self.ended = Some(outcome),
                Effect::Confirm { .. } => (),
            }
        }
    }

    /// Completes the one operation that is kept.
    fn complete(&mut self, result: Result<Answer, Fault>) {
        assert_eq!(self.kept.len(), 1, "{:?}", self.kept);
        let (op, _) = self.kept.remove(0);
        self.input(Input::Completed { op, result });
    }

    fn describe(&mut self, found: Option<Described>) {
        assert!(matches!(self.kept[..], [(_, Work::DescribeTable { .. })]), "{:?}", self.kept);
        self.complete(Ok(Answer::Described(found)));
    }

    fn answer(&mut self, work: &Work<u64>) -> Answer {
        let seen = SourceSeen { system_id: "1".into(), timeline: 1, database: "app".into() };
        let end = Position(Lsn(self.end));
        let made = |slot: &str| CreatedSlot {
            slot: slot.to_owned(),
            plugin: "pgoutput".to_owned(),
            consistent: end,
        };
        match work {
            Work::WriteChanges(batch) => {
                self.written.push(Arc::clone(batch));
                Answer::Written(Durability::Durable)
            }
            Work::WriteRows(_) | Work::FinishCopy { .. } => Answer::Written(Durability::Durable),
            Work::Save { record, .. } => {
                self.saved = Some(Arc::clone(record));
                Answer::Done
            }
            Work::OpenStream { stream, session, .. } => {
                match stream {
                    StreamId::Main => self.main = *session,
                    StreamId::Copy(_) => self.private = *session,
                }
                Answer::Opened(seen)
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
            Work::InspectSlot { slot } => {
                let checkpoint = self.pipeline.view().positions.checkpoint;
                let slot = (checkpoint > Position::default()).then(|| slot_facts(slot));
                Answer::Slot(SlotReport { seen, slot, wal_end: end.0, publication: Some(1) })
            }
            Work::CreateSlot { slot, .. } => Answer::Created(made(slot)),
            Work::OpenSnapshot { slot, .. } => {
                Answer::Snapshot(SnapshotFacts { seen, slot: made(slot) })
            }
            Work::OpenReader { table, .. } => Answer::Reader(reader(seen, *table)),
            Work::ReadSchema { table, .. } => Answer::Schema(SchemaFacts { schema: plain(*table) }),
            Work::ReadRange { .. } => Answer::RangeRead(RangeFacts { rows: 0 }),
            Work::DescribeTable { .. } => Answer::Described(None),
            Work::ReadBlockers { .. } => Answer::Blockers(Vec::new()),
            Work::ReadWalPosition => Answer::WalPosition(end.0),
            Work::ReadTimelineHistory { .. } => Answer::History(Vec::new()),
            Work::Monitor { .. } => Answer::Monitored(MonitorFacts { wal_end: end.0, slot: None }),
            Work::DropSlot { .. }
            | Work::CheckOwner
            | Work::EnableFailover { .. }
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

    /// A transaction of these events, on main.
    fn main(&mut self, events: Vec<Event<u64>>) {
        let events = self.transaction(events);
        let (stream, session) = (StreamId::Main, self.main);
        self.input(Input::Stream { stream, session, events });
    }

    fn transaction(&mut self, events: Vec<Event<u64>>) -> Vec<Event<u64>> {
        let commit = CommitLsn(Lsn(self.end));
        self.end += 10;
        let mut all = vec![Event::Begin { commit, time_us: 0 }];
        let mut ordinals = 0..;
        all.extend(events.into_iter().map(|mut event| {
            if let Event::Row { ordinal, .. } | Event::Truncate { ordinal, .. } = &mut event {
                *ordinal = ordinals.next().unwrap();
            }
            event
        }));
        all.push(Event::Commit { commit, end: Position(Lsn(self.end)) });
        all
    }

    /// What was written since the last call, in words.
    fn taken(&mut self) -> Vec<String> {
        core::mem::take(&mut self.written).iter().flat_map(|batch| words(batch)).collect()
    }

    fn shape(&self, table: TableId) -> Option<String> {
        let record = self.saved.as_ref().unwrap();
        record.tables[&table].schema.as_ref().map(|schema| schema.shape())
    }

    fn phase(&self, table: TableId) -> Phase {
        self.saved.as_ref().unwrap().tables[&table].phase.clone()
    }

    fn has_reported(&self, is: impl Fn(&Notice) -> bool) -> bool {
        self.notices.iter().any(is)
    }
}

fn names(schema: &TableSchema) -> String {
    let names: Vec<_> = schema.columns.iter().map(|column| column.name.as_str()).collect();
    names.join(",")
}

fn words(batch: &Batch<u64>) -> Vec<String> {
    let of = |index: u32| {
        let entry = &batch.tables[index as usize];
        format!("{}({})", entry.table, names(&entry.schema))
    };
    let word = |body: &ChangeBody<u64>| match body {
        ChangeBody::Row { table, .. } => format!("row {}", of(*table)),
        ChangeBody::Truncate { table, .. } => format!("truncate {}", of(*table)),
        ChangeBody::Schema { table, .. } => format!("schema {}", of(*table)),
        ChangeBody::Message { .. } => "message".to_owned(),
    };
    batch.changes.iter().map(|change| word(&change.body)).collect()
}

fn column(number: i16, name: &str) -> Column {
    Column {
        number,
        name: name.to_owned(),
        type_oid: 23,
        modifier: -1,
        not_null: false,
        default: None,
        key: name == "id",
    }
}

fn schema(table: TableId, columns: &[(i16, &str)]) -> TableSchema {
    TableSchema {
        table,
        namespace: "public".to_owned(),
        name: format!("t{table}"),
        identity: ReplicaIdentity::Default,
        columns: columns.iter().map(|&(number, name)| column(number, name)).collect(),
        unpublished: Vec::new(),
        storage: Some(7),
    }
}

/// What both tables are at first.
fn plain(table: TableId) -> TableSchema {
    schema(table, &[(1, "id"), (2, "a")])
}

fn relation(schema: &TableSchema) -> Event<u64> {
    let columns = schema.columns.iter().map(|column| RelationColumn {
        key: column.key,
        name: column.name.clone(),
        type_oid: column.type_oid,
        modifier: column.modifier,
    });
    Event::Relation(Arc::new(Relation {
        table: schema.table,
        namespace: schema.namespace.clone(),
        name: schema.name.clone(),
        identity: schema.identity,
        columns: columns.collect(),
    }))
}

fn row(table: TableId) -> Event<u64> {
    Event::Row { table, ordinal: 0, kind: RowKind::Insert, row: 0, bytes: 10 }
}

fn found(schema: TableSchema) -> Option<Described> {
    Some(Described { schema, missing: Vec::new(), position: Position(Lsn(1)) })
}

fn listing(position: Position) -> Listing {
    let table = |table: TableId| ListedTable {
        table,
        namespace: "public".to_owned(),
        name: format!("t{table}"),
        membership: table.0,
    };
    let tables = [A, B].map(table).into();
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

/// `id, a` becomes `id, a, b`.
fn wider(table: TableId) -> TableSchema {
    schema(table, &[(1, "id"), (2, "a"), (3, "b")])
}

// D-08: dispatch of the stream holds at the row until the catalog has answered
#[test]
fn main_holds_before_the_row_until_the_catalog_answers() {
    let mut driver = Driver::ready(|_| ());
    let plain = [relation(&plain(A)), relation(&plain(B)), row(A), row(B)];
    let changed = [relation(&wider(A)), row(A), row(B), row(A)];
    driver.main([plain, changed].concat());
    assert_eq!(driver.taken(), ["row 1(id,a)", "row 2(id,a)"]);
    driver.main(vec![row(B)]);
    assert!(driver.taken().is_empty(), "nothing passes the row that is held");
    let before = driver.pipeline.view().positions.checkpoint;
    driver.describe(found(wider(A)));
    let expected =
        ["schema 1(id,a,b)", "row 1(id,a,b)", "row 2(id,a)", "row 1(id,a,b)", "row 2(id,a)"];
    assert_eq!(driver.taken(), expected);
    assert!(driver.pipeline.view().positions.checkpoint > before);
    assert!(driver.has_reported(|n| matches!(n, Notice::SchemaChanged { table: A, .. })));
    assert!(!driver.has_reported(|n| matches!(n, Notice::SilentRewrite { .. })));
}

// D-01, D-08, D-14: the change carries the key of the row, the whole schema and the plan
#[test]
fn a_change_has_the_key_of_its_row_and_a_plan() {
    let mut driver = Driver::ready(|_| ());
    driver.main(vec![relation(&plain(B)), row(B), relation(&wider(A)), row(A)]);
    let first = core::mem::take(&mut driver.written);
    driver.describe(found(wider(A)));
    let batch = Arc::clone(&driver.written[0]);
    assert_eq!(first[0].transactions[0].commit, batch.transactions[0].commit);
    let ChangeBody::Schema { table, change } = &batch.changes[0].body else { panic!("{batch:?}") };
    assert_eq!(batch.changes[0].ordinal, 1);
    assert_eq!(change.position.ordinal, 1);
    assert_eq!(change.position.commit, batch.transactions[0].commit);
    assert_eq!(batch.tables[*table as usize].schema, change.schema);
    assert_eq!(*change.schema, wider(A));
    let added = SchemaStep::Add { column: column(3, "b"), existing: Existing::Known(None) };
    assert_eq!(change.steps, [added]);
}

// J-04, D-08: a truncate waits whole, so that its fragments stay adjacent
#[test]
fn a_truncate_of_a_changed_table_waits_as_a_whole() {
    let mut driver = Driver::ready(|_| ());
    let truncate =
        Event::Truncate { tables: [B, A].into(), flags: TruncateFlags::default(), ordinal: 0 };
    driver.main(vec![relation(&plain(B)), relation(&wider(A)), truncate]);
    assert!(driver.taken().is_empty());
    driver.describe(found(wider(A)));
    let expected = ["schema 1(id,a,b)", "truncate 2(id,a)", "truncate 1(id,a,b)"];
    assert_eq!(driver.taken(), expected);
}

// D-08: a read that fails is a failure of the stream, never a guess
#[test]
fn a_catalog_read_that_fails_is_a_failure_of_main() {
    let mut driver = Driver::ready(|config| config.limits.main_retries_max = 0);
    driver.main(vec![relation(&wider(A)), row(A)]);
    driver.complete(Err(Fault::found(Origin::Source, FaultKind::Transport)));
    assert!(driver.taken().is_empty());
    let failed = matches!(&driver.ended, Some(Outcome::Failed { fault, .. })
        if fault.kind == FaultKind::Transport);
    assert!(failed, "{:?}", driver.ended);
    walferry_coverage::reached("D-F2");
}

// D-08, D-15: the relation alone, and so a copy, if the table is gone or the answer disagrees
#[test]
fn without_a_good_answer_the_relation_alone_counts() {
    for answer in [None, found(schema(A, &[(1, "id"), (2, "a"), (4, "c")]))] {
        let report = |c: &mut Config| c.limits.policies.silent_rewrite = Doubt::Report;
        let mut driver = Driver::ready(report);
        driver.main(vec![relation(&wider(A)), row(A)]);
        driver.describe(answer);
        let ChangeBody::Schema { change, .. } = &driver.written[0].changes[0].body else {
            panic!()
        };
        assert!(change.schema.columns.iter().all(|column| column.number == 0));
        assert_eq!(driver.taken(), ["schema 1(id,a,b)", "row 1(id,a,b)"]);
        let silent =
            |n: &Notice| matches!(n, Notice::SilentRewrite { column, .. } if column == "b");
        assert!(driver.has_reported(silent));
        assert!(matches!(driver.phase(A), Phase::Ready { .. }), "policy report");
    }
    walferry_coverage::reached("D-F2");
}

// D-15 with policy recopy: Pending, and what was written of it is forgotten by a new attempt
#[test]
fn a_silent_rewrite_copies_the_table_anew() {
    let mut driver = Driver::ready(|_| ());
    driver.keeps = |work| matches!(work, Work::DescribeTable { .. } | Work::OpenSnapshot { .. });
    driver.main(vec![relation(&plain(B)), row(B), relation(&wider(A)), row(A), row(B)]);
    let moved = schema(A, &[(1, "id"), (2, "a"), (3, "b")]);
    driver.describe(found(TableSchema { storage: Some(8), ..moved }));
    assert_eq!(driver.taken(), ["row 2(id,a)", "row 2(id,a)"]);
    assert_eq!((driver.phase(A), driver.shape(A)), (Phase::Copying, None));
    assert!(matches!(&driver.kept[..], [(_, Work::OpenSnapshot { table: A, .. })]));
    let entry = Arc::clone(&driver.saved.as_ref().unwrap().tables[&A]);
    assert_eq!((entry.tries, entry.attempt), (1, Some(Attempt(3))));
    driver.main(vec![row(A), row(B)]);
    assert_eq!(driver.taken(), ["row 2(id,a)"]);
}

// D-02, D-03, D-F1: the record's schema lags behind, and a restart replays from it
#[test]
fn the_record_carries_the_schema_in_force_at_its_checkpoint() {
    let mut driver = Driver::ready(|_| ());
    let narrow = driver.shape(A);
    driver.main(vec![relation(&plain(A)), row(A)]);
    driver.keeps = |work| matches!(work, Work::DescribeTable { .. } | Work::WriteChanges(_));
    let events = driver.transaction(vec![relation(&wider(A)), row(A)]);
    let (stream, session) = (StreamId::Main, driver.main);
    driver.input(Input::Stream { stream, session, events: events.clone() });
    driver.describe(found(wider(A)));
    assert_eq!(driver.shape(A), narrow, "written, not durable");
    let record = Record::clone(driver.saved.as_ref().unwrap());
    driver.complete(Ok(Answer::Written(Durability::Durable)));
    assert_eq!(driver.shape(A), Some(wider(A).shape()));
    let after = Record::clone(driver.saved.as_ref().unwrap());

    let describe = |work: &Work<u64>| matches!(work, Work::DescribeTable { .. });
    let mut again = Driver::start(config(|_| ()), Some(record), describe);
    let session = again.main;
    again.input(Input::Stream { stream, session, events });
    again.describe(found(wider(A)));
    assert_eq!(again.taken(), ["schema 1(id,a,b)", "row 1(id,a,b)"], "D-I2");

    let mut later = Driver::start(config(|_| ()), Some(after), describe);
    later.main(vec![relation(&wider(A)), row(A)]);
    assert_eq!(later.taken(), ["row 1(id,a,b)"], "nothing is asked");
    walferry_coverage::reached("D-F1");
    walferry_coverage::reached("D-I2");
}

// DS-01: what the destination did not declare stops the table, by name
#[test]
fn a_step_that_is_not_declared_stops_the_table() {
    let no_add = SchemaSupport { add: false, ..SchemaSupport::ALL };
    for (support, part) in [(no_add, "cannot add column b"), (SchemaSupport::NONE, "cannot follow")]
    {
        let mut driver = Driver::ready(|c| c.destination.schema_changes = support);
        driver.main(vec![relation(&plain(B)), row(A), relation(&wider(A)), row(A), row(B)]);
        if support != SchemaSupport::NONE {
            assert_eq!(driver.taken(), ["row 1(id,a)"]);
            driver.describe(found(wider(A)));
        }
        assert_eq!(driver.taken(), ["row 2(id,a)"]);
        let Phase::Errored { reason, policy } = driver.phase(A) else { panic!() };
        assert!(reason.contains(part) && reason.contains("resync the table"), "{reason}");
        assert!(reason.contains(&wider(A).shape()) && reason.contains(&plain(A).shape()));
        assert_eq!(policy, Policy::Manual);
    }
}

fn message(schema: TableSchema, publication: Option<&str>) -> Event<u64> {
    Event::Ddl(Ok(Arc::new(DdlMessage {
        command: "ALTER TABLE".to_owned(),
        publication: publication.map(str::to_owned),
        schema: Arc::new(TableSchema { storage: None, ..schema }),
    })))
}

// D-05, D-08: with a schema message nothing is asked; one of another publication says nothing
#[test]
fn a_schema_message_tells_the_columns() {
    let renamed = || schema(A, &[(1, "id"), (2, "z")]);
    for publication in [None, Some("app")] {
        let mut driver = Driver::ready(|_| ());
        driver.main(vec![message(renamed(), publication), relation(&renamed()), row(A)]);
        let ChangeBody::Schema { change, .. } = &driver.written[0].changes[0].body else {
            panic!()
        };
        let rename = SchemaStep::Rename { from: "a".to_owned(), to: "z".to_owned() };
        assert_eq!(change.steps, [rename]);
        assert_eq!(driver.taken(), ["schema 1(id,z)", "row 1(id,z)"]);
        assert!(driver.kept.is_empty());
    }
    let mut driver = Driver::ready(|_| ());
    driver.main(vec![message(renamed(), Some("other")), relation(&renamed()), row(A)]);
    assert_eq!(driver.kept.len(), 1, "the catalog is asked");
    let mut driver = Driver::ready(|_| ());
    driver.main(vec![Event::Ddl(Err("no JSON".to_owned())), row(A)]);
    assert!(
        driver.has_reported(|n| matches!(n, Notice::DdlIgnored { reason } if reason == "no JSON"))
    );
    assert_eq!(driver.taken(), ["row 1(id,a)"]);
    walferry_coverage::reached("D-F9");
}

// D-16
#[test]
fn a_lost_identity_is_reported() {
    let mut driver = Driver::ready(|_| ());
    let mut keyless = plain(A);
    keyless.identity = ReplicaIdentity::Nothing;
    keyless.columns[0].key = false;
    driver.main(vec![relation(&keyless), row(A)]);
    driver.describe(found(keyless));
    let ChangeBody::Schema { change, .. } = &driver.written[0].changes[0].body else { panic!() };
    assert_eq!(change.steps, [SchemaStep::Key { columns: Vec::new() }]);
    assert!(driver.has_reported(|n| matches!(n, Notice::IdentityLost { table: A })));
}

/// A replaying table A: its rows are done, and main is ahead of its cutoff.
fn replaying() -> Driver {
    let is_last = |work: &Work<u64>| matches!(work, Work::FinishCopy { table: A, .. });
    let mut driver = Driver::start(config(|_| ()), None, is_last);
    driver.main(vec![row(OTHER)]);
    driver.main(vec![row(OTHER)]);
    driver.keeps = |work| matches!(work, Work::DescribeTable { .. });
    driver.complete(Ok(Answer::Written(Durability::Durable)));
    assert!(driver.private > Session(0), "the private stream is open");
    driver
}

fn private(commit: u64, end: u64, events: Vec<Event<u64>>) -> Vec<Event<u64>> {
    let commit = CommitLsn(Lsn(commit));
    let begin = Event::Begin { commit, time_us: 0 };
    let end = Event::Commit { commit, end: Position(Lsn(end)) };
    [vec![begin], events, vec![end]].concat()
}

impl Driver {
    fn private(&mut self, events: Vec<Event<u64>>) {
        let (stream, session) = (StreamId::Copy(A), self.private);
        self.input(Input::Stream { stream, session, events });
    }
}

// D-08, D-10: a private stream holds as well, and main goes on with its newest schema
#[test]
fn a_private_change_is_the_schema_of_main_after_the_handover() {
    let mut driver = replaying();
    driver.private(private(101, 110, vec![relation(&wider(A)), row(A)]));
    driver.private(private(110, 121, vec![row(A)]));
    assert!(driver.taken().is_empty());
    driver.describe(found(wider(A)));
    assert_eq!(driver.taken(), ["schema 1(id,a,b)", "row 1(id,a,b)", "row 1(id,a,b)"]);
    assert!(matches!(driver.phase(A), Phase::Catchup { .. } | Phase::Ready { .. }));
    assert_eq!(driver.shape(A), Some(wider(A).shape()));
    driver.end = 130;
    driver.main(vec![relation(&wider(A)), row(A)]);
    assert_eq!(driver.taken(), ["row 1(id,a,b)"], "D-I3");
    walferry_coverage::reached("D-F6");
    walferry_coverage::reached("D-I3");
}

// K-23, W-10: the failure is the attempt's, and main is not affected
#[test]
fn a_catalog_read_that_fails_fails_the_attempt_alone() {
    let mut driver = replaying();
    driver.private(private(101, 110, vec![relation(&wider(A)), row(A)]));
    driver.complete(Err(Fault::found(Origin::Source, FaultKind::Transport)));
    let timed = matches!(driver.phase(A), Phase::Errored { policy: Policy::Timed, .. });
    assert!(timed, "{:?}", driver.phase(A));
    driver.main(vec![row(B)]);
    assert_eq!(driver.taken(), ["row 2(id,a)"]);
}

// D-15, Y-10: in private replay the attempt ends without blame and starts again
#[test]
fn a_silent_rewrite_in_private_replay_starts_the_attempt_again() {
    let mut driver = replaying();
    driver.private(private(101, 110, vec![relation(&wider(A)), row(A)]));
    driver.keeps = |work| matches!(work, Work::OpenSnapshot { .. });
    driver.describe(None);
    assert!(matches!(&driver.kept[..], [(_, Work::OpenSnapshot { attempt: Attempt(3), .. })]));
    let entry = Arc::clone(&driver.saved.as_ref().unwrap().tables[&A]);
    assert_eq!((entry.phase.clone(), entry.tries), (Phase::Copying, 1), "the try was given back");
    assert!(driver.taken().is_empty());
}
