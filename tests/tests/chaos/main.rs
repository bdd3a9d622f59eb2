//! The real binary under load and killed: a smaller `walferry demo`, which must turn red when it
//! should, and leave nothing behind however it ends.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use walferry_tests::process::{Finished, Walferry};
use walferry_tests::wait::{wait_for, wait_until};

const LIMIT: Duration = Duration::from_secs(240);

/// A demo that is over soon also with a binary that was not optimised.
fn demo() -> Walferry {
    let demo = Walferry::new(["demo", "--rows", "60000", "--kills", "5", "--seed", "7"]);
    // Where servers are found and files are put is for this machine to say.
    ["PATH", "HOME", "TMPDIR", "XDG_CACHE_HOME", "WALFERRY_CACHE", "WALFERRY_PG15_BIN"]
        .into_iter()
        .filter_map(|name| Some((name, std::env::var_os(name)?)))
        .fold(demo, |demo, (name, value)| demo.env(name, value))
}

fn line_of<'a>(finished: &'a Finished, start: &str) -> &'a str {
    let mut lines = finished.stdout.lines();
    lines.find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{finished:#?}"))
}

#[test]
fn nothing_is_lost_when_walferry_is_killed_again_and_again() {
    let finished = demo().run(LIMIT);
    assert_eq!(finished.code, Some(0), "{}\n{}", finished.stdout, finished.stderr);
    for table in ["inbox ", "accounts ", "articles ", "order_lines ", "audit "] {
        assert!(line_of(&finished, table).ends_with("equal, all columns"), "{}", finished.stdout);
    }
    assert!(finished.stdout.contains("GREEN"), "{}", finished.stdout);
}

#[test]
fn one_lost_row_turns_the_demo_red() {
    let finished = demo().env("WALFERRY_DEMO_LOSE", "1").run(LIMIT);
    assert_eq!(finished.code, Some(6), "{}\n{}", finished.stdout, finished.stderr);
    let accounts = line_of(&finished, "accounts ");
    assert!(accounts.ends_with("DIFFERENT: 1 only in the source, 0 only in the destination"));
    assert!(line_of(&finished, "audit ").ends_with("equal, all columns"), "{}", finished.stdout);
    assert!(finished.stdout.contains("\nRED: "), "{}", finished.stdout);
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let mut running = demo().spawn();
    let (port, dir) = wait_for(LIMIT, "the first kill", || {
        assert!(!running.has_ended(), "{}", running.stdout());
        let stdout = running.stdout();
        stdout.contains("\n   1  ").then(|| (port_in(&stdout), dir_in(&stdout)))
    });
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert!(dir.exists());
    // As good as Ctrl-C, which a shell makes background jobs ignore.
    running.signal(Signal::TERM);
    assert_eq!(running.wait(LIMIT).signal, Some(15));
    wait_until(LIMIT, "the files to go", || !dir.exists());
    wait_until(LIMIT, "the pipeline to go", || !is_in_use(&dir));
    wait_until(LIMIT, "the server to go", || TcpStream::connect(("127.0.0.1", port)).is_err());
}

fn port_in(stdout: &str) -> u16 {
    let (_, rest) = stdout.split_once("on port ").expect("the port is printed");
    rest.lines().next().unwrap().trim().parse().unwrap()
}

fn dir_in(stdout: &str) -> PathBuf {
    let (_, rest) = stdout.split_once("--destination sqlite:").expect("the command is printed");
    Path::new(rest.lines().next().unwrap().trim()).parent().unwrap().to_owned()
}

/// Whether a process has the directory in one of its arguments.
fn is_in_use(dir: &Path) -> bool {
    let dir = dir.to_str().unwrap();
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(dir)
    })
}
