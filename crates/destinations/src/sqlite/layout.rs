//! What a table looks like in SQLite: names, declared types, key, and the SQL for it.
//!
//! Owns the mapping of names and types and refuses what SQLite cannot tell apart. Pure: strings in,
//! strings out.

use std::collections::HashMap;

use walferry_core::schema::{ReplicaIdentity, TableSchema};

use crate::values::Class;

/// Prefix of the tables in which the destination keeps its own state.
pub(super) const RESERVED: &str = "_walferry_";

/// How an old row is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// By its primary key.
    Keyed,
    /// By all its columns; one of several equal rows.
    Full,
    /// Not at all: the source refuses updates and deletes (PG-17).
    InsertOnly,
}

/// One column.
#[derive(Clone, Debug)]
pub(super) struct ColumnLayout {
    /// Quoted name.
    pub(super) name: String,
    /// The name as it is.
    pub(super) plain: String,
    /// How its values are stored.
    pub(super) class: Class,
    /// Part of the primary key.
    pub(super) key: bool,
}

/// The shape of one table.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Name of the target, not quoted.
    pub(super) target: String,
    /// How old rows are found.
    pub(super) mode: Mode,
    /// Columns in the order of the rows.
    pub(super) columns: Vec<ColumnLayout>,
    /// Name by which a row id is reached; only for `Mode::Full`.
    rowid: &'static str,
    /// Column that an index helps to find old rows by; only for `Mode::Full`.
    hint: usize,
}

/// Quotes a name.
pub(super) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Name of the target: `table` for the schema `public`, else `schema.table`.
pub(super) fn target_name(namespace: &str, name: &str) -> String {
    if namespace == "public" { name.to_owned() } else { format!("{namespace}.{name}") }
}

impl Layout {
    /// The shape of a table, or why SQLite cannot have it.
    pub(super) fn new(schema: &TableSchema) -> Result<Self, String> {
        let target = target_name(&schema.namespace, &schema.name);
        let lower = target.to_ascii_lowercase();
        for reserved in [RESERVED, "sqlite_"] {
            if lower.starts_with(reserved) {
                return Err(format!("names that start with {reserved} are reserved"));
            }
        }
        if schema.columns.is_empty() {
            return Err("it has no columns, which SQLite does not allow".to_owned());
        }
        let mut seen: HashMap<String, &str> = HashMap::new();
        for column in &schema.columns {
            if let Some(other) = seen.insert(column.name.to_ascii_lowercase(), &column.name) {
                let name = &column.name;
                return Err(format!(
                    "its columns {} and {} have the same name for SQLite, which ignores case",
                    quote(other),
                    quote(name)
                ));
            }
        }
        let mode = match schema.identity {
            ReplicaIdentity::Full => Mode::Full,
            ReplicaIdentity::Nothing => Mode::InsertOnly,
            ReplicaIdentity::Default | ReplicaIdentity::Index => {
                if schema.columns.iter().any(|column| column.key) {
                    Mode::Keyed
                } else {
                    Mode::InsertOnly
                }
            }
        };
        let free = ["rowid", "_rowid_", "oid"].into_iter().find(|name| !seen.contains_key(*name));
        let rowid = match free {
            Some(name) => name,
            None if mode == Mode::Full => {
                return Err("its columns rowid, _rowid_ and oid leave no way to name one of \
                            several equal rows"
                    .to_owned());
            }
            None => "rowid",
        };
        let columns = schema
            .columns
            .iter()
            .map(|column| ColumnLayout {
                name: quote(&column.name),
                plain: column.name.clone(),
                class: Class::of(column.type_oid),
                key: mode == Mode::Keyed && column.key,
            })
            .collect();
        let hint = schema.columns.iter().position(|column| column.not_null).unwrap_or(0);
        Ok(Self { target, mode, columns, rowid, hint })
    }

    /// Columns and key as CREATE TABLE has them.
    fn definition(&self) -> String {
        let mut parts: Vec<String> = self
            .columns
            .iter()
            .map(|column| {
                let not_null = if column.key { " NOT NULL" } else { "" };
                format!("{} {}{not_null}", column.name, declared(column.class))
            })
            .collect();
        if self.mode == Mode::Keyed {
            parts.push(format!("PRIMARY KEY ({})", self.list(|column| column.key)));
        }
        parts.join(", ")
    }

    /// The shape as it is remembered and compared: everything but the table's name.
    pub(super) fn shape(&self) -> String {
        let mode = match self.mode {
            Mode::Keyed => "",
            Mode::Full => " identity full",
            Mode::InsertOnly => " insert only",
        };
        format!("({}){mode}", self.definition())
    }

    pub(super) fn create(&self) -> String {
        format!("CREATE TABLE {} ({})", quote(&self.target), self.definition())
    }

    /// An index without which each update of a table with identity FULL would read all of it.
    pub(super) fn hint_index(&self, oid: u32) -> Option<String> {
        let column = self.columns.get(self.hint).filter(|_| self.mode == Mode::Full)?;
        let (name, target) = (quote(&format!("{RESERVED}match_{oid}")), quote(&self.target));
        Some(format!("CREATE INDEX IF NOT EXISTS {name} ON {target} ({})", column.name))
    }

    pub(super) fn insert(&self) -> String {
        let places = vec!["?"; self.columns.len()].join(", ");
        format!("INSERT INTO {} ({}) VALUES ({places})", quote(&self.target), self.list(|_| true))
    }

    /// Updates the columns that `is_set` names; parameters are these, then what finds the row. Without any
    /// it only looks whether the row is there.
    pub(super) fn update(&self, is_set: impl Fn(usize) -> bool) -> String {
        let mut set: Vec<String> = self
            .columns
            .iter()
            .enumerate()
            .filter(|(index, _)| is_set(*index))
            .map(|(_, column)| format!("{} = ?", column.name))
            .collect();
        if set.is_empty() {
            set.extend(self.columns.first().map(|c| format!("{} = {}", c.name, c.name)));
        }
        format!("UPDATE {} SET {} WHERE {}", quote(&self.target), set.join(", "), self.which())
    }

    pub(super) fn delete(&self) -> String {
        format!("DELETE FROM {} WHERE {}", quote(&self.target), self.which())
    }

    pub(super) fn clear(&self) -> String {
        format!("DELETE FROM {}", quote(&self.target))
    }

    /// The condition that finds one row. A vector, because a long chain of AND is too deep for
    /// SQLite with 1,600 columns.
    fn which(&self) -> String {
        match self.mode {
            Mode::Keyed | Mode::InsertOnly => {
                let keys = self.columns.iter().filter(|column| column.key);
                keys.map(|column| format!("{} = ?", column.name)).collect::<Vec<_>>().join(" AND ")
            }
            Mode::Full => {
                let (rowid, target) = (self.rowid, quote(&self.target));
                let places = vec!["?"; self.columns.len()].join(", ");
                let columns = self.list(|_| true);
                format!(
                    "{rowid} = (SELECT {rowid} FROM {target} WHERE ({columns}) IS ({places}) LIMIT 1)"
                )
            }
        }
    }

    /// Names of the key columns, for messages.
    pub(super) fn key_list(&self) -> String {
        self.list(|column| column.key)
    }

    fn list(&self, which: impl Fn(&ColumnLayout) -> bool) -> String {
        let names = self.columns.iter().filter(|column| which(column));
        names.map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// Declared type, from which SQLite derives the affinity of a column.
const fn declared(class: Class) -> &'static str {
    match class {
        Class::Bool | Class::Integer => "INTEGER",
        Class::Float => "REAL",
        Class::Bytes => "BLOB",
        Class::Numeric | Class::Json | Class::Text => "TEXT",
    }
}

#[cfg(test)]
mod tests {
    use walferry_core::ids::TableId;
    use walferry_core::schema::Column;

    use super::*;

    fn schema(identity: ReplicaIdentity, columns: &[(&str, u32, bool)]) -> TableSchema {
        TableSchema {
            table: TableId(7),
            namespace: "public".to_owned(),
            name: "t".to_owned(),
            identity,
            columns: columns
                .iter()
                .map(|&(name, type_oid, key)| Column {
                    number: 0,
                    name: name.to_owned(),
                    type_oid,
                    modifier: -1,
                    not_null: key,
                    default: None,
                    key,
                })
                .collect(),
            unpublished: Vec::new(),
            storage: None,
        }
    }

    #[test]
    fn sql_of_a_keyed_table() {
        let schema = schema(
            ReplicaIdentity::Default,
            &[("a\"b", 23, true), ("order", 1700, false), ("f", 701, false), ("d", 17, false)],
        );
        let layout = Layout::new(&schema).unwrap();
        assert_eq!(
            layout.create(),
            r#"CREATE TABLE "t" ("a""b" INTEGER NOT NULL, "order" TEXT, "f" REAL, "d" BLOB, PRIMARY KEY ("a""b"))"#
        );
        assert_eq!(
            layout.update(|index| index == 1),
            r#"UPDATE "t" SET "order" = ? WHERE "a""b" = ?"#
        );
        assert_eq!(layout.delete(), r#"DELETE FROM "t" WHERE "a""b" = ?"#);
        assert_eq!(layout.hint_index(7), None);
    }

    #[test]
    fn sql_of_a_table_without_key() {
        let schema = schema(ReplicaIdentity::Full, &[("rowid", 25, true), ("n", 23, true)]);
        let layout = Layout::new(&schema).unwrap();
        assert_eq!(
            layout.delete(),
            r#"DELETE FROM "t" WHERE _rowid_ = (SELECT _rowid_ FROM "t" WHERE ("rowid", "n") IS (?, ?) LIMIT 1)"#
        );
        assert_eq!(layout.shape(), r#"("rowid" TEXT, "n" INTEGER) identity full"#);
    }

    #[test]
    fn what_sqlite_cannot_tell_apart_is_refused() {
        let error = |schema: &TableSchema| Layout::new(schema).unwrap_err();
        let twice = schema(ReplicaIdentity::Default, &[("Id", 23, true), ("iD", 23, false)]);
        assert!(error(&twice).contains(r#""Id" and "iD""#));
        let mut reserved = schema(ReplicaIdentity::Default, &[("id", 23, true)]);
        reserved.name = "_Walferry_x".to_owned();
        assert!(error(&reserved).contains("reserved"));
        reserved.name = "sqlite_x".to_owned();
        assert!(error(&reserved).contains("reserved"));
        assert!(error(&schema(ReplicaIdentity::Default, &[])).contains("no columns"));
        let names = [("rowid", 25, true), ("_rowid_", 25, true), ("OID", 25, true)];
        assert!(error(&schema(ReplicaIdentity::Full, &names)).contains("equal rows"));
        assert!(Layout::new(&schema(ReplicaIdentity::Default, &names)).is_ok());
    }

    #[test]
    fn only_the_schema_public_is_left_out_of_a_name() {
        assert_eq!(target_name("public", "a.b"), "a.b");
        assert_eq!(target_name("a", "b"), "a.b");
    }
}
