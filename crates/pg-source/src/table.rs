//! One table as a snapshot shows it: its heaps, columns and keys.
//!
//! Owns the queries of K-11, K-14, K-27 and D-08. Must never compare the two sides of the guard, or
//! what a table is with what it was.

use sha2::{Digest, Sha256};
use walferry_core::ids::TableId;
use walferry_core::lsn::Position;
use walferry_core::schema::{Column, ReplicaIdentity, TableSchema};
use walferry_core::source::{Described, GuardColumn, HeapFacts};

use crate::catalog::{self, Membership};
use crate::error::SourceError;
use crate::session::Session;
use crate::sql::literal;

/// The name of a relation now, quoted; `None` if it is gone.
///
/// The output function of `regclass` does not look through the snapshot, and search path
/// `pg_catalog` makes it write the schema.
pub(crate) async fn current_name(
    session: &mut Session,
    table: TableId,
) -> Result<Option<String>, SourceError> {
    let during = format!("naming table {table}");
    let rows = session.query(&during, &format!("SELECT {table}::regclass::text")).await?;
    let row = rows.first().ok_or_else(|| SourceError::unexpected(&during, "no row"))?;
    let name = row.required(0)?;
    // What is gone is shown as its number.
    Ok((name != table.to_string()).then(|| name.to_owned()))
}

/// Locks a table and the partitions below it in ACCESS SHARE mode; whether `name` was still its.
///
/// The SELECT names no column: it needs a grant on any of them, and no column of the snapshot may
/// be gone before the guard has looked.
pub(crate) async fn lock(
    session: &mut Session,
    table: TableId,
    name: &str,
) -> Result<bool, SourceError> {
    const GONE: [&str; 2] = ["42P01", "3F000"];
    let during = format!("locking table {name}");
    let sql = format!("SAVEPOINT lock; SELECT FROM {name} LIMIT 0");
    match session.query(&during, &sql).await {
        Ok(_) => {}
        Err(SourceError::Server { error, .. }) if GONE.contains(&error.code.as_str()) => {
            session.query(&during, "ROLLBACK TO SAVEPOINT lock").await?;
            return Ok(false);
        }
        Err(error) => return Err(error),
    }
    let sql = format!("SELECT to_regclass({})::oid", literal(name));
    let rows = session.query(&during, &sql).await?;
    let found: Option<u32> = rows.first().map(|row| row.optional(0)).transpose()?.flatten();
    Ok(found == Some(table.0))
}

/// The heaps to be read: the table, or the leaves under a partitioned one. Columns as the session
/// shows them; those of now are left empty.
pub(crate) async fn heaps(
    session: &mut Session,
    table: TableId,
) -> Result<Vec<HeapFacts>, SourceError> {
    let during = format!("reading the heaps of table {table}");
    let sql = format!(
        "WITH RECURSIVE down(relation) AS (SELECT {table}::oid UNION ALL \
            SELECT i.inhrelid FROM down JOIN pg_inherits i ON i.inhparent = down.relation \
            JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition) \
         SELECT c.oid, c.relfilenode, coalesce(pg_relation_filenode(c.oid), 0), \
            coalesce(pg_table_size(c.oid), 0), \
            coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int8 \
         FROM down JOIN pg_class c ON c.oid = down.relation \
         WHERE c.relkind = 'r' AND c.relpersistence = 'p' ORDER BY c.oid"
    );
    let rows = session.query(&during, &sql).await?;
    let mut heaps = rows
        .iter()
        .map(|row| {
            Ok(HeapFacts {
                relation: TableId(row.value(0)?),
                filenode_in_snapshot: row.value(1)?,
                filenode_now: row.value(2)?,
                columns_in_snapshot: Vec::new(),
                columns_now: Vec::new(),
                bytes: row.value(3)?,
                blocks: row.value(4)?,
            })
        })
        .collect::<Result<Vec<_>, SourceError>>()?;
    let relations: Vec<_> = heaps.iter().map(|heap| heap.relation).collect();
    let columns = guard_columns(session, &relations).await?;
    for heap in &mut heaps {
        heap.columns_in_snapshot = of_relation(&columns, heap.relation);
    }
    Ok(heaps)
}

/// The columns of `relation` among those of several.
pub(crate) fn of_relation(
    columns: &[(TableId, GuardColumn)],
    relation: TableId,
) -> Vec<GuardColumn> {
    let start = columns.partition_point(|(owner, _)| *owner < relation);
    let own = columns.iter().skip(start).take_while(|(owner, _)| *owner == relation);
    own.map(|(_, column)| column.clone()).collect()
}

/// All columns of `relations`, also dropped ones, sorted by relation and number.
pub(crate) async fn guard_columns(
    session: &mut Session,
    relations: &[TableId],
) -> Result<Vec<(TableId, GuardColumn)>, SourceError> {
    const DURING: &str = "reading columns for the rewrite guard";
    if relations.is_empty() {
        return Ok(Vec::new());
    }
    let list: Vec<_> = relations.iter().map(TableId::to_string).collect();
    let sql = format!(
        "SELECT attrelid, attnum, attname, atttypid, atttypmod, attisdropped FROM pg_attribute \
         WHERE attnum > 0 AND attrelid IN ({}) ORDER BY attrelid, attnum",
        list.join(", ")
    );
    let rows = session.query(DURING, &sql).await?;
    rows.iter()
        .map(|row| {
            let column = GuardColumn {
                number: row.value(1)?,
                name: row.required(2)?.to_owned(),
                type_oid: row.value(3)?,
                modifier: row.value(4)?,
                dropped: row.flag(5)?,
            };
            Ok((TableId(row.value(0)?), column))
        })
        .collect()
}

/// A table's schema, and whether a generated column is among its published ones.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub(crate) schema: TableSchema,
    pub(crate) generated: bool,
}

/// The published columns in physical order (K-14), as RELATION will announce them (PG-43), and the
/// others; `None` if there is no such table. The storage stamp is left out.
pub(crate) async fn schema(
    session: &mut Session,
    table: TableId,
    membership: &Membership,
) -> Result<Option<Published>, SourceError> {
    let during = format!("reading the schema of table {table}");
    let sql = format!(
        "SELECT n.nspname, c.relname, c.relreplident, a.attnum, a.attname, a.atttypid, \
            a.atttypmod, a.attnotnull, \
            CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END, \
            c.relreplident = 'f' OR coalesce(a.attnum = ANY (i.keys), false), a.attgenerated \
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
         LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
         LEFT JOIN LATERAL (SELECT (x.indkey::int2[])[0:x.indnkeyatts - 1] AS keys \
            FROM pg_index x WHERE x.indrelid = c.oid AND x.indisunique AND x.indimmediate \
               AND x.indisvalid AND x.indpred IS NULL \
               AND CASE c.relreplident WHEN 'd' THEN x.indisprimary \
                     WHEN 'i' THEN x.indisreplident ELSE false END LIMIT 1) AS i ON true \
         WHERE c.oid = {table} ORDER BY a.attnum"
    );
    let rows = session.query(&during, &sql).await?;
    let Some(first) = rows.first() else { return Ok(None) };
    let identity = match first.required(2)? {
        "d" => ReplicaIdentity::Default,
        "i" => ReplicaIdentity::Index,
        "f" => ReplicaIdentity::Full,
        "n" => ReplicaIdentity::Nothing,
        other => {
            return Err(SourceError::unexpected(&during, format!("replica identity {other:?}")));
        }
    };
    let (mut columns, mut unpublished) = (Vec::with_capacity(rows.len()), Vec::new());
    let mut generated = false;
    for row in rows.iter().filter(|row| row.text(3).is_some()) {
        let number = row.value(3)?;
        let kind = row.required(10)?;
        let published = match &membership.columns {
            Some(list) => list.contains(&number),
            None => kind.is_empty() || (membership.generated && kind == "s"),
        };
        generated |= published && !kind.is_empty();
        let into = if published { &mut columns } else { &mut unpublished };
        into.push(Column {
            number,
            name: row.required(4)?.to_owned(),
            type_oid: row.value(5)?,
            modifier: row.value(6)?,
            not_null: row.flag(7)?,
            default: row.text(8).map(str::to_owned),
            key: row.flag(9)?,
        });
    }
    let schema = TableSchema {
        table,
        namespace: first.required(0)?.to_owned(),
        name: first.required(1)?.to_owned(),
        identity,
        columns,
        unpublished,
        storage: None,
    };
    Ok(Some(Published { schema, generated }))
}

/// What the heaps of a table tell about its existing rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Storage {
    /// Hash of the heaps and their `relfilenode`s as the snapshot of the session shows them (D-06).
    pub(crate) stamp: u64,
    /// Columns for which every heap stores one and the same value for rows that lack them (PG-29).
    pub(crate) missing: Vec<(String, Option<String>)>,
}

/// The storage of a table or of the leaves under a partitioned one.
pub(crate) async fn storage(session: &mut Session, table: TableId) -> Result<Storage, SourceError> {
    let during = format!("reading the storage of table {table}");
    // The stored value is an array of one element of any type; text is what all types share.
    let sql = format!(
        "WITH RECURSIVE down(relation) AS (SELECT {table}::oid UNION ALL \
            SELECT i.inhrelid FROM down JOIN pg_inherits i ON i.inhparent = down.relation \
            JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition) \
         SELECT c.oid, c.relfilenode, a.attname, (a.attmissingval::text::text[])[1] \
         FROM down JOIN pg_class c ON c.oid = down.relation \
         LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 \
            AND NOT a.attisdropped AND a.atthasmissing \
         WHERE c.relkind = 'r' ORDER BY c.oid, a.attnum"
    );
    let rows = session.query(&during, &sql).await?;
    let mut heaps: Vec<(u32, u32)> = Vec::new();
    let mut values: Vec<(String, Option<String>, usize)> = Vec::new();
    for row in &rows {
        let heap = (row.value(0)?, row.value(1)?);
        if heaps.last() != Some(&heap) {
            heaps.push(heap);
        }
        let Some(name) = row.text(2) else { continue };
        let value = row.text(3).map(str::to_owned);
        match values.iter_mut().find(|(known, found, _)| *known == name && *found == value) {
            Some((_, _, heaps)) => *heaps += 1,
            None => values.push((name.to_owned(), value, 1)),
        }
    }
    let mut hash = Sha256::new();
    for (heap, filenode) in &heaps {
        hash.update(heap.to_be_bytes());
        hash.update(filenode.to_be_bytes());
    }
    let mut stamp = [0; 8];
    stamp.copy_from_slice(&hash.finalize()[..8]);
    let everywhere = values.into_iter().filter(|(_, _, found)| *found == heaps.len());
    Ok(Storage {
        stamp: u64::from_be_bytes(stamp),
        missing: everywhere.map(|(name, value, _)| (name, value)).collect(),
    })
}

/// A table as the catalog shows it, in one snapshot (D-08); `None` if it is gone. One that is not
/// published any more is shown as if all its columns were.
pub(crate) async fn describe(
    session: &mut Session,
    publication: &str,
    table: TableId,
) -> Result<Option<Described>, SourceError> {
    let during = format!("describing table {table}");
    session.query(&during, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    let membership = catalog::membership(session, publication, table).await?;
    let membership =
        membership.unwrap_or(Membership { filter: None, columns: None, generated: false });
    let described = match schema(session, table, &membership).await? {
        Some(Published { mut schema, .. }) => {
            let Storage { stamp, missing } = storage(session, table).await?;
            schema.storage = Some(stamp);
            let rows = session.query(&during, "SELECT pg_current_wal_insert_lsn()").await?;
            let row = rows.first().ok_or_else(|| SourceError::unexpected(&during, "no row"))?;
            Some(Described { schema, missing, position: Position(row.value(0)?) })
        }
        None => None,
    };
    session.query(&during, "COMMIT").await?;
    Ok(described)
}
