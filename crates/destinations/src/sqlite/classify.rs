//! What an error of SQLite means for the pipeline (DS-10).
//!
//! Owns the table of result codes. Drops nothing: the library's error stays the source.

use std::path::Path;

use rusqlite::{Error, ffi};
use walferry_core::fault::DestinationClass;

use crate::contract::DestinationError;

const TRANSIENT: DestinationClass = DestinationClass::Transient { retry_after: None };

/// Turns an error of the library into ours. `doing` says which operation failed: `cannot {doing}`.
pub(super) fn error(file: &Path, doing: &str, error: Error) -> DestinationError {
    let code = error.sqlite_error().map(|error| error.extended_code & 0xFF);
    let (class, problem, next) = meaning(code);
    let whole_sink = code.is_some_and(is_of_the_file);
    let next = if next.is_empty() { String::new() } else { format!("; {next}") };
    let message = format!("sqlite file {}: cannot {doing}: {problem}{next}", file.display());
    let error = DestinationError::new(class, message).caused_by(error);
    if whole_sink { error.of_the_sink() } else { error }
}

/// Whether a primary result code speaks of the file, its disk or its locks: then every table fails.
const fn is_of_the_file(code: i32) -> bool {
    matches!(
        code,
        ffi::SQLITE_BUSY
            | ffi::SQLITE_LOCKED
            | ffi::SQLITE_PROTOCOL
            | ffi::SQLITE_NOMEM
            | ffi::SQLITE_FULL
            | ffi::SQLITE_IOERR
            | ffi::SQLITE_CANTOPEN
            | ffi::SQLITE_READONLY
            | ffi::SQLITE_PERM
            | ffi::SQLITE_CORRUPT
            | ffi::SQLITE_NOTADB
    )
}

/// Whether a statement ran into a constraint of its table.
pub(super) fn is_constraint(error: &Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code & 0xFF);
    code == Some(ffi::SQLITE_CONSTRAINT) || code == Some(ffi::SQLITE_MISMATCH)
}

/// Class, problem and next step of a primary result code.
fn meaning(code: Option<i32>) -> (DestinationClass, &'static str, &'static str) {
    let manual = DestinationClass::Manual;
    match code {
        Some(ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED) => {
            (TRANSIENT, "another program is writing to it", "it is tried again")
        }
        Some(ffi::SQLITE_PROTOCOL) => (TRANSIENT, "its locks are contended", "it is tried again"),
        Some(ffi::SQLITE_INTERRUPT) => (TRANSIENT, "the operation was interrupted", ""),
        Some(ffi::SQLITE_NOMEM) => (TRANSIENT, "out of memory", "free memory"),
        Some(ffi::SQLITE_FULL) => {
            (manual, "the disk is full", "free space on its disk, then start again")
        }
        Some(ffi::SQLITE_IOERR) => {
            (manual, "the disk reported an error", "check the disk and the kernel log")
        }
        Some(ffi::SQLITE_CANTOPEN) => (
            manual,
            "it cannot be opened",
            "check that its folder exists and that this user may write to it",
        ),
        Some(ffi::SQLITE_READONLY | ffi::SQLITE_PERM) => {
            (manual, "it may not be written to", "give this user the right to write to it")
        }
        Some(ffi::SQLITE_CORRUPT) => (
            manual,
            "the file is damaged",
            "put it aside and copy all tables again (walferry resync), or restore it",
        ),
        Some(ffi::SQLITE_NOTADB) => {
            (manual, "it is not a SQLite database", "name another path or move the file away")
        }
        Some(ffi::SQLITE_CONSTRAINT) => (manual, "a constraint of the table forbids it", ""),
        Some(ffi::SQLITE_MISMATCH) => (manual, "a value has not the type of its column", ""),
        Some(ffi::SQLITE_TOOBIG) => {
            (DestinationClass::Permanent, "a value is larger than SQLite's limit of 1 GB", "")
        }
        Some(ffi::SQLITE_ERROR | ffi::SQLITE_SCHEMA) => (
            manual,
            "SQLite refused the statement",
            "if a table was changed by hand, copy it again (walferry resync)",
        ),
        Some(_) | None => (manual, "SQLite reported an error", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // DS-10, DS-F1
    #[test]
    fn each_code_has_its_class() {
        let manual = DestinationClass::Manual;
        let cases = [
            (ffi::SQLITE_BUSY, TRANSIENT),
            (ffi::SQLITE_BUSY_SNAPSHOT, TRANSIENT),
            (ffi::SQLITE_LOCKED, TRANSIENT),
            (ffi::SQLITE_FULL, manual),
            (ffi::SQLITE_IOERR_FSYNC, manual),
            (ffi::SQLITE_CANTOPEN, manual),
            (ffi::SQLITE_READONLY_DBMOVED, manual),
            (ffi::SQLITE_CORRUPT, manual),
            (ffi::SQLITE_NOTADB, manual),
            (ffi::SQLITE_TOOBIG, DestinationClass::Permanent),
        ];
        for (code, class) in cases {
            let failure = Error::SqliteFailure(ffi::Error::new(code), None);
            let error = error(Path::new("/data/a.db"), "commit", failure);
            assert_eq!(error.class, class, "{code}");
            assert!(error.message.starts_with("sqlite file /data/a.db: cannot commit: "));
            assert!(error.source.is_some());
            let of_a_table = code == ffi::SQLITE_TOOBIG;
            assert_eq!(error.whole_sink, !of_a_table, "{code}");
        }
    }
}
