//! `walferry status`: what the record says, and what the slot at the source says if it is asked.

mod report;

use walferry_core::fault::Fault;
use walferry_core::record::Identity;
use walferry_core::source::MonitorFacts;
use walferry_pg_source::SourceConfig;
use walferry_store::Store;

use crate::args::StatusArgs;
use crate::engine;
use crate::error::CliError;
use crate::exit_code::ExitCode;
use crate::hints::Surroundings;
use crate::output;
use crate::settings;
use report::Report;

/// Runs the verb.
pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode, CliError> {
    let url = settings::state_url(&args.place, args.publication.as_deref())?;
    let source = args.source.as_deref().map(settings::source).transpose()?;
    let record =
        url.open().observe().map_err(|error| CliError::of_store("reading the state", &error))?;

    let seen = match (&source, &record) {
        (Some(source), Some(record)) => Some(monitor(source, &record.identity)),
        (Some(_) | None, Some(_) | None) => None,
    };
    let (slot, failed) = match seen {
        None => (None, None),
        Some(Ok(facts)) => (Some(facts), None),
        Some(Err(fault)) => (None, Some(fault)),
    };

    let report = Report::new(&url.to_string(), record.as_ref(), slot.as_ref());
    let text = if args.json { report.json() } else { report.text() };
    output::print(&text).map_err(|error| CliError::usage("writing the status failed", error))?;
    if let (Some(fault), Some(source)) = (failed, &source) {
        let around = Surroundings {
            source: source.describe(),
            state: url.to_string(),
            ..Surroundings::default()
        };
        return Err(CliError::of_fault("looking at the slot", &fault, None, &around));
    }
    Ok(if report.is_healthy() { ExitCode::Done } else { ExitCode::Person })
}

fn monitor(source: &SourceConfig, identity: &Identity) -> Result<MonitorFacts, Fault> {
    let Identity { publication, slot, .. } = identity;
    engine::block_on(engine::monitor(source.clone(), publication, slot))?
}
