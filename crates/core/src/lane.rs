//! One lane's work in order (X-08..X-10, F): what waits, what is in flight, what is only accepted,
//! and up to which boundary everything is durable.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::batch::{Batch, BatchTable, Durability};
use crate::config::Limits;
use crate::ids::{Attempt, TableId};
use crate::lsn::Position;
use crate::projection;
use crate::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is left of it: covered as soon as everything before it is.
    Empty,
    /// Waiting or in flight.
    Offered,
    /// Taken, not durable.
    Accepted,
    Durable,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    boundary: Option<Position>,
    state: State,
}

#[derive(Debug)]
pub(crate) struct LaneState<R> {
    number: u64,
    entries: VecDeque<Entry>,
    waiting: VecDeque<(u64, Batch<R>)>,
    in_flight: Option<(u64, Arc<Batch<R>>)>,
    /// Number of the newest batch that the flush in flight covers.
    flushing: Option<u64>,
    accepted: u64,
    /// A call that failed may have been taken, or a lane before this one owed something.
    in_doubt: bool,
    accepted_since: Option<Instant>,
    bytes: u64,
}

impl<R> Default for LaneState<R> {
    fn default() -> Self {
        Self {
            number: 0,
            entries: VecDeque::new(),
            waiting: VecDeque::new(),
            in_flight: None,
            flushing: None,
            accepted: 0,
            in_doubt: false,
            accepted_since: None,
            bytes: 0,
        }
    }
}

impl<R> LaneState<R> {
    /// The lane behind a re-opening. What earlier batches owe is still owed, to nobody's position.
    pub(crate) fn after_reopening(owed: bool, now: Instant) -> Self {
        let mut lane = Self::default();
        if owed {
            lane.doubt(now);
        }
        lane
    }

    /// The sink may hold work of the lane that nobody counts, or have lost it: the next flush tells
    /// (DS-03).
    fn doubt(&mut self, now: Instant) {
        self.in_doubt = true;
        self.accepted_since.get_or_insert(now);
    }

    /// Forgets what was projected and not offered, so that nothing behind it is ever covered. The
    /// stream has to be read again from the frontier.
    pub(crate) fn drop_waiting(&mut self) {
        let first = self.waiting.front().map(|(number, _)| *number);
        self.bytes -= self.waiting.iter().map(|(_, batch)| batch.bytes).sum::<u64>();
        self.waiting.clear();
        if let Some(first) = first {
            self.entries.retain(|entry| entry.number < first);
        }
    }

    /// The batch that would be offered next.
    pub(crate) fn next_batch(&self) -> Option<&Batch<R>> {
        self.waiting.front().map(|(_, batch)| batch)
    }

    pub(crate) const fn is_writing_anything(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Appends a projected batch; one without changes is never offered.
    pub(crate) fn push(&mut self, batch: Batch<R>, boundary: Option<Position>) {
        self.number += 1;
        let number = self.number;
        let empty = batch.changes.is_empty();
        let state = if empty { State::Empty } else { State::Offered };
        self.entries.push_back(Entry { number, boundary, state });
        if !empty {
            self.bytes += batch.bytes;
            self.waiting.push_back((number, batch));
        }
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) const fn is_busy(&self) -> bool {
        self.in_flight.is_some() || self.flushing.is_some()
    }

    pub(crate) const fn is_flushing(&self) -> bool {
        self.flushing.is_some()
    }

    /// Tables of the batches that wait.
    pub(crate) fn tables_waiting(&self) -> impl Iterator<Item = &BatchTable> {
        self.waiting.iter().flat_map(|(_, batch)| &batch.tables)
    }

    pub(crate) const fn has_debt(&self) -> bool {
        self.accepted > 0 || self.in_doubt
    }

    /// Nothing waits, runs or is only accepted.
    pub(crate) fn is_settled(&self) -> bool {
        self.waiting.is_empty() && !self.is_busy() && !self.has_debt()
    }

    /// Memory of what waits and what is in flight.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the batch in flight holds events of the table (K-16).
    pub(crate) fn is_writing(&self, table: TableId) -> bool {
        self.writing().any(|other| other == table)
    }

    /// Whether the next batch to offer holds events of a table and attempt for which `holds` is true
    /// (K-18).
    pub(crate) fn next_holds(&self, holds: impl Fn(TableId, Attempt) -> bool) -> bool {
        let next = self.waiting.front();
        next.is_some_and(|(_, batch)| batch.tables.iter().any(|t| holds(t.table, t.attempt)))
    }

    /// The next batch to offer, unless a call is in flight.
    pub(crate) fn offer(&mut self) -> Option<Arc<Batch<R>>> {
        if self.is_busy() {
            return None;
        }
        let (number, batch) = self.waiting.pop_front()?;
        let batch = Arc::new(batch);
        self.in_flight = Some((number, Arc::clone(&batch)));
        Some(batch)
    }

    /// The batch in flight was taken.
    pub(crate) fn written(&mut self, durability: Durability, now: Instant) {
        let Some((number, batch)) = self.in_flight.take() else { return };
        self.bytes -= batch.bytes;
        match durability {
            Durability::Durable => {
                self.in_doubt = false;
                self.make_durable(number);
            }
            Durability::Accepted => {
                if let Some(entry) = self.entries.iter_mut().find(|e| e.number == number) {
                    entry.state = State::Accepted;
                }
                self.accepted += 1;
                self.accepted_since.get_or_insert(now);
            }
        }
    }

    /// The batch in flight failed: it is the next one to be offered again. It may have been taken all
    /// the same (DS-F3). `copy` is used if somebody outside still holds the batch.
    pub(crate) fn write_failed(&mut self, copy: fn(&Batch<R>) -> Batch<R>, now: Instant) {
        self.doubt(now);
        if let Some((number, batch)) = self.in_flight.take() {
            let batch = Arc::try_unwrap(batch).unwrap_or_else(|shared| copy(&shared));
            self.waiting.push_front((number, batch));
        }
    }

    /// Tables of the batch in flight.
    pub(crate) fn writing(&self) -> impl Iterator<Item = TableId> + '_ {
        let tables = self.in_flight.iter().flat_map(|(_, batch)| &batch.tables);
        tables.map(|entry| entry.table)
    }

    /// F-02: whether the debt is large or old enough; `force` if somebody waits for it.
    pub(crate) fn wants_flush(&self, limits: &Limits, now: Instant, force: bool) -> bool {
        let delay = Duration::from_millis(limits.flush_ms);
        let due = force
            || self.accepted >= limits.flush_batches
            || self.accepted_since.is_some_and(|since| now.since(since) >= delay);
        self.has_debt() && !self.is_busy() && due
    }

    pub(crate) const fn accepted_since(&self) -> Option<Instant> {
        self.accepted_since
    }

    /// F-01: the flush covers what was accepted before it.
    pub(crate) fn begin_flush(&mut self) {
        let newest = self.entries.iter().rev().find(|e| e.state == State::Accepted);
        self.flushing = Some(newest.map_or(0, |entry| entry.number));
    }

    pub(crate) fn flushed(&mut self) {
        if let Some(number) = self.flushing.take() {
            self.in_doubt = false;
            self.make_durable(number);
        }
    }

    /// durable covers the batch and all earlier ones of the lane.
    fn make_durable(&mut self, number: u64) {
        for entry in self.entries.iter_mut().take_while(|entry| entry.number <= number) {
            if entry.state != State::Empty {
                entry.state = State::Durable;
            }
        }
        self.accepted = self.entries.iter().filter(|e| e.state == State::Accepted).count() as u64;
        if self.accepted == 0 {
            self.accepted_since = None;
        }
    }

    /// The largest boundary of the covered prefix that was not reported before.
    pub(crate) fn take_covered(&mut self) -> Option<Position> {
        let mut covered = None;
        while let Some(entry) = self.entries.front() {
            if !matches!(entry.state, State::Empty | State::Durable) {
                break;
            }
            covered = entry.boundary.max(covered);
            self.entries.pop_front();
        }
        covered
    }

    /// keeps the events of those tables for which `keep` holds, in every batch that is going to
    /// be offered, or offered again. What is left of nothing is covered without a call.
    pub(crate) fn retain(&mut self, keep: impl Fn(&BatchTable) -> bool) {
        let mut emptied = Vec::new();
        for (number, batch) in &mut self.waiting {
            projection::retain(batch, &keep);
            if batch.changes.is_empty() {
                emptied.push(*number);
                self.bytes -= batch.bytes;
            }
        }
        self.waiting.retain(|(_, batch)| !batch.changes.is_empty());
        for entry in self.entries.iter_mut().filter(|e| emptied.contains(&e.number)) {
            entry.state = State::Empty;
        }
    }

    /// Changes that wait, of the tables for which `of` holds.
    pub(crate) fn count(&self, of: impl Fn(&BatchTable) -> bool) -> usize {
        self.waiting.iter().map(|(_, batch)| projection::count(batch, &of)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Change, ChangeBody};
    use crate::event::TruncateFlags;
    use crate::ids::{Epoch, Lane};
    use crate::lsn::Lsn;

    fn batch(changes: usize) -> Batch<u32> {
        let body = ChangeBody::Truncate { table: 0, flags: TruncateFlags::default() };
        Batch {
            lane: Lane::Main,
            epoch: Epoch(1),
            tables: Vec::new(),
            transactions: Vec::new(),
            changes: vec![Change { transaction: 0, ordinal: 0, body }; changes],
            bytes: 10,
        }
    }

    fn at(lsn: u64) -> Option<Position> {
        Some(Position(Lsn(lsn)))
    }

    //
    #[test]
    fn an_empty_batch_is_covered_only_after_those_before_it() {
        let mut lane = LaneState::default();
        lane.push(batch(0), at(5));
        assert_eq!(lane.take_covered(), at(5));
        lane.push(batch(1), at(6));
        lane.push(batch(0), at(7));
        assert_eq!(lane.take_covered(), None);
        assert!(lane.offer().is_some());
        lane.written(Durability::Durable, Instant(0));
        assert_eq!(lane.take_covered(), at(7));
    }

    // X-10, F-01, F-I1
    #[test]
    fn accepted_work_is_covered_by_a_flush_that_came_after_it() {
        let mut lane = LaneState::default();
        for lsn in [5, 6] {
            lane.push(batch(1), at(lsn));
            assert!(lane.offer().is_some());
            lane.written(Durability::Accepted, Instant(lsn));
        }
        assert_eq!(lane.take_covered(), None);
        let few = Limits { flush_batches: 3, ..Limits::default() };
        let many = Limits { flush_batches: 2, ..Limits::default() };
        assert!(!lane.wants_flush(&few, Instant(6), false));
        assert!(lane.wants_flush(&few, Instant(6), true), "somebody waits for it");
        assert!(lane.wants_flush(&many, Instant(6), false), "enough batches");
        assert!(lane.wants_flush(&few, Instant(1_000_000_005), false), "old enough");
        lane.begin_flush();
        lane.push(batch(1), at(7));
        assert!(lane.offer().is_none(), "a flush never overlaps a write (DS-02)");
        lane.flushed();
        assert_eq!(lane.take_covered(), at(6));
        assert!(!lane.has_debt());
        // F-I2: nothing is owed, so nobody sends a flush, whoever waits for it
        assert!(!lane.wants_flush(&many, Instant(u64::MAX), true));
        walferry_coverage::reached("F-I2");
        walferry_coverage::reached("F-I1");
    }

    // durable covers all earlier ones of the lane
    #[test]
    fn durable_pays_the_debt_before_it() {
        let mut lane = LaneState::default();
        lane.push(batch(1), at(5));
        lane.push(batch(1), None);
        assert!(lane.offer().is_some());
        lane.written(Durability::Accepted, Instant(0));
        assert!(lane.offer().is_some());
        lane.written(Durability::Durable, Instant(0));
        assert_eq!(lane.take_covered(), at(5), "a batch without a boundary moves nothing");
        assert!(lane.is_settled());
        assert_eq!(lane.bytes(), 0);
    }

    //
    #[test]
    fn a_batch_that_is_stripped_empty_is_covered_and_holds_nothing() {
        let mut lane = LaneState::default();
        let mut first = batch(1);
        let schema = crate::schema::TableSchema {
            table: TableId(1),
            namespace: "public".to_owned(),
            name: "t".to_owned(),
            identity: crate::schema::ReplicaIdentity::Default,
            columns: Vec::new(),
            unpublished: Vec::new(),
            storage: None,
        };
        let (table, attempt) = (TableId(1), Attempt(1));
        first.tables.push(BatchTable { table, attempt, schema: Arc::new(schema) });
        lane.push(first, at(5));
        lane.retain(|entry| entry.table != TableId(2));
        assert_eq!((lane.take_covered(), lane.bytes()), (None, 10));
        lane.retain(|entry| entry.table != table);
        assert_eq!((lane.take_covered(), lane.bytes()), (at(5), 0));
        assert!(lane.is_settled());
    }

    // B-I4: the same batch is the next one, and it is charged until it is taken
    #[test]
    fn a_batch_that_failed_is_offered_again_before_those_behind_it() {
        let mut lane = LaneState::default();
        lane.push(batch(1), at(5));
        lane.push(batch(2), at(6));
        let held = lane.offer().unwrap();
        lane.write_failed(Clone::clone, Instant(0));
        assert_eq!((lane.bytes(), lane.is_busy()), (20, false));
        assert_eq!(lane.offer().unwrap(), held, "although somebody still holds it");
        lane.written(Durability::Durable, Instant(0));
        assert_eq!((lane.bytes(), lane.take_covered()), (10, at(5)));
        assert_eq!(lane.offer().unwrap().changes.len(), 2);
    }

    proptest::proptest! {
        // F-01, B-I4: against a list of batches and how far each is durable
        #[test]
        fn the_covered_prefix_is_what_is_durable(moves in proptest::collection::vec(0_u8..6, 0..60)) {
            let mut lane = LaneState::default();
            // Of each batch: its number, and whether it is empty, offered, durable.
            let mut model: Vec<(u64, bool, bool, bool)> = Vec::new();
            let mut covered = None;
            let mut doubt = false;
            for (number, step) in (1..).zip(moves) {
                let next = model.iter().position(|(_, empty, offered, _)| !empty && !offered);
                match (step, next) {
                    (0 | 1, _) => {
                        let empty = step == 0;
                        model.push((number, empty, false, false));
                        lane.push(batch(usize::from(!empty)), at(number));
                    }
                    (2 | 3, Some(next)) => {
                        model[next].2 = true;
                        assert!(lane.offer().is_some());
                        if step == 2 {
                            lane.written(Durability::Accepted, Instant(0));
                        } else {
                            doubt = false;
                            model[..=next].iter_mut().for_each(|batch| batch.3 = true);
                            lane.written(Durability::Durable, Instant(0));
                        }
                    }
                    // a failed write changes nothing but its turn, and may have been taken
                    (4, Some(_)) => {
                        assert!(lane.offer().is_some());
                        lane.write_failed(Clone::clone, Instant(0));
                        doubt = true;
                    }
                    _ => {
                        doubt = false;
                        lane.begin_flush();
                        model.iter_mut().filter(|batch| batch.2).for_each(|batch| batch.3 = true);
                        lane.flushed();
                    }
                }
                let prefix = model.iter().take_while(|(_, empty, _, durable)| *empty || *durable);
                let expected = prefix.last().and_then(|(number, ..)| at(*number));
                covered = lane.take_covered().or(covered);
                proptest::prop_assert_eq!(covered, expected);
                let held = model.iter().filter(|(_, empty, offered, _)| !empty && !offered).count();
                proptest::prop_assert_eq!(lane.bytes(), 10 * held as u64);
                let debt = model.iter().any(|(_, _, offered, durable)| *offered && !durable);
                proptest::prop_assert_eq!(lane.has_debt(), debt || doubt);
            }
        }
    }
}
