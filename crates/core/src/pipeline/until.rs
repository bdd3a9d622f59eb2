//! Runs that end by themselves (L-08), and who else waits for a keepalive of main.

use core::time::Duration;

use super::{Pipeline, Purpose};
use crate::config::{UNTIL_POLL, Until};
use crate::effect::Work;
use crate::fault::Fault;
use crate::ids::StreamId;
use crate::input::Answer;
use crate::lsn::Position;
use crate::notice::Notice;
use crate::record::{Phase, Policy};
use crate::timers::Wakeup;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UntilState {
    /// The run goes on until it is stopped.
    Off,
    /// The target is read once when no table is on its way any more.
    TargetUnknown,
    /// The read of the target is outstanding.
    Reading,
    /// It failed, and is repeated with the next keepalive.
    Failed,
    Target(Position),
}

impl UntilState {
    pub(super) const fn new(until: Option<Until>) -> Self {
        match until {
            None | Some(Until::Recreated) => Self::Off,
            Some(Until::CaughtUp) => Self::TargetUnknown,
            Some(Until::Position(lsn)) => Self::Target(Position(lsn)),
        }
    }
}

impl<R> Pipeline<R> {
    /// Whether idle positions are taken at once, without the pace of A-14.
    pub(super) fn is_hurried(&self) -> bool {
        self.until != UntilState::Off
    }

    /// Whether somebody waits for main to hear where the server is: the end of the run, a table in
    /// Catchup (H-07), or a verifier (L-07). An idle server says it by itself only after a long time.
    fn wants_keepalive(&self) -> bool {
        let catchup = self.catchup.values().any(|handover| *handover > self.main.received);
        self.is_hurried() || catchup || self.hold_wants_keepalive()
    }

    pub(super) fn settle_until(&mut self) -> bool {
        if !self.life.is_running() {
            return false;
        }
        if self.wants_keepalive() {
            self.timers.set_if_unset(Wakeup::Until, self.now.after(UNTIL_POLL));
        }
        if !self.is_hurried() || self.is_a_table_on_its_way() {
            return false;
        }
        match self.until {
            UntilState::Off | UntilState::Reading | UntilState::Failed => false,
            UntilState::TargetUnknown => {
                self.until = UntilState::Reading;
                let budget = Some(self.config.limits.query_ms);
                self.start(Purpose::UntilTarget, budget, Work::ReadWalPosition);
                true
            }
            UntilState::Target(target) => {
                let reached = self.ledger.persisted_checkpoint() >= Some(target);
                if reached {
                    self.request_stop(true);
                }
                reached
            }
        }
    }

    fn is_a_table_on_its_way(&self) -> bool {
        self.ledger.record().tables.values().any(|entry| match entry.phase {
            Phase::Pending | Phase::Copying | Phase::Catchup { .. } => true,
            Phase::Errored { policy, .. } => policy == Policy::Timed,
            Phase::Ready { .. } => false,
        })
    }

    pub(super) fn until_target(&mut self, result: Result<Answer, Fault>) -> Result<(), ()> {
        match result {
            Ok(Answer::WalPosition(lsn)) => {
                let target = Position(lsn);
                self.until = UntilState::Target(target);
                self.report(Notice::UntilTarget { target });
                Ok(())
            }
            Ok(_) => Err(()),
            Err(_) if self.life.is_stopping() => Ok(()),
            Err(fault) => {
                let task = "position of the server";
                self.report(Notice::SideTaskFailed { task, fault });
                self.until = UntilState::Failed;
                let delay = Duration::from_millis(self.config.limits.retry_ms);
                self.timers.set(Wakeup::Until, self.now.after(delay));
                Ok(())
            }
        }
    }

    pub(super) fn until_due(&mut self) {
        if self.until == UntilState::Failed {
            self.until = UntilState::TargetUnknown;
        }
        if self.life.is_running() && self.wants_keepalive() {
            self.confirm(StreamId::Main, true);
        }
    }
}
