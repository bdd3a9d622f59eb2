//! The example of the library, as a program of its own against a real server.

use std::env;
use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use walferry_tests::wait::try_wait_for;
use walferry_tests::watchdog::Watchdog;
use walferry_tests::{on_servers, skip};

const LIMIT: Duration = Duration::from_secs(60);

/// The example of the build this test belongs to, found as [`walferry_tests::process`] finds the
/// command: a runner that builds the whole workspace has built it already; otherwise it is built here
/// if it is missing, and one that is there is used as it is.
fn example() -> PathBuf {
    // <target>/<profile>/deps/<this test>
    let mut profile_dir = env::current_exe().unwrap();
    profile_dir.pop();
    profile_dir.pop();
    let path = profile_dir.join("examples/embed");
    if !path.is_file() {
        let directory = profile_dir.file_name().unwrap();
        // The one profile whose directory has another name.
        let profile = if directory == "debug" { OsStr::new("dev") } else { directory };
        let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--quiet", "--package", "walferry", "--example", "embed", "--profile"])
            .arg(profile)
            .arg("--target-dir")
            .arg(profile_dir.parent().unwrap())
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
            .status();
        assert!(status.is_ok_and(|status| status.success()), "the example could not be built");
    }
    path.canonicalize().unwrap()
}

/// Runs it to its end and returns what it printed.
fn run(program: &Path, arguments: &[&str]) -> String {
    let mut child = Command::new(program)
        .env_clear()
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let watchdog = Watchdog::kills(child.id(), program);
    let status = try_wait_for(LIMIT, || child.try_wait().unwrap());
    if status.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    watchdog.disarm();
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert!(status.is_some_and(|status| status.success()), "{status:?}: {printed}");
    printed
}

fn the_example_counts_what_arrives(major: u32) {
    let cluster = skip::require(major);
    cluster.psql(
        "postgres",
        "CREATE TABLE first(id int PRIMARY KEY, note text); CREATE TABLE \"Second\"(id int PRIMARY KEY); \
         CREATE SCHEMA other; CREATE TABLE other.third(a int); ALTER TABLE other.third REPLICA IDENTITY FULL; \
         CREATE TABLE fourth(id int PRIMARY KEY); CREATE TABLE quiet(id int PRIMARY KEY); \
         CREATE PUBLICATION publication FOR TABLE first, \"Second\", other.third, fourth; \
         INSERT INTO first SELECT i, 'x' FROM generate_series(1, 1000) i; \
         INSERT INTO other.third VALUES (1), (1), (NULL); INSERT INTO fourth VALUES (7); \
         INSERT INTO quiet VALUES (1);",
    );
    let program = example();
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let url = cluster.url("postgres");
    let arguments = [url.as_str(), "publication", state.to_str().unwrap()];
    assert_eq!(
        run(&program, &arguments),
        "public.first copied=1000 inserts=0 updates=0 deletes=0 truncates=0\n\
         public.Second copied=0 inserts=0 updates=0 deletes=0 truncates=0\n\
         other.third copied=3 inserts=0 updates=0 deletes=0 truncates=0\n\
         public.fourth copied=1 inserts=0 updates=0 deletes=0 truncates=0\n"
    );
    cluster.psql(
        "postgres",
        "INSERT INTO first VALUES (1001), (1002); UPDATE first SET note = 'y' WHERE id <= 10; \
         UPDATE first SET id = -id WHERE id = 11; DELETE FROM first WHERE id > 990; \
         BEGIN; INSERT INTO first VALUES (2000); ROLLBACK; \
         INSERT INTO \"Second\" VALUES (1); TRUNCATE \"Second\", other.third; \
         INSERT INTO \"Second\" SELECT generate_series(1, 5); TRUNCATE \"Second\"; \
         DELETE FROM quiet;",
    );
    // What no longer changes is not mentioned.
    let expected = "public.first copied=0 inserts=2 updates=11 deletes=12 truncates=0\n\
         public.Second copied=0 inserts=6 updates=0 deletes=0 truncates=2\n\
         other.third copied=0 inserts=0 updates=0 deletes=0 truncates=1\n";
    assert_eq!(run(&program, &arguments), expected);
    // All of it was confirmed: nothing comes again.
    assert_eq!(run(&program, &arguments), "");
}
on_servers!(the_example_counts_what_arrives: v15 = 15, v18 = 18);
