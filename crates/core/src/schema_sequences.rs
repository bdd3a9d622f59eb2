//! Schemas over the projection, as properties: what a restart or a handover must not change.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::batch::{Batch, ChangeBody};
use crate::event::{Event, RowKind, TruncateFlags};
use crate::following::Rules;
use crate::ids::{Attempt, Epoch, EventKey, Lane, Session, StreamId, TableId};
use crate::lsn::{CommitLsn, Lsn, Position};
use crate::policies::Doubt;
use crate::projection::{Owned, Reach, dispatch};
use crate::schema::{
    Column, DdlMessage, Relation, RelationColumn, ReplicaIdentity, SchemaSupport, TableSchema,
};
use crate::source::Described;
use crate::stream::Stream;
use crate::time::Instant;

const T: TableId = TableId(1);
/// Where the first transaction commits.
const START: u64 = 10;

/// What a transaction does to the one table.
#[derive(Clone, Debug)]
enum Do {
    Row,
    Truncate,
    Add(u8),
    Drop(u8),
    Rename(u8, u8),
    Type(u8),
    Key(u8),
}

/// The table at the source.
#[derive(Clone, Debug)]
struct Source {
    columns: Vec<Column>,
    last_number: i16,
    /// Messages of an event trigger.
    trigger: bool,
}

#[derive(Clone, Debug)]
enum Wal {
    Begin(CommitLsn),
    /// The row carries the columns that it was written with.
    Row(u64, Vec<Column>),
    Truncate(u64, Vec<Column>),
    /// Rows behind it are announced anew.
    Altered(Option<Arc<DdlMessage>>),
    Commit(CommitLsn, Position),
}

fn schema(columns: Vec<Column>, storage: u64) -> TableSchema {
    TableSchema {
        table: T,
        namespace: "public".to_owned(),
        name: "t".to_owned(),
        identity: ReplicaIdentity::Default,
        columns,
        unpublished: Vec::new(),
        storage: Some(storage),
    }
}

fn column(number: i16, name: u8) -> Column {
    Column {
        number,
        name: char::from(b'a' + name % 6).to_string(),
        type_oid: 23,
        modifier: -1,
        not_null: false,
        default: None,
        key: false,
    }
}

fn relation(columns: &[Column]) -> Relation {
    let column = |column: &Column| RelationColumn {
        key: column.key,
        name: column.name.clone(),
        type_oid: column.type_oid,
        modifier: column.modifier,
    };
    Relation {
        table: T,
        namespace: "public".to_owned(),
        name: "t".to_owned(),
        identity: ReplicaIdentity::Default,
        columns: columns.iter().map(column).collect(),
    }
}

impl Source {
    fn new(trigger: bool) -> Self {
        Self { columns: vec![column(1, 0), column(2, 1)], last_number: 2, trigger }
    }

    /// Whether it changed anything.
    fn alter(&mut self, what: &Do) -> bool {
        let before = self.columns.clone();
        let taken = |columns: &[Column], name: &str| columns.iter().any(|c| c.name == name);
        let len = self.columns.len();
        match *what {
            Do::Row | Do::Truncate => (),
            Do::Add(name) => {
                let added = column(self.last_number + 1, name);
                if !taken(&self.columns, &added.name) {
                    self.last_number += 1;
                    self.columns.push(added);
                }
            }
            Do::Drop(at) if len > 1 => drop(self.columns.remove(usize::from(at) % len)),
            Do::Drop(_) => (),
            Do::Rename(at, name) => {
                let name = column(0, name).name;
                if !taken(&self.columns, &name) {
                    self.columns[usize::from(at) % len].name = name;
                }
            }
            Do::Type(at) => self.columns[usize::from(at) % len].type_oid ^= 1,
            Do::Key(at) => {
                let column = &mut self.columns[usize::from(at) % len];
                column.key = !column.key;
            }
        }
        self.columns != before
    }
}

/// The WAL of some transactions, and the catalog at its end.
fn history(transactions: Vec<Vec<Do>>, trigger: bool) -> (Vec<Wal>, Vec<Column>) {
    let mut source = Source::new(trigger);
    let mut wal = Vec::new();
    let mut head = START;
    for transaction in transactions {
        let commit = CommitLsn(Lsn(head));
        head += 3;
        wal.push(Wal::Begin(commit));
        let mut ordinal = 0;
        for what in transaction {
            match what {
                Do::Row => wal.push(Wal::Row(ordinal, source.columns.clone())),
                Do::Truncate => wal.push(Wal::Truncate(ordinal, source.columns.clone())),
                Do::Add(_) | Do::Drop(_) | Do::Rename(..) | Do::Type(_) | Do::Key(_) => {
                    if source.alter(&what) {
                        let message = || DdlMessage {
                            command: "ALTER TABLE".to_owned(),
                            publication: None,
                            schema: Arc::new(schema(source.columns.clone(), 0)),
                        };
                        wal.push(Wal::Altered(source.trigger.then(|| Arc::new(message()))));
                    }
                    continue;
                }
            }
            ordinal += 1;
        }
        wal.push(Wal::Commit(commit, Position(Lsn(head - 1))));
    }
    (wal, source.columns)
}

/// What a session sends that starts at `from` and is read up to `end` (PG-13).
fn session(wal: &[Wal], from: Position, end: Position) -> Vec<Event<Vec<Column>>> {
    let mut events = Vec::new();
    let mut announced = false;
    let mut inside = false;
    for entry in wal {
        if let Wal::Begin(commit) = entry {
            inside = !from.covers(*commit) && end.covers(*commit);
        }
        if !inside {
            continue;
        }
        let mut announce = |columns: &[Column], events: &mut Vec<Event<Vec<Column>>>| {
            if !core::mem::replace(&mut announced, true) {
                events.push(Event::Relation(Arc::new(relation(columns))));
            }
        };
        match entry {
            Wal::Begin(commit) => events.push(Event::Begin { commit: *commit, time_us: 0 }),
            Wal::Row(ordinal, columns) => {
                announce(columns, &mut events);
                let (ordinal, row) = (*ordinal, columns.clone());
                events.push(Event::Row { table: T, ordinal, kind: RowKind::Insert, row, bytes: 1 });
            }
            Wal::Truncate(ordinal, columns) => {
                announce(columns, &mut events);
                let (tables, flags) = ([T].into(), TruncateFlags::default());
                events.push(Event::Truncate { tables, flags, ordinal: *ordinal });
            }
            Wal::Altered(message) => {
                announced = false;
                events.extend(message.iter().map(|message| Event::Ddl(Ok(Arc::clone(message)))));
            }
            Wal::Commit(commit, end) => events.push(Event::Commit { commit: *commit, end: *end }),
        }
    }
    events
}

/// What passed: schema changes, and each event with the schema it is decoded with.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Passed {
    Schema(EventKey, Arc<TableSchema>),
    Event(EventKey, Arc<TableSchema>),
}

impl Passed {
    fn key(&self) -> EventKey {
        let (Self::Schema(key, _) | Self::Event(key, _)) = self;
        *key
    }

    /// Without what only a message or the catalog can tell.
    fn shape(&self) -> (bool, EventKey, String) {
        let (Self::Schema(key, schema) | Self::Event(key, schema)) = self;
        (matches!(self, Self::Schema(..)), *key, schema.shape())
    }
}

struct Run<'a> {
    owned: BTreeMap<TableId, Owned>,
    catalog: &'a [Column],
    at_once: u64,
}

impl Run<'_> {
    /// Projects a session; the catalog answers what is asked. Also the schema that a save right at
    /// each boundary would carry.
    fn follow(
        &mut self,
        events: Vec<Event<Vec<Column>>>,
        from: Position,
    ) -> (Vec<Passed>, Vec<(Position, Arc<TableSchema>)>) {
        let mut stream = Stream::new(StreamId::Main, Session(1), from, Instant(0));
        assert!(stream.take_in(events, Instant(0)).is_ok());
        let reach = Reach {
            bytes: u64::MAX,
            events: self.at_once,
            before: None,
            boundary: None,
            complete_only: false,
            messages: false,
        };
        let rules = Rules {
            support: SchemaSupport::ALL,
            silent_rewrite: Doubt::Report,
            publication: "app",
        };
        let (mut passed, mut boundaries) = (Vec::new(), Vec::new());
        while !stream.queue.is_empty() {
            let owned = &mut self.owned;
            let out = dispatch(&mut stream, Lane::Main, Epoch(1), owned, reach, rules);
            assert!(out.mismatches.is_empty() && out.schemas.recopies.is_empty());
            passed.extend(read(&out.batch));
            let Some(following) = owned.get_mut(&T).map(|owned| &mut owned.following) else {
                break;
            };
            if let Some(table) = out.schemas.ask {
                let relation = Arc::clone(&stream.relations[&table]);
                let described = Described {
                    schema: schema(self.catalog.to_vec(), 7),
                    missing: Vec::new(),
                    position: Position::default(),
                };
                following.answer(relation, Some(described));
            }
            if let Some(boundary) = out.boundary.filter(|_| stream.dispatching.is_none()) {
                let schema = following.history().in_force_at(boundary);
                boundaries.push((boundary, Arc::clone(schema)));
            }
        }
        (passed, boundaries)
    }
}

/// D-I1 on the way: each row is decoded with what it was written with.
fn read(batch: &Batch<Vec<Column>>) -> Vec<Passed> {
    let mut passed = Vec::new();
    for change in &batch.changes {
        let commit = batch.transactions[change.transaction as usize].commit;
        let key = EventKey { commit, ordinal: change.ordinal };
        match &change.body {
            ChangeBody::Schema { table, change } => {
                assert_eq!(change.position, key);
                assert_eq!(batch.tables[*table as usize].schema, change.schema);
                passed.push(Passed::Schema(key, Arc::clone(&change.schema)));
            }
            ChangeBody::Row { table, row, .. } => {
                let schema = &batch.tables[*table as usize].schema;
                assert!(schema.agrees_with(&relation(row)), "D-I1: {row:?} as {}", schema.shape());
                passed.push(Passed::Event(key, Arc::clone(schema)));
            }
            ChangeBody::Truncate { table, .. } => {
                let schema = Arc::clone(&batch.tables[*table as usize].schema);
                passed.push(Passed::Event(key, schema));
            }
            ChangeBody::Message { .. } => (),
        }
    }
    passed
}

fn owned(from: Position, schema: Arc<TableSchema>) -> BTreeMap<TableId, Owned> {
    BTreeMap::from([(T, Owned::new(from, Attempt(1), schema))])
}

fn start() -> Arc<TableSchema> {
    Arc::new(schema(Source::new(false).columns, 7))
}

fn transactions() -> impl Strategy<Value = Vec<Vec<Do>>> {
    let what = prop_oneof![
        4 => Just(Do::Row),
        1 => Just(Do::Truncate),
        1 => any::<u8>().prop_map(Do::Add),
        1 => any::<u8>().prop_map(Do::Drop),
        1 => any::<(u8, u8)>().prop_map(|(at, name)| Do::Rename(at, name)),
        1 => any::<u8>().prop_map(Do::Type),
        1 => any::<u8>().prop_map(Do::Key),
    ];
    vec(vec(what, 0..6), 0..6)
}

const ALL: Position = Position(Lsn(u64::MAX));

proptest! {
    // D-I1, D-08: each event is decoded with the newest schema that went before it
    #[test]
    fn every_schema_goes_before_its_events(
        transactions in transactions(), trigger: bool, at_once in 0_u64..4,
    ) {
        let (wal, catalog) = history(transactions, trigger);
        let from = Position(Lsn(START));
        let mut run = Run { owned: owned(from, start()), catalog: &catalog, at_once };
        let (passed, _) = run.follow(session(&wal, from, ALL), from);
        let mut current = start();
        for entry in &passed {
            match entry {
                Passed::Schema(_, schema) => {
                    prop_assert_ne!(schema, &current, "a change changes something");
                    current = Arc::clone(schema);
                }
                Passed::Event(_, schema) => prop_assert_eq!(schema, &current),
            }
        }
        let events = wal.iter().filter(|w| matches!(w, Wal::Row(..) | Wal::Truncate(..))).count();
        let rows = passed.iter().filter(|entry| matches!(entry, Passed::Event(..))).count();
        prop_assert_eq!(rows, events, "nothing is lost while the catalog is asked");
        walferry_coverage::reached("D-I1");
    }

    // D-I2, D-03: a restart at any checkpoint, with the schema of the record
    #[test]
    fn a_restart_gives_the_same_schemas_and_rows(
        transactions in transactions(), trigger: bool, at_once in 0_u64..4, other in 0_u64..4,
    ) {
        let (wal, catalog) = history(transactions, trigger);
        let from = Position(Lsn(START));
        let mut run = Run { owned: owned(from, start()), catalog: &catalog, at_once };
        let (whole, boundaries) = run.follow(session(&wal, from, ALL), from);
        for (checkpoint, recorded) in boundaries {
            let expected: Vec<_> =
                whole.iter().filter(|e| !checkpoint.covers(e.key().commit)).cloned().collect();
            let mut again = Run { owned: owned(from, recorded), catalog: &catalog, at_once: other };
            let (passed, _) = again.follow(session(&wal, checkpoint, ALL), checkpoint);
            let shapes = |all: &[Passed]| all.iter().map(Passed::shape).collect::<Vec<_>>();
            prop_assert_eq!(shapes(&passed), shapes(&expected));
            if expected.iter().any(|entry| matches!(entry, Passed::Schema(..))) {
                walferry_coverage::reached("D-I2");
            }
            if !trigger {
                // A message from before the checkpoint does not come again; the catalog does.
                prop_assert_eq!(passed, expected);
            }
        }
    }

    // the same without a new process
    #[test]
    fn a_rewind_gives_the_same_schemas_and_rows(
        transactions in transactions(), at_once in 0_u64..4,
    ) {
        let (wal, catalog) = history(transactions, false);
        let from = Position(Lsn(START));
        let mut run = Run { owned: owned(from, start()), catalog: &catalog, at_once };
        let (whole, boundaries) = run.follow(session(&wal, from, ALL), from);
        for (checkpoint, _) in boundaries {
            let mut map = run.owned.clone();
            map.values_mut().for_each(|owned| owned.following.rewind(checkpoint));
            let mut again = Run { owned: map, catalog: &catalog, at_once };
            let (passed, _) = again.follow(session(&wal, checkpoint, ALL), checkpoint);
            let expected: Vec<_> =
                whole.iter().filter(|e| !checkpoint.covers(e.key().commit)).cloned().collect();
            prop_assert_eq!(passed, expected);
        }
    }

    // D-I3, D-10, D-F6, D-F7: private up to the handover, main from there
    #[test]
    fn a_handover_is_as_if_one_stream_had_been_followed(
        transactions in transactions(), trigger: bool, at_once in 0_u64..4, at in 0_u64..24,
    ) {
        let (wal, catalog) = history(transactions, trigger);
        let (from, handover) = (Position(Lsn(START)), Position(Lsn(START + at)));
        let mut one = Run { owned: owned(from, start()), catalog: &catalog, at_once };
        let (expected, _) = one.follow(session(&wal, from, ALL), from);
        let mut run = Run { owned: owned(from, start()), catalog: &catalog, at_once };
        let (private, _) = run.follow(session(&wal, from, handover), from);
        for owned in run.owned.values_mut() {
            owned.from = handover;
            owned.following.hand_over();
        }
        // Main was announced and read before the handover, too (D-09).
        let (main, _) = run.follow(session(&wal, from, ALL), from);
        let changes = |all: &[Passed]| all.iter().any(|entry| matches!(entry, Passed::Schema(..)));
        let (before, after, more) = (changes(&private), changes(&main), !main.is_empty());
        prop_assert_eq!([private, main].concat(), expected);
        if before || after {
            walferry_coverage::reached("D-I3");
        }
        if before {
            walferry_coverage::reached("D-F6");
        }
        if before && !after && more {
            walferry_coverage::reached("D-F7");
        }
    }
}
