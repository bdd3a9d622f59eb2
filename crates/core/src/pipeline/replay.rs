//! The private replay of one table (group W, beside the fence): its stream from the cutoff on, until
//! the table can be handed over.

use super::Pipeline;
use super::attempt::CopyRun;
use super::attempt_steps::AttemptOp;
use super::main_stream::misplaced_ddl;
use super::schema::schema_rules;
use crate::effect::Work;
use crate::event::Event;
use crate::fault::Fault;
use crate::ids::{Lane, Session, StreamId, TableId};
use crate::projection::{self, Dispatched, Reach};
use crate::record::Policy;
use crate::stream::Stream;
use crate::violation::Violation;

impl<R> Pipeline<R> {
    pub(super) fn private_events(
        &mut self,
        table: TableId,
        session: Session,
        events: Vec<Event<R>>,
    ) -> Result<(), Violation> {
        let now = self.now;
        let Some(run) = self.copies.get_mut(&table) else { return Ok(()) };
        let over = run.is_over();
        let stream = run.stream.as_mut().filter(|stream| !over && stream.session == session);
        let Some(stream) = stream else { return Ok(()) };
        let wants = stream.take_in(events, now)?;
        let session = stream.session;
        if wants.events {
            self.note_moved();
        }
        if wants.reply {
            self.confirm(StreamId::Copy(table), false);
        }
        if wants.misplaced_ddl {
            self.private_ended(table, session, misplaced_ddl());
        }
        Ok(())
    }

    /// W-10: a failure of the attempt; main is not affected.
    pub(super) fn private_ended(&mut self, table: TableId, session: Session, fault: Fault) {
        let Some(mut run) = self.copies.remove(&table) else { return };
        let current = run.stream.as_ref().is_some_and(|stream| stream.session == session);
        if current && !run.is_over() {
            self.fail_attempt(&mut run, fault);
        }
        self.copies.insert(table, run);
    }

    /// W-02, W-03, W-08, W-09.
    pub(super) fn settle_replay(&mut self, run: &mut CopyRun<R>) -> bool {
        let main_at = self.main.dispatched;
        let Some(stream) = &mut run.stream else {
            if run.cutoff >= main_at {
                let at = run.cutoff;
                self.hand_over(run, at);
            } else {
                self.open_private(run);
            }
            return true;
        };
        let mut moved = false;
        if let Some(covered) = run.lane.take_covered() {
            stream.frontier = stream.frontier.max(covered);
            moved = true;
        }
        if let Some(at) = stream.idle_position(run.lane.is_settled()) {
            stream.take_idle_position(at);
            stream.frontier = at;
            moved = true;
        }
        if !stream.is_inside_transaction() && stream.dispatched >= main_at {
            if run.lane.is_settled() && stream.frontier == stream.dispatched {
                let at = stream.frontier;
                self.hand_over(run, at);
                return true;
            }
            return moved | self.flush_private(run, true) | self.offer_private(run);
        }
        // W-14: main stands still until the idle position can be taken, which waits for the debt only.
        let awaited = self.fence.is_for(run.table) && stream.waits_for_the_lane();
        moved
            | self.dispatch_private(run)
            | self.flush_private(run, awaited)
            | self.offer_private(run)
    }

    pub(super) fn open_private(&mut self, run: &mut CopyRun<R>) {
        let (session, from) = (self.next_session(), run.cutoff);
        let id = StreamId::Copy(run.table);
        run.stream = Some(Stream::new(id, session, from, self.now));
        let slot = run.slot.clone();
        let budget = Some(self.config.limits.connect_ms);
        let work = Work::OpenStream { stream: id, session, slot, from };
        self.start_in_attempt(run, AttemptOp::OpenStream, budget, work);
    }

    /// Private batches need no delay: while one is in flight the next one grows by itself.
    fn dispatch_private(&mut self, run: &mut CopyRun<R>) -> bool {
        let target = self.batch_target(self.copies.len() + 1);
        let Some(stream) = &mut run.stream else { return false };
        let full = stream.queue.bytes() >= target;
        let due = !run.lane.has_waiting() && !run.describing && (full || !run.lane.is_busy());
        if stream.queue.is_empty() || !due {
            return false;
        }
        let reach = Reach {
            bytes: target,
            events: self.config.limits.batch_events,
            boundary: Some(self.main.dispatched),
            before: None,
            complete_only: false,
            messages: false,
        };
        let lane = Lane::Table(run.table);
        let epoch = self.epoch();
        let rules = schema_rules(&self.config);
        let dispatched = projection::dispatch(stream, lane, epoch, &mut run.owned, reach, rules);
        let Dispatched { batch, boundary, mismatches, skipped: _, heartbeats: _, schemas } =
            dispatched;
        if let Some((_, shapes)) = mismatches.into_iter().next() {
            self.err_attempt(run, shapes, Policy::Manual, None);
            return true;
        }
        if !self.private_schemas_found(run, schemas) {
            run.lane.push(batch, boundary);
        }
        true
    }

    fn offer_private(&mut self, run: &mut CopyRun<R>) -> bool {
        let lane = Lane::Table(run.table);
        let ready = run.lane.has_waiting() && !run.lane.is_busy();
        if !ready || !self.turns.enter(lane) {
            return false;
        }
        if let Some(batch) = run.lane.offer() {
            let budget = Some(self.config.limits.destination_ms);
            let work = Work::WriteChanges(batch);
            self.start_in_attempt(run, AttemptOp::WriteChanges, budget, work);
        }
        true
    }

    fn flush_private(&mut self, run: &mut CopyRun<R>, force: bool) -> bool {
        let waiting = run.lane.has_waiting();
        let lane = Lane::Table(run.table);
        if !run.lane.wants_flush(&self.config.limits, self.now, force && !waiting) {
            if !waiting {
                // Main may have moved on since it asked in vain: nobody may wait behind it.
                self.turns.forget(lane);
            }
            return false;
        }
        if !self.turns.enter(lane) {
            return false;
        }
        run.lane.begin_flush();
        let budget = Some(self.config.limits.destination_ms);
        self.start_in_attempt(run, AttemptOp::FlushChanges, budget, Work::Flush { lane });
        true
    }
}
