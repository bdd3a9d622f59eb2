//! The contract tests of spec group DS, for any destination.
//!
//! Implement [`Subject`] for a destination: how to open it, how to read a table of the sink back.
//! Then [`check`] each [`Case`] with a subject of its own. A crash is the drop of the destination
//! without `shutdown`, and a new one on the same sink. Content is judged by the destination's class:
//! `read` returns what a reader of the sink should see, after its dedup if it needs one.
//!
//! ```
//! use walferry_destinations::kit::{Case, Failure, Subject, check};
//! async fn all<S: Subject>(fresh: impl Fn() -> S) -> Result<(), Failure> {
//!     for case in Case::ALL {
//!         check(case, &fresh()).await?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! A case that fails returns a [`Failure`] and does not panic, so that the cases can be tested too.
//! CT-09 (schema changes) is not here yet.

mod changes;
mod copies;
mod crashes;
mod run;
mod source;

use std::fmt;

use thiserror::Error;
use walferry_core::schema::TableSchema;

use crate::contract::Destination;

pub use run::Run;
pub use source::{Row, Source, Transaction, row};

/// A sink under test.
pub trait Subject: Sync {
    /// The destination.
    type Destination: Destination;

    /// A new destination on the sink; called again after each crash.
    fn open(&self) -> Self::Destination;

    /// What a reader sees in the table, in any order, values as the source prints them; `None` if
    /// the sink does not have the table.
    fn read(&self, schema: &TableSchema) -> Option<Vec<Row>>;

    /// Puts a row that no pipeline wrote where the table would go, and returns it; `None` if the
    /// sink has no such place.
    fn plant(&self, schema: &TableSchema) -> Option<Row>;
}

/// A contract test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the rule of the same number in the spec")]
pub enum Case {
    Ct01,
    Ct02,
    Ct03,
    Ct04,
    Ct05,
    Ct06,
    Ct07,
    Ct08,
    Ct10,
    Ct11,
    Ct12,
    Ct13,
    Ct14,
    Ct15,
    Ct16,
    Ct17,
    Ct18,
}

impl Case {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Ct01,
        Self::Ct02,
        Self::Ct03,
        Self::Ct04,
        Self::Ct05,
        Self::Ct06,
        Self::Ct07,
        Self::Ct08,
        Self::Ct10,
        Self::Ct11,
        Self::Ct12,
        Self::Ct13,
        Self::Ct14,
        Self::Ct15,
        Self::Ct16,
        Self::Ct17,
        Self::Ct18,
    ];
}

/// What a destination did that the contract forbids.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{step}: {problem}")]
pub struct Failure {
    /// Where in the case.
    pub step: String,
    /// What was expected and what was found.
    pub problem: String,
}

impl Failure {
    fn new(step: impl fmt::Display, problem: impl fmt::Display) -> Self {
        Self { step: step.to_string(), problem: problem.to_string() }
    }
}

/// Fails with `problem` unless `holds`.
fn require(holds: bool, step: &str, problem: impl fmt::Display) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::new(step, problem)) }
}

/// Runs one case on a sink that nothing has used yet.
pub async fn check<S: Subject>(case: Case, subject: &S) -> Result<(), Failure> {
    match case {
        Case::Ct01 => changes::each_batch_once_more(subject).await,
        Case::Ct02 => changes::every_suffix_cut_otherwise(subject).await,
        Case::Ct03 => crashes::between_fragments(subject).await,
        Case::Ct04 => copies::replayed_reordered_parallel(subject).await,
        Case::Ct05 => crashes::between_every_two_operations(subject).await,
        Case::Ct06 => changes::key_changes(subject).await,
        Case::Ct07 => changes::unchanged_values(subject).await,
        Case::Ct08 => changes::truncates(subject).await,
        Case::Ct10 => copies::empty_table(subject).await,
        Case::Ct11 => copies::vanished_rows(subject).await,
        Case::Ct12 => {
            copies::foreign_rows(subject).await?;
            copies::adopted_rows(subject).await
        }
        Case::Ct13 => crashes::late_calls(subject).await,
        Case::Ct14 => changes::watermarks_are_per_table(subject).await,
        Case::Ct15 => crashes::durability(subject).await,
        Case::Ct16 => changes::one_key_again_and_again(subject).await,
        Case::Ct17 => crashes::lanes(subject).await,
        Case::Ct18 => changes::errors_name_their_table(subject).await,
    }
}
