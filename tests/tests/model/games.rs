//! Random games: everything follows from the seed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use walferry_tests::coverage::reached;
use walferry_tests::world::player::Player;

use super::message;

/// Games of an ordinary run: about 20 seconds in debug on two cores.
const SEEDS: u64 = 2_000;

/// What the judges of every game assert: at the source, the store, the destination, in each step of
/// the core, and at the end when everything has converged.
const JUDGED: [&str; 25] = [
    "A-I1", "B-I4", "C-I1", "C-I2", "C-I3", "DS-I1", "DS-I3", "H-I1", "H-I2", "H-I5", "K-I1",
    "K-I2", "K-I4", "K-I6", "M-I1", "N-I6", "R-I2", "R-I3", "R-I5", "R-I6", "R-I7", "U-I3", "W-I1",
    "W-I3", "X-I3",
];

fn play(seed: u64) {
    let mut player = Player::new(seed);
    player.world.trace.record();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| player.play())) {
        panic!(
            "seed {seed}: {}\nreplay: WALFERRY_SIM_SEED={seed} cargo test -p walferry-tests \
             --test model games\n{}",
            message(panic.as_ref()),
            player.world.trace.tail()
        );
    }
    JUDGED.into_iter().for_each(reached);
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Plays every `of`-th seed, so that the games spread over the test threads.
fn games(part: u64, of: u64) {
    if let Some(seed) = number("WALFERRY_SIM_SEED") {
        if part == 0 {
            play(seed);
        }
        return;
    }
    let seeds = number("WALFERRY_SIM_SEEDS").unwrap_or(SEEDS);
    for seed in (part..seeds).step_by(usize::try_from(of).unwrap_or(1)) {
        play(seed);
    }
}

// H-I5, C-I3, R-I6, O-1, O-3, O-11 (as far as this much of the spec is built)
#[test]
fn even_games_converge_without_a_hole() {
    games(0, 2);
}

#[test]
fn odd_games_converge_without_a_hole() {
    games(1, 2);
}
