//! Replication slots: their states, their creation, which waits for running transactions, and the
//! streams that read from them (PG-02, PG-05, PG-06, PG-30, PG-35).

use std::collections::BTreeSet;

use walferry_core::event::Event;
use walferry_core::fault::FaultKind;
use walferry_core::ids::{OpId, Session, StreamId};
use walferry_core::lsn::{Lsn, Position};
use walferry_core::source::{Blocker, CreatedSlot, SlotFacts, SlotHolder, SlotReport};
use walferry_core::time::Instant;

use super::{Refusal, Sender, Source, server_error};
use crate::world::row::Row;

/// A replication slot.
#[derive(Clone, Debug)]
pub struct Slot {
    /// WAL below may be gone.
    pub confirmed: Position,
    /// What of it is on disk: a crash of the server goes back to it (PG-07).
    pub on_disk: Position,
    /// Whether it ends with its session.
    pub temporary: bool,
    /// Whether a standby copies it (PG-34).
    pub failover: bool,
    /// Somebody else holds it until then.
    pub held_until: Option<Instant>,
    /// Why it can no longer be used (PG-35).
    pub invalid: Option<&'static str>,
    /// Whether an administrator has moved it, so that a pipeline can only refuse it.
    pub advanced: bool,
    /// Its plugin: another one makes it foreign.
    pub plugin: &'static str,
}

/// A slot creation that waits (PG-30).
#[derive(Clone, Debug, Default)]
pub(super) struct Creating {
    waits_for: BTreeSet<u32>,
    second: bool,
}

impl Source {
    /// A slot creation begins: it waits for what runs now.
    pub fn begin_creation(&mut self, op: OpId) {
        let waits_for = self.open.keys().copied().collect();
        self.creating.insert(op, Creating { waits_for, second: false });
    }

    /// A slot creation ended in whatever way.
    pub fn end_creation(&mut self, op: OpId) {
        self.creating.remove(&op);
    }

    /// Whether a slot creation still waits: first for what ran at its start, then for what began
    /// meanwhile (PG-30).
    pub fn creation_waits(&mut self, op: OpId) -> bool {
        let Some(creating) = self.creating.get_mut(&op) else { return false };
        creating.waits_for.retain(|xid| self.open.contains_key(xid));
        if creating.waits_for.is_empty() && !creating.second {
            creating.second = true;
            creating.waits_for = self.open.keys().copied().collect();
        }
        !creating.waits_for.is_empty()
    }

    /// Answer to `ReadBlockers`: one at a time (PG-30).
    #[must_use]
    pub fn blockers(&self) -> Vec<Blocker> {
        let first = self.creating.values().flat_map(|creating| &creating.waits_for).next();
        let pid = first.map(|&xid| i32::try_from(xid).unwrap_or(i32::MAX));
        pid.map(|pid| Blocker { pid, age: None }).into_iter().collect()
    }

    fn holder(&self, name: &str) -> Option<SlotHolder> {
        let streams = self.senders.values().any(|sender| sender.slot == name);
        let held = self.slots.get(name).and_then(|slot| slot.held_until);
        let foreign = held.is_some_and(|until| self.now < until);
        (streams || foreign)
            .then(|| SlotHolder { pid: 42, application: "walferry:main".to_owned() })
    }

    /// A slot as the catalog shows it.
    #[must_use]
    pub fn slot(&self, name: &str) -> Option<SlotFacts> {
        let slot = self.slots.get(name)?;
        let oldest = self.open.values().map(|open| open.began).min();
        let restart = oldest.map_or(slot.confirmed, |began| began.min(slot.confirmed));
        let lost = slot.invalid == Some("wal_removed");
        Some(SlotFacts {
            name: name.to_owned(),
            plugin: slot.plugin.to_owned(),
            database: "app".to_owned(),
            logical: true,
            temporary: slot.temporary,
            active: self.holder(name),
            restart_lsn: (!lost).then_some(restart.0),
            confirmed_flush_lsn: Some(slot.confirmed.0),
            wal_status: Some(if lost { "lost" } else { "reserved" }.to_owned()),
            safe_wal_size: None,
            failover: slot.failover,
            invalidation_reason: slot.invalid.map(str::to_owned),
        })
    }

    /// Answer to `ListSlots`.
    #[must_use]
    pub fn slots_of(&self, prefix: &str) -> Vec<SlotFacts> {
        let names = self.slots.keys().filter(|name| name.starts_with(prefix));
        names.filter_map(|name| self.slot(name)).collect()
    }

    /// Answer to `InspectSlot`.
    #[must_use]
    pub fn report(&self, name: &str) -> SlotReport {
        SlotReport {
            seen: self.seen(),
            slot: self.slot(name),
            wal_end: self.head.0,
            publication: self.publication.map(|publication| publication.oid),
        }
    }

    /// Creates a slot; its consistent point is the head.
    ///
    /// # Errors
    /// The name is taken, or the property does not exist (PG-32, PG-33).
    pub fn create_slot(
        &mut self,
        name: &str,
        temporary: bool,
        failover: bool,
    ) -> Result<CreatedSlot, Refusal> {
        if self.slots.contains_key(name) {
            return Err(server_error(*b"42710"));
        }
        if failover && (temporary || self.version < 170_000) {
            return Err(server_error(*b"0A000"));
        }
        let made = Slot {
            confirmed: self.head,
            on_disk: self.head,
            temporary,
            failover,
            held_until: None,
            invalid: None,
            advanced: false,
            plugin: "pgoutput",
        };
        self.slots.insert(name.to_owned(), made);
        Ok(CreatedSlot {
            slot: name.to_owned(),
            plugin: "pgoutput".to_owned(),
            consistent: self.head,
        })
    }

    /// Drops a slot; an absent one is success.
    ///
    /// # Errors
    /// It is active.
    pub fn drop_slot(&mut self, name: &str) -> Result<(), Refusal> {
        if self.holder(name).is_some() {
            return Err(server_error(*b"55006"));
        }
        self.slots.remove(name);
        Ok(())
    }

    /// Gives a slot the failover property (PG-33).
    ///
    /// # Errors
    /// There is no such slot, or no such property.
    pub fn enable_failover(&mut self, name: &str) -> Result<(), Refusal> {
        if self.version < 170_000 {
            return Err(server_error(*b"42601"));
        }
        let slot = self.slots.get_mut(name).ok_or_else(|| server_error(*b"42704"))?;
        slot.failover = true;
        Ok(())
    }

    /// Starts a stream (PG-02, PG-05).
    ///
    /// # Errors
    /// The slot is missing, active or cannot be used any more.
    pub fn open_stream(
        &mut self,
        stream: StreamId,
        session: Session,
        slot: &str,
        from: Position,
    ) -> Result<(), Refusal> {
        let found = self.slots.get(slot).ok_or_else(|| server_error(*b"42704"))?;
        if self.holder(slot).is_some() {
            return Err(server_error(*b"55006"));
        }
        if found.invalid.is_some() {
            return Err(server_error(*b"55000"));
        }
        let start = from.max(found.confirmed);
        let sender = Sender::new(session, slot.to_owned(), start, &self.wal, self.version);
        self.senders.insert(stream, sender);
        Ok(())
    }

    /// Feedback of a stream: WAL below `position` may go.
    pub fn confirm(&mut self, stream: StreamId, session: Session, position: Position, ask: bool) {
        let Some(sender) = self.senders.get_mut(&stream) else { return };
        if sender.session != session {
            return;
        }
        sender.reply_due |= ask;
        if let Some(slot) = self.slots.get_mut(&sender.slot) {
            slot.confirmed = slot.confirmed.max(position);
        }
    }

    /// The next events of a stream, at most `most` and up to the one that reaches `bytes`, and why
    /// it ends behind them, if it does.
    pub fn read(
        &mut self,
        stream: StreamId,
        most: usize,
        bytes: u64,
    ) -> (Session, Vec<Event<Row>>, Option<FaultKind>) {
        let Some(sender) = self.senders.get_mut(&stream) else {
            return (Session(0), Vec::new(), None);
        };
        let (mut events, mut read) = (Vec::new(), 0);
        while events.len() < most && read < bytes {
            let Some(event) = sender.next(&self.wal) else {
                return (sender.session, events, sender.refusal(&self.wal));
            };
            if let Event::Row { bytes, .. } = &event {
                read += u64::from(*bytes);
            }
            events.push(event);
        }
        (sender.session, events, None)
    }

    /// Whether a stream has something to send.
    #[must_use]
    pub fn has_unread(&self, stream: StreamId) -> bool {
        self.senders.get(&stream).is_some_and(|sender| sender.has_next(&self.wal))
    }

    /// A keepalive of a stream; `far` as far ahead as PG-09 allows.
    pub fn keepalive(&mut self, stream: StreamId, far: bool, reply: bool) -> (Session, Event<Row>) {
        let head = self.head;
        let Some(sender) = self.senders.get_mut(&stream) else {
            return (Session(0), Event::Keepalive { wal_end: head, reply });
        };
        sender.reply_due = false;
        let wal_end = sender.keepalive_position(&self.wal, head, far);
        (sender.session, Event::Keepalive { wal_end, reply })
    }

    /// The server writes its slots to disk, or an invalidation comes with it.
    pub fn checkpoint(&mut self, invalidate: Option<(&str, &'static str)>) {
        for slot in self.slots.values_mut() {
            slot.on_disk = slot.confirmed;
        }
        if let Some((name, reason)) = invalidate
            && let Some(slot) = self.slots.get_mut(name)
        {
            slot.invalid = Some(reason);
            self.senders.retain(|_, sender| sender.slot != name);
        }
    }

    /// The last position of all.
    #[must_use]
    pub const fn never() -> Position {
        Position(Lsn(u64::MAX))
    }
}
