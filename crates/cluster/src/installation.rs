//! Where the programs of a PostgreSQL version are, and as whom its server runs.

#![expect(clippy::expect_used, reason = "a harness: a panic is how it reports")]

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The user who runs servers when the tests run as root: PostgreSQL refuses to serve as root.
const SERVER_USER: &str = "postgres";

/// The programs of one PostgreSQL version.
#[derive(Debug, Clone)]
pub struct Installation {
    major: u32,
    bin: PathBuf,
}

/// No installation of a version was found; the message lists where.
#[derive(Debug)]
pub struct Missing {
    major: u32,
    looked: Vec<PathBuf>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { major, looked } = self;
        write!(f, "PostgreSQL {major} is not here (looked for `postgres` in {looked:?})")
    }
}

impl std::error::Error for Missing {}

impl Installation {
    /// Finds a major version: the directory in `WALFERRY_PG<major>_BIN` and nothing else if it is
    /// set, otherwise the Debian package's, otherwise what `./dev setup` has downloaded.
    pub fn find(major: u32) -> Result<Self, Missing> {
        let looked = match env::var_os(format!("WALFERRY_PG{major}_BIN")) {
            Some(told) => vec![PathBuf::from(told)],
            None => vec![
                PathBuf::from(format!("/usr/lib/postgresql/{major}/bin")),
                cache_dir().join(format!("postgresql-{major}/bin")),
            ],
        };
        match looked.iter().find(|bin| bin.join("postgres").is_file()) {
            Some(bin) => Ok(Self { major, bin: bin.clone() }),
            None => Err(Missing { major, looked }),
        }
    }

    /// The programs of a major version in a directory that is known to hold them.
    pub fn at(major: u32, bin: impl Into<PathBuf>) -> Self {
        Self { major, bin: bin.into() }
    }

    /// The major version asked for, such as 15.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// The path of a program of this version, such as `pgbench` or `pg_basebackup`.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// The server's own version text, such as `postgres (PostgreSQL) 18.6`.
    pub fn version(&self) -> String {
        let output = self.server_command("postgres").arg("--version").output();
        succeeded("postgres --version", output.expect("postgres starts")).trim().to_owned()
    }

    /// A command of this version to be run as the user who owns the data, in an environment that
    /// does not depend on the caller's.
    pub fn server_command(&self, name: &str) -> Command {
        let mut command = self.client_command(name);
        if let Some((uid, gid)) = server_user() {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// As [`Installation::server_command`], but as ourselves: for clients.
    pub fn client_command(&self, name: &str) -> Command {
        let mut command = Command::new(self.program(name));
        command.env_clear().env("LC_ALL", "C").env("TZ", "UTC").current_dir("/");
        // initdb and pg_ctl call other programs; a shell finds its tools there.
        command.env("PATH", env::var_os("PATH").unwrap_or_default());
        command
    }
}

/// Where `./dev setup` puts servers, and this crate its ready data directories. The rule is the one
/// in `dev`: root's servers run as another user, who cannot enter root's home.
pub(crate) fn cache_dir() -> PathBuf {
    let of = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(told) = of("WALFERRY_CACHE") {
        told
    } else if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/cache/walferry")
    } else {
        of("XDG_CACHE_HOME")
            .or_else(|| of("HOME").map(|home| home.join(".cache")))
            .unwrap_or_else(env::temp_dir)
            .join("walferry")
    }
}

/// The ids of the user who must run servers, or `None` when we may ourselves.
fn server_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("/etc/passwd can be read");
    let ids = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == SERVER_USER).then_some(())?;
        let uid = fields.nth(1)?.parse().ok()?;
        Some((uid, fields.next()?.parse().ok()?))
    });
    Some(ids.unwrap_or_else(|| {
        panic!("running as root, and there is no user {SERVER_USER} to run servers: ./dev setup")
    }))
}

/// Gives a file or directory to the user who runs servers.
pub(crate) fn give_to_server(path: &Path) {
    if let Some((uid, gid)) = server_user() {
        chown(path, Some(uid), Some(gid)).expect("root may give files away");
    }
}

/// The standard output of a command that must succeed; panics with its standard error otherwise.
#[track_caller]
pub(crate) fn succeeded(what: impl AsRef<OsStr>, output: Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}: {}\n{text}{}",
        what.as_ref().display(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}
