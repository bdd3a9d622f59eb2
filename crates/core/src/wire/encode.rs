//! The other direction: bytes as a server would send them.
//!
//! Owns nothing that the pipeline needs; tests, fuzz targets and scripted servers build streams
//! with it. Takes values as they are, contradictions included.

use crate::event::RowKind;
use crate::ids::TableId;
use crate::lsn::{Lsn, Position};
use crate::schema::{Relation, ReplicaIdentity};

use super::pgoutput::Message;
use super::tuple::{Cell, OldKind};

/// A backend frame.
#[must_use]
pub fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = length(body.len() + 4);
    [&[tag][..], &length, body].concat()
}

/// A CopyData frame with an output plugin's message; all header fields are `wal` or 0.
#[must_use]
pub fn xlog_data(wal: Lsn, message: &[u8]) -> Vec<u8> {
    let wal = wal.0.to_be_bytes();
    frame(b'd', &[b"w", &wal[..], &wal, &[0; 8], message].concat())
}

/// A CopyData frame with a keepalive.
#[must_use]
pub fn keepalive(wal_end: Position, time_us: i64, reply: bool) -> Vec<u8> {
    let fields: [&[u8]; 4] =
        [b"k", &wal_end.0.0.to_be_bytes(), &time_us.to_be_bytes(), &[u8::from(reply)]];
    frame(b'd', &fields.concat())
}

/// A run of CopyData frames, one for each message.
#[must_use]
pub fn stream(messages: &[Message<'_>]) -> Vec<u8> {
    messages.iter().flat_map(|each| xlog_data(Lsn::ZERO, &message(each))).collect()
}

/// A message of the output plugin.
#[must_use]
pub fn message(message: &Message<'_>) -> Vec<u8> {
    match message {
        Message::Begin { commit, time_us, xid } => {
            [b"B", &commit.0.0.to_be_bytes()[..], &time_us.to_be_bytes(), &xid.to_be_bytes()]
                .concat()
        }
        Message::Commit { commit, end, time_us } => {
            [&b"C\0"[..], &commit.0.0.to_be_bytes(), &end.0.0.to_be_bytes(), &time_us.to_be_bytes()]
                .concat()
        }
        Message::Origin { commit, name } => {
            [b"O", &commit.0.to_be_bytes()[..], name.as_bytes(), b"\0"].concat()
        }
        Message::Relation(announced) => relation(announced),
        Message::Type { oid, namespace, name } => {
            let oid = &oid.to_be_bytes()[..];
            [b"Y", oid, namespace.as_bytes(), b"\0", name.as_bytes(), b"\0"].concat()
        }
        Message::Row { kind, table, row } => {
            let tag: &[u8] = match kind {
                RowKind::Insert => b"I",
                RowKind::Update => b"U",
                RowKind::Delete => b"D",
            };
            [tag, &table.0.to_be_bytes(), row].concat()
        }
        Message::Truncate { tables, flags } => {
            let flags = u8::from(flags.cascade) | u8::from(flags.restart_identity) << 1;
            let tables = tables.iter().flat_map(|table| table.0.to_be_bytes()).collect::<Vec<_>>();
            [b"T", &length(tables.len() / 4)[..], &[flags], &tables].concat()
        }
        Message::Logical { transactional, lsn, prefix, content } => {
            let flags = [u8::from(*transactional)];
            let (lsn, length) = (lsn.0.to_be_bytes(), length(content.len()));
            [b"M", &flags[..], &lsn, prefix.as_bytes(), b"\0", &length, content].concat()
        }
    }
}

fn relation(relation: &Relation) -> Vec<u8> {
    let identity = match relation.identity {
        ReplicaIdentity::Nothing => b"n",
        ReplicaIdentity::Default => b"d",
        ReplicaIdentity::Index => b"i",
        ReplicaIdentity::Full => b"f",
    };
    let (namespace, name) = (relation.namespace.as_bytes(), relation.name.as_bytes());
    let table = &relation.table.0.to_be_bytes()[..];
    let count = count(relation.columns.len());
    let mut bytes = [b"R", table, namespace, b"\0", name, b"\0", &identity[..], &count].concat();
    for column in &relation.columns {
        bytes.push(u8::from(column.key));
        bytes.extend_from_slice(column.name.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(&column.type_oid.to_be_bytes());
        bytes.extend_from_slice(&column.modifier.to_be_bytes());
    }
    bytes
}

/// An insert of one row.
#[must_use]
pub fn insert(table: TableId, new: &[Cell<'_>]) -> Vec<u8> {
    message(&Message::Row { kind: RowKind::Insert, table, row: &row(None, Some(new)) })
}

/// An update of one row.
#[must_use]
pub fn update(table: TableId, old: Option<(OldKind, &[Cell<'_>])>, new: &[Cell<'_>]) -> Vec<u8> {
    message(&Message::Row { kind: RowKind::Update, table, row: &row(old, Some(new)) })
}

/// A delete of one row.
#[must_use]
pub fn delete(table: TableId, kind: OldKind, old: &[Cell<'_>]) -> Vec<u8> {
    message(&Message::Row { kind: RowKind::Delete, table, row: &row(Some((kind, old)), None) })
}

/// What follows the table in a row message, and what the row of an event holds.
#[must_use]
pub fn row(old: Option<(OldKind, &[Cell<'_>])>, new: Option<&[Cell<'_>]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some((kind, cells)) = old {
        let marker = match kind {
            OldKind::Key => b'K',
            OldKind::Full => b'O',
        };
        tuple(marker, cells, &mut bytes);
    }
    if let Some(cells) = new {
        tuple(b'N', cells, &mut bytes);
    }
    bytes
}

fn tuple(marker: u8, cells: &[Cell<'_>], bytes: &mut Vec<u8>) {
    bytes.push(marker);
    bytes.extend_from_slice(&count(cells.len()));
    for cell in cells {
        let (tag, value) = match cell {
            Cell::Null => (b'n', None),
            Cell::Unchanged => (b'u', None),
            Cell::Text(value) => (b't', Some(value)),
            Cell::Binary(value) => (b'b', Some(value)),
        };
        bytes.push(tag);
        if let Some(value) = value {
            bytes.extend_from_slice(&length(value.len()));
            bytes.extend_from_slice(value);
        }
    }
}

/// A CopyData frame with one row of a table copy in text format; `None` is NULL.
#[must_use]
pub fn copy_row(cells: &[Option<&[u8]>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, cell) in cells.iter().enumerate() {
        if index > 0 {
            bytes.push(b'\t');
        }
        let Some(value) = cell else {
            bytes.extend_from_slice(b"\\N");
            continue;
        };
        for byte in *value {
            match byte {
                0x08 => bytes.extend_from_slice(b"\\b"),
                0x0B => bytes.extend_from_slice(b"\\v"),
                0x0C => bytes.extend_from_slice(b"\\f"),
                b'\n' => bytes.extend_from_slice(b"\\n"),
                b'\r' => bytes.extend_from_slice(b"\\r"),
                b'\t' => bytes.extend_from_slice(b"\\t"),
                b'\\' => bytes.extend_from_slice(b"\\\\"),
                other => bytes.push(*other),
            }
        }
    }
    bytes.push(b'\n');
    frame(b'd', &bytes)
}

fn length(length: usize) -> [u8; 4] {
    i32::try_from(length).unwrap_or(i32::MAX).to_be_bytes()
}

fn count(count: usize) -> [u8; 2] {
    i16::try_from(count).unwrap_or(i16::MAX).to_be_bytes()
}
