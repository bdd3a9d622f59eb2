//! The state machine: routes inputs, settles what they make possible, and holds no rule of its own.
//! Each rule stands in the file of its group beside this one.

mod adopt;
mod attempt;
mod attempt_steps;
mod copy_monitor;
mod copy_slot;
mod feedback;
mod fence;
mod handover;
mod health;
mod heartbeat;
mod hold;
mod horizon;
mod identity;
mod invariants;
mod jobs;
mod leaving;
mod life;
mod listing;
mod main_retry;
mod main_slot;
mod main_stream;
mod opening;
mod operator;
mod picture;
mod promoting;
mod quarantine;
mod readers;
mod reopen;
mod replay;
mod rows;
mod run_end;
mod saving;
mod schema;
mod startup;
mod stop;
mod tables;
#[cfg(test)]
mod tests;
mod until;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use core::time::Duration;

use crate::batch::Batch;
use crate::config::{Config, ConfigError, Until};
use crate::effect::{Effect, Work};
use crate::fault::{Fault, FaultKind, Origin};
use crate::ids::{Attempt, Epoch, OpId, Session, StreamId, TableId};
use crate::input::{Answer, Input, Request};
use crate::lane::LaneState;
use crate::ledger::{Ledger, Version};
use crate::lsn::{Lsn, Position};
use crate::main_budget::MainBudget;
use crate::names;
use crate::notice::Notice;
use crate::projection::Owned;
use crate::record::{FORMAT, Identity, Record};
use crate::source::{Listing, SlotReport, SourceSeen};
use crate::stream::{Gate, Stream};
use crate::time::Instant;
use crate::timers::{Timers, Wakeup};
use crate::turns::Turns;
use crate::violation::Violation;

use adopt::Adoptions;
use attempt::CopyRun;
use attempt_steps::{AttemptOp, Step};
use fence::Fences;
use health::Health;
use heartbeat::Heartbeats;
use hold::Hold;
use life::Life;
use listing::Listings;
use quarantine::MainWrites;
use reopen::ReopenOp;
use startup::StartupOp;
use until::UntilState;

/// 32 bytes from a secure random source: the first 12 name the main slot of a new pipeline (N-01),
/// the rest spreads the delays of retries (Y-08).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed(pub [u8; 32]);

impl Seed {
    fn nonce(&self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce.copy_from_slice(&self.0[..12]);
        nonce
    }

    fn random(&self) -> &[u8] {
        &self.0[12..]
    }
}

/// What an outstanding operation is for.
#[derive(Clone, Debug, PartialEq)]
enum Purpose {
    Save,
    Startup(StartupOp),
    Blockers {
        slot: String,
    },
    /// A step of the opening of a main stream that was lost.
    Reopen(ReopenOp),
    Monitor,
    /// K-05: a copy slot that could not be removed.
    DropLeft {
        table: TableId,
    },
    Listing,
    Heartbeat {
        written: Instant,
    },
    UntilTarget,
    /// One inspection that names the cause of a failed main stream (Y-02).
    NameCause(Fault),
    /// The catalog explains the shape of a row on main (D-08).
    DescribeMain {
        session: Session,
        table: TableId,
    },
    WriteMain,
    FlushMain,
    CloseMain,
    Shutdown,
    Attempt {
        table: TableId,
        number: Attempt,
        what: AttemptOp,
    },
}

/// One pipeline. `R` is the row as the driver holds it; the core never looks inside.
#[derive(Debug)]
pub struct Pipeline<R> {
    config: Config,
    seed: Seed,
    now: Instant,
    life: Life,
    broken: bool,

    last_op: u64,
    pending: BTreeMap<OpId, Purpose>,
    effects: VecDeque<Effect<R>>,
    timers: Timers,
    turns: Turns,

    ledger: Ledger,
    /// Who the source is, once it was identified in this run (S-06).
    seen: Option<SourceSeen>,
    listing: Option<Listing>,
    listings: Listings,
    /// The publication was made anew since the last listing (T-11).
    listing_is_stale: bool,
    /// When a busy slot was first seen busy (M-01).
    busy_since: Option<Instant>,
    /// The step of start-up that looks at it again.
    busy_step: StartupOp,
    /// The main slot as start-up found it (U-08).
    slot_report: Option<SlotReport>,
    /// The operator wants the main slot created again.
    recreate_wanted: bool,
    /// This pass of start-up has decided so: its slot is lost, or a promotion may have lost events.
    recreate_decided: bool,
    /// Start-up was entered again in this run (U-00).
    is_entered_again: bool,
    /// Ownership number of this run.
    run_epoch: Epoch,
    /// The main stream was lost before the run was Running.
    lost_early: Option<Fault>,
    /// The maximum ever offered on main, as far as the record knew at start.
    horizon_offered: Option<Position>,

    last_session: u64,
    main: Stream<R>,
    main_lane: LaneState<R>,
    /// Tables in Catchup and Ready: whose changes pass on main (J).
    owned: BTreeMap<TableId, Owned>,
    /// Tables in Catchup and their handovers (H-07).
    catchup: BTreeMap<TableId, Position>,
    /// Failed writes of the main lane.
    main_writes: MainWrites,
    /// Copies a batch that is offered again while the driver still holds it.
    copy_batch: fn(&Batch<R>) -> Batch<R>,
    fence: Fences,
    hold: Hold,
    /// The table whose catalog read main dispatch waits for, in that session (D-08).
    describing: Option<(Session, TableId)>,
    /// Owned tables with more than one schema (D-02).
    changing: BTreeSet<TableId>,
    /// When the checkpoint was saved last.
    checkpoint_saved_at: Instant,

    /// Tables to copy, oldest first, each with the state of the record that must be saved before.
    jobs: VecDeque<(TableId, Version)>,
    copies: BTreeMap<TableId, CopyRun<R>>,
    /// How often in a row the rewrite guard ended an attempt (K-27).
    guard_repeats: BTreeMap<TableId, u32>,
    /// Requests about tables that wait for the run to be Running (Y-09).
    waiting_requests: Vec<(Request, TableId)>,
    adoptions: Adoptions,
    /// Tables whose persistent copy slot could not be removed (K-05).
    left_slots: BTreeSet<TableId>,
    /// Whether the server ends a slot that no session streams from (K-29).
    idle_slot_timeout: bool,
    /// End of the server's WAL as the monitor saw it last (K-22).
    wal_end: Option<Lsn>,

    main_budget: MainBudget,
    heartbeats: Heartbeats,
    health: Health,
    until: UntilState,
    destination_started: bool,
}

impl<R> Pipeline<R> {
    /// Builds the state of one process run (U-04). `record` is what the store had, already
    /// validated; without one the intent exists in memory only. All else is effects.
    ///
    /// # Errors
    /// A configuration that is not valid (Z-01).
    pub fn new(
        config: Config,
        record: Option<Record>,
        seed: Seed,
        now: Instant,
    ) -> Result<Self, ConfigError>
    where
        R: Clone,
    {
        config.validate()?;
        let mut current = record.clone().unwrap_or_else(|| intent(&config, &seed));
        current.epoch = Epoch(current.epoch.0 + 1);
        let start = current.checkpoint.unwrap_or_default();
        let run_epoch = current.epoch;
        let horizon_offered = current.write_horizon;
        let recreate_wanted = config.until == Some(Until::Recreated);
        let turns = Turns::new(config.destination.lanes_max);
        let mut pipeline = Self {
            until: UntilState::new(config.until),
            config,
            seed,
            now,
            life: Life::Starting,
            broken: false,
            last_op: 0,
            pending: BTreeMap::new(),
            effects: VecDeque::new(),
            timers: Timers::default(),
            turns,
            ledger: Ledger::new(current, record),
            seen: None,
            listing: None,
            listings: Listings::default(),
            listing_is_stale: false,
            busy_since: None,
            busy_step: StartupOp::ListLeftovers,
            slot_report: None,
            recreate_wanted,
            recreate_decided: false,
            is_entered_again: false,
            run_epoch,
            lost_early: None,
            horizon_offered,
            last_session: 0,
            main: Stream::new(StreamId::Main, Session(0), start, now),
            main_lane: LaneState::default(),
            owned: BTreeMap::new(),
            catchup: BTreeMap::new(),
            main_writes: MainWrites::default(),
            copy_batch: Batch::clone,
            fence: Fences::default(),
            hold: Hold::default(),
            describing: None,
            changing: BTreeSet::new(),
            checkpoint_saved_at: now,
            jobs: VecDeque::new(),
            copies: BTreeMap::new(),
            guard_repeats: BTreeMap::new(),
            waiting_requests: Vec::new(),
            adoptions: Adoptions::default(),
            left_slots: BTreeSet::new(),
            idle_slot_timeout: false,
            wal_end: None,
            main_budget: MainBudget::default(),
            heartbeats: Heartbeats::default(),
            health: Health::default(),
            destination_started: false,
        };
        pipeline.start_startup(StartupOp::Identify);
        Ok(pipeline)
    }

    /// Takes one input. Afterwards drain the effects, then read the timeout and the gates.
    ///
    /// # Errors
    /// A broken contract; the core then refuses everything.
    pub fn handle(&mut self, input: Input<R>, now: Instant) -> Result<(), Violation> {
        if self.broken {
            return Err(Violation::Refused);
        }
        if self.life.is_ended() {
            return Ok(());
        }
        self.now = self.now.max(now);
        let result = self.route(input);
        if result.is_ok() {
            self.settle();
        } else {
            self.broken = true;
        }
        result
    }

    /// Lets time pass. Early or spurious calls change nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.broken || self.life.is_ended() {
            return;
        }
        self.now = self.now.max(now);
        while let Some(wakeup) = self.timers.expire(self.now) {
            self.wake(wakeup);
            if self.life.is_ended() {
                return;
            }
        }
        self.settle();
    }

    /// The next thing to do; drain to `None` after every `handle*`.
    #[must_use]
    pub fn poll_effect(&mut self) -> Option<Effect<R>> {
        self.effects.pop_front()
    }

    /// When to call `handle_timeout`, and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Wakeup)> {
        self.timers.next()
    }

    /// Whether more of the stream may be read.
    #[must_use]
    pub fn gate(&self, stream: StreamId) -> Gate {
        match stream {
            StreamId::Main => self.main.gate,
            StreamId::Copy(table) => {
                self.copies.get(&table).map_or(Gate::Closed, CopyRun::stream_gate)
            }
        }
    }

    /// Whether more rows of the table's snapshot may be read. Differs from the gate of its private
    /// stream only while that stream runs to keep its slot alive (K-29).
    #[must_use]
    pub fn rows_gate(&self, table: TableId) -> Gate {
        self.copies.get(&table).map_or(Gate::Closed, CopyRun::gate)
    }

    fn route(&mut self, input: Input<R>) -> Result<(), Violation> {
        match input {
            Input::Completed { op, result } => {
                let purpose = self.pending.remove(&op).ok_or(Violation::UnknownOp { op })?;
                if !purpose.is_side_work() {
                    self.note_moved();
                }
                self.completed(op, purpose, result)
            }
            // a run that has failed waits for its last save and for nothing else.
            Input::Stream { .. } | Input::StreamEnded { .. } | Input::CopyRows { .. }
                if self.life.is_failing() =>
            {
                Ok(())
            }
            Input::Stream { stream: StreamId::Main, session, events } => {
                self.main_events(session, events)
            }
            Input::Stream { stream: StreamId::Copy(table), session, events } => {
                self.private_events(table, session, events)
            }
            Input::StreamEnded { stream: StreamId::Main, session, fault } => {
                self.main_ended(session, fault);
                Ok(())
            }
            Input::StreamEnded { stream: StreamId::Copy(table), session, fault } => {
                self.private_ended(table, session, fault);
                Ok(())
            }
            Input::CopyRows { op, block, rows, bytes } => {
                self.note_moved();
                self.copy_rows(op, block, rows, bytes);
                Ok(())
            }
            Input::Request(request) => {
                self.requested(request);
                Ok(())
            }
        }
    }

    fn completed(
        &mut self,
        op: OpId,
        purpose: Purpose,
        result: Result<Answer, Fault>,
    ) -> Result<(), Violation> {
        let wrong = || Violation::WrongAnswer { op };
        if self.life.is_failing() && purpose != Purpose::Save {
            return Ok(());
        }
        match purpose {
            Purpose::Save => self.save_completed(result),
            Purpose::Startup(what) => self.startup_completed(what, result).map_err(|()| wrong()),
            Purpose::Blockers { slot } => {
                self.blockers_completed(slot, result).map_err(|()| wrong())
            }
            Purpose::Reopen(what) => self.reopen_completed(what, result).map_err(|()| wrong()),
            Purpose::Monitor => self.monitor_completed(result).map_err(|()| wrong()),
            Purpose::DropLeft { table } => {
                self.left_slot_dropped(table, result);
                Ok(())
            }
            Purpose::Listing => self.listing_completed(result).map_err(|()| wrong()),
            Purpose::Heartbeat { written } => {
                self.heartbeat_written(written, result).map_err(|()| wrong())
            }
            Purpose::UntilTarget => self.until_target(result).map_err(|()| wrong()),
            Purpose::NameCause(fault) => {
                self.cause_named(fault, result);
                Ok(())
            }
            Purpose::DescribeMain { session, table } => {
                self.main_described(session, table, result).map_err(|()| wrong())
            }
            Purpose::WriteMain => self.main_written(result).map_err(|()| wrong()),
            Purpose::FlushMain => {
                self.main_flushed(result);
                Ok(())
            }
            Purpose::CloseMain => {
                self.main_closed();
                Ok(())
            }
            Purpose::Shutdown => {
                self.shut_down(result);
                Ok(())
            }
            Purpose::Attempt { table, number, what } => {
                self.attempt_completed(op, (table, number, what), result).map_err(|()| wrong())
            }
        }
    }

    fn wake(&mut self, wakeup: Wakeup) {
        match wakeup {
            Wakeup::StopBudget => self.cut_short("the stop budget is used up"),
            Wakeup::BusySlot => self.look_at_busy_slot(),
            Wakeup::Blockers => self.look_at_blockers(),
            // Settling looks at the clock by itself: these only make it happen in time.
            Wakeup::Batch
            | Wakeup::Flush(_)
            | Wakeup::Copy(_)
            | Wakeup::WriteRetry
            | Wakeup::Fence
            | Wakeup::FencePause
            | Wakeup::Hold
            | Wakeup::Stalled => (),
            Wakeup::Feedback(stream) => self.feedback_due(stream),
            Wakeup::Silence(stream) => self.silence_due(stream),
            Wakeup::Retry(table) => self.retry_due(table),
            Wakeup::Monitor => self.monitor_due(),
            Wakeup::Listing => self.request_listing(),
            Wakeup::Heartbeat => self.heartbeat_due(),
            Wakeup::Distance => self.distance_due(),
            Wakeup::Until => self.until_due(),
            Wakeup::MainRetry => self.main_retry_due(),
            Wakeup::CopyMonitor => self.report_copies(),
        }
    }

    /// Does everything that has become possible. Each part reports whether it changed anything.
    fn settle(&mut self) {
        while !self.life.is_ended() {
            let moved = self.settle_main()
                | self.settle_copies()
                | self.settle_jobs()
                | self.settle_until()
                | self.settle_horizon()
                | self.settle_stop()
                | self.settle_waiting()
                | self.settle_reopen()
                | self.settle_leaving()
                | self.settle_save()
                | self.settle_failure();
            if moved {
                self.note_moved();
            } else if !(self.settle_fence() | self.settle_hold()) {
                break;
            }
        }
        if self.life.is_ended() {
            return;
        }
        self.move_gates();
        if !self.life.is_failing() {
            self.arm_timers();
            self.arm_listing();
            self.arm_heartbeat();
            self.arm_distance();
            self.settle_health();
        }
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
    }

    /// Share of the memory of each stream beside so many attempts (B-05).
    const fn share(&self, copies: usize) -> u64 {
        self.config.limits.memory_bytes / (1 + copies as u64)
    }

    /// B-04.
    fn batch_target(&self, copies: usize) -> u64 {
        let target = self.config.limits.batch_bytes.min(self.share(copies) / 4);
        target.max(crate::config::BATCH_BYTES_MIN)
    }

    fn move_gates(&mut self) {
        let share = self.share(self.copies.len());
        if !self.main.open || self.life.is_stopping() {
            self.main.gate = Gate::Closed;
        } else {
            let held = self.main.queue.bytes() + self.main_lane.bytes();
            self.main.gate = self.main.gate.moved(held, share);
        }
        for run in self.copies.values_mut() {
            run.move_gate(share);
        }
    }

    fn start(&mut self, purpose: Purpose, budget: Option<u64>, work: Work<R>) -> OpId {
        self.last_op += 1;
        let op = OpId(self.last_op);
        self.pending.insert(op, purpose);
        let budget = budget.map(Duration::from_millis);
        self.effects.push_back(Effect::Start { op, budget, work });
        op
    }

    fn report(&mut self, notice: Notice) {
        self.effects.push_back(Effect::Report(notice));
    }

    fn next_session(&mut self) -> Session {
        self.last_session += 1;
        Session(self.last_session)
    }

    fn epoch(&self) -> Epoch {
        self.ledger.record().epoch
    }

    fn main_slot(&self) -> String {
        self.ledger.record().identity.slot.clone()
    }
}

/// U-04: what a first start means to create; nothing of it is durable yet.
fn intent(config: &Config, seed: &Seed) -> Record {
    let prefix = config.limits.slot_prefix.clone();
    Record {
        format: FORMAT,
        epoch: Epoch(0),
        identity: Identity {
            system_id: String::new(),
            timeline: 0,
            database: config.database.clone(),
            slot: names::main_slot(&prefix, seed.nonce()),
            publication: config.publication.clone(),
        },
        slot_prefix: prefix,
        destination_id: config.destination.id.clone(),
        initial_lsn: None,
        checkpoint: None,
        write_horizon: None,
        recreate: false,
        attempt_seq: 0,
        tables: std::sync::Arc::default(),
        tombstones: std::sync::Arc::default(),
    }
}

/// A finding of the core about the source.
fn source_fault(kind: FaultKind, message: impl Into<String>) -> Fault {
    Fault::new(Origin::Source, kind, message)
}

/// The lowest position that a stream of a new pipeline could have.
const NOWHERE: Position = Position(Lsn::ZERO);
