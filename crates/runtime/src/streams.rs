//! Open streams: forwards what their readers deliver into the loop, and feedback and gates back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::mpsc;
use walferry_core::Gate;
use walferry_core::fault::Fault;
use walferry_core::ids::{Session, StreamId};
use walferry_core::input::{Answer, Input};
use walferry_core::lsn::Position;
use walferry_pg_source::{StreamHandle, StreamMessage};

use crate::ops::Inputs;

/// The open streams; shared with the tasks that open and close them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams(Arc<Mutex<BTreeMap<StreamId, Open>>>);

#[derive(Debug)]
struct Open {
    session: Session,
    handle: Arc<StreamHandle>,
    gate: Gate,
}

impl Streams {
    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<StreamId, Open>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes an opened stream over: from here on its messages come in as inputs.
    pub(crate) fn opened(
        &self,
        stream: StreamId,
        session: Session,
        handle: StreamHandle,
        mut messages: mpsc::Receiver<StreamMessage>,
        inputs: Inputs,
    ) {
        let open = Open { session, handle: Arc::new(handle), gate: Gate::Open };
        self.with(|streams| streams.insert(stream, open));
        tokio::spawn(async move {
            while let Some(message) = messages.recv().await {
                let input: Input<Bytes> = match message {
                    StreamMessage::Events(events) => Input::Stream { stream, session, events },
                    StreamMessage::Ended(fault) => Input::StreamEnded { stream, session, fault },
                };
                if inputs.send(input).await.is_err() {
                    break;
                }
            }
        });
    }

    pub(crate) fn confirm(
        &self,
        stream: StreamId,
        session: Session,
        position: Position,
        ask_reply: bool,
    ) {
        self.with(|streams| {
            if let Some(open) = streams.get(&stream).filter(|open| open.session == session) {
                open.handle.confirm(position, ask_reply);
            }
        });
    }

    /// Passes the core's gates on where they moved.
    pub(crate) fn set_gates(&self, gate: impl Fn(StreamId) -> Gate) {
        self.with(|streams| {
            for (&stream, open) in streams.iter_mut() {
                let wanted = gate(stream);
                if wanted != open.gate {
                    open.gate = wanted;
                    open.handle.set_gate(wanted == Gate::Open);
                }
            }
        });
    }

    /// Ends a stream's session behind the feedback that was sent before.
    pub(crate) async fn close(self, stream: StreamId) -> Result<Answer, Fault> {
        let open = self.with(|streams| streams.remove(&stream));
        if let Some(open) = open {
            open.handle.close().await?;
        }
        Ok(Answer::Done)
    }

    /// Drops a stream without a word.
    pub(crate) fn forget(&self, stream: StreamId) {
        drop(self.with(|streams| streams.remove(&stream)));
    }
}
