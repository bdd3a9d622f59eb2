//! One copy attempt of one table: its slot and snapshot, its readers, its private stream.
//!
//! Owns the connections of the attempt; they end with it. Must never know why it is made, what the
//! facts mean or where the rows go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};
use walferry_core::fault::Fault;
use walferry_core::ids::TableId;
use walferry_core::lsn::Position;
use walferry_core::schema::TableSchema;
use walferry_core::source::{
    BlockRange, RangeFacts, ReaderFacts, SchemaFacts, SnapshotFacts, SourceSeen,
};

use crate::catalog::{self, Membership};
use crate::copy_out::{CopyBlock, copy_out};
use crate::error::SourceError;
use crate::session::{Role, Session};
use crate::sql::{ident, literal};
use crate::stream::{self, StreamHandle, StreamMessage};
use crate::worker::Worker;
use crate::{Source, slots, table};

/// The connections of one attempt. Dropping it ends them all, whatever they do; a temporary slot goes
/// with the exporting one (PG-32).
#[derive(Debug)]
pub struct CopyAttempt {
    source: Source,
    table: TableId,
    seen: SourceSeen,
    snapshot: String,
    /// Created the slot, keeps the snapshot and becomes the private stream.
    exporter: Arc<Worker>,
    reading: Mutex<Reading>,
}

/// The reading connections, and what the first of them found.
#[derive(Debug, Default)]
struct Reading {
    /// Each inside its transaction, by its number.
    readers: BTreeMap<u32, Arc<Worker>>,
    membership: Option<Membership>,
    /// Whether the published columns have a generated one, which plain COPY refuses.
    generated: bool,
}

/// What one COPY reads.
#[derive(Clone, Copy, Debug)]
pub struct CopyRange<'a> {
    /// Number of the reader.
    pub reader: u32,
    /// The heap: the table, or a leaf under a published root.
    pub relation: TableId,
    /// The part of it.
    pub blocks: BlockRange,
    /// The columns, in order.
    pub schema: &'a TableSchema,
    /// Row filter as SQL.
    pub filter: Option<&'a str>,
}

impl CopyAttempt {
    /// Creates the copy slot and exports its snapshot (K-08).
    pub(crate) async fn open(
        source: Source,
        table: TableId,
        slot: String,
        failover: bool,
    ) -> Result<(Self, SnapshotFacts), SourceError> {
        let connector = source.connector();
        let name = format!("copy-{table}");
        let (exporter, seen) = Worker::start(&name, async move || {
            let mut session = connector.connect(Role::Copy(table.0)).await?;
            let seen = catalog::identify_system(&mut session).await?;
            Ok((session, seen))
        })
        .await?;
        source.check(&seen)?;
        let (created, snapshot) = exporter
            .run(async move |session| slots::create_with_snapshot(session, &slot, failover).await)
            .await?;
        let facts = SnapshotFacts { seen: seen.clone(), slot: created };
        let exporter = Arc::new(exporter);
        let reading = Mutex::default();
        Ok((Self { source, table, seen, snapshot, exporter, reading }, facts))
    }

    /// Opens a reader and imports the snapshot (K-10). The first one, number 0, locks the table and
    /// reads the facts of the guard, too (K-11, K-27).
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn open_reader(&self, reader: u32) -> Result<ReaderFacts, Fault> {
        catalog::fault(match reader {
            0 => self.open_first().await,
            _ => self.open_further(reader).await,
        })
    }

    async fn connect(&self, reader: u32) -> Result<(Worker, SourceSeen), SourceError> {
        let table = self.table;
        let connector = self.source.connector();
        Worker::start(&format!("read-{table}-{reader}"), async move || {
            let mut session = connector.connect(Role::Read(table.0)).await?;
            let seen = catalog::seen(&mut session).await?;
            Ok((session, seen))
        })
        .await
    }

    async fn open_further(&self, reader: u32) -> Result<ReaderFacts, SourceError> {
        let (worker, seen) = self.connect(reader).await?;
        let (table, snapshot) = (self.table, self.snapshot.clone());
        worker.run(async move |session| import(session, table, &snapshot).await).await?;
        self.lock().readers.insert(reader, Arc::new(worker));
        Ok(ReaderFacts { seen, published: true, filter: None, heaps: Vec::new() })
    }

    async fn open_first(&self) -> Result<ReaderFacts, SourceError> {
        let table = self.table;
        let (worker, seen) = self.connect(0).await?;
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
        let mut reading = self.lock();
        reading.membership = found.membership;
        reading.readers.insert(0, Arc::new(worker));
        drop(reading);
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
        let worker = self.reader(0)?;
        let table = self.table;
        let membership = self.lock().membership.clone();
        let membership = membership
            .ok_or_else(|| SourceError::unexpected("reading the schema", "an unpublished table"))?;
        let published = worker
            .run(async move |session| {
                let Some(mut found) = table::schema(session, table, &membership).await? else {
                    return Err(SourceError::unexpected("reading the schema", "no such table"));
                };
                // Under the lock the storage of the snapshot is the one of now (K-27).
                found.schema.storage = Some(table::storage(session, table).await?.stamp);
                Ok(found)
            })
            .await?;
        self.lock().generated = published.generated;
        Ok(SchemaFacts { schema: published.schema })
    }

    /// Reads the rows of a range with COPY, on the reader's own thread. Blocks go to `sink`; while
    /// `gate` is closed nothing is read. When the future is dropped, the COPY is cancelled.
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn read_range(
        &self,
        range: CopyRange<'_>,
        sink: mpsc::Sender<CopyBlock>,
        mut gate: watch::Receiver<bool>,
    ) -> Result<RangeFacts, Fault> {
        let CopyRange { reader, relation, blocks, schema, filter } = range;
        let worker = catalog::fault(self.reader(reader))?;
        let generated = self.lock().generated;
        let columns: Vec<_> = schema.columns.iter().map(|column| ident(&column.name)).collect();
        let columns = columns.join(", ");
        let filter = filter.map(str::to_owned);
        let during = format!("copying {} ({relation})", schema.qualified_name());
        let read = worker.run(async move |session| {
            let name = table::current_name(session, relation).await?;
            let name = name.ok_or_else(|| SourceError::unexpected(&during, "no such relation"))?;
            let command = command(&name, &columns, filter.as_deref(), blocks, generated);
            copy_out(session, &during, &command, &sink, &mut gate).await
        });
        catalog::fault(read.await)
    }

    /// Ends the readers' transactions, which gives up lock and snapshot (K-19).
    ///
    /// # Errors
    /// The first that the server or the way to it says; every reader has ended all the same.
    pub async fn close_readers(&self) -> Result<(), Fault> {
        let readers = self.take_readers();
        let mut result = Ok(());
        for worker in readers.values() {
            let commit =
                async |session: &mut Session| session.query("ending the read", "COMMIT").await;
            let committed = worker.run(commit).await.map(drop);
            worker.stop();
            result = result.and(committed);
        }
        for worker in readers.values() {
            worker.ended().await;
        }
        catalog::fault(result)
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
        let readers = self.take_readers();
        self.exporter.stop();
        readers.values().for_each(|worker| worker.stop());
        for worker in readers.values() {
            worker.ended().await;
        }
        self.exporter.ended().await;
        Ok(())
    }

    fn reader(&self, reader: u32) -> Result<Arc<Worker>, SourceError> {
        let worker = self.lock().readers.get(&reader).cloned();
        worker.ok_or(SourceError::Stopped("reading without a reader"))
    }

    fn take_readers(&self) -> BTreeMap<u32, Arc<Worker>> {
        std::mem::take(&mut self.lock().readers)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Reading> {
        // Nothing panics while it is held; what is inside is whole in any case.
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CopyAttempt {
    fn drop(&mut self) {
        // Streams and reads that are still under way hold the workers too.
        self.exporter.stop();
        self.take_readers().values().for_each(|worker| worker.stop());
    }
}

/// What the reader finds in its snapshot, under its lock.
struct Found {
    membership: Option<Membership>,
    heaps: Vec<walferry_core::source::HeapFacts>,
}

async fn import(session: &mut Session, table: TableId, snapshot: &str) -> Result<(), SourceError> {
    let import = format!(
        "SET row_security = off; BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
         SET TRANSACTION SNAPSHOT {}",
        literal(snapshot)
    );
    session.query(&format!("importing the snapshot of table {table}"), &import).await.map(drop)
}

async fn look(
    session: &mut Session,
    table: TableId,
    snapshot: &str,
    publication: &str,
) -> Result<Found, SourceError> {
    import(session, table, snapshot).await?;
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

/// The plain form is the faster one; it takes neither conditions nor generated columns.
fn command(
    name: &str,
    columns: &str,
    filter: Option<&str>,
    blocks: BlockRange,
    generated: bool,
) -> String {
    let mut conditions: Vec<_> = filter.iter().map(|filter| format!("({filter})")).collect();
    if blocks.first > 0 {
        conditions.push(format!("ctid >= '({},0)'", blocks.first));
    }
    if let Some(end) = blocks.end {
        conditions.push(format!("ctid < '({end},0)'"));
    }
    if !conditions.is_empty() {
        let conditions = conditions.join(" AND ");
        return format!("COPY (SELECT {columns} FROM ONLY {name} WHERE {conditions}) TO STDOUT");
    }
    if generated || columns.is_empty() {
        return format!("COPY (SELECT {columns} FROM ONLY {name}) TO STDOUT");
    }
    format!("COPY {name} ({columns}) TO STDOUT")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(first: u32, end: Option<u32>) -> BlockRange {
        BlockRange { first, end }
    }

    // K-17, K-20
    #[test]
    fn conditions_and_generated_columns_need_a_query() {
        let all = BlockRange::ALL;
        let filter = Some("(a > 1)");
        let select = "COPY (SELECT \"a\" FROM ONLY s.t";
        let cases = [
            (None, all, false, "COPY s.t (\"a\") TO STDOUT".to_owned()),
            (None, all, true, format!("{select}) TO STDOUT")),
            (filter, all, false, format!("{select} WHERE ((a > 1))) TO STDOUT")),
            (
                filter,
                part(3, Some(9)),
                true,
                format!(
                    "{select} WHERE ((a > 1)) AND ctid >= '(3,0)' AND ctid < '(9,0)') TO STDOUT"
                ),
            ),
            (None, part(0, Some(9)), false, format!("{select} WHERE ctid < '(9,0)') TO STDOUT")),
            (None, part(9, None), false, format!("{select} WHERE ctid >= '(9,0)') TO STDOUT")),
        ];
        for (filter, blocks, generated, expected) in cases {
            assert_eq!(command("s.t", "\"a\"", filter, blocks, generated), expected);
        }
        let none = command("s.t", "", None, all, false);
        assert_eq!(none, "COPY (SELECT  FROM ONLY s.t) TO STDOUT");
    }
}
