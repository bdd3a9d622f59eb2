//! What can be wrong with bytes from the wire, and where.
//!
//! Owns the reasons and their class. Knows nothing of retries: who decides on them reads the class.

use core::fmt;

use thiserror::Error;

use crate::ids::TableId;
use crate::lsn::{CommitLsn, Position};

/// Bytes that are not what the protocol promises.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{reason} at byte {offset}{}", Within(*tag))]
pub struct DecodeError {
    /// Where, in bytes from the start of what was decoded: of the session for a stream decoder, of
    /// the slice that was passed for everything else.
    pub offset: usize,
    /// Tag of the innermost frame or message it lies in, 0 if there is none.
    pub tag: u8,
    /// What is wrong.
    pub reason: DecodeReason,
}

/// What is wrong, with the values that contradict each other.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum DecodeReason {
    /// The frame, message or value ends too early.
    #[error("{needed} bytes needed, {left} left")]
    Truncated {
        /// Bytes that the next field takes.
        needed: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// The message is complete and bytes follow.
    #[error("{left} bytes after the end of the message")]
    TrailingBytes {
        /// How many.
        left: usize,
    },
    /// A frame, message, tuple or column marker that does not belong here.
    #[error("unknown tag {found:#04x}")]
    UnknownTag {
        /// The marker.
        found: u8,
    },
    /// A length or count below zero.
    #[error("negative length {length}")]
    NegativeLength {
        /// The length.
        length: i32,
    },
    /// A frame whose length does not even cover itself.
    #[error("frame length {length} is below 4")]
    LengthBelowFour {
        /// The length.
        length: i32,
    },
    /// A frame above the limit.
    #[error("frame length {length} is above the limit {limit}")]
    FrameTooLarge {
        /// The length.
        length: usize,
        /// `frame_bytes`.
        limit: usize,
    },
    /// A row that has not the columns its relation announced.
    #[error("{found} columns where {expected} were announced")]
    ColumnCount {
        /// Columns of the relation.
        expected: usize,
        /// Columns of the row.
        found: usize,
    },
    /// A relation with more columns than a table can have.
    #[error("{found} columns are above the limit {limit}")]
    TooManyColumns {
        /// Columns announced.
        found: usize,
        /// PostgreSQL's own maximum.
        limit: usize,
    },
    /// More relations announced in one session than are remembered.
    #[error("more than {limit} relations in one session")]
    TooManyRelations {
        /// How many are remembered.
        limit: usize,
    },
    /// A name that is not UTF-8.
    #[error("name is not utf-8")]
    NotUtf8,
    /// A name without its zero byte.
    #[error("name without end in the {left} bytes left")]
    UnterminatedName {
        /// Bytes that were searched.
        left: usize,
    },
    /// A flag byte with bits that have no meaning.
    #[error("unknown flags {found:#04x}")]
    UnknownFlags {
        /// The byte.
        found: u8,
    },
    /// BEGIN inside a transaction.
    #[error("begin of {found} inside the transaction {open}")]
    NestedBegin {
        /// The open transaction.
        open: CommitLsn,
        /// The one that begins.
        found: CommitLsn,
    },
    /// A message that belongs inside BEGIN and COMMIT.
    #[error("message outside a transaction")]
    OutsideTransaction,
    /// A message that belongs outside BEGIN and COMMIT (PG-25).
    #[error("non-transactional message inside the transaction {open}")]
    InsideTransaction {
        /// The open transaction.
        open: CommitLsn,
    },
    /// COMMIT names another transaction than BEGIN.
    #[error("commit of {found} ends the transaction {open}")]
    CommitContradictsBegin {
        /// The open transaction.
        open: CommitLsn,
        /// The one that COMMIT names.
        found: CommitLsn,
    },
    /// The end of a transaction does not lie past its commit position.
    #[error("end {end} is not past the commit {commit}")]
    EndNotPastCommit {
        /// Start of the commit record.
        commit: CommitLsn,
        /// First byte after it.
        end: Position,
    },
    /// A transaction that the start position should have kept out.
    #[error("transaction {commit} lies below the start position {start}")]
    BelowStart {
        /// The transaction.
        commit: CommitLsn,
        /// Where the stream was started.
        start: Position,
    },
    /// A transaction below the end of the one before it.
    #[error("transaction {commit} lies below the end {previous} of the one before")]
    PositionBack {
        /// The transaction.
        commit: CommitLsn,
        /// Where the previous one ended.
        previous: Position,
    },
    /// A row or truncate of a table that no RELATION announced (D-09).
    #[error("table {table} was not announced")]
    UnknownRelation {
        /// The table.
        table: TableId,
    },
    /// A TRUNCATE of no table.
    #[error("truncate without tables")]
    EmptyTruncate,
    /// A COPY row that does not end in a newline.
    #[error("copy row without newline")]
    RowWithoutNewline,
    /// A COPY row that has a newline inside.
    #[error("newline inside a copy row")]
    NewlineInRow,
    /// A backslash followed by something without meaning.
    #[error("unknown escape {found:#04x}")]
    UnknownEscape {
        /// The byte after the backslash.
        found: u8,
    },
    /// A backslash that ends a value.
    #[error("backslash at the end of a value")]
    LoneBackslash,
}

/// How an error is handled: the peer broke the protocol, or a bound of ours was exceeded (Z-02).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeClass {
    /// The bytes contradict the protocol.
    Protocol,
    /// They may be right, and are more than we take.
    Limit,
}

impl DecodeError {
    /// Whether the protocol was broken or a bound exceeded.
    #[must_use]
    pub const fn class(&self) -> DecodeClass {
        self.reason.class()
    }

    /// The same error in a larger buffer, in which the decoded slice starts at `base`.
    #[must_use]
    pub const fn shifted(mut self, base: usize) -> Self {
        self.offset = self.offset.saturating_add(base);
        self
    }
}

impl DecodeReason {
    const fn class(self) -> DecodeClass {
        match self {
            Self::FrameTooLarge { .. }
            | Self::TooManyColumns { .. }
            | Self::TooManyRelations { .. } => DecodeClass::Limit,
            Self::Truncated { .. }
            | Self::TrailingBytes { .. }
            | Self::UnknownTag { .. }
            | Self::NegativeLength { .. }
            | Self::LengthBelowFour { .. }
            | Self::ColumnCount { .. }
            | Self::NotUtf8
            | Self::UnterminatedName { .. }
            | Self::UnknownFlags { .. }
            | Self::NestedBegin { .. }
            | Self::OutsideTransaction
            | Self::InsideTransaction { .. }
            | Self::CommitContradictsBegin { .. }
            | Self::EndNotPastCommit { .. }
            | Self::BelowStart { .. }
            | Self::PositionBack { .. }
            | Self::UnknownRelation { .. }
            | Self::EmptyTruncate
            | Self::RowWithoutNewline
            | Self::NewlineInRow
            | Self::UnknownEscape { .. }
            | Self::LoneBackslash => DecodeClass::Protocol,
        }
    }
}

struct Within(u8);

impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            tag => write!(f, " in '{}'", tag.escape_ascii()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    #[test]
    fn a_message_names_values_place_and_tag() {
        let back =
            DecodeReason::PositionBack { commit: CommitLsn(Lsn(16)), previous: Position(Lsn(32)) };
        let cases = [
            (
                DecodeError { offset: 7, tag: b'B', reason: back },
                "transaction 0/10 lies below the end 0/20 of the one before at byte 7 in 'B'",
            ),
            (
                DecodeError { offset: 0, tag: 0, reason: DecodeReason::UnknownTag { found: 7 } },
                "unknown tag 0x07 at byte 0",
            ),
        ];
        for (error, text) in cases {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn a_shift_keeps_all_but_the_offset() {
        let error = DecodeError { offset: 7, tag: b'B', reason: DecodeReason::NotUtf8 };
        assert_eq!(error.clone().shifted(3), DecodeError { offset: 10, ..error });
    }

    // A-06, Z-02
    #[test]
    fn only_bounds_are_limits() {
        let limit = DecodeReason::FrameTooLarge { length: 9, limit: 8 };
        assert_eq!(limit.class(), DecodeClass::Limit);
        assert_eq!(DecodeReason::LengthBelowFour { length: 3 }.class(), DecodeClass::Protocol);
    }
}
