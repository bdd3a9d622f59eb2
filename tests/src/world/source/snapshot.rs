//! Exported snapshots, their readers and the rewrite effect (PG-01, PG-26, PG-27, PG-41).

use std::collections::BTreeSet;

use walferry_core::ids::{Attempt, StreamId, TableId};
use walferry_core::lsn::Position;
use walferry_core::schema::TableSchema;
use walferry_core::source::{BlockRange, HeapFacts, ReaderFacts, SnapshotFacts};

use super::{Refusal, Source, server_error};
use crate::world::row::{Tuple, tuple};

/// Blocks of every simulated heap: ranges that are cut elsewhere read the same rows.
const BLOCKS: u32 = 4;

/// An exported snapshot.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Where it stands.
    pub cutoff: Position,
    /// The copy slot that made it.
    pub slot: String,
    /// Whether the exporting session lives, so that readers can still import it (PG-26).
    pub exported: bool,
    /// Readers that have imported it.
    pub readers: BTreeSet<u32>,
}

impl Source {
    /// Answer to `OpenSnapshot`.
    ///
    /// # Errors
    /// The slot cannot be made.
    pub fn open_snapshot(
        &mut self,
        table: TableId,
        attempt: Attempt,
        slot: &str,
        failover: bool,
    ) -> Result<SnapshotFacts, Refusal> {
        if failover {
            // K-05: what an attempt before left behind.
            self.drop_slot(slot)?;
        }
        let made = self.create_slot(slot, !failover, failover)?;
        let snapshot = Snapshot {
            cutoff: made.consistent,
            slot: slot.to_owned(),
            exported: true,
            readers: BTreeSet::new(),
        };
        self.snapshots.insert((table, attempt), snapshot);
        Ok(SnapshotFacts { seen: self.seen(), slot: made })
    }

    /// Whether a reader's lock has to wait for a transaction (PG-41).
    #[must_use]
    pub fn lock_waits(&self, table: TableId) -> bool {
        self.open.values().any(|open| open.holds(table))
    }

    /// Answer to `OpenReader`: the first one locks the table and tells the guard facts.
    ///
    /// # Errors
    /// The snapshot is gone, or the table is.
    pub fn open_reader(
        &mut self,
        table: TableId,
        attempt: Attempt,
        reader: u32,
    ) -> Result<ReaderFacts, Refusal> {
        let (seen, published, head) = (self.seen(), self.shows(table), Self::never());
        let snapshot = self.snapshots.get_mut(&(table, attempt)).filter(|s| s.exported);
        let Some(snapshot) = snapshot else {
            // 18 says it with another code (K-10).
            let code = if self.version < 180_000 { *b"22023" } else { *b"42704" };
            return Err(server_error(code));
        };
        snapshot.readers.insert(reader);
        if reader > 0 {
            return Ok(ReaderFacts { seen, published, filter: None, heaps: Vec::new() });
        }
        let Some(found) = self.tables.get_mut(&table).filter(|table| !table.dropped) else {
            return Err(server_error(*b"42P01"));
        };
        found.locked_by = Some(attempt);
        let cutoff = snapshot.cutoff;
        let heap = HeapFacts {
            relation: table,
            filenode_in_snapshot: found.file_at(cutoff),
            filenode_now: found.file_at(head),
            columns_in_snapshot: found.guard_columns(cutoff),
            columns_now: found.guard_columns(head),
            bytes: 8_192,
            blocks: BLOCKS,
        };
        Ok(ReaderFacts { seen, published, filter: None, heaps: vec![heap] })
    }

    /// Where the snapshot of a living attempt stands.
    #[must_use]
    pub fn cutoff(&self, table: TableId, attempt: Attempt) -> Option<Position> {
        self.snapshots.get(&(table, attempt)).map(|snapshot| snapshot.cutoff)
    }

    /// Answer to `ReadSchema`: in the snapshot, or in the catalog as it is for an adopted table.
    ///
    /// # Errors
    /// The table is gone.
    pub fn read_schema(&self, table: TableId, attempt: Attempt) -> Result<TableSchema, Refusal> {
        let cutoff = self.cutoff(table, attempt).unwrap_or(Self::never());
        let found = self.tables.get(&table).filter(|table| !table.dropped);
        let found = found.ok_or_else(|| server_error(*b"42P01"))?;
        let mut schema = (*found.shape_at(cutoff)).clone();
        schema.storage = Some(u64::from(found.file_at(cutoff)));
        Ok(schema)
    }

    /// The rows of a range. A table that was rewritten behind the cutoff looks empty (PG-27).
    ///
    /// # Errors
    /// The reader's connection is gone.
    pub fn read_range(
        &self,
        table: TableId,
        attempt: Attempt,
        reader: u32,
        range: BlockRange,
        schema: &TableSchema,
    ) -> Result<Vec<(u32, Tuple)>, Refusal> {
        let snapshot = self.snapshots.get(&(table, attempt));
        let Some(snapshot) = snapshot.filter(|snapshot| snapshot.readers.contains(&reader)) else {
            return Err(Refusal::Transport);
        };
        let found = self.tables.get(&table).ok_or_else(|| server_error(*b"42P01"))?;
        if found.file_at(snapshot.cutoff) != found.file_at(Self::never()) {
            return Ok(Vec::new());
        }
        let inside = |key: u32| {
            let block = key % BLOCKS;
            block >= range.first && range.end.is_none_or(|end| block < end)
        };
        let rows = found.rows_at(snapshot.cutoff).into_iter().filter(|(key, _)| inside(*key));
        Ok(rows.map(|(key, cells)| (key, tuple(&cells, schema))).collect())
    }

    /// Ends the sessions of one attempt; a temporary slot goes with them.
    pub fn close_copy(&mut self, table: TableId, attempt: Attempt) {
        let snapshot = self.snapshots.remove(&(table, attempt));
        self.unlock(table, attempt);
        self.senders.remove(&StreamId::Copy(table));
        if let Some(snapshot) = snapshot {
            self.slots.retain(|name, slot| *name != snapshot.slot || !slot.temporary);
        }
    }

    /// The exporting connection of an attempt is lost; readers that have imported go on (PG-26).
    pub fn lose_exporter(&mut self, table: TableId, attempt: Attempt) {
        if let Some(snapshot) = self.snapshots.get_mut(&(table, attempt)) {
            snapshot.exported = false;
            let temporary = self.slots.get(&snapshot.slot).is_some_and(|slot| slot.temporary);
            if temporary {
                self.slots.remove(&snapshot.slot);
            }
        }
        self.senders.remove(&StreamId::Copy(table));
    }

    /// A reader's connection is lost, and the first one's lock with it.
    /// Whether there was one.
    pub fn lose_reader(&mut self, table: TableId, attempt: Attempt, reader: u32) -> bool {
        let snapshot = self.snapshots.get_mut(&(table, attempt));
        let there = snapshot.is_some_and(|snapshot| snapshot.readers.remove(&reader));
        if reader == 0 {
            self.unlock(table, attempt);
        }
        there
    }

    /// Ends the readers of one attempt.
    pub fn unlock(&mut self, table: TableId, attempt: Attempt) {
        if let Some(table) = self.tables.get_mut(&table)
            && table.locked_by == Some(attempt)
        {
            table.locked_by = None;
        }
    }
}
