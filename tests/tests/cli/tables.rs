//! Tables that are awkward to follow: without a key, or with an identity that does not suffice.

use insta::assert_snapshot;

use crate::world::{LIMIT, World};

/// Reads everything there is, with a table `notes` that has no primary key.
fn with_notes(identity: &str) -> World {
    let world = World::new();
    world.sql(&format!(
        "CREATE TABLE notes (who text, what text);
         INSERT INTO notes VALUES ('a', 'x'), ('a', 'x'), ('b', NULL), (NULL, NULL);
         {identity};
         ALTER PUBLICATION app ADD TABLE notes"
    ));
    world
}

#[test]
fn a_table_without_a_key_is_followed_as_a_multiset() {
    let world = with_notes("ALTER TABLE notes REPLICA IDENTITY FULL");
    let finished = world.call().caught_up().run();
    assert_snapshot!(world.shown(&finished), @"exit 0");
    world.assert_equal_tables("copy.db", &["notes"]);
    // One of two equal rows each; NULL equals NULL.
    world.sql(
        "UPDATE notes SET what = 'y' WHERE ctid = (SELECT ctid FROM notes WHERE who = 'a' LIMIT 1);
         UPDATE notes SET what = 'z' WHERE who IS NULL;
         DELETE FROM notes WHERE who = 'b'; INSERT INTO notes VALUES ('a', 'y'), ('a', 'y');
         DELETE FROM notes WHERE ctid = (SELECT ctid FROM notes WHERE what = 'y' LIMIT 1)",
    );
    world.works();
    world.assert_equal_tables("copy.db", &["notes"]);
}

#[test]
fn without_a_key_and_an_identity_the_source_takes_inserts_only() {
    let world = with_notes("");
    let finished = world.call().caught_up().run();
    assert_snapshot!(world.shown(&finished), @"exit 0");
    world.sql("INSERT INTO notes VALUES ('a', 'x'), ('c', 'new')");
    for refused in ["UPDATE notes SET what = 'y'", "DELETE FROM notes"] {
        let error = world.cluster.try_psql("postgres", refused).unwrap_err();
        assert!(error.contains("does not have a replica identity"), "{error}");
    }
    world.works();
    world.assert_equal_tables("copy.db", &["notes"]);
    // Once the identity is given, updates pass and are matched by the whole row.
    world.sql(
        "ALTER TABLE notes REPLICA IDENTITY FULL; UPDATE notes SET what = 'y' WHERE who = 'c'",
    );
    let finished = world.call().caught_up().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 5
    error [public.notes] table stopped: the stream announces (who type 25 key, what type 25 key) but the table was copied as (who type 25, what type 25): the destination cannot follow schema changes, resync the table
    warn [public.notes] hint: stop the run and have the table copied again: walferry resync --state file:state public.notes
    error: the end was reached without 1 of the tables
    cause: public.notes
    hint: see why: walferry status --state file:state
    hint: once the cause is gone: walferry retry --state file:state, and run again
    ");
}

#[test]
fn an_identity_by_an_index_is_followed_by_it() {
    let world = with_notes(
        "ALTER TABLE notes ADD n serial; CREATE UNIQUE INDEX by_n ON notes (n);
         ALTER TABLE notes REPLICA IDENTITY USING INDEX by_n",
    );
    world.works();
    world.sql("UPDATE notes SET who = 'd' WHERE n = 2; DELETE FROM notes WHERE n = 3");
    world.works();
    world.assert_equal_tables("copy.db", &["notes"]);
}

#[test]
fn a_column_that_is_added_stops_its_table_with_both_shapes() {
    let world = World::new();
    world.works();
    world.sql(
        "ALTER TABLE items ADD extra int; INSERT INTO items VALUES (100, 'new', 1);
         INSERT INTO orders VALUES (100, 'new')",
    );
    let finished = world.call().caught_up().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 5
    error [public.items] table stopped: the stream announces (id type 23 key, note type 25, extra type 23) but the table was copied as (id type 23 key, note type 25): the destination cannot follow schema changes, resync the table
    warn [public.items] hint: stop the run and have the table copied again: walferry resync --state file:state public.items
    error: the end was reached without 1 of the tables
    cause: public.items
    hint: see why: walferry status --state file:state
    hint: once the cause is gone: walferry retry --state file:state, and run again
    ");
    world.assert_equal_tables("copy.db", &["orders"]);
}

#[test]
fn a_publication_that_leaves_out_actions_is_reported() {
    let world = World::new();
    world.sql("ALTER PUBLICATION app SET (publish = 'insert, update')");
    let finished = world.call().caught_up().run();
    assert_snapshot!(world.shown(&finished), @r"
    exit 0
    warn the publication leaves out delete, truncate: the destination will differ
    ");
}

#[test]
fn a_table_of_a_name_that_needs_quotes() {
    let world = World::new();
    world.sql(
        "CREATE TABLE \"Odd \"\"Name\" (id int PRIMARY KEY); ALTER PUBLICATION app ADD TABLE \"Odd \"\"Name\"",
    );
    let finished = world.call_as_ferry().caught_up().run();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 5
    error [public.Odd "Name] table stopped: the server answered with error 42501: locking table public."Odd ""Name" failed: permission denied for table Odd "Name (SQLSTATE 42501)
    warn [public.Odd "Name] hint: GRANT SELECT ON public."Odd ""Name" TO ferry;
    error: the end was reached without 1 of the tables
    cause: public.Odd "Name
    hint: see why: walferry status --state file:state
    hint: once the cause is gone: walferry retry --state file:state, and run again
    "#);
    let status = world.walferry(&["status", "--state", "file:state"]).run(LIMIT);
    assert_eq!(status.code, Some(5));
    world.sql(&crate::world::hinted(&finished, "GRANT SELECT"));
}
