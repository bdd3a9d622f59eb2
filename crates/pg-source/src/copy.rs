//! One copy attempt of one table: its slot and snapshot, its reader, its private stream.
//!
//! Owns the connections of the attempt; they end with it. Must never know why it is made, what the
//! facts mean or where the rows go.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};
use walferry_core::fault::Fault;
use walferry_core::ids::TableId;
use walferry_core::lsn::Position;
use walferry_core::schema::TableSchema;
use walferry_core::source::{RangeFacts, ReaderFacts, SchemaFacts, SnapshotFacts, SourceSeen};

use crate::catalog::{self, Membership};
use crate::copy_out::{CopyBlock, copy_out};
use crate::error::SourceError;
use crate::session::{Role, Session};
use crate::sql::{ident, literal};
use crate::stream::{self, StreamHandle, StreamMessage};
use crate::worker::Worker;
use crate::{Source, slots, table};

/// The connections of one attempt. Dropping it ends them all, whatever they do; the temporary slot
/// goes with the exporting one (PG-32).
#[derive(Debug)]
pub struct CopyAttempt {
    source: Source,
    table: TableId,
    seen: SourceSeen,
    snapshot: String,
    /// Created the slot, keeps the snapshot and becomes the private stream.
    exporter: Arc<Worker>,
    reader: Mutex<Option<Reader>>,
}

/// The reading connection, inside its transaction.
#[derive(Clone, Debug)]
struct Reader {
    worker: Arc<Worker>,
    membership: Option<Membership>,
    /// Whether the published columns have a generated one, which plain COPY refuses.
    generated: bool,
}

impl CopyAttempt {
    /// Creates the copy slot and exports its snapshot (K-08).
    pub(crate) async fn open(
        source: Source,
        table: TableId,
        slot: String,
    ) -> Result<(Self, SnapshotFacts), SourceError> {
        let connector = source.connector();
        let name = format!("copy-{table}");
        let (exporter, seen) = Worker::start(&name, async move || {
            let mut session = connector.connect(Role::Copy(table.0)).await?;
            let seen = catalog::identify_system(&mut session).await?;
            Ok((session, seen))
        })
        .await?;
        let (created, snapshot) = exporter
            .run(async move |session| slots::create_with_snapshot(session, &slot).await)
            .await?;
        let facts = SnapshotFacts { seen: seen.clone(), slot: created };
        let exporter = Arc::new(exporter);
        Ok((Self { source, table, seen, snapshot, exporter, reader: Mutex::new(None) }, facts))
    }

    /// Imports the snapshot, locks the table and reads the facts of the guard (K-10, K-11, K-27).
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn open_reader(&self) -> Result<ReaderFacts, Fault> {
        catalog::fault(self.read_facts().await)
    }

    async fn read_facts(&self) -> Result<ReaderFacts, SourceError> {
        let table = self.table;
        let connector = self.source.connector();
        let name = format!("read-{table}");
        let (worker, seen) = Worker::start(&name, async move || {
            let mut session = connector.connect(Role::Read(table.0)).await?;
            let seen = catalog::seen(&mut session).await?;
            Ok((session, seen))
        })
        .await?;
        let snapshot = self.snapshot.clone();
        let publication = self.source.publication().to_owned();
        let found = worker
            .run(async move |session| look(session, table, &snapshot, &publication).await)
            .await?;
        let relations: Vec<_> = found.heaps.iter().map(|heap| heap.relation).collect();
        let now = self
            .source
            .meta(async |session| table::guard_columns(session, &relations).await)
            .await?;
        let mut heaps = found.heaps;
        for heap in &mut heaps {
            heap.columns_now = table::of_relation(&now, heap.relation);
        }
        let facts = ReaderFacts {
            seen,
            published: found.membership.is_some(),
            filter: found.membership.as_ref().and_then(|membership| membership.filter.clone()),
            heaps,
        };
        let membership = found.membership;
        let reader = Reader { worker: Arc::new(worker), membership, generated: false };
        *self.lock() = Some(reader);
        Ok(facts)
    }

    /// Reads columns and storage in the snapshot (K-14, D-06).
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn read_schema(&self) -> Result<SchemaFacts, Fault> {
        catalog::fault(self.schema().await)
    }

    async fn schema(&self) -> Result<SchemaFacts, SourceError> {
        let reader = self.reader()?;
        let table = self.table;
        let membership = reader
            .membership
            .ok_or_else(|| SourceError::unexpected("reading the schema", "an unpublished table"))?;
        let published = reader
            .worker
            .run(async move |session| {
                let Some(mut found) = table::schema(session, table, &membership).await? else {
                    return Err(SourceError::unexpected("reading the schema", "no such table"));
                };
                // Under the lock the storage of the snapshot is the one of now (K-27).
                found.schema.storage = Some(table::storage(session, table).await?.stamp);
                Ok(found)
            })
            .await?;
        if let Some(reader) = self.lock().as_mut() {
            reader.generated = published.generated;
        }
        Ok(SchemaFacts { schema: published.schema })
    }

    /// Reads the rows of one heap with COPY, on the reader's own thread. Blocks go to `sink`; while
    /// `gate` is closed nothing is read. When the future is dropped, the COPY is cancelled.
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn read_range(
        &self,
        relation: TableId,
        schema: &TableSchema,
        filter: Option<&str>,
        sink: mpsc::Sender<CopyBlock>,
        mut gate: watch::Receiver<bool>,
    ) -> Result<RangeFacts, Fault> {
        let reader = catalog::fault(self.reader())?;
        let columns: Vec<_> = schema.columns.iter().map(|column| ident(&column.name)).collect();
        let columns = columns.join(", ");
        let filter = filter.map(str::to_owned);
        let during = format!("copying {} ({relation})", schema.qualified_name());
        let read = reader.worker.run(async move |session| {
            let name = table::current_name(session, relation).await?;
            let name = name.ok_or_else(|| SourceError::unexpected(&during, "no such relation"))?;
            let command = command(&name, &columns, filter.as_deref(), reader.generated);
            copy_out(session, &during, &command, &sink, &mut gate).await
        });
        catalog::fault(read.await)
    }

    /// Ends the reader's transaction, which gives up lock and snapshot (K-19).
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn close_readers(&self) -> Result<(), Fault> {
        let Some(reader) = self.lock().take() else { return Ok(()) };
        let commit = async |session: &mut Session| session.query("ending the read", "COMMIT").await;
        let committed = reader.worker.run(commit).await;
        reader.worker.stop();
        reader.worker.ended().await;
        catalog::fault(committed.map(drop))
    }

    /// Starts the private stream, on the exporting connection. Not before every reader has imported
    /// the snapshot.
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn open_stream(
        &self,
        slot: &str,
        from: Position,
    ) -> Result<(SourceSeen, StreamHandle, mpsc::Receiver<StreamMessage>), Fault> {
        let worker = Arc::clone(&self.exporter);
        let opened = stream::start(worker, slot, from, self.source.publication()).await;
        let (handle, messages) = catalog::fault(opened)?;
        Ok((self.seen.clone(), handle, messages))
    }

    /// Ends every connection of the attempt, whatever it does, and waits for that.
    ///
    /// # Errors
    /// None so far.
    pub async fn close(&self) -> Result<(), Fault> {
        let reader = self.lock().take();
        self.exporter.stop();
        if let Some(reader) = reader {
            reader.worker.stop();
            reader.worker.ended().await;
        }
        self.exporter.ended().await;
        Ok(())
    }

    fn reader(&self) -> Result<Reader, SourceError> {
        self.lock().clone().ok_or(SourceError::Stopped("reading without a reader"))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Reader>> {
        // Nothing panics while it is held; what is inside is whole in any case.
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CopyAttempt {
    fn drop(&mut self) {
        // Streams and reads that are still under way hold the workers too.
        self.exporter.stop();
        if let Some(reader) = self.lock().take() {
            reader.worker.stop();
        }
    }
}

/// What the reader finds in its snapshot, under its lock.
struct Found {
    membership: Option<Membership>,
    heaps: Vec<walferry_core::source::HeapFacts>,
}

async fn look(
    session: &mut Session,
    table: TableId,
    snapshot: &str,
    publication: &str,
) -> Result<Found, SourceError> {
    let import = format!(
        "SET row_security = off; BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
         SET TRANSACTION SNAPSHOT {}",
        literal(snapshot)
    );
    session.query(&format!("importing the snapshot of table {table}"), &import).await?;
    let membership = catalog::membership(session, publication, table).await?;
    let locked = match table::current_name(session, table).await? {
        Some(name) => table::lock(session, table, &name).await?,
        None => false,
    };
    let mut heaps = table::heaps(session, table).await?;
    if !locked {
        // Nothing is locked under this identity: what the snapshot shows is not there any more.
        for heap in &mut heaps {
            heap.filenode_now = 0;
        }
    }
    Ok(Found { membership, heaps })
}

/// The plain form is the faster one; it takes neither filters nor generated columns.
fn command(name: &str, columns: &str, filter: Option<&str>, generated: bool) -> String {
    match filter {
        None if !generated && !columns.is_empty() => format!("COPY {name} ({columns}) TO STDOUT"),
        None => format!("COPY (SELECT {columns} FROM ONLY {name}) TO STDOUT"),
        Some(filter) => {
            format!("COPY (SELECT {columns} FROM ONLY {name} WHERE ({filter})) TO STDOUT")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // K-17
    #[test]
    fn filters_and_generated_columns_need_a_query() {
        let cases = [
            (command("s.t", "\"a\"", None, false), "COPY s.t (\"a\") TO STDOUT"),
            (command("s.t", "\"a\"", None, true), "COPY (SELECT \"a\" FROM ONLY s.t) TO STDOUT"),
            (
                command("s.t", "\"a\"", Some("(a > 1)"), false),
                "COPY (SELECT \"a\" FROM ONLY s.t WHERE ((a > 1))) TO STDOUT",
            ),
            (command("s.t", "", None, false), "COPY (SELECT  FROM ONLY s.t) TO STDOUT"),
        ];
        for (command, expected) in cases {
            assert_eq!(command, expected);
        }
    }
}
