//! What a transient failure of the main scope costs (Y-02, Y-04, Y-08): a delay, or the run.

use core::time::Duration;

use super::Pipeline;
use crate::fault::{DestinationClass, Fault, FaultKind, Origin};
use crate::notice::Notice;
use crate::retry;

/// Scope of the main stream in the hash of delays; tables use their OID, which is never 0.
const MAIN_SCOPE: u32 = 0;

impl<R> Pipeline<R> {
    /// Counts a transient failure of the main scope and reports it. The delay before the next try,
    /// or the fault back when no try is left: then the run ends with it.
    pub(super) fn main_retry_in(&mut self, fault: Fault) -> Result<Duration, Fault> {
        let origin = match fault.origin {
            Origin::Destination => Origin::Destination,
            Origin::Source | Origin::Store | Origin::Core => Origin::Source,
        };
        let checkpoint = self.ledger.persisted_checkpoint();
        let retries_max = self.config.limits.main_retries_max;
        let Some(failures) = self.main_budget.failed(origin, checkpoint, retries_max) else {
            return Err(fault);
        };
        let n = u32::try_from(failures).unwrap_or(u32::MAX);
        let delay = retry::delay(&self.config.limits, self.seed.random(), MAIN_SCOPE, n);
        let retry_in = delay.max(least_delay(&fault.kind).unwrap_or_default());
        self.report(Notice::MainRetry { origin, failures, retry_in, fault });
        Ok(retry_in)
    }
}

/// The delay that a destination asks for (DS-10).
pub(super) const fn least_delay(kind: &FaultKind) -> Option<Duration> {
    if let FaultKind::Destination { class: DestinationClass::Transient { retry_after } }
    | FaultKind::FlushFailed { class: DestinationClass::Transient { retry_after } } = kind
    {
        *retry_after
    } else {
        None
    }
}
