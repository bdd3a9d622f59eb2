//! Failures of this crate as the kinds of the core: the one place where that is decided (E-02).
//!
//! Owns nothing but the mapping and the line for people. Must never decide what a kind leads to.

use std::error::Error;

use walferry_core::fault::{Fault, FaultKind, Origin, SqlState};
use walferry_core::wire::DecodeClass;

use crate::error::{ServerError, SourceError};

impl From<SourceError> for Fault {
    fn from(error: SourceError) -> Self {
        Self::new(Origin::Source, kind(&error), chain(&error))
    }
}

fn kind(error: &SourceError) -> FaultKind {
    match error {
        // After another server was reached, the next try asks anew who is there (S-02, P-01).
        SourceError::Resolve { .. }
        | SourceError::Io { .. }
        | SourceError::Closed { .. }
        | SourceError::AnotherServer { .. } => FaultKind::Transport,
        SourceError::Tls { .. } | SourceError::SignIn { .. } => FaultKind::Authentication,
        SourceError::Server { error, .. } => server(error),
        SourceError::Setting { setting, expected, found, .. } => {
            FaultKind::Configuration { setting, expected: expected.clone(), found: found.clone() }
        }
        SourceError::Unexpected { .. } => FaultKind::Protocol,
        SourceError::Decode { source, .. } => match source.class() {
            DecodeClass::Protocol => FaultKind::Protocol,
            DecodeClass::Limit => FaultKind::Limit { name: "frame_bytes" },
        },
        SourceError::Limit { name, .. } => FaultKind::Limit { name },
        SourceError::Timeout { budget, .. } => FaultKind::Timeout { budget: *budget },
        SourceError::Stopped(_) => FaultKind::Stopped,
    }
}

fn server(error: &ServerError) -> FaultKind {
    match error.code.as_str() {
        code if code.starts_with("28") => FaultKind::Authentication,
        "3D000" => FaultKind::Configuration {
            setting: "database",
            expected: "a database of the server".to_owned(),
            found: "one that does not exist".to_owned(),
        },
        code => FaultKind::Server { code: SqlState::parse(code) },
    }
}

/// The error and its causes in one line. A cause that only repeats what was said is left out.
fn chain(error: &SourceError) -> String {
    let mut line = one_line(&error.to_string());
    let mut cause = error.source();
    while let Some(next) = cause {
        let text = one_line(&next.to_string());
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = next.source();
    }
    line
}

fn one_line(text: &str) -> String {
    text.split(['\r', '\n'])
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use walferry_core::wire::{DecodeError, DecodeReason};

    use super::*;

    fn of_server(code: &str) -> SourceError {
        let error = ServerError {
            severity: "ERROR".to_owned(),
            code: code.to_owned(),
            message: "says\nthe server".to_owned(),
            ..ServerError::default()
        };
        SourceError::Server { during: "creating slot x".to_owned(), error }
    }

    fn refused() -> io::Error {
        io::Error::from(io::ErrorKind::ConnectionRefused)
    }

    // E-I1, E-02
    #[test]
    fn each_error_has_its_kind() {
        let server = |code: &str| FaultKind::Server { code: SqlState::parse(code) };
        let decode = |reason| SourceError::Decode {
            what: "the stream",
            source: DecodeError { offset: 0, tag: b'd', reason },
        };
        let cases = [
            (of_server("28P01"), FaultKind::Authentication),
            (of_server("28000"), FaultKind::Authentication),
            (of_server("57P01"), server("57P01")),
            (of_server("08006"), server("08006")),
            (of_server("55006"), server("55006")),
            (of_server("42501"), server("42501")),
            (of_server("53300"), server("53300")),
            (of_server("nonsense"), server("XX000")),
            (
                SourceError::Resolve { host: "h".to_owned(), source: refused() },
                FaultKind::Transport,
            ),
            (SourceError::io("connect to h:1", refused()), FaultKind::Transport),
            (SourceError::Closed { during: "x".to_owned() }, FaultKind::Transport),
            (
                SourceError::Tls { host: "h".to_owned(), source: io::Error::other("expired") },
                FaultKind::Authentication,
            ),
            (
                SourceError::SignIn { server: "s".to_owned(), reason: "no password".to_owned() },
                FaultKind::Authentication,
            ),
            (SourceError::unexpected("x", "y"), FaultKind::Protocol),
            (decode(DecodeReason::OutsideTransaction), FaultKind::Protocol),
            (
                decode(DecodeReason::FrameTooLarge { length: 2, limit: 1 }),
                FaultKind::Limit { name: "frame_bytes" },
            ),
            (
                SourceError::Limit { name: "n", message: "m".to_owned() },
                FaultKind::Limit { name: "n" },
            ),
            (
                SourceError::Timeout { action: "a".to_owned(), budget: Duration::from_secs(1) },
                FaultKind::Timeout { budget: Duration::from_secs(1) },
            ),
            (SourceError::Stopped("x"), FaultKind::Stopped),
        ];
        for (error, kind) in cases {
            let fault = Fault::from(error);
            assert_eq!(fault.kind, kind, "{}", fault.message);
            assert_eq!(fault.origin, Origin::Source);
        }
        let fault = Fault::from(of_server("3D000"));
        assert!(matches!(fault.kind, FaultKind::Configuration { setting: "database", .. }));
        walferry_coverage::reached("E-I1");
    }

    // E-01
    #[test]
    fn the_line_holds_the_whole_chain() {
        let fault = Fault::from(SourceError::io("connect to h:1", refused()));
        assert_eq!(fault.message, "cannot connect to h:1: connection refused");
        let fault = Fault::from(of_server("55006"));
        assert_eq!(fault.message, "creating slot x failed: says the server (SQLSTATE 55006)");
    }
}
