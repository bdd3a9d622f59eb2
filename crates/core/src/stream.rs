//! One stream of WAL as the core sees it: its five positions, its queue, the relations announced,
//! and whether it may be read further. The main stream and the private ones are the same machine.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::event::Event;
use crate::ids::{Session, StreamId, TableId};
use crate::lsn::{CommitLsn, Position};
use crate::names;
use crate::queue::Queue;
use crate::schema::Relation;
use crate::time::Instant;
use crate::violation::Violation;

/// Whether the driver may read more of a stream (B-05). It stops reading rows, nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// Read on.
    #[default]
    Open,
    /// Do not read the stream; feedback goes on.
    Closed,
}

impl Gate {
    /// The gate after what is held has changed: it closes at 7/8 of the share, which leaves room for
    /// what is read already and on its way to the core, and opens below 3/4 of it.
    #[must_use]
    pub(crate) const fn moved(self, held: u64, share: u64) -> Self {
        if held >= share / 8 * 7 {
            Self::Closed
        } else if held < share / 4 * 3 {
            Self::Open
        } else {
            self
        }
    }
}

/// A transaction that is open on the dispatching side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenTransaction {
    pub(crate) commit: CommitLsn,
    pub(crate) time_us: i64,
}

#[derive(Debug)]
pub(crate) struct Stream<R> {
    pub(crate) id: StreamId,
    pub(crate) session: Session,
    /// Whether the session runs: feedback may be sent.
    pub(crate) open: bool,
    /// Where the session started.
    pub(crate) started_at: Position,
    pub(crate) received: Position,
    pub(crate) dispatched: Position,
    pub(crate) frontier: Position,
    pub(crate) confirmed: Position,
    pub(crate) queue: Queue<R>,
    /// The transaction that is being read.
    pub(crate) reading: Option<CommitLsn>,
    /// The transaction that is dispatched in part.
    pub(crate) dispatching: Option<OpenTransaction>,
    /// Relations announced so far, as of the dispatching side (D-09).
    pub(crate) relations: BTreeMap<TableId, Arc<Relation>>,
    pub(crate) gate: Gate,
    /// Last time that anything came.
    pub(crate) heard: Instant,
    /// Newest keepalive that could not be taken as a position yet.
    pub(crate) idle_at: Option<Position>,
    /// Whether a reply was asked for since `heard`.
    pub(crate) asked: bool,
}

/// What the events of one input ask for beyond being queued.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    /// The server wants feedback at once.
    pub(crate) reply: bool,
    /// A schema message came outside of any transaction.
    pub(crate) misplaced_ddl: bool,
    /// Relations that were announced.
    pub(crate) announced: Vec<TableId>,
    /// A schema message came.
    pub(crate) ddl: bool,
    /// Something but keepalives came.
    pub(crate) events: bool,
}

impl<R> Stream<R> {
    /// A stream that is not open yet, with all positions at `start`.
    pub(crate) fn new(id: StreamId, session: Session, start: Position, now: Instant) -> Self {
        Self {
            id,
            session,
            open: false,
            started_at: start,
            received: start,
            dispatched: start,
            frontier: start,
            confirmed: start,
            queue: Queue::default(),
            reading: None,
            dispatching: None,
            relations: BTreeMap::new(),
            gate: Gate::Open,
            heard: now,
            idle_at: None,
            asked: false,
        }
    }

    /// Takes events in: moves `received`, remembers what the server wants, queues the rest. Events
    /// that contradict those before are the driver's fault.
    pub(crate) fn take_in(
        &mut self,
        events: Vec<Event<R>>,
        now: Instant,
    ) -> Result<Received, Violation> {
        self.heard = now;
        self.asked = false;
        let mut wants = Received::default();
        for event in &events {
            match event {
                Event::Begin { commit, .. } => {
                    if self.reading.is_some() || self.received.covers(*commit) {
                        return Err(Violation::OrderBroken {
                            expected: self.received.0,
                            found: commit.0,
                        });
                    }
                    self.reading = Some(*commit);
                    self.received = commit.after_start();
                    self.idle_at = None;
                }
                Event::Commit { commit, end } => {
                    if self.reading != Some(*commit) || !end.covers(*commit) {
                        return Err(Violation::OrderBroken {
                            expected: self.received.0,
                            found: end.0,
                        });
                    }
                    self.reading = None;
                    self.received = *end;
                }
                Event::Keepalive { wal_end, reply } => {
                    wants.reply |= reply;
                    if self.reading.is_none() && *wal_end > self.received {
                        self.idle_at = Some(*wal_end);
                    }
                }
                Event::Message { transactional: false, prefix, .. } => {
                    wants.misplaced_ddl |= names::is_ddl_prefix(prefix);
                }
                Event::Relation(relation) => wants.announced.push(relation.table),
                Event::Ddl(_) => wants.ddl = true,
                Event::Row { .. } | Event::Truncate { .. } | Event::Message { .. } => (),
            }
            wants.events |= !matches!(event, Event::Keepalive { .. });
        }
        if !events.is_empty() {
            self.queue.push(events, now);
        }
        Ok(wants)
    }

    /// Whether the head of the queue belongs to a transaction below a position.
    pub(crate) fn has_below(&self, position: Position) -> bool {
        match self.queue.peek() {
            Some(Event::Begin { commit, .. }) => position.covers(*commit),
            Some(
                Event::Relation(_)
                | Event::Row { .. }
                | Event::Truncate { .. }
                | Event::Message { .. }
                | Event::Ddl(_)
                | Event::Commit { .. }
                | Event::Keepalive { .. },
            ) => true,
            None => false,
        }
    }

    /// Whether everything below a position has been read: something at or past it came (PG-09).
    pub(crate) fn has_read(&self, position: Position) -> bool {
        self.received.max(self.idle_at.unwrap_or_default()) >= position
    }

    /// Whether a transaction has been dispatched in part.
    pub(crate) const fn is_inside_transaction(&self) -> bool {
        self.dispatching.is_some()
    }

    /// the idle position that may be taken now, if nothing at all is outstanding. Everything
    /// below it was sent before it (PG-09), has been dispatched, and is durable or was left out.
    pub(crate) fn idle_position(&self, lane_is_settled: bool) -> Option<Position> {
        let quiet = self.reading.is_none()
            && self.dispatching.is_none()
            && self.queue.is_empty()
            && lane_is_settled
            && self.frontier == self.dispatched;
        self.idle_at.filter(|&at| quiet && at > self.received)
    }

    /// Whether an idle position could be taken if nothing were in flight or owed.
    pub(crate) fn waits_for_the_lane(&self) -> bool {
        self.reading.is_none()
            && self.dispatching.is_none()
            && self.queue.is_empty()
            && self.idle_at.is_some_and(|at| at > self.received)
    }

    /// Takes it; the caller raises the frontier to it in the same step.
    pub(crate) fn take_idle_position(&mut self, at: Position) {
        self.received = at;
        self.dispatched = at;
        self.idle_at = None;
    }

    /// The law of spec chapter 1 as far as one stream knows it (A-I1).
    pub(crate) fn check_law(&self, checkpoint: Position) {
        assert!(
            self.confirmed <= checkpoint,
            "confirmed {} is past the checkpoint {checkpoint}",
            self.confirmed
        );
        assert!(
            checkpoint <= self.frontier,
            "checkpoint {checkpoint} is past the frontier {}",
            self.frontier
        );
        assert!(
            self.frontier <= self.dispatched,
            "frontier {} is past dispatched {}",
            self.frontier,
            self.dispatched
        );
        assert!(
            self.dispatched <= self.received,
            "dispatched {} is past received {}",
            self.dispatched,
            self.received
        );
    }
}
