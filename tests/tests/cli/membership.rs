//! Tables join and leave the publication while a run follows it (T-05, T-09, T-10).

use std::collections::BTreeSet;

use insta::assert_snapshot;
use walferry_tests::wait::wait_until;
use walferry_tests::{on_servers, skip};

use crate::world::{LIMIT, World};

// T-05, T-09, T-10
fn tables_come_and_go_while_a_run_goes_on(major: u32) {
    let world = World::on(skip::config(major));
    let running = world.call().more(&["--set", "listing_ms=200"]).streams();
    world.sql(
        "CREATE TABLE later (id int PRIMARY KEY, note text);
         INSERT INTO later SELECT n, 'copied' FROM generate_series(1, 40) n;
         ALTER PUBLICATION app ADD TABLE later; INSERT INTO later VALUES (100, 'streamed')",
    );
    wait_for_tables(&world, &["public.items", "public.later", "public.orders"]);
    world.wait_until_ready("file:state");
    world.sql("UPDATE later SET note = 'moved' WHERE id <= 5; DELETE FROM later WHERE id = 6");
    world.sql("INSERT INTO later VALUES (101, 'mark')");
    world.wait_for_row("copy.db", "later", "101|mark");
    world.assert_equal_tables("copy.db", &["orders", "items", "later"]);

    let before = world.rows("copy.db", "items");
    world.sql("ALTER PUBLICATION app DROP TABLE items; INSERT INTO items VALUES (100, 'unseen')");
    wait_for_tables(&world, &["public.later", "public.orders"]);
    world.sql("DELETE FROM items WHERE id < 10; INSERT INTO orders VALUES (100, 'mark')");
    world.wait_for_row("copy.db", "orders", "100|mark");
    assert_eq!(world.rows("copy.db", "items"), before, "a table that has left goes on");

    // Back again it is copied anew, in the same run.
    world.sql("ALTER PUBLICATION app ADD TABLE items");
    wait_for_tables(&world, &["public.items", "public.later", "public.orders"]);
    world.wait_until_ready("file:state");
    world.sql("INSERT INTO items VALUES (101, 'mark')");
    world.wait_for_row("copy.db", "items", "101|mark");
    world.assert_equal_tables("copy.db", &["orders", "items", "later"]);

    world.sql("DROP TABLE later");
    wait_for_tables(&world, &["public.items", "public.orders"]);
    running.terminate();
    let finished = running.wait(LIMIT);
    assert_snapshot!(world.shown(&finished), @r"
    exit 0
    warn [public.items] table has left the publication
    warn [public.later] table has left the publication
    ");
    world.assert_main_slots(1);
    world.works();
}
on_servers!(tables_come_and_go_while_a_run_goes_on: v15 = 15, v18 = 18);

/// Waits until the record names these tables and no other.
#[track_caller]
fn wait_for_tables(world: &World, names: &[&str]) {
    let wanted: BTreeSet<_> = names.iter().map(|&name| name.to_owned()).collect();
    wait_until(LIMIT, &format!("the tables to be {names:?}"), || {
        let status = world.status("file:state");
        let tables = status["tables"].as_array().expect("a list of tables");
        let found = tables.iter().map(|table| table["name"].as_str().unwrap_or("?").to_owned());
        found.collect::<BTreeSet<_>>() == wanted
    });
}
