//! What a table looks like: the snapshot's schema, and the relation a stream announces.
//!
//! Owns the comparison of both (D-08). Knows nothing of destinations or of when to compare.

use core::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{EventKey, TableId};

/// One published column, in physical order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Attribute number at the source; 0 when it is not known.
    pub number: i16,
    /// Column name as it is, not folded.
    pub name: String,
    /// OID of the type.
    pub type_oid: u32,
    /// Type modifier, -1 if there is none.
    pub modifier: i32,
    /// Whether the source declares it NOT NULL.
    pub not_null: bool,
    /// Default expression as the source prints it.
    pub default: Option<String>,
    /// Whether it belongs to the replica identity (identity FULL: every column).
    pub key: bool,
}

/// Replica identity of a table: which old values an update or delete carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaIdentity {
    /// No usable key: the source refuses updates and deletes (PG-17).
    Nothing,
    /// The primary key.
    Default,
    /// Another unique index.
    Index,
    /// The whole old row.
    Full,
}

/// The schema of a table as the snapshot shows it (K-14).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSchema {
    /// The table.
    pub table: TableId,
    /// Its schema (namespace) name.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How old rows are identified.
    pub identity: ReplicaIdentity,
    /// Published columns in physical order.
    pub columns: Vec<Column>,
    /// The other columns of the table, as far as a catalog read told them (D-06).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unpublished: Vec<Column>,
    /// Hash of the `relfilenode`s of the table or its leaves at the last catalog read that agreed
    /// with this schema (D-06).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<u64>,
}

/// Which schema changes a destination can apply (DS-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one answer per kind of change")]
pub struct SchemaSupport {
    /// Columns that are added, with the value that old rows show.
    pub add: bool,
    /// Columns that are dropped.
    pub drop: bool,
    /// Columns or the table renamed.
    pub rename: bool,
    /// Types and modifiers.
    pub alter_type: bool,
    /// NOT NULL.
    pub alter_null: bool,
    /// Defaults.
    pub alter_default: bool,
    /// Another key or replica identity.
    pub key: bool,
}

impl SchemaSupport {
    /// A destination without columns of its own.
    pub const ALL: Self = Self {
        add: true,
        drop: true,
        rename: true,
        alter_type: true,
        alter_null: true,
        alter_default: true,
        key: true,
    };
    /// A destination that follows no change: the table stops and can be copied anew.
    pub const NONE: Self = Self {
        add: false,
        drop: false,
        rename: false,
        alter_type: false,
        alter_null: false,
        alter_default: false,
        key: false,
    };
}

/// What existing rows show in a column that is added (PG-29).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Existing {
    /// NULL, or this text, which is known for certain.
    Known(Option<String>),
    /// It is not known: the rows have to be copied anew (D-15).
    Unknown,
}

/// One step of a plan: it changes one property (D-14).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaStep {
    /// A column goes.
    Drop {
        /// Its name.
        column: String,
    },
    /// A column gets another name.
    Rename {
        /// Old name.
        from: String,
        /// New name.
        to: String,
    },
    /// A column comes.
    Add {
        /// What it looks like.
        column: Column,
        /// What existing rows show in it.
        existing: Existing,
    },
    /// A column gets another type or modifier.
    Type {
        /// Its name.
        column: String,
        /// OID and modifier before.
        from: (u32, i32),
        /// OID and modifier from here on.
        to: (u32, i32),
    },
    /// A column gets or loses NOT NULL.
    NotNull {
        /// Its name.
        column: String,
        /// From here on.
        not_null: bool,
    },
    /// A column gets another default.
    Default {
        /// Its name.
        column: String,
        /// From here on.
        default: Option<String>,
    },
    /// Other columns identify the rows.
    Key {
        /// The columns, in order.
        columns: Vec<String>,
    },
    /// The table has another name.
    RenameTable {
        /// Schema (namespace) and name before.
        from: (String, String),
        /// Schema (namespace) and name from here on.
        to: (String, String),
    },
}

/// Who changed: the table itself, or only what the publication shows of it (D-14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaCause {
    /// ALTER TABLE.
    Table,
    /// The column list of the publication.
    Publication,
    /// Both, or it cannot be told.
    Unclear,
}

/// A table has another shape from one event on (D-08).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaChange {
    /// Key of the first event decoded with the new schema (D-01); a replay repeats it.
    pub position: EventKey,
    /// The new schema, whole.
    pub schema: Arc<TableSchema>,
    /// How to get there from the one before (D-14).
    pub steps: Vec<SchemaStep>,
    /// Who changed.
    pub cause: SchemaCause,
}

/// A schema message of the source (D-05), as `wire::ddl` reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DdlMessage {
    /// Tag of the command, for people.
    pub command: String,
    /// The publication, of an ALTER PUBLICATION.
    pub publication: Option<String>,
    /// The table as it is behind the command; its columns are all columns.
    pub schema: Arc<TableSchema>,
}

impl DdlMessage {
    /// Memory it keeps alive while it waits in a queue, in bytes (B-05).
    #[must_use]
    pub(crate) fn held_bytes(&self) -> u64 {
        let text =
            |column: &Column| column.name.len() + column.default.as_ref().map_or(0, String::len);
        let columns = self.schema.columns.iter().map(|column| size_of::<Column>() + text(column));
        (size_of::<TableSchema>() + columns.sum::<usize>()) as u64
    }
}

/// A column as RELATION announces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationColumn {
    /// Part of the key (flag 1).
    pub key: bool,
    /// Column name.
    pub name: String,
    /// OID of the type.
    pub type_oid: u32,
    /// Type modifier, -1 if there is none.
    pub modifier: i32,
}

/// A RELATION message: what the rows that follow look like (PG-13).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// The table.
    pub table: TableId,
    /// Its schema (namespace) name.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How old rows are identified.
    pub identity: ReplicaIdentity,
    /// Columns in the order of the tuples.
    pub columns: Vec<RelationColumn>,
}

impl TableSchema {
    /// Whether rows announced by `relation` have exactly this shape: names, types, modifiers, order
    /// and key flags. The table's own name is for people and may differ.
    #[must_use]
    pub fn agrees_with(&self, relation: &Relation) -> bool {
        self.columns.len() == relation.columns.len()
            && self.columns.iter().zip(&relation.columns).all(|(ours, theirs)| {
                ours.name == theirs.name
                    && ours.type_oid == theirs.type_oid
                    && ours.modifier == theirs.modifier
                    && ours.key == theirs.key
            })
    }

    /// `schema.table`, for people.
    #[must_use]
    pub fn qualified_name(&self) -> String {
        format!("{}.{}", self.namespace, self.name)
    }

    /// The shape in one line, for messages: `(id int4 key, note text)` with type OIDs.
    #[must_use]
    pub fn shape(&self) -> String {
        Shape(
            self.columns.iter().map(|c| (c.name.as_str(), c.type_oid, c.modifier, c.key)).collect(),
        )
        .to_string()
    }
}

impl Relation {
    /// The shape in one line, for messages.
    #[must_use]
    pub fn shape(&self) -> String {
        Shape(
            self.columns.iter().map(|c| (c.name.as_str(), c.type_oid, c.modifier, c.key)).collect(),
        )
        .to_string()
    }
}

struct Shape<'a>(Vec<(&'a str, u32, i32, bool)>);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (index, (name, type_oid, modifier, key)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{name} type {type_oid}")?;
            if *modifier != -1 {
                write!(f, " modifier {modifier}")?;
            }
            if *key {
                f.write_str(" key")?;
            }
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> TableSchema {
        let column = |number, name: &str, key| Column {
            number,
            name: name.to_owned(),
            type_oid: 23,
            modifier: -1,
            not_null: key,
            default: None,
            key,
        };
        TableSchema {
            table: TableId(7),
            namespace: "public".to_owned(),
            name: "orders".to_owned(),
            identity: ReplicaIdentity::Default,
            columns: vec![column(1, "id", true), column(3, "note", false)],
            unpublished: Vec::new(),
            storage: None,
        }
    }

    fn relation(schema: &TableSchema) -> Relation {
        Relation {
            table: schema.table,
            namespace: schema.namespace.clone(),
            name: schema.name.clone(),
            identity: schema.identity,
            columns: schema
                .columns
                .iter()
                .map(|c| RelationColumn {
                    key: c.key,
                    name: c.name.clone(),
                    type_oid: c.type_oid,
                    modifier: c.modifier,
                })
                .collect(),
        }
    }

    // D-08
    #[test]
    fn each_difference_in_shape_is_seen_and_the_table_name_is_not() {
        let ours = schema();
        assert!(ours.agrees_with(&relation(&ours)));
        let edits: [fn(&mut Relation); 6] = [
            |r| r.columns[0].name.push('x'),
            |r| r.columns[0].type_oid = 20,
            |r| r.columns[0].modifier = 9,
            |r| r.columns[0].key = false,
            |r| r.columns.swap(0, 1),
            |r| drop(r.columns.pop()),
        ];
        for edit in edits {
            let mut theirs = relation(&ours);
            edit(&mut theirs);
            assert!(!ours.agrees_with(&theirs), "{}", theirs.shape());
        }
        let mut renamed = relation(&ours);
        renamed.name.push('x');
        assert!(ours.agrees_with(&renamed));
    }

    #[test]
    fn a_shape_reads_in_one_line() {
        assert_eq!(schema().shape(), "(id type 23 key, note type 23)");
    }
}
