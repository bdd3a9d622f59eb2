use super::rig::{
    A, B, C, Rig, TRANSIENT, at, destination, is_main_flush, is_main_write, is_save, tables_of,
};
use crate::batch::Durability;
use crate::effect::Work;
use crate::event::Event;
use crate::fault::{Blame, DestinationClass, FaultKind};
use crate::ids::{Attempt, StreamId, TableId};
use crate::input::Request;
use crate::lsn::{CommitLsn, Lsn};
use crate::notice::Notice;
use crate::record::{Phase, Policy};

fn only(tables: &[TableId]) -> Blame {
    Blame::Tables { tables: tables.to_vec(), no_effect_on_others: true }
}

// X-14, X-I6, X-09: the failed batch again without the table, and so all behind it; none without events
#[test]
fn a_table_at_fault_is_set_aside_and_the_others_go_on() {
    for (class, policy) in
        [(DestinationClass::Manual, Policy::Manual), (DestinationClass::Permanent, Policy::None)]
    {
        let mut rig = Rig::streaming(&[A, B], |_| ());
        rig.commit(110, &[A, B, A]);
        rig.commit(120, &[A]);
        rig.commit(130, &[B]);
        rig.fail(is_main_write, destination(class, only(&[A])));
        assert!(
            matches!(rig.phase(A), Some(Phase::Errored { policy: found, .. }) if found == policy)
        );
        assert!(rig.has_noticed(|n| *n == Notice::Quarantined { table: A }));
        rig.settle();
        let tables: Vec<_> = rig.offered.iter().map(|batch| tables_of(batch)).collect();
        assert_eq!(tables[0], [A, B, A]);
        assert_eq!(tables[1..].concat(), [B, B], "{tables:?}");
        assert!(tables.iter().all(|tables| !tables.is_empty()), "X-09: no call without an event");
        let view = rig.pipeline.view();
        assert_eq!(view.positions.checkpoint, at(131), "the checkpoint passes the removed events");
        assert_eq!(view.held_bytes, 0, "B-I4");
        assert!(rig.ended.is_none());
    }
    walferry_coverage::reached("X-I6");
}

// a batch of which nothing is left is covered
#[test]
fn a_batch_of_one_table_needs_no_second_call() {
    let mut rig = Rig::streaming(&[A], |_| ());
    rig.commit(110, &[A]);
    rig.fail(is_main_write, destination(DestinationClass::Manual, only(&[A, C])));
    rig.settle();
    assert_eq!(rig.offered.len(), 1);
    assert_eq!(rig.pipeline.view().positions.checkpoint, at(111));
}

// without one of the three properties the run ends; X-F9 for a table that is not in the batch
#[test]
fn an_error_that_is_not_confined_ends_the_run() {
    let manual = DestinationClass::Manual;
    let cases = [
        (manual, Blame::Unstated),
        (manual, Blame::Sink),
        (manual, Blame::Tables { tables: vec![A], no_effect_on_others: false }),
        (manual, only(&[])),
        (manual, only(&[TableId(77)])),
        (manual, only(&[B])),
        (DestinationClass::Fenced, only(&[A])),
    ];
    for (class, blame) in cases {
        let mut rig = Rig::streaming(&[A, B], |_| ());
        rig.commit(110, &[A]);
        rig.fail(is_main_write, destination(class, blame.clone()));
        rig.settle();
        assert_eq!(rig.failed(), Some(&FaultKind::Destination { class }), "{class:?} {blame:?}");
    }
    walferry_coverage::reached("X-F8");
    walferry_coverage::reached("X-F9");
}

// more than quarantines_per_hour end the run; after an hour it may go on
#[test]
fn too_many_quarantines_are_a_broken_sink() {
    for (pause_ms, ends) in [(0, true), (3_600_000, false)] {
        let mut rig = Rig::streaming(&[A, B], |limits| {
            limits.quarantines_per_hour = 1;
            limits.listing_ms = 80_000_000;
            limits.source_silence_ms = 80_000_000;
        });
        rig.commit(110, &[A, B]);
        rig.fail(is_main_write, destination(DestinationClass::Permanent, only(&[A])));
        rig.settle_but(is_main_write);
        rig.wait(pause_ms);
        rig.fail(is_main_write, destination(DestinationClass::Permanent, only(&[B])));
        rig.settle();
        assert_eq!(rig.ended.is_some(), ends, "after {pause_ms} ms");
    }
}

// X-16, DS-03: what is owed is flushed first, then the same batch comes again after its delay
#[test]
fn a_transient_failure_is_offered_again_behind_a_flush() {
    let mut rig = Rig::streaming(&[A], |_| ());
    rig.durability = Durability::Accepted;
    rig.commit(110, &[A]);
    rig.settle_but(is_main_flush);
    rig.commit(120, &[A]);
    rig.commit(130, &[A]);
    assert_eq!(rig.offered.len(), 2);
    rig.fail(is_main_write, destination(TRANSIENT, Blame::Unstated));
    assert!(rig.has_noticed(|n| matches!(n, Notice::MainRetry { failures: 1, .. })));
    assert!(rig.find(is_main_flush).is_some(), "the debt goes first");
    rig.wait(20_000);
    assert_eq!(rig.offered.len(), 2, "nothing is offered while it is owed");
    rig.finish(is_main_flush);
    assert_eq!(rig.offered.len(), 3);
    assert_eq!(rig.offered[1], rig.offered[2], "the same batch");
    rig.durability = Durability::Durable;
    rig.settle();
    assert_eq!(rig.pipeline.view().positions.checkpoint, at(131));
}

// X-16, Y-08, DS-10: not before the delay, nor before what the destination asks for
#[test]
fn the_next_try_waits_its_delay() {
    let after = core::time::Duration::from_secs(60);
    let asks = DestinationClass::Transient { retry_after: Some(after) };
    for (class, least, most) in [(TRANSIENT, 4_000, 6_000), (asks, 60_000, 60_000)] {
        let mut rig = Rig::streaming(&[A], |limits| limits.source_silence_ms = 80_000_000);
        rig.commit(110, &[A]);
        rig.fail(is_main_write, destination(class, Blame::Unstated));
        rig.wait(1_000);
        rig.settle();
        rig.wait(least - 1_001);
        assert_eq!(rig.offered.len(), 1);
        rig.wait(most - least + 1);
        assert_eq!(rig.offered.len(), 2);
    }
}

// Y-02, Y-I3: at most main_retries_max without progress
#[test]
fn a_sink_that_always_fails_ends_the_run() {
    let mut rig = Rig::streaming(&[A], |limits| {
        limits.main_retries_max = 2;
        limits.source_silence_ms = 80_000_000;
    });
    rig.commit(110, &[A]);
    for _ in 0..2 {
        rig.fail(is_main_write, destination(TRANSIENT, Blame::Unstated));
        rig.wait(400_000);
        rig.settle_but(is_main_write);
    }
    assert_eq!(rig.offered.len(), 3);
    rig.fail(is_main_write, destination(TRANSIENT, Blame::Unstated));
    rig.settle();
    assert_eq!(rig.failed(), Some(&FaultKind::Destination { class: TRANSIENT }));
    walferry_coverage::reached("Y-I3");
}

// X-15, model check 3: a batch that is offered again holds no event of an older attempt
#[test]
fn events_of_an_older_attempt_are_not_offered_again() {
    let mut rig = Rig::streaming(&[A, B], |_| ());
    rig.commit(110, &[A, B]);
    rig.fail(is_main_write, destination(TRANSIENT, Blame::Unstated));
    rig.request(Request::Resync(A));
    rig.settle();
    let copied = rig.pipeline.view().tables[0].clone();
    assert!(matches!(copied.phase, Phase::Ready { .. } | Phase::Catchup { .. }), "{copied:?}");
    rig.keepalive(StreamId::Main, 115);
    rig.commit(120, &[A]);
    rig.live(7_000);
    let again = &rig.offered[1];
    assert_eq!(tables_of(again)[0], B);
    let of_a = again.tables.iter().find(|entry| entry.table == A);
    let of_a = of_a.or_else(|| rig.offered[2].tables.iter().find(|entry| entry.table == A));
    assert_eq!(of_a.map(|entry| entry.attempt), Some(Attempt(3)), "the new event stays");
    assert_eq!(rig.pipeline.view().held_bytes, 0);
}

// the same for a table that left while the write was in flight
#[test]
fn what_left_during_the_write_is_not_offered_again() {
    for class in [TRANSIENT, DestinationClass::Manual] {
        let mut rig = Rig::streaming(&[A, B], |_| ());
        rig.commit(110, &[A, B]);
        rig.request(Request::Resync(A));
        rig.settle_but(is_main_write);
        rig.fail(is_main_write, destination(class, only(&[A])));
        rig.live(7_000);
        assert_eq!(tables_of(&rig.offered[1]), [B], "{class:?}");
        assert!(
            rig.ended.is_none() && !rig.has_noticed(|n| matches!(n, Notice::Quarantined { .. }))
        );
    }
}

// K-16: begin_copy waits for a write of main that holds events of the table
#[test]
fn a_copy_begins_behind_the_write_that_holds_its_events() {
    let mut rig = Rig::streaming(&[A], |_| ());
    rig.commit(110, &[A]);
    rig.request(Request::Resync(A));
    rig.settle_but(is_main_write);
    assert!(rig.find(is_main_write).is_some());
    assert_eq!(rig.pipeline.view().tables[0].copy.map(|copy| copy.step), Some("preparing"));
    rig.finish(is_main_write);
    assert!(rig.find(|work| matches!(work, Work::BeginCopy(_))).is_some());
}

// X-14, H-02, model check 10: a quarantined table whose handover is not saved yet is let go
#[test]
fn a_handover_that_is_not_saved_does_not_keep_a_quarantined_table() {
    let mut rig = Rig::new(&[A], |_| ());
    rig.settle_but(|work| matches!(work, Work::CloseReaders { .. }));
    rig.finish(|work| matches!(work, Work::CloseReaders { .. }));
    assert!(rig.find(is_save).is_some(), "the handover is being saved");
    rig.commit(110, &[A]);
    rig.fail(is_main_write, destination(DestinationClass::Manual, only(&[A])));
    rig.settle();
    assert_eq!(rig.pipeline.view().tables[0].copy, None);
    rig.request(Request::Retry(A));
    rig.settle();
    assert!(matches!(rig.phase(A), Some(Phase::Ready { .. })));
}

// K-23, DS-10: a full disk ends the run and stops no table
#[test]
fn an_attempt_that_blames_the_sink_ends_the_run() {
    let class = DestinationClass::Manual;
    let mut rig = Rig::new(&[A, B], |_| ());
    let begins = |work: &Work<u32>| matches!(work, Work::BeginCopy(_));
    rig.settle_but(begins);
    rig.fail(begins, destination(class, Blame::Sink));
    rig.settle();
    assert_eq!(rig.failed(), Some(&FaultKind::Destination { class }));
    let saved = rig.saved.unwrap();
    assert!(saved.tables.values().all(|entry| entry.phase == Phase::Pending && entry.tries == 0));
}

// a write that fails in a stop is offered again within the stop
#[test]
fn a_stop_waits_for_the_next_try() {
    let mut rig = Rig::streaming(&[A], |_| ());
    rig.commit(110, &[A]);
    rig.request(Request::Stop);
    rig.fail(is_main_write, destination(TRANSIENT, Blame::Unstated));
    rig.settle();
    assert!(rig.ended.is_none());
    rig.live(7_000);
    assert_eq!(rig.saved.as_ref().unwrap().checkpoint, Some(at(111)));
    assert!(rig.ended.is_some() && rig.failed().is_none());
}

// X-14 in mid-transaction: the rest of the transaction is dropped, too
#[test]
fn what_comes_behind_a_quarantine_is_dropped() {
    let mut rig = Rig::streaming(&[A, B], |_| ());
    let commit = CommitLsn(Lsn(110));
    let row = super::rig::row;
    rig.stream(StreamId::Main, vec![Event::Begin { commit, time_us: 0 }, row(A, 0), row(B, 1)]);
    rig.fail(is_main_write, destination(DestinationClass::Manual, only(&[A])));
    rig.stream(StreamId::Main, vec![row(A, 2), row(B, 3), Event::Commit { commit, end: at(111) }]);
    rig.settle();
    let again: Vec<_> = rig.offered[1..].iter().flat_map(|batch| tables_of(batch)).collect();
    assert_eq!(again, [B, B]);
}
