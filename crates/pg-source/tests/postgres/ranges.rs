//! Several readers and ranges of blocks: every row exactly once, whatever the heap looks like (K-20).

use crate::skip;
use walferry_core::ids::TableId;
use walferry_core::schema::TableSchema;
use walferry_core::source::{BlockRange, ReaderFacts};
use walferry_pg_source::{CopyAttempt, CopyRange};

use crate::copy::part;
use crate::support::{oid, with_table};

/// Rows of all heaps in `cuts` ranges each, by two readers in turn, sorted.
async fn in_ranges(
    attempt: &CopyAttempt,
    facts: &ReaderFacts,
    schema: &TableSchema,
    cuts: u32,
) -> Vec<String> {
    let mut lines = Vec::new();
    for heap in &facts.heaps {
        for index in 0..cuts {
            let at = |index: u32| heap.blocks.max(1) * index / cuts;
            let end = (index + 1 < cuts).then(|| at(index + 1));
            let blocks = BlockRange { first: at(index), end };
            let (reader, relation) = (index % 2, heap.relation);
            let filter = facts.filter.as_deref();
            let range = CopyRange { reader, relation, blocks, schema, filter };
            lines.extend(part(attempt, range).await);
        }
    }
    lines.sort();
    lines
}

const TABLES: &str = "
    CREATE TABLE never_analysed AS SELECT i AS id, repeat('x', 300) AS note FROM generate_series(1, 3000) i;
    CREATE TABLE empty(id int, note text);
    CREATE TABLE \"Mixed Case\" AS SELECT i AS \"Id\", 'n' || i AS \"No te\" FROM generate_series(1, 2000) i;
    CREATE TABLE shrunken AS SELECT i AS id, repeat('y', 300) AS note FROM generate_series(1, 5000) i;
    ANALYZE shrunken;
    DELETE FROM shrunken WHERE id > 700;
    VACUUM shrunken;
    CREATE TABLE growing AS SELECT i AS id, repeat('z', 300) AS note FROM generate_series(1, 500) i;
    CREATE TABLE toasted(id int, note text);
    ALTER TABLE toasted ALTER note SET STORAGE EXTERNAL;
    INSERT INTO toasted SELECT i, repeat(i::text, 3000) FROM generate_series(1, 100) i;
    CREATE TABLE parent AS SELECT i AS id, repeat('p', 300) AS note FROM generate_series(1, 600) i;
    CREATE TABLE child() INHERITS (parent);
    INSERT INTO child SELECT i, repeat('c', 300) FROM generate_series(1, 600) i;
    CREATE TABLE root(id int, note text) PARTITION BY RANGE (id);
    CREATE TABLE leaf1 PARTITION OF root FOR VALUES FROM (0) TO (1000);
    CREATE TABLE leaf2 PARTITION OF root FOR VALUES FROM (1000) TO (9000);
    INSERT INTO root SELECT i, repeat('r', 200) FROM generate_series(1, 3000) i;
    ALTER PUBLICATION \"Pub of \"\"it\"\"\" SET (publish_via_partition_root = true);";

// K-17, K-20, K-I5, PG-01, PG-26
fn every_row_comes_once(major: u32) {
    let cluster = skip::require(major);
    let source = with_table(&cluster);
    cluster.psql("app", TABLES);
    let tables = [
        ("never_analysed", "ONLY never_analysed"),
        ("empty", "ONLY empty"),
        ("\"Mixed Case\"", "ONLY \"Mixed Case\""),
        ("shrunken", "ONLY shrunken"),
        ("growing", "ONLY growing"),
        ("toasted", "ONLY toasted"),
        ("parent", "ONLY parent"),
        ("child", "ONLY child"),
        ("root", "root"),
    ];
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        for (name, from) in tables {
            let set = format!("ALTER PUBLICATION \"Pub of \"\"it\"\"\" SET TABLE ONLY {name}");
            cluster.psql("app", &set);
            let lines = cluster.psql("app", &format!("COPY (SELECT * FROM {from}) TO STDOUT"));
            let mut expected: Vec<_> = lines.lines().map(str::to_owned).collect();
            expected.sort();
            let table = TableId(oid(&cluster, name));
            let (attempt, _) = source.open_snapshot(table, "copy_1", false).await.unwrap();
            // What comes behind the snapshot, also behind the last block, is not in it.
            let more = format!(
                "INSERT INTO {name} SELECT 5000, repeat('m', 900) \
                                FROM generate_series(1, 400)"
            );
            cluster.psql("app", &more);
            let facts = attempt.open_reader(0).await.unwrap();
            assert!(facts.published, "{name}");
            let other = attempt.open_reader(1).await.unwrap();
            assert_eq!((&other.seen, other.heaps.len()), (&facts.seen, 0));
            let schema = attempt.read_schema().await.unwrap().schema;
            for cuts in [1, 2, 7, 64] {
                let found = in_ranges(&attempt, &facts, &schema, cuts).await;
                assert_eq!(found.len(), expected.len(), "{name} in {cuts} ranges");
                assert_eq!(found, expected, "{name} in {cuts} ranges");
                cluster.psql("app", &more);
            }
            attempt.close_readers().await.unwrap();
            attempt.close().await.unwrap();
        }
    });
}
on_servers!(every_row_comes_once: v15 = 15, v18 = 18);

// K-17, K-20: the row filter and the blocks hold together
#[tokio::test]
async fn a_row_filter_holds_in_every_range() {
    let cluster = skip::require(15);
    let source = with_table(&cluster);
    cluster.psql(
        "app",
        "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 1000) i; \
         ALTER PUBLICATION \"Pub of \"\"it\"\"\" SET TABLE t WHERE (id < 10 OR id > 990);",
    );
    let table = TableId(oid(&cluster, "t"));
    let (attempt, _) = source.open_snapshot(table, "copy_1", false).await.unwrap();
    let facts = attempt.open_reader(0).await.unwrap();
    attempt.open_reader(1).await.unwrap();
    let schema = attempt.read_schema().await.unwrap().schema;
    for cuts in [1, 5] {
        assert_eq!(in_ranges(&attempt, &facts, &schema, cuts).await.len(), 19);
    }
}

// K-19: the first reader's lock stays while the others read; K-F11: one may be lost alone
#[tokio::test]
async fn readers_end_together() {
    let cluster = skip::require(15);
    let source = with_table(&cluster);
    let table = TableId(oid(&cluster, "t"));
    let (attempt, _) = source.open_snapshot(table, "copy_1", false).await.unwrap();
    for reader in 0..4 {
        attempt.open_reader(reader).await.unwrap();
    }
    let readers = "SELECT count(*) FROM pg_stat_activity \
                   WHERE application_name LIKE 'walferry:read:%' AND state = 'idle in transaction'";
    assert_eq!(cluster.psql("app", readers), "4");
    let truncated = "SET lock_timeout = '100ms'; TRUNCATE t";
    assert!(cluster.try_psql("app", truncated).is_err(), "the lock is held");
    attempt.close_readers().await.unwrap();
    walferry_cluster::wait::wait_until(crate::support::LIMIT, "the readers to end", || {
        cluster.psql("app", readers) == "0"
    });
    cluster.psql("app", truncated);
}
