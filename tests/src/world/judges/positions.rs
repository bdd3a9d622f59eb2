//! The law and its companions, from the picture that a pipeline gives of itself after every input.

use walferry_core::config::Limits;
use walferry_core::ids::TableId;
use walferry_core::lsn::Position;
use walferry_core::view::{Positions, View};

use crate::coverage::reached;

/// What a judge remembers of one process.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// Positions seen last, and the session they belong to.
    last: Positions,
    /// How often the main stream was opened.
    pub(in crate::world) openings: u64,
    seen_opening: Option<u64>,
    /// Whether the source was identified (S-I1).
    pub(in crate::world) identified: bool,
    /// Whether ownership was checked since the last drop or creation of the main slot (V-09).
    pub(in crate::world) checked_owner: bool,
    /// Whether the reconciled record was saved (U-I1).
    pub(in crate::world) reconciled: bool,
    /// The highest value that the main lane offered (X-I1).
    pub(in crate::world) offered: Option<Position>,
    /// The table that a closed fence is for.
    pub(in crate::world) fence: Option<TableId>,
    /// Whether it was closed when faults and load had ended.
    pub(in crate::world) fence_in_peace: bool,
    /// A table that was adopted with a gap, until the gap is reported (O-10).
    pub(in crate::world) gap: Option<TableId>,
}

impl Watch {
    /// Judges a picture.
    ///
    /// # Panics
    /// If a position went back within a session, passes the next one, or too much is held.
    pub fn judge(&mut self, view: &View, limits: &Limits, event_bytes: u64) {
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
}
