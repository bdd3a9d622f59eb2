//! The real clock, as the core's time.

use std::time::Instant as Std;

use walferry_core::time::Instant;

/// Counts from the start of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Std);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Std::now())
    }

    pub(crate) fn now(self) -> Instant {
        Instant(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// When `at` is, for timers of the executor; `None` if it is too far away to matter.
    pub(crate) fn std(self, at: Instant) -> Option<Std> {
        self.0.checked_add(std::time::Duration::from_nanos(at.0))
    }
}
