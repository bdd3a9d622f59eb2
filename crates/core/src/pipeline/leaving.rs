//! Before start-up is entered again in the same run (U-00): copies end without blame, dispatch
//! stops, the main lane completes and is flushed, the record is saved with the exact horizon, and the
//! destination stays. Entered by a promotion (P-11), a lost slot (I-03) and the operator.

use super::life::Life;
use super::listing::Listings;
use super::{Pipeline, Purpose};
use crate::effect::{Effect, Work};
use crate::fault::Fault;
use crate::ids::Lane;
use crate::lane::LaneState;
use crate::notice::Notice;
use crate::policies::SlotLoss;
use crate::timers::Wakeup;

/// What runs comes to an end; what is still outstanding is seen from the parts themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leaving;

impl<R> Pipeline<R> {
    /// I-01, I-03: the policy decides whether a lost main slot ends the run.
    pub(super) fn slot_lost(&mut self, action: &'static str, fault: Fault) {
        match self.config.limits.policies.slot_loss {
            SlotLoss::Reject => self.fail_run(action, fault),
            SlotLoss::Recreate => {
                // Start-up finds the loss again and decides (U-08).
                self.report(Notice::SlotLost { kind: fault.kind.clone() });
                self.start_over(action, fault);
            }
        }
    }

    /// S-07, P-11.
    pub(super) fn timeline_changed(&mut self, action: &'static str, fault: Fault) {
        if self.config.limits.policies.slot_failover {
            self.start_over(action, fault);
        } else {
            self.fail_run(action, fault);
        }
    }

    /// Leads back to U-02, from wherever the run stands.
    fn start_over(&mut self, action: &'static str, fault: Fault) {
        match self.life {
            Life::Running | Life::Reopening(_) => self.leave(),
            Life::Starting | Life::Saving(_) => self.repeat_main(action, fault),
            Life::Stopping(_) => self.fail_run(action, fault),
            Life::Waiting(_) | Life::Leaving(_) | Life::Failing(_) | Life::Ended => (),
        }
    }

    /// The operator's `recreate` (I-01): at once while running, else when start-up comes to it.
    pub(super) fn request_recreate(&mut self) -> Result<(), &'static str> {
        match self.life {
            Life::Running | Life::Reopening(_) => {
                self.recreate_wanted = true;
                self.leave();
                Ok(())
            }
            Life::Starting | Life::Saving(_) | Life::Waiting(_) | Life::Leaving(_) => {
                self.recreate_wanted = true;
                Ok(())
            }
            Life::Stopping(_) | Life::Failing(_) | Life::Ended => Err("the run is ending"),
        }
    }

    pub(super) fn leave(&mut self) {
        self.life = Life::Leaving(Leaving);
        self.interrupt_main();
        self.cancel_side_work();
        self.timers.clear_all_but_copies();
        self.close_main();
        self.main.queue.clear();
        self.main_lane.drop_waiting();
        self.end_attempts_for_stop();
    }

    /// Work beside the streams and lanes ends: nobody will need its answer.
    pub(super) fn cancel_side_work(&mut self) {
        // What is read may be drained, and that may need the answer.
        let dispatches = self.life.moves_data();
        for (&op, purpose) in &self.pending {
            let cancel = match purpose {
                Purpose::Startup(what) => *what != super::startup::StartupOp::Destination,
                Purpose::Blockers { .. }
                | Purpose::Monitor
                | Purpose::Listing
                | Purpose::DropLeft { .. }
                | Purpose::Heartbeat { .. }
                | Purpose::UntilTarget
                | Purpose::Reopen(_)
                | Purpose::NameCause(_) => true,
                Purpose::DescribeMain { .. } => !dispatches,
                Purpose::Save
                | Purpose::WriteMain
                | Purpose::FlushMain
                | Purpose::CloseMain
                | Purpose::Shutdown
                | Purpose::Attempt { .. } => false,
            };
            if cancel {
                self.effects.push_back(Effect::Cancel { op });
            }
        }
    }

    pub(super) fn settle_leaving(&mut self) -> bool {
        let Life::Leaving(_) = self.life else { return false };
        if self.is_main_at_work() {
            return false;
        }
        if self.main_lane.has_debt() {
            return self.start_main_flush();
        }
        let quiet = self.pending.is_empty() && self.copies.is_empty();
        if quiet && !self.ledger.is_dirty() && !self.ledger.is_saving() {
            self.is_entered_again = true;
            self.enter_startup();
            return true;
        }
        false
    }

    pub(super) fn start_main_flush(&mut self) -> bool {
        if !self.turns.enter(Lane::Main) {
            return false;
        }
        self.main_lane.begin_flush();
        let budget = Some(self.config.limits.destination_ms);
        self.start(Purpose::FlushMain, budget, Work::Flush { lane: Lane::Main });
        true
    }

    /// U-02, U-04: everything of an earlier pass is forgotten but the record that is persisted.
    pub(super) fn enter_startup(&mut self) {
        let (intent, epoch) = (super::intent(&self.config, &self.seed), self.run_epoch);
        self.ledger.start_over(intent, epoch);
        self.life = Life::Starting;
        self.jobs.clear();
        self.owned.clear();
        self.catchup.clear();
        self.describing = None;
        self.changing.clear();
        self.main_lane = LaneState::default();
        self.turns.forget(Lane::Main);
        self.seen = None;
        self.listing = None;
        self.listings = Listings::default();
        self.listing_is_stale = false;
        self.left_slots.clear();
        self.slot_report = None;
        self.busy_since = None;
        self.lost_early = None;
        self.recreate_decided = false;
        self.timers.clear(Wakeup::MainRetry);
        self.start_startup(super::startup::StartupOp::Identify);
    }
}
