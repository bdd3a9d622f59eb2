//! Backend frames, and the two bodies that a replication stream puts into CopyData.
//!
//! Owns the frame header (A-06), XLogData, keepalive and status update. Knows nothing of what an
//! XLogData body means.

use crate::lsn::{Lsn, Position};

use super::cursor::Cursor;
use super::error::{DecodeError, DecodeReason};

/// Tag of a CopyData frame.
pub const COPY_DATA: u8 = b'd';
/// Type byte and length.
const HEADER: usize = 5;

/// One backend frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its type byte.
    pub tag: u8,
    /// What follows the length.
    pub body: &'a [u8],
}

/// Why a run of frames ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// At the end of the buffer, or at a frame that is not complete in it.
    NeedBytes,
    /// At a complete frame that is not CopyData.
    OtherFrame {
        /// Its type byte.
        tag: u8,
    },
}

/// What a CopyData frame of a replication stream holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication<'a> {
    /// A message of the output plugin. The positions of its header are no boundaries (PG-10).
    XLogData {
        /// Position of the change.
        start: Lsn,
        /// Where the server's sender is.
        wal_end: Lsn,
        /// When it was sent, microseconds since 2000-01-01 UTC.
        time_us: i64,
        /// The message.
        message: &'a [u8],
    },
    /// The server is alive (PG-09).
    Keepalive {
        /// Where the server's sender is.
        wal_end: Position,
        /// When it was sent, microseconds since 2000-01-01 UTC.
        time_us: i64,
        /// Whether it wants feedback at once.
        reply: bool,
    },
}

/// Bytes of the frame at the start of `buf`, whether it is complete or not; `None` as long as the
/// header is not. `limit` bounds the length field.
#[inline]
pub fn frame_size(buf: &[u8], limit: usize) -> Result<Option<usize>, DecodeError> {
    let Some(&[tag, a, b, c, d]) = buf.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let length = i32::from_be_bytes([a, b, c, d]);
    match usize::try_from(length) {
        Ok(length) if length > limit => {
            Err(Cursor::new(buf, 1, tag).fail(DecodeReason::FrameTooLarge { length, limit }))
        }
        Ok(size) if size >= 4 => Ok(Some(size + 1)),
        Ok(_) | Err(_) => {
            Err(Cursor::new(buf, 1, tag).fail(DecodeReason::LengthBelowFour { length }))
        }
    }
}

/// The frame at the start of `buf`, `None` if it is not complete.
#[inline]
pub fn next_frame(buf: &[u8], limit: usize) -> Result<Option<Frame<'_>>, DecodeError> {
    let Some(size) = frame_size(buf, limit)? else { return Ok(None) };
    let whole = buf.get(..size).and_then(|frame| frame.split_first_chunk::<HEADER>());
    Ok(whole.map(|(&[tag, ..], body)| Frame { tag, body }))
}

/// Bytes of the complete frames at the start of `buf`.
pub fn complete_frames(buf: &[u8], limit: usize) -> Result<usize, DecodeError> {
    let mut frames = Frames::new(buf, limit);
    for frame in &mut frames {
        frame?;
    }
    Ok(frames.consumed())
}

impl Frame<'_> {
    /// Bytes on the wire, header included.
    #[must_use]
    #[inline]
    pub const fn size(&self) -> usize {
        HEADER + self.body.len()
    }
}

/// The complete frames at the start of a buffer. Ends at the first that is not complete, and after
/// an error.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    rest: &'a [u8],
    consumed: usize,
    limit: usize,
}

impl<'a> Frames<'a> {
    /// Frames of `buf`; `limit` bounds the length field of each.
    #[must_use]
    pub const fn new(buf: &'a [u8], limit: usize) -> Self {
        Self { rest: buf, consumed: 0, limit }
    }

    /// Bytes of the frames given so far.
    #[must_use]
    pub const fn consumed(&self) -> usize {
        self.consumed
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, DecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let frame = match next_frame(self.rest, self.limit) {
            Ok(frame) => frame?,
            Err(error) => {
                self.rest = &[];
                return Some(Err(error.shifted(self.consumed)));
            }
        };
        self.rest = self.rest.get(frame.size()..)?;
        self.consumed += frame.size();
        Some(Ok(frame))
    }
}

impl<'a> Replication<'a> {
    /// Decodes the body of a CopyData frame, which stands at `offset`.
    #[inline]
    pub fn decode(body: &'a [u8], offset: usize) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(body, offset, COPY_DATA);
        match cursor.tag()? {
            b'w' => {
                let start = Lsn(cursor.u64()?);
                let wal_end = Lsn(cursor.u64()?);
                let time_us = cursor.i64()?;
                Ok(Self::XLogData { start, wal_end, time_us, message: cursor.rest() })
            }
            b'k' => {
                let wal_end = Position(Lsn(cursor.u64()?));
                let time_us = cursor.i64()?;
                let reply = cursor.flags(1)? == 1;
                cursor.finish()?;
                Ok(Self::Keepalive { wal_end, time_us, reply })
            }
            found => {
                Err(Cursor::new(body, offset, COPY_DATA).fail(DecodeReason::UnknownTag { found }))
            }
        }
    }
}

/// Body of the CopyData frame that confirms `position`: the same in all three fields (C-08).
/// `time_us` is the client's clock, microseconds since 2000-01-01 UTC.
#[must_use]
pub fn standby_status(position: Position, time_us: i64, reply: bool) -> [u8; 34] {
    let position = position.0.0.to_be_bytes();
    let fields: [&[u8]; 6] =
        [b"r", &position, &position, &position, &time_us.to_be_bytes(), &[u8::from(reply)]];
    let mut bytes = [0; 34];
    for (to, from) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
        *to = *from;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::encode;

    const LIMIT: usize = 64;

    fn error(offset: usize, tag: u8, reason: DecodeReason) -> DecodeError {
        DecodeError { offset, tag, reason }
    }

    // A-06
    #[test]
    fn lengths_are_checked_before_the_frame_is_there() {
        let frame = |length: i32| [&b"d"[..], &length.to_be_bytes()].concat();
        for length in [i32::MIN, -1, 0, 3] {
            let below = DecodeReason::LengthBelowFour { length };
            assert_eq!(frame_size(&frame(length), LIMIT), Err(error(1, b'd', below)));
        }
        assert_eq!(frame_size(&frame(4), LIMIT), Ok(Some(5)));
        assert_eq!(frame_size(&frame(64), LIMIT), Ok(Some(65)));
        let above = DecodeReason::FrameTooLarge { length: 65, limit: LIMIT };
        assert_eq!(frame_size(&frame(65), LIMIT), Err(error(1, b'd', above)));
        assert!(frame_size(&frame(i32::MAX), LIMIT).is_err());
    }

    // A-06
    #[test]
    fn an_incomplete_frame_is_no_error() {
        let whole = encode::frame(b'd', b"abc");
        for end in 0..whole.len() {
            assert_eq!(next_frame(&whole[..end], LIMIT), Ok(None));
            assert_eq!(complete_frames(&whole[..end], LIMIT), Ok(0));
        }
        assert_eq!(next_frame(&whole, LIMIT), Ok(Some(Frame { tag: b'd', body: b"abc" })));
    }

    #[test]
    fn an_error_after_good_frames_has_its_place_and_is_the_last_item() {
        let bytes = [encode::frame(b'd', b"abc"), vec![b'Z', 0, 0, 0, 1, 9, 9]].concat();
        let mut frames = Frames::new(&bytes, LIMIT);
        assert!(frames.next().unwrap().is_ok());
        let below = DecodeReason::LengthBelowFour { length: 1 };
        assert_eq!(frames.next(), Some(Err(error(9, b'Z', below))));
        assert_eq!(frames.next(), None);
    }

    #[test]
    fn bodies_round_trip_and_are_strict() {
        let data = encode::xlog_data(Lsn(7), b"message");
        let decode = |frame: &[u8]| {
            Replication::decode(&frame[5..], 5).map(|body| match body {
                Replication::XLogData { start, message, .. } => (start.0, message.to_vec()),
                Replication::Keepalive { wal_end, reply, .. } => {
                    (wal_end.0.0, vec![u8::from(reply)])
                }
            })
        };
        assert_eq!(decode(&data), Ok((7, b"message".to_vec())));
        let alive = encode::keepalive(Position(Lsn(9)), 3, true);
        assert_eq!(alive.len(), 5 + 18);
        assert_eq!(decode(&alive), Ok((9, vec![1])));
        let mut odd = alive.clone();
        odd[22] = 2;
        assert_eq!(decode(&odd), Err(error(22, b'k', DecodeReason::UnknownFlags { found: 2 })));
        odd[5] = b'z';
        assert_eq!(decode(&odd), Err(error(5, b'd', DecodeReason::UnknownTag { found: b'z' })));
        let long = [alive, vec![0]].concat();
        assert_eq!(decode(&long), Err(error(23, b'k', DecodeReason::TrailingBytes { left: 1 })));
        let short = DecodeReason::Truncated { needed: 8, left: 7 };
        assert_eq!(decode(&data[..29]), Err(error(22, b'w', short)));
    }

    // C-08
    #[test]
    fn a_status_update_has_one_position_in_three_fields() {
        let bytes = standby_status(Position(Lsn(0x0102)), 5, true);
        let position = [0, 0, 0, 0, 0, 0, 1, 2];
        let time = [0, 0, 0, 0, 0, 0, 0, 5];
        let expected: Vec<u8> = [&b"r"[..], &position, &position, &position, &time, &[1]].concat();
        assert_eq!(bytes.to_vec(), expected);
        assert_eq!(standby_status(Position(Lsn(0x0102)), 5, false)[33], 0);
    }

    proptest! {
        // A-06
        #[test]
        fn frames_are_what_was_sent(
            sent in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..20)), 0..8),
            cut: prop::sample::Index,
        ) {
            let whole: Vec<u8> =
                sent.iter().flat_map(|(tag, body)| encode::frame(*tag, body)).collect();
            let cut = cut.index(whole.len() + 1);
            let complete = complete_frames(&whole[..cut], LIMIT).unwrap();
            let read: Vec<_> = Frames::new(&whole[..complete], LIMIT)
                .chain(Frames::new(&whole[complete..], LIMIT))
                .map(|frame| frame.map(|frame| (frame.tag, frame.body.to_vec())).unwrap())
                .collect();
            prop_assert_eq!(read, sent);
        }

        // A-I3
        #[test]
        fn any_bytes_are_frames_or_an_error(bytes: Vec<u8>) {
            if let Ok(complete) = complete_frames(&bytes, LIMIT) {
                prop_assert!(complete <= bytes.len());
            }
            walferry_coverage::reached("A-I3");
        }
    }
}
