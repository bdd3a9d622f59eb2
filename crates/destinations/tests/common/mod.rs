//! Our destinations as subjects of the contract tests.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::collections::HashSet;
use std::fs;

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use serde_json::Value;
use tempfile::TempDir;
use walferry_core::schema::TableSchema;
use walferry_destinations::kit::{Row, Subject};
use walferry_destinations::{JsonlDestination, SqliteDestination};

/// A SQLite file in a folder of its own.
pub struct Sqlite(pub TempDir);

impl Sqlite {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn connect(&self) -> Connection {
        Connection::open(self.0.path().join("sink.db")).unwrap()
    }
}

impl Subject for Sqlite {
    type Destination = SqliteDestination;

    fn open(&self) -> SqliteDestination {
        SqliteDestination::new(self.0.path().join("sink.db"))
    }

    fn read(&self, schema: &TableSchema) -> Option<Vec<Row>> {
        let connection = self.connect();
        let sql = format!("SELECT * FROM \"{}\"", schema.name);
        let mut statement = connection.prepare(&sql).ok()?;
        let width = statement.column_count();
        let row = |row: &rusqlite::Row<'_>| {
            let cell = |index| {
                Ok(match row.get_ref(index)? {
                    ValueRef::Null => None,
                    ValueRef::Integer(number) => Some(number.to_string()),
                    ValueRef::Text(text) => Some(String::from_utf8(text.to_vec()).unwrap()),
                    ValueRef::Real(_) | ValueRef::Blob(_) => panic!("not a type of the kit"),
                })
            };
            (0..width).map(cell).collect::<rusqlite::Result<Vec<_>>>().map(Row)
        };
        let rows = statement.query_map([], row).unwrap();
        Some(rows.collect::<rusqlite::Result<Vec<_>>>().unwrap())
    }

    fn plant(&self, schema: &TableSchema) -> Option<Row> {
        let name = &schema.name;
        let sql = format!(
            "CREATE TABLE \"{name}\" (id, note, big); INSERT INTO \"{name}\" VALUES (0, 'mine', NULL)"
        );
        self.connect().execute_batch(&sql).unwrap();
        Some(Row(vec![Some("0".to_owned()), Some("mine".to_owned()), None]))
    }
}

/// A file of lines in a folder of its own.
pub struct Jsonl(pub TempDir);

impl Jsonl {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.0.path().join("sink.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Subject for Jsonl {
    type Destination = JsonlDestination;

    fn open(&self) -> JsonlDestination {
        JsonlDestination::file(self.0.path().join("sink.jsonl"))
    }

    /// What the module's documentation asks of a reader: drop older attempts and what was seen.
    fn read(&self, schema: &TableSchema) -> Option<Vec<Row>> {
        let lines = self.lines();
        let lines: Vec<&Value> =
            lines.iter().filter(|line| line["oid"] == schema.table.0).collect();
        let is = |line: &&Value, op: &str| line["op"] == op;
        lines.iter().find(|line| is(line, "copy_begin") || is(line, "adopt"))?;
        let begun = lines.iter().rposition(|line| is(line, "copy_begin")).unwrap_or(0);
        let mut rows: Vec<Value> = Vec::new();
        let mut seen = HashSet::new();
        let mut attempt = &Value::Null;
        for line in lines.into_iter().skip(begun) {
            if is(&line, "copy_begin") || is(&line, "adopt") {
                attempt = &line["attempt"];
            }
            if line["attempt"] != *attempt {
                continue;
            }
            let id = match line["op"].as_str().unwrap() {
                "read" => format!("{} {}", line["sequence"], line["row"]),
                "copy_begin" | "copy_end" | "adopt" => continue,
                _ => format!("{} {} of a stream", line["lsn"], line["ordinal"]),
            };
            if !seen.insert(id) {
                continue;
            }
            apply(line, &mut rows);
        }
        let cell = |row: &Value, column: &str| match &row[column] {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                Some(other.to_string())
            }
        };
        let row = |row| Row(schema.columns.iter().map(|c| cell(row, &c.name)).collect());
        Some(rows.iter().map(row).collect())
    }

    fn plant(&self, _schema: &TableSchema) -> Option<Row> {
        None
    }
}

fn apply(line: &Value, rows: &mut Vec<Value>) {
    let old = |rows: &Vec<Value>| {
        let members = line["key"].as_object().or(line["before"].as_object()).unwrap();
        rows.iter().position(|row| members.iter().all(|(name, value)| row[name] == *value)).unwrap()
    };
    match line["op"].as_str().unwrap() {
        "read" | "insert" => rows.push(line["after"].clone()),
        "delete" => {
            let at = old(rows);
            rows.remove(at);
        }
        "update" => {
            let at = old(rows);
            for (name, value) in line["after"].as_object().unwrap() {
                rows[at][name] = value.clone();
            }
        }
        "truncate" => rows.clear(),
        other => panic!("unknown op {other}"),
    }
}
