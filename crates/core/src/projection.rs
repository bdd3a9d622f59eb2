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
            Event::Keepalive { .. } => (),
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
        ChangeBody::Row { table, .. } | ChangeBody::Truncate { table, .. } => *table != gone,
        ChangeBody::Message { .. } => true,
    });
}
