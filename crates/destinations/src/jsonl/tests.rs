use std::io;
use std::sync::{Arc, Mutex};

use walferry_core::batch::{BatchTable, Change, ChangeBody, CopyMode, TransactionPart};
use walferry_core::event::RowKind;
use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::schema::{Column, ReplicaIdentity, TableSchema};
use walferry_core::wire::{Cell, OldKind, encode};

use super::*;

const TABLE: TableId = TableId(7);

/// Takes `room` bytes, then fails.
#[derive(Clone)]
struct Pipe {
    written: Arc<Mutex<Vec<u8>>>,
    room: usize,
}

impl io::Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = self.written.lock().unwrap();
        if written.len() + bytes.len() > self.room {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        written.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn writer(room: usize) -> (Writer, Pipe) {
    let pipe = Pipe { written: Arc::default(), room };
    (Writer::new(Sink::stream(Box::new(pipe.clone()))), pipe)
}

fn text(pipe: &Pipe) -> String {
    String::from_utf8(pipe.written.lock().unwrap().clone()).unwrap()
}

fn schema(identity: ReplicaIdentity) -> Arc<TableSchema> {
    let column = |number, name: &str, type_oid| Column {
        number,
        name: name.to_owned(),
        type_oid,
        modifier: -1,
        not_null: false,
        default: None,
        key: number == 1 || identity == ReplicaIdentity::Full,
    };
    Arc::new(TableSchema {
        table: TABLE,
        namespace: "public".to_owned(),
        name: "say \"hi\"".to_owned(),
        identity,
        columns: vec![column(1, "id", 20), column(2, "doc", 3802), column(3, "big", 25)],
        unpublished: Vec::new(),
        storage: None,
    })
}

fn batch(schema: &Arc<TableSchema>, rows: Vec<(RowKind, Vec<u8>)>) -> Batch<Bytes> {
    let change = |(ordinal, (kind, row)): (u64, (RowKind, Vec<u8>))| Change {
        transaction: 0,
        ordinal,
        body: ChangeBody::Row { table: 0, kind, row: row.into() },
    };
    Batch {
        lane: Lane::Main,
        epoch: Epoch(1),
        tables: vec![BatchTable { table: TABLE, attempt: Attempt(2), schema: Arc::clone(schema) }],
        transactions: vec![TransactionPart {
            commit: CommitLsn(Lsn(0x1_0000_0010)),
            time_us: 1,
            begins: true,
            end: None,
        }],
        changes: (0..).zip(rows).map(change).collect(),
        bytes: 0,
    }
}

const ID: Cell<'static> = Cell::Text(b"1");

#[test]
fn each_change_has_its_line() {
    let (mut writer, pipe) = writer(usize::MAX);
    let schema = schema(ReplicaIdentity::Default);
    let new = [ID, Cell::Text(b"{\"a\": [1]}"), Cell::Null];
    let old = [ID, Cell::Null, Cell::Null];
    let batch = batch(
        &schema,
        vec![
            (RowKind::Insert, encode::row(None, Some(&new))),
            (RowKind::Update, encode::row(None, Some(&[ID, Cell::Null, Cell::Unchanged]))),
            (
                RowKind::Update,
                encode::row(
                    Some((OldKind::Key, &old)),
                    Some(&[Cell::Text(b"2"), Cell::Null, Cell::Unchanged]),
                ),
            ),
            (RowKind::Delete, encode::row(Some((OldKind::Key, &old)), None)),
        ],
    );
    writer.append(|out| lines::changes(out, &batch, &[true])).unwrap();
    let head =
        r#""schema":"public","table":"say \"hi\"","oid":7,"attempt":2,"lsn":"1/10","ordinal":"#;
    let time = r#""time":"2000-01-01T00:00:00.000001Z""#;
    let expected = format!(
        r#"{{"op":"insert",{head}0,{time},"key":{{"id":1}},"before":null,"after":{{"id":1,"doc":{{"a": [1]}},"big":null}}}}
{{"op":"update",{head}1,{time},"key":{{"id":1}},"before":null,"after":{{"id":1,"doc":null}},"unchanged":["big"]}}
{{"op":"update",{head}2,{time},"key":{{"id":1}},"before":{{"id":1}},"after":{{"id":2,"doc":null}},"unchanged":["big"]}}
{{"op":"delete",{head}3,{time},"key":{{"id":1}},"before":{{"id":1}},"after":null}}
"#
    );
    assert_eq!(text(&pipe), expected);
}

// DS-15
#[test]
fn a_full_old_row_supplies_what_did_not_change() {
    let (mut writer, pipe) = writer(usize::MAX);
    let schema = schema(ReplicaIdentity::Full);
    let old = [ID, Cell::Null, Cell::Text(b"large")];
    let new = [ID, Cell::Text(b"7"), Cell::Unchanged];
    let row = encode::row(Some((OldKind::Full, &old)), Some(&new));
    let batch = batch(&schema, vec![(RowKind::Update, row)]);
    writer.append(|out| lines::changes(out, &batch, &[true])).unwrap();
    assert!(
        text(&pipe).ends_with(
            r#""key":null,"before":{"id":1,"doc":null,"big":"large"},"after":{"id":1,"doc":7,"big":"large"}}
"#
        ),
        "{}",
        text(&pipe)
    );
}

#[test]
fn a_copy_has_a_begin_rows_and_an_end() {
    let (mut writer, pipe) = writer(usize::MAX);
    let schema = schema(ReplicaIdentity::Default);
    let start = CopyStart {
        table: TABLE,
        attempt: Attempt(2),
        epoch: Epoch(1),
        mode: CopyMode::Fresh,
        schema: Arc::clone(&schema),
        cutoff: Position(Lsn(5)),
    };
    let row = encode::copy_row(&[Some(b"1"), None, Some(b"a\tb")]);
    let rows = CopyBatch {
        table: TABLE,
        attempt: Attempt(2),
        epoch: Epoch(1),
        sequence: 1,
        schema,
        blocks: vec![row.clone().into(), row.into()],
        rows: 2,
        bytes: 0,
    };
    writer.append(|out| lines::copy_begin(out, &start)).unwrap();
    writer.append(|out| lines::rows(out, &rows)).unwrap();
    writer
        .append(|out| {
            lines::copy_end(out, TABLE, Attempt(2), 1);
            Ok(())
        })
        .unwrap();
    let head = r#""schema":"public","table":"say \"hi\"","oid":7,"attempt":2"#;
    let row = r#""key":{"id":1},"after":{"id":1,"doc":null,"big":"a\tb"}"#;
    let expected = format!(
        r#"{{"op":"copy_begin",{head},"cutoff":"0/5","columns":[{{"name":"id","type_oid":20,"key":true}},{{"name":"doc","type_oid":3802,"key":false}},{{"name":"big","type_oid":25,"key":false}}]}}
{{"op":"read",{head},"sequence":1,"row":0,{row}}}
{{"op":"read",{head},"sequence":1,"row":1,{row}}}
{{"op":"copy_end","oid":7,"attempt":2,"sequences":1}}
"#
    );
    assert_eq!(text(&pipe), expected);
}

#[test]
fn messages_are_text_if_they_can_be() {
    let (mut writer, pipe) = writer(usize::MAX);
    let mut batch = batch(&schema(ReplicaIdentity::Default), Vec::new());
    for content in [&b"caf\xC3\xA9"[..], b"\xFF\x00"] {
        batch.changes.push(Change {
            transaction: 0,
            ordinal: u64::MAX,
            body: ChangeBody::Message {
                lsn: Lsn(9),
                prefix: "p".into(),
                content: Bytes::from_static(content),
            },
        });
    }
    writer.append(|out| lines::changes(out, &batch, &[true])).unwrap();
    let head = r#"{"op":"message","lsn":"1/10","time":"2000-01-01T00:00:00.000001Z","message_lsn":"0/9","prefix":"p","#;
    let expected = format!("{head}\"content\":\"café\"}}\n{head}\"content_hex\":\"ff00\"}}\n");
    assert_eq!(text(&pipe), expected);
}

// DS-10
#[test]
fn a_reader_that_has_gone_is_a_manual_error_for_good() {
    let (mut writer, pipe) = writer(100);
    let line = |out: &mut Vec<u8>| {
        lines::copy_end(out, TABLE, Attempt(2), 1);
        Ok(())
    };
    writer.append(line).unwrap();
    for _ in 0..2 {
        let error = writer.append(line).unwrap_err();
        assert_eq!(error.class, DestinationClass::Manual);
    }
    assert_eq!(text(&pipe).lines().count(), 1);
}
