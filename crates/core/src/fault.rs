//! What can go wrong, as data: the kinds of spec chapter 27 with their values.
//!
//! Owns the vocabulary. What a kind leads to stands in `retry.rs`; nothing is ever decided from the
//! message, which is for people.

use core::fmt;
use core::time::Duration;

use thiserror::Error;

use crate::ids::TableId;
use crate::lsn::{Lsn, Position};

/// Who the failure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The PostgreSQL server or the way to it.
    Source,
    /// The sink.
    Destination,
    /// The store of the record.
    Store,
    /// The core itself.
    Core,
}

/// An SQLSTATE code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SqlState(pub [u8; 5]);

impl SqlState {
    /// The code as text; five characters unless the server sent something else.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).unwrap_or("?????")
    }

    /// Reads a code; anything but five ASCII characters becomes `XX000` (internal error).
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match <[u8; 5]>::try_from(text.as_bytes()) {
            Ok(code) if code.is_ascii() => Self(code),
            Ok(_) | Err(_) => Self(*b"XX000"),
        }
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a destination says about its error (DS-10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DestinationClass {
    /// May succeed when repeated.
    Transient {
        /// Least delay before the repetition.
        retry_after: Option<Duration>,
    },
    /// A person must act.
    Manual,
    /// Will never succeed.
    Permanent,
    /// A newer epoch owns the sink.
    Fenced,
}

/// What a failed call of the destination says about its reach (DS-10).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Blame {
    /// Nothing is known: it may be one table, it may be everything.
    #[default]
    Unstated,
    /// These tables are at fault.
    Tables {
        /// At least one.
        tables: Vec<TableId>,
        /// The call changed nothing of any other table and lost nothing accepted before.
        no_effect_on_others: bool,
    },
    /// The sink as a whole: every table would fail in the same way.
    Sink,
}

/// The kinds of spec chapter 27. Each carries the values that its message names.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FaultKind {
    /// The operation was cancelled by the core.
    #[error("cancelled")]
    Stopped,
    /// A save or a check failed; whether it took effect is unknown.
    #[error("the state could not be saved")]
    StoreFailed,
    /// Another owner took the record over.
    #[error("the state belongs to a newer run")]
    StoreFenced,
    /// Another process holds the record.
    #[error("the state is in use by {holder}")]
    StoreLocked {
        /// Who, as the store knows it.
        holder: String,
    },
    /// The source moved to another timeline.
    #[error("the source is on timeline {found}, not {expected}")]
    TimelineChanged {
        /// Timeline of the record.
        expected: u32,
        /// Timeline seen.
        found: u32,
    },
    /// The recorded slot does not exist.
    #[error("replication slot {slot} does not exist")]
    SlotMissing {
        /// Its name.
        slot: String,
    },
    /// The server can no longer serve the slot.
    #[error("replication slot {slot} was invalidated: {reason}")]
    SlotInvalidated {
        /// Its name.
        slot: String,
        /// The server's reason.
        reason: String,
    },
    /// The slot has moved past what is durable here.
    #[error("replication slot {slot} is at {found}, past the checkpoint {checkpoint}")]
    SlotAhead {
        /// Its name.
        slot: String,
        /// Where it stands.
        found: Lsn,
        /// What is saved.
        checkpoint: Position,
    },
    /// A slot of this name is not one of ours.
    #[error("replication slot {slot} is not ours: its {field} is {found}, not {expected}")]
    SlotForeign {
        /// Its name.
        slot: String,
        /// What differs.
        field: &'static str,
        /// What ours has.
        expected: String,
        /// What this one has.
        found: String,
    },
    /// The server's WAL ends before what is saved.
    #[error("the server's WAL ends at {found}, before the checkpoint {checkpoint}")]
    CheckpointAhead {
        /// End of the server's WAL.
        found: Lsn,
        /// What is saved.
        checkpoint: Position,
    },
    /// Not the source, destination or publication of the record.
    #[error("{field} is {found}, but the state was made for {expected}")]
    IdentityMismatch {
        /// What differs.
        field: &'static str,
        /// Value of the record.
        expected: String,
        /// Value seen.
        found: String,
    },
    /// The sink may hold events that the new timeline does not have.
    #[error(
        "events up to {} were offered, and the new timeline parts at {fork}",
        horizon.map_or_else(|| "an unknown position".to_owned(), |at| at.to_string())
    )]
    HorizonBeyondFork {
        /// Write horizon; unknown if the run that offered did not keep one.
        horizon: Option<Position>,
        /// Where the timelines part.
        fork: Position,
    },
    /// A re-creation was begun and policy forbids to go on.
    #[error("a re-creation of the main slot is under way")]
    RecreationPending,
    /// The publication does not exist.
    #[error("publication {name} does not exist")]
    PublicationMissing {
        /// Its name.
        name: String,
    },
    /// The publication has no table.
    #[error("publication {name} has no tables")]
    PublicationEmpty {
        /// Its name.
        name: String,
    },
    /// The stored bytes are damaged.
    #[error("the state is damaged")]
    RecordCorrupt,
    /// The stored values contradict each other.
    #[error("the state is invalid: {field}")]
    RecordInvalid {
        /// The field and why.
        field: String,
    },
    /// A newer walferry wrote the record.
    #[error("the state has format {found}, this walferry knows {known}")]
    RecordTooNew {
        /// Format found.
        found: u32,
        /// Newest format known.
        known: u32,
    },
    /// The connection failed or was refused, or a name did not resolve.
    #[error("the connection failed")]
    Transport,
    /// An operation took longer than its budget.
    #[error("no answer within {budget:?}")]
    Timeout {
        /// The budget.
        budget: Duration,
    },
    /// The server answered with an error.
    #[error("the server answered with error {code}")]
    Server {
        /// Its SQLSTATE.
        code: SqlState,
    },
    /// Sign-in failed: password, role, TLS certificate.
    #[error("sign-in failed")]
    Authentication,
    /// A setting here or at the server is wrong.
    #[error("{setting} is {found}, expected {expected}")]
    Configuration {
        /// Its name.
        setting: &'static str,
        /// What would be right.
        expected: String,
        /// What it is.
        found: String,
    },
    /// No secure random bytes.
    #[error("no secure random source")]
    EntropyUnavailable,
    /// Bytes or an order of messages that the protocol does not allow.
    #[error("protocol error")]
    Protocol,
    /// A value could not be converted.
    #[error("conversion error")]
    Conversion,
    /// A bound of spec chapter 30 was exceeded.
    #[error("limit exceeded: {name}")]
    Limit {
        /// The bound.
        name: &'static str,
    },
    /// The destination failed.
    #[error("the destination failed")]
    Destination {
        /// What it says about the error.
        class: DestinationClass,
    },
    /// A flush failed: durability of shared work is unknown.
    #[error("the destination failed to make work durable")]
    FlushFailed {
        /// What it says about the error.
        class: DestinationClass,
    },
    /// The stop took longer than its budget, or was cut short.
    #[error("the stop was cut short")]
    StopTimeout,
    /// The contract between core and driver was broken.
    #[error("internal error")]
    Violation,
}

/// A failure as an adapter reports it, or as the core finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What it is; the only part that decides.
    pub kind: FaultKind,
    /// Who it comes from.
    pub origin: Origin,
    /// Cause chain for people, in one line; may be empty. No row values, no secrets.
    pub message: String,
    /// Of a destination: who is at fault.
    pub blame: Blame,
}

impl Fault {
    /// A failure with its message.
    #[must_use]
    pub fn new(origin: Origin, kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, origin, message: message.into(), blame: Blame::Unstated }
    }

    /// A finding of the core: its kind says everything.
    #[must_use]
    pub fn found(origin: Origin, kind: FaultKind) -> Self {
        Self { kind, origin, message: String::new(), blame: Blame::Unstated }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.kind, f)?;
        if self.message.is_empty() { Ok(()) } else { write!(f, ": {}", self.message) }
    }
}

impl std::error::Error for Fault {}
