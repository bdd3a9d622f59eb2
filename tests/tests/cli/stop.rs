//! Signals (group Q): a stop in order, and one that is cut short.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use insta::assert_snapshot;
use rustix::process::{Pid, Signal, kill_process};
use walferry_tests::process::{Finished, Running, binary};
use walferry_tests::wait::{try_wait_for, wait_for, wait_until};
use walferry_tests::watchdog::Watchdog;

use crate::transaction::Transaction;
use crate::world::{EAGER, LARGE, LIMIT, TIGHT, World};

#[test]
fn sigterm_while_streaming_confirms_what_is_saved() {
    stops_in_order(Signal::TERM);
}

#[test]
fn sigint_while_streaming_confirms_what_is_saved() {
    stops_in_order(Signal::INT);
}

#[track_caller]
fn stops_in_order(signal: Signal) {
    let world = World::new();
    let running = world.call().streams();
    world.sql("INSERT INTO orders SELECT n, 'more' FROM generate_series(1000, 3000) n");
    running.signal(signal);
    let finished = running.wait(LIMIT);
    assert_eq!(finished.code, Some(0), "{}", world.shown(&finished));
    assert_confirmed(&world);
    world.works();
}

/// The server knows exactly what is saved, and there is one slot.
#[track_caller]
fn assert_confirmed(world: &World) {
    world.assert_main_slots(1);
    let status = world.status("file:state");
    let confirmed = world.sql("SELECT confirmed_flush_lsn FROM pg_replication_slots");
    assert_eq!(status["pipeline"]["checkpoint"], confirmed);
}

#[test]
fn sigterm_during_a_copy_leaves_no_copy_slot() {
    let world = World::new();
    world.sql(LARGE);
    let mut running = world.call().more(&TIGHT).spawn();
    world.wait_for_large_copy(&mut running);
    running.terminate();
    let finished = running.wait(LIMIT);
    assert_snapshot!(world.shown(&finished), @"exit 0");
    assert_confirmed(&world);
    assert!(world.rows("copy.db", "large").len() < 200_000, "the copy was over");
    world.works();
    assert_eq!(world.rows("copy.db", "large").len(), 200_000);
    world.assert_main_slots(1);
}

#[test]
fn sigterm_before_the_slot_can_be_created() {
    let world = World::new();
    // Slot creation waits for it.
    let open = Transaction::begin(&world, "CREATE TABLE unseen (id int)");
    let running = world.call().spawn();
    wait_until(LIMIT, "slot creation to wait", || {
        world.sql("SELECT count(*) FROM pg_replication_slots WHERE active") == "1"
    });
    running.terminate();
    let finished = running.wait(LIMIT);
    assert_snapshot!(world.shown(&finished), @"exit 0");
    drop(open);
    world.works();
    world.assert_main_slots(1);
}

#[test]
fn a_second_sigterm_ends_a_run_whose_destination_is_stuck() {
    let world = World::new();
    let (code, stderr) = stuck(&world, &[], |pid| {
        send(pid, Signal::TERM);
        send(pid, Signal::TERM);
    });
    assert_eq!(code, Some(143), "{stderr}");
    assert_snapshot!(stderr, @r"
    exit 143
    error run failed: the stop was cut short: a second stop request
    error: stopping failed
    cause: the stop was cut short: a second stop request
    hint: nothing is lost: the next start goes on from the last checkpoint
    hint: a longer stop is allowed with --set stop_ms=..
    ");
    assert_eq!(world.call().destination("jsonl:-").caught_up().run().code, Some(0));
    world.assert_main_slots(1);
}

#[test]
fn a_second_sigint_ends_a_run_whose_destination_is_stuck() {
    let world = World::new();
    let (code, stderr) = stuck(&world, &[], |pid| {
        send(pid, Signal::INT);
        send(pid, Signal::INT);
    });
    assert_eq!(code, Some(130), "{stderr}");
    assert_eq!(world.call().destination("jsonl:-").caught_up().run().code, Some(0));
}

#[test]
fn the_stop_budget_ends_a_run_whose_destination_is_stuck() {
    let world = World::new();
    let (code, stderr) = stuck(&world, &["--set", "stop_ms=500"], |pid| send(pid, Signal::TERM));
    assert_eq!(code, Some(143), "{stderr}");
    assert_snapshot!(stderr, @r"
    exit 143
    error run failed: the stop was cut short: the stop budget is used up
    error: stopping failed
    cause: the stop was cut short: the stop budget is used up
    hint: nothing is lost: the next start goes on from the last checkpoint
    hint: a longer stop is allowed with --set stop_ms=..
    ");
    assert_eq!(world.call().destination("jsonl:-").caught_up().run().code, Some(0));
}

/// Runs into a pipe that nobody reads, until it is full; then does something to the process.
#[track_caller]
fn stuck(world: &World, more: &[&str], then: impl FnOnce(u32)) -> (Option<i32>, String) {
    world.sql("INSERT INTO orders SELECT n, repeat('x', 100) FROM generate_series(1000, 9000) n");
    let call = world.call().destination("jsonl:-").more(more);
    let (mut child, stderr, watchdog) = start(world, &call.args());
    let pipe = child.stdout.take().unwrap();
    // Full is what does not grow any more; how much that is depends on the sizes of the writes.
    let (mut before, mut times) = (0, 0);
    wait_until(LIMIT, "the pipe to be full", || {
        let held = rustix::io::ioctl_fionread(&pipe).unwrap();
        times = if held > 0 && held == before { times + 1 } else { 0 };
        before = held;
        times == 20
    });
    then(child.id());
    let status = wait_for(LIMIT, "the end of the run", || child.try_wait().unwrap());
    watchdog.disarm();
    drop(pipe);
    let finished = finished(status, &stderr);
    (finished.code, world.shown(&finished))
}

fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
    // Two signals of one kind at the same moment are one.
    thread::sleep(Duration::from_millis(200));
}

#[test]
fn a_reader_that_goes_away_ends_a_run_that_streams() {
    let world = World::new();
    let finished = with_reader(&world, &EAGER, |lines| {
        let copied = lines.filter(|line| line.as_ref().unwrap().contains("\"copy_end\""));
        assert_eq!(copied.take(2).count(), 2);
        world.wait_until_ready("file:state");
    });
    assert_snapshot!(world.shown(&finished), @r"
    exit 4
    error run failed: the destination failed: file -: cannot write to standard output; its reader has gone: Broken pipe (os error 32)
    error: writing changes to the destination failed
    cause: the destination failed: file -: cannot write to standard output; its reader has gone: Broken pipe (os error 32)
    hint: the program that reads standard output has ended: start both again; jsonl:PATH needs no reader
    ");
    // Nothing was confirmed that did not arrive, and the next reader gets all of it.
    let again = world.call().destination("jsonl:-").caught_up().run();
    assert_eq!(again.code, Some(0));
    assert!(again.stdout.contains("\"gone\""), "{}", again.stdout);
}

/// A failed copy ends alone (L-05), whatever failed: without `--until` the run goes on with no table
/// left to write.
#[test]
fn a_reader_that_goes_away_during_the_copies_stops_every_table() {
    let world = World::new();
    world.sql("INSERT INTO orders SELECT n, repeat('x', 100) FROM generate_series(1000, 9000) n");
    world.sql("INSERT INTO items SELECT n, repeat('x', 100) FROM generate_series(1000, 9000) n");
    let finished = with_reader(&world, &["--until", "caught-up"], |lines| {
        // As `| head -1`.
        assert!(lines.next().unwrap().unwrap().starts_with('{'));
    });
    assert_eq!(finished.code, Some(4), "{}", world.shown(&finished));
    assert!(finished.stderr.contains("its reader has gone"), "{}", finished.stderr);
    assert!(finished.stderr.contains("jsonl:PATH needs no reader"), "{}", finished.stderr);
}

/// Runs into a pipe whose reader reads as it is told, and goes away.
#[track_caller]
fn with_reader(
    world: &World,
    more: &[&str],
    read: impl FnOnce(&mut dyn Iterator<Item = std::io::Result<String>>),
) -> Finished {
    let call = world.call().destination("jsonl:-").more(more);
    let (mut child, stderr, watchdog) = start(world, &call.args());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    read(&mut lines);
    drop(lines);
    let ended = try_wait_for(LIMIT, || {
        world.sql("UPDATE orders SET note = 'gone' WHERE id = 1");
        child.try_wait().unwrap()
    });
    let Some(status) = ended else {
        child.kill().unwrap();
        panic!("it goes on:\n{}", fs::read_to_string(stderr).unwrap());
    };
    watchdog.disarm();
    finished(status, &stderr)
}

/// A run whose standard output nobody collects; standard error goes to a file.
fn start(world: &World, args: &[&str]) -> (Child, PathBuf, Watchdog) {
    let stderr = world.path("stderr");
    let child = Command::new(binary())
        .args(args)
        .current_dir(world.path("."))
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(&stderr).unwrap())
        .spawn()
        .unwrap();
    let watchdog = Watchdog::kills(child.id(), binary());
    (child, stderr, watchdog)
}

fn finished(status: ExitStatus, stderr: &Path) -> Finished {
    let stderr = fs::read_to_string(stderr).unwrap();
    Finished { code: status.code(), signal: status.signal(), stdout: String::new(), stderr }
}

#[test]
fn sigkill_and_a_new_start_lose_nothing() {
    let world = World::new();
    let running: Running = world.call().streams();
    world.sql("INSERT INTO orders SELECT n, 'more' FROM generate_series(1000, 3000) n");
    running.kill();
    assert_eq!(running.wait(LIMIT).signal, Some(9));
    world.works();
    world.assert_main_slots(1);
}
