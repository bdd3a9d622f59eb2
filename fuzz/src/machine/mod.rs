//! The pipeline itself, driven by bytes: each chooses what happens next among what its contract
//! allows at this moment. Panics if an invariant of the core breaks, if the core calls something a
//! violation although the contract was kept, or if it breaks its own side of it.

mod choices;
mod server;

use core::time::Duration;
use std::collections::BTreeMap;

use walferry_core::batch::{Declaration, DeliveryClass, Durability};
use walferry_core::config::{Config, Limits};
use walferry_core::effect::{Effect, Work};
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::ids::{OpId, StreamId, TableId};
use walferry_core::input::{Answer, Input, Request};
use walferry_core::lsn::Position;
use walferry_core::record::Record;
use walferry_core::schema::SchemaSupport;
use walferry_core::time::Instant;
use walferry_core::{Gate, Pipeline, Seed};

use choices::{Choices, failure};
use server::Server;

/// More bytes add nothing that fewer do not show.
const BYTES_MAX: usize = 4_096;

/// Plays the bytes.
pub fn pipeline(data: &[u8]) {
    let mut choices = Choices::new(&data[..data.len().min(BYTES_MAX)]);
    let mut machine = Machine::new(&mut choices);
    while let Some(what) = choices.next() {
        machine.step(what, &mut choices);
    }
}

struct Machine {
    config: Config,
    server: Server,
    saved: Option<Record>,
    now: Instant,
    process: Option<Process>,
}

struct Process {
    pipeline: Pipeline<u32>,
    working: BTreeMap<OpId, Working>,
    last_op: OpId,
}

struct Working {
    work: Work<u32>,
    cancelled: bool,
    /// Rows handed over, of a `ReadRange`.
    rows: u64,
}

fn config(choices: &mut Choices<'_>) -> Config {
    let class = [DeliveryClass::ExactlyOnce, DeliveryClass::Idempotent, DeliveryClass::Append];
    let limits = Limits {
        batch_events: choices.below(4),
        batch_ms: 10 * choices.below(2),
        copy_concurrency: 1 + choices.below(3),
        flush_batches: 1 + choices.below(3),
        idle_checkpoint_ms: 1 + 1_000 * choices.below(2),
        memory_bytes: 32 << 20,
        ..Limits::default()
    };
    Config {
        publication: "app".to_owned(),
        database: "app".to_owned(),
        destination: Declaration {
            id: "fuzz:".to_owned(),
            class: class[choices.index(class.len())],
            lanes_max: 1 + choices.index(3) as u32,
            copy_in_flight_max: 1 + choices.index(2) as u32,
            wants_messages: choices.below(2) == 1,
            partial_rows: true,
            schema_changes: SchemaSupport::NONE,
        },
        until: None,
        limits,
    }
}

impl Machine {
    fn new(choices: &mut Choices<'_>) -> Self {
        let config = config(choices);
        let server = Server::new(1 + choices.index(3) as u32);
        Self { config, server, saved: None, now: Instant(0), process: None }
    }

    fn step(&mut self, what: u8, choices: &mut Choices<'_>) {
        if self.process.is_none() {
            self.start();
            return;
        }
        match what % 16 {
            0..=5 => self.complete(choices),
            6 => self.fail(choices),
            7..=8 => self.deliver(choices),
            9 => self.server.commit(choices),
            10 => self.keepalive(choices),
            11 => self.jump(),
            12 => self.pass(Duration::from_millis(1 << choices.below(12))),
            13 => self.hand_rows(choices),
            14 => self.lose_stream(choices),
            _ => self.ask(choices),
        }
        if let Some(process) = &self.process {
            process.pipeline.check_invariants();
        }
    }

    fn start(&mut self) {
        let seed = Seed([7; 32]);
        let made = Pipeline::new(self.config.clone(), self.saved.clone(), seed, self.now);
        let Ok(pipeline) = made else { panic!("the configuration is refused: {made:?}") };
        let (working, last_op) = (BTreeMap::new(), OpId(0));
        self.process = Some(Process { pipeline, working, last_op });
        self.drain();
    }

    fn handle(&mut self, input: Input<u32>) {
        let Some(process) = &mut self.process else { return };
        if let Err(violation) = process.pipeline.handle(input, self.now) {
            panic!("the contract was kept: {violation}");
        }
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(process) = &mut self.process
            && let Some(effect) = process.pipeline.poll_effect()
        {
            match effect {
                Effect::Start { op, budget: _, work } => {
                    assert!(op > process.last_op, "{op} is not fresh");
                    process.last_op = op;
                    process.working.insert(op, Working { work, cancelled: false, rows: 0 });
                }
                Effect::Cancel { op } => {
                    let working = process.working.get_mut(&op);
                    let Some(working) = working else { panic!("{op} does not run: cancelled") };
                    working.cancelled = true;
                }
                Effect::Confirm { stream, session, position, ask_reply: _ } => {
                    let saved = self.saved.as_ref().and_then(|record| record.checkpoint);
                    let main = stream == StreamId::Main;
                    assert!(!main || Some(position) <= saved, "{position} is not saved (C-I2)");
                    self.server.confirm(stream, session, position);
                }
                Effect::Report(_) => (),
                Effect::Ended(_) => {
                    assert!(process.pipeline.poll_effect().is_none(), "an effect after the end");
                    assert_eq!(process.pipeline.poll_timeout(), None, "a timer after the end");
                    self.process = None;
                    self.server.disconnect_all();
                }
            }
        }
    }

    /// One of the operations in flight, with its work.
    fn pick(&self, choices: &mut Choices<'_>) -> Option<(OpId, Work<u32>, bool)> {
        let working = &self.process.as_ref()?.working;
        let (&op, found) = working.iter().nth(choices.index(working.len()))?;
        Some((op, found.work.clone(), found.cancelled))
    }

    fn end(&mut self, op: OpId, result: Result<Answer, Fault>) {
        let ended = self.process.as_mut().and_then(|process| process.working.remove(&op));
        if ended.is_some() {
            self.handle(Input::Completed { op, result });
        }
    }

    fn complete(&mut self, choices: &mut Choices<'_>) {
        let Some((op, work, cancelled)) = self.pick(choices) else { return };
        if cancelled && choices.below(2) == 1 {
            self.end(op, Err(Fault::new(Origin::Source, FaultKind::Stopped, "")));
            return;
        }
        if let Work::Save { record, .. } = &work {
            self.saved = Some((**record).clone());
        }
        let mut result = self.server.perform(&work, choices);
        if let Ok(Answer::Written(durability)) = &mut result
            && choices.below(2) == 1
        {
            *durability = Durability::Accepted;
        }
        if let Ok(Answer::RangeRead(facts)) = &mut result {
            let found = self.process.as_ref().and_then(|process| process.working.get(&op));
            facts.rows = found.map_or(0, |found| found.rows);
        }
        self.end(op, result);
    }

    fn fail(&mut self, choices: &mut Choices<'_>) {
        let Some((op, work, _)) = self.pick(choices) else { return };
        if let Work::Save { record, .. } = &work
            && choices.below(2) == 1
        {
            // R-F9: it took effect and reports failure.
            self.saved = Some((**record).clone());
        }
        if let Work::CloseCopy { .. } | Work::CloseStream { .. } = &work {
            // What they end is over either way.
            drop(self.server.perform(&work, choices));
        }
        self.end(op, Err(failure(&work, choices)));
    }

    fn gate_is_open(&self, stream: StreamId) -> bool {
        self.process.as_ref().is_some_and(|process| process.pipeline.gate(stream) == Gate::Open)
    }

    fn deliver(&mut self, choices: &mut Choices<'_>) {
        let Some(stream) = self.server.pick_stream(choices) else { return };
        if self.gate_is_open(stream) {
            let (session, events) = self.server.read(stream, 1 + choices.index(8));
            self.handle(Input::Stream { stream, session, events });
        }
    }

    fn keepalive(&mut self, choices: &mut Choices<'_>) {
        let Some(stream) = self.server.pick_stream(choices) else { return };
        if self.gate_is_open(stream) {
            let (session, event) = self.server.keepalive(stream, choices.below(2) == 1);
            self.handle(Input::Stream { stream, session, events: vec![event] });
        }
    }

    fn jump(&mut self) {
        let next = self.process.as_ref().and_then(|process| process.pipeline.poll_timeout());
        if let Some((at, _)) = next {
            self.pass(at.since(self.now));
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        if let Some(process) = &mut self.process {
            process.pipeline.handle_timeout(self.now);
            self.drain();
        }
    }

    fn hand_rows(&mut self, choices: &mut Choices<'_>) {
        let Some((op, Work::ReadRange { table, .. }, false)) = self.pick(choices) else { return };
        if !self.gate_is_open(StreamId::Copy(table)) {
            return;
        }
        let (rows, bytes) = (1 + choices.below(4), 1 << (10 + choices.below(14)));
        if let Some(process) = &mut self.process
            && let Some(working) = process.working.get_mut(&op)
        {
            working.rows += rows;
        }
        self.handle(Input::CopyRows { op, block: 0, rows, bytes });
    }

    fn lose_stream(&mut self, choices: &mut Choices<'_>) {
        let Some(stream) = self.server.pick_stream(choices) else { return };
        if let Some(session) = self.server.lose(stream) {
            let fault = Fault::new(Origin::Source, FaultKind::Transport, "");
            self.handle(Input::StreamEnded { stream, session, fault });
        }
    }

    fn ask(&mut self, choices: &mut Choices<'_>) {
        let table = TableId(1 + choices.index(3) as u32);
        let request = match choices.below(12) {
            0 => Request::Stop,
            1 => Request::StopNow,
            2..=3 => Request::Retry(table),
            4..=5 => Request::Resync(table),
            6 => Request::Hold,
            7 => Request::Release,
            8 => {
                let by = choices.below(20);
                Request::Advance(Position(walferry_core::lsn::Lsn(self.server.head().0.0 + by)))
            }
            9 => Request::Recreate,
            _ => return self.crash(choices),
        };
        self.handle(Input::Request(request));
    }

    /// The process dies; a save in flight may have taken effect.
    fn crash(&mut self, choices: &mut Choices<'_>) {
        let Some(process) = self.process.take() else { return };
        for working in process.working.into_values() {
            if let Work::Save { record, .. } = working.work
                && choices.below(2) == 1
            {
                self.saved = Some((*record).clone());
            }
        }
        self.server.disconnect_all();
    }
}
