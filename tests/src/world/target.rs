//! One table at the simulated destination: the rows of its snapshot and the log of its events,
//! which must never have a hole.

use std::collections::BTreeMap;

use walferry_core::batch::{Batch, ChangeBody, DeliveryClass};
use walferry_core::ids::{Attempt, EventKey, Lane, TableId};
use walferry_core::lsn::Position;

use super::row::{Row, Rows, TableEvent};
use super::source::Source;

/// All tables of a destination.
pub type Content = BTreeMap<TableId, Target>;

/// A target table since its latest `begin_copy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The attempt that made it.
    pub attempt: Attempt,
    /// Where its snapshot stands.
    pub cutoff: Position,
    /// Rows of the snapshot by sequence.
    sequences: BTreeMap<u64, Vec<(u32, u32)>>,
    /// Whether `finish_copy` took effect.
    pub finished: bool,
    /// Applied events in key order, each once. For `append`: after dedup by key (O-3).
    log: BTreeMap<EventKey, TableEvent>,
}

impl Target {
    /// An empty target.
    #[must_use]
    pub const fn new(attempt: Attempt, cutoff: Position) -> Self {
        Self { attempt, cutoff, sequences: BTreeMap::new(), finished: false, log: BTreeMap::new() }
    }

    /// Rows of one sequence; the same sequence again must hold the same rows (K-I2).
    pub fn write_rows(&mut self, sequence: u64, rows: Vec<(u32, u32)>) {
        assert!(!self.finished, "write_rows after finish_copy (DS-I1)");
        let known = self.sequences.entry(sequence).or_insert_with(|| rows.clone());
        assert_eq!(*known, rows, "sequence {sequence} with other rows (K-I2)");
    }

    /// The end of the snapshot.
    pub fn finish(&mut self, sequences: u64) {
        let there: Vec<_> = self.sequences.keys().copied().collect();
        assert_eq!(there, (1..=sequences).collect::<Vec<_>>(), "sequences (K-I2)");
        self.finished = true;
    }

    /// The events of one table of a batch.
    pub fn write_changes(
        &mut self,
        batch: &Batch<Row>,
        index: usize,
        class: DeliveryClass,
        source: &Source,
    ) {
        assert!(self.finished, "write_changes before finish_copy (DS-I1)");
        let table = batch.tables[index].table;
        for change in &batch.changes {
            let (found, event) = match &change.body {
                ChangeBody::Row { table, row: Row::Change(row), .. } => {
                    (*table, TableEvent::Row(*row))
                }
                ChangeBody::Truncate { table, .. } => (*table, TableEvent::Truncate),
                ChangeBody::Row { row: Row::Block(_), .. }
                | ChangeBody::Schema { .. }
                | ChangeBody::Message { .. } => continue,
            };
            if usize::try_from(found) != Ok(index) {
                continue;
            }
            let commit = batch.transactions[change.transaction as usize].commit;
            let key = EventKey { commit, ordinal: change.ordinal };
            self.apply(table, key, event, class, source);
        }
    }

    fn apply(
        &mut self,
        table: TableId,
        key: EventKey,
        event: TableEvent,
        class: DeliveryClass,
        source: &Source,
    ) {
        assert!(
            !self.cutoff.covers(key.commit),
            "{key:?} of table {table} is in the snapshot {} and was delivered too (H-I1)",
            self.cutoff
        );
        let seen = self.watermark().is_some_and(|watermark| key <= watermark);
        if seen && class == DeliveryClass::ExactlyOnce {
            return;
        }
        if seen {
            assert_eq!(self.log.get(&key), Some(&event), "a replay differs (N-I5)");
            return;
        }
        let due = self.next_due(table, source);
        assert_eq!(due, Some((key, event)), "hole in table {table} (O-1)");
        self.log.insert(key, event);
    }

    /// The highest key applied.
    #[must_use]
    pub fn watermark(&self) -> Option<EventKey> {
        self.log.last_key_value().map(|(key, _)| *key)
    }

    /// The first event of the source that has not been applied.
    #[must_use]
    pub fn next_due(&self, table: TableId, source: &Source) -> Option<(EventKey, TableEvent)> {
        let watermark = self.watermark();
        source.history_from(table, self.cutoff).find(|(key, _)| Some(*key) > watermark).copied()
    }

    /// Keys applied from a position on, or below it.
    pub fn keys(&self) -> impl Iterator<Item = EventKey> {
        self.log.keys().copied()
    }

    /// The rows: the snapshot with all events.
    #[must_use]
    pub fn rows(&self) -> Rows {
        let mut rows: Rows = self.sequences.values().flatten().copied().collect();
        for (key, event) in &self.log {
            event.apply(&mut rows, *key);
        }
        rows
    }

    /// The rows of the snapshot alone.
    #[must_use]
    pub fn copied_rows(&self) -> Rows {
        self.sequences.values().flatten().copied().collect()
    }
}

/// Which lane a batch may use for a table that was handed over at `handover`, if it was (H-I1).
///
/// # Panics
/// If an event is on the wrong side of the handover.
pub fn check_owner(batch: &Batch<Row>, handover: impl Fn(TableId) -> Option<Position>) {
    for change in &batch.changes {
        let (ChangeBody::Row { table, .. } | ChangeBody::Truncate { table, .. }) = &change.body
        else {
            continue;
        };
        let table = batch.tables[*table as usize].table;
        let commit = batch.transactions[change.transaction as usize].commit;
        match (batch.lane, handover(table)) {
            (Lane::Main, Some(at)) => {
                assert!(!at.covers(commit), "main passes {commit} of {table} below {at} (H-I1)");
            }
            (Lane::Main, None) => panic!("main passes {commit} of {table} without handover (J-01)"),
            (Lane::Table(lane), None) => assert_eq!(lane, table, "a foreign table on its lane"),
            (Lane::Table(_), Some(at)) => {
                panic!("private delivery of {commit} of {table} after its handover {at} (H-I1)")
            }
        }
    }
}
