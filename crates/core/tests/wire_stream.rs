//! Whole streams: what was sent comes out, however the bytes are cut, and damage never panics.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use proptest::prelude::*;
use walferry_core::event::{Event, RowKind, TruncateFlags};
use walferry_core::ids::TableId;
use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::schema::{Relation, RelationColumn, ReplicaIdentity};
use walferry_core::wire::{
    Cell, DecodeError, Limits, Message, OldKind, RowView, Stop, StreamDecoder, encode,
};

/// A cell that owns its value.
#[derive(Clone, Debug, PartialEq)]
enum Owned {
    Null,
    Unchanged,
    Text(Vec<u8>),
    Binary(Vec<u8>),
}

type Row = Vec<Owned>;

#[derive(Clone, Debug, PartialEq)]
enum Change {
    Row { kind: RowKind, table: usize, old: Option<(OldKind, Row)>, new: Option<Row> },
    Truncate { tables: Vec<usize>, flags: TruncateFlags },
    Logical { prefix: String, content: Vec<u8> },
    Keepalive(u64),
}

/// Columns of the tables that a stream has.
const COLUMNS: [usize; 3] = [0, 1, 4];

fn table(index: usize) -> TableId {
    TableId(u32::try_from(index).unwrap())
}

fn owned(cell: Cell<'_>) -> Owned {
    match cell {
        Cell::Null => Owned::Null,
        Cell::Unchanged => Owned::Unchanged,
        Cell::Text(value) => Owned::Text(value.to_vec()),
        Cell::Binary(value) => Owned::Binary(value.to_vec()),
    }
}

fn cells(row: &Row) -> Vec<Cell<'_>> {
    let cell = |cell| match cell {
        &Owned::Null => Cell::Null,
        &Owned::Unchanged => Cell::Unchanged,
        Owned::Text(value) => Cell::Text(value),
        Owned::Binary(value) => Cell::Binary(value),
    };
    row.iter().map(cell).collect()
}

fn row(columns: usize) -> impl Strategy<Value = Row> {
    let value = || prop::collection::vec(any::<u8>(), 0..9);
    let cell = prop_oneof![
        Just(Owned::Null),
        Just(Owned::Unchanged),
        value().prop_map(Owned::Text),
        value().prop_map(Owned::Binary),
    ];
    prop::collection::vec(cell, columns)
}

fn row_change() -> impl Strategy<Value = Change> {
    let kinds = prop::sample::select(&[RowKind::Insert, RowKind::Update, RowKind::Delete][..]);
    let old = prop::sample::select(&[OldKind::Key, OldKind::Full][..]);
    (0..COLUMNS.len(), kinds, old, any::<bool>()).prop_flat_map(|(table, kind, old, with)| {
        let rows = (row(COLUMNS[table]), row(COLUMNS[table]));
        rows.prop_map(move |(before, after)| {
            let before = Some((old, before));
            let (old, new) = match kind {
                RowKind::Insert => (None, Some(after)),
                RowKind::Update => (before.filter(|_| with), Some(after)),
                RowKind::Delete => (before, None),
            };
            Change::Row { kind, table, old, new }
        })
    })
}

fn change() -> impl Strategy<Value = Change> {
    let tables = prop::collection::vec(0..COLUMNS.len(), 1..4);
    let flags = (any::<bool>(), any::<bool>())
        .prop_map(|(cascade, restart_identity)| TruncateFlags { cascade, restart_identity });
    let content = prop::collection::vec(any::<u8>(), 0..9);
    prop_oneof![
        6 => row_change(),
        1 => (tables, flags).prop_map(|(tables, flags)| Change::Truncate { tables, flags }),
        1 => ("[a-zé]{0,5}", content)
            .prop_map(|(prefix, content)| Change::Logical { prefix, content }),
        1 => any::<u64>().prop_map(Change::Keepalive),
    ]
}

fn transactions() -> impl Strategy<Value = Vec<Vec<Change>>> {
    prop::collection::vec(prop::collection::vec(change(), 0..6), 0..5)
}

fn relation(index: usize) -> Relation {
    let column = |_| RelationColumn { key: true, name: "c".to_owned(), type_oid: 25, modifier: -1 };
    Relation {
        table: table(index),
        namespace: "public".to_owned(),
        name: format!("t{index}"),
        identity: ReplicaIdentity::Full,
        columns: (0..COLUMNS[index]).map(column).collect(),
    }
}

/// The positions of the transaction `index`.
fn place(index: usize) -> (CommitLsn, Position) {
    let commit = Lsn(100 + 10 * index as u64);
    (CommitLsn(commit), Position(Lsn(commit.0 + 10)))
}

fn data(message: &Message<'_>) -> Vec<u8> {
    encode::xlog_data(Lsn(1), &encode::message(message))
}

fn frame(change: &Change) -> Vec<u8> {
    match change {
        Change::Row { kind, table: index, old, new } => {
            let old = old.as_ref().map(|(kind, row)| (*kind, cells(row)));
            let old = old.as_ref().map(|(kind, cells)| (*kind, &cells[..]));
            let row = encode::row(old, new.as_ref().map(cells).as_deref());
            data(&Message::Row { kind: *kind, table: table(*index), row: &row })
        }
        Change::Truncate { tables, flags } => {
            let tables = tables.iter().map(|index| table(*index)).collect();
            data(&Message::Truncate { tables, flags: *flags })
        }
        Change::Logical { prefix, content } => {
            data(&Message::Logical { transactional: true, lsn: Lsn(2), prefix, content })
        }
        Change::Keepalive(wal_end) => encode::keepalive(Position(Lsn(*wal_end)), 5, true),
    }
}

fn send(transactions: &[Vec<Change>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, changes) in transactions.iter().enumerate() {
        let (commit, end) = place(index);
        bytes.extend(data(&Message::Begin { commit, time_us: 7, xid: 3 }));
        bytes.extend(data(&Message::Origin { commit: Lsn(2), name: "up" }));
        for index in 0..COLUMNS.len() {
            bytes.extend(data(&Message::Relation(relation(index))));
        }
        bytes.extend(changes.iter().flat_map(frame));
        bytes.extend(data(&Message::Commit { commit, end, time_us: 7 }));
    }
    bytes
}

/// What the events say, as transactions of changes.
fn received(events: &[Event<Bytes>]) -> Vec<Vec<Change>> {
    let mut transactions: Vec<Vec<Change>> = Vec::new();
    let mut next = 0;
    for event in events {
        let change = match event {
            Event::Begin { commit, time_us } => {
                assert_eq!((*commit, *time_us), (place(transactions.len()).0, 7));
                transactions.push(Vec::new());
                next = 0;
                continue;
            }
            Event::Commit { commit, end } => {
                assert_eq!((*commit, *end), place(transactions.len() - 1));
                continue;
            }
            Event::Relation(announced) => {
                assert_eq!(**announced, relation(announced.table.0 as usize));
                continue;
            }
            Event::Row { table, ordinal, kind, row, .. } => {
                let columns = u16::try_from(COLUMNS[table.0 as usize]).unwrap();
                let view = RowView::parse(*kind, row).unwrap();
                assert_eq!(RowView::validate(*kind, row, columns).map(drop), Ok(()));
                assert_eq!(*ordinal, next);
                next += 1;
                Change::Row {
                    kind: *kind,
                    table: table.0 as usize,
                    old: view.old.map(|(kind, row)| (kind, row.cells().map(owned).collect())),
                    new: view.new.map(|row| row.cells().map(owned).collect()),
                }
            }
            Event::Truncate { tables, flags, ordinal } => {
                assert_eq!(*ordinal, next);
                next += 1;
                let tables = tables.iter().map(|table| table.0 as usize).collect();
                Change::Truncate { tables, flags: *flags }
            }
            Event::Ddl(message) => panic!("no schema message was sent: {message:?}"),
            Event::Message { transactional, prefix, content, .. } => {
                assert!(transactional);
                Change::Logical { prefix: prefix.to_string(), content: content.to_vec() }
            }
            Event::Keepalive { wal_end, .. } => Change::Keepalive(wal_end.0.0),
        };
        transactions.last_mut().unwrap().push(change);
    }
    transactions
}

/// Feeds the stream as a reader would that gets it cut at `cuts`: what is not consumed comes again
/// with the next piece.
fn decode(stream: &[u8], cuts: &[usize]) -> (Vec<Event<Bytes>>, Result<Stop, DecodeError>) {
    let mut decoder = StreamDecoder::new(Position(place(0).0.0), Limits::default());
    let mut events = Vec::new();
    let mut consumed = 0;
    for end in cuts.iter().chain([&stream.len()]) {
        let chunk = Bytes::copy_from_slice(&stream[consumed..*end]);
        match decoder.decode(&chunk, &mut events) {
            Ok(progress) => {
                consumed += progress.consumed;
                if progress.stop != Stop::NeedBytes {
                    return (events, Ok(progress.stop));
                }
            }
            Err(error) => return (events, Err(error)),
        }
    }
    (events, Ok(Stop::NeedBytes))
}

fn cuts(stream: &[u8], places: &[prop::sample::Index]) -> Vec<usize> {
    let mut cuts: Vec<_> = places.iter().map(|place| place.index(stream.len() + 1)).collect();
    cuts.sort_unstable();
    cuts
}

fn places() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..9)
}

proptest! {
    //
    #[test]
    fn what_was_sent_comes_out(sent in transactions()) {
        let (events, end) = decode(&send(&sent), &[]);
        prop_assert_eq!(end, Ok(Stop::NeedBytes));
        prop_assert_eq!(received(&events), sent);
    }

    // A-I2
    #[test]
    fn cuts_change_nothing(sent in transactions(), places in places()) {
        let stream = send(&sent);
        prop_assert_eq!(decode(&stream, &cuts(&stream, &places)), decode(&stream, &[]));
        walferry_coverage::reached("A-I2");
    }

    // A-I2, A-I3: a damaged stream ends in the same place with the same words, however it is cut
    #[test]
    fn damage_is_an_error_or_another_stream(
        sent in transactions(), at: prop::sample::Index, value: u8, places in places(),
    ) {
        let mut stream = send(&sent);
        prop_assume!(!stream.is_empty());
        let at = at.index(stream.len());
        stream[at] = value;
        let whole = decode(&stream, &[]);
        if let Err(error) = &whole.1 {
            prop_assert!(error.offset <= stream.len());
        }
        prop_assert_eq!(decode(&stream, &cuts(&stream, &places)), whole);
        walferry_coverage::reached("A-I2");
        walferry_coverage::reached("A-I3");
    }

    // N-I5: a session that starts later knows other relations and gives the same keys
    #[test]
    fn a_session_that_starts_later_gives_the_same_keys(
        sent in transactions(), from: prop::sample::Index,
    ) {
        let stream = send(&sent);
        let skipped = send(&sent[..from.index(sent.len() + 1)]);
        let keys = |bytes: &[u8]| {
            let (mut events, _) = decode(bytes, &[]);
            events.retain(|event| !matches!(event, Event::Relation(_)));
            events
        };
        let expected = keys(&stream).split_off(keys(&skipped).len());
        prop_assert_eq!(keys(&stream[skipped.len()..]), expected);
        walferry_coverage::reached("N-I5");
    }

    // A-I3: without its last bytes a stream only waits for them
    #[test]
    fn a_truncated_stream_is_a_shorter_one(sent in transactions(), end: prop::sample::Index) {
        let stream = send(&sent);
        let (events, _) = decode(&stream, &[]);
        let (fewer, stop) = decode(&stream[..end.index(stream.len() + 1)], &[]);
        prop_assert_eq!(stop, Ok(Stop::NeedBytes));
        prop_assert_eq!(&fewer[..], &events[..fewer.len()]);
        walferry_coverage::reached("A-I3");
    }
}

// A-I2, exhaustively for one stream: every cut in two
#[test]
fn each_single_cut_changes_nothing() {
    let row = vec![Owned::Null, Owned::Unchanged, Owned::Text(b"t".to_vec()), Owned::Null];
    let old = Some((OldKind::Key, row.clone()));
    let update = Change::Row { kind: RowKind::Update, table: 2, old, new: Some(row) };
    let stream = send(&[vec![update, Change::Keepalive(3)], vec![]]);
    let whole = decode(&stream, &[]);
    assert_eq!(whole.0.len(), 12);
    for cut in 0..=stream.len() {
        assert_eq!(decode(&stream, &[cut]), whole, "cut at {cut}");
    }
    walferry_coverage::reached("A-I2");
}

// A-I3, exhaustively for one stream: every value of every byte
#[test]
fn each_single_damaged_byte_is_survived() {
    let row = vec![Owned::Null, Owned::Binary(b"b".to_vec()), Owned::Text(vec![]), Owned::Null];
    let insert = Change::Row { kind: RowKind::Insert, table: 2, old: None, new: Some(row) };
    let stream = send(&[vec![insert]]);
    for at in 0..stream.len() {
        for value in 0..=u8::MAX {
            let mut damaged = stream.clone();
            damaged[at] = value;
            let (events, _) = decode(&damaged, &[]);
            assert!(events.len() <= 6);
        }
    }
    walferry_coverage::reached("A-I3");
}
