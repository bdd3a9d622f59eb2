//! Reading fields off a slice, in network order, without ever reading past it.

use super::error::{DecodeError, DecodeReason};

/// The unread rest of a slice, and where it stands in what is decoded.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    offset: usize,
    tag: u8,
}

impl<'a> Cursor<'a> {
    /// Starts at `bytes`, which stand at `offset`, inside a message `tag`.
    pub(super) const fn new(bytes: &'a [u8], offset: usize, tag: u8) -> Self {
        Self { rest: bytes, offset, tag }
    }

    pub(super) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The error `reason` at the next byte.
    #[cold]
    pub(super) const fn fail(&self, reason: DecodeReason) -> DecodeError {
        DecodeError { offset: self.offset, tag: self.tag, reason }
    }

    #[cold]
    const fn truncated(&self, needed: usize) -> DecodeError {
        self.fail(DecodeReason::Truncated { needed, left: self.rest.len() })
    }

    /// The next `length` bytes.
    #[inline]
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let Some((taken, rest)) = self.rest.split_at_checked(length) else {
            return Err(self.truncated(length));
        };
        self.rest = rest;
        self.offset += length;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.truncated(N));
        };
        self.rest = rest;
        self.offset += N;
        Ok(*taken)
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Reads the tag of the message; errors from here on name it.
    #[inline]
    pub(super) fn tag(&mut self) -> Result<u8, DecodeError> {
        self.tag = self.u8()?;
        Ok(self.tag)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(super) fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_be_bytes)
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    #[inline]
    pub(super) fn i64(&mut self) -> Result<i64, DecodeError> {
        self.array().map(i64::from_be_bytes)
    }

    /// A 16-bit count, which must not be negative.
    #[inline]
    pub(super) fn count(&mut self) -> Result<u16, DecodeError> {
        let start = self.clone();
        let count = self.array().map(i16::from_be_bytes)?;
        u16::try_from(count)
            .map_err(|_| start.fail(DecodeReason::NegativeLength { length: count.into() }))
    }

    /// A 32-bit length, which must not be negative.
    #[inline]
    pub(super) fn length(&mut self) -> Result<usize, DecodeError> {
        let start = self.clone();
        let length = self.i32()?;
        usize::try_from(length).map_err(|_| start.fail(DecodeReason::NegativeLength { length }))
    }

    /// A flag byte without bits outside `known`.
    #[inline]
    pub(super) fn flags(&mut self, known: u8) -> Result<u8, DecodeError> {
        let start = self.clone();
        let found = self.u8()?;
        if found & !known == 0 {
            Ok(found)
        } else {
            Err(start.fail(DecodeReason::UnknownFlags { found }))
        }
    }

    /// A name that ends in a zero byte.
    pub(super) fn name(&mut self) -> Result<&'a str, DecodeError> {
        let start = self.clone();
        let Some(end) = memchr::memchr(0, self.rest) else {
            return Err(start.fail(DecodeReason::UnterminatedName { left: self.rest.len() }));
        };
        let name = self.take(end)?;
        self.take(1)?;
        core::str::from_utf8(name).map_err(|_| start.fail(DecodeReason::NotUtf8))
    }

    /// Nothing may follow.
    #[inline]
    pub(super) fn finish(&self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(self.fail(DecodeReason::TrailingBytes { left })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(bytes: &[u8]) -> Cursor<'_> {
        Cursor::new(bytes, 100, b'x')
    }

    fn error(offset: usize, reason: DecodeReason) -> DecodeError {
        DecodeError { offset, tag: b'x', reason }
    }

    #[test]
    fn numbers_are_big_endian_and_move_the_offset() {
        let mut cursor = cursor(&[1, 0, 0, 0, 2, 0xFF, 0xFF, 0xFF, 0xFE, 0, 3]);
        assert_eq!(cursor.u8(), Ok(1));
        assert_eq!(cursor.u32(), Ok(2));
        assert_eq!(cursor.i32(), Ok(-2));
        assert_eq!(cursor.count(), Ok(3));
        assert_eq!(cursor.finish(), Ok(()));
        assert_eq!(cursor.u8(), Err(error(111, DecodeReason::Truncated { needed: 1, left: 0 })));
    }

    //
    #[test]
    fn negative_lengths_are_refused_where_they_stand() {
        let negative = DecodeReason::NegativeLength { length: -1 };
        assert_eq!(cursor(&[0xFF; 4]).length(), Err(error(100, negative)));
        assert_eq!(cursor(&[0xFF; 2]).count(), Err(error(100, negative)));
    }

    #[test]
    fn a_failed_read_consumes_nothing() {
        let mut cursor = cursor(&[0, 1]);
        let short = DecodeReason::Truncated { needed: 3, left: 2 };
        assert_eq!(cursor.take(3), Err(error(100, short)));
        assert_eq!(cursor.take(2), Ok(&[0, 1][..]));
    }

    #[test]
    fn names_end_in_zero_and_are_utf_8() {
        assert_eq!(cursor("né\0x".as_bytes()).name(), Ok("né"));
        assert_eq!(cursor(b"\0").name(), Ok(""));
        assert_eq!(cursor(b"\xFF\0").name(), Err(error(100, DecodeReason::NotUtf8)));
        let unterminated = DecodeReason::UnterminatedName { left: 1 };
        assert_eq!(cursor(b"a").name(), Err(error(100, unterminated)));
    }

    #[test]
    fn unknown_flags_and_trailing_bytes_are_refused() {
        assert_eq!(cursor(&[3]).flags(3), Ok(3));
        assert_eq!(cursor(&[4]).flags(3), Err(error(100, DecodeReason::UnknownFlags { found: 4 })));
        assert_eq!(cursor(&[4]).finish(), Err(error(100, DecodeReason::TrailingBytes { left: 1 })));
    }
}
