//! Copy attempts: snapshot, reader, rows, private stream, endings.

use std::time::Duration;

use crate::skip;
use tokio::sync::{mpsc, watch};
use walferry_cluster::cluster::Cluster;
use walferry_cluster::wait::wait_until;
use walferry_core::event::Event;
use walferry_core::fault::{FaultKind, SqlState};
use walferry_core::ids::TableId;
use walferry_core::schema::{ReplicaIdentity, TableSchema};
use walferry_core::source::{BlockRange, ReaderFacts};
use walferry_core::wire::CopyRows;
use walferry_pg_source::{CopyAttempt, CopyBlock, CopyRange, Source};

use crate::support::{LIMIT, commits, events_until, oid, with_table, within};

/// Rows of one heap as text lines.
async fn rows(
    attempt: &CopyAttempt,
    relation: TableId,
    schema: &TableSchema,
    filter: Option<&str>,
) -> Vec<String> {
    part(attempt, whole(relation, schema, filter)).await
}

const fn whole<'a>(
    relation: TableId,
    schema: &'a TableSchema,
    filter: Option<&'a str>,
) -> CopyRange<'a> {
    CopyRange { reader: 0, relation, blocks: BlockRange::ALL, schema, filter }
}

/// Rows of one range as text lines.
pub(crate) async fn part(attempt: &CopyAttempt, range: CopyRange<'_>) -> Vec<String> {
    let (sink, mut blocks) = mpsc::channel::<CopyBlock>(4);
    let (_gate, open) = watch::channel(true);
    let read = attempt.read_range(range, sink, open);
    let collect = async {
        let mut lines = Vec::new();
        while let Some(block) = blocks.recv().await {
            let before = lines.len();
            for row in CopyRows::new(&block.block, 1 << 30) {
                lines.push(String::from_utf8(row.unwrap().text().to_vec()).unwrap());
            }
            assert_eq!(block.rows, (lines.len() - before) as u64);
            assert_eq!(block.bytes, block.block.len() as u64);
        }
        lines
    };
    let (facts, lines) = tokio::join!(read, collect);
    assert_eq!(facts.unwrap().rows, lines.len() as u64);
    lines
}

fn guard_is_content(facts: &ReaderFacts) -> bool {
    facts.heaps.iter().all(|heap| {
        heap.filenode_in_snapshot == heap.filenode_now
            && heap.columns_in_snapshot == heap.columns_now
            && !heap.columns_now.is_empty()
    })
}

fn slots(cluster: &Cluster) -> String {
    cluster.psql("app", "SELECT slot_name, temporary, active FROM pg_replication_slots")
}

fn no_slot_is_left(cluster: &Cluster) {
    wait_until(LIMIT, "the temporary slot to go", || slots(cluster).is_empty());
    wait_until(LIMIT, "the connections to go", || {
        cluster.psql(
            "app",
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'walferry:%:%'",
        ) == "0"
    });
}

async fn opened(source: &Source, table: TableId) -> (CopyAttempt, ReaderFacts, TableSchema) {
    let (attempt, _) = source.open_snapshot(table, "copy_1", false).await.unwrap();
    let facts = attempt.open_reader(0).await.unwrap();
    let schema = attempt.read_schema().await.unwrap().schema;
    (attempt, facts, schema)
}

// K-08, K-10, K-11, K-14, K-17, K-19, PG-01
fn a_whole_attempt(major: u32) {
    let cluster = skip::require(major);
    let source = with_table(&cluster);
    let table = TableId(oid(&cluster, "t"));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        cluster.psql("app", "INSERT INTO t VALUES (1, 'a'), (2, NULL), (3, E'tab\\t\\\\')");
        let (attempt, snapshot) = source.open_snapshot(table, "copy_1", false).await.unwrap();
        assert_eq!(snapshot.seen, source.identify().await.unwrap().seen);
        assert_eq!(
            (snapshot.slot.slot.as_str(), snapshot.slot.plugin.as_str()),
            ("copy_1", "pgoutput")
        );
        assert_eq!(slots(&cluster), "copy_1|t|t");
        cluster.psql("app", "INSERT INTO t VALUES (4, 'later')");
        let facts = attempt.open_reader(0).await.unwrap();
        assert_eq!(facts.seen, snapshot.seen);
        assert!(facts.published && facts.filter.is_none() && guard_is_content(&facts));
        assert_eq!((facts.heaps.len(), facts.heaps[0].relation), (1, table));
        assert!(facts.heaps[0].bytes >= 8_192);
        // PG-41
        let locks = "SELECT mode FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
                     WHERE relation = 't'::regclass AND application_name LIKE 'walferry:read:%'";
        assert_eq!(cluster.psql("app", locks), "AccessShareLock");
        let schema = attempt.read_schema().await.unwrap().schema;
        assert_eq!(schema.identity, ReplicaIdentity::Default);
        let columns: Vec<_> =
            schema.columns.iter().map(|c| (c.number, c.name.as_str(), c.type_oid, c.key)).collect();
        assert_eq!(columns, [(1, "id", 23, true), (2, "note", 25, false)]);
        let lines = rows(&attempt, table, &schema, None).await;
        assert_eq!(lines, ["1\ta", "2\t\\N", "3\ttab\\t\\\\"]);
        attempt.close_readers().await.unwrap();
        wait_until(LIMIT, "the lock to go", || cluster.psql("app", locks).is_empty());

        let from = snapshot.slot.consistent;
        let (seen, stream, mut messages) = attempt.open_stream("copy_1", from).await.unwrap();
        assert_eq!(seen, snapshot.seen);
        let events = events_until(&mut messages, "the commit", |events| commits(events) == 1).await;
        let announced = events.iter().find_map(|event| match event {
            Event::Relation(relation) => Some(relation),
            _ => None,
        });
        assert!(schema.agrees_with(announced.unwrap()));
        let changes = events.iter().filter(|event| matches!(event, Event::Row { .. })).count();
        assert_eq!(changes, 1, "only what came after the snapshot");
        stream.confirm(from, true);
        attempt.close().await.unwrap();
        no_slot_is_left(&cluster);
        assert!(!cluster.log().contains("unexpected EOF"), "{}", cluster.log());
    });
}
on_servers!(a_whole_attempt: v14 = 14, v15 = 15, v16 = 16, v17 = 17, v18 = 18);

// K-27, PG-27
#[tokio::test]
async fn what_happens_before_the_lock_is_in_the_facts() {
    let cluster = skip::require(15);
    let source = with_table(&cluster);
    let table = TableId(oid(&cluster, "t"));
    cluster.psql("app", "INSERT INTO t VALUES (1, 'a')");
    let after = async |sql: &str| {
        let (attempt, _) = source.open_snapshot(table, "copy_1", false).await.unwrap();
        cluster.psql("app", sql);
        let facts = attempt.open_reader(0).await.unwrap();
        attempt.close().await.unwrap();
        facts
    };
    assert!(guard_is_content(&after("INSERT INTO t VALUES (2, 'b')").await));
    let facts = after("TRUNCATE t").await;
    assert_ne!(facts.heaps[0].filenode_in_snapshot, facts.heaps[0].filenode_now);
    let facts = after("ALTER TABLE t ADD x int").await;
    assert_eq!(facts.heaps[0].filenode_in_snapshot, facts.heaps[0].filenode_now);
    assert_eq!(facts.heaps[0].columns_now.len(), facts.heaps[0].columns_in_snapshot.len() + 1);
    let facts = after("ALTER TABLE t DROP x").await;
    assert_ne!(facts.heaps[0].columns_now, facts.heaps[0].columns_in_snapshot);
    assert!(facts.heaps[0].columns_now[2].dropped);
    // The name alone does not matter, whoever has it now.
    assert!(guard_is_content(&after("ALTER TABLE t RENAME TO u; CREATE TABLE t(a int)").await));
    let facts = after("DROP TABLE u").await;
    assert_eq!(facts.heaps[0].filenode_now, 0);
}

// K-11
#[tokio::test]
async fn membership_is_read_inside_the_snapshot() {
    let cluster = skip::require(15);
    let source = with_table(&cluster);
    let table = TableId(oid(&cluster, "t"));
    let alter = |what: &str| {
        cluster.psql("app", &format!("ALTER PUBLICATION \"Pub of \"\"it\"\"\" {what}"))
    };
    let (attempt, _) = source.open_snapshot(table, "copy_1", false).await.unwrap();
    alter("DROP TABLE t");
    let facts = attempt.open_reader(0).await.unwrap();
    assert!(facts.published);
    attempt.close().await.unwrap();
    let (attempt, _) = source.open_snapshot(table, "copy_2", false).await.unwrap();
    alter("ADD TABLE t");
    let facts = attempt.open_reader(0).await.unwrap();
    assert!(!facts.published);
    assert!(guard_is_content(&facts));
}

// K-14, K-17, PG-19, PG-43
fn lists_filters_and_keys(major: u32) {
    let cluster = skip::require(major);
    let source = with_table(&cluster);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        cluster.psql(
            "app",
            "CREATE TABLE w(a int, gone int, \"B c\" varchar(7) NOT NULL DEFAULT 'x', \
                g int GENERATED ALWAYS AS (a * 2) STORED, d numeric(8,2)); \
             ALTER TABLE w DROP gone; \
             CREATE UNIQUE INDEX i ON w (\"B c\") INCLUDE (d); \
             ALTER TABLE w REPLICA IDENTITY USING INDEX i; \
             INSERT INTO w VALUES (1, 'one', DEFAULT, 1.5), (2, 'two', DEFAULT, NULL);",
        );
        let set = |what: &str| {
            cluster.psql("app", &format!("ALTER PUBLICATION \"Pub of \"\"it\"\"\" SET {what}"))
        };
        let table = TableId(oid(&cluster, "w"));
        let check = async |expected: &[&str], filter: Option<&str>| {
            let (attempt, snapshot) = source.open_snapshot(table, "copy_1", false).await.unwrap();
            cluster.psql(
                "app",
                "INSERT INTO w VALUES (9, 'nine', DEFAULT, 9) ; DELETE FROM w WHERE a = 9",
            );
            let facts = attempt.open_reader(0).await.unwrap();
            assert!(facts.published && guard_is_content(&facts));
            assert_eq!(facts.filter.as_deref(), filter);
            let schema = attempt.read_schema().await.unwrap().schema;
            let lines = rows(&attempt, table, &schema, facts.filter.as_deref()).await;
            assert_eq!(lines, expected);
            attempt.close_readers().await.unwrap();
            let from = snapshot.slot.consistent;
            let (_, _stream, mut messages) = attempt.open_stream("copy_1", from).await.unwrap();
            let events =
                events_until(&mut messages, "the commits", |events| commits(events) >= 2).await;
            let announced = events.iter().find_map(|event| match event {
                Event::Relation(relation) => Some(relation),
                _ => None,
            });
            let announced = announced.unwrap();
            assert!(schema.agrees_with(announced), "{} {}", schema.shape(), announced.shape());
            assert_eq!(schema.identity, announced.identity);
            attempt.close().await.unwrap();
            schema
        };
        set("TABLE w");
        let schema = check(&["1\tone\t1.50", "2\ttwo\t\\N"], None).await;
        assert_eq!(schema.columns[1].default.as_deref(), Some("'x'::character varying"));
        assert!(schema.columns[1].not_null && schema.columns[1].key && !schema.columns[2].key);
        assert_eq!(schema.identity, ReplicaIdentity::Index);
        if major < 18 {
            // 18 refuses to delete when the identity has a generated column that is not published.
            cluster.psql("app", "ALTER TABLE w REPLICA IDENTITY FULL");
            let schema = check(&["1\tone\t1.50", "2\ttwo\t\\N"], None).await;
            assert!(schema.columns.iter().all(|column| column.key));
        }
        if major >= 15 {
            set("TABLE w (d, \"B c\") ");
            cluster.psql("app", "ALTER TABLE w REPLICA IDENTITY USING INDEX i");
            check(&["one\t1.50", "two\t\\N"], None).await;
            set("TABLE w WHERE (\"B c\" < 'q')");
            let filter = "((\"B c\")::text < 'q'::text)";
            check(&["1\tone\t1.50"], Some(filter)).await;
        }
        if major >= 18 {
            set("(publish_generated_columns = stored)");
            set("TABLE w");
            check(&["1\tone\t2\t1.50", "2\ttwo\t4\t\\N"], None).await;
        }
    });
}
on_servers!(lists_filters_and_keys: v14 = 14, v15 = 15, v16 = 16, v17 = 17, v18 = 18);

// K-17, PG-20
#[tokio::test]
async fn a_published_root_is_read_leaf_by_leaf() {
    let cluster = skip::require(15);
    let source = with_table(&cluster);
    cluster.psql(
        "app",
        "CREATE TABLE root(a int, b text) PARTITION BY RANGE (a); \
         CREATE TABLE leaf1(b text, x int, a int); ALTER TABLE leaf1 DROP x; \
         ALTER TABLE root ATTACH PARTITION leaf1 FOR VALUES FROM (0) TO (10); \
         CREATE TABLE leaf2 PARTITION OF root FOR VALUES FROM (10) TO (20); \
         INSERT INTO root VALUES (1, 'one'), (11, 'eleven'); \
         ALTER PUBLICATION \"Pub of \"\"it\"\"\" SET TABLE root; \
         ALTER PUBLICATION \"Pub of \"\"it\"\"\" SET (publish_via_partition_root = true);",
    );
    let table = TableId(oid(&cluster, "root"));
    let (attempt, facts, schema) = opened(&source, table).await;
    assert!(facts.published && guard_is_content(&facts));
    let leaves: Vec<_> = facts.heaps.iter().map(|heap| heap.relation.0).collect();
    assert_eq!(leaves, [oid(&cluster, "leaf1"), oid(&cluster, "leaf2")]);
    assert_eq!(rows(&attempt, facts.heaps[0].relation, &schema, None).await, ["1\tone"]);
    assert_eq!(rows(&attempt, facts.heaps[1].relation, &schema, None).await, ["11\televen"]);
    let locks = "SELECT count(DISTINCT relation) FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
                 WHERE application_name LIKE 'walferry:read:%' \
                 AND relation IN ('root'::regclass, 'leaf1'::regclass, 'leaf2'::regclass)";
    assert_eq!(cluster.psql("app", locks), "3");
}

// PG-41, K-10
#[tokio::test]
async fn column_grants_are_enough_and_row_security_is_not_passed_over() {
    let cluster = skip::require(15);
    drop(with_table(&cluster));
    cluster.psql(
        "app",
        "CREATE ROLE reader LOGIN REPLICATION; CREATE TABLE secret(a int PRIMARY KEY, b int); \
         INSERT INTO secret VALUES (1, 2); GRANT SELECT (a) ON secret TO reader; \
         ALTER PUBLICATION \"Pub of \"\"it\"\"\" SET TABLE secret (a), t; \
         GRANT SELECT ON t TO reader; INSERT INTO t VALUES (1, 'a'); \
         ALTER TABLE t ENABLE ROW LEVEL SECURITY;",
    );
    let url = format!("postgres://reader@127.0.0.1:{}/app", cluster.port());
    let source = crate::support::source_at(&url);
    let table = TableId(oid(&cluster, "secret"));
    let (attempt, _, schema) = opened(&source, table).await;
    assert_eq!(rows(&attempt, table, &schema, None).await, ["1"]);
    attempt.close().await.unwrap();
    no_slot_is_left(&cluster);
    let table = TableId(oid(&cluster, "t"));
    let (attempt, _) = source.open_snapshot(table, "copy_1", false).await.unwrap();
    let result = async {
        attempt.open_reader(0).await?;
        let schema = attempt.read_schema().await?.schema;
        let (sink, _blocks) = mpsc::channel(4);
        attempt.read_range(whole(table, &schema, None), sink, watch::channel(true).1).await
    };
    let fault = result.await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Server { code: SqlState(*b"42501") }, "{fault}");
}

// K-F2, K-F10, K-F12, PG-26
#[tokio::test]
async fn an_attempt_that_is_given_up_leaves_nothing() {
    let cluster = skip::require(15);
    let source = with_table(&cluster);
    let table = TableId(oid(&cluster, "t"));
    cluster
        .psql("app", "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 200000) i");
    // Before the import.
    let (attempt, _) = source.open_snapshot(table, "copy_1", false).await.unwrap();
    drop(attempt);
    no_slot_is_left(&cluster);
    // In the middle of COPY, by dropping everything.
    let (attempt, _, schema) = opened(&source, table).await;
    let (sink, mut blocks) = mpsc::channel(1);
    let (_gate, open) = watch::channel(true);
    {
        let mut read = Box::pin(attempt.read_range(whole(table, &schema, None), sink, open));
        tokio::select! {
            _ = &mut read => panic!("nobody takes the rows"),
            block = blocks.recv() => assert!(block.unwrap().block.len() >= 64 << 10),
        }
    }
    drop(attempt);
    no_slot_is_left(&cluster);
    // In the middle of COPY, by closing the attempt from elsewhere, with the gate closed.
    let (attempt, _, schema) = opened(&source, table).await;
    let (sink, _blocks) = mpsc::channel(1);
    let (gate, open) = watch::channel(false);
    let read = attempt.read_range(whole(table, &schema, None), sink, open);
    let close = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        within("the close", attempt.close()).await
    };
    let (read, closed) = tokio::join!(read, close);
    closed.unwrap();
    assert_eq!(read.unwrap_err().kind, FaultKind::Stopped);
    drop(gate);
    no_slot_is_left(&cluster);
    // The exporter dies before the import.
    let (attempt, _) = source.open_snapshot(table, "copy_1", false).await.unwrap();
    cluster.psql("app", "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots");
    no_slot_is_left(&cluster);
    let fault = attempt.open_reader(0).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Server { code: SqlState(*b"22023") }, "{fault}");
    // And after it: the read goes on.
    drop(attempt);
    let (attempt, _, schema) = opened(&source, table).await;
    cluster.psql("app", "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots");
    assert_eq!(rows(&attempt, table, &schema, None).await.len(), 200_000);
    let from = walferry_core::lsn::Position(source.read_wal_position().await.unwrap());
    let fault = attempt.open_stream("copy_1", from).await.unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Server { .. } | FaultKind::Transport), "{fault}");
    walferry_coverage::reached("K-F2");
    walferry_coverage::reached("K-F10");
    walferry_coverage::reached("K-F12");
}
