//! An address that leads to another server than it did before.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio::net::{TcpListener, TcpStream};
use walferry_core::fault::{Fault, FaultKind};
use walferry_core::ids::TableId;

use crate::skip;
use crate::support::{oid, source_at, with_table};

/// Passes connections to the server that `to` names when they begin.
async fn forward(to: Arc<AtomicU16>) -> io::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let to = to.load(Ordering::SeqCst);
            tokio::spawn(async move {
                let Ok(mut server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
                drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
            });
        }
    });
    Ok(port)
}

#[track_caller]
fn assert_refused<T>(result: Result<T, Fault>) {
    let Err(fault) = result else { panic!("it was done on another server") };
    assert_eq!(fault.kind, FaultKind::Transport, "{fault}");
    assert!(fault.to_string().contains("another server"), "{fault}");
}

// S-06: nothing is listed, made or dropped on a server that was not identified
#[tokio::test]
async fn another_server_is_left_alone() {
    let (here, there) = (skip::require(15), skip::require(18));
    drop(with_table(&here));
    drop(with_table(&there));
    let to = Arc::new(AtomicU16::new(here.port()));
    let port = forward(Arc::clone(&to)).await.unwrap();
    let url = here.url("app").replace(&format!(":{}/", here.port()), &format!(":{port}/"));
    assert!(url.contains(&port.to_string()), "{url}");
    let source = source_at(&url);
    let first = source.identify().await.unwrap().seen;
    source.create_slot("main", false).await.unwrap();
    assert!(source.list_publication().await.unwrap().is_some());
    there.psql("app", "SELECT pg_create_logical_replication_slot('main', 'pgoutput')");

    to.store(there.port(), Ordering::SeqCst);
    here.psql(
        "app",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE application_name LIKE 'walferry:%'",
    );
    // The first call on each may still meet the connection that ends.
    drop(source.list_publication().await);
    drop(source.read_timeline_history(1).await);
    assert_refused(source.list_publication().await);
    assert_refused(source.drop_slot("main").await);
    assert_refused(source.create_slot("more", false).await);
    assert_refused(source.open_snapshot(TableId(oid(&there, "t")), "copied", false).await);
    assert_refused(source.write_heartbeat("prefix", "content").await);
    let slots = "SELECT coalesce(string_agg(slot_name, ','), '') FROM pg_replication_slots";
    assert_eq!(there.psql("app", slots), "main");
    // What says who answered is for the core to compare.
    assert_ne!(source.inspect_slot("main").await.unwrap().seen, first);

    let second = source.identify().await.unwrap().seen;
    assert_ne!(second, first);
    source.drop_slot("main").await.unwrap();
    assert_eq!(there.psql("app", slots), "");
    assert_eq!(here.psql("app", slots), "main");
}
