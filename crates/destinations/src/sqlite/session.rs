//! What the thread knows while the file is open, and how a call becomes one transaction.
//!
//! The cache of table states is true only for the epoch that owns the file; each transaction checks
//! that first, and everything cached is read again after a failure.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use walferry_core::fault::DestinationClass;
use walferry_core::ids::{Attempt, Epoch, TableId};
use walferry_core::schema::TableSchema;

use super::bind::Trouble;
use super::classify;
use super::layout::Layout;
use super::plan::Plan;
use super::state::{self, TableState};
use crate::contract::DestinationError;
use crate::worker::Answer;

/// Tables whose statements are kept; with more in use, all are prepared anew.
const PLANS_MAX: usize = 256;

/// An open file.
pub(super) struct Session<'c> {
    pub(super) connection: &'c Connection,
    pub(super) file: &'c Path,
    pub(super) tables: HashMap<TableId, Entry<'c>>,
    /// Whether `tables` may differ from the file.
    stale: bool,
    plans: usize,
}

/// A table with what is prepared for it.
pub(super) struct Entry<'c> {
    pub(super) state: TableState,
    plan: Option<(Arc<TableSchema>, Plan<'c>)>,
}

impl<'c> Session<'c> {
    pub(super) fn new(connection: &'c Connection, file: &'c Path) -> Self {
        Self { connection, file, tables: HashMap::new(), stale: true, plans: 0 }
    }

    /// Forgets everything that was read or prepared.
    pub(super) fn forget_all(&mut self) {
        self.tables.clear();
        self.plans = 0;
        self.stale = true;
    }

    /// Runs `work` in one transaction of the owner of the file (DS-14). It is undone if it fails or
    /// if nobody waits for it any more.
    pub(super) fn transaction<T, A>(
        &mut self,
        epoch: Epoch,
        answer: &Answer<A>,
        work: impl FnOnce(&mut Self) -> Result<T, DestinationError>,
    ) -> Result<T, DestinationError> {
        self.run("BEGIN IMMEDIATE", "begin a transaction").map_err(|mut error| {
            error.no_effect_on_others = true;
            error
        })?;
        let done = self
            .enter(epoch)
            .and_then(|()| work(self))
            .and_then(|value| if answer.is_unwanted() { Err(self.cancelled()) } else { Ok(value) });
        match done {
            Ok(value) => match self.run("COMMIT", "commit") {
                Ok(()) => Ok(value),
                Err(error) => {
                    self.roll_back()?;
                    Err(error)
                }
            },
            Err(mut error) => {
                error.no_effect_on_others = self.roll_back().is_ok();
                Err(error)
            }
        }
    }

    pub(super) fn cancelled(&self) -> DestinationError {
        let message = format!("sqlite file {}: the call was given up", self.file.display());
        DestinationError::new(DestinationClass::Transient { retry_after: None }, message)
    }

    fn run(&self, sql: &str, doing: &str) -> Result<(), DestinationError> {
        self.connection.execute_batch(sql).map_err(|error| classify::error(self.file, doing, error))
    }

    fn roll_back(&mut self) -> Result<(), DestinationError> {
        self.forget_all();
        // Some errors make SQLite roll back by itself.
        if self.connection.is_autocommit() { Ok(()) } else { self.run("ROLLBACK", "roll back") }
    }

    fn enter(&mut self, epoch: Epoch) -> Result<(), DestinationError> {
        let owner: i64 = self
            .connection
            .prepare_cached("SELECT epoch FROM _walferry_pipeline")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .map_err(|error| classify::error(self.file, "read its owner", error))?;
        let owner = Epoch(owner.cast_unsigned());
        if owner > epoch {
            let file = self.file.display();
            let message = format!(
                "sqlite file {file}: a newer run owns it (epoch {owner}, this one has {epoch})"
            );
            return Err(DestinationError::new(DestinationClass::Fenced, message));
        }
        if self.stale {
            self.forget_all();
            for state in state::load(self.connection, self.file)? {
                self.tables.insert(state.table, Entry { state, plan: None });
            }
            self.stale = false;
        }
        Ok(())
    }

    /// The table of a batch if its events are of the current attempt, `None` if they are of an
    /// older one (DS-14).
    pub(super) fn current(
        &mut self,
        table: TableId,
        attempt: Attempt,
        name: &str,
    ) -> Result<Option<&mut Entry<'c>>, DestinationError> {
        let known = self.tables.get(&table).map_or(Attempt(0), |entry| entry.state.attempt);
        if known > attempt {
            return Ok(None);
        }
        if known < attempt {
            let problem = format!(
                "the file knows {name} (oid {table}) at attempt {known}, not {attempt}: it was \
                 replaced, restored, or another table took its name; copy it again: walferry \
                 resync {name}"
            );
            return Err(self.on_table(DestinationClass::Manual, table, &problem));
        }
        Ok(self.tables.get_mut(&table))
    }

    /// The statements for rows of this shape.
    pub(super) fn prepare(&mut self, schema: &Arc<TableSchema>) -> Result<(), DestinationError> {
        let Some(entry) = self.tables.get_mut(&schema.table) else { return Ok(()) };
        if entry.plan.as_ref().is_some_and(|(known, _)| Arc::ptr_eq(known, schema)) {
            return Ok(());
        }
        let manual = DestinationClass::Manual;
        let name = schema.qualified_name();
        let mut layout = Layout::new(schema).map_err(|problem| {
            self.on_table(manual, schema.table, &format!("{name}: {problem}"))
        })?;
        let Some(entry) = self.tables.get_mut(&schema.table) else { return Ok(()) };
        let shape = layout.shape();
        if shape != entry.state.shape {
            let known = entry.state.shape.clone();
            let problem = format!(
                "{name} has changed from {known} to {shape}; copy it again: walferry resync {name}"
            );
            return Err(self.on_table(manual, schema.table, &problem));
        }
        if let Some((known, _)) = entry.plan.as_mut() {
            *known = Arc::clone(schema);
            return Ok(());
        }
        // A table that was renamed at the source keeps its target until it is copied again.
        layout.target.clone_from(&entry.state.target);
        let plan = Plan::new(self.connection, schema.table, layout).map_err(|error| {
            let doing = format!("prepare the statements of {name}");
            classify::error(self.file, &doing, error).on_table(schema.table)
        })?;
        entry.plan = Some((Arc::clone(schema), plan));
        self.plans += 1;
        Ok(())
    }

    /// Lets go of statements when there are too many. Only between transactions.
    pub(super) fn trim(&mut self) {
        if self.plans > PLANS_MAX {
            for entry in self.tables.values_mut() {
                entry.plan = None;
            }
            self.plans = 0;
        }
    }

    /// An error that names a table.
    pub(super) fn on_table(
        &self,
        class: DestinationClass,
        table: TableId,
        problem: &str,
    ) -> DestinationError {
        let message = format!("sqlite file {}: {problem}", self.file.display());
        DestinationError::new(class, message).on_table(table)
    }

    /// What a row that could not be written means. Names, never values.
    pub(super) fn trouble(
        &self,
        schema: &TableSchema,
        doing: &str,
        trouble: Trouble,
    ) -> DestinationError {
        let (table, name) = (schema.table, schema.qualified_name());
        let (manual, permanent) = (DestinationClass::Manual, DestinationClass::Permanent);
        let column = |index: usize| {
            schema.columns.get(index).map_or_else(|| "?".to_owned(), |c| format!("{:?}", c.name))
        };
        let say = |class, problem: String| {
            self.on_table(class, table, &format!("cannot {doing} {name}: {problem}"))
        };
        let resync = format!("copy it again: walferry resync {name}");
        let keys = || Layout::new(schema).map(|layout| layout.key_list()).unwrap_or_default();
        match trouble {
            Trouble::Sql(error) if classify::is_constraint(&error) => say(
                manual,
                format!(
                    "its key ({}) or a constraint forbids it; the table was changed by somebody \
                     else; {resync}",
                    keys()
                ),
            )
            .caused_by(error),
            Trouble::Sql(error) => {
                classify::error(self.file, &format!("{doing} {name}"), error).on_table(table)
            }
            Trouble::Malformed(error) => {
                say(permanent, "its bytes are not such a row".to_owned()).caused_by(error)
            }
            Trouble::NotHex { column: index } => say(
                manual,
                format!("column {} is not in hexadecimal form; set bytea_output", column(index)),
            ),
            Trouble::Binary { column: index } => {
                say(permanent, format!("column {} is in binary form", column(index)))
            }
            Trouble::Missing { column: index } => say(
                manual,
                format!(
                    "the source did not send the value of column {} (a row filter met an \
                     unchanged large value); set REPLICA IDENTITY FULL, then {resync}",
                    column(index)
                ),
            ),
            Trouble::NoOld => {
                say(manual, format!("the source did not send the old row in full; {resync}"))
            }
            Trouble::NoIdentity => say(
                manual,
                format!(
                    "it has no replica identity; give it a key or REPLICA IDENTITY FULL, then {resync}"
                ),
            ),
            Trouble::NotFound => say(
                manual,
                format!(
                    "no row has its key ({}) or equals the old row; the table was changed by \
                     somebody else; {resync}",
                    keys()
                ),
            ),
        }
    }
}

impl<'c> Entry<'c> {
    pub(super) const fn new(state: TableState) -> Self {
        Self { state, plan: None }
    }

    pub(super) const fn plan(&mut self) -> Option<&mut Plan<'c>> {
        match &mut self.plan {
            Some((_, plan)) => Some(plan),
            None => None,
        }
    }
}
