//! Changes, in order, with the watermark of each table (DS-11, DS-18, DS-19).

use bytes::Bytes;
use walferry_core::batch::{Batch, BatchTable, Change, ChangeBody, Durability};
use walferry_core::event::RowKind;
use walferry_core::fault::DestinationClass;
use walferry_core::ids::EventKey;

use super::classify;
use super::session::Session;
use crate::contract::DestinationError;
use crate::worker::Answer;

/// Changes between two looks at whether anybody still waits.
const LOOK_EVERY: usize = 4_096;

/// What is done with the changes of one table of a batch.
#[derive(Clone, Copy)]
enum Slot {
    /// Not yet looked at.
    New,
    /// They are of an older attempt.
    Skip,
    Apply,
}

impl Session<'_> {
    pub(super) fn write_changes(
        &mut self,
        batch: &Batch<Bytes>,
        answer: &Answer<Durability>,
    ) -> Result<Durability, DestinationError> {
        self.trim();
        self.transaction(batch.epoch, answer, |session| {
            let mut slots = vec![Slot::New; batch.tables.len()];
            for (count, change) in batch.changes.iter().enumerate() {
                if count % LOOK_EVERY == LOOK_EVERY - 1 && answer.is_unwanted() {
                    return Err(session.cancelled());
                }
                session.apply(batch, change, &mut slots)?;
            }
            session.save_watermarks(batch, &slots)
        })?;
        Ok(Durability::Durable)
    }

    fn apply(
        &mut self,
        batch: &Batch<Bytes>,
        change: &Change<Bytes>,
        slots: &mut [Slot],
    ) -> Result<(), DestinationError> {
        let index = match &change.body {
            ChangeBody::Row { table, .. }
            | ChangeBody::Truncate { table, .. }
            | ChangeBody::Schema { table, .. } => *table as usize,
            ChangeBody::Message { .. } => return Ok(()),
        };
        let part = batch.transactions.get(change.transaction as usize);
        let place = batch.tables.get(index).zip(slots.get_mut(index)).zip(part);
        let Some(((of, slot), part)) = place else {
            return Err(self.malformed());
        };
        match *slot {
            Slot::Skip => return Ok(()),
            Slot::New => {
                *slot = self.enter_table(of)?;
                if matches!(*slot, Slot::Skip) {
                    return Ok(());
                }
            }
            Slot::Apply => {}
        }
        let key = EventKey { commit: part.commit, ordinal: change.ordinal };
        let Some(entry) = self.tables.get_mut(&of.table) else { return Err(self.malformed()) };
        if entry.state.watermark.is_some_and(|watermark| key <= watermark) {
            return Ok(());
        }
        let Some(plan) = entry.plan() else { return Err(self.malformed()) };
        let (done, doing) = match &change.body {
            ChangeBody::Row { kind, row, .. } => {
                let doing = match kind {
                    RowKind::Insert => "insert a row into",
                    RowKind::Update => "update a row of",
                    RowKind::Delete => "delete a row of",
                };
                (plan.change(*kind, row), doing)
            }
            ChangeBody::Truncate { .. } => (plan.clear(), "truncate"),
            // Not declared (DS-01), so the core stops the table instead.
            ChangeBody::Schema { .. } => return Err(self.malformed().on_table(of.table)),
            ChangeBody::Message { .. } => (Ok(()), ""),
        };
        match done {
            Ok(()) => {
                entry.state.watermark = Some(key);
                Ok(())
            }
            Err(trouble) => Err(self.trouble(&of.schema, doing, trouble)),
        }
    }

    fn enter_table(&mut self, of: &BatchTable) -> Result<Slot, DestinationError> {
        let name = of.schema.qualified_name();
        if self.current(of.table, of.attempt, &name)?.is_none() {
            return Ok(Slot::Skip);
        }
        if of.schema.table != of.table {
            return Err(self.malformed());
        }
        self.prepare(&of.schema)?;
        Ok(Slot::Apply)
    }

    fn save_watermarks(
        &self,
        batch: &Batch<Bytes>,
        slots: &[Slot],
    ) -> Result<(), DestinationError> {
        let touched = batch.tables.iter().zip(slots);
        let touched = touched.filter(|(_, slot)| matches!(slot, Slot::Apply));
        for (of, _) in touched {
            let Some(entry) = self.tables.get(&of.table) else { continue };
            entry.state.update(self.connection).map_err(|error| {
                let doing = format!("save the state of {}", entry.state.source);
                classify::error(self.file, &doing, error).on_table(of.table)
            })?;
        }
        Ok(())
    }

    fn malformed(&self) -> DestinationError {
        let message = format!(
            "sqlite file {}: a batch names a table or transaction that it does not hold",
            self.file.display()
        );
        DestinationError::new(DestinationClass::Permanent, message)
    }
}
