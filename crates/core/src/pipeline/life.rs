//! Where a run stands (L-02), as the parts of the pipeline ask for it. What leads from one state to
//! the next stands in the files of the groups.

use super::leaving::Leaving;
use super::reopen::Reopen;
use super::run_end::Failure;
use super::startup::StartupSave;
use super::stop::{Drains, Stop};

/// Where a run stands.
#[derive(Debug)]
pub(super) enum Life {
    /// In start-up, an operation is outstanding.
    Starting,
    /// In start-up, a save is outstanding.
    Saving(StartupSave),
    /// In start-up, before a repetition (U-02).
    Waiting(Waiting),
    /// U-16.
    Running,
    /// The main stream is opened again; everything else goes on.
    Reopening(Reopen),
    /// What runs comes to an end before start-up is entered again (P-11, I-03).
    Leaving(Leaving),
    /// Q.
    Stopping(Stop),
    /// Waiting for a save in flight, or for the last one.
    Failing(Failure),
    /// Nothing follows.
    Ended,
}

/// A pause of start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// What is tried again.
    pub(super) again: Again,
    /// Whether the delay has passed.
    pub(super) over: bool,
}

/// What a pause of start-up is before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// The unit U-03..U-14.
    Unit,
    /// `startup` of the destination (U-15).
    Destination,
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

    /// Whether tables have their life: timers of theirs count, attempts go on.
    pub(super) const fn keeps_tables(&self) -> bool {
        match self {
            Self::Running | Self::Reopening(_) => true,
            Self::Starting
            | Self::Saving(_)
            | Self::Waiting(_)
            | Self::Leaving(_)
            | Self::Stopping(_)
            | Self::Failing(_)
            | Self::Ended => false,
        }
    }

    /// Whether save C is behind: what is dirty is saved without being asked for, and the laws hold.
    pub(super) const fn has_started(&self) -> bool {
        match self {
            Self::Running | Self::Reopening(_) | Self::Leaving(_) => true,
            Self::Stopping(stop) => !matches!(stop.drains, Drains::Nothing),
            Self::Starting
            | Self::Saving(_)
            | Self::Waiting(_)
            | Self::Failing(_)
            | Self::Ended => false,
        }
    }

    /// Whether the main stream may be dispatched and written.
    pub(super) const fn moves_data(&self) -> bool {
        match self {
            Self::Running => true,
            Self::Stopping(stop) => matches!(stop.drains, Drains::Queue),
            Self::Starting
            | Self::Saving(_)
            | Self::Waiting(_)
            | Self::Reopening(_)
            | Self::Leaving(_)
            | Self::Failing(_)
            | Self::Ended => false,
        }
    }

    /// The word of the glossary; `again` says whether start-up was entered before in this run.
    pub(super) const fn word(&self, again: bool) -> &'static str {
        match self {
            Self::Starting | Self::Saving(_) | Self::Waiting(_) if again => "recovering",
            Self::Starting | Self::Saving(_) | Self::Waiting(_) => "initializing",
            Self::Running => "running",
            Self::Reopening(_) | Self::Leaving(_) => "recovering",
            Self::Stopping(_) => "stopping",
            Self::Failing(_) => "failing",
            Self::Ended => "ended",
        }
    }
}
