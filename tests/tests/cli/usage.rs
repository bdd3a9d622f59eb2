//! A command line that cannot be meant: nothing is looked at and nothing is made (Z-01).

use insta::assert_snapshot;

use crate::world::World;

/// The mistake is found without a connection.
#[track_caller]
fn refused(more: &[&str]) -> String {
    let world = World::new();
    let before = world.cluster.log().len();
    let finished = world.call().more(more).fails_at_once();
    assert!(!world.path("state").exists());
    assert!(!world.cluster.log()[before..].contains("walferry"), "it connected");
    world.shown(&finished)
}

#[test]
fn a_setting_that_does_not_exist() {
    assert_snapshot!(refused(&["--set", "batch_size=1"]), @r"
    exit 2
    error: a setting was refused
    cause: unknown setting batch_size
    hint: settings are slot_prefix, copy_concurrency, copy_connections_per_table, batch_ms, batch_events, batch_bytes, memory_bytes, frame_bytes, feedback_ms, source_silence_ms, idle_checkpoint_ms, idle_checkpoint_bytes, flush_batches, flush_ms, fence_bytes, fence_ms, fence_ms_max, horizon_step_bytes, listing_ms, heartbeat_ms, main_retries_max, quarantines_per_hour, retries_max, retry_ms, retry_ms_max, connect_ms, query_ms, slot_creation_ms, slot_busy_ms, destination_ms, store_ms, stop_ms, slot_failover, slot_loss, promotion_loss, membership_change, silent_rewrite, copy
    ");
}

#[test]
fn a_setting_out_of_its_range() {
    assert_snapshot!(refused(&["--set", "copy_concurrency=0"]), @r"
    exit 2
    error: a setting was refused
    cause: copy_concurrency = 0 is not allowed: 1..64
    ");
}

#[test]
fn a_setting_that_is_no_number() {
    assert_snapshot!(refused(&["--set", "batch_ms=fast"]), @r"
    exit 2
    error: a setting was refused
    cause: batch_ms = fast is not allowed: a whole number in 0..60000
    ");
}

#[test]
fn an_end_that_is_no_position() {
    assert_snapshot!(refused(&["--until", "tomorrow"]), @r"
    exit 2
    error: invalid value 'tomorrow' for '--until <caught-up|LSN>': expected caught-up, or a WAL position such as [lsn]

    For more information, try '--help'.
    ");
}

#[test]
fn a_destination_of_an_unknown_scheme() {
    let world = World::new();
    let finished = world.call().destination("kafka://broker/topic").fails_at_once();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 2
    error: --destination was refused
    cause: destination scheme "kafka" is not known; known are sqlite:PATH, jsonl:PATH, jsonl:- (standard output), null:
    hint: for example --destination sqlite:copy.db
    "#);
}

#[test]
fn a_source_that_is_no_address() {
    let world = World::new();
    for source in ["mysql://root@127.0.0.1/shop", "postgres://127.0.0.1:port/shop", "host"] {
        let finished = world.call().source(source).fails_at_once();
        assert_eq!(finished.code, Some(2), "{source}");
    }
    let finished = world.call().parameters("sslmode=sometimes").fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 2
    error: --source was refused
    cause: sslmode is sometimes, expected disable, prefer, require, verify-ca, verify-full: connection parameter sslmode is sometimes, expected disable, prefer, require, verify-ca, verify-full
    hint: for example --source postgres://user@host:5432/database
    ");
}
