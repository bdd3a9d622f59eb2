//! Slots that standbys keep a copy of (`slot_failover`, M-08, M-09, N-05).

use insta::assert_snapshot;
use walferry_tests::coverage::reached;
use walferry_tests::skip;
use walferry_tests::wait::wait_until;

use crate::world::{EAGER, LARGE, LIMIT, TIGHT, World};

const FAILOVER: [&str; 2] = ["--set", "slot_failover=on"];

// M-08
#[test]
fn a_server_that_cannot_do_it_is_named() {
    let world = World::new();
    let finished = world.call().more(&FAILOVER).fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 2
    error run failed: slot_failover is on, expected off: PostgreSQL 15 keeps no slots on standbys, 17 and newer do
    error: connecting to the source failed
    cause: slot_failover is on, expected off: PostgreSQL 15 keeps no slots on standbys, 17 and newer do
    hint: leave out --set slot_failover=on, or upgrade the server
    ");
    world.works();
}

// K-05, M-04, X-04
#[test]
fn the_slots_have_the_property_and_copy_slots_go() {
    let world = World::on(skip::config(18));
    world.sql(LARGE);
    let mut running = world.call().more(&FAILOVER).more(&EAGER).more(&TIGHT).spawn();
    let oid = world.sql("SELECT 'large'::regclass::oid");
    let copy_slot = format!(
        "SELECT count(*) FROM pg_replication_slots \
         WHERE failover AND NOT temporary AND slot_name LIKE 'walferry_copy_%_o{oid}'"
    );
    wait_until(LIMIT, "the copy slot of the large table", || {
        assert!(!running.has_ended(), "it ended: {}", running.stderr());
        world.sql(&copy_slot) == "1"
    });
    world.wait_until_ready("file:state");
    world.assert_main_slots(1);
    let slot = world.slot("file:state");
    let main =
        format!("SELECT failover, temporary FROM pg_replication_slots WHERE slot_name = '{slot}'");
    assert_eq!(world.sql(&main), "t|f");
    world.sql("UPDATE large SET note = 'x' WHERE id < 9; INSERT INTO items VALUES (500, 'mark')");
    world.wait_for_row("copy.db", "items", "500|mark");
    running.terminate();
    let finished = running.wait(LIMIT);
    assert_snapshot!(world.shown(&finished), @"exit 0");
    world.call().more(&FAILOVER).works();
    world.assert_equal_tables("copy.db", &["large"]);
    world.assert_main_slots(1);
    reached("K-I4");
}

// K-05, U-09: what a kill left behind goes with the next start.
#[test]
fn copy_slots_of_a_killed_run_are_removed() {
    let world = World::on(skip::config(18));
    world.sql(LARGE);
    let mut running = world.call().more(&FAILOVER).more(&TIGHT).spawn();
    world.wait_for_large_copy(&mut running);
    running.kill();
    assert_eq!(running.wait(LIMIT).signal, Some(9));
    assert_ne!(world.sql("SELECT count(*) FROM pg_replication_slots"), "1");
    world.call().more(&FAILOVER).works();
    world.assert_main_slots(1);
}

// M-09
#[test]
fn the_property_is_given_to_a_slot_that_lacks_it() {
    let world = World::on(skip::config(18));
    world.works();
    let property = "SELECT failover FROM pg_replication_slots";
    assert_eq!(world.sql(property), "f");
    world.sql("INSERT INTO orders VALUES (100, 'between')");
    world.call().more(&FAILOVER).works();
    assert_eq!(world.sql(property), "t");
}
