//! Creating, looking at and dropping slots; the listing of a publication.

use crate::skip;
use walferry_cluster::wait::wait_for;
use walferry_core::fault::{FaultKind, SqlState};
use walferry_core::lsn::Position;

use crate::support::{LIMIT, oid, source, with_table};

// M-04, M-05, M-12
fn created_seen_and_dropped(major: u32) {
    let cluster = skip::require(major);
    let source = with_table(&cluster);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let created = source.create_slot("main_1", false).await.unwrap();
        assert_eq!((created.slot.as_str(), created.plugin.as_str()), ("main_1", "pgoutput"));
        let report = source.inspect_slot("main_1").await.unwrap();
        let slot = report.slot.unwrap();
        assert_eq!((slot.plugin.as_str(), slot.database.as_str()), ("pgoutput", "app"));
        assert!(slot.logical && !slot.temporary);
        assert_eq!(slot.confirmed_flush_lsn.map(Position), Some(created.consistent));
        assert_eq!(slot.wal_status.as_deref(), Some("reserved"));
        assert_eq!((slot.active, slot.invalidation_reason), (None, None));
        assert!(report.wal_end >= created.consistent.0);
        let publication = cluster.psql("app", "SELECT oid FROM pg_publication");
        assert_eq!(report.publication.map(|oid| oid.to_string()), Some(publication));
        let absent = source.inspect_slot("main_2").await.unwrap();
        assert_eq!(absent.slot, None);

        cluster.psql("app", "SELECT pg_create_physical_replication_slot('mainx1')");
        let names = source.list_slots("main_").await.unwrap();
        assert_eq!(names.len(), 1, "an underscore is no wildcard");
        let all = source.list_slots("").await.unwrap();
        assert!(all.iter().any(|slot| slot.name == "mainx1" && !slot.logical));

        let fault = source.create_slot("main_1", false).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::Server { code: SqlState(*b"42710") });
        assert!(fault.message.contains("main_1"), "{fault}");

        let (_, handle, _messages) =
            source.open_stream("main_1", created.consistent).await.unwrap();
        let monitored = source.monitor("main_1").await.unwrap();
        let holder = monitored.slot.unwrap().active.unwrap();
        assert_eq!(holder.application, "walferry:main");
        let fault = source.drop_slot("main_1").await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::Server { code: SqlState(*b"55006") });
        handle.close().await.unwrap();
        wait_for(LIMIT, "the slot to be free", || {
            let free = "SELECT active FROM pg_replication_slots WHERE slot_name = 'main_1'";
            (cluster.psql("app", free) == "f").then_some(())
        });
        source.drop_slot("main_1").await.unwrap();
        source.drop_slot("main_1").await.unwrap();
        assert_eq!(source.monitor("main_1").await.unwrap().slot, None);
    });
}
on_servers!(created_seen_and_dropped: v14 = 14, v15 = 15, v16 = 16, v17 = 17, v18 = 18);

// M-06, PG-30, PG-31
#[tokio::test]
async fn a_creation_that_is_given_up_leaves_no_slot() {
    let cluster = skip::require(15);
    let source = with_table(&cluster);
    // An open transaction with an id holds the creation up.
    cluster.psql("app", "BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'holds';");
    let creating = source.clone();
    let task = tokio::spawn(async move { creating.create_slot("waits", false).await });
    let blockers = loop {
        let blockers = source.read_blockers("waits").await.unwrap();
        if !blockers.is_empty() {
            break blockers;
        }
    };
    // A prepared transaction has no process.
    assert_eq!((blockers[0].pid, blockers[0].age), (0, None));
    assert!(
        source.inspect_slot("waits").await.unwrap().slot.unwrap().confirmed_flush_lsn.is_none()
    );
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    let gone = async {
        while source.inspect_slot("waits").await.unwrap().slot.is_some() {
            tokio::task::yield_now().await;
        }
    };
    crate::support::within("the unfinished slot to go", gone).await;
    cluster.psql("app", "COMMIT PREPARED 'holds'");
    // The same, with a snapshot.
    cluster.psql("app", "BEGIN; INSERT INTO t VALUES (2); PREPARE TRANSACTION 'holds';");
    let creating = source.clone();
    let table = walferry_core::ids::TableId(oid(&cluster, "t"));
    let task =
        tokio::spawn(async move { creating.open_snapshot(table, "waits", false).await.map(drop) });
    while source.read_blockers("waits").await.unwrap().is_empty() {}
    task.abort();
    let gone = async {
        while source.inspect_slot("waits").await.unwrap().slot.is_some() {
            tokio::task::yield_now().await;
        }
    };
    crate::support::within("the unfinished temporary slot to go", gone).await;
    cluster.psql("app", "ROLLBACK PREPARED 'holds'");
    // The command connection is a new one and works.
    source.create_slot("works", false).await.unwrap();
}

// T-01, T-11, PG-20
fn listings_follow_the_publication(major: u32) {
    let cluster = skip::require(major);
    let source = with_table(&cluster);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        cluster.psql(
            "app",
            "CREATE SCHEMA \"S 2\"; CREATE TABLE \"S 2\".\"T x\"(a int); \
             CREATE UNLOGGED TABLE unlogged(a int); CREATE TABLE other(a int); \
             CREATE TABLE root(a int, b int) PARTITION BY RANGE (a); \
             CREATE TABLE mid PARTITION OF root FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (b); \
             CREATE TABLE leaf1 PARTITION OF mid FOR VALUES FROM (0) TO (10); \
             CREATE TABLE leaf2 PARTITION OF root FOR VALUES FROM (10) TO (20); \
             CREATE TABLE parent(a int); CREATE TABLE child() INHERITS (parent);",
        );
        let names = async || {
            let listing = source.list_publication().await.unwrap().unwrap();
            assert!(listing.tables.is_sorted_by_key(|table| table.table));
            let mut names: Vec<_> = listing.tables.iter().map(|t| t.name.clone()).collect();
            names.sort();
            // The server's own view says the same.
            let view = cluster.psql(
                "app",
                // 14 lists some leaves twice.
                "SELECT DISTINCT tablename::text COLLATE \"C\" FROM pg_publication_tables ORDER BY 1",
            );
            assert_eq!(names.join("\n"), view);
            (listing, names.join(" "))
        };
        let set = |what: &str| {
            cluster.psql("app", &format!("ALTER PUBLICATION \"Pub of \"\"it\"\"\" SET {what}"))
        };
        let (listing, listed) = names().await;
        assert_eq!(listed, "t");
        assert_eq!(listing.missing_actions, Vec::<&str>::new());
        let row = cluster.psql("app", "SELECT oid FROM pg_publication_rel");
        assert_eq!(listing.tables[0].membership.to_string(), row);
        assert_eq!(listing.tables[0].namespace, "public");

        set("TABLE t, root, ONLY parent");
        let (listing, listed) = names().await;
        assert_eq!(listed, "leaf1 leaf2 parent t");
        let root = cluster.psql(
            "app",
            "SELECT oid FROM pg_publication_rel WHERE prrelid = 'root'::regclass",
        );
        let leaf = listing.tables.iter().find(|table| table.name == "leaf1").unwrap();
        assert_eq!(leaf.membership.to_string(), root, "what makes a leaf a member is its root's row");
        set("(publish_via_partition_root = true)");
        assert_eq!(names().await.1, "parent root t");
        set("TABLE leaf2, mid");
        assert_eq!(names().await.1, "leaf2 mid");
        set("TABLE leaf2, root");
        assert_eq!(names().await.1, "root");
        set("(publish_via_partition_root = false, publish = 'insert, delete')");
        let (listing, listed) = names().await;
        assert_eq!(listed, "leaf1 leaf2");
        assert_eq!(listing.missing_actions, ["update", "truncate"]);
        if major >= 15 {
            set("TABLES IN SCHEMA \"S 2\", TABLE t");
            let (listing, listed) = names().await;
            assert_eq!(listed, "T x t");
            let row = cluster.psql("app", "SELECT oid FROM pg_publication_namespace");
            let table = listing.tables.iter().find(|table| table.name == "T x").unwrap();
            assert_eq!(table.membership.to_string(), row);
        }
        cluster.psql(
            "app",
            "DROP PUBLICATION \"Pub of \"\"it\"\"\"; \
             CREATE PUBLICATION \"Pub of \"\"it\"\"\" FOR ALL TABLES",
        );
        let (listing, listed) = names().await;
        assert_eq!(listed, "T x child leaf1 leaf2 other parent t");
        assert!(listing.tables.iter().all(|table| table.membership == 0));
        set("(publish_via_partition_root = true)");
        assert_eq!(names().await.1, "T x child other parent root t");
        assert!(listing.position.0 <= source.read_wal_position().await.unwrap());
        cluster.psql("app", "DROP PUBLICATION \"Pub of \"\"it\"\"\"; CREATE PUBLICATION x");
        assert_eq!(source.list_publication().await.unwrap(), None);
        assert_eq!(source.inspect_slot("s").await.unwrap().publication, None);
    });
}
on_servers!(listings_follow_the_publication: v14 = 14, v15 = 15, v16 = 16, v17 = 17, v18 = 18);

#[tokio::test]
async fn an_empty_publication_is_a_listing_without_tables() {
    let cluster = skip::require(15);
    let source = source(&cluster, "postgres");
    cluster.psql("postgres", "CREATE PUBLICATION \"Pub of \"\"it\"\"\"");
    assert!(source.list_publication().await.unwrap().unwrap().tables.is_empty());
}
