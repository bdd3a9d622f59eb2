//! Batches as lines.
//!
//! Owns the members of each line and their order. What never differs between the rows of a table is
//! written once per batch and copied.

use std::io::Write as _;

use bytes::Bytes;
use walferry_core::batch::{Batch, ChangeBody, CopyBatch, CopyMode, CopyStart};
use walferry_core::event::RowKind;
use walferry_core::fault::DestinationClass;
use walferry_core::ids::{Attempt, TableId};
use walferry_core::schema::{ReplicaIdentity, TableSchema};
use walferry_core::wire::{Cell, CopyCell, CopyRows, DecodeError, OldKind, RowView, Tuple};

use super::value::{self, NotUtf8};
use crate::contract::DestinationError;
use crate::values::Class;

/// What the lines of one table have in common.
struct Shape {
    /// From `"schema"` to the attempt.
    head: Vec<u8>,
    columns: Vec<Member>,
    /// Whether the key columns are a key, and not the whole row.
    keyed: bool,
}

struct Member {
    /// `"name":`
    name: Vec<u8>,
    class: Class,
    key: bool,
}

/// Why a row has no line.
enum Trouble {
    Malformed(DecodeError),
    NotUtf8 { column: usize },
    Binary { column: usize },
    NoRow,
}

impl From<DecodeError> for Trouble {
    fn from(error: DecodeError) -> Self {
        Self::Malformed(error)
    }
}

macro_rules! put {
    ($out:expr, $($text:tt)*) => {{
        let written = write!($out, $($text)*);
        debug_assert!(written.is_ok(), "a vector takes everything");
    }};
}

/// The line that begins an attempt, with or without a copy.
pub(super) fn copy_begin(out: &mut Vec<u8>, start: &CopyStart) -> Result<(), DestinationError> {
    let shape = Shape::new(&start.schema, start.attempt);
    let op = match start.mode {
        CopyMode::Fresh | CopyMode::Recopy { .. } => "copy_begin",
        CopyMode::Adopt { .. } => "adopt",
    };
    put!(out, "{{\"op\":\"{op}\",");
    out.extend_from_slice(&shape.head);
    match start.mode {
        CopyMode::Fresh | CopyMode::Recopy { .. } => put!(out, ",\"cutoff\":\"{}\"", start.cutoff),
        CopyMode::Adopt { previous: Some(previous) } => put!(out, ",\"previous\":{previous}"),
        CopyMode::Adopt { previous: None } => out.extend_from_slice(b",\"previous\":null"),
    }
    shape.listed(out, &start.schema);
    out.extend_from_slice(b"}\n");
    Ok(())
}

pub(super) fn copy_end(out: &mut Vec<u8>, table: TableId, attempt: Attempt, sequences: u64) {
    put!(
        out,
        "{{\"op\":\"copy_end\",\"oid\":{table},\"attempt\":{attempt},\"sequences\":{sequences}}}\n"
    );
}

pub(super) fn rows(out: &mut Vec<u8>, batch: &CopyBatch<Bytes>) -> Result<(), DestinationError> {
    let shape = Shape::new(&batch.schema, batch.attempt);
    let mut scratch = Vec::new();
    let mut number = 0_u64;
    for block in &batch.blocks {
        for row in CopyRows::new(block, block.len()) {
            row.map_err(Trouble::from)
                .and_then(|row| {
                    out.extend_from_slice(b"{\"op\":\"read\",");
                    out.extend_from_slice(&shape.head);
                    put!(out, ",\"sequence\":{},\"row\":{number},\"key\":", batch.sequence);
                    let cells = || row.cells(shape.columns.len());
                    if shape.keyed {
                        shape.copied(out, cells(), |member| member.key, &mut scratch)?;
                    } else {
                        out.extend_from_slice(b"null");
                    }
                    out.extend_from_slice(b",\"after\":");
                    shape.copied(out, cells(), |_| true, &mut scratch)?;
                    out.extend_from_slice(b"}\n");
                    Ok(())
                })
                .map_err(|trouble| failed(&batch.schema, trouble))?;
            number += 1;
        }
    }
    Ok(())
}

/// `current`: which tables of the batch are still of the current attempt.
pub(super) fn changes(
    out: &mut Vec<u8>,
    batch: &Batch<Bytes>,
    current: &[bool],
) -> Result<(), DestinationError> {
    let shapes: Vec<Shape> =
        batch.tables.iter().map(|of| Shape::new(&of.schema, of.attempt)).collect();
    let mut time = (None, String::new());
    for change in &batch.changes {
        let Some(part) = batch.transactions.get(change.transaction as usize) else {
            return Err(incoherent());
        };
        if time.0 != Some(part.time_us) {
            time = (Some(part.time_us), value::time(part.time_us));
        }
        let place = |index: u32| {
            let index = index as usize;
            let of = batch.tables.get(index).zip(shapes.get(index)).zip(current.get(index));
            of.ok_or_else(incoherent)
        };
        let key = (part.commit, change.ordinal, time.1.as_str());
        match &change.body {
            ChangeBody::Row { table, kind, row } => {
                let ((of, shape), current) = place(*table)?;
                if *current {
                    row_line(out, shape, key, *kind, row)
                        .map_err(|trouble| failed(&of.schema, trouble))?;
                }
            }
            ChangeBody::Truncate { table, flags } => {
                let ((_, shape), current) = place(*table)?;
                if *current {
                    shape.start(out, "truncate", key);
                    let (cascade, restart) = (flags.cascade, flags.restart_identity);
                    put!(out, ",\"cascade\":{cascade},\"restart_identity\":{restart}}}\n");
                }
            }
            ChangeBody::Schema { table, .. } => {
                let ((of, shape), current) = place(*table)?;
                if *current {
                    shape.start(out, "schema", key);
                    shape.listed(out, &of.schema);
                    out.extend_from_slice(b"}\n");
                }
            }
            ChangeBody::Message { lsn, prefix, content } => {
                let (commit, _, time) = key;
                put!(out, "{{\"op\":\"message\",\"lsn\":\"{commit}\",\"time\":\"{time}\"");
                put!(out, ",\"message_lsn\":\"{lsn}\",\"prefix\":");
                value::quoted(out, prefix);
                match str::from_utf8(content) {
                    Ok(text) => {
                        out.extend_from_slice(b",\"content\":");
                        value::quoted(out, text);
                    }
                    Err(_) => put!(out, ",\"content_hex\":\"{}\"", hex::encode(content)),
                }
                out.extend_from_slice(b"}\n");
            }
        }
    }
    Ok(())
}

fn row_line(
    out: &mut Vec<u8>,
    shape: &Shape,
    key: (walferry_core::lsn::CommitLsn, u64, &str),
    kind: RowKind,
    row: &[u8],
) -> Result<(), Trouble> {
    let columns = u16::try_from(shape.columns.len()).unwrap_or(u16::MAX);
    let view = RowView::validate(kind, row, columns)?;
    let op = match kind {
        RowKind::Insert => "insert",
        RowKind::Update => "update",
        RowKind::Delete => "delete",
    };
    shape.start(out, op, key);
    let old = view.old.map(|(_, tuple)| tuple);
    out.extend_from_slice(b",\"key\":");
    match old.or(view.new).filter(|_| shape.keyed) {
        None => out.extend_from_slice(b"null"),
        Some(tuple) => shape.tuple(out, tuple, None, |member| member.key)?,
    }
    out.extend_from_slice(b",\"before\":");
    let mut whole_old = None;
    match view.old {
        None => out.extend_from_slice(b"null"),
        Some((OldKind::Key, tuple)) => shape.tuple(out, tuple, None, |member| member.key)?,
        Some((OldKind::Full, tuple)) => {
            whole_old = Some(tuple);
            shape.tuple(out, tuple, None, |_| true)?;
        }
    }
    out.extend_from_slice(b",\"after\":");
    let Some(new) = view.new else {
        if kind != RowKind::Delete {
            return Err(Trouble::NoRow);
        }
        out.extend_from_slice(b"null}\n");
        return Ok(());
    };
    shape.tuple(out, new, old, |_| true)?;
    shape.unchanged(out, new, whole_old, old);
    out.extend_from_slice(b"}\n");
    Ok(())
}

impl Shape {
    fn new(schema: &TableSchema, attempt: Attempt) -> Self {
        let mut head = b"\"schema\":".to_vec();
        value::quoted(&mut head, &schema.namespace);
        head.extend_from_slice(b",\"table\":");
        value::quoted(&mut head, &schema.name);
        put!(head, ",\"oid\":{},\"attempt\":{attempt}", schema.table);
        let columns: Vec<Member> = schema
            .columns
            .iter()
            .map(|column| {
                let mut name = Vec::new();
                value::quoted(&mut name, &column.name);
                name.push(b':');
                Member { name, class: Class::of(column.type_oid), key: column.key }
            })
            .collect();
        let keyed = match schema.identity {
            ReplicaIdentity::Default | ReplicaIdentity::Index => columns.iter().any(|c| c.key),
            ReplicaIdentity::Full | ReplicaIdentity::Nothing => false,
        };
        Self { head, columns, keyed }
    }

    fn start(
        &self,
        out: &mut Vec<u8>,
        op: &str,
        (commit, ordinal, time): (walferry_core::lsn::CommitLsn, u64, &str),
    ) {
        put!(out, "{{\"op\":\"{op}\",");
        out.extend_from_slice(&self.head);
        put!(out, ",\"lsn\":\"{commit}\",\"ordinal\":{ordinal},\"time\":\"{time}\"");
    }

    /// The columns with their types, and which of them find a row.
    fn listed(&self, out: &mut Vec<u8>, schema: &TableSchema) {
        out.extend_from_slice(b",\"columns\":[");
        for (index, column) in schema.columns.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(b"{\"name\":");
            value::quoted(out, &column.name);
            let key = self.keyed && column.key;
            put!(out, ",\"type_oid\":{},\"key\":{key}}}", column.type_oid);
        }
        out.push(b']');
    }

    /// An object of the columns that `which` takes; what did not change is taken from `old` or left
    /// out.
    fn tuple(
        &self,
        out: &mut Vec<u8>,
        tuple: Tuple<'_>,
        old: Option<Tuple<'_>>,
        which: impl Fn(&Member) -> bool,
    ) -> Result<(), Trouble> {
        out.push(b'{');
        let mut olds = old.map(|old| old.cells());
        let mut first = true;
        for (column, (cell, member)) in tuple.cells().zip(&self.columns).enumerate() {
            let before = olds.as_mut().and_then(Iterator::next);
            if !which(member) {
                continue;
            }
            let cell = match (cell, before) {
                (Cell::Unchanged, Some(before @ Cell::Text(_))) => before,
                (cell, _) => cell,
            };
            let text = match cell {
                Cell::Null => None,
                Cell::Text(text) => Some(text),
                Cell::Unchanged => continue,
                Cell::Binary(_) => return Err(Trouble::Binary { column }),
            };
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            member.write(out, column, text)?;
        }
        out.push(b'}');
        Ok(())
    }

    /// Names the columns of `new` whose values are not known here.
    fn unchanged(
        &self,
        out: &mut Vec<u8>,
        new: Tuple<'_>,
        whole_old: Option<Tuple<'_>>,
        old: Option<Tuple<'_>>,
    ) {
        let mut olds = whole_old.or(old).map(|old| old.cells());
        let mut open = false;
        for (cell, member) in new.cells().zip(&self.columns) {
            let before = olds.as_mut().and_then(Iterator::next);
            let known = cell != Cell::Unchanged || matches!(before, Some(Cell::Text(_)));
            if known {
                continue;
            }
            out.extend_from_slice(if open { b"," } else { b",\"unchanged\":[" });
            open = true;
            out.extend_from_slice(member.name.strip_suffix(b":").unwrap_or_default());
        }
        if open {
            out.push(b']');
        }
    }

    fn copied<'a>(
        &self,
        out: &mut Vec<u8>,
        cells: impl Iterator<Item = Result<CopyCell<'a>, DecodeError>>,
        which: impl Fn(&Member) -> bool,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Trouble> {
        out.push(b'{');
        let mut first = true;
        for (column, (cell, member)) in cells.zip(&self.columns).enumerate() {
            let cell = cell?;
            if !which(member) {
                continue;
            }
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            member.write(out, column, cell.value(scratch)?)?;
        }
        out.push(b'}');
        Ok(())
    }
}

impl Member {
    fn write(&self, out: &mut Vec<u8>, column: usize, text: Option<&[u8]>) -> Result<(), Trouble> {
        out.extend_from_slice(&self.name);
        match text {
            None => out.extend_from_slice(b"null"),
            Some(text) => value::value(out, self.class, text)
                .map_err(|NotUtf8| Trouble::NotUtf8 { column })?,
        }
        Ok(())
    }
}

fn failed(schema: &TableSchema, trouble: Trouble) -> DestinationError {
    let name = schema.qualified_name();
    let column = |index: usize| {
        schema.columns.get(index).map_or_else(|| "?".to_owned(), |c| format!("{:?}", c.name))
    };
    let say = |problem: String| {
        let message = format!("json lines: a row of {name} cannot be written: {problem}");
        DestinationError::new(DestinationClass::Permanent, message).on_table(schema.table)
    };
    match trouble {
        Trouble::Malformed(error) => {
            say("its bytes are not such a row".to_owned()).caused_by(error)
        }
        Trouble::NotUtf8 { column: index } => say(format!("column {} is not UTF-8", column(index))),
        Trouble::Binary { column: index } => {
            say(format!("column {} is in binary form", column(index)))
        }
        Trouble::NoRow => say("it has no new row".to_owned()),
    }
}

fn incoherent() -> DestinationError {
    DestinationError::new(
        DestinationClass::Permanent,
        "json lines: a batch names a table or transaction that it does not hold",
    )
}
