//! Embeds walferry with a destination of one's own: counts what arrives for each table.
//!
//! ```text
//! cargo run -p walferry --example embed -- postgres://app@localhost/app publication ./state
//! ```
//!
//! Runs until everything that the server has at that time is here, then prints one line a table.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use walferry::core::batch::{
    Batch, ChangeBody, CopyBatch, CopyStart, Declaration, DeliveryClass, Durability,
};
use walferry::core::config::Until;
use walferry::core::event::RowKind;
use walferry::core::ids::{Attempt, Epoch, Lane, TableId};
use walferry::core::notice::Outcome;
use walferry::{Destination, DestinationError, Pipeline, source_from_env, state};

/// What arrived for one table.
#[derive(Clone, Debug, Default)]
struct Count {
    name: String,
    copied: u64,
    inserts: u64,
    updates: u64,
    deletes: u64,
    truncates: u64,
}

/// Keeps counts in memory: nothing survives it, so it may answer Durable.
#[derive(Clone, Debug, Default)]
struct Counting(Arc<Mutex<BTreeMap<TableId, Count>>>);

impl Counting {
    fn with(&self, table: TableId, name: &str, count: impl FnOnce(&mut Count)) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = counts.entry(table).or_default();
        name.clone_into(&mut entry.name);
        count(entry);
    }
}

impl Destination for Counting {
    fn declare(&self) -> Declaration {
        Declaration {
            id: "example:counts".to_owned(),
            class: DeliveryClass::Append,
            lanes_max: 4,
            copy_in_flight_max: 1,
            wants_messages: false,
            partial_rows: true,
            schema_changes: walferry_core::schema::SchemaSupport::NONE,
        }
    }

    async fn startup(&self, _pipeline: &str, _epoch: Epoch) -> Result<(), DestinationError> {
        Ok(())
    }

    async fn begin_copy(&self, start: CopyStart) -> Result<(), DestinationError> {
        let name = start.schema.qualified_name();
        self.with(start.table, &name, |count| {
            *count = Count { name: name.clone(), ..Count::default() }
        });
        Ok(())
    }

    async fn write_rows(
        &self,
        batch: Arc<CopyBatch<Bytes>>,
    ) -> Result<Durability, DestinationError> {
        let name = batch.schema.qualified_name();
        self.with(batch.table, &name, |count| count.copied += batch.rows);
        Ok(Durability::Durable)
    }

    async fn finish_copy(
        &self,
        _table: TableId,
        _attempt: Attempt,
        _epoch: Epoch,
        _sequences: u64,
    ) -> Result<Durability, DestinationError> {
        Ok(Durability::Durable)
    }

    async fn write_changes(
        &self,
        batch: Arc<Batch<Bytes>>,
    ) -> Result<Durability, DestinationError> {
        for change in &batch.changes {
            let (ChangeBody::Row { table, .. } | ChangeBody::Truncate { table, .. }) = change.body
            else {
                continue;
            };
            let table = &batch.tables[table as usize];
            self.with(table.table, &table.schema.qualified_name(), |count| match change.body {
                ChangeBody::Row { kind: RowKind::Insert, .. } => count.inserts += 1,
                ChangeBody::Row { kind: RowKind::Update, .. } => count.updates += 1,
                ChangeBody::Row { kind: RowKind::Delete, .. } => count.deletes += 1,
                ChangeBody::Truncate { .. } => count.truncates += 1,
                ChangeBody::Schema { .. } | ChangeBody::Message { .. } => (),
            });
        }
        Ok(Durability::Durable)
    }

    async fn flush(&self, _lane: Lane) -> Result<(), DestinationError> {
        Ok(())
    }

    async fn shutdown(&self) -> Result<(), DestinationError> {
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [source, publication, dir] = args.as_slice() else {
        return Err("usage: embed SOURCE PUBLICATION STATE-DIR".into());
    };
    let counts = Counting::default();
    let pipeline = Pipeline::builder()
        .source(source_from_env(source)?)
        .publication(publication)
        .destination(counts.clone())
        .state(state::file(dir))
        .until(Some(Until::CaughtUp))
        .start()
        .await?;
    let outcome = pipeline.wait().await;
    let mut out = io::stdout();
    for count in counts.0.lock().unwrap_or_else(PoisonError::into_inner).values() {
        writeln!(
            out,
            "{} copied={} inserts={} updates={} deletes={} truncates={}",
            count.name, count.copied, count.inserts, count.updates, count.deletes, count.truncates
        )?;
    }
    match outcome {
        Outcome::Stopped { errored: 0, .. } => Ok(()),
        Outcome::Stopped { errored, .. } => Err(format!("{errored} tables need a person").into()),
        Outcome::Failed { action, fault } => Err(format!("{action}: {fault}").into()),
    }
}
