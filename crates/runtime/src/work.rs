//! Turns each piece of work of the core into the one adapter call that does it. No decisions.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use walferry_core::effect::Work;
use walferry_core::fault::{Fault, Origin};
use walferry_core::ids::{OpId, Session, StreamId};
use walferry_core::input::Answer;
use walferry_core::lsn::Position;
use walferry_destinations::{Destination, DestinationError};
use walferry_pg_source::Source;

use crate::copies::{self, Copies, Part};
use crate::destination::DestinationThread;
use crate::ops::Ops;
use crate::saves::Saves;
use crate::streams::Streams;

type Task = Pin<Box<dyn Future<Output = Result<Answer, Fault>> + Send>>;

/// Everything that does IO.
#[derive(Debug)]
pub(crate) struct Adapters<D> {
    pub(crate) ops: Ops,
    pub(crate) source: Source,
    pub(crate) saves: Saves,
    pub(crate) destination: DestinationThread<D>,
    pub(crate) streams: Streams,
    pub(crate) copies: Copies,
}

impl<D: Destination> Adapters<D> {
    pub(crate) fn start(&mut self, op: OpId, budget: Option<Duration>, work: Work<Bytes>) {
        let origin = origin(&work);
        let task = self.task(op, work);
        self.ops.start(op, budget, origin, task);
    }

    #[expect(clippy::too_many_lines, reason = "one arm, one call, for each kind of work")]
    fn task(&mut self, op: OpId, work: Work<Bytes>) -> Task {
        let source = self.source.clone();
        match work {
            Work::Save { record, changed } => Box::pin(self.saves.clone().save(record, changed)),
            Work::Identify => ask(async move { source.identify().await.map(Answer::Identified) }),
            Work::ListPublication => {
                ask(async move { source.list_publication().await.map(Answer::Publication) })
            }
            Work::InspectSlot { slot } => {
                ask(async move { source.inspect_slot(&slot).await.map(Answer::Slot) })
            }
            Work::ListSlots { prefix } => {
                ask(async move { source.list_slots(&prefix).await.map(Answer::Slots) })
            }
            Work::CreateSlot { slot, failover } => {
                ask(async move { source.create_slot(&slot, failover).await.map(Answer::Created) })
            }
            Work::EnableFailover { slot } => {
                ask(async move { source.enable_failover(&slot).await.map(|()| Answer::Done) })
            }
            Work::ReadTimelineHistory { timeline } => {
                ask(
                    async move { source.read_timeline_history(timeline).await.map(Answer::History) },
                )
            }
            Work::WriteHeartbeat { prefix, content } => {
                ask(
                    async move { source.write_heartbeat(prefix, &content).await.map(|()| Answer::Done) },
                )
            }
            Work::DropSlot { slot } => {
                ask(async move { source.drop_slot(&slot).await.map(|()| Answer::Done) })
            }
            Work::ReadBlockers { slot } => {
                ask(async move { source.read_blockers(&slot).await.map(Answer::Blockers) })
            }
            Work::ReadWalPosition => {
                ask(async move { source.read_wal_position().await.map(Answer::WalPosition) })
            }
            Work::CheckOwner => Box::pin(self.saves.clone().check()),
            Work::DescribeTable { table } => {
                ask(async move { source.describe_table(table).await.map(Answer::Described) })
            }
            Work::Monitor { slot } => {
                ask(async move { source.monitor(&slot).await.map(Answer::Monitored) })
            }
            Work::OpenStream { stream, session, slot, from } => {
                self.open_stream(stream, session, slot, from)
            }
            Work::CloseStream { stream } => Box::pin(self.streams.clone().close(stream)),
            Work::OpenSnapshot { table, attempt, slot, failover } => {
                let copy = self.copies.of(table, attempt);
                Box::pin(copy.open_snapshot(source, table, (slot, failover)))
            }
            Work::OpenReader { table, attempt, reader } => {
                Box::pin(self.copies.of(table, attempt).open_reader(reader))
            }
            Work::ReadSchema { table, attempt } => {
                Box::pin(self.copies.of(table, attempt).read_schema())
            }
            Work::ReadRange { table, attempt, reader, relation, blocks, schema, filter } => {
                let inputs = self.ops.inputs().clone();
                let copy = self.copies.of(table, attempt);
                let part = Part { reader, relation, blocks, schema, filter };
                Box::pin(copy.read_range(op, inputs, part))
            }
            Work::CloseReaders { table, attempt } => {
                Box::pin(self.copies.of(table, attempt).close_readers())
            }
            Work::CloseCopy { table, attempt } => {
                self.streams.forget(StreamId::Copy(table));
                match self.copies.remove(table, attempt) {
                    Some(copy) => Box::pin(copy.close()),
                    None => Box::pin(async { Ok(Answer::Done) }),
                }
            }
            Work::Startup { pipeline, epoch } => {
                self.call(|d| async move { done(d.startup(&pipeline, epoch).await) })
            }
            Work::BeginCopy(start) => self.call(|d| async move { done(d.begin_copy(start).await) }),
            Work::WriteRows(batch) => {
                self.call(|d| async move { d.write_rows(batch).await.map(Answer::Written) })
            }
            Work::FinishCopy { table, attempt, epoch, sequences } => {
                self.call(move |d| async move {
                    d.finish_copy(table, attempt, epoch, sequences).await.map(Answer::Written)
                })
            }
            Work::WriteChanges(batch) => {
                self.call(|d| async move { d.write_changes(batch).await.map(Answer::Written) })
            }
            Work::Flush { lane } => self.call(move |d| async move { done(d.flush(lane).await) }),
            Work::Shutdown => self.call(|d| async move { done(d.shutdown().await) }),
        }
    }

    fn call<F>(&self, make: impl FnOnce(std::sync::Arc<D>) -> F) -> Task
    where
        F: Future<Output = Result<Answer, DestinationError>> + Send + 'static,
    {
        Box::pin(self.destination.call(make))
    }

    fn open_stream(
        &self,
        stream: StreamId,
        session: Session,
        slot: String,
        from: Position,
    ) -> Task {
        let (streams, inputs) = (self.streams.clone(), self.ops.inputs().clone());
        let source = self.source.clone();
        match stream {
            StreamId::Main => Box::pin(async move {
                let (seen, handle, messages) = source.open_stream(&slot, from).await?;
                streams.opened(stream, session, handle, messages, inputs);
                Ok(Answer::Opened(seen))
            }),
            StreamId::Copy(table) => match self.copies.running(table) {
                Some(copy) => {
                    let into = (streams, inputs);
                    Box::pin(copy.open_stream(into, (stream, session), slot, from))
                }
                None => Box::pin(async { Err(copies::closed()) }),
            },
        }
    }
}

fn origin(work: &Work<Bytes>) -> Origin {
    match work {
        Work::Save { .. } | Work::CheckOwner => Origin::Store,
        Work::Startup { .. }
        | Work::BeginCopy(_)
        | Work::WriteRows(_)
        | Work::FinishCopy { .. }
        | Work::WriteChanges(_)
        | Work::Flush { .. }
        | Work::Shutdown => Origin::Destination,
        Work::Identify
        | Work::ListPublication
        | Work::InspectSlot { .. }
        | Work::ListSlots { .. }
        | Work::CreateSlot { .. }
        | Work::DropSlot { .. }
        | Work::ReadBlockers { .. }
        | Work::ReadWalPosition
        | Work::ReadTimelineHistory { .. }
        | Work::EnableFailover { .. }
        | Work::DescribeTable { .. }
        | Work::WriteHeartbeat { .. }
        | Work::Monitor { .. }
        | Work::OpenStream { .. }
        | Work::CloseStream { .. }
        | Work::OpenSnapshot { .. }
        | Work::OpenReader { .. }
        | Work::ReadSchema { .. }
        | Work::ReadRange { .. }
        | Work::CloseReaders { .. }
        | Work::CloseCopy { .. } => Origin::Source,
    }
}

fn ask(work: impl Future<Output = Result<Answer, Fault>> + Send + 'static) -> Task {
    Box::pin(work)
}

fn done(result: Result<(), DestinationError>) -> Result<Answer, DestinationError> {
    result.map(|()| Answer::Done)
}
