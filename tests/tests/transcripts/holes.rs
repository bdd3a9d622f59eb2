//! The holes that a model check of the rules found in an earlier wording, one story each: what was
//! wrong stands above it, what is right in the text. Each hole is also a patch of `tests/planted`.

use walferry_core::batch::{DeliveryClass, Durability};
use walferry_core::effect::Work;
use walferry_core::fault::{Blame, DestinationClass, Fault, FaultKind, Origin};
use walferry_core::ids::{Lane, StreamId};
use walferry_core::input::Request;
use walferry_core::policies::CopyFilter;
use walferry_tests::coverage::reached;
use walferry_tests::world::row::Row;
use walferry_tests::world::source::Edit;
use walferry_tests::world::{MAIN, TRANSIENT};

use crate::stage::{A, B, Stage, is_save};

fn is_main_write(work: &Work<Row>) -> bool {
    matches!(work, Work::WriteChanges(batch) if batch.lane == Lane::Main)
}

fn is_begin(work: &Work<Row>) -> bool {
    matches!(work, Work::BeginCopy(_))
}

fn is_flush(work: &Work<Row>) -> bool {
    matches!(work, Work::Flush { .. })
}

fn lose_main(stage: &mut Stage) {
    stage.world.end_stream(MAIN, Fault::new(Origin::Source, FaultKind::Transport, "reset"));
}

// Hole 1, X-13: "let a save in flight complete" was not enough. The record in memory may hold a newer
// checkpoint than that save: saved after `m` went back, it was above `m`, and what lay between was
// owed by main and never sent again.
#[test]
fn the_main_stream_is_lost_while_memory_is_ahead_of_the_save_in_flight() {
    let mut stage = Stage::with(1, |config| config.limits.idle_checkpoint_ms = 1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    stage.world.trace.take();
    stage.world.source.unpublished(4);
    stage.world.jump();
    stage.world.keepalive(MAIN, true, false);
    stage.say("the save of an idle position is in flight when main passes a transaction of a");
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    lose_main(&mut stage);
    stage.finish(is_save);
    stage.say("the rest of the record is saved before main goes back to it");
    for _ in 0..3 {
        stage.world.jump();
    }
    stage.settle();
    stage.read_copy(A);
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("X-13");
}

// Hole 2, X-16 and DS-03: a failed batch was offered again at once. A sink that had lost the accepted
// batches before it took it, and its watermark then hid the hole for ever.
#[test]
fn a_write_fails_after_the_sink_has_lost_what_it_accepted() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.world.perform_first(Durability::Accepted, is_main_write);
    stage.commit(&[Edit::Put(A, 2)]);
    stage.read_main();
    stage.say("the connection to the sink breaks: the accepted batch is gone, the next one fails");
    stage.world.lose_accepted(|_| 0);
    refuse(&mut stage, TRANSIENT, Blame::Unstated, is_main_write);
    stage.say("the flush says so, and both are read again");
    stage.finish(is_flush);
    while !stage.world.working().iter().any(|(_, work)| matches!(work, Work::OpenStream { .. })) {
        match stage.world.performable().into_iter().next() {
            Some(op) => stage.world.perform(op, Durability::Durable),
            None => stage.world.jump(),
        }
    }
    stage.settle();
    stage.read_main();
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("DS-03");
}

fn refuse(stage: &mut Stage, kind: FaultKind, blame: Blame, is: impl Fn(&Work<Row>) -> bool) {
    let found = stage.world.working().into_iter().find(|(_, work)| is(work));
    let Some((op, _)) = found else { panic!("no such work: {:?}", stage.world.working()) };
    stage.world.refuse_blaming(op, kind, blame);
}

fn wait_for_main_write(stage: &mut Stage) {
    while !stage.world.working().iter().any(|(_, work)| is_main_write(work)) {
        stage.world.jump();
        stage.finish_all_but(is_main_write);
    }
}

// Hole 3, X-15 and DS-14: a batch that had been offered before kept its events, and carried them into
// the copy that had been made of the table meanwhile, which held them already.
#[test]
fn a_table_is_copied_anew_while_a_failed_batch_waits() {
    let mut stage = Stage::new(2);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1), Edit::Put(B, 1)]);
    stage.read_main();
    refuse(&mut stage, TRANSIENT, Blame::Unstated, is_main_write);
    stage.world.request(Request::Resync(A));
    stage.settle();
    stage.say("the snapshot of a shows the change; what is left of the batch is that of b");
    wait_for_main_write(&mut stage);
    stage.settle();
    stage.say("the same while the batch is in flight: it fails behind the resync");
    stage.commit(&[Edit::Put(A, 1), Edit::Put(B, 1)]);
    stage.read_main();
    stage.world.request(Request::Resync(A));
    refuse(&mut stage, TRANSIENT, Blame::Unstated, is_main_write);
    stage.settle();
    wait_for_main_write(&mut stage);
    stage.settle();
    insta::assert_snapshot!(stage.text());
}

// Hole 4, K-16 and DS-02: the main write and `begin_copy` are on different lanes, so nothing ordered
// them: the write could take effect in the new copy of a sink that remembers no attempt.
#[test]
fn a_table_is_copied_anew_while_main_writes_it() {
    let mut stage = Stage::with(1, |config| {
        config.destination.class = DeliveryClass::Idempotent;
    });
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.world.request(Request::Resync(A));
    stage.finish_all_but(is_main_write);
    stage.say("the attempt waits for the write before it begins its copy");
    stage.finish(is_main_write);
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("K-16");
}

// Hole 5, X-04 and X-05: only the persisted horizon was looked at. A save in flight that lowers it
// left an event in the sink above the horizon, and a promotion below it was accepted.
#[test]
fn a_batch_waits_for_a_save_that_lowers_the_horizon() {
    let mut stage = Stage::with(1, |config| config.limits.policies.slot_failover = true);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.finish(is_save);
    let reserved = stage.horizon();
    stage.finish(is_main_write);
    stage.say("the save in flight carries the exact horizon, the persisted one is still reserved");
    let exact = stage.world.store.saving().and_then(|record| record.write_horizon);
    assert!(exact < reserved, "{exact:?} is the end of what was offered (X-05)");
    stage.commit(&[Edit::Put(A, 2)]);
    stage.read_main();
    assert!(!stage.world.working().iter().any(|(_, work)| is_main_write(work)), "X-04");
    stage.say("a batch is offered only when a save behind it has reserved more");
    stage.finish(is_save);
    stage.finish(is_save);
    stage.finish(is_main_write);
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("X-I1");
}

// Hole 6, X-05: "the maximum ever offered" was counted from the start of the run. Save C then lowered
// the horizon below what the earlier run had left in the sink, and a promotion was accepted.
#[test]
fn a_restart_does_not_know_what_was_offered_and_keeps_the_horizon() {
    let mut stage = Stage::with(1, |config| config.limits.policies.slot_failover = true);
    stage.ready();
    stage.world.source.replicate(true);
    stage.say("the standby has everything up to here");
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.finish(is_save);
    let reserved = stage.horizon();
    stage.say("the write takes effect, and the process dies before it knows");
    stage.world.crash(false, |calls| calls);
    stage.world.start();
    stage.until(|work| matches!(work, Work::OpenStream { .. }));
    assert_eq!(stage.horizon(), reserved, "save C carries what was loaded (X-05)");
    stage.say("the standby takes over without the transaction: it must not be followed");
    stage.crash();
    stage.world.promote();
    stage.world.start();
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("P-F6");
}

// Hole 7, K-18 and DS-05: events of an adopted table were offered before its handover was saved, and a
// later adoption began with a new watermark although the rows stayed: they were applied twice.
#[test]
fn an_adopted_table_is_offered_nothing_before_its_handover_is_saved() {
    let mut stage = Stage::with(1, |config| config.limits.policies.copy = CopyFilter::None);
    stage.world.start();
    stage.until(is_begin);
    stage.world.trace.take();
    stage.finish(is_begin);
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.say("the save of the handover is in flight: the batch waits, and the process dies");
    assert!(!stage.world.working().iter().any(|(_, work)| is_main_write(work)), "K-18");
    stage.crash();
    stage.world.start();
    stage.settle();
    stage.read_main();
    stage.settle();
    stage.say("adopted again with the rows that are there: the watermark stays with them");
    stage.world.request(Request::Resync(A));
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("K-18");
}

// Hole 8, K-18 and T-06: a table found while running was adopted past its first changes. Only a later
// adoption of the same table was reported, so this loss was silent (O-10).
#[test]
fn the_gap_of_a_table_found_while_running_is_reported() {
    let mut stage = Stage::with(1, |config| config.limits.policies.copy = CopyFilter::None);
    stage.ready();
    let found = stage.world.source.create_table(true);
    stage.commit(&[Edit::Put(found, 1)]);
    stage.say("nobody owns the table when its first change comes");
    stage.read_main();
    stage.settle();
    stage.commit(&[Edit::Put(found, 2)]);
    stage.read_main();
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("O-10");
}

// Hole 9, A-14 and W-14: no idle position could be taken during a fence, not even by the private
// stream for which it was closed. A quiet table never passed main, and each fence ended by time.
#[test]
fn a_fence_is_ended_by_a_private_keepalive() {
    let mut stage = Stage::with(1, |config| config.limits.idle_checkpoint_ms = 1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    stage.world.source.unpublished(8);
    stage.world.jump();
    stage.say("main takes an idle position while the rows are copied");
    stage.world.keepalive(MAIN, true, false);
    stage.world.trace.take();
    stage.settle();
    while !stage.world.has_closed_fence() {
        stage.world.jump();
    }
    stage.say("everything is replayed, and the keepalive is all that will ever come");
    stage.world.keepalive(StreamId::Copy(A), true, false);
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("W-I4");
}

// Hole 10, H-02: an attempt was released only when its handover was saved. With the table quarantined
// before that no save ever held the handover: slot and lane stayed, and it was never copied again.
#[test]
fn a_quarantine_before_the_handover_is_saved_ends_the_attempt() {
    let mut stage = Stage::new(2);
    stage.world.start();
    stage.until(|work| matches!(work, Work::CloseReaders { table, .. } if *table == A));
    stage.finish_all_but(|work| matches!(work, Work::CloseReaders { .. }));
    stage.world.trace.take();
    stage.finish(|work| matches!(work, Work::CloseReaders { table, .. } if *table == B));
    stage.say("the handover of a is decided while that of b is being saved");
    stage.finish(|work| matches!(work, Work::CloseReaders { .. }));
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    let class = DestinationClass::Permanent;
    let blame = Blame::Tables { tables: vec![A], no_effect_on_others: true };
    refuse(&mut stage, FaultKind::Destination { class }, blame, is_main_write);
    stage.say("no save will ever hold it; the attempt is closed all the same");
    stage.settle();
    stage.world.request(Request::Resync(A));
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("T-I2");
}

// Hole 11, V-03: the owner's token was stored with its first save. A save that outlived its owner's
// lock was accepted after the new owner had loaded the record: the checkpoint went back behind it.
#[test]
fn a_save_that_outlives_its_owner_is_refused() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.until(is_save);
    stage.say("the process is gone, its save is still on its way");
    stage.crash();
    let before = stage.world.store.persisted().cloned();
    stage.world.start();
    assert!(stage.world.store.has_late());
    stage.world.store.comes_late();
    stage.say("the save arrives: the token of the next owner is there already");
    assert_eq!(stage.world.store.persisted(), before.as_ref(), "V-03");
    stage.settle();
    stage.read_main();
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("V-I2");
}
