//! Start-up order (group U): one operation at a time, and what each step leads to. The steps U-03 to
//! U-14 are one unit, which a transient failure repeats (U-02). What the steps decide stands in
//! `identity`, `promoting`, `main_slot` and `opening`.

use std::collections::VecDeque;

use super::life::{Again, Life};
use super::opening::Opening;
use super::{NOWHERE, Pipeline, Purpose, source_fault};
use crate::config::{BLOCKER_REPORT, FIRST_CONNECT_MS, SLOT_MONITOR, Until};
use crate::effect::Work;
use crate::fault::{Fault, FaultKind};
use crate::ids::StreamId;
use crate::input::Answer;
use crate::lsn::Position;
use crate::names;
use crate::notice::Notice;
use crate::retry::{self, Decision, Place};
use crate::source::{Listing, SlotReport};
use crate::stream::Stream;
use crate::timers::Wakeup;

/// The operation that start-up waits for; saves are told apart by what they make durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StartupOp {
    /// U-05.
    Identify,
    /// P-02: the history of the timeline that the source is on.
    History { timeline: u32 },
    /// P-04: the main slot on the new timeline.
    InspectFork { timeline: u32, fork: Position },
    /// U-08: the slot of a record that has one.
    Inspect,
    /// U-09: copy slots left over by a process that died.
    ListLeftovers,
    /// U-09: one of them; the rest follows.
    DropLeftover { rest: VecDeque<String> },
    /// U-10.
    List,
    /// U-11, M-01: is there a slot of the recorded name already?
    InspectIntent,
    /// V-09, before the drop.
    CheckDrop,
    /// M-02, M-07.
    DropIntent,
    /// V-09, before the creation.
    CheckCreate,
    /// M-04.
    Create,
    /// M-09.
    EnableFailover,
    /// M-09: the property is read back.
    InspectFailover,
    ///
    InspectOpen,
    /// U-14.
    Open,
    /// U-15.
    Destination,
}

/// The save that start-up waits for (U-11, U-13, P-07, I-06).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartupSave {
    /// Save A: the intent.
    Intent,
    /// Save B: the positions of the new slot.
    Initial,
    /// P-07: the new timeline.
    Promoted { from: u32, fork: Position },
    /// Save R1: the slot is to be created again.
    Recreating,
    /// Save R2: it was.
    Recreated,
    /// Save C: the tables, and the epoch of this run.
    Reconciled,
}

impl StartupOp {
    /// What is being done, for people.
    pub(super) const fn action(&self) -> &'static str {
        match self {
            Self::Identify => "connecting to the source",
            Self::History { .. } | Self::InspectFork { .. } => "following a promotion",
            Self::Inspect | Self::InspectOpen => "checking the main slot",
            Self::ListLeftovers | Self::DropLeftover { .. } => "removing left-over copy slots",
            Self::List => "listing the publication",
            Self::CheckDrop | Self::CheckCreate => "checking the ownership of the state",
            Self::InspectIntent | Self::DropIntent | Self::Create => "creating the main slot",
            Self::EnableFailover | Self::InspectFailover => "enabling failover of the main slot",
            Self::Open => "starting the main stream",
            Self::Destination => "starting the destination",
        }
    }
}

impl<R> Pipeline<R> {
    pub(super) fn start_startup(&mut self, what: StartupOp) {
        let limits = &self.config.limits;
        let query = limits.query_ms;
        let slot = self.ledger.record().identity.slot.clone();
        let (budget, work) = match &what {
            StartupOp::Identify => {
                let first = self.ledger.persisted().is_none();
                let budget = if first { FIRST_CONNECT_MS } else { u64::MAX };
                (limits.connect_ms.min(budget), Work::Identify)
            }
            StartupOp::History { timeline } => {
                (query, Work::ReadTimelineHistory { timeline: *timeline })
            }
            StartupOp::Inspect
            | StartupOp::InspectFork { .. }
            | StartupOp::InspectIntent
            | StartupOp::InspectFailover
            | StartupOp::InspectOpen => (query, Work::InspectSlot { slot }),
            StartupOp::ListLeftovers => {
                (query, Work::ListSlots { prefix: names::copy_slot_prefix(&slot) })
            }
            StartupOp::DropLeftover { rest } => {
                let slot = rest.front().cloned().unwrap_or_default();
                (query, Work::DropSlot { slot })
            }
            StartupOp::List => (query, Work::ListPublication),
            StartupOp::CheckDrop | StartupOp::CheckCreate => (limits.store_ms, Work::CheckOwner),
            StartupOp::DropIntent => (query, Work::DropSlot { slot }),
            StartupOp::Create => {
                let budget = limits.slot_creation_ms;
                let failover = limits.policies.slot_failover;
                self.timers.set(Wakeup::Blockers, self.now.after(BLOCKER_REPORT));
                (budget, Work::CreateSlot { slot, failover })
            }
            StartupOp::EnableFailover => (query, Work::EnableFailover { slot }),
            StartupOp::Open => {
                let (session, from) = (self.main.session, self.main.started_at);
                let stream = StreamId::Main;
                (limits.connect_ms, Work::OpenStream { stream, session, slot, from })
            }
            StartupOp::Destination => {
                (limits.destination_ms, Work::Startup { pipeline: slot, epoch: self.epoch() })
            }
        };
        self.start(Purpose::Startup(what), Some(budget), work);
    }

    pub(super) fn startup_completed(
        &mut self,
        what: StartupOp,
        result: Result<Answer, Fault>,
    ) -> Result<(), ()> {
        if what == StartupOp::Create && !self.is_a_slot_created() {
            self.timers.clear(Wakeup::Blockers);
        }
        if what == StartupOp::Destination && result.is_ok() {
            self.destination_started = true;
        }
        if what == StartupOp::Open && result.is_ok() {
            self.main.open = true;
        }
        if !matches!(self.life, Life::Starting) {
            return Ok(());
        }
        let action = what.action();
        match result {
            Ok(answer) => {
                if let Err(fault) = self.startup_advanced(what, answer)? {
                    self.main_failed(action, fault);
                }
            }
            Err(fault) => self.startup_failed(&what, fault),
        }
        Ok(())
    }

    /// U-02: while there is no record a mistyped setting is seen at once. U-15 is tried again alone.
    fn startup_failed(&mut self, what: &StartupOp, fault: Fault) {
        let first = *what == StartupOp::Identify && self.ledger.persisted().is_none();
        let mistyped = matches!(fault.kind, FaultKind::Transport | FaultKind::Timeout { .. });
        let transient = retry::decide(&fault.kind, Place::Main) == Decision::Repeat;
        if first && mistyped {
            self.fail_run(what.action(), fault);
        } else if *what == StartupOp::Destination && transient {
            self.repeat_startup(what.action(), fault, Again::Destination);
        } else {
            self.main_failed(what.action(), fault);
        }
    }

    /// One step of start-up succeeded. The outer error is an answer of the wrong kind.
    fn startup_advanced(
        &mut self,
        what: StartupOp,
        answer: Answer,
    ) -> Result<Result<(), Fault>, ()> {
        Ok(match (what, answer) {
            (StartupOp::Identify, Answer::Identified(facts)) => self.identified(facts),
            (StartupOp::History { timeline }, Answer::History(history)) => {
                self.history_read(timeline, &history)
            }
            (StartupOp::InspectFork { timeline, fork }, Answer::Slot(report)) => {
                self.fork_inspected(report, timeline, fork)
            }
            (StartupOp::Inspect, Answer::Slot(report)) => self.inspected(report),
            (StartupOp::ListLeftovers, Answer::Slots(slots)) => self.leftovers_listed(slots),
            (StartupOp::DropLeftover { rest }, Answer::Done) => {
                self.leftover_dropped(rest);
                Ok(())
            }
            (StartupOp::List, Answer::Publication(listing)) => self.listed(listing),
            (StartupOp::InspectIntent, Answer::Slot(report)) => self.intent_inspected(&report),
            (StartupOp::CheckDrop, Answer::Done) => self.go_on(StartupOp::DropIntent),
            (StartupOp::DropIntent, Answer::Done) => self.go_on(StartupOp::CheckCreate),
            (StartupOp::CheckCreate, Answer::Done) => self.go_on(StartupOp::Create),
            (StartupOp::Create, Answer::Created(created)) => self.slot_created(created),
            (StartupOp::EnableFailover, Answer::Done) => self.go_on(StartupOp::InspectFailover),
            (StartupOp::InspectFailover, Answer::Slot(report)) => self.failover_enabled(report),
            (StartupOp::InspectOpen, Answer::Slot(report)) => self.ready_to_open(&report),
            (StartupOp::Open, Answer::Opened(seen)) => self.check_seen(&seen).map(|()| {
                self.main.heard = self.now;
                self.unit_completed();
            }),
            (StartupOp::Destination, Answer::Done) => {
                self.run();
                Ok(())
            }
            (
                StartupOp::Identify
                | StartupOp::History { .. }
                | StartupOp::InspectFork { .. }
                | StartupOp::Inspect
                | StartupOp::ListLeftovers
                | StartupOp::DropLeftover { .. }
                | StartupOp::List
                | StartupOp::InspectIntent
                | StartupOp::CheckDrop
                | StartupOp::DropIntent
                | StartupOp::CheckCreate
                | StartupOp::Create
                | StartupOp::EnableFailover
                | StartupOp::InspectFailover
                | StartupOp::InspectOpen
                | StartupOp::Open
                | StartupOp::Destination,
                _,
            ) => return Err(()),
        })
    }

    pub(super) fn go_on(&mut self, with: StartupOp) -> Result<(), Fault> {
        self.start_startup(with);
        Ok(())
    }

    /// A save of start-up is done: go on behind it.
    pub(super) fn startup_saved(&mut self) {
        let Life::Saving(save) = self.life else { return };
        self.life = Life::Starting;
        match save {
            StartupSave::Intent => self.start_startup(StartupOp::InspectIntent),
            StartupSave::Recreating => {
                // It is recorded: this run carries it through, whatever fails on the way.
                self.recreate_wanted = true;
                self.start_startup(StartupOp::InspectIntent);
            }
            StartupSave::Initial => self.reconcile_and_save(),
            StartupSave::Promoted { from, fork } => self.promoted(from, fork),
            StartupSave::Recreated => {
                self.recreate_wanted = false;
                self.reconcile_and_save();
            }
            StartupSave::Reconciled if self.config.until == Some(Until::Recreated) => {
                self.request_stop(true);
            }
            StartupSave::Reconciled => self.prepare_main(),
        }
    }

    pub(super) fn save_in_startup(&mut self, save: StartupSave) {
        self.life = Life::Saving(save);
        self.save();
    }

    /// U-08.
    fn inspected(&mut self, report: SlotReport) -> Result<(), Fault> {
        self.check_seen(&report.seen)?;
        if let Err(fault) = self.judge_slot(&report) {
            self.lost_in_startup(fault)?;
        }
        self.slot_report = Some(report);
        self.go_on(StartupOp::ListLeftovers)
    }

    /// U-10.
    fn listed(&mut self, listing: Option<Listing>) -> Result<(), Fault> {
        let name = self.config.publication.clone();
        let Some(listing) = listing else {
            return Err(source_fault(FaultKind::PublicationMissing { name }, ""));
        };
        if listing.tables.is_empty() {
            return Err(source_fault(FaultKind::PublicationEmpty { name }, ""));
        }
        if listing.tables.len() > crate::record::TABLES_MAX {
            let message = format!("{} tables in publication {name}", listing.tables.len());
            return Err(source_fault(FaultKind::Limit { name: "65,536 tables" }, message));
        }
        if !listing.missing_actions.is_empty() {
            let actions = listing.missing_actions.clone();
            self.report(Notice::ActionsMissing { actions });
        }
        self.listing = Some(listing);
        if self.ledger.record().initial_lsn.is_none() {
            self.save_in_startup(StartupSave::Intent);
            Ok(())
        } else if self.is_recreating() {
            self.begin_recreation();
            Ok(())
        } else {
            self.settle_failover()
        }
    }

    pub(super) fn reconcile_and_save(&mut self) {
        self.reconcile();
        self.save_in_startup(StartupSave::Reconciled);
    }

    /// U-14: all five positions at the checkpoint.
    fn prepare_main(&mut self) {
        let checkpoint = self.ledger.persisted_checkpoint().unwrap_or(NOWHERE);
        let session = self.next_session();
        self.main = Stream::new(StreamId::Main, session, checkpoint, self.now);
        self.start_startup(StartupOp::InspectOpen);
    }

    fn ready_to_open(&mut self, report: &SlotReport) -> Result<(), Fault> {
        self.busy_step = StartupOp::InspectOpen;
        match self.check_opening(report)? {
            Opening::Free => self.go_on(StartupOp::Open),
            Opening::Busy => Ok(()),
        }
    }

    /// U-15: at the first entry of the run only.
    fn unit_completed(&mut self) {
        self.main_budget.started();
        if self.destination_started {
            self.run();
        } else {
            self.start_startup(StartupOp::Destination);
        }
    }

    /// U-16.
    fn run(&mut self) {
        self.life = Life::Running;
        self.timers.set(Wakeup::Monitor, self.now.after(SLOT_MONITOR));
        self.checkpoint_saved_at = self.now;
        self.wait_for_retries();
        self.begin_adoptions();
        let (epoch, from) = (self.epoch(), self.main.started_at);
        self.report(Notice::Streaming { epoch, from });
        self.answer_waiting_requests();
        if core::mem::take(&mut self.listing_is_stale) {
            self.request_listing();
        }
        if self.recreate_wanted {
            self.leave();
        } else {
            self.settle_early_loss();
        }
    }
}
