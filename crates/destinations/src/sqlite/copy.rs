//! Rows of a table copy, and its end (DS-08, DS-18).

use bytes::Bytes;
use walferry_core::batch::{CopyBatch, Durability};
use walferry_core::fault::DestinationClass;
use walferry_core::ids::{Attempt, Epoch, TableId};
use walferry_core::wire::CopyRows;

use super::bind::Trouble;
use super::classify;
use super::plan::Plan;
use super::session::Session;
use crate::contract::DestinationError;
use crate::worker::Answer;

/// Rows between two looks at whether anybody still waits.
const LOOK_EVERY: u64 = 4_096;

/// Input of `finish_copy`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finish {
    pub(super) table: TableId,
    pub(super) attempt: Attempt,
    pub(super) epoch: Epoch,
    pub(super) sequences: u64,
}

/// What became of the blocks of a batch.
enum Written {
    Rows(u64),
    Unwanted,
}

impl Session<'_> {
    pub(super) fn write_rows(
        &mut self,
        batch: &CopyBatch<Bytes>,
        answer: &Answer<Durability>,
    ) -> Result<Durability, DestinationError> {
        self.trim();
        self.transaction(batch.epoch, answer, |session| session.apply_rows(batch, answer))?;
        Ok(Durability::Durable)
    }

    fn apply_rows(
        &mut self,
        batch: &CopyBatch<Bytes>,
        answer: &Answer<Durability>,
    ) -> Result<(), DestinationError> {
        let name = batch.schema.qualified_name();
        let permanent = DestinationClass::Permanent;
        match self.current(batch.table, batch.attempt, &name)? {
            None => return Ok(()),
            Some(entry) if entry.state.sequences.contains(batch.sequence) => return Ok(()),
            Some(entry) if entry.state.complete => {
                let problem =
                    format!("copy batch {} of {name} comes after its end", batch.sequence);
                return Err(self.on_table(permanent, batch.table, &problem));
            }
            Some(_) => {}
        }
        self.prepare(&batch.schema)?;
        let Some(entry) = self.tables.get_mut(&batch.table) else { return Ok(()) };
        let Some(plan) = entry.plan() else { return Ok(()) };
        match write_blocks(plan, batch, answer) {
            Ok(Written::Rows(rows)) if rows == batch.rows => {}
            Ok(Written::Unwanted) => return Err(self.cancelled()),
            Ok(Written::Rows(found)) => {
                let problem = format!(
                    "copy batch {} of {name} should hold {} rows and holds {found}",
                    batch.sequence, batch.rows
                );
                return Err(self.on_table(permanent, batch.table, &problem));
            }
            Err(trouble) => return Err(self.trouble(&batch.schema, "copy a row of", trouble)),
        }
        entry.state.sequences.insert(batch.sequence);
        entry.state.update(self.connection).map_err(|error| {
            classify::error(self.file, &format!("save the state of {name}"), error)
                .on_table(batch.table)
        })
    }

    pub(super) fn finish_copy(
        &mut self,
        finish: Finish,
        answer: &Answer<Durability>,
    ) -> Result<Durability, DestinationError> {
        self.transaction(finish.epoch, answer, |session| session.complete(finish))?;
        Ok(Durability::Durable)
    }

    fn complete(&mut self, finish: Finish) -> Result<(), DestinationError> {
        let Finish { table, attempt, sequences, .. } = finish;
        let state = self.tables.get(&table).map(|entry| &entry.state);
        let Some(state) = state.filter(|state| state.attempt == attempt) else {
            let found = state.map_or(Attempt(0), |state| state.attempt);
            let problem =
                format!("cannot finish attempt {attempt} of table {table}: it is at {found}");
            return Err(self.on_table(DestinationClass::Permanent, table, &problem));
        };
        if !state.sequences.is_complete(sequences) {
            let problem = format!(
                "the copy of {} is not complete: it has the batches {:?} of 1-{sequences}",
                state.source,
                state.sequences.to_string()
            );
            return Err(self.on_table(DestinationClass::Permanent, table, &problem));
        }
        if state.complete {
            return Ok(());
        }
        let failed = |error| {
            classify::error(self.file, &format!("finish the copy of {}", state.source), error)
                .on_table(table)
        };
        let mut state = state.clone();
        state.complete = true;
        state.update(self.connection).map_err(failed)?;
        if let Some(entry) = self.tables.get_mut(&table) {
            entry.state = state;
        }
        Ok(())
    }
}

fn write_blocks(
    plan: &mut Plan<'_>,
    batch: &CopyBatch<Bytes>,
    answer: &Answer<Durability>,
) -> Result<Written, Trouble> {
    let mut rows = 0;
    for block in &batch.blocks {
        for row in CopyRows::new(block, block.len()) {
            plan.copy(row?)?;
            rows += 1;
            if rows % LOOK_EVERY == 0 && answer.is_unwanted() {
                return Ok(Written::Unwanted);
            }
        }
    }
    Ok(Written::Rows(rows))
}
