//! The main stream: dispatch, the main lane (X-08..X-11), flushes (F) and idle
//! positions.

use core::time::Duration;

use super::{Pipeline, Purpose, source_fault};
use crate::effect::Work;
use crate::event::Event;
use crate::fault::{Fault, FaultKind};
use crate::ids::{Lane, Session, StreamId, TableId};
use crate::input::Answer;
use crate::lsn::Position;
use crate::notice::Notice;
use crate::projection::{self, Dispatched, Reach};
use crate::record::Phase;
use crate::stream::Gate;
use crate::violation::Violation;

impl<R> Pipeline<R> {
    pub(super) fn main_events(
        &mut self,
        session: Session,
        events: Vec<Event<R>>,
    ) -> Result<(), Violation> {
        if session != self.main.session {
            return Ok(());
        }
        let wants = self.main.take_in(events, self.now)?;
        if wants.reply {
            self.confirm(StreamId::Main, false);
        }
        if wants.misplaced_ddl {
            self.fail_run("reading the main stream", misplaced_ddl());
        }
        Ok(())
    }

    /// The main stream is lost. A server error is first followed by one inspection, so that a lost
    /// slot or publication is named as such (Y-02).
    pub(super) fn main_ended(&mut self, session: Session, fault: Fault) {
        if session != self.main.session {
            return;
        }
        self.main.open = false;
        if self.life.is_stopping() {
            // What is read is drained and saved all the same; the next start confirms it.
            return;
        }
        if matches!(fault.kind, FaultKind::Server { .. }) && self.life.is_running() {
            let slot = self.main_slot();
            let budget = Some(self.config.limits.query_ms);
            self.start(Purpose::NameCause(fault), budget, Work::InspectSlot { slot });
        } else {
            self.fail_run("reading the main stream", fault);
        }
    }

    pub(super) fn cause_named(&mut self, original: Fault, result: Result<Answer, Fault>) {
        if self.life.is_stopping() {
            return;
        }
        let found = match result {
            Ok(Answer::Slot(report)) if report.publication.is_none() => {
                Some(FaultKind::PublicationMissing { name: self.config.publication.clone() })
            }
            Ok(Answer::Slot(report)) => self.judge_slot(&report).err().map(|fault| fault.kind),
            Ok(_) | Err(_) => None,
        };
        let fault = match found {
            Some(kind) => source_fault(kind, original.message),
            None => original,
        };
        self.fail_run("reading the main stream", fault);
    }

    pub(super) fn settle_main(&mut self) -> bool {
        if !self.life.moves_data() {
            return false;
        }
        // A flush that is due goes first: a lane that is never idle would not be flushed else.
        let mut moved = self.flush_main() | self.offer_main();
        if self.is_dispatch_due() {
            self.dispatch_main();
            moved = true;
        }
        if let Some(covered) = self.main_lane.take_covered() {
            self.raise_main_frontier(covered);
            moved = true;
        }
        moved | self.take_main_idle_position()
    }

    /// While a call is in flight the next batch is projected only once it is full, so that it
    /// can still grow.
    fn is_dispatch_due(&mut self) -> bool {
        if self.awaits_adoptions() {
            return false;
        }
        let queue = &self.main.queue;
        let Some(oldest) = queue.oldest() else { return false };
        if self.main_lane.has_waiting() {
            return false;
        }
        if self.life.is_stopping() {
            return queue.commits() > 0;
        }
        let full =
            queue.bytes() >= self.batch_target(self.copies.len()) || self.main.gate == Gate::Closed;
        let delay = Duration::from_millis(self.config.limits.batch_ms);
        let old = self.now >= oldest.after(delay) || self.config.limits.batch_events > 0;
        full || (old && !self.main_lane.is_busy())
    }

    fn dispatch_main(&mut self) {
        let reach = Reach {
            bytes: self.batch_target(self.copies.len()),
            events: self.config.limits.batch_events,
            boundary: None,
            complete_only: self.life.is_stopping(),
            messages: self.config.destination.wants_messages,
        };
        let epoch = self.epoch();
        let dispatched =
            projection::dispatch(&mut self.main, Lane::Main, epoch, &self.owned, reach);
        let Dispatched { mut batch, boundary, mismatches, skipped } = dispatched;
        for (table, shapes) in mismatches {
            // X-15 covers what passed of the table before the mismatch, too
            projection::strip(&mut batch, table);
            self.stop_table(table, shapes, None);
        }
        for (table, relation) in skipped {
            let name = relation.map(|r| format!("{}.{}", r.namespace, r.name));
            self.report_if_unknown(table, name);
        }
        self.main_lane.push(batch, boundary);
    }

    /// O-10: nothing is dropped silently. A table of the record is owned elsewhere.
    fn report_if_unknown(&mut self, table: TableId, name: Option<String>) {
        let record = self.ledger.record();
        let known = record.tables.contains_key(&table) || record.tombstones.contains_key(&table);
        if !known && self.unknown.insert(table) {
            self.report(Notice::UnknownTable { table, name });
        }
    }

    ///
    fn offer_main(&mut self) -> bool {
        let ready = self.main_lane.has_waiting()
            && !self.main_lane.is_busy()
            && !self.awaits_saved_adoption();
        if !ready || !self.turns.enter(Lane::Main) {
            return false;
        }
        if let Some(batch) = self.main_lane.offer() {
            let budget = Some(self.config.limits.destination_ms);
            self.start(Purpose::WriteMain, budget, Work::WriteChanges(batch));
        }
        true
    }

    pub(super) fn main_written(&mut self, result: Result<Answer, Fault>) -> Result<(), ()> {
        self.turns.leave(Lane::Main);
        match result {
            Ok(Answer::Written(durability)) => {
                self.main_lane.written(durability, self.now);
                Ok(())
            }
            Ok(_) => Err(()),
            Err(fault) => {
                self.main_lane.write_failed();
                self.fail_run("writing changes to the destination", fault);
                Ok(())
            }
        }
    }

    /// F-02.
    fn flush_main(&mut self) -> bool {
        let waiting = self.main_lane.has_waiting();
        let force = self.life.is_stopping() && !waiting && self.main.queue.commits() == 0;
        if !self.main_lane.wants_flush(&self.config.limits, self.now, force) {
            if !waiting {
                // What it asked for in vain may be gone: nobody may wait behind it.
                self.turns.forget(Lane::Main);
            }
            return false;
        }
        if !self.turns.enter(Lane::Main) {
            return false;
        }
        self.main_lane.begin_flush();
        let budget = Some(self.config.limits.destination_ms);
        self.start(Purpose::FlushMain, budget, Work::Flush { lane: Lane::Main });
        true
    }

    pub(super) fn main_flushed(&mut self, result: Result<Answer, Fault>) {
        self.turns.leave(Lane::Main);
        match result {
            Ok(_) => self.main_lane.flushed(),
            Err(fault) => {
                self.main_lane.flush_failed();
                // F-04: durability of shared work is unknown
                let fault = match fault {
                    Fault { kind: FaultKind::Destination { class }, origin, message, blame } => {
                        Fault { kind: FaultKind::FlushFailed { class }, origin, message, blame }
                    }
                    other => other,
                };
                self.fail_run("flushing the destination", fault);
            }
        }
    }

    /// Everything below is durable, so the position may be saved.
    fn raise_main_frontier(&mut self, to: Position) {
        assert!(to >= self.main.frontier, "the frontier would go back to {to}");
        if to == self.main.frontier {
            return;
        }
        self.main.frontier = to;
        self.ledger.set_checkpoint(to);
        let reached: Vec<_> = self
            .catchup
            .iter()
            .filter(|(_, handover)| **handover <= to)
            .map(|(&table, &handover)| (table, handover))
            .collect();
        for (table, handover) in reached {
            self.catchup.remove(&table);
            self.ledger.edit_table(table, |entry| entry.phase = Phase::Ready { handover });
            self.report(Notice::TableReady { table });
        }
    }

    /// A-14, with its pace unless the run hurries to its end.
    fn take_main_idle_position(&mut self) -> bool {
        let Some(at) = self.main.idle_position(self.main_lane.is_settled()) else { return false };
        let limits = &self.config.limits;
        let pace = Duration::from_millis(limits.idle_checkpoint_ms);
        let checkpoint = self.ledger.record().checkpoint.unwrap_or_default();
        let due = self.is_hurried()
            || self.now.since(self.checkpoint_saved_at) >= pace
            || at.0.bytes_past(checkpoint.0) >= limits.idle_checkpoint_bytes;
        if !due || !self.life.is_running() || self.awaits_adoptions() {
            return false;
        }
        self.main.take_idle_position(at);
        self.raise_main_frontier(at);
        true
    }
}

///
pub(super) fn misplaced_ddl() -> Fault {
    source_fault(FaultKind::Protocol, "a schema message outside of a transaction")
}
