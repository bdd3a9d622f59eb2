//! A session on a thread of its own: a runtime of one thread serves one socket and nothing else.
//!
//! Owns the life of that thread. Must never know what is done in the session.
//!
//! Streams and copies live here because system time dominates them: woken on another thread, every
//! read would cost two more switches. The session ends when it is told to, when the worker is
//! dropped, when the one who waits for an answer goes away, or when it broke.

use std::future::Future;
use std::pin::Pin;
use std::thread;

use tokio::sync::{mpsc, oneshot, watch};

use crate::error::SourceError;
use crate::session::Session;

/// What to do with the session after a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Wait for the next job.
    Keep,
    /// Say goodbye.
    End,
    /// Cancel what runs in it, then say goodbye.
    Cancel,
}

type Running<'a> = Pin<Box<dyn Future<Output = After> + 'a>>;
type Job = Box<dyn for<'a> FnOnce(&'a mut Session) -> Running<'a> + Send>;

/// Handle of the thread. Dropping it ends the session, whatever it does.
#[derive(Debug)]
pub(crate) struct Worker {
    jobs: mpsc::UnboundedSender<Job>,
    /// Tells the thread to end; has no receiver once it has.
    stop: watch::Sender<bool>,
}

impl Worker {
    /// Starts the thread and opens the session on it.
    pub(crate) async fn start<T: Send + 'static>(
        name: &str,
        open: impl AsyncFnOnce() -> Result<(Session, T), SourceError> + Send + 'static,
    ) -> Result<(Self, T), SourceError> {
        let (jobs, next_jobs) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        let (opened, answer) = oneshot::channel();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    runtime.block_on(serve(open, opened, next_jobs, stopped));
                    // A name that is still being resolved must not keep the thread.
                    runtime.shutdown_background();
                }
                Err(error) => drop(opened.send(Err(SourceError::io("start a runtime", error)))),
            }
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|error| SourceError::io("start a thread", error))?;
        let value = answer.await.map_err(|_| lost())??;
        Ok((Self { jobs, stop }, value))
    }

    /// Runs `work` in the session. When the future is dropped, `work` is cancelled at the server
    /// too, and the session ends.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(&mut Session) -> Result<T, SourceError> + Send + 'static,
    ) -> Result<T, SourceError> {
        let (mut reply, answer) = oneshot::channel();
        self.put(Box::new(move |session| {
            Box::pin(async move {
                let result = tokio::select! {
                    biased;
                    result = work(session) => result,
                    () = reply.closed() => return After::Cancel,
                };
                let broken = result.is_err() && !session.is_settled();
                if reply.send(result).is_err() || broken { After::Cancel } else { After::Keep }
            })
        }))?;
        answer.await.map_err(|_| self.gone())?
    }

    /// Runs `work` in the session without anybody waiting for it.
    pub(crate) fn detach(
        &self,
        work: impl AsyncFnOnce(&mut Session) -> After + Send + 'static,
    ) -> Result<(), SourceError> {
        self.put(Box::new(move |session| Box::pin(work(session))))
    }

    fn put(&self, job: Job) -> Result<(), SourceError> {
        self.jobs.send(job).map_err(|_| self.gone())
    }

    /// Why there is no session any more: we ended it, or it broke.
    fn gone(&self) -> SourceError {
        if *self.stop.borrow() {
            SourceError::Stopped("work in a session that was closed")
        } else {
            lost()
        }
    }

    /// Tells the session to end, whatever it does.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until the session has ended.
    pub(crate) async fn ended(&self) {
        self.stop.closed().await;
    }
}

fn lost() -> SourceError {
    SourceError::Closed { during: "an earlier exchange".to_owned() }
}

async fn serve<T>(
    open: impl AsyncFnOnce() -> Result<(Session, T), SourceError>,
    mut opened: oneshot::Sender<Result<T, SourceError>>,
    mut jobs: mpsc::UnboundedReceiver<Job>,
    mut stop: watch::Receiver<bool>,
) {
    let opening = tokio::select! {
        biased;
        result = open() => result,
        () = opened.closed() => return,
    };
    let mut session = match opening {
        Err(error) => return drop(opened.send(Err(error))),
        Ok((session, value)) => {
            if opened.send(Ok(value)).is_err() {
                return session.end().await;
            }
            session
        }
    };
    let after = loop {
        let job = tokio::select! {
            biased;
            // An error means that the handle was dropped.
            _ = stop.changed() => break After::End,
            job = jobs.recv() => job,
        };
        let Some(job) = job else { break After::End };
        let after = tokio::select! {
            biased;
            _ = stop.changed() => After::Cancel,
            after = job(&mut session) => after,
        };
        match after {
            After::Keep => {}
            After::End | After::Cancel => break after,
        }
    };
    if let (After::Cancel, Some(canceller)) = (after, session.canceller()) {
        canceller.cancel().await;
    }
    session.end().await;
}
