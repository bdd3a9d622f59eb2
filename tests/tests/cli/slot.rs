//! Somebody touches the main slot between two runs (M-12, U-08).

use insta::assert_snapshot;
use walferry_tests::skip;

use crate::world::World;

/// A pipeline that has run once, and its slot.
fn pipeline(major: u32) -> (World, String) {
    let world = World::on(skip::config(major));
    world.works();
    let slot = world.slot("file:state");
    world.sql("INSERT INTO orders VALUES (100, 'between')");
    (world, slot)
}

/// The run is refused without any change; after a new start as the hint says all is well.
#[track_caller]
fn refused(world: &World) -> String {
    let before = world.durable();
    let finished = world.call().run();
    assert_eq!(world.durable(), before);
    world.shown(&finished)
}

/// `walferry recreate`, as the hint says; rows that have gone meanwhile go in the destination, too.
#[track_caller]
fn recreated(world: &World) {
    world.sql("DELETE FROM orders WHERE id < 10; INSERT INTO items VALUES (500, 'in the gap')");
    let finished = world.call().recreate();
    assert_eq!(finished.code, Some(0), "{}", world.shown(&finished));
    world.assert_main_slots(1);
    world.works();
    world.assert_main_slots(1);
}

/// `to start over`, to the letter of the hint.
#[track_caller]
fn start_over(world: &World) {
    std::fs::rename(world.path("state"), world.path("old-state")).unwrap();
    for file in ["copy.db", "copy.db-wal", "copy.db-shm"] {
        drop(std::fs::remove_file(world.path(file)));
    }
    world.works();
}

#[test]
fn the_slot_was_dropped() {
    let (world, slot) = pipeline(15);
    world.sql(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    assert_snapshot!(refused(&world), @r"
    exit 5
    error run failed: replication slot [slot] does not exist
    error: checking the main slot failed
    cause: replication slot [slot] does not exist
    hint: somebody dropped it: the changes since the checkpoint went with slot [slot]
    hint: to copy every table anew with a slot of the same name: walferry recreate --state file:state and the arguments of the run
    ");
    recreated(&world);
}

#[test]
fn the_slot_was_dropped_on_18() {
    let (world, slot) = pipeline(18);
    world.sql(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    assert_snapshot!(refused(&world), @r"
    exit 5
    error run failed: replication slot [slot] does not exist
    error: checking the main slot failed
    cause: replication slot [slot] does not exist
    hint: somebody dropped it: the changes since the checkpoint went with slot [slot]
    hint: to copy every table anew with a slot of the same name: walferry recreate --state file:state and the arguments of the run
    ");
    recreated(&world);
}

#[test]
fn the_slot_was_replaced_by_one_of_another_plugin() {
    let (world, slot) = pipeline(15);
    world.sql(&format!(
        "SELECT pg_drop_replication_slot('{slot}');
         SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')"
    ));
    assert_snapshot!(refused(&world), @r"
    exit 5
    error run failed: replication slot [slot] is not ours: its plugin is test_decoding, not pgoutput
    error: checking the main slot failed
    cause: replication slot [slot] is not ours: its plugin is test_decoding, not pgoutput
    hint: see who made it: SELECT * FROM pg_replication_slots WHERE slot_name = '[slot]';
    hint: to start over, move state and copy.db (with copy.db-wal, if there is one) away and run again: all tables are copied anew
    ");
    start_over(&world);
}

#[test]
fn the_slot_was_replaced_by_one_of_another_database() {
    let (world, slot) = pipeline(15);
    world.sql("CREATE DATABASE other");
    world.sql(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    world
        .cluster
        .psql("other", &format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
    assert_snapshot!(refused(&world), @r"
    exit 5
    error run failed: replication slot [slot] is not ours: its database is other, not postgres
    error: checking the main slot failed
    cause: replication slot [slot] is not ours: its database is other, not postgres
    hint: see who made it: SELECT * FROM pg_replication_slots WHERE slot_name = '[slot]';
    hint: to start over, move state and copy.db (with copy.db-wal, if there is one) away and run again: all tables are copied anew
    ");
}

#[test]
fn the_slot_was_advanced_past_the_checkpoint() {
    let (world, slot) = pipeline(15);
    world.sql(&format!("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"));
    assert_snapshot!(refused(&world), @r"
    exit 5
    error run failed: replication slot [slot] is at [lsn], past the checkpoint [lsn]
    error: checking the main slot failed
    cause: replication slot [slot] is at [lsn], past the checkpoint [lsn]
    hint: something else has read from slot [slot], or the state is an old copy
    hint: to copy every table anew with a slot of the same name: walferry recreate --state file:state and the arguments of the run
    ");
    recreated(&world);
}

#[test]
fn the_slot_was_invalidated() {
    let mut world = World::on(
        skip::config(15).setting("max_slot_wal_keep_size", "1MB").setting("min_wal_size", "32MB"),
    );
    world.works();
    // More than the slot may keep; the next checkpoint gives it up.
    world.sql(
        "CREATE TABLE other (t text); INSERT INTO other SELECT repeat('x', 1000) FROM
         generate_series(1, 20000)",
    );
    for _ in 0..3 {
        world.sql("SELECT pg_switch_wal(); INSERT INTO other VALUES ('x'); CHECKPOINT");
    }
    world.cluster.restart(walferry_tests::cluster::Stop::Fast);
    assert_snapshot!(refused(&world), @r"
    exit 5
    warn the server may end the slot of a long copy: max_slot_wal_keep_size = 1MB
    error run failed: replication slot [slot] was invalidated: wal_removed
    error: checking the main slot failed
    cause: replication slot [slot] was invalidated: wal_removed
    hint: the server gave up WAL that was still needed; allow more: ALTER SYSTEM SET max_slot_wal_keep_size = '..'; SELECT pg_reload_conf();
    hint: to copy every table anew with a slot of the same name: walferry recreate --state file:state and the arguments of the run
    ");
    recreated(&world);
}

#[test]
fn the_slot_is_held_by_somebody_else() {
    let (world, slot) = pipeline(15);
    let mut reader = world
        .cluster
        .installation()
        .client_command("pg_recvlogical")
        .args(["-U", "postgres", "-d", "postgres", "-h"])
        .arg(world.cluster.socket_dir())
        .args(["-p", &world.cluster.port().to_string(), "--slot", &slot, "--start", "-f", "-"])
        .args(["-o", "proto_version=1", "-o", "publication_names=app"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    walferry_tests::wait::wait_until(crate::world::LIMIT, "the slot to be in use", || {
        world.sql("SELECT active FROM pg_replication_slots") == "t"
    });
    let finished =
        world.call().more(&["--set", "slot_busy_ms=1000", "--set", "main_retries_max=0"]).run();
    reader.kill().unwrap();
    reader.wait().unwrap();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 3
    warn the slot is in use by pid [pid] "pg_recvlogical"
    error run failed: no answer within 1s: replication slot [slot] is held by pid [pid] (pg_recvlogical)
    error: checking the main slot failed
    cause: no answer within 1s: replication slot [slot] is held by pid [pid] (pg_recvlogical)
    hint: who it is: SELECT * FROM pg_stat_activity WHERE pid = [pid];
    hint: another walferry of the same state on another machine? let only one of them run
    hint: if nobody needs it: SELECT pg_terminate_backend([pid]);
    "#);
    walferry_tests::wait::wait_until(crate::world::LIMIT, "the slot to be free", || {
        world.sql("SELECT active FROM pg_replication_slots") == "f"
    });
    // Nobody confirmed anything, so the change between the runs is still to come.
    world.works();
}
