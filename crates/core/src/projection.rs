//! Which events pass (group J), and how they become a batch (X-02, B-02, B-04).
//!
//! A pure function of the events, the owned tables and the mode. Knows nothing of lanes, saves or
//! the destination.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::batch::{Batch, BatchTable, Change, ChangeBody, TransactionPart};
use crate::event::Event;
use crate::ids::{Attempt, Epoch, Lane, TableId};
use crate::lsn::{CommitLsn, Position};
use crate::names;
use crate::queue::event_bytes;
use crate::schema::{Relation, TableSchema};
use crate::stream::{OpenTransaction, Stream};

/// A table whose changes pass on a stream, from a position on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    /// First boundary that the stream owns: the handover, on a private stream the cutoff.
    pub(crate) from: Position,
    /// Attempt of its rows at the destination.
    pub(crate) attempt: Attempt,
    /// Shape that its rows must have.
    pub(crate) schema: Arc<TableSchema>,
}

/// How far one dispatch goes, and what passes beside rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// The batch ends at the first event that reaches it (B-04).
    pub(crate) bytes: u64,
    /// Most events taken, 0 for no bound.
    pub(crate) events: u64,
    /// Stops at the first boundary at or past this one (W-09).
    pub(crate) boundary: Option<Position>,
    /// Takes only transactions whose commit has been read.
    pub(crate) complete_only: bool,
    /// Whether logical messages pass (J-06).
    pub(crate) messages: bool,
}

/// The outcome of one dispatch.
#[derive(Debug)]
pub(crate) struct Dispatched<R> {
    /// What passed; its `changes` may be empty.
    pub(crate) batch: Batch<R>,
    /// End of the last commit taken, if any.
    pub(crate) boundary: Option<Position>,
    /// Tables whose relation differs from their schema, with both shapes.
    pub(crate) mismatches: Vec<(TableId, String)>,
    /// Tables of dropped rows and truncates, once each, with the relation if one was announced.
    pub(crate) skipped: BTreeMap<TableId, Option<Arc<Relation>>>,
}

/// Verdict on the table of the event before, so that runs of one table cost no lookups. It holds
/// within one transaction, because the handover decides by transaction.
#[derive(Clone, Copy)]
struct Current {
    table: TableId,
    index: Option<u32>,
}

struct Projection<'a, R> {
    owned: &'a BTreeMap<TableId, Owned>,
    out: Dispatched<R>,
    current: Option<Current>,
    refused: BTreeSet<TableId>,
    /// The transaction whose begin was taken in this dispatch.
    begun: Option<CommitLsn>,
}

/// Takes events from the head of the stream's queue and projects each. Moves `dispatched`
/// over everything taken, also if nothing is left of it.
pub(crate) fn dispatch<R>(
    stream: &mut Stream<R>,
    lane: Lane,
    epoch: Epoch,
    owned: &BTreeMap<TableId, Owned>,
    reach: Reach,
) -> Dispatched<R> {
    let batch = Batch {
        lane,
        epoch,
        tables: Vec::new(),
        transactions: Vec::new(),
        changes: Vec::new(),
        bytes: 0,
    };
    let out =
        Dispatched { batch, boundary: None, mismatches: Vec::new(), skipped: BTreeMap::new() };
    let mut projection =
        Projection { owned, out, current: None, refused: BTreeSet::new(), begun: None };
    let mut events = 0;
    while !(reach.complete_only && stream.queue.commits() == 0) {
        let Some(event) = stream.queue.pop() else { break };
        events += 1;
        projection.out.batch.bytes += event_bytes(&event);
        let ended = projection.take(stream, event, reach.messages);
        let at_boundary =
            ended && reach.boundary.is_some_and(|boundary| stream.dispatched >= boundary);
        if at_boundary
            || projection.out.batch.bytes >= reach.bytes
            || (reach.events > 0 && events >= reach.events)
        {
            break;
        }
    }
    stream.queue.trim();
    projection.out
}

impl<R> Projection<'_, R> {
    /// Projects one event; whether it ended a transaction.
    fn take(&mut self, stream: &mut Stream<R>, event: Event<R>, messages: bool) -> bool {
        match event {
            Event::Begin { commit, time_us } => {
                self.current = None;
                self.begun = Some(commit);
                stream.dispatching = Some(OpenTransaction { commit, time_us });
                stream.dispatched = commit.after_start();
            }
            Event::Relation(relation) => {
                self.current = None;
                stream.relations.insert(relation.table, relation);
            }
            Event::Row { table, ordinal, kind, row, bytes: _ } => {
                if let Some(index) = self.keep(stream, table) {
                    self.push(stream, ordinal, ChangeBody::Row { table: index, kind, row });
                }
            }
            Event::Truncate { tables, flags, ordinal } => {
                // J-04: one fragment for each kept table, in list order, with one key
                for &table in &tables {
                    if let Some(index) = self.keep(stream, table) {
                        self.push(stream, ordinal, ChangeBody::Truncate { table: index, flags });
                    }
                }
            }
            Event::Message { transactional, lsn, prefix, content, bytes: _ } => {
                if messages && transactional && !is_reserved(&prefix) {
                    let body = ChangeBody::Message { lsn, prefix, content };
                    self.push(stream, u64::MAX, body);
                }
            }
            Event::Commit { commit, end } => {
                stream.dispatching = None;
                stream.dispatched = end;
                self.out.boundary = Some(end);
                if let Some(part) = self.out.batch.transactions.last_mut()
                    && part.commit == commit
                {
                    part.end = Some(end);
                }
                return true;
            }
            Event::Ddl(_) | Event::Keepalive { .. } => (),
        }
        false
    }

    /// J-01: the table's index in the batch iff its change passes.
    fn keep(&mut self, stream: &Stream<R>, table: TableId) -> Option<u32> {
        if let Some(current) = self.current.filter(|current| current.table == table) {
            return current.index;
        }
        let commit = stream.dispatching?.commit;
        let index = self.verdict(stream, table, commit);
        self.current = Some(Current { table, index });
        index
    }

    /// Looks the table up and compares the announced relation with its schema (D-08).
    fn verdict(&mut self, stream: &Stream<R>, table: TableId, commit: CommitLsn) -> Option<u32> {
        let relation = stream.relations.get(&table);
        let Some(owned) = self.owned.get(&table) else {
            self.out.skipped.insert(table, relation.cloned());
            return None;
        };
        if owned.from.covers(commit) || self.refused.contains(&table) {
            return None;
        }
        if let Some(relation) = relation
            && !owned.schema.agrees_with(relation)
        {
            self.refused.insert(table);
            let shapes = format!(
                "the stream announces {} but the table was copied as {}",
                relation.shape(),
                owned.schema.shape()
            );
            self.out.mismatches.push((table, shapes));
            return None;
        }
        Some(self.index(table, owned))
    }

    fn index(&mut self, table: TableId, owned: &Owned) -> u32 {
        let tables = &mut self.out.batch.tables;
        let found = tables.iter().position(|entry| entry.table == table);
        let index = found.unwrap_or_else(|| {
            tables.push(BatchTable {
                table,
                attempt: owned.attempt,
                schema: Arc::clone(&owned.schema),
            });
            tables.len() - 1
        });
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    fn push(&mut self, stream: &Stream<R>, ordinal: u64, body: ChangeBody<R>) {
        let Some(open) = stream.dispatching else { return };
        let transactions = &mut self.out.batch.transactions;
        if transactions.last().is_none_or(|part| part.commit != open.commit) {
            transactions.push(TransactionPart {
                commit: open.commit,
                time_us: open.time_us,
                begins: self.begun == Some(open.commit),
                end: None,
            });
        }
        let transaction = u32::try_from(transactions.len() - 1).unwrap_or(u32::MAX);
        self.out.batch.changes.push(Change { transaction, ordinal, body });
    }
}

/// N-15: prefixes of messages that are walferry's own business.
fn is_reserved(prefix: &str) -> bool {
    names::is_ddl_prefix(prefix) || prefix == "walferry_heartbeat"
}

/// takes the events of `table` out of a batch that has not been offered.
pub(crate) fn strip<R>(batch: &mut Batch<R>, table: TableId) {
    let Some(index) = batch.tables.iter().position(|entry| entry.table == table) else { return };
    let gone = u32::try_from(index).unwrap_or(u32::MAX);
    batch.changes.retain(|change| match &change.body {
        ChangeBody::Row { table, .. }
        | ChangeBody::Truncate { table, .. }
        | ChangeBody::Schema { table, .. } => *table != gone,
        ChangeBody::Message { .. } => true,
    });
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::event::{RowKind, TruncateFlags};
    use crate::ids::{Session, StreamId};
    use crate::lsn::Lsn;
    use crate::schema::{ReplicaIdentity, TableSchema};
    use crate::time::Instant;

    const LANE: Lane = Lane::Main;

    fn position(lsn: u64) -> Position {
        Position(Lsn(lsn))
    }

    fn owned(handovers: &[(u32, u64)]) -> BTreeMap<TableId, Owned> {
        let entry = |&(table, from): &(u32, u64)| {
            let schema = TableSchema {
                table: TableId(table),
                namespace: "public".to_owned(),
                name: format!("t{table}"),
                identity: ReplicaIdentity::Default,
                columns: Vec::new(),
                unpublished: Vec::new(),
                storage: None,
            };
            let owned =
                Owned { from: position(from), attempt: Attempt(1), schema: Arc::new(schema) };
            (TableId(table), owned)
        };
        handovers.iter().map(entry).collect()
    }

    /// Tables of one event: one is a row, more are a truncate.
    fn transactions() -> impl Strategy<Value = Vec<Event<u32>>> {
        let tables = vec(1_u32..4, 1..3);
        vec((0_u64..3, vec(tables, 0..5)), 0..6).prop_map(|transactions| {
            let mut events = Vec::new();
            let mut head = 10;
            for (gap, bodies) in transactions {
                let commit = CommitLsn(Lsn(head + gap));
                head += gap + 2;
                events.push(Event::Begin { commit, time_us: 0 });
                for (ordinal, tables) in (0..).zip(bodies) {
                    events.push(event(ordinal, &tables));
                }
                events.push(Event::Commit { commit, end: position(head) });
            }
            events
        })
    }

    fn event(ordinal: u64, tables: &[u32]) -> Event<u32> {
        let flags = TruncateFlags::default();
        if let &[table] = tables {
            let (table, kind) = (TableId(table), RowKind::Insert);
            Event::Row { table, ordinal, kind, row: 0, bytes: 1 }
        } else {
            let tables: BTreeSet<_> = tables.iter().map(|&table| TableId(table)).collect();
            Event::Truncate { tables: tables.into_iter().collect(), flags, ordinal }
        }
    }

    type Passed = Vec<(TableId, CommitLsn, u64)>;

    fn passed(batch: &Batch<u32>) -> Passed {
        let table = |index: u32| batch.tables[index as usize].table;
        let key = |change: &Change<u32>| {
            let table = match change.body {
                ChangeBody::Row { table: index, .. }
                | ChangeBody::Truncate { table: index, .. }
                | ChangeBody::Schema { table: index, .. } => table(index),
                ChangeBody::Message { .. } => TableId(0),
            };
            (table, batch.transactions[change.transaction as usize].commit, change.ordinal)
        };
        batch.changes.iter().map(key).collect()
    }

    /// Projects everything, at most so many events at a time (0: all at once).
    fn project(events: Vec<Event<u32>>, map: &BTreeMap<TableId, Owned>, at_once: u64) -> Passed {
        let mut stream = Stream::new(StreamId::Main, Session(1), position(1), Instant(0));
        assert!(stream.take_in(events, Instant(0)).is_ok());
        let reach = Reach {
            bytes: u64::MAX,
            events: at_once,
            boundary: None,
            complete_only: false,
            messages: false,
        };
        let mut all = Vec::new();
        while !stream.queue.is_empty() {
            let before = stream.dispatched;
            let out = dispatch(&mut stream, LANE, Epoch(1), map, reach);
            assert!(out.boundary.is_none_or(|boundary| boundary <= stream.dispatched));
            assert!(before <= stream.dispatched, "m never goes back");
            if let Some(open) = stream.dispatching {
                assert_eq!(stream.dispatched, open.commit.after_start(), "H-05");
            }
            all.extend(passed(&out.batch));
        }
        all
    }

    /// Every event of every table.
    fn everything(events: &[Event<u32>]) -> Passed {
        project(events.to_vec(), &owned(&[(1, 0), (2, 0), (3, 0)]), 0)
    }

    fn below(events: &[Event<u32>], end: u64) -> Vec<Event<u32>> {
        let past = events.iter().position(
            |event| matches!(event, Event::Begin { commit, .. } if !position(end).covers(*commit)),
        );
        events[..past.unwrap_or(events.len())].to_vec()
    }

    proptest! {
        // J-I1, J-I4, J-01: in order, with the keys of the source, and exactly what is owned
        #[test]
        fn what_passes_is_what_is_owned_in_order(
            events in transactions(), handovers in vec(0_u64..30, 3),
        ) {
            let map = owned(&[(1, handovers[0]), (2, handovers[1]), (3, handovers[2])]);
            let mut expected = everything(&events);
            // N-I4: no two events of a table have one key
            prop_assert_eq!(expected.iter().collect::<BTreeSet<_>>().len(), expected.len());
            expected.retain(|(table, commit, _)| !map[table].from.covers(*commit));
            prop_assert_eq!(project(events, &map, 0), expected);
            walferry_coverage::reached("J-I1");
            walferry_coverage::reached("J-I4");
        }

        // J-I6
        #[test]
        fn cutting_changes_nothing(events in transactions(), from in 0_u64..30, at_once in 1_u64..5) {
            let map = owned(&[(1, from), (3, 0)]);
            prop_assert_eq!(project(events.clone(), &map, at_once), project(events, &map, 0));
            walferry_coverage::reached("J-I6");
        }

        // J-I5
        #[test]
        fn raising_a_handover_adds_nothing(
            events in transactions(), from in 0_u64..30, by in 0_u64..9,
        ) {
            let low = project(events.clone(), &owned(&[(1, from), (2, 5)]), 0);
            let high = project(events, &owned(&[(1, from + by), (2, 5)]), 0);
            prop_assert!(high.iter().all(|event| low.contains(event)));
            walferry_coverage::reached("J-I5");
        }

        // J-I2, H-I1, H-I4: private up to the handover and main from there are everything, once
        #[test]
        fn a_handover_splits_by_transaction(
            events in transactions(), cutoff in 0_u64..20, more in 0_u64..20,
        ) {
            let handover = cutoff + more;
            let private = project(below(&events, handover), &owned(&[(2, cutoff)]), 2);
            let main = project(events.clone(), &owned(&[(2, handover)]), 3);
            let mut expected = everything(&events);
            expected.retain(|(table, commit, _)| {
                *table == TableId(2) && !position(cutoff).covers(*commit)
            });
            prop_assert_eq!([private, main].concat(), expected);
            walferry_coverage::reached("J-I2");
            walferry_coverage::reached("H-I1");
            walferry_coverage::reached("H-I4");
        }
    }

    // J-I3: what passed passes again
    #[test]
    fn projecting_twice_is_projecting_once() {
        let map = owned(&[(1, 12)]);
        let commit = CommitLsn(Lsn(12));
        let begin = || Event::Begin { commit, time_us: 0 };
        let end = || Event::Commit { commit, end: position(13) };
        let all = vec![begin(), event(0, &[2]), event(1, &[1, 2]), event(2, &[1]), end()];
        let once = project(all, &map, 0);
        let again = vec![begin(), event(1, &[1, 1]), event(2, &[1]), end()];
        assert_eq!(project(again, &map, 0), once);
        assert_eq!(once, [(TableId(1), commit, 1), (TableId(1), commit, 2)]);
        walferry_coverage::reached("J-I3");
        walferry_coverage::reached("N-I4");
    }

    // J-04: fragments in list order with one key, of the kept tables only
    #[test]
    fn a_truncate_is_split_by_owner() {
        let commit = CommitLsn(Lsn(10));
        let tables = [3, 1, 2].map(TableId).into();
        let flags = TruncateFlags { cascade: true, restart_identity: false };
        let events = vec![
            Event::Begin { commit, time_us: 0 },
            Event::Truncate { tables, flags, ordinal: 0 },
            Event::Commit { commit, end: position(11) },
        ];
        let map = owned(&[(1, 0), (2, 11), (3, 10)]);
        let expected = vec![(TableId(3), commit, 0), (TableId(1), commit, 0)];
        assert_eq!(project(events, &map, 0), expected);
    }

    //
    #[test]
    fn stripping_takes_out_one_table_and_nothing_else() {
        let mut stream = Stream::new(StreamId::Main, Session(1), position(1), Instant(0));
        let commit = CommitLsn(Lsn(10));
        let events = vec![
            Event::Begin { commit, time_us: 0 },
            event(0, &[1]),
            event(1, &[1, 2]),
            event(2, &[2]),
            Event::Commit { commit, end: position(11) },
        ];
        assert!(stream.take_in(events, Instant(0)).is_ok());
        let reach =
            Reach { bytes: 99, events: 0, boundary: None, complete_only: true, messages: false };
        let map = owned(&[(1, 0), (2, 0)]);
        let mut batch = dispatch(&mut stream, LANE, Epoch(1), &map, reach).batch;
        strip(&mut batch, TableId(3));
        assert_eq!(passed(&batch).len(), 4);
        strip(&mut batch, TableId(1));
        assert_eq!(passed(&batch), [(TableId(2), commit, 1), (TableId(2), commit, 2)]);
    }
}
