//! A stream that PostgreSQL 15.18 sent, as the facts of the specification have it.
//!
//! The messages are from `pg_logical_slot_get_binary_changes` with protocol 1 and messages on; the
//! frames around them are ours. The publication has `t` (an enum column), `f` (identity full), `rf`
//! (row filter `id > 100`, a TOASTed column) and `zero` (no column).
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use walferry_core::event::{Event, RowKind};
use walferry_core::lsn::{Lsn, Position};
use walferry_core::wire::{Cell, Limits, OldKind, RowView, Stop, StreamDecoder};

/// The consistent point of the slot.
const START: Position = Position(Lsn(0x0154_0670));

fn events() -> Vec<Event<Bytes>> {
    // The first byte is for the fuzz target.
    let stream = &include_bytes!("../../../fuzz/corpus/frames/postgres_15_18")[1..];
    let mut decoder = StreamDecoder::new(START, Limits::default());
    let mut events = Vec::new();
    let progress = decoder.decode(&Bytes::from_static(stream), &mut events).unwrap();
    assert_eq!((progress.consumed, progress.stop), (stream.len(), Stop::NeedBytes));
    assert!(!decoder.in_transaction());
    events
}

/// The rows of one kind, in order.
fn rows(events: &[Event<Bytes>], wanted: RowKind) -> Vec<RowView<'_>> {
    let row = |event| match event {
        &Event::Row { kind, ref row, .. } if kind == wanted => Some(row),
        Event::Row { .. }
        | Event::Begin { .. }
        | Event::Relation(_)
        | Event::Ddl(_)
        | Event::Truncate { .. }
        | Event::Message { .. }
        | Event::Commit { .. }
        | Event::Keepalive { .. } => None,
    };
    let rows = events.iter().filter_map(row);
    rows.map(|row| RowView::parse(wanted, row).unwrap()).collect()
}

// A-07, PG-03, PG-13, PG-25
#[test]
fn the_whole_stream_is_in_order() {
    assert_eq!(events().len(), 48);
}

// PG-15
#[test]
fn old_rows_are_keys_or_full_or_absent() {
    let events = events();
    let updates = rows(&events, RowKind::Update);
    let old: Vec<_> = updates.iter().map(|row| row.old.map(|(kind, _)| kind)).collect();
    assert_eq!(old, [None, Some(OldKind::Key), Some(OldKind::Full), Some(OldKind::Key)]);
    let deletes = rows(&events, RowKind::Delete);
    let (kind, key) = deletes[0].old.unwrap();
    assert_eq!(kind, OldKind::Key);
    let cells: Vec<_> = key.cells().collect();
    assert_eq!(cells, [Cell::Text(b"1"), Cell::Null, Cell::Null, Cell::Null]);
}

// PG-16, PG-19: an update that starts to match the filter arrives as an insert, and its value that
// was not changed is not there
#[test]
fn an_insert_may_have_an_unchanged_value() {
    let events = events();
    let inserts = rows(&events, RowKind::Insert);
    let unchanged: Vec<_> = inserts
        .iter()
        .filter_map(|row| row.new)
        .filter(|row| row.cells().any(|cell| cell == Cell::Unchanged))
        .collect();
    assert_eq!(unchanged.len(), 1);
    assert_eq!(unchanged[0].cells().collect::<Vec<_>>(), [Cell::Text(b"105"), Cell::Unchanged]);
}

// PG-18, PG-25
#[test]
fn truncates_and_messages_are_decoded() {
    let mut truncates = Vec::new();
    let mut messages = Vec::new();
    for event in events() {
        match event {
            Event::Truncate { tables, flags, ordinal } => {
                truncates.push((tables.len(), flags.cascade, flags.restart_identity, ordinal));
            }
            Event::Message { transactional, prefix, content, .. } => {
                messages.push((transactional, prefix, content.len()));
            }
            Event::Row { .. }
            | Event::Begin { .. }
            | Event::Relation(_)
            | Event::Ddl(_)
            | Event::Commit { .. }
            | Event::Keepalive { .. } => {}
        }
    }
    assert_eq!(truncates, [(2, true, false, 0), (1, false, true, 0)]);
    let expected = [(true, "pfx", 7), (false, "pfx2", 8), (false, "inner", 1)];
    assert_eq!(messages, expected.map(|(inside, prefix, length)| (inside, prefix.into(), length)));
}
