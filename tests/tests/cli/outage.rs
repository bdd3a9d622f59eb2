//! The server goes away and comes back, or ends connections, while a run copies or streams: the run
//! goes on by itself, and in the end the destination equals the source (Y-02, X-13, K-23).

use walferry_tests::cluster::Stop;
use walferry_tests::coverage::reached;
use walferry_tests::process::Running;
use walferry_tests::wait::wait_until;
use walferry_tests::{on_servers, skip};

use crate::world::{EAGER, LARGE, LIMIT, TIGHT, World};

/// An outage that is over is noticed at once.
const SOON: [&str; 4] = ["--set", "retry_ms=100", "--set", "retry_ms_max=500"];

const FAILED: &str = "table failed, it is tried again in";

// A-F2, X-13
fn a_server_that_restarts_is_followed_again(major: u32) {
    let mut world = World::on(skip::config(major).durable());
    let mut running = world.call().more(&SOON).streams();
    for (round, how) in [Stop::Fast, Stop::Immediate].into_iter().enumerate() {
        let id = 1_000 * (round + 1);
        world.sql(&format!(
            "INSERT INTO orders SELECT n, 'before' FROM generate_series({id}, {id} + 99) n"
        ));
        world.cluster.restart(how);
        world.sql(&format!(
            "UPDATE orders SET note = 'after' WHERE id >= {id}; INSERT INTO items VALUES ({id}, 'mark')"
        ));
        world.wait_for_row("copy.db", "items", &format!("{id}|mark"));
    }
    ends_equal(&world, &mut running, &["orders", "items"]);
    assert!(running.stderr().matches("streaming again").count() >= 2, "{}", running.stderr());
    stops(&world, running);
    reached("A-F2");
}
on_servers!(a_server_that_restarts_is_followed_again: v15 = 15, v18 = 18);

fn a_server_that_restarts_during_copies_is_copied_again(major: u32) {
    let mut world = World::on(skip::config(major).durable());
    world.sql(LARGE);
    let mut running = world.call().more(&EAGER).more(&SOON).more(&TIGHT).spawn();
    for (round, how) in [Stop::Fast, Stop::Immediate].into_iter().enumerate() {
        world.wait_for_large_copy(&mut running);
        world.cluster.restart(how);
        world.sql(&format!("UPDATE large SET note = 'round {round}' WHERE id % 1000 = {round}"));
    }
    ends_equal(&world, &mut running, &["orders", "items", "large"]);
    stops(&world, running);
}
on_servers!(a_server_that_restarts_during_copies_is_copied_again: v15 = 15, v18 = 18);

// Y-05 (57P01): the stream alone, then what lies beside it, then everything.
fn connections_that_are_ended_are_opened_again(major: u32) {
    let world = World::on(skip::config(major));
    let mut running = world.call().more(&SOON).streams();
    let which = [
        "pid IN (SELECT active_pid FROM pg_replication_slots)",
        "application_name = 'walferry:meta'",
        "application_name LIKE 'walferry:%'",
    ];
    for (round, which) in which.into_iter().enumerate() {
        let id = 1_000 * (round + 1);
        world.sql(&format!("INSERT INTO orders VALUES ({id}, 'before')"));
        assert!(ended(&world, which) > 0, "no connection with {which}");
        world.sql(&format!("INSERT INTO items VALUES ({id}, 'after')"));
        world.wait_for_row("copy.db", "items", &format!("{id}|after"));
    }
    ends_equal(&world, &mut running, &["orders", "items"]);
    assert!(running.stderr().contains("source failed (1), tried again in"), "{}", running.stderr());
    stops(&world, running);
}
on_servers!(connections_that_are_ended_are_opened_again: v15 = 15, v18 = 18);

// K-F10, K-F11
fn connections_of_a_copy_that_are_ended_cost_an_attempt(major: u32) {
    let world = World::on(skip::config(major));
    world.sql(LARGE);
    let oid = world.sql("SELECT 'large'::regclass::oid");
    let mut running = world.call().more(&EAGER).more(&SOON).more(&TIGHT).spawn();
    for (round, role) in ["read", "copy"].into_iter().enumerate() {
        world.wait_for_large_copy(&mut running);
        // Behind the snapshot, so that the copy needs its stream as well.
        world.sql("UPDATE large SET note = 'behind' WHERE id = 1");
        wait_until(LIMIT, "the attempt to fail", || {
            ended(&world, &format!("application_name = 'walferry:{role}:{oid}'"));
            failures(&running) > round
        });
    }
    ends_equal(&world, &mut running, &["orders", "items", "large"]);
    // Nobody else was disturbed.
    let stderr = running.stderr();
    let mut failed = stderr.lines().filter(|line| line.contains(FAILED));
    assert!(failed.all(|line| line.contains("public.large")), "{stderr}");
    assert!(!stderr.contains("source failed"), "{stderr}");
    stops(&world, running);
    reached("K-F10");
}
on_servers!(connections_of_a_copy_that_are_ended_cost_an_attempt: v15 = 15, v18 = 18);

/// Attempts that have failed.
fn failures(running: &Running) -> usize {
    running.stderr().matches(FAILED).count()
}

/// Ends connections as an administrator does; how many there were.
fn ended(world: &World, which: &str) -> usize {
    let sql = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {which}");
    world.sql(&sql).lines().count()
}

/// All tables stream, everything has come, and no slot is left but the main slot.
#[track_caller]
fn ends_equal(world: &World, running: &mut Running, tables: &[&str]) {
    assert!(!running.has_ended(), "it ended: {}", running.stderr());
    world.wait_until_ready("file:state");
    world.sql("INSERT INTO items VALUES (999999, 'mark')");
    world.wait_for_row("copy.db", "items", "999999|mark");
    world.assert_equal_tables("copy.db", tables);
    world.assert_main_slots(1);
}

#[track_caller]
fn stops(world: &World, running: Running) {
    running.terminate();
    let finished = running.wait(LIMIT);
    assert_eq!(finished.code, Some(0), "{}", world.shown(&finished));
}
