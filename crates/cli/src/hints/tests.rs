use core::time::Duration;

use walferry_core::ids::TableId;
use walferry_core::lsn::{Lsn, Position};

use super::*;

fn around() -> Surroundings {
    Surroundings {
        source: "ferry@db:5432/shop".to_owned(),
        destination: "sqlite:shop.db".to_owned(),
        state: "file:./walferry-app".to_owned(),
    }
}

#[track_caller]
fn check(origin: Origin, kind: FaultKind, message: &str, expected: &str) {
    let hints = of_fault(&Fault::new(origin, kind, message), &around());
    assert!(hints.iter().any(|hint| hint.contains(expected)), "{hints:?} lacks {expected:?}");
}

fn server(code: &[u8; 5]) -> FaultKind {
    FaultKind::Server { code: SqlState(*code) }
}

fn setting(setting: &'static str, found: &str) -> FaultKind {
    FaultKind::Configuration { setting, expected: String::new(), found: found.to_owned() }
}

#[test]
fn failures_of_the_connection_name_the_check() {
    let source = |kind, message, expected| check(Origin::Source, kind, message, expected);
    source(FaultKind::Transport, "cannot connect to db:5432", "pg_isready -h db -p 5432");
    source(FaultKind::Transport, "cannot resolve db", "host name right? --source names db:5432");
    source(FaultKind::Timeout { budget: Duration::from_secs(1) }, "", "pg_isready -h db -p 5432");
    source(FaultKind::Authentication, "password authentication failed", "PGPASSWORD");
    source(FaultKind::Authentication, "no password", "~/.pgpass");
    source(FaultKind::Authentication, "TLS with db failed: expired", "sslmode=require");
    source(FaultKind::Authentication, "certificate not valid for name \"db\"", "sslmode=verify-ca");
    source(
        FaultKind::Authentication,
        "password authentication failed",
        "ALTER ROLE ferry PASSWORD",
    );
    source(FaultKind::Authentication, "no pg_hba.conf entry for host", "pg_reload_conf");
    source(FaultKind::Authentication, "no pg_hba.conf entry, no encryption", "sslmode=require");
    source(setting("sslrootcert", "x.pem: absent"), "", "sslrootcert=FILE");
    let held = FaultKind::Timeout { budget: Duration::from_secs(90) };
    source(
        held,
        "replication slot walferry_1 is held by pid 42 (psql)",
        "SELECT pg_terminate_backend(42);",
    );
    source(
        FaultKind::Authentication,
        "role \"ferry\" does not exist",
        "CREATE ROLE ferry LOGIN REPLICATION",
    );
    source(setting("database", "one that does not exist"), "", "CREATE DATABASE shop;");
    source(setting("sslmode", "one that does not"), "", "sslmode=disable");
    let socket =
        Surroundings { source: "me@/var/run/postgresql/.s.PGSQL.5433/shop".to_owned(), ..around() };
    assert_eq!(socket.ping(), "pg_isready -h /var/run/postgresql -p 5433");
    let six = Surroundings { source: "me@[::1]:5432/shop".to_owned(), ..around() };
    assert_eq!(six.ping(), "pg_isready -h ::1 -p 5432");
}

#[test]
fn refusals_of_the_server_name_the_statement() {
    let source = |kind, message, expected| check(Origin::Source, kind, message, expected);
    source(setting("slot_failover", "on"), "", "upgrade the server");
    source(setting("wal_level", "replica"), "", "ALTER SYSTEM SET wal_level = logical;");
    source(
        server(b"55000"),
        "logical decoding requires wal_level >= logical",
        "ALTER SYSTEM SET wal_level = logical;",
    );
    source(
        server(b"42501"),
        "permission denied to start WAL sender",
        "ALTER ROLE ferry REPLICATION;",
    );
    source(
        server(b"42501"),
        "locking table public.t failed: permission denied for table t",
        "GRANT SELECT ON public.t TO ferry;",
    );
    source(
        server(b"42501"),
        "locking table public.\"Odd \"\"Name\" failed: permission denied for table Odd",
        "GRANT SELECT ON public.\"Odd \"\"Name\" TO ferry;",
    );
    source(
        server(b"42501"),
        "locking table My.t failed: permission denied for schema My (SQLSTATE 42501)",
        "GRANT USAGE ON SCHEMA \"My\" TO ferry;",
    );
    source(
        server(b"42501"),
        "permission denied for database \"shop\"",
        "GRANT CONNECT ON DATABASE shop TO ferry;",
    );
    source(server(b"42501"), "permission denied", "GRANT SELECT ON ALL TABLES IN SCHEMA");
    source(server(b"53400"), "all replication slots are in use", "max_replication_slots");
    source(server(b"53400"), "all replication slots are in use", "WHERE NOT active;");
    source(
        server(b"53300"),
        "number of requested standby connections exceeds max_wal_senders",
        "max_wal_senders",
    );
    source(server(b"53300"), "sorry, too many clients already", "max_connections");
    source(server(b"55006"), "", "active_pid");
    source(server(b"57P03"), "", "starting, or a standby");
    let missing = FaultKind::PublicationMissing { name: "My app".to_owned() };
    source(missing, "", "in database shop: CREATE PUBLICATION \"My app\" FOR ALL TABLES;");
    let empty = FaultKind::PublicationEmpty { name: "app".to_owned() };
    source(empty, "", "ALTER PUBLICATION app ADD TABLE ..;");
}

#[test]
fn findings_about_slot_and_identity_say_what_is_lost() {
    let source = |kind, expected| check(Origin::Source, kind, "", expected);
    let slot = || "walferry_1".to_owned();
    let (found, checkpoint) = (Lsn(2), Position(Lsn(1)));
    source(
        FaultKind::SlotMissing { slot: slot() },
        "a slot of the same name: walferry recreate --state file:./walferry-app and",
    );
    source(
        FaultKind::SlotInvalidated { slot: slot(), reason: "wal_removed".to_owned() },
        "max_slot_wal_keep_size",
    );
    source(FaultKind::SlotAhead { slot: slot(), found, checkpoint }, "has read from slot");
    source(
        FaultKind::SlotForeign {
            slot: slot(),
            field: "plugin",
            expected: String::new(),
            found: String::new(),
        },
        "WHERE slot_name = 'walferry_1';",
    );
    source(FaultKind::CheckpointAhead { found, checkpoint }, "restored");
    source(FaultKind::RecreationPending, "copy every table anew");
    source(
        FaultKind::HorizonBeyondFork { horizon: Some(checkpoint), fork: checkpoint },
        "promoted server never had",
    );
    let mismatch = |field| FaultKind::IdentityMismatch {
        field,
        expected: "theirs".to_owned(),
        found: "ours".to_owned(),
    };
    source(mismatch("destination"), "the destination of the state, theirs, or give");
    source(mismatch("publication"), "--publication theirs");
    source(mismatch("database"), "database theirs");
    source(mismatch("slot_prefix"), "--set slot_prefix=theirs");
    source(mismatch("system identifier"), "server of the state");
    source(mismatch("timeline"), "promoted or restored");
}

#[test]
fn failures_of_the_state_name_the_way_out() {
    let store = |kind, message, expected| check(Origin::Store, kind, message, expected);
    let locked = FaultKind::StoreLocked { holder: "process 7".to_owned() };
    store(locked, "", "stop process 7, or give this pipeline a state of its own with --id");
    store(FaultKind::StoreFenced, "", "only one of them run");
    store(FaultKind::RecordCorrupt, "", "restore ./walferry-app from a backup");
    store(FaultKind::RecordInvalid { field: String::new() }, "", "from a backup");
    store(FaultKind::RecordTooNew { found: 2, known: 1 }, "", "newer one");
    store(FaultKind::StoreFailed, "No space left on device", "free space");
    store(FaultKind::StoreFailed, "Permission denied", "--state");
    store(FaultKind::StoreFailed, "", "can be written");
}

#[test]
fn failures_of_the_destination_name_the_way_out() {
    let manual = || FaultKind::Destination { class: DestinationClass::Manual };
    let sink = |kind, message, expected| check(Origin::Destination, kind, message, expected);
    sink(manual(), "target not empty: public.t", "empty the table");
    sink(manual(), "cannot write to standard output; its reader has gone", "jsonl:PATH");
    sink(manual(), "it is not empty and walferry did not write it", "move shop.db away");
    sink(manual(), "it is not a SQLite database", "move shop.db away");
    sink(manual(), "it belongs to the pipeline \"x\"", "--take-over");
    sink(manual(), "cannot write: Permission denied", "let this user create and write");
    sink(manual(), "unable to open database file", "let this user create and write");
    sink(manual(), "database or disk is full", "free space");
    sink(manual(), "its folder does not exist", "create it");
    sink(manual(), "no such column", "put sqlite:shop.db right");
    // What stops one table needs a person's word after the cause is gone (Y-09).
    let of_a_table = |class| {
        let tables = vec![TableId(7)];
        let mut fault = Fault::new(Origin::Destination, FaultKind::Destination { class }, "no");
        fault.blame = Blame::Tables { tables, no_effect_on_others: true };
        of_fault(&fault, &around()).join("; ")
    };
    assert!(of_a_table(DestinationClass::Manual).contains("walferry retry --state"));
    assert!(of_a_table(DestinationClass::Permanent).contains("walferry resync --state"));
    let transient = DestinationClass::Transient { retry_after: None };
    sink(FaultKind::FlushFailed { class: transient }, "", "see whether sqlite:shop.db works");
    let fenced = DestinationClass::Fenced;
    sink(FaultKind::Destination { class: fenced }, "", "only one of them run");
}

#[test]
fn the_rest_has_advice_too() {
    check(Origin::Core, FaultKind::StopTimeout, "", "nothing is lost");
    check(Origin::Core, FaultKind::Violation, "", "this is a bug");
    check(Origin::Source, FaultKind::Protocol, "", "connect directly");
    check(Origin::Source, FaultKind::Limit { name: "frame_bytes" }, "", "--set frame_bytes=");
    check(Origin::Core, FaultKind::EntropyUnavailable, "", "random");
}
