//! A broken contract between core and driver: our bug, never the world's (E-05).

use thiserror::Error;

use crate::ids::OpId;
use crate::lsn::Lsn;

/// The driver broke the contract; the core refuses all further input. Recovery is the ordinary
/// start-up of a new process.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Violation {
    /// A completion for an operation that is not outstanding.
    #[error("operation {op} is unknown or was completed before")]
    UnknownOp {
        /// The operation.
        op: OpId,
    },
    /// An answer of another kind of work.
    #[error("operation {op} was answered with another kind of answer")]
    WrongAnswer {
        /// The operation.
        op: OpId,
    },
    /// Stream events that contradict those before.
    #[error("the stream went from {expected} to {found}")]
    OrderBroken {
        /// Position before.
        expected: Lsn,
        /// Position found.
        found: Lsn,
    },
    /// Input after a violation.
    #[error("input after a violation")]
    Refused,
}
