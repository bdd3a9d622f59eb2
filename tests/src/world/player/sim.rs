//! One game from one number: what `play` is asked for by everything that plays many of them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Player;

/// How much happens in a game.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Two tables, up to 20 transactions.
    Short,
    /// More of everything.
    Long,
}

/// What became of a game.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// Decisions of the dice.
    pub steps: u64,
    /// Effects of the core that the world executed.
    pub effects: u64,
    /// Faults that were thrown.
    pub faults: u64,
    /// What a judge found, if one found something.
    pub violation: Option<String>,
    /// What happened, as text, if it was asked for.
    pub trace: Option<String>,
}

/// Plays the game of a seed; everything follows from seed and size.
#[must_use]
pub fn play(seed: u64, size: Size, trace: bool) -> Played {
    let mut player = Player::sized(seed, size);
    if trace {
        player.world.trace.record();
    }
    let violation = player.judged();
    Played {
        steps: player.steps(),
        effects: player.world.effects(),
        faults: player.faults(),
        violation,
        trace: trace.then(|| player.world.trace.take()),
    }
}

impl Player {
    /// Plays to the end; what a judge found, if one found something.
    pub fn judged(&mut self) -> Option<String> {
        let run = catch_unwind(AssertUnwindSafe(|| self.play()));
        run.err().map(|panic| message(panic.as_ref()))
    }
}

/// The text of a panic.
#[must_use]
pub fn message(panic: &(dyn core::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without text".to_owned())
}
