//! The main stream is opened again, and start-up repeats itself (U-02).

use walferry_core::batch::{DeliveryClass, Durability};
use walferry_core::effect::Work;
use walferry_core::fault::{DestinationClass, Fault, FaultKind, Origin, SqlState};
use walferry_tests::world::MAIN;
use walferry_tests::world::source::Edit;

use crate::stage::{A, B, Stage, is_save};

fn lose_main(stage: &mut Stage, kind: FaultKind) {
    stage.world.end_stream(MAIN, Fault::new(Origin::Source, kind, "reset"));
}

/// Lets time pass until the delay of the main scope is over.
fn wait_for_retry(stage: &mut Stage) {
    for _ in 0..20 {
        if stage.world.working().iter().any(|(_, work)| matches!(work, Work::Identify)) {
            return;
        }
        stage.world.jump();
    }
    panic!("no retry");
}

fn is_write(work: &Work<walferry_tests::world::row::Row>) -> bool {
    matches!(work, Work::WriteChanges(_))
}

// what was accepted and not durable is sent again; the write in flight is waited for
#[test]
fn the_main_stream_is_lost_while_work_is_owed() {
    let mut stage = Stage::with(1, |config| config.destination.class = DeliveryClass::Append);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.world.perform_first(Durability::Accepted, is_write);
    stage.commit(&[Edit::Put(A, 2)]);
    stage.read_main();
    lose_main(&mut stage, FaultKind::Transport);
    stage.say("the write in flight is waited for");
    stage.world.perform_first(Durability::Accepted, is_write);
    stage.say("the delay passes, then the checks of A-03");
    wait_for_retry(&mut stage);
    stage.say("what was owed before is flushed first: a sink that lost it can say so (DS-03)");
    stage.settle();
    stage.read_main();
    stage.settle();
    insta::assert_snapshot!(stage.text());
}

// X-13, H-08: copies go on, and a table may be handed over at the checkpoint
#[test]
fn a_copy_goes_on_while_the_main_stream_is_opened_again() {
    let mut stage = Stage::new(2);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    stage.world.trace.take();
    lose_main(&mut stage, FaultKind::Server { code: SqlState(*b"57P01") });
    stage.say("one inspection names the cause (Y-02): the server only restarted");
    stage.settle();
    stage.world.jump();
    stage.settle();
    insta::assert_snapshot!(stage.text());
}

// F-04: durability of shared work is unknown, so nothing of it counts
#[test]
fn a_flush_of_the_main_lane_fails() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.world.perform_first(Durability::Accepted, is_write);
    stage.world.jump();
    let class = DestinationClass::Transient { retry_after: None };
    let flush = stage.world.working().into_iter().find(|(_, w)| matches!(w, Work::Flush { .. }));
    let Some((op, _)) = flush else { panic!("no flush: {:?}", stage.world.working()) };
    stage.world.refuse(op, FaultKind::Destination { class });
    stage.settle();
    wait_for_retry(&mut stage);
    stage.settle();
    stage.read_main();
    stage.settle();
    insta::assert_snapshot!(stage.text());
}

// the re-opening waits until the persisted checkpoint equals the frontier. A save that were
// made later would carry a checkpoint above the new main position (model check, hole 1).
#[test]
fn the_main_stream_is_lost_while_a_checkpoint_is_being_saved() {
    let mut stage = Stage::with(2, |config| config.limits.copy_concurrency = 1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::CloseCopy { .. }));
    stage.world.trace.take();
    stage.commit(&[Edit::Put(A, 1), Edit::Put(B, 1)]);
    stage.read_main();
    stage.finish(is_write);
    stage.say("the save of the checkpoint is in flight");
    lose_main(&mut stage, FaultKind::Transport);
    stage.world.jump();
    stage.say("nothing is checked or opened before it is done");
    stage.finish(is_save);
    stage.settle();
    insta::assert_snapshot!(stage.text());
}

// Y-02, Y-I3
#[test]
fn failures_without_progress_end_the_run() {
    let mut stage = Stage::with(1, |config| config.limits.main_retries_max = 2);
    stage.ready();
    lose_main(&mut stage, FaultKind::Transport);
    for _ in 0..2 {
        stage.settle();
        wait_for_retry(&mut stage);
        let Some((op, _)) = stage.world.working().into_iter().next() else { panic!("nothing") };
        stage.world.refuse(op, FaultKind::Transport);
    }
    insta::assert_snapshot!(stage.text());
}

// U-02: the unit is repeated from its beginning; 57P03 is waited for even without a record
#[test]
fn start_up_repeats_its_unit() {
    let mut stage = Stage::new(1);
    stage.world.start();
    let Some((op, _)) = stage.world.working().into_iter().next() else { panic!("nothing") };
    stage.world.refuse(op, FaultKind::Server { code: SqlState(*b"57P03") });
    stage.world.jump();
    stage.until(|work| matches!(work, Work::CreateSlot { .. }));
    let creating =
        stage.world.working().into_iter().find(|(_, w)| matches!(w, Work::CreateSlot { .. }));
    let Some((op, _)) = creating else { panic!("no creation") };
    stage.world.refuse(op, FaultKind::Transport);
    stage.world.jump();
    stage.until(|work| matches!(work, Work::Startup { .. }));
    insta::assert_snapshot!(stage.text());
}

// U-15: `startup` alone is tried again; the stream stays open and is heard
#[test]
fn the_destination_starts_at_the_second_try() {
    let mut stage = Stage::new(1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::Startup { .. }));
    stage.world.trace.take();
    let Some((op, _)) = stage.world.working().into_iter().next() else { panic!("nothing") };
    let class = DestinationClass::Transient { retry_after: None };
    stage.world.refuse(op, FaultKind::Destination { class });
    for _ in 0..6 {
        stage.world.jump();
    }
    stage.until(|work| matches!(work, Work::OpenSnapshot { .. }));
    insta::assert_snapshot!(stage.text());
}

// Q-F3: stop in a re-opening drains nothing that has to be read again
#[test]
fn a_stop_in_a_re_opening() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    lose_main(&mut stage, FaultKind::Transport);
    stage.world.stop();
    stage.settle();
    stage.say("the next run gets what was not confirmed");
    stage.world.start();
    stage.settle();
    stage.read_main();
    stage.settle();
    insta::assert_snapshot!(stage.text());
}
