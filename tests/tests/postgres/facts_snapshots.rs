//! What an exported snapshot shows, how long it can be imported, and what it does not protect from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use walferry_core::lsn::{CommitLsn, Lsn};
use walferry_core::wire::{Cell, Message, RowView};
use walferry_tests::cluster::Cluster;
use walferry_tests::wait::wait_until;
use walferry_tests::{on_servers, skip};

use crate::raw::{Client, LIMIT, Sent};

/// A session that holds an exported snapshot and its temporary slot.
struct Exporter {
    client: Client,
    slot: String,
    consistent: Lsn,
    snapshot: String,
}

impl Exporter {
    fn open(cluster: &Cluster, slot: &str) -> Self {
        let mut client = Client::walsender(cluster, "postgres");
        let created = client.query(&format!(
            "CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
        ));
        let [_, Some(consistent), Some(snapshot), _] = created[0].as_slice() else {
            panic!("{created:?}");
        };
        let consistent = consistent.parse().unwrap();
        Self { client, slot: slot.to_owned(), consistent, snapshot: snapshot.clone() }
    }

    fn import(&self) -> String {
        let snapshot = &self.snapshot;
        format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{snapshot}'")
    }

    fn imported(&self, cluster: &Cluster) -> Client {
        let mut client = Client::sql(cluster, "postgres");
        client.query(&self.import());
        client
    }
}

/// The ids that a stream of `t(id)` inserts and where their transactions committed, until `last`.
fn inserted(stream: &mut Client, last: u32) -> BTreeMap<u32, CommitLsn> {
    let (mut all, mut open) = (BTreeMap::new(), None);
    while !all.contains_key(&last) {
        let Sent::Data(data) = stream.next() else { continue };
        if let Message::Begin { commit, .. } = data.message() {
            open = Some(commit);
        }
        if let Message::Row { kind, row, .. } = data.message() {
            let new = RowView::parse(kind, row).unwrap().new.unwrap();
            let Some(Cell::Text(id)) = new.cells().next() else { panic!("{new:?}") };
            let id = std::str::from_utf8(id).unwrap().parse().unwrap();
            assert!(all.insert(id, open.unwrap()).is_none(), "{id} came twice");
        }
    }
    all
}

fn ids(client: &mut Client) -> BTreeSet<u32> {
    let rows = client.query("SELECT id FROM t");
    rows.iter().map(|row| row[0].as_ref().unwrap().parse().unwrap()).collect()
}

/// Commits rows of `t` until it is told to stop: alone, two in one transaction, behind a savepoint.
fn write_rows(cluster: &Cluster, next: &AtomicU32, stop: &AtomicBool) {
    let mut client = Client::sql(cluster, "postgres");
    let mut insert = |before: &str, after: &str| {
        let id = next.fetch_add(1, Ordering::SeqCst);
        client.query(&format!("{before} INSERT INTO t VALUES ({id}); {after}"));
    };
    while !stop.load(Ordering::SeqCst) {
        insert("", "");
        insert("BEGIN;", "");
        insert("", "COMMIT");
        insert("BEGIN;", "SAVEPOINT s;");
        insert("", "COMMIT");
    }
}

// PG-01
fn a_snapshot_shows_what_its_slot_does_not_stream(major: u32) {
    const SNAPSHOTS: usize = 6;
    let cluster = skip::require(major);
    cluster.psql(
        "postgres",
        "CREATE TABLE t(id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t; \
         SELECT pg_create_logical_replication_slot('witness', 'pgoutput');",
    );
    let (next, stop) = (AtomicU32::new(1), AtomicBool::new(false));
    let taken = thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| write_rows(&cluster, &next, &stop));
        }
        let taken = (0..SNAPSHOTS).map(|index| {
            let more = next.load(Ordering::SeqCst) + 50;
            wait_until(LIMIT, "rows before", || next.load(Ordering::SeqCst) > more);
            let exporter = Exporter::open(&cluster, &format!("copy_{index}"));
            let more = next.load(Ordering::SeqCst) + 50;
            wait_until(LIMIT, "rows after", || next.load(Ordering::SeqCst) > more);
            let visible = ids(&mut exporter.imported(&cluster));
            (exporter, visible)
        });
        let taken: Vec<_> = taken.collect();
        stop.store(true, Ordering::SeqCst);
        taken
    });
    let last = next.load(Ordering::SeqCst);
    cluster.psql("postgres", &format!("INSERT INTO t VALUES ({last})"));
    let committed = inserted(&mut Client::stream(&cluster, "witness", Lsn::ZERO), last);
    assert_eq!(committed.len(), last as usize);
    for (mut exporter, visible) in taken {
        let cutoff = exporter.consistent;
        let (before, after): (BTreeSet<_>, BTreeSet<_>) =
            committed.keys().copied().partition(|id| committed[id].0 < cutoff);
        assert!(before.len() >= 50 && after.len() >= 50);
        assert_eq!(visible, before, "visible at {cutoff}");
        exporter.client.start_stream(&exporter.slot, cutoff).unwrap();
        let streamed = inserted(&mut exporter.client, last);
        assert_eq!(streamed.into_keys().collect::<BTreeSet<_>>(), after, "streamed from {cutoff}");
    }
}
on_servers!(a_snapshot_shows_what_its_slot_does_not_stream: v15 = 15, v18 = 18);

// PG-26
fn a_snapshot_is_importable_while_its_session_lives_and_rests(major: u32) {
    let cluster = skip::require(major);
    cluster.psql("postgres", "CREATE TABLE t(id int PRIMARY KEY); INSERT INTO t VALUES (1), (2);");
    let gone = if major >= 18 { "42704" } else { "22023" };
    let refused = |exporter: &Exporter| {
        let mut client = Client::sql(&cluster, "postgres");
        client.try_query(&exporter.import()).unwrap_err().code
    };
    // It issues a further command.
    let mut exporter = Exporter::open(&cluster, "busy");
    let mut first = exporter.imported(&cluster);
    let mut second = exporter.imported(&cluster);
    cluster.psql("postgres", "INSERT INTO t VALUES (3); DELETE FROM t WHERE id = 1;");
    exporter.client.query("IDENTIFY_SYSTEM");
    assert_eq!(refused(&exporter), gone);
    assert_eq!(ids(&mut first), BTreeSet::from([1, 2]));
    // It ends.
    drop(exporter);
    let slot = "SELECT count(*) FROM pg_replication_slots";
    wait_until(LIMIT, "the temporary slot to go", || cluster.psql("postgres", slot) == "0");
    cluster.psql("postgres", "INSERT INTO t VALUES (4); VACUUM t;");
    assert_eq!(ids(&mut first), BTreeSet::from([1, 2]));
    assert_eq!(ids(&mut second), BTreeSet::from([1, 2]));
    first.query("COMMIT");
    assert_eq!(ids(&mut first), BTreeSet::from([2, 3, 4]));

    let exporter = Exporter::open(&cluster, "ended");
    assert_eq!(ids(&mut exporter.imported(&cluster)), BTreeSet::from([2, 3, 4]));
    let terminate = format!("SELECT pg_terminate_backend({})", exporter.client.pid());
    cluster.psql("postgres", &terminate);
    wait_until(LIMIT, "the temporary slot to go", || cluster.psql("postgres", slot) == "0");
    assert_eq!(refused(&exporter), gone);
}
on_servers!(a_snapshot_is_importable_while_its_session_lives_and_rests: v15 = 15, v18 = 18);

// PG-27
fn a_rewritten_table_is_empty_in_an_older_snapshot(major: u32) {
    let cluster = skip::require(major);
    // What is done to each after the snapshot, and the rows that a snapshot reader then sees.
    let cases = [
        ("untouched", "INSERT INTO untouched VALUES (4)", 3),
        ("truncated", "TRUNCATE truncated; INSERT INTO truncated VALUES (4)", 0),
        ("widened", "ALTER TABLE widened ALTER id TYPE bigint", 0),
        ("recomputed", "ALTER TABLE recomputed ALTER id TYPE int USING id + 1", 0),
        ("filled", "ALTER TABLE filled ADD more float DEFAULT random()", 0),
        ("vacuumed", "VACUUM FULL vacuumed", 3),
        ("clustered", "CLUSTER clustered USING clustered_i", 3),
    ];
    for (table, _, _) in cases {
        cluster.psql(
            "postgres",
            &format!(
                "CREATE TABLE {table}(id int); CREATE INDEX {table}_i ON {table}(id); \
                 INSERT INTO {table} VALUES (1), (2), (3)"
            ),
        );
    }
    let exporter = Exporter::open(&cluster, "s");
    let mut snapshot = exporter.imported(&cluster);
    for (table, change, visible) in cases {
        cluster.psql("postgres", &format!("{change};"));
        let node = snapshot.query(&format!(
            "SELECT relfilenode, pg_relation_filenode(oid) FROM pg_class \
             WHERE oid = '{table}'::regclass"
        ));
        let is_same = node[0][0] == node[0][1];
        assert_eq!(is_same, table == "untouched", "{table}: {node:?}");
        let count = format!("SELECT count(*) FROM {table}");
        assert_eq!(snapshot.value(&count), visible.to_string(), "{table} in the snapshot");
        assert_ne!(cluster.psql("postgres", &count), "0", "{table} now");
    }
}
on_servers!(a_rewritten_table_is_empty_in_an_older_snapshot: v15 = 15, v18 = 18);
