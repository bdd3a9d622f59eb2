//! What the file remembers of a table (DS-18), and its row in `_walferry_tables`.

use std::path::Path;

use rusqlite::{Connection, Row, params};
use walferry_core::fault::DestinationClass;
use walferry_core::ids::{Attempt, EventKey, TableId};
use walferry_core::lsn::{CommitLsn, Lsn};

use super::classify;
use super::ranges::Ranges;
use crate::contract::DestinationError;

/// One source table.
#[derive(Clone, Debug)]
pub(super) struct TableState {
    pub(super) table: TableId,
    /// `schema.table` at the source, for people and to find a table that was created anew.
    pub(super) source: String,
    /// Its table here.
    pub(super) target: String,
    /// Columns and key, as `Layout::shape` prints them.
    pub(super) shape: String,
    pub(super) attempt: Attempt,
    /// Whether the copy of the attempt was finished.
    pub(super) complete: bool,
    /// Highest key applied in this attempt.
    pub(super) watermark: Option<EventKey>,
    /// Copy batches applied in this attempt.
    pub(super) sequences: Ranges,
}

/// All tables the file knows.
pub(super) fn load(
    connection: &Connection,
    file: &Path,
) -> Result<Vec<TableState>, DestinationError> {
    let failed = |error| classify::error(file, "read walferry's own tables", error);
    let mut statement = connection
        .prepare(
            "SELECT oid, source, target, shape, attempt, complete, watermark_commit, \
             watermark_ordinal, sequences FROM _walferry_tables",
        )
        .map_err(failed)?;
    let rows = statement.query_map([], read).map_err(failed)?;
    let mut states = Vec::new();
    for row in rows {
        states.push(row.map_err(failed)?.ok_or_else(|| {
            let message = format!(
                "sqlite file {}: _walferry_tables holds a row that walferry did not write; copy \
                 all tables again into a new file",
                file.display()
            );
            DestinationError::new(DestinationClass::Manual, message).of_the_sink()
        })?);
    }
    Ok(states)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Option<TableState>> {
    let commit: Option<i64> = row.get(6)?;
    let ordinal: Option<i64> = row.get(7)?;
    let watermark = commit.zip(ordinal).map(|(commit, ordinal)| EventKey {
        commit: CommitLsn(Lsn(commit.cast_unsigned())),
        ordinal: ordinal.cast_unsigned(),
    });
    let table = u32::try_from(row.get::<_, i64>(0)?);
    let sequences = Ranges::parse(&row.get::<_, String>(8)?);
    let (Ok(table), Some(sequences)) = (table, sequences) else { return Ok(None) };
    Ok(Some(TableState {
        table: TableId(table),
        source: row.get(1)?,
        target: row.get(2)?,
        shape: row.get(3)?,
        attempt: Attempt(row.get::<_, i64>(4)?.cast_unsigned()),
        complete: row.get(5)?,
        watermark,
        sequences,
    }))
}

impl TableState {
    /// Writes the row of a table whose attempt begins.
    pub(super) fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection.execute(
            "INSERT OR REPLACE INTO _walferry_tables (oid, source, target, shape, attempt, \
             complete, sequences) VALUES (?1, ?2, ?3, ?4, ?5, 0, '')",
            params![
                self.table.0,
                self.source,
                self.target,
                self.shape,
                self.attempt.0.cast_signed()
            ],
        )?;
        Ok(())
    }

    /// Writes what changes with the data.
    pub(super) fn update(&self, connection: &Connection) -> rusqlite::Result<()> {
        let mut statement = connection.prepare_cached(
            "UPDATE _walferry_tables SET complete = ?2, watermark_commit = ?3, \
             watermark_ordinal = ?4, sequences = ?5 WHERE oid = ?1",
        )?;
        statement.execute(params![
            self.table.0,
            self.complete,
            self.watermark.map(|key| key.commit.0.0.cast_signed()),
            self.watermark.map(|key| key.ordinal.cast_signed()),
            self.sequences.to_string(),
        ])?;
        Ok(())
    }
}
