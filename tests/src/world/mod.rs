//! The simulated world around a `walferry_core::Pipeline`: source, destination, store and clock,
//! all deterministic. Nothing here decides when something happens: tests do, or [`player`] by dice.
//!
//! Work takes effect when its completion is handed to the core. A crash leaves what is in flight in
//! doubt. Every step is judged: whatever a crash at this moment could leave must be whole (O-1).

pub mod destination;
pub mod dice;
mod driver;
mod heal;
mod perform;
pub mod play;
pub mod player;
pub mod row;
pub mod sender;
pub mod source;
pub mod store;
pub mod target;
pub mod trace;

use std::collections::BTreeMap;

use walferry_core::Pipeline;
use walferry_core::config::Config;
use walferry_core::effect::Work;
use walferry_core::ids::{OpId, StreamId, TableId};
use walferry_core::lsn::Position;
use walferry_core::notice::Outcome;
use walferry_core::time::Instant;

use destination::Destination;
use row::Row;
use source::Source;
use store::Store;
use trace::Trace;

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
}

/// One process run.
#[derive(Debug)]
struct Process {
    pipeline: Pipeline<Row>,
    /// Work in flight; a cancelled one is marked.
    working: BTreeMap<OpId, (Work<Row>, bool)>,
    /// Snapshot rows still to be handed over, by `ReadRange`.
    reads: BTreeMap<OpId, Read>,
    /// Ownership number of the record that it loaded, 0 without one.
    loaded_epoch: u64,
    /// Handovers as the pipeline told them.
    handovers: BTreeMap<TableId, Position>,
}

/// A `ReadRange` under way.
#[derive(Debug, Default)]
struct Read {
    rest: Vec<(u32, u32)>,
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
        }
    }

    /// The process dies before the effect with this number is executed.
    pub const fn crash_before_effect(&mut self, number: u64) {
        self.crash_at = Some(number);
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
        working.map(|(&op, (work, _))| (op, work.clone())).collect()
    }

    /// Whether a crash at this moment would leave everything whole, whatever the save in flight
    /// and the accepted work become.
    ///
    /// # Panics
    /// If not (C-I2, C-I3, C-I4, R-I6, O-1).
    pub fn judge(&self) {
        for record in self.store.in_doubt() {
            let checkpoint = record.checkpoint.unwrap_or_default();
            for (&table, entry) in &*record.tables {
                let Some(handover) = entry.phase.handover() else { continue };
                let Some(target) = self.destination.durable.get(&table) else {
                    panic!("table {table} is {} without a target", entry.phase.word());
                };
                assert_eq!(Some(target.attempt), entry.attempt, "attempt of table {table}");
                assert!(target.finished, "table {table} handed over before its rows (O-1)");
                let due = target.next_due(table, &self.source);
                let lost = due.filter(|(key, _)| checkpoint.max(handover).covers(key.commit));
                assert_eq!(
                    lost, None,
                    "table {table} with handover {handover} and checkpoint {checkpoint} \
                     lacks an event (C-I3, R-I6, O-1)"
                );
            }
        }
        let Some(record) = self.store.persisted() else { return };
        if let (Some(slot), Some(checkpoint)) =
            (self.source.slots.get(&record.identity.slot), record.checkpoint)
        {
            assert!(slot.confirmed <= checkpoint, "confirmed past the checkpoint (C-I4)");
        }
    }
}
