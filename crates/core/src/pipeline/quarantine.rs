//! A failed write of the main lane: the same batch again after a delay, the tables at fault set
//! aside, or the end of the run. Whichever it is, an event is offered, or offered again, only
//! while main owns its table in the attempt of its projection.
//!
//! Knows nothing of failed flushes: they put shared work in doubt and are never a quarantine (F-04).

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use super::Pipeline;
use super::life::Life;
use super::stop::Drains;
use crate::fault::{Blame, DestinationClass, Fault, FaultKind};
use crate::ids::TableId;
use crate::notice::Notice;
use crate::record::Policy;
use crate::retry::{self, Decision, Place};
use crate::time::Instant;
use crate::timers::Wakeup;

/// Quarantines are counted over this time.
const HOUR: Duration = Duration::from_secs(3_600);
const ACTION: &str = "writing changes to the destination";

/// What failed writes of main left behind.
#[derive(Debug, Default)]
pub(super) struct MainWrites {
    /// The failed batch is offered again then, and not before what is owed is flushed.
    retry_at: Option<Instant>,
    /// When tables were set aside, over the last hour.
    quarantines: VecDeque<Instant>,
}

impl MainWrites {
    /// Whether a failed batch waits for its next try.
    pub(super) const fn is_waiting(&self) -> bool {
        self.retry_at.is_some()
    }
}

impl<R> Pipeline<R> {
    pub(super) fn main_write_failed(&mut self, fault: Fault) {
        let written: BTreeSet<_> = self.main_lane.writing().collect();
        self.main_lane.write_failed(self.copy_batch, self.now);
        self.strip_main_lane();
        if self.gives_up_main_lane() {
            // What was offered is sent again; only what no repetition heals counts.
            self.main_lane.drop_waiting();
            if retry::decide_fault(&fault, Place::Main) == Decision::Repeat {
                return;
            }
        }
        match retry::decide_fault(&fault, Place::Main) {
            Decision::Repeat => match self.main_retry_in(fault) {
                Ok(delay) => {
                    let at = self.now.after(delay);
                    self.main_writes.retry_at = Some(at);
                    self.timers.set(Wakeup::WriteRetry, at);
                }
                Err(fault) => self.fail_run(ACTION, fault),
            },
            Decision::EndRun => match confined(&fault, &written) {
                Some((tables, policy)) => self.quarantine(&tables, policy, fault),
                None => self.fail_run(ACTION, fault),
            },
            Decision::Stopped
            | Decision::Retry
            | Decision::Errored(_)
            | Decision::SlotLoss
            | Decision::Promotion => self.fail_run(ACTION, fault),
        }
    }

    /// Whether the main lane is about to be forgotten: the stream re-opens, or the run leaves or stops
    /// without it.
    const fn gives_up_main_lane(&self) -> bool {
        match self.life {
            Life::Leaving(_) | Life::Reopening(_) => true,
            Life::Stopping(stop) => matches!(stop.drains, Drains::Lane),
            Life::Starting
            | Life::Saving(_)
            | Life::Waiting(_)
            | Life::Running
            | Life::Failing(_)
            | Life::Ended => false,
        }
    }

    /// whether the lane may offer a batch: the delay of a failed one is over and nothing is
    /// owed any more, because the destination may have lost what it had accepted (DS-03), or have
    /// taken what it said had failed.
    pub(super) fn may_write_main(&self) -> bool {
        let over = |at| self.now >= at && !self.main_lane.has_debt();
        self.main_writes.retry_at.is_none_or(over)
    }

    pub(super) fn forget_write_retry(&mut self) {
        self.main_writes.retry_at = None;
        self.timers.clear(Wakeup::WriteRetry);
    }

    /// The tables at fault stop; their events leave the failed batch and all behind it, and
    /// what is left of it is offered again.
    fn quarantine(&mut self, tables: &BTreeSet<TableId>, policy: Policy, fault: Fault) {
        // One that was resynced while the write was in flight has left the batch already.
        let tables: BTreeSet<_> =
            tables.iter().copied().filter(|table| self.owned.contains_key(table)).collect();
        let recent = &mut self.main_writes.quarantines;
        while recent.front().is_some_and(|&at| self.now.since(at) >= HOUR) {
            recent.pop_front();
        }
        if (recent.len() + tables.len()) as u64 > self.config.limits.quarantines_per_hour {
            self.fail_run(ACTION, fault);
            return;
        }
        let others = self.main_lane.count(|entry| !tables.contains(&entry.table));
        for &table in &tables {
            self.main_writes.quarantines.push_back(self.now);
            self.report(Notice::Quarantined { table });
            self.stop_table_with(table, fault.to_string(), policy, Some(fault.clone()));
        }
        let left = self.main_lane.count(|_| true);
        assert_eq!(left, others, "a quarantine took events of other tables (X-I6)");
    }

    ///
    pub(super) fn strip_main_lane(&mut self) {
        let owned = &self.owned;
        self.main_lane.retain(|entry| {
            owned.get(&entry.table).is_some_and(|owned| owned.attempt == entry.attempt)
        });
    }
}

/// The tables of the failed batch to which a lasting error is confined, if it has the three properties
/// of X-14. An error that names no table of the batch would come again for ever.
fn confined(fault: &Fault, written: &BTreeSet<TableId>) -> Option<(BTreeSet<TableId>, Policy)> {
    let FaultKind::Destination { class } = fault.kind else { return None };
    let Blame::Tables { tables, no_effect_on_others: true } = &fault.blame else { return None };
    let policy = match class {
        DestinationClass::Manual => Policy::Manual,
        DestinationClass::Permanent => Policy::None,
        DestinationClass::Transient { .. } | DestinationClass::Fenced => return None,
    };
    let tables: BTreeSet<_> = tables.iter().copied().filter(|t| written.contains(t)).collect();
    (!tables.is_empty()).then_some((tables, policy))
}
