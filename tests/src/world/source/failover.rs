//! Crash, standby and promotion: what a server forgets (PG-07), and where timelines part
//! (PG-34, PG-38, PG-39).

use core::time::Duration;

use walferry_core::lsn::Position;
use walferry_core::source::TimelineSwitch;

use super::Source;

impl Source {
    /// The server dies and comes back after a while: connections and running transactions are gone,
    /// slots are where they were on disk.
    pub fn crash(&mut self, down: Duration) {
        self.lose_connections();
        for slot in self.slots.values_mut() {
            slot.confirmed = slot.on_disk;
        }
        self.down_until = Some(self.now.after(down));
    }

    fn lose_connections(&mut self) {
        self.disconnect_all();
        self.open.clear();
        for slot in self.slots.values_mut() {
            slot.held_until = None;
        }
    }

    /// The standby has replayed everything up to here and synchronised the failover slots, but for
    /// those that are not `ready` (PG-34).
    pub fn replicate(&mut self, ready: bool) {
        if self.version < 170_000 || self.is_left_behind() {
            return;
        }
        let mut standby = self.clone();
        standby.standby = None;
        standby.lose_connections();
        standby.slots.retain(|_, slot| ready && slot.failover && !slot.temporary);
        self.standby = Some(Box::new(standby));
    }

    /// Whether there is something to promote.
    #[must_use]
    pub const fn has_standby(&self) -> bool {
        self.standby.is_some()
    }

    /// The standby takes over; what it had not replayed is gone. Where the timelines part.
    pub fn promote(&mut self) -> Option<Position> {
        let mut next = *self.standby.take()?;
        // Two servers that are promoted apart never share a number here, though nothing forbids it.
        let other = self.old.as_ref().map_or(0, |old| old.timeline);
        next.timeline = self.timeline.max(other) + 1;
        next.switches.clone_from(&self.switches);
        let fork = next.head;
        next.switches.push(TimelineSwitch { parent: self.timeline, at: fork });
        next.unpublished(1);
        (next.last_value, next.last_xid) = (self.last_value, self.last_xid);
        (next.last_oid, next.now) = (self.last_oid, self.now);
        next.down_until = None;
        let mut old = core::mem::replace(self, next);
        old.lose_connections();
        self.old = Some(Box::new(old));
        Some(fork)
    }

    /// Connections reach the primary from before the promotion, or the one behind it again.
    pub fn visit_old_primary(&mut self) -> bool {
        let Some(old) = self.old.take() else { return false };
        let mut present = core::mem::replace(self, *old);
        present.disconnect_all();
        self.now = present.now;
        (self.last_value, self.last_oid) =
            (self.last_value.max(present.last_value), self.last_oid.max(present.last_oid));
        present.old = self.old.take();
        self.old = Some(Box::new(present));
        true
    }

    /// The server of a timeline, also one that was left behind.
    #[must_use]
    pub fn on_timeline(&self, timeline: u32) -> Option<&Self> {
        if self.timeline == timeline {
            return Some(self);
        }
        self.old.as_ref().and_then(|old| old.on_timeline(timeline))
    }

    /// Whether connections reach a primary that was left behind by a promotion.
    #[must_use]
    pub fn is_left_behind(&self) -> bool {
        self.old.as_ref().is_some_and(|other| other.timeline > self.timeline)
    }
}
