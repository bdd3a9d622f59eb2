//! A destination that looks at every value and keeps none: what the pipeline costs by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use walferry_core::batch::{
    Batch, ChangeBody, CopyBatch, CopyStart, Declaration, DeliveryClass, Durability,
};
use walferry_core::fault::DestinationClass;
use walferry_core::ids::{Attempt, Epoch, Lane, TableId};
use walferry_core::schema::SchemaSupport;
use walferry_core::wire::{Cell, CopyCell, CopyRows, DecodeError, RowView, Tuple};

use crate::contract::{Destination, DestinationError};

/// Counts what it is given and answers Durable.
#[derive(Clone, Debug, Default)]
pub struct NullDestination {
    counts: Arc<NullCounts>,
}

/// What has passed, for copied rows and for changes.
#[derive(Debug, Default)]
pub struct NullCounts {
    /// Rows of table copies.
    pub copied: Counts,
    /// Row changes of streams; an update counts the columns of both its rows.
    pub changes: Counts,
    /// Tables emptied.
    pub truncates: AtomicU64,
}

/// Totals, raised once per batch.
#[derive(Debug, Default)]
pub struct Counts {
    /// Batches.
    pub batches: AtomicU64,
    /// Rows, or row changes.
    pub rows: AtomicU64,
    /// Columns with a value.
    pub values: AtomicU64,
    /// Columns that are NULL.
    pub nulls: AtomicU64,
    /// Columns that did not change and were not sent.
    pub unchanged: AtomicU64,
    /// Bytes of the values, as they were sent.
    pub bytes: AtomicU64,
}

#[derive(Default)]
struct Tally {
    rows: u64,
    values: u64,
    nulls: u64,
    unchanged: u64,
    bytes: u64,
}

impl NullDestination {
    /// A destination with counters of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The counters; they go on counting.
    #[must_use]
    pub fn counts(&self) -> Arc<NullCounts> {
        Arc::clone(&self.counts)
    }
}

impl Counts {
    fn add(&self, tally: &Tally) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add(tally.rows, Ordering::Relaxed);
        self.values.fetch_add(tally.values, Ordering::Relaxed);
        self.nulls.fetch_add(tally.nulls, Ordering::Relaxed);
        self.unchanged.fetch_add(tally.unchanged, Ordering::Relaxed);
        self.bytes.fetch_add(tally.bytes, Ordering::Relaxed);
    }

    fn log(&self, what: &'static str) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        tracing::info!(
            what,
            rows = read(&self.rows),
            values = read(&self.values),
            nulls = read(&self.nulls),
            unchanged = read(&self.unchanged),
            bytes = read(&self.bytes),
            "null destination counted"
        );
    }
}

impl Tally {
    #[inline]
    fn value(&mut self, bytes: &[u8]) {
        self.values += 1;
        self.bytes += bytes.len() as u64;
    }

    #[inline]
    fn tuple(&mut self, tuple: Tuple<'_>) {
        for cell in tuple.cells() {
            match cell {
                Cell::Null => self.nulls += 1,
                Cell::Unchanged => self.unchanged += 1,
                Cell::Text(value) | Cell::Binary(value) => self.value(value),
            }
        }
    }

    fn block(&mut self, block: &[u8], columns: usize) -> Result<(), DecodeError> {
        for row in CopyRows::new(block, block.len()) {
            self.rows += 1;
            for cell in row?.cells(columns) {
                match cell? {
                    CopyCell::Null => self.nulls += 1,
                    CopyCell::Text { raw, .. } => self.value(raw),
                }
            }
        }
        Ok(())
    }
}

impl Destination for NullDestination {
    fn declare(&self) -> Declaration {
        Declaration {
            id: "null:".to_owned(),
            class: DeliveryClass::Append,
            lanes_max: 64,
            copy_in_flight_max: 8,
            wants_messages: false,
            partial_rows: true,
            schema_changes: SchemaSupport::ALL,
        }
    }

    async fn startup(&self, _pipeline: &str, _epoch: Epoch) -> Result<(), DestinationError> {
        Ok(())
    }

    async fn begin_copy(&self, _start: CopyStart) -> Result<(), DestinationError> {
        Ok(())
    }

    async fn write_rows(
        &self,
        batch: Arc<CopyBatch<Bytes>>,
    ) -> Result<Durability, DestinationError> {
        let mut tally = Tally::default();
        for block in &batch.blocks {
            tally.block(block, batch.schema.columns.len()).map_err(|error| {
                let name = batch.schema.qualified_name();
                malformed(format!("a copied row of {name}"), error).on_table(batch.table)
            })?;
        }
        self.counts.copied.add(&tally);
        Ok(Durability::Durable)
    }

    async fn finish_copy(
        &self,
        _table: TableId,
        _attempt: Attempt,
        _epoch: Epoch,
        _sequences: u64,
    ) -> Result<Durability, DestinationError> {
        Ok(Durability::Durable)
    }

    async fn write_changes(
        &self,
        batch: Arc<Batch<Bytes>>,
    ) -> Result<Durability, DestinationError> {
        let mut tally = Tally::default();
        let mut truncates = 0;
        for change in &batch.changes {
            match &change.body {
                ChangeBody::Row { kind, row, table } => {
                    let view = RowView::parse(*kind, row).map_err(|error| {
                        let failed = malformed("a row".to_owned(), error);
                        match usize::try_from(*table).ok().and_then(|at| batch.tables.get(at)) {
                            Some(table) => failed.on_table(table.table),
                            None => failed,
                        }
                    })?;
                    tally.rows += 1;
                    for tuple in view.old.map(|(_, tuple)| tuple).into_iter().chain(view.new) {
                        tally.tuple(tuple);
                    }
                }
                ChangeBody::Truncate { .. } => truncates += 1,
                ChangeBody::Schema { .. } | ChangeBody::Message { .. } => {}
            }
        }
        self.counts.changes.add(&tally);
        self.counts.truncates.fetch_add(truncates, Ordering::Relaxed);
        Ok(Durability::Durable)
    }

    async fn flush(&self, _lane: Lane) -> Result<(), DestinationError> {
        Ok(())
    }

    /// Logs the totals: the only trace that rows leave here.
    async fn shutdown(&self) -> Result<(), DestinationError> {
        self.counts.copied.log("copied rows");
        self.counts.changes.log("changes");
        Ok(())
    }
}

fn malformed(what: String, error: DecodeError) -> DestinationError {
    let mut failed =
        DestinationError::new(DestinationClass::Permanent, format!("{what} cannot be read"))
            .caused_by(error);
    failed.no_effect_on_others = true;
    failed
}

#[cfg(test)]
mod tests {
    use walferry_core::batch::BatchTable;
    use walferry_core::schema::ReplicaIdentity;

    use super::*;
    use crate::kit::{Source, row};

    #[tokio::test]
    async fn everything_is_counted() {
        let destination = NullDestination::new();
        let mut source = Source::new();
        let table = source.table("t", ReplicaIdentity::Full);
        source.unseen(table, |rows| rows.extend([row(1, "ab", "\t"), row(2, "", "é")]));
        source.unseen(table, |rows| rows[1].0[1] = None);
        let start = source.begin(table, Epoch(1));
        for batch in source.copy(&start, 1) {
            destination.write_rows(batch).await.unwrap();
        }
        source.commit(|t| {
            t.update(table, 1, row(1, "abc", ""), &[2]);
            t.truncate(&[table]);
        });
        for batch in source.batches(0..2, 8, Epoch(1), |_| true) {
            destination.write_changes(batch).await.unwrap();
        }
        let counts = destination.counts();
        let read = |counts: &Counts| {
            [&counts.batches, &counts.rows, &counts.values, &counts.nulls, &counts.unchanged]
                .map(|count| count.load(Ordering::Relaxed))
        };
        assert_eq!(read(&counts.copied), [2, 2, 5, 1, 0]);
        assert_eq!(counts.copied.bytes.load(Ordering::Relaxed), 1 + 2 + 2 + 1 + 2);
        assert_eq!(read(&counts.changes), [1, 1, 5, 0, 1]);
        assert_eq!(counts.truncates.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn bytes_that_are_no_row_name_their_table() {
        let mut source = Source::new();
        let table = source.table("t", ReplicaIdentity::Default);
        source.commit(|t| t.insert(table, row(1, "", "")));
        let mut batch = Batch::clone(&source.batches(0..1, 1, Epoch(1), |_| true)[0]);
        for change in &mut batch.changes {
            if let ChangeBody::Row { row, .. } = &mut change.body {
                *row = Bytes::from_static(b"?");
            }
        }
        assert!(matches!(batch.tables[..], [BatchTable { .. }]));
        let error = NullDestination::new().write_changes(Arc::new(batch)).await.unwrap_err();
        assert_eq!(error.tables, [table]);
    }
}
