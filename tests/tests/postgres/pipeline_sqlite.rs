//! Whole pipelines from a server into a SQLite file, whose content must equal the source.

use std::collections::BTreeMap;

use walferry::core::config::{Limits, Until};
use walferry::core::notice::{Notice, Outcome};
use walferry::core::record::{Phase, Policy};
use walferry_tests::cluster::Cluster;
use walferry_tests::coverage::reached;
use walferry_tests::wait::wait_until;
use walferry_tests::{on_servers, skip};

use crate::compare::{assert_same, open};
use crate::ferry::{CAUGHT_UP, Ferry, LIMIT, Place, STOPPED, attempts, limits};
use crate::proxy::Proxy;
use crate::raw::Client;

const SCHEMA: &str = include_str!("pipeline_schema.sql");
const ROUND: &str = include_str!("pipeline_round.sql");

/// What is compared: a query at the source and the table in SQLite.
type Compared = Vec<(String, String)>;

/// The tables outside of any partition, as the publication names them, and how to read them.
fn ordinary_tables(major: u32) -> (String, Compared) {
    let all = [
        "types",
        "composite",
        "full_rows",
        "toast",
        "toast_full",
        "keys",
        "by_index",
        "truncated",
        "truncated_child",
        "computed",
        "empty",
        "mark",
    ];
    let members = format!(
        "{}, log, some_columns (shown, id), some_rows WHERE (region = 1), \"Other Schema\".\"Select\"",
        all.join(", ")
    );
    let mut compared: Compared =
        all.map(|table| (format!("SELECT * FROM {table}"), table.to_owned())).into();
    // PG-43
    if major < 18 {
        compared.retain(|(_, table)| table != "computed");
        compared.push(("SELECT id, a FROM computed".to_owned(), "computed".to_owned()));
    }
    for (query, table) in [
        // A domain is text, and the protocol of a query does not tell it from its base type.
        ("SELECT at, note, dom::text FROM log", "log"),
        ("SELECT id, shown FROM some_columns", "some_columns"),
        ("SELECT * FROM some_rows WHERE region = 1", "some_rows"),
        ("SELECT * FROM \"Other Schema\".\"Select\"", "Other Schema.Select"),
    ] {
        compared.push((query.to_owned(), table.to_owned()));
    }
    (members, compared)
}

fn round(cluster: &Cluster, number: u32, truncated: &str) {
    let sql = ROUND.replace("{K}", &number.to_string()).replace("{TRUNCATED}", truncated);
    cluster.psql("postgres", &sql);
}

/// Compares everything and returns how many rows there are in all.
#[track_caller]
fn compare(cluster: &Cluster, place: &Place, compared: &Compared) -> usize {
    let mut source = Client::sql(cluster, "postgres");
    let rows = compared
        .iter()
        .map(|(query, table)| assert_same(&mut source, query, &place.sqlite(), table));
    rows.sum()
}

/// Copies while rounds of changes are made, streams, stops, resumes, and compares at each rest.
#[track_caller]
fn ferry_rounds(cluster: &Cluster, compared: &Compared, truncated: &str) {
    let place = Place::new(&cluster.url("postgres"));
    round(cluster, 0, truncated);
    let ferry = place.start(None);
    // Beside the copies, wherever they are.
    round(cluster, 1, truncated);
    ferry.wait_until_ready(compared.len());
    round(cluster, 2, truncated);
    ferry.wait_for_mark(2);
    assert_eq!(ferry.stop(), STOPPED);
    let rows = compare(cluster, &place, compared);
    let copied = attempts(&place.sqlite());

    round(cluster, 3, truncated);
    let ferry = place.start(None);
    round(cluster, 4, truncated);
    ferry.wait_for_mark(4);
    assert_eq!(ferry.stop(), STOPPED);
    assert!(compare(cluster, &place, compared) > rows);

    round(cluster, 5, truncated);
    place.catch_up();
    compare(cluster, &place, compared);
    // Everything after the first stop came by the stream.
    assert_eq!(attempts(&place.sqlite()), copied);
}

// O-1, DS-18, PG-15, PG-16, PG-18, PG-19, PG-20, PG-43
fn every_kind_of_table_equals_the_source(major: u32) {
    let cluster = skip::require(major);
    cluster.psql("postgres", SCHEMA);
    let (members, mut compared) = ordinary_tables(major);
    let computed = if major >= 18 { ", publish_generated_columns = stored" } else { "" };
    cluster.psql(
        "postgres",
        &format!(
            "CREATE PUBLICATION app FOR TABLE {members}, parts \
             WITH (publish_via_partition_root = true{computed})"
        ),
    );
    compared.push(("SELECT * FROM parts".to_owned(), "parts".to_owned()));
    ferry_rounds(&cluster, &compared, "parts");
}
on_servers!(every_kind_of_table_equals_the_source: v15 = 15, v18 = 18);

// PG-20
fn leaves_of_a_partitioned_table_equal_the_source(major: u32) {
    let cluster = skip::require(major);
    cluster.psql("postgres", SCHEMA);
    cluster.psql("postgres", "CREATE PUBLICATION app FOR TABLE parts, mark");
    let tables = ["parts_1", "parts_2", "parts_3", "mark"];
    let compared = tables.map(|table| (format!("SELECT * FROM {table}"), table.to_owned())).into();
    ferry_rounds(&cluster, &compared, "parts_2");
}
on_servers!(leaves_of_a_partitioned_table_equal_the_source: v15 = 15, v18 = 18);

/// Tables `a` and `b` of the same shape, and `mark`, all published.
fn with_two_tables(major: u32) -> Cluster {
    let cluster = skip::require(major);
    cluster.psql(
        "postgres",
        "CREATE TABLE a(id int PRIMARY KEY, note text); CREATE TABLE b(id int PRIMARY KEY, note text); \
         CREATE TABLE mark(id int PRIMARY KEY); \
         INSERT INTO a VALUES (1, 'x'), (2, 'y'); INSERT INTO b VALUES (1, 'x'), (2, 'y'); \
         CREATE PUBLICATION app FOR TABLE a, b, mark;",
    );
    cluster
}

// D-08
fn an_altered_table_stops_and_the_others_go_on(major: u32) {
    let cluster = with_two_tables(major);
    let place = Place::new(&cluster.url("postgres"));
    let ferry = place.start(None);
    ferry.wait_until_ready(3);
    cluster.psql("postgres", "INSERT INTO a VALUES (3, 'before'); INSERT INTO mark VALUES (1)");
    ferry.wait_for_mark(1);
    cluster.psql(
        "postgres",
        "ALTER TABLE a ADD COLUMN more varchar(7); \
         BEGIN; INSERT INTO a VALUES (4, 'after', 'new'); INSERT INTO b VALUES (4, 'after'); COMMIT; \
         UPDATE b SET note = 'z' WHERE id = 1; DELETE FROM a WHERE id = 1; INSERT INTO mark VALUES (2);",
    );
    ferry.wait_for_mark(2);
    let errored = |ferry: &Ferry| match ferry.phase("public.a") {
        Some(Phase::Errored { reason, policy: Policy::Manual }) => Some(reason),
        _ => None,
    };
    wait_until(LIMIT, "the table to stop", || errored(&ferry).is_some());
    let reason = errored(&ferry).unwrap();
    for shape in [
        "(id type 23 key, note type 25)",
        "(id type 23 key, note type 25, more type 1043 modifier 11)",
    ] {
        assert!(reason.contains(shape), "{reason}");
    }
    assert!(matches!(ferry.phase("public.b"), Some(Phase::Ready { .. })));
    assert_eq!(ferry.stop(), Outcome::Stopped { errored: 1, until_reached: false });

    let mut source = Client::sql(&cluster, "postgres");
    let mut compare = |table: &str, query: &str| {
        assert_same(&mut source, query, &place.sqlite(), table);
    };
    compare("b", "SELECT * FROM b");
    // What came before the change, and nothing of what came after it.
    let before = "SELECT 1 AS id, 'x' AS note UNION ALL VALUES (2, 'y'), (3, 'before')";
    compare("a", before);
    // It stays so over a restart, while the others go on.
    cluster.psql(
        "postgres",
        "INSERT INTO a VALUES (5, 'more', NULL); INSERT INTO b VALUES (5, 'more')",
    );
    let outcome = place.start(Some(Until::CaughtUp)).wait();
    assert_eq!(outcome, Outcome::Stopped { errored: 1, until_reached: true });
    compare("b", "SELECT * FROM b");
    compare("a", before);
}
on_servers!(an_altered_table_stops_and_the_others_go_on: v15 = 15, v18 = 18);

// K-27, K-F14, PG-27
fn a_table_rewritten_behind_the_snapshot_is_copied_again(major: u32) {
    let cluster = with_two_tables(major);
    // The readers' connections are held up, so that the rewrites come after the snapshots of all
    // attempts and before the first lock.
    let proxy = Proxy::start(cluster.port(), b"walferry:read:");
    let url =
        cluster.url("postgres").replace(&cluster.port().to_string(), &proxy.port().to_string());
    let place = Place::new(&url);
    let mut ferry = place.start(None);
    wait_until(LIMIT, "the readers to come", || proxy.held() == 3);
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE temporary";
    assert_eq!(cluster.psql("postgres", slots), "3");
    cluster.psql(
        "postgres",
        "TRUNCATE a; INSERT INTO a VALUES (3, 'after the truncate'); \
         ALTER TABLE b ALTER note TYPE text USING upper(note); INSERT INTO b VALUES (3, 'c'); \
         INSERT INTO mark VALUES (1);",
    );
    proxy.release();
    ferry.wait_until_ready(3);
    ferry.wait_for_mark(1);
    let names: BTreeMap<_, _> =
        ferry.status().view.tables.iter().map(|table| (table.table, table.name.clone())).collect();
    let mut guarded: Vec<_> = ferry
        .notices()
        .into_iter()
        .filter_map(|notice| {
            let Notice::RewriteGuard { table, repeats } = notice else { return None };
            Some((names[&table].clone(), repeats))
        })
        .collect();
    guarded.sort_unstable();
    assert_eq!(guarded, [("public.a".to_owned(), 1), ("public.b".to_owned(), 1)]);
    assert_eq!(ferry.stop(), STOPPED);
    let mut source = Client::sql(&cluster, "postgres");
    for (table, rows) in [("a", 1), ("b", 3), ("mark", 1)] {
        let query = format!("SELECT * FROM {table}");
        assert_eq!(assert_same(&mut source, &query, &place.sqlite(), table), rows);
    }
    reached("K-F14");
}
on_servers!(a_table_rewritten_behind_the_snapshot_is_copied_again: v15 = 15, v18 = 18);

/// Memory of this process that is resident, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

// B-05, B-I3, B-F5
fn memory_stays_bounded_in_a_transaction_of_a_million_rows(major: u32) {
    const MIB: u64 = 1 << 20;
    const ROWS: u32 = 1_000_000;
    let cluster = with_two_tables(major);
    let bounded = Limits { memory_bytes: 32 * MIB, batch_bytes: 4 * MIB, ..limits() };
    let memory = bounded.memory_bytes;
    let place = Place::new(&cluster.url("postgres"));
    let ferry = place.start_with(bounded.clone(), None);
    ferry.wait_until_ready(3);
    let before = resident();
    let (mut held_max, mut resident_max) = (0, 0);
    let mut look = || {
        held_max = held_max.max(ferry.status().view.held_bytes);
        resident_max = resident_max.max(resident());
    };
    std::thread::scope(|scope| {
        let written = scope.spawn(|| {
            let rows = format!(
                "INSERT INTO a SELECT i, md5(i::text) || md5(i::text) FROM generate_series(3, {}) i",
                ROWS + 2
            );
            cluster.psql("postgres", &format!("{rows}; INSERT INTO mark VALUES (1);"));
        });
        wait_until(2 * LIMIT, "the million rows", || {
            look();
            written.is_finished() && ferry.has_mark(1)
        });
    });
    assert!(held_max > 4 * MIB, "{held_max}: the stream was never ahead of the destination");
    // Beside what was under way when the gate closed: a few reads of the socket.
    assert!(held_max <= memory + 2 * MIB, "{held_max} bytes held");
    // Twice what is charged (B-05), and the page cache of SQLite.
    let grown = resident_max.saturating_sub(before);
    assert!(grown <= 2 * memory + 40 * MIB, "{grown} bytes more resident");
    // B-I4
    wait_until(LIMIT, "everything to be given back", || ferry.status().view.held_bytes == 0);
    assert_eq!(ferry.stop(), STOPPED);
    let sql = "SELECT count(*) FROM a WHERE length(note) = 64";
    let count: u32 = open(&place.sqlite()).query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(count, ROWS);
    let outcome = place.start_with(bounded, Some(Until::CaughtUp)).wait();
    assert_eq!(outcome, CAUGHT_UP);
    for id in ["B-I3", "B-I4", "B-F5"] {
        reached(id);
    }
}
on_servers!(memory_stays_bounded_in_a_transaction_of_a_million_rows: v15 = 15, v18 = 18);
