//! `./dev bench copy|stream`: whole processes, beside PostgreSQL's own tools.
//!
//! One private server per call. Contenders take turns, so that whatever slows the machine down slows
//! all of them; the figures are medians over the runs. CPU and memory are those of the client
//! process, as the system counted them; the server's are left out.
//!
//! What the null destination has counted is compared with sums that the source made in SQL: a
//! contender that is fast because it reads less is an error.

mod copy;
mod counts;
mod drain;
mod measure;
mod server;
mod stream;
mod table;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::drain::DrainArgs;
use crate::table::{Budget, Results};

#[derive(Debug, Parser)]
#[command(name = "walferry-bench", about = "Compares walferry with PostgreSQL's own tools")]
struct Cli {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// The copy of one table: psql COPY, walferry into null: and into SQLite
    Copy(BenchArgs),
    /// The changes of one slot: pg_recvlogical, a raw drain, walferry into null: and into SQLite
    Stream(BenchArgs),
    /// Reads a slot to a position and discards it: a contender of `stream`
    #[command(hide = true)]
    Drain(DrainArgs),
}

#[derive(Args, Clone, Debug)]
struct BenchArgs {
    /// Rows of the largest table, or changes [default: 10 million rows, 2 million changes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1_000..))]
    rows: Option<u64>,
    /// How often each contender runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Version of PostgreSQL
    #[arg(long, value_name = "N", default_value_t = 15)]
    major: u32,
    /// A tenth of the rows, one run: shows that everything works, not how fast
    #[arg(long)]
    quick: bool,
    /// Fail if a budget is missed
    #[arg(long)]
    check: bool,
}

impl BenchArgs {
    fn rows(&self, default: u64) -> u64 {
        self.rows.unwrap_or(if self.quick { default / 10 } else { default })
    }

    fn runs(&self) -> u16 {
        if self.quick { 1 } else { self.runs }
    }
}

fn main() -> ExitCode {
    let (results, check) = match Cli::parse().kind {
        Kind::Drain(args) => return drain::run(&args),
        Kind::Copy(args) => (copy::run(&args), args.check),
        Kind::Stream(args) => (stream::run(&args), args.check),
    };
    conclude(&results, check)
}

/// Wrong counts are always an error, missed budgets only if they are to be checked.
fn conclude(results: &Results, check: bool) -> ExitCode {
    let mut failed = false;
    for mismatch in results.mismatches() {
        server::say(&format!("WRONG: {mismatch}"));
        failed = true;
    }
    for Budget { what, measured, allowed, met } in results.budgets() {
        let verdict = if met { "met" } else { "MISSED" };
        server::say(&format!("budget {verdict}: {what} {measured}, allowed {allowed}"));
        failed |= check && !met;
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
