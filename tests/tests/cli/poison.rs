//! A change that the destination refuses sets its table aside, and the others go on (X-14).

use insta::assert_snapshot;
use rusqlite::Connection;
use walferry_tests::{on_servers, skip};

use crate::world::{EAGER, LIMIT, World};

// X-14, X-15, Y-09
fn a_row_that_is_refused_sets_its_table_aside(major: u32) {
    let world = World::on(skip::config(major));
    let mut running = world.call().streams();
    // Somebody has written into the copy.
    let connection = Connection::open(world.path("copy.db")).unwrap();
    connection.execute("INSERT INTO items VALUES (500, 'not of the source')", []).unwrap();
    drop(connection);
    // One transaction: what it does to the other table stays.
    world.sql(
        "BEGIN; INSERT INTO orders VALUES (500, 'beside'); INSERT INTO items VALUES (500, 'poison');
         UPDATE orders SET note = 'behind' WHERE id = 1; INSERT INTO items VALUES (501, 'x'); COMMIT;
         INSERT INTO items VALUES (502, 'later'); INSERT INTO orders VALUES (501, 'later')",
    );
    running.wait_for_stderr("table was set aside", LIMIT);
    world.wait_for_row("copy.db", "orders", "501|later");
    world.assert_equal_tables("copy.db", &["orders"]);
    running.terminate();
    let finished = running.wait(LIMIT);
    assert_snapshot!(world.shown(&finished), @r#"
    exit 0
    warn [public.items] table was set aside: the destination refuses its changes, the others go on
    error [public.items] table stopped: the destination failed: sqlite file [dir]/copy.db: cannot insert a row into public.items: its key ("id") or a constraint forbids it; the table was changed by somebody else; copy it again: walferry resync public.items: UNIQUE constraint failed: items.id: Error code 1555: constraint failed
    warn [public.items] hint: once sqlite:copy.db is right, stop the run and have the table copied again: walferry retry --state file:state
    "#);
    assert!(!world.rows("copy.db", "items").contains(&"501|x".to_owned()));

    // A restart alone does not bring it back, and says so.
    world.sql("INSERT INTO orders VALUES (502, 'in a second run')");
    let finished = world.call().caught_up().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 5
    error: the end was reached without 1 of the tables
    cause: public.items
    hint: see why: walferry status --state file:state
    hint: once the cause is gone: walferry retry --state file:state, and run again
    ");
    world.assert_equal_tables("copy.db", &["orders"]);

    let retried = world.walferry(&["retry", "--state", "file:state"]).run(LIMIT);
    assert_snapshot!(world.shown(&retried), @r"
    exit 0
    --- stdout
    public.items: the next run copies it
    --- stderr
    ");
    let running = world.call().more(&EAGER).streams();
    world.sql("UPDATE items SET note = 'again' WHERE id = 500");
    world.wait_for_row("copy.db", "items", "500|again");
    running.terminate();
    assert_eq!(running.wait(LIMIT).code, Some(0));
    world.works();
}
on_servers!(a_row_that_is_refused_sets_its_table_aside: v15 = 15, v18 = 18);

// X-14
#[test]
fn a_row_that_is_missing_sets_its_table_aside_as_well() {
    let world = World::new();
    let mut running = world.call().streams();
    let connection = Connection::open(world.path("copy.db")).unwrap();
    connection.execute("DELETE FROM orders WHERE id = 7", []).unwrap();
    drop(connection);
    world.sql("UPDATE orders SET note = 'x' WHERE id = 7; INSERT INTO items VALUES (500, 'on')");
    running.wait_for_stderr("table was set aside", LIMIT);
    world.wait_for_row("copy.db", "items", "500|on");
    running.terminate();
    let finished = running.wait(LIMIT);
    assert_snapshot!(world.shown(&finished), @r#"
    exit 0
    warn [public.orders] table was set aside: the destination refuses its changes, the others go on
    error [public.orders] table stopped: the destination failed: sqlite file [dir]/copy.db: cannot update a row of public.orders: no row has its key ("id") or equals the old row; the table was changed by somebody else; copy it again: walferry resync public.orders
    warn [public.orders] hint: once sqlite:copy.db is right, stop the run and have the table copied again: walferry retry --state file:state
    "#);
    assert_eq!(
        world.walferry(&["retry", "--state", "file:state", "orders"]).run(LIMIT).code,
        Some(0)
    );
    world.works();
}
