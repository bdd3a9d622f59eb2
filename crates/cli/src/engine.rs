//! The one place that knows the embedding API: starts a pipeline and translates what it shows.

use core::future::Future;
use core::time::Duration;

use walferry::destinations::AnyDestination;
use walferry::{Handle, Pipeline, StartError};
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::ids::TableId;
use walferry_core::lsn::{Lsn, Position};
use walferry_core::source::MonitorFacts;
use walferry_core::view::TableView;
use walferry_pg_source::{Source, SourceConfig, SourceOptions};

use crate::error::CliError;
use crate::progress::{CopyProgress, Snapshot, TableProgress};
use crate::settings::Plan;

/// Longest wait of a person who wants to see the status: connecting takes at most as long.
const MONITOR_BUDGET: Duration = Duration::from_secs(30);

/// Starts a pipeline.
pub(crate) async fn start(plan: Plan) -> Result<Pipeline, CliError> {
    let around = plan.surroundings();
    let builder = Pipeline::builder::<AnyDestination>()
        .source(plan.source)
        .publication(plan.publication)
        .destination(plan.destination)
        .state(plan.state.open())
        .limits(plan.limits)
        .until(plan.until);
    builder.start().await.map_err(|error| match error {
        StartError::Missing(part) => CliError::usage("a part is missing", part),
        StartError::Config(error) => CliError::of_setting(&error),
        StartError::Fault { action, fault } => CliError::of_fault(action, &fault, None, &around),
    })
}

/// What a running pipeline shows.
pub(crate) fn snapshot(handle: &Handle) -> Snapshot {
    let status = handle.status();
    let positions = status.view.positions;
    let known = |position: Position| (position.0 > Lsn::ZERO).then_some(position);
    // The monitor looks seldom; what was read since then is the server's WAL as well.
    let monitored = status.monitored.as_ref().map(|facts| facts.wal_end);
    Snapshot {
        lifecycle: status.view.lifecycle,
        tables: status.view.tables.iter().map(table).collect(),
        changes: status.changes,
        checkpoint: known(positions.checkpoint),
        wal_end: monitored.max(known(positions.received).map(|position| position.0)),
    }
}

fn table(view: &TableView) -> TableProgress {
    TableProgress {
        table: view.table,
        name: view.name.clone(),
        phase: view.phase.word(),
        copy: view.copy.map(|copy| CopyProgress {
            step: copy.step,
            rows: copy.rows,
            bytes: copy.bytes,
            heap_bytes: copy.heap_bytes,
        }),
    }
}

/// The name of a table of a running pipeline.
pub(crate) fn table_name(handle: &Handle, table: TableId) -> String {
    let status = handle.status();
    let tables = &status.view.tables;
    match tables.binary_search_by_key(&table, |view| view.table) {
        Ok(index) => tables[index].name.clone(),
        Err(_) => format!("oid {table}"),
    }
}

/// Asks the source about a slot.
pub(crate) async fn monitor(
    source: SourceConfig,
    publication: &str,
    slot: &str,
) -> Result<MonitorFacts, Fault> {
    let source = Source::new(source, SourceOptions::new(publication));
    let budget = MONITOR_BUDGET;
    match tokio::time::timeout(budget, source.monitor(slot)).await {
        Ok(seen) => seen,
        Err(_) => Err(Fault::found(Origin::Source, FaultKind::Timeout { budget })),
    }
}

/// Runs one future on an executor of its own. What still runs on other threads is left behind: a
/// stop that was cut short must not wait for it.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, Fault> {
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::new(Origin::Core, FaultKind::Violation, error.to_string()))?;
    let output = executor.block_on(future);
    executor.shutdown_background();
    Ok(output)
}
