//! Inputs go in, effects come out and begin. The driver of a simulated process.

use core::time::Duration;

use walferry_core::config::Config;
use walferry_core::effect::{Effect, Work};
use walferry_core::fault::Fault;
use walferry_core::ids::{OpId, StreamId};
use walferry_core::input::{Answer, Input, Request};
use walferry_core::notice::{Notice, Outcome};
use walferry_core::record::Phase;
use walferry_core::{Gate, Pipeline, Seed};

use super::row::Row;
use super::target::check_owner;
use super::{MAIN, Process, World};

impl World {
    /// Starts a process from the persisted record.
    ///
    /// # Panics
    /// If one lives, or the configuration is refused.
    pub fn start(&mut self) {
        assert!(self.process.is_none(), "a process lives");
        self.processes += 1;
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.processes.to_be_bytes());
        let record = self.store.persisted().cloned();
        let loaded_epoch = record.as_ref().map_or(0, |record| record.epoch.0);
        let handovers = record.iter().flat_map(|record| &*record.tables);
        let handovers = handovers
            .filter_map(|(&table, entry)| Some((table, entry.phase.handover()?)))
            .collect();
        let config: Config = self.config.clone();
        let pipeline = match Pipeline::new(config, record, Seed(seed), self.now) {
            Ok(pipeline) => pipeline,
            Err(error) => panic!("the configuration is refused: {error}"),
        };
        self.trace.line(|| format!("--- process {}", self.processes));
        self.process = Some(Process {
            pipeline,
            working: std::collections::BTreeMap::new(),
            reads: std::collections::BTreeMap::new(),
            loaded_epoch,
            handovers,
        });
        self.drain();
    }

    /// Hands one input to the core and begins what it asks for.
    ///
    /// # Panics
    /// On a violation: the world keeps the contract.
    pub fn handle(&mut self, input: Input<Row>) {
        self.trace.input(&input);
        let now = self.now;
        let Some(process) = &mut self.process else { return };
        if let Err(violation) = process.pipeline.handle(input, now) {
            panic!("{violation}");
        }
        self.drain();
    }

    /// Lets time pass, and wakes the core.
    pub fn advance(&mut self, by: Duration) {
        self.now = self.now.after(by);
        let now = self.now;
        let Some(process) = &mut self.process else { return };
        process.pipeline.handle_timeout(now);
        self.drain();
    }

    /// Lets time pass up to the next deadline of the core, if there is one.
    pub fn jump(&mut self) {
        let next = self.process.as_ref().and_then(|process| process.pipeline.poll_timeout());
        let Some((at, why)) = next else { return };
        let by = at.since(self.now);
        self.trace.line(|| format!("> {} ms: {why:?}", by.as_millis()));
        self.advance(by);
    }

    /// Events of a stream, at most `most`, if it may be read.
    pub fn deliver(&mut self, stream: StreamId, most: usize) {
        if !self.may_read(stream) {
            return;
        }
        let (session, events) = self.source.read(stream, most);
        if !events.is_empty() {
            self.handle(Input::Stream { stream, session, events });
        }
    }

    /// Whether the gate of a stream lets its events through.
    #[must_use]
    pub fn may_read(&self, stream: StreamId) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(|process| process.pipeline.gate(stream) == Gate::Open)
    }

    /// A keepalive; `far` as far ahead as the server may say (PG-09).
    pub fn keepalive(&mut self, stream: StreamId, far: bool, reply: bool) {
        if self.source.senders.contains_key(&stream) && self.may_read(stream) {
            let (session, event) = self.source.keepalive(stream, far, reply);
            self.handle(Input::Stream { stream, session, events: vec![event] });
        }
    }

    /// A stream ends although nobody closed it.
    pub fn end_stream(&mut self, stream: StreamId, fault: Fault) {
        if let Some(sender) = self.source.senders.remove(&stream) {
            self.handle(Input::StreamEnded { stream, session: sender.session, fault });
        }
    }

    /// Asks for an orderly stop.
    pub fn stop(&mut self) {
        self.handle(Input::Request(Request::Stop));
    }

    /// The process dies. `save` says whether the save in flight took effect; `survives` how much
    /// of so many accepted calls of a lane is durable.
    pub fn crash(&mut self, save: bool, survives: impl FnMut(usize) -> usize) {
        self.trace
            .line(|| format!("--- crash, a save in flight {}", if save { "done" } else { "lost" }));
        self.process = None;
        self.crash_at = None;
        self.store.doubt(save);
        self.destination.crash(&self.source, survives);
        self.source.disconnect_all();
        self.judge();
    }

    pub(super) fn drain(&mut self) {
        loop {
            if self.crash_at == Some(self.effects) {
                return;
            }
            let Some(process) = &mut self.process else { return };
            let Some(effect) = process.pipeline.poll_effect() else { break };
            self.effects += 1;
            self.execute(effect);
            self.judge();
        }
    }

    fn execute(&mut self, effect: Effect<Row>) {
        self.trace.effect(&effect);
        match effect {
            Effect::Start { op, budget: _, work } => self.begin(op, work),
            Effect::Cancel { op } => {
                if let Some(process) = &mut self.process
                    && let Some((_, cancelled)) = process.working.get_mut(&op)
                {
                    *cancelled = true;
                }
            }
            Effect::Confirm { stream, session, position, ask_reply } => {
                if stream == MAIN {
                    let saved = self.store.persisted().and_then(|record| record.checkpoint);
                    assert!(Some(position) <= saved, "{position} confirmed before saved (C-I2)");
                }
                self.source.confirm(stream, session, position, ask_reply);
            }
            Effect::Report(notice) => self.note(&notice),
            Effect::Ended(outcome) => self.end(outcome),
        }
    }

    fn begin(&mut self, op: OpId, work: Work<Row>) {
        self.destination.begin(op, &work);
        match &work {
            Work::Save { record, .. } => {
                let loaded = self.process.as_ref().map_or(0, |process| process.loaded_epoch);
                assert_eq!(record.epoch.0, loaded + 1, "each run raises the epoch once (U-13)");
                self.store.begin(op, std::sync::Arc::clone(record));
            }
            Work::BeginCopy(start) => {
                let entry =
                    self.store.persisted().and_then(|record| record.tables.get(&start.table));
                let saved = entry.is_some_and(|entry| {
                    entry.phase == Phase::Copying && entry.attempt == Some(start.attempt)
                });
                assert!(saved, "begin_copy before Copying is saved (K-I1)");
                assert_eq!(start.cutoff, self.source.cutoff(start.table, start.attempt));
            }
            Work::WriteChanges(batch) => {
                let Some(process) = &self.process else { return };
                check_owner(batch, |table| process.handovers.get(&table).copied());
            }
            Work::ReadRange { table, attempt, .. } => {
                let cutoff = self.source.cutoff(*table, *attempt);
                let rest = self.source.rows_at(*table, cutoff).into_iter().collect();
                if let Some(process) = &mut self.process {
                    process.reads.insert(op, super::Read { rest, done: 0 });
                }
            }
            Work::DropSlot { slot } => {
                let main = self.store.persisted().is_some_and(|record| {
                    record.identity.slot == *slot && record.initial_lsn.is_none()
                });
                assert!(main || slot.starts_with("walferry_copy_"), "{slot} dropped (U-I3)");
            }
            Work::Identify
            | Work::ListPublication
            | Work::InspectSlot { .. }
            | Work::ListSlots { .. }
            | Work::CreateSlot { .. }
            | Work::ReadBlockers { .. }
            | Work::CheckOwner
            | Work::ReadTimelineHistory { .. }
            | Work::EnableFailover { .. }
            | Work::DescribeTable { .. }
            | Work::WriteHeartbeat { .. }
            | Work::ReadWalPosition
            | Work::Monitor { .. }
            | Work::OpenStream { .. }
            | Work::CloseStream { .. }
            | Work::OpenSnapshot { .. }
            | Work::OpenReader { .. }
            | Work::ReadSchema { .. }
            | Work::CloseReaders { .. }
            | Work::CloseCopy { .. }
            | Work::Startup { .. }
            | Work::WriteRows(_)
            | Work::FinishCopy { .. }
            | Work::Flush { .. }
            | Work::Shutdown => (),
        }
        if let Some(process) = &mut self.process {
            process.working.insert(op, (work, false));
        }
    }

    fn note(&mut self, notice: &Notice) {
        let Some(process) = &mut self.process else { return };
        if let Notice::HandedOver { table, handover, .. } = notice {
            process.handovers.insert(*table, *handover);
            let Some(target) = self.destination.durable.get(table) else {
                panic!("table {table} handed over without a target");
            };
            let past = target.keys().find(|key| !handover.covers(key.commit));
            assert_eq!(past, None, "private delivery past the handover of {table} (W-I1)");
            let due = target.next_due(*table, &self.source);
            let lost = due.filter(|(key, _)| handover.covers(key.commit));
            assert_eq!(lost, None, "handover of {table} at {handover} leaves a hole (W-I1)");
        }
        if let Notice::CopyStarted { table, .. } | Notice::TableErrored { table, .. } = notice {
            process.handovers.remove(table);
        }
    }

    /// The process has ended by itself; what it held goes as in a crash.
    fn end(&mut self, outcome: Outcome) {
        let Some(mut process) = self.process.take() else { return };
        let more = process.pipeline.poll_effect();
        assert_eq!(more, None, "an effect after the end");
        let rest = process.pipeline.poll_timeout();
        assert_eq!(rest, None, "a run that ended wants to be woken");
        if let Outcome::Stopped { .. } = outcome {
            self.judge_stopped(&process);
        }
        self.store.doubt(false);
        self.destination.crash(&self.source, |_| 0);
        self.source.disconnect_all();
        self.ended = Some(outcome);
    }

    /// Q-I1, K-I4.
    fn judge_stopped(&self, process: &Process) {
        assert!(process.working.is_empty(), "stopped with work in flight (L-I1)");
        let Some(record) = self.store.persisted() else { return };
        let copying = record.tables.values().any(|entry| entry.phase == Phase::Copying);
        let started = record.epoch.0 == self.processes;
        assert!(!copying || !started, "stopped with a table in Copying (Q-01)");
        let slots = self.source.slots.values().filter(|slot| slot.temporary).count();
        assert_eq!(slots, 0, "copy slots after an orderly stop (K-I4)");
    }

    /// Completes an operation in flight.
    pub(super) fn complete(&mut self, op: OpId, result: Result<Answer, Fault>) {
        if let Some(process) = &mut self.process {
            process.working.remove(&op);
            process.reads.remove(&op);
        }
        self.handle(Input::Completed { op, result });
    }
}
