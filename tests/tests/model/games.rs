//! Random games: everything follows from the seed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use walferry_tests::world::player::Player;

use super::message;

/// Games of an ordinary run: about 20 seconds in debug on two cores.
const SEEDS: u64 = 2_000;

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
