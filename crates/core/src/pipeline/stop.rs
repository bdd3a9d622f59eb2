//! The orderly stop (group Q): no new work, drain, save, confirm, close.

use core::time::Duration;

use super::life::Life;
use super::{Pipeline, Purpose};
use crate::effect::Work;
use crate::fault::{Fault, FaultKind, Origin};
use crate::ids::StreamId;
use crate::input::Answer;
use crate::notice::{Notice, Outcome};
use crate::record::{Phase, Policy};
use crate::timers::Wakeup;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    step: StopStep,
    pub(super) drains: Drains,
    until_reached: bool,
}

/// What is brought to its end first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drains {
    /// Start-up: nothing was offered since the last save.
    Nothing,
    /// The main stream is lost or given up: what was offered completes, what was not is sent again
    /// to the next run.
    Lane,
    /// Everything that was read in full.
    Queue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopStep {
    /// Phases 1 and 2: copies end, main drains, the record is saved and confirmed.
    Drain,
    /// Phase 3: the stream's session ends behind the last feedback.
    CloseStream,
    /// Phase 3: the destination shuts down.
    Shutdown,
}

impl<R> Pipeline<R> {
    /// Idempotent; cannot be undone (L-01).
    pub(super) fn request_stop(&mut self, until_reached: bool) {
        if self.life.is_failing() || self.life.is_stopping() || self.life.is_ended() {
            return;
        }
        let drains = match self.life {
            Life::Starting | Life::Saving(_) | Life::Waiting(_) => Drains::Nothing,
            Life::Reopening(_) | Life::Leaving(_) => Drains::Lane,
            Life::Running => Drains::Queue,
            Life::Stopping(_) | Life::Failing(_) | Life::Ended => return,
        };
        self.life = Life::Stopping(Stop { step: StopStep::Drain, drains, until_reached });
        if drains == Drains::Lane {
            self.main.queue.clear();
            self.main_lane.drop_waiting();
        }
        let budget = Duration::from_millis(self.config.limits.stop_ms);
        self.timers.clear(Wakeup::BusySlot);
        self.timers.clear(Wakeup::Blockers);
        self.timers.clear(Wakeup::Monitor);
        self.timers.clear(Wakeup::MainRetry);
        self.timers.clear(Wakeup::Until);
        self.timers.clear(Wakeup::Listing);
        self.timers.clear(Wakeup::Heartbeat);
        self.timers.clear(Wakeup::Distance);
        self.interrupt_holds();
        self.answer_waiting_requests();
        self.timers.set(Wakeup::StopBudget, self.now.after(budget));
        self.report(Notice::Stopping { budget });
        self.cancel_side_work();
        self.end_attempts_for_stop();
    }

    /// as safe as a crash.
    pub(super) fn cut_short(&mut self, why: &str) {
        if self.life.is_ended() || self.end_failed() {
            return;
        }
        let fault = Fault::new(Origin::Core, FaultKind::StopTimeout, why);
        self.end(Outcome::Failed { action: "stopping", fault });
    }

    pub(super) fn settle_stop(&mut self) -> bool {
        let Life::Stopping(stop) = self.life else { return false };
        match stop.step {
            StopStep::Drain if self.is_drained(stop) => {
                self.main.queue.clear();
                self.main.dispatching = None;
                self.report_skipped();
                self.set_stop_step(StopStep::CloseStream);
                if self.main.open {
                    self.confirm(StreamId::Main, false);
                    let budget = Some(self.config.limits.query_ms);
                    let work = Work::CloseStream { stream: StreamId::Main };
                    self.start(Purpose::CloseMain, budget, work);
                } else {
                    self.main_closed();
                }
                true
            }
            StopStep::Drain => {
                let owed = stop.drains == Drains::Lane && self.main_lane.has_debt();
                owed && !self.is_main_at_work() && self.start_main_flush()
            }
            StopStep::CloseStream | StopStep::Shutdown => false,
        }
    }

    fn set_stop_step(&mut self, step: StopStep) {
        if let Life::Stopping(stop) = &mut self.life {
            stop.step = step;
        }
    }

    /// every complete transaction is dispatched, durable, saved; no attempt is left.
    fn is_drained(&mut self, stop: Stop) -> bool {
        let idle = self.pending.is_empty() && self.copies.is_empty();
        match stop.drains {
            Drains::Nothing => idle && !self.ledger.is_saving(),
            Drains::Lane | Drains::Queue => {
                // What waits for adoptions is not dispatched; the next start reads it again (K-18).
                idle && (self.main.queue.commits() == 0 || self.awaits_adoptions())
                    && self.main_lane.is_settled()
                    && !self.ledger.is_dirty()
                    && !self.ledger.is_saving()
            }
        }
    }

    pub(super) fn main_closed(&mut self) {
        // A re-opening before the stop may have closed it, too, while work is still outstanding.
        let Life::Stopping(Stop { step: StopStep::CloseStream, .. }) = self.life else { return };
        self.main.open = false;
        if self.destination_started {
            self.set_stop_step(StopStep::Shutdown);
            let budget = Some(self.config.limits.destination_ms);
            self.start(Purpose::Shutdown, budget, Work::Shutdown);
        } else {
            self.end_in_order();
        }
    }

    pub(super) fn shut_down(&mut self, result: Result<Answer, Fault>) {
        match result {
            Ok(_) => self.end_in_order(),
            Err(fault) => self.fail_run("shutting the destination down", fault),
        }
    }

    fn end_in_order(&mut self) {
        let until_reached = match self.life {
            Life::Stopping(stop) => stop.until_reached,
            Life::Starting
            | Life::Saving(_)
            | Life::Waiting(_)
            | Life::Running
            | Life::Reopening(_)
            | Life::Leaving(_)
            | Life::Failing(_)
            | Life::Ended => false,
        };
        let errored = self.errored_tables();
        self.end(Outcome::Stopped { errored, until_reached });
    }

    /// Tables that need a person.
    fn errored_tables(&self) -> usize {
        let tables = self.ledger.record().tables.values();
        tables
            .filter(|entry| match entry.phase {
                Phase::Errored { policy, .. } => policy != Policy::Timed,
                Phase::Pending | Phase::Copying | Phase::Catchup { .. } | Phase::Ready { .. } => {
                    false
                }
            })
            .count()
    }
}
