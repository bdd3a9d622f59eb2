//! Tables change their shape while they are followed (group D).

use insta::assert_snapshot;
use serde_json::Value;
use walferry_tests::wait::wait_until;
use walferry_tests::{on_servers, skip};

use crate::world::{EAGER, LIMIT, World};

// D-08, D-15
fn lines_tell_of_a_new_column_and_a_new_type(major: u32) {
    let world = World::on(skip::config(major));
    let mut running = world.call().destination("jsonl:lines").more(&EAGER).spawn();
    running.wait_for_stderr("streaming", LIMIT);
    world.wait_until_ready("file:state");
    world.sql(
        "ALTER TABLE items ADD extra int; INSERT INTO items VALUES (100, 'wide', 7);
         UPDATE items SET extra = 8 WHERE id = 1",
    );
    let of_items = |world: &World| of_table(&lines(world), "items");
    wait_until(LIMIT, "the rows of the new shape", || {
        let lines = of_items(&world);
        lines.iter().any(|line| line["op"] == "update" && line["after"]["extra"] == 8)
    });
    let seen = of_items(&world);
    let at = |op: &str| seen.iter().position(|line| line["op"] == op).unwrap();
    let schema = &seen[at("schema")];
    let shape = |line: &Value| {
        let columns = line["columns"].as_array().unwrap();
        let column = |c: &Value| format!("{} {} {}", c["name"], c["type_oid"], c["key"]);
        columns.iter().map(column).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(shape(schema), "\"id\" 23 true, \"note\" 25 false, \"extra\" 23 false");
    assert_eq!(at("schema") + 1, at("insert"), "the shape stands right before its first row");
    assert_eq!(seen[at("insert")]["after"]["extra"], 7);
    assert_eq!(seen[at("insert")]["attempt"], schema["attempt"]);

    // Rows that exist may differ without a change event, so the table is copied again (D-15).
    world.sql(
        "ALTER TABLE items ALTER extra TYPE text USING extra || '!'; INSERT INTO items VALUES (101, 'text', 'x')",
    );
    wait_until(LIMIT, "a copy of the new type", || {
        let lines = of_items(&world);
        lines.iter().any(|line| line["op"] == "read" && line["after"]["extra"] == "8!")
    });
    world.wait_until_ready("file:state");
    world.sql("INSERT INTO items VALUES (102, 'after', 'y')");
    wait_until(LIMIT, "the stream to go on", || {
        of_items(&world).iter().any(|line| line["op"] == "insert" && line["after"]["extra"] == "y")
    });
    let seen = of_items(&world);
    let copies: Vec<_> = seen.iter().filter(|line| line["op"] == "copy_begin").map(shape).collect();
    assert_eq!(copies.len(), 2, "{copies:?}");
    assert_eq!(copies[1], "\"id\" 23 true, \"note\" 25 false, \"extra\" 25 false");
    let last = seen.iter().rposition(|line| line["op"] == "copy_begin").unwrap();
    let copied = seen[last..].iter().filter(|line| line["op"] == "read");
    assert_eq!(copied.count(), 32);
    assert!(of_table(&lines(&world), "orders").iter().all(|line| line["op"] != "schema"));
    running.terminate();
    let finished = running.wait(LIMIT);
    assert_snapshot!(world.shown(&finished), @r"
    exit 0
    warn [public.items] ALTER TABLE may have changed extra of existing rows, which no event tells
    ");
}
on_servers!(lines_tell_of_a_new_column_and_a_new_type: v15 = 15, v18 = 18);

// D-08, Y-09
fn sqlite_stops_a_table_of_another_shape_until_it_is_resynced(major: u32) {
    let world = World::on(skip::config(major));
    let mut running = world.call().streams();
    world.sql(
        "ALTER TABLE items ADD extra int; INSERT INTO items VALUES (100, 'wide', 7);
         ALTER TABLE orders ALTER note TYPE varchar(60); INSERT INTO orders VALUES (100, 'narrow');
         CREATE TABLE mark (id int PRIMARY KEY); ALTER PUBLICATION app ADD TABLE mark",
    );
    wait_until(LIMIT, "both tables to stop", || {
        assert!(!running.has_ended(), "it ended: {}", running.stderr());
        running.stderr().matches("table stopped").count() == 2
    });
    running.terminate();
    let finished = running.wait(LIMIT);
    assert_snapshot!(world.shown(&finished), @r"
    exit 0
    error [public.items] table stopped: the stream announces (id type 23 key, note type 25, extra type 23) but the table was copied as (id type 23 key, note type 25): the destination cannot follow schema changes, resync the table
    warn [public.items] hint: stop the run and have the table copied again: walferry resync --state file:state public.items
    error [public.orders] table stopped: the stream announces (id type 23 key, note type 1043 modifier 64) but the table was copied as (id type 23 key, note type 25): the destination cannot follow schema changes, resync the table
    warn [public.orders] hint: stop the run and have the table copied again: walferry resync --state file:state public.orders
    ");
    let status = world.walferry(&["status", "--state", "file:state"]).run(LIMIT);
    assert_eq!(status.code, Some(5), "{}", status.stdout);

    let resync = ["resync", "--state", "file:state", "items", "orders"];
    let resynced = world.walferry(&resync).run(LIMIT);
    assert_snapshot!(world.shown(&resynced), @r"
    exit 0
    --- stdout
    public.orders: the next run copies it
    public.items: the next run copies it
    --- stderr
    ");
    world.works();
    world.sql("UPDATE items SET extra = id; DELETE FROM orders WHERE id = 1");
    world.works();
    world.assert_equal_tables("copy.db", &["mark"]);
}
on_servers!(sqlite_stops_a_table_of_another_shape_until_it_is_resynced: v15 = 15, v18 = 18);

/// The complete lines so far.
fn lines(world: &World) -> Vec<Value> {
    let text = std::fs::read_to_string(world.path("lines")).unwrap();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of_table(lines: &[Value], table: &str) -> Vec<Value> {
    lines.iter().filter(|line| line["table"] == table).cloned().collect()
}
