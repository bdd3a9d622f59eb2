use core::time::Duration;

use super::rig::{A, B, Rig, at, row, transaction};
use crate::effect::Work;
use crate::event::Event;
use crate::fault::{Fault, FaultKind, Origin};
use crate::ids::{StreamId, TableId};
use crate::input::{Input, Request};
use crate::lsn::{CommitLsn, Lsn};
use crate::notice::{FenceEnd, Notice};
use crate::record::Phase;

const PRIVATE: StreamId = StreamId::Copy(A);

fn opened(rig: &Rig) -> Vec<(TableId, u128, FenceEnd)> {
    let opened = rig.notices.iter().filter_map(|notice| {
        if let Notice::FenceOpened { table, held, why } = notice {
            Some((*table, held.as_millis(), *why))
        } else {
            None
        }
    });
    opened.collect()
}

fn closed(rig: &Rig) -> Vec<TableId> {
    let closed = rig.notices.iter().filter_map(|notice| {
        if let Notice::FenceClosed { table, .. } = notice { Some(*table) } else { None }
    });
    closed.collect()
}

// W-13, W-14, W-15, A-14: main holds, the private stream is asked, the table passes and hands over
#[test]
fn main_holds_until_the_table_has_passed_it() {
    let mut rig = Rig::replaying(&[A], |limits| limits.idle_checkpoint_ms = 1);
    assert!(rig.has_noticed(|n| *n == Notice::FenceClosed { table: A, at: at(121) }));
    assert_eq!(rig.asked, [PRIVATE], "a keepalive is asked for at once");
    rig.keepalive(StreamId::Main, 125);
    rig.live(10);
    assert_eq!(rig.dispatched(), at(121), "no idle position is taken");
    rig.commit(130, &[A]);
    rig.live(20);
    assert_eq!(rig.dispatched(), at(121), "nothing is dispatched");
    rig.stream(PRIVATE, transaction(120, &[A]));
    rig.settle();
    assert_eq!(rig.phase(A), Some(Phase::Ready { handover: at(121) }));
    assert_eq!(opened(&rig), [(A, 30, FenceEnd::HandedOver)]);
    assert_eq!(rig.dispatched(), at(131), "what was held goes on");
    let written = rig.offered.last().map(|batch| batch.transactions[0].commit);
    assert_eq!(written, Some(CommitLsn(Lsn(130))), "and belongs to main");
}

// W-14, A-14, W-F8: a private stream takes an idle position during a fence
#[test]
fn a_keepalive_is_enough_during_a_fence() {
    let mut rig = Rig::replaying(&[A], |_| ());
    rig.stream(PRIVATE, transaction(120, &[]));
    rig.keepalive(PRIVATE, 150);
    rig.settle();
    assert_eq!(opened(&rig).len(), 1);
    assert!(rig.phase(A).and_then(|phase| phase.handover()) >= Some(at(121)));
    walferry_coverage::reached("W-F8");
}

// W-14: it asks again soon, because the first answer may come from too far behind
#[test]
fn the_keepalive_is_asked_for_again_while_the_fence_is_closed() {
    let mut rig = Rig::replaying(&[A], |_| ());
    rig.keepalive(PRIVATE, 110);
    rig.live(60);
    assert_eq!(rig.asked, [PRIVATE, PRIVATE]);
}

// W-15, W-16, W-17
#[test]
fn a_fence_that_opens_by_time_doubles_and_leaves_main_free_as_long() {
    let mut rig = Rig::replaying(&[A], |limits| limits.fence_ms_max = 5_000);
    let mut lasted = Vec::new();
    for _ in 0..4 {
        let before = opened(&rig).len();
        rig.commit(rig.head + 9, &[A]);
        let held = rig.dispatched();
        while opened(&rig).len() == before {
            assert_eq!(rig.dispatched(), held);
            rig.live(10);
        }
        let (_, ms, why) = opened(&rig)[before];
        assert_eq!(why, FenceEnd::Expired);
        lasted.push(ms);
        assert!(rig.dispatched() > held, "main goes on");
        let fences = closed(&rig).len();
        rig.live(u64::try_from(ms).unwrap() - 20);
        assert_eq!(closed(&rig).len(), fences, "main runs free");
        rig.live(40);
        assert_eq!(closed(&rig).len(), fences + 1, "and not for longer");
    }
    assert_eq!(lasted, [2_000, 4_000, 5_000, 5_000]);
    walferry_coverage::reached("W-I2");
}

// W-16: also a handover in the pause behind the fence
#[test]
fn a_handover_resets_how_long_a_fence_may_last() {
    let mut rig = Rig::replaying(&[A], |_| ());
    rig.live(2_000);
    rig.stream(PRIVATE, transaction(120, &[A]));
    rig.settle();
    assert!(rig.phase(A).and_then(|phase| phase.handover()).is_some(), "in the pause");
    rig.request(Request::Resync(A));
    rig.settle_but(|work| matches!(work, Work::FinishCopy { .. }));
    rig.commit(150, &[A]);
    rig.settle();
    rig.live(6_000);
    assert_eq!(opened(&rig), [(A, 2_000, FenceEnd::Expired); 2]);
}

// W-13: a partly dispatched transaction is finished first; the hold begins behind it
#[test]
fn main_finishes_the_transaction_that_it_dispatched_in_part() {
    let mut rig = Rig::new(&[A, B], |_| ());
    rig.settle_but(|work| matches!(work, Work::FinishCopy { table: A, .. }));
    let commit = CommitLsn(Lsn(120));
    rig.stream(StreamId::Main, vec![Event::Begin { commit, time_us: 0 }, row(B, 0)]);
    rig.settle();
    assert_eq!(rig.dispatched(), at(121), "in part");
    rig.live(100);
    assert!(closed(&rig).is_empty(), "main does not hold yet");
    let mut rest = vec![row(B, 1), Event::Commit { commit, end: at(130) }];
    rest.extend(transaction(140, &[B]));
    rig.stream(StreamId::Main, rest);
    rig.settle();
    assert_eq!(rig.dispatched(), at(130), "to the boundary and not past it");
    assert!(rig.has_noticed(|n| *n == Notice::FenceClosed { table: A, at: at(130) }));
    rig.live(2_000);
    assert_eq!(opened(&rig), [(A, 2_000, FenceEnd::Expired)], "counted from the hold on");
}

// W-15, W-F9
#[test]
fn a_fence_opens_when_its_attempt_fails_and_when_the_run_stops() {
    let mut rig = Rig::replaying(&[A], |_| ());
    let fault = Fault::found(Origin::Source, FaultKind::Transport);
    let session = rig.session(PRIVATE);
    rig.handle(Input::StreamEnded { stream: PRIVATE, session, fault });
    assert_eq!(opened(&rig), [(A, 0, FenceEnd::AttemptOver)]);

    let mut rig = Rig::replaying(&[A], |_| ());
    let code = crate::fault::SqlState(*b"57P01");
    let fault = Fault::found(Origin::Source, FaultKind::Server { code });
    let session = rig.session(StreamId::Main);
    rig.handle(Input::StreamEnded { stream: StreamId::Main, session, fault });
    assert_eq!(opened(&rig), [(A, 0, FenceEnd::Interrupted)], "the main stream is lost");

    let mut rig = Rig::replaying(&[A], |_| ());
    rig.commit(130, &[]);
    rig.request(Request::Stop);
    assert_eq!(opened(&rig), [(A, 0, FenceEnd::Interrupted)]);
    rig.settle();
    assert!(rig.ended.is_some(), "what was held is drained");
    walferry_coverage::reached("W-F9");
}

// W-13: not for a table that is far behind
#[test]
fn no_fence_for_a_table_that_is_far_behind() {
    let mut rig = Rig::new(&[A], |limits| limits.fence_bytes = 4_096);
    rig.settle_but(|work| matches!(work, Work::FinishCopy { table: A, .. }));
    rig.commit(100 + 4_096, &[A]);
    rig.settle();
    rig.live(100);
    assert!(closed(&rig).is_empty());
    rig.stream(PRIVATE, transaction(101, &[A]));
    rig.settle();
    assert_eq!(closed(&rig), [A], "now it is near");
}

// W-15: waiting tables are served in turn, one at a time
#[test]
fn tables_take_turns() {
    let mut rig = Rig::new(&[A, B], |_| ());
    rig.settle_but(|work| matches!(work, Work::FinishCopy { .. }));
    rig.commit(120, &[A]);
    rig.settle();
    rig.live(20_000);
    let order = closed(&rig);
    assert_eq!(order[..4], [A, B, A, B], "{order:?}");
}

// W-18
#[test]
fn a_table_that_does_not_come_closer_is_reported() {
    let mut rig = Rig::new(&[A], |limits| limits.fence_bytes = 4_096);
    rig.settle_but(|work| matches!(work, Work::FinishCopy { table: A, .. }));
    rig.commit(10_000, &[A]);
    rig.settle();
    let mut minutes = 0;
    while !rig.has_noticed(|n| matches!(n, Notice::NotConverging { .. })) {
        rig.keepalive(PRIVATE, 100);
        rig.wait(10_000);
        rig.keepalive(StreamId::Main, 100);
        rig.settle();
        minutes += 1;
        assert!(minutes < 6 * 20, "never reported");
    }
    assert!(rig.now.since(crate::time::Instant(0)) >= Duration::from_secs(600), "not before");
    assert!(rig.has_noticed(|n| *n == Notice::NotConverging { table: A, behind: 10_001 - 100 }));
}
