//! Opening the file and claiming it for a pipeline and an epoch (DS-16).

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use walferry_core::fault::DestinationClass;
use walferry_core::ids::Epoch;

use super::classify;
use crate::contract::DestinationError;

/// Version of our own tables. A file with a newer one is refused.
pub(super) const FORMAT: i64 = 1;

/// Long enough for a reader that checkpoints or a tool that writes a row, short enough to be seen.
const BUSY: Duration = Duration::from_secs(2);

/// Chosen so that a bulk copy is not slowed by checkpoints, while the log stays below 100 MiB.
const WAL_PAGES: u32 = 8_192;

/// Keeps the inner pages of large keys in memory; counted outside `memory_bytes`.
const CACHE_KIB: u32 = 32_768;

/// Who wants the file.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) pipeline: String,
    pub(super) epoch: Epoch,
    pub(super) take_over: bool,
}

/// Opens the file, creates it if it is missing, and claims it.
pub(super) fn open(file: &Path, claim: &Claim) -> Result<Connection, DestinationError> {
    look(file)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |doing: &'static str| move |error| classify::error(file, doing, error);
    let connection = Connection::open_with_flags(file, flags).map_err(failed("open it"))?;
    connection.busy_timeout(BUSY).map_err(failed("set a timeout"))?;
    let mode: String = connection
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        .map_err(failed("switch it to WAL mode"))?;
    if mode != "wal" {
        let message = format!(
            "sqlite file {}: it cannot use a write-ahead log (its journal mode stays {mode}); use a \
             local file system",
            file.display()
        );
        return Err(DestinationError::new(DestinationClass::Manual, message).of_the_sink());
    }
    connection
        .execute_batch(&format!(
            "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = {WAL_PAGES}; \
             PRAGMA cache_size = -{CACHE_KIB}; PRAGMA journal_size_limit = 67108864; \
             PRAGMA foreign_keys = OFF"
        ))
        .map_err(failed("set its parameters"))?;
    self::claim(&connection, file, claim)?;
    Ok(connection)
}

/// Finds out early what SQLite would only call "unable to open database file".
fn look(file: &Path) -> Result<(), DestinationError> {
    let manual = |problem: String| {
        let message = format!("sqlite file {}: {problem}", file.display());
        Err(DestinationError::new(DestinationClass::Manual, message).of_the_sink())
    };
    if file.is_dir() {
        return manual("it is a folder; name a file in it".to_owned());
    }
    if let Some(folder) = file.parent().filter(|folder| !folder.is_dir()) {
        let folder = folder.display();
        return manual(format!("its folder does not exist; create it: mkdir -p '{folder}'"));
    }
    // SQLite would find out later, with files beside it that nobody may write to either.
    match OpenOptions::new().write(true).open(file) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            manual("it may not be written to; give this user the right to write to it".to_owned())
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Makes (pipeline, epoch) the owner of the file, or says who is.
pub(super) fn claim(
    connection: &Connection,
    file: &Path,
    claim: &Claim,
) -> Result<(), DestinationError> {
    let failed = |doing: &'static str| move |error| classify::error(file, doing, error);
    connection.execute_batch("BEGIN IMMEDIATE").map_err(failed("begin a transaction"))?;
    let done = take(connection, file, claim)
        .and_then(|()| connection.execute_batch("COMMIT").map_err(failed("commit the claim")));
    if done.is_err() && !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK").map_err(failed("roll back the claim"))?;
    }
    done
}

fn take(connection: &Connection, file: &Path, claim: &Claim) -> Result<(), DestinationError> {
    let failed = |doing: &'static str| move |error| classify::error(file, doing, error);
    let known: bool = connection
        .query_row(
            "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = '_walferry_pipeline')",
            [],
            |row| row.get(0),
        )
        .map_err(failed("read it"))?;
    let owner: Option<(i64, String, i64)> = match known {
        false => None,
        true => connection
            .query_row("SELECT format, pipeline, epoch FROM _walferry_pipeline", [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .optional()
            .map_err(failed("read its owner"))?,
    };
    let ours = match owner {
        None => {
            connection.execute_batch(TABLES).map_err(failed("create walferry's own tables"))?;
            false
        }
        Some((format, pipeline, epoch)) => {
            allowed(file, claim, format, &pipeline, Epoch(epoch.cast_unsigned()))?;
            pipeline == claim.pipeline
        }
    };
    if !ours {
        // What another pipeline knew of attempts and positions means nothing to this one.
        connection
            .execute_batch(
                "DELETE FROM _walferry_pipeline; UPDATE _walferry_tables SET attempt = 0, \
                 watermark_commit = NULL, watermark_ordinal = NULL, sequences = ''",
            )
            .map_err(failed("take it over"))?;
    }
    connection
        .execute(
            "INSERT INTO _walferry_pipeline (one, format, pipeline, epoch) VALUES (1, ?1, ?2, ?3) \
             ON CONFLICT (one) DO UPDATE SET epoch = excluded.epoch",
            params![FORMAT, claim.pipeline, claim.epoch.0.cast_signed()],
        )
        .map_err(failed("claim it"))?;
    Ok(())
}

/// Whether the owner found lets us in.
fn allowed(
    file: &Path,
    claim: &Claim,
    format: i64,
    pipeline: &str,
    epoch: Epoch,
) -> Result<(), DestinationError> {
    let refuse = |class, problem: String| {
        let message = format!("sqlite file {}: {problem}", file.display());
        Err(DestinationError::new(class, message).of_the_sink())
    };
    if format > FORMAT {
        return refuse(
            DestinationClass::Manual,
            format!(
                "it was written by a newer walferry (format {format}, this one knows {FORMAT}); \
                 use that version"
            ),
        );
    }
    if pipeline != claim.pipeline {
        if claim.take_over {
            return Ok(());
        }
        let wanted = &claim.pipeline;
        return refuse(
            DestinationClass::Manual,
            format!(
                "it belongs to the pipeline {pipeline:?}, this is {wanted:?}; use another file, or \
                 --take-over if {pipeline:?} will never run again"
            ),
        );
    }
    if epoch > claim.epoch {
        let wanted = claim.epoch;
        return refuse(
            DestinationClass::Fenced,
            format!(
                "a newer run owns it (epoch {epoch}, this one has {wanted}); if none is alive, the \
                 state of this pipeline was replaced by an older one: start with the right state, or \
                 with a new file"
            ),
        );
    }
    Ok(())
}

/// Moves the log into the file, so that it can be copied as it lies there. A reader that is in the
/// way leaves some of the log for later.
pub(super) fn checkpoint(connection: &Connection, file: &Path) -> Result<(), DestinationError> {
    connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .map_err(|error| classify::error(file, "write its log back", error))
}

/// Numbers are 64-bit patterns: a value above the largest signed one is stored as a negative one.
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS _walferry_pipeline (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    format INTEGER NOT NULL,
    pipeline TEXT NOT NULL,
    epoch INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS _walferry_tables (
    oid INTEGER PRIMARY KEY,
    source TEXT NOT NULL,
    target TEXT NOT NULL COLLATE NOCASE UNIQUE,
    shape TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    complete INTEGER NOT NULL,
    watermark_commit INTEGER,
    watermark_ordinal INTEGER,
    sequences TEXT NOT NULL
) STRICT;
";
