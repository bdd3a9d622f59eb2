//! The `walferry` command: arguments, settings, what people see, exit codes. No rules.

mod args;
mod demo;
mod engine;
mod error;
mod exit_code;
mod hints;
mod logging;
mod output;
mod progress;
mod render;
mod request;
mod run;
mod settings;
mod status;
mod units;

use std::panic;
use std::process;

use clap::CommandFactory;

use crate::args::{Cli, Verb};
use crate::error::CliError;
use crate::exit_code::ExitCode;

fn main() -> process::ExitCode {
    panic::set_hook(Box::new(report_bug));
    let ended = panic::catch_unwind(|| match args::parse(std::env::args_os()) {
        Ok(cli) => dispatch(cli.verb),
        Err(error) => Ok(print_usage(&error)),
    });
    match ended {
        Ok(Ok(exit)) => exit.into(),
        Ok(Err(error)) => {
            output::print_error(&error);
            error.exit.into()
        }
        Err(_) => ExitCode::Internal.into(),
    }
}

fn dispatch(verb: Verb) -> Result<ExitCode, CliError> {
    match verb {
        Verb::Run(args) => run::run(&args),
        Verb::Recreate(args) => run::recreate(&args),
        Verb::Status(args) => status::run(&args),
        Verb::Retry(args) => request::retry(&args),
        Verb::Resync(args) => request::resync(&args),
        Verb::Demo(args) => demo::run(&args),
        Verb::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "walferry", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
        Verb::Version { json } => print(&version(json)),
    }
}

fn version(json: bool) -> String {
    let (version, format) = (env!("CARGO_PKG_VERSION"), walferry_core::record::FORMAT);
    if json {
        format!("{}\n", serde_json::json!({ "version": version, "state_format": format }))
    } else {
        format!("walferry {version} (state format {format})\n")
    }
}

fn print(text: &str) -> Result<ExitCode, CliError> {
    output::print(text)
        .map(|()| ExitCode::Done)
        .map_err(|error| CliError::usage("writing to standard output failed", error))
}

/// Help goes to standard output, a refused command line to standard error.
fn print_usage(error: &clap::Error) -> ExitCode {
    drop(error.print());
    if error.use_stderr() { ExitCode::Configuration } else { ExitCode::Done }
}

fn report_bug(info: &panic::PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let why = info.payload_as_str().unwrap_or("no message");
    output::print_error(&CliError {
        what: format!("internal error at {place}"),
        why: why.to_owned(),
        hints: vec![
            "this is a bug: please report it with the log; a new start recovers".to_owned(),
        ],
        exit: ExitCode::Internal,
    });
}
