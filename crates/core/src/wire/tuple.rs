//! Rows as they stand in the stream: views over the wire bytes, one cell at a time.
//!
//! Owns the shape of TupleData and of what follows the table in a row message. Knows nothing of
//! types: a cell is bytes.

use core::fmt;

use crate::event::RowKind;

use super::cursor::Cursor;
use super::error::{DecodeError, DecodeReason};

/// One column of a row. The four are distinct (A-07).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cell<'a> {
    /// NULL.
    Null,
    /// A TOASTed value that did not change and was not sent (PG-16).
    Unchanged,
    /// The text form of the value.
    Text(&'a [u8]),
    /// The binary form of the value.
    Binary(&'a [u8]),
}

/// What an old row consists of (PG-15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OldKind {
    /// The key columns; the others are NULL.
    Key,
    /// All columns.
    Full,
}

/// The columns of one row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    columns: u16,
    cells: &'a [u8],
}

/// The rows of one row message: the old one, the new one, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowView<'a> {
    /// The old row, if the source sent one.
    pub old: Option<(OldKind, Tuple<'a>)>,
    /// The new row; a delete has none.
    pub new: Option<Tuple<'a>>,
}

/// The columns of a row, one after another.
#[derive(Clone)]
pub struct Cells<'a> {
    left: u16,
    rest: &'a [u8],
}

impl<'a> Tuple<'a> {
    /// How many columns the row has.
    #[must_use]
    pub const fn columns(&self) -> usize {
        self.columns as usize
    }

    /// Its columns in order: exactly [`columns`](Self::columns) of them if the bytes are valid;
    /// bytes that never were validated may end it early.
    #[must_use]
    #[inline]
    pub const fn cells(&self) -> Cells<'a> {
        Cells { left: self.columns, rest: self.cells }
    }

    /// Reads a whole tuple, with every length checked and `columns` columns if that is given.
    #[inline]
    fn read(cursor: &mut Cursor<'a>, columns: Option<u16>) -> Result<Self, DecodeError> {
        let start = cursor.clone();
        let found = cursor.count()?;
        if let Some(expected) = columns.filter(|expected| *expected != found) {
            let (expected, found) = (expected.into(), found.into());
            return Err(start.fail(DecodeReason::ColumnCount { expected, found }));
        }
        let cells = cursor.rest();
        for _ in 0..found {
            let place = cursor.clone();
            match cursor.u8()? {
                b'n' | b'u' => {}
                b't' | b'b' => {
                    let length = cursor.length()?;
                    cursor.take(length)?;
                }
                found => return Err(place.fail(DecodeReason::UnknownTag { found })),
            }
        }
        let length = cells.len() - cursor.rest().len();
        Ok(Self { columns: found, cells: cells.get(..length).unwrap_or_default() })
    }

    /// Takes the rest as a tuple, without a look at its cells.
    #[inline]
    fn trust(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        Ok(Self { columns: cursor.count()?, cells: cursor.rest() })
    }
}

impl<'a> RowView<'a> {
    /// Reads what the row of an event holds. The bytes come from a stream decoder, which has
    /// validated them, so the last tuple is not walked before its cells are asked for.
    #[inline]
    pub fn parse(kind: RowKind, row: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(row, 0, 0);
        Self::read(kind, &mut cursor, |cursor| Tuple::read(cursor, None), Tuple::trust)
    }

    /// Reads bytes of unknown origin: everything is checked, each tuple has `columns` columns, and
    /// nothing follows.
    pub fn validate(kind: RowKind, row: &'a [u8], columns: u16) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(row, 0, 0);
        let tuple = |cursor: &mut Cursor<'a>| Tuple::read(cursor, Some(columns));
        let view = Self::read(kind, &mut cursor, tuple, tuple)?;
        cursor.finish()?;
        Ok(view)
    }

    #[inline]
    fn read(
        kind: RowKind,
        cursor: &mut Cursor<'a>,
        first: impl Fn(&mut Cursor<'a>) -> Result<Tuple<'a>, DecodeError>,
        last: impl Fn(&mut Cursor<'a>) -> Result<Tuple<'a>, DecodeError>,
    ) -> Result<Self, DecodeError> {
        let start = cursor.clone();
        let unknown = |found| Err(start.fail(DecodeReason::UnknownTag { found }));
        match (kind, cursor.u8()?) {
            (RowKind::Insert | RowKind::Update, b'N') => {
                Ok(Self { old: None, new: Some(last(cursor)?) })
            }
            (RowKind::Update, old @ (b'K' | b'O')) => {
                let old = (OldKind::of(old), first(cursor)?);
                let place = cursor.clone();
                match cursor.u8()? {
                    b'N' => Ok(Self { old: Some(old), new: Some(last(cursor)?) }),
                    found => Err(place.fail(DecodeReason::UnknownTag { found })),
                }
            }
            (RowKind::Delete, old @ (b'K' | b'O')) => {
                Ok(Self { old: Some((OldKind::of(old), last(cursor)?)), new: None })
            }
            (RowKind::Insert | RowKind::Update | RowKind::Delete, found) => unknown(found),
        }
    }
}

impl OldKind {
    const fn of(marker: u8) -> Self {
        if marker == b'K' { Self::Key } else { Self::Full }
    }
}

impl<'a> IntoIterator for Tuple<'a> {
    type Item = Cell<'a>;
    type IntoIter = Cells<'a>;

    fn into_iter(self) -> Cells<'a> {
        self.cells()
    }
}

impl<'a> Iterator for Cells<'a> {
    type Item = Cell<'a>;

    #[inline]
    fn next(&mut self) -> Option<Cell<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (&tag, rest) = self.rest.split_first()?;
        let parsed = match tag {
            b't' => value(rest).map(|(value, rest)| (Cell::Text(value), rest)),
            b'b' => value(rest).map(|(value, rest)| (Cell::Binary(value), rest)),
            b'n' => Some((Cell::Null, rest)),
            b'u' => Some((Cell::Unchanged, rest)),
            _ => None,
        };
        let Some((cell, rest)) = parsed else {
            self.left = 0;
            return None;
        };
        self.rest = rest;
        Some(cell)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left.into()))
    }
}

#[inline]
fn value(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(i32::from_be_bytes(*length)).ok()?)
}

impl fmt::Debug for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Unchanged => f.write_str("unchanged"),
            Self::Text(value) => write!(f, "\"{}\"", value.escape_ascii()),
            Self::Binary(value) => write!(f, "b\"{}\"", value.escape_ascii()),
        }
    }
}

impl fmt::Debug for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.cells()).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::encode;

    const ALL: [Cell<'static>; 5] =
        [Cell::Null, Cell::Unchanged, Cell::Text(b""), Cell::Text(b"ab"), Cell::Binary(b"\0\xFF")];
    const KINDS: [RowKind; 3] = [RowKind::Insert, RowKind::Update, RowKind::Delete];

    fn error(offset: usize, reason: DecodeReason) -> DecodeError {
        DecodeError { offset, tag: 0, reason }
    }

    // A-07: null, text, binary and unchanged are distinct
    #[test]
    fn cells_come_back_as_they_were_sent() {
        let row = encode::row(None, Some(&ALL));
        let view = RowView::validate(RowKind::Insert, &row, 5).unwrap();
        assert_eq!(view.new.unwrap().cells().collect::<Vec<_>>(), ALL);
        assert_eq!(view.old, None);
        assert_eq!(
            format!("{:?}", view.new.unwrap()),
            r#"[null, unchanged, "", "ab", b"\x00\xff"]"#
        );
    }

    // PG-15
    #[test]
    fn each_kind_has_its_own_markers() {
        let cells: Option<&[Cell<'_>]> = Some(&ALL);
        let key = Some((OldKind::Key, &ALL[..]));
        let full = Some((OldKind::Full, &ALL[..]));
        let legal = |kind, old: Option<_>, new: Option<_>| match kind {
            RowKind::Insert => old.is_none() && new.is_some(),
            RowKind::Update => new.is_some(),
            RowKind::Delete => old.is_some() && new.is_none(),
        };
        for kind in KINDS {
            for (old, new) in
                [(None, cells), (key, cells), (full, cells), (key, None), (full, None)]
            {
                let row = encode::row(old, new);
                let view = RowView::validate(kind, &row, 5);
                assert_eq!(view.is_ok(), legal(kind, old, new), "{kind:?} {old:?} {new:?}");
                if let Ok(view) = view {
                    assert_eq!(view.old.map(|(kind, _)| kind), old.map(|(kind, _)| kind));
                    assert_eq!(view.new.is_some(), new.is_some());
                    assert_eq!(
                        RowView::parse(kind, &row).map(|v| format!("{v:?}")),
                        Ok(format!("{view:?}"))
                    );
                }
            }
        }
    }

    // A-07
    #[test]
    fn wrong_counts_negative_lengths_and_trailing_bytes_are_refused() {
        let row = encode::row(None, Some(&[Cell::Text(b"ab")]));
        let edited = |at: usize, value: u8| {
            let mut row = row.clone();
            row[at] = value;
            row
        };
        let cases = [
            (row.clone(), 2, error(1, DecodeReason::ColumnCount { expected: 2, found: 1 })),
            (edited(1, 0xFF), 1, error(1, DecodeReason::NegativeLength { length: -255 })),
            (edited(3, b'x'), 1, error(3, DecodeReason::UnknownTag { found: b'x' })),
            (edited(4, 0x80), 1, error(4, DecodeReason::NegativeLength { length: 2 | i32::MIN })),
            (edited(7, 3), 1, error(8, DecodeReason::Truncated { needed: 3, left: 2 })),
            (edited(7, 1), 1, error(9, DecodeReason::TrailingBytes { left: 1 })),
            (edited(0, b'K'), 1, error(0, DecodeReason::UnknownTag { found: b'K' })),
            (vec![], 1, error(0, DecodeReason::Truncated { needed: 1, left: 0 })),
        ];
        for (row, columns, expected) in cases {
            assert_eq!(RowView::validate(RowKind::Insert, &row, columns), Err(expected));
        }
    }

    proptest! {
        // A-I3
        #[test]
        fn bytes_that_nobody_validated_end_early_without_a_panic(
            row: Vec<u8>, marker in prop::sample::select(&b"NKO"[..]), kind in 0..3_usize,
        ) {
            let row = [&[marker], &row[..]].concat();
            if let Ok(view) = RowView::parse(KINDS[kind], &row) {
                for tuple in view.old.map(|(_, tuple)| tuple).into_iter().chain(view.new) {
                    prop_assert!(tuple.cells().count() <= tuple.columns());
                }
            }
            walferry_coverage::reached("A-I3");
        }
    }
}
