//! `walferry retry` and `walferry resync`: requests about tables while no run owns the state (L-06).

use walferry::{RequestError, request_tables};
use walferry_core::requests::{Refusal, TableRequest};

use crate::args::{PlaceArgs, ResyncArgs, RetryArgs};
use crate::error::CliError;
use crate::exit_code::ExitCode;
use crate::output;
use crate::settings;

/// Runs `walferry retry`.
pub(crate) fn retry(args: &RetryArgs) -> Result<ExitCode, CliError> {
    let publication = args.publication.as_deref();
    request(TableRequest::Retry, &args.tables, &args.place, publication)
}

/// Runs `walferry resync`.
pub(crate) fn resync(args: &ResyncArgs) -> Result<ExitCode, CliError> {
    let publication = args.publication.as_deref();
    request(TableRequest::Resync, &args.tables, &args.place, publication)
}

fn request(
    request: TableRequest,
    tables: &[String],
    place: &PlaceArgs,
    publication: Option<&str>,
) -> Result<ExitCode, CliError> {
    let url = settings::state_url(place, publication)?;
    let done = request_tables(&url.open(), request, tables)
        .map_err(|error| failed(&error, &url.to_string()))?;
    let text = if done.is_empty() {
        "no table has stopped: there is nothing to retry\n".to_owned()
    } else {
        let lines = done.iter().map(|name| format!("{name}: the next run copies it\n"));
        lines.collect()
    };
    output::print(&text).map_err(|error| CliError::usage("writing the answer failed", error))?;
    Ok(ExitCode::Done)
}

fn failed(error: &RequestError, state: &str) -> CliError {
    let what = "the request was refused".to_owned();
    let person = |hint: String| CliError {
        what: what.clone(),
        why: error.to_string(),
        hints: vec![hint],
        exit: ExitCode::Person,
    };
    match error {
        RequestError::Store(error) => CliError::of_store("changing the state", error),
        RequestError::Refused(Refusal::OnlyResync(name)) => {
            person(format!("walferry resync --state {state} {name}"))
        }
        RequestError::Refused(Refusal::Unknown(_) | Refusal::NotErrored { .. }) => {
            person(format!("see the tables: walferry status --state {state}"))
        }
        RequestError::NoState => person(format!("is {state} the right one? walferry run makes it")),
        RequestError::Start(_) => CliError { exit: ExitCode::Internal, ..person(String::new()) },
    }
}
