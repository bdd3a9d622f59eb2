//! What an error of a store means for the core (E-02): one place, one exhaustive match.

use walferry_core::fault::{Fault, FaultKind, Origin};

use crate::error::StoreError;

impl From<&StoreError> for Fault {
    fn from(error: &StoreError) -> Self {
        Self::new(Origin::Store, kind(error), error.chain())
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::from(&error)
    }
}

fn kind(error: &StoreError) -> FaultKind {
    match error {
        StoreError::Locked { holder, .. } => FaultKind::StoreLocked { holder: holder.clone() },
        StoreError::Fenced { .. } => FaultKind::StoreFenced,
        StoreError::Poisoned { .. }
        | StoreError::ParentMissing { .. }
        | StoreError::WrongKind { .. }
        | StoreError::Io { .. }
        | StoreError::TooLarge { .. } => FaultKind::StoreFailed,
        StoreError::Corrupt { .. } => FaultKind::RecordCorrupt,
        StoreError::TooNew { found, known, .. } => {
            FaultKind::RecordTooNew { found: *found, known: *known }
        }
        StoreError::Invalid { field, .. } => FaultKind::RecordInvalid { field: field.clone() },
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::*;

    // E-I1, E-01: each error has its kind, and neither path, values nor cause get lost
    #[test]
    fn each_error_has_its_kind_and_keeps_its_facts() {
        let path = || PathBuf::from("/s/record");
        let cases = [
            (
                StoreError::Locked { path: path(), holder: "process 7".to_owned() },
                FaultKind::StoreLocked { holder: "process 7".to_owned() },
                "/s/record is in use by process 7",
            ),
            (
                StoreError::Fenced {
                    path: path(),
                    what: "epoch",
                    expected: "3".to_owned(),
                    found: "4".to_owned(),
                },
                FaultKind::StoreFenced,
                "/s/record: epoch is 4, ours is 3",
            ),
            (
                StoreError::Poisoned { path: path() },
                FaultKind::StoreFailed,
                "/s/record: an earlier save failed and its result is not known",
            ),
            (
                StoreError::ParentMissing { path: path(), parent: PathBuf::from("/s") },
                FaultKind::StoreFailed,
                "/s/record cannot be created: /s does not exist",
            ),
            (
                StoreError::WrongKind { path: path(), expected: "a file", found: "a directory" },
                FaultKind::StoreFailed,
                "/s/record is a directory, expected a file",
            ),
            (
                StoreError::io("write", path(), io::Error::from(io::ErrorKind::StorageFull)),
                FaultKind::StoreFailed,
                "cannot write /s/record: no storage space",
            ),
            (
                StoreError::TooLarge { path: path(), bytes: 9, bytes_max: 8 },
                FaultKind::StoreFailed,
                "/s/record: the record has 9 bytes, at most 8 are allowed",
            ),
            (
                StoreError::Corrupt {
                    path: path(),
                    what: "length",
                    expected: "9".to_owned(),
                    found: "8".to_owned(),
                },
                FaultKind::RecordCorrupt,
                "/s/record is damaged: length is 8, expected 9",
            ),
            (
                StoreError::TooNew { path: path(), found: 2, known: 1 },
                FaultKind::RecordTooNew { found: 2, known: 1 },
                "/s/record has format 2, this walferry knows up to 1",
            ),
            (
                StoreError::Invalid { path: path(), field: "format is 0".to_owned() },
                FaultKind::RecordInvalid { field: "format is 0".to_owned() },
                "/s/record holds an invalid record: format is 0",
            ),
        ];
        for (error, kind, message) in cases {
            let fault = Fault::from(&error);
            assert_eq!(fault, Fault::new(Origin::Store, kind, message));
            assert!(!error.next_step().is_empty());
        }
        walferry_coverage::reached("E-I1");
    }
}
