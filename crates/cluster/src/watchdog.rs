//! Ends what a test started when the test cannot do it any more.
//!
//! `Drop` stops a server or a child, but a process killed with SIGKILL drops nothing, and neither
//! does one that leaves through `exit`. So beside each of them runs a small `sh` that reads from a
//! pipe of which this process alone holds the other end. A word on the pipe means that all is
//! cleaned up; end of file means that this process is gone, and the shell does the cleaning.
//!
//! The shell is in a process group of its own, so that a signal to the whole group of the test (the
//! runner's time limit, Ctrl-C) does not take the watchdog along with what it watches.
//!
//! A script gets process ids from files or arguments, and makes sure through `/proc` that the id
//! still belongs to the process that was meant before it sends a signal: ids are reused.

#![expect(clippy::expect_used, reason = "a harness: a panic is how it reports")]

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Kills process `$1` if it still is the program `$2`.
const KILL_CHILD: &str = r#"[ "$(readlink "/proc/$1/exe")" = "$2" ] && kill -KILL "$1""#;

/// A shell that runs its script at the end of this process, unless it was disarmed before.
#[derive(Debug)]
pub struct Watchdog {
    shell: Child,
}

impl Watchdog {
    /// Starts a shell that will run `script`, with `arguments` as `$1`, `$2`..
    ///
    /// # Panics
    ///
    /// When there is no `sh`.
    pub fn arm<I, A>(script: &str, arguments: I) -> Self
    where
        I: IntoIterator<Item = A>,
        A: AsRef<OsStr>,
    {
        let whole = format!("read -r word || word=\n[ \"$word\" != done ] || exit 0\n{script}");
        let shell = Command::new("sh")
            .args(["-c", &whole, "walferry-watchdog"])
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::piped())
            // A runner waits for whoever holds its pipes: the watchdog must hold none.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("sh starts");
        Self { shell }
    }

    /// Starts a shell that will kill the child `pid`, if it then still runs `program`, a path without
    /// symbolic links.
    ///
    /// # Panics
    ///
    /// When there is no `sh`.
    pub fn kills(pid: u32, program: &Path) -> Self {
        Self::arm(KILL_CHILD, [OsStr::new(&pid.to_string()), program.as_os_str()])
    }

    /// Sends the shell home without running the script.
    pub fn disarm(mut self) {
        if let Some(mut pipe) = self.shell.stdin.take() {
            // A shell that is gone already has nothing left to be told.
            drop(pipe.write_all(b"done\n"));
        }
    }
}

/// Without [`Watchdog::disarm`] before it, this runs the script and waits for its end.
impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        drop(self.shell.wait());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn runs_its_script_unless_disarmed() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        Watchdog::arm("touch \"$1\"", [&mark]).disarm();
        assert!(!mark.exists());
        drop(Watchdog::arm("touch \"$1\"", [&mark]));
        assert!(mark.exists());
    }
    #[test]
    fn kills_the_program_it_was_told_and_no_other() {
        let mut child =
            Command::new("/bin/sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let program = Path::new("/bin/sh").canonicalize().unwrap();
        drop(Watchdog::kills(child.id(), Path::new("/bin/other")));
        assert!(child.try_wait().unwrap().is_none());
        drop(Watchdog::kills(child.id(), &program));
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
