//! Compares a table of the source with one of a SQLite file, without anything of walferry: the
//! simple protocol on one side, SQLite on the other.
//!
//! What a value of the source must be in SQLite is written down here once more, from the
//! documentation of the destination.

use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

use crate::raw::Client;

/// Rows in differing tables that a failure shows.
const SHOWN_MAX: usize = 5;

/// Column names, and rows as sorted lines: storage class and value of each column.
#[derive(Debug, PartialEq, Eq)]
struct Content {
    columns: Vec<String>,
    rows: Vec<String>,
}

/// Opens the file for reading.
pub(crate) fn open(file: &Path) -> Connection {
    Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap()
}

/// Fails unless the rows of `query` at the source are exactly those of the table `target`; how many
/// there are.
#[track_caller]
pub(crate) fn assert_same(source: &mut Client, query: &str, file: &Path, target: &str) -> usize {
    let (ours, theirs) = (of_source(source, query), of_sqlite(file, target));
    let only = |one: &Content, other: &Content| {
        let rows = one.rows.iter().filter(|row| other.rows.binary_search(row).is_err());
        rows.take(SHOWN_MAX).cloned().collect::<Vec<_>>().join("\n    ")
    };
    assert!(
        ours == theirs,
        "{target} differs\n  columns {:?} and {:?}\n  {} rows and {}\n  only at the source:\n    \
         {}\n  only in SQLite:\n    {}",
        ours.columns,
        theirs.columns,
        ours.rows.len(),
        theirs.rows.len(),
        only(&ours, &theirs),
        only(&theirs, &ours),
    );
    ours.rows.len()
}

fn of_source(client: &mut Client, query: &str) -> Content {
    client.send(query);
    let answer = client.answer().unwrap();
    let types: Vec<u32> = answer.columns.iter().map(|(_, oid)| *oid).collect();
    let lines = answer.rows.iter().map(|row| {
        let values = row.iter().zip(&types).map(|(value, &oid)| match value {
            None => "null".to_owned(),
            Some(text) => stored(oid, text),
        });
        values.collect::<Vec<_>>().join(" | ")
    });
    let mut rows: Vec<String> = lines.collect();
    rows.sort_unstable();
    Content { columns: answer.columns.into_iter().map(|(name, _)| name).collect(), rows }
}

/// What the text of a value must have become.
fn stored(type_oid: u32, text: &str) -> String {
    match type_oid {
        16 => format!("integer {}", u8::from(text == "t")),
        20 | 21 | 23 | 26 => format!("integer {text}"),
        700 | 701 if text == "-0" => "blob 2d30".to_owned(),
        700 | 701 => match text.parse::<f64>().unwrap() {
            number if number.is_finite() => format!("real {number:?}"),
            _ => format!("text {text:?}"),
        },
        17 => format!("blob {}", text.strip_prefix("\\x").unwrap()),
        _ => format!("text {text:?}"),
    }
}

fn of_sqlite(file: &Path, target: &str) -> Content {
    let connection = open(file);
    let mut statement = connection.prepare(&format!("SELECT * FROM \"{target}\"")).unwrap();
    let columns: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
    let lines = statement.query_map([], |row| {
        let values = (0..columns.len()).map(|index| {
            Ok(match row.get_ref(index)? {
                ValueRef::Null => "null".to_owned(),
                ValueRef::Integer(number) => format!("integer {number}"),
                ValueRef::Real(number) => format!("real {number:?}"),
                ValueRef::Text(text) => format!("text {:?}", std::str::from_utf8(text).unwrap()),
                ValueRef::Blob(bytes) => {
                    let digits: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                    format!("blob {}", digits.concat())
                }
            })
        });
        Ok(values.collect::<rusqlite::Result<Vec<_>>>()?.join(" | "))
    });
    let mut rows: Vec<String> = lines.unwrap().map(Result::unwrap).collect();
    rows.sort_unstable();
    Content { columns, rows }
}
