//! Calls the destination on a thread of its own, so that one that computes or blocks never delays
//! the loop: feedback goes on whatever the destination does.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::input::Answer;
use walferry_destinations::{Destination, DestinationError};

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Debug)]
pub(crate) struct DestinationThread<D> {
    destination: Arc<D>,
    calls: mpsc::UnboundedSender<Call>,
    thread: Option<JoinHandle<()>>,
}

impl<D: Destination> DestinationThread<D> {
    pub(crate) fn spawn(destination: D) -> io::Result<Self> {
        let (calls, mut queue) = mpsc::unbounded_channel::<Call>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread =
            std::thread::Builder::new().name("destination".to_owned()).spawn(move || {
                runtime.block_on(async {
                    while let Some(call) = queue.recv().await {
                        tokio::spawn(call);
                    }
                });
            })?;
        Ok(Self { destination: Arc::new(destination), calls, thread: Some(thread) })
    }

    /// One call; dropping the returned future gives up the wait and the call (DS-12).
    pub(crate) fn call<F>(
        &self,
        make: impl FnOnce(Arc<D>) -> F,
    ) -> impl Future<Output = Result<Answer, Fault>> + Send + 'static
    where
        F: Future<Output = Result<Answer, DestinationError>> + Send + 'static,
    {
        let work = make(Arc::clone(&self.destination));
        let (mut answer, answered) = oneshot::channel();
        let call: Call = Box::pin(async move {
            tokio::select! {
                result = work => {
                    // Nobody waits for it any more: the run is over, or the call was given up.
                    if answer.send(result).is_err() {
                        tracing::debug!("a call of the destination ended after its operation");
                    }
                }
                () = answer.closed() => {}
            }
        });
        let queued = self.calls.send(call).is_ok();
        async move {
            match answered.await {
                Ok(result) => result.map_err(|error| fault(&error)),
                Err(_) => {
                    let what = if queued { "panicked" } else { "has ended" };
                    let message = format!("the destination {what}");
                    Err(Fault::new(Origin::Destination, FaultKind::Violation, message))
                }
            }
        }
    }
}

impl<D> Drop for DestinationThread<D> {
    /// Ends the thread and waits for the call it is in, so that none outlives the run (L-I1).
    fn drop(&mut self) {
        let (closed, _) = mpsc::unbounded_channel();
        drop(std::mem::replace(&mut self.calls, closed));
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the destination's thread panicked");
        }
    }
}

fn fault(error: &DestinationError) -> Fault {
    let kind = FaultKind::Destination { class: error.class };
    let mut fault = Fault::new(Origin::Destination, kind, error.chain());
    fault.blame = error.blame();
    fault
}
