//! Two processes and one state directory (V-F2, V-F4): this test binary starts itself as the other.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use walferry_store::{FileStore, OwnerToken, Store, StoreError};

const DIR: &str = "WALFERRY_TEST_STATE_DIR";
const HELD: &str = "held";

/// The other process: owns the directory until its input ends. Not a test when run by itself.
#[test]
fn other_process() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    match FileStore::open(dir).acquire(OwnerToken([9; 16])) {
        Ok(_owned) => {
            println!("\n{HELD}");
            let mut input = Vec::new();
            std::io::stdin().read_to_end(&mut input).unwrap();
        }
        Err(error) => println!("\n{error}"),
    }
}

/// Starts the other process and waits for what it says.
fn start(dir: &Path) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["other_process", "--exact", "--nocapture"])
        .env(DIR, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let said = lines
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line == HELD || line.contains("state"))
        .unwrap_or_default();
    (child, said)
}

#[test]
fn the_second_process_is_refused_and_told_who_has_it() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("state");
    let store = FileStore::open(&dir);
    let (mut child, said) = start(&dir);
    assert_eq!(said, HELD);
    let error = store.acquire(OwnerToken([1; 16])).unwrap_err();
    let StoreError::Locked { holder, .. } = &error else { panic!("{error}") };
    assert_eq!(*holder, format!("process {}", child.id()));
    assert_eq!(store.observe().unwrap(), None);

    // Killed while it holds the lock: the place is free at once, whatever pid stands in the file.
    child.kill().unwrap();
    child.wait().unwrap();
    let owned = store.acquire(OwnerToken([1; 16])).unwrap();

    // The other way round.
    let (mut child, said) = start(&dir);
    assert!(said.ends_with(&format!("is in use by process {}", std::process::id())), "{said}");
    child.wait().unwrap();
    drop(owned);
    let (mut child, said) = start(&dir);
    assert_eq!(said, HELD);
    drop(child.stdin.take());
    child.wait().unwrap();
    walferry_coverage::reached("V-F2");
    walferry_coverage::reached("V-F4");
}
