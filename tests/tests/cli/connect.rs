//! The server cannot be reached, or does not let us in (U-02, Z-03).

use insta::assert_snapshot;
use walferry_tests::certs::Certs;
use walferry_tests::config::{Auth, Tls};
use walferry_tests::port::PortLease;
use walferry_tests::skip;

use crate::world::World;

#[test]
fn a_host_name_that_does_not_resolve() {
    let world = World::new();
    // Two dots in a row are no name anywhere, whatever the machine asks for names.
    let finished = world.call().source("postgres://postgres@db..example/shop").fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 3
    error run failed: the connection failed: cannot resolve db..example: failed to lookup address information: Name or service not known
    error: connecting to the source failed
    cause: the connection failed: cannot resolve db..example: failed to lookup address information: Name or service not known
    hint: is the host name right? --source names db..example:5432
    ");
    world.works();
}

#[test]
fn a_host_where_nobody_listens() {
    let world = World::new();
    let source = world.cluster.url("postgres").replace("127.0.0.1", "127.0.0.2");
    let finished = world.call().source(source).fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 3
    error run failed: the connection failed: cannot connect to 127.0.0.2:[port]: Connection refused (os error 111)
    error: connecting to the source failed
    cause: the connection failed: cannot connect to 127.0.0.2:[port]: Connection refused (os error 111)
    hint: is the server running, and does it listen there? pg_isready -h 127.0.0.2 -p [port]
    ");
    world.works();
}

#[test]
fn a_port_where_nobody_listens() {
    let world = World::new();
    let free = PortLease::take();
    let source = format!("postgres://postgres@127.0.0.1:{}/postgres", free.number());
    let finished = world.call().source(source).fails_at_once();
    let text = world.shown(&finished).replace(&free.number().to_string(), "[free port]");
    assert_snapshot!(text, @r"
    exit 3
    error run failed: the connection failed: cannot connect to 127.0.0.1:[free port]: Connection refused (os error 111)
    error: connecting to the source failed
    cause: the connection failed: cannot connect to 127.0.0.1:[free port]: Connection refused (os error 111)
    hint: is the server running, and does it listen there? pg_isready -h 127.0.0.1 -p [free port]
    ");
    world.works();
}

#[test]
fn a_socket_that_is_absent() {
    let world = World::new();
    let nowhere = world.path("nowhere").to_str().unwrap().replace('/', "%2F");
    let source = format!("postgres://postgres@{nowhere}/postgres");
    let finished = world.call().source(source).fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 3
    error run failed: the connection failed: cannot connect to [dir]/nowhere/.s.PGSQL.5432: No such file or directory (os error 2)
    error: connecting to the source failed
    cause: the connection failed: cannot connect to [dir]/nowhere/.s.PGSQL.5432: No such file or directory (os error 2)
    hint: is the server running, and does it listen there? pg_isready -h [dir]/nowhere -p 5432
    hint: the socket is absent: name the server with host=.. in --source or PGHOST
    ");
    world.works();
}

#[test]
fn a_wrong_password_by_scram() {
    let world = World::on(skip::config(15).auth(Auth::Scram));
    let finished = wrong_password(&world);
    assert_snapshot!(finished, @r#"
    exit 3
    error run failed: sign-in failed: signing in as postgres@127.0.0.1:[port]/postgres failed: password authentication failed for user "postgres" (SQLSTATE 28P01)
    error: connecting to the source failed
    cause: sign-in failed: signing in as postgres@127.0.0.1:[port]/postgres failed: password authentication failed for user "postgres" (SQLSTATE 28P01)
    hint: the password was refused: give the right password of postgres in PGPASSWORD, or in ~/.pgpass (mode 0600): host:port:database:user:password
    hint: or set a new one as a superuser: ALTER ROLE postgres PASSWORD '..';
    "#);
}

#[test]
fn a_wrong_password_by_scram_on_18() {
    let world = World::on(skip::config(18).auth(Auth::Scram));
    let finished = wrong_password(&world);
    assert_snapshot!(finished, @r#"
    exit 3
    error run failed: sign-in failed: signing in as postgres@127.0.0.1:[port]/postgres failed: password authentication failed for user "postgres" (SQLSTATE 28P01)
    error: connecting to the source failed
    cause: sign-in failed: signing in as postgres@127.0.0.1:[port]/postgres failed: password authentication failed for user "postgres" (SQLSTATE 28P01)
    hint: the password was refused: give the right password of postgres in PGPASSWORD, or in ~/.pgpass (mode 0600): host:port:database:user:password
    hint: or set a new one as a superuser: ALTER ROLE postgres PASSWORD '..';
    "#);
}

#[test]
fn a_wrong_password_by_md5() {
    let world = World::on(skip::config(15).auth(Auth::Md5));
    let finished = wrong_password(&world);
    assert_snapshot!(finished, @r#"
    exit 3
    error run failed: sign-in failed: signing in as postgres@127.0.0.1:[port]/postgres failed: password authentication failed for user "postgres" (SQLSTATE 28P01)
    error: connecting to the source failed
    cause: sign-in failed: signing in as postgres@127.0.0.1:[port]/postgres failed: password authentication failed for user "postgres" (SQLSTATE 28P01)
    hint: the password was refused: give the right password of postgres in PGPASSWORD, or in ~/.pgpass (mode 0600): host:port:database:user:password
    hint: or set a new one as a superuser: ALTER ROLE postgres PASSWORD '..';
    "#);
}

#[test]
fn no_password_where_one_is_asked_for() {
    let world = World::on(skip::config(15).auth(Auth::Scram));
    let source = world.cluster.url("postgres").replace(":ferryman@", "@");
    let finished = world.call().source(&source).fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 3
    error run failed: sign-in failed: cannot sign in to 127.0.0.1:[port]: it asks for a password of postgres, and none is given
    error: connecting to the source failed
    cause: sign-in failed: cannot sign in to 127.0.0.1:[port]: it asks for a password of postgres, and none is given
    hint: give the password of postgres in PGPASSWORD, or in ~/.pgpass (mode 0600): host:port:database:user:password
    ");
    world.call().source(source).env("PGPASSWORD", "ferryman").works();
}

/// Tried once, and neither the wrong nor the right password is shown.
#[track_caller]
fn wrong_password(world: &World) -> String {
    let source = world.cluster.url("postgres").replace(":ferryman@", ":boatman@");
    let finished = world.call().source(source).fails_at_once();
    let refusals = world.cluster.log().matches("password authentication failed for user").count();
    assert_eq!(refusals, 1, "tried more than once");
    for secret in ["boatman", "ferryman"] {
        assert!(!finished.stderr.contains(secret), "{}", finished.stderr);
    }
    world.works();
    world.shown(&finished)
}

#[test]
fn a_role_that_does_not_exist() {
    let world = World::new();
    let source = world.cluster.url("postgres").replace("//postgres@", "//nobody@");
    let finished = world.call().source(source).fails_at_once();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 3
    error run failed: sign-in failed: start-up failed: role "nobody" does not exist (SQLSTATE 28000)
    error: connecting to the source failed
    cause: sign-in failed: start-up failed: role "nobody" does not exist (SQLSTATE 28000)
    hint: CREATE ROLE nobody LOGIN REPLICATION PASSWORD '..';
    "#);
    world.works();
}

#[test]
fn a_database_that_does_not_exist() {
    let world = World::new();
    let finished = world.call().source(world.cluster.url("shop")).fails_at_once();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 2
    error run failed: start-up failed: database "shop" does not exist (SQLSTATE 3D000)
    error: connecting to the source failed
    cause: start-up failed: database "shop" does not exist (SQLSTATE 3D000)
    hint: name another in --source, or: CREATE DATABASE shop;
    hint: which there are: SELECT datname FROM pg_database;
    "#);
    world.works();
}

#[test]
fn tls_demanded_from_a_server_without() {
    let world = World::new();
    let finished = world.call().parameters("sslmode=require").fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 2
    error run failed: 127.0.0.1:[port] does not speak TLS, which sslmode demands
    error: connecting to the source failed
    cause: 127.0.0.1:[port] does not speak TLS, which sslmode demands
    hint: the server has no TLS: sslmode=disable in --source, or turn ssl on at the server
    ");
    world.call().parameters("sslmode=disable").works();
}

#[test]
fn a_certificate_of_an_authority_that_is_not_trusted() {
    let world = World::on(skip::config(15).tls(Tls::Offered));
    let others = tempfile::tempdir().unwrap();
    let other = Certs::make(others.path()).authority;
    // The system's authorities, as far as this process knows.
    let finished = world
        .call()
        .parameters("sslmode=verify-full")
        .env("SSL_CERT_FILE", other.to_str().unwrap())
        .fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 3
    error run failed: sign-in failed: TLS with 127.0.0.1 failed: invalid peer certificate: BadSignature
    error: connecting to the source failed
    cause: sign-in failed: TLS with 127.0.0.1 failed: invalid peer certificate: BadSignature
    hint: trust the server's authority with sslrootcert=FILE in --source
    hint: or do not verify: sslmode=require; without TLS: sslmode=disable
    ");
    let named = format!("sslmode=verify-full&sslrootcert={}", other.display());
    let finished = world.call().parameters(&named).fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 3
    error run failed: sign-in failed: TLS with 127.0.0.1 failed: invalid peer certificate: BadSignature
    error: connecting to the source failed
    cause: sign-in failed: TLS with 127.0.0.1 failed: invalid peer certificate: BadSignature
    hint: trust the server's authority with sslrootcert=FILE in --source
    hint: or do not verify: sslmode=require; without TLS: sslmode=disable
    ");
    let right = world.cluster.certs().unwrap().authority.display().to_string();
    world.call().parameters(&format!("sslmode=verify-full&sslrootcert={right}")).works();
}

#[test]
fn a_certificate_for_another_name() {
    let world = World::on(skip::config(15).tls(Tls::Offered));
    let right = world.cluster.certs().unwrap().authority.display().to_string();
    let source = format!(
        "host=other.example hostaddr=127.0.0.1 port={} user=postgres dbname=postgres \
         sslmode=verify-full sslrootcert={right}",
        world.cluster.port()
    );
    let finished = world.call().source(&source).fails_at_once();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 3
    error run failed: sign-in failed: TLS with other.example failed: invalid peer certificate: certificate not valid for name "other.example"; certificate is only valid for DnsName("localhost") or IpAddress(127.0.0.1)
    error: connecting to the source failed
    cause: sign-in failed: TLS with other.example failed: invalid peer certificate: certificate not valid for name "other.example"; certificate is only valid for DnsName("localhost") or IpAddress(127.0.0.1)
    hint: connect by a name of the certificate: host=.. in --source (with hostaddr=.. if that name does not resolve here)
    hint: or do not compare the name: sslmode=verify-ca
    "#);
    world.call().source(source.replace("verify-full", "verify-ca")).works();
}

#[test]
fn an_authority_file_that_is_absent() {
    let world = World::on(skip::config(15).tls(Tls::Offered));
    let finished =
        world.call().parameters("sslmode=verify-full&sslrootcert=root.pem").fails_at_once();
    assert_snapshot!(world.shown(&finished), @r"
    exit 2
    error run failed: sslrootcert: root.pem: I/O error: No such file or directory (os error 2)
    error: connecting to the source failed
    cause: sslrootcert: root.pem: I/O error: No such file or directory (os error 2)
    hint: name a file that this user can read: sslrootcert=FILE in --source
    ");
    world.works();
}

#[test]
fn no_tls_where_the_server_demands_it() {
    let world = World::on(skip::config(15).auth(Auth::Scram).tls(Tls::Required));
    let finished = world.call().parameters("sslmode=disable").fails_at_once();
    assert_snapshot!(world.shown(&finished), @r#"
    exit 3
    error run failed: sign-in failed: signing in as postgres@127.0.0.1:[port]/postgres failed: no pg_hba.conf entry for host "127.0.0.1", user "postgres", database "postgres", no encryption (SQLSTATE 28000)
    error: connecting to the source failed
    cause: sign-in failed: signing in as postgres@127.0.0.1:[port]/postgres failed: no pg_hba.conf entry for host "127.0.0.1", user "postgres", database "postgres", no encryption (SQLSTATE 28000)
    hint: the server may demand TLS: sslmode=require in --source (it was tried without)
    hint: allow postgres from this address in pg_hba.conf, then: SELECT pg_reload_conf();
    "#);
    world.call().parameters("sslmode=require").works();
}
