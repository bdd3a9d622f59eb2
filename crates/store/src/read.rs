//! Reads the last completed save of a state directory, for its owner and for observers.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::codec::{self, BODY_BYTES_MAX, Decoded, HEADER_BYTES_MAX, Snapshot};
use crate::error::StoreError;
use crate::journal;

/// The whole record at the last save that wrote all of it.
pub(crate) const RECORD: &str = "record";
/// What the saves since then changed.
pub(crate) const JOURNAL: &str = "journal";
/// A record with its header; a journal that outgrows its record by one entry. Nothing else is read.
const FILE_BYTES_MAX: u64 = 3 * BODY_BYTES_MAX;
/// Tries of an observer whose record is replaced while it reads; a save takes far longer than a try.
const TRIES: u32 = 100;

/// Reads the last completed save; `None` if there is none.
///
/// An owner may save meanwhile. A journal belongs to one record file: if the record file is still the
/// same after the journal was read, both together are one saved value; otherwise it tries again.
pub(crate) fn read(dir: &Path) -> Result<Option<Snapshot>, StoreError> {
    let (record, journal) = (dir.join(RECORD), dir.join(JOURNAL));
    for _ in 0..TRIES {
        let Some(whole) = read_file(&record, u64::MAX)? else { return Ok(None) };
        let changes = read_file(&journal, u64::MAX)?.unwrap_or_default();
        // The header has the checksum and the body the number of the save: no two are the same.
        let head = read_file(&record, HEADER_BYTES_MAX as u64)?.unwrap_or_default();
        if !head.is_empty() && whole.starts_with(&head) || whole.is_empty() {
            return assemble(&record, &whole, &journal, &changes).map(Some);
        }
    }
    let source = io::Error::other("it was replaced each time it was read");
    Err(StoreError::io("read", record, source))
}

fn assemble(
    record: &Path,
    whole: &[u8],
    journal: &Path,
    changes: &[u8],
) -> Result<Snapshot, StoreError> {
    let Decoded { body: mut snapshot, sum: base, .. } = codec::decode::<Snapshot>(whole, record)?;
    codec::validate(&snapshot.record, record)?;
    let sequence = snapshot.sequence;
    journal::replay(&mut snapshot, &base, changes, journal)?;
    if snapshot.sequence != sequence {
        codec::validate(&snapshot.record, journal)?;
    }
    Ok(snapshot)
}

/// The first bytes of a file, at most `bytes_max`; `None` if there is no such file.
pub(crate) fn read_file(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, StoreError> {
    let failed = |source| StoreError::io("read", path, source);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(wrong_kind(path, "a file", &meta));
    }
    if meta.len() > FILE_BYTES_MAX {
        let found = format!("{} bytes", meta.len());
        return Err(codec::corrupt(
            path,
            "file",
            &format!("at most {FILE_BYTES_MAX} bytes"),
            found,
        ));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max.min(FILE_BYTES_MAX)).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

pub(crate) fn wrong_kind(
    path: &Path,
    expected: &'static str,
    meta: &std::fs::Metadata,
) -> StoreError {
    let found = if meta.is_dir() {
        "a directory"
    } else if meta.is_file() {
        "a file"
    } else {
        "neither file nor directory"
    };
    StoreError::WrongKind { path: PathBuf::from(path), expected, found }
}
