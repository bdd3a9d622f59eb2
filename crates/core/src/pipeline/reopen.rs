//! Re-opening of the main stream after a transient failure: the stream closes, what runs on
//! the main lane completes, the checkpoint catches up with the frontier, everything projected and not
//! durable is forgotten, and the stream starts again at the checkpoint. Copies go on meanwhile.

use super::life::{Again, Life, Waiting};
use super::opening::Opening;
use super::startup::StartupOp;
use super::{Pipeline, Purpose, source_fault};
use crate::effect::Work;
use crate::fault::{Fault, FaultKind, SqlState};
use crate::ids::{Lane, StreamId};
use crate::input::Answer;
use crate::lane::LaneState;
use crate::notice::Notice;
use crate::retry::{self, Decision, Place};
use crate::stream::Stream;
use crate::timers::Wakeup;

/// How far a re-opening is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reopen {
    /// Positions and lane stand at the checkpoint again.
    is_reset: bool,
    /// The delay has passed.
    waited: bool,
    /// The checks before the opening run.
    checking: bool,
}

/// A step of the opening itself (U-18: only).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReopenOp {
    Identify,
    Inspect,
    Open,
}

const ACTION: &str = "opening the main stream again";

impl<R> Pipeline<R> {
    /// What a failure of the main scope leads to (Y-02, chapter 27).
    pub(super) fn main_failed(&mut self, action: &'static str, fault: Fault) {
        match retry::decide(&fault.kind, Place::Main) {
            Decision::Repeat => self.repeat_main(action, fault),
            Decision::SlotLoss => self.slot_lost(action, fault),
            Decision::Promotion => self.timeline_changed(action, fault),
            Decision::Stopped | Decision::EndRun | Decision::Retry | Decision::Errored(_) => {
                self.fail_run(action, fault);
            }
        }
    }

    pub(super) fn repeat_main(&mut self, action: &'static str, fault: Fault) {
        match self.life {
            Life::Running | Life::Reopening(_) => self.reopen(action, fault),
            Life::Starting | Life::Saving(_) => self.repeat_startup(action, fault, Again::Unit),
            // A flush that fails now ends the run: its work can neither be kept nor repeated here.
            Life::Leaving(_) | Life::Stopping(_) => self.fail_run(action, fault),
            Life::Waiting(_) | Life::Failing(_) | Life::Ended => (),
        }
    }

    /// U-02: the unit of start-up is repeated after a delay.
    pub(super) fn repeat_startup(&mut self, action: &'static str, fault: Fault, again: Again) {
        match self.main_retry_in(fault) {
            Ok(delay) => {
                self.life = Life::Waiting(Waiting { again, over: false });
                self.timers.clear(Wakeup::BusySlot);
                self.timers.set(Wakeup::MainRetry, self.now.after(delay));
                if again == Again::Unit {
                    self.close_main();
                }
            }
            Err(fault) => self.fail_run(action, fault),
        }
    }

    pub(super) fn settle_waiting(&mut self) -> bool {
        let Life::Waiting(Waiting { again, over: true }) = self.life else { return false };
        match again {
            Again::Unit if self.pending.is_empty() => self.enter_startup(),
            Again::Unit => return false,
            Again::Destination => {
                self.life = Life::Starting;
                self.start_startup(StartupOp::Destination);
            }
        }
        true
    }

    fn reopen(&mut self, action: &'static str, fault: Fault) {
        let delay = match self.main_retry_in(fault) {
            Ok(delay) => delay,
            Err(fault) => {
                self.fail_run(action, fault);
                return;
            }
        };
        self.timers.clear(Wakeup::BusySlot);
        self.timers.set(Wakeup::MainRetry, self.now.after(delay));
        match &mut self.life {
            Life::Reopening(reopen) => {
                reopen.waited = false;
                reopen.checking = false;
            }
            Life::Starting
            | Life::Saving(_)
            | Life::Waiting(_)
            | Life::Running
            | Life::Leaving(_)
            | Life::Stopping(_)
            | Life::Failing(_)
            | Life::Ended => {
                self.life = Life::Reopening(Reopen::default());
                self.interrupt_main();
            }
        }
        self.close_main();
    }

    /// Ends the session of the main stream; its events count no more.
    pub(super) fn close_main(&mut self) {
        self.timers.clear(Wakeup::Feedback(StreamId::Main));
        self.timers.clear(Wakeup::Silence(StreamId::Main));
        let was_open = core::mem::replace(&mut self.main.open, false);
        self.main.session = self.next_session();
        if was_open {
            let budget = Some(self.config.limits.query_ms);
            let work = Work::CloseStream { stream: StreamId::Main };
            self.start(Purpose::CloseMain, budget, work);
        }
    }

    /// The delay of the main scope has passed.
    pub(super) fn main_retry_due(&mut self) {
        match &mut self.life {
            Life::Waiting(waiting) => waiting.over = true,
            Life::Reopening(reopen) => reopen.waited = true,
            Life::Starting
            | Life::Saving(_)
            | Life::Running
            | Life::Leaving(_)
            | Life::Stopping(_)
            | Life::Failing(_)
            | Life::Ended => (),
        }
    }

    pub(super) fn settle_reopen(&mut self) -> bool {
        let Life::Reopening(reopen) = self.life else { return false };
        let quiet = !self.is_main_at_work();
        let caught_up = self.ledger.persisted_checkpoint() == Some(self.main.frontier);
        let next = if !reopen.is_reset && quiet && caught_up {
            self.reset_main();
            Reopen { is_reset: true, ..reopen }
        } else if reopen.is_reset && reopen.waited && !reopen.checking {
            self.start_reopen(ReopenOp::Identify);
            Reopen { checking: true, ..reopen }
        } else {
            return false;
        };
        self.life = Life::Reopening(next);
        true
    }

    /// Whether an operation of the main stream or lane has not completed.
    pub(super) fn is_main_at_work(&self) -> bool {
        self.pending.values().any(|purpose| match purpose {
            Purpose::WriteMain
            | Purpose::FlushMain
            | Purpose::CloseMain
            | Purpose::NameCause(_)
            | Purpose::Reopen(_) => true,
            Purpose::Save
            | Purpose::Startup(_)
            | Purpose::Blockers { .. }
            | Purpose::Monitor
            | Purpose::Listing
            | Purpose::DropLeft { .. }
            | Purpose::DescribeMain { .. }
            | Purpose::Heartbeat { .. }
            | Purpose::UntilTarget
            | Purpose::Shutdown
            | Purpose::Attempt { .. } => false,
        })
    }

    /// Sets all five positions to the checkpoint. What the lane was owed is still owed: a sink that
    /// has lost it must be able to say so at a flush (DS-03).
    pub(super) fn reset_main(&mut self) {
        let checkpoint = self.ledger.persisted_checkpoint().unwrap_or_default();
        let session = self.next_session();
        let owed = self.main_lane.has_debt();
        self.main = Stream::new(StreamId::Main, session, checkpoint, self.now);
        self.main_lane = LaneState::after_reopening(owed, self.now);
        self.rewind_schemas();
        self.turns.forget(Lane::Main);
        self.timers.clear(Wakeup::Batch);
        self.timers.clear(Wakeup::Flush(Lane::Main));
    }

    pub(super) fn start_reopen(&mut self, what: ReopenOp) {
        let limits = &self.config.limits;
        let slot = self.ledger.record().identity.slot.clone();
        let (budget, work) = match what {
            ReopenOp::Identify => (limits.connect_ms, Work::Identify),
            ReopenOp::Inspect => (limits.query_ms, Work::InspectSlot { slot }),
            ReopenOp::Open => {
                let budget = limits.connect_ms;
                self.main.session = self.next_session();
                let (session, from) = (self.main.session, self.main.started_at);
                (budget, Work::OpenStream { stream: StreamId::Main, session, slot, from })
            }
        };
        self.start(Purpose::Reopen(what), Some(budget), work);
    }

    pub(super) fn reopen_completed(
        &mut self,
        what: ReopenOp,
        result: Result<Answer, Fault>,
    ) -> Result<(), ()> {
        if what == ReopenOp::Open && result.is_ok() {
            self.main.open = true;
        }
        if !matches!(self.life, Life::Reopening(_)) {
            // Stopping or leaving: whoever does so closes what was opened late.
            if self.main.open && matches!(self.life, Life::Leaving(_)) {
                self.close_main();
            }
            return Ok(());
        }
        let step = match (what, result) {
            (_, Err(fault)) => Err(fault),
            (ReopenOp::Identify, Ok(Answer::Identified(facts))) => {
                self.check_seen(&facts.seen).and_then(|()| {
                    if facts.in_recovery {
                        return Err(in_recovery());
                    }
                    self.start_reopen(ReopenOp::Inspect);
                    Ok(())
                })
            }
            (ReopenOp::Inspect, Ok(Answer::Slot(report))) => {
                self.check_opening(&report).map(|opening| match opening {
                    Opening::Free => self.start_reopen(ReopenOp::Open),
                    Opening::Busy => (),
                })
            }
            (ReopenOp::Open, Ok(Answer::Opened(seen))) => {
                self.check_seen(&seen).map(|()| self.reopened())
            }
            (ReopenOp::Identify | ReopenOp::Inspect | ReopenOp::Open, Ok(_)) => return Err(()),
        };
        if let Err(fault) = step {
            self.main_failed(ACTION, fault);
        }
        Ok(())
    }

    /// The main stream ends before its time: nobody may go on waiting for its dispatch, and what
    /// failed is not offered again before everything is read again.
    pub(super) fn interrupt_main(&mut self) {
        self.interrupt_holds();
        self.forget_write_retry();
    }

    fn reopened(&mut self) {
        self.main.heard = self.now;
        self.life = Life::Running;
        let from = self.main.started_at;
        self.report(Notice::Reopened { from });
        // The publication may have changed while nobody listened.
        self.request_listing();
    }
}

/// S-09.
pub(super) fn in_recovery() -> Fault {
    let kind = FaultKind::Server { code: SqlState(*b"57P03") };
    source_fault(kind, "the source is a standby, or still recovering")
}
