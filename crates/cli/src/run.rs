//! `walferry run`: starts the pipeline, shows it, and passes signals on.

use core::time::Duration;

use indicatif::MultiProgress;
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, interval_at};
use walferry::Handle;
use walferry_core::config::Until;
use walferry_core::notice::{Notice, Outcome};

use crate::args::{PipelineArgs, RunArgs};
use crate::engine;
use crate::error::{self, CliError};
use crate::exit_code::{ExitCode, Signal};
use crate::hints::{self, Surroundings};
use crate::logging;
use crate::output;
use crate::progress::Snapshot;
use crate::render::{self, Renderer};
use crate::settings::Plan;

/// `walferry run`: until the pipeline has ended.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, CliError> {
    follow(Plan::new(&args.pipeline, args.until)?)
}

/// `walferry recreate`: start-up with a new main slot, up to the save of the tables (L-06).
pub(crate) fn recreate(args: &PipelineArgs) -> Result<ExitCode, CliError> {
    follow(Plan::new(args, Some(Until::Recreated))?)
}

fn follow(plan: Plan) -> Result<ExitCode, CliError> {
    let bars = MultiProgress::new();
    logging::start(&bars)?;
    let around = plan.surroundings();
    if plan.source.is_unverified_remote() {
        tracing::warn!(
            "the identity of {} is not verified: sslmode=verify-full would do it",
            around.source
        );
    }
    engine::block_on(drive(plan, &around, bars))
        .map_err(|fault| CliError::of_fault("starting", &fault, None, &around))?
}

async fn drive(
    plan: Plan,
    around: &Surroundings,
    bars: MultiProgress,
) -> Result<ExitCode, CliError> {
    let mut signals = Signals::new()?;
    let recreates = plan.until == Some(Until::Recreated);
    let pipeline = tokio::select! {
        started = engine::start(plan) => started?,
        _ = signals.next() => return Ok(ExitCode::Done),
    };
    let handle = pipeline.handle();
    let mut notices = handle.notices();
    let mut renderer = Renderer::new(bars);
    // A log has nothing to say yet; bars show at once that something is being done.
    let first = if output::is_terminal() { Duration::ZERO } else { renderer.pace() };
    let mut pace = interval_at(Instant::now() + first, renderer.pace());
    let mut signal = None;
    let ended = pipeline.wait();
    tokio::pin!(ended);
    let outcome = loop {
        tokio::select! {
            outcome = &mut ended => break outcome,
            received = notices.recv() => tell(received, &handle, around),
            received = signals.next() => {
                if signal.replace(received).is_none() { handle.stop() } else { handle.stop_now() }
            }
            _ = pace.tick() => renderer.show(&engine::snapshot(&handle)),
        }
    };
    // What was said just before the end: the channel is closed or empty then.
    while let Ok(notice) = notices.try_recv() {
        tell(Ok(notice), &handle, around);
    }
    renderer.finish();
    if recreates && let Outcome::Stopped { until_reached: true, .. } = outcome {
        tracing::info!("every table will be copied anew: start walferry run");
        return Ok(ExitCode::Done);
    }
    conclude(&outcome, signal, &engine::snapshot(&handle), around)
}

fn tell(received: Result<Notice, RecvError>, handle: &Handle, around: &Surroundings) {
    match received {
        Ok(notice) => {
            render::tell(&notice, &|table| engine::table_name(handle, table));
            // What does not pass by itself is named at the first failure, not at the last.
            if let Notice::MainRetry { failures: 1, fault, .. } = &notice {
                for hint in hints::of_fault(fault, around) {
                    tracing::warn!("hint: {hint}");
                }
            }
            if let Notice::TableErrored { table, fault, retry_in: None, .. } = &notice {
                let table = engine::table_name(handle, *table);
                let hints = match fault {
                    Some(fault) => hints::of_fault(fault, around),
                    None => vec![hints::of_shape(&table, around)],
                };
                for hint in hints {
                    tracing::warn!(table, "hint: {hint}");
                }
            }
        }
        Err(RecvError::Lagged(lost)) => tracing::warn!(lost, "some notices were not shown"),
        Err(RecvError::Closed) => {}
    }
}

/// What the end of the run means for the caller.
fn conclude(
    outcome: &Outcome,
    signal: Option<Signal>,
    last: &Snapshot,
    around: &Surroundings,
) -> Result<ExitCode, CliError> {
    let exit = ExitCode::of_outcome(outcome, signal);
    match outcome {
        Outcome::Failed { action, fault } => {
            if !output::is_terminal() {
                tracing::error!(action, "run failed: {}", error::cause(fault));
            }
            Err(CliError { exit, ..CliError::of_fault(action, fault, signal, around) })
        }
        Outcome::Stopped { errored, until_reached: true } if *errored > 0 => {
            let stopped = last.tables.iter().filter(|table| table.phase == "errored");
            let names: Vec<_> = stopped.map(|table| table.name.as_str()).collect();
            Err(CliError {
                what: format!("the end was reached without {errored} of the tables"),
                why: names.join(", "),
                hints: vec![
                    format!("see why: walferry status --state {}", around.state),
                    format!(
                        "once the cause is gone: walferry retry --state {}, and run again",
                        around.state
                    ),
                ],
                exit,
            })
        }
        Outcome::Stopped { .. } => {
            let lsn = last.checkpoint.map(tracing::field::display);
            tracing::info!(lsn, "stopped in order: everything delivered is saved and confirmed");
            Ok(exit)
        }
    }
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Signals {
    fn new() -> Result<Self, CliError> {
        let failed = |error| CliError::usage("signals cannot be received", error);
        Ok(Self {
            interrupt: unix::signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: unix::signal(SignalKind::terminate()).map_err(failed)?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
        }
    }
}

#[cfg(test)]
mod tests {
    use walferry_core::fault::{Fault, FaultKind, Origin};
    use walferry_core::ids::TableId;

    use super::*;
    use crate::progress::TableProgress;

    fn concluded(outcome: &Outcome, signal: Option<Signal>) -> Result<ExitCode, CliError> {
        let table = TableProgress {
            table: TableId(1),
            name: "public.t".to_owned(),
            phase: "errored",
            copy: None,
        };
        let last = Snapshot { tables: vec![table], ..Snapshot::default() };
        conclude(outcome, signal, &last, &Surroundings::default())
    }

    // L-08, Q-05
    #[test]
    fn the_end_of_a_run_names_what_is_missing() {
        let stopped = |until_reached| Outcome::Stopped { errored: 1, until_reached };
        assert_eq!(concluded(&stopped(false), Some(Signal::Interrupt)).unwrap(), ExitCode::Done);
        let error = concluded(&stopped(true), None).unwrap_err();
        assert_eq!((error.exit, error.why.as_str()), (ExitCode::Person, "public.t"));
        let cut = Fault::found(Origin::Core, FaultKind::StopTimeout);
        let cut = Outcome::Failed { action: "stopping", fault: cut };
        let error = concluded(&cut, Some(Signal::Interrupt)).unwrap_err();
        assert_eq!(error.exit, ExitCode::CutShort(Signal::Interrupt));
        assert_eq!(error.what, "stopping failed");
    }
}
