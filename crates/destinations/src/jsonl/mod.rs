//! JSON lines, in a file or on standard output: at least once, each line with its own key.
//!
//! One JSON object per line. `op` says which:
//!
//! | `op` | further members |
//! |---|---|
//! | `copy_begin` | `schema`, `table`, `oid`, `attempt`, `cutoff`, `columns`: name, type OID, key flag |
//! | `read` (a copied row) | `schema`, `table`, `oid`, `attempt`, `sequence`, `row`, `key`, `after` |
//! | `copy_end` | `oid`, `attempt`, `sequences` |
//! | `adopt` | `schema`, `table`, `oid`, `attempt`, `previous`, `columns`: as in `copy_begin` |
//! | `insert`, `update`, `delete` | `schema`, `table`, `oid`, `attempt`, `lsn`, `ordinal`, `time`, `key`, `before`, `after`, `unchanged` |
//! | `truncate` | `schema`, `table`, `oid`, `attempt`, `lsn`, `ordinal`, `time`, `cascade`, `restart_identity` |
//! | `schema` | `schema`, `table`, `oid`, `attempt`, `lsn`, `ordinal`, `time`, `columns`: the shape of the table's rows from here on |
//! | `message` | `lsn`, `time`, `message_lsn`, `prefix`, `content` (or `content_hex`, if it is not UTF-8) |
//!
//! `key` holds the columns of the replica identity and finds the row as it was before the change,
//! so that an update that changes the key is "remove `key`, write `after`"; it is null for a table
//! without one. `before` is null, the old key, or the whole old row with identity FULL. `after`
//! lacks the columns that `unchanged` names: large values that the source did not send because they
//! did not change.
//!
//! **Replays.** After a crash lines come again. A reader drops what it has seen: a change by
//! (`oid`, `lsn`, `ordinal`), a copied row by (`oid`, `attempt`, `sequence`, `row`). A `schema` line
//! bears the key of the change it stands before, and is not that change. A
//! `copy_begin` makes everything before it of the same `oid` void, as does a higher `attempt`;
//! behind an `adopt`, which begins an attempt without a copy, what was valid before stays so.
//!
//! **Values.** bool, int2, int4, int8, oid and finite floats are JSON literals with exactly the
//! source's digits. int8 may exceed 2^53: the text is exact, and readers that make a double of it
//! must be told otherwise. numeric is a string, because nearly every reader would make a double of
//! it; so are `NaN` and infinities. json and jsonb are embedded as they are; bytea is the string
//! `\x` with hexadecimal digits; all else is a string exactly as the source prints it.
//!
//! **Files.** A write is Accepted, a flush syncs. A last line that a crash has torn is cut off at
//! startup. Who owns the file stands beside it, in `PATH.walferry`.

mod claim;
mod lines;
mod sink;
mod value;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use walferry_core::batch::{Batch, CopyBatch, CopyStart, Declaration, DeliveryClass, Durability};
use walferry_core::fault::DestinationClass;
use walferry_core::ids::{Attempt, Epoch, Lane, TableId};
use walferry_core::schema::SchemaSupport;

use self::claim::Claim;
use self::sink::Sink;
use crate::contract::{Destination, DestinationError};
use crate::worker::{Answer, Worker};

/// Lines in a file or on standard output.
#[derive(Debug)]
pub struct JsonlDestination {
    target: Target,
    take_over: bool,
    worker: Mutex<Option<Arc<Worker<Command>>>>,
}

/// Where the lines go.
#[derive(Clone, Debug)]
enum Target {
    File(PathBuf),
    Stdout,
}

/// What the thread that owns the file is asked for.
#[derive(Debug)]
enum Command {
    Startup { claim: Claim, answer: Answer<()> },
    Begin { start: CopyStart, answer: Answer<()> },
    Rows { batch: Arc<CopyBatch<Bytes>>, answer: Answer<Durability> },
    Finish { finish: Finish, answer: Answer<Durability> },
    Changes { batch: Arc<Batch<Bytes>>, answer: Answer<Durability> },
    Flush { answer: Answer<()> },
}

/// Input of `finish_copy`.
#[derive(Clone, Copy, Debug)]
struct Finish {
    table: TableId,
    attempt: Attempt,
    epoch: Epoch,
    sequences: u64,
}

impl JsonlDestination {
    /// The file at `path`, which need not exist; its folder must. A relative path is made absolute
    /// now.
    #[must_use]
    pub fn file(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self::new(Target::File(path))
    }

    /// Standard output; it has no memory and accepts every pipeline (DS-16).
    #[must_use]
    pub fn stdout() -> Self {
        Self::new(Target::Stdout)
    }

    fn new(target: Target) -> Self {
        Self { target, take_over: false, worker: Mutex::default() }
    }

    /// Whether a file that belongs to another pipeline is taken over (DS-16).
    #[must_use]
    pub fn take_over(mut self, take_over: bool) -> Self {
        self.take_over = take_over;
        self
    }

    fn start(&self) -> Result<Arc<Worker<Command>>, DestinationError> {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = &*worker {
            return Ok(Arc::clone(worker));
        }
        let target = self.target.clone();
        let spawned = Worker::spawn("walferry-jsonl", move |commands| run(&target, &commands))?;
        let started = Arc::new(match &self.target {
            Target::File(_) => spawned,
            Target::Stdout => spawned.detached(),
        });
        *worker = Some(Arc::clone(&started));
        Ok(started)
    }

    fn worker(&self) -> Result<Arc<Worker<Command>>, DestinationError> {
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        worker.clone().ok_or_else(not_started)
    }
}

fn not_started() -> DestinationError {
    DestinationError::new(DestinationClass::Permanent, "json lines: called before startup")
}

impl Destination for JsonlDestination {
    fn declare(&self) -> Declaration {
        Declaration {
            id: match &self.target {
                Target::File(path) => format!("jsonl:{}", path.display()),
                Target::Stdout => "jsonl:-".to_owned(),
            },
            class: DeliveryClass::Append,
            lanes_max: 1,
            copy_in_flight_max: 2,
            wants_messages: true,
            partial_rows: true,
            schema_changes: SchemaSupport::ALL,
        }
    }

    async fn startup(&self, pipeline: &str, epoch: Epoch) -> Result<(), DestinationError> {
        let claim = Claim { pipeline: pipeline.to_owned(), epoch, take_over: self.take_over };
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
        let finish = Finish { table, attempt, epoch, sequences };
        self.worker()?.ask(|answer| Command::Finish { finish, answer }).await
    }

    async fn write_changes(
        &self,
        batch: Arc<Batch<Bytes>>,
    ) -> Result<Durability, DestinationError> {
        self.worker()?.ask(|answer| Command::Changes { batch, answer }).await
    }

    async fn flush(&self, _lane: Lane) -> Result<(), DestinationError> {
        self.worker()?.ask(|answer| Command::Flush { answer }).await
    }

    async fn shutdown(&self) -> Result<(), DestinationError> {
        self.worker()?.ask(|answer| Command::Flush { answer }).await
    }
}

/// The thread: the sink is there from the first startup that succeeds.
fn run(target: &Target, commands: &Receiver<Command>) {
    let mut writer: Option<Writer> = None;
    while let Ok(command) = commands.recv() {
        match (command, &mut writer) {
            (Command::Startup { claim, answer }, writer) => answer.with(|_| {
                *writer = Some(Writer::new(match target {
                    Target::File(path) => Sink::file(path, &claim)?,
                    Target::Stdout => Sink::stream(Box::new(std::io::stdout())),
                }));
                Ok(())
            }),
            (command, Some(writer)) => writer.handle(command),
            (command, None) => refuse(command),
        }
    }
}

fn refuse(command: Command) {
    match command {
        Command::Startup { answer, .. }
        | Command::Begin { answer, .. }
        | Command::Flush { answer } => answer.send(Err(not_started())),
        Command::Rows { answer, .. }
        | Command::Finish { answer, .. }
        | Command::Changes { answer, .. } => answer.send(Err(not_started())),
    }
}

/// The sink and what is known of the tables in this process.
struct Writer {
    sink: Sink,
    attempts: HashMap<TableId, Attempt>,
    lines: Vec<u8>,
}

/// Memory for lines that is kept from one batch to the next.
const LINES_KEPT: usize = 32 << 20;

impl Writer {
    fn new(sink: Sink) -> Self {
        Self { sink, attempts: HashMap::new(), lines: Vec::new() }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Startup { answer, .. } => answer.send(Ok(())),
            Command::Begin { start, answer } => answer.with(|_| {
                self.sink.admit(start.epoch)?;
                if self.is_old(start.table, start.attempt) {
                    return Ok(());
                }
                self.append(|out| lines::copy_begin(out, &start))?;
                self.attempts.insert(start.table, start.attempt);
                self.sink.sync()
            }),
            Command::Rows { batch, answer } => answer.with(|_| {
                self.sink.admit(batch.epoch)?;
                if !self.is_old(batch.table, batch.attempt) {
                    self.append(|out| lines::rows(out, &batch))?;
                }
                Ok(Durability::Accepted)
            }),
            Command::Finish { finish, answer } => answer.with(|_| {
                let Finish { table, attempt, epoch, sequences } = finish;
                self.sink.admit(epoch)?;
                if !self.is_old(table, attempt) {
                    self.append(|out| {
                        lines::copy_end(out, table, attempt, sequences);
                        Ok(())
                    })?;
                }
                Ok(Durability::Accepted)
            }),
            Command::Changes { batch, answer } => answer.with(|_| {
                self.sink.admit(batch.epoch)?;
                let current: Vec<bool> =
                    batch.tables.iter().map(|of| !self.is_old(of.table, of.attempt)).collect();
                self.append(|out| lines::changes(out, &batch, &current))?;
                Ok(Durability::Accepted)
            }),
            Command::Flush { answer } => answer.with(|_| self.sink.sync()),
        }
    }

    /// Whether a later attempt has begun in this process; earlier ones are told apart by readers.
    fn is_old(&self, table: TableId, attempt: Attempt) -> bool {
        self.attempts.get(&table).is_some_and(|known| *known > attempt)
    }

    /// Writes all lines of a call, or none of them.
    fn append(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), DestinationError>,
    ) -> Result<(), DestinationError> {
        self.lines.clear();
        encode(&mut self.lines).map_err(|mut error| {
            error.no_effect_on_others = true;
            error
        })?;
        let done = self.sink.append(&self.lines);
        if self.lines.capacity() > LINES_KEPT {
            self.lines = Vec::new();
        }
        done
    }
}

#[cfg(test)]
mod tests;
