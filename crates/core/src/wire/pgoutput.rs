//! Messages of the output plugin, protocol version 1.
//!
//! Owns the shape of each message and is strict about it. Knows nothing of their order, and
//! does not look into rows: how many columns those have, only the relation says.

use crate::event::{RowKind, TruncateFlags};
use crate::ids::TableId;
use crate::lsn::{CommitLsn, Lsn, Position};
use crate::schema::{Relation, RelationColumn, ReplicaIdentity};

use super::cursor::Cursor;
use super::error::{DecodeError, DecodeReason};

/// Columns of a table: PostgreSQL's own maximum (Z).
const COLUMNS_MAX: usize = 1_600;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A transaction starts.
    Begin {
        /// Start of its commit record (PG-03).
        commit: CommitLsn,
        /// Commit time, microseconds since 2000-01-01 UTC.
        time_us: i64,
        /// Transaction id.
        xid: u32,
    },
    /// It ends.
    Commit {
        /// Start of its commit record.
        commit: CommitLsn,
        /// First byte after the commit record.
        end: Position,
        /// Commit time, microseconds since 2000-01-01 UTC.
        time_us: i64,
    },
    /// Where a transaction came from, if the source is itself a replica.
    Origin {
        /// Its commit position there.
        commit: Lsn,
        /// Name of the origin.
        name: &'a str,
    },
    /// What the rows that follow look like.
    Relation(Relation),
    /// Name of a type that is not built in.
    Type {
        /// OID of the type.
        oid: u32,
        /// Its schema (namespace) name.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
    },
    /// A row change.
    Row {
        /// What it does.
        kind: RowKind,
        /// The table.
        table: TableId,
        /// All that follows the table; not looked at.
        row: &'a [u8],
    },
    /// One TRUNCATE statement (PG-18).
    Truncate {
        /// The tables, at least one.
        tables: Box<[TableId]>,
        /// Options of the statement.
        flags: TruncateFlags,
    },
    /// A logical message (PG-25).
    Logical {
        /// Whether it belongs to a transaction.
        transactional: bool,
        /// Its own position.
        lsn: Lsn,
        /// What the writer called it.
        prefix: &'a str,
        /// What it says.
        content: &'a [u8],
    },
}

impl<'a> Message<'a> {
    /// Decodes one message, which stands at `offset`.
    #[inline]
    pub fn decode(message: &'a [u8], offset: usize) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(message, offset, 0);
        let kind = match cursor.tag()? {
            b'I' => RowKind::Insert,
            b'U' => RowKind::Update,
            b'D' => RowKind::Delete,
            tag => return Self::decode_other(tag, cursor, offset),
        };
        Ok(Self::Row { kind, table: TableId(cursor.u32()?), row: cursor.rest() })
    }

    fn decode_other(tag: u8, mut cursor: Cursor<'a>, offset: usize) -> Result<Self, DecodeError> {
        let decoded = match tag {
            b'B' => begin(&mut cursor),
            b'C' => commit(&mut cursor),
            b'O' => Ok(Self::Origin { commit: Lsn(cursor.u64()?), name: cursor.name()? }),
            b'R' => relation(&mut cursor).map(Self::Relation),
            b'Y' => {
                let oid = cursor.u32()?;
                Ok(Self::Type { oid, namespace: cursor.name()?, name: cursor.name()? })
            }
            b'T' => truncate(&mut cursor),
            b'M' => logical(&mut cursor),
            found => {
                let reason = DecodeReason::UnknownTag { found };
                return Err(DecodeError { offset, tag: 0, reason });
            }
        }?;
        cursor.finish()?;
        Ok(decoded)
    }
}

fn begin<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>, DecodeError> {
    let commit = CommitLsn(Lsn(cursor.u64()?));
    Ok(Message::Begin { commit, time_us: cursor.i64()?, xid: cursor.u32()? })
}

fn commit<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>, DecodeError> {
    cursor.flags(0)?;
    let commit = CommitLsn(Lsn(cursor.u64()?));
    let end = Position(Lsn(cursor.u64()?));
    Ok(Message::Commit { commit, end, time_us: cursor.i64()? })
}

fn relation(cursor: &mut Cursor<'_>) -> Result<Relation, DecodeError> {
    let table = TableId(cursor.u32()?);
    let namespace = cursor.name()?.to_owned();
    let name = cursor.name()?.to_owned();
    let identity = identity(cursor)?;
    let place = cursor.clone();
    let count = usize::from(cursor.count()?);
    if count > COLUMNS_MAX {
        let (found, limit) = (count, COLUMNS_MAX);
        return Err(place.fail(DecodeReason::TooManyColumns { found, limit }));
    }
    let columns = (0..count).map(|_| column(cursor)).collect::<Result<_, _>>()?;
    Ok(Relation { table, namespace, name, identity, columns })
}

fn identity(cursor: &mut Cursor<'_>) -> Result<ReplicaIdentity, DecodeError> {
    let place = cursor.clone();
    match cursor.u8()? {
        b'd' => Ok(ReplicaIdentity::Default),
        b'n' => Ok(ReplicaIdentity::Nothing),
        b'f' => Ok(ReplicaIdentity::Full),
        b'i' => Ok(ReplicaIdentity::Index),
        found => Err(place.fail(DecodeReason::UnknownTag { found })),
    }
}

fn column(cursor: &mut Cursor<'_>) -> Result<RelationColumn, DecodeError> {
    let key = cursor.flags(1)? == 1;
    let name = cursor.name()?.to_owned();
    Ok(RelationColumn { key, name, type_oid: cursor.u32()?, modifier: cursor.i32()? })
}

fn truncate<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>, DecodeError> {
    let place = cursor.clone();
    let count = cursor.length()?;
    let flags = cursor.flags(3)?;
    if count == 0 {
        return Err(place.fail(DecodeReason::EmptyTruncate));
    }
    // Before allocation: as many as announced must be there.
    let mut list = Cursor::clone(cursor);
    cursor.take(count.saturating_mul(4))?;
    let tables = (0..count).map(|_| list.u32().map(TableId)).collect::<Result<_, _>>()?;
    let flags = TruncateFlags { cascade: flags & 1 != 0, restart_identity: flags & 2 != 0 };
    Ok(Message::Truncate { tables, flags })
}

fn logical<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>, DecodeError> {
    let transactional = cursor.flags(1)? == 1;
    let lsn = Lsn(cursor.u64()?);
    let prefix = cursor.name()?;
    let length = cursor.length()?;
    Ok(Message::Logical { transactional, lsn, prefix, content: cursor.take(length)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{DecodeClass, encode};

    fn relation_of(columns: usize) -> Relation {
        let column = |index: usize| RelationColumn {
            key: index.is_multiple_of(2),
            name: format!("c{index}"),
            type_oid: 23,
            modifier: -1,
        };
        Relation {
            table: TableId(7),
            namespace: "public".to_owned(),
            name: "naïve".to_owned(),
            identity: ReplicaIdentity::Index,
            columns: (0..columns).map(column).collect(),
        }
    }

    fn messages() -> Vec<Message<'static>> {
        let commit = CommitLsn(Lsn(0x0102_0304_0506_0708));
        let flags = TruncateFlags { cascade: false, restart_identity: true };
        vec![
            Message::Begin { commit, time_us: -5, xid: 9 },
            Message::Commit { commit, end: commit.after_start(), time_us: i64::MAX },
            Message::Origin { commit: commit.0, name: "upstream" },
            Message::Relation(relation_of(3)),
            Message::Relation(relation_of(0)),
            Message::Type { oid: 16_400, namespace: "public", name: "mood" },
            Message::Row { kind: RowKind::Insert, table: TableId(7), row: b"N\0\0" },
            Message::Row { kind: RowKind::Update, table: TableId(7), row: b"anything" },
            Message::Row { kind: RowKind::Delete, table: TableId(u32::MAX), row: b"" },
            Message::Truncate { tables: [TableId(1), TableId(2)].into(), flags },
            Message::Logical { transactional: true, lsn: Lsn(8), prefix: "p", content: b"\0x" },
            Message::Logical { transactional: false, lsn: Lsn(8), prefix: "", content: b"" },
        ]
    }

    fn decode(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
        Message::decode(bytes, 0)
    }

    fn reason(bytes: &[u8]) -> (usize, DecodeReason) {
        let error = decode(bytes).unwrap_err();
        (error.offset, error.reason)
    }

    #[test]
    fn messages_round_trip() {
        for message in messages() {
            assert_eq!(decode(&encode::message(&message)), Ok(message));
        }
    }

    //
    #[test]
    fn neither_less_nor_more_than_a_message_is_one() {
        for message in messages() {
            let bytes = encode::message(&message);
            let fixed = if matches!(message, Message::Row { .. }) { 5 } else { bytes.len() };
            for end in 0..fixed {
                assert!(decode(&bytes[..end]).is_err(), "{message:?} cut at {end}");
            }
            if fixed == bytes.len() && fixed > 5 {
                let long = [&bytes[..], &[0]].concat();
                assert_eq!(reason(&long), (fixed, DecodeReason::TrailingBytes { left: 1 }));
            }
        }
    }

    //
    #[test]
    fn unknown_tags_and_flags_are_refused() {
        assert_eq!(reason(b"S123"), (0, DecodeReason::UnknownTag { found: b'S' }));
        let flagged = |message: &Message<'_>, at: usize, flags: u8| {
            let mut bytes = encode::message(message);
            bytes[at] = flags;
            reason(&bytes)
        };
        let all = messages();
        let cases = [(1, 1, 1), (9, 5, 4), (10, 1, 2)];
        for (message, at, found) in cases {
            let expected = (at, DecodeReason::UnknownFlags { found });
            assert_eq!(flagged(&all[message], at, found), expected);
        }
        let identity = 1 + 4 + 7 + 7;
        let expected = (identity, DecodeReason::UnknownTag { found: b'x' });
        assert_eq!(flagged(&all[3], identity, b'x'), expected);
    }

    // A-07, Z-02: counts are checked before anything is allocated for them
    #[test]
    fn counts_are_checked_before_allocation() {
        let truncate = |count: i32| [&b"T"[..], &count.to_be_bytes(), &[0]].concat();
        assert_eq!(reason(&truncate(-1)), (1, DecodeReason::NegativeLength { length: -1 }));
        assert_eq!(reason(&truncate(0)), (1, DecodeReason::EmptyTruncate));
        let needed = usize::try_from(i32::MAX).unwrap() * 4;
        let short = DecodeReason::Truncated { needed, left: 0 };
        assert_eq!(reason(&truncate(i32::MAX)), (6, short));

        assert!(decode(&encode::message(&Message::Relation(relation_of(1_600)))).is_ok());
        let error = decode(&encode::message(&Message::Relation(relation_of(1_601)))).map(drop);
        assert_eq!(error.unwrap_err().class(), DecodeClass::Limit);
    }

    proptest! {
        // A-I3: another valid message has exactly one encoding, so nothing was overlooked
        #[test]
        fn a_changed_byte_is_an_error_or_another_message(
            which in 0..12_usize, at: prop::sample::Index, value: u8,
        ) {
            let mut bytes = encode::message(&messages()[which]);
            let at = at.index(bytes.len());
            bytes[at] = value;
            if let Ok(message) = decode(&bytes) {
                prop_assert_eq!(encode::message(&message), bytes);
            }
            walferry_coverage::reached("A-I3");
        }
    }
}
