//! What a change and a copied row cost before anyone decides about them.
//!
//! `cargo bench -p walferry-core --bench decode`. It prints allocations where there are any; there
//! are none.

use bytes::Bytes;
use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher, black_box};
use walferry_core::event::{Event, RowKind};
use walferry_core::ids::TableId;
use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::schema::{Relation, RelationColumn, ReplicaIdentity};
use walferry_core::wire::{
    Cell, CopyRow, CopyRows, Limits, Message, RowView, StreamDecoder, count_copy_rows, encode,
};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

const ROWS: usize = 1_000;
const LIMIT: usize = 1 << 30;
const CELLS: [Cell<'static>; 4] = [
    Cell::Text(b"1234567"),
    Cell::Text(b"2026-12-01 10:00:00+00"),
    Cell::Null,
    Cell::Text(b"a note of some forty characters, as usual"),
];

fn main() {
    divan::main();
}

fn relation(table: TableId) -> Relation {
    let column = |index: usize| RelationColumn {
        key: index == 0,
        name: format!("column_{index}"),
        type_oid: 25,
        modifier: -1,
    };
    Relation {
        table,
        namespace: "public".to_owned(),
        name: "events".to_owned(),
        identity: ReplicaIdentity::Default,
        columns: (0..CELLS.len()).map(column).collect(),
    }
}

/// A decoder inside a transaction that has announced `tables`, and a chunk of rows of them in turn.
fn inserts(tables: u32) -> (StreamDecoder, Bytes) {
    let mut decoder = StreamDecoder::new(Position::default(), Limits::default());
    let mut head = vec![Message::Begin { commit: CommitLsn(Lsn(9)), time_us: 0, xid: 1 }];
    head.extend((0..tables).map(|table| Message::Relation(relation(TableId(table)))));
    let decoded = decoder.decode(&encode::stream(&head).into(), &mut Vec::new());
    assert!(decoded.is_ok() && decoder.in_transaction());
    let insert = |table| encode::xlog_data(Lsn::ZERO, &encode::insert(TableId(table), &CELLS));
    let chunk: Vec<u8> = (0..tables).cycle().take(ROWS).flat_map(insert).collect();
    (decoder, Bytes::from(chunk))
}

#[divan::bench(args = [1, 2, 100])]
fn events(bencher: Bencher<'_, '_>, tables: u32) {
    let (mut decoder, chunk) = inserts(tables);
    let mut events = Vec::with_capacity(ROWS);
    bencher.counter(ItemsCount::new(ROWS)).bench_local(move || {
        events.clear();
        assert!(decoder.decode(black_box(&chunk), &mut events).is_ok());
        events.len()
    });
}

#[divan::bench]
fn row_cells(bencher: Bencher<'_, '_>) {
    let (mut decoder, chunk) = inserts(1);
    let mut events = Vec::new();
    assert!(decoder.decode(&chunk, &mut events).is_ok());
    bencher
        .counter(ItemsCount::new(ROWS))
        .bench_local(|| black_box(&events).iter().map(cells).sum::<usize>());
}

fn cells(event: &Event<Bytes>) -> usize {
    let Event::Row { row, .. } = event else { return 0 };
    let view = RowView::parse(RowKind::Insert, row).ok().and_then(|view| view.new);
    view.into_iter()
        .flatten()
        .map(|cell| match cell {
            Cell::Null | Cell::Unchanged => 0,
            Cell::Text(value) | Cell::Binary(value) => value.len(),
        })
        .sum()
}

fn block(cells: &[Option<&[u8]>]) -> Vec<u8> {
    encode::copy_row(cells).repeat(ROWS)
}

fn narrow() -> Vec<u8> {
    block(&[Some(b"1234567"), Some(b"17"), None, Some(b"2026-12-01 10:00:00+00")])
}

fn accounts() -> Vec<u8> {
    block(&[Some(b"1234567"), Some(b"17"), Some(b"0"), Some(&[b' '; 84])])
}

fn escaped() -> Vec<u8> {
    block(&[Some(b"1234567"), Some(b"a\nb"), Some(b"c:\\x"), Some(b"a\ttab and some more text")])
}

#[divan::bench]
fn copy_count(bencher: Bencher<'_, '_>) {
    let block = narrow();
    bencher
        .counter(ItemsCount::new(ROWS))
        .bench_local(|| count_copy_rows(black_box(&block), LIMIT).map(|run| run.rows).ok());
}

#[divan::bench(args = ["narrow", "accounts", "escaped"])]
fn copy_cells(bencher: Bencher<'_, '_>, shape: &str) {
    let block = match shape {
        "narrow" => narrow(),
        "accounts" => accounts(),
        _ => escaped(),
    };
    let mut scratch = Vec::with_capacity(64);
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| {
        let rows = CopyRows::new(black_box(&block), LIMIT).flatten();
        rows.map(|row| values(row, &mut scratch)).sum::<usize>()
    });
}

fn values(row: CopyRow<'_>, scratch: &mut Vec<u8>) -> usize {
    let mut bytes = 0;
    for cell in row.cells(4).flatten() {
        bytes += cell.value(scratch).ok().flatten().map_or(0, <[u8]>::len);
    }
    bytes
}
