//! Bodies of the targets that decode what a server sends. The tests of the core replay their corpora.
//!
//! Each takes any bytes and panics where a promise of the decoders is broken (A-I2, A-I3).

use bytes::Bytes;
use walferry_core::event::{Event, RowKind};
use walferry_core::lsn::Position;
use walferry_core::wire::{
    Cell, CopyCell, CopyRows, DecodeError, Frames, Limits, Message, RowView, Stop, StreamDecoder,
    complete_frames, count_copy_rows, encode, parse_ddl,
};

const LIMIT: usize = 1 << 20;
const KINDS: [RowKind; 3] = [RowKind::Insert, RowKind::Update, RowKind::Delete];

/// The first byte says where the stream is cut in two; the rest is what a server sends.
pub fn frames(data: &[u8]) {
    let Some((&cut, stream)) = data.split_first() else { return };
    if let Ok(complete) = complete_frames(stream, LIMIT) {
        let read = Frames::new(stream, LIMIT).map_while(Result::ok);
        let again: Vec<u8> = read.flat_map(|frame| encode::frame(frame.tag, frame.body)).collect();
        assert_eq!(again, stream[..complete]);
    }
    let cut = usize::from(cut).min(stream.len());
    assert_eq!(decode(stream, &[cut, stream.len()]), decode(stream, &[stream.len()]));
}

type Decoded = (Vec<Event<Bytes>>, Option<Result<Stop, DecodeError>>);

fn decode(stream: &[u8], ends: &[usize]) -> Decoded {
    let limits = Limits { frame_bytes: LIMIT, relations: 4 };
    let mut decoder = StreamDecoder::new(Position::default(), limits);
    let (mut events, mut consumed, mut last) = (Vec::new(), 0, None);
    for end in ends {
        let chunk = Bytes::copy_from_slice(&stream[consumed..*end]);
        let decoded = decoder.decode(&chunk, &mut events);
        consumed += decoded.as_ref().map_or(0, |progress| progress.consumed);
        let stop = last.insert(decoded.map(|progress| progress.stop));
        if *stop != Ok(Stop::NeedBytes) {
            break;
        }
    }
    (events, last)
}

/// A message that is accepted has no other encoding: every byte of it was understood.
pub fn pgoutput(data: &[u8]) {
    match Message::decode(data, 0) {
        Ok(message) => assert_eq!(encode::message(&message), data),
        Err(error) => assert!(error.offset <= data.len(), "{error}"),
    }
}

/// The first byte is the number of columns, the rest a block of frames and also the text of a row.
pub fn copy_rows(data: &[u8]) {
    let Some((&columns, block)) = data.split_first() else { return };
    let columns = usize::from(columns % 8);
    let rows = CopyRows::new(block, LIMIT).map_while(Result::ok).count();
    if let Ok(run) = count_copy_rows(block, LIMIT) {
        assert_eq!(run.rows, rows as u64);
        assert!(run.consumed <= block.len());
    }
    let line = encode::frame(b'd', &[block, b"\n"].concat());
    if let Some(sent) = values(&line, columns) {
        assert_eq!(sent.len(), columns);
        let again = encode::copy_row(&sent.iter().map(Option::as_deref).collect::<Vec<_>>());
        assert_eq!(values(&again, columns), Some(sent));
    }
}

fn values(line: &[u8], columns: usize) -> Option<Vec<Option<Vec<u8>>>> {
    let row = CopyRows::new(line, 4 * LIMIT).next()?.ok()?;
    let mut scratch = Vec::new();
    let value = |cell: Result<CopyCell<'_>, DecodeError>| {
        Some(cell.ok()?.value(&mut scratch).ok()?.map(<[u8]>::to_vec))
    };
    row.cells(columns).map(value).collect()
}

/// The first byte is the number of columns, the rest the row of a message.
pub fn tuple(data: &[u8]) {
    let Some((&columns, row)) = data.split_first() else { return };
    for kind in KINDS {
        let trusted = RowView::parse(kind, row);
        for tuple in trusted.iter().flat_map(|view| view.new.iter()) {
            assert!(tuple.cells().count() <= tuple.columns());
        }
        let Ok(view) = RowView::validate(kind, row, columns.into()) else { continue };
        assert_eq!(Ok(format!("{view:?}")), trusted.map(|view| format!("{view:?}")));
        let old = view.old.map(|(kind, tuple)| (kind, tuple.cells().collect::<Vec<Cell<'_>>>()));
        let new = view.new.map(|tuple| tuple.cells().collect::<Vec<_>>());
        let old = old.as_ref().map(|(kind, cells)| (*kind, &cells[..]));
        assert_eq!(encode::row(old, new.as_deref()), row);
    }
}

/// A schema message that is accepted keeps the bounds of a table.
pub fn ddl(data: &[u8]) {
    let Ok(message) = parse_ddl(data) else { return };
    let columns = &message.schema.columns;
    assert!((1..=1_600).contains(&columns.len()));
    assert!(message.schema.table.0 > 0);
    for pair in columns.windows(2) {
        assert!(pair[0].number < pair[1].number);
    }
    for (index, column) in columns.iter().enumerate() {
        assert!(column.number > 0 && !column.name.is_empty());
        assert!(columns[..index].iter().all(|other| other.name != column.name));
    }
}
