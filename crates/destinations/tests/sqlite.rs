//! The SQLite destination: names, types, claims and contradictions.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::Connection;
use walferry_core::batch::{
    Batch, BatchTable, Change, ChangeBody, CopyBatch, CopyMode, CopyStart, TransactionPart,
};
use walferry_core::event::RowKind;
use walferry_core::fault::DestinationClass;
use walferry_core::ids::{Attempt, Epoch, Lane, TableId};
use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::schema::{Column, ReplicaIdentity, TableSchema};
use walferry_core::wire::{Cell, OldKind, encode};
use walferry_destinations::kit::{Run, Source, row};
use walferry_destinations::{Destination, DestinationError, SqliteDestination};

use common::Sqlite;

const ONE: Epoch = Epoch(1);

/// Columns are (name, type OID, key).
fn schema(
    oid: u32,
    name: &str,
    identity: ReplicaIdentity,
    columns: &[(&str, u32, bool)],
) -> Arc<TableSchema> {
    let (namespace, name) = name.split_once('.').unwrap();
    let column = |&(name, type_oid, key): &(&str, u32, bool)| Column {
        number: 0,
        name: name.to_owned(),
        type_oid,
        modifier: -1,
        not_null: key,
        default: None,
        key,
    };
    Arc::new(TableSchema {
        table: TableId(oid),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        identity,
        columns: columns.iter().map(column).collect(),
        unpublished: Vec::new(),
        storage: None,
    })
}

fn start(schema: &Arc<TableSchema>, attempt: u64) -> CopyStart {
    let mode = match attempt {
        1 => CopyMode::Fresh,
        later => CopyMode::Recopy { previous: Attempt(later - 1) },
    };
    CopyStart {
        table: schema.table,
        attempt: Attempt(attempt),
        epoch: ONE,
        mode,
        schema: Arc::clone(schema),
        cutoff: Position(Lsn(1)),
    }
}

fn rows(schema: &Arc<TableSchema>, rows: &[Vec<Option<&str>>]) -> Arc<CopyBatch<Bytes>> {
    let frames = rows.iter().map(|row| {
        let cells: Vec<Option<&[u8]>> = row.iter().map(|cell| cell.map(str::as_bytes)).collect();
        Bytes::from(encode::copy_row(&cells))
    });
    Arc::new(CopyBatch {
        table: schema.table,
        attempt: Attempt(1),
        epoch: ONE,
        sequence: 1,
        schema: Arc::clone(schema),
        blocks: frames.collect(),
        rows: rows.len() as u64,
        bytes: 0,
    })
}

fn change(schema: &Arc<TableSchema>, lsn: u64, kind: RowKind, row: Vec<u8>) -> Arc<Batch<Bytes>> {
    let attempt = Attempt(1);
    Arc::new(Batch {
        lane: Lane::Main,
        epoch: ONE,
        tables: vec![BatchTable { table: schema.table, attempt, schema: Arc::clone(schema) }],
        transactions: vec![TransactionPart {
            commit: CommitLsn(Lsn(lsn)),
            time_us: 0,
            begins: true,
            end: None,
        }],
        changes: vec![Change {
            transaction: 0,
            ordinal: 0,
            body: ChangeBody::Row { table: 0, kind, row: row.into() },
        }],
        bytes: 0,
    })
}

async fn started(sink: &Sqlite) -> SqliteDestination {
    let destination = SqliteDestination::new(sink.0.path().join("sink.db"));
    destination.startup("kit", ONE).await.unwrap();
    destination
}

async fn copied(
    destination: &SqliteDestination,
    schema: &Arc<TableSchema>,
    content: &[Vec<Option<&str>>],
) {
    destination.begin_copy(start(schema, 1)).await.unwrap();
    destination.write_rows(rows(schema, content)).await.unwrap();
    destination.finish_copy(schema.table, Attempt(1), ONE, 1).await.unwrap();
}

fn refused<T: std::fmt::Debug>(
    result: Result<T, DestinationError>,
    class: DestinationClass,
    parts: &[&str],
) {
    let error = result.unwrap_err();
    assert_eq!(error.class, class, "{}", error.chain());
    for part in parts {
        assert!(error.message.contains(part), "{part:?} is not in {:?}", error.message);
    }
}

fn quoted(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

#[tokio::test]
async fn values_come_back_as_they_were() {
    let cases: [(u32, &str, &str); 22] = [
        (16, "t", "1"),
        (16, "f", "0"),
        (20, "9223372036854775807", "9223372036854775807"),
        (20, "-9223372036854775808", "-9223372036854775808"),
        (26, "4294967295", "4294967295"),
        (25, "007", "'007'"),
        (25, "1e5", "'1e5'"),
        (25, "", "''"),
        (25, "a\tb\\c\nd'é", "'a\tb\\c\nd''é'"),
        (1043, "1.0", "'1.0'"),
        (1700, "0.10", "'0.10'"),
        (1700, "123456789012345678901234567890.5", "'123456789012345678901234567890.5'"),
        (1700, "NaN", "'NaN'"),
        (701, "0.1", "0.1"),
        (701, "5e-324", "4.94065645841247e-324"),
        (701, "NaN", "'NaN'"),
        (701, "-Infinity", "'-Infinity'"),
        (701, "-0", "X'2D30'"),
        (17, "\\x00ff", "X'00FF'"),
        (17, "\\x", "X''"),
        (3802, "{\"a\": 1}", "'{\"a\": 1}'"),
        (99_999, "12", "'12'"),
    ];
    let sink = Sqlite::new();
    let destination = started(&sink).await;
    let names: Vec<String> = (0..cases.len()).map(|index| format!("c{index}")).collect();
    let columns: Vec<(&str, u32, bool)> = names
        .iter()
        .zip(&cases)
        .enumerate()
        .map(|(index, (name, case))| (name.as_str(), case.0, index == 2))
        .collect();
    let schema = schema(1, "public.types", ReplicaIdentity::Default, &columns);
    let values: Vec<Option<&str>> = cases.iter().map(|case| Some(case.1)).collect();
    copied(&destination, &schema, &[values]).await;
    // The same through a change: the key is deleted and inserted again.
    let key: Vec<Cell<'_>> = cases
        .iter()
        .enumerate()
        .map(|(index, case)| if index == 2 { Cell::Text(case.1.as_bytes()) } else { Cell::Null })
        .collect();
    let new: Vec<Cell<'_>> = cases.iter().map(|case| Cell::Text(case.1.as_bytes())).collect();
    let read = || {
        let list: Vec<String> = names.iter().map(|name| format!("quote({name})")).collect();
        let sql = format!("SELECT {} FROM types", list.join(" || char(1) || "));
        quoted(&sink.connect(), &sql)
    };
    let expected = cases.map(|case| case.2).join("\u{1}");
    assert_eq!(read(), [expected.as_str()]);
    let gone = encode::row(Some((OldKind::Key, &key)), None);
    destination.write_changes(change(&schema, 10, RowKind::Delete, gone)).await.unwrap();
    let back = encode::row(None, Some(&new));
    destination.write_changes(change(&schema, 20, RowKind::Insert, back)).await.unwrap();
    assert_eq!(read(), [expected.as_str()]);
}

#[tokio::test]
async fn a_table_without_key_has_equal_rows_and_loses_one_at_a_time() {
    let sink = Sqlite::new();
    let destination = started(&sink).await;
    let columns = [("rowid", 25, true), ("order", 701, true), ("we\"ird", 25, true)];
    let schema = schema(1, "public.multi", ReplicaIdentity::Full, &columns);
    let twin = vec![Some("a"), Some("NaN"), None];
    copied(&destination, &schema, &[twin.clone(), twin.clone(), twin]).await;
    let old = [Cell::Text(b"a"), Cell::Text(b"NaN"), Cell::Null];
    let gone = encode::row(Some((OldKind::Full, &old)), None);
    let count = || quoted(&sink.connect(), "SELECT '' || count(*) FROM multi")[0].clone();
    for (lsn, left) in [(10, "2"), (20, "1"), (30, "0")] {
        let batch = change(&schema, lsn, RowKind::Delete, gone.clone());
        destination.write_changes(batch).await.unwrap();
        assert_eq!(count(), left);
    }
    let batch = change(&schema, 40, RowKind::Delete, gone);
    refused(
        destination.write_changes(batch).await,
        DestinationClass::Manual,
        &["cannot delete a row of public.multi", "walferry resync public.multi"],
    );
}

#[tokio::test]
async fn the_widest_table_of_the_source_fits() {
    let sink = Sqlite::new();
    let destination = started(&sink).await;
    let names: Vec<String> = (0..1_600).map(|index| format!("c{index}")).collect();
    let columns: Vec<(&str, u32, bool)> = names.iter().map(|n| (n.as_str(), 23, true)).collect();
    let full = schema(1, "public.wide", ReplicaIdentity::Full, &columns);
    copied(&destination, &full, &[vec![Some("1"); 1_600]]).await;
    let (old, new) = (vec![Cell::Text(b"1"); 1_600], vec![Cell::Text(b"2"); 1_600]);
    let row = encode::row(Some((OldKind::Full, &old)), Some(&new));
    destination.write_changes(change(&full, 10, RowKind::Update, row)).await.unwrap();
    assert_eq!(quoted(&sink.connect(), "SELECT c0 || c1599 FROM wide"), ["22"]);
}

// DS-05
#[tokio::test]
async fn names_that_sqlite_cannot_tell_apart_are_refused() {
    let sink = Sqlite::new();
    let destination = started(&sink).await;
    let id = [("id", 23, true)];
    let default = ReplicaIdentity::Default;
    let dotted = schema(1, "public.a.b", default, &id);
    destination.begin_copy(start(&dotted, 1)).await.unwrap();
    let manual = DestinationClass::Manual;
    let clash = destination.begin_copy(start(&schema(2, "a.b", default, &id), 1)).await;
    refused(clash, manual, &["cannot hold a.b", "public.a.b"]);
    let upper = schema(3, "public.A.B", default, &id);
    let clash = destination.begin_copy(start(&upper, 1)).await;
    refused(clash, manual, &["cannot hold public.A.B", "that of public.a.b"]);
    let twice = schema(4, "public.t", default, &[("id", 23, true), ("ID", 23, false)]);
    refused(destination.begin_copy(start(&twice, 1)).await, manual, &["\"id\" and \"ID\""]);
    sink.connect().execute_batch("CREATE VIEW v AS SELECT 1").unwrap();
    let view = destination.begin_copy(start(&schema(5, "public.v", default, &id), 1)).await;
    refused(view, manual, &["\"v\" is a view"]);
    // The same name under a new OID: dropped and made anew at the source.
    let anew = schema(6, "public.a.b", default, &[("id", 25, true)]);
    destination.begin_copy(start(&anew, 2)).await.unwrap();
    let late = encode::row(None, Some(&[Cell::Text(b"1")]));
    let late = destination.write_changes(change(&dotted, 10, RowKind::Insert, late)).await;
    refused(late, manual, &["walferry resync public.a.b"]);
}

// DS-05: a renamed table moves with its next copy
#[tokio::test]
async fn a_renamed_table_leaves_nothing_behind() {
    let sink = Sqlite::new();
    let destination = started(&sink).await;
    let columns = [("id", 23, true)];
    let before = schema(1, "public.before", ReplicaIdentity::Default, &columns);
    copied(&destination, &before, &[vec![Some("1")]]).await;
    let after = schema(1, "app.after", ReplicaIdentity::Default, &columns);
    let row = encode::row(None, Some(&[Cell::Text(b"2")]));
    destination.write_changes(change(&after, 10, RowKind::Insert, row)).await.unwrap();
    assert_eq!(quoted(&sink.connect(), "SELECT '' || id FROM before"), ["1", "2"]);
    destination.begin_copy(start(&after, 2)).await.unwrap();
    let names =
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '\\_%' ESCAPE '\\'";
    assert_eq!(quoted(&sink.connect(), names), ["app.after"]);
}

#[tokio::test]
async fn contradictions_are_errors_that_name_table_and_key() {
    let sink = Sqlite::new();
    let destination = started(&sink).await;
    let columns = [("id", 25, true), ("note", 25, false)];
    let table = schema(1, "public.t", ReplicaIdentity::Default, &columns);
    copied(&destination, &table, &[vec![Some("secret"), None]]).await;
    let manual = DestinationClass::Manual;
    let key = [Cell::Text(b"secret"), Cell::Null];
    let row = encode::row(None, Some(&key));
    let again = destination.write_changes(change(&table, 10, RowKind::Insert, row)).await;
    assert!(!again.as_ref().unwrap_err().chain().contains("secret"));
    assert!(again.as_ref().unwrap_err().no_effect_on_others);
    refused(again, manual, &["cannot insert a row into public.t", "\"id\""]);
    let other = [Cell::Text(b"SECRET"), Cell::Null];
    let row = encode::row(None, Some(&other));
    let missing = destination.write_changes(change(&table, 10, RowKind::Update, row)).await;
    refused(missing, manual, &["cannot update a row of public.t", "no row has its key"]);
    let wider = schema(1, "public.t", ReplicaIdentity::Default, &[("id", 25, true)]);
    let row = encode::row(None, Some(&[Cell::Text(b"x")]));
    let changed = destination.write_changes(change(&wider, 10, RowKind::Insert, row)).await;
    refused(changed, manual, &["public.t has changed from", "walferry resync public.t"]);
    let rows = rows(&table, &[vec![Some("b"), None], vec![Some("b")]]);
    let short = CopyBatch { sequence: 1, attempt: Attempt(2), ..CopyBatch::clone(&rows) };
    destination.begin_copy(start(&table, 2)).await.unwrap();
    let short = destination.write_rows(Arc::new(short)).await;
    refused(short, DestinationClass::Permanent, &["public.t"]);
    let early = destination.finish_copy(TableId(1), Attempt(2), ONE, 1).await;
    refused(early, DestinationClass::Permanent, &["the copy of public.t is not complete"]);
}

// DS-16
#[tokio::test]
async fn a_file_has_one_owner() {
    let sink = Sqlite::new();
    drop(started(&sink).await);
    let path = sink.0.path().join("sink.db");
    let open = || SqliteDestination::new(&path);
    let (manual, fenced) = (DestinationClass::Manual, DestinationClass::Fenced);
    let name = path.display().to_string();
    let other = open().startup("other", Epoch(9)).await;
    refused(other, manual, &[&name, "\"kit\"", "\"other\"", "--take-over"]);
    open().startup("kit", Epoch(5)).await.unwrap();
    refused(open().startup("kit", Epoch(4)).await, fenced, &[&name, "epoch 5"]);
    open().take_over(true).startup("other", ONE).await.unwrap();
    refused(open().startup("kit", Epoch(9)).await, manual, &["\"other\""]);
    sink.connect().execute_batch("UPDATE _walferry_pipeline SET format = 2").unwrap();
    refused(open().startup("other", Epoch(2)).await, manual, &["newer walferry (format 2"]);
}

// DS-10
#[tokio::test]
async fn what_is_not_a_usable_file_is_said_at_startup() {
    let folder = tempfile::tempdir().unwrap();
    let manual = DestinationClass::Manual;
    let startup = async |path: &Path| SqliteDestination::new(path).startup("kit", ONE).await;
    refused(startup(folder.path()).await, manual, &["it is a folder"]);
    let missing = folder.path().join("no/such/sink.db");
    refused(startup(&missing).await, manual, &["mkdir -p", "no/such"]);
    let text = folder.path().join("text");
    fs::write(&text, "not a database, but long enough to be looked at as one".repeat(100)).unwrap();
    refused(startup(&text).await, manual, &["it is not a SQLite database"]);
    let early = SqliteDestination::new(folder.path().join("x")).flush(Lane::Main).await;
    refused(early, DestinationClass::Permanent, &["called before startup"]);
}

// DS-10
#[tokio::test]
async fn another_writer_is_waited_for_and_then_a_transient_error() {
    let sink = Sqlite::new();
    let mut source = Source::new();
    let table = source.table("t", ReplicaIdentity::Default);
    let run = Run::start(&sink, ONE).await.unwrap();
    run.copy(&mut source, table).await.unwrap();
    source.commit(|t| t.insert(table, row(1, "a", "")));
    let batch = source.batches(0..1, 1, ONE, |_| true).remove(0);
    let writer = sink.connect();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let busy = run.destination.write_changes(Arc::clone(&batch)).await;
    let transient = DestinationClass::Transient { retry_after: None };
    assert!(busy.as_ref().unwrap_err().no_effect_on_others);
    refused(busy, transient, &["another program is writing to it"]);
    writer.execute_batch("ROLLBACK").unwrap();
    run.write(vec![batch]).await.unwrap();
    run.expect("after the other writer", &source, &[table]).await.unwrap();
}

// DS-12
#[tokio::test]
async fn a_call_that_is_given_up_has_no_effect() {
    let sink = Sqlite::new();
    let mut source = Source::new();
    let table = source.table("t", ReplicaIdentity::Default);
    let run = Run::start(&sink, ONE).await.unwrap();
    run.copy(&mut source, table).await.unwrap();
    source.commit(|t| t.insert(table, row(1, "a", "")));
    let batch = source.batches(0..1, 1, ONE, |_| true).remove(0);
    let writer = sink.connect();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    {
        // The thread waits for the lock while the call is dropped.
        let call = run.destination.write_changes(Arc::clone(&batch));
        let polled = tokio::time::timeout(std::time::Duration::ZERO, call).await;
        assert!(polled.is_err());
    }
    writer.execute_batch("ROLLBACK").unwrap();
    run.flush().await.unwrap();
    drop(run);
    assert_eq!(quoted(&sink.connect(), "SELECT '' || count(*) FROM t"), ["0"]);
}
