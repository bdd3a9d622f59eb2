//! How often and how long (Y, W-I4, O-13).

use core::time::Duration;

use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::fault::FaultKind;
use walferry_core::ids::StreamId;
use walferry_core::record::{Phase, Policy};
use walferry_tests::coverage::reached;
use walferry_tests::world::MAIN;
use walferry_tests::world::row::Row;
use walferry_tests::world::source::Edit;

use crate::play::{go_on, main_slot, phase, record, refuse, wait};
use crate::stage::{A, Stage};

fn reads(work: &Work<Row>) -> bool {
    matches!(work, Work::ReadRange { .. })
}

// Y-I1, Y-06, Y-10: deaths between the failures are not counted
#[test]
fn a_table_that_always_fails_needs_a_person_in_the_end() {
    const RETRIES: u64 = 2;
    let mut stage = Stage::with(1, |config| config.limits.retries_max = RETRIES);
    stage.world.start();
    let mut failures = 0;
    while !matches!(phase_or_pending(&stage), Phase::Errored { policy: Policy::Manual, .. }) {
        wait(&mut stage, reads);
        if failures == 1 {
            stage.crash();
            stage.world.start();
            wait(&mut stage, reads);
        }
        refuse(&mut stage, FaultKind::Transport, reads);
        failures += 1;
        stage.settle();
        assert!(failures <= 1 + RETRIES, "{failures} failures");
    }
    assert_eq!(failures, 1 + RETRIES);
    for _ in 0..200 {
        stage.world.jump();
        stage.settle();
    }
    let found = phase(&stage, A);
    assert!(matches!(found, Phase::Errored { policy: Policy::Manual, .. }), "{found:?}");
    reached("Y-I1");
}

fn phase_or_pending(stage: &Stage) -> Phase {
    let record = stage.world.store.persisted();
    let entry = record.and_then(|record| record.tables.get(&A));
    entry.map_or(Phase::Pending, |entry| entry.phase.clone())
}

// Y-F2: hours pass between two steps, or none at all
#[test]
fn the_clock_jumps() {
    let mut stage = Stage::new(1);
    stage.world.keep_budgets();
    stage.world.start();
    wait(&mut stage, reads);
    refuse(&mut stage, FaultKind::Transport, reads);
    stage.settle();
    for _ in 0..10 {
        stage.world.advance(Duration::ZERO);
        stage.settle();
    }
    let found = phase(&stage, A);
    assert!(matches!(found, Phase::Errored { policy: Policy::Timed, .. }), "no time has passed");
    stage.world.advance(Duration::from_secs(36_000));
    go_on(&mut stage);
    stage.world.heal();
    reached("Y-F2");
}

// W-I4, O-13: under load without an end the copy finishes and WAL does not pile up
#[test]
fn a_copy_ends_under_endless_load() {
    // 200 bytes every 50 ms; every operation takes one such step.
    const BEHIND: u64 = 64 << 10;
    let mut stage = Stage::with(2, |config| config.limits.batch_ms = 500);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { table, .. } if *table == A));
    let mut steps = 0;
    let mut done = None;
    while steps < 4_000 {
        steps += 1;
        stage.world.source.unpublished(199);
        if stage.world.source.may_run(&Edit::Put(A, 1), None) {
            stage.world.source.commit(&[Edit::Put(A, steps % 6 + 1)], 0, 1, 100);
        }
        stage.world.advance(Duration::from_millis(50));
        for op in stage.world.performable() {
            stage.world.perform(op, Durability::Accepted);
        }
        stage.world.deliver(StreamId::Copy(A), 25);
        // Main reads as fast as it is written, the replay five times as fast.
        stage.world.deliver(MAIN, 5);
        if done.is_none() && phase(&stage, A).handover().is_some() {
            done = Some(steps);
        }
        if done.is_some_and(|at| steps > at + 400) {
            let behind = stage.world.source.head.0.0 - main_slot(&mut stage).confirmed.0.0;
            assert!(behind < BEHIND, "{behind} bytes are retained (O-13)");
        }
        stage.world.trace.take();
    }
    let Some(done) = done else { panic!("it never hands over: {:?}", record(&stage)) };
    assert!(done < 2_400, "two minutes are enough: {done} steps");
    stage.world.heal();
    reached("W-I4");
    reached("O-13");
}
