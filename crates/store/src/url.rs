//! Where a store lies, as people write it: `file:DIR`.

use core::fmt;
use core::str::FromStr;
use std::path::PathBuf;

use thiserror::Error;

use crate::file::FileStore;

/// A parsed `--state`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// A directory.
    File(PathBuf),
}

/// A text that names no store.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StoreUrlError {
    /// The part before the colon is not known.
    #[error("unknown kind of state {scheme:?} in {url:?}, expected file:DIR")]
    UnknownScheme {
        /// What stands before the colon.
        scheme: String,
        /// The whole text.
        url: String,
    },
    /// There is no colon.
    #[error("{0:?} names no kind of state, expected file:DIR")]
    NoScheme(String),
    /// Nothing stands after the colon.
    #[error("{0:?} names no directory, expected file:DIR")]
    NoPath(String),
}

impl StoreUrl {
    /// Reads `file:DIR`; `file://` before an absolute path is understood as well.
    ///
    /// # Errors
    /// The text names no store.
    pub fn parse(text: &str) -> Result<Self, StoreUrlError> {
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(StoreUrlError::NoScheme(text.to_owned()));
        };
        if scheme != "file" {
            return Err(StoreUrlError::UnknownScheme {
                scheme: scheme.to_owned(),
                url: text.to_owned(),
            });
        }
        let path = match rest.strip_prefix("//") {
            Some(absolute) if absolute.starts_with('/') => absolute,
            Some(_) | None => rest,
        };
        if path.is_empty() || path.contains('\0') {
            return Err(StoreUrlError::NoPath(text.to_owned()));
        }
        Ok(Self::File(PathBuf::from(path)))
    }

    /// The store there. Does no IO.
    #[must_use]
    pub fn open(&self) -> FileStore {
        match self {
            Self::File(dir) => FileStore::open(dir),
        }
    }
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(dir) => write!(f, "file:{}", dir.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_urls_name_a_directory() {
        let cases = [
            ("file:state", "state"),
            ("file:./state", "./state"),
            ("file:/var/lib/w", "/var/lib/w"),
            ("file:///var/lib/w", "/var/lib/w"),
            ("file:a:b", "a:b"),
        ];
        for (text, path) in cases {
            assert_eq!(StoreUrl::parse(text), Ok(StoreUrl::File(PathBuf::from(path))), "{text}");
        }
        assert_eq!(StoreUrl::File(PathBuf::from("x")).to_string(), "file:x");
    }

    #[test]
    fn everything_else_is_refused() {
        for (text, part) in [
            ("", "no kind"),
            ("./state", "no kind"),
            ("file:", "no directory"),
            ("sqlite:x", "unknown kind"),
            ("File:x", "unknown kind"),
        ] {
            let error = StoreUrl::parse(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.ends_with("expected file:DIR"), "{error}");
        }
    }
}
