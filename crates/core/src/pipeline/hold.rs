//! The hold of a verifier (L-07): main stands at a boundary, goes on to exactly the transactions below
//! a position that the verifier chose, and stands again, so that both sides show the same.

use core::time::Duration;

use super::Pipeline;
use super::fence::Permit;
use crate::input::Request;
use crate::lsn::Position;
use crate::notice::Notice;
use crate::time::Instant;
use crate::timers::Wakeup;

#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Hold {
    #[default]
    Off,
    /// A fence is closed; hold and fence exclude each other.
    Waiting,
    /// Main goes on to the next boundary.
    Closing { until: Instant },
    /// Main stands.
    Held { until: Instant },
    /// Main goes on to what is below `to`, and what the destination took is made durable.
    Advancing { to: Position, until: Instant },
}

impl Hold {
    pub(super) const fn is_on(self) -> bool {
        !matches!(self, Self::Off)
    }

    /// What it leaves to main; `held` is the answer for a main that stands.
    pub(super) const fn permit(self, held: Permit) -> Permit {
        match self {
            Self::Off | Self::Waiting => Permit::Free,
            Self::Closing { .. } | Self::Held { .. } => held,
            Self::Advancing { to, .. } => Permit::Below(to),
        }
    }

    const fn until(self) -> Option<Instant> {
        match self {
            Self::Off | Self::Waiting => None,
            Self::Closing { until } | Self::Held { until } | Self::Advancing { until, .. } => {
                Some(until)
            }
        }
    }
}

impl<R> Pipeline<R> {
    pub(super) fn hold_requested(&mut self) {
        if !self.life.is_running() || !self.main.open {
            self.refuse(Request::Hold, "the run does not stream");
        } else if self.hold.is_on() {
            self.refuse(Request::Hold, "main is held already");
        } else {
            self.hold = Hold::Waiting;
        }
    }

    pub(super) fn advance_requested(&mut self, to: Position) {
        let request = Request::Advance(to);
        let at = self.main.dispatched;
        match self.hold {
            Hold::Held { .. } if to < at => {
                self.refuse(request, format!("main is at {at} already"));
            }
            Hold::Held { until } => self.hold = Hold::Advancing { to, until },
            Hold::Off | Hold::Waiting | Hold::Closing { .. } | Hold::Advancing { .. } => {
                self.refuse(request, "main is not held");
            }
        }
    }

    pub(super) fn release_requested(&mut self) {
        if self.hold.is_on() {
            self.end_hold(false);
        } else {
            self.refuse(Request::Release, "main is not held");
        }
    }

    /// Called when nothing else can move.
    pub(super) fn settle_hold(&mut self) -> bool {
        let expired = self.hold.until().is_some_and(|until| self.now >= until);
        if expired || (self.hold.is_on() && !self.main.open) {
            self.end_hold(expired);
            return true;
        }
        match self.hold {
            Hold::Waiting if !self.fence.is_closed() => {
                let bound = Duration::from_millis(self.config.limits.fence_ms_max);
                let until = self.now.after(bound);
                self.timers.set(Wakeup::Hold, until);
                self.hold = Hold::Closing { until };
                true
            }
            Hold::Closing { until } if !self.main.is_inside_transaction() => {
                self.hold = Hold::Held { until };
                self.report(Notice::Held { at: self.main.dispatched });
                true
            }
            Hold::Advancing { to, until } if self.has_advanced() && self.main_lane.is_settled() => {
                self.hold = Hold::Held { until };
                self.report(Notice::Advanced { to });
                true
            }
            Hold::Off
            | Hold::Waiting
            | Hold::Closing { .. }
            | Hold::Held { .. }
            | Hold::Advancing { .. } => false,
        }
    }

    /// Whether everything below the position asked for is dispatched: what it owes is to be flushed.
    pub(super) fn has_advanced(&self) -> bool {
        match self.hold {
            Hold::Advancing { to, .. } => {
                let main = &self.main;
                main.has_read(to) && !main.has_below(to) && !main.is_inside_transaction()
            }
            Hold::Off | Hold::Waiting | Hold::Closing { .. } | Hold::Held { .. } => false,
        }
    }

    /// Whether main has to ask where the server is, because nothing at or past the position was read.
    pub(super) fn hold_wants_keepalive(&self) -> bool {
        match self.hold {
            Hold::Advancing { to, .. } => !self.main.has_read(to),
            Hold::Off | Hold::Waiting | Hold::Closing { .. } | Hold::Held { .. } => false,
        }
    }

    pub(super) fn end_hold(&mut self, expired: bool) {
        if self.hold.is_on() {
            self.hold = Hold::Off;
            self.timers.clear(Wakeup::Hold);
            self.report(Notice::Released { expired });
        }
    }
}
