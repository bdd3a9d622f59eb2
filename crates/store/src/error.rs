//! What can be wrong with a store, in words for people; `classify.rs` says what it means.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a call of a store failed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another owner has the place.
    #[error("{} is in use by {holder}", path.display())]
    Locked {
        /// The state directory.
        path: PathBuf,
        /// Who, as far as it is known.
        holder: String,
    },
    /// A newer owner has taken the place over.
    #[error("{}: {what} is {found}, ours is {expected}", path.display())]
    Fenced {
        /// What shows it.
        path: PathBuf,
        /// Name of the value that differs.
        what: &'static str,
        /// Our value.
        expected: String,
        /// Value found.
        found: String,
    },
    /// An earlier save failed; its result is unknown.
    #[error("{}: an earlier save failed and its result is not known", path.display())]
    Poisoned {
        /// The state directory.
        path: PathBuf,
    },
    /// The directory is absent and so is the one that should hold it.
    #[error("{} cannot be created: {} does not exist", path.display(), parent.display())]
    ParentMissing {
        /// The state directory.
        path: PathBuf,
        /// The directory that should hold it.
        parent: PathBuf,
    },
    /// Something else has the name of one of our files or of the directory.
    #[error("{} is {found}, expected {expected}", path.display())]
    WrongKind {
        /// The path.
        path: PathBuf,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// The file system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The stored bytes are damaged.
    #[error("{} is damaged: {what} is {found}, expected {expected}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Which part.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A newer walferry wrote the file.
    #[error("{} has format {found}, this walferry knows up to {known}", path.display())]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Format found.
        found: u32,
        /// Newest format known.
        known: u32,
    },
    /// The values contradict each other.
    #[error("{} holds an invalid record: {field}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The rule that does not hold, with the values.
        field: String,
    },
    /// The record is larger than a record may be.
    #[error("{}: the record has {bytes} bytes, at most {bytes_max} are allowed", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes of the record.
        bytes: u64,
        /// The bound.
        bytes_max: u64,
    },
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { action, path: path.into(), source }
    }

    /// What a person can do about it, in one line.
    #[must_use]
    pub fn next_step(&self) -> String {
        match self {
            Self::Locked { holder, .. } => format!(
                "stop {holder}, or give this pipeline a state of its own with --id or --state"
            ),
            Self::Fenced { .. } => {
                "another run has taken this state over: let only one of them run".to_owned()
            }
            Self::Poisoned { .. } => "start again: what was saved is read then".to_owned(),
            Self::ParentMissing { parent, .. } => {
                format!("create it: mkdir -p {}", parent.display())
            }
            Self::WrongKind { path, .. } => {
                format!("move {} away, or name another place with --state", path.display())
            }
            Self::Io { path, source, .. } => io_step(source, path),
            Self::Corrupt { path, .. } => format!(
                "restore {} from a backup; without one, move the directory away and copy all tables again",
                path.display()
            ),
            Self::TooNew { .. } => "use the walferry that wrote it, or a newer one".to_owned(),
            Self::Invalid { path, .. } => format!(
                "keep {} and report this; to go on, restore it from a backup",
                path.display()
            ),
            Self::TooLarge { .. } => "publish fewer tables per pipeline".to_owned(),
        }
    }

    /// The message with all its causes in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

fn io_step(error: &io::Error, path: &std::path::Path) -> String {
    let path = path.display();
    // Any other kind of error has no better advice than what the system itself said.
    #[expect(clippy::wildcard_enum_match_arm, reason = "io::ErrorKind is open")]
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("let this user read and write {path}, or name another place with --state")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("free space on the file system of {path} and start again")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            format!("{path} lies on a read-only file system: name another place with --state")
        }
        _ => format!("see whether {path} can be read and written, then start again"),
    }
}
