//! Preparing the target of one attempt (DS-05, DS-06).
//!
//! Owns who a table of the file belongs to. Everything happens in one transaction, so that a crash
//! leaves either the old attempt or an empty target of the new one.

use rusqlite::params;
use walferry_core::batch::{CopyMode, CopyStart};
use walferry_core::fault::DestinationClass;
use walferry_core::ids::TableId;

use super::classify;
use super::layout::{Layout, quote};
use super::ranges::Ranges;
use super::session::{Entry, Session};
use super::state::TableState;
use crate::contract::DestinationError;
use crate::worker::Answer;

const MANUAL: DestinationClass = DestinationClass::Manual;

impl Session<'_> {
    pub(super) fn begin_copy(
        &mut self,
        start: &CopyStart,
        answer: &Answer<()>,
    ) -> Result<(), DestinationError> {
        let name = start.schema.qualified_name();
        let layout = Layout::new(&start.schema).map_err(|problem| {
            let mut error = self.on_table(
                MANUAL,
                start.table,
                &format!("cannot hold {name}: {problem}; leave it out of the publication"),
            );
            error.no_effect_on_others = true;
            error
        })?;
        // A statement that is still prepared would not hinder, but it may be of another shape.
        if let Some(entry) = self.tables.remove(&start.table) {
            self.tables.insert(start.table, Entry::new(entry.state));
        }
        let (state, replaced) = self
            .transaction(start.epoch, answer, |session| session.prepare_target(start, &layout))?;
        for table in replaced {
            self.tables.remove(&table);
        }
        self.tables.insert(start.table, Entry::new(state));
        Ok(())
    }

    /// Makes the target exist, empty unless it is adopted. Returns its new state and tables that are
    /// no more.
    fn prepare_target(
        &mut self,
        start: &CopyStart,
        layout: &Layout,
    ) -> Result<(TableState, Vec<TableId>), DestinationError> {
        let name = start.schema.qualified_name();
        let known = self.tables.get(&start.table).map(|entry| entry.state.clone());
        if let Some(known) = known.as_ref().filter(|known| known.attempt > start.attempt) {
            let problem = format!(
                "cannot begin attempt {} of {name}: attempt {} has begun",
                start.attempt, known.attempt
            );
            return Err(self.on_table(DestinationClass::Permanent, start.table, &problem));
        }
        let mut replaced = Vec::new();
        let mut ours =
            known.as_ref().is_some_and(|k| k.target.eq_ignore_ascii_case(&layout.target));
        if let Some(other) = self.owner_of(start.table, &layout.target) {
            if other.source != name {
                let problem = format!(
                    "cannot hold {name}: its table {} is that of {} already (SQLite ignores case, \
                     and schema and table are joined by a dot); rename one of them or leave it out",
                    quote(&layout.target),
                    other.source
                );
                return Err(self.on_table(MANUAL, start.table, &problem));
            }
            // The source dropped or renamed that table and made a new one of the same name.
            replaced.push(other.table);
            ours = true;
        }
        let adopted = match start.mode {
            CopyMode::Fresh | CopyMode::Recopy { .. } => None,
            CopyMode::Adopt { previous } => Some(previous),
        };
        // The rows hold the events up to the watermark of the attempt before, whichever that was.
        let watermark = adopted.flatten().and(known.as_ref()).and_then(|known| known.watermark);
        let prepared = if adopted.is_some() {
            self.adopt(layout)
        } else {
            let stale_target = known.map(|known| known.target).filter(|_| !ours);
            self.replace(start.table, layout, &name, ours, stale_target)
        };
        prepared.map_err(|refusal| self.refused(refusal, start.table, layout, &name))?;
        let state = TableState {
            table: start.table,
            source: name.clone(),
            target: layout.target.clone(),
            shape: layout.shape(),
            attempt: start.attempt,
            complete: adopted.is_some(),
            watermark,
            sequences: Ranges::default(),
        };
        let saved = replaced
            .iter()
            .try_for_each(|table| {
                let sql = "DELETE FROM _walferry_tables WHERE oid = ?1";
                self.connection.execute(sql, params![table.0]).map(drop)
            })
            .and_then(|()| state.insert(self.connection))
            .and_then(|()| state.update(self.connection));
        saved.map_err(|error| {
            classify::error(self.file, &format!("save the state of {name}"), error)
                .on_table(start.table)
        })?;
        Ok((state, replaced))
    }

    fn refused(
        &self,
        refusal: Refusal,
        table: TableId,
        layout: &Layout,
        name: &str,
    ) -> DestinationError {
        let target = quote(&layout.target);
        match refusal {
            Refusal::Sql(error) => {
                let doing = format!("prepare the table of {name}");
                classify::error(self.file, &doing, error).on_table(table)
            }
            Refusal::NotEmpty => self.not_empty(table, layout, name),
            Refusal::Lacks { column } => {
                let problem = format!(
                    "cannot adopt {name}: {target} has no column {column}; add it, or let the table \
                     be copied (setting copy)"
                );
                self.on_table(MANUAL, table, &problem)
            }
            Refusal::Taken { kind } => {
                let problem = format!(
                    "cannot hold {name}: {target} is a {kind} that walferry did not make; rename \
                     or drop it"
                );
                self.on_table(MANUAL, table, &problem)
            }
        }
    }

    /// Another source table whose rows lie in `target`.
    fn owner_of(&self, table: TableId, target: &str) -> Option<TableState> {
        let same =
            |state: &&TableState| state.table != table && state.target.eq_ignore_ascii_case(target);
        self.tables.values().map(|entry| &entry.state).find(same).cloned()
    }

    fn not_empty(&self, table: TableId, layout: &Layout, name: &str) -> DestinationError {
        let target = quote(&layout.target);
        let problem = format!(
            "target not empty: {target} holds rows that are not of this pipeline, and {name} is to \
             be copied there; drop or rename it (DROP TABLE {target};), then walferry retry {name}"
        );
        self.on_table(MANUAL, table, &problem)
    }

    /// `ours`: what stands at the target may go. `stale_target`: a former target of this table.
    fn replace(
        &self,
        table: TableId,
        layout: &Layout,
        name: &str,
        ours: bool,
        stale_target: Option<String>,
    ) -> Result<(), Refusal> {
        if let Some(former) = stale_target {
            tracing::info!(table = name, former, target = layout.target, "table was renamed");
            self.connection.execute_batch(&format!("DROP TABLE IF EXISTS {}", quote(&former)))?;
        }
        let index = quote(&format!("{}match_{table}", super::layout::RESERVED));
        self.connection.execute_batch(&format!("DROP INDEX IF EXISTS {index}"))?;
        let target = quote(&layout.target);
        match self.kind_of(&layout.target)? {
            None => {}
            Some((kind, _)) if kind != "table" => return Err(Refusal::Taken { kind }),
            Some((_, sql)) => {
                let holds_rows: bool = self.connection.query_row(
                    &format!("SELECT EXISTS (SELECT 1 FROM {target})"),
                    [],
                    |row| row.get(0),
                )?;
                if holds_rows && !ours {
                    return Err(Refusal::NotEmpty);
                }
                if ours && sql == layout.create() {
                    // Keeps indexes and views that somebody made for it.
                    self.connection.execute_batch(&layout.clear())?;
                    return Ok(());
                }
                self.connection.execute_batch(&format!("DROP TABLE {target}"))?;
            }
        }
        self.connection.execute_batch(&layout.create())?;
        Ok(())
    }

    /// Leaves the rows as they are (K-18), whoever made the table. It needs a place for each column.
    fn adopt(&self, layout: &Layout) -> Result<(), Refusal> {
        match self.kind_of(&layout.target)? {
            None => self.connection.execute_batch(&layout.create())?,
            Some((kind, _)) if kind != "table" => return Err(Refusal::Taken { kind }),
            Some(_) => {
                let sql = "SELECT EXISTS (SELECT 1 FROM pragma_table_info(?1) \
                           WHERE name = ?2 COLLATE NOCASE)";
                let mut has = self.connection.prepare_cached(sql)?;
                for column in &layout.columns {
                    let known: bool =
                        has.query_row(params![layout.target, column.plain], |row| row.get(0))?;
                    if !known {
                        return Err(Refusal::Lacks { column: column.name.clone() });
                    }
                }
            }
        }
        Ok(())
    }

    /// What stands under a name: its kind and SQL.
    fn kind_of(&self, target: &str) -> rusqlite::Result<Option<(String, String)>> {
        let sql = "SELECT type, ifnull(sql, '') FROM sqlite_master \
                   WHERE name = ?1 COLLATE NOCASE AND type IN ('table', 'view', 'index')";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![target])?;
        rows.next()?.map(|row| Ok((row.get(0)?, row.get(1)?))).transpose()
    }
}

/// Why a target was not prepared.
enum Refusal {
    Sql(rusqlite::Error),
    NotEmpty,
    Taken { kind: String },
    Lacks { column: String },
}

impl From<rusqlite::Error> for Refusal {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}
