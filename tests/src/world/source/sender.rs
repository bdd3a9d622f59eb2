//! One walsender: turns the WAL into the events of a stream, from a start position on.

use std::collections::BTreeMap;

use walferry_core::event::Event;
use walferry_core::fault::{FaultKind, SqlState};
use walferry_core::ids::{Session, TableId};
use walferry_core::lsn::Position;

use super::table::relation_of;
use super::wal::{Shown, Transaction, WalEvent};
use crate::world::row::Row;

/// The sending side of one session.
#[derive(Clone, Debug)]
pub struct Sender {
    /// The session.
    pub session: Session,
    /// Its slot.
    pub slot: String,
    /// Whether feedback asked for a keepalive (PG-11).
    pub reply_due: bool,
    /// Everything that commits below is left out, whether it is there already or not (PG-06).
    start: Position,
    /// Up to 14 a transaction without events is sent all the same (PG-12).
    sends_empty: bool,
    /// Up to 17 what was written without the publication cannot be decoded (PG-23, PG-24).
    strict: bool,
    /// The transaction to send or being sent.
    next: usize,
    /// Where inside it: 0 is the begin, 1.. the events, then the commit.
    inside: usize,
    ordinal: u64,
    /// Everything that committed below was sent.
    sent: Position,
    /// Relations announced, with their generation (PG-13).
    announced: BTreeMap<TableId, u32>,
}

impl Sender {
    /// A session that starts at `start` (PG-02).
    #[must_use]
    pub fn new(
        session: Session,
        slot: String,
        start: Position,
        wal: &[Transaction],
        version: u32,
    ) -> Self {
        let next = wal.partition_point(|transaction| start.covers(transaction.commit));
        Self {
            session,
            slot,
            reply_due: false,
            start,
            sends_empty: version < 150_000,
            strict: version < 180_000,
            next,
            inside: 0,
            ordinal: 0,
            sent: start,
            announced: BTreeMap::new(),
        }
    }

    /// Whether it has sent a part of a transaction.
    #[must_use]
    pub const fn is_inside(&self) -> bool {
        self.inside > 0
    }

    fn sends(&self, transaction: &Transaction) -> bool {
        !self.start.covers(transaction.commit)
            && (self.sends_empty || !transaction.events.is_empty())
    }

    /// Whether there is something to send.
    #[must_use]
    pub fn has_next(&self, wal: &[Transaction]) -> bool {
        wal.get(self.next..).is_some_and(|rest| rest.iter().any(|t| self.sends(t)))
    }

    /// Why it cannot go on, if it cannot (PG-23, PG-24).
    #[must_use]
    pub fn refusal(&self, wal: &[Transaction]) -> Option<FaultKind> {
        let next = wal.get(self.next)?;
        let refused = self.strict && !next.decodable;
        refused.then_some(FaultKind::Server { code: SqlState(*b"42704") })
    }

    /// The next event (PG-03, PG-04, PG-13).
    pub fn next(&mut self, wal: &[Transaction]) -> Option<Event<Row>> {
        while self.inside == 0 && wal.get(self.next).is_some_and(|next| !self.sends(next)) {
            self.next += 1;
        }
        let transaction = wal.get(self.next)?;
        if self.inside == 0 && self.refusal(wal).is_some() {
            return None;
        }
        let commit = transaction.commit;
        if transaction.loose {
            self.next += 1;
            return transaction.events.first().map(|event| self.event(event, transaction));
        }
        if self.inside == 0 {
            (self.inside, self.ordinal) = (1, 0);
            return Some(Event::Begin { commit, time_us: 0 });
        }
        let Some(event) = transaction.events.get(self.inside - 1) else {
            self.next += 1;
            self.inside = 0;
            self.sent = transaction.end;
            return Some(Event::Commit { commit, end: transaction.end });
        };
        if let Some(shown) = self.unannounced(event) {
            self.announced.insert(shown.table, shown.generation);
            return Some(Event::Relation(relation_of(&shown.shape)));
        }
        self.inside += 1;
        Some(self.event(event, transaction))
    }

    fn unannounced<'a>(&self, event: &'a WalEvent) -> Option<&'a Shown> {
        let known = |shown: &&Shown| self.announced.get(&shown.table) != Some(&shown.generation);
        match event {
            WalEvent::Row(shown, _) => Some(shown).filter(known),
            WalEvent::Truncate(tables, _) => tables.iter().find(known),
            WalEvent::Ddl(_) | WalEvent::Message { .. } => None,
        }
    }

    fn event(&mut self, event: &WalEvent, transaction: &Transaction) -> Event<Row> {
        match event {
            WalEvent::Row(shown, change) => Event::Row {
                table: shown.table,
                ordinal: self.take_ordinal(),
                kind: change.kind(),
                row: Row::Change(change.clone()),
                bytes: transaction.row_bytes,
            },
            WalEvent::Truncate(tables, flags) => Event::Truncate {
                tables: tables.iter().map(|shown| shown.table).collect(),
                flags: *flags,
                ordinal: self.take_ordinal(),
            },
            WalEvent::Ddl(message) => Event::Ddl(Ok(message.clone())),
            WalEvent::Message { lsn, prefix } => Event::Message {
                transactional: !transaction.loose,
                lsn: *lsn,
                prefix: (*prefix).into(),
                content: Row::Block(Vec::new()),
                bytes: 0,
            },
        }
    }

    const fn take_ordinal(&mut self) -> u64 {
        self.ordinal += 1;
        self.ordinal - 1
    }

    /// Where a keepalive may stand now (PG-08, PG-09).
    pub fn keepalive_position(
        &mut self,
        wal: &[Transaction],
        head: Position,
        far: bool,
    ) -> Position {
        if far && self.inside == 0 {
            let mut rest = wal.get(self.next..).unwrap_or_default().iter();
            let unsent = rest.find(|next| self.sends(next));
            let unsent = unsent.map(|transaction| Position(transaction.commit.0));
            self.sent = self.sent.max(unsent.unwrap_or(head));
        }
        self.sent
    }
}
