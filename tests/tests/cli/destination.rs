//! The destination cannot be used, or is not ours (DS-16).
//!
//! It is started last (U-15): by then the record and the main slot exist. That the right destination
//! works afterwards with the same state, or with what the hint says, is part of each test.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use insta::assert_snapshot;
use rusqlite::Connection;
use walferry_tests::process::Walferry;

use crate::world::{Disk, LIMIT, World};

#[test]
fn the_folder_of_the_file_is_absent() {
    let world = World::new();
    let finished = world.call().destination("sqlite:some/where/copy.db").run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 4
    error run failed: the destination failed: sqlite file [dir]/some/where/copy.db: its folder does not exist; create it: mkdir -p '[dir]/some/where'
    error: starting the destination failed
    cause: the destination failed: sqlite file [dir]/some/where/copy.db: its folder does not exist; create it: mkdir -p '[dir]/some/where'
    hint: create it, or name another place with --destination
    ");
    assert!(!world.path("some").exists());
    // As the hint says; the state is still that of the first try.
    fs::create_dir_all(world.path("some/where")).unwrap();
    world.call().destination("sqlite:some/where/copy.db").works();
    world.assert_main_slots(1);
}

#[test]
fn a_mistyped_destination_can_be_put_right() {
    let world = World::new();
    let finished = world.call().destination("sqlite:some/where/copy.db").run();
    assert_eq!(finished.code, Some(4));
    // Nothing was offered to it, so the right one takes its place in the same state (S-04).
    world.works();
    world.assert_main_slots(1);
    // From the first copy on the state belongs to its destination.
    assert_snapshot!(world.shown(&world.call().destination("sqlite:other.db").run()), @r"
    exit 5
    error run failed: destination is sqlite:[dir]/other.db, but the state was made for sqlite:[dir]/copy.db
    error: connecting to the source failed
    cause: destination is sqlite:[dir]/other.db, but the state was made for sqlite:[dir]/copy.db
    hint: use the destination of the state, sqlite:[dir]/copy.db, or give this pipeline a state of its own with --id or --state
    ");
    world.works();
}

#[test]
fn the_folder_of_a_file_of_lines_is_absent() {
    let world = World::new();
    let finished = world.call().destination("jsonl:some/where/lines").run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 4
    error run failed: the destination failed: file [dir]/some/where/lines: its folder does not exist; create it: mkdir -p '[dir]/some/where'
    error: starting the destination failed
    cause: the destination failed: file [dir]/some/where/lines: its folder does not exist; create it: mkdir -p '[dir]/some/where'
    hint: create it, or name another place with --destination
    ");
}

#[test]
fn the_folder_of_the_file_may_not_be_written() {
    let world = World::new();
    let (uid, gid) = world.plain_user();
    let home = world.home_of(uid, gid);
    let sealed = home.join("sealed");
    fs::create_dir(&sealed).unwrap();
    if uid != fs::metadata(&sealed).unwrap().uid() {
        chown(&sealed, Some(uid), Some(gid)).unwrap();
    }
    fs::set_permissions(&sealed, PermissionsExt::from_mode(0o555)).unwrap();
    let run = |destination: &str| {
        let call = world.call().destination(destination).caught_up();
        Walferry::of_user(uid, gid, &home, &call.args()).dir(&home).run(LIMIT)
    };
    assert_snapshot!(world.shown(&run("sqlite:sealed/copy.db")), @r"
    exit 4
    error run failed: the destination failed: sqlite file [dir]/user/sealed/copy.db: cannot open it: it cannot be opened; check that its folder exists and that this user may write to it: unable to open database file: [dir]/user/sealed/copy.db: Error code 14: unable to open database file
    error: starting the destination failed
    cause: the destination failed: sqlite file [dir]/user/sealed/copy.db: cannot open it: it cannot be opened; check that its folder exists and that this user may write to it: unable to open database file: [dir]/user/sealed/copy.db: Error code 14: unable to open database file
    hint: let this user create and write sqlite:sealed/copy.db, or name another place
    ");
    assert_eq!(fs::read_dir(&sealed).unwrap().count(), 0);
    fs::set_permissions(&sealed, PermissionsExt::from_mode(0o755)).unwrap();
    let finished = run("sqlite:sealed/copy.db");
    assert_eq!(finished.code, Some(0), "{}", world.shown(&finished));
    world.assert_equal_tables("user/sealed/copy.db", &["orders", "items"]);
}

#[test]
fn the_file_may_not_be_written() {
    let world = World::new();
    let (uid, gid) = world.plain_user();
    let home = world.home_of(uid, gid);
    let run = || {
        let call = world.call().caught_up();
        Walferry::of_user(uid, gid, &home, &call.args()).dir(&home).run(LIMIT)
    };
    assert_eq!(run().code, Some(0));
    world.sql("INSERT INTO orders VALUES (100, 'between')");
    let file = home.join("copy.db");
    let before = fs::read(&file).unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o444)).unwrap();
    assert_snapshot!(world.shown(&run()), @r"
    exit 4
    error run failed: the destination failed: sqlite file [dir]/user/copy.db: it may not be written to; give this user the right to write to it
    error: starting the destination failed
    cause: the destination failed: sqlite file [dir]/user/copy.db: it may not be written to; give this user the right to write to it
    hint: put sqlite:copy.db right, then start again: it goes on from the checkpoint
    ");
    assert_eq!(fs::read(&file).unwrap(), before);
    fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(run().code, Some(0));
    world.assert_equal_tables("user/copy.db", &["orders", "items"]);
}

#[test]
fn the_path_is_a_folder() {
    let world = World::new();
    fs::create_dir(world.path("copy.db")).unwrap();
    let finished = world.call().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 4
    error run failed: the destination failed: sqlite file [dir]/copy.db: it is a folder; name a file in it
    error: starting the destination failed
    cause: the destination failed: sqlite file [dir]/copy.db: it is a folder; name a file in it
    hint: move copy.db away, or name another place with --destination
    ");
    fs::remove_dir(world.path("copy.db")).unwrap();
    world.works();
}

#[test]
fn the_file_is_of_another_pipeline() {
    let world = World::new();
    world.works();
    world.sql("INSERT INTO orders VALUES (100, 'later')");
    let before = fs::read(world.path("copy.db")).unwrap();
    let finished = world.call().state("file:second").run();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 4
    error run failed: the destination failed: sqlite file [dir]/copy.db: it belongs to the pipeline "[slot]", this is "[slot]"; use another file, or --take-over if "[slot]" will never run again
    error: starting the destination failed
    cause: the destination failed: sqlite file [dir]/copy.db: it belongs to the pipeline "[slot]", this is "[slot]"; use another file, or --take-over if "[slot]" will never run again
    hint: sqlite:copy.db belongs to another pipeline: name another place with --destination
    hint: if the other one will never run again: --take-over
    "#);
    assert!(fs::read(world.path("copy.db")).unwrap() == before, "the file was changed");
    world.works();
    // As the hint says: another file, with the state that has not written anywhere yet.
    world.call().state("file:second").destination("sqlite:second.db").works();
    world.works();
}

#[test]
fn a_file_of_lines_of_another_pipeline() {
    let world = World::new();
    let call = || world.call().destination("jsonl:lines");
    assert_eq!(call().caught_up().run().code, Some(0));
    let before = fs::read(world.path("lines")).unwrap();
    let finished = call().state("file:second").run();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 4
    error run failed: the destination failed: file [dir]/lines: it belongs to the pipeline "[slot]", this is "[slot]"; use another file, or --take-over if "[slot]" will never run again
    error: starting the destination failed
    cause: the destination failed: file [dir]/lines: it belongs to the pipeline "[slot]", this is "[slot]"; use another file, or --take-over if "[slot]" will never run again
    hint: jsonl:lines belongs to another pipeline: name another place with --destination
    hint: if the other one will never run again: --take-over
    "#);
    assert!(fs::read(world.path("lines")).unwrap() == before, "the file was changed");
    assert_eq!(call().caught_up().run().code, Some(0));
}

#[test]
fn a_file_of_lines_that_walferry_did_not_write() {
    let world = World::new();
    fs::write(world.path("lines"), "of somebody\n").unwrap();
    let finished = world.call().destination("jsonl:lines").run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 4
    error run failed: the destination failed: file [dir]/lines: it is not empty and walferry did not write it; name another file or move it away
    error: starting the destination failed
    cause: the destination failed: file [dir]/lines: it is not empty and walferry did not write it; name another file or move it away
    hint: move lines away, or name another place with --destination
    ");
    assert_eq!(fs::read(world.path("lines")).unwrap(), b"of somebody\n");
    fs::rename(world.path("lines"), world.path("theirs")).unwrap();
    assert_eq!(world.call().destination("jsonl:lines").caught_up().run().code, Some(0));
}

#[test]
fn taken_over_as_the_hint_says() {
    let world = World::new();
    world.works();
    world.call().state("file:second").more(&["--take-over"]).works();
    // The former owner is told so, and changes nothing.
    let before = fs::read(world.path("copy.db")).unwrap();
    let finished = world.call().run();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 4
    error run failed: the destination failed: sqlite file [dir]/copy.db: it belongs to the pipeline "[slot]", this is "[slot]"; use another file, or --take-over if "[slot]" will never run again
    error: starting the destination failed
    cause: the destination failed: sqlite file [dir]/copy.db: it belongs to the pipeline "[slot]", this is "[slot]"; use another file, or --take-over if "[slot]" will never run again
    hint: sqlite:copy.db belongs to another pipeline: name another place with --destination
    hint: if the other one will never run again: --take-over
    "#);
    assert!(fs::read(world.path("copy.db")).unwrap() == before, "the file was changed");
    world.call().state("file:second").works();
}

#[test]
fn a_second_process_on_the_same_file_with_another_state() {
    let world = World::new();
    let running = world.call().streams();
    let finished = world.call().state("file:second").run();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 4
    error run failed: the destination failed: sqlite file [dir]/copy.db: it belongs to the pipeline "[slot]", this is "[slot]"; use another file, or --take-over if "[slot]" will never run again
    error: starting the destination failed
    cause: the destination failed: sqlite file [dir]/copy.db: it belongs to the pipeline "[slot]", this is "[slot]"; use another file, or --take-over if "[slot]" will never run again
    hint: sqlite:copy.db belongs to another pipeline: name another place with --destination
    hint: if the other one will never run again: --take-over
    "#);
    world.sql("INSERT INTO orders VALUES (100, 'meanwhile')");
    running.terminate();
    assert_eq!(running.wait(LIMIT).code, Some(0));
    world.works();
}

#[test]
fn the_file_is_no_sqlite_database() {
    let world = World::new();
    let text = "no database, but longer than the head of one. ".repeat(50);
    fs::write(world.path("copy.db"), &text).unwrap();
    let finished = world.call().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 4
    error run failed: the destination failed: sqlite file [dir]/copy.db: cannot switch it to WAL mode: it is not a SQLite database; name another path or move the file away: file is not a database: Error code 26: file is not a database
    error: starting the destination failed
    cause: the destination failed: sqlite file [dir]/copy.db: cannot switch it to WAL mode: it is not a SQLite database; name another path or move the file away: file is not a database: Error code 26: file is not a database
    hint: move copy.db away, or name another place with --destination
    ");
    assert_eq!(fs::read_to_string(world.path("copy.db")).unwrap(), text);
    fs::rename(world.path("copy.db"), world.path("theirs")).unwrap();
    world.works();
}

#[test]
fn a_target_table_that_holds_rows_of_somebody_else() {
    let world = World::new();
    let sqlite = Connection::open(world.path("copy.db")).unwrap();
    sqlite
        .execute_batch(
            "CREATE TABLE items (id INTEGER, note TEXT); INSERT INTO items VALUES (7, 'mine')",
        )
        .unwrap();
    let finished = world.call().caught_up().run();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 5
    error [public.items] table stopped: the destination failed: sqlite file [dir]/copy.db: target not empty: "items" holds rows that are not of this pipeline, and public.items is to be copied there; drop or rename it (DROP TABLE "items";), then walferry retry public.items
    warn [public.items] hint: sqlite:copy.db holds rows that are not from this pipeline: empty the table, or name another place
    error: the end was reached without 1 of the tables
    cause: public.items
    hint: see why: walferry status --state file:state
    hint: once the cause is gone: walferry retry --state file:state, and run again
    "#);
    assert_eq!(world.rows("copy.db", "items"), ["7|mine"]);
    world.assert_equal_tables("copy.db", &["orders"]);
    // Again, and nothing of it is lost.
    assert_eq!(world.call().caught_up().run().code, Some(5));
    assert_eq!(world.rows("copy.db", "items"), ["7|mine"]);
    // As the message says.
    sqlite.execute_batch("DROP TABLE \"items\";").unwrap();
    let retry = ["retry", "public.items", "--state", "file:state"];
    assert_eq!(world.walferry(&retry).run(LIMIT).code, Some(0));
    world.works();
}

#[test]
fn what_cannot_be_retried_is_refused_with_the_reason() {
    let world = World::new();
    let ask = |args: &[&str]| world.shown(&world.walferry(args).run(LIMIT));
    assert_snapshot!(ask(&["retry", "--state", "file:state"]), @r"
    exit 5
    error: the request was refused
    cause: there is no state
    hint: is file:state the right one? walferry run makes it
    ");
    world.works();
    let retry = |table| ask(&["retry", table, "--state", "file:state"]);
    assert_snapshot!(retry("items"), @r"
    exit 5
    error: the request was refused
    cause: table public.items is ready, not errored
    hint: see the tables: walferry status --state file:state
    ");
    assert_snapshot!(retry("nothing"), @r"
    exit 5
    error: the request was refused
    cause: the state knows no table nothing
    hint: see the tables: walferry status --state file:state
    ");
    assert_snapshot!(ask(&["retry", "--state", "file:state"]), @r"
    exit 0
    --- stdout
    no table has stopped: there is nothing to retry
    --- stderr
    ");
    assert_snapshot!(ask(&["resync", "items", "--state", "file:state"]), @r"
    exit 0
    --- stdout
    public.items: the next run copies it
    --- stderr
    ");
    world.works();
    let running = world.call().streams();
    assert_snapshot!(ask(&["resync", "items", "--state", "file:state"]), @r"
    exit 7
    error: changing the state failed
    cause: state is in use by process [pid]
    hint: stop process [pid], or give this pipeline a state of its own with --id or --state
    ");
    drop(running);
}

#[test]
fn a_target_table_without_rows_is_taken() {
    let world = World::new();
    let sqlite = Connection::open(world.path("copy.db")).unwrap();
    sqlite.execute_batch("CREATE TABLE items (id INTEGER, other TEXT)").unwrap();
    drop(sqlite);
    world.works();
}

#[test]
fn a_view_has_the_name_of_a_target() {
    let world = World::new();
    let sqlite = Connection::open(world.path("copy.db")).unwrap();
    sqlite.execute_batch("CREATE VIEW items AS SELECT 1 AS id").unwrap();
    let finished = world.call().caught_up().run();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 5
    error [public.items] table stopped: the destination failed: sqlite file [dir]/copy.db: cannot hold public.items: "items" is a view that walferry did not make; rename or drop it
    warn [public.items] hint: once sqlite:copy.db is right, stop the run and have the table copied again: walferry retry --state file:state
    error: the end was reached without 1 of the tables
    cause: public.items
    hint: see why: walferry status --state file:state
    hint: once the cause is gone: walferry retry --state file:state, and run again
    "#);
    world.assert_equal_tables("copy.db", &["orders"]);
}

const BIG: &str = "
    CREATE TABLE big (id int PRIMARY KEY, note text);
    INSERT INTO big SELECT n, repeat(md5(n::text), 30) FROM generate_series(1, 5000) n;
    GRANT SELECT ON big TO ferry; ALTER PUBLICATION app ADD TABLE big;";

#[test]
fn the_disk_of_the_file_is_full_during_a_copy() {
    let world = World::new();
    world.sql(BIG);
    let disk = Disk::mount(&world.path("disk"), "1m");
    // One after another, so that it is the last one that finds no place.
    let one = ["--set", "copy_concurrency=1"];
    let call = || world.call().destination("sqlite:disk/copy.db").more(&one);
    let finished = call().caught_up().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 4
    error run failed: the destination failed: sqlite file [dir]/disk/copy.db: cannot commit: the disk is full; free space on its disk, then start again: database or disk is full: Error code 13: database or disk is full
    error: copying a table failed
    cause: the destination failed: sqlite file [dir]/disk/copy.db: cannot commit: the disk is full; free space on its disk, then start again: database or disk is full: Error code 13: database or disk is full
    hint: free space on the file system of sqlite:disk/copy.db and start again
    ");
    world.assert_main_slots(1);
    disk.grow("64m");
    // The disk is to blame and no table, so none waits for a person (K-23, DS-10).
    call().works();
    world.assert_equal_tables("disk/copy.db", &["big"]);
}

#[test]
fn the_disk_of_the_file_is_full_while_streaming() {
    let world = World::new();
    world.sql(
        "CREATE TABLE big (id int PRIMARY KEY, note text); ALTER PUBLICATION app ADD TABLE big;",
    );
    let disk = Disk::mount(&world.path("disk"), "1m");
    let call = || world.call().destination("sqlite:disk/copy.db");
    let running = call().streams();
    world.sql("INSERT INTO big SELECT n, repeat(md5(n::text), 30) FROM generate_series(1, 5000) n");
    let finished = running.wait(LIMIT);
    assert_snapshot!(world.shown(&finished), @r"
    exit 4
    error run failed: the destination failed: sqlite file [dir]/disk/copy.db: cannot commit: the disk is full; free space on its disk, then start again: database or disk is full: Error code 13: database or disk is full
    error: writing changes to the destination failed
    cause: the destination failed: sqlite file [dir]/disk/copy.db: cannot commit: the disk is full; free space on its disk, then start again: database or disk is full: Error code 13: database or disk is full
    hint: free space on the file system of sqlite:disk/copy.db and start again
    ");
    disk.grow("64m");
    call().works();
    world.assert_equal_tables("disk/copy.db", &["big"]);
}

#[test]
fn the_disk_of_a_file_of_lines_is_full() {
    let world = World::new();
    world.sql(BIG);
    let disk = Disk::mount(&world.path("disk"), "1m");
    let call =
        || world.call().destination("jsonl:disk/lines").more(&["--set", "copy_concurrency=1"]);
    let finished = call().caught_up().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 4
    error run failed: the destination failed: file [dir]/disk/lines: cannot append to it; free space on its disk, then start again: No space left on device (os error 28)
    error: copying a table failed
    cause: the destination failed: file [dir]/disk/lines: cannot append to it; free space on its disk, then start again: No space left on device (os error 28)
    hint: free space on the file system of jsonl:disk/lines and start again
    ");
    disk.grow("64m");
    assert_eq!(call().caught_up().run().code, Some(0));
    let lines = fs::read_to_string(world.path("disk/lines")).unwrap();
    for line in lines.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}
