//! The harness itself: what it promises to the other suites.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use walferry_tests::cluster::{Cluster, Stop};
use walferry_tests::config::{Auth, Tls};
use walferry_tests::wait::wait_until;
use walferry_tests::{on_servers, skip};

const LIMIT: Duration = Duration::from_secs(30);

fn starts_ready_for_logical_replication(major: u32) {
    let cluster = skip::require(major);
    let version: u32 = cluster.psql("postgres", "SHOW server_version_num").parse().unwrap();
    assert_eq!(version / 10_000, major);
    let sql = "SELECT name, setting FROM pg_settings WHERE name IN
        ('wal_level', 'max_wal_senders', 'max_replication_slots', 'fsync', 'TimeZone') ORDER BY lower(name)";
    assert_eq!(
        cluster.psql("postgres", sql),
        "fsync|off\nmax_replication_slots|20\nmax_wal_senders|20\nTimeZone|UTC\nwal_level|logical"
    );
    let sql = "SELECT slot_name FROM pg_create_logical_replication_slot('s', 'pgoutput')";
    assert_eq!(cluster.psql("postgres", sql), "s");
}
on_servers!(starts_ready_for_logical_replication: v15 = 15, v18 = 18);

fn psql_runs_every_statement_and_stops_at_an_error(major: u32) {
    let cluster = skip::require(major);
    cluster.psql("postgres", "CREATE DATABASE other; CREATE TABLE t(a int, b text);");
    let rows = "INSERT INTO t VALUES (1, 'x'), (2, NULL), (3, ''); SELECT * FROM t ORDER BY a;";
    assert_eq!(cluster.psql("postgres", rows), "1|x\n2|[null]\n3|");
    let error = cluster.try_psql("postgres", "SELECT 1/0; DROP TABLE t;").unwrap_err();
    assert!(error.contains("division by zero"), "{error}");
    assert_eq!(cluster.psql("postgres", "SELECT count(*) FROM t"), "3");
    assert_eq!(cluster.psql("other", "SELECT current_database()"), "other");
    // More than a pipe holds, in both directions.
    let long = format!("SELECT '{}';", "x".repeat(1_000_000)).repeat(3);
    assert_eq!(cluster.psql("postgres", &long).len(), 3_000_002);
}
on_servers!(psql_runs_every_statement_and_stops_at_an_error: v15 = 15, v18 = 18);

fn keeps_port_and_rows_over_every_kind_of_restart(major: u32) {
    let mut cluster = skip::config(major).durable().start();
    cluster.psql("postgres", "CREATE TABLE t(how text)");
    let (port, mut pid) = (cluster.port(), cluster.pid());
    for how in [Stop::Fast, Stop::Immediate, Stop::Kill] {
        cluster.psql("postgres", &format!("INSERT INTO t VALUES ('{how:?}')"));
        cluster.restart(how);
        assert_eq!(cluster.port(), port);
        assert_ne!(std::mem::replace(&mut pid, cluster.pid()), cluster.pid());
    }
    assert_eq!(cluster.psql("postgres", "SELECT how FROM t"), "Fast\nImmediate\nKill");
    assert_eq!(cluster.log().matches("was not properly shut down").count(), 2);
    cluster.stop(Stop::Fast);
    assert_eq!(cluster.pid(), None);
    assert!(cluster.try_psql("postgres", "SELECT 1").is_err());
}
on_servers!(keeps_port_and_rows_over_every_kind_of_restart: v15 = 15, v18 = 18);

/// What the server asks of a connection over TCP with these options; `Err` is psql's message.
fn connect(cluster: &Cluster, options: &str) -> Result<String, String> {
    let output = cluster
        .installation()
        .client_command("psql")
        .args(["-X", "-A", "-t", "-w", "-d"])
        .arg(format!("host=127.0.0.1 port={} user=postgres {options}", cluster.port()))
        .args([
            "-c",
            "SELECT coalesce(version, 'plain') FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
        ])
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn checks_passwords_as_told(major: u32) {
    for auth in [Auth::Cleartext, Auth::Md5, Auth::Scram] {
        let cluster = skip::config(major).auth(auth).start();
        assert!(cluster.url("d").starts_with("postgres://postgres:ferryman@127.0.0.1:"));
        assert_eq!(connect(&cluster, "password=ferryman"), Ok("plain".to_owned()), "{auth:?}");
        let refused = connect(&cluster, "password=wrong").unwrap_err();
        assert!(refused.contains("password authentication failed"), "{auth:?}: {refused}");
        let stored = "SELECT left(rolpassword, 3) FROM pg_authid WHERE rolname = 'postgres'";
        let kind = if auth == Auth::Md5 { "md5" } else { "SCR" };
        assert_eq!(cluster.psql("postgres", stored), kind);
    }
}
on_servers!(checks_passwords_as_told: v15 = 15, v18 = 18);

fn speaks_tls_that_a_strict_client_accepts(major: u32) {
    let cluster = skip::config(major).auth(Auth::Scram).tls(Tls::Required).start();
    let certs = cluster.certs().unwrap().clone();
    let strict = format!(
        "password=ferryman sslmode=verify-full channel_binding=require sslrootcert={}",
        certs.authority.display()
    );
    assert_eq!(connect(&cluster, &strict), Ok("TLSv1.3".to_owned()));
    let refused = connect(&cluster, "password=ferryman sslmode=disable").unwrap_err();
    assert!(refused.contains("no pg_hba.conf entry"), "{refused}");

    let cluster = skip::config(major).auth(Auth::Cert).tls(Tls::Offered).start();
    let certs = cluster.certs().unwrap().clone();
    let own = format!(
        "sslmode=verify-full sslrootcert={} sslcert={} sslkey={}",
        certs.authority.display(),
        certs.client.display(),
        certs.client_key.display()
    );
    assert_eq!(connect(&cluster, &own), Ok("TLSv1.3".to_owned()));
    assert!(connect(&cluster, "sslmode=require").is_err());
}
on_servers!(speaks_tls_that_a_strict_client_accepts: v15 = 15, v18 = 18);

fn lines_of_the_test_and_settings_win(major: u32) {
    let cluster = skip::config(major)
        .setting("wal_sender_timeout", "7s")
        .setting("wal_level", "replica")
        .hba("host all all 127.0.0.1/32 reject")
        .initdb("--wal-segsize=1")
        .start();
    let sql = "SHOW wal_sender_timeout; SHOW wal_level; SHOW wal_segment_size;";
    assert_eq!(cluster.psql("postgres", sql), "7s\nreplica\n1MB");
    assert!(connect(&cluster, "").unwrap_err().contains("pg_hba.conf rejects connection"));
}
on_servers!(lines_of_the_test_and_settings_win: v15 = 15, v18 = 18);

fn leaves_nothing_when_dropped(major: u32) {
    let cluster = skip::require(major);
    let (pid, home) = (cluster.pid().unwrap(), cluster.socket_dir().to_owned());
    assert!(runs_in(pid, &home));
    drop(cluster);
    assert!(!runs_in(pid, &home));
    assert!(!home.exists());
}
on_servers!(leaves_nothing_when_dropped: v15 = 15, v18 = 18);

/// Set for the process that [`leaves_nothing_when_its_test_is_killed`] starts and kills.
const VICTIM: &str = "WALFERRY_HARNESS_VICTIM";

fn leaves_nothing_when_its_test_is_killed(major: u32) {
    if env::var_os(VICTIM).is_some() {
        let cluster = skip::require(major);
        let (pid, home) = (cluster.pid().unwrap(), cluster.socket_dir().display());
        let mut out = std::io::stdout();
        out.write_all(format!("\nvictim {pid} {home}\n").as_bytes()).unwrap();
        // Until it is killed, or, if its parent is, until the pipe ends.
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    let name = format!("harness::leaves_nothing_when_its_test_is_killed::v{major}");
    let mut victim = Command::new(env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(VICTIM, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let (pid, home) = lines
        .find_map(|line| {
            let line = line.unwrap();
            let (pid, home) = line.strip_prefix("victim ")?.split_once(' ')?;
            Some((pid.parse::<u32>().unwrap(), PathBuf::from(home)))
        })
        .expect("the victim starts a server");
    assert!(runs_in(pid, &home) && home.exists());
    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_until(LIMIT, "the watchdog to stop the server", || !runs_in(pid, &home));
    wait_until(LIMIT, "the watchdog to remove the directory", || !home.exists());
}
on_servers!(leaves_nothing_when_its_test_is_killed: v15 = 15, v18 = 18);

/// Whether the process exists and works in the data directory of the cluster at `home`.
fn runs_in(pid: u32, home: &Path) -> bool {
    std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == home.join("data"))
}
