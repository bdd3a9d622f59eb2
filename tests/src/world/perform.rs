//! Work takes effect and is answered, or fails: without an effect, with one, or with one that comes
//! late.

use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::fault::{Blame, DestinationClass, Fault, FaultKind, Origin};
use walferry_core::ids::{Lane, OpId};
use walferry_core::input::{Answer, Input};
use walferry_core::record::Record;
use walferry_core::source::{MonitorFacts, RangeFacts, SchemaFacts};

use super::judges::Step;
use super::row::Row;
use super::source::Edit;
use super::{MAIN, World};
use crate::coverage::reached;

/// The transient error of the simulated sink.
pub const TRANSIENT: FaultKind =
    FaultKind::Destination { class: DestinationClass::Transient { retry_after: None } };

impl World {
    /// Work takes effect and succeeds; a cancelled one of the source ends as such. Snapshot rows
    /// that are left are handed over first. What the server keeps waiting goes on waiting.
    pub fn perform(&mut self, op: OpId, durability: Durability) {
        let running = self.process.as_ref().and_then(|process| process.working.get(&op)).cloned();
        let Some(running) = running else { return };
        let work = running.work;
        if running.cancelled && !ends_by_itself(&work) {
            self.refuse(op, FaultKind::Stopped);
            return;
        }
        if self.waits(op, &work) {
            return;
        }
        while self.hand_rows(op, 3) {}
        if self.is_doomed() || !self.is_alive() {
            return;
        }
        if self.destination.must_fail(&work) {
            self.destination.failed_for_debt(op, &work);
            self.complete(op, Err(Fault::new(Origin::Destination, TRANSIENT, "")));
            return;
        }
        match self.take_effect(op, &work, durability) {
            Ok(answer) => self.complete(op, Ok(answer)),
            Err(kind) => self.refuse(op, kind),
        }
    }

    /// Work fails without an effect.
    pub fn refuse(&mut self, op: OpId, kind: FaultKind) {
        self.refuse_blaming(op, kind, Blame::Unstated);
    }

    /// Work fails without an effect, and says who is at fault.
    pub fn refuse_blaming(&mut self, op: OpId, kind: FaultKind, blame: Blame) {
        let origin = origin_of(&kind);
        let points = self.points_of_failure(op, &kind);
        let running = self.process.as_ref().and_then(|process| process.working.get(&op));
        if let Some(work) = running.map(|running| running.work.clone()) {
            self.let_go(&work);
        }
        if kind == FaultKind::StoreFailed {
            self.store.doubt(false);
        }
        self.destination.failed(op, None);
        self.complete(op, Err(Fault { blame, ..Fault::new(origin, kind, "") }));
        self.hit(points);
    }

    /// The driver lets go of connections that it was asked to close, whatever becomes of the request.
    fn let_go(&mut self, work: &Work<Row>) {
        if let Work::CloseCopy { table, attempt } = work {
            self.source.close_copy(*table, *attempt);
        }
        if let Work::CloseStream { stream } = work {
            self.source.senders.remove(stream);
        }
    }

    fn points_of_failure(&self, op: OpId, kind: &FaultKind) -> Vec<&'static str> {
        let running = self.process.as_ref().and_then(|process| process.working.get(&op));
        let running = running.filter(|running| !running.cancelled);
        running.map_or_else(Vec::new, |running| self.failure_points(&running.work, kind))
    }

    /// The save in flight takes effect and reports failure (R-F9).
    pub fn save_in_doubt(&mut self, op: OpId) {
        let points = self.points_of_failure(op, &FaultKind::StoreFailed);
        self.store.doubt(true);
        reached("R-I4");
        self.complete(op, Err(Fault::new(Origin::Store, FaultKind::StoreFailed, "")));
        self.hit(["R-F9"]);
        self.hit(points);
    }

    /// A call takes effect and reports failure (DS-F3).
    pub fn perform_in_doubt(&mut self, op: OpId, durability: Durability) {
        let Some(running) =
            self.process.as_ref().and_then(|process| process.working.get(&op)).cloned()
        else {
            return;
        };
        if self.waits(op, &running.work) || self.destination.must_fail(&running.work) {
            return;
        }
        let done = self.take_effect(op, &running.work, durability);
        self.destination.reported_failed(&running.work);
        let kind = if done.is_ok() { TRANSIENT } else { FaultKind::Transport };
        let mut points = self.failure_points(&running.work, &kind);
        points.push("DS-F3");
        if matches!(running.work, Work::Flush { lane: Lane::Main }) {
            points.push("F-F5");
        }
        self.complete(op, Err(Fault::new(origin_of(&kind), kind, "")));
        self.hit(points);
    }

    /// Work never returns: it ends when its budget has passed.
    pub fn hang(&mut self, op: OpId) {
        if let Some(process) = &mut self.process
            && let Some(running) = process.working.get_mut(&op)
            && running.deadline.is_some()
        {
            running.hung = true;
        }
    }

    /// Nothing hangs any more.
    pub fn unhang(&mut self) {
        for running in self.process.iter_mut().flat_map(|process| process.working.values_mut()) {
            running.hung = false;
        }
    }

    /// The budget of work has passed: it is given up, and may still take effect late.
    pub(super) fn time_out(&mut self, op: OpId) {
        let Some(running) =
            self.process.as_ref().and_then(|process| process.working.get(&op)).cloned()
        else {
            return;
        };
        let mut points = vec![if ends_by_itself(&running.work) { "DS-F2" } else { "PG-44" }];
        if matches!(running.work, Work::Flush { lane: Lane::Main }) {
            points.push("F-F2");
        }
        if matches!(running.work, Work::CreateSlot { .. }) {
            points.push("M-F1");
        }
        if matches!(running.work, Work::Save { .. }) {
            points.push("R-F10");
        }
        let (kind, origin) = if let Work::Save { .. } | Work::CheckOwner = running.work {
            self.store.doubt(false);
            (FaultKind::StoreFailed, Origin::Store)
        } else {
            let budget = running.deadline.map(|at| self.now.since(at)).unwrap_or_default();
            let sink = ends_by_itself(&running.work);
            let origin = if sink { Origin::Destination } else { Origin::Source };
            (FaultKind::Timeout { budget }, origin)
        };
        self.let_go(&running.work);
        if !running.cancelled {
            points.extend(self.failure_points(&running.work, &kind));
        }
        self.destination.failed(op, Some(self.timeline()));
        self.complete(op, Err(Fault::new(origin, kind, "")));
        self.hit(points);
    }

    /// Some rows of a read; whether any were left.
    pub fn hand_rows(&mut self, op: OpId, most: usize) -> bool {
        let process = self.process.as_mut();
        let Some(read) = process.and_then(|process| process.reads.get_mut(&op)) else {
            return false;
        };
        if read.rest.is_empty() || self.crash_at == Some(self.effects) {
            return false;
        }
        let rows: Vec<_> = read.rest.drain(..most.clamp(1, read.rest.len())).collect();
        let number = rows.len() as u64;
        read.done += number;
        self.handle(Input::CopyRows {
            op,
            block: Row::Block(rows),
            rows: number,
            bytes: 64 * number,
        });
        true
    }

    fn take_effect(
        &mut self,
        op: OpId,
        work: &Work<Row>,
        durability: Durability,
    ) -> Result<Answer, FaultKind> {
        match work {
            Work::Save { record, .. } => {
                self.note_save(record);
                self.store.saved();
            }
            Work::CheckOwner => (),
            Work::Startup { pipeline, epoch } => self.destination.startup(pipeline, *epoch)?,
            Work::Shutdown => self.destination.shutdown(),
            Work::BeginCopy(start) => {
                let forgotten = self.store.is_forgotten(start.table);
                self.destination.begin_copy(op, start, forgotten);
                self.store.remembers(start.table, start.attempt);
            }
            Work::Flush { lane } => {
                let source = self.source.on_timeline(self.timeline()).unwrap_or(&self.source);
                self.destination.flushed(op, *lane, source);
                reached("F-I1");
                if *lane == Lane::Main {
                    self.step(Step::Flushed);
                }
            }
            Work::WriteRows(_) | Work::FinishCopy { .. } | Work::WriteChanges(_) => {
                let source = self.source.on_timeline(self.timeline()).unwrap_or(&self.source);
                self.destination.written(op, durability, source);
                if is_fragment(work) && durability == Durability::Durable {
                    self.hit(["B-F2"]);
                }
                return Ok(Answer::Written(durability));
            }
            Work::OpenSnapshot { .. }
            | Work::OpenReader { .. }
            | Work::ReadSchema { .. }
            | Work::ReadRange { .. }
            | Work::CloseReaders { .. }
            | Work::CloseCopy { .. } => return self.ask_of_copy(op, work),
            Work::Identify
            | Work::ListPublication
            | Work::InspectSlot { .. }
            | Work::ListSlots { .. }
            | Work::ReadTimelineHistory { .. }
            | Work::CreateSlot { .. }
            | Work::EnableFailover { .. }
            | Work::DropSlot { .. }
            | Work::ReadBlockers { .. }
            | Work::ReadWalPosition
            | Work::DescribeTable { .. }
            | Work::WriteHeartbeat { .. }
            | Work::Monitor { .. }
            | Work::OpenStream { .. }
            | Work::CloseStream { .. } => return self.ask_source(work),
        }
        self.after(work);
        Ok(Answer::Done)
    }

    /// What the judges remember of work that is done.
    fn after(&mut self, work: &Work<Row>) {
        let Some(process) = &mut self.process else { return };
        if let Work::CheckOwner = work {
            process.watch.checked_owner = true;
        }
        process.watch.started |= matches!(work, Work::Startup { .. });
        if let Work::Save { record, .. } = work {
            process.watch.reconciled |= record.initial_lsn.is_some() && !record.recreate;
            if record.recreate {
                process.watch.offered = None;
            }
        }
    }

    fn step(&mut self, step: Step) {
        if let Some(process) = &mut self.process {
            process.watch.last_step = step;
        }
    }

    /// Saves that lead to another step.
    fn note_save(&mut self, record: &Record) {
        let Some(before) = self.store.persisted() else { return };
        let again = before.recreate && !record.recreate;
        self.created_again |= again;
        let followed = before.identity.timeline != record.identity.timeline && !record.recreate;
        self.step(match (again, followed) {
            (true, _) => Step::CreatedAgain,
            (false, true) => Step::Followed,
            (false, false) => Step::Other,
        });
    }

    fn let_in(&self, work: &Work<Row>) -> Result<(), FaultKind> {
        let refusal = self.source.refusal().filter(|_| !ends_by_itself(work));
        refusal.map_or(Ok(()), Err)
    }

    /// S-06: what reports who answered is compared by the core; all else runs on the server that was
    /// identified or not at all.
    fn check_server(&self, work: &Work<Row>) -> Result<(), FaultKind> {
        let reports = matches!(
            work,
            Work::Identify
                | Work::InspectSlot { .. }
                | Work::OpenStream { .. }
                | Work::CloseStream { .. }
        );
        let known = self.process.as_ref().and_then(|process| process.server.as_ref());
        match known {
            Some(known) if !reports && *known != self.source.seen() => Err(FaultKind::Transport),
            Some(_) | None => Ok(()),
        }
    }

    /// Work on the connections of an attempt. The answer to anything else is nothing but success.
    fn ask_of_copy(&mut self, op: OpId, work: &Work<Row>) -> Result<Answer, FaultKind> {
        self.let_in(work)?;
        if let Work::OpenSnapshot { table, attempt, slot, failover } = work {
            self.check_server(work)?;
            let source = &mut self.source;
            let facts = source.open_snapshot(*table, *attempt, slot, *failover)?;
            return Ok(Answer::Snapshot(facts));
        }
        let source = &mut self.source;
        if let Work::OpenReader { table, attempt, reader } = work {
            return Ok(Answer::Reader(source.open_reader(*table, *attempt, *reader)?));
        }
        if let Work::ReadSchema { table, attempt } = work {
            let schema = source.read_schema(*table, *attempt)?;
            return Ok(Answer::Schema(SchemaFacts { schema }));
        }
        if let Work::ReadRange { table, attempt, reader, blocks, schema, .. } = work {
            source.read_range(*table, *attempt, *reader, *blocks, schema)?;
            let reads = self.process.as_ref().and_then(|process| process.reads.get(&op));
            return Ok(Answer::RangeRead(RangeFacts { rows: reads.map_or(0, |read| read.done) }));
        }
        if let Work::CloseReaders { table, attempt } = work {
            source.unlock(*table, *attempt);
        }
        if let Work::CloseCopy { table, attempt } = work {
            source.close_copy(*table, *attempt);
        }
        Ok(Answer::Done)
    }

    /// Work on replication and metadata connections. The answer to anything else is nothing but
    /// success.
    fn ask_source(&mut self, work: &Work<Row>) -> Result<Answer, FaultKind> {
        self.let_in(work)?;
        self.check_server(work)?;
        if let Some(answer) = self.look_at_source(work) {
            return answer;
        }
        let source = &mut self.source;
        if let Work::EnableFailover { slot } = work {
            source.enable_failover(slot)?;
        }
        if let Work::WriteHeartbeat { prefix, .. } = work {
            source.commit(&[Edit::Message(prefix)], 1, 1, 100);
        }
        if let Work::OpenStream { stream, session, slot, from } = work {
            source.open_stream(*stream, *session, slot, *from)?;
            let (seen, main) = (source.seen(), *stream == MAIN);
            if let Some(process) = self.process.as_mut().filter(|_| main) {
                process.watch.last_step = Step::Other;
                process.watch.opened_at = Some(*from);
                process.watch.slot_lost = false;
            }
            return Ok(Answer::Opened(seen));
        }
        if let Work::CloseStream { stream } = work {
            source.senders.remove(stream);
        }
        if let Work::CreateSlot { slot, failover } = work {
            if self.store.persisted().is_some_and(|record| record.recreate) {
                // Creation writes a record of the running transactions, and begins behind it.
                source.unpublished(1);
            }
            let made = source.create_slot(slot, false, *failover)?;
            if let Some(process) = &mut self.process {
                process.watch.inspected = true;
            }
            return Ok(Answer::Created(made));
        }
        if let Work::DropSlot { slot } = work {
            source.drop_slot(slot)?;
        }
        Ok(Answer::Done)
    }

    /// Work that only reads, with its answer.
    fn look_at_source(&mut self, work: &Work<Row>) -> Option<Result<Answer, FaultKind>> {
        let source = &self.source;
        if let Work::ListPublication = work
            && let Some(listing) = source.listing()
        {
            self.store.listed(&listing);
        }
        if let Work::ReadTimelineHistory { timeline } = work {
            let known = *timeline == source.timeline && !source.switches.is_empty();
            let missing = super::source::server_error(*b"58P01");
            return Some(known.then(|| Answer::History(source.switches.clone())).ok_or(missing));
        }
        let answer = if let Work::DescribeTable { table } = work {
            Answer::Described(source.describe(*table))
        } else if let Work::ListPublication = work {
            Answer::Publication(source.listing())
        } else if let Work::InspectSlot { slot } = work {
            let report = source.report(slot);
            if let Some(process) = &mut self.process {
                process.watch.inspected |= report.slot.is_some();
            }
            Answer::Slot(report)
        } else if let Work::ListSlots { prefix } = work {
            Answer::Slots(source.slots_of(prefix))
        } else if let Work::ReadBlockers { .. } = work {
            Answer::Blockers(source.blockers())
        } else if let Work::ReadWalPosition = work {
            Answer::WalPosition(source.head.0)
        } else if let Work::Monitor { slot } = work {
            let (wal_end, slot) = (source.head.0, source.slot(slot));
            Answer::Monitored(MonitorFacts { wal_end, slot })
        } else if let Work::Identify = work {
            let answer = Answer::Identified(source.server());
            if let Some(process) = &mut self.process {
                process.server = Some(source.seen());
                process.watch.identified = true;
                process.watch.at_identify = self.store.persisted().cloned();
            }
            answer
        } else {
            return None;
        };
        Some(Ok(answer))
    }

    /// Completes everything in flight, oldest first, until nothing is left that can end.
    pub fn settle(&mut self, durability: Durability) {
        while self.is_alive() && !self.is_doomed() {
            let Some(op) = self.performable().into_iter().next() else { return };
            self.perform(op, durability);
        }
    }

    /// Completes the oldest work of a kind, which must be there.
    ///
    /// # Panics
    /// If it is not.
    pub fn perform_first(&mut self, durability: Durability, is: impl Fn(&Work<Row>) -> bool) {
        let Some((op, _)) = self.working().into_iter().find(|(_, work)| is(work)) else {
            panic!("no such work among {:?}", self.working());
        };
        self.perform(op, durability);
    }

    /// Whether the main stream runs.
    #[must_use]
    pub fn streams(&self) -> bool {
        self.source.senders.contains_key(&MAIN)
    }
}

const fn origin_of(kind: &FaultKind) -> Origin {
    if matches!(kind, FaultKind::StoreFailed | FaultKind::StoreFenced) {
        Origin::Store
    } else if matches!(kind, FaultKind::Destination { .. }) {
        Origin::Destination
    } else {
        Origin::Source
    }
}

/// Whether a batch of main ends inside a transaction.
fn is_fragment(work: &Work<Row>) -> bool {
    let Work::WriteChanges(batch) = work else { return false };
    batch.lane == Lane::Main && batch.transactions.iter().all(|part| part.end.is_none())
}

/// Calls of the store and the destination are not cut off by a cancellation.
const fn ends_by_itself(work: &Work<Row>) -> bool {
    matches!(
        work,
        Work::Save { .. }
            | Work::BeginCopy(_)
            | Work::WriteRows(_)
            | Work::FinishCopy { .. }
            | Work::WriteChanges(_)
            | Work::Flush { .. }
            | Work::Startup { .. }
            | Work::Shutdown
            | Work::CloseCopy { .. }
            | Work::CloseStream { .. }
    )
}
