//! Inputs go in, effects come out and begin. The driver of a simulated process.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use walferry_core::config::Config;
use walferry_core::effect::{Effect, Work};
use walferry_core::fault::{Fault, Origin};
use walferry_core::ids::{Lane, OpId, StreamId, TableId};
use walferry_core::input::{Answer, Input, Request};
use walferry_core::lsn::Position;
use walferry_core::notice::{FenceEnd, Notice, Outcome};
use walferry_core::record::Phase;
use walferry_core::view::Positions;
use walferry_core::{Gate, Pipeline, Seed};

use super::judges::Watch;
use super::judges::fault_points::crash_points;
use super::row::Row;
use super::{MAIN, Process, Running, World};
use crate::coverage::reached;

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
        self.store.acquire(self.processes);
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
            working: BTreeMap::new(),
            reads: BTreeMap::new(),
            loaded_epoch,
            server: None,
            handovers,
            watch: Watch::default(),
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
        self.judge_picture();
    }

    fn judge_picture(&mut self) {
        let doomed = self.is_doomed();
        let timeline = self.timeline();
        let Some(process) = &mut self.process else { return };
        let gap = process.watch.gap.filter(|_| !doomed);
        assert_eq!(gap, None, "a gap of an adopted table is not reported (O-10)");
        let view = process.pipeline.view();
        process.watch.judge(&view, &self.config.limits, self.event_bytes);
        process.watch.judge_stop(self.now, &self.config.limits, self.last_advance);
        let full = process.pipeline.gate(MAIN) == Gate::Closed && view.lifecycle == "running";
        process.watch.retrying &= view.lifecycle != "running" || view.outstanding > 0;
        if let Some(source) = self.source.on_timeline(timeline) {
            process.watch.judge_frontier(&view, source);
        }
        if full && view.held_bytes > self.config.limits.memory_bytes / 4 {
            self.hit(["A-F7"]);
        }
    }

    /// Lets time pass, wakes the core, and gives up what has used its budget.
    pub fn advance(&mut self, by: Duration) {
        self.now = self.now.after(by);
        self.last_advance = by;
        let now = self.now;
        self.source.now = now;
        let Some(process) = &mut self.process else { return };
        process.pipeline.handle_timeout(now);
        self.drain();
        while self.budgets && !self.is_doomed() {
            let working = self.process.iter().flat_map(|process| &process.working);
            let mut late =
                working.filter(|(_, running)| running.deadline.is_some_and(|at| at <= now));
            let Some(op) = late.next().map(|(&op, _)| op) else { break };
            self.time_out(op);
        }
        self.judge_picture();
    }

    /// Lets time pass up to the next deadline, if there is one.
    pub fn jump(&mut self) {
        let Some(process) = &self.process else { return };
        let next = process.pipeline.poll_timeout();
        let budgets = process.working.values().filter(|running| self.budgets && running.hung);
        let hung = budgets.filter_map(|running| running.deadline).min();
        let Some(at) = next.map(|(at, _)| at).into_iter().chain(hung).min() else { return };
        let by = at.since(self.now);
        self.trace.line(|| {
            let why = next.filter(|(wanted, _)| *wanted == at).map(|(_, why)| format!("{why:?}"));
            let why = why.unwrap_or_else(|| "a budget".to_owned());
            format!("> {} ms: {why}", by.as_millis())
        });
        self.advance(by);
    }

    /// Events of a stream, at most `most`, while it may be read. Large ones come one by one, as an
    /// adapter that asks its gate before each read takes them.
    pub fn deliver(&mut self, stream: StreamId, most: usize) {
        let mut left = most;
        while left > 0 && self.may_read(stream) && !self.is_doomed() {
            let (session, events, ends) = self.source.read(stream, left, self.read_bytes);
            let taken = events.len();
            if taken > 0 {
                self.handle(Input::Stream { stream, session, events });
            }
            if let Some(kind) = ends {
                self.end_stream(stream, Fault::found(Origin::Source, kind));
            }
            left = if taken == 0 { 0 } else { left.saturating_sub(taken) };
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
        let Some(sender) = self.source.senders.get(&stream) else { return };
        if !self.may_read(stream) {
            return;
        }
        let inside = sender.is_inside();
        let before = self.process.as_ref().and_then(|process| process.watch.before());
        let busy = inside || self.destination.owing_knowingly().contains(&Lane::Main);
        let (session, event) = self.source.keepalive(stream, far, reply);
        self.handle(Input::Stream { stream, session, events: vec![event] });
        if stream == MAIN && busy {
            self.judge_keepalive(before);
        }
        if inside {
            self.hit(["A-F8"]);
        }
    }

    /// A-I5: nothing moves by a keepalive while something is under way.
    fn judge_keepalive(&self, before: Option<Positions>) {
        let after = self.process.as_ref().and_then(|process| process.watch.before());
        if let (Some(before), Some(after)) = (before, after) {
            let still = (before.received, before.frontier) == (after.received, after.frontier);
            assert!(still, "a keepalive moves {before:?} to {after:?} (A-I5)");
            reached("A-I5");
        }
    }

    /// A stream ends although nobody closed it.
    pub fn end_stream(&mut self, stream: StreamId, fault: Fault) {
        let points = self.loss_points(stream);
        if let Some(sender) = self.source.senders.remove(&stream) {
            self.handle(Input::StreamEnded { stream, session: sender.session, fault });
            self.hit(points);
        }
    }

    /// Asks for an orderly stop.
    pub fn stop(&mut self) {
        self.request(Request::Stop);
    }

    /// Asks for something.
    pub fn request(&mut self, request: Request) {
        let stops = matches!(request, Request::Stop | Request::StopNow);
        let points = if stops { self.stop_points() } else { Vec::new() };
        let copies = self.pipeline().is_some_and(|pipeline| {
            pipeline.view().tables.iter().any(|table| table.copy.is_some())
        });
        if let Some(process) = self.process.as_mut().filter(|_| stops) {
            process.watch.stop.get_or_insert((self.now, copies));
        }
        self.recreation_asked |= request == Request::Recreate;
        self.handle(Input::Request(request));
        self.hit(points);
    }

    /// The process dies. `save` says whether the save in flight took effect; `survives` how much
    /// of so many accepted calls of a lane is durable.
    pub fn crash(&mut self, save: bool, survives: impl FnMut(usize) -> usize) {
        let points = crash_points(self, save);
        self.trace
            .line(|| format!("--- crash, a save in flight {}", if save { "done" } else { "lost" }));
        self.process = None;
        self.crash_at = None;
        self.store.doubt(save);
        self.crash_destination(survives);
        self.source.disconnect_all();
        self.judge();
        self.hit(points);
    }

    /// What the destination did was made of the timeline that the record names.
    fn crash_destination(&mut self, survives: impl FnMut(usize) -> usize) {
        let timeline = self.timeline();
        let source = self.source.on_timeline(timeline).unwrap_or(&self.source);
        // What was accepted for an attempt that is over may be there or not: nobody counts on it.
        let records: Vec<_> = self.store.in_doubt().cloned().collect();
        self.destination.forget_what_is_over(|table, attempt| {
            records.iter().any(|record| {
                let entry = record.tables.get(&table);
                entry.is_some_and(|entry| {
                    let lives = match entry.phase {
                        Phase::Copying | Phase::Catchup { .. } | Phase::Ready { .. } => true,
                        Phase::Pending | Phase::Errored { .. } => false,
                    };
                    lives && entry.attempt == Some(attempt)
                })
            })
        });
        self.destination.crash(source, survives);
    }

    /// Timeline of the persisted record, or of the source before the first save.
    #[must_use]
    pub fn timeline(&self) -> u32 {
        let recorded = self.store.persisted().map(|record| record.identity.timeline);
        recorded.unwrap_or(self.source.timeline)
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
            Effect::Start { op, budget, work } => self.begin(op, budget, work),
            Effect::Cancel { op } => {
                if let Some(process) = &mut self.process
                    && let Some(running) = process.working.get_mut(&op)
                {
                    running.cancelled = true;
                }
            }
            Effect::Confirm { stream, session, position, ask_reply } => {
                if stream == MAIN {
                    let saved = self.store.persisted().and_then(|record| record.checkpoint);
                    assert!(Some(position) <= saved, "{position} confirmed before saved (C-I2)");
                    reached("C-I2");
                } else {
                    reached("W-I3");
                }
                self.source.confirm(stream, session, position, ask_reply);
            }
            Effect::Report(notice) => self.note(&notice),
            Effect::Ended(outcome) => self.end(outcome),
        }
    }

    fn begin(&mut self, op: OpId, budget: Option<Duration>, work: Work<Row>) {
        self.judge_work(&work);
        if let Some(process) = &mut self.process {
            process.watch.lane_begins(&work);
        }
        self.destination.begin(op, &work);
        if let Work::Save { record, .. } = &work {
            self.store.begin(op, Arc::clone(record), self.source.timeline);
        }
        if matches!(work, Work::CreateSlot { .. } | Work::OpenSnapshot { .. }) {
            self.source.begin_creation(op);
        }
        self.begin_read(op, &work);
        let deadline = budget.map(|budget| self.now.after(budget));
        if let Some(process) = &mut self.process {
            let running = Running { work, cancelled: false, deadline, hung: false };
            process.working.insert(op, running);
        }
    }

    fn begin_read(&mut self, op: OpId, work: &Work<Row>) {
        let Work::ReadRange { table, attempt, reader, blocks, schema, .. } = work else { return };
        let rest = self.source.read_range(*table, *attempt, *reader, *blocks, schema);
        if let Some(process) = &mut self.process {
            let rest = rest.unwrap_or_default();
            process.reads.insert(op, super::Read { rest, done: 0 });
        }
    }

    fn note(&mut self, notice: &Notice) {
        if let Notice::HandedOver { table, attempt, handover, ready } = notice {
            self.destination.handed_over(*table, *attempt, *handover);
            self.judge_handover(*table, *handover);
            self.note_gap(*table, *handover);
            self.judge_place(*table, *handover, *ready);
        }
        if let Some(rule) = rule_of(notice) {
            reached(rule);
        }
        if let Notice::SilentRewrite { table, .. } = notice {
            self.reported.insert(*table);
        }
        if let Notice::MainRetry { failures, .. } = notice {
            let most = self.config.limits.main_retries_max;
            assert!(*failures <= most, "{failures} failures in a row, of {most} (Y-I3)");
            reached("Y-I3");
        }
        if let (Notice::FenceOpened { table, why, .. }, Some(process)) = (notice, &mut self.process)
        {
            let (limits, late) = (&self.config.limits, self.last_advance);
            process.watch.fences.opens(*table, *why, self.now, limits, late);
        }
        if let (Notice::FenceClosed { table, .. }, Some(process)) = (notice, &mut self.process) {
            process.watch.fences.closes(*table, self.now);
        }
        if let Some(process) = &mut self.process {
            process.note(notice, self.in_peace);
        }
    }

    /// O-10, K-18: what an adopted table was not told of below its handover has to be reported.
    fn note_gap(&mut self, table: TableId, handover: Position) {
        let Some(target) = self.destination.visible.get(&table).filter(|t| t.adopted) else {
            return;
        };
        let source = self.source.on_timeline(self.timeline()).unwrap_or(&self.source);
        let initial = self.store.persisted().and_then(|record| record.initial_lsn);
        let mut events = source.history_from(table, initial.unwrap_or_default());
        let known = target.watermark();
        let missing = events.any(|(key, _)| handover.covers(key.commit) && Some(*key) > known);
        if let Some(process) = self.process.as_mut().filter(|_| missing) {
            process.watch.gap = Some(table);
        }
    }

    fn judge_handover(&self, table: TableId, handover: Position) {
        let Some(target) = self.destination.durable.get(&table) else {
            panic!("table {table} handed over without a target");
        };
        reached("H-I1");
        reached("W-I1");
        if target.adopted {
            return;
        }
        let past = target.keys().find(|key| !handover.covers(key.commit));
        assert_eq!(past, None, "private delivery past the handover of {table} (W-I1)");
        let source = self.source.on_timeline(self.timeline()).unwrap_or(&self.source);
        let due = target.next_due(table, source).map(|(key, _)| key);
        let lost = due.filter(|key| handover.covers(key.commit));
        assert_eq!(lost, None, "handover of {table} at {handover} leaves a hole (W-I1)");
        reached("T-I1");
        reached("H-I4");
        if target.watermark().is_some() {
            // What the private lane wrote was accepted first, and then flushed.
            let lane = Lane::Table(table);
            let watch = self.process.as_ref().and_then(|process| process.watch.lanes.get(&lane));
            if watch.is_some_and(|lane| lane.flushed) {
                reached("DS-I4");
            }
        }
    }

    /// H-I2, H-I3: where main stood when a table was handed over. The picture of the step before is
    /// the lowest place, the one of this step the highest.
    fn judge_place(&mut self, table: TableId, handover: Position, ready: bool) {
        let Some(process) = &self.process else { return };
        let (Some(before), openings) = (process.watch.before(), process.watch.openings) else {
            return;
        };
        let (least, most) = (before.dispatched, process.pipeline.view().positions.dispatched);
        if most < least {
            // The main stream opens again in this very step.
            return;
        }
        assert!(least <= handover, "{table} handed over at {handover}, main is at {least} (H-I2)");
        let legal = if ready { handover <= most } else { least < handover };
        assert!(legal, "ready is {ready}: {handover}, main is at {least} to {most} (H-I2)");
        reached("H-I2");
        let from = process.watch.opened_at.unwrap_or_default();
        let dropped = self.source.history_from(table, from).next();
        if openings > 0 && dropped.is_some_and(|(key, _)| least.covers(key.commit)) {
            reached("H-I3");
        }
        if self.source.transaction_around(least).is_some() {
            self.hit(["H-F3"]);
        }
        if least == handover || super::judges::next(least) == handover {
            self.hit(["H-F4"]);
        }
    }

    /// The process has ended by itself; what it held goes as in a crash.
    fn end(&mut self, outcome: Outcome) {
        self.judge_end(&outcome);
        let Some(mut process) = self.process.take() else { return };
        let more = process.pipeline.poll_effect();
        assert_eq!(more, None, "an effect after the end");
        let rest = process.pipeline.poll_timeout();
        assert_eq!(rest, None, "a run that ended wants to be woken");
        if let Outcome::Stopped { .. } = outcome {
            self.judge_stopped(&process);
        }
        self.store.doubt(false);
        self.crash_destination(|_| 0);
        self.source.disconnect_all();
        if let Outcome::Failed { fault, .. } = &outcome {
            self.refused = Some(fault.kind.clone());
        }
        if matches!(outcome, Outcome::Stopped { until_reached: true, .. }) {
            // A command that was carried out is not repeated.
            self.config.until = None;
        }
        self.ended = Some(outcome);
    }

    /// Completes an operation in flight.
    pub(super) fn complete(&mut self, op: OpId, result: Result<Answer, Fault>) {
        self.source.end_creation(op);
        if let Some(process) = &mut self.process {
            if let Some(running) = process.working.remove(&op) {
                process.watch.lane_ended(&running.work, result.is_ok());
            }
            process.reads.remove(&op);
        }
        self.handle(Input::Completed { op, result });
    }
}

impl Process {
    /// Keeps what the judges compare with.
    fn note(&mut self, notice: &Notice, in_peace: bool) {
        if let Notice::HandedOver { table, handover, .. } = notice {
            self.handovers.insert(*table, *handover);
        }
        if let Notice::CopyStarted { table, .. }
        | Notice::TableErrored { table, .. }
        | Notice::TableGone { table, .. }
        | Notice::MembershipChanged { table }
        | Notice::Quarantined { table } = notice
        {
            self.handovers.remove(table);
        }
        if let Notice::Recreating { .. } = notice {
            self.handovers.clear();
        }
        if let Notice::Promoted { fork, .. } = notice {
            self.handovers.retain(|_, handover| *handover <= *fork);
        }
        if let Notice::FenceClosed { .. } = notice {
            self.watch.fence_in_peace = in_peace;
        }
        if let Notice::FenceOpened { table, why, .. } = notice {
            // Everything is answered at once, so the table must pass main (W-14).
            let in_vain = *why == FenceEnd::Expired && self.watch.fence_in_peace;
            assert!(!in_vain, "a fence for table {table} ended by time in peace (W-I4)");
        }
        if let Notice::AdoptGap { table, .. } = notice
            && self.watch.gap == Some(*table)
        {
            self.watch.gap = None;
        }
        self.watch.retrying |= matches!(notice, Notice::MainRetry { .. });
        self.watch.slot_lost |= matches!(notice, Notice::SlotLost { .. });
    }
}

/// The rule that a notice says was at work.
const fn rule_of(notice: &Notice) -> Option<&'static str> {
    Some(match notice {
        Notice::RewriteGuard { .. } => "K-27",
        Notice::DiedCopying { .. } => "Y-10",
        Notice::TableReady { .. } => "X-I4",
        Notice::SlotBusy { .. } => "M-F2",
        Notice::SlotCreationWaits { .. } => "M-06",
        Notice::ForeignSlotLeft { .. } => "K-F13",
        Notice::Reopened { .. } => "X-13",
        Notice::SchemaChanged { .. } => "D-08",
        Notice::DdlIgnored { .. } => "D-05",
        Notice::RequestRefused { .. } => "Y-09",
        Notice::HeartbeatSeen { .. } => "A-15",
        Notice::Held { .. } | Notice::Advanced { .. } | Notice::Released { .. } => "L-07",
        Notice::Stalled { .. } | Notice::Unstalled => "L-02",
        Notice::FailoverEnabled { .. } => "M-09",
        Notice::TableAdded { .. } => "T-05",
        Notice::TableGone { .. } => "T-09",
        Notice::MembershipChanged { .. } => "T-11",
        Notice::NotConverging { .. } => "W-18",
        Notice::SideTaskFailed { .. } => "T-F2",
        Notice::Promoted { .. } => "P-I1",
        Notice::FenceClosed { .. } => "W-13",
        Notice::FenceOpened { .. } => "W-15",
        Notice::AdoptGap { .. } => "O-10",
        Notice::TombstoneSkipped { .. } => "T-I4",
        Notice::MainRetry { .. } => "Y-02",
        Notice::SlotLost { .. } => "I-02",
        Notice::Recreating { .. } => "I-04",
        Notice::SilentRewrite { .. } => "D-15",
        Notice::IdentityLost { .. } => "D-16",
        Notice::Quarantined { .. } => "X-14",
        Notice::TableErrored { .. } => "Y-06",
        Notice::SourceIdentified { .. }
        | Notice::CopySlotAtRisk { .. }
        | Notice::ActionsMissing { .. }
        | Notice::MainSlotCreated { .. }
        | Notice::Streaming { .. }
        | Notice::CopyStarted { .. }
        | Notice::CopyRowsDone { .. }
        | Notice::HandedOver { .. }
        | Notice::Monitored(_)
        | Notice::Copying { .. }
        | Notice::UntilTarget { .. }
        | Notice::Stopping { .. } => return None,
    })
}
