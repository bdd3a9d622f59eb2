//! Events read and not yet dispatched, kept in the blocks in which they came, so that an
//! event is not moved on its way in.

use std::collections::VecDeque;

use crate::event::Event;
use crate::time::Instant;

#[derive(Debug)]
struct Block<R> {
    events: std::vec::IntoIter<Event<R>>,
    arrived: Instant,
}

#[derive(Debug)]
pub(crate) struct Queue<R> {
    blocks: VecDeque<Block<R>>,
    /// Events that will be dispatched: all but keepalives.
    events: u64,
    /// Ends of transactions among them.
    commits: u64,
    /// Memory they keep alive.
    bytes: u64,
    /// When the event that was popped last had come.
    popped: Instant,
}

impl<R> Default for Queue<R> {
    fn default() -> Self {
        Self { blocks: VecDeque::new(), events: 0, commits: 0, bytes: 0, popped: Instant(0) }
    }
}

/// Memory an event keeps alive (B-05): what the driver says for rows, its own size for the rest.
pub(crate) fn event_bytes<R>(event: &Event<R>) -> u64 {
    match event {
        Event::Row { bytes, .. } | Event::Message { bytes, .. } => u64::from(*bytes),
        Event::Ddl(Ok(message)) => size_of::<Event<R>>() as u64 + message.held_bytes(),
        Event::Begin { .. }
        | Event::Relation(_)
        | Event::Ddl(Err(_))
        | Event::Truncate { .. }
        | Event::Commit { .. }
        | Event::Keepalive { .. } => size_of::<Event<R>>() as u64,
    }
}

impl<R> Queue<R> {
    pub(crate) fn push(&mut self, events: Vec<Event<R>>, arrived: Instant) {
        for event in &events {
            match event {
                Event::Keepalive { .. } => continue,
                Event::Commit { .. } => self.commits += 1,
                Event::Begin { .. }
                | Event::Relation(_)
                | Event::Ddl(_)
                | Event::Row { .. }
                | Event::Truncate { .. }
                | Event::Message { .. } => (),
            }
            self.events += 1;
            self.bytes += event_bytes(event);
        }
        self.blocks.push_back(Block { events: events.into_iter(), arrived });
        self.trim();
    }

    pub(crate) fn pop(&mut self) -> Option<Event<R>> {
        while let Some(block) = self.blocks.front_mut() {
            for event in block.events.by_ref() {
                if matches!(event, Event::Keepalive { .. }) {
                    continue;
                }
                self.events -= 1;
                self.commits -= u64::from(matches!(event, Event::Commit { .. }));
                self.bytes -= event_bytes(&event);
                self.popped = block.arrived;
                return Some(event);
            }
            self.blocks.pop_front();
        }
        None
    }

    /// The next event to be dispatched.
    pub(crate) fn peek(&self) -> Option<&Event<R>> {
        let events = self.blocks.iter().flat_map(|block| block.events.as_slice());
        events.into_iter().find(|event| !matches!(event, Event::Keepalive { .. }))
    }

    /// Takes back the event that was popped last: it waits at the head again.
    #[cold]
    pub(crate) fn put_back(&mut self, event: Event<R>) {
        self.events += 1;
        self.commits += u64::from(matches!(event, Event::Commit { .. }));
        self.bytes += event_bytes(&event);
        let block = Block { events: vec![event].into_iter(), arrived: self.popped };
        self.blocks.push_front(block);
    }

    /// Drops blocks in which nothing is left to dispatch, so that `oldest` tells the truth.
    pub(crate) fn trim(&mut self) {
        if self.events == 0 {
            self.blocks.clear();
        }
        while self.blocks.front().is_some_and(|block| block.events.len() == 0) {
            self.blocks.pop_front();
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.events == 0
    }

    pub(crate) const fn commits(&self) -> u64 {
        self.commits
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When the oldest event that waits has come.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        if self.is_empty() { None } else { self.blocks.front().map(|block| block.arrived) }
    }
}
