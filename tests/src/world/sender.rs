//! One walsender: turns the WAL into the events of a stream, from a start position on.

use std::collections::BTreeSet;

use walferry_core::event::Event;
use walferry_core::ids::{Session, TableId};
use walferry_core::lsn::Position;

use super::row::Row;
use super::source::{FLAGS, Transaction, WalEvent, relation, tables_of};

/// The sending side of one session.
#[derive(Clone, Debug)]
pub struct Sender {
    /// The session.
    pub session: Session,
    /// Its slot.
    pub slot: String,
    /// Whether feedback asked for a keepalive (PG-11).
    pub reply_due: bool,
    /// The transaction to send or being sent.
    next: usize,
    /// Where inside it: 0 is the begin, 1.. the events, then the commit.
    inside: usize,
    /// Everything that committed below was sent.
    sent: Position,
    /// Relations announced (PG-13).
    announced: BTreeSet<TableId>,
}

impl Sender {
    /// A session that starts at `start` (PG-02).
    #[must_use]
    pub fn new(session: Session, slot: String, start: Position, wal: &[Transaction]) -> Self {
        let next = wal.partition_point(|transaction| start.covers(transaction.commit));
        Self {
            session,
            slot,
            reply_due: false,
            next,
            inside: 0,
            sent: start,
            announced: BTreeSet::new(),
        }
    }

    /// Whether there is something to send.
    #[must_use]
    pub const fn has_next(&self, wal: &[Transaction]) -> bool {
        self.next < wal.len()
    }

    /// The next event (PG-03, PG-04, PG-13).
    pub fn next(&mut self, wal: &[Transaction]) -> Option<Event<Row>> {
        let transaction = wal.get(self.next)?;
        let commit = transaction.commit;
        if self.inside == 0 {
            self.inside = 1;
            return Some(Event::Begin { commit, time_us: 0 });
        }
        let Some(event) = transaction.events.get(self.inside - 1) else {
            self.next += 1;
            self.inside = 0;
            self.sent = transaction.end;
            return Some(Event::Commit { commit, end: transaction.end });
        };
        if let Some(table) = tables_of(event).into_iter().find(|t| !self.announced.contains(t)) {
            self.announced.insert(table);
            return Some(Event::Relation(relation(table)));
        }
        let ordinal = self.inside as u64 - 1;
        self.inside += 1;
        Some(match event {
            WalEvent::Row(table, change) => Event::Row {
                table: *table,
                ordinal,
                kind: change.kind(),
                row: Row::Change(*change),
                bytes: transaction.row_bytes,
            },
            WalEvent::Truncate(tables) => {
                for table in tables {
                    self.announced.remove(table);
                }
                Event::Truncate { tables: tables.clone().into(), flags: FLAGS, ordinal }
            }
        })
    }

    /// Where a keepalive may stand now (PG-08, PG-09).
    pub fn keepalive_position(
        &mut self,
        wal: &[Transaction],
        head: Position,
        far: bool,
    ) -> Position {
        if far && self.inside == 0 {
            let unsent = wal.get(self.next).map(|transaction| Position(transaction.commit.0));
            self.sent = self.sent.max(unsent.unwrap_or(head));
        }
        self.sent
    }
}
