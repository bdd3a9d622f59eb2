//! One table of deadlines instead of sleeping tasks.

use std::collections::BTreeMap;

use crate::ids::{Lane, StreamId, TableId};
use crate::time::Instant;

/// Why the core wants to be woken; each has at most one deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wakeup {
    /// The stop budget is used up.
    StopBudget,
    /// A busy slot is looked at again (M-01, K-07).
    BusySlot,
    /// Slot creation still waits: look at its blockers (M-06).
    Blockers,
    /// The oldest queued event of the main stream has waited for the batch delay.
    Batch,
    /// Accepted work of a lane has waited long enough (F-02).
    Flush(Lane),
    /// Feedback of a stream is due.
    Feedback(StreamId),
    /// A stream may have gone silent.
    Silence(StreamId),
    /// An Errored(timed) table is tried again (Y-08).
    Retry(TableId),
    /// A copy goes on: a batch is sent again (K-28), or a busy copy slot is looked at again (K-07).
    Copy(TableId),
    /// The main scope is tried again: start-up or the main stream (Y-02).
    MainRetry,
    /// A write of the main lane is offered again.
    WriteRetry,
    /// A fence has lasted long enough (W-15).
    Fence,
    /// The pause behind a fence is over (W-17).
    FencePause,
    /// The distance of replaying tables is looked at (W-18).
    Distance,
    /// The hold of a verifier has lasted long enough (L-07).
    Hold,
    /// The publication is listed (T-03).
    Listing,
    /// A heartbeat is written.
    Heartbeat,
    /// Running copies are reported (K-22).
    CopyMonitor,
    /// Nothing moved for long (L-02).
    Stalled,
    /// The main slot is looked at (G-06).
    Monitor,
    /// A run that ends by itself asks for the next keepalive (L-08).
    Until,
}

/// The deadlines.
#[derive(Debug, Default)]
pub(crate) struct Timers(BTreeMap<Wakeup, Instant>);

impl Timers {
    /// Sets or moves a deadline.
    pub(crate) fn set(&mut self, timer: Wakeup, at: Instant) {
        self.0.insert(timer, at);
    }

    /// Sets a deadline unless there is one.
    pub(crate) fn set_if_unset(&mut self, timer: Wakeup, at: Instant) {
        self.0.entry(timer).or_insert(at);
    }

    pub(crate) fn clear(&mut self, timer: Wakeup) {
        self.0.remove(&timer);
    }

    pub(crate) fn clear_all(&mut self) {
        self.0.clear();
    }

    /// Copies end by themselves, and some of them by the clock.
    pub(crate) fn clear_all_but_copies(&mut self) {
        self.0.retain(|other, _| matches!(other, Wakeup::Copy(_)));
    }

    pub(crate) fn clear_all_but(&mut self, timer: Wakeup) {
        self.0.retain(|&other, _| other == timer);
    }

    pub(crate) fn next(&self) -> Option<(Instant, Wakeup)> {
        self.0.iter().map(|(&timer, &at)| (at, timer)).min()
    }

    /// Removes and returns one due timer; the caller loops until `None`.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Wakeup> {
        let (at, timer) = self.next()?;
        (at <= now).then(|| {
            self.0.remove(&timer);
            timer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_timers_leave_in_order_of_time_and_the_rest_stays() {
        let mut timers = Timers::default();
        timers.set(Wakeup::Monitor, Instant(30));
        timers.set(Wakeup::Batch, Instant(10));
        timers.set(Wakeup::Until, Instant(20));
        timers.set_if_unset(Wakeup::Batch, Instant(5));
        assert_eq!(timers.expire(Instant(9)), None);
        assert_eq!(timers.expire(Instant(25)), Some(Wakeup::Batch));
        assert_eq!(timers.expire(Instant(25)), Some(Wakeup::Until));
        assert_eq!(timers.expire(Instant(25)), None);
        assert_eq!(timers.next(), Some((Instant(30), Wakeup::Monitor)));
    }
}
