//! Which events pass (group J), and how they become a batch (X-02, B-02, B-04).
//!
//! A pure function of the events, the owned tables and the mode. Knows nothing of lanes, saves or
//! the destination. What the shape of a row means is decided in `following`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::batch::{Batch, BatchTable, Change, ChangeBody, TransactionPart};
use crate::event::Event;
use crate::following::{self, Following, Rules, Shape};
use crate::ids::{Attempt, Epoch, EventKey, Lane, TableId};
use crate::lsn::{CommitLsn, Position};
use crate::names;
use crate::policies::Doubt;
use crate::queue::event_bytes;
use crate::schema::{DdlMessage, TableSchema};
use crate::stream::{OpenTransaction, Stream};

/// A table whose changes pass on a stream, from a position on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    /// First boundary that the stream owns: the handover, on a private stream the cutoff.
    pub(crate) from: Position,
    /// Attempt of its rows at the destination.
    pub(crate) attempt: Attempt,
    /// Shape that its rows must have.
    pub(crate) following: Following,
}

impl Owned {
    /// A table whose schema is in force from `from` on.
    pub(crate) const fn new(from: Position, attempt: Attempt, schema: Arc<TableSchema>) -> Self {
        Self::with_schema_from(from, from, attempt, schema)
    }

    /// A table whose schema was read at `schema_from`, which may lie past `from` (K-18): rows below
    /// it keep their own shape.
    pub(crate) const fn with_schema_from(
        from: Position,
        schema_from: Position,
        attempt: Attempt,
        schema: Arc<TableSchema>,
    ) -> Self {
        let position = EventKey { commit: CommitLsn(schema_from.0), ordinal: 0 };
        Self { from, attempt, following: Following::new(position, schema) }
    }
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
    /// Stops before the first transaction at or past this one (L-07).
    pub(crate) before: Option<Position>,
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
    /// Tables whose relation differs from their schema in a way that the destination cannot follow,
    /// with both shapes and what it cannot do.
    pub(crate) mismatches: Vec<(TableId, String)>,
    /// Rows and truncates dropped because the stream does not own their table, by table.
    pub(crate) skipped: BTreeMap<TableId, u64>,
    /// Transactions of the heartbeats taken.
    pub(crate) heartbeats: Vec<CommitLsn>,
    /// What was found about schemas, beyond what passed.
    pub(crate) schemas: SchemaFindings,
}

/// What a dispatch found about schemas (D).
#[derive(Debug, Default)]
pub(crate) struct SchemaFindings {
    /// Changes that passed, with the columns in which existing rows may differ.
    pub(crate) changes: Vec<(TableId, following::Change)>,
    /// Tables that have to be copied anew, with those columns (D-15). Nothing of them passes behind
    /// the change.
    pub(crate) recopies: Vec<(TableId, Vec<String>)>,
    /// The dispatch stopped before a row whose shape the catalog has to explain (D-08).
    pub(crate) ask: Option<TableId>,
    /// Why schema messages were ignored (D-05).
    pub(crate) ignored: Vec<String>,
    /// A schema message came: the publication may be another one (T-03).
    pub(crate) wants_listing: bool,
}

/// Verdict on the table of the event before, so that runs of one table cost no lookups. It holds
/// within one transaction, because the handover decides by transaction.
#[derive(Clone, Copy)]
struct Current {
    table: TableId,
    index: Option<u32>,
    /// Whether the stream owns the table, from whatever position on.
    owned: bool,
}

/// The shape of the event's table is not known yet; nothing of the event was taken.
struct Hold;

struct Projection<'a, R> {
    owned: &'a mut BTreeMap<TableId, Owned>,
    rules: Rules<'a>,
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
    owned: &mut BTreeMap<TableId, Owned>,
    reach: Reach,
    rules: Rules<'_>,
) -> Dispatched<R> {
    let batch = Batch {
        lane,
        epoch,
        tables: Vec::new(),
        transactions: Vec::new(),
        changes: Vec::new(),
        bytes: 0,
    };
    let out = Dispatched {
        batch,
        boundary: None,
        mismatches: Vec::new(),
        skipped: BTreeMap::new(),
        heartbeats: Vec::new(),
        schemas: SchemaFindings::default(),
    };
    let refused = BTreeSet::new();
    let mut projection = Projection { owned, rules, out, current: None, refused, begun: None };
    let mut events = 0;
    while !(reach.complete_only && stream.queue.commits() == 0) {
        if reach.before.is_some_and(|before| !stream.has_below(before)) {
            break;
        }
        let Some(event) = stream.queue.pop() else { break };
        let bytes = event_bytes(&event);
        let ended = match projection.take(stream, event, reach.messages) {
            Ok(ended) => ended,
            Err(event) => {
                stream.queue.put_back(event);
                break;
            }
        };
        events += 1;
        projection.out.batch.bytes += bytes;
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
    /// Projects one event; whether it ended a transaction. `Err` gives the event back: dispatch holds
    /// before it.
    #[inline]
    fn take(
        &mut self,
        stream: &mut Stream<R>,
        event: Event<R>,
        messages: bool,
    ) -> Result<bool, Event<R>> {
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
            Event::Row { table, ordinal, kind, row, bytes } => {
                match self.keep(stream, table, ordinal) {
                    Ok(Some(index)) => {
                        self.push(stream, ordinal, ChangeBody::Row { table: index, kind, row });
                    }
                    Ok(None) => (),
                    Err(Hold) => return Err(Event::Row { table, ordinal, kind, row, bytes }),
                }
            }
            Event::Truncate { tables, flags, ordinal } => {
                // Fragments stay adjacent, so every shape is known before the first one passes.
                if tables.iter().any(|&table| self.keep(stream, table, ordinal).is_err()) {
                    return Err(Event::Truncate { tables, flags, ordinal });
                }
                // J-04: one fragment for each kept table, in list order, with one key
                for &table in &tables {
                    if let Ok(Some(index)) = self.keep(stream, table, ordinal) {
                        self.push(stream, ordinal, ChangeBody::Truncate { table: index, flags });
                    }
                }
            }
            Event::Message { transactional, lsn, prefix, content, bytes: _ } => {
                if transactional
                    && &*prefix == names::HEARTBEAT_PREFIX
                    && let Some(open) = stream.dispatching
                {
                    self.out.heartbeats.push(open.commit);
                }
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
                return Ok(true);
            }
            Event::Ddl(Ok(message)) => self.tell(stream, message),
            Event::Ddl(Err(reason)) => self.out.schemas.ignored.push(reason),
            Event::Keepalive { .. } => (),
        }
        Ok(false)
    }

    /// J-05, D-05: schema information for the tables that are kept.
    fn tell(&mut self, stream: &Stream<R>, message: Arc<DdlMessage>) {
        self.out.schemas.wants_listing = true;
        let ours = message.publication.as_ref().is_none_or(|name| name == self.rules.publication);
        let Some(open) = stream.dispatching.filter(|_| ours) else { return };
        if let Some(owned) = self.owned.get_mut(&message.schema.table)
            && !owned.from.covers(open.commit)
        {
            owned.following.tell(open.commit, message);
        }
    }

    /// J-01: the table's index in the batch iff its change passes.
    #[inline]
    fn keep(
        &mut self,
        stream: &Stream<R>,
        table: TableId,
        ordinal: u64,
    ) -> Result<Option<u32>, Hold> {
        let current = match self.current.filter(|current| current.table == table) {
            Some(current) => current,
            None => {
                let Some(open) = stream.dispatching else { return Ok(None) };
                let key = EventKey { commit: open.commit, ordinal };
                let index = self.verdict(stream, table, key)?;
                Current { table, index, owned: self.owned.contains_key(&table) }
            }
        };
        self.current = Some(current);
        if !current.owned {
            *self.out.skipped.entry(table).or_default() += 1;
        }
        Ok(current.index)
    }

    /// Looks the table up and compares the announced relation with its schema (D-08).
    fn verdict(
        &mut self,
        stream: &Stream<R>,
        table: TableId,
        key: EventKey,
    ) -> Result<Option<u32>, Hold> {
        let relation = stream.relations.get(&table);
        let Some(owned) = self.owned.get_mut(&table) else { return Ok(None) };
        if owned.from.covers(key.commit) || self.refused.contains(&table) {
            return Ok(None);
        }
        let attempt = owned.attempt;
        let shape = match relation {
            Some(relation) => owned.following.shape(relation, key, &self.rules),
            None => Shape::Newest,
        };
        match shape {
            Shape::Newest => {
                let schema = owned.following.history().newest();
                Ok(Some(index(&mut self.out.batch.tables, table, attempt, schema)))
            }
            Shape::Older(schema) => {
                Ok(Some(index(&mut self.out.batch.tables, table, attempt, &schema)))
            }
            Shape::Ask => {
                self.out.schemas.ask = Some(table);
                Err(Hold)
            }
            Shape::Changed(change) => Ok(self.changed(stream, (table, attempt), key, *change)),
            Shape::Refused(why) => {
                self.refused.insert(table);
                self.out.mismatches.push((table, why));
                Ok(None)
            }
        }
    }

    /// A schema change goes before the event, with the event's key (D-08).
    #[cold]
    fn changed(
        &mut self,
        stream: &Stream<R>,
        (table, attempt): (TableId, Attempt),
        key: EventKey,
        found: following::Change,
    ) -> Option<u32> {
        if !found.silent.is_empty() && self.rules.silent_rewrite == Doubt::Recopy {
            self.refused.insert(table);
            self.out.schemas.recopies.push((table, found.silent));
            return None;
        }
        let change = Arc::clone(&found.change);
        let index = index(&mut self.out.batch.tables, table, attempt, &change.schema);
        self.out.schemas.changes.push((table, found));
        self.push(stream, key.ordinal, ChangeBody::Schema { table: index, change });
        Some(index)
    }

    #[inline]
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

/// The entry of a table with this schema; the newest entries are looked at first.
fn index(
    tables: &mut Vec<BatchTable>,
    table: TableId,
    attempt: Attempt,
    schema: &Arc<TableSchema>,
) -> u32 {
    let is_it = |entry: &BatchTable| entry.table == table && Arc::ptr_eq(&entry.schema, schema);
    let index = tables.iter().rposition(is_it).unwrap_or_else(|| {
        tables.push(BatchTable { table, attempt, schema: Arc::clone(schema) });
        tables.len() - 1
    });
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// N-15: prefixes of messages that are walferry's own business.
fn is_reserved(prefix: &str) -> bool {
    names::is_ddl_prefix(prefix) || prefix == names::HEARTBEAT_PREFIX
}

/// takes the events of `table` out of a batch.
pub(crate) fn strip<R>(batch: &mut Batch<R>, table: TableId) {
    retain(batch, |entry| entry.table != table);
}

/// takes the events of every table out of a batch for which `keep` does not hold.
pub(crate) fn retain<R>(batch: &mut Batch<R>, keep: impl Fn(&BatchTable) -> bool) {
    if batch.tables.iter().all(&keep) {
        return;
    }
    let mut left = 0;
    let renumbered: Vec<Option<u32>> = (batch.tables.iter())
        .map(|entry| {
            keep(entry).then(|| {
                left += 1;
                left - 1
            })
        })
        .collect();
    let new_index = |old: u32| {
        let old = usize::try_from(old).unwrap_or(usize::MAX);
        renumbered.get(old).copied().flatten()
    };
    batch.changes.retain_mut(|change| match &mut change.body {
        ChangeBody::Row { table, .. }
        | ChangeBody::Truncate { table, .. }
        | ChangeBody::Schema { table, .. } => {
            let kept = new_index(*table);
            *table = kept.unwrap_or(*table);
            kept.is_some()
        }
        ChangeBody::Message { .. } => true,
    });
    batch.tables.retain(keep);
}

/// Changes of a batch that belong to tables for which `of` holds; messages belong to none.
pub(crate) fn count<R>(batch: &Batch<R>, of: impl Fn(&BatchTable) -> bool) -> usize {
    let belongs = |change: &&Change<R>| match &change.body {
        ChangeBody::Row { table, .. }
        | ChangeBody::Truncate { table, .. }
        | ChangeBody::Schema { table, .. } => {
            let index = usize::try_from(*table).unwrap_or(usize::MAX);
            batch.tables.get(index).is_some_and(&of)
        }
        ChangeBody::Message { .. } => false,
    };
    batch.changes.iter().filter(belongs).count()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::event::{RowKind, TruncateFlags};
    use crate::ids::{Session, StreamId};
    use crate::lsn::Lsn;
    use crate::schema::{ReplicaIdentity, SchemaSupport, TableSchema};
    use crate::time::Instant;

    const LANE: Lane = Lane::Main;
    const REACH: Reach = Reach {
        bytes: u64::MAX,
        events: 0,
        boundary: None,
        before: None,
        complete_only: false,
        messages: false,
    };
    const RULES: Rules<'static> =
        Rules { support: SchemaSupport::ALL, silent_rewrite: Doubt::Recopy, publication: "app" };

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
            (TableId(table), Owned::new(position(from), Attempt(1), Arc::new(schema)))
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
        let reach = Reach { events: at_once, ..REACH };
        let mut all = Vec::new();
        let mut map = map.clone();
        while !stream.queue.is_empty() {
            let before = stream.dispatched;
            let out = dispatch(&mut stream, LANE, Epoch(1), &mut map, reach, RULES);
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
        let reach = Reach { bytes: 99, complete_only: true, ..REACH };
        let mut map = owned(&[(1, 0), (2, 0)]);
        let mut batch = dispatch(&mut stream, LANE, Epoch(1), &mut map, reach, RULES).batch;
        strip(&mut batch, TableId(3));
        assert_eq!(passed(&batch).len(), 4);
        strip(&mut batch, TableId(1));
        assert_eq!(passed(&batch), [(TableId(2), commit, 1), (TableId(2), commit, 2)]);
        assert_eq!(batch.tables.len(), 1, "what has no event is not named any more");
        assert_eq!(count(&batch, |entry| entry.attempt == Attempt(1)), 2);
        retain(&mut batch, |entry| entry.attempt != Attempt(1));
        assert!(batch.changes.is_empty(), "events of an older attempt");
    }

    // L-07: exactly what lies below the position, whatever else is queued
    #[test]
    fn a_dispatch_stops_before_the_first_transaction_at_or_past_a_position() {
        let transaction = |lsn: u64| {
            let commit = CommitLsn(Lsn(lsn));
            let begin = Event::Begin { commit, time_us: 0 };
            [begin, event(0, &[1]), Event::Commit { commit, end: position(lsn + 2) }]
        };
        for (before, end) in [(10, 1), (11, 12), (12, 12), (13, 14), (99, 14)] {
            let mut stream = Stream::new(StreamId::Main, Session(1), position(1), Instant(0));
            let events = [transaction(10), transaction(12)].concat();
            assert!(stream.take_in(events, Instant(0)).is_ok());
            let before = Some(position(before));
            let reach = Reach { before, ..REACH };
            dispatch(&mut stream, LANE, Epoch(1), &mut owned(&[]), reach, RULES);
            assert_eq!(stream.dispatched, position(end), "up to {before:?}");
            assert!(!stream.is_inside_transaction());
        }
    }
}
