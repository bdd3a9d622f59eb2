//! A private PostgreSQL cluster: its own directory, socket, port and server process.
//!
//! The server is a direct child of the test process, so its id is ours until we have reaped it and
//! no signal can reach a stranger. It is stopped, and its directory removed, when the [`Cluster`] is
//! dropped; if the process dies without dropping it (SIGKILL, `exit`, a cluster in a `static`), the
//! [`Watchdog`] does the same a moment later. With `WALFERRY_KEEP` in the environment the directory
//! is kept and named on standard error.

#![expect(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a harness: a panic is how it reports"
)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;
use std::{env, thread};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::certs::Certs;
use crate::config::{Auth, ClusterConfig, PASSWORD};
use crate::installation::{Installation, give_to_server};
use crate::port::PortLease;
use crate::wait::{try_wait_for, wait_until};
use crate::watchdog::Watchdog;

/// Enough for crash recovery on a busy machine.
const START_MAX: Duration = Duration::from_secs(60);
/// A fast stop waits for the shutdown checkpoint and for walsenders to drain.
const STOP_MAX: Duration = Duration::from_secs(60);
/// How much of the server's log a failure shows.
const LOG_TAIL_LINES: usize = 60;

/// At the end of the test process: stops the server of data directory `$1`, removes `$2`.
///
/// The server's id is in `postmaster.pid`, which a server started a moment ago may not have written
/// yet; hence the patience. The working directory tells the server from a stranger with its id.
const CLEAN_UP: &str = r#"
tries=0
while [ $tries -lt 20 ]; do
    pid=
    read -r pid 2>/dev/null <"$1/postmaster.pid"
    if [ -n "$pid" ] && [ "$(readlink "/proc/$pid/cwd")" = "$1" ]; then
        kill -QUIT "$pid"
        waits=0
        while [ "$(readlink "/proc/$pid/cwd")" = "$1" ] && [ $waits -lt 100 ]; do
            waits=$((waits + 1))
            sleep 0.1
        done
        kill -KILL "$pid"
        break
    fi
    tries=$((tries + 1))
    sleep 0.1
done
rm -rf "$2"
"#;

/// How a server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Rolls back open transactions, waits for walsenders, writes a checkpoint.
    Fast,
    /// Leaves at once; the next start recovers from the WAL.
    Immediate,
    /// SIGKILL to every process of the server at the same moment.
    Kill,
}

/// A cluster and, unless it was stopped, its running server.
#[derive(Debug)]
pub struct Cluster {
    installation: Installation,
    /// `None` only while dropping.
    home: Option<TempDir>,
    /// Without symbolic links, as the system will show it for the server.
    home_path: PathBuf,
    port: PortLease,
    auth: Auth,
    certs: Option<Certs>,
    server: Option<Child>,
    watchdog: Option<Watchdog>,
    keep: bool,
}

impl Cluster {
    #[track_caller]
    pub(crate) fn new(config: &ClusterConfig) -> Self {
        let major = config.installation.major();
        let home = tempfile::Builder::new()
            .prefix(&format!("walferry-pg{major}-"))
            .tempdir()
            .expect("the temporary directory can be written");
        let home_path = home.path().canonicalize().expect("the home was just made");
        give_to_server(&home_path);
        // Armed before there is anything to clean up, so that no moment is uncovered.
        let watchdog = Watchdog::arm(CLEAN_UP, [&home_path.join("data"), &home_path]);
        let certs = config.write_data(&home_path);
        let mut cluster = Self {
            installation: config.installation.clone(),
            home: Some(home),
            home_path,
            port: PortLease::take(),
            auth: config.auth,
            certs,
            server: None,
            watchdog: Some(watchdog),
            keep: false,
        };
        cluster.start();
        if cluster.has_password() {
            let sql = format!("ALTER ROLE postgres PASSWORD '{PASSWORD}'");
            cluster.psql("postgres", &sql);
        }
        cluster
    }

    /// The programs this cluster runs on.
    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    /// The major version, such as 15.
    pub fn major(&self) -> u32 {
        self.installation.major()
    }

    /// The TCP port on 127.0.0.1; it stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The directory of the Unix socket, where every role is trusted.
    pub fn socket_dir(&self) -> &Path {
        &self.home_path
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.home_path.join("data")
    }

    /// The certificates of a cluster with TLS.
    pub fn certs(&self) -> Option<&Certs> {
        self.certs.as_ref()
    }

    /// Leaves the directory where it is when the cluster is dropped; its server is stopped.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// The process id of the running server, or `None` after a stop.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// A URL over TCP for the role `postgres`, with its password if it needs one and without an
    /// `sslmode`.
    pub fn url(&self, database: &str) -> String {
        let password = if self.has_password() { format!(":{PASSWORD}") } else { String::new() };
        format!("postgres://postgres{password}@127.0.0.1:{}/{database}", self.port())
    }

    /// Everything the server has logged, over all its starts.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Runs statements one by one and returns their rows as text: a line per row, `|` between
    /// values, `[null]` for null, nothing at the end.
    ///
    /// # Panics
    ///
    /// With the server's message at the first statement that fails.
    #[track_caller]
    pub fn psql(&self, database: &str, sql: &str) -> String {
        match self.try_psql(database, sql) {
            Ok(rows) => rows,
            Err(message) => panic!("{message}in database {database}: {sql}"),
        }
    }

    /// As [`Cluster::psql`], but returns what psql wrote to standard error on failure.
    ///
    /// # Panics
    ///
    /// When psql itself cannot be run.
    pub fn try_psql(&self, database: &str, sql: &str) -> Result<String, String> {
        let mut psql = self
            .installation
            .client_command("psql")
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-P", "null=[null]"])
            .args(["-U", "postgres", "-d", database, "-p", &self.port().to_string()])
            .arg("-h")
            .arg(self.socket_dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("psql starts");
        let mut pipe = psql.stdin.take().expect("psql reads from a pipe");
        let output = thread::scope(|scope| {
            // From a thread, because psql may write more than a pipe holds before it has read all.
            // It also stops reading at an error, which is then told by its exit code.
            scope.spawn(move || drop(pipe.write_all(sql.as_bytes())));
            psql.wait_with_output().expect("psql ends")
        });
        if output.status.success() {
            let rows = String::from_utf8_lossy(&output.stdout);
            Ok(rows.strip_suffix('\n').unwrap_or(&rows).to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Starts the server and waits until it accepts connections; nothing if it runs.
    ///
    /// # Panics
    ///
    /// When it does not get there within a minute; the message holds the end of its log.
    #[track_caller]
    pub fn start(&mut self) {
        if self.server.is_some() {
            return;
        }
        let log = File::options().create(true).append(true).open(self.log_path());
        let log = log.expect("the log can be written");
        let child = self
            .installation
            .server_command("postgres")
            .arg("-D")
            .arg(self.data_dir())
            .args(["-p", &self.port().to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file has a second handle"))
            .stderr(log)
            // Signals to the group of the test are not for the server: the watchdog stops it.
            .process_group(0)
            .spawn()
            .expect("postgres starts");
        let pid = child.id();
        self.server = Some(child);
        let answered = try_wait_for(START_MAX, || {
            if let Some(status) = self.server.as_mut().and_then(|s| s.try_wait().ok().flatten()) {
                self.server = None;
                return Some(Err(format!("the server ended: {status}")));
            }
            (self.says_ready(pid) && self.try_psql("postgres", "SELECT 1").is_ok())
                .then_some(Ok(()))
        });
        match answered {
            Some(Ok(())) => {}
            Some(Err(why)) => panic!("{why}\n{}", self.log_tail()),
            None => panic!("no connection within {START_MAX:?}\n{}", self.log_tail()),
        }
    }

    /// Stops the server and waits for its end; nothing if it does not run.
    ///
    /// # Panics
    ///
    /// When it does not end within a minute.
    #[track_caller]
    pub fn stop(&mut self, how: Stop) {
        let Some(mut server) = self.server.take() else { return };
        let pid = Pid::from_child(&server);
        match how {
            Stop::Fast => send(pid, Signal::INT),
            Stop::Immediate => send(pid, Signal::QUIT),
            Stop::Kill => kill_all(pid),
        }
        let ended = try_wait_for(STOP_MAX, || server.try_wait().ok().flatten());
        if ended.is_none() {
            self.server = Some(server);
            panic!("the server still runs {STOP_MAX:?} after {how:?}\n{}", self.log_tail());
        }
    }

    /// Stops the server and starts it again on the same port.
    ///
    /// # Panics
    ///
    /// As [`Cluster::stop`] and [`Cluster::start`].
    #[track_caller]
    pub fn restart(&mut self, how: Stop) {
        self.stop(how);
        self.start();
    }

    /// Makes the server read its configuration files again; it does so a moment later.
    pub fn reload(&self) {
        if let Some(server) = &self.server {
            send(Pid::from_child(server), Signal::HUP);
        }
    }

    fn has_password(&self) -> bool {
        match self.auth {
            Auth::Cleartext | Auth::Md5 | Auth::Scram => true,
            Auth::Trust | Auth::Cert => false,
        }
    }

    /// Whether `postmaster.pid` is of this start and says that connections are accepted. Looking
    /// there is cheaper than trying to connect, and a killed server's file does not mislead.
    fn says_ready(&self, pid: u32) -> bool {
        let file = fs::read_to_string(self.data_dir().join("postmaster.pid")).unwrap_or_default();
        let mut lines = file.lines();
        lines.next().is_some_and(|first| first.trim() == pid.to_string())
            && lines.nth(6).is_some_and(|status| matches!(status.trim(), "ready" | "standby"))
    }

    fn log_path(&self) -> PathBuf {
        self.home_path.join("server.log")
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
        format!("the end of the log of PostgreSQL {}:\n{}\n", self.major(), tail.join("\n"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.log_tail());
        }
        // Whatever fails here is left to the watchdog, which is disarmed only at the end.
        if let Some(mut server) = self.server.take() {
            send(Pid::from_child(&server), Signal::QUIT);
            if try_wait_for(STOP_MAX, || server.try_wait().ok().flatten()).is_none() {
                return;
            }
        }
        let Some(home) = self.home.take() else { return };
        if self.keep {
            drop(home.keep());
        } else if env::var_os("WALFERRY_KEEP").is_some() {
            eprintln!("kept: {}", home.keep().display());
        } else if home.close().is_err() {
            return;
        }
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.disarm();
        }
    }
}

/// Sends a signal to a child that has not been reaped, so that it exists or is a zombie.
fn send(pid: Pid, signal: Signal) {
    kill_process(pid, signal).expect("a child that was not reaped can be sent signals");
}

/// Kills a server and its processes, and waits until they are gone: a server that starts while an
/// old backend still holds the shared memory would refuse to.
#[track_caller]
fn kill_all(server: Pid) {
    // Stopped first, so that it starts no process between the count and the killing.
    send(server, Signal::STOP);
    let backends = children_of(server);
    send(server, Signal::KILL);
    for &backend in &backends {
        // It may have ended by itself; its id is not reused this soon.
        let _ = kill_process(backend, Signal::KILL);
    }
    wait_until(STOP_MAX, "the killed server's processes to go", || {
        backends.iter().all(|&backend| state_and_parent(backend).is_none_or(|(s, _)| s == 'Z'))
    });
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").expect("Linux has /proc");
    let pids = entries.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        Pid::from_raw(name.to_str()?.parse().ok()?)
    });
    pids.filter(|&pid| {
        state_and_parent(pid).is_some_and(|(_, of)| of == parent.as_raw_nonzero().get())
    })
    .collect()
}

fn state_and_parent(pid: Pid) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The command's name stands before these, in parentheses, and may itself contain some.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
