//! The real `walferry` command as a child process.
//!
//! It gets an empty environment apart from what the test gives it, so no setting of the machine
//! leaks into a result, and nothing on standard input. What it writes is collected as it comes and
//! can be looked at while it runs. It is killed when [`Running`] is dropped, and by a [`Watchdog`]
//! when the test process dies first.

#![expect(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test harness: a panic is how it reports"
)]

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::{try_wait_for, wait_until};
use crate::watchdog::Watchdog;

/// A call of `walferry`, to be completed and started.
#[derive(Debug)]
#[must_use]
pub struct Walferry {
    program: PathBuf,
    command: Command,
}

/// A started `walferry`.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Capture,
    stderr: Capture,
    watchdog: Option<Watchdog>,
}

/// What a `walferry` that has ended left.
#[derive(Debug)]
pub struct Finished {
    /// The exit code, or `None` when a signal ended it.
    pub code: Option<i32>,
    /// The number of the signal that ended it.
    pub signal: Option<i32>,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

impl Walferry {
    /// The arguments after the program's name.
    pub fn new<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Self {
        Self::of(binary(), arguments)
    }

    /// As [`Walferry::new`], run by another user, who may not be allowed to enter the directory of
    /// the build: from a copy in `dir`.
    ///
    /// # Panics
    ///
    /// When `dir` cannot be written.
    pub fn of_user(uid: u32, gid: u32, dir: &Path, arguments: &[&str]) -> Self {
        let program = dir.join("walferry");
        if !program.exists() {
            fs::copy(binary(), &program).expect("the directory can be written");
        }
        let mut walferry = Self::of(&program, arguments);
        if rustix::process::geteuid().is_root() {
            walferry.command.uid(uid).gid(gid);
        }
        walferry
    }

    fn of<A: AsRef<OsStr>>(program: &Path, arguments: impl IntoIterator<Item = A>) -> Self {
        let program = program.canonicalize().expect("the program exists");
        let mut command = Command::new(&program);
        command.env_clear().args(arguments).stdin(Stdio::null());
        // A coverage build writes its counts where this says.
        if let Some(profile) = env::var_os("LLVM_PROFILE_FILE") {
            command.env("LLVM_PROFILE_FILE", profile);
        }
        Self { program, command }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Sets a variable of its otherwise empty environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets its working directory.
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Starts it.
    ///
    /// # Panics
    ///
    /// When the binary cannot be started.
    pub fn spawn(mut self) -> Running {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().expect("walferry starts");
        Running {
            watchdog: Some(Watchdog::kills(child.id(), &self.program)),
            stdout: Capture::of(child.stdout.take().expect("it was piped")),
            stderr: Capture::of(child.stderr.take().expect("it was piped")),
            child,
        }
    }

    /// Starts it and waits for its end.
    ///
    /// # Panics
    ///
    /// As [`Running::wait`].
    #[track_caller]
    pub fn run(self, limit: Duration) -> Finished {
        self.spawn().wait(limit)
    }
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to standard output so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Waits until its standard error contains `text`.
    ///
    /// # Panics
    ///
    /// When `limit` has passed, or it has ended without writing that.
    #[track_caller]
    pub fn wait_for_stderr(&mut self, text: &str, limit: Duration) {
        wait_until(limit, &format!("{text:?} on standard error"), || {
            // Ended is asked first: what it wrote before is then complete, once collected.
            let ended = self.child.try_wait().expect("a child can be asked").is_some()
                && self.stderr.is_complete();
            let found = self.stderr.text().contains(text);
            assert!(found || !ended, "walferry ended without {text:?}:\n{}", self.stderr.text());
            found
        });
    }

    /// Asks it to stop in order (SIGTERM).
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Crashes it (SIGKILL).
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Sends any signal.
    ///
    /// # Panics
    ///
    /// Never while this value exists: the child has not been reaped, or is known to have ended.
    pub fn signal(&self, signal: Signal) {
        match kill_process(Pid::from_child(&self.child), signal) {
            // It has ended and a wait has noticed: there is nothing to signal.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(other) => panic!("cannot send {signal:?}: {other}"),
        }
    }

    /// Whether it has ended.
    ///
    /// # Panics
    ///
    /// When the system does not say.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_some()
    }

    /// Waits for its end.
    ///
    /// # Panics
    ///
    /// When it still runs after `limit`; it is then killed, and the message holds what it wrote.
    #[track_caller]
    pub fn wait(mut self, limit: Duration) -> Finished {
        match try_wait_for(limit, || self.child.try_wait().expect("a child can be asked")) {
            Some(status) => self.finish(status),
            None => panic!(
                "walferry still runs after {limit:?}\nstdout:\n{}\nstderr:\n{}",
                self.stdout(),
                self.stderr()
            ),
        }
    }

    fn finish(mut self, status: ExitStatus) -> Finished {
        Finished {
            code: status.code(),
            signal: status.signal(),
            stdout: self.stdout.whole(),
            stderr: self.stderr.whole(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.disarm();
        }
    }
}

/// Collects what comes through a pipe, on a thread of its own.
#[derive(Debug)]
struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Capture {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                let mut bytes = sink.lock().unwrap_or_else(PoisonError::into_inner);
                bytes.extend_from_slice(&buffer[..length]);
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn is_complete(&self) -> bool {
        self.reader.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// All of it; waits for the end of the pipe.
    fn whole(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader does not panic");
        }
        self.text()
    }
}

/// The `walferry` of the build this test belongs to.
///
/// A runner that builds the whole workspace has built it already. Otherwise it is built here if it
/// is missing; one that is older than the sources is used as it is, and that is said: building would
/// replace it under tests that run beside this one.
///
/// # Panics
///
/// When it is missing and cannot be built.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        // <target>/<profile>/deps/<this test>, or <target>/<profile>/<a program of this crate>
        let mut profile_dir = env::current_exe().expect("a process knows its program");
        profile_dir.pop();
        if profile_dir.ends_with("deps") {
            profile_dir.pop();
        }
        let path = profile_dir.join("walferry");
        if !path.is_file() {
            build(&profile_dir);
        } else if let (Some(built), Some(source)) = (modified(&path), newest_source())
            && built < source
        {
            eprintln!("######## {} is older than the sources ########", path.display());
        }
        path
    })
}

fn build(profile_dir: &Path) {
    eprintln!("######## building walferry first: --workspace does it before the tests ########");
    let directory = profile_dir.file_name().expect("a profile's directory has a name");
    // The one profile whose directory has another name.
    let profile = if directory == "debug" { OsStr::new("dev") } else { directory };
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--package", "walferry-cli", "--profile"])
        .arg(profile)
        .arg("--target-dir")
        .arg(profile_dir.parent().expect("a profile's directory is in the target directory"))
        .current_dir(workspace())
        .status();
    assert!(status.is_ok_and(|status| status.success()), "walferry-cli could not be built");
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate is inside the workspace")
}

fn newest_source() -> Option<SystemTime> {
    fn newest_in(dir: &Path) -> Option<SystemTime> {
        let entries = fs::read_dir(dir).ok()?.flatten();
        entries
            .filter_map(|entry| match entry.file_type().ok()?.is_dir() {
                true => newest_in(&entry.path()),
                false => modified(&entry.path()),
            })
            .max()
    }
    let crates = fs::read_dir(workspace().join("crates")).ok()?.flatten();
    crates.filter_map(|one| newest_in(&one.path().join("src"))).max()
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn sh(script: &str) -> Walferry {
        Walferry::of(Path::new("/bin/sh"), ["-c", script])
    }

    #[test]
    fn collects_what_is_written_and_the_code() {
        let finished =
            sh("echo out; echo \"$GIVEN:$HOME\" >&2; exit 3").env("GIVEN", "in").run(LIMIT);
        assert_eq!((finished.code, finished.signal), (Some(3), None));
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "in:\n"));
    }

    #[test]
    fn signals_reach_a_child_that_was_seen_to_run() {
        let script =
            "trap 'echo stopped; exit 7' TERM; echo ready >&2; while :; do sleep 0.01; done";
        let mut running = sh(script).env("PATH", "/usr/bin:/bin").spawn();
        running.wait_for_stderr("ready", LIMIT);
        running.terminate();
        let finished = running.wait(LIMIT);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(7), "stopped\n"));

        let running = sh("while :; do :; done").spawn();
        running.kill();
        assert_eq!(running.wait(LIMIT).signal, Some(9));
    }

    #[test]
    fn a_child_that_is_dropped_is_gone() {
        let running = sh("while :; do :; done").spawn();
        let process = PathBuf::from(format!("/proc/{}", running.pid()));
        assert!(process.exists());
        drop(running);
        assert!(!process.exists());
    }
}
