//! How the process ends: the one table from kinds of failure to exit codes (E-02).

use std::process;

use walferry_core::fault::{FaultKind, Origin};
use walferry_core::notice::Outcome;

/// What an exit code means to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitCode {
    /// Done, or stopped in order.
    Done,
    /// A bug.
    Internal,
    /// A wrong command line or setting.
    Configuration,
    /// The source failed.
    Source,
    /// The destination failed.
    Destination,
    /// A person must act.
    Person,
    /// Source and destination are different.
    Different,
    /// The state cannot be used.
    Store,
    /// A stop was cut short.
    CutShort(Signal),
}

/// A signal that asks for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// From the keyboard.
    Interrupt,
    /// From a supervisor.
    Terminate,
}

impl ExitCode {
    /// The number that the shell sees.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Internal => 1,
            Self::Configuration => 2,
            Self::Source => 3,
            Self::Destination => 4,
            Self::Person => 5,
            Self::Different => 6,
            Self::Store => 7,
            Self::CutShort(Signal::Interrupt) => 130,
            Self::CutShort(Signal::Terminate) => 143,
        }
    }

    /// The code of a run that has ended; `signal` is the last one received, if any.
    pub(crate) const fn of_outcome(outcome: &Outcome, signal: Option<Signal>) -> Self {
        match outcome {
            Outcome::Stopped { errored: 1.., until_reached: true } => Self::Person,
            Outcome::Stopped { .. } => Self::Done,
            Outcome::Failed { fault, .. } => Self::of_fault(&fault.kind, fault.origin, signal),
        }
    }

    /// The code of a failure; the last column of spec chapter 27.
    pub(crate) const fn of_fault(kind: &FaultKind, origin: Origin, signal: Option<Signal>) -> Self {
        match kind {
            FaultKind::Stopped => Self::Done,
            FaultKind::StoreFailed
            | FaultKind::StoreFenced
            | FaultKind::StoreLocked { .. }
            | FaultKind::RecordCorrupt
            | FaultKind::RecordInvalid { .. }
            | FaultKind::RecordTooNew { .. } => Self::Store,
            FaultKind::TimelineChanged { .. }
            | FaultKind::SlotMissing { .. }
            | FaultKind::SlotInvalidated { .. }
            | FaultKind::SlotAhead { .. }
            | FaultKind::SlotForeign { .. }
            | FaultKind::CheckpointAhead { .. }
            | FaultKind::IdentityMismatch { .. }
            | FaultKind::HorizonBeyondFork { .. }
            | FaultKind::RecreationPending
            | FaultKind::PublicationMissing { .. }
            | FaultKind::PublicationEmpty { .. } => Self::Person,
            FaultKind::Transport | FaultKind::Timeout { .. } => match origin {
                Origin::Source | Origin::Core => Self::Source,
                Origin::Destination => Self::Destination,
                Origin::Store => Self::Store,
            },
            FaultKind::Server { .. }
            | FaultKind::Authentication
            | FaultKind::Protocol
            | FaultKind::Conversion
            | FaultKind::Limit { .. } => Self::Source,
            FaultKind::Configuration { .. } | FaultKind::EntropyUnavailable => Self::Configuration,
            FaultKind::Destination { .. } | FaultKind::FlushFailed { .. } => Self::Destination,
            FaultKind::StopTimeout => Self::CutShort(match signal {
                Some(signal) => signal,
                None => Signal::Terminate,
            }),
            FaultKind::Violation => Self::Internal,
        }
    }
}

impl From<ExitCode> for process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code.number())
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use walferry_core::fault::{DestinationClass, Fault, SqlState};
    use walferry_core::lsn::{Lsn, Position};

    use super::*;

    // E-02, E-I1: the table of spec chapter 27 with the codes of the command line
    #[test]
    fn each_kind_of_failure_has_its_code() {
        let text = String::new;
        let class = DestinationClass::Fenced;
        let (lsn, position) = (Lsn(1), Position(Lsn(1)));
        let budget = Duration::from_secs(1);
        let cases = [
            (FaultKind::Stopped, 0),
            (FaultKind::StoreFailed, 7),
            (FaultKind::StoreFenced, 7),
            (FaultKind::StoreLocked { holder: text() }, 7),
            (FaultKind::TimelineChanged { expected: 1, found: 2 }, 5),
            (FaultKind::SlotMissing { slot: text() }, 5),
            (FaultKind::SlotInvalidated { slot: text(), reason: text() }, 5),
            (FaultKind::SlotAhead { slot: text(), found: lsn, checkpoint: position }, 5),
            (
                FaultKind::SlotForeign {
                    slot: text(),
                    field: "plugin",
                    expected: text(),
                    found: text(),
                },
                5,
            ),
            (FaultKind::CheckpointAhead { found: lsn, checkpoint: position }, 5),
            (FaultKind::IdentityMismatch { field: "timeline", expected: text(), found: text() }, 5),
            (FaultKind::HorizonBeyondFork { horizon: Some(position), fork: position }, 5),
            (FaultKind::RecreationPending, 5),
            (FaultKind::PublicationMissing { name: text() }, 5),
            (FaultKind::PublicationEmpty { name: text() }, 5),
            (FaultKind::RecordCorrupt, 7),
            (FaultKind::RecordInvalid { field: text() }, 7),
            (FaultKind::RecordTooNew { found: 2, known: 1 }, 7),
            (FaultKind::Transport, 3),
            (FaultKind::Timeout { budget }, 3),
            (FaultKind::Server { code: SqlState(*b"57P01") }, 3),
            (FaultKind::Authentication, 3),
            (FaultKind::Configuration { setting: "wal_level", expected: text(), found: text() }, 2),
            (FaultKind::EntropyUnavailable, 2),
            (FaultKind::Protocol, 3),
            (FaultKind::Conversion, 3),
            (FaultKind::Limit { name: "frame_bytes" }, 3),
            (FaultKind::Destination { class }, 4),
            (FaultKind::FlushFailed { class }, 4),
            (FaultKind::StopTimeout, 143),
            (FaultKind::Violation, 1),
        ];
        for (kind, number) in cases {
            let fault = Fault::found(Origin::Source, kind);
            let outcome = Outcome::Failed { action: "x", fault };
            assert_eq!(ExitCode::of_outcome(&outcome, None).number(), number, "{outcome:?}");
        }
        walferry_coverage::reached("E-I1");
    }

    #[test]
    fn a_timeout_counts_for_whom_it_was_waited_for() {
        let kind = FaultKind::Timeout { budget: Duration::from_secs(1) };
        for (origin, number) in
            [(Origin::Source, 3), (Origin::Core, 3), (Origin::Destination, 4), (Origin::Store, 7)]
        {
            assert_eq!(ExitCode::of_fault(&kind, origin, None).number(), number);
        }
    }

    // L-08, Q-05
    #[test]
    fn a_stop_is_success_unless_it_was_cut_short_or_tables_are_missing() {
        let stopped = |errored, until_reached| Outcome::Stopped { errored, until_reached };
        let cut = |signal| {
            let fault = Fault::found(Origin::Core, FaultKind::StopTimeout);
            ExitCode::of_outcome(&Outcome::Failed { action: "x", fault }, Some(signal)).number()
        };
        let of = |outcome| ExitCode::of_outcome(&outcome, Some(Signal::Interrupt)).number();
        assert_eq!(of(stopped(0, false)), 0);
        assert_eq!(of(stopped(3, false)), 0);
        assert_eq!(of(stopped(0, true)), 0);
        assert_eq!(of(stopped(1, true)), 5);
        assert_eq!(cut(Signal::Interrupt), 130);
        assert_eq!(cut(Signal::Terminate), 143);
    }
}
