//! The law and its companions, from the picture that a pipeline gives of itself after every input.

use core::time::Duration;
use std::collections::BTreeMap;

use walferry_core::config::Limits;
use walferry_core::ids::{Lane, TableId};
use walferry_core::lsn::Position;
use walferry_core::record::Record;
use walferry_core::time::Instant;
use walferry_core::view::{Positions, View};

use super::fences::FenceWatch;
use super::lanes::LaneWatch;
use crate::coverage::reached;
use crate::world::source::Source;

/// What a judge remembers of one process.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// Positions seen last, and the session they belong to.
    last: Positions,
    /// How often the main stream was opened.
    pub(in crate::world) openings: u64,
    seen_opening: Option<u64>,
    /// Where the main stream was opened last.
    pub(in crate::world) opened_at: Option<Position>,
    /// Whether the source was identified (S-I1).
    pub(in crate::world) identified: bool,
    /// Whether ownership was checked since the last drop or creation of the main slot (V-09).
    pub(in crate::world) checked_owner: bool,
    /// Whether the main slot was inspected or made (L-I2).
    pub(in crate::world) inspected: bool,
    /// Whether the reconciled record was saved (U-I1).
    pub(in crate::world) reconciled: bool,
    /// Whether `startup` has succeeded (L-I2).
    pub(in crate::world) started: bool,
    /// The highest value that the main lane offered (X-I1).
    pub(in crate::world) offered: Option<Position>,
    /// Whether the fence was closed when faults and load had ended.
    pub(in crate::world) fence_in_peace: bool,
    /// A table that was adopted with a gap, until the gap is reported (O-10).
    pub(in crate::world) gap: Option<TableId>,
    /// The closed fence, and how long each table may hold one.
    pub(in crate::world) fences: FenceWatch,
    /// Order of what each lane was offered.
    pub(in crate::world) lanes: BTreeMap<Lane, LaneWatch>,
    /// The record as it was when the source was asked last who it is (P-I4).
    pub(in crate::world) at_identify: Option<Record>,
    /// When a stop was asked for, and whether a copy ran then (L-I3, Q-I3).
    pub(in crate::world) stop: Option<(Instant, bool)>,
    /// What was done last on the way back to a running stream.
    pub(in crate::world) last_step: Step,
    /// Whether the core waits before it tries again.
    pub(in crate::world) retrying: bool,
    /// Whether the main slot was found lost in this process, and where the run stood then.
    pub(in crate::world) slot_lost: bool,
}

/// The last step of a run that leaves no other trace outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::world) enum Step {
    /// None of the others.
    #[default]
    Other,
    /// Save R2 is done and the stream not open yet.
    CreatedAgain,
    /// The save of P-07 is done and the stream not open yet.
    Followed,
    /// Main was flushed; the checkpoint that this allows is not saved.
    Flushed,
}

impl Watch {
    /// Judges a picture.
    ///
    /// # Panics
    /// If a position went back within a session, passes the next one, or too much is held.
    pub fn judge(&mut self, view: &View, limits: &Limits, event_bytes: u64) {
        if view.lifecycle == "running" {
            self.judge_running();
        }
        if !matches!(view.lifecycle, "running" | "stopping") {
            // What follows a re-opening is another session, also if the run stops before it.
            self.seen_opening = None;
            return;
        }
        let at = view.positions;
        if view.lifecycle == "running" && self.openings > 0 {
            let law = at.confirmed <= at.checkpoint
                && at.checkpoint <= at.frontier
                && at.frontier <= at.dispatched
                && at.dispatched <= at.received;
            assert!(law, "the law is broken (O-4): {at:?}");
            reached("O-4");
            if at.dispatched < at.received {
                reached("A-I1");
            }
        }
        if self.seen_opening == Some(self.openings) {
            let last = self.last;
            let grown = last.frontier <= at.frontier
                && last.dispatched <= at.dispatched
                && last.received <= at.received;
            assert!(grown, "a position went back (A-I1): {last:?} to {at:?}");
        }
        (self.last, self.seen_opening) = (at, Some(self.openings));
        let copies = view.tables.iter().filter(|table| table.copy.is_some()).count() as u64;
        let most = limits.memory_bytes + (1 + copies) * event_bytes;
        assert!(view.held_bytes <= most, "{} bytes are held, of {most} (B-I3)", view.held_bytes);
        if view.held_bytes > limits.memory_bytes / 2 {
            reached("B-I3");
        }
        assert!(copies <= limits.copy_concurrency, "{copies} copies at a time (K-I4)");
        if copies > 0 {
            reached("K-I4");
            reached("Y-I2");
        }
    }

    /// L-I2.
    fn judge_running(&self) {
        assert!(self.inspected, "running before the slot was looked at (L-I2)");
        assert!(self.reconciled, "running before save C (L-I2)");
        assert!(self.started, "running before startup (L-I2)");
        reached("L-I2");
    }

    /// X-I3: a transaction that main has dispatched in part holds the frontier back.
    ///
    /// # Panics
    /// If it does not.
    pub(in crate::world) fn judge_frontier(&self, view: &View, source: &Source) {
        // In a stop that began in a re-entry the positions are those of an earlier session.
        if view.lifecycle != "running" || self.seen_opening != Some(self.openings) {
            return;
        }
        let at = self.last;
        let Some(partly) = source.transaction_around(at.dispatched) else { return };
        let commit = Position(partly.commit.0);
        assert!(at.frontier <= commit, "{} is inside {commit} (X-I3)", at.frontier);
        assert!(at.checkpoint <= commit, "{} is inside {commit} (X-I3)", at.checkpoint);
        reached("X-I3");
    }

    /// Positions before the input that is being handled, if main streams.
    pub(in crate::world) fn before(&self) -> Option<Positions> {
        (self.seen_opening == Some(self.openings)).then_some(self.last)
    }

    /// L-I3: a stop ends within its budget; `late` is how late the core was woken.
    ///
    /// # Panics
    /// If it lasts longer.
    pub(in crate::world) fn judge_stop(&self, now: Instant, limits: &Limits, late: Duration) {
        if let Some((since, _)) = self.stop {
            let (took, most) = (now.since(since), Duration::from_millis(limits.stop_ms) + late);
            assert!(took <= most, "the stop takes {took:?}, of {most:?} (L-I3)");
        }
    }

    /// Whether a fence is closed, and for whom.
    pub(in crate::world) const fn fence(&self) -> Option<TableId> {
        self.fences.closed_for()
    }
}
