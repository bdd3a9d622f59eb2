//! Rows and changes per second that each destination takes, durable.
//!
//! `cargo bench -p walferry-destinations`
#![allow(clippy::unwrap_used, reason = "a panic ends the benchmark")]

use std::sync::Arc;

use bytes::Bytes;
use divan::Bencher;
use divan::counter::ItemsCount;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use walferry_core::batch::{
    Batch, BatchTable, Change, ChangeBody, CopyBatch, CopyMode, CopyStart, TransactionPart,
};
use walferry_core::event::RowKind;
use walferry_core::ids::{Attempt, Epoch, Lane, TableId};
use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::schema::{Column, ReplicaIdentity, TableSchema};
use walferry_core::wire::{Cell, OldKind, encode};
use walferry_destinations::{Destination, JsonlDestination, NullDestination, SqliteDestination};

const TABLE: TableId = TableId(16_384);
const ROWS: u64 = 500_000;
const ROWS_PER_BATCH: u64 = 50_000;
const CHANGES: u64 = 300_000;

fn main() {
    divan::main();
}

/// `(id int8 primary key, account int4, amount numeric, note text)`
fn schema() -> Arc<TableSchema> {
    let column = |number, name: &str, type_oid| Column {
        number,
        name: name.to_owned(),
        type_oid,
        modifier: -1,
        not_null: true,
        default: None,
        key: number == 1,
    };
    let columns = vec![
        column(1, "id", 20),
        column(2, "account", 23),
        column(3, "amount", 1700),
        column(4, "note", 25),
    ];
    Arc::new(TableSchema {
        table: TABLE,
        namespace: "public".to_owned(),
        name: "payments".to_owned(),
        identity: ReplicaIdentity::Default,
        columns,
        unpublished: Vec::new(),
        storage: None,
    })
}

fn values(id: u64) -> [String; 4] {
    [id.to_string(), (id % 1_000).to_string(), format!("{}.50", id % 977), format!("note {id}")]
}

fn rows() -> Vec<Arc<CopyBatch<Bytes>>> {
    let schema = schema();
    let batch = |sequence: u64| {
        let first = (sequence - 1) * ROWS_PER_BATCH;
        let frames = (first..first + ROWS_PER_BATCH).flat_map(|id| {
            let values = values(id);
            encode::copy_row(&values.each_ref().map(|text| Some(text.as_bytes())))
        });
        let block: Vec<u8> = frames.collect();
        Arc::new(CopyBatch {
            table: TABLE,
            attempt: Attempt(1),
            epoch: Epoch(1),
            sequence,
            schema: Arc::clone(&schema),
            bytes: block.len() as u64,
            blocks: vec![block.into()],
            rows: ROWS_PER_BATCH,
        })
    };
    (1..=ROWS / ROWS_PER_BATCH).map(batch).collect()
}

/// Half updates, the rest inserts and deletes, 100 in a transaction.
fn changes(per_batch: usize) -> Vec<Arc<Batch<Bytes>>> {
    let schema = schema();
    let row = |number: u64| {
        let id = number / 4 + 1;
        let new = values(id);
        let new = new.each_ref().map(|text| Cell::Text(text.as_bytes()));
        let old = (number / 4).to_string();
        match number % 4 {
            0 => (RowKind::Insert, encode::row(None, Some(&new))),
            1 | 2 => (RowKind::Update, encode::row(None, Some(&new))),
            _ if id.is_multiple_of(2) => {
                let old = [Cell::Text(old.as_bytes()), Cell::Null, Cell::Null, Cell::Null];
                (RowKind::Delete, encode::row(Some((OldKind::Key, &old)), None))
            }
            _ => (RowKind::Update, encode::row(None, Some(&new))),
        }
    };
    let numbers: Vec<u64> = (0..CHANGES).collect();
    let batch = |numbers: &[u64]| {
        let mut transactions: Vec<TransactionPart> = Vec::new();
        let mut changes = Vec::new();
        for &number in numbers {
            let commit = CommitLsn(Lsn((number / 100 + 1) * 1_000));
            if transactions.last().is_none_or(|part| part.commit != commit) {
                let end = Some(Position(Lsn(commit.0.0 + 500)));
                transactions.push(TransactionPart { commit, time_us: 0, begins: true, end });
            }
            let (kind, row) = row(number);
            let transaction = u32::try_from(transactions.len() - 1).unwrap();
            let body = ChangeBody::Row { table: 0, kind, row: row.into() };
            changes.push(Change { transaction, ordinal: number % 100, body });
        }
        let tables =
            vec![BatchTable { table: TABLE, attempt: Attempt(1), schema: Arc::clone(&schema) }];
        let (lane, epoch) = (Lane::Main, Epoch(1));
        Arc::new(Batch { lane, epoch, tables, transactions, changes, bytes: 0 })
    };
    numbers.chunks(per_batch).map(batch).collect()
}

struct Bench<D> {
    runtime: Runtime,
    destination: D,
    _folder: TempDir,
}

/// A destination that is ready for the table's rows.
fn ready<D: Destination>(open: impl Fn(&TempDir) -> D) -> Bench<D> {
    let folder = tempfile::tempdir().unwrap();
    let destination = open(&folder);
    let runtime = Builder::new_current_thread().build().unwrap();
    let start = CopyStart {
        table: TABLE,
        attempt: Attempt(1),
        epoch: Epoch(1),
        mode: CopyMode::Fresh,
        schema: schema(),
        cutoff: Position(Lsn(1)),
    };
    runtime.block_on(async {
        destination.startup("bench", Epoch(1)).await.unwrap();
        destination.begin_copy(start).await.unwrap();
    });
    Bench { runtime, destination, _folder: folder }
}

fn copy<D: Destination>(bencher: Bencher<'_, '_>, open: impl Fn(&TempDir) -> D) {
    let batches = rows();
    bencher.counter(ItemsCount::new(ROWS)).with_inputs(|| ready(&open)).bench_local_values(|run| {
        run.runtime.block_on(async {
            for batch in &batches {
                run.destination.write_rows(Arc::clone(batch)).await.unwrap();
            }
            run.destination.flush(Lane::Table(TABLE)).await.unwrap();
        });
        run
    });
}

fn stream<D: Destination>(
    bencher: Bencher<'_, '_>,
    per_batch: usize,
    open: impl Fn(&TempDir) -> D,
) {
    let batches = changes(per_batch);
    let bencher = bencher.counter(ItemsCount::new(CHANGES));
    bencher.with_inputs(|| ready(&open)).bench_local_values(|run| {
        run.runtime.block_on(async {
            for batch in &batches {
                run.destination.write_changes(Arc::clone(batch)).await.unwrap();
            }
            run.destination.flush(Lane::Main).await.unwrap();
        });
        run
    });
}

fn sqlite(folder: &TempDir) -> SqliteDestination {
    SqliteDestination::new(folder.path().join("bench.db"))
}

fn jsonl(folder: &TempDir) -> JsonlDestination {
    JsonlDestination::file(folder.path().join("bench.jsonl"))
}

fn null(_folder: &TempDir) -> NullDestination {
    NullDestination::new()
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn sqlite_copy(bencher: Bencher<'_, '_>) {
    copy(bencher, sqlite);
}

#[divan::bench(sample_count = 5, sample_size = 1, args = [100, 1_000, 20_000])]
fn sqlite_changes(bencher: Bencher<'_, '_>, per_batch: usize) {
    stream(bencher, per_batch, sqlite);
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn jsonl_copy(bencher: Bencher<'_, '_>) {
    copy(bencher, jsonl);
}

#[divan::bench(sample_count = 5, sample_size = 1, args = [1_000, 20_000])]
fn jsonl_changes(bencher: Bencher<'_, '_>, per_batch: usize) {
    stream(bencher, per_batch, jsonl);
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn null_copy(bencher: Bencher<'_, '_>) {
    copy(bencher, null);
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn null_changes(bencher: Bencher<'_, '_>) {
    stream(bencher, 20_000, null);
}
