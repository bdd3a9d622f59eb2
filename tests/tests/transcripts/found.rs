//! What random games have found, one story each. Seeds change with the world; these do not. What was
//! wrong stands above each.

use walferry_core::batch::{DeliveryClass, Durability};
use walferry_core::effect::Work;
use walferry_core::fault::FaultKind;
use walferry_core::ids::Lane;
use walferry_core::notice::Outcome;
use walferry_core::policies::{CopyFilter, PromotionLoss};
use walferry_tests::coverage::reached;
use walferry_tests::world::row::Row;
use walferry_tests::world::source::Edit;
use walferry_tests::world::{MAIN, TRANSIENT};

use crate::stage::{A, B, Stage};

fn is_main_write(work: &Work<Row>) -> bool {
    matches!(work, Work::WriteChanges(batch) if batch.lane == Lane::Main)
}

fn is_flush(work: &Work<Row>) -> bool {
    matches!(work, Work::Flush { .. })
}

/// The oldest work of a kind takes effect, answers as if it had not, and the sink then loses it.
fn take_and_lose(stage: &mut Stage, is: impl Fn(&Work<Row>) -> bool) {
    let found = stage.world.working().into_iter().find(|(_, work)| is(work));
    let Some((op, _)) = found else { panic!("no such work: {:?}", stage.world.working()) };
    stage.world.perform_in_doubt(op, Durability::Accepted);
    stage.world.lose_accepted(|_| 0);
}

fn refuse(stage: &mut Stage, kind: FaultKind, is: impl Fn(&Work<Row>) -> bool) {
    let found = stage.world.working().into_iter().find(|(_, work)| is(work));
    let Some((op, _)) = found else { panic!("no such work: {:?}", stage.world.working()) };
    stage.world.refuse(op, kind);
}

/// Lets time pass until work of a kind is in flight; everything else ends at once.
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

// K-05, K-F16: a persistent copy slot that could not be removed was left to the next start, and kept
// WAL at the server until then.
#[test]
fn a_copy_slot_that_could_not_be_removed_is_tried_again() {
    let mut stage = Stage::with(1, |config| config.limits.policies.slot_failover = true);
    stage.world.start();
    stage.until(|work| matches!(work, Work::CloseCopy { .. }));
    stage.world.trace.take();
    stage.until(|work| matches!(work, Work::DropSlot { .. }));
    refuse(&mut stage, FaultKind::Transport, |work| matches!(work, Work::DropSlot { .. }));
    stage.say("the slot is still there when the monitor looks");
    wait(&mut stage, |work| matches!(work, Work::DropSlot { .. }));
    stage.settle();
    let left = stage.world.source.slots.keys().filter(|name| name.starts_with("walferry_copy_"));
    assert_eq!(left.count(), 0, "K-I4");
    insta::assert_snapshot!(stage.text());
    reached("K-F16");
}

// T-10: a tombstone goes with the save that moves the checkpoint to its listing. Where the checkpoint
// stood there already when the answer came, no such save followed: on a quiet source it stayed for ever.
#[test]
fn no_tombstone_is_kept_that_the_checkpoint_has_passed() {
    let mut stage = Stage::with(2, |config| config.limits.idle_checkpoint_ms = 1);
    stage.ready();
    stage.world.source.leave(B);
    stage.world.jump();
    stage.say("the checkpoint reaches the end of the WAL before the next listing");
    stage.world.keepalive(MAIN, true, false);
    stage.settle();
    wait(&mut stage, |work| matches!(work, Work::ListPublication));
    stage.settle();
    let record = stage.world.store.persisted().cloned().expect("a record");
    assert!(record.tombstones.is_empty() && !record.tables.contains_key(&B), "T-10");
    insta::assert_snapshot!(stage.text());
    reached("T-10");
}

// DS-03, X-16: a sink that has lost accepted work fails every write until it has failed a flush. A write
// that was taken and reported as failed leaves nothing owed in the eyes of the core: no flush was ever
// sent, and every write failed for ever.
#[test]
fn a_failed_write_may_have_been_taken_so_the_lane_is_flushed_first() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.say("the write is taken and reported as failed; then the sink loses it");
    take_and_lose(&mut stage, is_main_write);
    stage.say("only a flush can say so");
    stage.finish(is_flush);
    wait(&mut stage, |work| matches!(work, Work::OpenStream { .. }));
    stage.settle();
    stage.read_main();
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("DS-03");
    reached("DS-F3");
}

// DS-03, K-28: the same with rows of a copy.
#[test]
fn failed_rows_may_have_been_taken_so_their_lane_is_flushed_first() {
    let mut stage = Stage::new(1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::WriteRows(_)));
    stage.world.trace.take();
    stage.say("the rows are taken and reported as failed; then the sink loses them");
    take_and_lose(&mut stage, |work| matches!(work, Work::WriteRows(_)));
    wait(&mut stage, is_flush);
    stage.say("the flush says so, and the attempt begins anew");
    stage.finish(is_flush);
    wait(&mut stage, |work| matches!(work, Work::WriteRows(_)));
    stage.settle();
    insta::assert_snapshot!(stage.text());
    reached("DS-F3");
}

// F-04: what a failed flush left accepted was never flushed. Its batches were read again, but a table
// that had left meanwhile owed nothing any more, and the sink held its work for ever.
#[test]
fn what_a_failed_flush_left_is_flushed_once_more() {
    let mut stage = Stage::with(2, |config| config.destination.class = DeliveryClass::Append);
    stage.ready();
    stage.commit(&[Edit::Put(B, 1)]);
    stage.read_main();
    stage.world.perform_first(Durability::Accepted, is_main_write);
    stage.world.source.leave(B);
    wait(&mut stage, is_flush);
    stage.say("the flush fails, and the sink still holds what it has accepted");
    refuse(&mut stage, TRANSIENT, is_flush);
    wait(&mut stage, |work| matches!(work, Work::ListPublication));
    stage.settle();
    stage.say("b has left, so nothing of it is offered again");
    stage.read_main();
    stage.settle();
    wait(&mut stage, |work| is_flush(work) || matches!(work, Work::Monitor { .. }));
    stage.settle();
    assert!(!stage.world.destination.owes(Lane::Main), "F-04");
    insta::assert_snapshot!(stage.text());
    reached("F-F1");
}

// I-06, K-18: an adoption named the latest attempt. One that died before its `begin_copy` was named as
// well, and the sink then kept the watermark of the attempt before: after a re-creation that lies
// beyond the fork, and the changes of the new timeline were skipped silently.
#[test]
fn an_adoption_that_died_does_not_hide_a_re_creation() {
    let mut stage = Stage::with(1, |config| {
        let policies = &mut config.limits.policies;
        policies.copy = CopyFilter::None;
        policies.slot_failover = true;
        policies.promotion_loss = PromotionLoss::Resync;
    });
    stage.ready();
    stage.world.source.replicate(true);
    for key in 1..=4 {
        stage.commit(&[Edit::Put(A, key)]);
    }
    stage.read_main();
    stage.settle();
    stage.world.trace.take();
    stage.crash();
    stage.say("the standby takes over without what a has got already");
    stage.world.promote();
    stage.world.start();
    stage.until(|work| matches!(work, Work::BeginCopy(_)));
    stage.say("the slot is made again, and the adoption behind it dies");
    stage.crash();
    stage.world.start();
    stage.settle();
    stage.say("what follows is delivered, although its position was passed on the old timeline");
    stage.commit(&[Edit::Put(A, 5)]);
    stage.read_main();
    stage.settle();
    let keys = stage.world.destination.durable.get(&A).map(|target| target.keys().count());
    assert_eq!(keys, Some(1), "the change of the new timeline alone");
    insta::assert_snapshot!(stage.text());
    reached("I-06");
}

// T-12, PG-24: up to 17 a publication that was dropped and made again cannot decode what lies before.
// The server's error was taken for a transient one of the stream, and repeated until the budget ended.
#[test]
fn a_publication_is_made_again_before_17() {
    let mut stage = Stage::new(1);
    stage.world.source.version = 170_000;
    stage.ready();
    let xid = stage.world.source.begin();
    stage.world.source.execute(xid, Edit::Put(A, 1));
    stage.say("a transaction ends while there is no publication");
    stage.world.source.drop_publication();
    stage.world.source.commit_open(xid, 1, 1, 100);
    stage.world.source.create_publication();
    stage.read_main();
    stage.settle();
    let outcome = stage.world.take_outcome();
    let Some(Outcome::Failed { fault, .. }) = &outcome else { panic!("{outcome:?}") };
    assert!(matches!(fault.kind, FaultKind::PublicationMissing { .. }), "{fault}");
    insta::assert_snapshot!(stage.text());
    reached("T-F7");
}
