//! The fence (W-13..W-18): a short hold of main dispatch, bounded in time, so that a replaying table
//! that is close behind can pass main and hand over. Also what main may dispatch at this moment.
//!
//! A fence stops nothing else: reading, completions, saves and feedback go on (W-I2).

use core::time::Duration;
use std::collections::BTreeMap;

use super::{Pipeline, Step};
use crate::config::{NOT_CONVERGING, UNTIL_POLL};
use crate::ids::{StreamId, TableId};
use crate::lsn::Position;
use crate::notice::{FenceEnd, Notice};
use crate::time::Instant;
use crate::timers::Wakeup;

/// What main may dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permit {
    /// Anything.
    Free,
    /// The rest of the transaction that is dispatched in part.
    ToBoundary,
    /// Transactions below a position (L-07).
    Below(Position),
    Held,
}

#[derive(Clone, Copy, Debug)]
struct Closed {
    table: TableId,
    /// When main came to hold; until then it finishes a transaction.
    since: Option<Instant>,
}

/// What a table's fences have come to since its last handover.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// How long its next one may last (W-16).
    fence_ms: u64,
    /// Number of its last one: who was served longest ago is next (W-15).
    served: u64,
}

/// A table's distance to main.
#[derive(Clone, Copy, Debug)]
struct Distance {
    least: u64,
    /// When it was that small, or was reported.
    since: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Fences {
    closed: Option<Closed>,
    /// Main runs free until then (W-17).
    free_until: Instant,
    turns: BTreeMap<TableId, Turn>,
    served: u64,
    distances: BTreeMap<TableId, Distance>,
}

impl Fences {
    pub(super) const fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// W-16: a handover resets how long a fence of the table may last.
    pub(super) fn handed_over(&mut self, table: TableId) {
        self.turns.remove(&table);
    }

    pub(super) fn is_for(&self, table: TableId) -> bool {
        self.closed.is_some_and(|closed| closed.table == table)
    }

    fn bound(&self, table: TableId, fence_ms: u64) -> Duration {
        Duration::from_millis(self.turns.get(&table).map_or(fence_ms, |turn| turn.fence_ms))
    }
}

impl<R> Pipeline<R> {
    /// What W-13 and L-07 leave to main. A transaction that is dispatched in part is finished first.
    pub(super) const fn main_permit(&self) -> Permit {
        let held =
            if self.main.is_inside_transaction() { Permit::ToBoundary } else { Permit::Held };
        if self.fence.is_closed() {
            return held;
        }
        self.hold.permit(held)
    }

    /// Called when nothing else can move: a table that replays then cannot hand over yet.
    pub(super) fn settle_fence(&mut self) -> bool {
        match self.fence.closed {
            Some(closed) => self.settle_closed_fence(closed),
            None => self.close_fence_if_due(),
        }
    }

    /// W-13, W-15: the candidate that was served longest ago.
    fn close_fence_if_due(&mut self) -> bool {
        let free = self.life.is_running() && self.main.open && !self.hold.is_on();
        if !free || self.now < self.fence.free_until {
            return false;
        }
        let main_at = self.main.dispatched;
        let near = self.copies.values().filter(|run| run.step == Step::Replaying);
        let near = near.filter(|run| {
            let stream = run.stream.as_ref().filter(|stream| stream.open);
            stream.is_some_and(|stream| {
                main_at.0.bytes_past(stream.dispatched.0) <= self.config.limits.fence_bytes
            })
        });
        let turns = &self.fence.turns;
        let next =
            near.min_by_key(|run| (turns.get(&run.table).map_or(0, |turn| turn.served), run.table));
        let Some(table) = next.map(|run| run.table) else { return false };
        self.fence.served += 1;
        let fence_ms = self.config.limits.fence_ms;
        let turn = self.fence.turns.entry(table).or_insert(Turn { fence_ms, served: 0 });
        turn.served = self.fence.served;
        self.fence.closed = Some(Closed { table, since: None });
        true
    }

    fn settle_closed_fence(&mut self, closed: Closed) -> bool {
        let Closed { table, since } = closed;
        if !self.main.open {
            self.open_fence(FenceEnd::Interrupted);
            return true;
        }
        match self.copies.get(&table).map(|run| run.step) {
            Some(Step::Replaying) => (),
            Some(Step::HandedOver(_)) => {
                self.open_fence(FenceEnd::HandedOver);
                return true;
            }
            Some(
                Step::AwaitSave(_)
                | Step::SlotBusy
                | Step::Preparing
                | Step::BeginDue
                | Step::Beginning
                | Step::Reading
                | Step::FinishDue
                | Step::Finishing
                | Step::FlushDue
                | Step::Flushing
                | Step::ClosingReaders
                | Step::Ending
                | Step::Closing
                | Step::SlotLeft
                | Step::DroppingSlot,
            )
            | None => {
                self.open_fence(FenceEnd::AttemptOver);
                return true;
            }
        }
        let bound = self.fence.bound(table, self.config.limits.fence_ms);
        match since {
            None if self.main.is_inside_transaction() => false,
            None => {
                self.fence.closed = Some(Closed { table, since: Some(self.now) });
                self.timers.set(Wakeup::Fence, self.now.after(bound));
                self.report(Notice::FenceClosed { table, at: self.main.dispatched });
                self.feedback_due(StreamId::Copy(table));
                true
            }
            Some(since) if self.now.since(since) >= bound => {
                self.open_fence(FenceEnd::Expired);
                true
            }
            Some(_) => false,
        }
    }

    /// W-14: while a fence is closed for a table its stream asks for the next keepalive soon.
    pub(super) fn hurry_private(&mut self, id: StreamId) {
        match id {
            StreamId::Copy(table) if self.fence.is_for(table) => {
                self.timers.set(Wakeup::Feedback(id), self.now.after(UNTIL_POLL));
            }
            StreamId::Copy(_) | StreamId::Main => (),
        }
    }

    fn open_fence(&mut self, why: FenceEnd) {
        let Some(Closed { table, since }) = self.fence.closed.take() else { return };
        self.timers.clear(Wakeup::Fence);
        match why {
            FenceEnd::Expired => {
                let fence_ms_max = self.config.limits.fence_ms_max;
                if let Some(turn) = self.fence.turns.get_mut(&table) {
                    turn.fence_ms = turn.fence_ms.saturating_mul(2).min(fence_ms_max);
                }
            }
            FenceEnd::HandedOver | FenceEnd::AttemptOver | FenceEnd::Interrupted => (),
        }
        let Some(since) = since else { return };
        let held = self.now.since(since);
        self.fence.free_until = self.now.after(held);
        if !held.is_zero() {
            self.timers.set(Wakeup::FencePause, self.fence.free_until);
        }
        self.report(Notice::FenceOpened { table, held, why });
    }

    /// W-15, L-07: the run stops, or starts over: fence and hold end. They end by themselves when the
    /// main stream is lost.
    pub(super) fn interrupt_holds(&mut self) {
        self.open_fence(FenceEnd::Interrupted);
        self.end_hold(false);
    }

    pub(super) fn arm_distance(&mut self) {
        let replaying = self.copies.values().any(|run| run.step == Step::Replaying);
        if replaying && self.life.is_running() {
            self.timers.set_if_unset(Wakeup::Distance, self.now.after(NOT_CONVERGING / 10));
        }
    }

    /// W-18.
    pub(super) fn distance_due(&mut self) {
        let main_at = self.main.dispatched;
        let replaying = self.copies.values().filter(|run| run.step == Step::Replaying);
        let behind: BTreeMap<_, _> = replaying
            .map(|run| {
                let at = run.stream.as_ref().map_or(run.cutoff, |stream| stream.dispatched);
                (run.table, main_at.0.bytes_past(at.0))
            })
            .collect();
        self.fence.distances.retain(|table, _| behind.contains_key(table));
        for (table, behind) in behind {
            let now = Distance { least: behind, since: self.now };
            let before = self.fence.distances.entry(table).or_insert(now);
            if behind < before.least || behind == 0 {
                *before = now;
            } else if self.now.since(before.since) >= NOT_CONVERGING {
                before.since = self.now;
                self.report(Notice::NotConverging { table, behind });
            }
        }
    }

    /// W-I2. A fence and a hold exclude each other.
    pub(super) fn check_fence(&self) {
        let Some(Closed { table, since }) = self.fence.closed else { return };
        if !self.life.moves_data() {
            return;
        }
        assert!(
            self.life.is_running(),
            "a fence is closed although the run does not stream (Q-01)"
        );
        let permit = self.hold.permit(Permit::Held);
        assert_eq!(permit, Permit::Free, "a fence in a hold (L-07)");
        let bound = self.fence.bound(table, self.config.limits.fence_ms);
        assert!(bound <= Duration::from_millis(self.config.limits.fence_ms_max), "W-16");
        let held = since.map_or(Duration::ZERO, |since| self.now.since(since));
        assert!(
            held < bound,
            "main is held for {held:?} for table {table}, at most {bound:?} (W-I2)"
        );
    }
}
