//! Cases of crashes, late calls and durability.

use std::sync::Arc;

use walferry_core::batch::{Batch, Durability};
use walferry_core::fault::DestinationClass;
use walferry_core::ids::{Attempt, Epoch, Lane, TableId};
use walferry_core::schema::ReplicaIdentity;

use super::run::{Run, must, same};
use super::source::{Source, row};
use super::{Failure, Subject, require};
use crate::contract::{Destination, DestinationError};

const FIRST: Epoch = Epoch(1);

/// CT-03
pub(super) async fn between_fragments<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (mut run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    let table = source.table("fragments", ReplicaIdentity::Full);
    run.copy(&mut source, table).await?;
    source.commit(|t| {
        for id in 1..=3 {
            t.insert(table, row(id, "a", ""));
            t.insert(table, row(id, "a", ""));
            t.update(table, id, row(id, "b", ""), &[]);
        }
        t.delete(table, 2);
    });
    let all = source.events();
    for upto in 1..=all {
        // Nothing of an unfinished transaction moves the checkpoint: all of it comes again.
        run.write(source.batches(0..upto, 2, run.epoch, |_| true)).await?;
        run = run.crash().await?;
    }
    run.write(source.batches(0..all, 3, run.epoch, |_| true)).await?;
    run.expect("a transaction in fragments, a crash after each", &source, &[table]).await
}

/// CT-05
pub(super) async fn between_every_two_operations<S: Subject>(subject: &S) -> Result<(), Failure> {
    const CRASHES: usize = 10;
    let (mut run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    for crash_after in 0..CRASHES {
        let table = source.table(&format!("crash{crash_after}"), ReplicaIdentity::Full);
        source.unseen(table, |rows| rows.extend((1..=4).map(|id| row(id, "copied", ""))));
        let first = source.events();
        let copied = operate(&run, &mut source, table, crash_after).await?;
        let step = format!("a crash after operation {crash_after}");
        run = run.crash().await?;
        let mut from = first;
        if !copied {
            // A crash in Copying: a new attempt from a new snapshot.
            source.unseen(table, |rows| rows.truncate(3));
            from = source.events();
            run.copy(&mut source, table).await?;
        }
        source.commit(|t| t.insert(table, row(99, step.as_str(), "")));
        run.write(source.batches(from..source.events(), 1, run.epoch, |_| true)).await?;
        run.expect(&step, &source, &[table]).await?;
    }
    Ok(())
}

/// Begins, copies two batches, finishes, flushes and writes four changes, but no more than `left`
/// operations of these. Whether the copy was finished and durable.
async fn operate<S: Subject>(
    run: &Run<'_, S>,
    source: &mut Source,
    table: TableId,
    mut left: usize,
) -> Result<bool, Failure> {
    let mut next = || {
        let go = left > 0;
        left = left.saturating_sub(1);
        go
    };
    let start = source.begin(table, run.epoch);
    if next() {
        must("begin_copy", run.destination.begin_copy(start.clone()).await)?;
    }
    let batches = source.copy(&start, 2);
    for batch in &batches {
        if next() {
            must("write_rows", run.destination.write_rows(Arc::clone(batch)).await)?;
        }
    }
    let mut copied = false;
    if next() {
        let sequences = batches.len() as u64;
        let done = run.destination.finish_copy(table, start.attempt, run.epoch, sequences).await;
        copied = must("finish_copy", done)? == Durability::Durable;
    }
    if next() {
        must("flush", run.destination.flush(Lane::Table(table)).await)?;
        copied = true;
    }
    if copied {
        let from = source.events();
        source.commit(|t| {
            t.insert(table, row(5, "new", ""));
            t.insert(table, row(5, "new", ""));
        });
        source.commit(|t| {
            t.update(table, 5, row(6, "one of two", ""), &[]);
            t.delete(table, 1);
        });
        for batch in source.batches(from..source.events(), 1, run.epoch, |_| true) {
            if next() {
                must("write_changes", run.destination.write_changes(batch).await)?;
            }
        }
    }
    Ok(copied)
}

/// CT-13
pub(super) async fn late_calls<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    let table = source.table("late", ReplicaIdentity::Full);
    source.unseen(table, |rows| rows.push(row(1, "old snapshot", "")));
    let old = source.begin(table, run.epoch);
    must("begin_copy", run.destination.begin_copy(old.clone()).await)?;
    let old_rows = source.copy(&old, 8);
    source.commit(|t| t.insert(table, row(2, "old change", "")));
    let old_changes = source.batches(0..source.events(), 8, run.epoch, |_| true);
    run.copy(&mut source, table).await?;

    for batch in old_rows {
        harmless("late rows", run.destination.write_rows(batch).await)?;
    }
    for batch in old_changes {
        harmless("late changes", run.destination.write_changes(batch).await)?;
    }
    run.expect("late calls of an older attempt", &source, &[table]).await?;

    let newer = Run::start(subject, Epoch(run.epoch.0 + 1)).await?;
    let from = source.events();
    source.commit(|t| t.insert(table, row(3, "of the newer run", "")));
    let step = "a change of an older run";
    let stale = source.batches(from..source.events(), 8, run.epoch, |_| true);
    for batch in stale {
        match run.destination.write_changes(poisoned(&batch)).await {
            Err(error) if error.class == DestinationClass::Fenced => {}
            Err(error) => return Err(Failure::new(step, format!("failed: {}", error.chain()))),
            Ok(_) => return Err(Failure::new(step, "was taken")),
        }
    }
    newer.write(source.batches(from..source.events(), 8, newer.epoch, |_| true)).await?;
    newer.expect(step, &source, &[table]).await?;
    let again = subject.open();
    let refused = again.startup(super::run::PIPELINE, run.epoch).await;
    let fenced = refused.is_err_and(|error| error.class == DestinationClass::Fenced);
    require(fenced, "startup of an older run", "was not fenced")
}

/// The same event with another content, so that it shows if it took effect.
fn poisoned(batch: &Arc<Batch<bytes::Bytes>>) -> Arc<Batch<bytes::Bytes>> {
    let mut batch = Batch::clone(batch);
    for change in &mut batch.changes {
        change.ordinal += 100;
    }
    Arc::new(batch)
}

/// A late call may succeed without effect or fail, but nobody may think that another try helps.
fn harmless(step: &str, result: Result<Durability, DestinationError>) -> Result<(), Failure> {
    match result.map_err(|error| error.class) {
        Err(DestinationClass::Transient { .. }) => Err(Failure::new(step, "asks to be repeated")),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// CT-15
pub(super) async fn durability<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (mut run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    let table = source.table("durable", ReplicaIdentity::Default);
    run.copy(&mut source, table).await?;
    let mut checkpoint = 0;
    for id in 1..=4 {
        source.commit(|t| t.insert(table, row(id, "written", "")));
        let mut durable = true;
        for batch in source.batches(checkpoint..source.events(), 1, run.epoch, |_| true) {
            let answer = run.destination.write_changes(batch).await;
            durable = must("write_changes", answer)? == Durability::Durable;
        }
        if id % 2 == 0 {
            run.flush().await?;
            durable = true;
        }
        run = run.crash().await?;
        if durable {
            same(subject, "durable work after a crash", &source, &[table])?;
            checkpoint = source.events();
        }
    }
    must("shutdown", run.destination.shutdown().await)?;
    drop(run);
    same(subject, "after an orderly end", &source, &[table])
}

/// CT-17
pub(super) async fn lanes<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    let streaming = source.table("streaming", ReplicaIdentity::Default);
    let replaying = source.table("replaying", ReplicaIdentity::Default);
    run.copy(&mut source, streaming).await?;
    run.copy(&mut source, replaying).await?;
    for id in 1..=3 {
        source.commit(|t| {
            t.insert(streaming, row(id, "main", ""));
            t.insert(replaying, row(id, "private", ""));
        });
    }
    let all = source.events();
    let main = source.batches(0..all, 2, run.epoch, |table| table == streaming);
    let private = source.batches(0..all, 2, run.epoch, |table| table == replaying);
    let private: Vec<_> = private
        .iter()
        .map(|batch| Arc::new(Batch { lane: Lane::Table(replaying), ..Batch::clone(batch) }))
        .collect();
    if run.destination.declare().lanes_max > 1 {
        let (left, right) = tokio::join!(run.write(main), run.write(private.clone()));
        left?;
        right?;
        let other = Lane::Table(replaying);
        let (left, right) = tokio::join!(run.flush(), run.destination.flush(other));
        left?;
        must("flush", right)?;
    } else {
        run.write(main).await?;
        run.write(private.clone()).await?;
        run.flush().await?;
    }
    // Only the main lane was flushed for certain: the other one is replayed.
    let run = run.crash().await?;
    same(subject, "the flushed lane after a crash", &source, &[streaming])?;
    let epoch = run.epoch;
    let again = private.iter().map(|batch| Arc::new(Batch { epoch, ..Batch::clone(batch) }));
    run.write(again.collect()).await?;
    let lane = Lane::Table(replaying);
    must("flush", run.destination.flush(lane).await)?;
    must("flush again", run.destination.flush(lane).await)?;
    let run = run.crash().await?;
    run.expect("both lanes", &source, &[streaming, replaying]).await?;
    require(source.begin(replaying, run.epoch).attempt > Attempt(1), "attempts", "do not grow")
}
