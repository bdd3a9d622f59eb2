//! What went wrong at the source, as the wire, the system or a library said it.
//!
//! Owns the vocabulary inside this crate; `classify` turns it into the kinds of the core. Must never
//! hold row values or secrets.

use std::fmt;
use std::io;
use std::time::Duration;

use thiserror::Error;
use walferry_core::source::SourceSeen;
use walferry_core::wire::DecodeError;

/// An `ErrorResponse` of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerError {
    pub(crate) severity: String,
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) detail: Option<String>,
    pub(crate) hint: Option<String>,
    pub(crate) context: Option<String>,
}

/// Every failure of this crate.
#[derive(Debug, Error)]
pub(crate) enum SourceError {
    /// A name that could not be resolved.
    #[error("cannot resolve {host}")]
    Resolve { host: String, source: io::Error },
    /// The system refused or broke the connection.
    #[error("cannot {action}")]
    Io { action: String, source: io::Error },
    /// The server closed the connection without a word.
    #[error("the server closed the connection during {during}")]
    Closed { during: String },
    /// TLS with the server failed: its certificate, ours, or the handshake.
    #[error("TLS with {host} failed")]
    Tls { host: String, source: io::Error },
    /// The server said what is wrong.
    #[error("{during} failed: {error}")]
    Server { during: String, error: ServerError },
    /// We refuse to sign in, or cannot.
    #[error("cannot sign in to {server}: {reason}")]
    SignIn { server: String, reason: String },
    /// A setting of ours cannot work.
    #[error("{message}")]
    Setting { setting: &'static str, expected: String, found: String, message: String },
    /// Something that the protocol does not allow here.
    #[error("unexpected answer during {during}: {found}")]
    Unexpected { during: String, found: String },
    /// Bytes that could not be decoded.
    #[error("cannot decode {what}")]
    Decode { what: &'static str, source: DecodeError },
    /// A bound was exceeded.
    #[error("{message}")]
    Limit { name: &'static str, message: String },
    /// No answer in time.
    #[error("no answer within {budget:?} while trying to {action}")]
    Timeout { action: String, budget: Duration },
    /// The address leads to another server than the one that was identified (S-06).
    #[error(
        "the connection reached another server: system {}, timeline {}, database {}, not system {}, \
         timeline {}, database {}",
        found.system_id, found.timeline, found.database,
        expected.system_id, expected.timeline, expected.database
    )]
    AnotherServer { expected: Box<SourceSeen>, found: Box<SourceSeen> },
    /// Who asked went away, or closed what the work was for.
    #[error("{0} was given up")]
    Stopped(&'static str),
}

impl SourceError {
    pub(crate) fn unexpected(during: impl Into<String>, found: impl Into<String>) -> Self {
        Self::Unexpected { during: during.into(), found: found.into() }
    }

    pub(crate) fn io(action: impl Into<String>, source: io::Error) -> Self {
        Self::Io { action: action.into(), source }
    }
}

impl ServerError {
    /// Fields of an `ErrorResponse` or `NoticeResponse`: a type byte and text each, then a zero.
    pub(crate) fn parse(body: &[u8]) -> Self {
        let mut error = Self::default();
        for field in body.split(|byte| *byte == 0) {
            let Some((kind, text)) = field.split_first() else { break };
            let text = String::from_utf8_lossy(text).into_owned();
            match kind {
                // The untranslated form wins over the one in the server's language.
                b'V' => error.severity = text,
                b'S' if error.severity.is_empty() => error.severity = text,
                b'C' => error.code = text,
                b'M' => error.message = text,
                b'D' => error.detail = Some(text),
                b'H' => error.hint = Some(text),
                b'W' => error.context = Some(text),
                _ => {}
            }
        }
        error
    }

    /// Whether the server ends the session with it.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(self.severity.as_str(), "FATAL" | "PANIC")
    }

    /// Details of data exceptions (22) and violated constraints (23) hold row values.
    fn detail_for_people(&self) -> Option<&str> {
        let private = self.code.starts_with("22") || self.code.starts_with("23");
        self.detail.as_deref().filter(|_| !private)
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(detail) = self.detail_for_people() {
            write!(f, "; detail: {detail}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "; hint: {hint}")?;
        }
        write!(f, " (SQLSTATE {})", self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(fields: &[(u8, &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, text) in fields {
            bytes.push(*kind);
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(0);
        }
        bytes.push(0);
        bytes
    }

    #[test]
    fn fields_are_read_and_unknown_ones_passed_over() {
        let error = ServerError::parse(&body(&[
            (b'S', "FEHLER"),
            (b'V', "ERROR"),
            (b'C', "42P01"),
            (b'M', "no table"),
            (b'H', "make one"),
            (b'F', "parse.c"),
        ]));
        assert!(!error.is_fatal());
        assert_eq!(error.severity, "ERROR");
        assert_eq!(error.to_string(), "no table; hint: make one (SQLSTATE 42P01)");
    }

    #[test]
    fn cut_bodies_are_read_as_far_as_they_go() {
        let whole = body(&[(b'V', "FATAL"), (b'C', "57P01"), (b'M', "bye")]);
        for end in 0..whole.len() {
            drop(ServerError::parse(&whole[..end]));
        }
        assert!(ServerError::parse(&whole).is_fatal());
    }

    #[test]
    fn details_with_row_values_are_kept_out() {
        let detail = |code: &str| {
            let fields = [(b'C', code), (b'M', "m"), (b'D', "Key (id)=(7)")];
            ServerError::parse(&body(&fields)).to_string()
        };
        assert_eq!(detail("23505"), "m (SQLSTATE 23505)");
        assert_eq!(detail("22P02"), "m (SQLSTATE 22P02)");
        assert_eq!(detail("55006"), "m; detail: Key (id)=(7) (SQLSTATE 55006)");
    }
}
