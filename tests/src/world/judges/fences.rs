//! How long main may be held for one table (W-13..W-16, W-I2).

use core::time::Duration;
use std::collections::BTreeMap;

use walferry_core::config::Limits;
use walferry_core::ids::TableId;
use walferry_core::notice::FenceEnd;
use walferry_core::time::Instant;

use crate::coverage::reached;

/// What a judge remembers of fences.
#[derive(Clone, Debug, Default)]
pub(in crate::world) struct FenceWatch {
    closed: Option<(TableId, Instant)>,
    /// How often in a row a fence of the table opened by time (W-16).
    expired: BTreeMap<TableId, u32>,
}

impl FenceWatch {
    pub(super) const fn closed_for(&self) -> Option<TableId> {
        match self.closed {
            Some((table, _)) => Some(table),
            None => None,
        }
    }

    /// Main holds from here on.
    ///
    /// # Panics
    /// If it holds for another table already.
    pub(in crate::world) fn closes(&mut self, table: TableId, now: Instant) {
        assert_eq!(self.closed, None, "a second fence, for {table} (W-15)");
        self.closed = Some((table, now));
    }

    /// Main goes on. The core was woken at most `late` after its deadline.
    ///
    /// # Panics
    /// If it was held too long.
    pub(in crate::world) fn opens(
        &mut self,
        table: TableId,
        why: FenceEnd,
        now: Instant,
        limits: &Limits,
        late: Duration,
    ) {
        let since = self.closed.take().map(|(_, since)| since);
        let expired = self.expired.entry(table).or_default();
        if let Some(since) = since {
            let allowed = limits.fence_ms.saturating_mul(1 << (*expired).min(20));
            let most = Duration::from_millis(allowed.min(limits.fence_ms_max)) + late;
            let held = now.since(since);
            assert!(held <= most, "main was held {held:?} for {table}, of {most:?} (W-I2)");
            reached("W-I2");
        }
        match why {
            FenceEnd::Expired => *expired += 1,
            FenceEnd::HandedOver => *expired = 0,
            FenceEnd::AttemptOver | FenceEnd::Interrupted => (),
        }
    }
}
