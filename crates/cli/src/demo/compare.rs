//! Compares the source with the SQLite file, row by row and in all columns, without anything of
//! walferry: psql on one side, SQLite on the other.
//!
//! Both sides give each row as one line in the form of `COPY .. TO STDOUT`. The lines of a table are
//! a multiset.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

use crate::demo::Failure;
use crate::demo::schema::{Column, Form, TABLES, Table};

/// Differing rows of a table that are shown.
const SHOWN_MAX: usize = 3;
/// Characters of a differing row that are shown.
const SHOWN_CHARS_MAX: usize = 150;

/// What the comparison of one table found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) source_rows: usize,
    pub(super) destination_rows: usize,
    /// Rows that only the source has.
    pub(super) missing: usize,
    /// Rows that only the destination has.
    pub(super) surplus: usize,
    /// Some of both, for people.
    pub(super) examples: Vec<String>,
}

/// Opens the destination for reading.
pub(super) fn open(sqlite: &Path) -> Result<Connection, Failure> {
    Connection::open_with_flags(sqlite, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .map_err(|error| Failure::new("the SQLite file cannot be opened", error))
}

/// Makes one row vanish, so that a test sees that this is noticed.
pub(super) fn lose_one_row(sqlite: &Path, rng: &mut fastrand::Rng) -> Result<(), Failure> {
    let lost = Connection::open(sqlite).and_then(|file| {
        let rows: u32 = file.query_row("SELECT count(*) FROM accounts", [], |row| row.get(0))?;
        file.execute(
            "DELETE FROM accounts WHERE id = (SELECT id FROM accounts ORDER BY id LIMIT 1 OFFSET ?)",
            [rng.u32(..rows.max(1))],
        )
    });
    lost.map(drop).map_err(|error| Failure::new("no row can be lost", error))
}

/// Tables of the file that are neither of the source nor walferry's own.
pub(super) fn foreign_tables(file: &Connection) -> Result<Vec<String>, Failure> {
    let known: BTreeSet<&str> = TABLES.iter().map(|table| table.name).collect();
    let names =
        table_names(file).map_err(|error| Failure::new("the SQLite file cannot be read", error))?;
    Ok(names
        .into_iter()
        .filter(|name| !known.contains(name.as_str()))
        .filter(|name| !name.starts_with("_walferry_") && !name.starts_with("sqlite_"))
        .collect())
}

fn table_names(file: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut query =
        file.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1")?;
    query.query_map([], |row| row.get(0))?.collect()
}

/// Compares one table; `psql` runs what it is given with `-c`.
pub(super) fn compare(
    table: &Table,
    psql: Command,
    file: &Connection,
) -> Result<Difference, Failure> {
    let mut source = source_rows(table, psql)?;
    let mut destination = destination_rows(table, file).map_err(|error| {
        Failure::new(format!("the SQLite table {} cannot be read", table.name), error)
    })?;
    source.sort_unstable();
    destination.sort_unstable();
    Ok(difference(&source, &destination))
}

fn source_rows(table: &Table, mut psql: Command) -> Result<Vec<Vec<u8>>, Failure> {
    let failed =
        |why: String| Failure::new(format!("the source table {} cannot be read", table.name), why);
    let columns: Vec<_> = table.columns.iter().map(expression).collect();
    let sql = format!("COPY (SELECT {} FROM {}) TO STDOUT", columns.join(", "), table.name);
    let output = psql
        .args(["-c", &sql])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let mut rows: Vec<_> = output.stdout.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    // What comes after the last line's end.
    rows.pop();
    Ok(rows)
}

fn expression(column: &Column) -> String {
    let name = column.name;
    match column.form {
        Form::Integer | Form::Text => name.to_owned(),
        Form::Bool => format!("{name}::int"),
        // By way of its text: 0.1 as real is another number than 0.1 as double precision.
        Form::Float => format!("encode(float8send({name}::text::float8), 'hex')"),
        Form::Bytes => format!("encode({name}, 'hex')"),
    }
}

fn destination_rows(table: &Table, file: &Connection) -> rusqlite::Result<Vec<Vec<u8>>> {
    let columns: Vec<_> =
        table.columns.iter().map(|column| format!("\"{}\"", column.name)).collect();
    let mut query =
        file.prepare(&format!("SELECT {} FROM \"{}\"", columns.join(", "), table.name))?;
    let mut cursor = query.query([])?;
    let mut rows = Vec::new();
    while let Some(row) = cursor.next()? {
        let mut line = Vec::new();
        for (index, column) in table.columns.iter().enumerate() {
            if index > 0 {
                line.push(b'\t');
            }
            write_value(&mut line, column.form, row.get_ref(index)?);
        }
        rows.push(line);
    }
    Ok(rows)
}

/// Writes a value as COPY would. One that is stored in another way than its form asks for gets a
/// mark that no value of the source has.
fn write_value(line: &mut Vec<u8>, form: Form, value: ValueRef<'_>) {
    match (form, value) {
        (_, ValueRef::Null) => line.extend_from_slice(b"\\N"),
        (Form::Integer | Form::Bool, ValueRef::Integer(number)) => {
            line.extend_from_slice(number.to_string().as_bytes());
        }
        (Form::Float, ValueRef::Real(number)) => write_float(line, number),
        // What SQLite has no number for.
        (Form::Float, ValueRef::Text(b"NaN")) => write_float(line, f64::NAN),
        (Form::Float, ValueRef::Text(b"Infinity")) => write_float(line, f64::INFINITY),
        (Form::Float, ValueRef::Text(b"-Infinity")) => write_float(line, f64::NEG_INFINITY),
        (Form::Float, ValueRef::Blob(b"-0")) => write_float(line, -0.0),
        (Form::Bytes, ValueRef::Blob(bytes)) => write_hex(line, bytes),
        (Form::Text, ValueRef::Text(text)) => write_escaped(line, text),
        (_, other) => line.extend_from_slice(format!("<{other:?}>").as_bytes()),
    }
}

fn write_float(line: &mut Vec<u8>, number: f64) {
    write_hex(line, &number.to_bits().to_be_bytes());
}

fn write_hex(line: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            line.push(b"0123456789abcdef"[usize::from(digit)]);
        }
    }
}

fn write_escaped(line: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        let escaped = match byte {
            b'\\' => b'\\',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0x08 => b'b',
            0x0b => b'v',
            0x0c => b'f',
            plain => {
                line.push(plain);
                continue;
            }
        };
        line.extend_from_slice(&[b'\\', escaped]);
    }
}

/// Walks through both sorted sides.
fn difference(source: &[Vec<u8>], destination: &[Vec<u8>]) -> Difference {
    let mut found = Difference {
        source_rows: source.len(),
        destination_rows: destination.len(),
        ..Difference::default()
    };
    let (mut left, mut right) = (source.iter().peekable(), destination.iter().peekable());
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return found,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(one), Some(other)) => one.cmp(other),
        };
        match order {
            Ordering::Equal => drop((left.next(), right.next())),
            Ordering::Less => {
                found.missing += 1;
                found.show("only in the source", left.next());
            }
            Ordering::Greater => {
                found.surplus += 1;
                found.show("only in the destination", right.next());
            }
        }
    }
}

impl Difference {
    /// Whether both sides have the same rows.
    pub(super) const fn is_none(&self) -> bool {
        self.missing == 0 && self.surplus == 0
    }

    fn show(&mut self, side: &str, row: Option<&Vec<u8>>) {
        if self.examples.len() < SHOWN_MAX
            && let Some(row) = row
        {
            let text = String::from_utf8_lossy(row);
            let mut start: String = text.chars().take(SHOWN_CHARS_MAX).collect();
            if start.len() < text.len() {
                start.push('…');
            }
            self.examples.push(format!("{side}: {start}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(form: Form, value: ValueRef<'_>) -> String {
        let mut line = Vec::new();
        write_value(&mut line, form, value);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn values_are_written_as_copy_writes_them() {
        assert_eq!(written(Form::Text, ValueRef::Null), r"\N");
        assert_eq!(written(Form::Text, ValueRef::Text(b"a\tb\\N\n\x01")), "a\\tb\\\\N\\n\u{1}");
        assert_eq!(written(Form::Integer, ValueRef::Integer(-5)), "-5");
        assert_eq!(written(Form::Bytes, ValueRef::Blob(b"\x00\xfe")), "00fe");
        assert_eq!(written(Form::Float, ValueRef::Real(1.0)), "3ff0000000000000");
        assert_eq!(written(Form::Float, ValueRef::Text(b"-Infinity")), "fff0000000000000");
        assert_eq!(written(Form::Float, ValueRef::Blob(b"-0")), "8000000000000000");
    }

    #[test]
    fn a_value_of_another_kind_is_a_difference() {
        for (form, value) in [
            (Form::Integer, ValueRef::Text(b"5")),
            (Form::Text, ValueRef::Integer(5)),
            (Form::Bytes, ValueRef::Text(b"5")),
            (Form::Float, ValueRef::Integer(5)),
        ] {
            assert!(written(form, value).starts_with('<'));
        }
    }

    #[test]
    fn rows_are_a_multiset() {
        let rows = |text: &str| text.split_whitespace().map(|row| row.into()).collect::<Vec<_>>();
        assert!(difference(&rows("a a b"), &rows("a a b")).is_none());
        let found = difference(&rows("a a b d"), &rows("a b c d d"));
        assert_eq!((found.missing, found.surplus), (1, 2));
        assert_eq!(
            found.examples,
            ["only in the source: a", "only in the destination: c", "only in the destination: d"]
        );
    }
}
