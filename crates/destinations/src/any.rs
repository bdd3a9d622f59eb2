//! The destination that a URL names.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;
use walferry_core::batch::{Batch, CopyBatch, CopyStart, Declaration, Durability};
use walferry_core::ids::{Attempt, Epoch, Lane, TableId};

use crate::contract::{Destination, DestinationError};
use crate::jsonl::JsonlDestination;
use crate::null::NullDestination;
use crate::sqlite::SqliteDestination;

/// Any destination that this crate has.
#[derive(Debug)]
pub enum AnyDestination {
    /// `sqlite:PATH`
    Sqlite(SqliteDestination),
    /// `jsonl:PATH` or `jsonl:-`
    Jsonl(JsonlDestination),
    /// `null:`
    Null(NullDestination),
}

/// A text that names no destination.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DestinationUrlError {
    /// It has no scheme.
    #[error("destination {url:?} has no scheme; known are {KNOWN}")]
    NoScheme {
        /// The text.
        url: String,
    },
    /// Its scheme is not one of ours.
    #[error("destination scheme {scheme:?} is not known; known are {KNOWN}")]
    UnknownScheme {
        /// The scheme.
        scheme: String,
    },
    /// It should name a file and does not.
    #[error("destination {scheme}: names no file; write {scheme}:PATH")]
    NoPath {
        /// The scheme.
        scheme: String,
    },
    /// It has two slashes as if a host followed.
    #[error("destination {url:?} names a host; write {scheme}:PATH, with one slash or none")]
    Host {
        /// The scheme.
        scheme: String,
        /// The text.
        url: String,
    },
    /// Something follows a scheme that stands alone.
    #[error("destination {scheme}: takes nothing behind the colon, found {found:?}")]
    Surplus {
        /// The scheme.
        scheme: String,
        /// What follows.
        found: String,
    },
    /// The current folder, which a relative path needs, cannot be found out.
    #[error("path {path:?} cannot be made absolute: {reason}")]
    NotAbsolute {
        /// The path.
        path: String,
        /// What the system said.
        reason: String,
    },
}

const KNOWN: &str = "sqlite:PATH, jsonl:PATH, jsonl:- (standard output), null:";

impl AnyDestination {
    /// Reads a URL. Does no IO; a relative path is made absolute, the file need not exist.
    pub fn parse(url: &str) -> Result<Self, DestinationUrlError> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(DestinationUrlError::NoScheme { url: url.to_owned() });
        };
        match (scheme, rest) {
            ("sqlite", path) => Ok(Self::Sqlite(SqliteDestination::new(file(scheme, path)?))),
            ("jsonl", "-") => Ok(Self::Jsonl(JsonlDestination::stdout())),
            ("jsonl", path) => Ok(Self::Jsonl(JsonlDestination::file(file(scheme, path)?))),
            ("null", "") => Ok(Self::Null(NullDestination::new())),
            ("null", found) => Err(DestinationUrlError::Surplus {
                scheme: scheme.to_owned(),
                found: found.to_owned(),
            }),
            (_, _) => Err(DestinationUrlError::UnknownScheme { scheme: scheme.to_owned() }),
        }
    }

    /// Whether a sink of another pipeline is taken over (DS-16); without meaning for one that has
    /// no memory.
    #[must_use]
    pub fn take_over(self, take_over: bool) -> Self {
        match self {
            Self::Sqlite(inner) => Self::Sqlite(inner.take_over(take_over)),
            Self::Jsonl(inner) => Self::Jsonl(inner.take_over(take_over)),
            Self::Null(inner) => Self::Null(inner),
        }
    }
}

fn file(scheme: &str, path: &str) -> Result<PathBuf, DestinationUrlError> {
    let scheme = || scheme.to_owned();
    if path.is_empty() {
        return Err(DestinationUrlError::NoPath { scheme: scheme() });
    }
    let path = match path.strip_prefix("//") {
        Some(rest) if rest.starts_with('/') => rest,
        Some(_) => {
            let url = format!("{}:{path}", scheme());
            return Err(DestinationUrlError::Host { scheme: scheme(), url });
        }
        None => path,
    };
    std::path::absolute(path).map_err(|error| DestinationUrlError::NotAbsolute {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

impl Destination for AnyDestination {
    fn declare(&self) -> Declaration {
        match self {
            Self::Sqlite(inner) => inner.declare(),
            Self::Jsonl(inner) => inner.declare(),
            Self::Null(inner) => inner.declare(),
        }
    }

    async fn startup(&self, pipeline: &str, epoch: Epoch) -> Result<(), DestinationError> {
        match self {
            Self::Sqlite(inner) => inner.startup(pipeline, epoch).await,
            Self::Jsonl(inner) => inner.startup(pipeline, epoch).await,
            Self::Null(inner) => inner.startup(pipeline, epoch).await,
        }
    }

    async fn begin_copy(&self, start: CopyStart) -> Result<(), DestinationError> {
        match self {
            Self::Sqlite(inner) => inner.begin_copy(start).await,
            Self::Jsonl(inner) => inner.begin_copy(start).await,
            Self::Null(inner) => inner.begin_copy(start).await,
        }
    }

    async fn write_rows(
        &self,
        batch: Arc<CopyBatch<Bytes>>,
    ) -> Result<Durability, DestinationError> {
        match self {
            Self::Sqlite(inner) => inner.write_rows(batch).await,
            Self::Jsonl(inner) => inner.write_rows(batch).await,
            Self::Null(inner) => inner.write_rows(batch).await,
        }
    }

    async fn finish_copy(
        &self,
        table: TableId,
        attempt: Attempt,
        epoch: Epoch,
        sequences: u64,
    ) -> Result<Durability, DestinationError> {
        match self {
            Self::Sqlite(inner) => inner.finish_copy(table, attempt, epoch, sequences).await,
            Self::Jsonl(inner) => inner.finish_copy(table, attempt, epoch, sequences).await,
            Self::Null(inner) => inner.finish_copy(table, attempt, epoch, sequences).await,
        }
    }

    async fn write_changes(
        &self,
        batch: Arc<Batch<Bytes>>,
    ) -> Result<Durability, DestinationError> {
        match self {
            Self::Sqlite(inner) => inner.write_changes(batch).await,
            Self::Jsonl(inner) => inner.write_changes(batch).await,
            Self::Null(inner) => inner.write_changes(batch).await,
        }
    }

    async fn flush(&self, lane: Lane) -> Result<(), DestinationError> {
        match self {
            Self::Sqlite(inner) => inner.flush(lane).await,
            Self::Jsonl(inner) => inner.flush(lane).await,
            Self::Null(inner) => inner.flush(lane).await,
        }
    }

    async fn shutdown(&self) -> Result<(), DestinationError> {
        match self {
            Self::Sqlite(inner) => inner.shutdown().await,
            Self::Jsonl(inner) => inner.shutdown().await,
            Self::Null(inner) => inner.shutdown().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(url: &str) -> String {
        AnyDestination::parse(url).unwrap().declare().id
    }

    // S-01, DS-01
    #[test]
    fn ids_hold_absolute_paths() {
        let here = std::env::current_dir().unwrap().display().to_string();
        assert_eq!(id("sqlite:a/b.db"), format!("sqlite:{here}/a/b.db"));
        assert_eq!(id("sqlite:./b c.db"), format!("sqlite:{here}/b c.db"));
        assert_eq!(id("sqlite:/a:b.db"), "sqlite:/a:b.db");
        assert_eq!(id("sqlite:///a.db"), "sqlite:/a.db");
        assert_eq!(id("jsonl:/x/y.jsonl"), "jsonl:/x/y.jsonl");
        assert_eq!(id("jsonl:-"), "jsonl:-");
        assert_eq!(id("null:"), "null:");
    }

    #[test]
    fn each_mistake_has_its_message() {
        let cases = [
            ("out.db", "destination \"out.db\" has no scheme; known are sqlite:PATH, "),
            ("mysql://x", "destination scheme \"mysql\" is not known; known are sqlite:PATH, "),
            ("SQLITE:x", "destination scheme \"SQLITE\" is not known"),
            ("sqlite:", "destination sqlite: names no file; write sqlite:PATH"),
            ("jsonl:", "destination jsonl: names no file; write jsonl:PATH"),
            ("sqlite://a.db", "destination \"sqlite://a.db\" names a host; write sqlite:PATH"),
            ("null:x", "destination null: takes nothing behind the colon, found \"x\""),
            ("", "destination \"\" has no scheme"),
        ];
        for (url, message) in cases {
            let error = AnyDestination::parse(url).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
