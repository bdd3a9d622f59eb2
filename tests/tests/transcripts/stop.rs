//! The orderly stop (Q), and runs that end by themselves (L-08).

use core::time::Duration;

use walferry_core::batch::Durability;
use walferry_core::config::Until;
use walferry_core::effect::Work;
use walferry_core::fault::{Fault, FaultKind, Origin, SqlState};
use walferry_core::input::{Input, Request};
use walferry_tests::coverage::reached;
use walferry_tests::world::MAIN;
use walferry_tests::world::row::Row;
use walferry_tests::world::source::Edit;

use crate::stage::{A, B, Stage};

const fn is_copying(work: &Work<Row>) -> bool {
    matches!(work, Work::ReadRange { .. })
}

// Q-01..Q-03, Q-I1
#[test]
fn stop_in_order() {
    let mut stage = Stage::with(2, |config| config.limits.copy_concurrency = 1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { table, .. } if *table == B));
    stage.world.trace.take();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.commit(&[Edit::Put(A, 2), Edit::Put(A, 3)]);
    stage.say("b is copied; main has read one transaction and a part of the next");
    stage.world.deliver(MAIN, 6);
    stage.world.stop();
    stage.world.settle(Durability::Accepted);
    insta::assert_snapshot!(stage.text());
    reached("Q-I1");
    reached("Q-F2");
}

// L-03, Q-04
#[test]
fn stop_during_start_up() {
    let mut stage = Stage::new(1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::CreateSlot { .. }));
    stage.world.trace.take();
    stage.world.stop();
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("L-F1");
}

// nothing follows the end, whatever else was due
#[test]
fn stop_takes_too_long() {
    let mut stage = Stage::with(1, |config| config.limits.feedback_ms = 30_000);
    stage.world.start();
    stage.until(is_copying);
    stage.world.trace.take();
    stage.world.stop();
    stage.say("the driver wakes the core late: the budget is used up, and feedback is due as well");
    stage.world.advance(Duration::from_secs(40));
    insta::assert_snapshot!(stage.text());
}

//
#[test]
fn stop_now() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.world.stop();
    stage.world.handle(Input::Request(Request::StopNow));
    insta::assert_snapshot!(stage.text());
    reached("Q-F4");
}

// Y-02, Q: the stop was asked for before the cause of the loss was known
#[test]
fn stop_while_the_cause_of_a_lost_stream_is_looked_up() {
    let mut stage = Stage::new(1);
    stage.ready();
    let kind = FaultKind::Server { code: SqlState(*b"XX000") };
    stage.world.end_stream(MAIN, Fault::new(Origin::Source, kind, "a server error"));
    stage.world.stop();
    stage.settle();
    insta::assert_snapshot!(stage.text());
}

// L-08, A-14 without its pace
#[test]
fn until_caught_up() {
    let mut stage = Stage::with(1, |config| config.until = Some(Until::CaughtUp));
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadWalPosition));
    stage.world.trace.take();
    stage.world.source.unpublished(8);
    stage.commit(&[Edit::Put(A, 1)]);
    stage.world.source.unpublished(8);
    stage.settle();
    stage.read_main();
    stage.settle();
    stage.say("the transaction is durable, the WAL behind it is not: a keepalive is asked for");
    stage.world.jump();
    stage.world.keepalive(MAIN, true, false);
    stage.settle();
    insta::assert_snapshot!(stage.text());
}
