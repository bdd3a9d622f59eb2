//! When the pipeline is killed, and what was seen just before.

use core::time::Duration;
use std::thread;
use std::time::Instant;

use crate::demo::Failure;
use crate::demo::pipeline::{Program, Running, Seen};
use crate::demo::schema::TABLES;
use crate::demo::writer::Writer;

/// How long a phase may be waited for.
const LIMIT: Duration = Duration::from_secs(60);
/// More kills while all stream, if the planned ones did not meet it often enough.
const EXTRA: usize = 6;

/// The phase that a kill is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    /// A table is being copied.
    Copying,
    /// All tables stream.
    Streaming,
    /// Whatever is the case when the time is up.
    Any,
}

/// One kill to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kill {
    aim: Aim,
    /// From the moment that the aim is met, or from the start.
    delay: Duration,
}

/// What was the case when the kill came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Copying,
    Streaming,
    Between,
}

/// How many kills there were, by moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kills {
    pub(super) copying: usize,
    pub(super) streaming: usize,
    pub(super) between: usize,
}

/// A kill that was made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) age: Duration,
    pub(super) seen: Seen,
    pub(super) moment: Moment,
}

/// Plans kills. Those in the copy come first: a table is copied but once. There are at most four of
/// them, because a table whose copy kills its process too often is set aside for a while.
pub(super) fn plan(rng: &mut fastrand::Rng, kills: usize, rows: u64) -> Vec<Kill> {
    let copying = (kills / 3).clamp(1, 4);
    // A copy takes about this long on a fast machine.
    let copy_millis = (rows / 1_000).clamp(5, 500);
    (0..kills)
        .map(|number| {
            let (aim, millis) = if number < copying {
                (Aim::Copying, rng.u64(0..copy_millis))
            } else if (number - copying) % 3 == 2 {
                (Aim::Any, rng.u64(0..1_200))
            } else {
                (Aim::Streaming, rng.u64(100..3_000))
            };
            Kill { aim, delay: Duration::from_millis(millis) }
        })
        .collect()
}

impl Kills {
    /// The least of each kind that proves something.
    pub(super) fn required(kills: usize) -> Self {
        Self {
            copying: (kills / 5).clamp(1, 2),
            streaming: (kills * 2 / 5).clamp(1, 4),
            between: 0,
        }
    }

    pub(super) const fn all(self) -> usize {
        self.copying + self.streaming + self.between
    }

    const fn count(&mut self, moment: Moment) {
        match moment {
            Moment::Copying => self.copying += 1,
            Moment::Streaming => self.streaming += 1,
            Moment::Between => self.between += 1,
        }
    }
}

/// Starts and kills the pipeline as planned, and tells `report` of each kill.
pub(super) fn make(
    program: &Program,
    writer: &Writer,
    plan: &[Kill],
    mut report: impl FnMut(usize, &Made) -> Result<(), Failure>,
) -> Result<Kills, Failure> {
    let required = Kills::required(plan.len());
    let extra = Kill { aim: Aim::Streaming, delay: Duration::from_millis(500) };
    let (mut kills, mut last) = (Kills::default(), Seen::default());
    for kill in plan.iter().chain(std::iter::repeat_n(&extra, EXTRA)) {
        if kills.all() >= plan.len() && kills.streaming >= required.streaming {
            break;
        }
        let made = make_one(program, writer, *kill, &last)?;
        kills.count(made.moment);
        report(kills.all(), &made)?;
        last = made.seen;
    }
    Ok(kills)
}

fn make_one(program: &Program, writer: &Writer, kill: Kill, last: &Seen) -> Result<Made, Failure> {
    // What the run before left in the record and at the server does not count.
    let is_copying = |seen: &Seen| seen.epoch > last.epoch && seen.is_copying();
    let all_stream = |seen: &Seen| {
        seen.epoch > last.epoch
            && seen.sender.is_some()
            && seen.sender != last.sender
            && seen.all_handed_over(TABLES.len())
    };
    let mut running = program.run(&[])?;
    match kill.aim {
        Aim::Copying => await_aim(program, writer, &mut running, false, |seen| {
            is_copying(seen) || seen.all_handed_over(TABLES.len())
        })?,
        Aim::Streaming => await_aim(program, writer, &mut running, true, all_stream)?,
        Aim::Any => {}
    }
    thread::sleep(kill.delay);
    let seen = look(program, writer, kill.aim != Aim::Copying)?;
    check_alive(program, writer, &mut running)?;
    let age = running.age();
    running.kill();
    // The record survives the kill: a copy that was over by then was not hit.
    let left = program.status(false)?;
    let moment = if is_copying(&seen) && left.is_copying() {
        Moment::Copying
    } else if all_stream(&seen) {
        Moment::Streaming
    } else {
        Moment::Between
    };
    Ok(Made { age, seen, moment })
}

/// Looks until `is_met`.
fn await_aim(
    program: &Program,
    writer: &Writer,
    running: &mut Running,
    ask_source: bool,
    is_met: impl Fn(&Seen) -> bool,
) -> Result<(), Failure> {
    let end = Instant::now() + LIMIT;
    loop {
        check_alive(program, writer, running)?;
        let seen = look(program, writer, ask_source)?;
        if is_met(&seen) {
            return Ok(());
        }
        if Instant::now() > end {
            let why = format!("{} after {LIMIT:?}\n{}", seen.text(), program.log_tail());
            return Err(Failure::new("the pipeline does not get on", why));
        }
        // Often enough to meet a copy, seldom enough to leave it the machine.
        thread::sleep(Duration::from_millis(if ask_source { 50 } else { 5 }));
    }
}

fn look(program: &Program, writer: &Writer, ask_source: bool) -> Result<Seen, Failure> {
    let seen = program.status(ask_source)?;
    if seen.is_handed_over("inbox") {
        writer.touch_inbox();
    }
    Ok(seen)
}

fn check_alive(program: &Program, writer: &Writer, running: &mut Running) -> Result<(), Failure> {
    if let Some(status) = running.has_ended() {
        let why = format!("{status}\n{}", program.log_tail());
        return Err(Failure::new("walferry run ended by itself", why));
    }
    if writer.has_failed() {
        return Err(Failure::new("the writer stopped", "a session ended by itself"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_the_plan_and_the_plan_can_meet_what_is_required() {
        for kills in 3..40 {
            let of = |seed| plan(&mut fastrand::Rng::with_seed(seed), kills, 400_000);
            assert_eq!(of(1), of(1));
            assert_ne!(of(1), of(2));
            let aims = |aim| of(1).iter().filter(|kill| kill.aim == aim).count();
            let required = Kills::required(kills);
            assert!(aims(Aim::Copying) >= required.copying, "{kills}");
            assert!(aims(Aim::Streaming) >= required.streaming, "{kills}");
        }
        let required = Kills::required(10);
        assert_eq!((required.copying, required.streaming), (2, 4));
    }
}
