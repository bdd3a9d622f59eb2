//! Tables are adopted as an earlier run has left them: `--set copy=none` (K-18).

use insta::assert_snapshot;
use walferry_tests::{on_servers, skip};

use crate::world::{LIMIT, World};

const ADOPT: [&str; 2] = ["--set", "copy=none"];

// K-18, DS-05, DS-16
fn the_file_of_an_earlier_pipeline_is_adopted(major: u32) {
    let world = World::on(skip::config(major));
    world.works();
    // Somebody has written into the copy; a copy would not leave that there.
    let connection = rusqlite::Connection::open(world.path("copy.db")).unwrap();
    connection.execute("INSERT INTO items VALUES (900, 'kept')", []).unwrap();
    drop(connection);
    let adopting = || world.call().state("file:other").more(&ADOPT);
    let refused = adopting().run();
    assert_snapshot!(world.shown(&refused), @r#"
    exit 4
    error run failed: the destination failed: sqlite file [dir]/copy.db: it belongs to the pipeline "[slot]", this is "[slot]"; use another file, or --take-over if "[slot]" will never run again
    error: starting the destination failed
    cause: the destination failed: sqlite file [dir]/copy.db: it belongs to the pipeline "[slot]", this is "[slot]"; use another file, or --take-over if "[slot]" will never run again
    hint: sqlite:copy.db belongs to another pipeline: name another place with --destination
    hint: if the other one will never run again: --take-over
    "#);
    let running = adopting().more(&["--take-over"]).streams();
    assert_eq!(world.sql("SELECT count(*) FROM pg_replication_slots WHERE temporary"), "0");
    world.sql("UPDATE orders SET note = 'new' WHERE id = 1; DELETE FROM items WHERE id = 2");
    world.sql("INSERT INTO items VALUES (500, 'mark')");
    world.wait_for_row("copy.db", "items", "500|mark");
    running.terminate();
    let finished = running.wait(LIMIT);
    assert_snapshot!(world.shown(&finished), @"exit 0");
    world.assert_equal_tables("copy.db", &["orders"]);
    let found = world.rows("copy.db", "items");
    assert!(found.contains(&"900|kept".to_owned()), "the rows were copied anew");
    world.sql("INSERT INTO items VALUES (900, 'kept')");
    // The source gets the same row: it stands in the file's way, as nobody compared the two.
    let retried = adopting().caught_up().run();
    assert_snapshot!(world.shown(&retried), @r#"
    exit 5
    warn [public.items] table was set aside: the destination refuses its changes, the others go on
    error [public.items] table stopped: the destination failed: sqlite file [dir]/copy.db: cannot insert a row into public.items: its key ("id") or a constraint forbids it; the table was changed by somebody else; copy it again: walferry resync public.items: UNIQUE constraint failed: items.id: Error code 1555: constraint failed
    warn [public.items] hint: once sqlite:copy.db is right, stop the run and have the table copied again: walferry retry --state file:other
    error: the end was reached without 1 of the tables
    cause: public.items
    hint: see why: walferry status --state file:other
    hint: once the cause is gone: walferry retry --state file:other, and run again
    "#);
}
on_servers!(the_file_of_an_earlier_pipeline_is_adopted: v15 = 15, v18 = 18);

// K-18, I-08
fn after_a_recreation_tables_are_adopted_and_the_gap_is_told(major: u32) {
    let world = World::on(skip::config(major));
    world.works();
    let slot = world.slot("file:state");
    world.sql(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    let recreated = world.call().recreate();
    assert_eq!(recreated.code, Some(0), "{}", world.shown(&recreated));
    world.sql(
        "UPDATE orders SET note = 'after' WHERE id < 4; INSERT INTO items VALUES (100, 'after')",
    );
    let finished = world.call().more(&ADOPT).caught_up().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 0
    warn [public.orders] table adopted as it is: changes before [lsn] that its rows lack are left out
    warn [public.items] table adopted as it is: changes before [lsn] that its rows lack are left out
    ");
    world.assert_equal_tables("copy.db", &["orders", "items"]);
    world.works();
}
on_servers!(after_a_recreation_tables_are_adopted_and_the_gap_is_told: v15 = 15, v18 = 18);

// K-18: a table the filter names is copied, the others are adopted.
#[test]
fn only_the_tables_named_are_copied() {
    let world = World::new();
    let finished = world.call().more(&["--set", "copy=only:public.orders"]).caught_up().run();
    assert_snapshot!(world.shown(&finished), @"exit 0");
    world.assert_equal_tables("copy.db", &["orders"]);
    assert!(world.rows("copy.db", "items").is_empty());
    world.sql("INSERT INTO items VALUES (100, 'streamed')");
    assert_eq!(world.call().caught_up().run().code, Some(0));
    assert_eq!(world.rows("copy.db", "items"), ["100|streamed"]);
}
