//! Plays a world by dice: load, faults and the order of everything come from one seed.

mod faults;
mod game;
mod load;
mod sim;

use core::time::Duration;

use walferry_core::batch::Durability;
use walferry_core::ids::{OpId, StreamId};
use walferry_core::policies::SlotLoss;

use super::World;
use super::dice::Dice;

pub use game::{Faults, Uses};
pub use sim::{Played, Size, message, play};

/// A game.
#[derive(Debug)]
pub struct Player {
    /// The world that is played.
    pub world: World,
    dice: Dice,
    faults: Faults,
    uses: Uses,
    /// Percent of the writes that are Durable at once.
    durable: u64,
    transactions_left: u64,
    /// Bytes that each row claims to keep alive: enough to close gates, in some games.
    row_bytes: u32,
    size: Size,
    steps: u64,
    thrown: u64,
    /// Whether the source was promoted, so that refusals of group P may follow.
    promoted: bool,
    /// Whether a slot or the publication was taken away.
    taken_away: bool,
}

impl Player {
    /// A game in which everything, the configuration too, follows from the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::sized(seed, Size::Long)
    }

    /// Decisions so far.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Faults thrown so far.
    #[must_use]
    pub const fn faults(&self) -> u64 {
        self.thrown
    }

    /// Plays to the end: load and faults first, then peace until everything has converged.
    ///
    /// # Panics
    /// If a judge finds something.
    pub fn play(&mut self) {
        let steps = match self.size {
            Size::Short => self.dice.between(150, 400),
            Size::Long => self.dice.between(200, 1_500),
        };
        for _ in 0..steps {
            self.step();
        }
        while self.transactions_left > 0 {
            self.commit();
        }
        self.world.heal();
        self.judge_outcome();
        if self.dice.chance(50) {
            // O-12: whatever was reached, a restart in healed surroundings converges.
            self.crash();
            crate::coverage::reached("O-12");
            self.world.heal();
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        self.judge_outcome();
        if !self.world.is_alive() {
            self.between_processes();
            return;
        }
        if self.dice.chance(2 + self.faults.more) && self.throw_fault() {
            self.thrown += 1;
            return;
        }
        match self.dice.below(100) {
            0..=44 => self.work(),
            45..=62 => self.deliver(),
            63..=73 => self.load(),
            74..=81 => self.keepalive(),
            82..=84 => self.world.source.unpublished(self.dice.between(1, 9)),
            85 => self.housekeeping(),
            86..=92 => self.world.advance(Duration::from_millis(self.dice.between(1, 200))),
            _ => self.world.jump(),
        }
        let crash = self.dice.below(1_000) < self.faults.crash;
        if crash && self.world.is_alive() {
            // Somewhere among the effects of the next steps.
            let at = self.world.effects() + self.dice.below(4);
            self.world.crash_before_effect(at);
            self.thrown += 1;
        }
        if self.world.is_doomed() {
            self.crash();
        }
    }

    fn between_processes(&mut self) {
        if self.dice.chance(20) {
            self.load();
        } else if self.dice.chance(20) {
            self.change_members();
        }
        if self.world.wait_for_source() {
            return;
        }
        self.world.answer_refusal();
        if self.world.store.persisted().is_some_and(|record| record.recreate)
            && self.dice.chance(20)
        {
            // Somebody thinks better of it while a re-creation is under way (I-F6).
            self.world.config.limits.policies.slot_loss = SlotLoss::Reject;
        }
        self.world.start();
        if self.world.store.has_late() && self.dice.chance(50) {
            self.world.store.comes_late();
        }
    }

    /// What a server and a sink do by themselves.
    fn housekeeping(&mut self) {
        match self.dice.below(3) {
            0 => self.world.source.checkpoint(None),
            1 if self.uses.promotion && !self.world.source.is_left_behind() => {
                let ready = self.dice.chance(90);
                self.world.source.replicate(ready);
            }
            _ => self.world.late_call(),
        }
    }

    fn work(&mut self) {
        let working = self.world.performable();
        let Some(&op) = self.dice.pick(&working) else {
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
}
