//! Heartbeats at a source that is otherwise quiet.

use std::time::Duration;

use walferry::core::config::Limits;
use walferry::core::notice::Notice;
use walferry_tests::wait::wait_until;
use walferry_tests::{on_servers, skip};

use crate::ferry::{LIMIT, Place, STOPPED};

/// Rights of a pipeline, and no more.
const SCHEMA: &str = "
    CREATE TABLE quiet (id int PRIMARY KEY); INSERT INTO quiet VALUES (1), (2);
    CREATE PUBLICATION app FOR TABLE quiet;
    CREATE ROLE ferry LOGIN REPLICATION; GRANT SELECT ON quiet TO ferry;";

// they are seen with their lag, and each one moves the checkpoint, so that the slot keeps up
// although nothing is published and the idle checkpoint is far away.
fn an_idle_source_is_heard_of(major: u32) {
    let cluster = skip::require(major);
    cluster.psql("postgres", SCHEMA);
    let place = Place::new(&cluster.url("postgres").replace("//postgres@", "//ferry@"));
    let limits = Limits { heartbeat_ms: 100, idle_checkpoint_ms: 3_600_000, ..Limits::default() };
    let mut ferry = place.start_with(limits, None);
    ferry.wait_until_ready(1);
    let confirmed =
        || cluster.psql("postgres", "SELECT confirmed_flush_lsn FROM pg_replication_slots");
    let mut lags = Vec::new();
    let mut positions = Vec::new();
    wait_until(LIMIT, "heartbeats that move what is confirmed", || {
        lags.extend(ferry.notices().into_iter().filter_map(|notice| {
            let Notice::HeartbeatSeen { lag } = notice else { return None };
            Some(lag)
        }));
        positions.push(confirmed());
        positions.dedup();
        lags.len() >= 3 && positions.len() >= 3
    });
    assert!(lags.iter().all(|&lag| lag < LIMIT), "{lags:?}");
    assert!(lags.iter().any(|&lag| lag > Duration::ZERO), "{lags:?}");
    assert_eq!(ferry.stop(), STOPPED);
    // Nobody beats any more, so nothing is left to read but what was written after the stop.
    let head = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'walferry:%'";
    wait_until(LIMIT, "the connections to go", || cluster.psql("postgres", head) == "0");
    place.catch_up();
}
on_servers!(an_idle_source_is_heard_of: v15 = 15, v18 = 18);

// Off by default: the WAL of a quiet source does not grow by us.
fn none_is_written_unless_it_was_asked_for(major: u32) {
    let cluster = skip::require(major);
    cluster.psql("postgres", SCHEMA);
    let place = Place::new(&cluster.url("postgres"));
    let mut ferry = place.start(None);
    ferry.wait_until_ready(1);
    cluster.psql("postgres", "INSERT INTO quiet VALUES (3)");
    let idle = |cluster: &walferry_tests::cluster::Cluster| {
        let sql =
            "SELECT confirmed_flush_lsn >= pg_current_wal_lsn() - 1000 FROM pg_replication_slots";
        cluster.psql("postgres", sql) == "t"
    };
    wait_until(LIMIT, "the idle checkpoint", || idle(&cluster));
    let seen = |notice: &Notice| matches!(notice, Notice::HeartbeatSeen { .. });
    assert!(!ferry.notices().iter().any(seen));
    assert_eq!(ferry.stop(), STOPPED);
}
on_servers!(none_is_written_unless_it_was_asked_for: v15 = 15, v18 = 18);
