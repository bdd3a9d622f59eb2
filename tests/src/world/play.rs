//! One game from its seed, with the outcome as data: what `walferry-sim` and the fixed seeds use.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::player::Player;

/// How long a game is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Some hundred steps.
    Short,
    /// Many transactions and processes.
    Long,
}

/// What came of a game.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Moves made; 0 as long as the player does not count them.
    pub steps: u64,
    /// Effects executed.
    pub effects: u64,
    /// Faults thrown; 0 as long as the player does not count them.
    pub faults: u64,
    /// What a judge said, if one was not content.
    pub violation: Option<String>,
    /// One line for each input and effect, if it was wanted.
    pub trace: Option<String>,
}

/// Plays the game of a seed to its end, or until a judge is not content.
#[must_use]
pub fn play(seed: u64, size: Size, trace: bool) -> Played {
    // Only one size of game exists.
    let (Size::Short | Size::Long) = size;
    let mut player = Player::new(seed);
    if trace {
        player.world.trace.record();
    }
    let end = catch_unwind(AssertUnwindSafe(|| player.play()));
    Played {
        steps: 0,
        effects: player.world.effects(),
        faults: 0,
        violation: end.err().map(|panic| text_of(panic.as_ref())),
        trace: trace.then(|| player.world.trace.take()),
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without text").to_owned()
}
