//! The server of a benchmark, and the commands that read from it.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use walferry_tests::cluster::Cluster;
use walferry_tests::wait::wait_until;
use walferry_tests::{process, skip};

use crate::counts::Counts;

/// Name of the database.
pub(crate) const DATABASE: &str = "bench";

/// A server with one database, and a place for files.
#[derive(Debug)]
pub(crate) struct Server {
    cluster: Cluster,
    dir: TempDir,
}

/// Tells whoever waits; the tables go the same way.
pub(crate) fn say(text: &str) {
    drop(writeln!(std::io::stdout(), "{text}"));
}

impl Server {
    /// A server that has room: no checkpoint in the middle of a run, no vacuum beside it.
    pub(crate) fn start(major: u32) -> Self {
        let cluster = skip::config(major)
            .setting("shared_buffers", "1GB")
            .setting("max_wal_size", "32GB")
            .setting("checkpoint_timeout", "1d")
            .setting("autovacuum", "off")
            .setting("synchronous_commit", "off")
            .setting("max_replication_slots", "40")
            .setting("max_wal_senders", "40")
            .start();
        cluster.psql("postgres", &format!("CREATE DATABASE {DATABASE}"));
        let dir = tempfile::Builder::new().prefix("walferry-bench-").tempdir();
        let server = Self {
            cluster,
            dir: dir.unwrap_or_else(|error| panic!("no place for files: {error}")),
        };
        say(&server.describe());
        server
    }

    /// Date, machine and version: what every figure depends on.
    fn describe(&self) -> String {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        format!(
            "{}, {cores} x {}, {}; client and server on the same machine over loopback, fsync off",
            self.sql("SELECT current_date"),
            model.map_or("unknown processor", |(_, model)| model),
            self.sql(
                "SELECT 'PostgreSQL ' || split_part(current_setting('server_version'), ' ', 1)"
            )
        )
    }

    /// Runs SQL that must succeed.
    pub(crate) fn sql(&self, sql: &str) -> String {
        self.cluster.psql(DATABASE, sql)
    }

    /// Runs SQL that makes data, and says how long that took.
    pub(crate) fn load(&self, what: &str, sql: &str) {
        let start = Instant::now();
        self.sql(sql);
        say(&format!("loaded {what} in {:.1} s", start.elapsed().as_secs_f64()));
    }

    /// Sums over what a query returns, made by the source.
    pub(crate) fn counts(&self, sql: &str) -> Counts {
        Counts::of_row(&self.sql(sql))
    }

    /// A file or directory of this benchmark.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn port(&self) -> u16 {
        self.cluster.port()
    }

    /// A client of PostgreSQL, told where the server is, over TCP as all contenders.
    pub(crate) fn client(&self, program: &str) -> Command {
        let mut command = self.cluster.installation().client_command(program);
        command.args(["-h", "127.0.0.1", "-U", "postgres", "-d", DATABASE]);
        command.args(["-p", &self.port().to_string()]);
        command
    }

    /// `walferry run` to the end of what is there, with default limits.
    pub(crate) fn walferry(&self, publication: &str, destination: &str, state: &Path) -> Command {
        let mut command = Command::new(process::binary());
        command.env_clear().current_dir(self.dir.path()).args(["run", "--until", "caught-up"]);
        command.args(["--source", &self.cluster.url(DATABASE), "--publication", publication]);
        command.args(["--destination", destination, "--state"]);
        command.arg([OsStr::new("file:"), state.as_os_str()].join(OsStr::new("")));
        command
    }

    /// Drops a slot once nobody reads it: a server notices a client's end a moment later.
    pub(crate) fn drop_slot(&self, name: &str) {
        let slot = format!("FROM pg_replication_slots WHERE slot_name = '{name}'");
        wait_until(Duration::from_secs(10), "an idle slot", || {
            self.sql(&format!("SELECT active {slot}")) != "t"
        });
        self.sql(&format!("SELECT pg_drop_replication_slot(slot_name) {slot}"));
    }
}
