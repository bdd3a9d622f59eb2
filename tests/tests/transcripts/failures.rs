//! What a failure does, and to whom (E, K-23, Q-06, R-11, Y).

use core::time::Duration;

use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::event::Event;
use walferry_core::fault::{DestinationClass, Fault, FaultKind, Origin};
use walferry_core::ids::Session;
use walferry_core::input::Input;
use walferry_core::lsn::{CommitLsn, Lsn};
use walferry_tests::coverage::reached;
use walferry_tests::world::MAIN;
use walferry_tests::world::row::{Change, Row};
use walferry_tests::world::source::{Edit, relation, schema};

use crate::stage::{A, B, Stage, is_save};

/// Lets the oldest work of a kind fail.
fn refuse(stage: &mut Stage, kind: FaultKind, is: impl Fn(&Work<Row>) -> bool) {
    let found = stage.world.working().into_iter().find(|(_, work)| is(work));
    let Some((op, _)) = found else { panic!("no such work: {:?}", stage.world.working()) };
    stage.world.refuse(op, kind);
}

fn destination(class: DestinationClass) -> FaultKind {
    FaultKind::Destination { class }
}

fn lose_main(stage: &mut Stage) {
    stage.world.end_stream(MAIN, Fault::new(Origin::Source, FaultKind::Transport, "reset"));
}

/// Lets time pass until work of a kind is in flight.
fn wait(stage: &mut Stage, is: impl Fn(&Work<Row>) -> bool) {
    for _ in 0..400 {
        if stage.world.working().iter().any(|(_, work)| is(work)) {
            return;
        }
        match stage.world.working().into_iter().next() {
            Some((op, _)) => stage.world.perform(op, Durability::Durable),
            None => stage.world.jump(),
        }
    }
    panic!("never came");
}

// nothing is confirmed, flushed, written or shut down any more
#[test]
fn a_save_fails() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.until(is_save);
    stage.commit(&[Edit::Put(A, 2)]);
    stage.read_main();
    refuse(&mut stage, FaultKind::StoreFailed, is_save);
    stage.say("the next start reads what is there, and gets the rest again");
    stage.world.start();
    stage.settle();
    stage.read_main();
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("R-I4");
    reached("X-F7");
}

// a run that has failed only waits for its save; time and streams mean nothing to it
#[test]
fn a_failed_run_sends_no_feedback_while_its_last_save_is_on_its_way() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.until(is_save);
    stage.say("the write of the second one fails while the first is being saved");
    stage.commit(&[Edit::Put(A, 2)]);
    stage.read_main();
    let class = DestinationClass::Permanent;
    refuse(&mut stage, destination(class), |work| matches!(work, Work::WriteChanges(_)));
    let timeout = stage.world.pipeline().and_then(|pipeline| pipeline.poll_timeout());
    assert_eq!(timeout, None, "a failed run wants to be woken");
    stage.world.keepalive(MAIN, true, true);
    stage.world.advance(Duration::from_secs(30));
    stage.finish(is_save);
    insta::assert_snapshot!(stage.text());
}

// K-23, Y-06, Y-08
#[test]
fn an_attempt_fails_and_is_tried_again() {
    let mut stage = Stage::new(1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    stage.world.trace.take();
    refuse(&mut stage, FaultKind::Transport, |work| matches!(work, Work::ReadRange { .. }));
    stage.settle();
    wait(&mut stage, |work| matches!(work, Work::BeginCopy(_)));
    stage.settle();
    insta::assert_snapshot!(stage.text());
}

// Y-06, L-05: the other table and main go on
#[test]
fn an_attempt_fails_for_good() {
    let mut stage = Stage::with(2, |config| config.limits.copy_concurrency = 1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::BeginCopy(_)));
    stage.world.trace.take();
    let class = DestinationClass::Permanent;
    refuse(&mut stage, destination(class), |work| matches!(work, Work::BeginCopy(_)));
    stage.settle();
    stage.commit(&[Edit::Put(A, 1), Edit::Put(B, 1)]);
    stage.read_main();
    stage.settle();
    insta::assert_snapshot!(stage.text());
}

// U-14, Y-08: the delay of a timed table begins when the run does
#[test]
fn a_timed_table_is_tried_again_however_long_start_up_takes() {
    let mut stage = Stage::new(1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    refuse(&mut stage, FaultKind::Transport, |work| matches!(work, Work::ReadRange { .. }));
    stage.settle();
    stage.crash();
    stage.world.trace.take();
    stage.world.start();
    stage.until(|work| matches!(work, Work::Startup { .. }));
    stage.say("the destination takes a minute to start");
    for _ in 0..12 {
        stage.world.advance(Duration::from_secs(5));
        stage.world.keepalive(MAIN, false, false);
    }
    stage.settle();
    wait(&mut stage, |work| matches!(work, Work::OpenSnapshot { .. }));
    insta::assert_snapshot!(stage.text());
    reached("Y-F1");
}

// an outage of something else uses up nobody's tries
#[test]
fn the_main_stream_is_lost_while_a_table_is_copied() {
    let mut stage = Stage::with(1, |config| config.limits.main_retries_max = 0);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    stage.world.trace.take();
    lose_main(&mut stage);
    stage.finish(is_save);
    insta::assert_snapshot!(stage.text());
}

// an attempt that is not saved yet leaves no trace
#[test]
fn the_main_stream_is_lost_while_an_attempt_is_not_saved_yet() {
    let mut stage = Stage::with(3, |config| {
        config.limits.copy_concurrency = 2;
        config.limits.main_retries_max = 0;
    });
    stage.world.start();
    stage.until(|work| matches!(work, Work::CloseCopy { .. }));
    stage.world.trace.take();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.finish(|work| matches!(work, Work::WriteChanges(_)));
    stage.say("the copy of c begins while another save is in flight");
    stage.finish(|work| matches!(work, Work::CloseCopy { .. }));
    lose_main(&mut stage);
    stage.finish(is_save);
    stage.finish(is_save);
    insta::assert_snapshot!(stage.text());
}

// K-27: the guard counts what ends at the guard, in a row
#[test]
fn a_table_is_truncated_before_its_lock() {
    let mut stage = Stage::new(1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::OpenSnapshot { .. }));
    stage.world.trace.take();
    for _ in 0..2 {
        stage.until(|work| matches!(work, Work::OpenReader { .. }));
        stage.commit(&[Edit::Put(A, 1), Edit::Truncate(vec![A])]);
        stage.finish(|work| matches!(work, Work::OpenReader { .. }));
    }
    stage.say("the third attempt passes the guard and fails later");
    stage.until(|work| matches!(work, Work::ReadSchema { .. }));
    refuse(&mut stage, FaultKind::Transport, |work| matches!(work, Work::ReadSchema { .. }));
    wait(&mut stage, |work| matches!(work, Work::OpenSnapshot { .. }));
    stage.until(|work| matches!(work, Work::OpenReader { .. }));
    stage.commit(&[Edit::Truncate(vec![A])]);
    stage.finish(|work| matches!(work, Work::OpenReader { .. }));
    insta::assert_snapshot!(stage.text());
    reached("K-F14");
}

fn main_session(stage: &Stage) -> Session {
    stage.world.source.senders[&MAIN].session
}

// D-08 until schema changes come: never guess
#[test]
fn a_relation_differs_from_the_schema_of_its_table() {
    let mut stage = Stage::new(2);
    stage.ready();
    let mut other = (*relation(A)).clone();
    other.columns[1].type_oid = 25;
    let commit = CommitLsn(stage.world.source.head.0);
    let row = |table, ordinal| {
        let new = Some([Some(1)].into());
        let change = Change { key: 9, old: None, new, shape: schema(table).into() };
        Event::Row { table, ordinal, kind: change.kind(), row: Row::Change(change), bytes: 10 }
    };
    let events = vec![
        Event::Begin { commit, time_us: 0 },
        Event::Relation(other.into()),
        row(A, 0),
        Event::Relation(relation(B)),
    ];
    let session = main_session(&stage);
    stage.world.handle(Input::Stream { stream: MAIN, session, events });
    stage.settle();
    insta::assert_snapshot!(stage.text());
}

//
#[test]
fn a_schema_message_outside_of_a_transaction_is_a_protocol_error() {
    let mut stage = Stage::new(1);
    stage.ready();
    let message = |prefix: &str| Event::Message {
        transactional: false,
        lsn: Lsn(1),
        prefix: prefix.into(),
        content: Row::Block(Vec::new()),
        bytes: 0,
    };
    let session = main_session(&stage);
    for prefix in ["audit", "supabase_etl_ddl"] {
        let events = vec![message(prefix)];
        stage.world.handle(Input::Stream { stream: MAIN, session, events });
    }
    insta::assert_snapshot!(stage.text());
}

// B-04, B-05: the target follows the share, and the copy counts itself
#[test]
fn a_batch_of_rows_is_a_quarter_of_the_share() {
    let mut stage = Stage::with(1, |config| config.limits.memory_bytes = 32 << 20);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    let reads = stage.world.working().into_iter();
    let (op, _) = reads.last().expect("the read is in flight");
    let block = Row::Block(Vec::new());
    stage.world.handle(Input::CopyRows { op, block, rows: 1, bytes: 4 << 20 });
    let written = |work: &Work<Row>| matches!(work, Work::WriteRows(_));
    assert!(stage.world.working().iter().any(|(_, work)| written(work)), "32 MiB / 2 / 4 = 4 MiB");
}

// X-10, F-01, C-10, A-09: durable, saved, confirmed, in this order
#[test]
fn accepted_work_is_flushed_saved_and_confirmed() {
    let mut stage = Stage::with(1, |config| config.limits.flush_batches = 2);
    stage.ready();
    for key in 1..=2 {
        stage.commit(&[Edit::Put(A, key)]);
        stage.read_main();
        stage.world.settle(Durability::Accepted);
    }
    insta::assert_snapshot!(stage.text());
}

// L-I3, Q-05: whatever fails in it, a stop ends within its budget, and says what failed
#[test]
fn a_failure_in_a_stop_ends_within_the_budget_of_the_stop() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.until(is_save);
    stage.commit(&[Edit::Put(A, 2)]);
    stage.read_main();
    stage.world.stop();
    stage.say("the save never returns, and the destination refuses what is drained");
    refuse(&mut stage, destination(DestinationClass::Manual), |work| {
        matches!(work, Work::WriteChanges(_))
    });
    stage.say("the save is waited for until the budget of the stop is used up");
    stage.world.advance(Duration::from_secs(30));
    insta::assert_snapshot!(stage.text());
    reached("L-I3");
    reached("R-F10");
}
