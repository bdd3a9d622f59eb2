//! Waiting for the world without guessing how long it takes.
//!
//! A test names what it waits for and how long it is ready to, and looks again and again. The limit
//! is there to end a broken test with a sentence, so it should be generous.

use std::thread;
use std::time::{Duration, Instant};

/// The first pause between two looks; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Looks until there is something, and returns it.
///
/// # Panics
///
/// When `limit` has passed; the message says `what` was waited for.
#[track_caller]
pub fn wait_for<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    match try_wait_for(limit, &mut look) {
        Some(found) => found,
        None => panic!("waited {limit:?} in vain for {what}"),
    }
}

/// Looks until `holds` returns true.
///
/// # Panics
///
/// When `limit` has passed; the message says `what` was waited for.
#[track_caller]
pub fn wait_until(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(limit, what, || holds().then_some(()));
}

/// As [`wait_for`], but `None` when `limit` has passed, for callers with more to say than a name.
pub fn try_wait_for<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    let mut pause = PAUSE_MIN;
    loop {
        // Asked before looking: a slow look is still given its answer after the limit.
        let last = start.elapsed() >= limit;
        if let Some(found) = look() {
            return Some(found);
        }
        if last {
            return None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_what_a_later_look_finds() {
        let mut looks = 0;
        let found = wait_for(Duration::from_secs(10), "the third look", || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, 3);
    }

    #[test]
    fn looks_at_least_once_and_then_gives_up() {
        let mut looks = 0;
        let found: Option<()> = try_wait_for(Duration::ZERO, || {
            looks += 1;
            None
        });
        assert_eq!((found, looks), (None, 1));
    }
}
