//! `walferry-rules [DIRECTORY]`: which invariants and fault points the runs that wrote their counts
//! to the directory (by default that of `WALFERRY_COVERAGE_DIR`) did not reach. Exit code 1 if one is
//! missing that `tests/not_covered.txt` does not excuse.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command: its report is its output"
)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use walferry_tests::{coverage, rules};

#[derive(Debug, Parser)]
#[command(name = "walferry-rules", about = "Compares what the tests reached with docs/spec.md")]
struct Cli {
    /// Where the counts lie
    #[arg(env = coverage::DIRECTORY)]
    directory: PathBuf,
}

fn main() -> ExitCode {
    let Cli { directory } = Cli::parse();
    let counts = match rules::sum(&directory) {
        Ok(counts) => counts,
        Err(error) => {
            eprintln!("{}: {error}", directory.display());
            return ExitCode::FAILURE;
        }
    };
    let report = rules::compare(rules::SPEC, rules::NOT_COVERED, &counts);
    print!("{report}");
    if report.complaints().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
