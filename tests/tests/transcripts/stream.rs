//! The main stream: batches, flushes, idle positions (X, F, A).

use core::time::Duration;

use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::ids::{Lane, StreamId};
use walferry_tests::coverage::reached;
use walferry_tests::world::MAIN;
use walferry_tests::world::row::Row;
use walferry_tests::world::source::Edit;

use crate::stage::{A, B, Stage};

fn is_main_write(work: &Work<Row>) -> bool {
    matches!(work, Work::WriteChanges(batch) if matches!(batch.lane, Lane::Main))
}

// A-14, A-I5: only when nothing is owed
#[test]
fn an_idle_position_waits_for_everything_that_is_owed() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.world.source.unpublished(16 << 20);
    stage.say("a keepalive while the write is in flight, and the answer is only Accepted");
    stage.world.keepalive(MAIN, true, false);
    stage.world.perform_first(Durability::Accepted, is_main_write);
    while stage.world.working().iter().all(|(_, work)| !matches!(work, Work::Flush { .. })) {
        stage.world.jump();
    }
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("A-I5");
}

// F-02: a lane that is never idle is flushed all the same
#[test]
fn a_flush_that_is_due_goes_before_the_next_batch() {
    let mut stage = Stage::with(1, |config| {
        config.limits.flush_batches = 2;
        config.limits.memory_bytes = 32 << 20;
    });
    stage.ready();
    for key in 1..=4 {
        // Each fills a batch, so that the next one always waits behind the one in flight.
        stage.world.source.commit(&[Edit::Put(A, key)], 1, 1, 9 << 20);
        stage.read_main();
    }
    stage.world.perform_first(Durability::Accepted, is_main_write);
    stage.world.perform_first(Durability::Accepted, is_main_write);
    let flush = |work: &Work<Row>| matches!(work, Work::Flush { .. });
    assert!(stage.world.working().iter().any(|(_, work)| flush(work)), "two are owed (F-02)");
    insta::assert_snapshot!(stage.text());
}

// H-05, X-02: m stands inside the transaction that main has dispatched in part
#[test]
fn a_table_is_not_handed_over_between_two_parts_of_a_transaction() {
    let mut stage = Stage::with(1, |config| config.limits.batch_events = 2);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    stage.commit(&[Edit::Put(A, 1), Edit::Put(A, 2)]);
    stage.world.deliver(MAIN, 3);
    stage.settle();
    stage.world.trace.take();
    stage.say("the private stream is at the start of the transaction, main inside it");
    stage.world.keepalive(StreamId::Copy(A), true, false);
    stage.settle();
    stage.read_copy(A);
    stage.settle();
    stage.read_main();
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("H-F3");
}

// DS-02: a lane that asked for a flush in vain and wants none any more holds nobody up
#[test]
fn main_does_not_wait_behind_a_lane_that_wants_nothing() {
    let mut stage = Stage::with(2, |config| {
        config.limits.copy_concurrency = 1;
        config.destination.lanes_max = 1;
    });
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { table, .. } if *table == B));
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.settle();
    stage.say("a fence for b has opened by time: main runs free for a while (W-17)");
    stage.world.advance(Duration::from_secs(2));
    stage.commit(&[Edit::Put(A, 2), Edit::Put(B, 1)]);
    stage.read_main();
    stage.finish(is_main_write);
    stage.world.trace.take();
    stage.say("b writes, main waits for its turn");
    stage.read_copy(B);
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.world.perform_first(Durability::Accepted, |work| matches!(work, Work::WriteChanges(_)));
    stage.say("main writes, b has reached it and waits for a flush");
    stage.read_copy(B);
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.say("main moves on: b has to read on before it needs the flush");
    stage.finish(is_main_write);
    let writes = stage.world.working().iter().any(|(_, work)| is_main_write(work));
    assert!(writes, "main writes at once: {:?}", stage.world.working());
    insta::assert_snapshot!(stage.text());
}

// H-F4, W-09: one byte below main the replay goes on; at main and one byte past it is handed over
#[test]
fn the_replay_ends_one_byte_below_at_or_past_main() {
    for (past, handed_over) in [(0, false), (1, true), (2, true)] {
        let mut stage = Stage::new(1);
        stage.world.start();
        stage.until(|work| matches!(work, Work::ReadRange { .. }));
        stage.commit(&[Edit::Put(A, 1)]);
        // Main goes one byte past the commit, the replay to its end, and one or two bytes further.
        stage.world.source.unpublished(1);
        stage.read_main();
        stage.world.advance(Duration::from_secs(10));
        stage.world.keepalive(MAIN, true, false);
        stage.settle();
        let main = stage.world.pipeline().map(|pipeline| pipeline.view().positions.dispatched);
        assert_eq!(main, Some(stage.world.source.head));
        stage.read_copy(A);
        stage.settle();
        if past > 0 {
            stage.world.source.unpublished(past - 1);
            stage.world.keepalive(StreamId::Copy(A), true, false);
            stage.settle();
        }
        let record = stage.world.store.persisted();
        let entry = record.and_then(|record| record.tables.get(&A));
        let handover = entry.and_then(|entry| entry.phase.handover());
        assert_eq!(handover.is_some(), handed_over, "{past}");
        let ready = |h: walferry_core::lsn::Position| Some(h) == main;
        assert_eq!(handover.map(ready), handed_over.then_some(past == 1), "{past}");
    }
    reached("H-F4");
}

// W-F2: the private stream is lost inside a transaction, and the attempt starts again
#[test]
fn a_private_stream_is_lost_inside_a_transaction() {
    let mut stage = Stage::new(1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    stage.commit(&[Edit::Put(A, 1), Edit::Put(A, 2)]);
    stage.read_main();
    stage.settle();
    stage.world.deliver(StreamId::Copy(A), 3);
    let fault = Fault::new(Origin::Source, FaultKind::Transport, "reset");
    stage.world.end_stream(StreamId::Copy(A), fault);
    assert!(stage.world.hits().any(|point| point == "W-F2"));
    stage.world.heal();
}

// A-F8, A-I5: a keepalive between the fragments of a transaction moves nothing
#[test]
fn a_keepalive_inside_a_transaction() {
    let mut stage = Stage::with(1, |config| config.limits.batch_events = 1);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1), Edit::Put(A, 2)]);
    stage.world.deliver(MAIN, 3);
    stage.settle();
    let before = stage.world.pipeline().map(|pipeline| pipeline.view().positions);
    stage.world.keepalive(MAIN, true, false);
    assert_eq!(stage.world.pipeline().map(|pipeline| pipeline.view().positions), before);
    assert!(stage.world.hits().any(|point| point == "A-F8"));
    stage.world.heal();
}

// W-I2, W-15: main is held for two seconds and not longer, whatever the private stream does
#[test]
fn a_fence_opens_by_time() {
    let mut stage = Stage::with(2, |config| config.limits.copy_concurrency = 1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { table, .. } if *table == B));
    stage.commit(&[Edit::Put(A, 1), Edit::Put(B, 1)]);
    stage.read_main();
    stage.settle();
    assert!(stage.world.has_closed_fence());
    let since = stage.world.now();
    while stage.world.has_closed_fence() {
        stage.world.advance(Duration::from_millis(50));
        stage.settle();
    }
    assert_eq!(stage.world.now().since(since), Duration::from_secs(2));
    stage.world.heal();
    reached("W-I2");
}
