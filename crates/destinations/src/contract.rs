//! The contract of a destination (spec group DS): what walferry calls, and what each call promises.
//!
//! Owns the trait and its error. Never decides: what an error leads to is the core's business.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;
use walferry_core::batch::{Batch, CopyBatch, CopyStart, Declaration, Durability};
use walferry_core::fault::{Blame, DestinationClass};
use walferry_core::ids::{Attempt, Epoch, Lane, TableId};

/// A sink that walferry keeps equal to its source.
///
/// Calls of one lane never overlap, except `write_rows` of one attempt up to the declared number;
/// calls of different lanes run in parallel up to the declared `lanes_max` (DS-02). A call whose
/// future is dropped must have no effect after that, or one that replays make harmless (DS-12).
pub trait Destination: Send + Sync + 'static {
    /// What the destination is and can do (DS-01). Called before everything else; does no IO.
    fn declare(&self) -> Declaration;

    /// Connects, claims the sink for (pipeline, epoch) and loads what the sink remembers (DS-16).
    /// Once per process, before any other call; idempotent.
    fn startup(
        &self,
        pipeline: &str,
        epoch: Epoch,
    ) -> impl Future<Output = Result<(), DestinationError>> + Send;

    /// Prepares the target for one attempt (DS-05, DS-06). Durable when it returns.
    fn begin_copy(
        &self,
        start: CopyStart,
    ) -> impl Future<Output = Result<(), DestinationError>> + Send;

    /// Writes one batch of snapshot rows; may be sent again with the same identity and rows. Without
    /// effect if a later attempt of the table has begun (DS-12).
    fn write_rows(
        &self,
        batch: Arc<CopyBatch<Bytes>>,
    ) -> impl Future<Output = Result<Durability, DestinationError>> + Send;

    /// End of the snapshot of a table, whose batches are `1..=sequences`: after Durable its rows are
    /// complete and durable (DS-08).
    fn finish_copy(
        &self,
        table: TableId,
        attempt: Attempt,
        epoch: Epoch,
        sequences: u64,
    ) -> impl Future<Output = Result<Durability, DestinationError>> + Send;

    /// Applies changes in order. Any batch since the checkpoint may come again, cut otherwise (DS-11).
    /// Rows are the bytes behind the table's OID of a row message: read them with
    /// `walferry_core::wire::RowView`. An error that lets one table be set aside names it and
    /// states `no_effect_on_others`.
    fn write_changes(
        &self,
        batch: Arc<Batch<Bytes>>,
    ) -> impl Future<Output = Result<Durability, DestinationError>> + Send;

    /// Makes everything accepted on the lane durable; cumulative, may be repeated (DS-04).
    fn flush(&self, lane: Lane) -> impl Future<Output = Result<(), DestinationError>> + Send;

    /// Orderly end, after the last call of an orderly stop (DS-09).
    fn shutdown(&self) -> impl Future<Output = Result<(), DestinationError>> + Send;
}

/// Why a call of a destination failed (DS-10).
#[derive(Debug, Error)]
#[error("{message}")]
pub struct DestinationError {
    /// What may be done about it.
    pub class: DestinationClass,
    /// What happened, naming the object and both values; no row values, no secrets.
    pub message: String,
    /// Tables at fault, if the destination knows them.
    pub tables: Vec<TableId>,
    /// The failed call changed nothing of any other table and lost nothing accepted before.
    pub no_effect_on_others: bool,
    /// The sink as a whole fails: its file system, its pipe, its server.
    pub whole_sink: bool,
    /// What the sink's library said.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl DestinationError {
    /// An error of a class without further knowledge.
    #[must_use]
    pub fn new(class: DestinationClass, message: impl Into<String>) -> Self {
        Self {
            class,
            message: message.into(),
            tables: Vec::new(),
            no_effect_on_others: false,
            whole_sink: false,
            source: None,
        }
    }

    /// Adds what the sink's library said.
    #[must_use]
    pub fn caused_by(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Names the table at fault.
    #[must_use]
    pub fn on_table(mut self, table: TableId) -> Self {
        self.tables.push(table);
        self
    }

    /// States that every table would fail in the same way.
    #[must_use]
    pub const fn of_the_sink(mut self) -> Self {
        self.whole_sink = true;
        self
    }

    /// Who is at fault, as the core takes it.
    #[must_use]
    pub fn blame(&self) -> Blame {
        if self.whole_sink {
            Blame::Sink
        } else if self.tables.is_empty() {
            Blame::Unstated
        } else {
            let no_effect_on_others = self.no_effect_on_others;
            Blame::Tables { tables: self.tables.clone(), no_effect_on_others }
        }
    }

    /// The message with all its causes in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}
