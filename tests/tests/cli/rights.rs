//! The role lacks a right.

use insta::assert_snapshot;
use walferry_tests::skip;

use crate::world::{LIMIT, World, hinted};

#[test]
fn the_role_may_not_replicate() {
    assert_snapshot!(may_not_replicate(15), @r"
    exit 3
    error run failed: the server answered with error 42501: start-up failed: must be superuser or replication role to start walsender (SQLSTATE 42501)
    error: connecting to the source failed
    cause: the server answered with error 42501: start-up failed: must be superuser or replication role to start walsender (SQLSTATE 42501)
    hint: as a superuser: ALTER ROLE ferry REPLICATION;
    ");
}

#[test]
fn the_role_may_not_replicate_on_18() {
    assert_snapshot!(may_not_replicate(18), @r"
    exit 3
    error run failed: the server answered with error 42501: start-up failed: permission denied to start WAL sender; detail: Only roles with the REPLICATION attribute may start a WAL sender process. (SQLSTATE 42501)
    error: connecting to the source failed
    cause: the server answered with error 42501: start-up failed: permission denied to start WAL sender; detail: Only roles with the REPLICATION attribute may start a WAL sender process. (SQLSTATE 42501)
    hint: as a superuser: ALTER ROLE ferry REPLICATION;
    ");
}

/// The server's words differ, the advice does not.
#[track_caller]
fn may_not_replicate(major: u32) -> String {
    let world = World::on(skip::config(major));
    world.sql("ALTER ROLE ferry NOREPLICATION");
    let finished = world.call_as_ferry().fails_at_once();
    world.sql(&hinted(&finished, "ALTER ROLE"));
    world.call_as_ferry().works();
    world.shown(&finished)
}

#[test]
fn the_role_may_not_read_one_table() {
    let world = World::new();
    world.sql("REVOKE SELECT ON items FROM ferry");
    let finished = world.call_as_ferry().caught_up().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 5
    error [public.items] table stopped: the server answered with error 42501: locking table public.items failed: permission denied for table items (SQLSTATE 42501)
    warn [public.items] hint: GRANT SELECT ON public.items TO ferry;
    error: the end was reached without 1 of the tables
    cause: public.items
    hint: see why: walferry status --state file:state
    hint: once the cause is gone: walferry retry --state file:state, and run again
    ");
    // The other table went on.
    world.assert_equal_tables("copy.db", &["orders"]);
    world.assert_main_slots(1);
    world.sql("INSERT INTO orders VALUES (100, 'later')");
    assert_eq!(world.call_as_ferry().caught_up().run().code, Some(5));
    world.assert_equal_tables("copy.db", &["orders"]);
    let status = world.walferry(&["status", "--state", "file:state"]).run(LIMIT);
    assert_snapshot!(world.shown(&status), @r"
    exit 5
    --- stdout
    state        file:state
    source       database postgres, publication app, system [system], timeline 1
    slot         [slot]
    destination  sqlite:[dir]/copy.db
    checkpoint   [lsn] (run 2)
    tables       1 ready, 1 errored

    TABLE          PHASE             HANDOVER   TRIES/DEATHS  ERROR
    public.orders  ready             [lsn]  0/0
    public.items   errored (manual)  -          1/0           the server answered with error 42501: locking table public.items failed: permission denied for table items (SQLSTATE 42501)

    somebody has to act:
      table public.items stopped: the server answered with error 42501: locking table public.items failed: permission denied for table items (SQLSTATE 42501)
    --- stderr
    ");
    world.sql(&hinted(&finished, "GRANT SELECT"));
    let retried = world.walferry(&["retry", "--state", "file:state"]).run(LIMIT);
    assert_snapshot!(world.shown(&retried), @r"
    exit 0
    --- stdout
    public.items: the next run copies it
    --- stderr
    ");
    world.call_as_ferry().works();
}

#[test]
fn the_role_may_not_read_the_schema() {
    let world = World::new();
    world.sql(
        "CREATE SCHEMA hidden; CREATE TABLE hidden.t (id int PRIMARY KEY);
         ALTER PUBLICATION app ADD TABLE hidden.t; GRANT SELECT ON hidden.t TO ferry",
    );
    let finished = world.call_as_ferry().caught_up().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 5
    error [hidden.t] table stopped: the server answered with error 42501: locking table hidden.t failed: permission denied for schema hidden (SQLSTATE 42501)
    warn [hidden.t] hint: GRANT USAGE ON SCHEMA hidden TO ferry;
    error: the end was reached without 1 of the tables
    cause: hidden.t
    hint: see why: walferry status --state file:state
    hint: once the cause is gone: walferry retry --state file:state, and run again
    ");
    world.assert_equal_tables("copy.db", &["orders", "items"]);
}

#[test]
fn the_role_may_not_connect_to_the_database() {
    let world = World::new();
    world.sql("REVOKE CONNECT ON DATABASE postgres FROM PUBLIC");
    let finished = world.call_as_ferry().fails_at_once();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 3
    error run failed: the server answered with error 42501: start-up failed: permission denied for database "postgres"; detail: User does not have CONNECT privilege. (SQLSTATE 42501)
    error: connecting to the source failed
    cause: the server answered with error 42501: start-up failed: permission denied for database "postgres"; detail: User does not have CONNECT privilege. (SQLSTATE 42501)
    hint: GRANT CONNECT ON DATABASE postgres TO ferry;
    "#);
    world.sql(&hinted(&finished, "GRANT CONNECT"));
    world.call_as_ferry().works();
}

#[test]
fn the_role_may_not_log_in() {
    let world = World::new();
    world.sql("ALTER ROLE ferry NOLOGIN");
    let finished = world.call_as_ferry().fails_at_once();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 3
    error run failed: sign-in failed: start-up failed: role "ferry" is not permitted to log in (SQLSTATE 28000)
    error: connecting to the source failed
    cause: sign-in failed: start-up failed: role "ferry" is not permitted to log in (SQLSTATE 28000)
    hint: ALTER ROLE ferry LOGIN;
    "#);
    world.sql(&hinted(&finished, "ALTER ROLE"));
    world.call_as_ferry().works();
}
