//! `walferry status` in every situation it may be asked in.

use insta::assert_snapshot;
use serde_json::Value;
use walferry_tests::cluster::Stop;
use walferry_tests::process::Finished;
use walferry_tests::wait::wait_until;

use crate::shown::shown;
use crate::world::{LARGE, LIMIT, TIGHT, World};

/// As shown, without sizes, which depend on the server's own writing.
fn told(world: &World, finished: &Finished) -> String {
    let mut text = shown(finished, &world.stand_ins());
    for label in ["lag ", "keeps "] {
        let mut parts = text.split(label);
        let mut out = parts.next().unwrap().to_owned();
        for part in parts {
            let unit = part.find("B").map_or(0, |at| at + 1);
            out.push_str(&format!("{label}[size]{}", &part[unit..]));
        }
        text = out;
    }
    text
}

fn status(world: &World, more: &[&str]) -> Finished {
    let mut args = vec!["status", "--state", "file:state"];
    args.extend(more);
    world.walferry(&args).run(LIMIT)
}

#[track_caller]
fn json(world: &World, more: &[&str]) -> Value {
    let asked = status(world, &[more, &["--json"]].concat());
    serde_json::from_str(&asked.stdout).unwrap()
}

#[test]
fn without_a_state() {
    let world = World::new();
    let source = world.cluster.url("postgres");
    assert_snapshot!(told(&world, &status(&world, &["--source", &source])), @r"
    exit 5
    --- stdout
    state        file:state

    somebody has to act:
      there is no state at file:state: this pipeline has not run, or its state lies elsewhere
    --- stderr
    ");
    assert_eq!(json(&world, &[])["pipeline"], Value::Null);
    world.assert_untouched();
    assert!(!world.path("state").exists(), "looking made a state");
}

#[test]
fn of_a_pipeline_that_runs_and_one_that_has_stopped() {
    let world = World::new();
    let source = world.cluster.url("postgres");
    let running = world.call().streams();
    let seen = status(&world, &["--source", &source]);
    assert_snapshot!(told(&world, &seen), @r"
    exit 0
    --- stdout
    state        file:state
    source       database postgres, publication app, system [system], timeline 1
    slot         [slot]
    destination  sqlite:[dir]/copy.db
    checkpoint   [lsn] (run 1)
    slot health  active (pid [pid]), reserved, confirmed [lsn], lag [size], keeps [size] of WAL
    tables       2 ready

    TABLE          PHASE  HANDOVER   TRIES/DEATHS  ERROR
    public.orders  ready  [lsn]  0/0
    public.items   ready  [lsn]  0/0

    healthy
    --- stderr
    ");
    running.terminate();
    assert_eq!(running.wait(LIMIT).code, Some(0));
    let before = world.durable();
    assert_snapshot!(told(&world, &status(&world, &["--source", &source])), @r"
    exit 0
    --- stdout
    state        file:state
    source       database postgres, publication app, system [system], timeline 1
    slot         [slot]
    destination  sqlite:[dir]/copy.db
    checkpoint   [lsn] (run 1)
    slot health  not active, reserved, confirmed [lsn], lag [size], keeps [size] of WAL
    tables       2 ready

    TABLE          PHASE  HANDOVER   TRIES/DEATHS  ERROR
    public.orders  ready  [lsn]  0/0
    public.items   ready  [lsn]  0/0

    healthy
    --- stderr
    ");
    assert_snapshot!(told(&world, &status(&world, &[])), @r"
    exit 0
    --- stdout
    state        file:state
    source       database postgres, publication app, system [system], timeline 1
    slot         [slot]
    destination  sqlite:[dir]/copy.db
    checkpoint   [lsn] (run 1)
    tables       2 ready

    TABLE          PHASE  HANDOVER   TRIES/DEATHS  ERROR
    public.orders  ready  [lsn]  0/0
    public.items   ready  [lsn]  0/0

    healthy
    --- stderr
    ");
    assert_eq!(world.durable(), before, "looking changed something");
}

#[test]
fn as_json_has_the_documented_fields() {
    let world = World::new();
    world.works();
    let value = json(&world, &["--source", &world.cluster.url("postgres")]);
    let keys = |value: &Value| {
        let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys.join(" ")
    };
    assert_snapshot!(keys(&value), @"findings healthy pipeline slot state tables");
    assert_snapshot!(keys(&value["pipeline"]), @"checkpoint database destination epoch initial_lsn publication recreating slot system_id timeline");
    assert_snapshot!(keys(&value["slot"]), @"active_pid confirmed_flush_lsn exists invalidation_reason lag_bytes restart_lsn retained_bytes safe_wal_size wal_end wal_status");
    assert_snapshot!(keys(&value["tables"][0]), @"attempt deaths error handover name oid phase policy tries");
    assert_eq!(value["healthy"], true);
    assert_eq!(value["slot"]["exists"], true);
    let confirmed = world.sql("SELECT confirmed_flush_lsn FROM pg_replication_slots");
    assert_eq!(value["slot"]["confirmed_flush_lsn"], confirmed);
    assert_eq!(value["pipeline"]["checkpoint"], confirmed);
    assert!(value["slot"]["lag_bytes"].is_u64());
}

#[test]
fn while_a_table_is_being_copied() {
    let world = World::new();
    world.sql(LARGE);
    world.sql("CREATE TABLE later (id int PRIMARY KEY); ALTER PUBLICATION app ADD TABLE later");
    let mut running = world.call().more(&TIGHT).more(&["--set", "copy_concurrency=1"]).spawn();
    let mut words = std::collections::BTreeSet::new();
    wait_until(LIMIT, "the large table to be copied and the others to wait", || {
        assert!(!running.has_ended(), "it ended: {}", running.stderr());
        if !world.path("state/record").exists() {
            return false;
        }
        let value = json(&world, &[]);
        for table in value["tables"].as_array().unwrap() {
            words.insert(table["phase"].as_str().unwrap().to_owned());
        }
        words.contains("copying") && words.contains("pending")
    });
    running.terminate();
    assert_eq!(running.wait(LIMIT).code, Some(0));
    // Their tries were given back.
    assert_eq!(status(&world, &[]).code, Some(0));
}

#[test]
fn with_a_server_that_is_down() {
    let mut world = World::new();
    world.works();
    let source = world.cluster.url("postgres");
    world.cluster.stop(Stop::Fast);
    assert_snapshot!(told(&world, &status(&world, &["--source", &source])), @r"
    exit 3
    --- stdout
    state        file:state
    source       database postgres, publication app, system [system], timeline 1
    slot         [slot]
    destination  sqlite:[dir]/copy.db
    checkpoint   [lsn] (run 1)
    tables       2 ready

    TABLE          PHASE  HANDOVER   TRIES/DEATHS  ERROR
    public.orders  ready  [lsn]  0/0
    public.items   ready  [lsn]  0/0

    healthy
    --- stderr
    error: looking at the slot failed
    cause: the connection failed: cannot connect to 127.0.0.1:[port]: Connection refused (os error 111)
    hint: is the server running, and does it listen there? pg_isready -h 127.0.0.1 -p [port]
    ");
    // What the record says is known all the same.
    assert_eq!(status(&world, &[]).code, Some(0));
}

#[test]
fn with_a_slot_that_is_gone() {
    let world = World::new();
    world.works();
    world.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots");
    let source = world.cluster.url("postgres");
    assert_snapshot!(told(&world, &status(&world, &["--source", &source])), @r"
    exit 5
    --- stdout
    state        file:state
    source       database postgres, publication app, system [system], timeline 1
    slot         [slot]
    destination  sqlite:[dir]/copy.db
    checkpoint   [lsn] (run 1)
    slot health  missing
    tables       2 ready

    TABLE          PHASE  HANDOVER   TRIES/DEATHS  ERROR
    public.orders  ready  [lsn]  0/0
    public.items   ready  [lsn]  0/0

    somebody has to act:
      the replication slot does not exist: changes since the checkpoint may be lost
    --- stderr
    ");
}

#[test]
fn with_a_slot_that_was_never_made() {
    let world = World::on(walferry_tests::skip::config(15).setting("max_replication_slots", "0"));
    assert_eq!(world.call().run().code, Some(3));
    assert_snapshot!(told(&world, &status(&world, &[])), @r"
    exit 0
    --- stdout
    state        file:state
    source       database postgres, publication app, system [system], timeline 1
    slot         [slot]
    destination  sqlite:[dir]/copy.db
    checkpoint   none: the slot was not created yet
    tables       none yet

    healthy
    --- stderr
    ");
}
