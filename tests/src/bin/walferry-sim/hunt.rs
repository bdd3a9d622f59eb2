//! Many games on all cores, until one fails or the bound is reached.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use walferry_tests::world::player::{Size, play};
use walferry_tests::{coverage, rules};

/// When a hunt ends at the latest.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// After so many games.
    Seeds(u64),
    /// After so long.
    Time(Duration),
}

impl Bound {
    /// Counted games are always the same ones; those of a hunt by time are others every time.
    pub(crate) fn first_seed(self) -> u64 {
        match self {
            Self::Seeds(_) => 0,
            Self::Time(_) => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                since.as_secs() << 24
            }
        }
    }
}

/// A hunt under way, shared by its threads.
#[derive(Debug)]
pub(crate) struct Hunt {
    begun: Instant,
    from: u64,
    bound: Bound,
    size: Size,
    next: AtomicU64,
    failed: AtomicBool,
}

/// What a hunt has found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    size: Option<Size>,
    took: Duration,
    seeds: u64,
    steps: u64,
    effects: u64,
    faults: u64,
    /// Seeds that failed with what the judge said: each thread ends with its first.
    pub(crate) failed: Vec<(u64, String)>,
}

impl Hunt {
    pub(crate) fn new(from: u64, bound: Bound, size: Size) -> Self {
        let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { begun: Instant::now(), from, bound, size, next, failed }
    }

    /// Plays on all cores.
    pub(crate) fn run(&self) -> Found {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let mut all = Found { size: Some(self.size), ..Found::default() };
        thread::scope(|scope| {
            let hunters: Vec<_> = (0..threads).map(|_| scope.spawn(|| self.play())).collect();
            for hunter in hunters {
                match hunter.join() {
                    Ok(part) => all.add(part),
                    Err(_) => all.failed.push((self.from, "the simulator itself panicked".into())),
                }
            }
        });
        all.took = self.begun.elapsed();
        all.failed.sort();
        all
    }

    fn play(&self) -> Found {
        let mut found = Found::default();
        while let Some(seed) = self.next_seed() {
            let played = play(seed, self.size, false);
            found.seeds += 1;
            found.steps += played.steps;
            found.effects += played.effects;
            found.faults += played.faults;
            if let Some(violation) = played.violation {
                self.failed.store(true, Ordering::Relaxed);
                found.failed.push((seed, violation));
            }
        }
        // A scope may end before the values of its threads are dropped.
        coverage::flush();
        found
    }

    fn next_seed(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let over = match self.bound {
            Bound::Seeds(seeds) => number >= seeds,
            Bound::Time(time) => self.begun.elapsed() >= time,
        };
        let over = over || self.failed.load(Ordering::Relaxed);
        (!over).then(|| self.from.wrapping_add(number))
    }
}

impl Found {
    fn add(&mut self, part: Self) {
        self.seeds += part.seeds;
        self.steps += part.steps;
        self.effects += part.effects;
        self.faults += part.faults;
        self.failed.extend(part.failed);
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64().max(0.001);
        let rate = self.seeds as f64 / seconds;
        let Self { seeds, steps, effects, faults, .. } = self;
        write!(
            f,
            "{seeds} seeds in {seconds:.1} s: {rate:.1} seeds/s, {steps} steps, {effects} effects, \
             {faults} faults"
        )?;
        let long = if self.size == Some(Size::Long) { " --long" } else { "" };
        for (seed, violation) in &self.failed {
            write!(f, "\nFAILED seed {seed}: {violation}")?;
            write!(f, "\nreplay: ./dev sim --seed {seed}{long}")?;
        }
        Ok(())
    }
}

/// What this process has reached, zeros first.
pub(crate) fn coverage() -> String {
    let counts = coverage::counts().into_iter().map(|(id, count)| (id.to_owned(), count)).collect();
    rules::table(rules::SPEC, &counts)
}
