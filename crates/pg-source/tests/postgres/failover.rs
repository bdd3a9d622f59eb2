//! Slots that survive a failover, promotions, heartbeats.

use crate::skip;
use walferry_cluster::cluster::Stop;
use walferry_cluster::wait::wait_until;
use walferry_core::event::Event;
use walferry_core::fault::{FaultKind, SqlState};
use walferry_core::ids::TableId;

use crate::support::{LIMIT, events_until, oid, with_table};

// M-04, M-09, K-05, PG-33, PG-35
#[tokio::test]
async fn slots_get_the_failover_property() {
    let cluster = skip::require(18);
    let source = with_table(&cluster);
    let failover = async |slot: &str| {
        let report = source.inspect_slot(slot).await.unwrap();
        report.slot.map(|slot| (slot.failover, slot.temporary))
    };
    source.create_slot("plain", false).await.unwrap();
    assert_eq!(failover("plain").await, Some((false, false)));
    source.enable_failover("plain").await.unwrap();
    assert_eq!(failover("plain").await, Some((true, false)));
    let made = source.create_slot("made", true).await.unwrap();
    assert_eq!((made.slot.as_str(), made.plugin.as_str()), ("made", "pgoutput"));
    assert_eq!(failover("made").await, Some((true, false)));
    // The slot of a copy outlives its connections, its snapshot is as any other.
    let table = TableId(oid(&cluster, "t"));
    let (attempt, facts) = source.open_snapshot(table, "copied", true).await.unwrap();
    assert_eq!(facts.slot.slot, "copied");
    assert!(attempt.open_reader(0).await.unwrap().published);
    attempt.close().await.unwrap();
    assert_eq!(failover("copied").await, Some((true, false)));
    wait_until(LIMIT, "its session to end", || {
        let active = "SELECT active FROM pg_replication_slots WHERE slot_name = 'copied'";
        cluster.psql("app", active) == "f"
    });
    source.drop_slot("copied").await.unwrap();
    assert_eq!(failover("copied").await, None);
}

// M-08: servers before 17 do not know the property
#[tokio::test]
async fn older_servers_refuse_it() {
    let cluster = skip::require(15);
    let source = with_table(&cluster);
    // An unknown option of a known command, and a command that is not known at all.
    let fault = source.create_slot("s", true).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Server { code: SqlState(*b"XX000") }, "{fault}");
    source.create_slot("s", false).await.unwrap();
    let fault = source.enable_failover("s").await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Server { code: SqlState(*b"42601") }, "{fault}");
    assert!(!source.inspect_slot("s").await.unwrap().slot.unwrap().failover);
}

// P-02, P-03, PG-38, PG-40, S-09
fn histories_follow_promotions(major: u32) {
    let mut cluster = skip::require(major);
    let source = with_table(&cluster);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let history = |timeline| runtime.block_on(source.read_timeline_history(timeline));
    assert_eq!(history(1).unwrap(), []);
    assert!(history(2).is_err(), "there is no such timeline yet");
    let signal = cluster.data_dir().join("standby.signal");
    for timeline in 2..=3 {
        cluster.psql("app", &format!("COPY (SELECT) TO '{}'", signal.display()));
        cluster.restart(Stop::Fast);
        // The kept connection has ended with the server, and says so once.
        drop(runtime.block_on(source.identify()));
        let facts = runtime.block_on(source.identify()).unwrap();
        assert!(facts.in_recovery);
        let replayed = runtime.block_on(source.read_wal_position()).ok();
        cluster.psql("app", "SELECT pg_promote()");
        wait_until(LIMIT, "the promotion", || {
            cluster.psql("app", "SELECT pg_is_in_recovery()") == "f"
        });
        let facts = runtime.block_on(source.identify()).unwrap();
        assert_eq!((facts.seen.timeline, facts.in_recovery), (timeline, false));
        let history = history(timeline).unwrap();
        let parents: Vec<_> = history.iter().map(|switch| switch.parent).collect();
        assert_eq!(parents, (1..timeline).collect::<Vec<_>>());
        assert!(history.is_sorted_by_key(|switch| switch.at));
        let fork = history.last().unwrap().at;
        assert!(replayed.is_none_or(|end| end <= fork.0), "nothing was written before the fork");
        assert!(runtime.block_on(source.read_wal_position()).unwrap() >= fork.0);
    }
}
on_servers!(histories_follow_promotions: v15 = 15, v18 = 18);

// A-15, PG-25
fn a_heartbeat_comes_through_the_stream(major: u32) {
    let cluster = skip::require(major);
    let source = with_table(&cluster);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let created = source.create_slot("main_1", false).await.unwrap();
        let (_, _handle, mut messages) =
            source.open_stream("main_1", created.consistent).await.unwrap();
        source.write_heartbeat("walferry_heartbeat", "it's 12\\30").await.unwrap();
        let is_message = |event: &Event<bytes::Bytes>| matches!(event, Event::Message { .. });
        let events =
            events_until(&mut messages, "the message", |events| events.iter().any(is_message));
        let events = events.await;
        let Some(Event::Message { transactional, prefix, content, .. }) =
            events.iter().find(|event| is_message(event))
        else {
            panic!("no message");
        };
        assert!(*transactional, "it has a place in commit order");
        assert_eq!((&**prefix, &content[..]), ("walferry_heartbeat", &b"it's 12\\30"[..]));
    });
}
on_servers!(a_heartbeat_comes_through_the_stream: v15 = 15, v18 = 18);

// K-29, PG-36
#[tokio::test]
async fn an_idle_timeout_is_seen() {
    let cluster = skip::config(18).setting("idle_replication_slot_timeout", "600").start();
    let facts = with_table(&cluster).identify().await.unwrap();
    assert!(facts.idle_slot_timeout);
    assert_eq!(facts.copy_slot_risks, ["idle_replication_slot_timeout = 10min"]);
    let cluster = skip::require(18);
    let facts = with_table(&cluster).identify().await.unwrap();
    assert!(!facts.idle_slot_timeout && facts.copy_slot_risks.is_empty());
}

// PG-38, PG-40
fn replication_keywords_are_upper_case(major: u32) {
    let cluster = skip::require(major);
    let walsender = "dbname=postgres replication=database";
    for (command, lower, works) in [
        ("IDENTIFY_SYSTEM", "identify_system", true),
        ("TIMELINE_HISTORY 1", "timeline_history 1", false),
    ] {
        let upper = cluster.try_psql(walsender, command);
        assert_eq!(upper.is_ok(), works, "{upper:?}");
        // The first timeline has no history: known, and refused for that.
        assert!(!upper.err().unwrap_or_default().contains("syntax"));
        let lower = cluster.try_psql(walsender, lower).unwrap_err();
        assert!(lower.contains("syntax error"), "{lower}");
    }
}
on_servers!(replication_keywords_are_upper_case: v15 = 15, v18 = 18);
