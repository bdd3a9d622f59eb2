//! The contract tests can fail: each finds a destination that breaks its rule.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a panic is how a test fails"
)]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use common::Sqlite;
use walferry_core::batch::{
    Batch, ChangeBody, CopyBatch, CopyMode, CopyStart, Declaration, Durability,
};
use walferry_core::event::RowKind;
use walferry_core::ids::{Attempt, Epoch, EventKey, Lane, TableId};
use walferry_core::lsn::{CommitLsn, Lsn};
use walferry_core::schema::TableSchema;
use walferry_core::wire::{Cell, RowView, encode};
use walferry_destinations::kit::{Case, Row, Subject, check};
use walferry_destinations::{Destination, DestinationError, SqliteDestination};

/// What a mutant does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Nothing.
    None,
    /// Takes each call for news: keys and sequences do not identify anything.
    NoWatermark,
    /// One watermark for all tables.
    GlobalWatermark,
    /// Takes a late call for one of the present attempt.
    IgnoresAttempt,
    /// Takes a call of an older run for one of the present run.
    IgnoresEpoch,
    /// Forgets the copied sequences.
    NoSequences,
    /// Answers Durable and writes one call later.
    DurableTooEarly,
    /// Drops old rows of updates.
    DropsOldKeys,
    /// Writes NULL for an unchanged value.
    NullForUnchanged,
    /// Does not empty tables.
    IgnoresTruncates,
    /// Makes the table with its first row.
    LazyTable,
    /// Keeps the rows of earlier attempts.
    KeepsRows,
    /// Empties what it should adopt.
    CopiesAdopted,
    /// Forgets at an adoption which events the rows hold.
    ForgetsAdopted,
    /// Takes whatever it finds for its own.
    NeverRefuses,
    /// Applies inserts before deletes.
    Reorders,
    /// A flush counts for the next one too.
    FlushesOneLane,
    /// Does not say which table is at fault.
    Anonymous,
}

/// Grows over crashes, so that nothing is known again.
static NEWS: AtomicU64 = AtomicU64::new(0);

struct Mutated(Sqlite, Fault);

struct Mutant {
    inner: SqliteDestination,
    fault: Fault,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    epoch: Epoch,
    attempts: BTreeMap<TableId, Attempt>,
    news: u64,
    highest: Option<EventKey>,
    late: Option<Arc<Batch<Bytes>>>,
}

impl Subject for Mutated {
    type Destination = Mutant;

    fn open(&self) -> Mutant {
        Mutant { inner: self.0.open(), fault: self.1, state: Mutex::default() }
    }

    fn read(&self, schema: &TableSchema) -> Option<Vec<Row>> {
        self.0.read(schema)
    }

    fn plant(&self, schema: &TableSchema) -> Option<Row> {
        self.0.plant(schema)
    }
}

impl Mutant {
    fn state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn mutate(&self, batch: &mut Batch<Bytes>) {
        match self.fault {
            Fault::NoWatermark => {
                let shift = NEWS.fetch_add(0x10_0000, Ordering::Relaxed);
                for part in &mut batch.transactions {
                    part.commit = CommitLsn(Lsn(part.commit.0.0 + shift));
                }
            }
            Fault::GlobalWatermark => self.state(|state| {
                let parts = batch.transactions.clone();
                let key = |change: &walferry_core::batch::Change<Bytes>| EventKey {
                    commit: parts[change.transaction as usize].commit,
                    ordinal: change.ordinal,
                };
                batch.changes.retain(|change| state.highest.is_none_or(|high| key(change) > high));
                state.highest = batch.changes.last().map(key).or(state.highest);
            }),
            Fault::IgnoresEpoch => batch.epoch = Epoch(u64::MAX),
            Fault::IgnoresAttempt => self.state(|state| {
                for of in &mut batch.tables {
                    of.attempt = state.attempts.get(&of.table).copied().unwrap_or(of.attempt);
                }
            }),
            Fault::DropsOldKeys => rewrite(batch, |kind, row| {
                let view = RowView::parse(kind, row).unwrap();
                match (kind, view.new) {
                    (RowKind::Update, Some(new)) => {
                        encode::row(None, Some(&new.cells().collect::<Vec<_>>())).into()
                    }
                    _ => row.clone(),
                }
            }),
            Fault::NullForUnchanged => rewrite(batch, |kind, row| {
                let view = RowView::parse(kind, row).unwrap();
                let cells = |tuple: walferry_core::wire::Tuple<'_>| {
                    tuple.cells().map(Cell::to_owned_null).collect::<Vec<_>>()
                };
                let old = view.old.map(|(kind, tuple)| (kind, cells(tuple)));
                let old = old.as_ref().map(|(kind, cells)| {
                    (*kind, cells.iter().map(NullCell::cell).collect::<Vec<_>>())
                });
                let new = view.new.map(cells);
                let new = new.as_ref().map(|c| c.iter().map(NullCell::cell).collect::<Vec<_>>());
                encode::row(old.as_ref().map(|(k, c)| (*k, c.as_slice())), new.as_deref()).into()
            }),
            Fault::IgnoresTruncates => {
                batch.changes.retain(|change| !matches!(change.body, ChangeBody::Truncate { .. }));
            }
            Fault::Reorders => batch.changes.sort_by_key(|change| {
                !matches!(change.body, ChangeBody::Row { kind: RowKind::Insert, .. })
            }),
            _ => {}
        }
    }
}

/// A cell with its own bytes, `Unchanged` turned into NULL.
struct NullCell(Option<Vec<u8>>);

trait ToOwnedNull {
    fn to_owned_null(self) -> NullCell;
}

impl ToOwnedNull for Cell<'_> {
    fn to_owned_null(self) -> NullCell {
        match self {
            Cell::Text(text) | Cell::Binary(text) => NullCell(Some(text.to_vec())),
            Cell::Null | Cell::Unchanged => NullCell(None),
        }
    }
}

impl NullCell {
    fn cell(&self) -> Cell<'_> {
        self.0.as_deref().map_or(Cell::Null, Cell::Text)
    }
}

fn rewrite(batch: &mut Batch<Bytes>, change: impl Fn(RowKind, &Bytes) -> Bytes) {
    for event in &mut batch.changes {
        if let ChangeBody::Row { kind, row, .. } = &mut event.body {
            *row = change(*kind, row);
        }
    }
}

impl Destination for Mutant {
    fn declare(&self) -> Declaration {
        self.inner.declare()
    }

    async fn startup(&self, pipeline: &str, epoch: Epoch) -> Result<(), DestinationError> {
        self.state(|state| state.epoch = epoch);
        self.inner.startup(pipeline, epoch).await
    }

    async fn begin_copy(&self, start: CopyStart) -> Result<(), DestinationError> {
        self.state(|state| state.attempts.insert(start.table, start.attempt));
        match (self.fault, start.mode) {
            (Fault::LazyTable, _) => Ok(()),
            (Fault::KeepsRows, CopyMode::Recopy { .. }) => Ok(()),
            (Fault::CopiesAdopted, CopyMode::Adopt { previous: Some(previous) }) => {
                let mode = CopyMode::Recopy { previous };
                self.inner.begin_copy(CopyStart { mode, ..start }).await
            }
            (Fault::ForgetsAdopted, CopyMode::Adopt { .. }) => {
                let mode = CopyMode::Adopt { previous: None };
                self.inner.begin_copy(CopyStart { mode, ..start }).await
            }
            (Fault::NeverRefuses, _) => {
                drop(self.inner.begin_copy(start).await);
                Ok(())
            }
            _ => self.inner.begin_copy(start).await,
        }
    }

    async fn write_rows(
        &self,
        batch: Arc<CopyBatch<Bytes>>,
    ) -> Result<Durability, DestinationError> {
        let mut batch = CopyBatch::clone(&batch);
        match self.fault {
            Fault::NoSequences => self.state(|state| {
                state.news += 1;
                batch.sequence = state.news;
            }),
            Fault::IgnoresAttempt => self.state(|state| {
                let present = state.attempts[&batch.table];
                if batch.attempt != present {
                    (batch.attempt, batch.sequence) = (present, batch.sequence + 100);
                }
            }),
            Fault::KeepsRows if batch.attempt > Attempt(1) => return Ok(Durability::Durable),
            _ => {}
        }
        self.inner.write_rows(Arc::new(batch)).await
    }

    async fn finish_copy(
        &self,
        table: TableId,
        attempt: Attempt,
        epoch: Epoch,
        sequences: u64,
    ) -> Result<Durability, DestinationError> {
        match self.fault {
            Fault::LazyTable | Fault::NoSequences => Ok(Durability::Durable),
            Fault::KeepsRows if attempt > Attempt(1) => Ok(Durability::Durable),
            _ => self.inner.finish_copy(table, attempt, epoch, sequences).await,
        }
    }

    async fn write_changes(
        &self,
        batch: Arc<Batch<Bytes>>,
    ) -> Result<Durability, DestinationError> {
        let mut mutated = Batch::clone(&batch);
        self.mutate(&mut mutated);
        match self.fault {
            Fault::DurableTooEarly => {
                let late = self.state(|state| state.late.replace(batch));
                match late {
                    Some(late) => self.inner.write_changes(late).await,
                    None => Ok(Durability::Durable),
                }
            }
            Fault::FlushesOneLane if matches!(batch.lane, Lane::Main) => {
                self.state(|state| state.late = Some(batch));
                Ok(Durability::Accepted)
            }
            Fault::Anonymous => {
                self.inner.write_changes(Arc::new(mutated)).await.map_err(|mut error| {
                    error.tables.clear();
                    error
                })
            }
            _ => self.inner.write_changes(Arc::new(mutated)).await,
        }
    }

    async fn flush(&self, lane: Lane) -> Result<(), DestinationError> {
        self.inner.flush(lane).await
    }

    async fn shutdown(&self) -> Result<(), DestinationError> {
        self.inner.shutdown().await
    }
}

#[tokio::test]
async fn every_case_finds_its_mutant() {
    let mutants = [
        (Case::Ct01, Fault::NoWatermark),
        (Case::Ct02, Fault::NoWatermark),
        (Case::Ct03, Fault::NoWatermark),
        (Case::Ct04, Fault::NoSequences),
        (Case::Ct05, Fault::DurableTooEarly),
        (Case::Ct06, Fault::DropsOldKeys),
        (Case::Ct07, Fault::NullForUnchanged),
        (Case::Ct08, Fault::IgnoresTruncates),
        (Case::Ct10, Fault::LazyTable),
        (Case::Ct11, Fault::KeepsRows),
        (Case::Ct12, Fault::NeverRefuses),
        (Case::Ct12, Fault::CopiesAdopted),
        (Case::Ct12, Fault::ForgetsAdopted),
        (Case::Ct13, Fault::IgnoresAttempt),
        (Case::Ct13, Fault::IgnoresEpoch),
        (Case::Ct14, Fault::GlobalWatermark),
        (Case::Ct15, Fault::DurableTooEarly),
        (Case::Ct16, Fault::Reorders),
        (Case::Ct17, Fault::FlushesOneLane),
        (Case::Ct18, Fault::Anonymous),
    ];
    for case in Case::ALL {
        assert!(mutants.iter().any(|(mutated, _)| *mutated == case), "{case:?}");
    }
    for (case, fault) in mutants {
        let healthy = check(case, &Mutated(Sqlite::new(), Fault::None)).await;
        assert_eq!(healthy, Ok(()), "{case:?}");
        let Err(failure) = check(case, &Mutated(Sqlite::new(), fault)).await else {
            panic!("{case:?} does not find {fault:?}");
        };
        println!("{case:?} finds {fault:?}: {failure}");
    }
}
