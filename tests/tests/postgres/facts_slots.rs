//! Creating slots, losing them, and who the server is.

use std::os::unix::fs::{MetadataExt as _, chown};

use walferry_tests::cluster::{Cluster, Stop};
use walferry_tests::wait::wait_until;
use walferry_tests::{on_servers, skip};

use crate::raw::{Client, LIMIT, Rows};

const CREATE: &str = "CREATE_REPLICATION_SLOT s LOGICAL pgoutput NOEXPORT_SNAPSHOT";

/// Sessions that the session `pid` waits for.
fn blockers(sql: &mut Client, pid: i32) -> String {
    sql.value(&format!("SELECT pg_blocking_pids({pid})"))
}

fn slot(sql: &mut Client) -> Rows {
    sql.query("SELECT active, confirmed_flush_lsn, active_pid FROM pg_replication_slots")
}

/// A session that holds a transaction with an id open.
fn writer(cluster: &Cluster) -> Client {
    let mut client = Client::sql(cluster, "postgres");
    client.query("BEGIN; CREATE TEMP TABLE its_own()");
    client
}

/// A session that creates slot `s` and waits for `blocker`.
fn waiting(cluster: &Cluster, sql: &mut Client, blocker: &Client) -> Client {
    let mut creator = Client::walsender(cluster, "postgres");
    creator.send(CREATE);
    let expected = format!("{{{}}}", blocker.pid());
    wait_until(LIMIT, "the creation to wait", || blockers(sql, creator.pid()) == expected);
    let pid = creator.pid().to_string();
    assert_eq!(slot(sql), [[Some("t".to_owned()), None, Some(pid)]]);
    creator
}

// PG-30
fn slot_creation_waits_for_running_transactions(major: u32) {
    let cluster = skip::require(major);
    let mut sql = Client::sql(&cluster, "postgres");
    // A transaction that only reads is none to wait for.
    let mut reader = Client::sql(&cluster, "postgres");
    reader.query("BEGIN; SELECT count(*) FROM pg_class");
    let mut blocker = writer(&cluster);
    let mut second = writer(&cluster);
    let mut creator = Client::walsender(&cluster, "postgres");
    creator.send(CREATE);
    let waits_for = |sql: &mut Client, pid: i32, who: &Client| {
        let expected = format!("{{{}}}", who.pid());
        wait_until(LIMIT, "the creation to wait", || blockers(sql, pid) == expected);
    };
    wait_until(LIMIT, "the creation to wait", || blockers(&mut sql, creator.pid()) != "{}");
    // One at a time is named; ending it is not enough.
    if blockers(&mut sql, creator.pid()) == format!("{{{}}}", second.pid()) {
        std::mem::swap(&mut blocker, &mut second);
    }
    waits_for(&mut sql, creator.pid(), &blocker);
    let later = writer(&cluster);
    let end_first = blocker.lsn("COMMIT; SELECT pg_current_wal_insert_lsn()");
    waits_for(&mut sql, creator.pid(), &second);
    let end_second = second.lsn("ROLLBACK; SELECT pg_current_wal_insert_lsn()");
    // What began while it waited is waited for as well: the server takes a second look at what runs.
    waits_for(&mut sql, creator.pid(), &later);
    assert_eq!(slot(&mut sql)[0][1], None);
    drop(later);
    let created = creator.answer().unwrap().rows;
    let consistent = created[0][1].as_ref().unwrap().parse().unwrap();
    assert!(end_first < consistent && end_second < consistent);
    assert_eq!(slot(&mut sql)[0][1], created[0][1]);
}
on_servers!(slot_creation_waits_for_running_transactions: v15 = 15, v18 = 18);

// PG-31
fn ending_the_creating_session_removes_the_unfinished_slot(major: u32) {
    let cluster = skip::require(major);
    let mut sql = Client::sql(&cluster, "postgres");
    let mut blocker = writer(&cluster);

    let mut creator = waiting(&cluster, &mut sql, &blocker);
    sql.query(&format!("SELECT pg_terminate_backend({})", creator.pid()));
    assert_eq!(creator.answer().unwrap_err().code, "57P01");
    wait_until(LIMIT, "the slot to go", || slot(&mut sql).is_empty());

    let mut creator = waiting(&cluster, &mut sql, &blocker);
    creator.cancel();
    assert_eq!(creator.answer().unwrap_err().code, "57014");
    assert!(
        slot(&mut sql).is_empty(),
        "a cancelled creation leaves none even before its session ends"
    );

    // A socket that is closed is noticed when the wait is over.
    drop(waiting(&cluster, &mut sql, &blocker));
    blocker.query("COMMIT");
    wait_until(LIMIT, "the slot to go", || slot(&mut sql).is_empty());
}
on_servers!(ending_the_creating_session_removes_the_unfinished_slot: v15 = 15, v18 = 18);

/// A session of role `r` that exports a snapshot, after `settings`.
fn exporter(cluster: &Cluster, database: &str, slot: &str, settings: &str) -> (Client, String) {
    let mut client = Client::walsender_as(cluster, database, "r");
    client.query(settings);
    let created = client.query(&format!(
        "CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
    ));
    let snapshot = created[0][2].clone().unwrap();
    (client, snapshot)
}

// PG-45, K-10
fn an_exporting_session_is_ended_by_the_timeouts_of_its_role(major: u32) {
    let cluster = skip::require(major);
    cluster.psql("postgres", "CREATE ROLE r LOGIN REPLICATION; CREATE DATABASE other;");
    let mut timeouts = vec![("idle_in_transaction_session_timeout", "25P03")];
    if major >= 17 {
        timeouts.push(("transaction_timeout", "25P04"));
    }
    for (timeout, code) in timeouts {
        // For the role, and for a database.
        for (target, database) in [("ROLE r", "postgres"), ("DATABASE other", "other")] {
            cluster.psql("postgres", &format!("ALTER {target} SET {timeout} = '200ms'"));
            let off = format!("SET {timeout} = 0");
            // The one that is safe rests longer than the one that is not.
            let (safe, snapshot) = exporter(&cluster, database, "safe", &off);
            let (mut ended, _) = exporter(&cluster, database, "ended", "SHOW server_version");
            let state = format!("SELECT state FROM pg_stat_activity WHERE pid = {}", safe.pid());
            assert_eq!(cluster.psql("postgres", &state), "idle in transaction");
            let refused = ended.answer().unwrap_err();
            assert_eq!(refused.code, code, "{timeout} for {target}: {}", refused.message);
            let slots = "SELECT slot_name FROM pg_replication_slots";
            wait_until(LIMIT, "the slot to go", || cluster.psql("postgres", slots) == "safe");
            let mut reader = Client::sql(&cluster, database);
            reader.query(&format!(
                "BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{snapshot}'"
            ));
            cluster.psql("postgres", &format!("ALTER {target} RESET {timeout}"));
            drop(safe);
            wait_until(LIMIT, "the slot to go", || cluster.psql("postgres", slots).is_empty());
        }
    }
}
on_servers!(an_exporting_session_is_ended_by_the_timeouts_of_its_role: v15 = 15, v18 = 18);

// PG-37, PG-46
fn an_ordinary_session_knows_the_system_and_the_timeline(major: u32) {
    // An archive that has nothing: recovery ends at once, on a new timeline.
    let mut cluster = skip::config(major).setting("restore_command", "false").start();
    cluster.psql("postgres", "CREATE ROLE nobody LOGIN");
    for timeline in 1..=2 {
        let identified = Client::walsender(&cluster, "postgres").query("IDENTIFY_SYSTEM");
        assert_eq!(identified[0][1], Some(timeline.to_string()));
        assert_eq!(identified[0][3].as_deref(), Some("postgres"));
        let nobody = [("user", "nobody"), ("database", "postgres")];
        let mut client = Client::connect(&cluster, &nobody);
        let rights = "SELECT rolsuper OR rolreplication OR EXISTS (SELECT FROM pg_auth_members \
                      WHERE member = r.oid) FROM pg_roles r WHERE rolname = current_user";
        assert_eq!(client.value(rights), "f");
        let system = client.query("SELECT system_identifier FROM pg_control_system()");
        assert_eq!(system[0][0], identified[0][0]);
        let file = client.value("SELECT pg_walfile_name(pg_current_wal_insert_lsn())");
        assert_eq!(u32::from_str_radix(&file[..8], 16), Ok(timeline));
        // The next round is one timeline later.
        cluster.stop(Stop::Fast);
        let signal = cluster.data_dir().join("recovery.signal");
        std::fs::write(&signal, "").unwrap();
        let owner = std::fs::metadata(cluster.data_dir()).unwrap();
        chown(&signal, Some(owner.uid()), Some(owner.gid())).unwrap();
        cluster.start();
        wait_until(LIMIT, "recovery to end", || {
            cluster.psql("postgres", "SELECT pg_is_in_recovery()") == "f"
        });
    }
}
on_servers!(an_ordinary_session_knows_the_system_and_the_timeline: v15 = 15, v18 = 18);
