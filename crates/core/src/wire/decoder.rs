//! A replication stream as events: what the bytes mean, and that their order makes sense.
//!
//! Owns the walk over the frames and checks each message against the order of the stream and the
//! relations announced. Must never know whose rows are wanted: filtering comes after (J-02).

use std::sync::Arc;

use bytes::Bytes;

use crate::event::Event;
use crate::lsn::Position;
use crate::names;

use super::announced::Announced;
use super::ddl::parse_ddl;
use super::error::{DecodeError, DecodeReason};
use super::frames::{COPY_DATA, Frame, Replication, Stop, next_frame};
use super::order::Order;
use super::pgoutput::Message;
use super::tuple::RowView;

/// Bounds of one session (Z).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The length field of a frame.
    pub frame_bytes: usize,
    /// Relations remembered.
    pub relations: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { frame_bytes: 1 << 30, relations: 131_072 }
    }
}

/// How far a chunk was decoded, and why not further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the frames decoded.
    pub consumed: usize,
    /// What stands behind them.
    pub stop: Stop,
}

/// Decoder of one session of one stream. After an error it only repeats that error.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    order: Order,
    announced: Announced,
    frame_bytes: usize,
    /// Bytes decoded in this session.
    offset: usize,
    failed: Option<DecodeError>,
}

impl StreamDecoder {
    /// For a stream that was started at `start`.
    #[must_use]
    pub const fn new(start: Position, limits: Limits) -> Self {
        Self {
            order: Order::new(start),
            announced: Announced::new(limits.relations),
            frame_bytes: limits.frame_bytes,
            offset: 0,
            failed: None,
        }
    }

    /// Whether a transaction was read in part.
    #[must_use]
    pub const fn in_transaction(&self) -> bool {
        self.order.in_transaction()
    }

    /// Decodes the complete CopyData frames at the start of `chunk` and appends their events. Rows
    /// are slices of `chunk` and keep it alive. What was appended before an error is valid.
    pub fn decode(
        &mut self,
        chunk: &Bytes,
        out: &mut Vec<Event<Bytes>>,
    ) -> Result<Progress, DecodeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let decoded = self.frames(chunk, out);
        match &decoded {
            Ok(progress) => self.offset = self.offset.saturating_add(progress.consumed),
            Err(error) => self.failed = Some(error.clone()),
        }
        decoded
    }

    fn frames(
        &mut self,
        chunk: &Bytes,
        out: &mut Vec<Event<Bytes>>,
    ) -> Result<Progress, DecodeError> {
        let mut rest: &[u8] = chunk;
        let mut consumed = 0;
        let stop = loop {
            let offset = self.offset.saturating_add(consumed);
            let frame =
                next_frame(rest, self.frame_bytes).map_err(|error| error.shifted(offset))?;
            match frame {
                None => break Stop::NeedBytes,
                Some(frame) if frame.tag != COPY_DATA => {
                    break Stop::OtherFrame { tag: frame.tag };
                }
                Some(frame) => {
                    out.extend(self.frame(chunk, frame, offset)?);
                    consumed += frame.size();
                    rest = rest.get(frame.size()..).unwrap_or_default();
                }
            }
        };
        Ok(Progress { consumed, stop })
    }

    #[inline]
    fn frame(
        &mut self,
        chunk: &Bytes,
        frame: Frame<'_>,
        offset: usize,
    ) -> Result<Option<Event<Bytes>>, DecodeError> {
        let body = offset + (frame.size() - frame.body.len());
        match Replication::decode(frame.body, body)? {
            Replication::XLogData { message, .. } => {
                let offset = body + (frame.body.len() - message.len());
                let place = Place { offset, tag: message.first().copied().unwrap_or_default() };
                let message = Message::decode(message, offset)?;
                self.event(chunk, message, charge(frame), place)
            }
            Replication::Keepalive { wal_end, reply, .. } => {
                Ok(Some(Event::Keepalive { wal_end, reply }))
            }
        }
    }

    #[inline]
    fn event(
        &mut self,
        chunk: &Bytes,
        message: Message<'_>,
        bytes: u32,
        place: Place,
    ) -> Result<Option<Event<Bytes>>, DecodeError> {
        let fail = |reason| place.fail(reason);
        let event = match message {
            Message::Row { kind, table, row } => {
                let columns = self.announced.columns(table).map_err(fail)?;
                RowView::validate(kind, row, columns).map_err(|error| place.in_row(error))?;
                let ordinal = self.order.number().map_err(fail)?;
                Event::Row { table, ordinal, kind, row: chunk.slice_ref(row), bytes }
            }
            Message::Begin { commit, time_us, .. } => {
                self.order.begin(commit).map_err(fail)?;
                Event::Begin { commit, time_us }
            }
            Message::Commit { commit, end, .. } => {
                self.order.commit(commit, end).map_err(fail)?;
                Event::Commit { commit, end }
            }
            Message::Relation(relation) => {
                self.order.inside().map_err(fail)?;
                self.announced.announce(&relation).map_err(fail)?;
                Event::Relation(Arc::new(relation))
            }
            Message::Truncate { tables, flags } => {
                for table in &tables {
                    self.announced.columns(*table).map_err(fail)?;
                }
                let ordinal = self.order.number().map_err(fail)?;
                Event::Truncate { tables, flags, ordinal }
            }
            Message::Logical { transactional, lsn, prefix, content } => {
                self.order.logical(transactional).map_err(fail)?;
                // One outside of a transaction has no place among the rows.
                if transactional && names::is_ddl_prefix(prefix) {
                    return Ok(Some(Event::Ddl(parse_ddl(content).map(Arc::new))));
                }
                let (prefix, content) = (prefix.into(), chunk.slice_ref(content));
                Event::Message { transactional, lsn, prefix, content, bytes }
            }
            Message::Origin { .. } | Message::Type { .. } => {
                self.order.inside().map_err(fail)?;
                return Ok(None);
            }
        };
        Ok(Some(event))
    }
}

/// Where a message stands, for errors.
#[derive(Clone, Copy)]
struct Place {
    offset: usize,
    tag: u8,
}

impl Place {
    #[cold]
    const fn fail(self, reason: DecodeReason) -> DecodeError {
        DecodeError { offset: self.offset, tag: self.tag, reason }
    }

    /// The row stands behind tag and table.
    #[cold]
    const fn in_row(self, error: DecodeError) -> DecodeError {
        self.fail(error.reason).shifted(error.offset + 5)
    }
}

/// Memory that the event of a frame keeps alive: the frame, so that all events of a buffer cover
/// the buffer (B-05), and itself.
#[inline]
fn charge(frame: Frame<'_>) -> u32 {
    u32::try_from(frame.size() + size_of::<Event<Bytes>>()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{RowKind, TruncateFlags};
    use crate::ids::TableId;
    use crate::lsn::{CommitLsn, Lsn};
    use crate::schema::{Relation, ReplicaIdentity};
    use crate::wire::{Cell, encode};

    const START: Position = Position(Lsn(100));
    const T: TableId = TableId(7);

    fn begin(commit: u64) -> Message<'static> {
        Message::Begin { commit: CommitLsn(Lsn(commit)), time_us: 5, xid: 1 }
    }

    fn commit(commit: u64, end: u64) -> Message<'static> {
        Message::Commit { commit: CommitLsn(Lsn(commit)), end: Position(Lsn(end)), time_us: 5 }
    }

    fn announce(table: TableId) -> Message<'static> {
        Message::Relation(Relation {
            table,
            namespace: "public".to_owned(),
            name: "t".to_owned(),
            identity: ReplicaIdentity::Default,
            columns: vec![],
        })
    }

    fn row(table: TableId) -> Message<'static> {
        Message::Row { kind: RowKind::Insert, table, row: b"N\0\0" }
    }

    fn truncate(tables: &[TableId]) -> Message<'static> {
        Message::Truncate { tables: tables.into(), flags: TruncateFlags::default() }
    }

    fn logical(transactional: bool) -> Message<'static> {
        Message::Logical { transactional, lsn: Lsn(3), prefix: "p", content: b"c" }
    }

    fn decode(bytes: Vec<u8>) -> Result<Vec<Event<Bytes>>, DecodeError> {
        let mut decoder = StreamDecoder::new(START, Limits { relations: 2, ..Limits::default() });
        let mut events = Vec::new();
        let progress = decoder.decode(&bytes.clone().into(), &mut events)?;
        assert_eq!(progress, Progress { consumed: bytes.len(), stop: Stop::NeedBytes });
        Ok(events)
    }

    // J-02, PG-18: rows and truncates are numbered over all tables; messages are not
    #[test]
    fn ordinals_start_again_in_each_transaction() {
        let other = Message::Type { oid: 1, namespace: "", name: "mood" };
        let origin = Message::Origin { commit: Lsn(1), name: "up" };
        let first = [begin(100), origin, announce(T), announce(TableId(8)), other, row(T)];
        let rest = [logical(true), truncate(&[T, TableId(8)]), row(TableId(8)), commit(100, 110)];
        let second = [logical(false), begin(110), row(T), row(TableId(8)), commit(110, 111)];
        let events = decode(encode::stream(&[&first[..], &rest, &second].concat())).unwrap();
        let ordinal = |event: &Event<Bytes>| match event {
            Event::Row { ordinal, .. } | Event::Truncate { ordinal, .. } => Some(*ordinal),
            Event::Begin { .. }
            | Event::Relation(_)
            | Event::Ddl(_)
            | Event::Message { .. }
            | Event::Commit { .. }
            | Event::Keepalive { .. } => None,
        };
        assert_eq!(events.iter().filter_map(ordinal).collect::<Vec<_>>(), [0, 1, 2, 0, 1]);
        assert_eq!(events.len(), 13);
    }

    // A-07, D-09; the rest of the order is in `order`
    #[test]
    fn messages_out_of_order_are_refused_where_they_stand() {
        let unknown = DecodeReason::UnknownRelation { table: T };
        let outside = DecodeReason::OutsideTransaction;
        let (open, found) = (CommitLsn(Lsn(100)), CommitLsn(Lsn(101)));
        let eight = announce(TableId(8));
        let cases = [
            (vec![begin(100), begin(101)], DecodeReason::NestedBegin { open, found }),
            (vec![begin(100), row(T)], unknown),
            (vec![begin(100), truncate(&[T])], unknown),
            (vec![begin(100), announce(T), commit(100, 101), row(T)], outside),
            (vec![announce(T)], outside),
            (vec![logical(true)], outside),
            (vec![begin(100), logical(false)], DecodeReason::InsideTransaction { open }),
            (
                vec![begin(100), announce(T), eight, announce(TableId(9))],
                DecodeReason::TooManyRelations { limit: 2 },
            ),
        ];
        for (messages, reason) in cases {
            let error = decode(encode::stream(&messages)).unwrap_err();
            let before = encode::stream(&messages[..messages.len() - 1]).len();
            assert_eq!((error.offset, error.reason), (before + 30, reason), "{messages:?}");
        }
    }

    // the announced relation says how many columns a row has
    #[test]
    fn a_row_error_names_its_place_in_the_session() {
        let mut decoder = StreamDecoder::new(START, Limits::default());
        let head = Bytes::from(encode::stream(&[begin(100), announce(T)]));
        decoder.decode(&head, &mut Vec::new()).unwrap();
        let wide = encode::xlog_data(Lsn::ZERO, &encode::insert(T, &[Cell::Null]));
        let reason = DecodeReason::ColumnCount { expected: 0, found: 1 };
        let expected = DecodeError { offset: head.len() + 30 + 5 + 1, tag: b'I', reason };
        assert_eq!(decoder.decode(&wide.into(), &mut Vec::new()), Err(expected.clone()));
        let good = Bytes::from(encode::stream(&[commit(100, 101)]));
        assert_eq!(decoder.decode(&good, &mut Vec::new()), Err(expected));
    }

    // D-05, A-02, J-06
    #[test]
    fn schema_messages_are_read_inside_a_transaction_only() {
        let message = |transactional, prefix| Message::Logical {
            transactional,
            lsn: Lsn(3),
            prefix,
            content: b"{}",
        };
        let ours = ["walferry_ddl", "supabase_etl_ddl"];
        for prefix in ours {
            let inside = [begin(100), message(true, prefix), commit(100, 101)];
            let events = decode(encode::stream(&inside)).unwrap();
            assert!(matches!(&events[1], Event::Ddl(Err(reason)) if !reason.is_empty()));
            let events = decode(encode::stream(&[message(false, prefix)])).unwrap();
            assert!(matches!(&events[0], Event::Message { transactional: false, .. }));
        }
        let other = [begin(100), message(true, "walferry_ddlx"), commit(100, 101)];
        let events = decode(encode::stream(&other)).unwrap();
        assert!(matches!(&events[1], Event::Message { .. }));
    }

    // B-05
    #[test]
    fn a_row_is_a_slice_and_is_charged_with_its_frame() {
        let events = decode(encode::stream(&[begin(100), announce(T), row(T)])).unwrap();
        let Some(Event::Row { row, bytes, .. }) = events.last() else { unreachable!() };
        assert_eq!(row, &b"N\0\0"[..]);
        assert_eq!(*bytes as usize, 38 + size_of::<Event<Bytes>>());
    }

    #[test]
    fn decoding_stops_at_frames_of_others() {
        let data = encode::stream(&[begin(100)]);
        let bytes = [&data[..], &encode::frame(b'c', b""), &data].concat();
        let mut decoder = StreamDecoder::new(START, Limits::default());
        let progress = decoder.decode(&bytes.into(), &mut Vec::new());
        let stop = Stop::OtherFrame { tag: b'c' };
        assert_eq!(progress, Ok(Progress { consumed: data.len(), stop }));
        assert!(decoder.in_transaction());
    }
}
