//! Where transactions begin and end in a stream, and what a start position does.

use walferry_core::lsn::{Lsn, Position};
use walferry_core::wire::Message;
use walferry_tests::cluster::Cluster;
use walferry_tests::wait::wait_until;
use walferry_tests::{on_servers, skip};

use crate::raw::{Client, Data, LIMIT, Sent, boundaries, changes};

/// A server with table `t` in publication `p`, table `quiet` outside of it, and slot `s`, whose
/// consistent point is the second value.
fn with_slot(major: u32) -> (Cluster, Lsn) {
    let cluster = skip::require(major);
    cluster.psql(
        "postgres",
        "CREATE TABLE t(id int PRIMARY KEY, note text); CREATE TABLE quiet(id int); \
         CREATE PUBLICATION p FOR TABLE t;",
    );
    let sql = "CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT";
    let created = Client::walsender(&cluster, "postgres").query(sql);
    let consistent = created[0][1].as_ref().unwrap().parse().unwrap();
    (cluster, consistent)
}

fn confirmed(client: &mut Client) -> Lsn {
    client.lsn("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 's'")
}

fn headers(all: &[Data], of: impl Fn(&Message<'_>) -> bool) -> Vec<Lsn> {
    all.iter().filter(|data| of(&data.message())).map(|data| data.header).collect()
}

// PG-02
fn a_start_at_the_commit_sends_it_again(major: u32) {
    let (cluster, consistent) = with_slot(major);
    cluster.psql("postgres", "INSERT INTO t VALUES (1); INSERT INTO t VALUES (2);");
    let first_from = |from: Lsn| {
        let mut stream = Client::stream(&cluster, "s", from);
        let all = stream.transactions(1);
        (changes(&all).pop().unwrap(), boundaries(&all)[0])
    };
    let (row, (commit, end)) = first_from(consistent);
    assert_eq!(row, "insert t new (1, null)");
    assert_eq!(first_from(commit.0).0, "insert t new (1, null)");
    assert_eq!(first_from(commit.after_start().0).0, "insert t new (2, null)");
    assert_eq!(first_from(end.0).0, "insert t new (2, null)");
    // Nothing was confirmed in between, so that nothing but the start position decided.
    assert_eq!(confirmed(&mut Client::sql(&cluster, "postgres")), consistent);
}
on_servers!(a_start_at_the_commit_sends_it_again: v15 = 15, v18 = 18);

// PG-03
fn begin_knows_the_commit(major: u32) {
    let (cluster, consistent) = with_slot(major);
    let mut one = Client::sql(&cluster, "postgres");
    let mut other = Client::sql(&cluster, "postgres");
    let position = "SELECT pg_current_wal_insert_lsn()";
    let mut around = Vec::new();
    let mut commit = |client: &mut Client| {
        let before = client.lsn(position);
        client.query("COMMIT");
        around.push((before, client.lsn(position)));
    };
    one.query("BEGIN; INSERT INTO t SELECT generate_series(1, 1000)");
    other.query("BEGIN; INSERT INTO t VALUES (1001)");
    one.query("INSERT INTO t VALUES (1002)");
    commit(&mut other);
    one.query(
        "SAVEPOINT a; INSERT INTO t VALUES (1003); ROLLBACK TO a; INSERT INTO t VALUES (1004)",
    );
    commit(&mut one);

    let all = Client::stream(&cluster, "s", consistent).transactions(2);
    let begins: Vec<_> = all
        .iter()
        .enumerate()
        .filter_map(|(index, data)| {
            let Message::Begin { commit, .. } = data.message() else { return None };
            Some((index, commit))
        })
        .collect();
    let ends = boundaries(&all);
    let commits: Vec<_> = ends.iter().map(|(commit, _)| *commit).collect();
    assert_eq!(begins.iter().map(|(_, commit)| *commit).collect::<Vec<_>>(), commits);
    assert_eq!(begins[0].0, 0, "nothing comes before a begin");
    for ((commit, end), (before, after)) in ends.into_iter().zip(around) {
        assert!(before <= commit.0 && commit.0 < end.0 && end.0 <= after, "{before} {commit}");
    }
    assert_eq!(changes(&all).len(), 1 + 1 + 1_002);
}
on_servers!(begin_knows_the_commit: v15 = 15, v18 = 18);

// PG-05
fn a_start_below_the_confirmed_position_is_raised(major: u32) {
    let (cluster, consistent) = with_slot(major);
    cluster.psql("postgres", "INSERT INTO t VALUES (1); INSERT INTO t VALUES (2);");
    let mut stream = Client::stream(&cluster, "s", consistent);
    let all = stream.transactions(2);
    assert_eq!(changes(&all)[1..], ["insert t new (1, null)", "insert t new (2, null)"]);
    let (_, end) = boundaries(&all)[0];
    stream.confirm(end, false);
    let mut sql = Client::sql(&cluster, "postgres");
    wait_until(LIMIT, "the confirmation", || confirmed(&mut sql) == end.0);
    drop(stream);
    // `next` and `start_stream` fail at a notice: the server says nothing of it.
    let all = Client::stream(&cluster, "s", consistent).transactions(1);
    assert_eq!(changes(&all)[1..], ["insert t new (2, null)"]);
}
on_servers!(a_start_below_the_confirmed_position_is_raised: v15 = 15, v18 = 18);

/// Keepalives until one is at or past `target`; the last one. Nothing else may come.
fn keepalive_past(stream: &mut Client, confirmed: Position, target: Lsn) -> Position {
    loop {
        // PG-11
        stream.confirm(confirmed, true);
        match stream.next() {
            Sent::Keepalive(wal_end) if wal_end.0 >= target => return wal_end,
            Sent::Keepalive(_) => {}
            Sent::Data(data) => panic!("{:?}", data.message()),
        }
    }
}

// PG-08
fn keepalives_follow_unpublished_traffic(major: u32) {
    let (cluster, consistent) = with_slot(major);
    let mut sql = Client::sql(&cluster, "postgres");
    let mut stream = Client::stream(&cluster, "s", consistent);
    let mut confirmed_before = consistent;
    for _ in 0..2 {
        sql.query("INSERT INTO quiet SELECT generate_series(1, 1000)");
        let head = sql.lsn("SELECT pg_current_wal_flush_lsn()");
        assert!(head.bytes_past(confirmed_before) > 50_000);
        let wal_end = keepalive_past(&mut stream, Position(confirmed_before), head);
        assert_eq!(confirmed(&mut sql), confirmed_before, "a keepalive alone confirms nothing");
        stream.confirm(wal_end, false);
        wait_until(LIMIT, "the confirmation", || confirmed(&mut sql) == wal_end.0);
        confirmed_before = wal_end.0;
    }
    // What is published afterwards comes all the same.
    sql.query("INSERT INTO t VALUES (1)");
    assert_eq!(changes(&stream.transactions(1))[1..], ["insert t new (1, null)"]);
}
on_servers!(keepalives_follow_unpublished_traffic: v15 = 15, v18 = 18);

// PG-10
fn a_header_position_is_no_boundary(major: u32) {
    let (cluster, consistent) = with_slot(major);
    let mut one = Client::sql(&cluster, "postgres");
    let mut other = Client::sql(&cluster, "postgres");
    one.query("BEGIN; INSERT INTO t VALUES (1)");
    other.query("INSERT INTO t VALUES (2)");
    one.query("INSERT INTO t VALUES (3)");
    one.query("COMMIT");
    let all = Client::stream(&cluster, "s", consistent).transactions(2);
    assert_eq!(
        changes(&all)[1..],
        ["insert t new (2, null)", "insert t new (1, null)", "insert t new (3, null)"]
    );
    let rows = headers(&all, |message| matches!(message, Message::Row { .. }));
    let [(_, other_end), (one_commit, _)] = boundaries(&all)[..] else { panic!("two commits") };
    // The row that was sent last but one lies before the end of what was sent before it: who
    // confirmed it would go back, and who confirmed the last row would lose its transaction.
    assert!(rows[1] < rows[0] && rows[0] < other_end.0);
    assert!(other_end.0 <= rows[2] && rows[2] < one_commit.0);
    // A RELATION has none at all.
    let relations = headers(&all, |message| matches!(message, Message::Relation(_)));
    assert_eq!(relations, [Lsn::ZERO]);
    let begins = headers(&all, |message| matches!(message, Message::Begin { .. }));
    assert!(begins[1] <= rows[1], "a begin stands where its transaction began to write");
    let commits = headers(&all, |message| matches!(message, Message::Commit { .. }));
    let ends: Vec<_> = boundaries(&all).iter().map(|(_, end)| end.0).collect();
    assert_eq!(commits, ends);
}
on_servers!(a_header_position_is_no_boundary: v15 = 15, v18 = 18);
