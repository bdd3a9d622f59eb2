//! One table that several connections read (K-20), while it is written to.

use walferry_tests::wait::{wait_for, wait_until};
use walferry_tests::{on_servers, skip};

use crate::world::{EAGER, LARGE, LIMIT, TIGHT, World};

/// Touches the beginning, the middle and the end of the table, and makes it longer.
const ROUND: &str = "
    INSERT INTO large SELECT (SELECT max(id) FROM large) + n, md5(n::text) FROM generate_series(1, 20) n;
    UPDATE large SET note = note || 'x' WHERE id % 997 = 3;
    UPDATE large SET id = -id WHERE id % 9973 = 7;
    DELETE FROM large WHERE id % 4999 = 5;";

// K-20, K-I2, K-I5, W-I1
fn a_large_table_is_read_by_several_connections_while_it_changes(major: u32) {
    let world = World::on(skip::config(major));
    world.sql(LARGE);
    let size = "SELECT pg_table_size('large')";
    assert!(world.sql(size).parse::<u64>().unwrap() > 90 << 20);
    let mut running = world.call().more(&EAGER).more(&TIGHT).spawn();
    // They stay until the last row is durable (K-19).
    let readers = "SELECT count(*) FROM pg_stat_activity \
                   WHERE application_name = 'walferry:read:' || 'large'::regclass::oid";
    let connections = wait_for(LIMIT, "several connections to read", || {
        assert!(!running.has_ended(), "it ended: {}", running.stderr());
        let count: usize = world.sql(readers).parse().unwrap();
        (count > 1).then_some(count)
    });
    assert!(connections <= 4, "{connections} are more than copy_connections_per_table");
    // From here on every change is behind the snapshot, and most of the first ones are replayed.
    wait_until(LIMIT, "the table to stream", || {
        world.sql(ROUND);
        let status = world.status("file:state");
        let mut tables = status["tables"].as_array().unwrap().iter();
        tables.all(|table| table["phase"] == "ready")
    });
    world.sql(ROUND);
    world.sql("INSERT INTO items VALUES (999, 'mark')");
    world.wait_for_row("copy.db", "items", "999|mark");
    world.assert_equal_tables("copy.db", &["orders", "items", "large"]);
    running.terminate();
    let finished = running.wait(LIMIT);
    assert_eq!(finished.code, Some(0), "{}", world.shown(&finished));
    assert!(!finished.stderr.contains("table failed"), "{}", finished.stderr);
    world.assert_main_slots(1);
}
on_servers!(a_large_table_is_read_by_several_connections_while_it_changes: v15 = 15, v18 = 18);
