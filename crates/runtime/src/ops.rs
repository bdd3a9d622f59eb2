//! Operations in flight: each is a task with a budget, and gets exactly one completion, whether it
//! ends, is cancelled, takes too long or panics.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::ids::OpId;
use walferry_core::input::{Answer, Input};

/// What the loop reads: a few messages of streams, rows and completions, in order. Bounded, so that
/// a reader cannot run ahead of the loop.
pub(crate) type Inputs = mpsc::Sender<Input<Bytes>>;

#[derive(Debug)]
pub(crate) struct Ops {
    inputs: Inputs,
    running: BTreeMap<OpId, oneshot::Sender<()>>,
}

impl Ops {
    pub(crate) const fn new(inputs: Inputs) -> Self {
        Self { inputs, running: BTreeMap::new() }
    }

    pub(crate) const fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// Runs `work` as the operation `op` within its budget.
    pub(crate) fn start(
        &mut self,
        op: OpId,
        budget: Option<Duration>,
        origin: Origin,
        work: impl Future<Output = Result<Answer, Fault>> + Send + 'static,
    ) {
        let (cancel, cancelled) = oneshot::channel();
        self.running.insert(op, cancel);
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            let task = tokio::spawn(bounded(work, budget, origin, cancelled));
            let result = match task.await {
                Ok(result) => result,
                Err(error) => {
                    Err(Fault::new(origin, FaultKind::Violation, format!("a task failed: {error}")))
                }
            };
            // The loop is gone only when the run is over.
            if inputs.send(Input::Completed { op, result }).await.is_err() {
                tracing::debug!(%op, "completed after the end of the run");
            }
        });
    }

    /// The work is given up; its completion comes all the same.
    pub(crate) fn cancel(&mut self, op: OpId) {
        if let Some(cancel) = self.running.remove(&op)
            && cancel.send(()).is_err()
        {
            tracing::debug!(%op, "cancelled after its end");
        }
    }

    pub(crate) fn completed(&mut self, op: OpId) {
        self.running.remove(&op);
    }
}

async fn bounded(
    work: impl Future<Output = Result<Answer, Fault>> + Send,
    budget: Option<Duration>,
    origin: Origin,
    cancelled: oneshot::Receiver<()>,
) -> Result<Answer, Fault> {
    let expired = async {
        match budget {
            Some(budget) => {
                tokio::time::sleep(budget).await;
                budget
            }
            None => std::future::pending().await,
        }
    };
    // A sender that is dropped without a word is the bookkeeping of an operation that ended.
    let cancelled = async {
        if cancelled.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        result = work => result,
        () = cancelled => Err(Fault::found(origin, FaultKind::Stopped)),
        budget = expired => Err(Fault::found(origin, FaultKind::Timeout { budget })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ops() -> (Ops, mpsc::Receiver<Input<Bytes>>) {
        let (inputs, receiver) = mpsc::channel(4);
        (Ops::new(inputs), receiver)
    }

    async fn kind(receiver: &mut mpsc::Receiver<Input<Bytes>>) -> FaultKind {
        match receiver.recv().await {
            Some(Input::Completed { op: OpId(1), result: Err(fault) }) => fault.kind,
            other => panic!("not a failed completion: {other:?}"),
        }
    }

    #[tokio::test]
    async fn work_that_takes_too_long_times_out() {
        let (mut ops, mut receiver) = ops();
        let budget = Duration::from_millis(1);
        ops.start(OpId(1), Some(budget), Origin::Source, std::future::pending());
        assert_eq!(kind(&mut receiver).await, FaultKind::Timeout { budget });
    }

    #[tokio::test]
    async fn cancelled_work_completes_once() {
        let (mut ops, mut receiver) = ops();
        ops.start(OpId(1), None, Origin::Source, std::future::pending());
        ops.cancel(OpId(1));
        ops.cancel(OpId(1));
        assert_eq!(kind(&mut receiver).await, FaultKind::Stopped);
        drop(ops);
        assert_eq!(receiver.recv().await, None);
    }

    // L-F3
    #[tokio::test]
    async fn a_panic_is_the_failure_of_its_operation() {
        let (mut ops, mut receiver) = ops();
        ops.start(OpId(1), None, Origin::Destination, async { panic!("a bug") });
        assert_eq!(kind(&mut receiver).await, FaultKind::Violation);
        walferry_coverage::reached("L-F3");
    }
}
