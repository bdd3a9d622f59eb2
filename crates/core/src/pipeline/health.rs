//! Whether anything moves (L-02): a run that has something to do and does nothing for a minute says what
//! it waits for.

use super::{Pipeline, Purpose};
use crate::config::STALLED;
use crate::ids::TableId;
use crate::lsn::Lsn;
use crate::notice::Notice;
use crate::stream::Gate;
use crate::time::Instant;
use crate::timers::Wakeup;

/// What is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// A call on the main lane.
    MainCall {
        flush: bool,
    },
    /// A failed batch of main waits for its next try.
    MainRetry,
    /// A batch of main that is not offered yet, or a debt that is not flushed yet.
    MainBatch,
    Save,
    /// A call on a table's lane, or a batch that waits for one.
    Table(TableId),
    MainGate,
    /// The server's WAL is far ahead of what was read.
    Source,
}

#[derive(Debug, Default)]
pub(super) struct Health {
    /// Last time that something moved, or that nothing was to do.
    moved_at: Instant,
    stalled: Option<String>,
    /// End of the server's WAL when it was seen last.
    server_end: Lsn,
}

impl Purpose {
    /// Side work goes on by the clock and says nothing about the run.
    pub(super) const fn is_side_work(&self) -> bool {
        match self {
            Self::Blockers { .. }
            | Self::Monitor
            | Self::Listing
            | Self::DropLeft { .. }
            | Self::Heartbeat { .. }
            | Self::NameCause(_) => true,
            Self::Save
            | Self::Startup(_)
            | Self::Reopen(_)
            | Self::DescribeMain { .. }
            | Self::UntilTarget
            | Self::WriteMain
            | Self::FlushMain
            | Self::CloseMain
            | Self::Shutdown
            | Self::Attempt { .. } => false,
        }
    }
}

impl<R> Pipeline<R> {
    /// Whether a health check passes.
    pub(super) const fn is_ready(&self) -> bool {
        self.life.is_running() && self.health.stalled.is_none()
    }

    pub(super) fn stalled_by(&self) -> Option<String> {
        self.health.stalled.clone()
    }

    pub(super) fn note_moved(&mut self) {
        self.health.moved_at = self.now;
        if self.health.stalled.take().is_some() {
            self.report(Notice::Unstalled);
        }
    }

    pub(super) const fn note_server_end(&mut self, end: Lsn) {
        self.health.server_end = end;
    }

    /// Looks at the clock: the timer only makes it happen in time.
    pub(super) fn settle_health(&mut self) {
        let waits = if self.life.is_running() { self.waits() } else { None };
        let Some(waits) = waits else {
            self.note_moved();
            self.timers.clear(Wakeup::Stalled);
            return;
        };
        if self.health.stalled.is_some() {
            return;
        }
        let due = self.health.moved_at.after(STALLED);
        if self.now < due {
            self.timers.set(Wakeup::Stalled, due);
            return;
        }
        self.timers.clear(Wakeup::Stalled);
        let cause = self.describe(waits);
        self.health.stalled = Some(cause.clone());
        self.report(Notice::Stalled { cause });
    }

    fn waits(&self) -> Option<Waits> {
        let lane = &self.main_lane;
        if lane.is_busy() {
            return Some(Waits::MainCall { flush: lane.is_flushing() });
        }
        if self.main_writes.is_waiting() {
            return Some(Waits::MainRetry);
        }
        if self.ledger.is_saving() {
            return Some(Waits::Save);
        }
        if let Some(run) = self.copies.values().find(|run| run.has_destination_work()) {
            return Some(Waits::Table(run.table));
        }
        if !lane.is_settled() {
            return Some(Waits::MainBatch);
        }
        if self.main.gate == Gate::Closed {
            return Some(Waits::MainGate);
        }
        let unread = self.health.server_end.bytes_past(self.main.received.0);
        (unread > self.config.limits.idle_checkpoint_bytes).then_some(Waits::Source)
    }

    fn describe(&self, waits: Waits) -> String {
        match waits {
            Waits::MainCall { flush: false } => {
                "the destination does not answer a write of changes".to_owned()
            }
            Waits::MainCall { flush: true } => "the destination does not answer a flush".to_owned(),
            Waits::MainRetry => {
                "the destination refuses changes, they are offered again".to_owned()
            }
            Waits::MainBatch => "changes wait for their turn at the destination".to_owned(),
            Waits::Save => "the state is not saved".to_owned(),
            Waits::Table(table) => {
                let name = self
                    .ledger
                    .table(table)
                    .map_or_else(|| format!("table {table}"), |entry| entry.name.clone());
                format!("the destination does not answer for the copy of {name}")
            }
            Waits::MainGate => "the memory of the main stream is used up".to_owned(),
            Waits::Source => {
                let unread = self.health.server_end.bytes_past(self.main.received.0);
                format!("the server sends nothing although {unread} bytes of WAL are unread")
            }
        }
    }
}
