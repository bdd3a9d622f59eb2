//! The state cannot be used, or is that of another pipeline (R-04, R-05, V-05, S-04).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use insta::assert_snapshot;
use walferry_tests::process::{Finished, Walferry};
use walferry_tests::skip;

use crate::world::{Disk, LIMIT, World};

/// A pipeline that has run once, with a change since.
fn pipeline() -> World {
    let world = World::new();
    world.works();
    world.sql("INSERT INTO orders VALUES (100, 'between')");
    world
}

/// Runs a mistake that must change nothing, then the right call.
#[track_caller]
fn refused(world: &World, finished: impl FnOnce() -> Finished) -> String {
    let before = world.durable();
    let finished = finished();
    assert_eq!(world.durable(), before);
    world.works();
    world.shown(&finished)
}

/// Spoils the record, looks at what `run` and `status` say, restores it from its copy.
#[track_caller]
fn spoilt(spoil: impl FnOnce(&mut Vec<u8>)) -> String {
    let world = pipeline();
    let record = world.path("state/record");
    let right = fs::read(&record).unwrap();
    let mut bytes = right.clone();
    spoil(&mut bytes);
    fs::write(&record, &bytes).unwrap();
    let before = world.durable();
    let finished = world.call().run();
    let status = world.walferry(&["status", "--state", "file:state"]).run(LIMIT);
    assert_eq!(world.durable(), before);
    // As the hint says.
    fs::write(&record, &right).unwrap();
    world.works();
    let shown = format!("{}\n{}", world.shown(&finished), world.shown(&status));
    // Lengths depend on the paths inside.
    let head = right.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    let body = |bytes: &[u8]| bytes.len().saturating_sub(head).to_string();
    shown.replace(&body(&right), "[length]").replace(&format!(" {} ", body(&bytes)), " [less] ")
}

#[test]
fn the_record_was_cut_off() {
    assert_snapshot!(spoilt(|bytes| bytes.truncate(bytes.len() / 2)), @r"
    exit 7
    error: opening the state failed
    cause: state/record is damaged: body is [less] bytes, expected [length] bytes
    hint: restore state from a backup
    hint: to start over, move state and copy.db (with copy.db-wal, if there is one) away and run again: all tables are copied anew
    hint: then the slot of the lost state is left over: SELECT slot_name FROM pg_replication_slots WHERE NOT active;

    exit 7
    error: reading the state failed
    cause: state/record is damaged: body is [less] bytes, expected [length] bytes
    hint: restore state/record from a backup; without one, move the directory away and copy all tables again
    ");
}

#[test]
fn the_record_is_empty() {
    assert_snapshot!(spoilt(Vec::clear), @r"
    exit 7
    error: opening the state failed
    cause: state/record is damaged: first word is nothing (the file is empty), expected walferry-record
    hint: restore state from a backup
    hint: to start over, move state and copy.db (with copy.db-wal, if there is one) away and run again: all tables are copied anew
    hint: then the slot of the lost state is left over: SELECT slot_name FROM pg_replication_slots WHERE NOT active;

    exit 7
    error: reading the state failed
    cause: state/record is damaged: first word is nothing (the file is empty), expected walferry-record
    hint: restore state/record from a backup; without one, move the directory away and copy all tables again
    ");
}

#[test]
fn one_bit_of_the_record_has_flipped() {
    let shown = spoilt(|bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    });
    assert_snapshot!(shown, @r#"
    exit 7
    error: opening the state failed
    cause: state/record is damaged: header is "walferry-record 1 [length] [sum]", expected walferry-record 1 [length] [sum]
    hint: restore state from a backup
    hint: to start over, move state and copy.db (with copy.db-wal, if there is one) away and run again: all tables are copied anew
    hint: then the slot of the lost state is left over: SELECT slot_name FROM pg_replication_slots WHERE NOT active;

    exit 7
    error: reading the state failed
    cause: state/record is damaged: header is "walferry-record 1 [length] [sum]", expected walferry-record 1 [length] [sum]
    hint: restore state/record from a backup; without one, move the directory away and copy all tables again
    "#);
}

#[test]
fn the_record_is_of_a_newer_format() {
    let shown = spoilt(|bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        *bytes = text.replacen("walferry-record 1 ", "walferry-record 2 ", 1).into_bytes();
    });
    assert_snapshot!(shown, @r"
    exit 7
    error: opening the state failed
    cause: state/record has format 2, this walferry knows up to 1
    hint: use the walferry that wrote it, or a newer one

    exit 7
    error: reading the state failed
    cause: state/record has format 2, this walferry knows up to 1
    hint: use the walferry that wrote it, or a newer one
    ");
}

#[test]
fn the_state_is_of_another_publication() {
    let world = pipeline();
    world.sql("CREATE PUBLICATION shop FOR TABLE orders");
    assert_snapshot!(refused(&world, || world.call().publication("shop").run()), @r"
    exit 5
    error run failed: publication is shop, but the state was made for app
    error: connecting to the source failed
    cause: publication is shop, but the state was made for app
    hint: use --publication app, or give this pipeline a state of its own with --id or --state
    ");
}

#[test]
fn the_state_is_of_another_destination() {
    let world = pipeline();
    assert_snapshot!(refused(&world, || world.call().destination("sqlite:other.db").run()), @r"
    exit 5
    error run failed: destination is sqlite:[dir]/other.db, but the state was made for sqlite:[dir]/copy.db
    error: connecting to the source failed
    cause: destination is sqlite:[dir]/other.db, but the state was made for sqlite:[dir]/copy.db
    hint: use the destination of the state, sqlite:[dir]/copy.db, or give this pipeline a state of its own with --id or --state
    ");
}

#[test]
fn the_state_is_of_another_database() {
    let world = pipeline();
    world.sql("CREATE DATABASE other");
    world.cluster.psql("other", "CREATE TABLE t (id int); CREATE PUBLICATION app FOR TABLE t");
    let url = world.cluster.url("other");
    assert_snapshot!(refused(&world, || world.call().source(url).run()), @r"
    exit 5
    error run failed: database is other, but the state was made for postgres
    error: connecting to the source failed
    cause: database is other, but the state was made for postgres
    hint: connect to database postgres, or give this pipeline a state of its own with --id or --state
    ");
}

#[test]
fn the_state_is_of_another_server() {
    let world = pipeline();
    let other = World::on(skip::config(15).initdb("--wal-segsize=1"));
    let url = other.cluster.url("postgres");
    let shown = refused(&world, || world.call().source(url).run());
    assert_snapshot!(shown, @r"
    exit 5
    error run failed: system identifier is [system], but the state was made for [system]
    error: connecting to the source failed
    cause: system identifier is [system], but the state was made for [system]
    hint: connect to the server of the state, or give this pipeline a state of its own with --id or --state
    hint: to start over, move state and copy.db (with copy.db-wal, if there is one) away and run again: all tables are copied anew
    ");
    assert_eq!(other.sql("SELECT count(*) FROM pg_replication_slots"), "0");
}

#[test]
fn the_state_is_of_another_slot_prefix() {
    let world = pipeline();
    let shown = refused(&world, || world.call().more(&["--set", "slot_prefix=shop"]).run());
    assert_snapshot!(shown, @r"
    exit 5
    error run failed: slot_prefix is shop, but the state was made for walferry
    error: connecting to the source failed
    cause: slot_prefix is shop, but the state was made for walferry
    hint: use --set slot_prefix=walferry, or give this pipeline a state of its own with --id or --state
    ");
}

#[test]
fn the_state_may_not_be_read() {
    let world = World::new();
    let (uid, gid) = world.plain_user();
    let home = world.home_of(uid, gid);
    let run = |until: &[&str]| {
        let call = world.call().more(until);
        Walferry::of_user(uid, gid, &home, &call.args()).dir(&home).run(LIMIT)
    };
    assert_eq!(run(&["--until", "caught-up"]).code, Some(0));
    let record = home.join("state/record");
    let before = fs::read(&record).unwrap();
    forbid(&record);
    let finished = run(&[]);
    let status = Walferry::of_user(uid, gid, &home, &["status", "--state", "file:state"]);
    let status = status.dir(&home).run(LIMIT);
    assert_snapshot!(world.shown(&finished), @r"
    exit 7
    error: opening the state failed
    cause: cannot read state/record: Permission denied (os error 13)
    hint: let this user write state, or name another place with --state
    ");
    assert_snapshot!(world.shown(&status), @r"
    exit 7
    error: reading the state failed
    cause: cannot read state/record: Permission denied (os error 13)
    hint: let this user read and write state/record, or name another place with --state
    ");
    fs::set_permissions(&record, PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(fs::read(&record).unwrap(), before);

    forbid(&home.join("state"));
    assert_snapshot!(world.shown(&run(&[])), @r"
    exit 7
    error: opening the state failed
    cause: cannot open state/lock: Permission denied (os error 13)
    hint: let this user write state, or name another place with --state
    ");
    fs::set_permissions(home.join("state"), PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(run(&["--until", "caught-up"]).code, Some(0));
    world.assert_equal_tables("user/copy.db", &["orders", "items"]);
}

#[test]
fn the_state_may_not_be_created() {
    let world = World::new();
    let (uid, gid) = world.plain_user();
    let home = world.home_of(uid, gid);
    let walferry = Walferry::of_user(uid, gid, &home, &world.call().args()).dir(&home);
    fs::set_permissions(&home, PermissionsExt::from_mode(0o500)).unwrap();
    let finished = walferry.run(LIMIT);
    assert_snapshot!(world.shown(&finished), @r"
    exit 7
    error: opening the state failed
    cause: cannot create state: Permission denied (os error 13)
    hint: let this user write state, or name another place with --state
    ");
    world.assert_untouched();
}

fn forbid(path: &Path) {
    fs::set_permissions(path, PermissionsExt::from_mode(0o000)).unwrap();
}

#[test]
fn the_directory_that_shall_hold_the_state_is_absent() {
    let world = World::new();
    let finished = world.call().state("file:some/where").fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 7
    error: opening the state failed
    cause: some/where cannot be created: some does not exist
    hint: create the directory that shall hold some/where, or name another with --state
    ");
    fs::create_dir(world.path("some")).unwrap();
    world.call().state("file:some/where").works();
}

#[test]
fn the_state_is_a_file() {
    let world = World::new();
    fs::write(world.path("state"), "of somebody").unwrap();
    let before = world.durable();
    let finished = world.call().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 7
    error: opening the state failed
    cause: state is a file, expected a directory
    hint: move it away, or name another place with --state
    ");
    assert_eq!(world.durable(), before);
    world.call().state("file:other").works();
}

#[test]
fn the_disk_of_the_state_is_full_from_the_start() {
    let world = World::new();
    let disk = Disk::mount(&world.path("disk"), "64k");
    disk.fill();
    let finished = world.call().state("file:disk/state").run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 7
    error: opening the state failed
    cause: cannot write disk/state/lock: No space left on device (os error 28)
    hint: free space on the file system of disk/state and start again
    ");
    assert!(!world.path("copy.db").exists());
    assert_eq!(world.durable().slots, "");
    disk.free();
    world.call().state("file:disk/state").works();
}

#[test]
fn the_disk_of_the_state_is_full_at_a_resume() {
    let world = World::new();
    let disk = Disk::mount(&world.path("disk"), "64k");
    world.call().state("file:disk/state").works();
    world.sql("INSERT INTO orders VALUES (100, 'between')");
    let before = fs::read(world.path("disk/state/record")).unwrap();
    disk.fill();
    let finished = world.call().state("file:disk/state").caught_up().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 7
    error: opening the state failed
    cause: cannot write disk/state/owner.tmp: No space left on device (os error 28)
    hint: free space on the file system of disk/state and start again
    ");
    assert_eq!(fs::read(world.path("disk/state/record")).unwrap(), before);
    disk.free();
    world.call().state("file:disk/state").works();
}

#[test]
fn the_disk_of_the_state_fills_up_while_streaming() {
    let world = World::new();
    let disk = Disk::mount(&world.path("disk"), "64k");
    let running = world.call().state("file:disk/state").streams();
    disk.fill();
    world.sql("INSERT INTO orders VALUES (100, 'too much')");
    let finished = running.wait(LIMIT);
    assert_snapshot!(world.shown(&finished), @r"
    exit 7
    error run failed: cannot write disk/state/record.tmp: No space left on device (os error 28)
    error: saving the state failed
    cause: cannot write disk/state/record.tmp: No space left on device (os error 28)
    hint: free space on the file system of disk/state and start again
    ");
    disk.free();
    world.call().state("file:disk/state").works();
}

#[test]
fn a_second_process_on_the_same_state() {
    let world = World::new();
    let running = world.call().streams();
    let second = world.call().run();
    assert!(second.stderr.contains(&format!("process {}", running.pid())), "{}", second.stderr);
    assert_snapshot!(world.shown(&second), @r"
    exit 7
    error: opening the state failed
    cause: state is in use by process [pid]
    hint: stop process [pid], or give this pipeline a state of its own with --id or --state
    ");
    // The first one did not notice.
    world.sql("INSERT INTO orders VALUES (100, 'meanwhile')");
    running.terminate();
    assert_eq!(running.wait(LIMIT).code, Some(0));
    world.works();
    world.assert_main_slots(1);
}
