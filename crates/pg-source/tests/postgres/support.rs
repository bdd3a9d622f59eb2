//! What the suites share: a source for a cluster, and waiting for events.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc::Receiver;
use walferry_cluster::cluster::Cluster;
use walferry_core::event::Event;
use walferry_core::fault::Fault;
use walferry_pg_source::{Source, SourceConfig, SourceOptions, StreamMessage};

pub(crate) const PUBLICATION: &str = "Pub of \"it\"";
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A configuration from text alone.
pub(crate) fn config(text: &str) -> SourceConfig {
    SourceConfig::parse(text, &|_| None).unwrap()
}

pub(crate) fn source_at(text: &str) -> Source {
    Source::new(config(text), SourceOptions::new(PUBLICATION))
}

/// A source for `database` of the cluster, over TCP.
pub(crate) fn source(cluster: &Cluster, database: &str) -> Source {
    source_at(&cluster.url(database))
}

/// A cluster's database `app` with table `t(id, note)` in a publication of it.
pub(crate) fn with_table(cluster: &Cluster) -> Source {
    cluster.psql("postgres", "CREATE DATABASE app");
    cluster.psql(
        "app",
        "CREATE TABLE t(id int PRIMARY KEY, note text); \
         CREATE PUBLICATION \"Pub of \"\"it\"\"\" FOR TABLE t;",
    );
    source(cluster, "app")
}

pub(crate) fn oid(cluster: &Cluster, table: &str) -> u32 {
    cluster.psql("app", &format!("SELECT '{table}'::regclass::oid")).parse().unwrap()
}

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {LIMIT:?} in vain for {what}"),
    }
}

/// Events until `enough` says so.
pub(crate) async fn events_until(
    messages: &mut Receiver<StreamMessage>,
    what: &str,
    mut enough: impl FnMut(&[Event<Bytes>]) -> bool,
) -> Vec<Event<Bytes>> {
    let mut all = Vec::new();
    while !enough(&all) {
        match within(what, messages.recv()).await {
            Some(StreamMessage::Events(events)) => all.extend(events),
            Some(StreamMessage::Ended(fault)) => panic!("ended before {what}: {fault}"),
            None => panic!("closed before {what}"),
        }
    }
    all
}

/// The fault that ends a stream.
pub(crate) async fn end_of(messages: &mut Receiver<StreamMessage>) -> Fault {
    loop {
        match within("the end of the stream", messages.recv()).await {
            Some(StreamMessage::Events(_)) => {}
            Some(StreamMessage::Ended(fault)) => return fault,
            None => panic!("closed without a fault"),
        }
    }
}

pub(crate) fn commits(events: &[Event<Bytes>]) -> usize {
    events.iter().filter(|event| matches!(event, Event::Commit { .. })).count()
}
