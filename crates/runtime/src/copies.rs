//! Running copy attempts at the source: the connections of each, and the gate of its readers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use walferry_core::Gate;
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::ids::{Attempt, OpId, Session, StreamId, TableId};
use walferry_core::input::{Answer, Input};
use walferry_core::lsn::Position;
use walferry_core::schema::TableSchema;
use walferry_core::source::BlockRange;
use walferry_pg_source::{CopyAttempt, CopyBlock, CopyRange, Source};

use crate::ops::Inputs;
use crate::streams::Streams;

/// Blocks of rows on their way from a reader to the loop.
const BLOCKS: usize = 4;

/// The connections of one attempt; empty before the snapshot is open and after it was closed.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    connections: Arc<Mutex<Option<Arc<CopyAttempt>>>>,
    gate: Arc<watch::Sender<bool>>,
}

/// What one read is asked for.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) reader: u32,
    pub(crate) relation: TableId,
    pub(crate) blocks: BlockRange,
    pub(crate) schema: Arc<TableSchema>,
    pub(crate) filter: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Copies(BTreeMap<TableId, (Attempt, Copy)>);

impl Copies {
    /// The attempt's connections; a new set for a new attempt.
    pub(crate) fn of(&mut self, table: TableId, attempt: Attempt) -> Copy {
        match self.0.get(&table) {
            Some((number, copy)) if *number == attempt => copy.clone(),
            Some(_) | None => {
                let (gate, _) = watch::channel(true);
                let copy = Copy { connections: Arc::default(), gate: Arc::new(gate) };
                self.0.insert(table, (attempt, copy.clone()));
                copy
            }
        }
    }

    /// The connections of the table's running attempt.
    pub(crate) fn running(&self, table: TableId) -> Option<Copy> {
        self.0.get(&table).map(|(_, copy)| copy.clone())
    }

    pub(crate) fn remove(&mut self, table: TableId, attempt: Attempt) -> Option<Copy> {
        let is_it = self.0.get(&table).is_some_and(|(number, _)| *number == attempt);
        if is_it { self.0.remove(&table).map(|(_, copy)| copy) } else { None }
    }

    /// Passes the core's gates on where they moved.
    pub(crate) fn set_gates(&self, gate: impl Fn(TableId) -> Gate) {
        for (&table, (_, copy)) in &self.0 {
            let open = gate(table) == Gate::Open;
            copy.gate.send_if_modified(|current| std::mem::replace(current, open) != open);
        }
    }
}

impl Copy {
    fn take(&self) -> Option<Arc<CopyAttempt>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn open(&self) -> Result<Arc<CopyAttempt>, Fault> {
        let guard = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        guard.clone().ok_or_else(closed)
    }

    pub(crate) async fn open_snapshot(
        self,
        source: Source,
        table: TableId,
        (slot, failover): (String, bool),
    ) -> Result<Answer, Fault> {
        let (attempt, facts) = source.open_snapshot(table, &slot, failover).await?;
        let mut guard = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        *guard = Some(Arc::new(attempt));
        Ok(Answer::Snapshot(facts))
    }

    pub(crate) async fn open_reader(self, reader: u32) -> Result<Answer, Fault> {
        Ok(Answer::Reader(self.open()?.open_reader(reader).await?))
    }

    pub(crate) async fn read_schema(self) -> Result<Answer, Fault> {
        Ok(Answer::Schema(self.open()?.read_schema().await?))
    }

    /// Rows go into the loop in front of the completion of `op`, through the same channel.
    pub(crate) async fn read_range(
        self,
        op: OpId,
        inputs: Inputs,
        part: Part,
    ) -> Result<Answer, Fault> {
        let attempt = self.open()?;
        let (sink, mut blocks) = mpsc::channel::<CopyBlock>(BLOCKS);
        let gate = self.gate.subscribe();
        let forward = async {
            while let Some(CopyBlock { block, rows, bytes }) = blocks.recv().await {
                let input: Input<Bytes> = Input::CopyRows { op, block, rows, bytes };
                if inputs.send(input).await.is_err() {
                    break;
                }
            }
        };
        let Part { reader, relation, blocks, schema, filter } = &part;
        let range = CopyRange {
            reader: *reader,
            relation: *relation,
            blocks: *blocks,
            schema,
            filter: filter.as_deref(),
        };
        let read = attempt.read_range(range, sink, gate);
        let (read, ()) = tokio::join!(read, forward);
        Ok(Answer::RangeRead(read?))
    }

    pub(crate) async fn close_readers(self) -> Result<Answer, Fault> {
        self.open()?.close_readers().await?;
        Ok(Answer::Done)
    }

    pub(crate) async fn open_stream(
        self,
        (streams, inputs): (Streams, Inputs),
        (stream, session): (StreamId, Session),
        slot: String,
        from: Position,
    ) -> Result<Answer, Fault> {
        let (seen, handle, messages) = self.open()?.open_stream(&slot, from).await?;
        streams.opened(stream, session, handle, messages, inputs);
        Ok(Answer::Opened(seen))
    }

    pub(crate) async fn close(self) -> Result<Answer, Fault> {
        if let Some(attempt) = self.take() {
            attempt.close().await?;
        }
        Ok(Answer::Done)
    }
}

/// The attempt was closed, or never opened.
pub(crate) fn closed() -> Fault {
    Fault::new(Origin::Source, FaultKind::Transport, "the attempt's connections are closed")
}
