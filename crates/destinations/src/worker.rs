//! One blocking thread behind an asynchronous face.
//!
//! Owns the thread and the way of a command to it and of its answer back. Commands run one after
//! another, in the order in which they were sent. Knows nothing of what they do.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;
use walferry_core::fault::DestinationClass;

use crate::contract::DestinationError;

/// The thread. Dropping it lets the running command end, forgets the others and waits for it, unless
/// it is detached.
#[derive(Debug)]
pub(crate) struct Worker<C> {
    commands: Option<Sender<C>>,
    thread: Option<JoinHandle<()>>,
}

/// Where the result of a command goes.
#[derive(Debug)]
pub(crate) struct Answer<T>(oneshot::Sender<Result<T, DestinationError>>);

impl<C: Send + 'static> Worker<C> {
    pub(crate) fn spawn(
        name: &str,
        body: impl FnOnce(Receiver<C>) + Send + 'static,
    ) -> Result<Self, DestinationError> {
        let (commands, queue) = mpsc::channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(|| body(queue)).map_err(
            |error| {
                DestinationError::new(
                    DestinationClass::Transient { retry_after: None },
                    format!("no thread could be started for {name}"),
                )
                .caused_by(error)
            },
        )?;
        Ok(Self { commands: Some(commands), thread: Some(thread) })
    }

    /// Does not wait for the thread when dropped: a command may block for ever, like a write to a pipe
    /// that nobody reads, and must not keep the process from ending.
    pub(crate) fn detached(mut self) -> Self {
        drop(self.thread.take());
        self
    }

    /// Sends the command that `command` makes and waits for its answer. A command whose answer
    /// nobody waits for any more is not begun (DS-12).
    pub(crate) async fn ask<T>(
        &self,
        command: impl FnOnce(Answer<T>) -> C,
    ) -> Result<T, DestinationError> {
        let (answer, result) = oneshot::channel();
        let gone = || {
            DestinationError::new(
                DestinationClass::Permanent,
                "the thread of the destination has ended",
            )
        };
        let commands = self.commands.as_ref().ok_or_else(gone)?;
        commands.send(command(Answer(answer))).map_err(|_| gone())?;
        result.await.map_err(|_| gone())?
    }
}

impl<C> Drop for Worker<C> {
    fn drop(&mut self) {
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has told why on its own; there is nobody to tell here.
            drop(thread.join());
        }
    }
}

impl<T> Answer<T> {
    /// Whether the caller has gone: what has not been done must not be done any more.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.0.is_closed()
    }

    /// Runs `work` and sends its result, unless the caller has gone.
    pub(crate) fn with(self, work: impl FnOnce(&Self) -> Result<T, DestinationError>) {
        if !self.is_unwanted() {
            let result = work(&self);
            self.send(result);
        }
    }

    pub(crate) fn send(self, result: Result<T, DestinationError>) {
        // Nobody waits: the result has no reader.
        drop(self.0.send(result));
    }
}
