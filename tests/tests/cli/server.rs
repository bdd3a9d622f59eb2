//! The server is not set up for logical replication, or has nothing to give.

use std::process::{Child, Command, Stdio};

use insta::assert_snapshot;
use walferry_tests::cluster::Stop;
use walferry_tests::skip;
use walferry_tests::wait::wait_until;

use crate::world::{LIMIT, World, hinted};

/// The server may have room again soon, so a run would wait for it.
const NO_RETRIES: [&str; 2] = ["--set", "main_retries_max=0"];

#[test]
fn wal_level_is_not_logical() {
    wal_level(15);
}

#[test]
fn wal_level_is_not_logical_on_18() {
    wal_level(18);
}

#[track_caller]
fn wal_level(major: u32) {
    let mut world = World::on(skip::config(major).setting("wal_level", "replica"));
    let finished = world.call().fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 2
    error run failed: wal_level is replica, expected logical
    error: connecting to the source failed
    cause: wal_level is replica, expected logical
    hint: as a superuser: ALTER SYSTEM SET wal_level = logical;
    hint: then restart the server (managed services have a parameter for it, such as rds.logical_replication)
    ");
    world.sql(&hinted(&finished, "ALTER SYSTEM"));
    world.cluster.restart(Stop::Fast);
    world.works();
}

#[test]
fn the_publication_does_not_exist() {
    publication_missing(15);
}

#[test]
fn the_publication_does_not_exist_on_18() {
    publication_missing(18);
}

#[track_caller]
fn publication_missing(major: u32) {
    let world = World::on(skip::config(major));
    let finished = world.call().publication("shop").fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 5
    error run failed: publication shop does not exist
    error: listing the publication failed
    cause: publication shop does not exist
    hint: in database postgres: CREATE PUBLICATION shop FOR ALL TABLES;
    hint: publications there are: SELECT pubname FROM pg_publication;
    ");
    world.sql(&hinted(&finished, "CREATE PUBLICATION"));
    world.call().publication("shop").works();
}

#[test]
fn the_publication_has_no_tables() {
    let world = World::new();
    world.sql("CREATE PUBLICATION \"My Shop\"");
    let call = || world.call().publication("My Shop");
    let finished = call().fails_at_once();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 5
    error run failed: publication My Shop has no tables
    error: listing the publication failed
    cause: publication My Shop has no tables
    hint: in database postgres: ALTER PUBLICATION "My Shop" ADD TABLE ..;
    "#);
    world.sql(&hinted(&finished, "ALTER PUBLICATION").replace("..", "orders, items"));
    call().works();
}

#[test]
fn every_replication_slot_is_taken() {
    let world = World::on(skip::config(15).setting("max_replication_slots", "2"));
    for slot in ["one", "two"] {
        world.sql(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
    }
    let before = world.durable();
    let finished = world.call().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 3
    error run failed: the server answered with error 53400: creating slot [slot] failed: all replication slots are in use; hint: Free one or increase max_replication_slots. (SQLSTATE 53400)
    error: creating the main slot failed
    cause: the server answered with error 53400: creating slot [slot] failed: all replication slots are in use; hint: Free one or increase max_replication_slots. (SQLSTATE 53400)
    hint: unused slots: SELECT slot_name, database, active FROM pg_replication_slots WHERE NOT active;
    hint: drop one that nobody needs: SELECT pg_drop_replication_slot('..');
    hint: or raise it and restart the server: ALTER SYSTEM SET max_replication_slots = 20;
    ");
    // Save A comes before the slot, so that the slot's name is known whatever happens (U-11).
    assert_eq!(world.durable().files(), ["state/record"]);
    assert_eq!(world.durable().slots, before.slots);
    for slot in ["one", "two"] {
        world.sql(&hinted(&finished, "SELECT pg_drop").replace("..", slot));
    }
    world.works();
}

#[test]
fn no_replication_slot_is_left_for_copies() {
    let world = World::on(skip::config(15).setting("max_replication_slots", "1"));
    let retries = ["retries_max=0", "copy_concurrency=1"].map(|set| ["--set", set]);
    let finished = world.call().caught_up().more(retries.as_flattened()).run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 5
    error [public.orders] table stopped: the server answered with error 53400: creating slot [copy slot] failed: all replication slots are in use; hint: Free one or increase max_replication_slots. (SQLSTATE 53400)
    warn [public.orders] hint: unused slots: SELECT slot_name, database, active FROM pg_replication_slots WHERE NOT active;
    warn [public.orders] hint: drop one that nobody needs: SELECT pg_drop_replication_slot('..');
    warn [public.orders] hint: or raise it and restart the server: ALTER SYSTEM SET max_replication_slots = 20;
    error [public.items] table stopped: the server answered with error 53400: creating slot [copy slot] failed: all replication slots are in use; hint: Free one or increase max_replication_slots. (SQLSTATE 53400)
    warn [public.items] hint: unused slots: SELECT slot_name, database, active FROM pg_replication_slots WHERE NOT active;
    warn [public.items] hint: drop one that nobody needs: SELECT pg_drop_replication_slot('..');
    warn [public.items] hint: or raise it and restart the server: ALTER SYSTEM SET max_replication_slots = 20;
    error: the end was reached without 2 of the tables
    cause: public.orders, public.items
    hint: see why: walferry status --state file:state
    hint: once the cause is gone: walferry retry --state file:state, and run again
    ");
    world.assert_main_slots(1);
}

#[test]
fn copies_wait_for_a_replication_slot_to_be_free() {
    let world = World::on(skip::config(15).setting("max_replication_slots", "2"));
    world.sql("SELECT pg_create_logical_replication_slot('taken', 'pgoutput')");
    let mut running = world.call().caught_up().more(&["--set", "retry_ms=200"]).spawn();
    running.wait_for_stderr("all replication slots are in use", LIMIT);
    world.sql("SELECT pg_drop_replication_slot('taken')");
    let finished = running.wait(LIMIT);
    assert_eq!(finished.code, Some(0), "{}", world.shown(&finished));
    world.assert_equal_tables("copy.db", &["orders", "items"]);
    world.assert_main_slots(1);
}

#[test]
fn every_walsender_is_taken() {
    let world = World::on(skip::config(15).setting("max_wal_senders", "1"));
    let holder = Walsender::hold(&world);
    let finished = world.call().more(&NO_RETRIES).fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 3
    error run failed: the server answered with error 53300: signing in as postgres@127.0.0.1:[port]/postgres failed: number of requested standby connections exceeds max_wal_senders (currently 1) (SQLSTATE 53300)
    error: connecting to the source failed
    cause: the server answered with error 53300: signing in as postgres@127.0.0.1:[port]/postgres failed: number of requested standby connections exceeds max_wal_senders (currently 1) (SQLSTATE 53300)
    hint: raise it and restart the server: ALTER SYSTEM SET max_wal_senders = 20;
    hint: who uses them: SELECT pid, application_name, state FROM pg_stat_replication;
    ");
    drop(holder);
}

#[test]
fn replication_is_switched_off_by_max_wal_senders() {
    let mut world = World::on(skip::config(15).setting("max_wal_senders", "0"));
    let finished = world.call().more(&NO_RETRIES).fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 3
    error run failed: the server answered with error 53300: signing in as postgres@127.0.0.1:[port]/postgres failed: number of requested standby connections exceeds max_wal_senders (currently 0) (SQLSTATE 53300)
    error: connecting to the source failed
    cause: the server answered with error 53300: signing in as postgres@127.0.0.1:[port]/postgres failed: number of requested standby connections exceeds max_wal_senders (currently 0) (SQLSTATE 53300)
    hint: raise it and restart the server: ALTER SYSTEM SET max_wal_senders = 20;
    hint: who uses them: SELECT pid, application_name, state FROM pg_stat_replication;
    ");
    world.sql(&hinted(&finished, "ALTER SYSTEM"));
    world.cluster.restart(Stop::Fast);
    world.works();
}

#[test]
fn no_walsender_is_left_for_copies() {
    let mut world = World::on(skip::config(15).setting("max_wal_senders", "2"));
    let holder = Walsender::hold(&world);
    let finished = world.call().more(&NO_RETRIES).caught_up().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 3
    error run failed: the server answered with error 53300: signing in as postgres@127.0.0.1:[port]/postgres failed: number of requested standby connections exceeds max_wal_senders (currently 2) (SQLSTATE 53300)
    error: starting the main stream failed
    cause: the server answered with error 53300: signing in as postgres@127.0.0.1:[port]/postgres failed: number of requested standby connections exceeds max_wal_senders (currently 2) (SQLSTATE 53300)
    hint: raise it and restart the server: ALTER SYSTEM SET max_wal_senders = 20;
    hint: who uses them: SELECT pid, application_name, state FROM pg_stat_replication;
    ");
    drop(holder);
    world.sql(&hinted(&finished, "ALTER SYSTEM"));
    world.cluster.restart(Stop::Fast);
}

/// A session of somebody else.
struct Walsender(Child);

impl Walsender {
    fn hold(world: &World) -> Self {
        let held = Self::start(world, "user=postgres replication=database");
        wait_until(LIMIT, "the session to replicate", || {
            world.sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'")
                == "1"
        });
        held
    }

    fn start(world: &World, as_whom: &str) -> Self {
        let socket = world.cluster.socket_dir().display();
        let port = world.cluster.port();
        let mut psql: Command = world.cluster.installation().client_command("psql");
        psql.args(["-X", "-q", "-d"])
            .arg(format!("host={socket} port={port} dbname=postgres {as_whom}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(psql.spawn().unwrap())
    }
}

impl Drop for Walsender {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.0.stdin.take());
        drop(self.0.wait());
    }
}
