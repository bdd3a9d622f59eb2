//! Builds and starts a pipeline: validates without IO, takes the state, then runs the loop on a
//! thread of its own, whatever executor the caller uses.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use walferry_core::config::{Config, ConfigError, Limits, Until};
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::notice::Outcome;
use walferry_core::record::Record;
use walferry_core::{Pipeline as Core, Seed};
use walferry_destinations::Destination;
use walferry_pg_source::{Source, SourceConfig, SourceOptions};
use walferry_store::{FileStore, Owned, OwnedFile, OwnerToken, Store};

use crate::clock::Clock;
use crate::control::{Handle, Status};
use crate::copies::Copies;
use crate::destination::DestinationThread;
use crate::driver::Driver;
use crate::ops::Ops;
use crate::saves::Saves;
use crate::streams::Streams;
use crate::work::Adapters;

/// Inputs on their way into the loop; the core counts their bytes only once it has them (B-05).
const INPUTS: usize = 8;
/// Notices kept for a receiver that is behind.
const NOTICES: usize = 4_096;

/// Reads a source URL or key=value string with the `PG*` variables of the environment.
///
/// # Errors
/// A text that is not a source, naming the part that is wrong.
pub fn source_from_env(text: &str) -> Result<SourceConfig, Fault> {
    SourceConfig::parse(text, &|name| std::env::var(name).ok())
}

/// Why a pipeline did not start. Nothing durable was changed.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum StartError {
    /// A part was not given.
    #[error("the pipeline has no {0}")]
    Missing(&'static str),
    /// A setting is not allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The state could not be taken, or this machine lacks something.
    #[error("{action}: {fault}")]
    Fault {
        /// What was attempted.
        action: &'static str,
        /// Why it failed.
        fault: Fault,
    },
}

/// Collects what a pipeline needs.
#[derive(Debug)]
pub struct Builder<D> {
    source: Option<SourceConfig>,
    publication: Option<String>,
    destination: Option<D>,
    state: Option<FileStore>,
    limits: Limits,
    until: Option<Until>,
}

/// A running pipeline. Dropping it ends the run at once, which is as safe as a crash.
#[derive(Debug)]
pub struct Pipeline {
    handle: Handle,
    ended: oneshot::Receiver<Outcome>,
}

impl Pipeline {
    /// Begins with nothing but defaults.
    #[must_use]
    pub fn builder<D: Destination>() -> Builder<D> {
        Builder {
            source: None,
            publication: None,
            destination: None,
            state: None,
            limits: Limits::default(),
            until: None,
        }
    }

    /// Controls the pipeline from elsewhere; it may be cloned and outlives the run.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until the run ends by itself, by a stop, or by a failure.
    pub async fn wait(mut self) -> Outcome {
        let ended = (&mut self.ended).await;
        ended.unwrap_or_else(|_| Outcome::Failed {
            action: "running",
            fault: Fault::new(Origin::Core, FaultKind::Violation, "the loop panicked"),
        })
    }

    /// Stops in order and waits for the end.
    pub async fn stop(self) -> Outcome {
        self.handle.stop();
        self.wait().await
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if self.handle.status.borrow().outcome.is_none() {
            self.handle.stop_now();
        }
    }
}

impl<D: Destination> Builder<D> {
    /// Where the data comes from.
    #[must_use]
    pub fn source(mut self, source: SourceConfig) -> Self {
        self.source = Some(source);
        self
    }

    /// Which publication is copied.
    #[must_use]
    pub fn publication(mut self, name: impl Into<String>) -> Self {
        self.publication = Some(name.into());
        self
    }

    /// Where the data goes.
    #[must_use]
    pub fn destination(mut self, destination: D) -> Self {
        self.destination = Some(destination);
        self
    }

    /// Where the record is kept.
    #[must_use]
    pub fn state(mut self, store: FileStore) -> Self {
        self.state = Some(store);
        self
    }

    /// Bounds other than the defaults of spec chapter 30.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Lets the run end by itself.
    #[must_use]
    pub const fn until(mut self, until: Option<Until>) -> Self {
        self.until = until;
        self
    }

    /// Validates everything, takes the state, and starts the run. Returns before the source is
    /// reached: what it says comes as notices and as the outcome.
    ///
    /// # Errors
    /// A missing part, a setting that is not allowed, a state that is held by another process or
    /// cannot be read.
    pub async fn start(self) -> Result<Pipeline, StartError> {
        self.start_with(getrandom::fill).await
    }

    async fn start_with(self, fill: Fill) -> Result<Pipeline, StartError> {
        let source = self.source.ok_or(StartError::Missing("source"))?;
        let publication = self.publication.ok_or(StartError::Missing("publication"))?;
        let destination = self.destination.ok_or(StartError::Missing("destination"))?;
        let store = self.state.ok_or(StartError::Missing("state"))?;
        let config = Config {
            publication: publication.clone(),
            database: source.database().to_owned(),
            destination: destination.declare(),
            until: self.until,
            limits: self.limits,
        };
        config.validate()?;
        let (owned, record) = take_state(store, fill).await?;
        let seed = Seed(random(fill)?);
        let clock = Clock::start();
        let core = Core::new(config.clone(), record, seed, clock.now())?;
        let options = SourceOptions {
            publication,
            connect_budget: Duration::from_millis(config.limits.connect_ms),
            frame_bytes: usize::try_from(config.limits.frame_bytes).unwrap_or(usize::MAX),
        };
        spawn(core, clock, Source::new(source, options), destination, owned)
    }
}

/// U-01: acquires the store and loads the record.
async fn take_state(
    store: FileStore,
    fill: Fill,
) -> Result<(OwnedFile, Option<Record>), StartError> {
    let token = OwnerToken(random(fill)?);
    let taken = tokio::task::spawn_blocking(move || {
        let mut owned = store.acquire(token)?;
        let record = owned.load()?;
        Ok((owned, record))
    });
    let failed = |fault| StartError::Fault { action: "opening the state", fault };
    match taken.await {
        Ok(result) => result.map_err(|error: walferry_store::StoreError| failed(error.into())),
        Err(error) => {
            Err(failed(Fault::new(Origin::Store, FaultKind::StoreFailed, error.to_string())))
        }
    }
}

/// A source of secure random bytes.
pub(crate) type Fill = fn(&mut [u8]) -> Result<(), getrandom::Error>;

pub(crate) fn random<const N: usize>(fill: Fill) -> Result<[u8; N], StartError> {
    let mut bytes = [0; N];
    fill(&mut bytes).map_err(|error| StartError::Fault {
        action: "drawing random bytes",
        fault: Fault::new(Origin::Core, FaultKind::EntropyUnavailable, error.to_string()),
    })?;
    Ok(bytes)
}

/// Runs the loop on its own thread with a single-threaded executor: on more threads the stream's
/// path costs several times the CPU.
fn spawn<D: Destination>(
    core: Core<bytes::Bytes>,
    clock: Clock,
    source: Source,
    destination: D,
    owned: OwnedFile,
) -> Result<Pipeline, StartError> {
    let failed = |error: &dyn fmt::Display| StartError::Fault {
        action: "starting a thread",
        fault: Fault::new(Origin::Core, FaultKind::Violation, error.to_string()),
    };
    let destination = DestinationThread::spawn(destination).map_err(|e| failed(&e))?;
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| failed(&e))?;
    let (sender, inputs) = mpsc::channel(INPUTS);
    let (requests, requested) = mpsc::unbounded_channel();
    let (notices, _) = broadcast::channel(NOTICES);
    let picture = Status { view: core.view(), monitored: None, changes: 0, outcome: None };
    let (status, watched) = watch::channel(Arc::new(picture));
    let (end, ended) = oneshot::channel();
    let handle = Handle { requests, status: watched, notices: notices.clone() };
    let driver = Driver {
        core,
        clock,
        adapters: Adapters {
            ops: Ops::new(sender),
            source,
            saves: Saves::new(owned),
            destination,
            streams: Streams::default(),
            copies: Copies::default(),
        },
        inputs,
        requests: requested,
        status,
        notices,
        monitored: None,
        changes: 0,
        drawn: None,
    };
    let run = move || {
        let outcome = executor.block_on(driver.run());
        // Nobody may be waiting any more.
        drop(end.send(outcome));
    };
    std::thread::Builder::new().name("walferry".to_owned()).spawn(run).map_err(|e| failed(&e))?;
    Ok(Pipeline { handle, ended })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use walferry_destinations::NullDestination;

    use super::*;

    fn never(_: &mut [u8]) -> Result<(), getrandom::Error> {
        Err(getrandom::Error::UNSUPPORTED)
    }

    /// The owner's token can be drawn, the seed of the run cannot.
    fn once(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        if CALLS.fetch_add(1, Ordering::Relaxed) == 0 {
            getrandom::fill(bytes)
        } else {
            never(bytes)
        }
    }

    // N-F1, N-01: no record, and nothing that keeps the next start away
    #[tokio::test]
    async fn without_random_bytes_nothing_is_begun() {
        for fill in [never as Fill, once] {
            let directory = tempfile::tempdir().unwrap();
            let store = FileStore::open(directory.path().join("state"));
            let source =
                SourceConfig::parse("postgres://somebody@127.0.0.1:1/app", &|_| None).unwrap();
            let started = Pipeline::builder()
                .source(source)
                .publication("app")
                .destination(NullDestination::new())
                .state(store.clone())
                .start_with(fill)
                .await;
            let Err(StartError::Fault { fault, .. }) = started else { panic!("it starts") };
            assert_eq!(fault.kind, FaultKind::EntropyUnavailable);
            assert!(matches!(store.observe(), Ok(None)));
            assert!(store.acquire(OwnerToken([1; 16])).is_ok(), "nobody holds it");
        }
        walferry_coverage::reached("N-F1");
    }
}
