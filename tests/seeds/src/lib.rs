//! A few hundred games with fixed seeds: the judge of mutation runs, which repeat it for every mutant.
//!
//! A package of its own, because it needs the simulated world and nothing that real servers need: a
//! mutant of the core then builds two crates behind it, not all.

#[cfg(test)]
mod tests {
    use walferry_tests::world::player::{Size, play};

    /// About ten seconds in debug on one core.
    const SEEDS: u64 = 300;

    /// Plays every second seed, so that the games spread over two test threads.
    fn play_all(first: u64) {
        for seed in (first..SEEDS).step_by(2) {
            let played = play(seed, Size::Short, false);
            assert_eq!(played.violation, None, "replay: ./dev sim --seed {seed}");
        }
    }

    #[test]
    fn even_seeds_find_nothing() {
        play_all(0);
    }

    #[test]
    fn odd_seeds_find_nothing() {
        play_all(1);
    }
}
