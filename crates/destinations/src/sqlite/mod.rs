//! A SQLite file as destination: exactly once, each call one transaction (DS-18).
//!
//! **Names.** A table of the schema `public` keeps its name, any other is named `schema.table`.
//! Columns keep theirs. SQLite ignores the case of ASCII letters in names: tables or columns that
//! differ only in that are refused with a message that names both.
//!
//! **Types**, by the OID of the source's type; a domain is not looked through:
//!
//! | source | column | stored as |
//! |---|---|---|
//! | `bool` | INTEGER | 0, 1 |
//! | `int2`, `int4`, `int8`, `oid` | INTEGER | integer |
//! | `float4`, `float8` | REAL | real; `NaN`, `Infinity`, `-Infinity` as text, `-0` as the blob `-0`, because SQLite stores none of them as a real |
//! | `numeric` | TEXT | text, all digits; compared as text |
//! | `bytea` | BLOB | its bytes |
//! | all others | TEXT | text as the source prints it |
//!
//! No value is altered by SQLite's affinities: text is never a number because it looks like one.
//!
//! **Keys.** The columns of the replica identity are the primary key and NOT NULL; text compares
//! byte by byte. Nothing else of the source's constraints is created. A table with identity FULL
//! has no key: its rows are a multiset, an update or delete takes one row that equals the old one
//! in all columns, and an index on one column (the first that is NOT NULL, else the first) keeps
//! that from reading the whole table. Without a usable identity rows are only appended (PG-17).
//!
//! **Contradictions** are errors, never repaired in silence: an insert of a key that is there, an
//! update or delete of a row that is not. With data and watermark in one transaction neither can
//! come from a replay; somebody has changed the table, and `walferry resync` copies it again.
//!
//! **Durability.** WAL mode with `synchronous = FULL`: a call has been synced when it answers, so
//! every answer is Durable, a flush has nothing to do, and no owed work can be lost. Measured
//! against `NORMAL`: nothing is lost with 20,000 changes in a call; with 1,000 it is 190 against
//! 1,200 thousand changes a second, with 100 it is 22 against 400, one sync each. Batches grow while
//! the one before is synced, so that the small ones come only when there is little to do, and then
//! an answer that is durable at once is worth more.
//!
//! **State** lies in the same file: `_walferry_pipeline` (who owns the file) and
//! `_walferry_tables` (per source table: target, attempt, watermark, copied sequences as ranges).

mod bind;
mod changes;
mod classify;
mod copy;
mod layout;
mod open;
mod plan;
mod ranges;
mod serve;
mod session;
mod state;
mod target;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rusqlite::InterruptHandle;
use walferry_core::batch::{Batch, CopyBatch, CopyStart, Declaration, DeliveryClass, Durability};
use walferry_core::fault::DestinationClass;
use walferry_core::ids::{Attempt, Epoch, Lane, TableId};
use walferry_core::schema::SchemaSupport;

use crate::contract::{Destination, DestinationError};
use crate::worker::{Answer, Worker};

/// One SQLite file. Opened by `startup`, closed when dropped.
#[derive(Debug)]
pub struct SqliteDestination {
    path: PathBuf,
    take_over: bool,
    worker: Mutex<Option<Arc<Worker<Command>>>>,
    interrupt: Interrupt,
}

/// How a running statement can be ended from outside; empty while the file is not open.
#[derive(Clone, Default)]
struct Interrupt(Arc<Mutex<Option<InterruptHandle>>>);

/// What the thread that owns the connection is asked for.
#[derive(Debug)]
enum Command {
    Startup { claim: open::Claim, answer: Answer<()> },
    Begin { start: CopyStart, answer: Answer<()> },
    Rows { batch: Arc<CopyBatch<Bytes>>, answer: Answer<Durability> },
    Finish { finish: copy::Finish, answer: Answer<Durability> },
    Changes { batch: Arc<Batch<Bytes>>, answer: Answer<Durability> },
    Shutdown { answer: Answer<()> },
}

impl SqliteDestination {
    /// The file at `path`, which need not exist; its folder must. A relative path is made absolute
    /// now.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        Self {
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            take_over: false,
            worker: Mutex::default(),
            interrupt: Interrupt::default(),
        }
    }

    /// Whether a file that belongs to another pipeline is taken over (DS-16). Its tables are then
    /// treated as ours: a copy replaces their rows.
    #[must_use]
    pub fn take_over(mut self, take_over: bool) -> Self {
        self.take_over = take_over;
        self
    }

    /// The absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn start(&self) -> Result<Arc<Worker<Command>>, DestinationError> {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = &*worker {
            return Ok(Arc::clone(worker));
        }
        let (path, interrupt) = (self.path.clone(), self.interrupt.clone());
        let started = Arc::new(Worker::spawn("walferry-sqlite", move |commands| {
            serve::run(&path, &interrupt, &commands);
        })?);
        *worker = Some(Arc::clone(&started));
        Ok(started)
    }

    fn worker(&self) -> Result<Arc<Worker<Command>>, DestinationError> {
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        worker.clone().ok_or_else(|| self.not_started())
    }

    fn not_started(&self) -> DestinationError {
        not_started(&self.path)
    }
}

fn not_started(path: &Path) -> DestinationError {
    let message = format!("sqlite file {}: called before startup", path.display());
    DestinationError::new(DestinationClass::Permanent, message)
}

impl Destination for SqliteDestination {
    fn declare(&self) -> Declaration {
        Declaration {
            id: format!("sqlite:{}", self.path.display()),
            class: DeliveryClass::ExactlyOnce,
            // SQLite has one writer.
            lanes_max: 1,
            // One being written, one waiting: the thread never idles between two.
            copy_in_flight_max: 2,
            wants_messages: false,
            partial_rows: true,
            schema_changes: SchemaSupport::NONE,
        }
    }

    async fn startup(&self, pipeline: &str, epoch: Epoch) -> Result<(), DestinationError> {
        let pipeline = pipeline.to_owned();
        let claim = open::Claim { pipeline, epoch, take_over: self.take_over };
        self.start()?.ask(|answer| Command::Startup { claim, answer }).await
    }

    async fn begin_copy(&self, start: CopyStart) -> Result<(), DestinationError> {
        self.worker()?.ask(|answer| Command::Begin { start, answer }).await
    }

    async fn write_rows(
        &self,
        batch: Arc<CopyBatch<Bytes>>,
    ) -> Result<Durability, DestinationError> {
        self.worker()?.ask(|answer| Command::Rows { batch, answer }).await
    }

    async fn finish_copy(
        &self,
        table: TableId,
        attempt: Attempt,
        epoch: Epoch,
        sequences: u64,
    ) -> Result<Durability, DestinationError> {
        let finish = copy::Finish { table, attempt, epoch, sequences };
        self.worker()?.ask(|answer| Command::Finish { finish, answer }).await
    }

    async fn write_changes(
        &self,
        batch: Arc<Batch<Bytes>>,
    ) -> Result<Durability, DestinationError> {
        self.worker()?.ask(|answer| Command::Changes { batch, answer }).await
    }

    async fn flush(&self, _lane: Lane) -> Result<(), DestinationError> {
        // Every answer was Durable.
        self.worker().map(drop)
    }

    async fn shutdown(&self) -> Result<(), DestinationError> {
        self.worker()?.ask(|answer| Command::Shutdown { answer }).await
    }
}

impl Drop for SqliteDestination {
    fn drop(&mut self) {
        // Nobody waits for the running call any more: it is rolled back (DS-12).
        let handle = self.interrupt.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = &*handle {
            handle.interrupt();
        }
    }
}

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interrupt")
    }
}
