//! The program under test, from outside: `walferry run` as a child, `walferry status` to look at it.

use core::time::Duration;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use serde_json::Value;
use walferry_cluster::wait::try_wait_for;
use walferry_cluster::watchdog::Watchdog;

use crate::demo::Failure;
use crate::demo::schema::DATABASE;

/// Lines of the log that a failure shows.
const LOG_TAIL_LINES: usize = 12;

/// What the program is called with, again and again.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    source: String,
    dir: PathBuf,
}

/// A running `walferry run`, killed when this is dropped or this process dies.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    watchdog: Option<Watchdog>,
    started: Instant,
}

/// What `walferry status` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Name of the main slot, once there is a record.
    pub(super) slot: Option<String>,
    /// Ownership of the record: each run raises it before it does anything.
    pub(super) epoch: u64,
    /// The server's process that sends the main stream, if there is one and the source was asked.
    pub(super) sender: Option<u64>,
    /// Phase by table.
    pub(super) phases: BTreeMap<String, String>,
}

impl Program {
    /// This very program, to work between `source` and files in `dir`.
    pub(super) fn new(source: String, dir: PathBuf) -> Result<Self, Failure> {
        let path = std::env::current_exe()
            .and_then(fs::canonicalize)
            .map_err(|error| Failure::new("the path of this program is not known", error))?;
        Ok(Self { path, source, dir })
    }

    /// The file that the pipeline writes.
    pub(super) fn sqlite(&self) -> PathBuf {
        self.dir.join("shop.db")
    }

    /// What every process of the pipeline has among its arguments, and nobody else.
    pub(super) fn state(&self) -> String {
        format!("file:{}", self.dir.join("state").display())
    }

    /// The command a person would type, without its path.
    pub(super) fn shown(&self) -> String {
        format!(
            "walferry run --source {} --publication {DATABASE} --destination sqlite:{}",
            self.source,
            self.sqlite().display()
        )
    }

    /// Starts `walferry run`.
    pub(super) fn run(&self, more: &[&str]) -> Result<Running, Failure> {
        let failed = |error| Failure::new("walferry run does not start", error);
        let log = File::options().create(true).append(true).open(self.log()).map_err(failed)?;
        let child = self
            .command()
            .args(["run", "--source", &self.source, "--publication", DATABASE])
            .args(["--destination", &format!("sqlite:{}", self.sqlite().display())])
            .args(["--state", &self.state()])
            .args(more)
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            .spawn()
            .map_err(failed)?;
        let watchdog = Some(Watchdog::kills(child.id(), &self.path));
        Ok(Running { child, watchdog, started: Instant::now() })
    }

    /// Reads the phases, and, if `ask_source`, whether the main stream runs.
    pub(super) fn status(&self, ask_source: bool) -> Result<Seen, Failure> {
        let failed = |why: &str| Failure::new("walferry status failed", why);
        let mut command = self.command();
        command.args(["status", "--json", "--state", &self.state()]);
        if ask_source {
            command.args(["--source", &self.source]);
        }
        let output = command.output().map_err(|error| failed(&error.to_string()))?;
        serde_json::from_slice(&output.stdout).map(|value| Seen::of(&value)).map_err(|error| {
            failed(&format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
        })
    }

    /// Rows of all copies that were completed, from the log.
    pub(super) fn rows_copied(&self) -> u64 {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let rows = lines.filter_map(|line| {
            let text = line["fields"]["message"].as_str()?;
            text.strip_suffix(" rows copied")?.replace(',', "").parse::<u64>().ok()
        });
        rows.sum()
    }

    /// The end of the log, to explain a failure.
    pub(super) fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    fn log(&self) -> PathBuf {
        self.dir.join("walferry.log")
    }

    /// Settings of whoever runs the demo must not change it.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.env_clear().current_dir(&self.dir).stdin(Stdio::null());
        command
    }
}

impl Running {
    /// How long it has been running.
    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// How it ended, if it has.
    pub(super) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end.
    pub(super) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        try_wait_for(limit, || self.child.try_wait().ok().flatten())
    }

    /// SIGKILL.
    pub(super) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // One that has ended already needs neither; both are harmless then.
        drop(self.child.kill());
        drop(self.child.wait());
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.disarm();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

impl Seen {
    fn of(status: &Value) -> Self {
        let tables = status["tables"].as_array().into_iter().flatten();
        let phases = tables.filter_map(|table| {
            let name = table["name"].as_str()?;
            let name = name.strip_prefix("public.").unwrap_or(name);
            Some((name.to_owned(), table["phase"].as_str()?.to_owned()))
        });
        Self {
            slot: status["pipeline"]["slot"].as_str().map(str::to_owned),
            epoch: status["pipeline"]["epoch"].as_u64().unwrap_or(0),
            sender: status["slot"]["active_pid"].as_u64(),
            phases: phases.collect(),
        }
    }

    /// How many tables are in a phase.
    pub(super) fn count(&self, phase: &str) -> usize {
        self.phases.values().filter(|one| *one == phase).count()
    }

    /// Whether a table's copy is under way.
    pub(super) fn is_copying(&self) -> bool {
        self.count("copying") > 0
    }

    /// Whether a table has been handed over to the main stream.
    pub(super) fn is_handed_over(&self, table: &str) -> bool {
        self.phases.get(table).is_some_and(|phase| phase == "catchup" || phase == "ready")
    }

    /// Whether all of `tables` tables have been.
    pub(super) fn all_handed_over(&self, tables: usize) -> bool {
        self.phases.len() == tables && self.phases.keys().all(|table| self.is_handed_over(table))
    }

    /// `3 copying, 2 ready`.
    pub(super) fn text(&self) -> String {
        let phases = ["pending", "copying", "catchup", "ready", "errored"];
        let parts: Vec<_> = phases
            .into_iter()
            .filter(|phase| self.count(phase) > 0)
            .map(|phase| format!("{} {phase}", self.count(phase)))
            .collect();
        if parts.is_empty() { "no table known yet".to_owned() } else { parts.join(", ") }
    }
}

/// Processes that have `argument` among their arguments, apart from this one.
pub(super) fn processes_with(argument: &str) -> Vec<String> {
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    pids.filter(|pid| *pid != own && pid.bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|pid| {
            let line = fs::read(Path::new("/proc").join(pid).join("cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|one| one == argument.as_bytes())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_read_from_the_status() {
        let status = serde_json::json!({
            "pipeline": { "slot": "walferry_1", "epoch": 3 },
            "slot": { "active_pid": 7 },
            "tables": [
                { "name": "public.a", "phase": "copying" },
                { "name": "public.b", "phase": "catchup" },
                { "name": "other.c", "phase": "ready" },
            ],
        });
        let seen = Seen::of(&status);
        assert_eq!(seen.slot.as_deref(), Some("walferry_1"));
        assert_eq!(seen.text(), "1 copying, 1 catchup, 1 ready");
        assert_eq!((seen.epoch, seen.sender), (3, Some(7)));
        assert!(seen.is_copying() && seen.is_handed_over("b"));
        assert!(!seen.is_handed_over("a") && !seen.all_handed_over(3));
        assert_eq!(
            Seen::of(&serde_json::json!({ "pipeline": null, "tables": [] })),
            Seen::default()
        );
    }

    #[test]
    fn a_process_is_found_by_an_argument() {
        let argument = format!("an argument of {}", std::process::id());
        assert!(processes_with(&argument).is_empty());
        let mut child = Command::new("sh")
            .args(["-c", "echo here; read -r x; :", &argument])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // A process that was started this moment has no arguments yet.
        let mut here = [0; 5];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut here).unwrap();
        assert_eq!(processes_with(&argument), [child.id().to_string()]);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
