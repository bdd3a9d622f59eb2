//! Rows as they stand in the stream: views over the wire bytes, one cell at a time.
//!
//! Owns the shape of TupleData and of what follows the table in a row message. Knows nothing of
//! types: a cell is bytes.

use core::fmt;

use crate::event::RowKind;

use super::cursor::Cursor;
use super::error::{DecodeError, DecodeReason};

/// One column of a row. The four are distinct.
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
        let (cell, rest) = match tag {
            b't' => value(rest).map(|(value, rest)| (Cell::Text(value), rest)),
            b'b' => value(rest).map(|(value, rest)| (Cell::Binary(value), rest)),
            b'n' => Some((Cell::Null, rest)),
            b'u' => Some((Cell::Unchanged, rest)),
            _ => None,
        }
        .unwrap_or_else(|| {
            self.left = 0;
            (Cell::Null, &[])
        });
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
