//! What stands in the messages of a stream: relations, old and new rows, truncates.

use walferry_core::event::RowKind;
use walferry_core::wire::{Cell, Message, OldKind, RowView};
use walferry_tests::cluster::Cluster;
use walferry_tests::{on_servers, skip};

use crate::raw::{Client, Data, changes};

/// Runs `setup`, creates a slot, runs `traffic`, and returns the `transactions` messages of it.
fn traffic(cluster: &Cluster, setup: &str, traffic: &str, transactions: usize) -> Vec<Data> {
    cluster.psql("postgres", setup);
    let sql = "SELECT lsn FROM pg_create_logical_replication_slot('s', 'pgoutput')";
    let from = Client::sql(cluster, "postgres").lsn(sql);
    cluster.psql("postgres", traffic);
    Client::stream(cluster, "s", from).transactions(transactions)
}

// PG-13
fn a_relation_precedes_the_first_row_and_comes_again(major: u32) {
    let cluster = skip::require(major);
    let all = traffic(
        &cluster,
        "CREATE TABLE t(id int PRIMARY KEY, note text); CREATE TABLE u(id int PRIMARY KEY); \
         CREATE PUBLICATION p FOR TABLE t, u;",
        "BEGIN; INSERT INTO t VALUES (1), (2); INSERT INTO u VALUES (1); COMMIT; \
         INSERT INTO t VALUES (3); \
         ALTER TABLE t ADD COLUMN more int; INSERT INTO t VALUES (4); INSERT INTO t VALUES (5); \
         TRUNCATE t; INSERT INTO t VALUES (6); INSERT INTO u VALUES (2);",
        7,
    );
    let seen = changes(&all);
    let before = "relation t (id, note)";
    let after = "relation t (id, note, more)";
    let mut expected = vec![
        before,
        "insert t new (1, null)",
        "insert t new (2, null)",
        "relation u (id)",
        "insert u new (1)",
        "insert t new (3, null)",
        after,
        "insert t new (4, null, null)",
        "insert t new (5, null, null)",
        "truncate t",
        after,
        "insert t new (6, null, null)",
        "insert u new (2)",
    ];
    // It may be repeated unchanged, and is in the transaction of the truncate itself.
    if seen.iter().filter(|line| *line == after).count() == 3 {
        expected.insert(9, after);
    }
    assert_eq!(seen, expected);
    // Another session of the same slot knows nothing of what was announced in this one.
    let from = crate::raw::boundaries(&all)[0].1;
    let again = Client::stream(&cluster, "s", from.0).transactions(1);
    assert_eq!(changes(&again), [before, "insert t new (3, null)"]);
}
on_servers!(a_relation_precedes_the_first_row_and_comes_again: v15 = 15, v18 = 18);

// PG-15
fn old_rows_hold_the_key_or_everything_or_are_absent(major: u32) {
    let cluster = skip::require(major);
    let columns = "(a int NOT NULL, id int NOT NULL, b text, PRIMARY KEY (id))";
    let writes = |table: &str| {
        format!(
            "UPDATE {table} SET b = 'y'; UPDATE {table} SET id = 2; UPDATE {table} SET a = 9; \
             DELETE FROM {table};"
        )
    };
    let tables = ["by_key", "by_index", "full_row"];
    let all = traffic(
        &cluster,
        &format!(
            "CREATE TABLE by_key {columns}; CREATE TABLE by_index {columns}; \
             CREATE TABLE full_row {columns}; \
             CREATE UNIQUE INDEX i ON by_index(a); \
             ALTER TABLE by_index REPLICA IDENTITY USING INDEX i; \
             ALTER TABLE full_row REPLICA IDENTITY FULL; \
             INSERT INTO by_key VALUES (7, 1, 'x'); INSERT INTO by_index VALUES (7, 1, 'x'); \
             INSERT INTO full_row VALUES (7, 1, 'x'); \
             CREATE PUBLICATION p FOR TABLE by_key, by_index, full_row;"
        ),
        &tables.map(writes).concat(),
        12,
    );
    let mut seen = changes(&all);
    seen.retain(|line| !line.starts_with("relation"));
    assert_eq!(
        seen,
        [
            "update by_key new (7, 1, y)",
            "update by_key key (null, 1, null) new (7, 2, y)",
            "update by_key new (9, 2, y)",
            "delete by_key key (null, 2, null)",
            "update by_index new (7, 1, y)",
            "update by_index new (7, 2, y)",
            "update by_index key (7, null, null) new (9, 2, y)",
            "delete by_index key (9, null, null)",
            "update full_row old (7, 1, x) new (7, 1, y)",
            "update full_row old (7, 1, y) new (7, 2, y)",
            "update full_row old (7, 2, y) new (9, 2, y)",
            "delete full_row old (9, 2, y)",
        ]
    );
}
on_servers!(old_rows_hold_the_key_or_everything_or_are_absent: v15 = 15, v18 = 18);

// PG-16
fn an_unchanged_toasted_value_is_sent_only_in_a_full_old_row(major: u32) {
    let cluster = skip::require(major);
    let columns = "(id int PRIMARY KEY, n int, big text)";
    let writes = |table: &str| {
        format!(
            "UPDATE {table} SET n = 1; UPDATE {table} SET id = 2; \
             UPDATE {table} SET big = repeat('z', 3000);"
        )
    };
    let all = traffic(
        &cluster,
        &format!(
            "CREATE TABLE by_key {columns}; CREATE TABLE full_row {columns}; \
             ALTER TABLE by_key ALTER big SET STORAGE EXTERNAL; \
             ALTER TABLE full_row ALTER big SET STORAGE EXTERNAL; \
             ALTER TABLE full_row REPLICA IDENTITY FULL; \
             INSERT INTO by_key VALUES (1, 0, repeat('x', 5000)); \
             INSERT INTO full_row VALUES (1, 0, repeat('x', 5000)); \
             CREATE PUBLICATION p FOR TABLE by_key, full_row;"
        ),
        &["by_key", "full_row"].map(writes).concat(),
        6,
    );
    let mut seen = changes(&all);
    seen.retain(|line| !line.starts_with("relation"));
    assert_eq!(
        seen,
        [
            "update by_key new (1, 1, u)",
            "update by_key key (1, null, null) new (2, 1, u)",
            "update by_key new (2, 1, <3000>)",
            "update full_row old (1, 0, <5000>) new (1, 1, u)",
            "update full_row old (1, 1, <5000>) new (2, 1, u)",
            "update full_row old (2, 1, <5000>) new (2, 1, <3000>)",
        ]
    );
    // The value itself, not only its length.
    let old = all.iter().find_map(|data| {
        let Message::Row { kind: RowKind::Update, row, .. } = data.message() else { return None };
        let Some((OldKind::Full, old)) = RowView::parse(RowKind::Update, row).unwrap().old else {
            return None;
        };
        let Some(Cell::Text(value)) = old.cells().nth(2) else { panic!("{old:?}") };
        Some(value.to_vec())
    });
    assert_eq!(old, Some(vec![b'x'; 5_000]));
}
on_servers!(an_unchanged_toasted_value_is_sent_only_in_a_full_old_row: v15 = 15, v18 = 18);

// PG-18
fn one_message_tells_a_truncate_of_several_tables(major: u32) {
    let cluster = skip::require(major);
    let all = traffic(
        &cluster,
        "CREATE TABLE a(id serial PRIMARY KEY); CREATE TABLE b(id int PRIMARY KEY); \
         CREATE TABLE child(id int PRIMARY KEY, a int REFERENCES a); CREATE TABLE quiet(id int); \
         CREATE PUBLICATION p FOR TABLE a, b, child;",
        "TRUNCATE b; TRUNCATE b, quiet; TRUNCATE quiet; TRUNCATE a, b CASCADE; \
         TRUNCATE b, child RESTART IDENTITY; TRUNCATE a, b, quiet RESTART IDENTITY CASCADE; \
         BEGIN; TRUNCATE b; TRUNCATE child; COMMIT;",
        6,
    );
    let mut seen = changes(&all);
    seen.retain(|line| !line.starts_with("relation"));
    assert_eq!(
        seen,
        [
            "truncate b",
            "truncate b",
            "truncate a, b, child cascade",
            "truncate b, child restart",
            "truncate a, b, child cascade restart",
            "truncate b",
            "truncate child",
        ]
    );
}
on_servers!(one_message_tells_a_truncate_of_several_tables: v15 = 15, v18 = 18);
