//! Plays a world by dice: load, faults and the order of everything come from one seed.

use core::time::Duration;

use walferry_core::batch::{Declaration, DeliveryClass, Durability};
use walferry_core::config::{Config, Limits};
use walferry_core::effect::Work;
use walferry_core::fault::{DestinationClass, Fault, FaultKind, Origin};
use walferry_core::ids::{OpId, StreamId, TableId};
use walferry_core::notice::Outcome;
use walferry_core::schema::SchemaSupport;

use super::World;
use super::dice::Dice;
use super::row::Row;
use super::source::{Edit, Source};

/// How rough a game is, in percent of the steps.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// The process dies.
    pub crash: u64,
    /// An operation fails.
    pub operation: u64,
    /// A stream is lost.
    pub stream: u64,
    /// Somebody asks for a stop.
    pub stop: u64,
}

impl Faults {
    /// None at all.
    pub const NONE: Self = Self { crash: 0, operation: 0, stream: 0, stop: 0 };
}

/// A game.
#[derive(Debug)]
pub struct Player {
    /// The world that is played.
    pub world: World,
    dice: Dice,
    faults: Faults,
    /// Percent of the writes that are Durable at once.
    durable: u64,
    transactions_left: u64,
    /// Whether rows claim enough memory to close gates.
    large_rows: bool,
}

impl Player {
    /// A game in which everything, the configuration too, follows from the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let class =
            if dice.chance(60) { DeliveryClass::ExactlyOnce } else { DeliveryClass::Append };
        let limits = Limits {
            copy_concurrency: dice.between(1, 3),
            batch_events: dice.below(4),
            batch_ms: dice.below(3) * 50,
            flush_batches: dice.between(1, 4),
            retries_max: if dice.chance(20) { 1 } else { 1_000 },
            memory_bytes: 32 << 20,
            idle_checkpoint_ms: if dice.chance(50) { 1 } else { 10_000 },
            idle_checkpoint_bytes: 4_096,
            ..Limits::default()
        };
        let faults = if dice.chance(10) {
            Faults::NONE
        } else {
            Faults {
                crash: dice.below(4),
                // A table whose tries are used up needs a person.
                operation: if limits.retries_max > 1 { dice.below(3) } else { 0 },
                stream: if limits.retries_max > 1 { dice.below(2) } else { 0 },
                stop: dice.below(2),
            }
        };
        let config = Config {
            publication: "app".to_owned(),
            database: "app".to_owned(),
            destination: Declaration {
                id: "sim:".to_owned(),
                class,
                lanes_max: u32::try_from(dice.between(1, 3)).unwrap_or(1),
                copy_in_flight_max: u32::try_from(dice.between(1, 2)).unwrap_or(1),
                wants_messages: false,
                partial_rows: true,
                schema_changes: SchemaSupport::NONE,
            },
            until: None,
            limits,
        };
        let tables = u32::try_from(dice.between(1, 3)).unwrap_or(1);
        let rows = u32::try_from(dice.below(8)).unwrap_or(0);
        Self {
            world: World::new(config, Source::new(tables, rows)),
            durable: [0, 30, 60, 100][usize::try_from(dice.below(4)).unwrap_or(0)],
            transactions_left: dice.between(3, 25),
            large_rows: dice.chance(10),
            faults,
            dice,
        }
    }

    /// Plays to the end: load and faults first, then peace until everything has converged.
    pub fn play(&mut self) {
        let steps = self.dice.between(100, 600);
        for _ in 0..steps {
            self.step();
        }
        while self.transactions_left > 0 {
            self.commit();
        }
        self.world.heal();
        self.judge_outcome();
    }

    fn step(&mut self) {
        self.judge_outcome();
        if !self.world.is_alive() {
            if self.dice.chance(20) {
                self.commit();
            } else if self.dice.chance(15) {
                self.join_anew();
            }
            self.world.start();
            return;
        }
        if self.dice.chance(2) && self.throw_fault() {
            return;
        }
        match self.dice.below(100) {
            0..=44 => self.work(),
            45..=64 => self.deliver(),
            65..=74 => self.commit(),
            75..=82 => self.keepalive(),
            83..=86 => self.world.source.unpublished(self.dice.between(1, 9)),
            87..=92 => self.world.advance(Duration::from_millis(self.dice.between(1, 200))),
            _ => self.world.jump(),
        }
        let crash = self.dice.below(1_000) < self.faults.crash;
        if crash && self.world.is_alive() {
            // Somewhere among the effects of the next steps.
            let at = self.world.effects() + self.dice.below(4);
            self.world.crash_before_effect(at);
        }
        if self.world.is_doomed() {
            self.crash();
        }
    }

    fn throw_fault(&mut self) -> bool {
        let faults = self.faults;
        match self.dice.below(10) {
            0..=1 if faults.stop > 0 => self.world.stop(),
            2..=3 if faults.stream > 0 => {
                let streams = self.streams();
                let Some(&stream) = self.dice.pick(&streams) else { return false };
                let fault = Fault::new(Origin::Source, FaultKind::Transport, "");
                self.world.end_stream(stream, fault);
            }
            4..=7 if faults.operation > 0 => {
                let working = self.world.working();
                let Some((op, work)) = self.dice.pick(&working) else { return false };
                self.fail(*op, work);
            }
            8..=9 if faults.crash > 0 => self.crash(),
            _ => return false,
        }
        true
    }

    fn fail(&mut self, op: OpId, work: &Work<Row>) {
        let transient =
            FaultKind::Destination { class: DestinationClass::Transient { retry_after: None } };
        match work {
            Work::Save { .. } if self.dice.chance(50) => self.world.save_in_doubt(op),
            Work::Save { .. } => self.world.refuse(op, FaultKind::StoreFailed),
            Work::BeginCopy(_)
            | Work::WriteRows(_)
            | Work::FinishCopy { .. }
            | Work::WriteChanges(_)
            | Work::Flush { .. }
            | Work::Startup { .. }
            | Work::Shutdown => self.world.refuse(op, transient),
            Work::CloseCopy { .. } | Work::CloseStream { .. } => self.perform(op),
            Work::Identify
            | Work::ListPublication
            | Work::InspectSlot { .. }
            | Work::ListSlots { .. }
            | Work::CreateSlot { .. }
            | Work::DropSlot { .. }
            | Work::ReadBlockers { .. }
            | Work::CheckOwner
            | Work::ReadTimelineHistory { .. }
            | Work::EnableFailover { .. }
            | Work::DescribeTable { .. }
            | Work::WriteHeartbeat { .. }
            | Work::ReadWalPosition
            | Work::Monitor { .. }
            | Work::OpenStream { .. }
            | Work::OpenSnapshot { .. }
            | Work::OpenReader { .. }
            | Work::ReadSchema { .. }
            | Work::ReadRange { .. }
            | Work::CloseReaders { .. } => self.world.refuse(op, FaultKind::Transport),
        }
    }

    fn crash(&mut self) {
        let save = self.dice.chance(50);
        let dice = &mut self.dice;
        self.world
            .crash(save, |accepted| usize::try_from(dice.below(accepted as u64 + 1)).unwrap_or(0));
    }

    fn work(&mut self) {
        let working = self.world.working();
        let Some(&(op, _)) = self.dice.pick(&working) else {
            self.deliver();
            return;
        };
        if self.dice.chance(50) && self.world.hand_rows(op, 2) {
            return;
        }
        self.perform(op);
    }

    fn perform(&mut self, op: OpId) {
        let durable = self.dice.chance(self.durable);
        let durability = if durable { Durability::Durable } else { Durability::Accepted };
        self.world.perform(op, durability);
    }

    fn streams(&self) -> Vec<StreamId> {
        self.world.source.senders.keys().copied().collect()
    }

    fn deliver(&mut self) {
        let streams = self.streams();
        let Some(&stream) = self.dice.pick(&streams) else { return };
        let most = if self.dice.chance(30) { 1_000 } else { self.dice.between(1, 6) };
        self.world.deliver(stream, usize::try_from(most).unwrap_or(1));
    }

    fn keepalive(&mut self) {
        let streams = self.streams();
        let Some(&stream) = self.dice.pick(&streams) else { return };
        let (far, reply) = (self.dice.chance(70), self.dice.chance(30));
        self.world.keepalive(stream, far, reply);
    }

    fn commit(&mut self) {
        if self.transactions_left == 0 {
            return;
        }
        self.transactions_left -= 1;
        let mut edits = Vec::new();
        for _ in 0..self.dice.below(7) {
            edits.push(self.edit());
        }
        // A commit right behind the one before, and records of one byte: positions that touch.
        let (gap, length) = (self.dice.below(3), self.dice.between(1, 3));
        let row_bytes = if self.large_rows { 6 << 20 } else { 100 };
        self.world.source.commit(&edits, gap, length, row_bytes);
    }

    fn edit(&mut self) -> Edit {
        let tables: Vec<TableId> = self.world.source.tables.keys().copied().collect();
        let table = self.dice.pick(&tables).copied().unwrap_or_default();
        let key = u32::try_from(self.dice.between(1, 6)).unwrap_or(1);
        if self.dice.chance(10) {
            let free = |table: &TableId| self.world.source.tables[table].locked_by.is_none();
            let mut all: Vec<_> = tables.into_iter().filter(free).collect();
            if self.dice.chance(50) {
                all.truncate(1);
            }
            if !all.is_empty() {
                return Edit::Truncate(all);
            }
        }
        if self.dice.chance(25) { Edit::Delete(table, key) } else { Edit::Put(table, key) }
    }

    /// A table leaves the publication and joins it again while no process runs (T-11).
    fn join_anew(&mut self) {
        let tables: Vec<TableId> = self.world.source.tables.keys().copied().collect();
        if let Some(table) = self.dice.pick(&tables).copied()
            && let Some(table) = self.world.source.tables.get_mut(&table)
        {
            table.membership += 1_000;
        }
    }

    /// A run may end by what was thrown at it, and by nothing else.
    fn judge_outcome(&mut self) {
        let Some(Outcome::Failed { action, fault }) = self.world.take_outcome() else { return };
        let thrown = matches!(
            fault.kind,
            FaultKind::Transport
                | FaultKind::Timeout { .. }
                | FaultKind::StoreFailed
                | FaultKind::StopTimeout
                | FaultKind::Destination { .. }
                | FaultKind::FlushFailed { .. }
        );
        assert!(thrown, "the run failed {action}: {fault}");
    }
}
