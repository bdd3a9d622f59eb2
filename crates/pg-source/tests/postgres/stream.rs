//! The replication stream: events, feedback, gates and endings.

use std::sync::Arc;
use std::time::Duration;

use crate::skip;
use walferry_cluster::cluster::Stop;
use walferry_cluster::config::{Auth, Tls};
use walferry_cluster::wait::wait_until;
use walferry_core::event::{Event, RowKind};
use walferry_core::fault::{FaultKind, SqlState};
use walferry_core::lsn::{Lsn, Position};
use walferry_pg_source::StreamMessage;

use crate::support::{LIMIT, commits, end_of, events_until, source_at, with_table, within};

fn shape(event: &Event<bytes::Bytes>) -> &'static str {
    match event {
        Event::Begin { .. } => "begin",
        Event::Relation(_) => "relation",
        Event::Ddl(_) => "schema message",
        Event::Row { kind: RowKind::Insert, .. } => "insert",
        Event::Row { kind: RowKind::Update, .. } => "update",
        Event::Row { kind: RowKind::Delete, .. } => "delete",
        Event::Truncate { .. } => "truncate",
        Event::Message { .. } => "message",
        Event::Commit { .. } => "commit",
        Event::Keepalive { .. } => "keepalive",
    }
}

// A-01, PG-11, PG-25
fn every_kind_of_change_arrives(major: u32) {
    let cluster = skip::require(major);
    let source = with_table(&cluster);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let created = source.create_slot("s", false).await.unwrap();
        cluster.psql(
            "app",
            "BEGIN; INSERT INTO t VALUES (1, 'a'), (2, NULL); UPDATE t SET note = 'b' WHERE id = 1; \
             DELETE FROM t WHERE id = 2; COMMIT; TRUNCATE t; \
             SELECT pg_logical_emit_message(false, 'p', 'content');",
        );
        let (seen, stream, mut messages) =
            source.open_stream("s", created.consistent).await.unwrap();
        assert_eq!(seen, source.identify().await.unwrap().seen);
        let events = events_until(&mut messages, "a message", |events| {
            events.iter().any(|event| matches!(event, Event::Message { .. }))
        })
        .await;
        let shapes: Vec<_> =
            events.iter().map(shape).filter(|shape| *shape != "keepalive").collect();
        let expected = "begin relation insert insert update delete commit \
                        begin truncate commit message";
        // RELATION comes again after the truncation on some versions.
        assert_eq!(shapes.join(" ").replace("begin relation truncate", "begin truncate"), expected);
        let end = events.iter().find_map(|event| match event {
            Event::Commit { end, .. } => Some(*end),
            _ => None,
        });
        stream.confirm(end.unwrap(), true);
        let asked = events_until(&mut messages, "the keepalive asked for", |events| {
            events.iter().any(|event| matches!(event, Event::Keepalive { .. }))
        });
        asked.await;
        let confirmed = source.inspect_slot("s").await.unwrap().slot.unwrap().confirmed_flush_lsn;
        assert_eq!(confirmed.map(Position), end);
        stream.close().await.unwrap();
        while let Some(message) = messages.recv().await {
            assert!(matches!(message, StreamMessage::Events(_)));
        }
        assert!(!cluster.log().contains("unexpected EOF"), "{}", cluster.log());
    });
}
on_servers!(every_kind_of_change_arrives: v14 = 14, v15 = 15, v16 = 16, v17 = 17, v18 = 18);

// A-09, A-F6, PG-44
#[tokio::test(flavor = "multi_thread")]
async fn feedback_flows_while_the_gate_is_closed_and_the_channel_full() {
    let cluster = skip::config(15).setting("wal_sender_timeout", "1s").start();
    let source = with_table(&cluster);
    cluster.psql("app", "CREATE TABLE unpublished AS SELECT generate_series(1, 20000) AS i");
    let created = source.create_slot("s", false).await.unwrap();
    let sql = "INSERT INTO t SELECT i, repeat('x', 400) FROM unpublished";
    cluster.psql("app", sql);
    let (_, stream, mut messages) = source.open_stream("s", created.consistent).await.unwrap();
    let stream = Arc::new(stream);
    let feeding = Arc::clone(&stream);
    let feedback = tokio::spawn(async move {
        loop {
            feeding.confirm(created.consistent, false);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    // Three times the server's patience each.
    stream.set_gate(false);
    tokio::time::sleep(Duration::from_secs(3)).await;
    // Nobody takes the messages: the reader stands with a full channel.
    stream.set_gate(true);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let events = events_until(&mut messages, "the commit", |events| commits(events) > 0).await;
    let rows = events.iter().filter(|event| matches!(event, Event::Row { .. })).count();
    assert_eq!(rows, 20_000);
    assert!(!cluster.log().contains("terminating walsender"), "{}", cluster.log());
    feedback.abort();
    stream.close().await.unwrap();
    walferry_coverage::reached("A-F6");
}

#[tokio::test]
async fn a_stream_closes_whatever_stands_in_its_way() {
    let cluster = skip::require(15);
    let source = with_table(&cluster);
    let created = source.create_slot("s", false).await.unwrap();
    cluster
        .psql("app", "INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 100000) i");
    let free = || {
        wait_until(LIMIT, "the slot to be free", || {
            cluster.psql("app", "SELECT active FROM pg_replication_slots") == "f"
        });
    };
    // Full channel.
    let (_, stream, messages) = source.open_stream("s", created.consistent).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    within("a close", stream.close()).await.unwrap();
    drop(messages);
    free();
    // Closed gate.
    let (_, stream, _messages) = source.open_stream("s", created.consistent).await.unwrap();
    stream.set_gate(false);
    within("a close", stream.close()).await.unwrap();
    free();
    // A dropped handle, a dropped receiver.
    let (_, stream, messages) = source.open_stream("s", created.consistent).await.unwrap();
    drop(stream);
    free();
    drop(messages);
    let (_, stream, messages) = source.open_stream("s", created.consistent).await.unwrap();
    drop(messages);
    free();
    drop(stream);
    // An opening that is given up.
    let opening = source.clone();
    let task =
        tokio::spawn(async move { opening.open_stream("s", created.consistent).await.map(drop) });
    task.abort();
    free();
}

// A-F1, A-F2, A-13
#[tokio::test]
async fn endings_are_told_after_the_last_event() {
    let mut cluster = skip::require(15);
    let source = with_table(&cluster);
    let created = source.create_slot("s", false).await.unwrap();
    let (_, _stream, mut messages) = source.open_stream("s", created.consistent).await.unwrap();
    cluster.psql("app", "INSERT INTO t VALUES (1, 'a')");
    events_until(&mut messages, "the commit", |events| commits(events) == 1).await;
    cluster.psql("app", "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots");
    let fault = end_of(&mut messages).await;
    assert_eq!(fault.kind, FaultKind::Server { code: SqlState(*b"57P01") }, "{fault}");
    assert_eq!(messages.recv().await, None);

    let (_, stream, mut messages) = source.open_stream("s", created.consistent).await.unwrap();
    events_until(&mut messages, "the commit", |events| commits(events) == 1).await;
    stream.confirm(Position(source.read_wal_position().await.unwrap()), false);
    cluster.stop(Stop::Fast);
    let fault = end_of(&mut messages).await;
    assert_eq!(fault.kind, FaultKind::Transport, "{fault}");
    cluster.start();
    let (_, _stream, mut messages) = source.open_stream("s", created.consistent).await.unwrap();
    cluster.stop(Stop::Kill);
    let fault = end_of(&mut messages).await;
    assert_eq!(fault.kind, FaultKind::Transport, "{fault}");
    walferry_coverage::reached("A-F1");
    walferry_coverage::reached("A-F2");
}

// PG-23
#[tokio::test]
async fn the_servers_error_ends_the_stream_with_its_words() {
    let cluster = skip::require(15);
    let source = with_table(&cluster);
    let created = source.create_slot("s", false).await.unwrap();
    cluster.psql("app", "DROP PUBLICATION \"Pub of \"\"it\"\"\"; INSERT INTO t VALUES (1, 'a')");
    let (_, _stream, mut messages) = source.open_stream("s", created.consistent).await.unwrap();
    let fault = end_of(&mut messages).await;
    assert_eq!(fault.kind, FaultKind::Server { code: SqlState(*b"42704") });
    assert!(fault.message.contains("publication \"Pub of \"it\"\" does not exist"), "{fault}");
    // Faults of the opening itself.
    let fault = source.open_stream("none", created.consistent).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Server { code: SqlState(*b"42704") });
    assert!(fault.message.contains("none"), "{fault}");
}

// A-06, Z-02
#[tokio::test]
async fn rows_larger_than_every_buffer_pass_and_those_above_the_limit_do_not() {
    let cluster = skip::config(15).auth(Auth::Scram).tls(Tls::Offered).start();
    drop(with_table(&cluster));
    for mode in ["disable", "require"] {
        let url = format!("{}?sslmode={mode}", cluster.url("app"));
        let source = source_at(&url);
        let slot = format!("s_{mode}");
        let created = source.create_slot(&slot, false).await.unwrap();
        cluster.psql("app", "TRUNCATE t; INSERT INTO t VALUES (1, repeat('0123456789', 1000000))");
        cluster.psql("app", "INSERT INTO t SELECT i, 'small' FROM generate_series(2, 5001) i");
        let (_, stream, mut messages) =
            source.open_stream(&slot, created.consistent).await.unwrap();
        let events =
            events_until(&mut messages, "all commits", |events| commits(events) == 3).await;
        let rows: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::Row { row, .. } => Some(row.len()),
                _ => None,
            })
            .collect();
        assert_eq!(rows.len(), 5_001);
        assert!(rows[0] > 10_000_000);
        stream.close().await.unwrap();

        let mut options = walferry_pg_source::SourceOptions::new(crate::support::PUBLICATION);
        options.frame_bytes = 1 << 20;
        let bounded = walferry_pg_source::Source::new(crate::support::config(&url), options);
        let gone = async {
            loop {
                if let Ok(opened) = bounded.open_stream(&slot, created.consistent).await {
                    return opened;
                }
            }
        };
        let (_, _stream, mut messages) = within("the slot to be free", gone).await;
        let fault = end_of(&mut messages).await;
        assert_eq!(fault.kind, FaultKind::Limit { name: "frame_bytes" }, "{fault}");
    }
}

// PG-08
#[tokio::test]
async fn positions_of_keepalives_follow_unpublished_traffic() {
    let cluster = skip::require(15);
    let source = with_table(&cluster);
    cluster.psql("app", "CREATE TABLE unpublished(a int)");
    let created = source.create_slot("s", false).await.unwrap();
    let (_, stream, mut messages) = source.open_stream("s", created.consistent).await.unwrap();
    cluster.psql("app", "INSERT INTO unpublished SELECT generate_series(1, 1000)");
    let target = source.read_wal_position().await.unwrap();
    let mut last = Lsn::ZERO;
    while last < target {
        stream.confirm(created.consistent, true);
        let events = events_until(&mut messages, "a keepalive", |events| !events.is_empty()).await;
        for event in events {
            if let Event::Keepalive { wal_end, .. } = event {
                last = wal_end.0;
            }
        }
    }
}
