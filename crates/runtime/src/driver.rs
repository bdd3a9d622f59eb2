//! The one event loop: drains what the core asks for, starts it, waits for whatever comes next, and
//! tells the core. It has no `if` about data.

use std::sync::Arc;
use std::time::{Duration, Instant as Std};

use bytes::Bytes;
use tokio::sync::{broadcast, mpsc, watch};
use walferry_core::effect::Effect;
use walferry_core::event::Event;
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::ids::StreamId;
use walferry_core::input::{Input, Request};
use walferry_core::notice::{Notice, Outcome};
use walferry_core::source::MonitorFacts;
use walferry_core::{Pipeline, Violation};
use walferry_destinations::Destination;

use crate::clock::Clock;
use crate::control::Status;
use crate::work::Adapters;

/// Least time between two pictures: drawing one costs time with many tables.
const PICTURE: Duration = Duration::from_millis(100);
/// An executor's timer never needs to be further away than this.
const FAR: Duration = Duration::from_secs(3_600);

pub(crate) struct Driver<D> {
    pub(crate) core: Pipeline<Bytes>,
    pub(crate) clock: Clock,
    pub(crate) adapters: Adapters<D>,
    pub(crate) inputs: mpsc::Receiver<Input<Bytes>>,
    pub(crate) requests: mpsc::UnboundedReceiver<Request>,
    pub(crate) status: watch::Sender<Arc<Status>>,
    pub(crate) notices: broadcast::Sender<Notice>,
    pub(crate) monitored: Option<MonitorFacts>,
    pub(crate) changes: u64,
    pub(crate) drawn: Option<Std>,
}

impl<D: Destination> Driver<D> {
    /// Runs the pipeline to its end.
    pub(crate) async fn run(mut self) -> Outcome {
        let outcome = loop {
            if let Some(outcome) = self.start_effects() {
                break outcome;
            }
            self.adapters.streams.set_gates(|stream| self.core.gate(stream));
            self.adapters.copies.set_gates(|table| self.core.rows_gate(table));
            self.draw();
            if let Err(violation) = self.wait().await {
                break broken(&violation);
            }
        };
        self.end(outcome).await
    }

    /// Drains the effects; never waits for a completion here.
    fn start_effects(&mut self) -> Option<Outcome> {
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::Start { op, budget, work } => self.adapters.start(op, budget, work),
                Effect::Cancel { op } => self.adapters.ops.cancel(op),
                Effect::Confirm { stream, session, position, ask_reply } => {
                    self.adapters.streams.confirm(stream, session, position, ask_reply);
                }
                Effect::Report(notice) => self.tell(notice),
                Effect::Ended(outcome) => return Some(outcome),
            }
        }
        None
    }

    /// Waits for the next thing that happens and tells the core.
    async fn wait(&mut self) -> Result<(), Violation> {
        let deadline = self.core.poll_timeout().and_then(|(at, _)| self.clock.std(at));
        let deadline = deadline.unwrap_or_else(|| Std::now() + FAR);
        tokio::select! {
            biased;
            Some(request) = self.requests.recv() => {
                self.core.handle(Input::Request(request), self.clock.now())
            }
            Some(input) = self.inputs.recv() => self.take(input),
            () = tokio::time::sleep_until(deadline.into()) => {
                self.core.handle_timeout(self.clock.now());
                Ok(())
            }
        }
    }

    fn take(&mut self, input: Input<Bytes>) -> Result<(), Violation> {
        match &input {
            Input::Completed { op, .. } => self.adapters.ops.completed(*op),
            Input::Stream { stream: StreamId::Main, events, .. } => {
                let rows = events.iter().filter(|event| matches!(event, Event::Row { .. }));
                self.changes += rows.count() as u64;
            }
            Input::Stream { stream: StreamId::Copy(_), .. }
            | Input::StreamEnded { .. }
            | Input::CopyRows { .. }
            | Input::Request(_) => (),
        }
        self.core.handle(input, self.clock.now())
    }

    fn tell(&mut self, notice: Notice) {
        if let Notice::Monitored(facts) = &notice {
            self.monitored = Some(facts.clone());
        }
        tracing::debug!(?notice, "notice");
        // Nobody has to listen.
        drop(self.notices.send(notice));
        self.drawn = None;
    }

    fn draw(&mut self) {
        let recent = self.drawn.is_some_and(|drawn| drawn.elapsed() < PICTURE);
        if !recent {
            self.drawn = Some(Std::now());
            self.publish(None);
        }
    }

    fn publish(&self, outcome: Option<Outcome>) {
        let status = Status {
            view: self.core.view(),
            monitored: self.monitored.clone(),
            changes: self.changes,
            outcome,
        };
        self.status.send_replace(Arc::new(status));
    }

    /// Lets everything go: tasks, connections, the destination, the state (L-I1).
    async fn end(self, outcome: Outcome) -> Outcome {
        self.publish(Some(outcome.clone()));
        let Self { adapters, inputs, .. } = self;
        drop(inputs);
        let Adapters { source, saves, destination, streams, copies, ops } = adapters;
        drop((ops, streams, copies));
        source.close().await;
        drop(destination);
        saves.release();
        outcome
    }
}

fn broken(violation: &Violation) -> Outcome {
    let fault = Fault::new(Origin::Core, FaultKind::Violation, violation.to_string());
    Outcome::Failed { action: "driving the core", fault }
}
