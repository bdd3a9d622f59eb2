use super::rig::{A, Rig, at, is_main_flush, is_main_write};
use crate::batch::Durability;
use crate::ids::StreamId;
use crate::input::Request;
use crate::lsn::{CommitLsn, Lsn};
use crate::notice::Notice;

fn held() -> Rig {
    let mut rig = Rig::streaming(&[A], |limits| limits.idle_checkpoint_ms = 1);
    rig.commit(110, &[A]);
    rig.settle();
    rig.request(Request::Hold);
    assert!(rig.has_noticed(|n| *n == Notice::Held { at: at(111) }));
    rig
}

fn is_advanced(notice: &Notice) -> bool {
    matches!(notice, Notice::Advanced { .. })
}

// L-07: exactly what lies below the position, durable, and nothing else
#[test]
fn a_verifier_sees_exactly_what_lies_below_its_position() {
    let mut rig = held();
    rig.durability = Durability::Accepted;
    rig.offered.clear();
    for commit in [120, 130, 140] {
        rig.commit(commit, &[A]);
    }
    rig.keepalive(StreamId::Main, 150);
    rig.settle();
    assert_eq!((rig.dispatched(), rig.offered.len()), (at(111), 0), "main stands");
    rig.request(Request::Advance(at(140)));
    rig.settle_but(is_main_flush);
    assert_eq!(rig.dispatched(), at(131));
    assert!(!rig.has_noticed(is_advanced), "not before it is durable");
    rig.finish(is_main_flush);
    assert!(rig.has_noticed(|n| *n == Notice::Advanced { to: at(140) }));
    let commits: Vec<_> =
        rig.offered.iter().flat_map(|batch| &batch.transactions).map(|part| part.commit).collect();
    assert_eq!(commits, [120, 130].map(|lsn| CommitLsn(Lsn(lsn))));
    rig.live(100);
    assert_eq!(rig.dispatched(), at(131), "and stands again");
    rig.request(Request::Release);
    rig.settle();
    assert_eq!(rig.dispatched(), at(141));
    assert!(rig.has_noticed(|n| *n == Notice::Released { expired: false }));
}

// L-07: nothing is answered before something at or past the position was read, and it is asked for
#[test]
fn an_idle_server_is_asked_where_it_is() {
    let mut rig = held();
    rig.request(Request::Advance(at(120)));
    rig.commit(115, &[A]);
    rig.settle();
    assert!(!rig.has_noticed(is_advanced), "a transaction below may still come");
    rig.live(60);
    assert!(rig.asked.contains(&StreamId::Main));
    rig.keepalive(StreamId::Main, 119);
    assert!(!rig.has_noticed(is_advanced));
    rig.keepalive(StreamId::Main, 120);
    rig.settle();
    assert!(rig.has_noticed(|n| *n == Notice::Advanced { to: at(120) }));
    rig.live(10);
    assert_eq!(rig.dispatched(), at(116), "no idle position is taken in a hold");
}

// L-07: in all at most fence_ms_max
#[test]
fn a_hold_ends_by_itself() {
    let mut rig = held();
    rig.live(29_000);
    rig.request(Request::Advance(at(112)));
    rig.commit(120, &[A]);
    rig.settle();
    assert!(rig.has_noticed(is_advanced));
    rig.live(1_000);
    assert!(rig.has_noticed(|n| *n == Notice::Released { expired: true }));
    assert_eq!(rig.dispatched(), at(121));
}

// L-07, X-16: a write that fails for good in a hold ends nothing but the wait
#[test]
fn a_hold_waits_for_a_write_that_is_offered_again() {
    let mut rig = held();
    rig.commit(120, &[A]);
    rig.commit(130, &[A]);
    rig.request(Request::Advance(at(125)));
    let fault = super::rig::destination(super::rig::TRANSIENT, crate::fault::Blame::Unstated);
    rig.fail(is_main_write, fault);
    assert!(!rig.has_noticed(is_advanced));
    rig.live(6_000);
    assert!(rig.has_noticed(is_advanced));
    assert_eq!(rig.dispatched(), at(121));
}

// L-07: hold and fence exclude each other
#[test]
fn a_hold_waits_for_the_fence_and_keeps_the_next_one_away() {
    let mut rig = Rig::replaying(&[A], |_| ());
    rig.request(Request::Hold);
    assert!(!rig.has_noticed(|n| matches!(n, Notice::Held { .. })), "a fence is closed");
    rig.live(2_000);
    assert!(rig.has_noticed(|n| *n == Notice::Held { at: at(121) }));
    let closed =
        |rig: &Rig| rig.notices.iter().filter(|n| matches!(n, Notice::FenceClosed { .. })).count();
    assert_eq!(closed(&rig), 1);
    rig.live(5_000);
    assert_eq!(closed(&rig), 1, "no fence in a hold");
    rig.request(Request::Release);
    assert_eq!(closed(&rig), 2);
}

// L-07
#[test]
fn what_makes_no_sense_is_refused() {
    let refused = |rig: &Rig| {
        rig.notices.iter().filter(|n| matches!(n, Notice::RequestRefused { .. })).count()
    };
    let mut rig = Rig::streaming(&[A], |_| ());
    rig.request(Request::Advance(at(120)));
    rig.request(Request::Release);
    assert_eq!(refused(&rig), 2);
    let mut rig = held();
    rig.request(Request::Hold);
    rig.request(Request::Advance(at(110)));
    assert_eq!(refused(&rig), 2, "held already; main is past 110");
    rig.request(Request::Stop);
    assert!(rig.has_noticed(|n| *n == Notice::Released { expired: false }));
    rig.request(Request::Hold);
    assert_eq!(refused(&rig), 3, "stopping");
    assert_eq!(refused(&Rig::new(&[A], |_| ())), 0);
    let mut rig = Rig::new(&[A], |_| ());
    rig.request(Request::Hold);
    assert_eq!(refused(&rig), 1, "not streaming yet");
}
