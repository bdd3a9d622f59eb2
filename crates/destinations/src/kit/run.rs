//! A destination between its start and its crash, driven as the core would drive it.

use std::sync::Arc;

use bytes::Bytes;
use walferry_core::batch::{Batch, Durability};
use walferry_core::ids::{Epoch, Lane, TableId};

use super::source::Source;
use super::{Failure, Row, Subject};
use crate::contract::{Destination, DestinationError};

/// Name of the pipeline of the kit.
pub(super) const PIPELINE: &str = "kit";

/// A running destination.
#[derive(Debug)]
pub struct Run<'s, S: Subject> {
    subject: &'s S,
    /// The destination.
    pub destination: S::Destination,
    /// Its epoch; each crash raises it.
    pub epoch: Epoch,
}

/// Turns an error of the destination into one of the case.
pub(super) fn must<T>(step: &str, result: Result<T, DestinationError>) -> Result<T, Failure> {
    result.map_err(|error| Failure::new(step, format!("failed: {}", error.chain())))
}

impl<'s, S: Subject> Run<'s, S> {
    /// Opens and claims the sink.
    pub async fn start(subject: &'s S, epoch: Epoch) -> Result<Self, Failure> {
        let destination = subject.open();
        must("startup", destination.startup(PIPELINE, epoch).await)?;
        Ok(Self { subject, destination, epoch })
    }

    /// Drops the destination as a crash would, and starts a new one with a higher epoch.
    pub async fn crash(self) -> Result<Self, Failure> {
        let Self { subject, destination, epoch } = self;
        drop(destination);
        Self::start(subject, Epoch(epoch.0 + 1)).await
    }

    /// Copies the present rows of a table in its next attempt.
    pub async fn copy(&self, source: &mut Source, table: TableId) -> Result<(), Failure> {
        let start = source.begin(table, self.epoch);
        must("begin_copy", self.destination.begin_copy(start.clone()).await)?;
        let batches = source.copy(&start, 2);
        for batch in &batches {
            must("write_rows", self.destination.write_rows(Arc::clone(batch)).await)?;
        }
        self.finish(&start, batches.len()).await
    }

    /// Ends a copy and makes it durable.
    pub(super) async fn finish(
        &self,
        start: &walferry_core::batch::CopyStart,
        sequences: usize,
    ) -> Result<(), Failure> {
        let (table, attempt) = (start.table, start.attempt);
        let sequences = sequences as u64;
        let done = self.destination.finish_copy(table, attempt, self.epoch, sequences).await;
        match must("finish_copy", done)? {
            Durability::Durable => Ok(()),
            Durability::Accepted => must("flush", self.destination.flush(Lane::Table(table)).await),
        }
    }

    /// Writes batches one after another, without a flush.
    pub async fn write(&self, batches: Vec<Arc<Batch<Bytes>>>) -> Result<(), Failure> {
        for batch in batches {
            must("write_changes", self.destination.write_changes(batch).await)?;
        }
        Ok(())
    }

    /// Makes the main lane durable.
    pub async fn flush(&self) -> Result<(), Failure> {
        must("flush", self.destination.flush(Lane::Main).await)
    }

    /// Flushes, and compares the tables with the source.
    pub async fn expect(
        &self,
        step: &str,
        source: &Source,
        tables: &[TableId],
    ) -> Result<(), Failure> {
        self.flush().await?;
        same(self.subject, step, source, tables)
    }
}

/// Compares tables of the sink with the source.
pub(super) fn same<S: Subject>(
    subject: &S,
    step: &str,
    source: &Source,
    tables: &[TableId],
) -> Result<(), Failure> {
    for &table in tables {
        let schema = source.schema(table);
        holds(subject, step, &schema, &source.rows(table))?;
    }
    Ok(())
}

/// Compares one table of the sink with rows, which are in order.
pub(super) fn holds<S: Subject>(
    subject: &S,
    step: &str,
    schema: &walferry_core::schema::TableSchema,
    expected: &[Row],
) -> Result<(), Failure> {
    let name = schema.qualified_name();
    let Some(mut found) = subject.read(schema) else {
        return Err(Failure::new(step, format!("the sink has no table {name}")));
    };
    found.sort();
    if found == expected {
        return Ok(());
    }
    Err(Failure::new(step, format!("{name} should hold {expected:?} and holds {found:?}")))
}
