//! Feedback and silence (A-09, A-10, C-08), and the monitor of the main slot (G-06). The one place
//! where a position is confirmed.

use core::time::Duration;

use super::{Pipeline, Purpose, source_fault};
use crate::config::SLOT_MONITOR;
use crate::effect::{Effect, Work};
use crate::fault::{Fault, FaultKind};
use crate::ids::{Lane, StreamId};
use crate::input::Answer;
use crate::notice::Notice;
use crate::slot_state::{self, SlotState};
use crate::stream::{Gate, Stream};
use crate::timers::Wakeup;

impl<R> Pipeline<R> {
    /// Sends feedback: main reports the persisted checkpoint, a private stream its frontier (C-08).
    pub(super) fn confirm(&mut self, id: StreamId, ask_reply: bool) {
        let persisted = self.ledger.persisted_checkpoint();
        let Some(stream) = self.stream_mut(id).filter(|stream| stream.open) else { return };
        let position = match id {
            StreamId::Main => persisted.unwrap_or(stream.confirmed),
            StreamId::Copy(_) => stream.frontier,
        };
        assert!(position >= stream.confirmed, "confirming {position} after {}", stream.confirmed);
        stream.confirmed = position;
        stream.asked |= ask_reply;
        let session = stream.session;
        self.effects.push_back(Effect::Confirm { stream: id, session, position, ask_reply });
    }

    pub(super) fn feedback_due(&mut self, id: StreamId) {
        let main_at = self.main.dispatched;
        // A replaying table that has nothing to read and is still behind main needs a keepalive to
        // move on, and an idle server may not send one by itself for a long time.
        let behind = self.stream_mut(id).is_some_and(|stream| {
            stream.id != StreamId::Main
                && stream.gate == Gate::Open
                && stream.queue.is_empty()
                && stream.dispatched < main_at
        });
        self.confirm(id, behind);
        self.hurry_private(id);
    }

    /// asks for a sign of life at half of the budget, gives up at its end.
    pub(super) fn silence_due(&mut self, id: StreamId) {
        let budget = Duration::from_millis(self.config.limits.source_silence_ms);
        let now = self.now;
        let Some(stream) = self.stream_mut(id).filter(|stream| stream.open) else { return };
        // A stream that nobody may read cannot be heard.
        if stream.gate == Gate::Closed {
            stream.heard = now;
            return;
        }
        let silent = now.since(stream.heard);
        let session = stream.session;
        if silent >= budget {
            let kind = FaultKind::Timeout { budget };
            let fault = source_fault(kind, "the stream has gone silent");
            match id {
                StreamId::Main => self.main_lost(fault),
                StreamId::Copy(table) => self.private_ended(table, session, fault),
            }
        } else if silent >= budget / 2 && !stream.asked {
            self.confirm(id, true);
        }
    }

    pub(super) fn monitor_due(&mut self) {
        let running = self.pending.values().any(|purpose| *purpose == Purpose::Monitor);
        if self.life.is_running() {
            self.drop_left_slots();
        }
        if self.life.is_running() && !running {
            let slot = self.main_slot();
            let budget = Some(self.config.limits.query_ms);
            self.start(Purpose::Monitor, budget, Work::Monitor { slot });
        }
    }

    pub(super) fn monitor_completed(&mut self, result: Result<Answer, Fault>) -> Result<(), ()> {
        match result {
            Ok(Answer::Monitored(facts)) => {
                self.note_server_end(facts.wal_end);
                self.wal_end = Some(facts.wal_end);
                if self.life.is_running() {
                    self.judge_monitored(&facts);
                }
                self.report(Notice::Monitored(facts));
            }
            Ok(_) => return Err(()),
            Err(fault) => self.report(Notice::SideTaskFailed { task: "slot monitor", fault }),
        }
        Ok(())
    }

    /// A lost slot that the monitor finds ends the run with its name (I-03 with policy reject).
    fn judge_monitored(&mut self, facts: &crate::source::MonitorFacts) {
        let record = self.ledger.record();
        let (slot, database) = (&record.identity.slot, &record.identity.database);
        // Only loss counts here: the slot is ours and in use, and moves as we confirm.
        let anywhere = crate::lsn::Position(crate::lsn::Lsn(u64::MAX));
        match slot_state::inspect(slot, database, facts.slot.as_ref(), anywhere) {
            SlotState::Healthy => (),
            SlotState::Unusable(kind) => {
                self.main_failed("watching the main slot", source_fault(kind, ""));
            }
        }
    }

    pub(super) fn stream_mut(&mut self, id: StreamId) -> Option<&mut Stream<R>> {
        match id {
            StreamId::Main => Some(&mut self.main),
            StreamId::Copy(table) => {
                self.copies.get_mut(&table).and_then(|run| run.stream.as_mut())
            }
        }
    }

    /// Sets every timer whose time depends on the state; the deadlines of a stop, a busy slot or a
    /// retry are set where they begin.
    pub(super) fn arm_timers(&mut self) {
        let limits = &self.config.limits;
        let after = |ms: u64| self.now.after(Duration::from_millis(ms));
        let feedback = after(limits.feedback_ms);
        let silence = after((limits.source_silence_ms / 4).max(1));
        let mut ids = Vec::new();
        if self.main.open {
            ids.push(StreamId::Main);
        }
        for (&table, run) in &self.copies {
            if run.stream.as_ref().is_some_and(|stream| stream.open) {
                ids.push(StreamId::Copy(table));
            }
        }
        for id in ids {
            self.timers.set_if_unset(Wakeup::Feedback(id), feedback);
            self.timers.set_if_unset(Wakeup::Silence(id), silence);
        }
        if self.life.is_running() {
            self.timers.set_if_unset(Wakeup::Monitor, self.now.after(SLOT_MONITOR));
        }
        self.arm_copy_monitor();
        self.arm_batch_timer();
        self.arm_flush_timers();
    }

    fn arm_batch_timer(&mut self) {
        let delay = Duration::from_millis(self.config.limits.batch_ms);
        let idle = !self.main_lane.is_busy() && !self.main_lane.has_waiting();
        let due = self.main.queue.oldest().map(|arrived| arrived.after(delay));
        // What is due already waits for something else than time: a completion will settle it.
        match due.filter(|&at| idle && self.life.is_running() && at > self.now) {
            Some(at) => self.timers.set(Wakeup::Batch, at),
            None => self.timers.clear(Wakeup::Batch),
        }
    }

    fn arm_flush_timers(&mut self) {
        let delay = Duration::from_millis(self.config.limits.flush_ms);
        let mut deadlines = vec![(Lane::Main, &self.main_lane)];
        deadlines.extend(self.copies.iter().map(|(&table, run)| (Lane::Table(table), &run.lane)));
        let deadlines: Vec<_> = deadlines
            .into_iter()
            .map(|(id, lane)| (id, lane.accepted_since().filter(|_| !lane.is_busy())))
            .collect();
        for (id, since) in deadlines {
            match since.map(|since| since.after(delay)).filter(|&at| at > self.now) {
                Some(at) => self.timers.set(Wakeup::Flush(id), at),
                None => self.timers.clear(Wakeup::Flush(id)),
            }
        }
    }
}
