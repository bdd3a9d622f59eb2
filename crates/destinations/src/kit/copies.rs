//! Cases of table copies.

use std::sync::Arc;

use walferry_core::fault::DestinationClass;
use walferry_core::ids::Epoch;
use walferry_core::schema::ReplicaIdentity;

use super::run::{Run, holds, must};
use super::source::{Source, row};
use super::{Failure, Subject, require};
use crate::contract::Destination;

const FIRST: Epoch = Epoch(1);

/// CT-04
pub(super) async fn replayed_reordered_parallel<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    // Identity FULL: rows that are written twice do not collide, they are there twice.
    let table = source.table("copied", ReplicaIdentity::Full);
    source.unseen(table, |rows| rows.extend((1..=9).map(|id| row(id % 4, "a\tb\\c\nd", "é"))));
    let start = source.begin(table, run.epoch);
    must("begin_copy", run.destination.begin_copy(start.clone()).await)?;
    let batches = source.copy(&start, 2);
    let write = |index: usize| {
        let batch = batches.get(index).map(Arc::clone);
        async {
            match batch {
                Some(batch) => must("write_rows", run.destination.write_rows(batch).await),
                None => Err(Failure::new("write_rows", "no such batch")),
            }
        }
    };
    write(3).await?;
    write(0).await?;
    write(3).await?;
    if run.destination.declare().copy_in_flight_max > 1 {
        let (left, right) = tokio::join!(write(2), write(1));
        left?;
        right?;
    } else {
        write(2).await?;
        write(1).await?;
    }
    for index in [4, 0, 1, 2, 3, 4] {
        write(index).await?;
    }
    run.finish(&start, batches.len()).await?;
    write(1).await?;
    run.expect("copy batches in any order, some twice", &source, &[table]).await
}

/// CT-10
pub(super) async fn empty_table<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    let table = source.table("empty", ReplicaIdentity::Default);
    run.copy(&mut source, table).await?;
    run.expect("a copy of no rows", &source, &[table]).await?;
    source.commit(|t| t.insert(table, row(1, "first", "")));
    run.write(source.batches(0..1, 1, run.epoch, |_| true)).await?;
    run.expect("its first row", &source, &[table]).await
}

/// CT-11
pub(super) async fn vanished_rows<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (mut run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    let table = source.table("vanished", ReplicaIdentity::Default);
    let other = source.table("other", ReplicaIdentity::Default);
    source.unseen(table, |rows| rows.extend((1..=5).map(|id| row(id, "copied", ""))));
    run.copy(&mut source, table).await?;
    run.copy(&mut source, other).await?;
    source.commit(|t| {
        t.insert(table, row(6, "written by the main lane", ""));
        t.insert(other, row(1, "stays", ""));
    });
    run.write(source.batches(0..source.events(), 8, run.epoch, |_| true)).await?;
    run.expect("before the copy is repeated", &source, &[table, other]).await?;
    source.unseen(table, |rows| {
        rows.retain(|row| row.0.first() == Some(&Some("3".to_owned())));
        rows.push(row(7, "only in the new snapshot", ""));
    });
    run.copy(&mut source, table).await?;
    run.expect("after it", &source, &[table, other]).await?;
    source.unseen(table, Vec::clear);
    run = run.crash().await?;
    run.copy(&mut source, table).await?;
    run.expect("after a copy of no rows", &source, &[table, other]).await
}

/// CT-12
pub(super) async fn foreign_rows<S: Subject>(subject: &S) -> Result<(), Failure> {
    let mut source = Source::new();
    let table = source.table("foreign", ReplicaIdentity::Default);
    let schema = source.schema(table);
    let Some(planted) = subject.plant(&schema) else { return Ok(()) };
    let run = Run::start(subject, FIRST).await?;
    let step = "a fresh copy onto rows of somebody else";
    let Err(error) = run.destination.begin_copy(source.begin(table, run.epoch)).await else {
        return Err(Failure::new(step, "was begun"));
    };
    let manual = error.class == DestinationClass::Manual;
    require(manual, step, format!("has the class {:?}", error.class))?;
    require(error.tables == [table], step, format!("names the tables {:?}", error.tables))?;
    let said = error.message.contains("target not empty");
    require(said, step, format!("says only {:?}", error.message))?;
    holds(subject, step, &schema, &[planted])
}

/// CT-12, DS-05: the rows stay, whoever wrote them, and so does the watermark of the attempt before.
pub(super) async fn adopted_rows<S: Subject>(subject: &S) -> Result<(), Failure> {
    let mut source = Source::new();
    // Of another pipeline's life, so that the case before does not matter.
    let _unused = source.table("unused", ReplicaIdentity::Default);
    let table = source.table("adopted", ReplicaIdentity::Default);
    let empty = source.table("adopted and empty", ReplicaIdentity::Default);
    let planted = subject.plant(&source.schema(table));
    source.unseen(table, |rows| rows.extend(planted));
    let mut run = Run::start(subject, Epoch(2)).await?;
    for table in [table, empty] {
        let start = source.adopt(table, run.epoch);
        must("begin_copy that adopts", run.destination.begin_copy(start).await)?;
    }
    run.expect("after the adoption", &source, &[table, empty]).await?;
    for id in [1, 2, 3] {
        source.commit(|t| {
            t.insert(table, row(id, "new", ""));
            t.insert(empty, row(id, "new", ""));
        });
    }
    source.commit(|t| {
        t.update(table, 1, row(1, "changed", ""), &[]);
        t.delete(table, 2);
    });
    run.write(source.batches(0..source.events(), 2, run.epoch, |_| true)).await?;
    run.expect("its changes", &source, &[table, empty]).await?;
    for again in ["in the same process", "after a crash"] {
        let start = source.adopt(table, run.epoch);
        must("begin_copy that adopts again", run.destination.begin_copy(start).await)?;
        let step = format!("after an adoption of what was adopted, {again}");
        run.expect(&step, &source, &[table, empty]).await?;
        run.write(source.batches(0..source.events(), 3, run.epoch, |_| true)).await?;
        run.expect(&format!("{step}, all changes once more"), &source, &[table, empty]).await?;
        run = run.crash().await?;
    }
    Ok(())
}
