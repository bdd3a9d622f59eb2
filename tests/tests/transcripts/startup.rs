//! Start-up: first start, resume, and a crash in each of its steps (U).

use walferry_core::effect::Work;

use crate::stage::{A, Stage, is_save};
use walferry_tests::coverage::reached;
use walferry_tests::world::source::Edit;

// U-I1, W-02
#[test]
fn first_start() {
    let mut stage = Stage::new(2);
    stage.world.start();
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("U-I1");
}

// U-I1, PG-02
#[test]
fn resume() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.settle();
    stage.commit(&[Edit::Put(A, 2)]);
    stage.say("the process dies while the second one is on its way");
    stage.read_main();
    stage.crash();
    stage.world.start();
    stage.settle();
    stage.read_main();
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("U-I1");
}

/// Runs a first start up to the point where `reached` is in flight, then crashes and starts again.
fn crash_when(
    story: &str,
    reached: impl Fn(&Work<walferry_tests::world::row::Row>) -> bool,
) -> String {
    let mut stage = Stage::new(1);
    stage.world.start();
    stage.until(reached);
    stage.say(story);
    stage.crash();
    stage.world.start();
    stage.until(|work| matches!(work, Work::Startup { .. }));
    stage.text()
}

// U-F1
#[test]
fn crash_before_the_intent_is_saved() {
    insta::assert_snapshot!(crash_when("U-F1: nothing is durable", is_save));
    reached("U-F1");
}

// U-F2
#[test]
fn crash_before_the_slot_is_created() {
    let text = crash_when("U-F2: the intent is durable, there is no slot", |work| {
        matches!(work, Work::CreateSlot { .. })
    });
    insta::assert_snapshot!(text);
    reached("U-F2");
}

// U-F3, M-07
#[test]
fn crash_before_the_positions_are_saved() {
    let text = crash_when(
        "U-F3: the slot is there, its position is not saved",
        |work| matches!(work, Work::Save { record, .. } if record.initial_lsn.is_some()),
    );
    insta::assert_snapshot!(text);
    reached("U-F3");
}

// U-F4
#[test]
fn crash_before_the_tables_are_saved() {
    let text = crash_when(
        "U-F4: positions are durable, there is no table",
        |work| matches!(work, Work::Save { record, .. } if !record.tables.is_empty()),
    );
    insta::assert_snapshot!(text);
    reached("U-F4");
}

// U-F5
#[test]
fn crash_before_the_stream_is_open() {
    let text =
        crash_when("U-F5: tables are Pending", |work| matches!(work, Work::OpenStream { .. }));
    insta::assert_snapshot!(text);
    reached("U-F5");
}
