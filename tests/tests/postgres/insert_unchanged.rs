//! A row that comes to match a row filter: an INSERT that may lack a value.

use walferry::core::notice::Outcome;
use walferry::core::record::{Phase, Policy};
use walferry_tests::{on_servers, skip};

use crate::compare::assert_same;
use crate::ferry::Place;
use crate::raw::{Client, changes};

// PG-16, PG-19
fn an_update_that_starts_to_match_may_be_an_insert_without_a_value(major: u32) {
    let cluster = skip::require(major);
    // With the default identity a filter may only use the key, so only a changed key comes to match.
    let columns = "(id int PRIMARY KEY, n int, big text)";
    cluster.psql(
        "postgres",
        &format!(
            "CREATE TABLE by_key {columns}; CREATE TABLE full_row {columns}; \
             ALTER TABLE by_key ALTER big SET STORAGE EXTERNAL; \
             ALTER TABLE full_row ALTER big SET STORAGE EXTERNAL; \
             ALTER TABLE full_row REPLICA IDENTITY FULL; \
             INSERT INTO by_key VALUES (1, 0, repeat('x', 5000)), (2, 0, 'small'); \
             INSERT INTO full_row VALUES (1, 0, repeat('x', 5000)), (2, 0, 'small'); \
             CREATE PUBLICATION p FOR TABLE by_key WHERE (id > 100), full_row WHERE (n > 100);"
        ),
    );
    let refused = cluster
        .try_psql(
            "postgres",
            "CREATE PUBLICATION q FOR TABLE by_key WHERE (n > 100); UPDATE by_key SET n = 0;",
        )
        .unwrap_err();
    assert!(refused.contains("not part of the replica identity"), "{refused}");
    cluster.psql("postgres", "DROP PUBLICATION q");
    let sql = "SELECT lsn FROM pg_create_logical_replication_slot('s', 'pgoutput')";
    let from = Client::sql(&cluster, "postgres").lsn(sql);
    cluster.psql(
        "postgres",
        "UPDATE by_key SET id = 101 WHERE id = 1; UPDATE by_key SET id = 102 WHERE id = 2; \
         UPDATE by_key SET n = 5 WHERE id = 101; UPDATE by_key SET id = 1 WHERE id = 101; \
         UPDATE full_row SET n = 101; UPDATE full_row SET n = 102 WHERE id = 1; \
         UPDATE full_row SET n = 1 WHERE id = 1;",
    );
    let mut seen = changes(&Client::stream(&cluster, "s", from).transactions(7));
    seen.retain(|line| !line.starts_with("relation"));
    assert_eq!(
        seen,
        [
            // Nothing in the stream holds the value of this row: not this insert, and no row before.
            "insert by_key new (101, 0, u)",
            "insert by_key new (102, 0, small)",
            "update by_key new (101, 5, u)",
            "delete by_key key (101, null, null)",
            "insert full_row new (1, 101, <5000>)",
            "insert full_row new (2, 101, small)",
            "update full_row old (1, 101, <5000>) new (1, 102, u)",
            "delete full_row old (1, 102, <5000>)",
        ]
    );
}
on_servers!(an_update_that_starts_to_match_may_be_an_insert_without_a_value: v15 = 15, v18 = 18);

// DS-15, X-14: the value is not known, so nothing is written for it, above all no NULL; the table is
// set aside, and the others go on.
fn an_insert_without_a_value_stops_its_table_and_is_not_written(major: u32) {
    let cluster = skip::require(major);
    cluster.psql(
        "postgres",
        "CREATE TABLE t(id int PRIMARY KEY, n int, big text); CREATE TABLE mark(id int PRIMARY KEY); \
         ALTER TABLE t ALTER big SET STORAGE EXTERNAL; \
         INSERT INTO t VALUES (1, 0, repeat('x', 5000)), (102, 0, repeat('y', 5000)); \
         CREATE PUBLICATION app FOR TABLE t WHERE (id > 100), mark;",
    );
    let place = Place::new(&cluster.url("postgres"));
    let ferry = place.start(None);
    ferry.wait_until_ready(2);
    let copied = "SELECT 102 AS id, 0 AS n, repeat('y', 5000) AS big";
    cluster.psql("postgres", "UPDATE t SET id = 101 WHERE id = 1; INSERT INTO mark VALUES (1)");
    ferry.wait_for_mark(1);
    let Some(Phase::Errored { reason, policy: Policy::Manual }) = ferry.phase("public.t") else {
        panic!("{:?}", ferry.phase("public.t"));
    };
    for part in ["public.t", "\"big\"", "REPLICA IDENTITY FULL"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!(ferry.stop(), Outcome::Stopped { errored: 1, until_reached: false });
    let mut source = Client::sql(&cluster, "postgres");
    assert_eq!(assert_same(&mut source, copied, &place.sqlite(), "t"), 1);
}
on_servers!(an_insert_without_a_value_stops_its_table_and_is_not_written: v15 = 15, v18 = 18);
