//! Start-up order (group U), the main slot (M), and the checks before the main stream opens.
//! One operation at a time; a failure of any of them ends the run (until main retries exist, Y-02).

use core::time::Duration;
use std::collections::VecDeque;

use super::{NOWHERE, Pipeline, Purpose, source_fault};
use crate::config::{BLOCKER_REPORT, BUSY_SLOT_POLL, FIRST_CONNECT_MS, SLOT_MONITOR};
use crate::effect::Work;
use crate::fault::{Fault, FaultKind, Origin, SqlState};
use crate::ids::StreamId;
use crate::input::Answer;
use crate::lsn::Position;
use crate::names;
use crate::notice::Notice;
use crate::slot_state::{self, SlotState};
use crate::source::{CreatedSlot, Listing, ServerFacts, SlotFacts, SlotReport};
use crate::stream::Stream;
use crate::timers::Wakeup;

use super::run_end::Life;

/// The operation that start-up waits for; saves are told apart by what they make durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StartupOp {
    /// U-05.
    Identify,
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
    /// M-02, M-07.
    DropIntent,
    /// M-04.
    Create,
    ///
    InspectOpen,
    /// U-14.
    Open,
    /// U-15.
    Destination,
}

/// The save that start-up waits for (U-11, U-13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartupSave {
    /// Save A: the intent.
    Intent,
    /// Save B: the positions of the new slot.
    Initial,
    /// Save C: the tables, and the epoch of this run.
    Reconciled,
}

impl StartupOp {
    /// What is being done, for people.
    const fn action(&self) -> &'static str {
        match self {
            Self::Identify => "connecting to the source",
            Self::Inspect | Self::InspectOpen => "checking the main slot",
            Self::ListLeftovers | Self::DropLeftover { .. } => "removing left-over copy slots",
            Self::List => "listing the publication",
            Self::InspectIntent | Self::DropIntent | Self::Create => "creating the main slot",
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
            StartupOp::Inspect | StartupOp::InspectIntent | StartupOp::InspectOpen => {
                (query, Work::InspectSlot { slot })
            }
            StartupOp::ListLeftovers => {
                (query, Work::ListSlots { prefix: names::copy_slot_prefix(&slot) })
            }
            StartupOp::DropLeftover { rest } => {
                let slot = rest.front().cloned().unwrap_or_default();
                (query, Work::DropSlot { slot })
            }
            StartupOp::List => (query, Work::ListPublication),
            StartupOp::DropIntent => (query, Work::DropSlot { slot }),
            StartupOp::Create => {
                let budget = limits.slot_creation_ms;
                self.timers.set(Wakeup::Blockers, self.now.after(BLOCKER_REPORT));
                (budget, Work::CreateSlot { slot, failover: false })
            }
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
        if what == StartupOp::Create {
            self.timers.clear(Wakeup::Blockers);
        }
        if what == StartupOp::Destination && result.is_ok() {
            self.destination_started = true;
        }
        if what == StartupOp::Open && result.is_ok() {
            self.main.open = true;
        }
        if self.life.is_stopping() {
            return Ok(());
        }
        let answer = match result {
            Ok(answer) => answer,
            Err(fault) => {
                self.fail_run(what.action(), fault);
                return Ok(());
            }
        };
        let action = what.action();
        let step = match (what, answer) {
            (StartupOp::Identify, Answer::Identified(facts)) => self.identified(facts),
            (StartupOp::Inspect, Answer::Slot(report)) => self.inspected(&report),
            (StartupOp::ListLeftovers, Answer::Slots(slots)) => self.leftovers_listed(slots),
            (StartupOp::DropLeftover { rest }, Answer::Done) => self.leftover_dropped(rest),
            (StartupOp::List, Answer::Publication(listing)) => self.listed(listing),
            (StartupOp::InspectIntent, Answer::Slot(report)) => self.intent_inspected(&report),
            (StartupOp::DropIntent, Answer::Done) => {
                self.start_startup(StartupOp::Create);
                Ok(())
            }
            (StartupOp::Create, Answer::Created(created)) => self.slot_created(created),
            (StartupOp::InspectOpen, Answer::Slot(report)) => self.ready_to_open(&report),
            (StartupOp::Open, Answer::Opened(seen)) => self.check_seen(&seen).map(|()| {
                self.main.heard = self.now;
                self.start_startup(StartupOp::Destination);
            }),
            (StartupOp::Destination, Answer::Done) => {
                self.run();
                Ok(())
            }
            (
                StartupOp::Identify
                | StartupOp::Inspect
                | StartupOp::ListLeftovers
                | StartupOp::DropLeftover { .. }
                | StartupOp::List
                | StartupOp::InspectIntent
                | StartupOp::DropIntent
                | StartupOp::Create
                | StartupOp::InspectOpen
                | StartupOp::Open
                | StartupOp::Destination,
                _,
            ) => return Err(()),
        };
        if let Err(fault) = step {
            self.fail_run(action, fault);
        }
        Ok(())
    }

    /// A save of start-up is done: go on behind it.
    pub(super) fn startup_saved(&mut self) {
        let Life::Saving(save) = self.life else { return };
        self.life = Life::Starting;
        match save {
            StartupSave::Intent => self.start_startup(StartupOp::InspectIntent),
            StartupSave::Initial => self.reconcile_and_save(),
            StartupSave::Reconciled => self.prepare_main(),
        }
    }

    fn save_in_startup(&mut self, save: StartupSave) {
        self.life = Life::Saving(save);
        self.save();
    }

    /// S-04, with the timeline last (failover off, U-06).
    fn identified(&mut self, facts: ServerFacts) -> Result<(), Fault> {
        let record = self.ledger.record();
        let mismatch = |field, expected: &str, found: &str| {
            let (expected, found) = (expected.to_owned(), found.to_owned());
            source_fault(FaultKind::IdentityMismatch { field, expected, found }, "")
        };
        if record.destination_id != self.config.destination.id && record.attempt_seq > 0 {
            let found = &self.config.destination.id;
            return Err(mismatch("destination", &record.destination_id, found));
        }
        if record.slot_prefix != self.config.limits.slot_prefix {
            let found = &self.config.limits.slot_prefix;
            return Err(mismatch("slot_prefix", &record.slot_prefix, found));
        }
        if record.identity.publication != self.config.publication {
            let found = &self.config.publication;
            return Err(mismatch("publication", &record.identity.publication, found));
        }
        if facts.seen.database != self.config.database {
            return Err(mismatch("database", &self.config.database, &facts.seen.database));
        }
        if facts.in_recovery {
            let kind = FaultKind::Server { code: SqlState(*b"57P03") };
            return Err(source_fault(kind, "the source is a standby, or still recovering"));
        }
        if facts.wal_level != "logical" {
            let kind = FaultKind::Configuration {
                setting: "wal_level",
                expected: "logical".to_owned(),
                found: facts.wal_level,
            };
            return Err(source_fault(kind, ""));
        }
        self.adopt_or_compare_identity(&facts)?;
        self.adopt_destination();
        self.report(Notice::SourceIdentified {
            version: facts.version,
            timeline: facts.seen.timeline,
        });
        if !facts.copy_slot_risks.is_empty() {
            self.report(Notice::CopySlotAtRisk { settings: facts.copy_slot_risks });
        }
        self.idle_slot_timeout = facts.idle_slot_timeout;
        self.seen = Some(facts.seen);
        let has_slot = self.ledger.record().initial_lsn.is_some();
        self.start_startup(if has_slot { StartupOp::Inspect } else { StartupOp::ListLeftovers });
        Ok(())
    }

    /// S-04: until an attempt has begun nothing was offered to any destination, so another one may
    /// take its place: a mistyped one can be put right.
    fn adopt_destination(&mut self) {
        let id = self.config.destination.id.clone();
        if self.ledger.record().destination_id != id {
            self.ledger.edit_head(|record| record.destination_id = id);
        }
    }

    fn adopt_or_compare_identity(&mut self, facts: &ServerFacts) -> Result<(), Fault> {
        let identity = &self.ledger.record().identity;
        if self.ledger.persisted().is_none() {
            let seen = facts.seen.clone();
            self.ledger.edit_head(|record| {
                record.identity.system_id = seen.system_id;
                record.identity.timeline = seen.timeline;
            });
            return Ok(());
        }
        let recorded = crate::source::SourceSeen {
            system_id: identity.system_id.clone(),
            timeline: identity.timeline,
            database: identity.database.clone(),
        };
        slot_state::differs(&recorded, &facts.seen)
            .map_or(Ok(()), |kind| Err(source_fault(kind, "")))
    }

    /// S-06: every further connection must reach the run's source.
    pub(super) fn check_seen(&self, found: &crate::source::SourceSeen) -> Result<(), Fault> {
        let differs = self.seen.as_ref().and_then(|seen| slot_state::differs(seen, found));
        differs.map_or(Ok(()), |kind| Err(source_fault(kind, "")))
    }

    /// U-08.
    fn inspected(&mut self, report: &SlotReport) -> Result<(), Fault> {
        self.check_seen(&report.seen)?;
        self.judge_slot(report)?;
        self.start_startup(StartupOp::ListLeftovers);
        Ok(())
    }

    pub(super) fn judge_slot(&self, report: &SlotReport) -> Result<(), Fault> {
        let record = self.ledger.record();
        let (slot, database) = (&record.identity.slot, &record.identity.database);
        let checkpoint = self.ledger.persisted_checkpoint().unwrap_or(NOWHERE);
        match slot_state::inspect(slot, database, report.slot.as_ref(), checkpoint) {
            SlotState::Healthy => Ok(()),
            SlotState::Unusable(kind) => Err(source_fault(kind, "")),
        }
    }

    /// U-09, K-07: those of this main slot are dropped once they are inactive, foreign ones stay.
    fn leftovers_listed(&mut self, slots: Vec<SlotFacts>) -> Result<(), Fault> {
        let database = self.config.database.clone();
        let prefix = names::copy_slot_prefix(&self.main_slot());
        let ours = slots.into_iter().filter(|slot| slot.name.starts_with(&prefix));
        let mut inactive = VecDeque::new();
        let mut busy = None;
        for slot in ours {
            if slot_state::foreign(&slot, &database).is_some() {
                self.report(Notice::ForeignSlotLeft { slot: slot.name });
            } else if slot.active.is_some() {
                busy = Some(slot);
            } else {
                inactive.push_back(slot.name);
            }
        }
        if !inactive.is_empty() {
            self.start_startup(StartupOp::DropLeftover { rest: inactive });
            Ok(())
        } else if let Some(slot) = busy {
            self.wait_for_busy_slot(&slot)
        } else {
            self.busy_since = None;
            self.start_startup(StartupOp::List);
            Ok(())
        }
    }

    fn leftover_dropped(&mut self, mut rest: VecDeque<String>) -> Result<(), Fault> {
        rest.pop_front();
        self.start_startup(if rest.is_empty() {
            StartupOp::ListLeftovers
        } else {
            StartupOp::DropLeftover { rest }
        });
        Ok(())
    }

    /// M-01: a slot held by another session is looked at again and again; its holder is named and
    /// never ended.
    fn wait_for_busy_slot(&mut self, slot: &SlotFacts) -> Result<(), Fault> {
        let budget = Duration::from_millis(self.config.limits.slot_busy_ms);
        let since = *self.busy_since.get_or_insert(self.now);
        let holder = slot.active.clone();
        if self.now.since(since) >= budget {
            let who = holder.map_or_else(String::new, |holder| {
                format!(" by pid {} ({})", holder.pid, holder.application)
            });
            let message = format!("replication slot {} is held{who}", slot.name);
            return Err(source_fault(FaultKind::Timeout { budget }, message));
        }
        if let Some(holder) = holder.filter(|_| since == self.now) {
            self.report(Notice::SlotBusy { slot: slot.name.clone(), holder });
        }
        self.timers.set(Wakeup::BusySlot, self.now.after(BUSY_SLOT_POLL));
        Ok(())
    }

    pub(super) fn look_at_busy_slot(&mut self) {
        if self.life.is_stopping() {
            return;
        }
        let has_main = self.main.session.0 > 0;
        self.start_startup(if has_main {
            StartupOp::InspectOpen
        } else if self.listing.is_some() {
            StartupOp::InspectIntent
        } else {
            StartupOp::ListLeftovers
        });
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
        if self.ledger.record().initial_lsn.is_some() {
            self.reconcile_and_save();
        } else {
            self.save_in_startup(StartupSave::Intent);
        }
        Ok(())
    }

    /// M-01, M-02, M-07: the name was random and saved first, so a slot of it is ours to replace.
    fn intent_inspected(&mut self, report: &SlotReport) -> Result<(), Fault> {
        self.check_seen(&report.seen)?;
        let Some(slot) = &report.slot else {
            self.busy_since = None;
            self.start_startup(StartupOp::Create);
            return Ok(());
        };
        if let Some(kind) = slot_state::foreign(slot, &self.config.database) {
            return Err(source_fault(kind, ""));
        }
        if slot.active.is_some() {
            return self.wait_for_busy_slot(slot);
        }
        self.busy_since = None;
        self.start_startup(StartupOp::DropIntent);
        Ok(())
    }

    /// M-06: who keeps slot creation waiting.
    pub(super) fn look_at_blockers(&mut self) {
        let creating = Purpose::Startup(StartupOp::Create);
        if self.pending.values().any(|purpose| *purpose == creating) {
            let (slot, budget) = (self.main_slot(), Some(self.config.limits.query_ms));
            self.start(Purpose::Blockers, budget, Work::ReadBlockers { slot });
            self.timers.set(Wakeup::Blockers, self.now.after(BLOCKER_REPORT));
        }
    }

    pub(super) fn blockers_completed(&mut self, result: Result<Answer, Fault>) -> Result<(), ()> {
        match result {
            Ok(Answer::Blockers(blockers)) if blockers.is_empty() => Ok(()),
            Ok(Answer::Blockers(blockers)) => {
                let slot = self.main_slot();
                self.report(Notice::SlotCreationWaits { slot, blockers });
                Ok(())
            }
            Ok(_) => Err(()),
            Err(fault) => {
                self.report(Notice::SideTaskFailed { task: "blockers of slot creation", fault });
                Ok(())
            }
        }
    }

    /// M-05.
    fn slot_created(&mut self, created: CreatedSlot) -> Result<(), Fault> {
        check_created(&created, &self.main_slot())?;
        let initial = created.consistent;
        self.ledger.edit_head(|record| {
            record.initial_lsn = Some(initial);
            record.checkpoint = Some(initial);
        });
        self.report(Notice::MainSlotCreated { slot: created.slot, initial });
        self.save_in_startup(StartupSave::Initial);
        Ok(())
    }

    fn reconcile_and_save(&mut self) {
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

    /// everything that must hold before the main stream opens.
    fn ready_to_open(&mut self, report: &SlotReport) -> Result<(), Fault> {
        self.check_seen(&report.seen)?;
        self.judge_slot(report)?;
        let checkpoint = self.main.started_at;
        if report.wal_end < checkpoint.0 {
            let kind = FaultKind::CheckpointAhead { found: report.wal_end, checkpoint };
            return Err(source_fault(kind, ""));
        }
        let listed = self.listing.as_ref().map(|listing| listing.publication);
        if report.publication.is_none() || report.publication != listed {
            let name = self.config.publication.clone();
            return Err(source_fault(FaultKind::PublicationMissing { name }, ""));
        }
        if let Some(slot) = report.slot.as_ref().filter(|slot| slot.active.is_some()) {
            return self.wait_for_busy_slot(slot);
        }
        self.busy_since = None;
        self.start_startup(StartupOp::Open);
        Ok(())
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
    }
}

/// M-05, K-09: the answer names what was asked for.
pub(super) fn check_created(created: &CreatedSlot, slot: &str) -> Result<Position, Fault> {
    if created.slot == slot && created.plugin == "pgoutput" && created.consistent > NOWHERE {
        return Ok(created.consistent);
    }
    let message = format!(
        "asked for slot {slot} with pgoutput, the server made {} with {} at {}",
        created.slot, created.plugin, created.consistent
    );
    Err(Fault::new(Origin::Source, FaultKind::Protocol, message))
}
