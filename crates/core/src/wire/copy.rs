//! Rows of a table copy in text format, as COPY TO STDOUT sends them.
//!
//! Owns rows and cells. A block is a run of complete CopyData frames, one row in each.
//! Knows nothing of types or of which range of a table a block is from.

use super::error::{DecodeError, DecodeReason};
use super::escape::unescape_into;
use super::frames::{COPY_DATA, Stop, next_frame};

/// The rows at the start of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRun {
    /// Bytes of their frames.
    pub consumed: usize,
    /// How many.
    pub rows: u64,
    /// What stands behind them.
    pub stop: Stop,
}

/// One cell of a copied row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyCell<'a> {
    /// NULL.
    Null,
    /// A value.
    Text {
        /// As it was sent.
        raw: &'a [u8],
        /// Whether it has to be unescaped to be the value.
        escaped: bool,
    },
}

/// The rows of a block. Ends where the block ends, and after an error.
#[derive(Clone, Debug)]
pub struct CopyRows<'a> {
    rest: &'a [u8],
    consumed: usize,
    limit: usize,
    stop: Stop,
}

/// One row, without its newline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRow<'a> {
    text: &'a [u8],
    offset: usize,
}

/// The cells of a row. Ends with the row, and after an error.
#[derive(Clone, Debug)]
pub struct CopyCells<'a> {
    row: CopyRow<'a>,
    /// From the next cell on; `None` behind the last one.
    rest: Option<&'a [u8]>,
    found: usize,
    expected: usize,
}

/// Counts the complete rows at the start of `buf` and checks their frames; `limit` bounds the
/// length field of each.
pub fn count_copy_rows(buf: &[u8], limit: usize) -> Result<CopyRun, DecodeError> {
    let mut all = CopyRows::new(buf, limit);
    let mut rows = 0;
    for row in &mut all {
        row?;
        rows += 1;
    }
    Ok(CopyRun { consumed: all.consumed, rows, stop: all.stop })
}

impl<'a> CopyRows<'a> {
    /// Rows of `block`; `limit` bounds the length field of each frame.
    #[must_use]
    pub const fn new(block: &'a [u8], limit: usize) -> Self {
        Self { rest: block, consumed: 0, limit, stop: Stop::NeedBytes }
    }

    /// Takes the next frame, if it is a complete row.
    #[inline]
    fn advance(&mut self) -> Result<Option<CopyRow<'a>>, DecodeError> {
        let offset = self.consumed;
        let Some(frame) = next_frame(self.rest, self.limit)? else { return Ok(None) };
        if frame.tag != COPY_DATA {
            self.stop = Stop::OtherFrame { tag: frame.tag };
            return Ok(None);
        }
        let size = frame.size();
        let Some((b'\n', text)) = frame.body.split_last() else {
            return Err(failure(size, DecodeReason::RowWithoutNewline));
        };
        self.rest = self.rest.get(size..).unwrap_or_default();
        self.consumed += size;
        Ok(Some(CopyRow { text, offset: offset + (size - frame.body.len()) }))
    }
}

impl<'a> Iterator for CopyRows<'a> {
    type Item = Result<CopyRow<'a>, DecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(row) => row.map(Ok),
            Err(error) => {
                self.rest = &[];
                Some(Err(error.shifted(self.consumed)))
            }
        }
    }
}

impl<'a> CopyRow<'a> {
    /// A row that stands at the start of what is decoded, without its newline.
    #[must_use]
    pub const fn new(text: &'a [u8]) -> Self {
        Self { text, offset: 0 }
    }

    /// Its text, without the newline.
    #[must_use]
    pub const fn text(&self) -> &'a [u8] {
        self.text
    }

    /// Its cells; another number than `columns` is an error.
    #[must_use]
    #[inline]
    pub const fn cells(self, columns: usize) -> CopyCells<'a> {
        let rest = if columns == 0 && self.text.is_empty() { None } else { Some(self.text) };
        CopyCells { row: self, rest, found: 0, expected: columns }
    }
}

impl<'a> CopyCells<'a> {
    #[inline]
    fn advance(&mut self) -> Result<Option<CopyCell<'a>>, DecodeError> {
        let (rest, full) = (self.rest, self.found == self.expected);
        let rest = match rest {
            Some(rest) if !full => rest,
            None if full => return Ok(None),
            Some(_) | None => return Err(self.miscounted()),
        };
        let (raw, escaped) = cell(rest).map_err(|error| self.place(error, rest))?;
        self.rest = rest.get(raw.len() + 1..);
        self.found += 1;
        let null = escaped && raw == b"\\N";
        Ok(Some(if null { CopyCell::Null } else { CopyCell::Text { raw, escaped } }))
    }

    #[cold]
    const fn place(&self, error: DecodeError, rest: &[u8]) -> DecodeError {
        error.shifted(self.row.offset + self.row.text.len() - rest.len())
    }

    #[cold]
    fn miscounted(&self) -> DecodeError {
        let found = memchr::memchr_iter(b'\t', self.row.text).count() + 1;
        let reason = DecodeReason::ColumnCount { expected: self.expected, found };
        failure(self.row.offset, reason)
    }
}

/// The cell at the start of `bytes`, without its tab, and whether it has a backslash.
#[inline]
fn cell(bytes: &[u8]) -> Result<(&[u8], bool), DecodeError> {
    let mut escaped = false;
    for at in memchr::memchr3_iter(b'\t', b'\\', b'\n', bytes) {
        match bytes.split_at(at) {
            (raw, [b'\t', ..]) => return Ok((raw, escaped)),
            (_, [b'\\', ..]) => escaped = true,
            (_, _) => return Err(failure(at, DecodeReason::NewlineInRow)),
        }
    }
    Ok((bytes, escaped))
}

impl<'a> Iterator for CopyCells<'a> {
    type Item = Result<CopyCell<'a>, DecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(cell) => cell.map(Ok),
            Err(error) => {
                (self.rest, self.found) = (None, self.expected);
                Some(Err(error))
            }
        }
    }
}

impl<'a> CopyCell<'a> {
    /// The value, `None` for NULL. `scratch` is cleared and used if it has escapes. Offsets of
    /// errors count from the start of the cell.
    #[inline]
    pub fn value<'s>(self, scratch: &'s mut Vec<u8>) -> Result<Option<&'s [u8]>, DecodeError>
    where
        'a: 's,
    {
        match self {
            Self::Null => Ok(None),
            Self::Text { raw, escaped: false } => Ok(Some(raw)),
            Self::Text { raw, escaped: true } => {
                scratch.clear();
                unescape_into(raw, scratch)?;
                Ok(Some(scratch))
            }
        }
    }
}

#[cold]
const fn failure(offset: usize, reason: DecodeReason) -> DecodeError {
    DecodeError { offset, tag: COPY_DATA, reason }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::encode;

    const LIMIT: usize = 1 << 20;

    type Values = Vec<Option<Vec<u8>>>;

    fn decode(block: &[u8], columns: usize) -> Result<Vec<Values>, DecodeError> {
        let mut scratch = Vec::new();
        let mut values = |row: CopyRow<'_>| {
            let value =
                |cell: Result<CopyCell<'_>, _>| Ok(cell?.value(&mut scratch)?.map(<[u8]>::to_vec));
            row.cells(columns).map(value).collect()
        };
        CopyRows::new(block, LIMIT).map(|row| values(row?)).collect()
    }

    fn line(text: &[u8], columns: usize) -> Result<Values, DecodeError> {
        decode(&encode::frame(b'd', &[text, b"\n"].concat()), columns).map(|rows| rows.concat())
    }

    fn texts(values: &[&[u8]]) -> Result<Values, DecodeError> {
        Ok(values.iter().map(|value| Some(value.to_vec())).collect())
    }

    // K-17: NULL stays apart from text
    #[test]
    fn null_is_not_text() {
        assert_eq!(line(b"\\N\t\t\\\\N\tN", 4), {
            Ok(vec![None, Some(vec![]), Some(b"\\N".to_vec()), Some(b"N".to_vec())])
        });
        assert_eq!(line(b"", 1), texts(&[b""]));
        assert_eq!(line(b"", 0), Ok(vec![]));
    }

    //
    #[test]
    fn what_the_server_never_sends_is_refused() {
        let unknown = |found| DecodeReason::UnknownEscape { found };
        let count = |expected, found| DecodeReason::ColumnCount { expected, found };
        let cases: [(&[u8], usize, DecodeReason); 7] = [
            (b"a\\", 1, DecodeReason::LoneBackslash),
            (b"a\\\tb", 2, DecodeReason::LoneBackslash),
            (b"x\\N", 1, unknown(b'N')),
            (b"a\nb", 1, DecodeReason::NewlineInRow),
            (b"a\tb", 1, count(1, 2)),
            (b"a\tb", 3, count(3, 2)),
            (b"a", 0, count(0, 1)),
        ];
        for (text, columns, reason) in cases {
            assert_eq!(line(text, columns).map_err(|e| e.reason), Err(reason));
        }
    }

    #[test]
    fn a_row_ends_in_a_newline() {
        let good = encode::copy_row(&[Some(b"a")]);
        for body in [&b""[..], b"a", b"a\nb"] {
            let block = [good.clone(), encode::frame(b'd', body)].concat();
            let expected = failure(good.len() + 5 + body.len(), DecodeReason::RowWithoutNewline);
            assert_eq!(count_copy_rows(&block, LIMIT), Err(expected.clone()));
            assert_eq!(decode(&block, 1), Err(expected));
        }
    }

    #[test]
    fn counting_stops_at_what_is_no_complete_row() {
        let rows = [encode::copy_row(&[Some(b"a")]), encode::copy_row(&[None])].concat();
        let run = |consumed, rows, stop| Ok(CopyRun { consumed, rows, stop });
        let done = [&rows[..], &encode::frame(b'c', b"")].concat();
        let expected = run(rows.len(), 2, Stop::OtherFrame { tag: b'c' });
        assert_eq!(count_copy_rows(&done, LIMIT), expected);
        assert_eq!(count_copy_rows(&rows, LIMIT), run(rows.len(), 2, Stop::NeedBytes));
        assert_eq!(count_copy_rows(&rows[..14], LIMIT), run(7, 1, Stop::NeedBytes));
        let error = count_copy_rows(&rows, 5).unwrap_err();
        assert_eq!(error.reason, DecodeReason::FrameTooLarge { length: 6, limit: 5 });
    }

    fn values(columns: usize) -> impl Strategy<Value = Values> {
        let byte = prop_oneof![any::<u8>(), prop::sample::select(&b"\\\t\nN.x01"[..])];
        let value = prop::option::of(prop::collection::vec(byte, 0..40));
        prop::collection::vec(value, columns)
    }

    fn table() -> impl Strategy<Value = (usize, Vec<Values>)> {
        (0..6_usize)
            .prop_flat_map(|columns| (Just(columns), prop::collection::vec(values(columns), 0..5)))
    }

    proptest! {
        #[test]
        fn rows_round_trip((columns, rows) in table()) {
            let row = |values: &Values| {
                encode::copy_row(&values.iter().map(Option::as_deref).collect::<Vec<_>>())
            };
            let block: Vec<u8> = rows.iter().flat_map(row).collect();
            prop_assert_eq!(decode(&block, columns), Ok(rows.clone()));
            let run = count_copy_rows(&block, LIMIT).unwrap();
            prop_assert_eq!((run.consumed, run.rows), (block.len(), rows.len() as u64));
        }

        // A-I3
        #[test]
        fn any_bytes_are_rows_or_an_error(
            text in prop::collection::vec(prop::sample::select(&b"\\\t\nNx7a"[..]), 0..30), columns in 0..6_usize,
        ) {
            if let Ok(values) = line(&text, columns) {
                prop_assert_eq!(values.len(), columns);
            }
            walferry_coverage::reached("A-I3");
        }
    }
}
