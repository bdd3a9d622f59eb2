//! A pipeline into a SQLite file through the library, started and looked at from a test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::broadcast;
use walferry::core::config::{Limits, Until};
use walferry::core::notice::{Notice, Outcome};
use walferry::core::record::Phase;
use walferry::destinations::SqliteDestination;
use walferry::{Pipeline, SourceConfig, Status, state};
use walferry_tests::wait::{try_wait_for, wait_until};

use crate::compare;

/// Longest time that anything of a pipeline takes here.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The end of a run that was told to stop, or that had nothing left to do.
pub(crate) const STOPPED: Outcome = Outcome::Stopped { errored: 0, until_reached: false };
pub(crate) const CAUGHT_UP: Outcome = Outcome::Stopped { errored: 0, until_reached: true };

/// The defaults, but a table becomes ready soon also when the source is quiet.
pub(crate) fn limits() -> Limits {
    Limits { idle_checkpoint_ms: 100, ..Limits::default() }
}

/// Where a pipeline keeps its state and its SQLite file, over its runs.
#[derive(Debug)]
pub(crate) struct Place {
    url: String,
    dir: tempfile::TempDir,
}

/// A running pipeline.
#[derive(Debug)]
pub(crate) struct Ferry {
    runtime: Runtime,
    pipeline: Pipeline,
    notices: broadcast::Receiver<Notice>,
    sqlite: PathBuf,
}

impl Place {
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.to_owned(), dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn sqlite(&self) -> PathBuf {
        self.dir.path().join("copy.db")
    }

    pub(crate) fn start(&self, until: Option<Until>) -> Ferry {
        self.start_with(limits(), until)
    }

    pub(crate) fn start_with(&self, limits: Limits, until: Option<Until>) -> Ferry {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let builder = Pipeline::builder()
            .source(SourceConfig::parse(&self.url, &|_| None).unwrap())
            .publication("app")
            .destination(SqliteDestination::new(self.sqlite()))
            .state(state::file(self.dir.path().join("state")))
            .limits(limits)
            .until(until);
        let pipeline = runtime.block_on(builder.start()).unwrap();
        let notices = pipeline.handle().notices();
        Ferry { runtime, pipeline, notices, sqlite: self.sqlite() }
    }

    /// One run to its end, which is when everything of the source is here.
    #[track_caller]
    pub(crate) fn catch_up(&self) {
        assert_eq!(self.start(Some(Until::CaughtUp)).wait(), CAUGHT_UP);
    }
}

impl Ferry {
    #[track_caller]
    pub(crate) fn status(&self) -> Arc<Status> {
        let status = self.pipeline.handle().status();
        assert_eq!(status.outcome, None, "the run has ended");
        status
    }

    /// The phase of a table.
    #[track_caller]
    pub(crate) fn phase(&self, name: &str) -> Option<Phase> {
        let status = self.status();
        status.view.tables.iter().find(|table| table.name == name).map(|table| table.phase.clone())
    }

    /// Waits until as many tables are ready; none may have failed.
    #[track_caller]
    pub(crate) fn wait_until_ready(&self, tables: usize) {
        let all_ready = || {
            let all = &self.status().view.tables;
            let failed = all.iter().find(|table| matches!(table.phase, Phase::Errored { .. }));
            assert_eq!(failed, None, "a table failed");
            let ready = all.iter().filter(|table| matches!(table.phase, Phase::Ready { .. }));
            ready.count() == tables
        };
        if try_wait_for(LIMIT, || all_ready().then_some(())).is_none() {
            panic!("not ready in time: {:#?}", self.status().view);
        }
    }

    /// Waits until the row `id` of table `mark` is in SQLite. The stream is in order, so everything
    /// that was committed before it is there as well.
    #[track_caller]
    pub(crate) fn wait_for_mark(&self, id: u32) {
        wait_until(LIMIT, "the mark", || {
            self.status();
            self.has_mark(id)
        });
    }

    pub(crate) fn has_mark(&self, id: u32) -> bool {
        let sql = "SELECT count(*) FROM mark WHERE id = ?1";
        let count = compare::open(&self.sqlite).query_row(sql, [id], |row| row.get::<_, u32>(0));
        count.unwrap() == 1
    }

    /// What people were told since the last call.
    pub(crate) fn notices(&mut self) -> Vec<Notice> {
        std::iter::from_fn(|| self.notices.try_recv().ok()).collect()
    }

    /// Stops in order and returns how the run ended.
    pub(crate) fn stop(self) -> Outcome {
        self.pipeline.handle().stop();
        self.wait()
    }

    /// Waits for the end of the run.
    #[track_caller]
    pub(crate) fn wait(self) -> Outcome {
        let Self { runtime, pipeline, .. } = self;
        let handle = pipeline.handle();
        let ended = async { tokio::time::timeout(LIMIT, pipeline.wait()).await };
        match runtime.block_on(ended) {
            Ok(outcome) => outcome,
            Err(_) => panic!("the run does not end: {:#?}", handle.status()),
        }
    }
}

/// Attempts of all tables, as the SQLite file remembers them.
pub(crate) fn attempts(sqlite: &Path) -> Vec<(String, i64)> {
    let connection = compare::open(sqlite);
    let mut statement =
        connection.prepare("SELECT source, attempt FROM _walferry_tables ORDER BY source").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}
