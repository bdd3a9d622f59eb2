//! `./dev sim`: plays the simulated world by seeds.
//!
//! Everything in a game follows from its seed, so a seed that failed is a complete report. Exit code 0
//! if no judge complained, 1 if one did.

#![expect(clippy::print_stdout, reason = "a command: its report is its output")]

mod hunt;
mod planted;

use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Parser};
use walferry_tests::world::player::{Played, Size, play};

use crate::hunt::{Bound, Hunt};

#[derive(Debug, Parser)]
#[command(name = "walferry-sim", about = "Plays the simulated world by seeds")]
#[command(group = ArgGroup::new("what").required(true).args(["seed", "seeds", "minutes", "planted"]))]
struct Cli {
    /// Replays one game and prints everything that happens in it
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Plays so many games
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Plays for so long, from a seed that the clock gives
    #[arg(long, value_name = "M")]
    minutes: Option<u64>,
    /// The first seed of --seeds or --minutes
    #[arg(long, value_name = "K", conflicts_with_all = ["seed", "planted"])]
    from: Option<u64>,
    /// Long games
    #[arg(long)]
    long: bool,
    /// Plants each bug of tests/planted into a copy of the tree, and demands that a game finds it
    #[arg(long)]
    planted: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let size = if cli.long { Size::Long } else { Size::Short };
    // A judge complains by a panic, and the game reports it: once is enough.
    std::panic::set_hook(Box::new(|_| ()));
    if let Some(seed) = cli.seed {
        return replay(seed, size);
    }
    if cli.planted {
        // The errors of this one are ours.
        drop(std::panic::take_hook());
        return planted::run();
    }
    let bound = match cli.minutes {
        Some(minutes) => Bound::Time(Duration::from_secs(60 * minutes)),
        None => Bound::Seeds(cli.seeds.unwrap_or(0)),
    };
    let from = cli.from.unwrap_or_else(|| bound.first_seed());
    println!("from seed {from}");
    let found = Hunt::new(from, bound, size).run();
    println!("{found}");
    println!("{}", hunt::coverage());
    if found.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay(seed: u64, size: Size) -> ExitCode {
    let Played { steps, effects, faults, violation, trace } = play(seed, size, true);
    print!("{}", trace.unwrap_or_default());
    println!("seed {seed}: {steps} steps, {effects} effects, {faults} faults");
    match violation {
        None => ExitCode::SUCCESS,
        Some(text) => {
            println!("VIOLATION: {text}");
            ExitCode::FAILURE
        }
    }
}
