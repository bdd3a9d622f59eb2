//! Schema messages (D-05): JSON that an event trigger writes into the WAL, strictly and bounded.
//!
//! Owns both forms that are understood, `walferry_ddl` and `supabase_etl_ddl`; `docs/ddl-messages.md`
//! describes them. Must never know which tables are wanted. A message that cannot be used gives a
//! reason without any of its content.

use core::fmt;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

use crate::config::COLUMNS_MAX;
use crate::ids::TableId;
use crate::schema::{Column, DdlMessage, ReplicaIdentity, TableSchema};

/// Longest message, in bytes: 1,600 columns with defaults.
pub const DDL_BYTES_MAX: usize = 4 << 20;

/// The message as it is written. The second name of a field is the one of `supabase_etl_ddl`.
#[derive(Deserialize)]
struct Raw {
    #[serde(alias = "command_tag")]
    command: String,
    #[serde(default, alias = "publication_name")]
    publication: Option<String>,
    #[serde(alias = "nspname")]
    schema: String,
    #[serde(alias = "relname")]
    table: String,
    oid: u32,
    identity: RawIdentity,
    #[serde(deserialize_with = "bounded")]
    columns: Vec<RawColumn>,
}

#[derive(Deserialize)]
struct RawIdentity {
    #[serde(alias = "relreplident")]
    replica_identity: String,
    #[serde(default, alias = "primary_key_attnums", deserialize_with = "bounded")]
    key_columns: Vec<i16>,
    #[serde(default, alias = "replica_identity_index_attnums", deserialize_with = "bounded")]
    index_columns: Vec<i16>,
}

#[derive(Deserialize)]
struct RawColumn {
    #[serde(alias = "attnum")]
    number: i16,
    #[serde(alias = "attname")]
    name: String,
    #[serde(rename = "type", alias = "atttypid")]
    type_oid: u32,
    #[serde(alias = "atttypmod")]
    modifier: i32,
    #[serde(alias = "attnotnull")]
    not_null: bool,
    #[serde(default, alias = "default_expression")]
    default: Option<String>,
}

/// A list that is refused as soon as it is longer than a table can be wide.
fn bounded<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Bounded<T>(core::marker::PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Bounded<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {COLUMNS_MAX} columns")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(item) = items.next_element()? {
                if all.len() == COLUMNS_MAX {
                    return Err(serde::de::Error::invalid_length(COLUMNS_MAX + 1, &self));
                }
                all.push(item);
            }
            Ok(all)
        }
    }

    deserializer.deserialize_seq(Bounded(core::marker::PhantomData))
}

/// Reads one schema message.
///
/// # Errors
/// Why it cannot be used, for people; without any of its content.
pub fn parse_ddl(content: &[u8]) -> Result<DdlMessage, String> {
    if content.len() > DDL_BYTES_MAX {
        return Err(format!("it has {} bytes, at most {DDL_BYTES_MAX}", content.len()));
    }
    let raw: Raw = serde_json::from_slice(content).map_err(|error| {
        // The error's own text may quote the message.
        let what = match error.classify() {
            serde_json::error::Category::Data => {
                "a field that is missing, repeated or out of range"
            }
            serde_json::error::Category::Syntax
            | serde_json::error::Category::Eof
            | serde_json::error::Category::Io => "no JSON",
        };
        format!("{what}, at line {} column {}", error.line(), error.column())
    })?;
    let identity = match raw.identity.replica_identity.as_str() {
        "d" => ReplicaIdentity::Default,
        "i" => ReplicaIdentity::Index,
        "f" => ReplicaIdentity::Full,
        "n" => ReplicaIdentity::Nothing,
        _ => return Err("an unknown replica identity".to_owned()),
    };
    if raw.oid == 0 || raw.schema.is_empty() || raw.table.is_empty() {
        return Err("a table without oid or name".to_owned());
    }
    let keys = match identity {
        ReplicaIdentity::Default => &raw.identity.key_columns,
        ReplicaIdentity::Index => &raw.identity.index_columns,
        ReplicaIdentity::Full | ReplicaIdentity::Nothing => &Vec::new(),
    };
    let mut columns = columns(raw.columns)?;
    if keys.iter().any(|key| columns.iter().all(|column| column.number != *key)) {
        return Err("a key column that is not among the columns".to_owned());
    }
    for column in &mut columns {
        column.key = identity == ReplicaIdentity::Full || keys.contains(&column.number);
    }
    let schema = TableSchema {
        table: TableId(raw.oid),
        namespace: raw.schema,
        name: raw.table,
        identity,
        columns,
        unpublished: Vec::new(),
        storage: None,
    };
    Ok(DdlMessage { command: raw.command, publication: raw.publication, schema: Arc::new(schema) })
}

/// In physical order, with the bounds of D-05.
fn columns(raw: Vec<RawColumn>) -> Result<Vec<Column>, String> {
    if raw.is_empty() {
        return Err("no columns".to_owned());
    }
    let mut names = BTreeSet::new();
    let mut numbers = BTreeSet::new();
    for column in &raw {
        if column.number < 1 || column.name.is_empty() || column.type_oid == 0 {
            return Err("a column without number, name or type".to_owned());
        }
        if !names.insert(column.name.as_str()) || !numbers.insert(column.number) {
            return Err("two columns with one name or number".to_owned());
        }
    }
    let column = |raw: RawColumn| Column {
        number: raw.number,
        name: raw.name,
        type_oid: raw.type_oid,
        modifier: raw.modifier,
        not_null: raw.not_null,
        default: raw.default,
        key: false,
    };
    let mut columns: Vec<_> = raw.into_iter().map(column).collect();
    columns.sort_by_key(|column| column.number);
    Ok(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = r#"{"command": "ALTER TABLE", "schema": "public", "table": "t", "oid": 16384,
        "identity": {"replica_identity": "d", "key_columns": [1]},
        "columns": [
            {"number": 3, "name": "b", "type": 1043, "modifier": 14, "not_null": false, "default": "'x'"},
            {"number": 1, "name": "id", "type": 23, "modifier": -1, "not_null": true}]}"#;

    const THEIRS: &str = r#"{"trigger_event": "ddl_command_end", "command_tag": "ALTER TABLE",
        "current_query": "alter table t ...", "nspname": "public", "relname": "t", "oid": 16384,
        "relkind": "r", "commands": [],
        "identity": {"primary_key_attnums": [1], "relreplident": "d",
            "replica_identity_index_relname": null, "replica_identity_index_attnums": []},
        "columns": [
            {"attname": "id", "attnum": 1, "atttypid": 23, "typname": "int4", "atttypmod": -1,
             "attnotnull": true, "atthasdef": false, "default_expression": null, "attidentity": ""},
            {"attname": "b", "attnum": 3, "atttypid": 1043, "typname": "varchar", "atttypmod": 14,
             "attnotnull": false, "atthasdef": true, "default_expression": "'x'"}]}"#;

    // D-05, D-F9
    #[test]
    fn both_forms_say_the_same() {
        let ours = parse_ddl(OURS.as_bytes()).unwrap();
        assert_eq!(parse_ddl(THEIRS.as_bytes()).unwrap(), ours);
        assert_eq!((ours.command.as_str(), &ours.publication), ("ALTER TABLE", &None));
        assert_eq!(ours.schema.table, TableId(16_384));
        assert_eq!(ours.schema.shape(), "(id type 23 key, b type 1043 modifier 14)");
        assert_eq!(ours.schema.columns[1].default.as_deref(), Some("'x'"));
        let of = OURS.replacen("ALTER TABLE\",", "ALTER PUBLICATION\", \"publication\": \"p\",", 1);
        assert_eq!(parse_ddl(of.as_bytes()).unwrap().publication.as_deref(), Some("p"));
    }

    // D-05: identity decides which columns are key
    #[test]
    fn the_key_follows_the_identity() {
        for (identity, key) in [("d", [true, false]), ("f", [true, true]), ("n", [false, false])] {
            let text = OURS.replacen(r#""d""#, &format!("{identity:?}"), 1);
            let message = parse_ddl(text.as_bytes()).unwrap();
            let found: Vec<_> = message.schema.columns.iter().map(|column| column.key).collect();
            assert_eq!(found, key, "{identity}");
        }
        let text = OURS.replacen(r#""d", "key_columns": [1]"#, r#""i", "index_columns": [3]"#, 1);
        assert!(parse_ddl(text.as_bytes()).unwrap().schema.columns[1].key);
    }

    // D-05: the bounds, and that a reason quotes nothing (G-05)
    #[test]
    fn each_broken_bound_is_refused_without_quoting() {
        let cases = [
            ("16384", "0", "without oid"),
            ("16384", "-1", "out of range"),
            ("16384", "4294967296", "out of range"),
            ("\"number\": 3", "\"number\": 0", "without number"),
            ("\"number\": 3", "\"number\": 32768", "out of range"),
            ("\"number\": 3", "\"number\": 1", "two columns"),
            ("\"name\": \"b\"", "\"name\": \"id\"", "two columns"),
            ("\"name\": \"b\"", "\"name\": \"\"", "without number"),
            ("1043", "0", "without number"),
            ("[1]", "[2]", "not among"),
            ("\"d\"", "\"x\"", "replica identity"),
            ("\"table\": \"t\"", "\"table\": \"\"", "name"),
            ("\"table\": \"t\",", "", "missing"),
            ("\"table\": \"t\"", "\"table\": \"t\", \"relname\": \"t\"", "repeated"),
            ("true", "\"secret\"", "out of range"),
            ("}]}", "}]", "no JSON"),
            ("}]}", "}]} x", "no JSON"),
        ];
        for (from, to, part) in cases {
            assert!(OURS.contains(from), "{from}");
            let reason = parse_ddl(OURS.replacen(from, to, 1).as_bytes()).unwrap_err();
            assert!(reason.contains(part), "{to}: {reason}");
            assert!(!reason.contains("secret"), "{reason}");
        }
        let huge = vec![b' '; DDL_BYTES_MAX + 1];
        assert!(parse_ddl(&huge).unwrap_err().contains("bytes"));
        assert!(parse_ddl(b"\xFF").is_err());
    }

    fn wide(columns: usize) -> String {
        let column = |number: usize| {
            format!(
                r#"{{"number": {number}, "name": "c{number}", "type": 23, "modifier": -1, "not_null": false}}"#
            )
        };
        let columns: Vec<_> = (1..=columns).map(column).collect();
        format!(
            r#"{{"command": "", "schema": "s", "table": "t", "oid": 1,
                "identity": {{"replica_identity": "f"}}, "columns": [{}]}}"#,
            columns.join(",")
        )
    }

    // D-05, Z-04
    #[test]
    fn a_table_has_one_to_1600_columns() {
        assert!(parse_ddl(wide(0).as_bytes()).is_err());
        assert_eq!(parse_ddl(wide(1).as_bytes()).unwrap().schema.columns.len(), 1);
        assert_eq!(parse_ddl(wide(1_600).as_bytes()).unwrap().schema.columns.len(), 1_600);
        assert!(parse_ddl(wide(1_601).as_bytes()).is_err());
    }
}
