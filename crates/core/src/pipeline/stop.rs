//! The orderly stop (group Q): no new work, drain, save, confirm, close.

use core::time::Duration;

use super::run_end::Life;
use super::{Pipeline, Purpose};
use crate::effect::{Effect, Work};
use crate::fault::{Fault, FaultKind, Origin};
use crate::ids::StreamId;
use crate::input::Answer;
use crate::notice::{Notice, Outcome};
use crate::record::{Phase, Policy};
use crate::timers::Wakeup;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    step: StopStep,
    /// Whether the run was Running: then there is something to drain and to save.
    pub(super) from_running: bool,
    until_reached: bool,
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
        let from_running = self.life.is_running();
        self.life = Life::Stopping(Stop { step: StopStep::Drain, from_running, until_reached });
        let budget = Duration::from_millis(self.config.limits.stop_ms);
        self.timers.clear(Wakeup::BusySlot);
        self.timers.clear(Wakeup::Blockers);
        self.timers.clear(Wakeup::Monitor);
        self.timers.clear(Wakeup::Until);
        self.timers.set(Wakeup::StopBudget, self.now.after(budget));
        self.report(Notice::Stopping { budget });
        self.cancel_for_stop();
        self.end_attempts_for_stop();
    }

    /// Start-up and side work ends; saves and calls of the destination complete by themselves.
    fn cancel_for_stop(&mut self) {
        for (&op, purpose) in &self.pending {
            let cancel = match purpose {
                Purpose::Startup(what) => *what != super::startup::StartupOp::Destination,
                Purpose::Blockers
                | Purpose::Monitor
                | Purpose::UntilTarget
                | Purpose::NameCause(_) => true,
                Purpose::Save
                | Purpose::WriteMain
                | Purpose::FlushMain
                | Purpose::CloseMain
                | Purpose::Shutdown
                | Purpose::Attempt { .. } => false,
            };
            if cancel {
                self.effects.push_back(Effect::Cancel { op });
            }
        }
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
            StopStep::Drain | StopStep::CloseStream | StopStep::Shutdown => false,
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
        if !stop.from_running {
            return idle && !self.ledger.is_saving();
        }
        // What waits for adoptions is not dispatched, and is read again by the next start (K-18).
        idle && (self.main.queue.commits() == 0 || self.awaits_adoptions())
            && self.main_lane.is_settled()
            && !self.ledger.is_dirty()
            && !self.ledger.is_saving()
    }

    pub(super) fn main_closed(&mut self) {
        self.main.open = false;
        let Life::Stopping(_) = self.life else { return };
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
            Life::Starting | Life::Saving(_) | Life::Running | Life::Failing(_) | Life::Ended => {
                false
            }
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
