//! Copies and handovers (K, W, H).

use walferry_core::effect::Work;
use walferry_core::ids::StreamId;
use walferry_tests::coverage::reached;
use walferry_tests::world::source::Edit;

use crate::stage::{A, B, C, Stage};

const fn is_snapshot(work: &Work<walferry_tests::world::row::Row>) -> bool {
    matches!(work, Work::OpenSnapshot { .. })
}

fn is_main_write(work: &Work<walferry_tests::world::row::Row>) -> bool {
    matches!(work, Work::WriteChanges(batch) if matches!(batch.lane, walferry_core::ids::Lane::Main))
}

// W-02, H-02: the cutoff is at the main position, or past it
#[test]
fn handover_without_a_private_stream() {
    let mut stage = Stage::with(2, |config| config.limits.copy_concurrency = 1);
    stage.world.start();
    stage.until(is_snapshot);
    stage.say("main is at the head when the snapshot of a is made: Ready at once");
    stage.commit(&[Edit::Put(A, 1), Edit::Put(B, 1)]);
    stage.read_main();
    stage.until(|work| matches!(work, Work::OpenSnapshot { table, .. } if *table == B));
    stage.say("main has not read what the snapshot of b shows: Catchup");
    stage.commit(&[Edit::Put(A, 1), Edit::Put(B, 1)]);
    stage.settle();
    stage.read_main();
    stage.settle();
    insta::assert_snapshot!(stage.text());
}

// W-03, W-08, W-09, H-01
#[test]
fn handover_by_a_private_stream_that_passes_main() {
    let mut stage = Stage::new(1);
    stage.world.start();
    stage.until(is_snapshot);
    stage.world.trace.take();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    stage.say("main reads two transactions while the rows are copied, and drops them");
    stage.commit(&[Edit::Put(A, 1)]);
    stage.commit(&[Edit::Put(A, 2)]);
    stage.read_main();
    stage.until(|work| matches!(work, Work::OpenStream { .. }));
    stage.settle();
    stage.commit(&[Edit::Put(A, 3)]);
    stage.say("the private stream brings them, and what main has not read is left to main");
    stage.read_copy(A);
    stage.settle();
    stage.read_main();
    stage.settle();
    insta::assert_snapshot!(stage.text());
}

// A-14, W-14: without another transaction a keepalive moves the private position past main
#[test]
fn handover_by_keepalive() {
    let mut stage = Stage::new(1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    stage.world.trace.take();
    stage.world.source.unpublished(16 << 20);
    stage.say("main takes an idle position while the rows are copied");
    stage.world.keepalive(StreamId::Main, true, false);
    stage.settle();
    stage.say("the private stream has nothing to read and asks");
    while !stage.world.source.senders[&StreamId::Copy(A)].reply_due {
        stage.world.jump();
    }
    stage.world.keepalive(StreamId::Copy(A), true, false);
    stage.settle();
    insta::assert_snapshot!(stage.text());
}

// J-04
#[test]
fn truncate_of_tables_with_mixed_ownership() {
    let mut stage = Stage::with(3, |config| {
        config.limits.copy_concurrency = 1;
        config.limits.fence_bytes = 4_096;
    });
    stage.world.start();
    stage.until(|work| matches!(work, Work::OpenSnapshot { table, .. } if *table == C));
    stage.world.trace.take();
    stage.say("a and b are Ready; main is past the snapshot of c, so c needs its private stream");
    stage.finish(is_snapshot);
    stage.say("and too far for a fence");
    stage.world.source.unpublished(8_192);
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.settle();
    stage.world.trace.take();
    stage.commit(&[Edit::Put(C, 1), Edit::Truncate(vec![A, B, C]), Edit::Put(C, 2)]);
    stage.read_main();
    stage.read_copy(C);
    stage.settle();
    insta::assert_snapshot!(stage.text());
}

// Y-10, DS-05
#[test]
fn death_while_copying() {
    let mut stage = Stage::with(1, |config| config.limits.retries_max = 1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::WriteRows(_)));
    stage.world.trace.take();
    stage.crash();
    stage.world.start();
    stage.until(|work| matches!(work, Work::WriteRows(_)));
    stage.say("a second death is one too many: the others get room to go on");
    stage.crash();
    stage.world.start();
    stage.settle();
    stage.say("the delay has passed");
    while !stage.world.working().iter().any(|(_, work)| matches!(work, Work::Save { .. })) {
        stage.world.jump();
    }
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("Y-F5");
}

// H-F2, H-03: main wrote changes of the table before the handover was saved
#[test]
fn crash_between_a_handover_and_its_save() {
    let mut stage = Stage::new(1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::CloseReaders { .. }));
    stage.finish(|work| matches!(work, Work::CloseReaders { .. }));
    stage.world.trace.take();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.say("the handover is decided, its save is in flight, and main goes on");
    stage.read_main();
    stage.finish(is_main_write);
    stage.crash();
    stage.world.start();
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("H-F2");
}
