//! Log lines on standard error: text for a person at a terminal, JSON for everybody else. No row
//! data, no secrets.

use std::io::{self, Write};

use indicatif::MultiProgress;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::error::CliError;
use crate::output;

/// The variable that says which lines are wanted.
const FILTER: &str = "WALFERRY_LOG";

/// Starts logging; once per process. Lines and progress bars share the terminal.
pub(crate) fn start(bars: &MultiProgress) -> Result<(), CliError> {
    let directives = std::env::var(FILTER).unwrap_or_default();
    let directives = if directives.trim().is_empty() { "info" } else { directives.trim() };
    let filter = EnvFilter::try_new(directives).map_err(|error| {
        CliError::usage(format!("{FILTER}={directives} was refused"), error)
            .hint(format!("for example {FILTER}=debug or {FILTER}=info,walferry_pg_source=debug"))
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(AboveBars(bars.clone()))
        .with_target(false)
        .with_ansi(output::has_colours());
    let started =
        if output::is_terminal() { builder.try_init() } else { builder.json().try_init() };
    started.map_err(|error| CliError::usage("logging could not be started", error))
}

/// Standard error above the progress bars.
#[derive(Clone)]
struct AboveBars(MultiProgress);

impl Write for AboveBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.suspend(|| io::stderr().write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

impl<'a> MakeWriter<'a> for AboveBars {
    type Writer = Self;

    fn make_writer(&'a self) -> Self::Writer {
        self.clone()
    }
}
