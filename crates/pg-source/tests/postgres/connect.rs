//! Reaching a server and signing in.

use crate::skip;
use walferry_cluster::config::{Auth, PASSWORD, Tls};
use walferry_core::fault::{Fault, FaultKind, Origin, SqlState};
use walferry_pg_source::{Source, SourceConfig};

use crate::support::{source, source_at};

async fn failure(source: &Source) -> Fault {
    let fault = source.identify().await.unwrap_err();
    assert_eq!(fault.origin, Origin::Source);
    assert!(!fault.message.contains(PASSWORD) && !fault.message.contains("wrong-word"), "{fault}");
    // The ordinary connection says the same.
    assert_eq!(source.read_wal_position().await.unwrap_err().kind, fault.kind);
    fault
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(future)
}

// S-02, PG-37, PG-46
fn who_the_server_is(major: u32) {
    let cluster = skip::require(major);
    run(async {
        let source = source(&cluster, "postgres");
        let facts = source.identify().await.unwrap();
        assert_eq!(facts.version / 10_000, major);
        assert_eq!((facts.seen.timeline, facts.seen.database.as_str()), (1, "postgres"));
        assert_eq!(
            facts.seen.system_id,
            cluster.psql("postgres", "SELECT system_identifier FROM pg_control_system()")
        );
        assert!(!facts.in_recovery);
        assert_eq!(facts.wal_level, "logical");
        assert!(facts.copy_slot_risks.is_empty(), "{:?}", facts.copy_slot_risks);
        assert_eq!(source.inspect_slot("none").await.unwrap().seen, facts.seen);
        // N-13
        let names = "SELECT application_name, backend_type FROM pg_stat_activity \
                     WHERE application_name LIKE 'walferry%' ORDER BY 1";
        assert_eq!(
            cluster.psql("postgres", names),
            "walferry:main|walsender\nwalferry:meta|client backend"
        );
        source.close().await;
        walferry_cluster::wait::wait_until(crate::support::LIMIT, "the sessions to end", || {
            cluster.psql("postgres", names).is_empty()
        });
        assert!(!cluster.log().contains("unexpected EOF"), "{}", cluster.log());
    });
}
on_servers!(who_the_server_is: v14 = 14, v15 = 15, v16 = 16, v17 = 17, v18 = 18);

// K-29
#[test]
fn settings_that_end_copy_slots_are_named() {
    let cluster = skip::config(18)
        .setting("max_slot_wal_keep_size", "1GB")
        .setting("idle_replication_slot_timeout", "1h")
        .start();
    let facts = run(source(&cluster, "postgres").identify()).unwrap();
    let expected = ["max_slot_wal_keep_size = 1GB", "idle_replication_slot_timeout = 1h"];
    assert_eq!(facts.copy_slot_risks, expected);
}

#[test]
fn every_password_method_is_spoken() {
    for auth in [Auth::Md5, Auth::Scram] {
        let cluster = skip::config(15).auth(auth).start();
        run(async {
            source(&cluster, "postgres").identify().await.unwrap();
            let at = |user: &str, database: &str| {
                source_at(&format!("postgres://{user}@127.0.0.1:{}/{database}", cluster.port()))
            };
            let fault = failure(&at("postgres:wrong-word", "postgres")).await;
            assert_eq!(fault.kind, FaultKind::Authentication);
            assert!(fault.message.contains("password authentication failed"), "{fault}");
            let fault = failure(&at("postgres", "postgres")).await;
            assert_eq!(fault.kind, FaultKind::Authentication);
            assert!(fault.message.contains("none is given"), "{fault}");
            let fault = failure(&at(&format!("postgres:{PASSWORD}"), "nowhere")).await;
            let wrong = matches!(fault.kind, FaultKind::Configuration { setting: "database", .. });
            assert!(wrong, "{fault}");
            assert!(fault.message.contains("\"nowhere\" does not exist"), "{fault}");
        });
    }
}

#[test]
fn a_password_in_clear_needs_tls() {
    let cluster = skip::config(15).auth(Auth::Cleartext).tls(Tls::Offered).start();
    run(async {
        let with = |mode: &str| source_at(&format!("{}?sslmode={mode}", cluster.url("postgres")));
        with("require").identify().await.unwrap();
        let fault = failure(&with("disable")).await;
        assert_eq!(fault.kind, FaultKind::Authentication);
        assert!(fault.message.contains("in clear"), "{fault}");
    });
}

#[test]
fn nobody_at_the_port_is_a_transport_failure() {
    let lease = walferry_cluster::port::PortLease::take();
    run(async {
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", lease.number());
        let fault = failure(&source_at(&url)).await;
        assert_eq!(fault.kind, FaultKind::Transport);
        assert!(fault.message.contains("refused"), "{fault}");
        let fault = failure(&source_at("postgres://postgres@name.invalid/postgres")).await;
        assert_eq!(fault.kind, FaultKind::Transport);
        assert!(fault.message.contains("name.invalid"), "{fault}");
        let fault = failure(&source_at("host=/nonexistent user=postgres")).await;
        assert_eq!(fault.kind, FaultKind::Transport);
    });
}

#[test]
fn a_server_that_says_nothing_runs_into_the_budget() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = format!("postgres://u@127.0.0.1:{port}/d?connect_timeout=1");
    let fault = run(async { failure(&source_at(&url)).await });
    assert!(matches!(fault.kind, FaultKind::Timeout { .. }), "{fault}");
}

// Z-03
#[test]
fn modes_of_tls_mean_what_they_say() {
    let cluster = skip::config(15).auth(Auth::Scram).tls(Tls::Required).start();
    let other = tempfile::tempdir().unwrap();
    let strangers = walferry_cluster::certs::Certs::make(other.path());
    let certs = cluster.certs().unwrap();
    let with = |host: &str, options: &str| {
        source_at(&format!(
            "postgres://postgres:{PASSWORD}@{host}:{}/postgres?{options}",
            cluster.port()
        ))
    };
    let root = |path: &std::path::Path| format!("sslrootcert={}", path.display());
    let ours = root(&certs.authority);
    run(async {
        let good = [
            ("127.0.0.1", String::new()),
            ("127.0.0.1", "sslmode=require".to_owned()),
            ("127.0.0.1", "sslmode=require&channel_binding=require".to_owned()),
            ("127.0.0.1", "sslmode=require&channel_binding=disable".to_owned()),
            ("127.0.0.1", format!("sslmode=verify-ca&{ours}")),
            ("127.0.0.1", format!("sslmode=verify-full&{ours}")),
            ("localhost", format!("sslmode=verify-full&hostaddr=127.0.0.1&{ours}")),
            ("db.example", format!("sslmode=verify-ca&hostaddr=127.0.0.1&{ours}")),
        ];
        for (host, options) in good {
            let facts = with(host, &options).identify().await;
            assert!(facts.is_ok(), "{host} {options}: {facts:?}");
        }
        let bad = [
            ("127.0.0.1", "sslmode=verify-full&sslrootcert=system".to_owned()),
            ("127.0.0.1", format!("sslmode=verify-full&{}", root(&strangers.authority))),
            ("127.0.0.1", format!("sslmode=require&{}", root(&strangers.authority))),
            ("db.example", format!("sslmode=verify-full&hostaddr=127.0.0.1&{ours}")),
        ];
        for (host, options) in bad {
            let fault = failure(&with(host, &options)).await;
            assert_eq!(fault.kind, FaultKind::Authentication, "{host} {options}: {fault}");
            assert!(fault.message.contains("certificate"), "{fault}");
        }
        let fault = failure(&with("127.0.0.1", "sslmode=disable")).await;
        assert_eq!(fault.kind, FaultKind::Authentication);
        assert!(fault.message.contains("pg_hba.conf"), "{fault}");
        let fault = failure(&with("127.0.0.1", "sslmode=verify-ca&sslrootcert=/none")).await;
        assert!(matches!(fault.kind, FaultKind::Configuration { setting: "sslrootcert", .. }));
    });
}

#[test]
fn tls_that_the_server_does_not_speak() {
    let cluster = skip::require(15);
    run(async {
        let with = |mode: &str| source_at(&format!("{}?sslmode={mode}", cluster.url("postgres")));
        with("prefer").identify().await.unwrap();
        with("disable").identify().await.unwrap();
        let fault = failure(&with("require")).await;
        assert!(
            matches!(fault.kind, FaultKind::Configuration { setting: "sslmode", .. }),
            "{fault}"
        );
        let bound = source_at(&format!("{}?channel_binding=require", cluster.url("postgres")));
        assert_eq!(failure(&bound).await.kind, FaultKind::Authentication);
    });
}

#[test]
fn a_certificate_of_ours_signs_in() {
    let cluster = skip::config(15).auth(Auth::Cert).tls(Tls::Required).start();
    let certs = cluster.certs().unwrap();
    run(async {
        let url = format!(
            "{}?sslmode=require&sslcert={}&sslkey={}",
            cluster.url("postgres"),
            certs.client.display(),
            certs.client_key.display()
        );
        source_at(&url).identify().await.unwrap();
        let without = source_at(&format!("{}?sslmode=require", cluster.url("postgres")));
        assert_eq!(failure(&without).await.kind, FaultKind::Authentication);
    });
}

#[test]
fn a_socket_directory_is_a_host() {
    let cluster = skip::require(15);
    run(async {
        let host = cluster.socket_dir().display().to_string().replace('/', "%2F");
        let url = format!("postgres://postgres@{host}:{}/postgres", cluster.port());
        source_at(&url).identify().await.unwrap();
        // From the environment alone.
        let env = |name: &str| match name {
            "PGHOST" => Some(cluster.socket_dir().display().to_string()),
            "PGPORT" => Some(cluster.port().to_string()),
            "PGUSER" => Some("postgres".to_owned()),
            _ => None,
        };
        let config = SourceConfig::parse("", &env).unwrap();
        let options = walferry_pg_source::SourceOptions::new("p");
        Source::new(config, options).identify().await.unwrap();
    });
}

// A-F2
#[test]
fn a_kept_connection_is_opened_again_after_it_ended() {
    let mut cluster = skip::require(15);
    run(async {
        let source = source(&cluster, "postgres");
        source.identify().await.unwrap();
        source.read_wal_position().await.unwrap();
        cluster.restart(walferry_cluster::cluster::Stop::Fast);
        source.identify().await.unwrap();
        source.read_wal_position().await.unwrap();
        // An error of the server does not end it.
        let pids = "SELECT count(DISTINCT pid) FROM pg_stat_activity \
                    WHERE application_name = 'walferry:main'";
        let fault = source.create_slot("Not-A-Name", false).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::Server { code: SqlState(*b"42602") });
        assert!(fault.message.contains("Not-A-Name"), "{fault}");
        source.identify().await.unwrap();
        assert_eq!(cluster.psql("postgres", pids), "1");
    });
    walferry_coverage::reached("A-F2");
}
