//! One table at the simulated destination: the rows of its snapshot, the log of its events, which
//! must never have a hole, and the schema changes between them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use walferry_core::batch::{Batch, ChangeBody, CopyMode, CopyStart, DeliveryClass};
use walferry_core::ids::{Attempt, EventKey, Lane, TableId};
use walferry_core::lsn::Position;
use walferry_core::schema::{Existing, SchemaChange, SchemaStep, TableSchema};

use super::row::{Change, Row, TableEvent, Tuple, Value};
use super::source::Source;
use crate::coverage::reached;

/// All tables of a destination.
pub type Content = BTreeMap<TableId, Target>;
/// Rows as a destination holds them: columns by name.
pub type NamedRows = BTreeMap<u32, BTreeMap<String, Value>>;

/// A target table since its latest `begin_copy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The attempt that made it.
    pub attempt: Attempt,
    /// The stream owns it from here on: the cutoff; of an adopted table its first handover.
    pub from: Position,
    /// Whether its rows were there before (K-18).
    pub adopted: bool,
    /// Shape that `begin_copy` gave it.
    first: Arc<TableSchema>,
    /// Rows of the snapshot by sequence.
    sequences: BTreeMap<u64, Vec<(u32, Tuple)>>,
    /// Whether `finish_copy` took effect.
    pub finished: bool,
    /// Applied events in key order, each once. For `append`: after dedup by key (O-3).
    log: BTreeMap<EventKey, TableEvent>,
    /// What the rows of an adopted table hold of earlier attempts, whatever its watermark says.
    held: BTreeMap<EventKey, TableEvent>,
    /// Events of the log that the present timeline does not have.
    foreign: BTreeSet<EventKey>,
    /// Applied schema changes by their position (DS-17).
    changes: BTreeMap<EventKey, Arc<SchemaChange>>,
}

impl Target {
    /// What `begin_copy` makes of what was there (DS-05).
    #[must_use]
    pub fn begun(start: &CopyStart, before: Option<&Self>) -> Self {
        let adopted = matches!(start.mode, CopyMode::Adopt { .. });
        let keeps = matches!(start.mode, CopyMode::Adopt { previous: Some(_) });
        let kept = before.filter(|_| keeps);
        let mut held = BTreeMap::new();
        // Of a copy that was never handed over the operator vouches for the rows (K-18).
        for before in before.into_iter().filter(|before| adopted && (before.adopted || keeps)) {
            held.extend(before.held.clone());
            let lasting = before.log.iter().filter(|(key, _)| !before.foreign.contains(key));
            held.extend(lasting.map(|(key, event)| (*key, event.clone())));
        }
        Self {
            attempt: start.attempt,
            // Nothing is due before the handover of an adopted table is known.
            from: if adopted { Source::never() } else { start.cutoff },
            adopted,
            first: Arc::clone(&start.schema),
            sequences: BTreeMap::new(),
            finished: adopted,
            log: kept.map(|target| target.log.clone()).unwrap_or_default(),
            held,
            foreign: BTreeSet::new(),
            changes: BTreeMap::new(),
        }
    }

    /// What the rows hold of events that the present timeline does not have.
    pub fn forget_beyond(&mut self, fork: Position) {
        self.held.retain(|key, _| fork.covers(key.commit));
        self.foreign.extend(self.log.keys().filter(|key| !fork.covers(key.commit)));
    }

    /// Rows of one sequence; the same sequence again must hold the same rows (K-I2).
    ///
    /// # Panics
    /// If it does not.
    pub fn write_rows(&mut self, sequence: u64, rows: Vec<(u32, Tuple)>, schema: &TableSchema) {
        assert!(!self.finished, "write_rows after finish_copy (DS-I1)");
        assert_eq!(schema.columns, self.first.columns, "rows of another shape (DS-07)");
        let width = schema.columns.len() - 1;
        assert!(
            rows.iter().all(|(_, tuple)| tuple.len() == width),
            "rows of another width (DS-07)"
        );
        let again = self.sequences.contains_key(&sequence);
        let known = self.sequences.entry(sequence).or_insert_with(|| rows.clone());
        assert_eq!(*known, rows, "sequence {sequence} with other rows (K-I2)");
        reached("DS-07");
        if again {
            reached("K-28");
        }
    }

    /// The end of the snapshot.
    ///
    /// # Panics
    /// If a sequence is missing.
    pub fn finish(&mut self, sequences: u64) {
        let there: Vec<_> = self.sequences.keys().copied().collect();
        assert_eq!(there, (1..=sequences).collect::<Vec<_>>(), "sequences (K-I2)");
        reached("K-I2");
        reached("DS-I1");
        self.finished = true;
    }

    /// The events of one table of a batch, which may have several entries there.
    ///
    /// # Panics
    /// On a hole, or on anything that the contract does not allow.
    pub fn write_changes(
        &mut self,
        batch: &Batch<Row>,
        table: TableId,
        class: DeliveryClass,
        source: &Source,
    ) {
        assert!(self.finished, "write_changes before finish_copy (DS-I1)");
        for change in &batch.changes {
            let Some((index, body)) = indexed(&change.body) else { continue };
            let entry = &batch.tables[index];
            if entry.table != table || entry.attempt != self.attempt {
                continue;
            }
            let commit = batch.transactions[change.transaction as usize].commit;
            let key = EventKey { commit, ordinal: change.ordinal };
            match body {
                ChangeBody::Row { row: Row::Change(row), .. } => {
                    check_shape(table, &entry.schema, row);
                    self.apply(table, key, &TableEvent::Row(row.clone()), class, source);
                }
                ChangeBody::Truncate { .. } => {
                    self.apply(table, key, &TableEvent::Truncate, class, source);
                }
                ChangeBody::Schema { change, .. } => self.change_schema(table, change),
                ChangeBody::Row { row: Row::Block(_), .. } | ChangeBody::Message { .. } => (),
            }
        }
    }

    fn apply(
        &mut self,
        table: TableId,
        key: EventKey,
        event: &TableEvent,
        class: DeliveryClass,
        source: &Source,
    ) {
        assert!(
            self.adopted || !self.from.covers(key.commit),
            "{key:?} of table {table} is in the snapshot {} and was delivered too (H-I1)",
            self.from
        );
        let seen = self.watermark().is_some_and(|watermark| key <= watermark);
        if seen {
            reached("DS-11");
            if class == DeliveryClass::ExactlyOnce {
                reached("O-3");
                return;
            }
            match self.log.get(&key) {
                // An adoption that began later left it out and said so (K-18, O-10).
                None if self.adopted => reached("O-10"),
                known => assert_eq!(known, Some(event), "a replay differs (N-I5)"),
            }
            reached("N-I5");
            return;
        }
        let again = class == DeliveryClass::ExactlyOnce && self.held.get(&key) == Some(event);
        assert!(!again, "{key:?} is applied to adopted table {table} twice (O-3, K-18)");
        let due = self.next_due(table, source);
        assert_eq!(due, Some((key, event)), "hole in table {table} (O-1), or foreign (O-2)");
        self.log.insert(key, event.clone());
    }

    /// Whether the events of a batch that are not there yet are the next ones: what comes late is
    /// let in only then.
    #[must_use]
    pub fn fits(&self, batch: &Batch<Row>, table: TableId, source: &Source) -> bool {
        let mut keys = batch.changes.iter().filter_map(|change| {
            let (index, body) = indexed(&change.body)?;
            let schema = matches!(body, ChangeBody::Schema { .. });
            let commit = batch.transactions[change.transaction as usize].commit;
            let mine = batch.tables[index].table == table && !schema;
            mine.then_some(EventKey { commit, ordinal: change.ordinal })
        });
        let first = keys.find(|key| Some(*key) > self.watermark());
        let due = self.next_due(table, source).map(|(key, _)| key);
        self.finished && (first.is_none() || first == due)
    }

    fn change_schema(&mut self, table: TableId, change: &Arc<SchemaChange>) {
        let newest = self.changes.last_key_value().map(|(&position, _)| position);
        if Some(change.position) <= newest {
            reached("DS-17");
            return;
        }
        let before = self.shape();
        let names = applied_names(&before, &change.steps);
        let wanted: Vec<_> = change.schema.columns.iter().map(|c| c.name.clone()).collect();
        let mut sorted = wanted.clone();
        sorted.sort();
        assert_eq!(names, sorted, "the plan of table {table} does not lead there (D-I4)");
        reached("D-I4");
        self.changes.insert(change.position, Arc::clone(change));
    }

    /// Position of the newest schema change.
    #[must_use]
    pub fn changed_at(&self) -> Option<EventKey> {
        self.changes.last_key_value().map(|(&position, _)| position)
    }

    /// Its shape after everything that was applied.
    #[must_use]
    pub fn shape(&self) -> Arc<TableSchema> {
        let newest = self.changes.last_key_value().map(|(_, change)| &change.schema);
        Arc::clone(newest.unwrap_or(&self.first))
    }

    /// Whether existing rows got a value that nobody knew for certain (D-15).
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.changes.values().flat_map(|change| &change.steps).any(|step| match step {
            SchemaStep::Add { existing, .. } => *existing == Existing::Unknown,
            SchemaStep::Type { .. } => true,
            SchemaStep::Drop { .. }
            | SchemaStep::Rename { .. }
            | SchemaStep::NotNull { .. }
            | SchemaStep::Default { .. }
            | SchemaStep::Key { .. }
            | SchemaStep::RenameTable { .. } => false,
        })
    }

    /// The highest key applied.
    #[must_use]
    pub fn watermark(&self) -> Option<EventKey> {
        self.log.last_key_value().map(|(key, _)| *key)
    }

    /// The first event of the source that has not been applied.
    #[must_use]
    pub fn next_due<'a>(
        &self,
        table: TableId,
        source: &'a Source,
    ) -> Option<(EventKey, &'a TableEvent)> {
        let from = self.watermark().map_or(self.from, |key| self.from.max(Position(key.commit.0)));
        let mut rest = source.history_from(table, from);
        rest.find(|(key, _)| Some(*key) > self.watermark()).map(|(key, event)| (*key, event))
    }

    /// Keys applied from a position on, or below it.
    pub fn keys(&self) -> impl Iterator<Item = EventKey> {
        self.log.keys().copied()
    }

    /// An applied event that the source does not have (O-2, O-6).
    #[must_use]
    pub fn foreign(&self, table: TableId, source: &Source) -> Option<EventKey> {
        let known: BTreeMap<_, _> =
            source.history_from(table, Position::default()).map(|(key, e)| (*key, e)).collect();
        let foreign = |(key, event): (&EventKey, &TableEvent)| {
            (known.get(key) != Some(&event)).then_some(*key)
        };
        self.log.iter().find_map(foreign)
    }

    /// The rows: the snapshot with all events and schema changes, in key order.
    #[must_use]
    pub fn rows(&self) -> NamedRows {
        let mut rows = NamedRows::new();
        for (key, tuple) in self.sequences.values().flatten() {
            rows.insert(*key, named(tuple, &self.first));
        }
        let mut shape = Arc::clone(&self.first);
        let mut changes = self.changes.iter().peekable();
        for (key, event) in &self.log {
            while let Some((_, change)) = changes.next_if(|(position, _)| *position <= key) {
                alter_rows(&mut rows, change);
                shape = Arc::clone(&change.schema);
            }
            match event {
                TableEvent::Truncate => rows.clear(),
                TableEvent::Row(change) => apply_row(&mut rows, change, &shape),
            }
        }
        for (_, change) in changes {
            alter_rows(&mut rows, change);
        }
        rows
    }

    /// The rows of the snapshot alone.
    #[must_use]
    pub fn copied_rows(&self) -> BTreeMap<u32, Tuple> {
        let mut rows = BTreeMap::new();
        for (key, tuple) in self.sequences.values().flatten() {
            let again = rows.insert(*key, Arc::clone(tuple));
            assert_eq!(again, None, "row {key} was copied twice (K-I5)");
        }
        rows
    }

    /// Shape that `begin_copy` gave it.
    #[must_use]
    pub fn copied_shape(&self) -> &TableSchema {
        &self.first
    }
}

pub(super) fn indexed(body: &ChangeBody<Row>) -> Option<(usize, &ChangeBody<Row>)> {
    match body {
        ChangeBody::Row { table, .. }
        | ChangeBody::Truncate { table, .. }
        | ChangeBody::Schema { table, .. } => Some((*table as usize, body)),
        ChangeBody::Message { .. } => None,
    }
}

/// D-I1: the shape that the batch gives a row is the one that it has.
fn check_shape(table: TableId, said: &TableSchema, row: &Change) {
    let columns = |schema: &TableSchema| -> Vec<(String, u32)> {
        schema.columns.iter().map(|c| (c.name.clone(), c.type_oid)).collect()
    };
    let same = core::ptr::eq(said, &*row.shape) || columns(said) == columns(&row.shape);
    assert!(same, "a row of table {table} is decoded as {} (D-I1)", said.shape());
    reached("D-I1");
}

fn named(tuple: &Tuple, shape: &TableSchema) -> BTreeMap<String, Value> {
    let names = shape.columns.iter().skip(1).map(|column| column.name.clone());
    names.zip(tuple.iter().copied()).collect()
}

/// DS-21: a row is mapped by column number, else by name.
fn apply_row(rows: &mut NamedRows, change: &Change, shape: &TableSchema) {
    let Some(new) = &change.new else {
        rows.remove(&change.key);
        return;
    };
    let row = rows.entry(change.key).or_default();
    for (column, value) in change.shape.columns.iter().skip(1).zip(new.iter()) {
        let by_number = shape.columns.iter().find(|c| c.number != 0 && c.number == column.number);
        let target = by_number.or_else(|| shape.columns.iter().find(|c| c.name == column.name));
        if let Some(target) = target {
            row.insert(target.name.clone(), *value);
        }
    }
}

fn alter_rows(rows: &mut NamedRows, change: &SchemaChange) {
    for step in &change.steps {
        for row in rows.values_mut() {
            match step {
                SchemaStep::Drop { column } => drop(row.remove(column)),
                SchemaStep::Rename { from, to } => {
                    if let Some(value) = row.remove(from) {
                        row.insert(to.clone(), value);
                    }
                }
                SchemaStep::Add { column, existing } => {
                    let value = match existing {
                        Existing::Known(text) => text.as_ref().and_then(|t| t.parse().ok()),
                        Existing::Unknown => None,
                    };
                    row.insert(column.name.clone(), value);
                }
                SchemaStep::Type { .. }
                | SchemaStep::NotNull { .. }
                | SchemaStep::Default { .. }
                | SchemaStep::Key { .. }
                | SchemaStep::RenameTable { .. } => (),
            }
        }
    }
}

/// Column names after a plan, sorted; no step may meet a name that is taken or missing (D-I4).
fn applied_names(before: &TableSchema, steps: &[SchemaStep]) -> Vec<String> {
    let mut names: Vec<String> = before.columns.iter().map(|c| c.name.clone()).collect();
    let place = |names: &[String], name: &str| {
        let found = names.iter().position(|known| known == name);
        assert!(found.is_some(), "a step names column {name}, which is not there (D-I4)");
        found.unwrap_or_default()
    };
    let free = |names: &[String], name: &str| {
        assert!(!names.iter().any(|known| known == name), "column {name} collides (D-I4)");
    };
    for step in steps {
        match step {
            SchemaStep::Drop { column } => drop(names.remove(place(&names, column))),
            SchemaStep::Rename { from, to } => {
                free(&names, to);
                let at = place(&names, from);
                names[at].clone_from(to);
            }
            SchemaStep::Add { column, .. } => {
                free(&names, &column.name);
                names.push(column.name.clone());
            }
            SchemaStep::Type { column, .. }
            | SchemaStep::NotNull { column, .. }
            | SchemaStep::Default { column, .. } => {
                place(&names, column);
            }
            SchemaStep::Key { .. } | SchemaStep::RenameTable { .. } => (),
        }
    }
    names.sort();
    names
}

/// Which lane a batch may use for a table that was handed over at `handover`, if it was (H-I1).
///
/// # Panics
/// If an event is on the wrong side of the handover.
pub fn check_owner(batch: &Batch<Row>, handover: impl Fn(TableId) -> Option<Position>) {
    for change in &batch.changes {
        let Some((index, _)) = indexed(&change.body) else { continue };
        let table = batch.tables[index].table;
        let commit = batch.transactions[change.transaction as usize].commit;
        reached("H-I1");
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
