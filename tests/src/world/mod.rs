//! The simulated world around a `walferry_core::Pipeline`: source, destination, store and clock,
//! all deterministic. Nothing here decides when something happens: tests do, or [`player`] by dice.
//!
//! Work takes effect when its completion is handed to the core. A crash leaves what is in flight in
//! doubt. Every step is judged: whatever a crash at this moment could leave must be whole (O-1).

pub mod destination;
pub mod dice;
mod driver;
pub mod features;
mod heal;
pub mod judges;
mod operator;
mod perform;
pub mod player;
pub mod row;
pub mod source;
pub mod store;
mod surroundings;
pub mod target;
pub mod trace;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use walferry_core::Pipeline;
use walferry_core::config::Config;
use walferry_core::effect::Work;
use walferry_core::fault::FaultKind;
use walferry_core::ids::{OpId, StreamId, TableId};
use walferry_core::lsn::Position;
use walferry_core::notice::Outcome;
use walferry_core::time::Instant;

use destination::Destination;
use judges::Watch;
use row::{Row, Tuple};
use source::Source;
use store::Store;
use trace::Trace;

pub use perform::TRANSIENT;

/// The main stream.
pub const MAIN: StreamId = StreamId::Main;

/// Everything around the pipelines of one record, process after process.
#[derive(Debug)]
pub struct World {
    /// Configuration of every process.
    pub config: Config,
    /// The server.
    pub source: Source,
    /// The sink.
    pub destination: Destination,
    /// The record.
    pub store: Store,
    /// What happened, as text.
    pub trace: Trace,
    now: Instant,
    process: Option<Process>,
    /// How the last process ended, if it was not by a crash.
    ended: Option<Outcome>,
    processes: u64,
    /// Effects executed since the world began.
    effects: u64,
    /// The process dies before the effect with this number.
    crash_at: Option<u64>,
    /// Whether work whose budget has passed is given up (contract of the core, 3).
    budgets: bool,
    /// Bytes after which an adapter looks at the gate again.
    read_bytes: u64,
    /// Most bytes that one event claims to keep alive.
    event_bytes: u64,
    /// Tables whose rows may differ, because a person chose to be told only (T-11, D-15).
    reported: BTreeSet<TableId>,
    /// Why the last run ended, until somebody has looked at it.
    refused: Option<FaultKind>,
    /// When the operator looks again.
    operator_at: Instant,
    /// Faults and load have ended (O-11).
    in_peace: bool,
    /// How far the clock moved last: the core is woken at most so late.
    last_advance: Duration,
    /// Fault points that were hit.
    hits: BTreeSet<&'static str>,
    /// Whether the main slot was created again since the world began.
    created_again: bool,
    /// Whether a person has asked for a re-creation.
    recreation_asked: bool,
}

/// One process run.
#[derive(Debug)]
struct Process {
    pipeline: Pipeline<Row>,
    /// Work in flight.
    working: BTreeMap<OpId, Running>,
    /// Snapshot rows still to be handed over, by `ReadRange`.
    reads: BTreeMap<OpId, Read>,
    /// Ownership number of the record that it loaded, 0 without one.
    loaded_epoch: u64,
    /// Who answered when the source was identified last (S-06).
    server: Option<walferry_core::source::SourceSeen>,
    /// Handovers as the pipeline told them.
    handovers: BTreeMap<TableId, Position>,
    /// What the judges remember.
    watch: Watch,
}

/// Work in flight.
#[derive(Clone, Debug)]
struct Running {
    work: Work<Row>,
    cancelled: bool,
    /// When its budget has passed.
    deadline: Option<Instant>,
    /// It never returns by itself.
    hung: bool,
}

/// A `ReadRange` under way.
#[derive(Debug, Default)]
struct Read {
    rest: Vec<(u32, Tuple)>,
    done: u64,
}

impl World {
    /// A world before the first process.
    #[must_use]
    pub fn new(config: Config, source: Source) -> Self {
        let declared = &config.destination;
        let destination =
            Destination::new(declared.class, declared.lanes_max, declared.copy_in_flight_max);
        Self {
            config,
            source,
            destination,
            store: Store::default(),
            trace: Trace::default(),
            now: Instant(0),
            process: None,
            ended: None,
            processes: 0,
            effects: 0,
            crash_at: None,
            budgets: false,
            read_bytes: u64::MAX,
            event_bytes: 16 << 20,
            reported: BTreeSet::new(),
            refused: None,
            operator_at: Instant(0),
            in_peace: false,
            last_advance: Duration::ZERO,
            hits: BTreeSet::new(),
            created_again: false,
            recreation_asked: false,
        }
    }

    /// From here on work whose budget has passed is given up, and a stream is read in pieces.
    pub const fn keep_budgets(&mut self) {
        self.budgets = true;
        self.read_bytes = 1 << 20;
    }

    /// Events that claim to keep so much alive will come.
    pub const fn expect_events_of(&mut self, bytes: u64) {
        self.event_bytes = bytes;
    }

    /// The clock.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The process dies before the effect with this number is executed.
    pub const fn crash_before_effect(&mut self, number: u64) {
        self.crash_at = Some(number);
    }

    /// The process lives on behind the effect before which it should have died.
    pub fn spare(&mut self) {
        self.crash_at = None;
        self.drain();
    }

    /// Effects executed so far.
    #[must_use]
    pub const fn effects(&self) -> u64 {
        self.effects
    }

    /// Whether a process lives.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        self.process.is_some()
    }

    /// Whether the living process has reached the effect before which it dies.
    #[must_use]
    pub fn is_doomed(&self) -> bool {
        self.is_alive() && self.crash_at == Some(self.effects)
    }

    /// How the last process ended, if it ended by itself.
    pub const fn take_outcome(&mut self) -> Option<Outcome> {
        self.ended.take()
    }

    /// The living pipeline.
    #[must_use]
    pub fn pipeline(&self) -> Option<&Pipeline<Row>> {
        self.process.as_ref().map(|process| &process.pipeline)
    }

    /// Work in flight, oldest first.
    #[must_use]
    pub fn working(&self) -> Vec<(OpId, Work<Row>)> {
        let working = self.process.iter().flat_map(|process| &process.working);
        working.map(|(&op, running)| (op, running.work.clone())).collect()
    }

    /// Work that can end now, oldest first: nothing at the server keeps it waiting.
    #[must_use]
    pub fn performable(&mut self) -> Vec<OpId> {
        let working = self.process.iter().flat_map(|process| &process.working);
        let ready = working.filter(|(_, running)| !running.hung);
        let ready: Vec<_> = ready.map(|(&op, running)| (op, running.work.clone())).collect();
        ready.into_iter().filter(|(op, work)| !self.waits(*op, work)).map(|(op, _)| op).collect()
    }

    /// Whether the server keeps work waiting (PG-30, PG-41).
    fn waits(&mut self, op: OpId, work: &Work<Row>) -> bool {
        if let Work::OpenReader { table, reader: 0, .. } = work {
            return self.source.lock_waits(*table);
        }
        matches!(work, Work::CreateSlot { .. } | Work::OpenSnapshot { .. })
            && self.source.creation_waits(op)
    }

    /// Whether a fence of the living process is closed.
    #[must_use]
    pub fn has_closed_fence(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.watch.fence().is_some())
    }
}
