//! Transactions and rows that are larger than the memory they may take (B).

use core::time::Duration;

use walferry_core::Gate;
use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::fault::FaultKind;
use walferry_core::ids::StreamId;
use walferry_core::input::Input;
use walferry_core::record::{Phase, Policy};
use walferry_tests::coverage::reached;
use walferry_tests::world::MAIN;
use walferry_tests::world::row::Row;
use walferry_tests::world::source::Edit;

use crate::play::{find, go_on, has_hit, phase, record, refuse};
use crate::stage::{A, B, Stage};

const MIB: u32 = 1 << 20;

fn small(tables: u32) -> Stage {
    let mut stage = Stage::with(tables, |config| {
        config.limits.memory_bytes = 32 << 20;
        config.limits.batch_ms = 100;
    });
    stage.world.keep_budgets();
    stage
}

fn is_write(work: &Work<Row>) -> bool {
    matches!(work, Work::WriteChanges(_))
}

fn gate(stage: &Stage, stream: StreamId) -> Option<Gate> {
    stage.world.pipeline().map(|pipeline| pipeline.gate(stream))
}

fn rows(number: u32) -> Vec<Edit> {
    (0..number).map(|key| Edit::Put(A, 1 + key % 6)).collect()
}

/// Main is full, and the destination does not answer.
fn full() -> Stage {
    let mut stage = small(2);
    stage.ready();
    stage.world.source.commit(&rows(12), 1, 2, 6 * MIB);
    stage.read_main();
    assert_eq!(gate(&stage, MAIN), Some(Gate::Closed));
    assert!(stage.world.working().iter().any(|(_, work)| is_write(work)));
    stage
}

// A-F7, B-I5, O-14: feedback and stop go on, and one completion makes progress
#[test]
fn every_gate_is_closed_and_the_destination_is_blocked() {
    let mut stage = full();
    has_hit(&stage, "A-F7");
    stage.world.trace.take();
    stage.world.advance(Duration::from_secs(1));
    assert!(stage.text().contains("confirm main"), "feedback is independent of gates (A-09)");
    let before = stage.world.pipeline().map(|pipeline| pipeline.view().held_bytes);
    stage.finish(is_write);
    assert_eq!(gate(&stage, MAIN), Some(Gate::Open), "one completion makes progress");
    assert!(stage.world.pipeline().map(|pipeline| pipeline.view().held_bytes) < before);
    let mut stage = full();
    stage.world.stop();
    stage.settle();
    assert!(!stage.world.is_alive(), "a stop needs no open gate");
    reached("B-I5");
}

// B-F5, B-I3, B-I4: a hundred times the budget passes in pieces
#[test]
fn a_transaction_of_a_hundred_times_the_memory() {
    let mut stage = small(1);
    stage.ready();
    stage.world.source.commit(&rows(400), 1, 2, 8 * MIB);
    let end = stage.world.source.head;
    while record(&stage).checkpoint < Some(end) {
        stage.read_main();
        stage.world.advance(Duration::from_millis(100));
        stage.settle();
    }
    assert_eq!(stage.world.pipeline().map(|pipeline| pipeline.view().held_bytes), Some(0));
    stage.world.heal();
    reached("B-F5");
    reached("B-I4");
}

// B-F4, B-06: one event larger than the share passes when nothing else is held
#[test]
fn a_row_larger_than_the_share() {
    let mut stage = small(1);
    stage.world.expect_events_of(40 << 20);
    stage.ready();
    for key in 1..=3 {
        stage.world.source.commit(&[Edit::Put(A, key)], 1, 2, 40 * MIB);
    }
    let end = stage.world.source.head;
    let mut closed = 0;
    while record(&stage).checkpoint < Some(end) {
        stage.read_main();
        closed += u32::from(gate(&stage, MAIN) == Some(Gate::Closed));
        stage.world.advance(Duration::from_millis(100));
        stage.settle();
    }
    assert!(closed >= 3, "each of them is alone: {closed}");
    stage.world.heal();
    reached("B-F4");
}

// B-F3, B-05: a copy halves the share of a stream that is full
#[test]
fn the_share_shrinks_while_it_is_full() {
    let mut stage = full();
    let held = stage.world.pipeline().map(|pipeline| pipeline.view().held_bytes);
    assert!(held > Some(16 << 20), "more than the half: {held:?}");
    stage.world.request(walferry_core::input::Request::Resync(B));
    let is_main_write = |work: &Work<Row>| is_write(work);
    for _ in 0..100 {
        let others = stage.world.performable().into_iter();
        let working = stage.world.working();
        let blocked = |op| working.iter().any(|(w, work)| *w == op && is_main_write(work));
        let Some(op) = others.into_iter().find(|op| !blocked(*op)) else { break };
        stage.world.perform(op, Durability::Durable);
    }
    assert_eq!(gate(&stage, MAIN), Some(Gate::Closed), "it stays closed");
    stage.world.heal();
    reached("B-F3");
}

// W-F10, B-04: on the private side and on main
#[test]
fn a_transaction_larger_than_the_share_in_replay() {
    let mut stage = small(1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    stage.world.source.commit(&rows(12), 1, 2, 6 * MIB);
    let mut closed = [false; 2];
    for _ in 0..200 {
        for (number, stream) in [MAIN, StreamId::Copy(A)].into_iter().enumerate() {
            stage.world.deliver(stream, 100);
            closed[number] |= gate(&stage, stream) == Some(Gate::Closed);
        }
        let Some(op) = stage.world.performable().into_iter().next() else {
            stage.world.jump();
            continue;
        };
        stage.world.perform(op, Durability::Durable);
    }
    assert_eq!(closed, [true; 2], "both were full");
    stage.world.heal();
    assert!(matches!(phase(&stage, A), Phase::Ready { .. }));
    reached("W-F10");
}

// K-F15: a row larger than the budget passes alone, one larger than a frame stops the table
#[test]
fn a_copied_row_larger_than_the_share() {
    let reads = |work: &Work<Row>| matches!(work, Work::ReadRange { .. });
    let mut stage = small(1);
    stage.world.expect_events_of(40 << 20);
    stage.world.start();
    stage.until(reads);
    let op = find(&stage, reads);
    stage.world.handle(Input::CopyRows {
        op,
        block: Row::Block(Vec::new()),
        rows: 1,
        bytes: 40 << 20,
    });
    assert!(
        stage.world.working().iter().any(|(_, work)| matches!(work, Work::WriteRows(_))),
        "it is a batch of its own"
    );
    let kind = FaultKind::Limit { name: "frame" };
    refuse(&mut stage, kind, reads);
    stage.settle();
    let found = phase(&stage, A);
    assert!(matches!(found, Phase::Errored { policy: Policy::Manual, .. }), "{found:?}");
    go_on(&mut stage);
    stage.world.heal();
    reached("K-F15");
}
