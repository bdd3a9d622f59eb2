//! The main stream: dispatch, the main lane (X-08..X-11), flushes (F) and idle
//! positions.

use core::time::Duration;

use super::fence::Permit;
use super::life::Life;
use super::schema::schema_rules;
use super::{Pipeline, Purpose, source_fault};
use crate::effect::Work;
use crate::event::Event;
use crate::fault::{Fault, FaultKind, SqlState};
use crate::ids::{Lane, Session, StreamId};
use crate::input::Answer;
use crate::lane::LaneState;
use crate::lsn::Position;
use crate::notice::Notice;
use crate::projection::{self, Dispatched, Reach};
use crate::record::Phase;
use crate::stream::Gate;
use crate::violation::Violation;

/// What the server answers when it does not find the publication.
const UNDEFINED_OBJECT: SqlState = SqlState(*b"42704");

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
        if wants.events {
            self.note_moved();
        }
        self.note_announced(&wants.announced, wants.ddl);
        if wants.reply {
            self.confirm(StreamId::Main, false);
        }
        if wants.misplaced_ddl {
            self.main_failed("reading the main stream", misplaced_ddl());
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
        self.main_lost(fault);
    }

    /// the session still lives at the server, so whoever opens the stream again closes it first.
    pub(super) fn main_silent(&mut self, session: Session, fault: Fault) {
        if session == self.main.session {
            self.main_lost(fault);
        }
    }

    fn main_lost(&mut self, fault: Fault) {
        match self.life {
            Life::Running if matches!(fault.kind, FaultKind::Server { .. }) => {
                self.main.open = false;
                let slot = self.main_slot();
                let budget = Some(self.config.limits.query_ms);
                self.start(Purpose::NameCause(fault), budget, Work::InspectSlot { slot });
            }
            Life::Running => self.main_failed("reading the main stream", fault),
            // The destination starts; the loss is dealt with once the run is Running.
            Life::Starting | Life::Saving(_) | Life::Waiting(_) => self.lost_early = Some(fault),
            // What is read is drained and saved all the same; the next start confirms it.
            Life::Stopping(_)
            | Life::Reopening(_)
            | Life::Leaving(_)
            | Life::Failing(_)
            | Life::Ended => (),
        }
    }

    /// The stream was lost while the destination started.
    pub(super) fn settle_early_loss(&mut self) {
        if let Some(fault) = self.lost_early.take() {
            self.main_lost(fault);
        }
    }

    pub(super) fn cause_named(&mut self, original: Fault, result: Result<Answer, Fault>) {
        if !self.life.is_running() {
            return;
        }
        // T-12: up to 17 the server cannot decode a position at which there was no publication, also
        // if it exists again by now (PG-24).
        let undecodable = original.kind == FaultKind::Server { code: UNDEFINED_OBJECT };
        let found = match result {
            // Another server answers by now, and its slot says nothing: what follows asks who it is.
            Ok(Answer::Slot(report)) if self.check_seen(&report.seen).is_err() => None,
            Ok(Answer::Slot(report)) => {
                let name = self.config.publication.clone();
                let missing = FaultKind::PublicationMissing { name };
                match self.judge_slot(&report) {
                    _ if report.publication.is_none() => Some(missing),
                    Err(fault) => Some(fault.kind),
                    Ok(()) => undecodable.then_some(missing),
                }
            }
            Ok(_) | Err(_) => None,
        };
        let fault = match found {
            Some(kind) => source_fault(kind, original.message),
            None => original,
        };
        self.main_failed("reading the main stream", fault);
    }

    pub(super) fn settle_main(&mut self) -> bool {
        let mut moved = false;
        if self.life.moves_data() {
            // A flush that is due goes first: a lane that is never idle would not be flushed else.
            moved = self.flush_main() | self.offer_main();
            if self.is_dispatch_due() {
                self.dispatch_main();
                moved = true;
            }
        }
        if self.life.has_started()
            && let Some(covered) = self.main_lane.take_covered()
        {
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
        if self.main_lane.has_waiting() || self.is_main_held_by_schema() {
            return false;
        }
        match self.main_permit() {
            Permit::Free => (),
            // a fence or a hold waits for it.
            Permit::ToBoundary => return true,
            Permit::Below(position) => return self.main.has_below(position),
            Permit::Held => return false,
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
        let (boundary, before) = match self.main_permit() {
            Permit::Free => (None, None),
            Permit::ToBoundary | Permit::Held => (Some(self.main.dispatched), None),
            Permit::Below(position) => (None, Some(position)),
        };
        let reach = Reach {
            bytes: self.batch_target(self.copies.len()),
            events: self.config.limits.batch_events,
            boundary,
            before,
            complete_only: self.life.is_stopping(),
            messages: self.config.destination.wants_messages,
        };
        let epoch = self.epoch();
        let rules = schema_rules(&self.config);
        let dispatched =
            projection::dispatch(&mut self.main, Lane::Main, epoch, &mut self.owned, reach, rules);
        let Dispatched { mut batch, boundary, mismatches, skipped, heartbeats, schemas } =
            dispatched;
        self.main_schemas_found(&mut batch, schemas);
        for (table, shapes) in mismatches {
            // X-15 covers what passed of the table before the mismatch, too
            projection::strip(&mut batch, table);
            self.stop_table(table, shapes, None);
        }
        self.note_skipped(skipped);
        self.heartbeats_seen(heartbeats);
        self.main_lane.push(batch, boundary);
    }

    ///
    fn offer_main(&mut self) -> bool {
        let ready = self.main_lane.has_waiting() && !self.main_lane.is_busy();
        let may = self.may_write_main() && !self.awaits_saved_adoption();
        if !ready || !may || !self.horizon_allows_offer() || !self.turns.enter(Lane::Main) {
            return false;
        }
        self.forget_write_retry();
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
                self.main_write_failed(fault);
                Ok(())
            }
        }
    }
    /// F-02.
    fn flush_main(&mut self) -> bool {
        let waiting = self.main_lane.has_waiting();
        let drained = self.life.is_stopping() && !waiting && self.main.queue.commits() == 0;
        let force = drained || self.main_writes.is_waiting() || self.has_advanced();
        if !self.main_lane.wants_flush(&self.config.limits, self.now, force) {
            if !waiting {
                // What it asked for in vain may be gone: nobody may wait behind it.
                self.turns.forget(Lane::Main);
            }
            return false;
        }
        self.start_main_flush()
    }

    pub(super) fn main_flushed(&mut self, result: Result<Answer, Fault>) {
        self.turns.leave(Lane::Main);
        match result {
            Ok(_) => self.main_lane.flushed(),
            Err(fault) => {
                // F-04: durability of shared work is unknown; the replay from the checkpoint covers
                // it. Whatever of it the sink still holds is flushed once more, for no position.
                self.main_lane = LaneState::after_reopening(true, self.now);
                let fault = match fault {
                    Fault { kind: FaultKind::Destination { class }, origin, message, blame } => {
                        Fault { kind: FaultKind::FlushFailed { class }, origin, message, blame }
                    }
                    other => other,
                };
                self.main_failed("flushing the destination", fault);
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
        self.record_schemas_at(to);
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

    /// A-14, with its pace unless the run hurries to its end or a table waits in Catchup.
    fn take_main_idle_position(&mut self) -> bool {
        if self.fence.is_closed() || self.hold.is_on() {
            return false;
        }
        let Some(at) = self.main.idle_position(self.main_lane.is_settled()) else { return false };
        let limits = &self.config.limits;
        let pace = Duration::from_millis(limits.idle_checkpoint_ms);
        let checkpoint = self.ledger.record().checkpoint.unwrap_or_default();
        let due = self.is_hurried()
            || !self.catchup.is_empty()
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
