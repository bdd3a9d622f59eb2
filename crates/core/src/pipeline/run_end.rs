//! Where a run stands, and how a failed one ends: nothing is flushed, shut down or confirmed;
//! one last save gives back the try of each running attempt.

use super::startup::StartupSave;
use super::stop::Stop;
use super::{Pipeline, Purpose};
use crate::effect::Effect;
use crate::fault::{Fault, FaultKind};
use crate::notice::Outcome;
use crate::record::Phase;
use crate::retry::{self, Decision, Place};
use crate::timers::Wakeup;

/// Where a run stands (L-02).
#[derive(Debug)]
pub(super) enum Life {
    /// In start-up, an operation is outstanding.
    Starting,
    /// In start-up, a save is outstanding.
    Saving(StartupSave),
    /// U-16.
    Running,
    /// Q.
    Stopping(Stop),
    /// Waiting for a save in flight, or for the last one.
    Failing(Failure),
    /// Nothing follows.
    Ended,
}

#[derive(Debug)]
pub(super) struct Failure {
    action: &'static str,
    fault: Fault,
    last_save: bool,
}

impl Life {
    pub(super) const fn is_ended(&self) -> bool {
        matches!(self, Self::Ended)
    }

    pub(super) const fn is_failing(&self) -> bool {
        matches!(self, Self::Failing(_))
    }

    pub(super) const fn is_running(&self) -> bool {
        matches!(self, Self::Running)
    }

    pub(super) const fn is_stopping(&self) -> bool {
        matches!(self, Self::Stopping(_))
    }

    /// Whether what is dirty is saved without being asked for: from save C on.
    pub(super) const fn saves_by_itself(&self) -> bool {
        match self {
            Self::Running => true,
            Self::Stopping(stop) => stop.from_running,
            Self::Starting | Self::Saving(_) | Self::Failing(_) | Self::Ended => false,
        }
    }

    /// Whether the main stream may be dispatched and written.
    pub(super) const fn moves_data(&self) -> bool {
        match self {
            Self::Running => true,
            Self::Stopping(stop) => stop.from_running,
            Self::Starting | Self::Saving(_) | Self::Failing(_) | Self::Ended => false,
        }
    }

    /// The word of the glossary.
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Starting | Self::Saving(_) => "initializing",
            Self::Running => "running",
            Self::Stopping(_) => "stopping",
            Self::Failing(_) => "failing",
            Self::Ended => "ended",
        }
    }
}

impl<R> Pipeline<R> {
    /// Ends the run with a failure. What Y-02 would repeat ends it as well until main retries exist.
    pub(super) fn fail_run(&mut self, action: &'static str, fault: Fault) {
        if self.life.is_failing() || self.life.is_ended() {
            return;
        }
        let fault = match retry::decide(&fault.kind, Place::Main) {
            // Failover is off (S-07).
            Decision::Promotion => without_failover(fault),
            Decision::Stopped
            | Decision::EndRun
            | Decision::Repeat
            | Decision::Retry
            | Decision::Errored(_)
            | Decision::SlotLoss => fault,
        };
        self.life = Life::Failing(Failure { action, fault, last_save: false });
        // A failure in a stop still has to end within the stop's budget (L-I3).
        self.timers.clear_all_but(Wakeup::StopBudget);
        self.cancel_all_but_saves();
    }

    fn cancel_all_but_saves(&mut self) {
        for (&op, purpose) in &self.pending {
            if *purpose != Purpose::Save {
                self.effects.push_back(Effect::Cancel { op });
            }
        }
    }

    /// A save in flight is waited for: its result decides what the last one may say.
    pub(super) fn settle_failure(&mut self) -> bool {
        let Life::Failing(failure) = &mut self.life else { return false };
        if self.ledger.is_saving() {
            return false;
        }
        let first = !core::mem::replace(&mut failure.last_save, true);
        if first && !self.ledger.poisoned() && self.give_back_tries() {
            self.save();
            return true;
        }
        self.end_failed()
    }

    /// Ends a failing run with its own cause; whether it was failing.
    pub(super) fn end_failed(&mut self) -> bool {
        if !self.life.is_failing() {
            return false;
        }
        let life = core::mem::replace(&mut self.life, Life::Ended);
        if let Life::Failing(Failure { action, fault, .. }) = life {
            self.end(Outcome::Failed { action, fault });
        }
        true
    }

    /// The one place where a run ends; nothing follows.
    pub(super) fn end(&mut self, outcome: Outcome) {
        self.life = Life::Ended;
        self.timers.clear_all();
        self.effects.push_back(Effect::Ended(outcome));
    }

    /// Prepares the last save: what is persisted, with every attempt of this run given back.
    fn give_back_tries(&mut self) -> bool {
        let Some(persisted) = self.ledger.persisted() else { return false };
        let running: Vec<_> = self
            .copies
            .iter()
            .filter(|(table, run)| {
                persisted.tables.get(table).is_some_and(|entry| {
                    entry.phase == Phase::Copying && entry.attempt == Some(run.number)
                })
            })
            .map(|(&table, _)| table)
            .collect();
        if running.is_empty() || !self.ledger.revert_to_persisted() {
            return false;
        }
        for table in running {
            self.ledger.edit_table(table, |entry| {
                entry.phase = Phase::Pending;
                entry.tries = entry.tries.saturating_sub(1);
            });
        }
        true
    }
}

/// Without slot failover another timeline is another source (S-07).
pub(super) fn without_failover(fault: Fault) -> Fault {
    let Fault { kind: FaultKind::TimelineChanged { expected, found }, origin, message, blame } =
        fault
    else {
        return fault;
    };
    let kind = FaultKind::IdentityMismatch {
        field: "timeline",
        expected: expected.to_string(),
        found: found.to_string(),
    };
    Fault { kind, origin, message, blame }
}
