//! Random games: everything follows from the seed.

use walferry_tests::coverage::{counts, reached};
use walferry_tests::world::destination::Planted;
use walferry_tests::world::player::{Player, Size, play};

/// Games of an ordinary run, of each size: about 20 seconds in debug on two cores.
const SEEDS: u64 = 800;

fn judge(seed: u64, size: Size) {
    let played = play(seed, size, false);
    if let Some(violation) = played.violation {
        // Once more, for the story of it.
        let story = play(seed, size, true).trace.unwrap_or_default();
        panic!(
            "{size:?} seed {seed}: {violation}\nreplay: WALFERRY_SIM_SEED={seed} cargo test -p \
             walferry-tests --test model games\n{story}"
        );
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn games(size: Size) {
    if let Some(seed) = number("WALFERRY_SIM_SEED") {
        judge(seed, size);
        return;
    }
    for seed in 0..number("WALFERRY_SIM_SEEDS").unwrap_or(SEEDS) {
        judge(seed, size);
    }
}

// H-I5, C-I3, R-I6, O-1..O-7, O-11, O-12
#[test]
fn short_games_converge_without_a_hole() {
    games(Size::Short);
}

// The same, and every judge has seen its premise hold: one that never does proves nothing
#[test]
fn long_games_converge_without_a_hole_and_every_judge_has_work() {
    games(Size::Long);
    if number("WALFERRY_SIM_SEED").is_some() {
        return;
    }
    let counts = counts();
    let silent: Vec<_> = ALWAYS_REACHED.iter().filter(|id| !counts.contains_key(*id)).collect();
    assert!(silent.is_empty(), "never reached in these games: {silent:?}");
}

/// Rules and fault points that every larger set of games reaches with what is built.
const ALWAYS_REACHED: &[&str] = &[
    "A-F1", "A-F2", "A-I1", "B-I3", "B-I4", "C-F10", "C-F11", "C-F12", "C-I1", "C-I2", "C-I3",
    "C-I4", "D-I1", "DS-03", "DS-11", "DS-12", "DS-14", "DS-F1", "DS-F2", "DS-F3", "DS-I2",
    "DS-I3", "DS-I5", "F-I1", "F-I2", "H-F1", "H-I1", "H-I2", "H-I4", "H-I5", "K-F1", "K-F2",
    "K-F3", "K-F4", "K-F5", "K-F6", "K-F7", "K-F8", "K-F9", "K-F10", "K-F11", "K-I1", "K-I2",
    "K-I3", "K-I4", "K-I5", "K-I6", "L-I1", "M-I1", "M-I2", "N-I5", "N-I6", "O-1", "O-2", "O-3",
    "O-4", "O-5", "O-7", "O-8", "O-11", "O-12", "PG-07", "Q-F5", "Q-I1", "Q-I2", "R-F9", "R-I2",
    "R-I3", "R-I4", "R-I5", "R-I6", "R-I7", "S-I1", "T-09", "T-I1", "T-I3", "U-F1", "U-F2", "U-F3",
    "U-F4", "U-F5", "U-F6", "U-F10", "U-F11", "U-I1", "U-I3", "U-I4", "V-I2", "W-F3", "W-F4",
    "W-F5", "W-F6", "W-I1", "W-I3", "X-F2", "X-F3", "X-F4", "X-F5", "X-I2", "X-I4", "X-I5", "X-I6",
    "Y-09", "Y-10", "Y-F1", "Y-I2",
];

// O-9
#[test]
fn the_same_seed_plays_the_same_game() {
    for seed in 0..60 {
        for size in [Size::Short, Size::Long] {
            let (one, two) = (play(seed, size, true), play(seed, size, true));
            assert_eq!(one.trace, two.trace, "{size:?} seed {seed} (O-9)");
            let numbers = |played: &walferry_tests::world::player::Played| {
                (played.steps, played.effects, played.faults)
            };
            assert_eq!(numbers(&one), numbers(&two), "{size:?} seed {seed} (O-9)");
        }
    }
}

// DS-F4: the oracle finds a destination that promises too early
#[test]
fn a_destination_that_lies_is_found() {
    let caught = (0..120).filter(|&seed| {
        let mut player = Player::sized(seed, Size::Short);
        player.world.destination.planted = Planted::DurableTooEarly;
        player.judged().is_some()
    });
    let caught = caught.count();
    // A lie shows only where a crash comes between the promise and the write.
    assert!(caught >= 30, "{caught} of 120 lies are found (DS-F4)");
    reached("DS-F4");
}
