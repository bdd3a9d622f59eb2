//! Cases of `write_changes`.

use walferry_core::fault::DestinationClass;
use walferry_core::ids::{Epoch, TableId};
use walferry_core::schema::ReplicaIdentity;

use super::run::Run;
use super::source::{Row, Source, row};
use super::{Failure, Subject, require};
use crate::contract::Destination;

const FIRST: Epoch = Epoch(1);

/// Two tables, one keyed and one with identity FULL that holds equal rows, copied; then changes of
/// all kinds.
async fn story<S: Subject>(run: &Run<'_, S>, source: &mut Source) -> Result<[TableId; 2], Failure> {
    let keyed = source.table("keyed", ReplicaIdentity::Default);
    let full = source.table("full", ReplicaIdentity::Full);
    source.unseen(keyed, |rows| rows.extend((1..=5).map(|id| row(id, "copied", "x"))));
    source.unseen(full, |rows| rows.extend([row(1, "twin", ""), row(1, "twin", "")]));
    run.copy(source, keyed).await?;
    run.copy(source, full).await?;
    source.commit(|t| {
        t.insert(keyed, row(6, "new\n\t\\ \"quoted\"", "é"));
        t.update(keyed, 1, Row(vec![Some("1".to_owned()), None, Some(String::new())]), &[]);
        t.delete(full, 1);
    });
    source.commit(|t| {
        t.delete(keyed, 2);
        t.insert(full, row(7, "007", "NULL"));
        t.update(full, 1, row(8, "was a twin", "\\N"), &[]);
        t.insert(keyed, row(2, "again", "y"));
    });
    source.commit(|t| t.truncate(&[full]));
    source.commit(|t| {
        t.insert(full, row(9, "after", "truncate"));
        t.insert(full, row(9, "after", "truncate"));
        t.update(keyed, 3, row(30, "moved", "z"), &[]);
        t.delete(keyed, 4);
    });
    Ok([keyed, full])
}

/// CT-01
pub(super) async fn each_batch_once_more<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    let tables = story(&run, &mut source).await?;
    for batch in source.batches(0..source.events(), 3, run.epoch, |_| true) {
        run.write(vec![batch.clone(), batch]).await?;
    }
    run.expect("each batch twice", &source, &tables).await
}

/// CT-02
pub(super) async fn every_suffix_cut_otherwise<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    let tables = story(&run, &mut source).await?;
    let all = source.events();
    run.write(source.batches(0..all, 4, run.epoch, |_| true)).await?;
    for from in (0..all).rev() {
        for size in [1, 3, all] {
            run.write(source.batches(from..all, size, run.epoch, |_| true)).await?;
            let step = format!("replay from event {from} in batches of {size}");
            run.expect(&step, &source, &tables).await?;
        }
    }
    Ok(())
}

/// CT-06
pub(super) async fn key_changes<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    let table = source.table("keys", ReplicaIdentity::Default);
    source.unseen(table, |rows| rows.extend([row(1, "one", "1"), row(2, "two", "2")]));
    run.copy(&mut source, table).await?;
    source.commit(|t| t.update(table, 1, row(3, "one moved", "1"), &[]));
    source.commit(|t| {
        t.update(table, 3, row(9, "one", "1"), &[]);
        t.update(table, 2, row(3, "two", "2"), &[]);
        t.update(table, 9, row(2, "one", "1"), &[]);
    });
    run.write(source.batches(0..1, 1, run.epoch, |_| true)).await?;
    run.write(source.batches(1..source.events(), 8, run.epoch, |_| true)).await?;
    run.expect("a key moved, then two keys swapped", &source, &[table]).await
}

/// CT-07
pub(super) async fn unchanged_values<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    let keyed = source.table("toast", ReplicaIdentity::Default);
    let full = source.table("toast_full", ReplicaIdentity::Full);
    for table in [keyed, full] {
        source.unseen(table, |rows| rows.extend((1..=3).map(|id| row(id, "before", "large"))));
        run.copy(&mut source, table).await?;
    }
    source.commit(|t| {
        for table in [keyed, full] {
            t.update(table, 1, row(1, "no old key", ""), &[2]);
            t.update(table, 2, row(20, "new key", ""), &[2]);
            t.update(table, 3, row(3, "", ""), &[1, 2]);
        }
    });
    run.write(source.batches(0..source.events(), 8, run.epoch, |_| true)).await?;
    run.expect("large values did not change", &source, &[keyed, full]).await
}

/// CT-08
pub(super) async fn truncates<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    let tables = ["a", "b", "c"].map(|name| source.table(name, ReplicaIdentity::Default));
    let [a, b, c] = tables;
    for table in tables {
        source.unseen(table, |rows| rows.push(row(1, "copied", "")));
        run.copy(&mut source, table).await?;
    }
    source.commit(|t| {
        t.insert(a, row(2, "before", ""));
        t.insert(c, row(2, "stays", ""));
        t.truncate(&[a, b]);
        t.insert(b, row(1, "after", ""));
        t.insert(a, row(2, "after", ""));
        t.truncate(&[b]);
        t.insert(b, row(3, "last", ""));
    });
    for size in [8, 3, 1] {
        run.write(source.batches(0..source.events(), size, run.epoch, |_| true)).await?;
        run.expect("truncates among rows", &source, &tables).await?;
    }
    Ok(())
}

/// CT-14
pub(super) async fn watermarks_are_per_table<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    let tables = ["ahead", "behind"].map(|name| source.table(name, ReplicaIdentity::Default));
    let [ahead, behind] = tables;
    for table in tables {
        run.copy(&mut source, table).await?;
    }
    for id in 1..=3 {
        source.commit(|t| {
            t.insert(behind, row(id, "late", ""));
            t.insert(ahead, row(id, "early", ""));
        });
    }
    let all = source.events();
    run.write(source.batches(0..all, 8, run.epoch, |table| table == ahead)).await?;
    // After a re-opening the stream starts below, with a table that was handed over meanwhile.
    run.write(source.batches(0..all, 8, run.epoch, |_| true)).await?;
    run.expect("one table lagged behind another", &source, &tables).await
}

/// CT-16
pub(super) async fn one_key_again_and_again<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    let table = source.table("again", ReplicaIdentity::Default);
    run.copy(&mut source, table).await?;
    source.commit(|t| {
        t.insert(table, row(1, "first", ""));
        t.delete(table, 1);
        t.insert(table, row(1, "second", ""));
    });
    source.commit(|t| {
        t.delete(table, 1);
        t.insert(table, row(1, "third", ""));
        t.insert(table, row(2, "gone", ""));
        t.delete(table, 2);
    });
    run.write(source.batches(0..source.events(), 16, run.epoch, |_| true)).await?;
    run.expect("insert, delete, insert", &source, &[table]).await
}

/// CT-18
pub(super) async fn errors_name_their_table<S: Subject>(subject: &S) -> Result<(), Failure> {
    let (run, mut source) = (Run::start(subject, FIRST).await?, Source::new());
    let tables = ["good", "bad"].map(|name| source.table(name, ReplicaIdentity::Default));
    let [good, bad] = tables;
    for table in tables {
        run.copy(&mut source, table).await?;
    }
    source.commit(|t| {
        t.insert(good, row(1, "before", ""));
        t.poison(bad);
        t.insert(good, row(2, "after", ""));
    });
    let step = "a row that cannot be written";
    for batch in source.batches(0..source.events(), 8, run.epoch, |_| true) {
        let Err(error) = run.destination.write_changes(batch).await else {
            return Err(Failure::new(step, "was written"));
        };
        let lasting = matches!(error.class, DestinationClass::Permanent | DestinationClass::Manual);
        require(lasting, step, format!("has the class {:?}", error.class))?;
        require(error.tables == [bad], step, format!("names the tables {:?}", error.tables))?;
        require(error.no_effect_on_others, step, "does not say that others are untouched")?;
    }
    // The quarantine of X-14: the same batch without the table at fault.
    run.write(source.batches(0..source.events(), 8, run.epoch, |table| table == good)).await?;
    run.expect("the batch without the bad table", &source, &[good]).await
}
